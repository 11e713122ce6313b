/* amx.h - products of bf16 by the tile registers of AMX: 16 outputs of 16 rows at a time.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. */
#ifndef ENGINE_CPU_AMX_H
#define ENGINE_CPU_AMX_H

#include <stdbool.h>

struct product_kernels;

/* Returns whether this processor has AMX with bf16 and the kernel lets this process use it.  Asks
 * for that permission, which threads created later inherit. */
bool amx_present(void);

extern const struct product_kernels amx_products;

#endif
