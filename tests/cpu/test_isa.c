/* test_isa.c - a build for one processor has the kernels that a build for all takes on it. */
#include "tests/test.h"

#include <string.h>

#include "engine/cpu/int8_kernels.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/present.h"

static const struct cpu_kernels *kernels_named(const char *name) {
#if defined(__x86_64__)
    if (strcmp(name, "avx512") == 0) return &cpu_kernels_avx512;
    if (strcmp(name, "avx2") == 0) return &cpu_kernels_avx2;
#endif
    return strcmp(name, "plain") == 0 ? &cpu_kernels_plain : NULL;
}

static const struct product_kernels *int8_kernels_named(const char *name) {
#if defined(__x86_64__)
    if (strcmp(name, "avx512vnni") == 0) return int8_products_avx512vnni;
    if (strcmp(name, "avxvnni") == 0) return int8_products_avxvnni;
    if (strcmp(name, "avx2") == 0) return int8_products_avx2;
#elif defined(__aarch64__)
    if (strcmp(name, "i8mm") == 0) return int8_products_i8mm;
    if (strcmp(name, "dotprod") == 0) return int8_products_dotprod;
    if (strcmp(name, "neon") == 0) return int8_products_neon;
#endif
    return strcmp(name, "plain") == 0 ? int8_products_plain : NULL;
}

TEST(kernels_of_a_build_for_this_processor_are_those_that_it_uses) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const struct isa *isa = isa_find(CPU_ISA_AUTO, bf16);
        assert_ptr_equal(kernels_named(used_kernels()), isa->kernels);
        assert_ptr_equal(int8_kernels_named(used_int8_kernels()), isa->int8_products);
        assert_null(isa_lacking(CPU_ISA_AUTO, bf16));
    }
}
