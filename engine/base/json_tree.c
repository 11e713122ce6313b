/* json_tree.c - see json_tree.h.
 *
 * Trees come from json_reader.h, so that recursion ends after JSON_MAX_LEVELS. */
#include "engine/base/json_tree.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json_arena.h"

static json_t *copy_object(json_t *object) {
    json_t *copy = json_object();
    bool failed = !copy;
    for (void *i = json_object_iter(object); i && !failed; i = json_object_iter_next(object, i))
        failed =
            json_object_setn_new_nocheck(copy, json_object_iter_key(i), json_object_iter_key_len(i),
                                         json_tree_copy(json_object_iter_value(i))) < 0;
    if (!failed) return copy;
    json_decref(copy);
    return NULL;
}

static json_t *copy_array(const json_t *array) {
    json_t *copy = json_array();
    bool failed = !copy;
    for (size_t i = 0; i < json_array_size(array) && !failed; i++)
        failed = json_array_append_new(copy, json_tree_copy(json_array_get(array, i))) < 0;
    if (!failed) return copy;
    json_decref(copy);
    return NULL;
}

json_t *json_tree_copy(const json_t *value) {
    json_t *shared = (json_t *)value; /* jansson's iterators and counts are not const */
    if (json_is_object(value)) return copy_object(shared);
    return json_is_array(value) ? copy_array(value) : json_incref(shared);
}

/* ---- writing ---- */

struct writer {
    json_dump_callback_t put;
    void *data;
};

static int put_text(const struct writer *w, const char *text) {
    return w->put(text, strlen(text), w->data);
}

static int put_escape(const struct writer *w, unsigned char c) {
    static const char letters[][2] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                      {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
    char text[8];
    for (size_t i = 0; i < sizeof(letters) / sizeof(*letters); i++) {
        if (letters[i][0] != (char)c) continue;
        text[0] = '\\';
        text[1] = letters[i][1];
        return w->put(text, 2, w->data);
    }
    return w->put(text, (size_t)snprintf(text, sizeof(text), "\\u%04X", c), w->data);
}

/* Writes a string as jansson does, but each run of bytes that need no escape at once.  Most of a
 * body is such runs.  Strings of a tree are UTF-8. */
static int write_string(const struct writer *w, const char *text, size_t n) {
    size_t start = 0;
    int rc = put_text(w, "\"");
    for (size_t i = 0; i < n && !rc; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        if (i > start) rc = w->put(text + start, i - start, w->data);
        if (!rc) rc = put_escape(w, c);
        start = i + 1;
    }
    if (!rc && n > start) rc = w->put(text + start, n - start, w->data);
    return rc ? rc : put_text(w, "\"");
}

static int write_scalar(const struct writer *w, const json_t *value) {
    if (json_is_string(value))
        return write_string(w, json_string_value(value), json_string_length(value));
    const char *number = json_number_text(value);
    if (number) return put_text(w, number);
    return json_dump_callback(value, w->put, w->data, JSON_COMPACT | JSON_ENCODE_ANY);
}

static int write_key(const struct writer *w, const char *key, size_t n) {
    const int rc = write_string(w, key, n);
    return rc ? rc : put_text(w, ":");
}

static int write_value(const struct writer *w, const json_t *value);

static int write_object(const struct writer *w, json_t *object) {
    int rc = put_text(w, "{");
    bool is_first = true;
    for (void *i = json_object_iter(object); i && !rc; i = json_object_iter_next(object, i)) {
        if (!is_first) rc = put_text(w, ",");
        is_first = false;
        if (!rc) rc = write_key(w, json_object_iter_key(i), json_object_iter_key_len(i));
        if (!rc) rc = write_value(w, json_object_iter_value(i));
    }
    return rc ? rc : put_text(w, "}");
}

static int write_array(const struct writer *w, const json_t *array) {
    int rc = put_text(w, "[");
    for (size_t i = 0; i < json_array_size(array) && !rc; i++) {
        if (i > 0) rc = put_text(w, ",");
        if (!rc) rc = write_value(w, json_array_get(array, i));
    }
    return rc ? rc : put_text(w, "]");
}

static int write_value(const struct writer *w, const json_t *value) {
    if (json_is_object(value)) return write_object(w, (json_t *)value);
    return json_is_array(value) ? write_array(w, value) : write_scalar(w, value);
}

int json_tree_write(const json_t *value, json_dump_callback_t put, void *data) {
    return write_value(&(struct writer){put, data}, value);
}

static int count(const char *text, size_t n, void *data) {
    (void)text;
    *(size_t *)data += n;
    return 0;
}

size_t json_tree_size(const json_t *value) {
    size_t n = 0;
    return json_tree_write(value, count, &n) ? SIZE_MAX : n;
}
