/* gguf_recurrent.c - which layers of a GGUF file are recurrent, and of what sizes: see
 * gguf_writing.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/gguf_json.h"
#include "engine/gguf/gguf_writing.h"

/* Writes ssm.inner_size divided by a number that has been written: which must be whole. */
static int put_quotient(const struct gguf_writing *w, const char *divisor, const char *divisor_key,
                        const char *name) {
    static const char key[] = "ssm.inner_size";
    const double n = writing_number(w, divisor);
    double width = 0;
    char why[WRITING_NAME_BYTES];
    gguf_number(writing_key(w, key), &width);
    const double quotient = n > 0 ? width / n : 0;
    if (quotient >= 1 && quotient == floor(quotient) && quotient < WRITING_MAX_LIST)
        return writing_put(w, w->config, name, json_integer((json_int_t)quotient));
    snprintf(why, sizeof(why), "is no multiple of '%s'", divisor_key);
    return writing_refuse(w, ERR_INVALID, key, why);
}

static const char heads_key[] = "attention.head_count_kv", width_key[] = "feed_forward_length";

/* Takes what a layer has as what all layers have, but for those with 0. */
static int join(const struct gguf_writing *w, const char *key, double n, double *common) {
    if (n > 0 && *common > 0 && n != *common)
        return writing_refuse(w, ERR_UNSUPPORTED, key, "differs between layers that have some");
    if (n > 0) *common = n;
    return 0;
}

/* Returns the type of a layer. */
typedef const char *type_of_layer(const struct gguf_writing *w, size_t layer);

static const char *attends_or(const struct gguf_writing *w, size_t layer, const char *type) {
    return writing_number_at(w, heads_key, layer) > 0 ? "full_attention" : type;
}

static const char *conv_type(const struct gguf_writing *w, size_t layer) {
    return attends_or(w, layer, "conv");
}

static const char *mamba_type(const struct gguf_writing *w, size_t layer) {
    return attends_or(w, layer, "mamba");
}

/* Writes the types of all layers under this name, and the KV heads of those that attend. */
static int put_layers(const struct gguf_writing *w, const char *name, type_of_layer *type_of) {
    const double n_layers = writing_number(w, "num_hidden_layers");
    double n_heads = 0;
    json_t *types = json_array();
    int rc = types ? 0 : writing_no_memory(w);
    for (size_t i = 0; i < n_layers && i < WRITING_MAX_LIST && !rc; i++) {
        json_array_append_new(types, json_string(type_of(w, i)));
        rc = join(w, heads_key, writing_number_at(w, heads_key, i), &n_heads);
    }
    if (rc) json_decref(types);
    else rc = writing_put(w, w->config, name, types);
    return rc ? rc
              : writing_put(w, w->config, "num_key_value_heads", json_integer((json_int_t)n_heads));
}

/* Writes what else LFM2 has: the width of feed-forward parts is what is said. */
static int put_convolutions(const struct gguf_writing *w) {
    char bias[WRITING_NAME_BYTES];
    snprintf(bias, sizeof(bias), "blk.%.0f.exp_probs_b.bias",
             writing_number(w, "num_dense_layers"));
    int rc = put_layers(w, "layer_types", conv_type);
    if (!rc) rc = writing_put(w, w->config, "block_auto_adjust_ff_dim", json_false());
    return rc ? rc
              : writing_put(w, w->config, "use_expert_bias",
                            json_boolean(gguf_files_find(w->files, bias)));
}

/* Writes what else Granite 4 H has.  Of a model without experts either key is the width of its
 * feed-forward parts. */
static int put_mamba(const struct gguf_writing *w) {
    static const char experts[] = "num_local_experts", width[] = "shared_intermediate_size";
    const bool rotates = gguf_truth(writing_key(w, "rope.scaling.finetuned"), true);
    int rc = put_layers(w, "layer_types", mamba_type);
    if (!rc) rc = put_quotient(w, "mamba_n_heads", "ssm.time_step_rank", "mamba_d_head");
    if (!rc) rc = put_quotient(w, "hidden_size", "embedding_length", "mamba_expand");
    if (!rc)
        rc = writing_put(w, w->config, "position_embedding_type",
                         json_string(rotates ? "rope" : "nope"));
    if (rc || json_object_get(w->config, experts)) return rc;
    rc = writing_put(w, w->config, experts, json_integer(0));
    if (rc || json_object_get(w->config, width)) return rc;
    return writing_put(w, w->config, width,
                       json_incref(json_object_get(w->config, "intermediate_size")));
}

/* Returns what the only part of a layer is. */
static const char *part_of(const struct gguf_writing *w, size_t layer) {
    char experts[WRITING_NAME_BYTES];
    snprintf(experts, sizeof(experts), "blk.%zu.ffn_up_exps.weight", layer);
    if (writing_number_at(w, width_key, layer) == 0)
        return attends_or(w, layer, "linear_attention");
    return attends_or(w, layer, gguf_files_find(w->files, experts) ? "moe" : "mlp");
}

/* Writes what the layers of Nemotron-H are, and the width of those that are dense. */
static int put_parts(const struct gguf_writing *w) {
    const double n_layers = writing_number(w, "num_hidden_layers");
    double width = 0;
    int rc = put_layers(w, "layers_block_type", part_of);
    for (size_t i = 0; i < n_layers && i < WRITING_MAX_LIST && !rc; i++)
        if (strcmp(part_of(w, i), "mlp") == 0)
            rc = join(w, width_key, writing_number_at(w, width_key, i), &width);
    if (width == 0) width = writing_number(w, "moe_intermediate_size");
    if (!rc) rc = writing_put(w, w->config, "intermediate_size", json_integer((json_int_t)width));
    return rc ? rc : put_quotient(w, "mamba_num_heads", "ssm.time_step_rank", "mamba_head_dim");
}

int gguf_put_recurrent(const struct gguf_writing *w) {
    const unsigned traits = w->architecture->traits;
    if (traits & GGUF_ONE_PART) return put_parts(w);
    if (traits & GGUF_CONVOLUTIONS) return put_convolutions(w);
    if (traits & GGUF_MAMBA) return put_mamba(w);
    if (!(traits & GGUF_RECURRENT)) return 0;
    return put_quotient(w, "linear_num_value_heads", "ssm.time_step_rank", "linear_value_head_dim");
}
