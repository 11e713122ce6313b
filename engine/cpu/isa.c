/* isa.c - see isa.h. */
#include "engine/cpu/isa.h"

#include "engine/cpu/int8_kernels.h"
#include "engine/cpu/kernels.h"

#if defined(__x86_64__)
#include "engine/cpu/amx.h"
#include "engine/cpu/avx512_bf16.h"

static bool avx2_present(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool avxvnni_present(void) {
    return avx2_present() && __builtin_cpu_supports("avxvnni");
}

static bool avx512_present(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool avx512vnni_present(void) {
    return avx512_present() && __builtin_cpu_supports("avx512vnni");
}

static bool avx512bf16_present(void) {
    return avx512vnni_present() && __builtin_cpu_supports("avx512bf16");
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

#include "engine/cpu/neon_bf16.h"

static bool dotprod_present(void) {
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}

/* Looks for two extensions that came together, with Armv8.6. */
static bool bf16_i8mm_present(void) {
    const unsigned long both = HWCAP2_BF16 | HWCAP2_I8MM;
    return dotprod_present() && (getauxval(AT_HWCAP2) & both) == both;
}
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

const struct isa *isa_find(enum cpu_isa isa, bool bf16_products) {
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        const bool is_meant =
            isa == CPU_ISA_AUTO ? bf16_products || !isas[i].bf16_only : isas[i].isa == isa;
        if (is_meant && (!isas[i].is_present || isas[i].is_present())) return &isas[i];
    }
    return NULL;
}
