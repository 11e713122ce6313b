/* test_stream_cut.c - how experts' products are cut for few rows.  All columns and strips are there
 * once.  All fits into shared memory.  A row's order of sums knows no other row. */
#include "cuda/experts/stream_cut.h"
#include "tests/test.h"

static const struct stream_device device = {132, 232448};

static const struct weight_format formats[] = {
    {ELEMENT_BF16, SCALE_NONE, 0, 0, false}, {ELEMENT_I4, SCALE_BF16, 1, 128, false},
    {ELEMENT_I4, SCALE_F16, 1, 32, true},    {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false},
    {ELEMENT_E4M3, SCALE_F32, 1, 0, false},  {ELEMENT_E4M3, SCALE_F32, 128, 128, false},
    {ELEMENT_I8, SCALE_F16, 1, 32, false}};

static struct expert_product product_of(const struct weight_format *format, uint32_t n_rows,
                                        uint32_t n_in, uint32_t n_out, bool gated) {
    struct expert_product p = {.order = {.n_rows = n_rows, .n_used = 8, .n_experts = 128},
                               .n_in = n_in,
                               .n_out = n_out,
                               .gated = gated};
    for (int i = 0; i < 2; i++)
        p.stacks[i] =
            (struct expert_stack){.format = *format, .in_strips = !weight_is_plain(format)};
    return p;
}

static void check_cut(const struct expert_product *p, const struct stream_cut *cut) {
    const uint32_t bits = element_bits(p->stacks[0].format.element), columns = bits == 4 ? 64 : 32;
    assert_int_equal(cut->n_steps * columns, p->n_in);
    assert_true(cut->share_steps * cut->k_warps >= cut->n_steps);
    assert_true(cut->k_warps <= STREAM_MAX_K_WARPS && cut->o_warps <= STREAM_MAX_O_WARPS);
    assert_true(cut->k_warps * cut->o_warps <= STREAM_MAX_WARPS);
    assert_in_range(cut->n_slots, 2, STREAM_MAX_SLOTS);
    assert_true(cut->rows >= 1 && cut->rows <= cut->x_tiles * STREAM_X_TILE);
    assert_in_range(cut->x_tiles, 1, STREAM_MAX_TILES);
    assert_true(cut->n_strips * STREAM_STRIP >= p->n_out);
    assert_true(cut->n_blocks * cut->block_strips * cut->o_warps >= cut->n_strips);
    assert_true((cut->n_blocks - 1) * cut->block_strips * cut->o_warps < cut->n_strips);
    assert_true(cut->total <= device.max_bytes);
    assert_true(cut->blocks_at_once * (cut->total + 1024) <= device.max_bytes + 1024);
    assert_true(cut->x_at + cut->rows * cut->x_pitch <= cut->slots_at);
    assert_int_equal(cut->slot_bytes % 128, 0);
}

static void all_is_there_and_fits(void **state) {
    static const uint32_t sizes[][2] = {{2048, 768}, {768, 2048},   {2880, 2880},
                                        {64, 16},    {4096, 14336}, {14336, 4096}};
    (void)state;
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t i = 0; i < COUNT(sizes); i++)
            for (uint32_t n_rows = 1; n_rows <= 8192; n_rows = n_rows * 3 / 2 + 1)
                for (int gated = 0; gated < 2; gated++) {
                    const struct expert_product one = product_of(&formats[f], 1, sizes[i][0],
                                                                 sizes[i][1], gated),
                                                p = product_of(&formats[f], n_rows, sizes[i][0],
                                                               sizes[i][1], gated);
                    struct stream_cut cut, of_one;
                    assert_true(stream_takes(&p));
                    assert_true(stream_make_cut(&p, &device, &cut));
                    assert_true(stream_make_cut(&one, &device, &of_one));
                    check_cut(&p, &cut);
                    assert_int_equal(cut.k_warps, of_one.k_warps);
                    assert_int_equal(cut.share_steps, of_one.share_steps);
                }
}

/* What has no instance of the kernel is left to others. */
static void other_formats_are_left(void **state) {
    static const struct weight_format others[] = {
        {ELEMENT_F16, SCALE_NONE, 0, 0, false},   {ELEMENT_F32, SCALE_NONE, 0, 0, false},
        {ELEMENT_I4, SCALE_F16, 1, 16, false},    {ELEMENT_E2M1, SCALE_E4M3, 1, 16, false},
        {ELEMENT_E4M3, SCALE_F32, 64, 64, false}, {ELEMENT_I8, SCALE_F32, 128, 128, false}};
    (void)state;
    for (size_t f = 0; f < COUNT(others); f++) {
        const struct expert_product p = product_of(&others[f], 1, 2048, 768, true);
        assert_false(stream_takes(&p));
    }
    struct expert_product p = product_of(&formats[1], 1, 2048, 768, true);
    p.stacks[1].format = formats[2];
    assert_false(stream_takes(&p));
    p = product_of(&formats[1], 1, 2048, 768, true);
    p.stacks[0].in_strips = p.stacks[1].in_strips = false;
    assert_false(stream_takes(&p));
    p = product_of(&formats[0], 1, 40, 24, true);
    assert_false(stream_takes(&p));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_is_there_and_fits),
                                       cmocka_unit_test(other_formats_are_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
