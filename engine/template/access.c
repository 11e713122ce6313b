/* access.c - see access.h. */
#include "engine/template/access.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/template/call.h"
#include "engine/template/chars.h"
#include "engine/template/containers.h"
#include "engine/template/execute.h"
#include "engine/template/iterate.h"
#include "engine/template/numbers.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

static struct value bound(struct render *r, struct value self, const struct callable *table,
                          const struct string *name) {
    const struct callable *callable = callable_find(table, name->bytes, name->n);
    if (!callable) return value_missing();
    struct method *method = render_take(r, sizeof(*method));
    if (!method) return value_undefined(name);
    *method = (struct method){self, callable};
    return (struct value){.type = V_METHOD, .trusted = true, .method = method};
}

/* Tells whether a name is one of those before the NULL. */
static bool is_among(const struct string *name, const char *const *names) {
    for (; names && *names; names++)
        if (string_is(name, *names)) return true;
    return false;
}

/* Methods that the immutable sandbox hides: they would change the value. */
static bool is_unsafe(struct value v, const struct string *name) {
    static const char *const of_lists[] = {"append", "clear",   "extend", "insert", "pop",
                                           "remove", "reverse", "sort",   NULL};
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    return is_among(name, v.type == V_LIST ? of_lists : v.type == V_DICT ? of_dicts : NULL);
}

static struct value namespace_attribute(struct render *r, const struct dict *space,
                                        const struct string *name) {
    const struct value *found = dict_find(r, space, value_string(name));
    return found ? *found : value_missing();
}

static struct value group_attribute(struct value v, const struct string *name) {
    if (!v.list->is_group || v.list->n != 2) return value_missing();
    if (string_is(name, "grouper")) return v.list->items[0];
    return string_is(name, "list") ? v.list->items[1] : value_missing();
}

/* Returns V_MISSING: the value has no attributes here.  The render fails where Python's type has
 * this one. */
static struct value no_attribute(struct render *r, struct value v, const struct string *name) {
    static const char *const names[N_VALUE_TYPES][7] = {
        [V_RANGE] = {"count", "index", "start", "step", "stop"},
        [V_VIEW] = {"isdisjoint", "mapping"},
        [V_ITERATOR] = {"close", "gi_running", "gi_suspended", "send", "throw"},
        [V_MACRO] = {"arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller",
                     "name"},
        [V_JOINER] = {"sep", "used"},
    };
    if (v.type != V_FUNCTION && !is_among(name, names[v.type])) return value_missing();
    return render_fail(r, ERR_UNSUPPORTED, "%.*s of a %s is not supported here", (int)name->n,
                       name->bytes, value_type_name(v));
}

/* Returns an attribute that the value's type has, or V_MISSING. */
static struct value find_attribute(struct render *r, struct value v, const struct string *name) {
    if (is_unsafe(v, name)) return value_undefined(name);
    switch (v.type) {
    case V_STRING: return bound(r, v, METHODS_OF_STRINGS, name);
    case V_TUPLE: {
        const struct value of_group = group_attribute(v, name);
        if (of_group.type != V_MISSING) return of_group;
        return string_is(name, "copy") ? value_missing() : bound(r, v, METHODS_OF_LISTS, name);
    }
    case V_LIST: return bound(r, v, METHODS_OF_LISTS, name);
    case V_DICT: return bound(r, v, METHODS_OF_DICTS, name);
    case V_NAMESPACE: return namespace_attribute(r, v.space, name);
    case V_LOOP: return loop_attribute(r, v.loop, name);
    case V_CYCLER: return cycler_attribute(r, v, name);
    case V_NONE:
    case V_BOOL:
    case V_INT:
    case V_FLOAT: return value_missing();
    default: return no_attribute(r, v, name);
    }
}

static struct value no_undefined(struct render *r, struct value v, const char *what, int n) {
    if (v.string)
        return render_invalid(r, "'%.*s' is undefined, and has no '%.*s'", (int)v.string->n,
                              v.string->bytes, n, what);
    return render_invalid(r, "an undefined value has no '%.*s'", n, what);
}

struct value value_own_attribute(struct render *r, struct value v, const struct string *name) {
    if (v.type == V_UNDEFINED) return no_undefined(r, v, name->bytes, (int)name->n);
    const struct value found = find_attribute(r, v, name);
    return found.type == V_MISSING ? value_undefined(name) : found;
}

struct value value_attribute(struct render *r, struct value v, const struct string *name) {
    if (v.type == V_DICT && name->n > 0 && name->bytes[0] != '_') {
        /* The most frequent case, and dicts have few methods. */
        const struct value attribute = find_attribute(r, v, name);
        if (attribute.type != V_MISSING) return attribute;
    } else if (v.type != V_DICT) {
        const struct value attribute = value_own_attribute(r, v, name);
        if (attribute.type != V_UNDEFINED || r->rc) return attribute;
        return value_undefined(name);
    }
    const struct value *found = dict_find(r, v.dict, value_string(name));
    return found ? *found : value_undefined(name);
}

static struct value item_of_string(struct render *r, const struct string *s, int64_t i) {
    const int64_t n = (int64_t)string_chars(s);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return value_undefined(NULL);
    const size_t begin = string_offset(s, (size_t)i);
    size_t end = begin;
    chars_next(s->bytes, s->n, &end);
    if (n != (int64_t)s->n) render_move(r, begin);
    return value_string(string_slice(r, s, begin, end));
}

static struct value item_by_number(struct render *r, struct value v, int64_t i) {
    if (v.type == V_STRING) return item_of_string(r, v.string, i);
    if (!value_is_sequence(v) && v.type != V_RANGE) return value_undefined(NULL);
    const int64_t n = (int64_t)value_length(r, v);
    if (i < 0) i += n;
    return i < 0 || i >= n ? value_undefined(NULL) : iterate_item(r, v, (size_t)i);
}

struct value value_item(struct render *r, struct value v, struct value key) {
    if (v.type == V_UNDEFINED) return no_undefined(r, v, "item", 4);
    if (v.type == V_DICT && value_is_hashable(key)) {
        const struct value *found = dict_find(r, v.dict, key);
        if (found) return *found;
    } else if (value_is_integer(key)) {
        return item_by_number(r, v, value_to_int(key));
    }
    if (key.type != V_STRING) return value_undefined(NULL);
    return v.type == V_DICT ? value_own_attribute(r, v, key.string)
                            : value_attribute(r, v, key.string);
}

/* Bounds one end of a slice, as Python does. */
static int64_t slice_end(int64_t i, int64_t n, int64_t step) {
    if (i < 0) i += n;
    if (i < 0) return step < 0 ? -1 : 0;
    if (i >= n) return step < 0 ? n - 1 : n;
    return i;
}

struct slice {
    int64_t start, stop, step;
    size_t n;
};

/* Returns false when the render has failed. */
static bool slice_init(struct slice *slice, struct render *r, int64_t n,
                       const struct value parts[3]) {
    int64_t numbers[3];
    bool given[3];
    for (int i = 0; i < 3; i++) {
        given[i] = parts[i].type != V_MISSING && parts[i].type != V_NONE;
        numbers[i] = given[i] ? arg_int(r, "a bound of a slice", parts[i], 0) : 0;
    }
    slice->step = given[2] ? numbers[2] : 1;
    if (given[2] && slice->step == 0) render_invalid(r, "the step of a slice is 0");
    if (r->rc) return false;
    if (slice->step < -INT64_MAX) slice->step = -INT64_MAX;
    const bool back = slice->step < 0;
    slice->start = given[0] ? slice_end(numbers[0], n, slice->step) : back ? n - 1 : 0;
    slice->stop = given[1] ? slice_end(numbers[1], n, slice->step) : back ? -1 : n;
    const int64_t distance = back ? slice->start - slice->stop : slice->stop - slice->start;
    const int64_t width = back ? -slice->step : slice->step;
    slice->n = distance > 0 ? (size_t)((distance - 1) / width + 1) : 0;
    return true;
}

static struct value slice_string(struct render *r, const struct string *s,
                                 const struct slice *slice) {
    if (slice->step == 1 || slice->n == 0) {
        const size_t begin = string_offset(s, slice->n ? (size_t)slice->start : 0);
        const size_t end = slice->n ? string_offset(s, (size_t)slice->start + slice->n) : begin;
        if (string_chars(s) != s->n) render_move(r, end);
        return value_string(string_slice(r, s, begin, end));
    }
    /* Where each character begins: steps would otherwise look for it from the beginning. */
    const size_t n = string_chars(s);
    size_t *starts = render_take(r, (n + 1) * sizeof(*starts));
    struct builder b;
    builder_init(&b, r);
    b.markup = s->markup;
    if (!starts || !render_move(r, s->n)) return value_string(&STRING_EMPTY);
    for (size_t i = 0, at = 0; i < n; i++) {
        starts[i] = at;
        chars_next(s->bytes, s->n, &at);
    }
    starts[n] = s->n;
    for (size_t k = 0; k < slice->n; k++) {
        const size_t i = (size_t)(slice->start + (int64_t)k * slice->step);
        builder_slice(&b, s, starts[i], starts[i + 1]);
    }
    return value_string(builder_end(&b));
}

static struct value slice_list(struct render *r, struct value v, const struct slice *slice) {
    const struct list *sliced;
    if (slice->step == 1 || slice->n == 0) {
        sliced = list_share(r, slice->n ? v.list->items + slice->start : NULL, slice->n);
    } else {
        struct list *copy = list_new(r, slice->n);
        for (size_t k = 0; k < slice->n && !r->rc; k++)
            list_add(r, copy, v.list->items[slice->start + (int64_t)k * slice->step]);
        sliced = copy;
    }
    return v.type == V_LIST ? value_list(sliced, v.trusted) : value_tuple(sliced, v.trusted);
}

static struct value slice_range(struct render *r, struct value v, const struct slice *slice) {
    struct range *range = render_take(r, sizeof(*range));
    if (!range) return value_undefined(NULL);
    const struct range *from = v.range;
    *range =
        (struct range){range_item(from, (uint64_t)slice->start),
                       range_item(from, (uint64_t)slice->stop), from->step * slice->step, slice->n};
    return (struct value){.type = V_RANGE, .trusted = v.trusted, .range = range};
}

struct value value_slice(struct render *r, struct value v, struct value start, struct value stop,
                         struct value step) {
    struct slice slice;
    if (v.type == V_UNDEFINED) return no_undefined(r, v, "slice", 5);
    if (v.type != V_STRING && !value_is_sequence(v) && v.type != V_RANGE)
        return render_invalid(r, "a value of type %s has no slices", value_type_name(v));
    if (!slice_init(&slice, r, (int64_t)value_length(r, v),
                    (const struct value[]){start, stop, step}))
        return value_undefined(NULL);
    if (v.type == V_STRING) return slice_string(r, v.string, &slice);
    return v.type == V_RANGE ? slice_range(r, v, &slice) : slice_list(r, v, &slice);
}

struct value value_path(struct render *r, struct value v, struct value path,
                        struct value otherwise) {
    if (path.type == V_MISSING || path.type == V_NONE) return v;
    if (path.type != V_STRING) {
        v = value_item(r, v, path);
        return v.type == V_UNDEFINED && otherwise.type > V_NONE ? otherwise : v;
    }
    const struct string *s = path.string;
    for (size_t at = 0; at <= s->n && !r->rc; at++) {
        const char *dot = memchr(s->bytes + at, '.', s->n - at);
        const size_t end = dot ? (size_t)(dot - s->bytes) : s->n;
        size_t n_digits = at;
        while (n_digits < end && s->bytes[n_digits] >= '0' && s->bytes[n_digits] <= '9') n_digits++;
        int64_t number;
        struct value key = value_string(string_slice(r, s, at, end));
        if (end > at && n_digits == end && !number_parse_int(s->bytes + at, end - at, 10, &number))
            key = value_int(number, true);
        v = value_item(r, v, key);
        if (v.type == V_UNDEFINED && otherwise.type > V_NONE) v = otherwise;
        at = end;
    }
    return v;
}
