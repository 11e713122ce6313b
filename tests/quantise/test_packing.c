/* test_packing.c - packed rows lose what a search for scales should, and extremes stay numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/packed.h"
#include "engine/quantise/packing.h"
#include "engine/quantise/rounding.h"
#include "tests/test.h"

enum { N = 512, N_ROWS = 100, MAX_BYTES = 2 * N };

static double loss_of(enum element element, const float *values, float *out) {
    uint8_t packed[MAX_BYTES];
    struct rounding_error sum = {0};
    assert_true(packing_row(element, values, N, packed, &sum));
    packed_to_float(element, packed, N, out);
    double error = 0;
    for (int i = 0; i < N; i++)
        error += ((double)out[i] - values[i]) * ((double)out[i] - values[i]);
    assert_true(fabs(error - sum.error) <= 1e-9 * (1 + error)); /* what it says is what it does */
    return sum.values > 0 ? sqrt(sum.error / sum.values) : 0;
}

/* Returns a number that is near normal, with deviation 1. */
static float next_normal(uint32_t *state) {
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        *state = *state * 1664525u + 1013904223u;
        sum += (float)(*state >> 8) * 0x1p-24f;
    }
    return sum - 6;
}

/* Of what is normally distributed, the largest of 32 is about 2.1 deviations from 0. */
TEST(normal_rows_lose_little) {
    static const struct {
        enum element element;
        double least, most;
    } cases[] = {{ELEMENT_Q8_0, 0.003, 0.007},
                 {ELEMENT_Q5_0, 0.030, 0.045},
                 {ELEMENT_Q4_0, 0.065, 0.085},
                 {ELEMENT_Q4_K, 0.055, 0.075}};
    uint32_t seed = 67;
    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        double sum = 0;
        for (int row = 0; row < N_ROWS; row++) {
            float values[N], out[N];
            for (int i = 0; i < N; i++) values[i] = 0.02f * next_normal(&seed);
            sum += loss_of(cases[c].element, values, out);
        }
        print_message("%s loses %.4f\n", packed_type(cases[c].element)->name, sum / N_ROWS);
        assert_true(sum / N_ROWS > cases[c].least && sum / N_ROWS < cases[c].most);
    }
}

TEST(what_codes_have_exactly_stays) {
    float values[N], out[N];
    (void)state;
    for (int i = 0; i < N; i++) values[i] = 0.25f * (float)(i % 16 - 8);
    assert_true(loss_of(ELEMENT_Q4_0, values, out) < 1e-6);
    for (int i = 0; i < N; i++) values[i] = 0.25f * (float)(i % 32 - 16);
    assert_true(loss_of(ELEMENT_Q5_0, values, out) < 1e-6);
    memset(values, 0, sizeof(values));
    for (const struct packing *p = packings; p->name; p++)
        assert_true(loss_of(p->element, values, out) == 0);
}

TEST(rows_of_one_sign_and_of_one_value_are_packed) {
    float values[N], out[N];
    (void)state;
    for (const struct packing *p = packings; p->name; p++) {
        for (int sign = -1; sign <= 1; sign += 2) {
            for (int i = 0; i < N; i++) values[i] = (float)sign * (1 + 0.01f * (float)(i % 7));
            assert_true(loss_of(p->element, values, out) < 0.06);
            for (int i = 0; i < N; i++) values[i] = (float)sign * 3;
            assert_true(loss_of(p->element, values, out) < 0.01);
        }
    }
}

TEST(no_number_is_refused) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    uint8_t packed[MAX_BYTES];
    (void)state;
    for (const struct packing *p = packings; p->name; p++)
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            float values[N] = {0};
            struct rounding_error sum = {0};
            values[N - 1] = bad[i];
            assert_false(packing_row(p->element, values, N, packed, &sum));
        }
}
