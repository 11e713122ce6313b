/* test_packed_cut.c - cuts of products of few rows with packed weights.  Shared memory holds what
 * the kernel puts there, shares depend on n_in only, and what is not taken is refused. */
#include "cuda/linear/packed_cut.h"
#include "tests/test.h"

static const struct weight_format taken[] = {
    {.element = ELEMENT_I4, .scale = SCALE_F16, .block_rows = 1, .block_cols = 128},
    {.element = ELEMENT_I4, .scale = SCALE_F16, .block_rows = 1, .block_cols = 32, .has_min = true},
    {.element = ELEMENT_I4, .scale = SCALE_F32, .block_rows = 1, .block_cols = 16},
    {.element = ELEMENT_I8, .scale = SCALE_BF16, .block_rows = 1},
    {.element = ELEMENT_I8, .scale = SCALE_F16, .block_rows = 1, .block_cols = 32},
    {.element = ELEMENT_E4M3, .scale = SCALE_F32},
    {.element = ELEMENT_E4M3, .scale = SCALE_F32, .block_rows = 128, .block_cols = 128},
    {.element = ELEMENT_E2M1, .scale = SCALE_E8M0, .block_rows = 1, .block_cols = 32}};

static const uint32_t widths[] = {64, 896, 2880, 4096, 8192, 11008, 14336, 28672, 32768};

static bool make_cut(const struct weight_format *format, uint32_t n_rows, uint32_t n_in,
                     struct packed_cut *cut) {
    const struct product p = {
        .n_rows = n_rows, .n_in = n_in, .w_format = *format, .norm_weight = widths};
    return packed_make_cut(&p, PACKED_MAX_BYTES, cut);
}

static void check_cut(const struct weight_format *format, uint32_t n_rows, uint32_t n_in,
                      uint32_t n_shares) {
    struct packed_cut cut;
    if (!make_cut(format, n_rows, n_in, &cut)) return;
    const uint32_t unit = 512 / element_bits(format->element);
    assert_int_equal(cut.n_shares, n_shares);
    assert_int_equal(cut.split * cut.block_shares, cut.n_shares);
    assert_true(cut.share_units * unit <= PACKED_SHARE);
    assert_true((uint64_t)cut.n_shares * cut.share_units * unit >= n_in);
    /* No share is empty. */
    assert_true((uint64_t)(cut.n_shares - 1) * cut.share_units * unit < n_in);
    assert_true(cut.n_stages <= PACKED_MAX_STAGES);
    assert_true(cut.n_stages * PACKED_STAGE_UNITS > cut.share_units);
    assert_true(cut.x_at + n_rows * cut.x_pitch <= cut.slots_at);
    assert_true(cut.slots_at + cut.n_slots * cut.slot_bytes <= cut.stages_at);
    assert_true(cut.stages_at + cut.n_stages * PACKED_STAGE_BYTES <= cut.total);
    assert_true(cut.total <= PACKED_MAX_BYTES);
}

TEST(shares_depend_on_the_columns_only) {
    struct packed_cut one;
    for (size_t f = 0; f < COUNT(taken); f++)
        for (size_t w = 0; w < COUNT(widths); w++) {
            if (!make_cut(&taken[f], 1, widths[w], &one)) continue;
            for (uint32_t n_rows = 1; n_rows <= PACKED_MAX_ROWS; n_rows++)
                check_cut(&taken[f], n_rows, widths[w], one.n_shares);
        }
}

TEST(products_of_usual_widths_are_taken) {
    struct packed_cut cut;
    for (uint32_t n_rows = 1; n_rows <= PACKED_MAX_ROWS; n_rows++) {
        assert_true(make_cut(&taken[0], n_rows, 4096, &cut));
        assert_int_equal(cut.split, 1);
        for (size_t w = 0; w < COUNT(widths); w++)
            assert_true(make_cut(&taken[5], n_rows, widths[w], &cut));
    }
    assert_true(make_cut(&taken[0], 1, 14336, &cut));
    assert_int_equal(cut.split, 1);
    assert_true(make_cut(&taken[0], PACKED_MAX_ROWS, 14336, &cut));
    assert_true(cut.split > 1);
}

TEST(what_the_kernel_cannot_read_is_refused) {
    static const struct weight_format refused[] = {
        {.element = ELEMENT_BF16},
        {.element = ELEMENT_I4, .scale = SCALE_F16, .block_rows = 1, .block_cols = 96},
        {.element = ELEMENT_I4, .scale = SCALE_F16, .block_rows = 1, .block_cols = 8},
        {.element = ELEMENT_I4, .scale = SCALE_F16, .block_rows = 4, .block_cols = 128},
        {.element = ELEMENT_I4, .scale = SCALE_F16, .block_rows = 1, .has_min = true},
        {.element = ELEMENT_E4M3, .scale = SCALE_F32, .block_rows = 100, .block_cols = 128},
        {.element = ELEMENT_E4M3, .scale = SCALE_BF16, .block_rows = 128, .block_cols = 128},
        {.element = ELEMENT_E2M1, .scale = SCALE_E4M3, .block_rows = 1, .block_cols = 16}};
    struct packed_cut cut;
    for (size_t i = 0; i < COUNT(refused); i++) assert_false(make_cut(&refused[i], 1, 4096, &cut));
    assert_false(make_cut(&taken[0], PACKED_MAX_ROWS + 1, 4096, &cut));
    assert_false(make_cut(&taken[0], 1, 4096 + 32, &cut));
    assert_false(make_cut(&taken[0], 1, PACKED_SHARE * PACKED_MAX_SHARES + 64, &cut));
}
