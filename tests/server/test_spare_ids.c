/* test_spare_ids.c - memory that waits for the next long list of ids. */
#include <stdlib.h>

#include "server/api/spare_ids.h"
#include "tests/test.h"

struct rig {
    uv_loop_t loop;
    struct spare_ids spare;
};

static void begin(struct rig *rig) {
    *rig = (struct rig){0};
    assert_int_equal(uv_loop_init(&rig->loop), 0);
}

static void end(struct rig *rig) {
    assert_int_equal(uv_loop_close(&rig->loop), 0);
    spare_ids_fini(&rig->spare);
}

static void prepare(struct rig *rig, size_t n) {
    spare_ids_prepare(&rig->spare, &rig->loop, n);
    assert_int_equal(uv_run(&rig->loop, UV_RUN_DEFAULT), 0);
}

TEST(the_next_list_may_be_a_little_longer) {
    struct rig rig;
    size_t capacity = 0;
    begin(&rig);
    assert_null(spare_ids_take(&rig.spare, 100000, &capacity));
    prepare(&rig, 100000);
    uint32_t *ids = spare_ids_take(&rig.spare, 110000, &capacity);
    assert_non_null(ids);
    assert_true(capacity >= 110000);
    ids[capacity - 1] = 1;
    free(ids);
    assert_null(spare_ids_take(&rig.spare, 110000, &capacity)); /* there was one */
    end(&rig);
}

TEST(one_that_is_too_small_is_given_up) {
    struct rig rig;
    size_t capacity = 0;
    begin(&rig);
    prepare(&rig, 50000);
    assert_null(spare_ids_take(&rig.spare, 100000, &capacity));
    assert_null(rig.spare.ids);
    end(&rig);
}

TEST(short_lists_leave_it_alone) {
    struct rig rig;
    size_t capacity = 0;
    begin(&rig);
    prepare(&rig, 200);
    prepare(&rig, 100 << 20);
    assert_null(rig.spare.ids);
    prepare(&rig, 50000);
    assert_null(spare_ids_take(&rig.spare, 200, &capacity));
    assert_null(spare_ids_take(&rig.spare, 100 << 20, &capacity));
    assert_non_null(rig.spare.ids);
    end(&rig);
}

TEST(two_lists_at_once_prepare_one) {
    struct rig rig;
    begin(&rig);
    spare_ids_prepare(&rig.spare, &rig.loop, 50000);
    prepare(&rig, 60000);
    uint32_t *ids = rig.spare.ids;
    prepare(&rig, 60000);
    assert_ptr_equal(rig.spare.ids, ids);
    end(&rig);
}
