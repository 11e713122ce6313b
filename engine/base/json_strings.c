/* json_strings.c - see json_strings.h. */
#include "engine/base/json_strings.h"

#include <stdint.h>
#include <string.h>

#include "engine/base/utf8.h"

enum { NO_CHARACTER = -1, HALF = -2, REPLACEMENT = 0xFFFD };

/* Finds the first quote with an even number of backslashes before it. */
const char *json_string_end(const char *at, const char *end) {
    for (const char *quote = at; (quote = memchr(quote, '"', (size_t)(end - quote))); quote++) {
        const char *run = quote;
        while (run > at && run[-1] == '\\') run--;
        if ((quote - run) % 2 == 0) return quote;
    }
    return NULL;
}

/* ---- looking ---- */

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

const char *json_string_look(struct json_string *out, const char *bytes, size_t n) {
    const struct survey survey = survey_string(bytes, n);
    const char *control = bytes;
    *out = (struct json_string){bytes, n, memchr(bytes, '\\', n) != NULL, survey.any < 0x80};
    if (survey.lowest >= ' ') return NULL;
    while ((uint8_t)*control >= ' ') control++;
    return control;
}

/* ---- decoding ---- */

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
    if (high == NO_CHARACTER) return NO_CHARACTER;
    *at += 4;
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return HALF;
    const int32_t low = read_hex(*at + 2, end);
    if (low < 0xDC00 || low > 0xDFFF) return HALF; /* what follows is read for itself */
    *at += 6;
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

/* Reads what follows a backslash. */
static int32_t read_escape(const char **at, const char *end) {
    static const char LETTERS[] = "\"\\/bfnrt", CHARACTERS[] = "\"\\/\b\f\n\r\t";
    const char c = *at < end ? *(*at)++ : '\0';
    if (c == 'u') return read_unicode(at, end);
    const char *letter = c ? strchr(LETTERS, c) : NULL;
    return letter ? CHARACTERS[letter - LETTERS] : NO_CHARACTER;
}

char *json_string_decode(char *to, const struct json_string *string, enum json_halves halves,
                         size_t *n_halves, const char **wrong) {
    for (const char *at = string->bytes, *const end = at + string->n; at < end;) {
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        const size_t n_plain = (size_t)((escape ? escape : end) - at);
        memcpy(to, at, n_plain);
        to += n_plain;
        if (!escape) return to;
        at = escape + 1;
        int32_t c = read_escape(&at, end);
        if (c == NO_CHARACTER || (c == HALF && halves == JSON_HALVES_REFUSED)) {
            *wrong = escape;
            return NULL;
        }
        if (c == HALF) {
            c = REPLACEMENT;
            ++*n_halves;
        }
        to += utf8_write(to, (uint32_t)c);
    }
    return to;
}

/* Looks at every backslash, which only strings have. */
void json_halves_replace(char *text, size_t n) {
    char *const end = text + n;
    while ((text = memchr(text, '\\', (size_t)(end - text)))) {
        const char *behind = text + 1;
        const int32_t c = read_escape(&behind, end);
        if (c == NO_CHARACTER) return;
        if (c == HALF) memcpy(text, "\\ufffd", 6);
        text += behind - text;
    }
}
