/* json.c - reading the components of a tokenizer.json; see internal.h.
 *
 * Thread: the loading one.  Memory: what is returned is borrowed from the document. */
#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"

const char *component_type(const json_t *component) {
    const char *type = json_string_value(json_object_get(component, "type"));
    return type ? type : "";
}

const char *member_text(const json_t *object, const char *key, size_t *n) {
    const json_t *member = json_object_get(object, key);
    *n = json_string_length(member);
    return json_string_value(member);
}

int member_append(struct text *text, const json_t *object, const char *key, struct error *err) {
    size_t n;
    const char *member = member_text(object, key, &n);
    if (member) return text_append(text, member, n);
    return error_set(err, ERR_INVALID, "tokenizer.json: a '%.80s' has no '%s'",
                     component_type(object), key);
}

bool member_flag(const json_t *object, const char *key, bool other) {
    const json_t *member = json_object_get(object, key);
    return json_is_boolean(member) ? json_is_true(member) : other;
}

int refuse(struct error *err, const char *what, const char *name) {
    return error_set(err, ERR_UNSUPPORTED, "tokenizer.json: %s '%.80s' is not supported", what,
                     name);
}
