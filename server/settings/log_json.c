/* log_json.c - see log_json.h. */
#include "server/settings/log_json.h"

#include <assert.h>
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

struct writer {
    char *out;
    size_t n, size;
};

static void put(struct writer *w, const char *text, size_t length) {
    assert(length < w->size - w->n);
    memcpy(w->out + w->n, text, length);
    w->n += length;
}

static void puts_all(struct writer *w, const char *text) {
    put(w, text, strlen(text));
}

/* Writes the text between quotes.  Bytes that are not UTF-8 become U+FFFD. */
static void put_string(struct writer *w, const char *text, size_t length) {
    puts_all(w, "\"");
    for (size_t i = 0; i < length;) {
        char escaped[8];
        const unsigned char c = (unsigned char)text[i];
        const size_t n = utf8_character(text + i, length - i);
        if (n == 0) {
            puts_all(w, "\xEF\xBF\xBD");
        } else if (c == '"' || c == '\\') {
            put(w, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\%c", c));
        } else if (c < ' ' || c == 0x7F) {
            put(w, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", c));
        } else {
            put(w, text + i, n);
        }
        i += n ? n : 1;
    }
    puts_all(w, "\"");
}

static void put_name(struct writer *w, const char *name, size_t length) {
    puts_all(w, ",");
    put_string(w, name, length);
    puts_all(w, ":");
}

static void put_member(struct writer *w, const char *name, const char *text, size_t length) {
    put_name(w, name, strlen(name));
    put_string(w, text, length);
}

/* A field of a line: KEY=VALUE. */
struct field {
    const char *key, *value;
    size_t n_key, n_value;
};

/* Returns the length of a value that begins here: without spaces, or in quotes. */
static size_t value_length(const char *text) {
    if (*text != '"') return strcspn(text, " ");
    size_t n = 1;
    while (text[n] && text[n] != '"') n += text[n] == '\\' && text[n + 1] ? 2 : 1;
    if (text[n]) n++;
    return n + strcspn(text + n, " "); /* with the dots of a value that was cut */
}

/* Reads a field behind a space; returns what follows it, or NULL where there is none. */
static const char *read_field(const char *text, struct field *field) {
    if (*text != ' ') return NULL;
    field->key = text + 1;
    field->n_key = strspn(field->key, "abcdefghijklmnopqrstuvwxyz_");
    if (field->n_key == 0 || field->key[field->n_key] != '=') return NULL;
    field->value = field->key + field->n_key + 1;
    field->n_value = value_length(field->value);
    return field->value + field->n_value;
}

static bool is_key(const struct field *field, const char *key) {
    return strlen(key) == field->n_key && memcmp(key, field->key, field->n_key) == 0;
}

static bool is_chosen_by_clients(const struct field *field) {
    return is_key(field, "id") || is_key(field, "method") || is_key(field, "path");
}

/* Tells whether the value is digits, with a fraction or without: JSON has no leading zeros. */
static bool is_number(const char *value, size_t length) {
    size_t n = strspn(value, "0123456789");
    if (n == 0 || n > 15 || (value[0] == '0' && n > 1)) return false;
    if (value[n] == '.') {
        const size_t n_fraction = strspn(value + n + 1, "0123456789");
        if (n_fraction == 0) return false;
        n += 1 + n_fraction;
    }
    return n == length;
}

static unsigned hex(char c) {
    return isdigit((unsigned char)c) ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10);
}

/* Writes the text that a quoted value stands for. */
static void put_unquoted(struct writer *w, const char *value, size_t length) {
    char text[1024];
    size_t n = 0, i = 1;
    for (; i < length && value[i] != '"' && n < sizeof(text) - 4; i++) {
        if (value[i] != '\\') {
            text[n++] = value[i];
        } else if (value[i + 1] == 'x' && i + 3 < length) {
            text[n++] = (char)(hex(value[i + 2]) << 4 | hex(value[i + 3]));
            i += 3;
        } else {
            text[n++] = value[++i];
        }
    }
    for (i++; i < length && n < sizeof(text); i++) text[n++] = value[i]; /* the dots */
    put_string(w, text, n);
}

static void put_field(struct writer *w, const struct field *field) {
    put_name(w, field->key, field->n_key);
    const bool is_text = is_chosen_by_clients(field);
    if (field->value[0] == '"') put_unquoted(w, field->value, field->n_value);
    else if (!is_text && field->n_value == 1 && field->value[0] == '-') puts_all(w, "null");
    else if (!is_text && is_number(field->value, field->n_value))
        put(w, field->value, field->n_value);
    else put_string(w, field->value, field->n_value);
}

size_t log_json_write(char *out, size_t size, const char *time, const char *level,
                      const char *text) {
    struct writer w = {.out = out, .size = size};
    struct field field;
    const size_t n_event = strcspn(text, " ");
    const char *rest = text, *next = read_field(text + n_event, &field);
    puts_all(&w, "{\"time\":");
    put_string(&w, time, strlen(time));
    put_member(&w, "level", level, strlen(level));
    if (next) put_member(&w, "event", text, n_event);
    for (; next; next = read_field(next, &field)) {
        put_field(&w, &field);
        rest = next;
    }
    rest += strspn(rest, " ");
    if (*rest) put_member(&w, "message", rest, strlen(rest));
    puts_all(&w, "}");
    return w.n;
}
