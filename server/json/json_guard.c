/* json_guard.c - see json_guard.h. */
#include "server/json/json_guard.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_strings.h"
#include "engine/base/utf8.h"
#include "server/json/buffer.h"

struct guard {
    const char *text;
    size_t length, at;
    const char *bulk_key;
    struct json_span *bulk;
    char stack[JSON_MAX_DEPTH]; /* the closing bracket that each level needs */
    uint32_t depth, n_values, n_containers;
    struct json_span last_string; /* with its quotes; only strings of the first level matter */
    bool bulk_next;               /* the scan has just passed the bulk member's colon */
    bool in_bulk;
    size_t bulk_start;
    size_t n_valid; /* bytes at the beginning that are known to be UTF-8 */
};

/* Bytes that are tested at once, by loops that compilers turn into vector instructions.  What a
 * loop has found costs about as much to look at as sixteen bytes, so a long block suits long
 * runs. */
enum { BLOCK = 32, LONG_BLOCK = 128 };

static inline bool is_ascii(const char *text, size_t length) {
    uint8_t any = 0;
    for (size_t i = 0; i < length; i++) any |= (uint8_t)text[i];
    return any < 0x80;
}

/* Tests whether the block has nothing but digits and what ASCII has before them, without quotes and
 * NUL: what a list of numbers is made of, and nothing that opens or closes anything.  These are two
 * reductions, since one over both tests becomes a branch for each byte. */
static bool block_is_numbers(const char *text) {
    uint8_t highest = 0, quotes = 0;
    for (size_t i = 0; i < LONG_BLOCK; i++) {
        const uint8_t place = (uint8_t)(text[i] - 1); /* NUL comes last */
        highest = place > highest ? place : highest;
        quotes |= text[i] == '"';
    }
    return highest <= '9' - 1 && !quotes;
}

/* Returns how many bytes at the beginning are ASCII, in whole blocks. */
static size_t count_ascii(const char *text, size_t length) {
    size_t n = 0;
    while (n + BLOCK <= length && is_ascii(text + n, BLOCK)) {
        n += BLOCK;
        while (n + LONG_BLOCK <= length && is_ascii(text + n, LONG_BLOCK)) n += LONG_BLOCK;
    }
    return n;
}

/* Checks the bytes up to `end` that have not been checked. */
static int check_utf8(struct guard *g, size_t end, struct error *err) {
    const char *text = g->text;
    for (size_t i = g->n_valid; (i += count_ascii(text + i, end - i)) < end;) {
        const size_t n = utf8_character(text + i, end - i);
        if (n == 0) return error_set(err, ERR_INVALID, "the body is not valid UTF-8 (byte %zu)", i);
        i += n;
    }
    g->n_valid = end;
    return 0;
}

/* Moves past the string that starts at the current quote. */
static int skip_string(struct guard *g, struct error *err) {
    const char *start = g->text + g->at, *quote = json_string_end(start + 1, g->text + g->length);
    if (!quote) return error_set(err, ERR_INVALID, "invalid JSON: a string does not end");
    g->at = (size_t)(quote + 1 - g->text);
    g->last_string = (struct json_span){start, (size_t)(quote + 1 - start)};
    return 0;
}

/* Tests whether the string is the bulk key.  A key may be spelled with escapes, so one with a
 * backslash is decoded; one that cannot be decoded is left to the parser. */
static int check_bulk_key(struct guard *g, struct error *err) {
    const struct json_span *key = &g->last_string;
    if (!g->bulk_key || !key->start || key->length > 256) return 0;
    if (!memchr(key->start, '\\', key->length)) {
        g->bulk_next = key->length == strlen(g->bulk_key) + 2 &&
                       memcmp(key->start + 1, g->bulk_key, key->length - 2) == 0;
        return 0;
    }
    json_t *decoded = NULL;
    json_error_t why;
    const int rc = json_arena_load(&decoded, key->start, key->length, JSON_DECODE_ANY, &why);
    if (rc == ERR_NOMEM) return error_set(err, rc, "no memory to parse the body");
    if (rc) return 0;
    g->bulk_next = strcmp(json_string_value(decoded), g->bulk_key) == 0;
    json_decref(decoded);
    return 0;
}

static int open_bracket(struct guard *g, char c, struct error *err) {
    if (g->depth == JSON_MAX_DEPTH) {
        return error_set(err, ERR_INVALID, "the body is nested deeper than %d levels",
                         JSON_MAX_DEPTH);
    }
    if (c == '[' && g->bulk_next && !g->bulk->start) {
        g->in_bulk = true;
        g->bulk_start = g->at;
    }
    g->stack[g->depth++] = c == '[' ? ']' : '}';
    return 0;
}

static int close_bracket(struct guard *g, char c, struct error *err) {
    if (g->depth == 0 || g->stack[g->depth - 1] != c) {
        return error_set(err, ERR_INVALID, "invalid JSON: '%c' has no opening bracket (byte %zu)",
                         c, g->at);
    }
    g->depth--;
    if (g->in_bulk && g->depth == 1) {
        g->in_bulk = false;
        *g->bulk = (struct json_span){g->text + g->bulk_start, g->at + 1 - g->bulk_start};
    }
    return 0;
}

/* Counts a value.  Every value but the first follows a bracket or a comma, so counting those bounds
 * the values.  Brackets are also counted alone: an empty object costs ten times what a number
 * does. */
static int count_value(struct guard *g, char c, struct error *err) {
    if (g->in_bulk) return 0;
    if (c != ',' && ++g->n_containers > JSON_MAX_CONTAINERS) {
        return error_set(err, ERR_INVALID, "the body holds more than %d arrays and objects",
                         JSON_MAX_CONTAINERS);
    }
    if (++g->n_values < JSON_MAX_VALUES) return 0;
    return error_set(err, ERR_INVALID, "the body holds more than %d JSON values", JSON_MAX_VALUES);
}

static int scan_character(struct guard *g, struct error *err) {
    const char c = g->text[g->at];
    int rc = 0;
    switch (c) {
    case ' ':
    case '\t':
    case '\n':
    case '\r': g->at++; return 0; /* keeps bulk_next */
    case '"': g->bulk_next = false; return skip_string(g, err);
    case ':':
        g->bulk_next = false;
        g->at++;
        return g->depth == 1 ? check_bulk_key(g, err) : 0;
    case '{':
    case '[':
        rc = open_bracket(g, c, err);
        if (!rc) rc = count_value(g, c, err);
        break;
    case '}':
    case ']': rc = close_bracket(g, c, err); break;
    case ',': rc = count_value(g, c, err); break;
    /* jansson overlooks a NUL that follows a literal or a number. */
    case 0: return error_set(err, ERR_INVALID, "invalid JSON: a NUL byte (byte %zu)", g->at);
    default: break;
    }
    g->bulk_next = false;
    g->at++;
    return rc;
}

/* Moves past numbers of the bulk member, of which nothing is counted, and whose bytes are ASCII. */
static int skip_numbers(struct guard *g, struct error *err) {
    const size_t first = g->at;
    while (g->at + LONG_BLOCK <= g->length && block_is_numbers(g->text + g->at))
        g->at += LONG_BLOCK;
    if (g->at == first) return 0;
    const int rc = check_utf8(g, first, err);
    g->n_valid = g->at;
    return rc;
}

int json_guard_scan(const char *text, size_t length, const char *bulk_key, struct json_span *bulk,
                    struct error *err) {
    struct guard g = {.text = text, .length = length, .bulk_key = bulk_key, .bulk = bulk};
    *bulk = (struct json_span){0};
    int rc = 0;
    while (!rc && g.at < length) {
        rc = scan_character(&g, err);
        if (!rc && g.in_bulk) rc = skip_numbers(&g, err);
    }
    if (!rc) rc = check_utf8(&g, length, err);
    if (rc) return rc;
    if (g.depth) return error_set(err, ERR_INVALID, "invalid JSON: the body ends inside a value");
    return 0;
}

int json_guard_load(json_t **out, const char *text, size_t length, const char *bulk_key,
                    struct json_span *bulk, struct error *err) {
    int rc = json_guard_scan(text, length, bulk_key, bulk, err);
    if (rc) return rc;

    struct buffer rest = {0};
    if (bulk->start) {
        const char *after = bulk->start + bulk->length;
        buffer_append(&rest, text, (size_t)(bulk->start - text));
        buffer_puts(&rest, "null");
        buffer_append(&rest, after, (size_t)(text + length - after));
        if (rest.failed) {
            buffer_fini(&rest);
            return error_set(err, ERR_NOMEM, "no memory for the request body");
        }
        text = rest.data;
        length = rest.length;
    }
    json_error_t why = {0};
    json_t *root = NULL;
    rc = json_arena_load(&root, text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    buffer_fini(&rest);
    if (rc == ERR_NOMEM) return error_set(err, rc, "no memory to parse the body");
    if (rc) return error_set(err, rc, "invalid JSON: %.200s", why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return error_set(err, ERR_INVALID, "the body must be a JSON object");
    }
    *out = root;
    return 0;
}
