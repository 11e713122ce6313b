/* tool_python.c - see tool_python.h. */
#include "server/api/conversation/tool_python.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "server/api/conversation/arguments.h"
#include "server/api/conversation/tool_objects.h"

static bool read_value(struct buffer *out, struct piece *p, uint32_t depth);

/* Takes a character off the piece, behind white space.  Returns false if the piece does not begin
 * with it. */
static bool take(struct piece *p, char c) {
    const struct piece rest = skip_space(*p);
    if (rest.n == 0 || rest.at[0] != c) return false;
    *p = behind(rest, rest.at + 1);
    return true;
}

static void append_code(struct buffer *out, unsigned code) {
    char text[8];
    snprintf(text, sizeof(text), "\\u%04x", code & 0xffff);
    buffer_puts(out, text);
}

/* Reads n hexadecimal digits.  Returns false if there are fewer. */
static bool read_hex(struct piece p, size_t n, unsigned *code) {
    *code = 0;
    for (size_t i = 0; i < n; i++) {
        const int c = i < p.n ? tolower((unsigned char)p.at[i]) : 0;
        if (!isxdigit(c)) return false;
        *code = *code * 16 + (unsigned)(isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    return true;
}

/* Appends what an escape means, which begins behind its backslash, and cuts it off the text.  One
 * that Python does not have stands for itself. */
static void append_escape(struct buffer *out, struct piece *p) {
    static const char same[] = "\"\\bfnrt";
    const char c = p->at[0];
    struct piece rest = behind(*p, p->at + 1);
    unsigned code = 0;
    if (memchr(same, c, sizeof(same) - 1)) {
        buffer_append(out, p->at - 1, 2);
    } else if (c == 'u' && read_hex(rest, 4, &code)) {
        append_code(out, code);
        rest = behind(rest, rest.at + 4);
    } else if (c == 'x' && read_hex(rest, 2, &code)) {
        append_code(out, code);
        rest = behind(rest, rest.at + 2);
    } else if (c == '\'' || c == '/') {
        buffer_append(out, p->at, 1);
    } else if (c == 'a' || c == 'v' || c == '0') {
        append_code(out, c == 'a' ? 7 : c == 'v' ? 11 : 0);
    } else if (c != '\n') { /* which continues a line */
        buffer_puts(out, "\\\\");
        rest = *p;
    }
    *p = rest;
}

/* Tells whether the text begins with n quotes. */
static bool has_quotes(struct piece text, char quote, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (i >= text.n || text.at[i] != quote) return false;
    return true;
}

/* Reads a string between quotes of either kind, one each or three. */
static bool read_string(struct buffer *out, struct piece *p) {
    struct piece text = skip_space(*p);
    const char quote = text.n > 0 ? text.at[0] : 0;
    if (quote != '"' && quote != '\'') return false;
    const size_t n_quotes = has_quotes(text, quote, 3) ? 3 : 1;
    buffer_puts(out, "\"");
    text = behind(text, text.at + n_quotes);
    while (text.n > 0 && !has_quotes(text, quote, n_quotes)) {
        const char c = text.at[0];
        text = behind(text, text.at + 1);
        if (c == '\\' && text.n == 0) return false;
        if (c == '\\') append_escape(out, &text);
        else if (c == '"') buffer_puts(out, "\\\"");
        else if ((unsigned char)c < ' ') append_code(out, (unsigned char)c);
        else buffer_append(out, text.at - 1, 1);
    }
    if (text.n == 0) return false;
    buffer_puts(out, "\"");
    *p = behind(text, text.at + n_quotes);
    return true;
}

/* Reads values, or members of a dictionary, up to the end. */
static bool read_all(struct buffer *out, struct piece *p, bool has_names, char end,
                     uint32_t depth) {
    for (bool is_first = true; !take(p, end); is_first = false) {
        if (!is_first && !take(p, ',')) return false;
        if (!is_first && take(p, end)) return true; /* behind the last comma */
        if (!is_first) buffer_puts(out, ",");
        if (has_names && (!read_string(out, p) || !take(p, ':'))) return false;
        if (has_names) buffer_puts(out, ":");
        if (!read_value(out, p, depth)) return false;
    }
    return true;
}

static bool read_value(struct buffer *out, struct piece *p, uint32_t depth) {
    const bool is_object = take(p, '{'), is_tuple = !is_object && take(p, '('),
               is_list = is_tuple || (!is_object && take(p, '['));
    if (depth == ARGUMENTS_MAX_DEPTH) return false;
    if (is_object || is_list) {
        buffer_puts(out, is_object ? "{" : "[");
        const char end = is_object ? '}' : is_tuple ? ')' : ']';
        if (!read_all(out, p, is_object, end, depth + 1)) return false;
        buffer_puts(out, is_object ? "}" : "]");
        return true;
    }
    const struct piece text = skip_space(*p);
    if (text.n > 0 && (text.at[0] == '"' || text.at[0] == '\'')) return read_string(out, p);
    size_t n = 0;
    while (n < text.n && !memchr(",(){}[]=", text.at[n], 8)) n++;
    const struct piece bare = trimmed((struct piece){text.at, n});
    *p = behind(text, text.at + n);
    return bare.n > 0 && tool_object_append_bare(out, bare);
}

bool tool_python_name(struct piece *text, struct piece *name) {
    const struct piece rest = skip_space(*text);
    const char *bracket = find(rest, "(");
    *name = trimmed((struct piece){rest.at, bracket ? (size_t)(bracket - rest.at) : 0});
    if (!is_name(*name)) return false;
    *text = behind(rest, bracket + 1);
    return true;
}

bool tool_python_arguments(struct buffer *out, struct piece *text) {
    buffer_puts(out, "{");
    for (bool is_first = true; !take(text, ')'); is_first = false) {
        if (!is_first && !take(text, ',')) return false;
        if (!is_first && take(text, ')')) break;
        const struct piece rest = skip_space(*text);
        size_t n = 0;
        while (n < rest.n && !memchr("=,(){}[]\"'", rest.at[n], 10)) n++;
        const struct piece key = trimmed((struct piece){rest.at, n});
        *text = behind(rest, rest.at + n);
        if (!take(text, '=')) return false;
        if (!is_first) buffer_puts(out, ",");
        buffer_json_string(out, key.at, key.n);
        buffer_puts(out, ":");
        if (!read_value(out, text, 1)) return false;
    }
    buffer_puts(out, "}");
    return true;
}
