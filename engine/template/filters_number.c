/* filters_number.c - filters that make numbers.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#include <math.h>

#include "engine/base/error.h"
#include "engine/template/call.h"
#include "engine/template/numbers.h"
#include "engine/template/operators.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

static struct value otherwise(struct value arg, struct value otherwise_value) {
    return arg.type == V_MISSING ? otherwise_value : arg;
}

/* Returns false if a float is in no range of integers; the render fails if only here it is not. */
static bool float_to_int(struct render *r, double d, int64_t *out) {
    if (!isfinite(d)) return false;
    if (fabs(d) >= 9.2e18) {
        render_fail(r, ERR_UNSUPPORTED, "an integer is beyond 64 bits");
        return false;
    }
    *out = (int64_t)d;
    return true;
}

CALLABLE(int_filter) {
    int64_t i = 0;
    double d = 0;
    const bool trusted = value_is_trusted(self);
    const int64_t base = arg_int(r, "base", argv[1], 10);
    if (value_is_integer(self)) return value_int(value_to_int(self), trusted);
    if (render_is_integer(r, self)) return self;
    if (self.type == V_UNDEFINED) /* it has no int(), and the error is no TypeError */
        return render_invalid(r, "an undefined value is no number");
    if (self.type == V_FLOAT && float_to_int(r, self.d, &i)) return value_int(i, trusted);
    if (self.type == V_STRING) {
        const struct string *s = self.string;
        if (base != 0 && (base < 2 || base > 36)) return otherwise(argv[0], value_int(0, true));
        const int rc = number_parse_int(s->bytes, s->n, (int)base, &i);
        if (rc == ERR_TOO_LONG)
            return render_fail(r, ERR_UNSUPPORTED, "an integer is beyond 64 bits");
        if (!rc) return value_int(i, trusted);
        if (number_parse_float(s->bytes, s->n, &d) && float_to_int(r, d, &i))
            return value_int(i, trusted);
    }
    return otherwise(argv[0], value_int(0, true));
}

CALLABLE(float_filter) {
    double d;
    if (value_is_number(self)) return value_float(value_to_double(self), self.trusted);
    if (self.type == V_UNDEFINED) return render_invalid(r, "an undefined value is no number");
    if (self.type == V_STRING && number_parse_float(self.string->bytes, self.string->n, &d))
        return value_float(d, string_is_trusted(self.string));
    return otherwise(argv[0], value_float(0, true));
}

CALLABLE(abs_filter) {
    if (self.type == V_FLOAT) return value_float(fabs(self.d), self.trusted);
    if (value_is_integer(self) && value_to_int(self) >= 0)
        return value_int(value_to_int(self), self.trusted);
    if (value_is_integer(self)) return operator_negate(r, self);
    return render_invalid(r, "abs needs a number, not a value of type %s", value_type_name(self));
}

CALLABLE(round_filter) {
    static const struct string common = {.bytes = "common", .n = 6, .n_chars = 6, .trusted = true};
    const int64_t precision = arg_int(r, "precision", argv[0], 0);
    const struct string *method = arg_string(r, "method", argv[1], &common);
    if (!value_is_number(self))
        return render_invalid(r, "round needs a number, not a value of type %s",
                              value_type_name(self));
    if (precision < 0 || precision > 300)
        return render_fail(r, ERR_UNSUPPORTED, "round takes a precision of 0 to 300 here");
    const double factor = pow(10, (double)precision), d = value_to_double(self);
    if (string_is(method, "common"))
        return value_is_integer(self) ? value_int(value_to_int(self), self.trusted)
                                      : value_float(number_round(d, (int)precision), self.trusted);
    /* Python's ceil() and floor() are integers, which have no negative zero. */
    if (string_is(method, "ceil"))
        return value_float((ceil(d * factor) + 0.0) / factor, self.trusted);
    if (string_is(method, "floor"))
        return value_float((floor(d * factor) + 0.0) / factor, self.trusted);
    return render_invalid(r, "round knows the methods common, ceil and floor");
}

const struct callable FILTERS_OF_NUMBERS[] = {
    {"int", int_filter, "default base", 0},
    {"float", float_filter, "default", 0},
    {"abs", abs_filter, "", 0},
    {"round", round_filter, "precision method", 0},
    {0},
};
