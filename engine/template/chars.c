/* chars.c - see chars.h. */
#include "engine/template/chars.h"

#include <utf8proc.h>

#include "engine/template/case_table.h"

/* Returns how long the character at `at` is by its first byte, and 0 where it is not whole. */
static size_t char_length(const char *bytes, size_t n, size_t at) {
    const unsigned char first = (unsigned char)bytes[at];
    const size_t length = first < 0x80   ? 1
                          : first < 0xc0 ? 0
                          : first < 0xe0 ? 2
                          : first < 0xf0 ? 3
                                         : 4;
    if (length > n - at) return 0;
    for (size_t i = 1; i < length; i++)
        if (((unsigned char)bytes[at + i] & 0xc0) != 0x80) return 0;
    return length;
}

uint32_t chars_next(const char *bytes, size_t n, size_t *at) {
    static const unsigned char masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const size_t length = char_length(bytes, n, *at);
    if (!length) {
        ++*at;
        return 0xfffd;
    }
    uint32_t c = (unsigned char)bytes[*at] & masks[length];
    for (size_t i = 1; i < length; i++) c = c << 6 | ((unsigned char)bytes[*at + i] & 0x3f);
    *at += length;
    return c;
}

uint32_t chars_before(const char *bytes, size_t *at) {
    const size_t end = *at;
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && ((unsigned char)bytes[begin] & 0xc0) == 0x80) begin--;
    size_t after = begin;
    const uint32_t c = chars_next(bytes, end, &after);
    *at = after == end ? begin : end - 1;
    return after == end ? c : 0xfffd;
}

bool chars_are_utf8(const char *bytes, size_t n) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t at = 0; at < n;) {
        const size_t begin = at, length = char_length(bytes, n, at);
        if (!length) return false;
        const uint32_t c = chars_next(bytes, n, &at);
        if (c < least[at - begin] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
    }
    return true;
}

size_t chars_count(const char *bytes, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return count;
}

size_t chars_bytes(const char *bytes, size_t n, size_t n_chars) {
    size_t at = 0;
    while (at < n) {
        if (((unsigned char)bytes[at] & 0xc0) != 0x80 && n_chars-- == 0) break;
        at++;
    }
    return at;
}

size_t chars_put(char *out, uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    const size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    static const unsigned char heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(heads[length] | c);
    return length;
}

bool chars_is_line_end(uint32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

bool chars_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

bool chars_is_alpha(uint32_t c) {
    const utf8proc_category_t kind = category(c);
    return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool chars_is_decimal(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool chars_is_digit(uint32_t c) {
    for (size_t i = 0; i < sizeof(DIGIT_RANGES) / sizeof(DIGIT_RANGES[0]); i++)
        if (c >= DIGIT_RANGES[i].first && c <= DIGIT_RANGES[i].last) return true;
    return chars_is_decimal(c);
}

bool chars_is_printable(uint32_t c) {
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

bool chars_is_upper(uint32_t c) {
    return utf8proc_isupper((utf8proc_int32_t)c) != 0;
}

bool chars_is_lower(uint32_t c) {
    return utf8proc_islower((utf8proc_int32_t)c) != 0;
}

bool chars_is_title(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_LT;
}

bool chars_is_word(uint32_t c) {
    return c == '_' || chars_is_alpha(c) || chars_is_digit(c);
}

static const struct case_row *special(uint32_t c) {
    size_t low = 0, high = sizeof(CASE_TABLE) / sizeof(CASE_TABLE[0]);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (CASE_TABLE[middle].from == c) return &CASE_TABLE[middle];
        if (CASE_TABLE[middle].from < c) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

static size_t copy_row(const uint32_t row[CHARS_MAX_CASE], uint32_t out[CHARS_MAX_CASE]) {
    size_t n = 0;
    while (n < CHARS_MAX_CASE && row[n]) out[n] = row[n], n++;
    return n;
}

size_t chars_upper(uint32_t c, uint32_t out[CHARS_MAX_CASE]) {
    const struct case_row *row = c < 0x80 ? NULL : special(c);
    if (row) return copy_row(row->upper, out);
    out[0] = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
    return 1;
}

size_t chars_title(uint32_t c, uint32_t out[CHARS_MAX_CASE]) {
    const struct case_row *row = c < 0x80 ? NULL : special(c);
    if (row) return copy_row(row->title, out);
    out[0] = (uint32_t)utf8proc_totitle((utf8proc_int32_t)c);
    return 1;
}

size_t chars_lower(uint32_t c, uint32_t out[CHARS_MAX_CASE]) {
    if (c == 0x130) { /* the only one that becomes two */
        out[0] = 'i', out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}
