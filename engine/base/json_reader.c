/* json_reader.c - see json_reader.h. */
#include "engine/base/json_reader.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json_arena.h"
#include "engine/base/json_strings.h"

struct reader {
    const char *text, *at, *end;
    size_t flags;
    char *scratch;
    struct json_oddities *odd;
    json_error_t *why;
    bool failed;
    json_t *root, *open[JSON_MAX_LEVELS];
    size_t n_open;
    struct json_string key; /* of the value that comes next, where an object is open */
};

/* ---- what is wrong ---- */

static size_t count_lines(const char *text, const char *at) {
    size_t n = 1;
    while ((text = memchr(text, '\n', (size_t)(at - text)))) n++, text++;
    return n;
}

/* Notes what is wrong at a place, the first time. */
__attribute__((format(printf, 3, 4))) static void fail(struct reader *r, const char *at,
                                                       const char *format, ...) {
    if (r->failed) return;
    r->failed = true;
    const size_t byte = (size_t)(at - r->text);
    char what[96];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    memset(r->why, 0, sizeof(*r->why));
    snprintf(r->why->text, sizeof(r->why->text), "%s (byte %zu)", what, byte);
    r->why->line = (int)count_lines(r->text, at);
    r->why->position = (int)byte;
}

/* Says what should have come. */
static void miss(struct reader *r, const char *what) {
    const unsigned char c = r->at < r->end ? (unsigned char)*r->at : 0;
    if (r->at == r->end) fail(r, r->at, "the text ends before %s", what);
    else if (c >= ' ' && c < 0x7f) fail(r, r->at, "'%c' in place of %s", c, what);
    else fail(r, r->at, "byte 0x%02x in place of %s", c, what);
}

/* ---- scalars ---- */

static void skip_space(struct reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

static bool take(struct reader *r, char c) {
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static const char *skip_digits(const char *at, const char *end) {
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at;
}

/* Returns the end of a fraction or exponent behind `at`, which is `at` if there is none. */
static const char *skip_part(const char *at, const char *end, const char *marks,
                             const char *signs) {
    const char *digits = at + 1;
    if (at == end || !strchr(marks, *at) || !*at) return at;
    if (digits < end && *digits && strchr(signs, *digits)) digits++;
    const char *behind = skip_digits(digits, end);
    return behind > digits ? behind : at;
}

/* Returns the bytes of the number that the text begins with; 0: there is none. */
static size_t number_length(const char *at, const char *end) {
    const char *digits = at < end && *at == '-' ? at + 1 : at;
    const char *behind = digits < end && *digits == '0' ? digits + 1 : skip_digits(digits, end);
    if (behind == digits) return 0;
    behind = skip_part(behind, end, ".", "");
    return (size_t)(skip_part(behind, end, "eE", "+-") - at);
}

/* Reads an integer that int64 holds. */
static bool read_integer(const char *at, size_t n, json_int_t *out) {
    const bool is_negative = *at == '-';
    uint64_t x = 0;
    for (size_t i = is_negative; i < n; i++) {
        const unsigned digit = (unsigned char)at[i] - '0';
        if (digit > 9 || i > 19 || x > (UINT64_MAX - 9) / 10) return false;
        x = x * 10 + digit;
    }
    if (x > (uint64_t)INT64_MAX + is_negative) return false;
    *out = (json_int_t)(is_negative ? 0 - x : x);
    return true;
}

static json_t *read_number(struct reader *r) {
    const char *const at = r->at;
    const size_t n = number_length(at, r->end);
    json_int_t integer;
    if (n == 0) {
        miss(r, "a value");
        return NULL;
    }
    r->at += n;
    if (r->at < r->end && strchr("0123456789.eE+-", *r->at) && *r->at) {
        fail(r, at, "a number that JSON does not have");
        return NULL;
    }
    if (!read_integer(at, n, &integer)) return json_number_create(at, n, JSON_REAL);
    return integer == 0 && n > 1 ? json_number_create(at, n, JSON_INTEGER) : json_integer(integer);
}

static json_t *read_name(struct reader *r) {
    static const struct {
        const char *text;
        size_t n;
        json_t *(*make)(void);
    } names[] = {{"null", 4, json_null}, {"true", 4, json_true}, {"false", 5, json_false}};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if ((size_t)(r->end - r->at) < names[i].n || memcmp(r->at, names[i].text, names[i].n) != 0)
            continue;
        r->at += names[i].n;
        return names[i].make();
    }
    miss(r, "a value");
    return NULL;
}

/* Reads a string up to what is behind its quote; the escapes are not decoded. */
static void read_string(struct reader *r, struct json_string *out, const char *what) {
    const char *const first = r->at + 1;
    if (r->at == r->end || *r->at != '"') {
        miss(r, what);
        return;
    }
    const char *quote = json_string_end(first, r->end);
    if (!quote) {
        fail(r, r->at, "a string does not end");
        return;
    }
    const char *control = json_string_look(out, first, (size_t)(quote - first));
    if (control)
        fail(r, control, "the control character 0x%02x in a string", (unsigned char)*control);
    r->at = quote + 1;
}

/* Replaces the string's text by what its escapes say, which stays in the scratch until the next
 * one. */
static void decode(struct reader *r, struct json_string *string) {
    const enum json_halves halves =
        r->flags & JSON_ALLOW_HALVES ? JSON_HALVES_REPLACED : JSON_HALVES_REFUSED;
    const char *wrong = NULL;
    if (r->failed || !string->has_escapes) return;
    const char *end = json_string_decode(r->scratch, string, halves, &r->odd->n_halves, &wrong);
    if (!end) {
        const bool is_unicode = r->end - wrong >= 6 && wrong[1] == 'u';
        fail(r, wrong, "invalid %s '%.*s'", is_unicode ? "Unicode" : "escape", is_unicode ? 6 : 2,
             wrong);
        return;
    }
    const size_t n = (size_t)(end - r->scratch);
    if (!(r->flags & JSON_ALLOW_NUL) && memchr(r->scratch, 0, n))
        fail(r, string->bytes, "a string with a NUL");
    /* Escapes are decoded to UTF-8, so that text of ASCII need not be checked. */
    *string = (struct json_string){r->scratch, n, false, string->is_ascii};
}

/* Makes a string, checking UTF-8 where there is any: without it jansson fails for want of memory
 * alone, which cannot be here. */
static json_t *make_string(struct reader *r) {
    struct json_string string = {0};
    read_string(r, &string, "a string");
    const char *const at = string.bytes;
    decode(r, &string);
    if (r->failed) return NULL;
    json_t *made = string.is_ascii ? json_stringn_nocheck(string.bytes, string.n)
                                   : json_stringn(string.bytes, string.n);
    if (!made) fail(r, at, "a string is not UTF-8");
    return made;
}

/* ---- containers ---- */

static json_t *parent_of(const struct reader *r) {
    return r->n_open ? r->open[r->n_open - 1] : NULL;
}

static void put_member(struct reader *r, json_t *object, json_t *value) {
    const char *const at = r->key.bytes;
    const size_t n_members = json_object_size(object);
    decode(r, &r->key);
    const bool is_ascii = r->key.is_ascii;
    if (r->failed) {
        json_decref(value);
        return;
    }
    const int rc = is_ascii ? json_object_setn_new_nocheck(object, r->key.bytes, r->key.n, value)
                            : json_object_setn_new(object, r->key.bytes, r->key.n, value);
    if (rc) fail(r, at, "a key is not UTF-8");
    else if (json_object_size(object) > n_members) return;
    else if (r->flags & JSON_REJECT_DUPLICATES) fail(r, at, "duplicate object key");
    else r->odd->n_doubled++;
}

/* Puts a value where it belongs, which then owns it. */
static void put(struct reader *r, json_t *value) {
    json_t *parent = parent_of(r);
    if (!value) return;
    if (json_is_object(parent)) put_member(r, parent, value);
    else if (parent) json_array_append_new(parent, value);
    else r->root = value;
}

static void read_key(struct reader *r) {
    skip_space(r);
    read_string(r, &r->key, "a key");
    skip_space(r);
    if (!r->failed && !take(r, ':')) miss(r, "':'");
}

/* Opens a container; a value, or the key of one, comes next unless it is closed at once. */
static void open_container(struct reader *r, bool *is_whole) {
    json_t *made = *r->at == '{' ? json_object() : json_array();
    if (r->n_open == JSON_MAX_LEVELS) {
        fail(r, r->at, "nested deeper than %d levels", JSON_MAX_LEVELS);
        json_decref(made);
        return;
    }
    r->at++;
    put(r, made);
    if (r->failed) return;
    r->open[r->n_open++] = made;
    skip_space(r);
    *is_whole = r->at < r->end && *r->at == (json_is_object(made) ? '}' : ']');
    if (!*is_whole && json_is_object(made)) read_key(r);
}

/* Reads a value, or the beginning of one. */
static void read_value(struct reader *r, bool *is_whole) {
    skip_space(r);
    const char c = r->at < r->end ? *r->at : '\0';
    *is_whole = true;
    if (c == '{' || c == '[') open_container(r, is_whole);
    else if (c == '"') put(r, make_string(r));
    else if (c == '-' || (c >= '0' && c <= '9')) put(r, read_number(r));
    else put(r, read_name(r));
}

/* Reads what follows a whole value, as far as the next one. */
static void close_containers(struct reader *r) {
    for (json_t *parent; !r->failed && (parent = parent_of(r)); r->n_open--) {
        const bool is_object = json_is_object(parent);
        skip_space(r);
        if (take(r, is_object ? '}' : ']')) continue;
        if (!take(r, ',')) miss(r, is_object ? "',' or '}'" : "',' or ']'");
        else if (is_object) read_key(r);
        return;
    }
}

json_t *json_reader_read(const char *text, size_t length, size_t flags, char *scratch,
                         struct json_oddities *odd, json_error_t *why) {
    struct reader r = {.text = text,
                       .at = text,
                       .end = text + length,
                       .flags = flags,
                       .scratch = scratch,
                       .odd = odd,
                       .why = why};
    *odd = (struct json_oddities){0};
    skip_space(&r);
    if (!(flags & JSON_DECODE_ANY) && (r.at == r.end || (*r.at != '{' && *r.at != '[')))
        miss(&r, "'{' or '['");
    do {
        bool is_whole;
        if (r.failed) break;
        read_value(&r, &is_whole);
        if (is_whole) close_containers(&r);
    } while (r.n_open > 0);
    skip_space(&r);
    if (!r.failed && r.at < r.end) miss(&r, "the text's end");
    if (!r.failed) return r.root;
    json_decref(r.root);
    return NULL;
}
