/* test_rounding.c - codes are those nearest to the values, by comparison with every code. */
#include <math.h>
#include <string.h>

#include "engine/device/weight.h"
#include "engine/quantise/rounding.h"
#include "tests/test.h"

enum { N_VALUES = 128, N_ROWS = 200 };

static const struct rounding *find(const char *name) {
    const struct rounding *rounding = roundings;
    while (strcmp(rounding->name, name) != 0) rounding++;
    return rounding;
}

/* Returns what a code is worth with a scale of 1. */
static float value_of(const struct rounding *rounding, uint8_t code) {
    float value;
    if (!rounding->is_float) return (float)code - (float)(1 << (rounding->bits - 1));
    const struct weight one = weight_plain(&code, ELEMENT_E4M3, 1, 1);
    weight_to_float(&one, 0, &value);
    return value;
}

static float nearest_error(const struct rounding *rounding, float x) {
    float least = INFINITY;
    for (uint32_t code = 0; code < 1u << rounding->bits; code++) {
        const float error = fabsf(value_of(rounding, (uint8_t)code) - x);
        if (error < least) least = error; /* false for NaN */
    }
    return least;
}

static void check_row(const struct rounding *rounding, uint32_t group, const float *values) {
    uint8_t codes[N_VALUES];
    uint16_t scales[N_VALUES];
    struct rounding_error sum = {0};
    assert_true(rounding_row(rounding, group, values, N_VALUES, codes, scales, &sum));
    for (uint32_t i = 0; i < N_VALUES; i++) {
        const struct weight one = weight_plain(&scales[i / group], ELEMENT_BF16, 1, 1);
        float scale;
        weight_to_float(&one, 0, &scale);
        const uint8_t code = rounding->bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
        const float x = values[i] / scale;
        assert_true(fabsf(value_of(rounding, code) - x) == nearest_error(rounding, x));
    }
}

TEST(every_code_is_the_nearest) {
    uint32_t random = 1;
    for (const struct rounding *rounding = roundings; rounding->name; rounding++)
        for (uint32_t row = 0; row < N_ROWS; row++) {
            float values[N_VALUES];
            for (uint32_t i = 0; i < N_VALUES; i++) {
                random = random * 1664525 + 1013904223;
                /* Of many sizes, so that small codes occur, too. */
                values[i] = ldexpf((float)(int32_t)random * 0x1p-31f, -(int)(random >> 8 & 15));
            }
            check_row(rounding, rounding->has_groups ? 32 : N_VALUES, values);
        }
}

TEST(zeros_stay_zeros_and_halves_go_to_even_codes) {
    float values[N_VALUES] = {0};
    for (const struct rounding *rounding = roundings; rounding->name; rounding++)
        check_row(rounding, N_VALUES, values);
    uint8_t codes[4];
    uint16_t scale;
    struct rounding_error sum = {0};
    const float halves[] = {448, 17, 19, -17}; /* neighbours from 16 on are 2 apart */
    assert_true(rounding_row(find("fp8"), 4, halves, 4, codes, &scale, &sum));
    assert_true(value_of(find("fp8"), codes[1]) == 16);
    assert_true(value_of(find("fp8"), codes[2]) == 20);
    assert_true(value_of(find("fp8"), codes[3]) == -16);
}

TEST(what_is_no_number_is_refused) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    uint8_t codes[2];
    uint16_t scale;
    struct rounding_error sum = {0};
    for (size_t i = 0; i < 3; i++) {
        const float values[] = {1, bad[i]};
        assert_false(rounding_row(find("int8"), 2, values, 2, codes, &scale, &sum));
    }
}
