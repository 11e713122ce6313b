/* numbers.c - see numbers.h. */
#include "engine/template/numbers.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/template/chars.h"

/* Writes d with the fewest digits, as d.ddde+xx.  A number of at most 15 digits is always the only
 * one with so few; of 16 and 17 the first that reads back is the shortest. */
static void shortest(char text[NUMBER_MAX_TEXT], double d) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, NUMBER_MAX_TEXT, "%.*e", digits - 1, d);
        if (strtod(text, NULL) == d) return;
    }
}

void number_print_float(char out[NUMBER_MAX_TEXT], double d) {
    if (!isfinite(d)) {
        snprintf(out, NUMBER_MAX_TEXT, "%s", isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    char text[NUMBER_MAX_TEXT], digits[NUMBER_MAX_TEXT];
    shortest(text, fabs(d));
    char *e = strchr(text, 'e');
    const int exponent = atoi(e + 1);
    int n = 0;
    for (const char *p = text; p < e; p++)
        if (*p != '.') digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0') n--;
    char *to = out;
    if (signbit(d)) *to++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *to++ = digits[0];
        if (n > 1) *to++ = '.';
        for (int i = 1; i < n; i++) *to++ = digits[i];
        snprintf(to, 16, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int at = 0;
    if (exponent < 0) *to++ = '0';
    while (at <= exponent) *to++ = at < n ? digits[at] : '0', at++;
    *to++ = '.';
    for (int i = exponent + 1; i < 0; i++) *to++ = '0';
    if (at >= n) *to++ = '0';
    while (at < n) *to++ = digits[at++];
    *to = 0;
}

static void trim(const char **bytes, size_t *n) {
    size_t at = 0;
    for (size_t next = 0; at < *n && chars_is_space(chars_next(*bytes, *n, &next));) at = next;
    *bytes += at, *n -= at;
    for (size_t end = *n; end > 0 && chars_is_space(chars_before(*bytes, &end));) *n = end;
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return isalpha((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : 99;
}

/* Skips 0x and the like, which the base allows or, if it is 0, is told by. */
static int skip_prefix(const char **at, const char *end, int base) {
    static const char letters[] = "box";
    static const int bases[] = {2, 8, 16};
    for (int i = 0; i < 3; i++) {
        if (end - *at <= 2 || (*at)[0] != '0' || tolower((unsigned char)(*at)[1]) != letters[i])
            continue;
        if (base != 0 && base != bases[i]) continue;
        *at += 2;
        if (**at == '_') ++*at;
        return bases[i];
    }
    return base ? base : 10;
}

int number_parse_int(const char *bytes, size_t n, int base, int64_t *out) {
    trim(&bytes, &n);
    const char *at = bytes, *const end = bytes + n;
    const bool is_negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    base = skip_prefix(&at, end, base);
    uint64_t number = 0;
    bool is_long = false, after_digit = false;
    for (; at < end; at++) {
        if (*at == '_' && after_digit && at + 1 < end) {
            after_digit = false;
            continue;
        }
        const int digit = digit_of(*at);
        if (digit >= base) return ERR_INVALID;
        is_long |= number > (UINT64_MAX - 36) / (uint64_t)base;
        number = number * (uint64_t)base + (uint64_t)digit;
        after_digit = true;
    }
    if (!after_digit) return ERR_INVALID;
    if (is_long || number > (uint64_t)INT64_MAX + is_negative) return ERR_TOO_LONG;
    *out = (int64_t)(is_negative ? 0 - number : number);
    return 0;
}

/* Copies without the underscores between digits; returns false if it has one elsewhere. */
static bool without_underscores(char *out, const char *bytes, size_t n) {
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != '_') out[length++] = bytes[i];
        else if (i == 0 || i + 1 == n || !isdigit((unsigned char)bytes[i - 1]) ||
                 !isdigit((unsigned char)bytes[i + 1]))
            return false;
    }
    out[length] = 0;
    return true;
}

bool number_parse_float(const char *bytes, size_t n, double *out) {
    enum { LONGEST = 400 }; /* a double has at most 309 digits in front of its point */
    char text[LONGEST + 1];
    trim(&bytes, &n);
    if (n == 0 || n > LONGEST || !without_underscores(text, bytes, n)) return false;
    /* strtod() also reads hexadecimal numbers and nan(...), Python does not. */
    const size_t length = strlen(text);
    if (length == 0 || strpbrk(text, "xX(")) return false;
    char *end;
    *out = strtod(text, &end);
    return end == text + length;
}

double number_round(double d, int n_digits) {
    char text[400];                              /* 309 digits, the point, and those behind it */
    if (!isfinite(d) || n_digits > 22) return d; /* doubles of that many digits are exact */
    snprintf(text, sizeof(text), "%.*f", n_digits, d);
    return strtod(text, NULL);
}
