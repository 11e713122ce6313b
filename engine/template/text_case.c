/* text_case.c - see text.h: upper and lower case, one character at a time, so that each keeps its
 * origin.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#include <string.h>

#include "engine/template/chars.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"
#include "engine/template/text.h"

typedef size_t (*case_fn)(uint32_t c, uint32_t out[CHARS_MAX_CASE]);

static bool is_cased(uint32_t c) {
    return chars_is_lower(c) || chars_is_upper(c) || chars_is_title(c);
}

/* Returns whether the sigma between begin and end is the last letter of its word, and so is written
 * as a final one in lower case. */
static bool is_final_sigma(const struct string *s, size_t begin, size_t end) {
    size_t at = begin;
    if (!at || !is_cased(chars_before(s->bytes, &at))) return false;
    at = end;
    return at >= s->n || !is_cased(chars_next(s->bytes, s->n, &at));
}

/* Writes the character that begins at `at` and returns the byte after it. */
static size_t put_case(struct builder *b, const struct string *s, size_t at, case_fn convert) {
    uint32_t out[CHARS_MAX_CASE];
    const size_t begin = at;
    const bool trusted = string_trusted_at(s, at);
    const uint32_t c = chars_next(s->bytes, s->n, &at);
    size_t n = convert(c, out);
    if (convert == chars_lower && c == 0x3a3 && is_final_sigma(s, begin, at)) out[0] = 0x3c2;
    if (n == 1 && out[0] == c) builder_slice(b, s, begin, at);
    for (size_t i = 0; i < n && !(n == 1 && out[0] == c); i++) builder_char(b, out[i], trusted);
    return at;
}

/* Writes the run of ASCII that begins at `at`, whose letters are one bit apart, and returns the
 * byte after it. */
static size_t put_ascii(struct builder *b, const struct string *s, size_t at, case_fn convert) {
    const char first = convert == chars_upper ? 'a' : 'A';
    size_t end = at;
    while (end < s->n && !(s->bytes[end] & 0x80)) end++;
    const size_t before = b->n;
    builder_slice(b, s, at, end);
    for (size_t i = before; i < b->n; i++)
        if (b->bytes[i] >= first && b->bytes[i] < first + 26) b->bytes[i] ^= 0x20;
    return end;
}

static const struct string *convert_all(struct render *r, const struct string *s, case_fn convert) {
    struct builder b;
    builder_init(&b, r);
    b.markup = s->markup;
    for (size_t at = 0; at < s->n && !r->rc;)
        at = s->bytes[at] & 0x80 ? put_case(&b, s, at, convert) : put_ascii(&b, s, at, convert);
    return builder_end(&b);
}

const struct string *text_upper(struct render *r, const struct string *s) {
    return convert_all(r, s, chars_upper);
}

const struct string *text_lower(struct render *r, const struct string *s) {
    return convert_all(r, s, chars_lower);
}

const struct string *text_capitalize(struct render *r, const struct string *s) {
    struct builder b;
    builder_init(&b, r);
    b.markup = s->markup;
    for (size_t at = 0; at < s->n && !r->rc;)
        at = put_case(&b, s, at, at ? chars_lower : chars_title);
    return builder_end(&b);
}

const struct string *text_title(struct render *r, const struct string *s) {
    struct builder b;
    bool in_word = false;
    builder_init(&b, r);
    b.markup = s->markup;
    for (size_t at = 0; at < s->n && !r->rc;) {
        size_t after = at;
        const uint32_t c = chars_next(s->bytes, s->n, &after);
        at = put_case(&b, s, at, in_word ? chars_lower : chars_title);
        in_word = is_cased(c);
    }
    return builder_end(&b);
}

const struct string *text_headline(struct render *r, const struct string *s) {
    struct builder b;
    bool in_word = false;
    builder_init(&b, r);
    for (size_t at = 0; at < s->n && !r->rc;) {
        size_t after = at;
        const uint32_t c = chars_next(s->bytes, s->n, &after);
        const bool separates = chars_is_space(c) || (c && c < 0x80 && strchr("-({[<", (int)c));
        at = put_case(&b, s, at, in_word ? chars_lower : chars_upper);
        in_word = !separates;
    }
    return builder_end(&b);
}

bool text_is_lower(const struct string *s) {
    bool has_lower = false;
    for (size_t at = 0; at < s->n;) {
        const uint32_t c = chars_next(s->bytes, s->n, &at);
        if (chars_is_upper(c) || chars_is_title(c)) return false;
        has_lower |= chars_is_lower(c);
    }
    return has_lower;
}

bool text_is_upper(const struct string *s) {
    bool has_upper = false;
    for (size_t at = 0; at < s->n;) {
        const uint32_t c = chars_next(s->bytes, s->n, &at);
        if (chars_is_lower(c) || chars_is_title(c)) return false;
        has_upper |= chars_is_upper(c);
    }
    return has_upper;
}
