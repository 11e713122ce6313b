/* test_absent_kernels.c - a build for another processor computes with plain kernels, and says so.
 * This test is linked with empty tables of all others. */
#include "tests/test.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/present.h"

static bool has_more_than_plain(void) {
    return strcmp(used_kernels(), "plain") != 0;
}

TEST(falls_back_on_plain_kernels_and_names_what_is_missing) {
    struct backend *be = NULL;
    const struct cpu_config config = {.n_threads = 1, .int8_products = true};
    assert_int_equal(cpu_backend_create(&be, &config, NULL), 0);
    assert_non_null(strstr(be->description, "plain"));
    be->ops->destroy(be);
    if (has_more_than_plain()) assert_string_equal(cpu_lacks_kernels(&config), used_kernels());
    else assert_null(cpu_lacks_kernels(&config));
}

TEST(refuses_kernels_that_were_not_built_in_words) {
    struct backend *be = NULL;
    struct error err = {0};
    const struct cpu_config config = {.n_threads = 1, .isa = CPU_ISA_AVX2};
    assert_int_equal(cpu_backend_create(&be, &config, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, has_more_than_plain() ? "built without kernels for avx2"
                                                           : "this processor has no avx2"));
}

TEST(plain_kernels_lack_nothing) {
    assert_null(cpu_lacks_kernels(&(struct cpu_config){.isa = CPU_ISA_PLAIN}));
}
