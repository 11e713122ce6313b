/* json_strings.c - see json_strings.h. */
#include "engine/base/json_strings.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"

enum {
    LEAST = 512,    /* bytes of a string that is cut out */
    MARK = 1,       /* the character that names begin with */
    MOST_NAME = 64, /* bytes of a name in the short text, with its quotes */
    NO_CHARACTER = -1,
};

#define ESCAPED_MARK "\\u0001"

/* Finds the first quote with an even number of backslashes before it. */
const char *json_string_end(const char *at, const char *end) {
    for (const char *quote = at; (quote = memchr(quote, '"', (size_t)(end - quote))); quote++) {
        const char *run = quote;
        while (run > at && run[-1] == '\\') run--;
        if ((quote - run) % 2 == 0) return quote;
    }
    return NULL;
}

static bool is_key(const char *behind, const char *end) {
    while (behind < end &&
           (*behind == ' ' || *behind == '\t' || *behind == '\n' || *behind == '\r'))
        behind++;
    return behind < end && *behind == ':';
}

static void append(struct json_strings *cut, const char *bytes, size_t n) {
    memcpy(cut->rest + cut->n_rest, bytes, n);
    cut->n_rest += n;
}

/* Appends what is before a string, and its name in place of it, which is shorter. */
static bool cut_out(struct json_strings *cut, const char *before, const char *string, size_t n,
                    size_t length) {
    char name[MOST_NAME];
    if (!cut->rest) cut->rest = malloc(length);
    if (!cut->rest) return false;
    append(cut, before, (size_t)(string - 1 - before));
    append(cut, name,
           (size_t)snprintf(name, sizeof(name), "\"" ESCAPED_MARK "%zu,%zu\"",
                            (size_t)(string - cut->text), n));
    cut->n++;
    cut->n_bytes += n;
    if (n > cut->longest) cut->longest = n;
    return true;
}

bool json_strings_cut(struct json_strings *cut, const char *text, size_t length) {
    const char *const end = text + length, *before = text;
    *cut = (struct json_strings){.text = text};
    for (const char *at = text; (at = memchr(at, '"', (size_t)(end - at)));) {
        const char *string = at + 1, *quote = json_string_end(string, end);
        const size_t n = quote ? (size_t)(quote - string) : 0, n_mark = sizeof(ESCAPED_MARK) - 1;
        if (!quote || (n >= n_mark && memcmp(string, ESCAPED_MARK, n_mark) == 0)) goto leave;
        at = quote + 1;
        if (n < LEAST || is_key(at, end)) continue;
        if (!cut_out(cut, before, string, n, length)) goto leave;
        before = at;
    }
    if (cut->n == 0) return false;
    append(cut, before, (size_t)(end - before));
    return true;

leave:
    json_strings_fini(cut);
    return false;
}

void json_strings_fini(struct json_strings *cut) {
    free(cut->rest);
    *cut = (struct json_strings){0};
}

/* ---- decoding ---- */

/* The least of a string's bytes, and the bits that any of them has. */
struct survey {
    uint8_t lowest, any;
};

static void survey_bytes(struct survey *survey, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)text[i];
        survey->lowest = byte < survey->lowest ? byte : survey->lowest;
        survey->any |= byte;
    }
}

/* Compilers turn the loop over a block into vector instructions. */
static struct survey survey_string(const char *text, size_t n) {
    enum { BLOCK = 64 };
    struct survey survey = {.lowest = UINT8_MAX};
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) survey_bytes(&survey, text + i, BLOCK);
    survey_bytes(&survey, text + i, n - i);
    return survey;
}

static int32_t read_hex(const char *at, const char *end) {
    int32_t x = 0;
    if (end - at < 4) return NO_CHARACTER;
    for (int i = 0; i < 4; i++) {
        const char c = at[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : NO_CHARACTER;
        if (digit < 0) return NO_CHARACTER;
        x = x * 16 + digit;
    }
    return x;
}

/* Reads the digits of \u, and a second one where two stand for a character. */
static int32_t read_unicode(const char **at, const char *end) {
    const int32_t high = read_hex(*at, end);
    *at += 4;
    if (high <= 0 || (high >= 0xDC00 && high <= 0xDFFF)) return NO_CHARACTER;
    if (high < 0xD800 || high > 0xDBFF) return high;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return NO_CHARACTER;
    const int32_t low = read_hex(*at + 2, end);
    *at += 6;
    return low < 0xDC00 || low > 0xDFFF ? NO_CHARACTER
                                        : 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

static char *write_utf8(char *to, int32_t c) {
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    if (c < 0x800) {
        *to++ = (char)(0xC0 | c >> 6);
    } else {
        if (c < 0x10000) {
            *to++ = (char)(0xE0 | c >> 12);
        } else {
            *to++ = (char)(0xF0 | c >> 18);
            *to++ = (char)(0x80 | (c >> 12 & 0x3F));
        }
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
    }
    *to++ = (char)(0x80 | (c & 0x3F));
    return to;
}

/* Reads what follows a backslash. */
static int32_t read_escape(const char **at, const char *end) {
    static const char LETTERS[] = "\"\\/bfnrt", CHARACTERS[] = "\"\\/\b\f\n\r\t";
    const char c = *at < end ? *(*at)++ : '\0';
    if (c == 'u') return read_unicode(at, end);
    const char *letter = c ? strchr(LETTERS, c) : NULL;
    return letter ? CHARACTERS[letter - LETTERS] : NO_CHARACTER;
}

/* Decodes a string's n bytes to `to`, which has space for as many.  Returns NULL if jansson must
 * judge them, and else the end of what was written. */
static char *decode(const char *at, size_t n, char *to) {
    for (const char *const end = at + n; at < end;) {
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        const size_t n_plain = (size_t)((escape ? escape : end) - at);
        memcpy(to, at, n_plain);
        to += n_plain;
        if (!escape) return to;
        at = escape + 1;
        const int32_t c = read_escape(&at, end);
        if (c == NO_CHARACTER) return NULL;
        to = write_utf8(to, c);
    }
    return to;
}

/* ---- the tree ---- */

struct restoring {
    const struct json_strings *cut;
    char *scratch; /* of the longest string */
    size_t n;      /* that have been restored */
};

static int make_string(struct restoring *r, const char *name, json_t **out) {
    const struct json_strings *cut = r->cut;
    size_t start, n;
    if (sscanf(name, "%zu,%zu", &start, &n) != 2) return ERR_INVALID;
    const struct survey survey = survey_string(cut->text + start, n);
    if (survey.lowest < ' ') return ERR_INVALID; /* a control character */
    const char *end = decode(cut->text + start, n, r->scratch);
    if (!end) return ERR_INVALID;
    const size_t length = (size_t)(end - r->scratch);
    /* jansson checks UTF-8, but tells no bad one from no memory: parsing it all decides. */
    *out = survey.any < 0x80 ? json_stringn_nocheck(r->scratch, length)
                             : json_stringn(r->scratch, length);
    r->n++;
    return *out ? 0 : ERR_INVALID;
}

static int restore(struct restoring *r, json_t *value, json_t **out);

static int restore_object(struct restoring *r, json_t *object) {
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        json_t *made = NULL;
        const int rc = restore(r, json_object_iter_value(i), &made);
        if (rc) return rc;
        if (made) json_object_iter_set_new(object, i, made);
    }
    return 0;
}

static int restore_array(struct restoring *r, json_t *array) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        json_t *made = NULL;
        const int rc = restore(r, json_array_get(array, i), &made);
        if (rc) return rc;
        if (made) json_array_set_new(array, i, made);
    }
    return 0;
}

/* Restores the strings inside a value; *out becomes what takes its place if it is one itself. */
static int restore(struct restoring *r, json_t *value, json_t **out) {
    if (json_is_object(value)) return restore_object(r, value);
    if (json_is_array(value)) return restore_array(r, value);
    const char *name = json_string_value(value);
    return name && *name == MARK ? make_string(r, name + 1, out) : 0;
}

int json_strings_restore(const struct json_strings *cut, json_t **root) {
    struct restoring r = {.cut = cut, .scratch = malloc(cut->longest)};
    json_t *made = NULL;
    if (!r.scratch) return ERR_NOMEM;
    const int rc = restore(&r, *root, &made);
    free(r.scratch);
    if (made) {
        json_decref(*root);
        *root = made;
    }
    if (rc) return rc;
    /* Of members of one name only the last is left: the strings of the others were not checked. */
    return r.n == cut->n ? 0 : ERR_INVALID;
}
