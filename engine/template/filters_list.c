/* filters_list.c - filters that take items: sorting, choosing, converting.
 *
 * Thread: a render's own.  Memory: the render's arena. */

#include "engine/template/access.h"
#include "engine/template/call.h"
#include "engine/template/containers.h"
#include "engine/template/iterate.h"
#include "engine/template/operators.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/sorting.h"
#include "engine/template/strings.h"
#include "engine/template/text.h"

CALLABLE(default_filter) {
    const bool replaces_false = arg_bool(argv[1], false);
    if (self.type != V_UNDEFINED && !(replaces_false && !value_is_true(self))) return self;
    return argv[0].type == V_MISSING ? value_string(&STRING_EMPTY) : argv[0];
}

CALLABLE_IS(length, value_int((int64_t)value_length(r, self), value_is_trusted(self)))

CALLABLE(first) {
    struct cursor cursor;
    struct value item;
    cursor_init(&cursor, r, self);
    return cursor_next(&cursor, r, &item) ? item : value_undefined(NULL);
}

CALLABLE(last) {
    const size_t n = value_length(r, self);
    if (n == 0) return value_undefined(NULL);
    return self.type == V_STRING ? value_item(r, self, value_int(-1, true))
                                 : iterate_item(r, self, n - 1);
}

CALLABLE_IS(list_filter, value_list(iterate_all(r, self), value_is_trusted(self)))

CALLABLE(reverse) {
    if (self.type == V_STRING)
        return value_slice(r, self, value_missing(), value_missing(), value_int(-1, true));
    if (self.type != V_ITERATOR) return iterator_reverse(r, self);
    struct list *all = iterate_all(r, self);
    for (size_t i = 0; i < all->n / 2; i++) {
        const struct value swap = all->items[i];
        all->items[i] = all->items[all->n - 1 - i];
        all->items[all->n - 1 - i] = swap;
    }
    return value_list(all, self.trusted);
}

static struct value ignore_case(struct render *r, struct value v, bool case_sensitive) {
    return case_sensitive || v.type != V_STRING ? v : value_string(text_lower(r, v.string));
}

/* Returns a list of what the paths of "a.b,c" lead to: what sort() compares. */
static struct value sort_key(struct render *r, struct value item, struct value paths,
                             bool case_sensitive) {
    struct list *key = list_new(r, 1);
    if (paths.type != V_STRING) {
        item = value_path(r, item, paths, value_missing());
        list_add(r, key, ignore_case(r, item, case_sensitive));
        return value_list(key, true);
    }
    static const struct string comma = {.bytes = ",", .n = 1, .n_chars = 1, .trusted = true};
    const struct list *parts = text_split(r, paths.string, &comma, -1, false);
    for (size_t i = 0; i < parts->n && !r->rc; i++) {
        const struct value part = value_path(r, item, parts->items[i], value_missing());
        list_add(r, key, ignore_case(r, part, case_sensitive));
    }
    return value_list(key, true);
}

/* Makes rows of all items, for sort_keyed(); the keys are the caller's. */
static struct keyed *make_rows(struct render *r, struct value items, size_t *n) {
    const struct list *all = iterate_all(r, items);
    struct keyed *rows = render_take(r, (all->n + 1) * sizeof(*rows));
    *n = rows ? all->n : 0;
    for (size_t i = 0; i < *n; i++) rows[i].item = all->items[i];
    return rows;
}

static struct value rows_as_list(struct render *r, const struct keyed *rows, size_t n,
                                 bool trusted) {
    struct list *list = list_new(r, n);
    for (size_t i = 0; i < n && !r->rc; i++) list_add(r, list, rows[i].item);
    return value_list(list, trusted);
}

CALLABLE(sort) {
    size_t n;
    struct keyed *rows = make_rows(r, self, &n);
    for (size_t i = 0; i < n && !r->rc; i++)
        rows[i].key = sort_key(r, rows[i].item, argv[2], arg_bool(argv[1], false));
    if (r->rc) return value_none(false);
    sort_keyed(r, rows, n, arg_bool(argv[0], false));
    return rows_as_list(r, rows, n, value_is_trusted(self));
}

CALLABLE(dictsort) {
    static const struct string key = {.bytes = "key", .n = 3, .n_chars = 3, .trusted = true};
    const struct string *by = arg_string(r, "by", argv[1], &key);
    if (self.type != V_DICT || !(string_is(by, "key") || string_is(by, "value")))
        return render_invalid(r, "dictsort needs a dict, and sorts by \"key\" or \"value\"");
    struct view view = {self.dict, VIEW_ITEMS};
    size_t n;
    struct keyed *rows =
        make_rows(r, (struct value){.type = V_VIEW, .trusted = self.trusted, .view = &view}, &n);
    for (size_t i = 0; i < n && !r->rc; i++)
        rows[i].key = ignore_case(r, rows[i].item.list->items[string_is(by, "value")],
                                  arg_bool(argv[0], false));
    if (r->rc) return value_none(false);
    sort_keyed(r, rows, n, arg_bool(argv[2], false));
    return rows_as_list(r, rows, n, self.trusted);
}

static struct value group(struct render *r, const struct keyed *rows, size_t n,
                          struct value grouper, bool trusted) {
    const struct value members = rows_as_list(r, rows, n, trusted);
    struct list *pair = list_new(r, 2);
    list_add(r, pair, grouper);
    list_add(r, pair, members);
    if (!r->rc) pair->is_group = true;
    return value_tuple(pair, trusted);
}

CALLABLE(groupby) {
    size_t n;
    const bool case_sensitive = arg_bool(argv[2], false), trusted = value_is_trusted(self);
    struct keyed *rows = make_rows(r, self, &n);
    struct list *groups = list_new(r, 0);
    for (size_t i = 0; i < n && !r->rc; i++)
        rows[i].key = ignore_case(r, value_path(r, rows[i].item, argv[0], argv[1]), case_sensitive);
    if (r->rc) return value_none(false);
    sort_keyed(r, rows, n, false);
    for (size_t begin = 0, end; begin < n && !r->rc; begin = end) {
        for (end = begin + 1; end < n && value_equals(r, rows[begin].key, rows[end].key); end++) {
        }
        const struct value grouper = value_path(r, rows[begin].item, argv[0], argv[1]);
        list_add(r, groups, group(r, rows + begin, end - begin, grouper, trusted));
    }
    return value_list(groups, trusted);
}

static struct value extreme(struct render *r, struct value self, const struct value *argv,
                            int sign) {
    struct cursor cursor;
    struct value item, best = value_undefined(NULL), best_key = best;
    bool has_best = false;
    cursor_init(&cursor, r, self);
    while (cursor_next(&cursor, r, &item)) {
        const struct value key =
            ignore_case(r, value_path(r, item, argv[1], value_missing()), arg_bool(argv[0], false));
        if (has_best && value_compare(r, sign > 0 ? ">" : "<", key, best_key) * sign <= 0) continue;
        best = item, best_key = key;
        has_best = true;
    }
    return best;
}

CALLABLE_IS(min_filter, extreme(r, self, argv, -1))
CALLABLE_IS(max_filter, extreme(r, self, argv, 1))

CALLABLE(sum) {
    struct cursor cursor;
    struct value item, total = argv[1].type == V_MISSING ? value_int(0, true) : argv[1];
    if (total.type == V_STRING) return render_invalid(r, "sum does not add strings");
    cursor_init(&cursor, r, self);
    while (cursor_next(&cursor, r, &item))
        total = operator_compute(r, OP_ADD, total, value_path(r, item, argv[0], value_missing()));
    return total;
}

CALLABLE(join) {
    struct value items = self;
    if (argv[1].type != V_MISSING && argv[1].type != V_NONE) {
        struct list *list = list_new(r, 0);
        struct cursor cursor;
        struct value item;
        cursor_init(&cursor, r, self);
        while (cursor_next(&cursor, r, &item))
            list_add(r, list, value_path(r, item, argv[1], value_missing()));
        items = value_list(list, true);
    }
    const struct string *separator =
        argv[0].type == V_MISSING ? &STRING_EMPTY : print_string(r, argv[0]);
    return value_string(text_join(r, separator, items, true));
}

/* What `map`, `select` and their kin do with each item. */
struct picker {
    struct value name; /* of the filter or test; V_MISSING: none */
    struct args args;  /* behind the name */
    struct value attribute, otherwise;
    bool has_attribute, wanted;
};

/* Makes the iterator.  Nothing that is false has items: jinja2 does not even look at whether it
 * could have some. */
static struct value picked(struct render *r, iterator_next_fn next, struct value self,
                           const struct picker *picker) {
    struct picker *copy = render_take(r, sizeof(*copy));
    if (!copy) return value_none(false);
    *copy = *picker;
    return iterator_make(r, next, value_is_true(self) ? self : value_undefined(NULL), copy);
}

static bool next_mapped(struct render *r, struct iterator *self, struct value *out) {
    const struct picker *picker = self->state;
    struct value item;
    if (!cursor_next(&self->source, r, &item)) return false;
    if (picker->has_attribute) *out = value_path(r, item, picker->attribute, picker->otherwise);
    else if (picker->name.type == V_MISSING) render_invalid(r, "map needs a filter");
    else *out = filter_call(r, picker->name, item, &picker->args);
    return !r->rc;
}

static struct args rest_of(const struct args *args, size_t n) {
    struct args rest = *args;
    if (n > rest.n) n = rest.n;
    if (n) rest.items += n;
    rest.n -= n;
    return rest;
}

CALLABLE(map) {
    struct picker picker = {.name = args->n ? args->items[0] : value_missing(),
                            .args = rest_of(args, 1)};
    for (size_t i = 0; i < args->n_keywords && !args->n; i++) {
        const struct keyword *keyword = &args->keywords[i];
        if (string_is(keyword->name, "attribute")) {
            picker.attribute = keyword->value;
            picker.has_attribute = true;
        } else if (string_is(keyword->name, "default")) {
            picker.otherwise = keyword->value;
        } else {
            return render_invalid(r, "map does not take this argument");
        }
    }
    return picked(r, next_mapped, self, &picker);
}

static bool next_selected(struct render *r, struct iterator *self, struct value *out) {
    const struct picker *picker = self->state;
    while (cursor_next(&self->source, r, out)) {
        struct value v = *out;
        if (picker->has_attribute) v = value_path(r, v, picker->attribute, value_missing());
        if (picker->name.type != V_MISSING) v = test_call(r, picker->name, v, &picker->args);
        if (r->rc) return false;
        if (value_is_true(v) == picker->wanted) return true;
    }
    return false;
}

static struct value choose(struct render *r, struct value self, const struct args *args,
                           bool has_attribute, bool wanted) {
    struct picker picker = {.has_attribute = has_attribute, .wanted = wanted};
    if (has_attribute && !args->n) return render_invalid(r, "the name of an attribute is missing");
    if (has_attribute) picker.attribute = args->items[0];
    if (args->n > (size_t)has_attribute) picker.name = args->items[has_attribute];
    picker.args = rest_of(args, (size_t)has_attribute + 1);
    return picked(r, next_selected, self, &picker);
}

CALLABLE_IS(select_filter, choose(r, self, args, false, true))
CALLABLE_IS(reject, choose(r, self, args, false, false))
CALLABLE_IS(selectattr, choose(r, self, args, true, true))
CALLABLE_IS(rejectattr, choose(r, self, args, true, false))

struct unique {
    struct dict *seen;
    struct value attribute;
    bool case_sensitive;
};

static bool next_unique(struct render *r, struct iterator *self, struct value *out) {
    const struct unique *unique = self->state;
    while (cursor_next(&self->source, r, out)) {
        const struct value key = ignore_case(
            r, value_path(r, *out, unique->attribute, value_missing()), unique->case_sensitive);
        if (dict_find(r, unique->seen, key)) continue;
        dict_set(r, unique->seen, key, value_none(true));
        return !r->rc;
    }
    return false;
}

CALLABLE(unique_filter) {
    struct unique *unique = render_take(r, sizeof(*unique));
    if (!unique) return value_none(false);
    *unique = (struct unique){dict_new(r, 0), argv[1], arg_bool(argv[0], false)};
    return iterator_make(r, next_unique, self, unique);
}

static bool next_entry(struct render *r, struct iterator *self, struct value *out) {
    return cursor_next(&self->source, r, out);
}

CALLABLE(items) {
    if (self.type == V_UNDEFINED) return iterator_make(r, next_entry, self, NULL);
    struct view *view = self.type == V_DICT ? render_take(r, sizeof(*view)) : NULL;
    if (self.type != V_DICT) return render_invalid(r, "items needs a dict");
    if (!view) return value_none(false);
    *view = (struct view){self.dict, VIEW_ITEMS};
    const struct value all = {.type = V_VIEW, .trusted = self.trusted, .view = view};
    return iterator_make(r, next_entry, all, NULL);
}

/* Lists of `n` items each (batch), or `n` lists (slice). */
struct portions {
    struct value fill;
    int64_t n, at;
    const struct list *all; /* of slice */
    struct value pending;   /* of batch: the first item of the next list */
    bool trusted;
};

static void fill(struct render *r, struct list *list, struct value with, int64_t n) {
    if (with.type == V_MISSING || with.type == V_NONE) return;
    while (n-- > 0 && !r->rc) list_add(r, list, with);
}

static bool next_batch(struct render *r, struct iterator *self, struct value *out) {
    struct portions *portions = self->state;
    struct list *batch = list_new(r, 0);
    struct value item = portions->pending;
    bool has_item = item.type != V_MISSING || cursor_next(&self->source, r, &item);
    if (!has_item) return false;
    portions->pending = value_missing();
    while (has_item && (int64_t)batch->n != portions->n) {
        list_add(r, batch, item);
        has_item = cursor_next(&self->source, r, &item);
        if (r->rc) return false;
    }
    if (has_item) portions->pending = item;
    /* After an empty batch, which only a count of 0 makes, all items are one. */
    if (!batch->n) portions->n = -1;
    else fill(r, batch, portions->fill, has_item ? 0 : portions->n - (int64_t)batch->n);
    *out = value_list(batch, portions->trusted);
    return true;
}

static bool next_slice(struct render *r, struct iterator *self, struct value *out) {
    struct portions *portions = self->state;
    const int64_t n = (int64_t)portions->all->n, i = portions->at++;
    if (portions->n == 0) render_invalid(r, "division by zero");
    if (r->rc || i >= portions->n) return false;
    const int64_t each = n / portions->n, extra = n % portions->n;
    const int64_t begin = i * each + (i < extra ? i : extra);
    const int64_t end = begin + each + (i < extra);
    struct list *slice = list_new(r, 0);
    for (int64_t k = begin; k < end && !r->rc; k++) list_add(r, slice, portions->all->items[k]);
    if (i >= extra) fill(r, slice, portions->fill, 1);
    *out = value_list(slice, portions->trusted);
    return !r->rc;
}

CALLABLE(batch) {
    struct portions *portions = render_take(r, sizeof(*portions));
    if (!portions) return value_none(false);
    *portions = (struct portions){.fill = argv[1],
                                  .n = arg_int(r, "linecount", argv[0], 1),
                                  .trusted = value_is_trusted(self)};
    return iterator_make(r, next_batch, self, portions);
}

CALLABLE(slice) {
    struct portions *portions = render_take(r, sizeof(*portions));
    if (!portions) return value_none(false);
    *portions = (struct portions){.fill = argv[1],
                                  .n = arg_int(r, "slices", argv[0], 1),
                                  .all = iterate_all(r, self),
                                  .trusted = value_is_trusted(self)};
    return iterator_make(r, next_slice, value_undefined(NULL), portions);
}

CALLABLE_IS(attr, value_own_attribute(r, self, arg_string(r, "name", argv[0], &STRING_EMPTY)))

const struct callable FILTERS_OF_LISTS[] = {
    {"default", default_filter, "default_value boolean", 0},
    {"d", default_filter, "default_value boolean", 0},
    {"length", length, "", 0},
    {"count", length, "", 0},
    {"first", first, "", 0},
    {"last", last, "", 0},
    {"join", join, "d attribute", 0},
    {"list", list_filter, "", 0},
    {"map", map, NULL, 0},
    {"select", select_filter, NULL, 0},
    {"reject", reject, NULL, 0},
    {"selectattr", selectattr, NULL, 0},
    {"rejectattr", rejectattr, NULL, 0},
    {"sort", sort, "reverse case_sensitive attribute", 0},
    {"unique", unique_filter, "case_sensitive attribute", 0},
    {"reverse", reverse, "", 0},
    {"items", items, "", 0},
    {"dictsort", dictsort, "case_sensitive by reverse", 0},
    {"groupby", groupby, "attribute default case_sensitive", 1},
    {"min", min_filter, "case_sensitive attribute", 0},
    {"max", max_filter, "case_sensitive attribute", 0},
    {"sum", sum, "attribute start", 0},
    {"batch", batch, "linecount fill_with", 1},
    {"slice", slice, "slices fill_with", 1},
    {"attr", attr, "name", 1},
    {0},
};
