/* isa.c - see isa.h. */
#include "engine/cpu/isa.h"

#include "engine/cpu/int8_kernels.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/present.h"

#if defined(__x86_64__)
#include "engine/cpu/amx.h"
#include "engine/cpu/avx512_bf16.h"
#elif defined(__aarch64__)
#include "engine/cpu/neon_bf16.h"
#endif

/* The best first. */
static const struct isa isas[] = {
#if defined(__x86_64__)
    {CPU_ISA_AMX, amx_present, true, &cpu_kernels_avx512, &amx_products, int8_products_avx512vnni},
    {CPU_ISA_AVX512, avx512bf16_present, false, &cpu_kernels_avx512, &avx512_bf16_products,
     int8_products_avx512vnni},
    {CPU_ISA_AVX512, avx512vnni_present, false, &cpu_kernels_avx512, NULL,
     int8_products_avx512vnni},
    {CPU_ISA_AVX512, avx512_present, false, &cpu_kernels_avx512, NULL, int8_products_avx2},
    {CPU_ISA_AVX2, avxvnni_present, false, &cpu_kernels_avx2, NULL, int8_products_avxvnni},
    {CPU_ISA_AVX2, avx2_present, false, &cpu_kernels_avx2, NULL, int8_products_avx2},
#elif defined(__aarch64__)
    /* The plain kernels are NEON's: the compiler may use it for any 64-bit ARM. */
    {CPU_ISA_NEON, bf16_i8mm_present, false, &cpu_kernels_plain, &neon_bf16_products,
     int8_products_i8mm},
    {CPU_ISA_NEON, dotprod_present, false, &cpu_kernels_plain, NULL, int8_products_dotprod},
    {CPU_ISA_NEON, NULL, false, &cpu_kernels_plain, NULL, int8_products_neon},
#endif
    {CPU_ISA_PLAIN, NULL, false, &cpu_kernels_plain, NULL, int8_products_plain},
};

static const char *const isa_names[CPU_ISAS] = {"auto", "plain", "avx2", "avx512", "amx", "neon"};

const char *isa_name(enum cpu_isa isa) {
    return isa_names[isa];
}

/* Returns false if the row's tables are empty, as those of a build for another processor are. */
static bool is_built(const struct isa *isa) {
    return isa->kernels->products && isa->int8_products[0].dot;
}

/* Returns the best row that this processor has; is_built_only: of those that were built. */
static const struct isa *best_row(enum cpu_isa isa, bool bf16_products, bool is_built_only) {
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        const bool is_meant =
            isa == CPU_ISA_AUTO ? bf16_products || !isas[i].bf16_only : isas[i].isa == isa;
        if (is_meant && (!is_built_only || is_built(&isas[i])) &&
            (!isas[i].is_present || isas[i].is_present()))
            return &isas[i];
    }
    return NULL;
}

const struct isa *isa_find(enum cpu_isa isa, bool bf16_products) {
    return best_row(isa, bf16_products, true);
}

const char *isa_lacking(enum cpu_isa isa, bool bf16_products) {
    const struct isa *best = best_row(isa, bf16_products, false);
    return best && !is_built(best) ? isa_name(best->isa) : NULL;
}
