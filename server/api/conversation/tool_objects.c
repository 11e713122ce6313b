/* tool_objects.c - see tool_objects.h. */
#include "server/api/conversation/tool_objects.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/count.h"
#include "server/api/conversation/arguments.h"

static bool read_value(struct buffer *out, struct piece *p, uint32_t depth);

/* Takes a text off the piece, behind white space.  Returns false if the piece does not begin with
 * it. */
static bool take(struct piece *p, const char *text) {
    const struct piece rest = skip_space(*p);
    if (!begins(rest, text)) return false;
    *p = behind(rest, rest.at + strlen(text));
    return true;
}

static const char *const string_marks[] = {TOOL_STRING_MARK, TOOL_ESCAPE_MARK};

/* Tells whether the text begins with a string. */
static bool begins_string(struct piece text) {
    bool is = begins(text, "\"");
    for (size_t i = 0; i < COUNT(string_marks); i++) is |= begins(text, string_marks[i]);
    return is;
}

/* Reads a string between marks, or one of JSON. */
static bool read_string(struct buffer *out, struct piece *p) {
    const struct piece text = skip_space(*p);
    for (size_t i = 0; i < COUNT(string_marks); i++) {
        if (!take(p, string_marks[i])) continue;
        const char *end = find(*p, string_marks[i]);
        if (!end) return false;
        buffer_json_string(out, p->at, (size_t)(end - p->at));
        *p = behind(*p, end + strlen(string_marks[i]));
        return true;
    }
    const struct piece quoted = quoted_of(text);
    if (quoted.n == 0) return false;
    buffer_append(out, quoted.at, quoted.n);
    *p = behind(text, quoted.at + quoted.n);
    return true;
}

/* Takes what stands without quotes, up to one of these characters. */
static struct piece take_bare(struct piece *p, const char *ends) {
    const struct piece text = skip_space(*p);
    size_t n = 0;
    while (n < text.n && !strchr(ends, text.at[n])) n++;
    *p = behind(text, text.at + n);
    return trimmed((struct piece){text.at, n});
}

/* Takes digits off the piece, and returns how many. */
static size_t take_digits(struct piece *p) {
    size_t n = 0;
    while (n < p->n && isdigit((unsigned char)p->at[n])) n++;
    *p = behind(*p, p->at + n);
    return n;
}

/* Tells whether the text is a number of JSON, however large. */
static bool is_number(struct piece p) {
    if (begins(p, "-")) p = behind(p, p.at + 1);
    const bool has_zero = begins(p, "0");
    const size_t n_whole = take_digits(&p);
    if (n_whole == 0 || (has_zero && n_whole > 1)) return false;
    if (begins(p, ".")) {
        p = behind(p, p.at + 1);
        if (take_digits(&p) == 0) return false;
    }
    if (begins(p, "e") || begins(p, "E")) {
        p = behind(p, p.at + 1);
        if (begins(p, "-") || begins(p, "+")) p = behind(p, p.at + 1);
        if (take_digits(&p) == 0) return false;
    }
    return p.n == 0;
}

bool tool_object_append_bare(struct buffer *out, struct piece text) {
    static const char *const names[][2] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
                                           {"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < COUNT(names); i++)
        if (text.n == strlen(names[i][0]) && begins(text, names[i][0])) {
            buffer_puts(out, names[i][1]);
            return true;
        }
    if (!is_number(text)) return false;
    buffer_append(out, text.at, text.n);
    return true;
}

/* Reads values, or members with their names, up to the end mark. */
static bool read_all(struct buffer *out, struct piece *p, bool has_names, const char *end,
                     uint32_t depth) {
    for (bool is_first = true; !take(p, end); is_first = false) {
        if (!is_first && !take(p, ",")) return false;
        if (!is_first) buffer_puts(out, ",");
        if (has_names && !read_string(out, p)) {
            const struct piece name = take_bare(p, ":,{}[]");
            if (name.n == 0) return false;
            buffer_json_string(out, name.at, name.n);
        }
        if (has_names && !take(p, ":")) return false;
        if (has_names) buffer_puts(out, ":");
        if (!read_value(out, p, depth)) return false;
    }
    buffer_puts(out, end);
    return true;
}

static bool read_value(struct buffer *out, struct piece *p, uint32_t depth) {
    if (depth == ARGUMENTS_MAX_DEPTH) return false;
    if (take(p, "{")) {
        buffer_puts(out, "{");
        return read_all(out, p, true, "}", depth + 1);
    }
    if (take(p, "[")) {
        buffer_puts(out, "[");
        return read_all(out, p, false, "]", depth + 1);
    }
    if (read_string(out, p)) return true;
    const struct piece text = skip_space(*p);
    if (begins_string(text)) return false; /* it does not end */
    const struct piece bare = take_bare(p, ",{}[]");
    if (bare.n == 0) return false;
    /* Whatever else stands without quotes is a string. */
    if (!tool_object_append_bare(out, bare)) buffer_json_string(out, bare.at, bare.n);
    return true;
}

bool tool_object_read(struct buffer *out, struct piece *text) {
    return begins(skip_space(*text), "{") && read_value(out, text, 0);
}
