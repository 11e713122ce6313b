/* test_kept.c - the counts of kept tokens: shares, texts longer than there are counts. */
#include <stdlib.h>

#include "engine/request/kept.h"
#include "tests/test.h"

TEST(shares_are_of_the_heads) {
    struct kv_kept *kept = kv_kept_create(10);
    assert_non_null(kept);
    kv_kept_begin(kept, 10, 4);
    kv_kept_add(kept, 0, 10, 1);
    kv_kept_add(kept, 3, 5, 3);
    kv_kept_add(kept, 9, 10, 1);
    assert_int_equal(kept->stride, 1);
    assert_int_equal(kept->n_counts, 10);
    const double wanted[] = {0.25, 0.25, 0.25, 1, 1, 0.25, 0.25, 0.25, 0.25, 0.5};
    for (uint32_t i = 0; i < 10; i++) assert_true(kv_kept_share(kept, i) == wanted[i]);
    free(kept);
}

TEST(what_is_behind_the_text_is_left_out) {
    struct kv_kept *kept = kv_kept_create(100);
    assert_non_null(kept);
    kv_kept_begin(kept, 3, 1);
    kv_kept_add(kept, 2, 100, 1);
    kv_kept_add(kept, 3, 4, 1);
    kv_kept_add(kept, UINT32_MAX - 1, UINT32_MAX, 1);
    assert_int_equal(kept->n_counts, 3);
    assert_true(kv_kept_share(kept, 1) == 0);
    assert_true(kv_kept_share(kept, 2) == 1);
    free(kept);
}

/* A stride is a power of 2, and the last count may stand for fewer tokens. */
TEST(a_long_text_has_a_larger_stride) {
    const uint32_t lengths[] = {KV_KEPT_MAX, KV_KEPT_MAX + 1, 2 * KV_KEPT_MAX, 3 * KV_KEPT_MAX + 1},
                   strides[] = {1, 2, 2, 4};
    for (size_t i = 0; i < 4; i++) {
        struct kv_kept *kept = kv_kept_create(lengths[i]);
        assert_non_null(kept);
        kv_kept_begin(kept, lengths[i], 2);
        kv_kept_add(kept, 0, lengths[i], 1);
        kv_kept_add(kept, 1, 2, 1);
        assert_int_equal(kept->stride, strides[i]);
        assert_true(kept->n_counts <= KV_KEPT_MAX);
        assert_true(kv_kept_share(kept, 0) == (strides[i] == 1 ? 0.5 : 0.5 + 0.5 / strides[i]));
        assert_true(kv_kept_share(kept, kept->n_counts - 1) == 0.5);
        free(kept);
    }
}

TEST(the_longest_text_fits) {
    struct kv_kept *kept = kv_kept_create(INT32_MAX);
    assert_non_null(kept);
    kv_kept_begin(kept, INT32_MAX, 1000);
    for (uint32_t i = 0; i < 10; i++) kv_kept_add(kept, 0, INT32_MAX, 100);
    for (uint32_t i = 0; i < kept->n_counts; i++) assert_true(kv_kept_share(kept, i) == 1);
    free(kept);
}
