/* test_feed_forward.c - sizes of feed-forward parts, of models whose layers differ. */

#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "tests/test.h"

static struct model_config with_layers(struct layer_shape *layers, uint32_t n) {
    return (struct model_config){.dim = 8, .n_layers = n, .layers = layers};
}

TEST(buffers_are_as_wide_as_the_widest_layer) {
    struct layer_shape layers[] = {{.kind = FFN_GATED, .ffn_dim = 16},
                                   {.kind = FFN_PLAIN, .ffn_dim = 48},
                                   {.kind = FFN_GATED, .ffn_dim = 20}};
    const struct model_config model = with_layers(layers, 3);
    const struct ffn_widths widths = feed_forward_widths(&model);
    assert_int_equal(widths.ffn, 48);
    assert_int_equal(widths.gate_up, 40);
}

TEST(a_model_without_gates_needs_no_buffer_for_them) {
    struct layer_shape layers[] = {{.kind = FFN_PLAIN, .ffn_dim = 16},
                                   {.kind = FFN_PLAIN, .ffn_dim = 24}};
    const struct model_config model = with_layers(layers, 2);
    const struct ffn_widths widths = feed_forward_widths(&model);
    assert_int_equal(widths.ffn, 24);
    assert_int_equal(widths.gate_up, 0);
}

TEST(layers_without_such_a_part_need_nothing) {
    struct layer_shape layers[] = {
        {.kind = FFN_NONE, .ffn_dim = 99},
        {.kind = FFN_PLAIN, .ffn_dim = 24},
        {.kind = FFN_PLAIN_EXPERTS, .ffn_dim = 12, .n_experts = 4, .n_used = 2, .shared_dim = 10}};
    const struct model_config model = with_layers(layers, 3), first = with_layers(layers, 1);
    const struct ffn_widths widths = feed_forward_widths(&model);
    assert_int_equal(widths.ffn, 24);
    assert_int_equal(widths.gate_up, 0);
    assert_true(feed_forward_work(&first) == 0);
    assert_true(feed_forward_work(&model) == (2 * 24 + 2 * (2 * 12 + 10) + 4) * 8 / 3.0);
}

TEST(work_is_the_mean_of_the_layers) {
    struct layer_shape layers[] = {{.kind = FFN_GATED, .ffn_dim = 16},
                                   {.kind = FFN_PLAIN, .ffn_dim = 32}};
    const struct model_config model = with_layers(layers, 2), first = with_layers(layers, 1);
    assert_true(feed_forward_work(&first) == 3 * 16 * 8);
    assert_true(feed_forward_work(&model) == (3 * 16 + 2 * 32) * 8 / 2);
}
