/* methods.c - the methods of strings, lists and dicts: those of Python, but for the ones without a
 * function, which are refused by name.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/template/call.h"
#include "engine/template/chars.h"
#include "engine/template/containers.h"
#include "engine/template/format.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"
#include "engine/template/text.h"

static const struct string *set_arg(struct render *r, struct value arg) {
    return arg.type == V_NONE ? NULL : arg_string(r, "the set of characters", arg, NULL);
}

CALLABLE_IS(strip, value_string(text_strip(r, self.string, set_arg(r, argv[0]), SIDE_BOTH)))
CALLABLE_IS(lstrip, value_string(text_strip(r, self.string, set_arg(r, argv[0]), SIDE_LEFT)))
CALLABLE_IS(rstrip, value_string(text_strip(r, self.string, set_arg(r, argv[0]), SIDE_RIGHT)))
CALLABLE_IS(upper, value_string(text_upper(r, self.string)))
CALLABLE_IS(lower, value_string(text_lower(r, self.string)))
CALLABLE_IS(capitalize, value_string(text_capitalize(r, self.string)))
CALLABLE_IS(title, value_string(text_title(r, self.string)))

/* Fails for a string that is marked safe: its methods escape their arguments. */
static bool is_plain(struct render *r, struct value self) {
    if (self.string->markup)
        render_fail(r, ERR_UNSUPPORTED, "this method of a string marked safe is not supported");
    return !self.string->markup;
}

CALLABLE(replace) {
    if (!is_plain(r, self)) return self;
    const struct string *old = arg_string(r, "the replaced text", argv[0], &STRING_EMPTY);
    const struct string *with = arg_string(r, "the replacement", argv[1], &STRING_EMPTY);
    return value_string(text_replace(r, self.string, old, with, arg_int(r, "count", argv[2], -1)));
}

static struct value split(struct render *r, struct value self, const struct value *argv,
                          bool from_right) {
    const struct string *separator =
        argv[0].type == V_NONE ? NULL : arg_string(r, "the separator", argv[0], NULL);
    const int64_t n = arg_int(r, "maxsplit", argv[1], -1);
    return value_list(text_split(r, self.string, separator, n, from_right),
                      string_is_trusted(self.string));
}

CALLABLE_IS(split_left, split(r, self, argv, false))
CALLABLE_IS(split_right, split(r, self, argv, true))

CALLABLE(splitlines) {
    return value_list(text_split_lines(r, self.string, arg_bool(argv[0], false)),
                      string_is_trusted(self.string));
}

static struct value partition(struct render *r, struct value self, struct value separator,
                              bool from_right) {
    const struct string *s = self.string, *what = arg_string(r, "the separator", separator, s);
    struct list *parts = list_new(r, 3);
    if (!what->n) return render_invalid(r, "a separator is empty");
    const size_t at = from_right ? string_find_last(s, what, s->n) : string_find(s, what, 0);
    if (at == SIZE_MAX) {
        const struct value empty = value_string(string_as(r, &STRING_EMPTY, s->markup));
        if (!from_right) list_add(r, parts, self);
        list_add(r, parts, empty);
        list_add(r, parts, empty);
        if (from_right) list_add(r, parts, self);
    } else {
        list_add(r, parts, value_string(string_slice(r, s, 0, at)));
        list_add(r, parts, value_string(string_as(r, what, s->markup)));
        list_add(r, parts, value_string(string_slice(r, s, at + what->n, s->n)));
    }
    return value_tuple(parts, string_is_trusted(s));
}

CALLABLE_IS(partition_left, partition(r, self, argv[0], false))
CALLABLE_IS(partition_right, partition(r, self, argv[0], true))

CALLABLE(join) {
    if (!is_plain(r, self)) return self;
    return value_string(text_join(r, self.string, argv[0], false));
}

/* The bytes that the optional arguments start and end select of a string. */
struct window {
    size_t begin, end;
    bool is_empty; /* start is behind the end: not even the empty string is there */
};

static struct window window(struct render *r, const struct string *s, struct value start,
                            struct value end) {
    const int64_t n = (int64_t)string_chars(s);
    int64_t from = start.type == V_NONE ? 0 : arg_int(r, "start", start, 0);
    int64_t to = end.type == V_NONE ? n : arg_int(r, "end", end, n);
    from = from < -n ? 0 : from < 0 ? from + n : from;
    to = to < -n ? 0 : to < 0 ? to + n : to > n ? n : to;
    if (from > to) return (struct window){0, 0, true};
    return (struct window){string_offset(s, (size_t)from), string_offset(s, (size_t)to), false};
}

static struct value has_affix(struct render *r, struct value self, const struct value *argv,
                              bool at_end) {
    const struct string *s = self.string;
    const struct window in = window(r, s, argv[1], argv[2]);
    const bool is_tuple = argv[0].type == V_TUPLE;
    const size_t n = is_tuple ? argv[0].list->n : 1;
    for (size_t i = 0; i < n && !r->rc; i++) {
        const struct string *affix =
            arg_string(r, "the text", is_tuple ? argv[0].list->items[i] : argv[0], s);
        if (in.is_empty || affix->n > in.end - in.begin) continue;
        const struct string there = {.bytes = s->bytes + (at_end ? in.end - affix->n : in.begin),
                                     .n = affix->n};
        if (string_equals(affix, &there)) return value_bool(true, true);
    }
    return value_bool(false, true);
}

CALLABLE_IS(startswith, has_affix(r, self, argv, false))
CALLABLE_IS(endswith, has_affix(r, self, argv, true))

CALLABLE(removeprefix) {
    const struct string *s = self.string, *affix = arg_string(r, "the prefix", argv[0], s);
    const bool has =
        affix->n <= s->n && string_find(string_slice(r, s, 0, affix->n), affix, 0) == 0;
    return has ? value_string(string_slice(r, s, affix->n, s->n)) : self;
}

CALLABLE(removesuffix) {
    const struct string *s = self.string, *affix = arg_string(r, "the suffix", argv[0], s);
    const size_t from = affix->n <= s->n ? s->n - affix->n : 0;
    const bool has =
        affix->n && affix->n <= s->n && string_equals(string_slice(r, s, from, s->n), affix);
    return has ? value_string(string_slice(r, s, 0, from)) : self;
}

/* Returns the character number of what is looked for, or -1. */
static int64_t find(struct render *r, struct value self, const struct value *argv,
                    bool from_right) {
    const struct string *s = self.string, *what = arg_string(r, "the text", argv[0], &STRING_EMPTY);
    const struct window in = window(r, s, argv[1], argv[2]);
    if (in.is_empty || !render_move(r, s->n)) return -1;
    const struct string inside = {.bytes = s->bytes, .n = in.end};
    size_t at =
        from_right ? string_find_last(&inside, what, in.end) : string_find(&inside, what, in.begin);
    if (at == SIZE_MAX || at < in.begin) return -1;
    return (int64_t)utf8_count(s->bytes, at);
}

CALLABLE_IS(find_left, value_int(find(r, self, argv, false), string_is_trusted(self.string)))
CALLABLE_IS(find_right, value_int(find(r, self, argv, true), string_is_trusted(self.string)))

CALLABLE(index_left) {
    const int64_t at = find(r, self, argv, false);
    if (at < 0) return render_invalid(r, "str.index() does not find the text");
    return value_int(at, string_is_trusted(self.string));
}

CALLABLE(index_right) {
    const int64_t at = find(r, self, argv, true);
    if (at < 0) return render_invalid(r, "str.rindex() does not find the text");
    return value_int(at, string_is_trusted(self.string));
}

CALLABLE(count) {
    const struct string *s = self.string, *what = arg_string(r, "the text", argv[0], s);
    const struct window in = window(r, s, argv[1], argv[2]);
    const struct string inside = {.bytes = s->bytes, .n = in.end};
    int64_t n = 0;
    if (in.is_empty || !render_move(r, s->n)) return value_int(0, true);
    if (!what->n) n = (int64_t)utf8_count(s->bytes + in.begin, in.end - in.begin) + 1;
    for (size_t at = in.begin; what->n && (at = string_find(&inside, what, at)) != SIZE_MAX;
         at += what->n)
        n++;
    return value_int(n, string_is_trusted(s));
}

CALLABLE_IS(format_method, format_braces(r, self.string, args))

static struct value all_chars(struct value self, bool (*is)(uint32_t c)) {
    const struct string *s = self.string;
    bool all = s->n > 0;
    for (size_t at = 0; at < s->n && all;) all = is(chars_next(s->bytes, s->n, &at));
    return value_bool(all, true);
}

static bool is_alphanumeric(uint32_t c) {
    return chars_is_alpha(c) || chars_is_digit(c);
}

CALLABLE_IS(isdigit_method, all_chars(self, chars_is_digit))
CALLABLE_IS(isdecimal, all_chars(self, chars_is_decimal))
CALLABLE_IS(isalpha_method, all_chars(self, chars_is_alpha))
CALLABLE_IS(isalnum_method, all_chars(self, is_alphanumeric))
CALLABLE_IS(isspace_method, all_chars(self, chars_is_space))
CALLABLE_IS(isupper_method, value_bool(text_is_upper(self.string), true))
CALLABLE_IS(islower_method, value_bool(text_is_lower(self.string), true))

const struct callable METHODS_OF_STRINGS[] = {
    {"strip", strip, "/chars", 0},
    {"lstrip", lstrip, "/chars", 0},
    {"rstrip", rstrip, "/chars", 0},
    {"split", split_left, "sep maxsplit", 0},
    {"rsplit", split_right, "sep maxsplit", 0},
    {"splitlines", splitlines, "keepends", 0},
    {"partition", partition_left, "/sep", 1},
    {"rpartition", partition_right, "/sep", 1},
    {"startswith", startswith, "/prefix start end", 1},
    {"endswith", endswith, "/suffix start end", 1},
    {"removeprefix", removeprefix, "/prefix", 1},
    {"removesuffix", removesuffix, "/suffix", 1},
    {"replace", replace, "/old new count", 2},
    {"join", join, "/iterable", 1},
    {"format", format_method, NULL, 0},
    {"find", find_left, "/sub start end", 1},
    {"rfind", find_right, "/sub start end", 1},
    {"index", index_left, "/sub start end", 1},
    {"rindex", index_right, "/sub start end", 1},
    {"count", count, "/sub start end", 1},
    {"upper", upper, "/", 0},
    {"lower", lower, "/", 0},
    {"title", title, "/", 0},
    {"capitalize", capitalize, "/", 0},
    {"isdigit", isdigit_method, "/", 0},
    {"isdecimal", isdecimal, "/", 0},
    {"isalpha", isalpha_method, "/", 0},
    {"isalnum", isalnum_method, "/", 0},
    {"isspace", isspace_method, "/", 0},
    {"isupper", isupper_method, "/", 0},
    {"islower", islower_method, "/", 0},
    {"casefold", NULL, NULL, 0},
    {"center", NULL, NULL, 0},
    {"encode", NULL, NULL, 0},
    {"expandtabs", NULL, NULL, 0},
    {"format_map", NULL, NULL, 0},
    {"isascii", NULL, NULL, 0},
    {"isidentifier", NULL, NULL, 0},
    {"isnumeric", NULL, NULL, 0},
    {"isprintable", NULL, NULL, 0},
    {"istitle", NULL, NULL, 0},
    {"ljust", NULL, NULL, 0},
    {"maketrans", NULL, NULL, 0},
    {"rjust", NULL, NULL, 0},
    {"swapcase", NULL, NULL, 0},
    {"translate", NULL, NULL, 0},
    {"zfill", NULL, NULL, 0},
    {0},
};

static struct value make_view(struct render *r, struct value self, enum view_kind kind) {
    struct view *view = render_take(r, sizeof(*view));
    if (!view) return value_none(false);
    *view = (struct view){self.dict, kind};
    return (struct value){.type = V_VIEW, .trusted = self.trusted, .view = view};
}

CALLABLE_IS(keys, make_view(r, self, VIEW_KEYS))
CALLABLE_IS(values, make_view(r, self, VIEW_VALUES))
CALLABLE_IS(items, make_view(r, self, VIEW_ITEMS))

CALLABLE(get) {
    const struct value *found = dict_find(r, self.dict, argv[0]);
    return found ? *found : argv[1].type == V_MISSING ? value_none(true) : argv[1];
}

CALLABLE(copy) {
    return self; /* nothing can tell it from the original, but `is sameas` */
}

const struct callable METHODS_OF_DICTS[] = {
    {"get", get, "/key default", 1},
    {"items", items, "/", 0},
    {"keys", keys, "/", 0},
    {"values", values, "/", 0},
    {"copy", copy, "/", 0},
    {"fromkeys", NULL, NULL, 0},
    {0},
};

CALLABLE(list_index) {
    for (size_t i = 0; i < self.list->n && render_step(r, 1); i++)
        if (value_equals(r, self.list->items[i], argv[0])) return value_int((int64_t)i, true);
    return render_invalid(r, "list.index() does not find the item");
}

CALLABLE(list_count) {
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n && render_step(r, 1); i++)
        n += value_equals(r, self.list->items[i], argv[0]);
    return value_int(n, true);
}

const struct callable METHODS_OF_LISTS[] = {
    {"index", list_index, "/value", 1},
    {"count", list_count, "/value", 1},
    {"copy", copy, "/", 0},
    {0},
};
