/* utf8.c - see utf8.h. */
#include "engine/base/utf8.h"

#include <string.h>

size_t utf8_character(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text, lead = n > 0 ? p[0] : 0xFF;
    if (lead < 0x80) return 1;
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || n < length) return 0;
    /* The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF
     * (Unicode, table 3-7). */
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
    }
    return length;
}

bool utf8_is_valid(const char *p, size_t n) {
    while (n > 0) {
        uint64_t word;
        if (n >= sizeof(word)) {
            memcpy(&word, p, sizeof(word));
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                p += sizeof(word);
                n -= sizeof(word);
                continue;
            }
        }
        const size_t length = utf8_character(p, n);
        if (length == 0) return false;
        p += length;
        n -= length;
    }
    return true;
}

size_t utf8_count(const char *text, size_t length) {
    size_t n = 0;
    for (size_t i = 0; i < length; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

uint32_t utf8_next(const char *p, const char **after) {
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) {
        *after = p + 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *after = p + 2;
        return (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    }
    if (s[0] < 0xF0) {
        *after = p + 3;
        return (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    }
    *after = p + 4;
    return (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
}

const char *utf8_before(const char *p) {
    do {
        p--;
    } while (((unsigned char)*p & 0xC0) == 0x80);
    return p;
}

size_t utf8_write(char *out, uint32_t c) {
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
