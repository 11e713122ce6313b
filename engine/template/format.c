/* format.c - see format.h.  Both languages read a specification and write one field:
 *
 *   [fill]align sign 0 width grouping .precision type                                        */
#include "engine/template/format.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/template/access.h"
#include "engine/template/call.h"
#include "engine/template/chars.h"
#include "engine/template/containers.h"
#include "engine/template/numbers.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

enum { MAX_WIDTH = 1 << 20, MAX_PRECISION = 300 };

struct field {
    char fill[4];
    size_t n_fill;
    char align; /* < > ^ =, or 0: as the type has it */
    char sign;  /* + or blank, or 0 */
    bool has_base;
    int width, precision; /* precision: -1 if there is none */
    char grouping;        /* , or _, or 0 */
    char type;
};

struct reader {
    struct render *r;
    const struct string *format;
    size_t at;
    struct builder out;
};

/* Returns whether c is in the set; a zero of the format is not. */
static bool is_one_of(char c, const char *set) {
    return c && strchr(set, c);
}

static struct value unsupported(struct render *r) {
    return render_fail(r, ERR_UNSUPPORTED,
                       "a format has a specification that is not supported here");
}

static char peek(const struct reader *in) {
    return in->at < in->format->n ? in->format->bytes[in->at] : 0;
}

static bool skip(struct reader *in, char c) {
    const bool is_there = in->at < in->format->n && in->format->bytes[in->at] == c;
    in->at += is_there;
    return is_there;
}

/* Reads digits; the render fails beyond the bound. */
static int read_number(struct reader *in, int max) {
    int number = 0;
    while (isdigit((unsigned char)peek(in)) && number <= max)
        number = number * 10 + (in->format->bytes[in->at++] - '0');
    if (number > max) unsupported(in->r);
    return number <= max ? number : 0;
}

/* Writes text between what fills its field.  The first n_prefix bytes, a sign, stay in front of
 * what fills with '='. */
static void write_padded(struct reader *in, const struct field *field, const struct string *text,
                         size_t n_prefix) {
    const size_t n = string_chars(text);
    const size_t n_pad = (size_t)field->width > n ? (size_t)field->width - n : 0;
    size_t left = field->align == '<' ? 0 : field->align == '^' ? n_pad / 2 : n_pad;
    const size_t right = n_pad - left;
    if (!render_move(in->r, n_pad)) return;
    const bool trusted = string_is_trusted(text);
    if (field->align != '=') n_prefix = 0;
    builder_slice(&in->out, text, 0, n_prefix);
    while (left--) builder_put(&in->out, field->fill, field->n_fill, trusted);
    builder_slice(&in->out, text, n_prefix, text->n);
    for (size_t i = 0; i < right; i++) builder_put(&in->out, field->fill, field->n_fill, trusted);
}

/* Puts separators between groups of three digits of the whole part. */
static void group_digits(char *to, const char *digits, char separator) {
    const size_t n = strspn(digits, "0123456789");
    for (size_t i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) *to++ = separator;
        *to++ = digits[i];
    }
    strcpy(to, digits + n);
}

static void write_digits(struct reader *in, struct field field, const char *digits,
                         bool is_negative, const char *base, bool trusted) {
    char text[1024], grouped[800];
    if (field.grouping) {
        group_digits(grouped, digits, field.grouping);
        digits = grouped;
    }
    const char sign[2] = {is_negative ? '-' : field.sign == '-' ? 0 : field.sign, 0};
    snprintf(text, sizeof(text), "%s%s%s", sign, field.has_base ? base : "", digits);
    if (!field.align) field.align = '>';
    write_padded(in, &field, string_of(in->r, text, trusted),
                 strlen(sign) + (field.has_base ? strlen(base) : 0));
}

static void write_int(struct reader *in, const struct field *field, int64_t i, bool trusted) {
    char digits[80];
    uint64_t rest = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char type = field->type;
    const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    const char *const names = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    size_t at = sizeof(digits) - 1;
    digits[at] = 0;
    do digits[--at] = names[rest % base];
    while ((rest /= base) > 0);
    /* The precision of % is the least number of digits. */
    while (field->precision >= 0 && (int)(sizeof(digits) - 1 - at) < field->precision && at > 0)
        digits[--at] = '0';
    write_digits(in, *field, digits + at, i < 0,
                 base == 16  ? (type == 'X' ? "0X" : "0x")
                 : base == 8 ? "0o"
                 : base == 2 ? "0b"
                             : "",
                 trusted);
}

static void write_float(struct reader *in, const struct field *field, double d, bool trusted) {
    char digits[700];
    const double size = fabs(d) * (field->type == '%' ? 100 : 1);
    const int precision = field->precision >= 0 ? field->precision : 6;
    switch (field->type) {
    case 'e': snprintf(digits, sizeof(digits), "%.*e", precision, size); break;
    case 'E': snprintf(digits, sizeof(digits), "%.*E", precision, size); break;
    case 'g': snprintf(digits, sizeof(digits), "%.*g", precision ? precision : 1, size); break;
    case 'G': snprintf(digits, sizeof(digits), "%.*G", precision ? precision : 1, size); break;
    case '%': snprintf(digits, sizeof(digits), "%.*f%%", precision, size); break;
    case 0: number_print_float(digits, size); break;
    default: snprintf(digits, sizeof(digits), "%.*f", precision, size); break;
    }
    if (!isfinite(d)) {
        unsupported(in->r);
        return;
    }
    write_digits(in, *field, digits, signbit(d) != 0, "", trusted);
}

static void write_text(struct reader *in, struct field field, const struct string *text) {
    if (field.precision >= 0 && (size_t)field.precision < string_chars(text))
        text = string_slice(in->r, text, 0, string_offset(text, (size_t)field.precision));
    if (!field.align) field.align = '<';
    write_padded(in, &field, text, 0);
}

/* The value of a %: the next of a tuple, a key's of a dict, or the only one. */
struct supply {
    struct value values;
    size_t n_taken;
};

static struct value take(struct render *r, struct supply *supply) {
    const bool is_tuple = supply->values.type == V_TUPLE;
    const size_t n = is_tuple ? supply->values.list->n : 1;
    if (supply->n_taken >= n) return render_invalid(r, "a format has more fields than values");
    const size_t i = supply->n_taken++;
    return is_tuple ? supply->values.list->items[i] : supply->values;
}

static struct value take_key(struct reader *in, struct supply *supply) {
    const size_t begin = in->at;
    int depth = 1;
    while (in->at < in->format->n && depth > 0) {
        const char c = in->format->bytes[in->at++];
        depth += (c == '(') - (c == ')');
    }
    if (depth || supply->values.type != V_DICT)
        return render_invalid(in->r, "a format with %%(name) needs a dict");
    supply->n_taken = 1;
    const struct string *key = string_slice(in->r, in->format, begin, in->at - 1);
    const struct value *value = dict_find(in->r, supply->values.dict, value_string(key));
    return value ? *value : render_invalid(in->r, "a format names a key that is not there");
}

/* Reads flags, width, precision and type behind a %. */
static struct field read_percent_field(struct reader *in) {
    struct field field = {.fill = " ", .n_fill = 1, .precision = -1};
    bool is_left = false, is_zero = false;
    for (;;) {
        if (skip(in, '-')) is_left = true;
        else if (skip(in, '0')) is_zero = true;
        else if (skip(in, '+')) field.sign = '+';
        else if (skip(in, ' ')) field.sign = field.sign ? field.sign : ' ';
        else if (skip(in, '#')) field.has_base = true;
        else break;
    }
    field.width = read_number(in, MAX_WIDTH);
    if (skip(in, '.')) field.precision = read_number(in, MAX_PRECISION);
    if (peek(in) == '*') unsupported(in->r);
    while (is_one_of(peek(in), "hlL")) in->at++;
    field.type = peek(in);
    in->at++;
    field.align = is_left ? '<' : '>';
    if (is_zero && !is_left && is_one_of(field.type, "diuxXoeEfFgG")) {
        field.fill[0] = '0';
        field.align = '=';
    }
    return field;
}

static void write_percent(struct reader *in, struct field field, struct value v) {
    struct builder text;
    const bool trusted = value_is_trusted(v);
    if (field.type == 's') {
        write_text(in, field, print_string(in->r, v));
    } else if (field.type == 'r') {
        builder_init(&text, in->r);
        print_repr(&text, v);
        write_text(in, field, builder_end(&text));
    } else if (is_one_of(field.type, "diu") && value_is_number(v)) {
        if (v.type == V_FLOAT && !(fabs(v.d) < 9e18)) unsupported(in->r);
        else write_int(in, &field, v.type == V_FLOAT ? (int64_t)v.d : value_to_int(v), trusted);
    } else if (is_one_of(field.type, "xXo") && value_is_integer(v)) {
        write_int(in, &field, value_to_int(v), trusted);
    } else if (is_one_of(field.type, "eEfFgG") && value_is_number(v)) {
        if (field.has_base) unsupported(in->r);
        else write_float(in, &field, value_to_double(v), trusted);
    } else if (field.type == 'c' || field.type == 'a') {
        unsupported(in->r);
    } else {
        render_invalid(in->r, "a format cannot write a value of type %s so", value_type_name(v));
    }
}

struct value format_percent(struct render *r, const struct string *format, struct value values) {
    struct reader in = {.r = r, .format = format};
    struct supply supply = {.values = values};
    if (format->markup) return unsupported(r);
    builder_init(&in.out, r);
    while (in.at < format->n && !r->rc) {
        const char *next = memchr(format->bytes + in.at, '%', format->n - in.at);
        const size_t end = next ? (size_t)(next - format->bytes) : format->n;
        builder_slice(&in.out, format, in.at, end);
        in.at = end + 1;
        if (!next) break;
        const bool has_key = skip(&in, '(');
        struct value v = has_key ? take_key(&in, &supply) : value_missing();
        const struct field field = read_percent_field(&in);
        if (field.type == '%') {
            builder_slice(&in.out, format, end, end + 1);
            continue;
        }
        if (!has_key) v = take(r, &supply);
        if (!r->rc) write_percent(&in, field, v);
    }
    const size_t n_values = values.type == V_TUPLE ? values.list->n : 1;
    if (supply.n_taken < n_values && values.type != V_DICT)
        render_invalid(r, "a format has fewer fields than values");
    return value_string(builder_end(&in.out));
}

/* Finds what a replacement field names: {}, {0}, {name}, with .attributes and [items] behind. */
static struct value find_value(struct reader *in, const struct args *args, size_t *n_auto,
                               size_t end) {
    const char *s = in->format->bytes;
    const size_t begin = in->at;
    struct value v = value_missing();
    while (in->at < end && s[in->at] != '.' && s[in->at] != '[') in->at++;
    const struct string *first = string_slice(in->r, in->format, begin, in->at);
    int64_t i = (int64_t)*n_auto;
    if (!first->n) ++*n_auto;
    if (!first->n || !number_parse_int(first->bytes, first->n, 10, &i)) {
        if (i >= 0 && (uint64_t)i < args->n) v = args->items[i];
    } else {
        for (size_t k = 0; k < args->n_keywords; k++)
            if (string_equals(args->keywords[k].name, first)) v = args->keywords[k].value;
    }
    if (v.type == V_MISSING) return render_invalid(in->r, "str.format() has no value for a field");
    while (in->at < end && !in->r->rc) {
        const bool is_item = s[in->at++] == '[';
        const size_t from = in->at;
        while (in->at < end && (is_item ? s[in->at] != ']' : s[in->at] != '.' && s[in->at] != '['))
            in->at++;
        const struct string *name = string_slice(in->r, in->format, from, in->at);
        if (is_item && in->at == end) return render_invalid(in->r, "a field lacks a bracket");
        struct value key = value_string(name);
        if (is_item && !number_parse_int(name->bytes, name->n, 10, &i)) key = value_int(i, true);
        v = is_item ? value_item(in->r, v, key) : value_attribute(in->r, v, name);
        in->at += is_item;
    }
    return v;
}

/* Reads the specification up to `end`. */
static struct field read_brace_field(struct reader *in, size_t end) {
    struct field field = {.fill = " ", .n_fill = 1, .precision = -1};
    const char *s = in->format->bytes;
    size_t after = in->at;
    if (in->at < end) chars_next(s, end, &after);
    if (after < end && is_one_of(s[after], "<>^=")) {
        field.n_fill = after - in->at;
        memcpy(field.fill, s + in->at, field.n_fill);
        field.align = s[after];
        in->at = after + 1;
    } else if (in->at < end && is_one_of(s[in->at], "<>^=")) {
        field.align = s[in->at++];
    }
    if (in->at < end && is_one_of(s[in->at], "+- ")) field.sign = s[in->at++];
    if (skip(in, '#')) field.has_base = true;
    if (in->at < end && s[in->at] == '0' && !field.align) {
        field.fill[0] = '0';
        field.align = '=';
    }
    field.width = read_number(in, MAX_WIDTH);
    if (in->at < end && is_one_of(s[in->at], ",_")) field.grouping = s[in->at++];
    if (skip(in, '.')) field.precision = read_number(in, MAX_PRECISION);
    if (in->at < end) field.type = s[in->at++];
    /* Zeros in front of groups are grouped, too: Python alone knows how. */
    if (in->at != end || (field.grouping && field.fill[0] == '0')) unsupported(in->r);
    in->at = end;
    return field;
}

static void write_brace(struct reader *in, struct field field, struct value v) {
    const bool trusted = value_is_trusted(v);
    const bool is_plain = !field.align && !field.sign && !field.width && !field.grouping &&
                          !field.has_base && field.precision < 0 && !field.type;
    if (is_plain) {
        print_value(&in->out, v);
    } else if (v.type == V_STRING && (!field.type || field.type == 's') && field.align != '=' &&
               !field.sign && !field.grouping && !field.has_base) {
        write_text(in, field, print_string(in->r, v));
    } else if (value_is_integer(v) && field.precision < 0 &&
               (field.type == 'd' || (!field.type && v.type == V_INT) ||
                (!field.grouping && is_one_of(field.type, "xXob")))) {
        write_int(in, &field, value_to_int(v), trusted);
    } else if (value_is_number(v) && !field.has_base &&
               (is_one_of(field.type, "eEfFgG%") ||
                (!field.type && v.type == V_FLOAT && field.precision < 0))) {
        write_float(in, &field, value_to_double(v), trusted);
    } else {
        unsupported(in->r);
    }
}

/* Writes one {field}; the place is behind its brace. */
static void write_replacement(struct reader *in, const struct args *args, size_t *n_auto) {
    const char *s = in->format->bytes;
    size_t end = in->at, name_end;
    while (end < in->format->n && s[end] != '}' && s[end] != '{') end++;
    if (end < in->format->n && s[end] == '{') {
        unsupported(in->r);
        return;
    }
    if (end == in->format->n) {
        render_invalid(in->r, "str.format() has a field without an end");
        return;
    }
    for (name_end = in->at; name_end < end && s[name_end] != ':' && s[name_end] != '!';) name_end++;
    struct value v = find_value(in, args, n_auto, name_end);
    if (s[in->at] == '!') {
        struct builder text;
        builder_init(&text, in->r);
        in->at++;
        if (skip(in, 's')) print_value(&text, v);
        else if (skip(in, 'r')) print_repr(&text, v);
        else unsupported(in->r);
        v = value_string(builder_end(&text));
    }
    struct field field = {.precision = -1};
    if (skip(in, ':')) field = read_brace_field(in, end);
    if (in->at != end) render_invalid(in->r, "str.format() has a field that is none");
    if (!in->r->rc) write_brace(in, field, v);
    in->at = end + 1;
}

struct value format_braces(struct render *r, const struct string *format, const struct args *args) {
    struct reader in = {.r = r, .format = format};
    size_t n_auto = 0;
    if (format->markup) return unsupported(r);
    builder_init(&in.out, r);
    while (in.at < format->n && !r->rc) {
        const size_t from = in.at;
        while (in.at < format->n && peek(&in) != '{' && peek(&in) != '}') in.at++;
        builder_slice(&in.out, format, from, in.at);
        if (in.at == format->n) break;
        const char brace = format->bytes[in.at++];
        if (skip(&in, brace)) builder_slice(&in.out, format, in.at - 1, in.at);
        else if (brace == '}') render_invalid(r, "str.format() has a single '}'");
        else write_replacement(&in, args, &n_auto);
    }
    return value_string(builder_end(&in.out));
}
