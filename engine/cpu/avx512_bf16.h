/* avx512_bf16.h - products of bf16 by the instruction of AVX-512 for pairs, where there is one.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS. */
#ifndef ENGINE_CPU_AVX512_BF16_H
#define ENGINE_CPU_AVX512_BF16_H

struct product_kernels;

extern const struct product_kernels avx512_bf16_products;

#endif
