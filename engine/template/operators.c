/* operators.c - see operators.h. */
#include "engine/template/operators.h"

#include <math.h>

#include "engine/base/error.h"
#include "engine/template/containers.h"
#include "engine/template/format.h"
#include "engine/template/iterate.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

static const char *const SIGNS[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static struct value not_defined(struct render *r, enum operator op, struct value a,
                                struct value b) {
    const struct value undefined = a.type == V_UNDEFINED ? a : b;
    if (undefined.type == V_UNDEFINED && undefined.string)
        return render_invalid(r, "'%.*s' is undefined, and '%s' needs a value",
                              (int)undefined.string->n, undefined.string->bytes, SIGNS[op]);
    return render_invalid(r, "'%s' is not supported between %s and %s", SIGNS[op],
                          value_type_name(a), value_type_name(b));
}

static struct value too_large(struct render *r) {
    return render_fail(r, ERR_UNSUPPORTED, "an integer is beyond 64 bits");
}

static struct value int_power(struct render *r, int64_t base, int64_t exponent, bool trusted) {
    int64_t result = 1;
    if (exponent < 0 && base == 0) return render_invalid(r, "0 to a negative power");
    if (exponent < 0) return value_float(pow((double)base, (double)exponent), trusted);
    while (exponent > 0) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result)) return too_large(r);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) return too_large(r);
    }
    return value_int(result, trusted);
}

static struct value operate_ints(struct render *r, enum operator op, int64_t a, int64_t b,
                                 bool trusted) {
    int64_t result = 0;
    bool is_large = false;
    switch (op) {
    case OP_ADD: is_large = __builtin_add_overflow(a, b, &result); break;
    case OP_SUBTRACT: is_large = __builtin_sub_overflow(a, b, &result); break;
    case OP_MULTIPLY: is_large = __builtin_mul_overflow(a, b, &result); break;
    case OP_POWER: return int_power(r, a, b, trusted);
    default:
        if (b == 0) return render_invalid(r, "division by zero");
        if (op == OP_DIVIDE) return value_float((double)a / (double)b, trusted);
        if (b == -1) { /* the only divisor whose quotient may not fit */
            if (op == OP_MODULO) return value_int(0, trusted);
            is_large = __builtin_sub_overflow(0, a, &result);
            break;
        }
        result = op == OP_MODULO ? a % b : a / b;
        if (a % b != 0 && (a < 0) != (b < 0)) result += op == OP_MODULO ? b : -1;
    }
    return is_large ? too_large(r) : value_int(result, trusted);
}

static struct value operate_floats(struct render *r, enum operator op, double a, double b,
                                   bool trusted) {
    double result;
    if (op >= OP_DIVIDE && op <= OP_MODULO && b == 0) return render_invalid(r, "division by zero");
    switch (op) {
    case OP_ADD: result = a + b; break;
    case OP_SUBTRACT: result = a - b; break;
    case OP_MULTIPLY: result = a * b; break;
    case OP_DIVIDE: result = a / b; break;
    case OP_POWER:
        result = pow(a, b);
        if (a == 0 && b < 0) return render_invalid(r, "0 to a negative power");
        if (isnan(result) && !isnan(a) && !isnan(b))
            return render_fail(r, ERR_UNSUPPORTED, "a power is a complex number");
        if (isinf(result) && isfinite(a) && isfinite(b))
            return render_invalid(r, "a power is too large");
        break;
    default: {
        double rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
        if (rest == 0) rest = copysign(0.0, b);
        const double quotient = (a - rest) / b;
        double whole = floor(quotient);
        if (quotient - whole > 0.5) whole += 1;
        if (quotient == 0) whole = copysign(0.0, a / b);
        result = op == OP_MODULO ? rest : whole;
    }
    }
    return value_float(result, trusted);
}

static struct value repeat_string(struct render *r, const struct string *s, int64_t n) {
    struct builder b;
    builder_init(&b, r);
    b.markup = s->markup;
    for (int64_t i = 0; i < n && s->n && render_step(r, 1); i++) builder_string(&b, s);
    return value_string(builder_end(&b));
}

static struct value repeat_list(struct render *r, struct value v, int64_t n) {
    struct list *list = list_new(r, 0);
    for (int64_t k = 0; k < n && v.list->n && !r->rc; k++)
        for (size_t i = 0; i < v.list->n && !r->rc; i++) list_add(r, list, v.list->items[i]);
    return v.type == V_LIST ? value_list(list, v.trusted) : value_tuple(list, v.trusted);
}

static struct value repeat(struct render *r, struct value v, int64_t n) {
    return v.type == V_STRING ? repeat_string(r, v.string, n) : repeat_list(r, v, n);
}

static struct value add_lists(struct render *r, struct value a, struct value b) {
    const bool trusted = a.trusted && b.trusted;
    struct list *sum = list_new(r, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n; i++) list_add(r, sum, a.list->items[i]);
    for (size_t i = 0; i < b.list->n; i++) list_add(r, sum, b.list->items[i]);
    return a.type == V_LIST ? value_list(sum, trusted) : value_tuple(sum, trusted);
}

struct value operator_compute(struct render *r, enum operator op, struct value a, struct value b) {
    if (r->rc) return value_none(false);
    if (value_is_number(a) && value_is_number(b)) {
        const bool trusted = a.trusted && b.trusted;
        if (value_is_integer(a) && value_is_integer(b))
            return operate_ints(r, op, value_to_int(a), value_to_int(b), trusted);
        return operate_floats(r, op, value_to_double(a), value_to_double(b), trusted);
    }
    if (op == OP_ADD && a.type == V_STRING && b.type == V_STRING)
        return value_string(string_add(r, a.string, b.string));
    if (op == OP_ADD && a.type == b.type && value_is_sequence(a)) return add_lists(r, a, b);
    if (op == OP_MULTIPLY && (a.type == V_STRING || value_is_sequence(a)) && value_is_integer(b))
        return repeat(r, a, value_to_int(b));
    if (op == OP_MULTIPLY && (b.type == V_STRING || value_is_sequence(b)) && value_is_integer(a))
        return repeat(r, b, value_to_int(a));
    if (op == OP_MODULO && a.type == V_STRING) return format_percent(r, a.string, b);
    return not_defined(r, op, a, b);
}

static bool contains(struct render *r, struct value v, struct value item) {
    struct cursor cursor;
    struct value each;
    if (v.type == V_STRING) {
        if (item.type != V_STRING) {
            render_invalid(r, "'in' a string needs a string, not a value of type %s",
                           value_type_name(item));
            return false;
        }
        render_move(r, v.string->n);
        return string_find(v.string, item.string, 0) != SIZE_MAX;
    }
    if (v.type == V_DICT) return dict_find(r, v.dict, item) != NULL;
    if (v.type == V_VIEW && v.view->kind == VIEW_KEYS)
        return dict_find(r, v.view->dict, item) != NULL;
    cursor_init(&cursor, r, v);
    while (cursor_next(&cursor, r, &each))
        if (value_equals(r, each, item)) return true;
    return false;
}

bool operator_compare(struct render *r, enum operator op, struct value a, struct value b) {
    if (op == OP_EQUAL) return value_equals(r, a, b);
    if (op == OP_NOT_EQUAL) return !value_equals(r, a, b);
    if (op == OP_IN) return contains(r, b, a);
    if (op == OP_NOT_IN) return !contains(r, b, a);
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED) {
        not_defined(r, op, a, b);
        return false;
    }
    int order;
    if (value_is_number(a) && value_is_number(b)) {
        bool ordered;
        order = value_compare_numbers(a, b, &ordered);
        if (!ordered) return false;
    } else {
        order = value_compare(r, SIGNS[op], a, b);
    }
    switch (op) {
    case OP_LESS: return order < 0;
    case OP_LESS_EQUAL: return order <= 0;
    case OP_GREATER: return order > 0;
    default: return order >= 0;
    }
}

struct value operator_negate(struct render *r, struct value v) {
    if (v.type == V_FLOAT) return value_float(-v.d, v.trusted);
    if (value_is_integer(v)) return operate_ints(r, OP_SUBTRACT, 0, value_to_int(v), v.trusted);
    return not_defined(r, OP_SUBTRACT, value_int(0, true), v);
}
