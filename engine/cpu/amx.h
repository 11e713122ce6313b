/* amx.h - products of bf16 by the tile registers of AMX: 16 outputs of 16 rows at a time.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. */
#ifndef ENGINE_CPU_AMX_H
#define ENGINE_CPU_AMX_H

struct product_kernels;

extern const struct product_kernels amx_products;

#endif
