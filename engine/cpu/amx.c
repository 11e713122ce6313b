/* amx.c - see amx.h.
 *
 *                      16 rows of x
 *                   B  [pair of k][row][2]         A tile product adds A B to C: A is weights as
 *              A +-----------------------+         they are stored, B is packed x, and C holds the
 *   16 outputs,  | C [output][row], f32 | outputs of a row in a column, which are transposed
 *   32 of k each +-----------------------+         when they are stored.
 *
 * Every output is summed in the order of k, 32 at a time, whatever else is multiplied beside it. */
#define _GNU_SOURCE /* syscall */
#include "engine/cpu/amx.h"

#include <immintrin.h>

#include "engine/cpu/kernels.h"
#include "engine/cpu/vec.h"

/* DEPTH elements of k are a row of A, and as many pairs as B has rows. */
enum { TILE = PACK_ROWS, DEPTH = 32 };
/* Rows and outputs that two tiles of B and of A hold; see multiply_two(). */
enum { ROW_UNIT = 2 * TILE, COL_UNIT = 2 * TILE, BLOCK_COLS = 3 * COL_UNIT };

/* The operand of LDTILECFG: the shapes of the eight tiles. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

/* Up to 16 outputs' weights, and a copy of DEPTH columns of them, padded with zeros, where fewer
 * rows or columns are left. */
struct weight_tile {
    const uint16_t *w;
    uint32_t n_outputs;
    uint16_t copy[TILE][DEPTH];
};

/* Keeps what has been written there: the compiler does not see what tile instructions read. */
static inline void before_tiles(const void *written) {
    __asm__ volatile("" ::"r"(written) : "memory");
}

/* Sets the widths of the tiles: `first` and `second` rows of x; without a second group all are
 * `first` wide.  The functions that multiply say which tiles these are. */
static void set_shapes(uint32_t first, uint32_t second) {
    const uint32_t last = second ? second : first,
                   widths[] = {first, last, first, last, TILE, TILE, first, last};
    struct tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.n_rows[i] = TILE;
        shapes.row_bytes[i] = (uint16_t)(widths[i] * sizeof(float));
    }
    before_tiles(&shapes);
    _tile_loadconfig(&shapes);
}

static void clear_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static const uint16_t *copy_weights(struct weight_tile *t, uint32_t n_in, uint32_t k) {
    const uint32_t n = n_in - k < DEPTH ? n_in - k : DEPTH;
    memset(t->copy, 0, sizeof(t->copy));
    for (uint32_t r = 0; r < t->n_outputs; r++)
        memcpy(t->copy[r], t->w + (size_t)r * n_in + k, n * sizeof(uint16_t));
    before_tiles(t->copy);
    return &t->copy[0][0];
}

#define LOAD_WEIGHTS(register, t, n_in, k)                                                         \
    do {                                                                                           \
        if ((t)->n_outputs == TILE && (k) + DEPTH <= (n_in))                                       \
            _tile_loadd(register, (t)->w + (k), (n_in) * sizeof(uint16_t));                        \
        else _tile_loadd(register, copy_weights(t, n_in, k), sizeof((t)->copy[0]));                \
    } while (0)

/* Stores a tile of C: the outputs from `col` on of the rows from `row` on. */
static void store_tile(const struct product_block *b, const float (*sums)[TILE], uint32_t row,
                       uint32_t n_rows, uint32_t col, uint32_t n_outputs) {
    const __mmask16 mask = (__mmask16)((1u << n_outputs) - 1);
    const __m512 bias = b->bias ? _mm512_maskz_loadu_ps(mask, b->bias + col) : _mm512_setzero_ps();
    vecf of_row[TILE];
    for (uint32_t i = 0; i < TILE; i++) of_row[i] = vec_load(sums[i]);
    vec_transpose(of_row);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *y = b->y + (row + r) * b->y_stride + col;
        __m512 sum = (__m512)of_row[r] + bias;
        if (b->accumulate) sum = _mm512_maskz_loadu_ps(mask, y) + sum;
        _mm512_mask_storeu_ps(y, mask, sum);
    }
}

#define STORE_TILE(register, b, row, n_rows, col, t)                                               \
    do {                                                                                           \
        float sums[TILE][TILE];                                                                    \
        _tile_stored(register, sums, sizeof(sums[0]));                                             \
        store_tile(b, (const float(*)[TILE])sums, row, n_rows, col, (t)->n_outputs);               \
    } while (0)

/* Prepares the two tiles of the outputs from `col` on; returns how many of them there are. */
static uint32_t weight_tiles(struct weight_tile *tiles, const struct product_block *b,
                             uint32_t col) {
    uint32_t n = 0;
    for (; n < 2 && col < b->n_cols; n++, col += TILE) {
        tiles[n].w = weight_row_at(b->w, b->col + col);
        tiles[n].n_outputs = b->n_cols - col < TILE ? b->n_cols - col : TILE;
    }
    return n;
}

/* Returns a group's packed rows. */
static const uint16_t *group_of(const struct product_block *b, uint32_t row) {
    return (const uint16_t *)b->x + row * b->x_stride;
}

/* Multiplies two groups of rows, 16 and n_second, with two tiles of weights at a time.
 * Tiles: 0 to 3 sums [weights][group], 4 and 5 weights, 6 and 7 rows. */
static void multiply_two(const struct product_block *b, uint32_t row, uint32_t n_second) {
    const uint16_t *first = group_of(b, row), *second = group_of(b, row + TILE);
    struct weight_tile t[2];
    for (uint32_t col = 0; col < b->n_cols; col += 2 * TILE) {
        const bool two = weight_tiles(t, b, col) == 2;
        clear_sums();
        for (uint32_t k = 0; k < b->w->cols; k += DEPTH) {
            LOAD_WEIGHTS(4, &t[0], b->w->cols, k);
            _tile_loadd(6, first + (size_t)k * TILE, TILE * sizeof(float));
            _tile_loadd(7, second + (size_t)k * n_second, n_second * sizeof(float));
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (!two) continue;
            LOAD_WEIGHTS(5, &t[1], b->w->cols, k);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        STORE_TILE(0, b, row, TILE, col, &t[0]);
        STORE_TILE(1, b, row + TILE, n_second, col, &t[0]);
        if (!two) continue;
        STORE_TILE(2, b, row, TILE, col + TILE, &t[1]);
        STORE_TILE(3, b, row + TILE, n_second, col + TILE, &t[1]);
    }
}

/* Multiplies one group of n rows, with two tiles of weights at a time: more would be more streams
 * of memory than the processor reads ahead.  Tiles: 0 and 1 sums, 4 and 5 weights, 6 rows. */
static void multiply_one(const struct product_block *b, uint32_t row, uint32_t n) {
    const uint16_t *x = group_of(b, row);
    struct weight_tile t[2];
    for (uint32_t col = 0; col < b->n_cols; col += 2 * TILE) {
        const bool two = weight_tiles(t, b, col) == 2;
        clear_sums();
        for (uint32_t k = 0; k < b->w->cols; k += DEPTH) {
            LOAD_WEIGHTS(4, &t[0], b->w->cols, k);
            _tile_loadd(6, x + (size_t)k * n, n * sizeof(float));
            _tile_dpbf16ps(0, 4, 6);
            if (!two) continue;
            LOAD_WEIGHTS(5, &t[1], b->w->cols, k);
            _tile_dpbf16ps(1, 5, 6);
        }
        STORE_TILE(0, b, row, n, col, &t[0]);
        if (two) STORE_TILE(1, b, row, n, col + TILE, &t[1]);
    }
}

static void amx_dot(const struct product_block *b) {
    uint32_t row = 0, shape = UINT32_MAX;
    while (row < b->n_rows) {
        const uint32_t n_left = b->n_rows - row, first = n_left < TILE ? n_left : TILE,
                       second = n_left - first < TILE ? n_left - first : TILE;
        if (shape != first + second) set_shapes(first, second);
        shape = first + second;
        if (second) multiply_two(b, row, second);
        else multiply_one(b, row, first);
        row += first + second;
    }
    _tile_release();
}

/* Loads 32 elements of x as 16 pairs of bf16; those from n_in on are 0. */
static vecf load_pairs(const float *x, uint32_t k, uint32_t n_in) {
    const uint32_t n = n_in - k < DEPTH ? n_in - k : DEPTH;
    const uint32_t mask = (uint32_t)((1ull << n) - 1);
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, x + k),
                 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> TILE), x + k + TILE);
    return (vecf)_mm512_cvtne2ps_pbh(high, low);
}

/* Writes one group: pairs [k / 2][row]. */
static void amx_pack(void *out, size_t stride, const float *x, uint32_t n_rows, uint32_t n_in) {
    (void)stride;
    uint32_t *to = out;
    const __mmask16 mask = (__mmask16)((1u << n_rows) - 1);
    for (uint32_t k = 0; k < n_in; k += DEPTH) {
        vecf pairs[TILE];
        for (uint32_t r = 0; r < TILE; r++)
            pairs[r] = r < n_rows ? load_pairs(x + (size_t)r * n_in, k, n_in) : (vecf){0};
        vec_transpose(pairs);
        for (uint32_t i = 0; i < TILE; i++, to += n_rows)
            _mm512_mask_storeu_epi32(to, mask, (__m512i)pairs[i]);
    }
}

/* Multiplies as multiply_two() does, without its loads. */
static float amx_burst(uint64_t rounds) {
    uint16_t ones[TILE][DEPTH];
    float sums[TILE][TILE];
    for (uint32_t i = 0; i < TILE * DEPTH; i++) ones[i / DEPTH][i % DEPTH] = f32_to_bf16(1);
    set_shapes(TILE, TILE);
    before_tiles(ones);
    _tile_loadd(4, ones, sizeof(ones[0]));
    _tile_loadd(5, ones, sizeof(ones[0]));
    _tile_loadd(6, ones, sizeof(ones[0]));
    _tile_loadd(7, ones, sizeof(ones[0]));
    clear_sums();
    for (uint64_t round = 0; round < rounds; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, sizeof(sums[0]));
    _tile_release();
    return sums[0][0];
}

const struct product_kernels amx_products = {
    .name = "amx",
    .format = {.element = ELEMENT_BF16},
    .pack = amx_pack,
    .dot = amx_dot,
    .burst = amx_burst,
    .burst_size = 4 * TILE * TILE * DEPTH,
    .packed_size = sizeof(uint16_t),
    .row_unit = ROW_UNIT,
    .col_unit = COL_UNIT,
    .block_cols = BLOCK_COLS,
    .block_bytes = 2 << 20,
};
