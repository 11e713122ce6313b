/* filters_text.c - filters that make strings.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#include "engine/template/call.h"
#include "engine/template/chars.h"
#include "engine/template/containers.h"
#include "engine/template/format.h"
#include "engine/template/iterate.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"
#include "engine/template/text.h"

/* Returns a string as it is, with its mark of being safe, and other values as str(). */
static const struct string *soft(struct render *r, struct value v) {
    return v.type == V_STRING ? v.string : print_string(r, v);
}

CALLABLE(trim) {
    const struct string *set =
        argv[0].type == V_NONE ? NULL : arg_string(r, "chars", argv[0], NULL);
    return value_string(text_strip(r, soft(r, self), set, SIDE_BOTH));
}

CALLABLE_IS(upper, value_string(text_upper(r, soft(r, self))))
CALLABLE_IS(lower, value_string(text_lower(r, soft(r, self))))
CALLABLE_IS(capitalize, value_string(text_capitalize(r, soft(r, self))))
CALLABLE_IS(title, value_string(text_headline(r, soft(r, self))))
CALLABLE_IS(center, value_string(text_center(r, soft(r, self), arg_int(r, "width", argv[0], 80))))

CALLABLE(replace) {
    const int64_t n = argv[2].type == V_NONE ? -1 : arg_int(r, "count", argv[2], -1);
    return value_string(text_replace(r, print_string(r, self), print_string(r, argv[0]),
                                     print_string(r, argv[1]), n));
}

CALLABLE_IS(string, value_string(soft(r, self)))
CALLABLE_IS(safe, value_string(string_as(r, soft(r, self), true)))
CALLABLE_IS(escape, value_string(string_escape(r, soft(r, self))))

CALLABLE(format_filter) {
    struct value values = value_tuple(list_share(r, args->items, args->n), true);
    if (args->n && args->n_keywords)
        return render_invalid(r, "format takes arguments by position or by name, not both");
    if (args->n_keywords) {
        struct dict *dict = dict_new(r, args->n_keywords);
        for (size_t i = 0; i < args->n_keywords; i++)
            dict_set(r, dict, value_string(args->keywords[i].name), args->keywords[i].value);
        values = value_dict(dict, true);
    }
    return format_percent(r, soft(r, self), values);
}

CALLABLE(indent) {
    struct builder b, width;
    if (self.type != V_STRING)
        return render_invalid(r, "indent needs a string, not a value of type %s",
                              value_type_name(self));
    builder_init(&width, r);
    if (argv[0].type == V_STRING) {
        builder_string(&width, argv[0].string);
    } else {
        const int64_t n = arg_int(r, "width", argv[0], 4);
        builder_repeat(&width, ' ', n > 0 ? (size_t)n : 0, string_is_trusted(self.string));
    }
    const struct string *indention = builder_end(&width);
    const bool blank = arg_bool(argv[2], false);
    const struct list *lines = text_split_lines(r, self.string, false);
    builder_init(&b, r);
    b.markup = self.string->markup;
    if (arg_bool(argv[1], false)) builder_string(&b, indention);
    for (size_t i = 0; i < lines->n && !r->rc; i++) {
        const struct string *line = lines->items[i].string;
        if (i) builder_text(&b, "\n", string_is_trusted(self.string));
        if (i && (blank || line->n)) builder_string(&b, indention);
        builder_string(&b, line);
    }
    /* jinja2 adds a line end in front of splitting, so that one at the end of the text begins one
     * more line; but \r and the one added are one. */
    const struct string *s = self.string;
    size_t at = s->n;
    if (at && s->bytes[at - 1] != '\r' && chars_is_line_end(chars_before(s->bytes, &at))) {
        builder_text(&b, "\n", string_is_trusted(s));
        if (blank) builder_string(&b, indention);
    }
    return value_string(builder_end(&b));
}

CALLABLE(truncate) {
    const int64_t length = arg_int(r, "length", argv[0], 255);
    static const struct string dots = {.bytes = "...", .n = 3, .n_chars = 3, .trusted = true};
    const struct string *end = arg_string(r, "end", argv[2], &dots);
    const int64_t leeway = argv[3].type == V_NONE ? 5 : arg_int(r, "leeway", argv[3], 5);
    const int64_t n_end = (int64_t)string_chars(end);
    const int64_t n = (int64_t)value_length(r, self);
    if (length < n_end || leeway < 0)
        return render_invalid(r, "truncate needs a length of at least that of its end");
    if (n <= length || n - length <= leeway) return self;
    if (self.type != V_STRING) return render_invalid(r, "truncate needs a string");
    const struct string *s = self.string;
    size_t cut = string_offset(s, (size_t)(length - n_end));
    if (!arg_bool(argv[1], false)) {
        static const struct string blank = {.bytes = " ", .n = 1, .n_chars = 1, .trusted = true};
        const size_t at = string_find_last(s, &blank, cut);
        if (at != SIZE_MAX) cut = at;
    }
    return value_string(string_add(r, string_slice(r, s, 0, cut), end));
}

CALLABLE(wordcount) {
    const struct string *s = soft(r, self);
    int64_t n = 0;
    bool in_word = false;
    for (size_t at = 0; at < s->n;) {
        const bool is_word = chars_is_word(chars_next(s->bytes, s->n, &at));
        n += is_word && !in_word;
        in_word = is_word;
    }
    render_move(r, s->n);
    return value_int(n, string_is_trusted(s));
}

/* Reads the argument `separators`: two strings. */
static void read_separators(struct render *r, struct value arg, struct json_style *style) {
    if (arg.type == V_MISSING || arg.type == V_NONE) return;
    const struct list *pair = iterate_all(r, arg);
    if (pair->n != 2 || pair->items[0].type != V_STRING || pair->items[1].type != V_STRING) {
        render_invalid(r, "separators must be two strings");
        return;
    }
    style->separator = pair->items[0].string;
    style->colon = pair->items[1].string;
}

CALLABLE(tojson) {
    struct builder b;
    const bool is_indented = argv[1].type != V_MISSING && argv[1].type != V_NONE;
    struct json_style style = {.ascii_only = arg_bool(argv[0], false),
                               .sort_keys = arg_bool(argv[3], false),
                               .is_indented = is_indented};
    const int64_t n_indent =
        is_indented && argv[1].type != V_STRING ? arg_int(r, "indent", argv[1], 0) : 0;
    if (n_indent > 0) style.n_indent = (size_t)n_indent;
    if (is_indented && argv[1].type == V_STRING) style.indent = argv[1].string;
    read_separators(r, argv[2], &style);
    builder_init(&b, r);
    if (!r->rc) print_json(&b, self, &style);
    return value_string(builder_end(&b));
}

const struct callable FILTERS_OF_TEXT[] = {
    {"trim", trim, "chars", 0},
    {"tojson", tojson, "ensure_ascii indent separators sort_keys", 0},
    {"upper", upper, "", 0},
    {"lower", lower, "", 0},
    {"capitalize", capitalize, "", 0},
    {"title", title, "", 0},
    {"replace", replace, "old new count", 2},
    {"indent", indent, "width first blank", 0},
    {"string", string, "", 0},
    {"safe", safe, "", 0},
    {"escape", escape, "", 0},
    {"e", escape, "", 0},
    {"format", format_filter, NULL, 0},
    {"truncate", truncate, "length killwords end leeway", 0},
    {"wordcount", wordcount, "", 0},
    {"center", center, "width", 0},
    {0},
};

/* What jinja2 has, and no chat template needs: HTML, and texts that differ from run to run. */
const struct callable FILTERS_NOT_HERE[] = {
    {"filesizeformat", NULL, NULL, 0}, {"forceescape", NULL, NULL, 0},
    {"pprint", NULL, NULL, 0},         {"random", NULL, NULL, 0},
    {"striptags", NULL, NULL, 0},      {"urlencode", NULL, NULL, 0},
    {"urlize", NULL, NULL, 0},         {"wordwrap", NULL, NULL, 0},
    {"xmlattr", NULL, NULL, 0},        {0},
};
