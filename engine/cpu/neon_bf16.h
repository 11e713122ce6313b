/* neon_bf16.h - products of bf16 by the matrix instruction of NEON, for processors that have it.
 *
 * Source: Arm Architecture Reference Manual for A-profile, BFMMLA (vector). */
#ifndef ENGINE_CPU_NEON_BF16_H
#define ENGINE_CPU_NEON_BF16_H

struct product_kernels;

extern const struct product_kernels neon_bf16_products;

#endif
