/* test_packed_wide_cut.c - cuts of products of packed weights.  Blocks that wait for each other run
 * at the same time.  For Llama-3-8B the cuts are what was fastest on an H200. */
#include <stdlib.h>

#include "cuda/linear/packed_wide_cut.h"
#include "tests/test.h"

static const struct packed_wide_device h200 = {{0, 132, 66, 39, 30, 22, 17, 15, 15}};

TEST(blocks_of_a_cluster_run_at_the_same_time) {
    srand(13);
    for (int round = 0; round < 20000; round++) {
        struct product p = {.n_rows = 1 + (uint32_t)rand() % (1u << rand() % 14),
                            .n_in = 64 * (1 + (uint32_t)rand() % (1u << rand() % 9)),
                            .n_parts = 1 + (uint32_t)rand() % LINEAR_MAX_PARTS,
                            .gated = rand() % 3 == 0};
        for (uint32_t i = 0; i < p.n_parts; i++)
            p.parts[i].n_out = 1 + (uint32_t)rand() % (1u << rand() % 17);
        if (p.gated) p.n_parts = 2, p.parts[1].n_out = p.parts[0].n_out;
        const struct packed_wide_cut cut = packed_wide_choose_cut(&p, &h200);
        assert_in_range(cut.tile, 0, N_PACKED_WIDE_TILES - 1);
        assert_in_range(cut.n_splits, 1, PACKED_WIDE_MAX_SPLITS);
        if (cut.n_splits == 1) continue;
        const struct packed_wide_tile *tile = &packed_wide_tiles[cut.tile];
        const uint32_t width = tile->groups * (p.gated ? 32 : 64);
        uint32_t n_tiles = 0;
        for (uint32_t i = 0; i < (p.gated ? 1 : p.n_parts); i++)
            n_tiles += (p.parts[i].n_out + width - 1) / width;
        const uint32_t n_clusters = h200.n_clusters[cut.n_splits],
                       n_all = n_tiles * ((p.n_rows + tile->rows - 1) / tile->rows),
                       n_left = n_all % (n_clusters * cut.n_splits);
        assert_in_range(n_left, 1, n_clusters);
        assert_true((cut.n_splits - 1) * PACKED_WIDE_STAGE_COLUMNS < p.n_in);
    }
}

TEST(the_fastest_cuts_are_chosen) {
    static const struct {
        uint32_t n_rows;
        struct {
            uint32_t rows, groups, n_splits;
        } qkv, output, gated, down;
    } fastest[] = {{1, {16, 2, 2}, {16, 2, 3}, {16, 4, 1}, {16, 2, 3}},
                   {32, {32, 2, 2}, {32, 2, 3}, {32, 4, 1}, {32, 2, 3}},
                   {64, {64, 2, 2}, {32, 2, 2}, {64, 4, 1}, {64, 2, 3}},
                   {128, {64, 2, 1}, {64, 2, 2}, {128, 4, 1}, {64, 2, 2}},
                   {320, {64, 4, 1}, {160, 2, 2}, {160, 2, 2}, {160, 2, 2}},
                   {384, {192, 2, 1}, {128, 2, 1}, {192, 2, 2}, {192, 2, 2}},
                   {512, {128, 2, 2}, {128, 2, 1}, {128, 2, 1}, {128, 2, 1}},
                   {768, {160, 2, 1}, {192, 2, 1}, {192, 2, 1}, {192, 2, 1}}};
    for (size_t i = 0; i < sizeof(fastest) / sizeof(fastest[0]); i++) {
        const struct product products[] = {
            {.n_in = 4096,
             .n_parts = 3,
             .parts = {{.n_out = 4096}, {.n_out = 1024}, {.n_out = 1024}}},
            {.n_in = 4096, .n_parts = 1, .parts = {{.n_out = 4096}}},
            {.n_in = 4096,
             .n_parts = 2,
             .parts = {{.n_out = 14336}, {.n_out = 14336}},
             .gated = true},
            {.n_in = 14336, .n_parts = 1, .parts = {{.n_out = 4096}}}};
        for (int k = 0; k < 4; k++) {
            struct product p = products[k];
            p.n_rows = fastest[i].n_rows;
            const struct packed_wide_cut cut = packed_wide_choose_cut(&p, &h200);
            assert_int_equal(packed_wide_tiles[cut.tile].rows, (&fastest[i].qkv)[k].rows);
            assert_int_equal(packed_wide_tiles[cut.tile].groups, (&fastest[i].qkv)[k].groups);
            assert_int_equal(cut.n_splits, (&fastest[i].qkv)[k].n_splits);
        }
    }
}

/* What is widened in more instructions is better widened once for 256 rows than twice for 128. */
TEST(formats_that_take_longer_to_widen_have_larger_tiles) {
    struct product p = {.n_rows = 512,
                        .n_in = 4096,
                        .n_parts = 2,
                        .parts = {{.n_out = 14336}, {.n_out = 14336}},
                        .gated = true,
                        .w_format = {ELEMENT_I4, SCALE_BF16, 1, 128, false}};
    assert_int_equal(packed_wide_tiles[packed_wide_choose_cut(&p, &h200).tile].rows, 128);
    p.w_format = (struct weight_format){ELEMENT_I4, SCALE_F16, 1, 32, true};
    assert_int_equal(packed_wide_tiles[packed_wide_choose_cut(&p, &h200).tile].rows, 256);
    p.w_format = (struct weight_format){ELEMENT_I8, SCALE_F16, 1, 16, false};
    assert_int_equal(packed_wide_tiles[packed_wide_choose_cut(&p, &h200).tile].rows, 256);
}

TEST(formats_are_found_by_elements_and_blocks) {
    static const struct {
        struct weight_format format;
        enum packed_wide_format found;
    } cases[] = {{{ELEMENT_I4, SCALE_BF16, 1, 128, false}, PACKED_I4_BF16},
                 {{ELEMENT_I4, SCALE_F16, 1, 0, false}, PACKED_I4_ROWS},
                 {{ELEMENT_I4, SCALE_BF16, 1, 64, false}, PACKED_I4_BF16_64},
                 {{ELEMENT_I4, SCALE_BF16, 1, 32, false}, PACKED_I4_BF16_32},
                 {{ELEMENT_I4, SCALE_BF16, 1, 16, false}, N_PACKED_WIDE_FORMATS},
                 {{ELEMENT_I4, SCALE_F16, 1, 16, false}, PACKED_I4_F16_16},
                 {{ELEMENT_I4, SCALE_F16, 1, 16, true}, PACKED_I4_F16_16_MIN},
                 {{ELEMENT_I4, SCALE_F32, 1, 512, false}, PACKED_I4_F32},
                 {{ELEMENT_I4, SCALE_F32, 1, 64, true}, PACKED_I4_F32_64_MIN},
                 {{ELEMENT_I4, SCALE_F32, 1, 32, true}, PACKED_I4_F32_32_MIN},
                 {{ELEMENT_I8, SCALE_BF16, 1, 128, false}, PACKED_I8_BF16},
                 {{ELEMENT_I8, SCALE_F16, 1, 16, false}, PACKED_I8_F16_16},
                 {{ELEMENT_I8, SCALE_F16, 1, 32, true}, PACKED_I8_F16_32_MIN},
                 {{ELEMENT_I4, SCALE_F16, 1, 256, false}, PACKED_I4_F16},
                 {{ELEMENT_I4, SCALE_F16, 1, 384, false}, N_PACKED_WIDE_FORMATS},
                 {{ELEMENT_I4, SCALE_F16, 1, 32, false}, PACKED_I4_F16_32},
                 {{ELEMENT_I4, SCALE_F16, 1, 64, false}, PACKED_I4_F16_64},
                 {{ELEMENT_I4, SCALE_F32, 1, 128, true}, PACKED_I4_F32_MIN},
                 {{ELEMENT_I4, SCALE_F16, 1, 32, true}, PACKED_I4_F16_32_MIN},
                 {{ELEMENT_I8, SCALE_F32, 1, 0, false}, PACKED_I8_ROWS},
                 {{ELEMENT_I8, SCALE_F16, 1, 128, false}, PACKED_I8_F16},
                 {{ELEMENT_I8, SCALE_F16, 1, 32, false}, PACKED_I8_F16_32},
                 {{ELEMENT_E4M3, SCALE_F32, 0, 0, false}, PACKED_E4M3_ROWS},
                 {{ELEMENT_E4M3, SCALE_BF16, 1, 0, false}, PACKED_E4M3_ROWS},
                 {{ELEMENT_E4M3, SCALE_F32, 128, 128, false}, PACKED_E4M3_BLOCKS},
                 {{ELEMENT_E4M3, SCALE_F32, 64, 256, false}, PACKED_E4M3_BLOCKS},
                 {{ELEMENT_E4M3, SCALE_F32, 32, 128, false}, N_PACKED_WIDE_FORMATS},
                 {{ELEMENT_E4M3, SCALE_F32, 128, 64, false}, N_PACKED_WIDE_FORMATS},
                 {{ELEMENT_E4M3, SCALE_BF16, 128, 128, false}, N_PACKED_WIDE_FORMATS},
                 {{ELEMENT_E4M3, SCALE_F32, 1, 128, false}, N_PACKED_WIDE_FORMATS},
                 {{ELEMENT_E4M3, SCALE_NONE, 0, 0, false}, N_PACKED_WIDE_FORMATS},
                 {{ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}, PACKED_E2M1_32},
                 {{ELEMENT_E2M1, SCALE_E4M3, 1, 16, false}, N_PACKED_WIDE_FORMATS}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(packed_wide_find_format(&cases[i].format), cases[i].found);
}
