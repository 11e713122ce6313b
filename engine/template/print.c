/* print.c - see print.h; json_output.c has print_json(). */
#include "engine/template/print.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "engine/template/chars.h"
#include "engine/template/containers.h"
#include "engine/template/numbers.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

/* Writes one character as repr() does, from the byte at `at`; returns the byte after it. */
static size_t repr_char(struct builder *b, const struct string *s, size_t at, char quote) {
    const size_t begin = at;
    const bool trusted = string_trusted_at(s, at);
    const uint32_t c = chars_next(s->bytes, s->n, &at);
    char text[16];
    if (c == (uint32_t)quote || c == '\\') snprintf(text, sizeof(text), "\\%c", (char)c);
    else if (c == '\n') snprintf(text, sizeof(text), "\\n");
    else if (c == '\r') snprintf(text, sizeof(text), "\\r");
    else if (c == '\t') snprintf(text, sizeof(text), "\\t");
    else if (chars_is_printable(c)) {
        builder_slice(b, s, begin, at);
        return at;
    } else if (c < 0x100) snprintf(text, sizeof(text), "\\x%02" PRIx32, c);
    else if (c < 0x10000) snprintf(text, sizeof(text), "\\u%04" PRIx32, c);
    else snprintf(text, sizeof(text), "\\U%08" PRIx32, c);
    builder_text(b, text, trusted);
    return at;
}

static void repr_string(struct builder *b, const struct string *s) {
    const bool trusted = string_is_trusted(s);
    const bool has_single = string_find(s, &(struct string){.bytes = "'", .n = 1}, 0) != SIZE_MAX;
    const bool has_double = string_find(s, &(struct string){.bytes = "\"", .n = 1}, 0) != SIZE_MAX;
    const char quote = has_single && !has_double ? '"' : '\'';
    if (s->markup) builder_text(b, "Markup(", trusted);
    builder_repeat(b, quote, 1, trusted);
    for (size_t at = 0; at < s->n;) at = repr_char(b, s, at, quote);
    builder_repeat(b, quote, 1, trusted);
    if (s->markup) builder_text(b, ")", trusted);
}

static void print_items(struct builder *b, const struct list *list, bool trusted) {
    for (size_t i = 0; i < list->n && render_step(b->render, 1); i++) {
        if (i) builder_text(b, ", ", trusted);
        print_repr(b, list->items[i]);
    }
}

static void print_entries(struct builder *b, const struct dict *dict, bool trusted) {
    builder_text(b, "{", trusted);
    for (size_t i = 0; i < dict->n && render_step(b->render, 1); i++) {
        if (i) builder_text(b, ", ", trusted);
        print_repr(b, dict->entries[i].key);
        builder_text(b, ": ", trusted);
        print_repr(b, dict->entries[i].value);
    }
    builder_text(b, "}", trusted);
}

static void print_view(struct builder *b, const struct view *view, bool trusted) {
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    builder_text(b, names[view->kind], trusted);
    for (size_t i = 0; i < view->dict->n && render_step(b->render, 1); i++) {
        const struct entry *entry = &view->dict->entries[i];
        if (i) builder_text(b, ", ", trusted);
        if (view->kind == VIEW_ITEMS) builder_text(b, "(", trusted);
        if (view->kind != VIEW_VALUES) print_repr(b, entry->key);
        if (view->kind == VIEW_ITEMS) builder_text(b, ", ", trusted);
        if (view->kind != VIEW_KEYS) print_repr(b, entry->value);
        if (view->kind == VIEW_ITEMS) builder_text(b, ")", trusted);
    }
    builder_text(b, "])", trusted);
}

static void print_range(struct builder *b, const struct range *range, bool trusted) {
    char text[96];
    snprintf(text, sizeof(text), "range(%" PRId64 ", %" PRId64, range->start, range->stop);
    builder_text(b, text, trusted);
    snprintf(text, sizeof(text), range->step == 1 ? ")" : ", %" PRId64 ")", range->step);
    builder_text(b, text, trusted);
}

static void print_container(struct builder *b, struct value v) {
    switch (v.type) {
    case V_LIST:
        builder_text(b, "[", v.trusted);
        print_items(b, v.list, v.trusted);
        builder_text(b, "]", v.trusted);
        break;
    case V_TUPLE:
        builder_text(b, "(", v.trusted);
        print_items(b, v.list, v.trusted);
        builder_text(b, v.list->n == 1 ? ",)" : ")", v.trusted);
        break;
    case V_DICT: print_entries(b, v.dict, v.trusted); break;
    case V_NAMESPACE:
        builder_text(b, "<Namespace ", v.trusted);
        print_entries(b, v.space, v.trusted);
        builder_text(b, ">", v.trusted);
        break;
    case V_VIEW: print_view(b, v.view, v.trusted); break;
    default: print_range(b, v.range, v.trusted); break;
    }
}

static void print_number(struct builder *b, struct value v) {
    char text[NUMBER_MAX_TEXT];
    const char *written = render_number_text(b->render, v);
    if (written) {
        builder_text(b, written, v.trusted);
        return;
    }
    if (v.type == V_INT) snprintf(text, sizeof(text), "%" PRId64, v.i);
    else number_print_float(text, v.d);
    builder_text(b, text, v.trusted);
}

void print_repr(struct builder *b, struct value v) {
    switch (v.type) {
    case V_UNDEFINED: builder_text(b, "Undefined", true); break;
    case V_NONE: builder_text(b, "None", v.trusted); break;
    case V_BOOL: builder_text(b, v.b ? "True" : "False", v.trusted); break;
    case V_INT:
    case V_FLOAT: print_number(b, v); break;
    case V_STRING: repr_string(b, v.string); break;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_NAMESPACE:
    case V_VIEW:
    case V_RANGE:
        if (!render_enter(b->render)) return;
        print_container(b, v);
        render_leave(b->render);
        break;
    default:
        /* Python prints an address, which no template can mean. */
        render_fail(b->render, ERR_UNSUPPORTED, "a value of type %s cannot be printed",
                    value_type_name(v));
    }
}

void print_value(struct builder *b, struct value v) {
    if (v.type == V_STRING) builder_string(b, v.string);
    else if (v.type != V_UNDEFINED) print_repr(b, v);
}

const struct string *print_string(struct render *r, struct value v) {
    if (v.type == V_STRING) return string_as(r, v.string, false);
    struct builder b;
    builder_init(&b, r);
    print_value(&b, v);
    return builder_end(&b);
}
