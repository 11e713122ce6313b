/* arguments.c - see arguments.h. */
#include "server/api/conversation/arguments.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_reader.h"
#include "engine/base/json_strings.h"

/* Tells whether arrays and objects are nested in more than so many levels. */
static bool is_deeper(const json_t *value, unsigned levels) {
    bool is = levels == 0 && (json_is_object(value) || json_is_array(value));
    for (size_t i = 0; i < json_array_size(value) && !is; i++)
        is = is_deeper(json_array_get(value, i), levels - 1);
    json_t *object = (json_t *)value; /* jansson's iterators are not const */
    for (void *i = json_object_iter(object); i && !is; i = json_object_iter_next(object, i))
        is = is_deeper(json_object_iter_value(i), levels - 1);
    return is;
}

/* Parses any value, at a bounded cost. */
static int parse(json_t **out, const char *text, size_t n, struct json_oddities *odd) {
    const size_t flags = JSON_ALLOW_NUL | JSON_ALLOW_HALVES | JSON_DECODE_ANY;
    struct json_span none;
    json_error_t why;
    const int rc = json_guard_scan(text, n, NULL, &none, NULL);
    return rc ? rc : json_arena_read(out, text, n, flags, odd, &why);
}

int arguments_parse(json_t **out, const char *text, size_t n, struct json_oddities *odd) {
    json_t *root = NULL;
    const int rc = parse(&root, text, n, odd);
    if (rc) return rc;
    if (!json_is_object(root)) {
        json_decref(root);
        return ERR_INVALID;
    }
    *out = root;
    return 0;
}

static bool is_empty(const char *text, size_t n) {
    for (; n > 0 && strchr(" \t\r\n", text[n - 1]) && text[n - 1]; n--) {
    }
    for (; n > 0 && strchr(" \t\r\n", *text) && *text; n--) text++;
    return n == 0 || (n == 4 && memcmp(text, "null", n) == 0);
}

static int read_mended(json_t **out, const char *text, size_t n, struct json_oddities *odd) {
    if (is_empty(text, n)) {
        *out = json_object();
        return *out ? 0 : ERR_NOMEM;
    }
    json_t *root = NULL;
    const int rc = arguments_parse(&root, text, n, odd);
    if (rc) return rc;
    if (is_deeper(root, ARGUMENTS_MAX_DEPTH)) {
        json_decref(root);
        return ERR_INVALID;
    }
    *out = root;
    return 0;
}

int arguments_read(json_t **out, const char *text, size_t n) {
    struct json_oddities odd;
    return read_mended(out, text, n, &odd);
}

int arguments_of(json_t **out, const json_t *member) {
    if (json_is_string(member))
        return arguments_read(out, json_string_value(member), json_string_length(member));
    if (json_is_object(member)) *out = json_incref((json_t *)member);
    else if (!member || json_is_null(member)) *out = json_object();
    else return ERR_INVALID;
    return *out ? 0 : ERR_NOMEM;
}

bool arguments_mend(struct buffer *arguments) {
    const char *text = arguments->data ? arguments->data : "";
    struct json_oddities odd = {0};
    json_t *root = NULL;
    if (arguments->failed) return false;
    const int rc = read_mended(&root, text, arguments->length, &odd);
    if (rc == ERR_NOMEM) arguments->failed = true;
    if (rc) return false;
    if (odd.n_halves) json_halves_replace(arguments->data, arguments->length);
    if (odd.n_doubled || is_empty(text, arguments->length)) {
        buffer_clear(arguments);
        buffer_json_value(arguments, root);
    }
    json_decref(root);
    return true;
}
