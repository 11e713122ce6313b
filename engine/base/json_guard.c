/* json_guard.c - see json_guard.h. */
#include "engine/base/json_guard.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_arena.h"

struct json_scan {
    uint32_t depth, n_values;
    bool in_string, escaped;
};

/* Scans one byte of JSON text; returns false once the text nests too deep or has too many
 * values. */
static bool scan_byte(struct json_scan *scan, char byte) {
    if (scan->in_string) {
        if (scan->escaped) scan->escaped = false;
        else if (byte == '\\') scan->escaped = true;
        else if (byte == '"') scan->in_string = false;
        return true;
    }
    if (byte == '"') scan->in_string = true;
    if (byte == '{' || byte == '[') scan->depth++, scan->n_values++;
    if (byte == ',') scan->n_values++;
    if ((byte == '}' || byte == ']') && scan->depth > 0) scan->depth--;
    return scan->depth <= JSON_GUARD_MAX_DEPTH && scan->n_values <= JSON_GUARD_MAX_VALUES;
}

int json_guard_parse_any(json_t **out, const char *bytes, size_t size, size_t flags,
                         const char *label, struct error *err) {
    struct json_scan scan = {0};
    for (size_t i = 0; i < size; i++) {
        if (!scan_byte(&scan, bytes[i]))
            return error_set(err, ERR_INVALID,
                             "%.200s: JSON nests deeper than %d or holds more than %d values",
                             label, JSON_GUARD_MAX_DEPTH, JSON_GUARD_MAX_VALUES);
    }
    json_error_t why;
    const int rc = json_arena_load(out, bytes, size, JSON_REJECT_DUPLICATES | flags, &why);
    if (rc == ERR_NOMEM)
        return error_set(err, rc, "%.200s: no memory to parse %zu bytes", label, size);
    if (rc) return error_set(err, rc, "%.200s: line %d: %.150s", label, why.line, why.text);
    return 0;
}

/* Takes ownership of root: stores it in *out if it is an object, and else releases it. */
static int expect_object(json_t **out, json_t *root, const char *label, struct error *err) {
    if (!json_is_object(root)) {
        json_decref(root);
        return error_set(err, ERR_INVALID, "%.200s: not a JSON object", label);
    }
    *out = root;
    return 0;
}

int json_guard_parse(json_t **out, const char *bytes, size_t size, const char *label,
                     struct error *err) {
    json_t *root = NULL;
    const int rc = json_guard_parse_any(&root, bytes, size, 0, label, err);
    return rc ? rc : expect_object(out, root, label, err);
}

int json_guard_read_any(json_t **out, const char *path, size_t max_bytes, struct error *err) {
    char *bytes = NULL;
    size_t size = 0;
    int rc = file_read(&bytes, &size, path, max_bytes, err);
    if (rc) return rc;
    rc = json_guard_parse_any(out, bytes, size, 0, path, err);
    free(bytes);
    return rc;
}

int json_guard_read(json_t **out, const char *path, size_t max_bytes, struct error *err) {
    json_t *root = NULL;
    const int rc = json_guard_read_any(&root, path, max_bytes, err);
    return rc ? rc : expect_object(out, root, path, err);
}
