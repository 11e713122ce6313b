/* test_feed_forward.c - sizes of feed-forward parts, of models whose layers differ. */

#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "tests/test.h"

static struct model_config with_layers(struct layer_shape *layers, uint32_t n) {
    return (struct model_config){.dim = 8, .n_layers = n, .layers = layers};
}

static void buffers_are_as_wide_as_the_widest_layer(void **state) {
    struct layer_shape layers[] = {{.kind = FFN_GATED, .ffn_dim = 16},
                                   {.kind = FFN_PLAIN, .ffn_dim = 48},
                                   {.kind = FFN_GATED, .ffn_dim = 20}};
    const struct model_config model = with_layers(layers, 3);
    const struct ffn_widths widths = feed_forward_widths(&model);
    assert_int_equal(widths.ffn, 48);
    assert_int_equal(widths.gate_up, 40);
}

static void a_model_without_gates_needs_no_buffer_for_them(void **state) {
    struct layer_shape layers[] = {{.kind = FFN_PLAIN, .ffn_dim = 16},
                                   {.kind = FFN_PLAIN, .ffn_dim = 24}};
    const struct model_config model = with_layers(layers, 2);
    const struct ffn_widths widths = feed_forward_widths(&model);
    assert_int_equal(widths.ffn, 24);
    assert_int_equal(widths.gate_up, 0);
}

static void work_is_the_mean_of_the_layers(void **state) {
    struct layer_shape layers[] = {{.kind = FFN_GATED, .ffn_dim = 16},
                                   {.kind = FFN_PLAIN, .ffn_dim = 32}};
    const struct model_config model = with_layers(layers, 2), first = with_layers(layers, 1);
    assert_true(feed_forward_work(&first) == 3 * 16 * 8);
    assert_true(feed_forward_work(&model) == (3 * 16 + 2 * 32) * 8 / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_as_wide_as_the_widest_layer),
        cmocka_unit_test(a_model_without_gates_needs_no_buffer_for_them),
        cmocka_unit_test(work_is_the_mean_of_the_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
