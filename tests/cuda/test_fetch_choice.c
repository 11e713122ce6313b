/* test_fetch_choice.c - whether experts in the machine's memory are read in place, or copied
 * whole. */
#include "cuda/experts/fetch.h"
#include "tests/test.h"

/* Qwen3-30B-A3B, gpt-oss-20b, and a layer of which each row uses all. */
TEST(few_rows_read_in_place_and_many_get_all_experts) {
    assert_false(expert_fetch_is_whole(1, 8, 128));
    assert_false(expert_fetch_is_whole(8, 8, 128));
    assert_true(expert_fetch_is_whole(64, 8, 128));
    assert_true(expert_fetch_is_whole(4096, 8, 128));
    assert_false(expert_fetch_is_whole(1, 4, 32));
    assert_true(expert_fetch_is_whole(64, 4, 32));
    assert_true(expert_fetch_is_whole(1, 2, 2));
}

/* A step with more rows never goes back to reading in place. */
TEST(the_choice_changes_once) {
    bool was_whole = false;
    for (uint32_t n = 1; n <= 1024; n++) {
        const bool is_whole = expert_fetch_is_whole(n, 10, 512);
        assert_true(is_whole || !was_whole);
        was_whole = is_whole;
    }
    assert_true(was_whole);
}
