/* regex_text.c - see regex_text.h. */
#include "engine/grammar/regex_text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

/* \u{10ffff}, of a character of two bytes or more. */
enum { MOST_GROWTH = 5, ESCAPE_BYTES = sizeof("\\u{10ffff}") };

const char *regex_text_fault(const char *regex) {
    for (const char *at = regex; *at; at++) {
        if (*at != '\\') continue;
        if (!*++at) break;
        const char *digits = at + 1;
        if (*at == 'u' && strchr("dD", digits[0]) && digits[0] && digits[1] &&
            strchr("89abcdefABCDEF", digits[1]))
            return "names half of a character (\\ud800 to \\udfff): write the character itself, or "
                   "\\u{1f600}";
    }
    return NULL;
}

char *regex_text_in_ascii(const char *regex) {
    char *out = malloc(MOST_GROWTH * strlen(regex) + ESCAPE_BYTES), *to = out;
    for (const char *at = regex, *next; out && *at; at = next) {
        const uint32_t c = utf8_next(at, &next);
        if (c < 0x80) *to++ = *at;
        else to += snprintf(to, ESCAPE_BYTES, "\\u{%x}", (unsigned)c);
    }
    if (out) *to = 0;
    return out;
}
