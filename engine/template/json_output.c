/* json_output.c - values as JSON: json.dumps() with the arguments that the filter `tojson` takes.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/template/chars.h"
#include "engine/template/containers.h"
#include "engine/template/numbers.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/sorting.h"
#include "engine/template/strings.h"

struct writer {
    struct builder *b;
    const struct json_style *style;
    size_t level;
};

/* Writes \uXXXX, or two of them for a character beyond the first 65,536. */
static void escape_unicode(struct builder *b, uint32_t c, bool trusted) {
    char text[16];
    if (c < 0x10000) {
        snprintf(text, sizeof(text), "\\u%04" PRIx32, c);
    } else {
        c -= 0x10000;
        snprintf(text, sizeof(text), "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + (c >> 10),
                 0xdc00 + (c & 0x3ff));
    }
    builder_text(b, text, trusted);
}

static void write_escape(struct builder *b, uint32_t c, bool trusted) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *found = c && c < 0x80 ? strchr(from, (int)c) : NULL;
    if (!found) {
        escape_unicode(b, c, trusted);
        return;
    }
    const char text[2] = {'\\', to[found - from]};
    builder_put(b, text, 2, trusted);
}

static void write_string(const struct writer *w, const struct string *s) {
    const bool trusted = string_is_trusted(s);
    size_t from = 0;
    builder_text(w->b, "\"", trusted);
    for (size_t at = 0; at < s->n;) {
        const unsigned char byte = (unsigned char)s->bytes[at];
        if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x7f || !w->style->ascii_only)) {
            at++;
            continue;
        }
        builder_slice(w->b, s, from, at);
        const bool trusted_here = string_trusted_at(s, at);
        write_escape(w->b, chars_next(s->bytes, s->n, &at), trusted_here);
        from = at;
    }
    builder_slice(w->b, s, from, s->n);
    builder_text(w->b, "\"", trusted);
}

static void write_float(const struct writer *w, struct value v) {
    char text[NUMBER_MAX_TEXT];
    number_print_float(text, v.d);
    builder_text(w->b,
                 isfinite(v.d) ? text
                 : isnan(v.d)  ? "NaN"
                 : v.d < 0     ? "-Infinity"
                               : "Infinity",
                 v.trusted);
}

static void write_scalar(const struct writer *w, struct value v) {
    char text[NUMBER_MAX_TEXT];
    const char *written = render_number_text(w->b->render, v);
    if (written) {
        builder_text(w->b, written, v.trusted);
        return;
    }
    switch (v.type) {
    case V_NONE: builder_text(w->b, "null", v.trusted); break;
    case V_BOOL: builder_text(w->b, v.b ? "true" : "false", v.trusted); break;
    case V_INT:
        snprintf(text, sizeof(text), "%" PRId64, v.i);
        builder_text(w->b, text, v.trusted);
        break;
    case V_FLOAT: write_float(w, v); break;
    case V_STRING: write_string(w, v.string); break;
    default:
        render_invalid(w->b->render, "a value of type %s is not JSON serializable",
                       value_type_name(v));
    }
}

static void new_line(const struct writer *w, bool trusted) {
    if (!w->style->is_indented) return;
    builder_text(w->b, "\n", trusted);
    for (size_t i = 0; i < w->level; i++) {
        if (w->style->indent) builder_string(w->b, w->style->indent);
        else builder_repeat(w->b, ' ', w->style->n_indent, trusted);
    }
}

/* Signs that the template does not name have the origin of what they separate. */
static void write_sign(const struct writer *w, const struct string *sign, const char *usual,
                       bool trusted) {
    if (sign) builder_string(w->b, sign);
    else builder_text(w->b, usual, trusted);
}

static void separate(const struct writer *w, size_t i, bool trusted) {
    if (i) write_sign(w, w->style->separator, w->style->is_indented ? "," : ", ", trusted);
    new_line(w, trusted);
}

/* Writes a key.  Keys are strings in JSON: other scalars are written as if they were. */
static void write_key(const struct writer *w, struct value key) {
    const bool is_string = key.type == V_STRING;
    if (key.type == V_TUPLE || key.type > V_STRING)
        render_invalid(w->b->render, "a key of type %s is not JSON", value_type_name(key));
    if (!is_string) builder_text(w->b, "\"", key.trusted);
    write_scalar(w, key);
    if (!is_string) builder_text(w->b, "\"", key.trusted);
}

static void write_value(struct writer *w, struct value v);

static void write_list(struct writer *w, struct value v) {
    builder_text(w->b, "[", v.trusted);
    w->level++;
    for (size_t i = 0; i < v.list->n && render_step(w->b->render, 1); i++) {
        separate(w, i, v.trusted);
        write_value(w, v.list->items[i]);
    }
    w->level--;
    if (v.list->n) new_line(w, v.trusted);
    builder_text(w->b, "]", v.trusted);
}

static void write_dict(struct writer *w, struct value v) {
    struct render *r = w->b->render;
    const struct dict *dict = w->style->sort_keys ? sort_dict(r, v.dict) : v.dict;
    builder_text(w->b, "{", v.trusted);
    w->level++;
    for (size_t i = 0; i < dict->n && render_step(r, 1); i++) {
        separate(w, i, v.trusted);
        write_key(w, dict->entries[i].key);
        write_sign(w, w->style->colon, ": ", v.trusted);
        write_value(w, dict->entries[i].value);
    }
    w->level--;
    if (dict->n) new_line(w, v.trusted);
    builder_text(w->b, "}", v.trusted);
}

static void write_value(struct writer *w, struct value v) {
    if (v.type != V_LIST && v.type != V_TUPLE && v.type != V_DICT) {
        write_scalar(w, v);
        return;
    }
    if (!render_enter(w->b->render)) return;
    if (v.type == V_DICT) write_dict(w, v);
    else write_list(w, v);
    render_leave(w->b->render);
}

void print_json(struct builder *b, struct value v, const struct json_style *style) {
    struct writer w = {b, style, 0};
    write_value(&w, v);
}
