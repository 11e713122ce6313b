/* gguf_writing.c - see gguf_writing.h. */
#include "engine/gguf/gguf_writing.h"

#include <math.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/gguf_json.h"

int writing_no_memory(const struct gguf_writing *w) {
    return error_set(w->err, ERR_NOMEM, "%.200s: no memory for its settings", w->label);
}

const struct gguf_value *writing_key(const struct gguf_writing *w, const char *key) {
    char name[WRITING_NAME_BYTES];
    snprintf(name, sizeof(name), "%s.%s", w->architecture->name, key);
    return gguf_find(w->keys, name);
}

int writing_refuse(const struct gguf_writing *w, int code, const char *key, const char *why) {
    return error_set(w->err, code, "%.200s: '%s.%.100s' %s", w->label, w->architecture->name, key,
                     why);
}

int writing_put(const struct gguf_writing *w, json_t *object, const char *name, json_t *value) {
    return json_object_set_new_nocheck(object, name, value) ? writing_no_memory(w) : 0;
}

double writing_number(const struct gguf_writing *w, const char *name) {
    return json_number_value(json_object_get(w->config, name));
}

double writing_number_at(const struct gguf_writing *w, const char *key, size_t layer) {
    const struct gguf_value *value = writing_key(w, key);
    struct gguf_value one;
    double number = 0;
    if (value && value->type == GGUF_ARRAY) {
        if (layer >= value->n || value->element == GGUF_STRING || value->element == GGUF_ARRAY)
            return 0;
        one = gguf_element(value, layer);
        value = &one;
    }
    gguf_number(value, &number);
    return number;
}

double writing_head_dim(const struct gguf_writing *w) {
    const double dim = writing_number(w, "head_dim"),
                 heads = writing_number(w, "num_attention_heads");
    return dim > 0 ? dim : heads > 0 ? floor(writing_number(w, "hidden_size") / heads) : 0;
}
