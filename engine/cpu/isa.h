/* isa.h - the instruction sets for which there are kernels, and which of them a processor has. */
#ifndef ENGINE_CPU_ISA_H
#define ENGINE_CPU_ISA_H

#include <stdbool.h>

#include "engine/cpu/cpu.h"

struct cpu_kernels;
struct error;
struct product_kernels;

/* What serves one instruction set.  One has several rows where its kernels depend on extensions. */
struct isa {
    enum cpu_isa isa;
    bool (*is_present)(void); /* NULL: always */
    bool bf16_only;           /* is nothing but products of bf16: AUTO takes it only for these */
    const struct cpu_kernels *kernels;
    const struct product_kernels *bf16_products; /* both inputs in bf16; NULL: there are none */
    const struct product_kernels *int8_products; /* [INT8_KINDS] */
};

/* Returns the best row for an instruction set, or for AUTO the best of this processor.  NULL: this
 * processor or this build lacks it. */
const struct isa *isa_find(enum cpu_isa isa, bool bf16_products);
/* Returns the instruction set that isa_find() would take if this build had its kernels.  NULL: the
 * build lacks nothing that the processor could use. */
const char *isa_lacking(enum cpu_isa isa, bool bf16_products);
const char *isa_name(enum cpu_isa isa);

#endif
