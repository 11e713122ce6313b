/* gguf_two_heads.c - files whose layers with a window have heads, and maybe widths, of their own:
 * see gguf_writing.h. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/gguf_json.h"
#include "engine/gguf/gguf_writing.h"

static bool has_window(const struct gguf_writing *w, size_t layer) {
    const json_t *types = json_object_get(w->config, "layer_types");
    return strcmp(json_string_value(json_array_get(types, layer)), "sliding_attention") == 0;
}

/* Writes the KV heads: those of layers with a window, and those of each other layer. */
static int put_layer_heads(const struct gguf_writing *w, size_t n_layers) {
    static const char key[] = "attention.head_count_kv";
    const double dim = writing_number_at(w, "attention.key_length", 0);
    json_t *own = json_object();
    double windowed = 0;
    char number[32], tensor[WRITING_NAME_BYTES];
    int rc = own ? 0 : writing_no_memory(w);
    for (size_t i = 0; i < n_layers && !rc; i++) {
        const double n = writing_number_at(w, key, i);
        if (has_window(w, i)) {
            if (windowed > 0 && n != windowed)
                rc =
                    writing_refuse(w, ERR_UNSUPPORTED, key, "differs between layers with a window");
            windowed = n;
            continue;
        }
        snprintf(number, sizeof(number), "%zu", i);
        snprintf(tensor, sizeof(tensor), "blk.%zu.attn_v.weight", i);
        if (json_object_size(own) == 0)
            rc = writing_put(w, w->config, "attention_k_eq_v",
                             json_boolean(!gguf_files_find(w->files, tensor)));
        if (!rc)
            rc = writing_put(w, own, number,
                             json_pack("{s:I, s:I}", "head_dim", (json_int_t)dim,
                                       "num_key_value_heads", (json_int_t)n));
    }
    if (!rc)
        rc = writing_put(w, w->config, "num_key_value_heads", json_integer((json_int_t)windowed));
    if (!rc) rc = writing_put(w, w->config, "per_layer_config", json_incref(own));
    json_decref(own);
    return rc;
}

/* Writes the width of the feed-forward parts, which is twice as much in layers that share keys, or
 * not. */
static int put_widths(const struct gguf_writing *w, size_t n_layers) {
    static const char key[] = "feed_forward_length";
    const size_t n_shared = (size_t)writing_number(w, "num_kv_shared_layers");
    const double width = writing_number_at(w, key, 0),
                 last = writing_number_at(w, key, n_layers - 1);
    const bool is_double = n_shared > 0 && last == 2 * width;
    for (size_t i = 0; i < n_layers; i++)
        if (writing_number_at(w, key, i) != width * (is_double && i + n_shared >= n_layers ? 2 : 1))
            return writing_refuse(w, ERR_UNSUPPORTED, key, "differs between layers");
    const int rc = writing_put(w, w->config, "intermediate_size", json_integer((json_int_t)width));
    return rc ? rc : writing_put(w, w->config, "use_double_wide_mlp", json_boolean(is_double));
}

/* Returns the share of the larger heads' pairs that rotate.  Their factors in the tensor are 1, and
 * the others' so large that nothing turns.  0: the tensor is not like that. */
static double rotated_share(const struct gguf_writing *w) {
    const struct gguf_tensor *t = gguf_files_find(w->files, GGUF_ROPE_FREQS);
    const double n_pairs = writing_number_at(w, "attention.key_length", 0) / 2;
    uint32_t n = 0;
    if (!t || t->n_dims != 1 || t->element != ELEMENT_F32 || t->dims[0] != n_pairs) return 0;
    const float *factors = t->data;
    while (n < t->dims[0] && factors[n] == 1) n++;
    for (uint32_t i = n; i < t->dims[0]; i++)
        if (!(factors[i] >= 1e30F)) return 0;
    return n / n_pairs;
}

static int put_two_ropes(const struct gguf_writing *w) {
    const double share = rotated_share(w);
    if (share == 0)
        return error_set(w->err, ERR_UNSUPPORTED,
                         "%.200s: tensor '%s' is no list of ones and then of 1e30, one for each "
                         "pair of a head",
                         w->label, GGUF_ROPE_FREQS);
    return writing_put(
        w, w->config, "rope_parameters",
        json_pack("{s:{s:s, s:f, s:f}, s:{s:s, s:f}}", "full_attention", "rope_type",
                  "proportional", "partial_rotary_factor", share, "rope_theta",
                  writing_number_at(w, "rope.freq_base", 0), "sliding_attention", "rope_type",
                  "default", "rope_theta", writing_number_at(w, "rope.freq_base_swa", 0)));
}

/* Checks that values are as long as keys, and that whole heads rotate. */
static int check_two_heads(const struct gguf_writing *w) {
    static const char *const keys[][2] = {
        {"attention.value_length", "attention.key_length"},
        {"rope.dimension_count", "attention.key_length"},
        {"attention.value_length_swa", "attention.key_length_swa"},
        {"rope.dimension_count_swa", "attention.key_length_swa"}};
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        if (writing_key(w, keys[i][0]) &&
            writing_number_at(w, keys[i][0], 0) != writing_number_at(w, keys[i][1], 0))
            return writing_refuse(w, ERR_UNSUPPORTED, keys[i][0], "is not the length of keys");
    return 0;
}

int gguf_put_two_heads(const struct gguf_writing *w) {
    const json_t *types = json_object_get(w->config, "layer_types");
    const struct gguf_tensor *inputs = gguf_files_find(w->files, "per_layer_token_embd.weight");
    const size_t n_layers = json_array_size(types);
    if (n_layers == 0 || (double)n_layers != writing_number(w, "num_hidden_layers"))
        return writing_refuse(w, ERR_INVALID, "attention.sliding_window_pattern",
                              "is no list of one for each layer, or missing");
    int rc = check_two_heads(w);
    if (!rc) rc = put_layer_heads(w, n_layers);
    if (!rc) rc = put_widths(w, n_layers);
    if (!rc) rc = put_two_ropes(w);
    if (!rc && json_object_get(w->config, "num_experts"))
        rc = writing_put(w, w->config, "enable_moe_block", json_true());
    if (rc || !inputs || inputs->n_dims != 2) return rc;
    return writing_put(w, w->config, "vocab_size_per_layer_input", json_integer(inputs->dims[0]));
}
