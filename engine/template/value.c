/* value.c - see value.h. */
#include "engine/template/value.h"

#include <math.h>

#include "engine/base/error.h"
#include "engine/template/containers.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

bool value_is_trusted(struct value v) {
    return v.type == V_STRING ? string_is_trusted(v.string) : v.trusted;
}

const char *value_type_name(struct value v) {
    static const char *const names[N_VALUE_TYPES] = {
        [V_MISSING] = "missing value",
        [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_FLOAT] = "float",
        [V_STRING] = "str",
        [V_LIST] = "list",
        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",
        [V_RANGE] = "range",
        [V_VIEW] = "dict view",
        [V_ITERATOR] = "generator",
        [V_NAMESPACE] = "namespace",
        [V_MACRO] = "macro",
        [V_LOOP] = "loop",
        [V_FUNCTION] = "function",
        [V_METHOD] = "method",
        [V_CYCLER] = "cycler",
        [V_JOINER] = "joiner",
    };
    return names[v.type];
}

bool value_is_true(struct value v) {
    switch (v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.d != 0;
    case V_STRING: return v.string->n > 0;
    case V_LIST:
    case V_TUPLE: return v.list->n > 0;
    case V_DICT: return v.dict->n > 0;
    case V_RANGE: return v.range->n > 0;
    case V_VIEW: return v.view->dict->n > 0;
    default: return true;
    }
}

int value_compare_numbers(struct value a, struct value b, bool *ordered) {
    *ordered = true;
    if (value_is_integer(a) && value_is_integer(b)) {
        const int64_t x = value_to_int(a), y = value_to_int(b);
        return (x > y) - (x < y);
    }
    /* Long double holds every int64_t and every double. */
    const long double x = a.type == V_FLOAT ? (long double)a.d : (long double)value_to_int(a);
    const long double y = b.type == V_FLOAT ? (long double)b.d : (long double)value_to_int(b);
    *ordered = !isnan(x) && !isnan(y);
    return (x > y) - (x < y);
}

static bool lists_equal(struct render *r, const struct list *a, const struct list *b) {
    if (a->n != b->n) return false;
    if (a == b || a->items == b->items) return true;
    for (size_t i = 0; i < a->n; i++)
        if (!value_equals(r, a->items[i], b->items[i]) || !render_step(r, 1)) return false;
    return true;
}

static bool dicts_equal(struct render *r, const struct dict *a, const struct dict *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct value *other = dict_find(r, b, a->entries[i].key);
        if (!other || !value_equals(r, a->entries[i].value, *other) || !render_step(r, 1))
            return false;
    }
    return true;
}

static bool ranges_equal(const struct range *a, const struct range *b) {
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

static bool deep_equals(struct render *r, struct value a, struct value b) {
    if (!render_enter(r)) return false;
    bool is_equal = value_is_same(a, b);
    if (a.type == V_LIST || a.type == V_TUPLE) is_equal = lists_equal(r, a.list, b.list);
    if (a.type == V_DICT) is_equal = dicts_equal(r, a.dict, b.dict);
    if (a.type == V_RANGE) is_equal = ranges_equal(a.range, b.range);
    if (a.type == V_VIEW && a.view->kind != VIEW_VALUES)
        render_fail(r, ERR_UNSUPPORTED, "views of dicts cannot be compared here");
    render_leave(r);
    return is_equal;
}

bool value_equals(struct render *r, struct value a, struct value b) {
    if (value_is_number(a) && value_is_number(b)) {
        bool ordered;
        const int order = value_compare_numbers(a, b, &ordered);
        return ordered && order == 0;
    }
    if (a.type != b.type) return false;
    if (a.type == V_STRING) return string_equals(a.string, b.string);
    if (a.type == V_NONE || a.type == V_UNDEFINED) return true;
    return deep_equals(r, a, b);
}

bool value_is_same(struct value a, struct value b) {
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_NONE: return true;
    case V_BOOL: return a.b == b.b;
    case V_INT: return a.i == b.i;
    case V_FLOAT: return a.d == b.d;
    case V_STRING: return string_equals(a.string, b.string);
    case V_LIST:
    case V_TUPLE: return a.list == b.list;
    case V_DICT: return a.dict == b.dict;
    default: return a.iterator == b.iterator; /* one pointer is like another */
    }
}

static int compare_lists(struct render *r, const char *operator, const struct list * a,
                         const struct list *b) {
    int order = 0;
    if (!render_enter(r)) return 0;
    for (size_t i = 0; i < a->n && i < b->n && !order; i++)
        if (!value_equals(r, a->items[i], b->items[i]))
            order = value_compare(r, operator, a->items[i], b->items[i]);
    render_leave(r);
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

int value_compare(struct render *r, const char *operator, struct value a, struct value b) {
    if (!render_step(r, 1)) return 0;
    if (value_is_number(a) && value_is_number(b)) {
        bool ordered;
        const int order = value_compare_numbers(a, b, &ordered);
        if (!ordered) render_fail(r, ERR_UNSUPPORTED, "NaN has no order");
        return order;
    }
    if (a.type == V_STRING && b.type == V_STRING) return string_compare(a.string, b.string);
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE))
        return compare_lists(r, operator, a.list, b.list);
    render_invalid(r, "'%s' is not supported between %s and %s", operator, value_type_name(a),
                   value_type_name(b));
    return 0;
}

size_t value_length(struct render *r, struct value v) {
    switch (v.type) {
    case V_UNDEFINED: return 0;
    case V_STRING: return string_chars(v.string);
    case V_LIST:
    case V_TUPLE: return v.list->n;
    case V_DICT: return v.dict->n;
    case V_RANGE: return (size_t)v.range->n;
    case V_VIEW: return v.view->dict->n;
    default: render_invalid(r, "a value of type %s has no length", value_type_name(v)); return 0;
    }
}
