/* text.c - see text.h. */
#include "engine/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"

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
    char bytes[UTF8_MAX_BYTES];
    return text_append(text, bytes, utf8_write(bytes, codepoint));
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
