/* gguf_rope.c - how keys or tensors of a GGUF file scale frequencies: see gguf_writing.h. */
#include <string.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/gguf_json.h"
#include "engine/gguf/gguf_writing.h"

static const char freqs[] = GGUF_ROPE_FREQS, long_factors[] = "rope_factors_long.weight",
                  short_factors[] = "rope_factors_short.weight";

bool gguf_config_reads(const char *tensor) {
    return strcmp(tensor, freqs) == 0 || strcmp(tensor, long_factors) == 0 ||
           strcmp(tensor, short_factors) == 0;
}

/* Writes the factors of a tensor as a list. */
static int put_factors(const struct gguf_writing *w, const char *tensor, const char *name) {
    const struct gguf_tensor *t = gguf_files_find(w->files, tensor);
    if (!t || t->n_dims != 1 || t->element != ELEMENT_F32 || t->dims[0] > WRITING_MAX_LIST)
        return error_set(w->err, ERR_INVALID, "%.200s: tensor '%s' is no vector of F32, or missing",
                         w->label, tensor);
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < t->dims[0]; i++) {
        json_t *factor = json_real(((const float *)t->data)[i]); /* NULL: it is not finite */
        if (factor && !json_array_append_new(list, factor)) continue;
        json_decref(list);
        return error_set(w->err, ERR_INVALID, "%.200s: tensor '%s' has a number that is not finite",
                         w->label, tensor);
    }
    return writing_put(w, w->rope, name, list);
}

/* Writes frequencies that tensors divide.  Llama's have one list, and no other scaling. */
static int put_divided(const struct gguf_writing *w, const char *long_tensor,
                       const char *short_tensor) {
    int rc = put_factors(w, long_tensor, "long_factor");
    if (!rc) rc = put_factors(w, short_tensor, "short_factor");
    if (!rc) rc = writing_put(w, w->rope, "rope_type", json_string("longrope"));
    if (!rc && !json_object_get(w->rope, "original_max_position_embeddings"))
        rc = writing_put(w, w->rope, "original_max_position_embeddings",
                         json_incref(json_object_get(w->config, "max_position_embeddings")));
    return rc;
}

/* Drops a factor of 1: here it multiplies what config.json's would replace. */
static int drop_attention_factor(const struct gguf_writing *w) {
    static const char key[] = "rope.scaling.attn_factor";
    double factor = 1;
    json_object_del(w->rope, "attention_factor");
    if (!writing_key(w, key) || (gguf_number(writing_key(w, key), &factor) && factor == 1))
        return 0;
    return writing_refuse(w, ERR_UNSUPPORTED, key, "is not 1");
}

/* Writes the scaling that keys name. */
static int put_scaling(const struct gguf_writing *w) {
    const struct gguf_value *type = writing_key(w, "rope.scaling.type"),
                            *factor = writing_key(w, "rope.scaling.factor");
    json_t *name = type ? gguf_to_json(type) : json_string("none");
    const char *text = json_string_value(name);
    int rc = drop_attention_factor(w);
    if (rc) goto done;
    if (text && (strcmp(text, "linear") == 0 || strcmp(text, "yarn") == 0)) {
        rc = writing_put(w, w->rope, "rope_type", json_incref(name));
        if (!rc && w->architecture->traits & GGUF_EXACT_YARN)
            rc = writing_put(w, w->rope, "truncate", json_false());
        if (!rc && factor) rc = writing_put(w, w->rope, "factor", gguf_to_json(factor));
        /* llama.cpp divides the scale of 1 by that of this number. */
        if (!rc && json_object_get(w->rope, "mscale_all_dim"))
            rc = writing_put(w, w->rope, "mscale", json_real(1));
    } else if (text && strcmp(text, "none") == 0) {
        json_object_clear(w->rope);
    } else {
        rc = writing_refuse(w, ERR_UNSUPPORTED, "rope.scaling.type",
                            "is not none, linear or yarn, and no tensors have its factors");
    }

done:
    json_decref(name);
    return rc;
}

int gguf_put_rope(const struct gguf_writing *w) {
    int rc;
    if (gguf_files_find(w->files, long_factors)) rc = put_divided(w, long_factors, short_factors);
    else if (gguf_files_find(w->files, freqs)) rc = put_divided(w, freqs, freqs);
    else rc = put_scaling(w);
    if (rc || json_object_size(w->rope) == 0) return rc;
    return writing_put(w, w->config, "rope_scaling", json_incref(w->rope));
}
