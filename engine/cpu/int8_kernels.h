/* int8_kernels.h - products of weights that were repacked (int8_weight.h), by whole numbers.
 *
 * A row of x is rounded to 8 bits, in blocks of 32: x = d * code.  There d is the block's largest
 * magnitude / 127.  A span of weights, 16 or 32 columns, has one scale, and an output is
 *
 *   y = sum over spans of  (scale * d) * (sum of codes * values) + min * (d * sum of codes)
 *
 * in f32, in the order of the columns; each addition is fused with its multiplication.  The inner
 * sums are whole numbers.  So all instruction sets and all numbers of rows give the same bits.
 *
 * int8_kernels.c is compiled once for each instruction set. */
#ifndef ENGINE_CPU_INT8_KERNELS_H
#define ENGINE_CPU_INT8_KERNELS_H

#include <stdbool.h>

#include "engine/cpu/int8_weight.h"
#include "engine/cpu/kernels.h"

/* A table has a row for each kind. */
extern const struct product_kernels int8_products_plain[INT8_KINDS], int8_products_avx2[INT8_KINDS],
    int8_products_avxvnni[INT8_KINDS], int8_products_avx512vnni[INT8_KINDS],
    int8_products_neon[INT8_KINDS], int8_products_dotprod[INT8_KINDS],
    int8_products_i8mm[INT8_KINDS];

#endif
