/* literals.c - see literals.h. */
#include "engine/template/literals.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/template/arena.h"
#include "engine/template/chars.h"
#include "engine/template/lexer.h"
#include "engine/template/numbers.h"

int literal_text(struct arena *arena, const char *bytes, size_t n, struct value *out) {
    struct string *s = arena_take(arena, sizeof(*s));
    if (!s) return arena->rc;
    *s = (struct string){.bytes = bytes, .n = n, .n_chars = utf8_count(bytes, n), .trusted = true};
    *out = value_string(s);
    return 0;
}

/* Skips digits, which single underscores may separate; returns at if there is none. */
static const char *skip_digits(const char *at, int (*is_digit)(int)) {
    const char *after = at;
    while (is_digit((unsigned char)*after) ||
           (*after == '_' && after > at && is_digit((unsigned char)after[1])))
        after++;
    return after;
}

static int is_binary(int c) {
    return c == '0' || c == '1';
}

static int is_octal(int c) {
    return c >= '0' && c <= '7';
}

static int is_zero(int c) {
    return c == '0';
}

/* Returns where the fraction and exponent of a float end, or `at`: it is none. */
static const char *skip_fraction(const char *at) {
    const char *after = at;
    if (*at == '.') {
        after = skip_digits(at + 1, isdigit);
        if (after == at + 1) return at;
    }
    if (*after != 'e' && *after != 'E') return after;
    const char *digits = after + 1 + (after[1] == '+' || after[1] == '-');
    const char *end = skip_digits(digits, isdigit);
    return end > digits ? end : after;
}

static const char *skip_integer(const char *at) {
    static const char letters[] = "box";
    int (*const kinds[])(int) = {is_binary, is_octal, isxdigit};
    for (int i = 0; i < 3; i++) {
        if (*at != '0' || tolower((unsigned char)at[1]) != letters[i]) continue;
        const char *digits = at + 2 + (at[2] == '_');
        const char *end = skip_digits(digits, kinds[i]);
        if (end > digits) return end;
    }
    return skip_digits(at, *at == '0' ? is_zero : isdigit);
}

int literal_number(struct lexer *lexer, struct token *out) {
    /* A zero follows the source, so that no look-ahead leaves it. */
    const char *const begin = lexer->source + lexer->at;
    const char *whole = skip_digits(begin, isdigit), *end = skip_fraction(whole);
    const bool behind_dot = lexer->at > 0 && begin[-1] == '.';
    out->kind = T_NUMBER;
    if (end > whole && !behind_dot) {
        double d;
        out->n = (size_t)(end - begin);
        lexer->at += out->n;
        if (!number_parse_float(begin, out->n, &d))
            return lexer_fail(lexer, out, ERR_UNSUPPORTED, "this number is too long");
        out->value = value_float(d, true);
        return 0;
    }
    int64_t i;
    out->n = (size_t)(skip_integer(begin) - begin);
    lexer->at += out->n;
    if (number_parse_int(begin, out->n, 0, &i))
        return lexer_fail(lexer, out, ERR_UNSUPPORTED, "this integer is beyond 64 bits");
    out->value = value_int(i, true);
    return 0;
}

/* Reads up to `most` digits of the base at *at. */
static uint32_t read_digits(const char **at, const char *end, int most, int base, int *n_read) {
    uint32_t number = 0;
    for (*n_read = 0; *n_read < most && *at < end; ++*n_read, ++*at) {
        const unsigned char c = (unsigned char)**at;
        if (base == 8 ? !is_octal(c) : !isxdigit(c)) break;
        const int digit = isdigit(c) ? c - '0' : tolower(c) - 'a' + 10;
        number = number * (uint32_t)base + (uint32_t)digit;
    }
    return number;
}

/* Writes what the escape at *at, behind its backslash, stands for.  Returns false if it has
 * none. */
static bool unescape(const char **at, const char *end, char **to) {
    static const char from[] = "\\'\"abfnrtv", into[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = **at;
    const char *found = c ? strchr(from, c) : NULL;
    int n_read = 0;
    if (found) {
        *(*to)++ = into[found - from];
        ++*at;
    } else if (c == '\n') {
        ++*at; /* the next line continues this one */
    } else if (is_octal((unsigned char)c)) {
        *to += utf8_write(*to, read_digits(at, end, 3, 8, &n_read));
    } else if (c == 'x' || c == 'u' || c == 'U') {
        const int n_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        ++*at;
        const uint32_t character = read_digits(at, end, n_digits, 16, &n_read);
        if (n_read != n_digits || character > 0x10ffff ||
            (character >= 0xd800 && character < 0xe000))
            return false;
        *to += utf8_write(*to, character);
    } else if (c & 0x80) {
        /* Python first writes it as an escape, whose backslash this one then escapes. */
        size_t length = 0;
        const uint32_t character = chars_next(*at, (size_t)(end - *at), &length);
        const char *format = character < 0x100     ? "\\x%02" PRIx32
                             : character < 0x10000 ? "\\u%04" PRIx32
                                                   : "\\U%08" PRIx32;
        *to += sprintf(*to, format, character);
        *at += length;
    } else {
        *(*to)++ = '\\';
        return c != 'N';
    }
    return true;
}

int literal_string(struct lexer *lexer, struct token *out) {
    const char *const begin = lexer->source + lexer->at + 1;
    const char *const source_end = lexer->source + lexer->n;
    const char quote = begin[-1], *end = begin;
    while (end < source_end && *end != quote) end += 1 + (*end == '\\');
    out->kind = T_STRING;
    if (end >= source_end) return lexer_fail(lexer, out, ERR_INVALID, "this string has no end");
    /* \x41 is longer than what it stands for; only \ before another character may grow: from 3
     * bytes to 6, or 5 to 10. */
    char *bytes = arena_take(lexer->arena, 2 * (size_t)(end - begin) + 1), *to = bytes;
    if (!bytes) goto full;
    for (const char *at = begin; at < end;) {
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        at++;
        if (!unescape(&at, end, &to))
            return lexer_fail(lexer, out, ERR_INVALID, "this string has an escape that is none");
    }
    lexer->at = (size_t)(end + 1 - lexer->source);
    out->n = (size_t)(end + 2 - begin);
    if (literal_text(lexer->arena, bytes, (size_t)(to - bytes), &out->value)) goto full;
    return 0;

full:
    return lexer_fail(lexer, out, lexer->arena->rc, "the template does not fit its memory");
}
