/* int8_amx.h - a chunk of columns by the tile registers of AMX: 16 rows of x with 16 outputs.
 *
 *                  16 outputs
 *                B [step][output][4]       A tile product adds A B to C.  B is a span of codes as
 *            A +--------------------+      they were widened, less their offset; A is codes of x,
 *   16 rows,   | C [row][output]    |      as they were packed.  C has one span only: the sums in
 *   a span each+--------------------+      f32 are in vector registers.
 *
 * Included by int8_kernels.c alone. */
#ifndef ENGINE_CPU_INT8_AMX_H
#define ENGINE_CPU_INT8_AMX_H

#include "engine/cpu/int8_tile.h"

enum { AMX_ROWS = 16, AMX_SPANS = 4 };

/* The operand of LDTILECFG: the shapes of the eight tiles. */
struct amx_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

#if defined(__AMX_INT8__)

/* Keeps what has been written there: the compiler does not see what tile instructions read. */
INLINE void before_tiles(const void *written) {
    __asm__ volatile("" ::"r"(written) : "memory");
}

/* Sets the shapes for n rows of x.  Tiles: 0 to 3 C, 4 and 6 A, 5 and 7 B. */
INLINE void amx_set_shapes(uint32_t n, uint32_t span) {
    struct amx_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const bool is_x = i == 4 || i == 6, is_codes = i == 5 || i == 7;
        shapes.n_rows[i] = (uint8_t)(is_codes ? span / 4 : n);
        shapes.row_bytes[i] = (uint16_t)(is_x ? span : INT8_STEP);
    }
    before_tiles(&shapes);
    _tile_loadconfig(&shapes);
}

/* Sums of AMX_SPANS spans: [span][row][output]. */
struct amx_sums {
    int32_t of[AMX_SPANS][AMX_ROWS][INT8_GROUP] __attribute__((aligned(64)));
};

#define AMX_SPAN(tile, a, b, out, x, stride, codes)                                                \
    do {                                                                                           \
        _tile_zero(tile);                                                                          \
        _tile_loadd(a, x, stride);                                                                 \
        _tile_loadd(b, codes, INT8_STEP);                                                          \
        _tile_dpbssd(tile, a, b);                                                                  \
        _tile_stored(tile, (out)->of[tile], INT8_STEP);                                            \
    } while (0)

/* Computes sums of up to AMX_SPANS spans. */
INLINE void amx_multiply(struct amx_sums *out, const int8_t *x, size_t stride, const uint8_t *codes,
                         uint32_t n, uint32_t span) {
    const uint32_t bytes = span * INT8_GROUP; /* of a span's codes */
    AMX_SPAN(0, 4, 5, out, x, stride, codes);
    if (n > 1) AMX_SPAN(1, 6, 7, out, x + span, stride, codes + bytes);
    if (n > 2) AMX_SPAN(2, 4, 5, out, x + 2 * span, stride, codes + 2 * bytes);
    if (n > 3) AMX_SPAN(3, 6, 7, out, x + 3 * span, stride, codes + 3 * bytes);
    before_tiles(out);
}

/* Returns a number of row r of x.  quarters: where it is of rows 0, 4, 8 and 12, so that few
 * registers hold the addresses of 16 rows. */
INLINE vecf amx_number(const char *const quarters[4], size_t stride, uint32_t r) {
    float value;
    memcpy(&value, quarters[r / 4] + r % 4 * stride, sizeof(value));
    return vec_set(value);
}

INLINE void amx_find(const char *quarters[4], const struct input *x, size_t numbers, uint32_t i) {
    for (uint32_t q = 0; q < 4; q++)
        quarters[q] = (const char *)x->codes + numbers + i * sizeof(float) + 4 * q * x->stride;
}

/* Adds sums of n spans to those in f32 of the rows.  span: the first one's number in the chunk, and
 * at: in the row. */
INLINE void amx_add(vecf acc[AMX_ROWS], const struct tile *t, const struct amx_sums *sums,
                    uint32_t rows, uint32_t n, uint32_t span, uint32_t at, uint32_t per_block,
                    uint32_t col) {
    const char *quarters[4];
    for (uint32_t s = 0; s < n; s++) {
        const vecf scale = vec_load(t->scales->scale + (span + s) * TILE_COLS + col);
        amx_find(quarters, &t->x, t->x.d, (at + s) / per_block);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < rows; r++) {
            const whole sum = _mm512_load_si512(sums->of[s][r]);
            acc[r] =
                multiply_add(floats_of(sum), scale * amx_number(quarters, t->x.stride, r), acc[r]);
        }
        if (!t->has_min) continue;
        const vecf min = vec_load(t->scales->min + (span + s) * TILE_COLS + col);
        amx_find(quarters, &t->x, t->x.sums, at + s);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < rows; r++)
            acc[r] = multiply_add(min, amx_number(quarters, t->x.stride, r), acc[r]);
    }
}

/* Multiplies up to 16 rows of x with n blocks of a group.  While sums of spans are added, the next
 * spans are multiplied: what a tile stores cannot be loaded at once. */
INLINE void amx_add_rows(const struct tile *t, uint32_t rows, uint32_t first, uint32_t n,
                         uint32_t span, uint32_t v) {
    const uint32_t per_block = INT8_BLOCK / span, n_spans = n * per_block;
    const int8_t *x = t->x.codes + first * INT8_BLOCK;
    struct amx_sums sums[2];
    vecf acc[AMX_ROWS] = {0};
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; r++) acc[r] = vec_load(t->sums + r * TILE_COLS + v * LANES);
    amx_multiply(&sums[0], x, t->x.stride, t->codes[v], min_u32(AMX_SPANS, n_spans), span);
    for (uint32_t s = 0, next; s < n_spans; s = next) {
        next = s + min_u32(AMX_SPANS, n_spans - s);
        if (next < n_spans)
            amx_multiply(&sums[next / AMX_SPANS % 2], x + next * span, t->x.stride,
                         t->codes[v] + (size_t)next * span * INT8_GROUP,
                         min_u32(AMX_SPANS, n_spans - next), span);
        amx_add(acc, t, &sums[s / AMX_SPANS % 2], rows, next - s, s, first * per_block + s,
                per_block, v * LANES);
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; r++) vec_store(t->sums + r * TILE_COLS + v * LANES, acc[r]);
}

/* Multiplies rows of x with a chunk of columns, 16 at a time.  With 16 rows, their sums are in
 * registers. */
static __attribute__((noinline)) void add_chunk(struct tile t, uint32_t n_rows, uint32_t first,
                                                uint32_t n, struct code_shape shape) {
    uint32_t set = 0;
    for (uint32_t rows; n_rows > 0; n_rows -= rows) {
        rows = min_u32(n_rows, AMX_ROWS);
        if (rows != set) amx_set_shapes(set = rows, shape.span);
        for (uint32_t v = 0; v < VECS; v++) {
            if (rows < AMX_ROWS) amx_add_rows(&t, rows, first, n, shape.span, v);
            else if (shape.span == 16) amx_add_rows(&t, AMX_ROWS, first, n, 16, v);
            else amx_add_rows(&t, AMX_ROWS, first, n, 32, v);
        }
        t.x.codes += rows * t.x.stride;
        t.sums += rows * TILE_COLS;
    }
    _tile_release();
}

#endif
#endif
