/* json_check.c - see json_check.h. */
#include "server/json/json_check.h"

#include <string.h>

#include "engine/base/json_strings.h"

enum place {
    VALUE,       /* a value comes */
    FIRST_VALUE, /* or the end of its array */
    FIRST_NAME,  /* a member's name, or the end of its object */
    NAME,
    COLON,
    BEHIND, /* a value has ended: a comma, the end of a container, or nothing more */
    STRING,
    ESCAPE,
    HEX,
    WORD, /* true, false or null */
    MINUS,
    ZERO,
    DIGITS,
    POINT,
    DECIMALS,
    EXPONENT,
    SIGN,
    POWER
};

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool go(struct json_check *k, enum place place) {
    k->place = (unsigned char)place;
    return true;
}

static bool open_container(struct json_check *k, char c) {
    buffer_append(&k->open, &c, 1);
    return go(k, c == '{' ? FIRST_NAME : FIRST_VALUE);
}

static bool close_container(struct json_check *k, char c) {
    if (k->open.length == 0 || k->open.data[k->open.length - 1] != (c == '}' ? '{' : '['))
        return false;
    k->open.length--;
    return go(k, BEHIND);
}

static bool begin_string(struct json_check *k, bool is_key) {
    k->is_key = is_key;
    return go(k, STRING);
}

static bool begin_value(struct json_check *k, char c) {
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        if (words[i][0] != c) continue;
        k->rest = words[i] + 1;
        return go(k, WORD);
    }
    if (c == '{' || c == '[') return open_container(k, c);
    if (c == '"') return begin_string(k, false);
    if (c == '-') return go(k, MINUS);
    if (c == '0') return go(k, ZERO);
    return is_digit(c) && go(k, DIGITS);
}

static bool take_behind(struct json_check *k, char c) {
    if (c == '}' || c == ']') return close_container(k, c);
    if (c != ',' || k->open.length == 0) return false;
    return go(k, k->open.data[k->open.length - 1] == '{' ? NAME : VALUE);
}

static bool take_between(struct json_check *k, char c) {
    if (json_is_space(c)) return true;
    switch (k->place) {
    case VALUE: return begin_value(k, c);
    case FIRST_VALUE: return c == ']' ? close_container(k, c) : begin_value(k, c);
    case FIRST_NAME: return c == '}' ? close_container(k, c) : c == '"' && begin_string(k, true);
    case NAME: return c == '"' && begin_string(k, true);
    case COLON: return c == ':' && go(k, VALUE);
    default: return take_behind(k, c);
    }
}

static bool take_string(struct json_check *k, char c) {
    if (k->place == STRING) {
        if (c == '"') return go(k, k->is_key ? COLON : BEHIND);
        if (c == '\\') return go(k, ESCAPE);
        return (unsigned char)c >= 0x20;
    }
    if (k->place == ESCAPE) {
        k->n_hex = 4;
        if (c == 'u') return go(k, HEX);
        return c && strchr("\"\\/bfnrt", c) && go(k, STRING);
    }
    if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) return false;
    return --k->n_hex > 0 || go(k, STRING);
}

static bool take_word(struct json_check *k, char c) {
    if (*k->rest != c) return false;
    return *++k->rest || go(k, BEHIND);
}

/* Takes a character behind a number's first one; one that is not of the number is behind it. */
static bool take_number(struct json_check *k, char c) {
    const enum place at = k->place;
    const bool is_exponent = c == 'e' || c == 'E';
    if (is_digit(c) && at == MINUS) return go(k, c == '0' ? ZERO : DIGITS);
    if (is_digit(c) && at != ZERO)
        return go(k, at == POINT ? DECIMALS : at == EXPONENT || at == SIGN ? POWER : at);
    if (c == '.' && (at == ZERO || at == DIGITS)) return go(k, POINT);
    if (is_exponent && (at == ZERO || at == DIGITS || at == DECIMALS)) return go(k, EXPONENT);
    if ((c == '+' || c == '-') && at == EXPONENT) return go(k, SIGN);
    if (at == MINUS || at == POINT || at == EXPONENT || at == SIGN) return false;
    go(k, BEHIND);
    return take_between(k, c);
}

static bool take(struct json_check *k, char c) {
    if (k->place <= BEHIND) return take_between(k, c);
    if (k->place <= HEX) return take_string(k, c);
    return k->place == WORD ? take_word(k, c) : take_number(k, c);
}

void json_check_add(struct json_check *check, const char *text, size_t n) {
    for (size_t i = 0; i < n && !check->failed && !check->open.failed; i++)
        check->failed = !take(check, text[i]);
}

bool json_check_is_whole(const struct json_check *check) {
    if (check->open.failed) return true;
    const enum place at = check->place;
    const bool ends = at == BEHIND || at == ZERO || at == DIGITS || at == DECIMALS || at == POWER;
    return !check->failed && ends && check->open.length == 0;
}

void json_check_fini(struct json_check *check) {
    buffer_fini(&check->open);
}
