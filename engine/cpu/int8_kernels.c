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
 * Few rows of x multiply codes as they lie in memory.  For more rows, the codes of a chunk of
 * columns are widened to bytes first.  These stay in the first cache while the rows pass by. */
#include "engine/cpu/int8_i8mm.h"
#include "engine/cpu/int8_tile.h"

/* ---- a tile of outputs ---- */

/* Adds the products of a span, the steps of `half` of a block, to its sums. */
INLINE void sum_span(whole (*sums)[VECS], const struct tile *t, uint32_t rows, uint32_t b,
                     uint32_t half, uint32_t first, struct code_shape shape) {
    const uint32_t steps = shape.span / 4;
#pragma GCC unroll UNROLLED
    for (uint32_t j = half * steps; j < (half + 1) * steps; j++) {
        whole codes[VECS];
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++)
            codes[v] = kept(codes_of_step(t->codes[v] + b * t->block_bytes, j, shape, t->table));
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const whole x = x_of_step(&t->x, r, first + b, j);
#pragma GCC unroll UNROLLED
            for (uint32_t v = 0; v < VECS; v++)
                sums[r][v] = add_products(sums[r][v], codes[v], x, shape.is_signed);
        }
    }
}

/* Does the same, for two rows at a time where an instruction does. */
INLINE void sum_rows(whole (*sums)[VECS], const struct tile *t, uint32_t rows, uint32_t b,
                     uint32_t half, uint32_t first, struct code_shape shape) {
#if defined(INT8_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
    if (rows % 2 == 0) {
        sum_pairs(sums, t, rows, b, half, first, shape);
        return;
    }
#endif
    sum_span(sums, t, rows, b, half, first, shape);
}

/* Adds a span of rows to the outputs. */
INLINE void add_span(vecf (*acc)[VECS], const struct tile *t, uint32_t rows, uint32_t b,
                     uint32_t half, uint32_t first, struct code_shape shape) {
    const uint32_t per_block = INT8_BLOCK / shape.span, span = b * per_block + half;
    whole sums[TILE_ROWS][VECS];
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
        const whole start = same_in_all(start_at(&t->x, r, first * per_block + span));
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++) sums[r][v] = start;
    }
    sum_rows(sums, t, rows, b, half, first, shape);
#pragma GCC unroll UNROLLED
    for (uint32_t v = 0; v < VECS; v++) {
        const vecf scale = vec_load(t->scales->scale + span * TILE_COLS + v * LANES);
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const vecf d = vec_set(float_at(&t->x, t->x.d, r, first + b));
            acc[r][v] = multiply_add(floats_of(sums[r][v]), scale * d, acc[r][v]);
        }
        if (!t->has_min) continue;
        const vecf min = vec_load(t->scales->min + span * TILE_COLS + v * LANES);
#pragma GCC unroll UNROLLED
        for (uint32_t r = 0; r < rows; r++) {
            const vecf sum = vec_set(float_at(&t->x, t->x.sums, r, first * per_block + span));
            acc[r][v] = multiply_add(min, sum, acc[r][v]);
        }
    }
}

/* Adds the products of n blocks of rows of x, from block `first` on. */
INLINE void add_tile(const struct tile *t, uint32_t rows, uint32_t first, uint32_t n,
                     struct code_shape shape) {
    vecf acc[TILE_ROWS][VECS];
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++)
            acc[r][v] = vec_load(t->sums + r * TILE_COLS + v * LANES);
    }
    for (uint32_t b = 0; b < n; b++) {
#pragma GCC unroll UNROLLED
        for (uint32_t half = 0; half < INT8_BLOCK / shape.span; half++)
            add_span(acc, t, rows, b, half, first, shape);
    }
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++)
            vec_store(t->sums + r * TILE_COLS + v * LANES, acc[r][v]);
    }
}

/* ---- a block of y ---- */

/* Writes sums of rows from `row` on to y. */
INLINE void store_rows(const struct product_block *b, const struct columns *cols, const float *sums,
                       uint32_t row, uint32_t n_rows) {
    for (uint32_t r = 0; r < n_rows; r++) {
        float *y = b->y + (row + r) * b->y_stride + cols->first;
        for (uint32_t c = 0; c < cols->n; c++) {
            const float sum = sums[r * TILE_COLS + c] + (b->bias ? b->bias[cols->first + c] : 0);
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
    if (rows == 1) add_tile(t, 1, first, n, shape);
    if (TILE_ROWS >= 2 && rows == 2) add_tile(t, 2, first, n, shape);
    if (TILE_ROWS >= 3 && rows == 3) add_tile(t, 3, first, n, shape);
    if (TILE_ROWS >= 4 && rows == 4) add_tile(t, 4, first, n, shape);
    if (TILE_ROWS >= 5 && rows == 5) add_tile(t, 5, first, n, shape);
    if (TILE_ROWS >= 6 && rows == 6) add_tile(t, 6, first, n, shape);
}

/* Adds those of more rows, two at a time: with more, there were more copies of the loop for each
 * kind. */
INLINE void add_few_rows(struct tile t, uint32_t rows, uint32_t first, uint32_t n,
                         struct code_shape shape) {
    for (; FEW_ROWS > 0 && rows >= 2; rows -= 2) {
        add_tile(&t, 2, first, n, shape);
        t.x.codes += 2 * t.x.stride;
        t.sums += 2 * TILE_COLS;
    }
    if (FEW_ROWS > 0 && rows == 1) add_tile(&t, 1, first, n, shape);
}

/* Asks for the first scales of the tile of outputs from `first` on, if there is one.  Streams of
 * codes begin anew there, and the processor does not foresee it. */
INLINE void prefetch_scales(const struct product_block *b, const struct int8_weight *w,
                            uint32_t first) {
    enum { MOST = 1024, LINE = 64 };
    if (first >= b->n_cols) return;
    const struct columns cols = columns_at(b, w, first);
    for (uint32_t v = 0; v < VECS; v++)
        for (uint32_t i = 0; i < MOST && i < w->codes; i += LINE)
            __builtin_prefetch(cols.groups[v * LANES / INT8_GROUP] + i);
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
    for (uint32_t first = 0; first < b->n_cols; first += TILE_COLS) {
        const struct columns cols = columns_at(b, w, first);
        prefetch_scales(b, w, first + TILE_COLS);
        memset(sums, 0, sizeof(sums));
        for (uint32_t k = 0; k < w->n_blocks; k += CHUNK) {
            const uint32_t n = min_u32(CHUNK, w->n_blocks - k);
            convert_chunk(&scales, &cols, k, n, shape.span);
            for (uint32_t v = 0; v < VECS; v++) t.codes[v] = codes_of(&cols, v, k);
            add_few_rows(t, b->n_rows, k, n, shape);
        }
        store_rows(b, &cols, sums, 0, b->n_rows);
    }
}

/* Codes of a chunk as bytes, each register's outputs by themselves: [VECS][blocks][steps]. */
struct wide_codes {
    uint8_t bytes[VECS][CHUNK * INT8_STEPS * INT8_STEP] __attribute__((aligned(64)));
};

INLINE void widen(struct wide_codes *out, const struct columns *cols, uint32_t first, uint32_t n,
                  struct code_shape shape, const uint8_t *table) {
    for (uint32_t v = 0; v < VECS; v++) {
        const uint8_t *codes = codes_of(cols, v, first);
        uint8_t *to = out->bytes[v];
        for (uint32_t b = 0; b < n; b++, codes += cols->w->block_bytes) {
#pragma GCC unroll UNROLLED
            for (uint32_t j = 0; j < INT8_STEPS; j++, to += INT8_STEP) {
                const whole step = codes_of_step(codes, j, shape, table);
                memcpy(to, &step, sizeof(step));
            }
        }
    }
}

/* Multiplies rows of x with a chunk of columns, TILE_ROWS at a time. */
static __attribute__((noinline)) void add_chunk(struct tile t, uint32_t n_rows, uint32_t first,
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

/* Computes the rows of a block, up to MANY_ROWS at a time. */
INLINE void dot_many(const struct product_block *b, const struct int8_weight *w,
                     struct code_shape shape) {
    float sums[MANY_ROWS * TILE_COLS];
    struct scales scales;
    struct wide_codes wide;
    uint8_t table[16];
    struct tile t = {.block_bytes = INT8_STEPS * INT8_STEP,
                     .scales = &scales,
                     .has_min = w->layout.has_min,
                     .sums = sums};
    table_bytes(table, w, shape);
    for (uint32_t v = 0; v < VECS; v++) t.codes[v] = wide.bytes[v];
    for (uint32_t first = 0; first < b->n_cols; first += TILE_COLS) {
        const struct columns cols = columns_at(b, w, first);
        for (uint32_t row = 0, n_rows; row < b->n_rows; row += n_rows) {
            n_rows = min_u32(MANY_ROWS, b->n_rows - row);
            t.x = input_of((const char *)b->x + row * b->x_stride, b->x_stride, w->n_blocks,
                           shape.span);
            memset(sums, 0, sizeof(float) * n_rows * TILE_COLS);
            for (uint32_t k = 0; k < w->n_blocks; k += CHUNK) {
                const uint32_t n = min_u32(CHUNK, w->n_blocks - k);
                convert_chunk(&scales, &cols, k, n, shape.span);
                widen(&wide, &cols, k, n, shape, table);
                add_chunk(t, n_rows, k, n, shape);
            }
            store_rows(b, &cols, sums, row, n_rows);
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
