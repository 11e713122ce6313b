/* tests.c - what stands behind `is`.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#include "engine/template/call.h"
#include "engine/template/iterate.h"
#include "engine/template/operators.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"
#include "engine/template/text.h"

#define TEST(name, condition) CALLABLE_IS(name, value_bool(condition, true))

static bool is_callable(struct value v) {
    return v.type == V_MACRO || v.type == V_FUNCTION || v.type == V_METHOD || v.type == V_LOOP ||
           v.type == V_JOINER || v.type == V_UNDEFINED;
}

static bool is_sequence(struct value v) {
    return value_is_sequence(v) || v.type == V_STRING || v.type == V_DICT || v.type == V_RANGE ||
           v.type == V_UNDEFINED;
}

static bool remainder_is(struct render *r, struct value v, struct value divisor, int64_t rest) {
    return value_equals(r, operator_compute(r, OP_MODULO, v, divisor), value_int(rest, true));
}

static bool names_filter(struct value v) {
    return v.type == V_STRING && filter_find(v.string->bytes, v.string->n);
}

static bool names_test(struct value v) {
    return v.type == V_STRING && callable_find(TESTS, v.string->bytes, v.string->n);
}

TEST(is_defined, self.type != V_UNDEFINED)
TEST(is_undefined, self.type == V_UNDEFINED)
TEST(is_none, self.type == V_NONE)
TEST(is_boolean, self.type == V_BOOL)
TEST(is_true, self.type == V_BOOL && self.b)
TEST(is_false, self.type == V_BOOL && !self.b)
TEST(is_integer, render_is_integer(r, self))
TEST(is_float, self.type == V_FLOAT && !render_is_integer(r, self))
TEST(is_number, value_is_number(self))
TEST(is_string, self.type == V_STRING)
TEST(is_mapping, self.type == V_DICT)
TEST(is_iterable, value_is_iterable(self) || self.type == V_LOOP)
TEST(is_sequence_test, is_sequence(self))
TEST(is_callable_test, is_callable(self))
TEST(is_lower, text_is_lower(print_string(r, self)))
TEST(is_upper, text_is_upper(print_string(r, self)))
TEST(is_escaped, self.type == V_STRING && self.string->markup)
TEST(is_same_as, value_is_same(self, argv[0]))
TEST(is_odd, remainder_is(r, self, value_int(2, true), 1))
TEST(is_even, remainder_is(r, self, value_int(2, true), 0))
TEST(is_divisible, remainder_is(r, self, argv[0], 0))
TEST(is_equal, operator_compare(r, OP_EQUAL, self, argv[0]))
TEST(is_not_equal, operator_compare(r, OP_NOT_EQUAL, self, argv[0]))
TEST(is_less, operator_compare(r, OP_LESS, self, argv[0]))
TEST(is_less_equal, operator_compare(r, OP_LESS_EQUAL, self, argv[0]))
TEST(is_greater, operator_compare(r, OP_GREATER, self, argv[0]))
TEST(is_greater_equal, operator_compare(r, OP_GREATER_EQUAL, self, argv[0]))
TEST(is_in, operator_compare(r, OP_IN, self, argv[0]))
TEST(is_filter, names_filter(self))
TEST(is_test, names_test(self))

const struct callable TESTS[] = {
    {"defined", is_defined, "", 0},
    {"undefined", is_undefined, "", 0},
    {"none", is_none, "", 0},
    {"string", is_string, "", 0},
    {"mapping", is_mapping, "", 0},
    {"iterable", is_iterable, "", 0},
    {"sequence", is_sequence_test, "", 0},
    {"number", is_number, "", 0},
    {"integer", is_integer, "", 0},
    {"float", is_float, "", 0},
    {"boolean", is_boolean, "", 0},
    {"true", is_true, "", 0},
    {"false", is_false, "", 0},
    {"callable", is_callable_test, "", 0},
    {"odd", is_odd, "", 0},
    {"even", is_even, "", 0},
    {"divisibleby", is_divisible, "num", 1},
    {"lower", is_lower, "", 0},
    {"upper", is_upper, "", 0},
    {"escaped", is_escaped, "", 0},
    {"sameas", is_same_as, "other", 1},
    {"in", is_in, "seq", 1},
    {"filter", is_filter, "", 0},
    {"test", is_test, "", 0},
    {"eq", is_equal, "/b", 1},
    {"equalto", is_equal, "/b", 1},
    {"==", is_equal, "/b", 1},
    {"ne", is_not_equal, "/b", 1},
    {"!=", is_not_equal, "/b", 1},
    {"lt", is_less, "/b", 1},
    {"lessthan", is_less, "/b", 1},
    {"<", is_less, "/b", 1},
    {"le", is_less_equal, "/b", 1},
    {"<=", is_less_equal, "/b", 1},
    {"gt", is_greater, "/b", 1},
    {"greaterthan", is_greater, "/b", 1},
    {">", is_greater, "/b", 1},
    {"ge", is_greater_equal, "/b", 1},
    {">=", is_greater_equal, "/b", 1},
    {0},
};
