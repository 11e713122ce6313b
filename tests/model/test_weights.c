/* test_weights.c - what the rules of weights say of a model's and a layer's shape. */

#include "engine/model/family_names.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/text_half.h"
#include "engine/model/weights.h"
#include "tests/test.h"

static const struct model_config config = {.dim = 8, .n_heads = 2};

static void expect_name(const struct family_name *names, const char *rule, const char *expected) {
    char name[WEIGHTS_MAX_NAME];
    weights_tensor_name(name, names, rule, 12, 345);
    assert_string_equal(name, expected);
}

TEST(names_have_the_layer_and_the_expert) {
    expect_name(NULL, "lm_head.weight", "lm_head.weight");
    expect_name(NULL, "model.layers.#.self_attn.sinks", "model.layers.12.self_attn.sinks");
    expect_name(NULL, "model.layers.#.mlp.experts.@.up_proj.weight",
                "model.layers.12.mlp.experts.345.up_proj.weight");
}

TEST(families_name_experts_in_their_own_way) {
    static const struct family_name names[] = {
        {"model.layers.#.mlp.experts.@.gate_proj", "blocks.#.moe.experts.@.w1"},
        {"model.layers.#.mlp.experts.@.up_proj", "experts.@.up.of.#"},
        {"model.layers.#.self_attn.sinks", "blocks.#.sinks.weight"},
        {NULL, NULL}};
    expect_name(names, "model.layers.#.mlp.experts.@.gate_proj.weight",
                "blocks.12.moe.experts.345.w1.weight");
    expect_name(names, "model.layers.#.mlp.experts.@.up_proj.bias", "experts.345.up.of.12.bias");
    expect_name(names, "model.norm.weight", "model.norm.weight");
    expect_name(names, "model.layers.#.self_attn.sinks", "blocks.12.sinks.weight");
}

TEST(a_text_half_has_a_prefix) {
    static const struct tensor_prefix prefix = {"language_model.model.", "language_model."};
    const struct model_config half = {.is_text_half = true, .prefix = &prefix};
    char name[WEIGHTS_MAX_NAME];
    weights_file_name(name, &half, "model.layers.#.self_attn.q_proj.weight", 3, 0);
    assert_string_equal(name, "language_model.model.layers.3.self_attn.q_proj.weight");
    weights_file_name(name, &half, "lm_head.weight", 0, 0);
    assert_string_equal(name, "language_model.lm_head.weight");
    weights_file_name(name, &config, "lm_head.weight", 0, 0);
    assert_string_equal(name, "lm_head.weight");
}

TEST(a_layers_shape_says_which_tensors_it_has) {
    const struct layer_shape dense = {.ffn_dim = 16}, plain = {.kind = FFN_PLAIN, .ffn_dim = 16},
                             experts = {.ffn_dim = 4, .n_experts = 6};
    const struct weight_rule one = {.without = TRAIT_EXPERTS}, each = {.with = TRAIT_EXPERTS},
                             gate = {.without = TRAIT_PLAIN_FFN};
    assert_true(weights_rule_applies(&one, &config, &dense));
    assert_false(weights_rule_applies(&one, &config, &experts));
    assert_true(weights_rule_applies(&each, &config, &experts));
    assert_false(weights_rule_applies(&each, &config, &dense));
    assert_false(weights_rule_applies(&each, &config, NULL));
    assert_true(weights_rule_applies(&gate, &config, &dense));
    assert_false(weights_rule_applies(&gate, &config, &plain));
}

TEST(sides_are_those_of_the_layers_shape) {
    const struct layer_shape wide = {.kv = {1, 4}, .ffn_dim = 16},
                             experts = {.ffn_dim = 4, .n_experts = 6};
    assert_int_equal(weights_side(SIDE_FFN, &config, &wide), 16);
    assert_int_equal(weights_side(SIDE_GATE_UP, &config, &experts), 8);
    assert_int_equal(weights_side(SIDE_EXPERTS, &config, &experts), 6);
    assert_int_equal(weights_side(SIDE_QKV, &config, &wide), 16);
}
