/* text.c - see text.h. */
#include "engine/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/base/error.h"

int text_append(struct text *text, const char *bytes, size_t n) {
    if (n > text->capacity - text->n) {
        size_t capacity = text->capacity < 64 ? 64 : text->capacity;
        while (capacity - text->n < n) {
            if (capacity > SIZE_MAX / 2) return ERR_NOMEM;
            capacity *= 2;
        }
        char *data = realloc(text->data, capacity);
        if (!data) return ERR_NOMEM;
        text->data = data;
        text->capacity = capacity;
    }
    if (n > 0) memcpy(text->data + text->n, bytes, n);
    text->n += n;
    return 0;
}

int text_append_char(struct text *text, uint32_t codepoint) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)codepoint, bytes);
    return text_append(text, (const char *)bytes, (size_t)n);
}

/* Returns the length of the valid sequence at p, or 0.  The second byte's range excludes overlong
 * forms, surrogates and what lies above U+10FFFF (Unicode, table 3-7). */
static size_t sequence_length(const unsigned char *p, size_t n) {
    const unsigned char lead = p[0];
    if (lead < 0x80) return 1;
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || n < length) return 0;
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
    }
    return length;
}

bool utf8_is_valid(const char *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
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
        const size_t length = sequence_length(p, n);
        if (length == 0) return false;
        p += length;
        n -= length;
    }
    return true;
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

/* Returns whether a character is Unicode's White_Space, which is \s in the reference library. */
static bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

size_t skip_space_back(const char *text, size_t from, size_t least) {
    const char *p = text + from;
    while (p > text + least) {
        const char *after, *before = utf8_before(p);
        if (!is_space(utf8_next(before, &after))) break;
        p = before;
    }
    return (size_t)(p - text);
}

size_t skip_space(const char *text, size_t from, size_t n) {
    const char *p = text + from;
    while (p < text + n) {
        const char *after;
        if (!is_space(utf8_next(p, &after))) break;
        p = after;
    }
    return (size_t)(p - text);
}

bool char_is_word(uint32_t c) {
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    /* Other_Alphabetic beyond the marks: circled and squared Latin letters. */
    case UTF8PROC_CATEGORY_SO:
        return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    default: return c == 0x200C || c == 0x200D;
    }
}

/* Returns whether a byte prints.  These bytes stand for themselves; the other 68 follow one another
 * from U+0100. */
static bool byte_prints(unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t alphabet_char(unsigned char byte) {
    if (byte_prints(byte)) return byte;
    uint32_t before = 0;
    for (unsigned b = 0; b < byte; b++) before += !byte_prints(b);
    return 0x100 + before;
}

/* Returns the byte that a character stands for, or -1. */
static int alphabet_byte(uint32_t c) {
    if (c < 0x100) return byte_prints(c) ? (int)c : -1;
    if (c <= 0x120) return (int)(c - 0x100);        /* 0x00 to 0x20 */
    if (c <= 0x142) return (int)(c - 0x121 + 0x7F); /* 0x7F to 0xA0 */
    return c == 0x143 ? 0xAD : -1;
}

bool alphabet_to_bytes(const char *token, size_t n, char *out, size_t *n_out) {
    const char *end = token + n;
    for (const char *p = token; p < end;) {
        if (alphabet_byte(utf8_next(p, &p)) < 0) return false;
    }
    *n_out = 0;
    for (const char *p = token; p < end;) out[(*n_out)++] = (char)alphabet_byte(utf8_next(p, &p));
    return true;
}
