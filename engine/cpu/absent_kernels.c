/* absent_kernels.c - the empty table of kernels that a build for one processor leaves out.
 * isa_find() passes it by.  Meson names the table as it does for the kernels themselves. */
#include "engine/cpu/int8_kernels.h"
#include "engine/cpu/kernels.h"

#if defined(KERNELS_NAME)
extern const struct cpu_kernels KERNELS_NAME;
const struct cpu_kernels KERNELS_NAME = {0};
#elif defined(INT8_NAME)
const struct product_kernels INT8_NAME[INT8_KINDS] = {0};
#else
extern const struct product_kernels PRODUCTS_NAME;
const struct product_kernels PRODUCTS_NAME = {0};
#endif
