/* test_unpack.c - weights of every format and shape as plain elements, and packed elements as
 * numbers, against weight_to_float(). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/packed.h"
#include "engine/device/weight.h"
#include "engine/model/canonical.h"
#include "engine/model/unpack.h"
#include "engine/model/weight_tally.h"
#include "tests/test.h"

enum { N_STACKED = 3, MOST_ROWS = 300, MOST_COLS = 640, MOST = N_STACKED * MOST_ROWS * MOST_COLS };

static uint8_t data[MOST], scales[MOST * sizeof(float)], mins[MOST * sizeof(float)];
static uint16_t out[MOST];

/* Unpacks a weight to bf16 in `out`. */
static int unpack(const struct weight *w, struct error *err) {
    struct weight to = weight_plain(out, ELEMENT_BF16, w->rows, w->cols);
    to.n_stacked = w->n_stacked;
    return weight_convert(w, &to, err);
}

/* Compares matrix number i of a stack, described by hand. */
static void check_matrix(const struct weight *stack, uint32_t i) {
    const size_t n_elements = (size_t)stack->rows * stack->cols,
                 n_bytes = stack->rows * weight_row_bytes(stack),
                 n_scales = weight_scale_bytes(stack) / N_STACKED;
    struct weight matrix = *stack;
    float values[MOST_COLS];
    uint16_t expected[MOST_COLS];
    matrix.n_stacked = 1;
    matrix.data = data + i * n_bytes;
    matrix.scales = scales + i * n_scales;
    matrix.mins = mins + i * n_scales;
    for (uint32_t row = 0; row < stack->rows; row++) {
        weight_to_float(&matrix, row, values);
        weight_from_float(values, stack->cols, ELEMENT_BF16, expected);
        assert_memory_equal(expected, out + i * n_elements + (size_t)row * stack->cols,
                            stack->cols * sizeof(*expected));
    }
}

TEST(every_row_of_a_stack_is_unpacked) {
    static const struct weight_format formats[] = {{ELEMENT_E4M3, SCALE_F32, 0, 0, false},
                                                   {ELEMENT_E4M3, SCALE_BF16, 128, 128, false},
                                                   {ELEMENT_I4, SCALE_F16, 1, 32, true},
                                                   {ELEMENT_I8, SCALE_F32, 1, 0, false},
                                                   {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}};
    static const uint32_t shapes[][2] = {{1, 1}, {1, MOST_COLS}, {MOST_ROWS, MOST_COLS}, {7, 33}};
    struct error err = {0};
    srand(7);
    for (size_t i = 0; i < sizeof(data); i++) data[i] = (uint8_t)(rand() % 0x7f);
    for (size_t i = 0; i < sizeof(scales); i++)
        scales[i] = (uint8_t)(i % 2 ? 60 : rand() % 0x7f),
        mins[i] = (uint8_t)(i % 2 ? 59 : rand() % 0x7f);
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
        for (size_t k = 0; k < sizeof(shapes) / sizeof(*shapes); k++) {
            const struct weight w = {.data = data,
                                     .scales = scales,
                                     .mins = mins,
                                     .format = formats[i],
                                     .n_stacked = N_STACKED,
                                     .rows = shapes[k][0],
                                     .cols = shapes[k][1]};
            memset(out, 0xff, sizeof(out));
            assert_int_equal(unpack(&w, &err), 0);
            for (uint32_t m = 0; m < N_STACKED; m++) check_matrix(&w, m);
        }
}

TEST(what_is_no_number_is_refused) {
    static const uint8_t codes[] = {1, 2, 0x7f, 3};
    const float finite = 1, infinite = HUGE_VALF;
    struct weight w = weight_plain(codes, ELEMENT_E4M3, 2, 2);
    struct error err = {0};
    (void)state;
    w.format.scale = SCALE_F32;
    w.scales = &finite;
    assert_int_equal(unpack(&w, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "NaN"));
    w.rows = 1; /* without the code that is NaN */
    assert_int_equal(unpack(&w, &err), 0);
    w.scales = &infinite;
    assert_int_equal(unpack(&w, &err), ERR_INVALID);
}

/* Every code under every scale is what it was, once it has been the element. */
TEST(an_exact_element_holds_every_value) {
    static const struct weight_format formats[] = {{ELEMENT_E2M1, SCALE_E8M0, 1, 32, false},
                                                   {.element = ELEMENT_MXFP4},
                                                   {.element = ELEMENT_Q4_0},
                                                   {ELEMENT_I4, SCALE_BF16, 1, 32, false}};
    static const enum element exact[] = {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_F32, ELEMENT_F32};
    uint8_t codes[16], block[17] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
        assert_int_equal(weight_exact_element(&formats[i]), exact[i]);
    for (uint32_t i = 0; i < sizeof(codes); i++) codes[i] = block[1 + i] = (uint8_t)(i << 4 | i);
    for (uint32_t scale = 0; scale < 0xff; scale++) {
        const uint8_t exponent = block[0] = (uint8_t)scale;
        struct weight w = weight_plain(codes, ELEMENT_E2M1, 1, 32), file = w;
        float values[2][32], back[32];
        uint16_t bf16[32];
        w.format = formats[0], w.scales = &exponent;
        file.format = formats[1], file.data = block;
        weight_to_float(&w, 0, values[0]);
        weight_to_float(&file, 0, values[1]);
        for (int i = 0; i < 2; i++) {
            const struct weight plain = weight_plain(bf16, ELEMENT_BF16, 1, 32);
            weight_from_float(values[i], 32, ELEMENT_BF16, bf16);
            weight_to_float(&plain, 0, back);
            assert_memory_equal(back, values[i], sizeof(back));
        }
    }
}

TEST(a_tally_counts_formats_and_what_is_unpacked) {
    struct weight_tally tally = {0};
    struct weight packed = weight_plain(NULL, ELEMENT_E4M3, 4, 8),
                  plain = weight_plain(NULL, ELEMENT_BF16, 4, 8);
    packed.format.scale = SCALE_F32;
    weight_tally_add(&tally, &plain, &plain, 0, false);
    weight_tally_add(&tally, &packed, &packed, 40, false);
    weight_tally_add(&tally, &packed, &plain, 0, false);
    assert_int_equal(tally.bytes, 64 + 40 + 64);
    assert_int_equal(tally.repacked_bytes, 40);
    assert_int_equal(tally.file_bytes, 64 + 36 + 36);
    assert_int_equal(tally.packed_bytes, 36);
    assert_int_equal(tally.unpacked_bytes, 64);
    assert_int_equal(tally.unpacked.n, 1);
    assert_int_equal(tally.unpacked.formats[0].format.element, ELEMENT_BF16);
    assert_int_equal(tally.n_elements, 3 * 4 * 8);
    assert_int_equal(tally.converted_bytes, 64);
    assert_true(tally.has_packed);
    assert_int_equal(tally.files.n, 2);
    assert_int_equal(tally.files.formats[0].bytes, 64);
    assert_int_equal(tally.files.formats[1].bytes, 72);
    assert_int_equal(tally.loaded.n, 0); /* but repacked */
    weight_tally_add(&tally, &packed, &packed, 0, false);
    assert_int_equal(tally.loaded.n, 1);
    assert_int_equal(tally.loaded.formats[0].bytes, 36);
    for (uint16_t i = 1; i < 2 * WEIGHT_TALLY_FORMATS; i++) {
        packed.format.block_cols = i;
        weight_tally_add(&tally, &packed, &packed, 40, false);
    }
    assert_int_equal(tally.files.n, WEIGHT_TALLY_FORMATS);
}

/* ---- packed elements as numbers ---- */

/* Fills blocks with random codes, and small finite scales. */
static void fill_blocks(enum element element, size_t n_blocks) {
    const struct packed_type *type = packed_type(element);
    for (size_t i = 0; i < n_blocks * type->bytes; i++) data[i] = (uint8_t)(rand() >> 4);
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = data + b * type->bytes;
        static const uint8_t places[][2] = {{1, 0}, {1, 3},   {1, 0},   {1, 3},   {1, 0},
                                            {1, 0}, {0, 0},   {81, 83}, {109, 0}, {1, 3},
                                            {1, 3}, {209, 0}, {1, 0}};
        const uint8_t *place = places[element - ELEMENT_Q4_0]; /* upper bytes of d and m */
        block[place[0]] =
            (uint8_t)(element == ELEMENT_MXFP4 ? 110 + rand() % 20 : 0x14 + rand() % 12);
        if (place[1]) block[place[1]] = (uint8_t)(0x94 + rand() % 12);
    }
}

/* Returns how far values may be from those of the packed elements: F16 rounds a scale, whose codes
 * are at most `most`, and a min. */
static double allowed_of(enum element element, double most_scale, double most_min) {
    const bool is_exact = element == ELEMENT_Q4_0 || element == ELEMENT_Q5_0 ||
                          element == ELEMENT_Q5_1 || element == ELEMENT_Q8_0 ||
                          element == ELEMENT_IQ4_NL || element == ELEMENT_MXFP4;
    return is_exact ? 0 : ldexp(most_scale * 128 + most_min, -11) + 0x1p-24;
}

static void check_canonical(enum element element) {
    enum { ROWS = 5, COLS = 512 };
    const struct packed_type *type = packed_type(element);
    struct weight packed = weight_plain(data, element, ROWS, COLS), to = packed;
    struct error err = {0};
    float expected[COLS], got[COLS];
    fill_blocks(element, (size_t)ROWS * COLS / type->n);
    to.format = canonical_format(&packed.format);
    assert_false(weight_is_plain(&to.format) || element_is_packed(to.format.element));
    assert_true(weight_copy_bytes(&to) <= sizeof(out));
    to = weight_copy_at(&to, out);
    assert_int_equal(weight_convert(&packed, &to, &err), 0);
    for (uint32_t row = 0; row < ROWS; row++) {
        double largest = 0;
        weight_to_float(&packed, row, expected);
        weight_to_float(&to, row, got);
        for (uint32_t i = 0; i < COLS; i++) largest = fmax(largest, fabs((double)expected[i]));
        for (uint32_t i = 0; i < COLS; i++) {
            const double allowed = allowed_of(element, largest / 64, largest);
            if (fabs((double)got[i] - expected[i]) > allowed)
                fail_msg("%s, row %u, element %u: %g instead of %g", type->name, row, i,
                         (double)got[i], (double)expected[i]);
        }
    }
}

TEST(packed_elements_become_numbers) {
    for (enum element element = ELEMENT_Q4_0; element <= ELEMENT_IQ4_XS; element++)
        check_canonical(element);
}

TEST(a_packed_scale_that_is_no_number_is_refused) {
    struct weight packed = weight_plain(data, ELEMENT_Q8_0, 1, 64), to = packed;
    struct error err = {0};
    (void)state;
    memset(data, 0, 68);
    to.format = canonical_format(&packed.format);
    to = weight_copy_at(&to, out);
    assert_int_equal(weight_convert(&packed, &to, &err), 0);
    data[35] = 0x7c; /* infinite */
    assert_int_equal(weight_convert(&packed, &to, &err), ERR_INVALID);
    packed.format.element = ELEMENT_MXFP4;
    data[0] = 0xff;
    to.format = canonical_format(&packed.format);
    to = weight_copy_at(&to, out);
    assert_int_equal(weight_convert(&packed, &to, &err), ERR_INVALID);
}
