/* text.c - see text.h; text_case.c has the functions that change letters. */
#include "engine/template/text.h"

#include "engine/template/chars.h"
#include "engine/template/containers.h"
#include "engine/template/iterate.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

static bool is_in(const struct string *set, uint32_t c) {
    if (!set) return chars_is_space(c);
    for (size_t at = 0; at < set->n;)
        if (chars_next(set->bytes, set->n, &at) == c) return true;
    return false;
}

const struct string *text_strip(struct render *r, const struct string *s, const struct string *set,
                                enum side sides) {
    size_t begin = 0, end = s->n;
    for (size_t next = begin; (sides & SIDE_LEFT) && begin < end; begin = next)
        if (!is_in(set, chars_next(s->bytes, end, &next))) break;
    for (size_t before = end; (sides & SIDE_RIGHT) && end > begin; end = before)
        if (!is_in(set, chars_before(s->bytes, &before))) break;
    render_move(r, (s->n - (end - begin)) * (set ? set->n + 1 : 1));
    return string_slice(r, s, begin, end);
}

const struct string *text_replace(struct render *r, const struct string *s,
                                  const struct string *old, const struct string *with, int64_t n) {
    struct builder b;
    size_t from = 0;
    builder_init(&b, r);
    b.markup = s->markup;
    if (!old->n) { /* between all characters */
        for (size_t at = 0; n && render_step(r, 1); n--) {
            builder_string(&b, with);
            from = at;
            if (at == s->n) break;
            chars_next(s->bytes, s->n, &at);
            builder_slice(&b, s, from, at);
            from = at;
        }
        builder_slice(&b, s, from, s->n);
        return builder_end(&b);
    }
    for (size_t at; n && (at = string_find(s, old, from)) != SIZE_MAX && !r->rc; n--) {
        builder_slice(&b, s, from, at);
        builder_string(&b, with);
        from = at + old->n;
    }
    if (from == 0) return s;
    builder_slice(&b, s, from, s->n);
    return builder_end(&b);
}

static void add_piece(struct render *r, struct list *pieces, const struct string *s, size_t begin,
                      size_t end) {
    list_add(r, pieces, value_string(string_slice(r, s, begin, end)));
}

static void reverse(struct list *list) {
    for (size_t i = 0; i < list->n / 2; i++) {
        const struct value swap = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swap;
    }
}

static size_t skip_while(const struct string *s, size_t at, bool is_space) {
    for (size_t next = at; next < s->n; at = next)
        if (chars_is_space(chars_next(s->bytes, s->n, &next)) != is_space) return at;
    return s->n;
}

static size_t skip_back_while(const struct string *s, size_t at, bool is_space) {
    for (size_t before = at; at > 0; at = before)
        if (chars_is_space(chars_before(s->bytes, &before)) != is_space) return at;
    return 0;
}

static void split_words(struct render *r, struct list *pieces, const struct string *s, int64_t n) {
    for (size_t at = skip_while(s, 0, true); at < s->n && !r->rc; n--) {
        const size_t end = n == 0 ? skip_back_while(s, s->n, true) : skip_while(s, at, false);
        add_piece(r, pieces, s, at, end);
        at = n == 0 ? s->n : skip_while(s, end, true);
    }
}

static void split_words_back(struct render *r, struct list *pieces, const struct string *s,
                             int64_t n) {
    for (size_t at = skip_back_while(s, s->n, true); at > 0 && !r->rc; n--) {
        const size_t begin = n == 0 ? skip_while(s, 0, true) : skip_back_while(s, at, false);
        add_piece(r, pieces, s, begin, at);
        at = n == 0 ? 0 : skip_back_while(s, begin, true);
    }
    reverse(pieces);
}

static void split_back(struct render *r, struct list *pieces, const struct string *s,
                       const struct string *separator, int64_t n) {
    size_t end = s->n, at;
    for (; n && (at = string_find_last(s, separator, end)) != SIZE_MAX && !r->rc; n--) {
        add_piece(r, pieces, s, at + separator->n, end);
        end = at;
    }
    add_piece(r, pieces, s, 0, end);
    reverse(pieces);
}

struct list *text_split(struct render *r, const struct string *s, const struct string *separator,
                        int64_t n, bool from_right) {
    struct list *pieces = list_new(r, 0);
    if (!render_move(r, s->n)) return pieces;
    if (!separator && from_right) {
        split_words_back(r, pieces, s, n);
    } else if (!separator) {
        split_words(r, pieces, s, n);
    } else if (!separator->n) {
        render_invalid(r, "a separator is empty");
    } else if (from_right) {
        split_back(r, pieces, s, separator, n);
    } else {
        size_t from = 0, at;
        for (; n && (at = string_find(s, separator, from)) != SIZE_MAX && !r->rc; n--) {
            add_piece(r, pieces, s, from, at);
            from = at + separator->n;
        }
        add_piece(r, pieces, s, from, s->n);
    }
    return pieces;
}

struct list *text_split_lines(struct render *r, const struct string *s, bool keeps_ends) {
    struct list *lines = list_new(r, 0);
    size_t from = 0;
    for (size_t at = 0; at < s->n && !r->rc;) {
        const size_t end = at;
        const uint32_t c = chars_next(s->bytes, s->n, &at);
        if (!chars_is_line_end(c)) continue;
        if (c == '\r' && at < s->n && s->bytes[at] == '\n') at++;
        add_piece(r, lines, s, from, keeps_ends ? at : end);
        from = at;
    }
    if (from < s->n) add_piece(r, lines, s, from, s->n);
    render_move(r, s->n);
    return lines;
}

const struct string *text_join(struct render *r, const struct string *separator, struct value items,
                               bool converts) {
    struct builder b;
    struct cursor cursor;
    struct value item;
    bool is_first = true;
    builder_init(&b, r);
    cursor_init(&cursor, r, items);
    while (cursor_next(&cursor, r, &item)) {
        if (!is_first) builder_string(&b, separator);
        is_first = false;
        if (!converts && item.type != V_STRING)
            render_invalid(r, "str.join() needs strings, not a value of type %s",
                           value_type_name(item));
        else print_value(&b, item);
    }
    return builder_end(&b);
}

const struct string *text_center(struct render *r, const struct string *s, int64_t width) {
    struct builder b;
    const int64_t n = (int64_t)string_chars(s), n_pad = width > n ? width - n : 0;
    /* Of an odd number Python puts the greater half in front if the width is odd. */
    const int64_t left = n_pad / 2 + (n_pad & width & 1);
    builder_init(&b, r);
    b.markup = s->markup;
    builder_repeat(&b, ' ', (size_t)left, string_is_trusted(s));
    builder_string(&b, s);
    builder_repeat(&b, ' ', (size_t)(n_pad - left), string_is_trusted(s));
    return builder_end(&b);
}
