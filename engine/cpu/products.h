/* products.h - products of rows with weights, packed once and dealt to the workers.  linear.c and
 * experts.c say which rows and which weights.
 *
 *            weight rows (output features)
 *            | 48 | 48 | 48 | ...
 *   rows   --+----+----+----+--     A task is one block of columns for one block of rows, whose
 *   of x   --+----+----+----+--     share of x stays in a worker's second-level cache.
 *
 * Weights that were repacked when they were loaded have kernels of their own (int8_kernels.h).
 * Those of a format that no kernel reads are converted to f32, a block of columns at a time.  So
 * are those of E4M3 for many rows; for few they are read as they are, with the same bits.
 *
 * Every output is one dot product over all of n_in in a fixed order.  So a row's result never
 * depends on the other rows of the call.
 *
 * Thread: engine.  Memory: the backend's buffers, which grow to the largest call. */
#ifndef ENGINE_CPU_PRODUCTS_H
#define ENGINE_CPU_PRODUCTS_H

#include "engine/cpu/kernels.h"
#include "engine/device/weight.h"

struct cpu_backend;
struct error;

/* Some of the rows, multiplied with a matrix. */
struct product_part {
    struct weight w;    /* [n_out, n_in] */
    struct weight bias; /* [n_out]; without data: none */
    uint32_t first_row; /* of the input; a multiple of PACK_ROWS */
    uint32_t n_rows;
    float *y; /* row first_row + i at y + i * y_stride */
    size_t y_stride;
};

/* Rows that are multiplied.  There may be fewer of them than n_rows where parts leave gaps. */
struct product_input {
    uint32_t n_rows, n_in;
    /* Returns the rows from `first` on, a multiple of PACK_ROWS, one behind the other: [*n, n_in]
     * with *n at most PACK_ROWS.  It may make them in memory [PACK_ROWS, n_in]. */
    const float *(*get)(void *ctx, uint32_t first, uint32_t *n, float *memory);
    void *ctx;
};

/* Computes y = x W^T (+ b) of all parts, or y += that.  Parts with the same rows follow one
 * another. */
int products_run(struct cpu_backend *cpu, const struct product_input *input,
                 const struct product_part *parts, uint32_t n_parts, bool accumulate,
                 struct error *err);

#endif
