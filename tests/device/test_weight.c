/* test_weight.c - weights against values written by hand, and every combination of elements,
 * scales, blocks and mins against its definition, element by element. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/vec.h"
#include "engine/device/weight.h"
#include "tests/test.h"

enum { MOST_ROWS = 40, MOST_COLS = 70 };

struct known {
    uint32_t code;
    float value;
};

static const struct known f16[] = {{0x0000, 0},
                                   {0x0001, 0x1p-24f},
                                   {0x03ff, 1023 * 0x1p-24f},
                                   {0x0400, 0x1p-14f},
                                   {0x3555, 0.333251953125f},
                                   {0x3c00, 1},
                                   {0xc000, -2},
                                   {0x7bff, 65504},
                                   {0x7c00, INFINITY},
                                   {0xfc00, -INFINITY},
                                   {0x7c01, NAN},
                                   {0xfe00, NAN}};
static const struct known bf16[] = {{0x0000, 0},         {0x3f80, 1},        {0xbfc0, -1.5f},
                                    {0x0001, 0x1p-133f}, {0x7f80, INFINITY}, {0x7fc0, NAN}};
static const struct known e4m3[] = {{0x00, 0},       {0x01, 0x1p-9f}, {0x07, 7 * 0x1p-9f},
                                    {0x08, 0x1p-6f}, {0x38, 1},       {0x3c, 1.5f},
                                    {0xb9, -1.125f}, {0x7e, 448},     {0xfe, -448},
                                    {0x7f, NAN},     {0xff, NAN}};
static const struct known e8m0[] = {{0, 0x1p-127f}, {1, 0x1p-126f},  {126, 0.5f}, {127, 1},
                                    {130, 8},       {254, 0x1p127f}, {255, NAN}};
static const struct known i8[] = {{0, 0}, {1, 1}, {127, 127}, {128, -128}, {255, -1}};
static const struct known i4[] = {{0, -8}, {7, -1}, {8, 0}, {15, 7}};
static const struct known e2m1[] = {
    {0, 0}, {1, 0.5f},  {2, 1},   {3, 1.5f},   {4, 2},   {5, 3},   {6, 4},   {7, 6},
    {8, 0}, {9, -0.5f}, {10, -1}, {11, -1.5f}, {12, -2}, {13, -3}, {14, -4}, {15, -6}};

static void assert_same(float got, float expected) {
    assert_true(got == expected || (isnan(got) && isnan(expected)));
}

static float value_of(enum element element, uint32_t code) {
    const struct weight w = weight_plain(&code, element, 1, 1);
    float value;
    weight_to_float(&w, 0, &value);
    return value;
}

static float scale_of(enum scale_type type, uint32_t code) {
    const float one = 1;
    struct weight w = weight_plain(&one, ELEMENT_F32, 1, 1);
    float value;
    w.format.scale = type;
    w.scales = &code;
    weight_to_float(&w, 0, &value);
    return value;
}

TEST(codes_have_their_values) {
    static const struct {
        enum element element;
        const struct known *known;
        size_t n;
    } all[] = {{ELEMENT_F16, f16, COUNT(f16)},    {ELEMENT_BF16, bf16, COUNT(bf16)},
               {ELEMENT_E4M3, e4m3, COUNT(e4m3)}, {ELEMENT_I8, i8, COUNT(i8)},
               {ELEMENT_I4, i4, COUNT(i4)},       {ELEMENT_E2M1, e2m1, COUNT(e2m1)}};
    for (size_t i = 0; i < COUNT(all); i++)
        for (size_t k = 0; k < all[i].n; k++)
            assert_same(value_of(all[i].element, all[i].known[k].code), all[i].known[k].value);
    for (size_t k = 0; k < COUNT(e8m0); k++)
        assert_same(scale_of(SCALE_E8M0, e8m0[k].code), e8m0[k].value);
    for (size_t k = 0; k < COUNT(e4m3); k++)
        assert_same(scale_of(SCALE_E4M3, e4m3[k].code), e4m3[k].value);
    for (size_t k = 0; k < COUNT(f16); k++)
        assert_same(scale_of(SCALE_F16, f16[k].code), f16[k].value);
    for (size_t k = 0; k < COUNT(bf16); k++)
        assert_same(scale_of(SCALE_BF16, bf16[k].code), bf16[k].value);
}

/* The CPU's kernels read floats by vectors of integers. */
TEST(kernels_read_floats_alike) {
    for (uint32_t code = 0; code < 1 << 16; code++) {
        assert_same(f16_to_f32((uint16_t)code), value_of(ELEMENT_F16, code));
        assert_same(bf16_to_f32((uint16_t)code), value_of(ELEMENT_BF16, code));
    }
    for (uint32_t code = 0; code < 1 << 8; code++)
        assert_same(e4m3_to_f32((uint8_t)code), value_of(ELEMENT_E4M3, code));
}

/* A weight of random codes, each in an array of its own that the test indexes as a matrix. */
struct random_weight {
    struct weight w;
    uint8_t data[MOST_ROWS * MOST_COLS * 4], scales[MOST_ROWS * MOST_COLS * 4],
        mins[MOST_ROWS * MOST_COLS * 4];
    uint32_t codes[MOST_ROWS][MOST_COLS];
};

static void put(uint8_t *at, size_t i, uint32_t bits, uint32_t code) {
    if (bits == 4) at[i / 2] = (uint8_t)(i % 2 ? (at[i / 2] & 15) | code << 4 : code);
    else memcpy(at + i * bits / 8, &code, bits / 8);
}

/* Without NaN and infinity, which would hide a wrong index. */
static uint32_t random_code(uint32_t bits) {
    const float f = (float)(rand() % 2000 - 1000) / 64;
    uint32_t code;
    memcpy(&code, &f, sizeof(code));
    if (bits == 32) return code;
    return bits == 16 ? (uint32_t)rand() % 0x7000 : (uint32_t)rand() % (bits == 8 ? 0x7f : 16);
}

static uint32_t sides(uint32_t side, uint16_t block) {
    return block ? (side + block - 1) / block : 1;
}

static void make_random(struct random_weight *r, const struct weight_format *format) {
    static const uint32_t scale_bits[] = {0, 32, 16, 16, 8, 8};
    const uint32_t rows = 1 + (uint32_t)rand() % MOST_ROWS, cols = 1 + (uint32_t)rand() % MOST_COLS,
                   n_blocks = sides(rows, format->block_rows) * sides(cols, format->block_cols);
    r->w = weight_plain(r->data, format->element, rows, cols);
    r->w.format = *format;
    r->w.scales = format->scale ? r->scales : NULL;
    r->w.mins = format->has_min ? r->mins : NULL;
    for (uint32_t i = 0; i < rows; i++) {
        uint8_t *row = r->data + i * ((cols * element_bits(format->element) + 7) / 8);
        for (uint32_t k = 0; k < cols; k++)
            put(row, k, element_bits(format->element),
                r->codes[i][k] = random_code(element_bits(format->element)));
    }
    for (uint32_t i = 0; format->scale && i < n_blocks; i++) {
        put(r->scales, i, scale_bits[format->scale], random_code(scale_bits[format->scale]));
        put(r->mins, i, scale_bits[format->scale], random_code(scale_bits[format->scale]));
    }
}

static float number_at(const uint8_t *at, size_t i, enum scale_type type) {
    uint32_t code = 0;
    float f;
    if (type == SCALE_F32) return memcpy(&f, at + 4 * i, 4), f;
    const size_t size = type == SCALE_F16 || type == SCALE_BF16 ? 2 : 1;
    memcpy(&code, at + size * i, size);
    return scale_of(type, code);
}

/* Returns what the element at (row, col) is worth, by the definition at the top of weight.h. */
static float expected_at(const struct random_weight *r, uint32_t row, uint32_t col) {
    const struct weight_format *f = &r->w.format;
    const uint32_t block =
        (f->block_rows ? row / f->block_rows : 0) * sides(r->w.cols, f->block_cols) +
        (f->block_cols ? col / f->block_cols : 0);
    float x;
    if (f->element == ELEMENT_F32) memcpy(&x, &r->codes[row][col], sizeof(x));
    else x = value_of(f->element, r->codes[row][col]);
    if (f->scale) x *= number_at(r->scales, block, f->scale);
    if (f->has_min) x += number_at(r->mins, block, f->scale);
    return x;
}

static void check_rows(const struct random_weight *r) {
    float whole[MOST_COLS], part[MOST_COLS];
    for (uint32_t row = 0; row < r->w.rows; row++) {
        struct weight view;
        const bool in_block =
            r->w.format.scale && r->w.format.block_rows && row % r->w.format.block_rows;
        weight_to_float(&r->w, row, whole);
        for (uint32_t col = 0; col < r->w.cols; col++)
            assert_same(whole[col], expected_at(r, row, col));
        assert_int_equal(weight_rows(&r->w, row, r->w.rows - row, &view), !in_block);
        if (in_block) continue;
        weight_to_float(&view, view.rows - 1, part);
        weight_to_float(&r->w, r->w.rows - 1, whole);
        assert_memory_equal(part, whole, r->w.cols * sizeof(float));
    }
}

/* Checks a copy of columns against the weight, where they can be cut. */
static void check_columns(const struct random_weight *r) {
    static uint8_t memory[sizeof(r->data) + sizeof(r->scales) + sizeof(r->mins) + 64];
    const struct weight_format *f = &r->w.format;
    const uint32_t first = (uint32_t)rand() % r->w.cols,
                   n = 1 + (uint32_t)rand() % (r->w.cols - first),
                   per_byte = element_bits(f->element) == 4 ? 2 : 1;
    const bool is_whole = first % per_byte == 0 && (n % per_byte == 0 || first + n == r->w.cols),
               in_block = f->scale && f->block_cols && first % f->block_cols != 0;
    float whole[MOST_COLS], part[MOST_COLS];
    struct weight cut = r->w;
    assert_int_equal(weight_can_cut(&r->w, first, n), is_whole && !in_block);
    if (!is_whole || in_block) return;
    cut.cols = n;
    assert_true(weight_copy_bytes(&cut) <= sizeof(memory));
    cut = weight_copy_at(&cut, memory);
    weight_copy_columns(&r->w, first, &cut);
    for (uint32_t row = 0; row < r->w.rows; row++) {
        weight_to_float(&r->w, row, whole);
        weight_to_float(&cut, row, part);
        assert_memory_equal(part, whole + first, n * sizeof(float));
    }
}

TEST(every_format_is_read_as_defined) {
    static const uint16_t blocks[][2] = {{0, 0}, {1, 0},   {1, 32}, {1, 16},
                                         {7, 5}, {16, 16}, {0, 8}};
    static struct random_weight r;
    srand(42);
    for (enum element element = ELEMENT_F32; element <= ELEMENT_E2M1; element++)
        for (enum scale_type scale = SCALE_NONE; scale <= SCALE_E4M3; scale++)
            for (size_t i = 0; i < COUNT(blocks); i++) {
                make_random(&r, &(struct weight_format){element, scale, blocks[i][0], blocks[i][1],
                                                        scale && i % 2});
                check_rows(&r);
                for (int k = 0; k < 8; k++) check_columns(&r);
            }
}

TEST(sizes_count_rows_scales_and_mins) {
    struct weight w = weight_plain(NULL, ELEMENT_BF16, 3, 5);
    assert_int_equal(weight_bytes(&w), 3 * 5 * 2);
    w = weight_plain(NULL, ELEMENT_I4, 3, 65); /* a row ends with its byte */
    assert_int_equal(weight_row_bytes(&w), 33);
    w.format = (struct weight_format){ELEMENT_I4, SCALE_F16, 1, 32, true};
    assert_int_equal(weight_bytes(&w), 3 * 33 + 2 * 3 * 3 * 2);
    w.format = (struct weight_format){ELEMENT_E4M3, SCALE_F32, 128, 128, false};
    assert_int_equal(weight_bytes(&w), 3 * 65 + 4);
    w.n_stacked = 7; /* each matrix has scales of its own */
    assert_int_equal(weight_bytes(&w), 7 * (3 * 65 + 4));
    w.n_stacked = 1;
    w.format = (struct weight_format){ELEMENT_E4M3, SCALE_F32, 0, 0, false};
    assert_int_equal(weight_bytes(&w), 3 * 65 + 4);
}

TEST(messages_name_formats) {
    static const struct {
        struct weight_format format;
        const char *text;
    } cases[] = {
        {{.element = ELEMENT_BF16}, "BF16"},
        {{ELEMENT_E4M3, SCALE_F32, 128, 128, false}, "E4M3 with F32 scales of 128 x 128 elements"},
        {{ELEMENT_I4, SCALE_F16, 1, 0, true},
         "I4 with F16 scales and minimums of 1 x all elements"}};
    char text[WEIGHT_FORMAT_TEXT];
    for (size_t i = 0; i < COUNT(cases); i++) {
        weight_format_text(&cases[i].format, text);
        assert_string_equal(text, cases[i].text);
    }
}

static uint16_t rounded(float x, enum element element) {
    uint16_t out;
    weight_from_float(&x, 1, element, &out);
    return out;
}

/* All codes, the floats half way between neighbours, and their neighbours. */
TEST(floats_are_rounded_as_kernels_round_them) {
    for (uint32_t code = 0; code < 1 << 16; code++) {
        const float values[] = {f16_to_f32((uint16_t)code), bf16_to_f32((uint16_t)code)},
                    after[] = {f16_to_f32((uint16_t)(code + 1)), bf16_to_f32((uint16_t)(code + 1))};
        if (!isnan(values[0])) assert_int_equal(rounded(values[0], ELEMENT_F16), code);
        if (!isnan(values[1])) assert_int_equal(rounded(values[1], ELEMENT_BF16), code);
        for (int i = 0; i < 2; i++) {
            const float half = values[i] / 2 + after[i] / 2,
                        near[] = {half, nextafterf(half, INFINITY), nextafterf(half, -INFINITY)};
            for (int k = 0; k < 3; k++) {
                assert_int_equal(rounded(near[k], ELEMENT_F16), f32_to_f16(near[k]));
                assert_int_equal(rounded(near[k], ELEMENT_BF16), f32_to_bf16(near[k]));
            }
        }
    }
    float same = 1.1f, copy;
    weight_from_float(&same, 1, ELEMENT_F32, &copy);
    assert_true(copy == same);
}
