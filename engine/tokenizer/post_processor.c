/* post_processor.c - what the post-processor puts around a text: TemplateProcessing, and sequences.
 *
 * Thread: the loading one.  Memory: the tokenizer owns the ids. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"

static int load_special(struct tokenizer *t, const json_t *template, const json_t *special,
                        struct token_list *out, struct error *err) {
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(template, "special_tokens"), name), "ids");
    if (!json_is_array(ids))
        return error_set(err, ERR_INVALID, "tokenizer.json: a template's token has no ids");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *given = json_array_get(ids, i);
        const json_int_t id = json_is_integer(given) ? json_integer_value(given) : -1;
        if (id < 0 || id >= t->n_tokens || !t->tokens[id].exists) {
            return error_set(err, ERR_INVALID, "tokenizer.json: a template's token does not exist");
        }
        const uint32_t value = (uint32_t)id;
        if (token_list_append(out, &value, 1)) return ERR_NOMEM;
    }
    return 0;
}

/* Puts before in front of list, and leaves before empty. */
static int prepend(struct token_list *list, struct token_list *before) {
    const int rc = token_list_append(before, list->ids, list->n);
    free(list->ids);
    *list = *before;
    *before = (struct token_list){0};
    return rc;
}

/* Loads "single": the ids before the sequence A and after it.  A later template wraps the
 * earlier. */
static int load_template(struct tokenizer *t, const json_t *template, struct error *err) {
    struct token_list before = {0};
    const json_t *single = json_object_get(template, "single");
    size_t n_sequences = 0;
    int rc = 0;
    for (size_t i = 0; i < json_array_size(single) && rc == 0; i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *sequence = json_object_get(piece, "Sequence");
        const char *name = json_string_value(json_object_get(sequence, "id"));
        if (sequence) {
            n_sequences += name && strcmp(name, "A") == 0 ? 1 : 2;
        } else {
            rc = load_special(t, template, json_object_get(piece, "SpecialToken"),
                              n_sequences == 0 ? &before : &t->suffix, err);
        }
    }
    if (rc == 0) rc = prepend(&t->prefix, &before);
    if (rc == 0 && n_sequences != 1)
        rc = refuse(err, "a template that does not name A once in", "single");
    free(before.ids);
    return rc;
}

static int load_processor(struct tokenizer *t, const json_t *component, size_t depth,
                          struct error *err) {
    const char *type = component_type(component);
    if (!component || json_is_null(component) || strcmp(type, "ByteLevel") == 0)
        return 0; /* ByteLevel changes only offsets */
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, component, err);
    if (strcmp(type, "Sequence") != 0 || depth == MAX_STEPS)
        return refuse(err, "post-processor", type);
    const json_t *list = json_object_get(component, "processors");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const int rc = load_processor(t, json_array_get(list, i), depth + 1, err);
        if (rc) return rc;
    }
    return 0;
}

int post_processor_load(struct tokenizer *t, const json_t *component, struct error *err) {
    return load_processor(t, component, 0, err);
}
