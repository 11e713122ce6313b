/* test_sparse_layout.c - what is reserved for the longest prompt and the largest patterns is enough
 * for every other index: none may have to grow in a step. */
#include <stdbool.h>
#include <stdlib.h>

#include "cuda/attention/sparse/sparse_index.h"

#include "engine/base/sizes.h"
#include "engine/device/sparse.h"
#include "tests/test.h"

enum { N_MODELS = 40, N_PROMPTS = 500 };

static uint32_t up_to(uint32_t most) {
    return 1 + (uint32_t)rand() % most;
}

static size_t bytes_of(const struct sparse_shape *shape) {
    struct sparse_build build = {0};
    return sparse_lay_out(&build, shape, NULL);
}

/* As cuda/attention/sparse/sparse.c makes shapes: of limits, and of a prompt in them. */
static struct sparse_shape largest_shape(void) {
    const uint32_t n_kv_heads = up_to(8), n_slots = 100 + up_to(1 << (12 + rand() % 9));
    return (struct sparse_shape){.n_heads = n_kv_heads * up_to(8),
                                 .n_kv_heads = n_kv_heads,
                                 .head_dim = 64 * up_to(4),
                                 .n_rows = up_to(2 * n_slots),
                                 .n_slots = n_slots,
                                 .max_columns = min_u32(SPARSE_MAX_COLUMNS, n_slots),
                                 .max_pages = SPARSE_MAX_PAGES};
}

static struct sparse_shape shape_within(const struct sparse_shape *largest) {
    struct sparse_shape shape = *largest;
    /* Where little is missing, rounding shows. */
    const bool is_close = rand() % 2;
    shape.n_slots -= (uint32_t)rand() % (is_close ? largest->n_slots / 50 : largest->n_slots);
    shape.n_rows = min_u32(is_close ? largest->n_rows : up_to(largest->n_rows), shape.n_slots);
    shape.max_columns =
        min_u32(is_close ? SPARSE_MAX_COLUMNS : up_to(SPARSE_MAX_COLUMNS), shape.n_slots);
    if (!is_close) shape.max_pages = (uint32_t)rand() % (SPARSE_MAX_PAGES + 1);
    return shape;
}

TEST(what_is_reserved_is_enough) {
    srand(1);
    for (int i = 0; i < N_MODELS; i++) {
        const struct sparse_shape largest = largest_shape();
        const size_t reserved = bytes_of(&largest);
        for (int k = 0; k < N_PROMPTS; k++) {
            const struct sparse_shape shape = shape_within(&largest);
            if (bytes_of(&shape) <= reserved) continue;
            fail_msg("%u rows, %u slots, %u columns, %u pages need %zu bytes; %zu are reserved for "
                     "%u rows and %u slots",
                     shape.n_rows, shape.n_slots, shape.max_columns, shape.max_pages,
                     bytes_of(&shape), reserved, largest.n_rows, largest.n_slots);
        }
    }
}

/* Pages that a tile of a short prompt cannot have take no room. */
TEST(short_prompts_have_short_lists) {
    struct sparse_build build = {0};
    const struct sparse_shape shape = {.n_heads = 1,
                                       .n_kv_heads = 1,
                                       .head_dim = 64,
                                       .n_rows = 1000,
                                       .n_slots = 1000,
                                       .max_columns = 30,
                                       .max_pages = SPARSE_MAX_PAGES};
    sparse_lay_out(&build, &shape, NULL);
    assert_int_equal(build.view.max_blocks, 16);
}
