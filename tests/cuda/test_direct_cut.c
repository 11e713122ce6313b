/* test_direct_cut.c - cuts of one row's products whose weights lie in registers.  Every slab is
 * some warp's, blocks are no larger than they may be, and what is not taken is refused. */
#include "cuda/linear/direct_cut.h"
#include "tests/test.h"

static const struct weight_format taken[] = {
    {ELEMENT_I4, SCALE_BF16, 1, 0, false},      {ELEMENT_I4, SCALE_F16, 1, 32, false},
    {ELEMENT_I4, SCALE_BF16, 1, 64, false},     {ELEMENT_I4, SCALE_F16, 1, 128, false},
    {ELEMENT_I8, SCALE_F32, 1, 0, false},       {ELEMENT_E4M3, SCALE_F32, 0, 0, false},
    {ELEMENT_E4M3, SCALE_F32, 128, 128, false}, {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}};

static const struct weight_format refused[] = {
    {ELEMENT_BF16, SCALE_NONE, 0, 0, false},     {ELEMENT_I4, SCALE_F32, 1, 128, false},
    {ELEMENT_I4, SCALE_F16, 1, 32, true},        {ELEMENT_I4, SCALE_F16, 1, 16, false},
    {ELEMENT_I8, SCALE_F16, 1, 32, false},       {ELEMENT_E4M3, SCALE_F32, 8, 128, false},
    {ELEMENT_E4M3, SCALE_BF16, 128, 128, false}, {ELEMENT_Q8_0, SCALE_NONE, 0, 0, false}};

static void check(const struct weight_format *f, uint32_t n_in, uint32_t n_strips) {
    const uint32_t columns = element_bits(f->element) == 4 ? 64 : 32;
    struct direct_cut cut;
    if (!direct_cut_columns(f, n_in, n_strips, &cut)) {
        const uint32_t most = n_strips > 1 ? DIRECT_FEW : DIRECT_MANY;
        assert_true(n_in % columns != 0 || n_in / columns > most * DIRECT_MAX_WARPS);
        return;
    }
    assert_int_equal(cut.n_slabs * columns, n_in);
    assert_in_range(cut.n_warps, 1, DIRECT_MAX_WARPS);
    assert_true(cut.n_warps * cut.warp_slabs >= cut.n_slabs);
    assert_true((cut.n_warps - 1) * cut.warp_slabs < cut.n_slabs); /* no warp has nothing */
    assert_int_equal(cut.x_bytes, cut.warp_slabs * columns * 2);
    if (f->block_cols) assert_true(cut.n_groups * f->block_cols >= n_in);
    else assert_int_equal(cut.n_groups, 0);
}

TEST(warps_have_all_slabs) {
    static const uint32_t widths[] = {64, 96, 100, 448, 768, 2048, 2880, 4096, 8192, 12288, 14336};
    for (size_t i = 0; i < COUNT(taken); i++)
        for (size_t k = 0; k < COUNT(widths); k++)
            for (uint32_t n_strips = 1; n_strips <= 2; n_strips++) {
                assert_true(direct_takes(&taken[i]));
                check(&taken[i], widths[k], n_strips);
            }
}

TEST(other_formats_are_refused) {
    for (size_t i = 0; i < COUNT(refused); i++) assert_false(direct_takes(&refused[i]));
}

TEST(columns_of_several_experts_are_one_cut) {
    struct direct_cut cut;
    assert_int_equal(direct_slabs(&taken[3], 768), 12);
    assert_true(direct_make_cut(&taken[3], 8 * 12, DIRECT_MANY, &cut));
    assert_int_equal(cut.n_warps, 8);
    assert_int_equal(cut.n_groups, 8 * 6);
    assert_false(direct_make_cut(&taken[3], 16 * 12 + 1, DIRECT_MANY, &cut));
    assert_false(direct_make_cut(&taken[3], 0, DIRECT_MANY, &cut));
}
