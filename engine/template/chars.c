/* chars.c - see chars.h. */
#include "engine/template/chars.h"

#include <utf8proc.h>

#include "engine/base/utf8.h"

uint32_t chars_next(const char *bytes, size_t n, size_t *at) {
    const char *after = bytes + *at + 1;
    const bool is_whole = utf8_character(bytes + *at, n - *at) > 0;
    const uint32_t c = is_whole ? utf8_next(bytes + *at, &after) : 0xfffd;
    *at = (size_t)(after - bytes);
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

size_t chars_bytes(const char *bytes, size_t n, size_t n_chars) {
    size_t at = 0;
    while (at < n) {
        if (((unsigned char)bytes[at] & 0xc0) != 0x80 && n_chars-- == 0) break;
        at++;
    }
    return at;
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
    /* First and last of the digits that are not decimal; Python wrote it, from str.isdigit(). */
    static const uint32_t ranges[][2] = {
        {0x00b2, 0x00b3},   {0x00b9, 0x00b9},   {0x1369, 0x1371},   {0x19da, 0x19da},
        {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
        {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
        {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
        {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
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

/* Writes the full case folding of c and returns how many characters it has.  A letter whose upper
 * case is several characters has as many here, and each in upper case makes that upper case. */
static size_t fold(uint32_t c, uint32_t out[CHARS_MAX_CASE]) {
    utf8proc_int32_t folded[CHARS_MAX_CASE];
    const utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, folded, CHARS_MAX_CASE,
                                                       UTF8PROC_CASEFOLD, NULL);
    for (utf8proc_ssize_t i = 0; i < n; i++) out[i] = (uint32_t)folded[i];
    return c < 0x80 || chars_is_upper(c) ? 1 : (size_t)n;
}

static uint32_t upper(uint32_t c) {
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
}

size_t chars_upper(uint32_t c, uint32_t out[CHARS_MAX_CASE]) {
    const size_t n = fold(c, out);
    if (n == 1) out[0] = c;
    for (size_t i = 0; i < n; i++) out[i] = upper(out[i]);
    return n;
}

size_t chars_title(uint32_t c, uint32_t out[CHARS_MAX_CASE]) {
    const uint32_t title = (uint32_t)utf8proc_totitle((utf8proc_int32_t)c);
    const size_t n = chars_is_title(title) ? 1 : fold(c, out);
    const uint32_t first = n == 1 ? title : upper(out[0]);
    if (n > 1 && first == out[0]) out[1] = upper(out[1]); /* an apostrophe, which has no case */
    /* Below a capital letter an iota stays below. */
    if (n > 1 && out[n - 1] == 0x3b9) out[n - 1] = 0x345;
    out[0] = first;
    return n;
}

size_t chars_lower(uint32_t c, uint32_t out[CHARS_MAX_CASE]) {
    if (c == 0x130) { /* the only one that becomes two */
        out[0] = 'i', out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}
