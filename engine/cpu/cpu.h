/* cpu.h - creates the CPU backend: plain C as the oracle, vector versions chosen at run time.
 *
 * Thread: the creator's (the engine thread); workers are its own.  Memory: owned by the backend. */
#ifndef ENGINE_CPU_CPU_H
#define ENGINE_CPU_CPU_H

#include "engine/device/backend.h"
#include "engine/device/dtype.h"

/* CPU_ISA_AMX: AVX-512, and tile registers for products of bf16.  CPU_ISA_NEON: that of 64-bit ARM,
 * with the extensions that the processor has. */
enum cpu_isa {
    CPU_ISA_AUTO,
    CPU_ISA_PLAIN,
    CPU_ISA_AVX2,
    CPU_ISA_AVX512,
    CPU_ISA_AMX,
    CPU_ISA_NEON,
    CPU_ISAS /* how many there are */
};

struct cpu_config {
    uint32_t n_threads;      /* including the caller; 0: the usable CPUs, within the quota */
    enum cpu_isa isa;        /* AUTO: the best this machine has */
    enum dtype matmul_dtype; /* F32: products in f32.  BF16: inputs rounded to bf16, for CPUs with
                              * bf16 dot products (faster, less exact); ERR_UNSUPPORTED elsewhere */
    /* Multiplies weights in packed elements, or of 4 or 8 bits with scales, as they are
     * (int8_kernels.h).  Their inputs are rounded to 8 bits.  Else no such weight is taken. */
    bool int8_products;
    uint32_t n_ranks; /* backends that compute one model together (collective.h); 0, 1: it is alone.
                       * They share the threads; each has at least one */
};

/* Returns how many threads a backend has where nothing says so: the usable CPUs, or what the quota
 * of the control group is worth. */
uint32_t cpu_default_threads(void);

/* Returns the instruction set whose kernels a backend would use if this build had them: a build for
 * another processor lacks those of this one.  NULL: it lacks none. */
const char *cpu_lacks_kernels(const struct cpu_config *config);

/* Creates the backend, or those of all ranks: *out is that of rank 0. */
int cpu_backend_create(struct backend **out, const struct cpu_config *config, struct error *err);

#endif
