/* int8_kernels.c - see int8_kernels.h.  Compiled once per instruction set with INT8_NAME set, and
 * INT8_NEON for those of ARM.
 *
 *   a row of x     codes i8 [blocks][32] | d f32 [blocks] | starts i32 [spans] | sums f32 [spans]
 *
 *   step           64 bytes: 4 columns of 16 outputs.  An instruction multiplies 4 codes of x,
 *                  the same in all lanes, with those of each output, and adds them to its sum.
 *
 * Codes of weights have no sign, so the sum of a span starts at -offset * the sum of x's codes.
 *
 * Few rows of x multiply codes as they lie in memory, a group of outputs at a time.  So one stream
 * of memory is read.  For more rows, the codes of a section of columns
 * are widened to bytes first.  These stay in the first cache while the rows pass by. */
#include "engine/cpu/int8_i8mm.h"
#include "engine/cpu/int8_tile.h"

/* ---- a tile of outputs ---- */

/* Says whether the steps of a block's second half have sums of their own on the way.  Then chains
 * of additions are half as long, which few sums need. */
INLINE bool has_halves(uint32_t rows, uint32_t vecs) {
    return rows * vecs <= (LANES == 16 ? 4 : 2);
}

/* Says whether the upper halves of bytes are multiplied where they are, which makes sums 16 times
 * as large.  Instructions that add in pairs have no room for that. */
INLINE bool is_in_place(uint32_t rows, uint32_t vecs, struct code_shape shape) {
    return ADDS_WHOLE && has_halves(rows, vecs) && shape.bits == 4 && !shape.has_table;
}

/* Returns the i-th step of a span.  Where two steps share a line, they follow one another. */
INLINE uint32_t step_of(uint32_t i, uint32_t half, struct code_shape shape) {
    if (shape.span == INT8_BLOCK && shape.bits != 8) return i / 2 + i % 2 * 4;
    return half * (shape.span / 4) + i;
}

/* Adds the products of a span, the steps of `half` of a block, to its sums. */
INLINE void sum_span(whole (*sums)[VECS], const struct tile *t, uint32_t rows, uint32_t vecs,
                     uint32_t b, uint32_t half, uint32_t first, struct code_shape shape) {
    const bool halves = has_halves(rows, vecs), in_place = is_in_place(rows, vecs, shape);
    whole second[TILE_ROWS][VECS], lines[VECS], codes[VECS];
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < vecs; v++) second[r][v] = same_in_all(0);
    }
#pragma GCC unroll UNROLLED
    for (uint32_t i = 0; i < shape.span / 4; i++) {
        const uint32_t j = step_of(i, half, shape);
        whole(*to)[VECS] = halves && j >= 4 ? second : sums;
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < vecs; v++) {
            const uint8_t *block = t->codes[v] + b * t->block_bytes;
            if (i == 0 || step_of(i - 1, half, shape) % 4 != j % 4 || shape.bits == 8)
                lines[v] = kept(load(line_of_step(block, j, shape)));
            codes[v] =
                kept(in_place && j >= 4 ? masked(lines[v], 0xf0)
                                        : codes_of_line(lines[v], block, j, shape, t->table));
        }
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const whole x = x_of_step(&t->x, r, first + b, j);
#pragma GCC unroll UNROLLED
            for (uint32_t v = 0; v < vecs; v++)
                to[r][v] = add_products(to[r][v], codes[v], x, shape.is_signed);
        }
    }
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; halves && v < vecs; v++)
            sums[r][v] = (whole)((veci)sums[r][v] + ((veci)second[r][v] >> (in_place ? 4 : 0)));
    }
}

/* Does the same, for two rows at a time where an instruction does. */
INLINE void sum_rows(whole (*sums)[VECS], const struct tile *t, uint32_t rows, uint32_t vecs,
                     uint32_t b, uint32_t half, uint32_t first, struct code_shape shape) {
#if defined(INT8_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
    if (rows % 2 == 0) {
        sum_pairs(sums, t, rows, b, half, first, shape);
        return;
    }
#endif
    sum_span(sums, t, rows, vecs, b, half, first, shape);
}

/* Adds a span of rows to the outputs. */
INLINE void add_span(vecf (*acc)[VECS], const struct tile *t, uint32_t rows, uint32_t vecs,
                     uint32_t b, uint32_t half, uint32_t first, struct code_shape shape) {
    const uint32_t per_block = INT8_BLOCK / shape.span, span = b * per_block + half;
    whole sums[TILE_ROWS][VECS];
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
        const whole start = same_in_all(start_at(&t->x, r, first * per_block + span));
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < vecs; v++) sums[r][v] = start;
    }
    sum_rows(sums, t, rows, vecs, b, half, first, shape);
#pragma GCC unroll UNROLLED
    for (uint32_t v = 0; v < vecs; v++) {
        const vecf scale = scale_at(t, v, span);
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const vecf d = vec_set(float_at(&t->x, t->x.d, r, first + b));
            acc[r][v] = multiply_add(floats_of(sums[r][v]), scale * d, acc[r][v]);
        }
        if (!t->has_min) continue;
        const vecf min = min_at(t, v, span);
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const vecf sum = vec_set(float_at(&t->x, t->x.sums, r, first * per_block + span));
            acc[r][v] = multiply_add(min, sum, acc[r][v]);
        }
    }
}

/* Asks for codes a page behind those of a block.  One or two rows of x read so fast that the
 * processor's own prefetching does it; with more it would not be far enough ahead. */
INLINE void prefetch_codes(const struct tile *t, uint32_t b, struct code_shape shape) {
    enum { LINE = 64, AHEAD = 4096 };
#pragma GCC unroll UNROLLED
    for (uint32_t line = 0; line < shape.bits * INT8_STEP; line += LINE)
        __builtin_prefetch(t->codes[0] + b * t->block_bytes + AHEAD + line, 0, 2);
}

/* Adds the products of n blocks of rows of x, from block `first` on. */
INLINE void add_tile(const struct tile *t, uint32_t rows, uint32_t vecs, uint32_t first, uint32_t n,
                     struct code_shape shape) {
    vecf acc[TILE_ROWS][VECS];
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < vecs; v++)
            acc[r][v] = vec_load(t->sums + r * TILE_COLS + v * LANES);
    }
    for (uint32_t b = 0; b < n; b++) {
        if (rows > 2 && !shape.is_wide) prefetch_codes(t, b, shape);
#pragma GCC unroll UNROLLED
        for (uint32_t half = 0; half < INT8_BLOCK / shape.span; half++)
            add_span(acc, t, rows, vecs, b, half, first, shape);
    }
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < vecs; v++)
            vec_store(t->sums + r * TILE_COLS + v * LANES, acc[r][v]);
    }
}

/* ---- a block of y ---- */

/* Writes sums of rows from `row` on, and n columns from `col` on, to y. */
INLINE void store_rows(const struct product_block *b, const float *sums, uint32_t row,
                       uint32_t n_rows, uint32_t col, uint32_t n) {
    for (uint32_t r = 0; r < n_rows; r++) {
        float *y = b->y + (row + r) * b->y_stride + col;
        for (uint32_t c = 0; c < n; c++) {
            const float sum = sums[r * TILE_COLS + c] + (b->bias ? b->bias[col + c] : 0);
            y[c] = b->accumulate ? y[c] + sum : sum;
        }
    }
}

/* Makes the bytes of a table that kernels multiply. */
INLINE void table_bytes(uint8_t bytes[16], const struct int8_weight *w, struct code_shape shape) {
    for (int i = 0; shape.has_table && i < 16; i++)
        bytes[i] = (uint8_t)(w->layout.table[i] + (shape.is_signed ? 0 : 128));
}

/* Adds the products of up to TILE_ROWS rows. */
INLINE void add_rows(const struct tile *t, uint32_t rows, uint32_t first, uint32_t n,
                     struct code_shape shape) {
    if (rows == 1) add_tile(t, 1, VECS, first, n, shape);
    if (TILE_ROWS >= 2 && rows == 2) add_tile(t, 2, VECS, first, n, shape);
    if (TILE_ROWS >= 3 && rows == 3) add_tile(t, 3, VECS, first, n, shape);
    if (TILE_ROWS >= 4 && rows == 4) add_tile(t, 4, VECS, first, n, shape);
    if (TILE_ROWS >= 5 && rows == 5) add_tile(t, 5, VECS, first, n, shape);
    if (TILE_ROWS >= 6 && rows == 6) add_tile(t, 6, VECS, first, n, shape);
}

/* Adds those of few rows to a group's columns, FEW_TILE, 2 or 1 at a time.  With other numbers,
 * there were more copies of the loop for each kind. */
INLINE void add_few_rows(struct tile t, uint32_t rows, uint32_t first, uint32_t n,
                         struct code_shape shape) {
    for (uint32_t done; FEW_ROWS > 0 && rows > 0; rows -= done) {
        done = rows >= FEW_TILE ? FEW_TILE : rows >= 2 ? 2 : 1;
        if (FEW_TILE > 2 && done == FEW_TILE) add_tile(&t, FEW_TILE, GROUP_VECS, first, n, shape);
        else if (done == 2) add_tile(&t, 2, GROUP_VECS, first, n, shape);
        else add_tile(&t, 1, GROUP_VECS, first, n, shape);
        t.x.codes += done * t.x.stride;
        t.sums += done * TILE_COLS;
    }
}

/* Computes at most FEW_ROWS rows. */
INLINE void dot_few(const struct product_block *b, const struct int8_weight *w,
                    struct code_shape shape) {
    float sums[(FEW_ROWS + 1) * TILE_COLS];
    struct scales scales;
    uint8_t table[16];
    struct tile t = {.x = input_of(b->x, b->x_stride, w->n_blocks, shape.span),
                     .block_bytes = w->block_bytes,
                     .scales = &scales,
                     .table = table,
                     .has_min = w->layout.has_min,
                     .sums = sums};
    table_bytes(table, w, shape);
    for (uint32_t col = 0; col < b->n_cols; col += INT8_GROUP) {
        const uint8_t *section = group_at(w, b->col + col);
        memset(sums, 0, sizeof(sums));
        for (uint32_t k = 0; k < w->n_blocks; k += INT8_SECTION) {
            const struct int8_section *at = int8_section_of(w, k);
            const uint32_t n = min_u32(INT8_SECTION, w->n_blocks - k);
            convert_section(&scales, w, at, section, n * (INT8_BLOCK / shape.span), shape.span);
            for (uint32_t v = 0; v < GROUP_VECS; v++)
                t.codes[v] = section + at->codes + v * LANES * 4;
            add_few_rows(t, b->n_rows, k, n, shape);
            section += at->bytes;
        }
        store_rows(b, sums, 0, b->n_rows, col, min_u32(INT8_GROUP, b->n_cols - col));
    }
}

/* Codes of a section as bytes, each register's outputs by themselves: [VECS][blocks][steps]. */
struct wide_codes {
    uint8_t bytes[VECS][INT8_SECTION * INT8_STEPS * INT8_STEP] __attribute__((aligned(64)));
};

/* Widens those of a register's outputs. */
INLINE void widen(uint8_t *out, const uint8_t *codes, uint32_t n, size_t block_bytes,
                  struct code_shape shape, const uint8_t *table) {
    for (uint32_t b = 0; b < n; b++, codes += block_bytes) {
#pragma GCC unroll UNROLLED
        for (uint32_t j = 0; j < INT8_STEPS; j++, out += INT8_STEP) {
            const whole step = codes_of_step(codes, j, shape, table);
            memcpy(out, &step, sizeof(step));
        }
    }
}

/* Multiplies rows of x with a section of columns, TILE_ROWS at a time. */
static __attribute__((noinline)) void add_section(struct tile t, uint32_t n_rows, uint32_t first,
                                                  uint32_t n, struct code_shape shape) {
    for (uint32_t rows; n_rows > 0; n_rows -= rows) {
        rows = min_u32(n_rows, TILE_ROWS);
        struct code_shape wide = {.bits = 8, .is_wide = true};
        /* The copies of the loop for each span and sign are chosen here, outside of it. */
        if (shape.span == 16) wide.span = 16, add_rows(&t, rows, first, n, wide);
        else if (shape.is_signed)
            wide.span = 32, wide.is_signed = SIGNED_BYTES, add_rows(&t, rows, first, n, wide);
        else wide.span = 32, add_rows(&t, rows, first, n, wide);
        t.x.codes += rows * t.x.stride;
        t.sums += rows * TILE_COLS;
    }
}

/* Converts and widens a section of the tile's groups. */
INLINE void open_section(struct scales *scales, struct wide_codes *wide,
                         const struct int8_weight *w, const uint8_t *const *sections,
                         const struct int8_section *at, uint32_t n, struct code_shape shape,
                         const uint8_t *table) {
    for (uint32_t g = 0; g < GROUPS; g++)
        convert_section(&scales[g], w, at, sections[g], n * (INT8_BLOCK / shape.span), shape.span);
    for (uint32_t v = 0; v < VECS; v++)
        widen(wide->bytes[v],
              sections[v * LANES / INT8_GROUP] + at->codes + v * LANES % INT8_GROUP * 4, n,
              w->block_bytes, shape, table);
}

/* Computes the rows of a block, up to MANY_ROWS at a time. */
INLINE void dot_many(const struct product_block *b, const struct int8_weight *w,
                     struct code_shape shape) {
    float sums[MANY_ROWS * TILE_COLS];
    struct scales scales[GROUPS];
    struct wide_codes wide;
    uint8_t table[16];
    struct tile t = {.block_bytes = INT8_STEPS * INT8_STEP,
                     .scales = scales,
                     .has_min = w->layout.has_min,
                     .sums = sums};
    table_bytes(table, w, shape);
    for (uint32_t v = 0; v < VECS; v++) t.codes[v] = wide.bytes[v];
    for (uint32_t col = 0; col < b->n_cols; col += TILE_COLS) {
        for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
            const uint8_t *sections[GROUPS];
            for (uint32_t g = 0; g < GROUPS; g++)
                sections[g] = group_at(w, b->col + col + g * INT8_GROUP);
            n_rows = min_u32(MANY_ROWS, b->n_rows - row);
            t.x = input_of((const char *)b->x + row * b->x_stride, b->x_stride, w->n_blocks,
                           shape.span);
            memset(sums, 0, sizeof(float) * n_rows * TILE_COLS);
            for (uint32_t k = 0; k < w->n_blocks; k += INT8_SECTION) {
                const struct int8_section *at = int8_section_of(w, k);
                const uint32_t n = min_u32(INT8_SECTION, w->n_blocks - k);
                open_section(scales, &wide, w, sections, at, n, shape, table);
                add_section(t, n_rows, k, n, shape);
                for (uint32_t g = 0; g < GROUPS; g++) sections[g] += at->bytes;
            }
            store_rows(b, sums, row, n_rows, col, min_u32(TILE_COLS, b->n_cols - col));
        }
    }
}

INLINE void dot_as(const struct product_block *b, struct code_shape shape) {
    const struct int8_weight w = int8_weight_of(b->w);
    assert(b->col % INT8_GROUP == 0);
    if (FEW_ROWS > 0 && b->n_rows <= FEW_ROWS) dot_few(b, &w, shape);
    else dot_many(b, &w, shape);
}

/* Twelve independent chains hide the latency of the instruction. */
enum { CHAINS = 12 };

static float burst(uint64_t rounds) {
    whole sums[CHAINS], all = same_in_all(0);
    const whole codes = same_in_all(0x01010101);
    for (int i = 0; i < CHAINS; i++) sums[i] = same_in_all(i);
    for (uint64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = add_products(sums[i], codes, codes, false);
    }
    for (int i = 0; i < CHAINS; i++) all = (whole)((veci)all + (veci)sums[i]);
    return vec_sum(floats_of(all));
}

/* Returns a kind's shape, as a constant. */
INLINE struct code_shape shape_of(uint32_t bits, uint32_t span, uint8_t offset, bool has_table) {
    const bool is_signed = SIGNED_BYTES && (has_table || bits == 8);
    return (struct code_shape){.bits = bits,
                               .span = span,
                               .offset = is_signed   ? 0
                                         : has_table ? 128
                                                     : offset,
                               .has_table = has_table,
                               .is_signed = is_signed};
}

/* Defines the functions of a kind: its number of bits, span and offset as constants. */
#define KIND(name, bits, span, offset, has_table)                                                  \
    static void pack_##name(void *out, size_t stride, const float *x, uint32_t n_rows,             \
                            uint32_t n_in) {                                                       \
        pack_rows(out, stride, x, n_rows, n_in, shape_of(bits, span, offset, has_table));          \
    }                                                                                              \
    static void dot_##name(const struct product_block *b) {                                        \
        dot_as(b, shape_of(bits, span, offset, has_table));                                        \
    }

KIND(u4_32, 4, 32, 0, false)
KIND(s4_32, 4, 32, 8, false)
KIND(t4_32, 4, 32, 0, true)
KIND(u5_32, 5, 32, 0, false)
KIND(s5_32, 5, 32, 16, false)
KIND(s8_32, 8, 32, 128, false)
KIND(s6_16, 6, 16, 32, false)
KIND(s3_16, 4, 16, 4, false)
KIND(u2_16, 4, 16, 0, false)

#define ROW(kind)                                                                                  \
    {                                                                                              \
        .name = "int8", .pack = pack_##kind, .dot = dot_##kind, .burst = burst,                    \
        .burst_size = CHAINS * LANES * 4, .packed_size = 1, .block_extra = BLOCK_EXTRA,            \
        .row_unit = TILE_ROWS, .col_unit = 32, .block_cols = 64, .block_bytes = 1 << 20            \
    }

const struct product_kernels INT8_NAME[INT8_KINDS] = {
    [INT8_U4_32] = ROW(u4_32), [INT8_S4_32] = ROW(s4_32), [INT8_T4_32] = ROW(t4_32),
    [INT8_U5_32] = ROW(u5_32), [INT8_S5_32] = ROW(s5_32), [INT8_S8_32] = ROW(s8_32),
    [INT8_S6_16] = ROW(s6_16), [INT8_S3_16] = ROW(s3_16), [INT8_U2_16] = ROW(u2_16)};
