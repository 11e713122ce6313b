/* test_family_config.c - the config.json of families that call things by other names than Llama,
 * and what only they say: what it sets, and what is refused by name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/activation.h"
#include "engine/device/backend.h"
#include "engine/model/alibi.h"
#include "engine/model/config.h"
#include "engine/model/feed_forward.h"
#include "tests/test.h"

#define NEOX                                                                                       \
    "{\"architectures\":[\"GPTNeoXForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"           \
    "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":2,"                  \
    "\"max_position_embeddings\":256"
#define OPT                                                                                        \
    "{\"architectures\":[\"OPTForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"               \
    "\"ffn_dim\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                            \
    "\"max_position_embeddings\":256"
#define FALCON                                                                                     \
    "{\"architectures\":[\"FalconForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"            \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4"
#define MPT                                                                                        \
    "{\"architectures\":[\"MptForCausalLM\"],\"vocab_size\":100,\"d_model\":64,"                   \
    "\"n_layers\":2,\"n_heads\":4,\"max_seq_len\":256"
#define CHATGLM                                                                                    \
    "{\"architectures\":[\"ChatGLMModel\"],\"padded_vocab_size\":100,\"vocab_size\":90,"           \
    "\"hidden_size\":64,\"ffn_hidden_size\":96,\"num_layers\":2,\"num_attention_heads\":4,"        \
    "\"kv_channels\":32,\"seq_length\":256,\"multi_query_group_num\":2"

#define COHERE2_MOE                                                                                \
    "{\"architectures\":[\"Cohere2MoeForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"        \
    "\"intermediate_size\":32,\"num_hidden_layers\":6,\"num_attention_heads\":2,"                  \
    "\"head_dim\":32,\"max_position_embeddings\":256,\"num_experts\":4,"                           \
    "\"num_experts_per_tok\":2,\"sliding_window\":9"
#define GLM4_MOE                                                                                   \
    "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"           \
    "\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                  \
    "\"max_position_embeddings\":256,\"n_routed_experts\":8,\"moe_intermediate_size\":24"
#define QWEN3_MOE                                                                                  \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"          \
    "\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                  \
    "\"max_position_embeddings\":256,\"num_experts\":8,\"moe_intermediate_size\":24"
/* A recurrent layer, and one that attends. */
#define GRANITE_HYBRID                                                                             \
    "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"vocab_size\":100,"                     \
    "\"hidden_size\":64,\"intermediate_size\":24,\"num_hidden_layers\":2,"                         \
    "\"num_attention_heads\":4,\"max_position_embeddings\":256,\"mamba_n_heads\":8,"               \
    "\"shared_intermediate_size\":40,\"num_local_experts\":0"
#define MAMBA ",\"layer_types\":[\"mamba\",\"attention\"]"
#define NEMOTRON                                                                                   \
    "{\"architectures\":[\"NemotronHForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"         \
    "\"intermediate_size\":24,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                  \
    "\"max_position_embeddings\":256"
#define USED ",\"num_experts_per_tok\":3"
/* Two layers with a window, and one without. */
#define GEMMA4                                                                                     \
    "{\"architectures\":[\"Gemma4ForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"            \
    "\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":8,"                  \
    "\"num_key_value_heads\":4,\"head_dim\":32,\"max_position_embeddings\":256,"                   \
    "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"full_attention\"],"            \
    "\"hidden_size_per_layer_input\":0,"
#define GEMMA4_ROPES                                                                               \
    "\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":100},"   \
    "\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,"           \
    "\"rope_theta\":10000}}"

static int parse(struct model_config *out, const char *text, struct error *err) {
    json_error_t why;
    json_t *root = json_loads(text, 0, &why);
    if (!root) fail_msg("%s: %s", text, why.text);
    const int rc = model_config_parse(out, root, NULL, "dir", 0, err);
    json_decref(root);
    return rc;
}

static struct model_config parsed(const char *text) {
    struct model_config config = {0};
    struct error err = {0};
    if (parse(&config, text, &err)) fail_msg("%s: %s", text, err.text);
    return config;
}

static void expect_refused(const char *text, int code, const char *key) {
    struct model_config config = {0};
    struct error err = {0};
    const int rc = parse(&config, text, &err);
    if (rc != code) fail_msg("%s: %d, not %d", text, rc, code);
    if (!strstr(err.text, key)) fail_msg("'%s' does not say '%s'", err.text, key);
    assert_null(config.slopes);
}

TEST(neox_turns_a_part_of_its_heads) {
    struct model_config c = parsed(NEOX "}");
    assert_true(c.layer_norm && c.norm_bias && c.layers[0].kind == FFN_PLAIN && c.act == ACT_GELU);
    assert_true(c.parallel && !c.shared_norm && c.fused_qkv && c.qkv_by_group);
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && !c.tied_head && c.norm_eps == 1e-5f);
    assert_int_equal(c.n_freqs, 4);
    assert_true(fabs(c.inv_freq[1] - 0.1) < 1e-12);
    model_config_fini(&c);
    c = parsed(NEOX
               ",\"rotary_pct\":1,\"rotary_emb_base\":256,\"use_parallel_residual\":false,"
               "\"attention_bias\":false,\"hidden_act\":\"gelu_fast\",\"layer_norm_eps\":0.5}");
    assert_true(!c.parallel && !c.qkv_bias && !c.o_bias && c.mlp_bias && c.act == ACT_GELU_TANH);
    assert_true(c.n_freqs == 16 && c.norm_eps == 0.5f);
    assert_true(fabs(c.inv_freq[2] - 0.5) < 1e-12);
    model_config_fini(&c);
    expect_refused(NEOX ",\"rotary_pct\":2}", ERR_INVALID, "rotary_pct");
    expect_refused(NEOX ",\"rotary_emb_base\":\"x\"}", ERR_INVALID, "rotary_emb_base");
    expect_refused(NEOX ",\"hidden_act\":\"silu\"}", ERR_UNSUPPORTED, "hidden_act");
    expect_refused(NEOX ",\"use_parallel_residual\":1}", ERR_INVALID, "use_parallel_residual");
    expect_refused(NEOX ",\"layer_norm_eps\":-1}", ERR_INVALID, "layer_norm_eps");
}

TEST(opt_has_learned_positions) {
    struct model_config c = parsed(OPT "}");
    assert_true(c.positions == POSITIONS_LEARNED && c.first_position == 2 && !c.inv_freq);
    assert_true(c.n_freqs == 0 && c.rope_scale == 1 && c.act == ACT_RELU && c.tied_head);
    assert_true(c.layers[0].ffn_dim == 96 && !c.parallel && !c.fused_qkv);
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.norm_bias);
    model_config_fini(&c);
    c = parsed(OPT ",\"enable_bias\":false,\"activation_function\":\"gelu\","
                   "\"word_embed_proj_dim\":64}");
    assert_true(!c.qkv_bias && !c.o_bias && !c.mlp_bias && c.norm_bias && c.act == ACT_GELU);
    model_config_fini(&c);
    expect_refused(OPT ",\"word_embed_proj_dim\":32}", ERR_UNSUPPORTED, "word_embed_proj_dim");
    expect_refused(OPT ",\"do_layer_norm_before\":false}", ERR_UNSUPPORTED, "do_layer_norm_before");
    expect_refused(OPT ",\"_remove_final_layer_norm\":true}", ERR_UNSUPPORTED,
                   "_remove_final_layer_norm");
    expect_refused(OPT ",\"layer_norm_elementwise_affine\":false}", ERR_UNSUPPORTED,
                   "layer_norm_elementwise_affine");
    expect_refused(OPT ",\"activation_function\":\"tanh\"}", ERR_UNSUPPORTED,
                   "activation_function");
    expect_refused(OPT ",\"ffn_dim\":0}", ERR_INVALID, "ffn_dim");
}

TEST(falcons_blocks_are_of_three_kinds) {
    struct model_config c = parsed(FALCON ",\"num_kv_heads\":4}");
    assert_true(c.parallel && c.shared_norm && c.n_kv_heads == 1 && c.qkv_by_group);
    assert_true(c.layers[0].ffn_dim == 256 && c.max_position == 2048 && c.tied_head && !c.qkv_bias);
    assert_true(c.n_freqs == 8 && c.act == ACT_GELU);
    model_config_fini(&c);
    c = parsed(FALCON ",\"new_decoder_architecture\":true,\"num_kv_heads\":2,\"bias\":true,"
                      "\"ffn_hidden_size\":100}");
    assert_true(c.parallel && !c.shared_norm && c.n_kv_heads == 2 && c.layers[0].ffn_dim == 100);
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias);
    model_config_fini(&c);
    c = parsed(FALCON ",\"new_decoder_architecture\":true,\"num_kv_heads\":2,"
                      "\"num_ln_in_parallel_attn\":1}");
    assert_true(c.parallel && c.shared_norm);
    model_config_fini(&c);
    c = parsed(FALCON ",\"multi_query\":false,\"parallel_attn\":false,\"alibi\":true}");
    assert_true(!c.parallel && !c.shared_norm && c.n_kv_heads == 4);
    assert_true(c.positions == POSITIONS_ALIBI && !c.inv_freq);
    assert_true(c.slopes[0] == 0.25f / 4 && c.slopes[3] == 1.0f / 256 / 4); /* heads of 16 */
    model_config_fini(&c);
    expect_refused(FALCON ",\"new_decoder_architecture\":true,\"parallel_attn\":false}",
                   ERR_UNSUPPORTED, "parallel_attn");
    expect_refused(FALCON ",\"num_ln_in_parallel_attn\":2}", ERR_UNSUPPORTED,
                   "num_ln_in_parallel_attn");
    expect_refused(FALCON ",\"alibi\":true,\"num_ln_in_parallel_attn\":3}", ERR_INVALID,
                   "num_ln_in_parallel_attn");
    expect_refused(FALCON ",\"apply_residual_connection_post_layernorm\":true}", ERR_UNSUPPORTED,
                   "apply_residual_connection_post_layernorm");
    expect_refused(FALCON ",\"activation\":\"silu\"}", ERR_UNSUPPORTED, "activation");
    expect_refused(FALCON ",\"alibi\":true,\"quantization_config\":{}}", ERR_UNSUPPORTED,
                   "quantization_config");
}

TEST(mpt_has_a_bias_by_distance) {
    struct model_config c = parsed(MPT "}");
    assert_true(c.positions == POSITIONS_ALIBI && c.attn_scale == 0.25f && c.slopes[0] == 0.25f);
    assert_true(c.layer_norm && !c.norm_bias && c.fused_qkv && !c.qkv_by_group && c.tied_head);
    assert_true(c.dim == 64 && c.n_heads == 4 && c.max_position == 256 &&
                c.layers[0].ffn_dim == 256);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias || c.parallel);
    model_config_fini(&c);
    c = parsed(MPT ",\"expansion_ratio\":2,\"attn_config\":{\"softmax_scale\":0.5,"
                   "\"alibi_bias_max\":4,\"attn_impl\":\"triton\",\"clip_qkv\":null}}");
    assert_true(c.layers[0].ffn_dim == 128 && c.attn_scale == 0.5f && c.slopes[0] == 0.5f);
    model_config_fini(&c);
    expect_refused(MPT ",\"attn_config\":{\"clip_qkv\":6}}", ERR_UNSUPPORTED, "clip_qkv");
    expect_refused(MPT ",\"attn_config\":{\"qk_ln\":true}}", ERR_UNSUPPORTED, "qk_ln");
    expect_refused(MPT ",\"attn_config\":{\"alibi\":false}}", ERR_UNSUPPORTED, "alibi");
    expect_refused(MPT ",\"attn_config\":{\"prefix_lm\":true}}", ERR_UNSUPPORTED, "prefix_lm");
    expect_refused(MPT ",\"attn_config\":{\"attn_uses_sequence_id\":true}}", ERR_UNSUPPORTED,
                   "attn_uses_sequence_id");
    expect_refused(MPT ",\"attn_config\":{\"attn_type\":\"multiquery_attention\"}}",
                   ERR_UNSUPPORTED, "attn_type");
    expect_refused(MPT ",\"attn_config\":7}", ERR_INVALID, "attn_config");
    expect_refused(MPT ",\"no_bias\":false}", ERR_UNSUPPORTED, "no_bias");
    expect_refused(MPT ",\"logit_scale\":0.5}", ERR_UNSUPPORTED, "logit_scale");
    expect_refused(MPT ",\"d_model\":0}", ERR_INVALID, "d_model");
}

TEST(chatglm_is_glm_by_other_names) {
    struct model_config c =
        parsed(CHATGLM ",\"multi_query_attention\":true,\"add_qkv_bias\":true,\"rope_ratio\":16,"
                       "\"layernorm_epsilon\":0.25}");
    assert_true(c.n_vocab == 100 && c.n_layers == 2 && c.head_dim == 32 &&
                c.layers[0].ffn_dim == 96);
    assert_true(c.n_kv_heads == 2 && c.qkv_bias && !c.o_bias && c.norm_eps == 0.25f);
    assert_true(c.fused_qkv && !c.qkv_by_group && c.fused_gate_up && c.paired_rotary);
    assert_true(!c.layer_norm && c.layers[0].kind == FFN_GATED && c.n_freqs == 8 && !c.tied_head);
    assert_true(fabs(c.inv_freq[4] - 1 / sqrt(160000)) < 1e-12);
    model_config_fini(&c);
    c = parsed(CHATGLM "}");
    assert_true(c.n_kv_heads == 4 && !c.qkv_bias);
    model_config_fini(&c);
    expect_refused(CHATGLM ",\"rmsnorm\":false}", ERR_UNSUPPORTED, "rmsnorm");
    expect_refused(CHATGLM ",\"add_bias_linear\":true}", ERR_UNSUPPORTED, "add_bias_linear");
    expect_refused(CHATGLM ",\"post_layer_norm\":false}", ERR_UNSUPPORTED, "post_layer_norm");
    expect_refused(CHATGLM ",\"rope_ratio\":0}", ERR_INVALID, "rope_ratio");
    expect_refused(CHATGLM ",\"kv_channels\":33}", ERR_UNSUPPORTED, "head_dim");
}

/* As the paper has them: 1/2, 1/4 … with eight heads; with twelve, every other slope of sixteen
 * behind those. */
TEST(slopes_halve_from_head_to_head) {
    float slopes[12];
    alibi_slopes(slopes, 8, 8, 1);
    for (int i = 0; i < 8; i++) assert_true(slopes[i] == ldexpf(1, -i - 1));
    alibi_slopes(slopes, 12, 8, 2);
    for (int i = 0; i < 8; i++) assert_true(slopes[i] == ldexpf(1, -i));
    for (int i = 0; i < 4; i++) assert_true(fabs(slopes[8 + i] - 2 * pow(2, -0.5 - i)) < 1e-6);
    alibi_slopes(slopes, 1, 8, 1);
    assert_true(slopes[0] == 1.0f / 256);
}

/* A family whose blocks are Llama's: the layers' own differences are what is looked at. */
#define LIKE_LLAMA(name)                                                                           \
    "{\"architectures\":[\"" name "ForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"          \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,"                \
    "\"num_hidden_layers\":8,\"max_position_embeddings\":8192"

static void expect_local(const struct model_config *c, const char *expected) {
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].is_local != (expected[i] == '1')) fail_msg("layer %u, %s", i, expected);
}

TEST(smollm3_rotates_nothing_in_some_layers) {
    struct model_config c = parsed(LIKE_LLAMA("SmolLM3") "}");
    expect_local(&c, "00010001");
    assert_true(c.tied_head && fabs(model_freqs(&c, 0)[1] - pow(2e6, -1.0 / 8)) < 1e-12);
    assert_true(model_freqs(&c, 3)[0] == 0 && model_freqs(&c, 3)[7] == 0);
    model_config_fini(&c);
    c = parsed(LIKE_LLAMA("SmolLM3") ",\"no_rope_layers\":[1,0,1,1,0,1,1,1]}");
    expect_local(&c, "01001000");
    model_config_fini(&c);
    c = parsed(LIKE_LLAMA("SmolLM3") ",\"no_rope_layer_interval\":9}");
    assert_true(!c.local_freq);
    model_config_fini(&c);
    expect_refused(LIKE_LLAMA("SmolLM3") ",\"no_rope_layers\":[1]}", ERR_INVALID, "no_rope_layers");
    expect_refused(LIKE_LLAMA("SmolLM3") ",\"no_rope_layers\":[1,1,1,1,1,1,1,true]}", ERR_INVALID,
                   "no_rope_layers");
    expect_refused(LIKE_LLAMA("SmolLM3") ",\"use_sliding_window\":true}", ERR_UNSUPPORTED,
                   "use_sliding_window");
}

TEST(olmo_norms_what_its_branches_give) {
    struct model_config c = parsed(LIKE_LLAMA("Olmo2") "}");
    assert_true(c.no_pre_norms && c.post_norms && c.whole_qk_norm && !c.qk_norm && !c.windows);
    assert_true(c.norm_eps == 1e-5f && !c.local_freq);
    model_config_fini(&c);
    /* As published: the scaling is that of layers without a window. */
    c = parsed(LIKE_LLAMA("Olmo3") ",\"rope_theta\":256,\"sliding_window\":100,\"rope_scaling\":{"
                                   "\"rope_type\":\"yarn\",\"factor\":8,\"attention_factor\":1.2,"
                                   "\"original_max_position_embeddings\":64}}");
    expect_local(&c, "11101110");
    assert_true(c.windows[2] == 100 && c.windows[3] == 0);
    assert_true(fabs(model_freqs(&c, 0)[7] - 1.0 / 128) < 1e-12 &&
                model_freqs(&c, 3)[7] < 1.0 / 512);
    assert_true(model_rope_scale(&c, 0) == 1 && model_rope_scale(&c, 3) == 1.2f);
    model_config_fini(&c);
    expect_refused(LIKE_LLAMA("Olmo3") ",\"sliding_window\":null}", ERR_UNSUPPORTED,
                   "sliding_window");
}

TEST(granite_has_four_multipliers) {
    struct model_config c = parsed(
        LIKE_LLAMA("Granite") ",\"embedding_multiplier\":12,\"attention_multiplier\":0.015625,"
                              "\"residual_multiplier\":0.25,\"logits_scaling\":8,"
                              "\"rms_norm_eps\":1e-5}");
    assert_true(c.embed_scale == 48 && c.attn_scale == 0.015625f && c.logit_scale == 0.125f);
    assert_true(fabs(c.norm_eps - 16e-5) < 1e-9);
    model_config_fini(&c);
    c = parsed(LIKE_LLAMA("Granite") "}");
    assert_true(c.embed_scale == 1 && c.attn_scale == 1 && c.norm_eps == 1e-6f);
    model_config_fini(&c);
    expect_refused(LIKE_LLAMA("Granite") ",\"residual_multiplier\":0}", ERR_INVALID,
                   "residual_multiplier");
}

TEST(seed_oss_has_a_key_of_its_own_for_the_bias_behind_attention) {
    struct model_config c = parsed(LIKE_LLAMA("SeedOss") "}");
    assert_true(c.qkv_bias && !c.o_bias && !c.mlp_bias && c.head_dim == 128);
    model_config_fini(&c);
    c = parsed(LIKE_LLAMA("SeedOss") ",\"attention_bias\":false,\"attention_out_bias\":true}");
    assert_true(!c.qkv_bias && c.o_bias);
    model_config_fini(&c);
}

TEST(cohere_has_parallel_blocks_and_one_norm) {
    struct model_config c = parsed(LIKE_LLAMA("Cohere") ",\"layer_norm_eps\":0.5}");
    assert_true(c.parallel && c.shared_norm && c.layer_norm && !c.norm_bias && c.tied_head);
    assert_true(c.paired_rotary && c.logit_scale == 0.0625f && c.norm_eps == 0.5f && !c.windows);
    assert_true(c.layers[0].kind == FFN_GATED && !c.local_freq);
    model_config_fini(&c);
    c = parsed(LIKE_LLAMA("Cohere2") ",\"logit_scale\":0.25,\"sliding_window\":9000}");
    expect_local(&c, "00010001");
    assert_true(c.logit_scale == 0.25f && model_freqs(&c, 7)[0] == 0);
    model_config_fini(&c);
    expect_refused(LIKE_LLAMA("Cohere") ",\"use_qk_norm\":true}", ERR_UNSUPPORTED, "use_qk_norm");
    expect_refused(LIKE_LLAMA("Cohere2") ",\"sliding_window\":null}", ERR_UNSUPPORTED,
                   "sliding_window");
}

TEST(cohere_has_dense_layers_with_windows_of_their_own) {
    struct model_config c = parsed(COHERE2_MOE ",\"first_k_dense_replace\":2,"
                                               "\"prefix_dense_sliding_window_pattern\":2,"
                                               "\"prefix_dense_intermediate_size\":40}");
    static const uint32_t windows[] = {9, 0, 9, 9, 9, 0};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(c.windows[i], windows[i]);
        assert_true(c.layers[i].is_local == (windows[i] == 0));
        assert_int_equal(c.layers[i].ffn_dim, i < 2 ? 40 : 32);
        assert_int_equal(c.layers[i].n_experts, i < 2 ? 0 : 4);
    }
    assert_true(c.layer_norm && c.parallel && c.shared_norm && c.routing.shared == 1);
    assert_true(c.routing.kind == ROUTE_SOFTMAX_CHOSEN && !c.routing.normalises);
    model_config_fini(&c);
    c = parsed(COHERE2_MOE
               ",\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"sparse\",\"sparse\","
               "\"sparse\"],\"num_shared_experts\":2,\"expert_selection_fn\":\"sigmoid\","
               "\"rms_norm_eps\":0.001}");
    assert_true(c.windows[0] == 0 && !c.layers[0].is_local && c.layers[4].is_local);
    assert_true(!c.layer_norm && c.norm_eps == 0.001F && c.layers[1].shared_dim == 64);
    assert_true(c.routing.kind == ROUTE_SIGMOID && c.routing.normalises);
    assert_true(c.routing.factor == 0.5F && c.routing.shared == 0.5F);
    model_config_fini(&c);
    expect_refused(COHERE2_MOE ",\"mlp_layer_types\":[\"dense\"]}", ERR_INVALID, "mlp_layer_types");
    expect_refused(COHERE2_MOE ",\"expert_selection_fn\":\"tanh\"}", ERR_UNSUPPORTED,
                   "expert_selection_fn");
    expect_refused(COHERE2_MOE ",\"shared_expert_combination_strategy\":\"max\"}", ERR_UNSUPPORTED,
                   "shared_expert_combination_strategy");
}

TEST(exaone_rotates_everywhere_where_nothing_has_a_window) {
    struct model_config c =
        parsed(LIKE_LLAMA("Exaone4") ",\"sliding_window\":16,\"sliding_window_pattern\":\"LG\","
                                     "\"layer_types\":[\"sliding_attention\",\"full_attention\","
                                     "\"sliding_attention\",\"full_attention\",\"full_attention\","
                                     "\"full_attention\",\"full_attention\",\"full_attention\"]}");
    expect_local(&c, "01011111");
    assert_true(c.qk_norm && c.no_pre_norms && c.post_norms && c.own_ffn_norms);
    model_config_fini(&c);
    c = parsed(LIKE_LLAMA("Exaone4") ",\"sliding_window\":null}");
    expect_local(&c, "00000000");
    model_config_fini(&c);
}

TEST(ministral_scales_queries_beyond_the_original_context) {
    static const char text[] =
        LIKE_LLAMA("Ministral3") ",\"rope_parameters\":{\"type\":\"yarn\",\"rope_theta\":1000000,"
                                 "\"factor\":%d,"
                                 "\"original_max_position_embeddings\":512,\"max_position_"
                                 "embeddings\":8192,\"mscale\":1,"
                                 "\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.25}}";
    char config[2048];
    snprintf(config, sizeof(config), text, 16);
    struct model_config c = parsed(config);
    assert_true(c.query_beta == 0.25f && c.query_period == 512 && c.max_position == 8192);
    assert_true(c.rope_scale == 1 && c.head_dim == 128);
    model_config_fini(&c);
    expect_refused(LIKE_LLAMA("Llama") ",\"rope_parameters\":{\"rope_type\":\"default\","
                                       "\"llama_4_scaling_beta\":0.1}}",
                   ERR_UNSUPPORTED, "llama_4_scaling_beta");
}

TEST(some_layers_have_experts) {
    struct model_config c =
        parsed(GLM4_MOE USED ",\"first_k_dense_replace\":1,\"n_shared_experts\":2,"
                             "\"n_group\":4,\"topk_group\":2,"
                             "\"routed_scaling_factor\":2.5,\"use_qk_norm\":true}");
    assert_true(c.layers[0].kind == FFN_GATED && c.layers[0].ffn_dim == 96);
    for (uint32_t i = 1; i < 4; i++) {
        const struct layer_shape *l = &c.layers[i];
        assert_true(l->kind == FFN_EXPERTS && l->n_experts == 8 && l->n_used == 3);
        assert_true(l->ffn_dim == 24 && l->shared_dim == 48);
    }
    assert_true(c.routing.kind == ROUTE_SIGMOID && c.routing.normalises && c.qk_norm);
    assert_true(c.routing.n_groups == 4 && c.routing.n_used_groups == 2);
    assert_true(c.routing.factor == 2.5f && c.has_choice_bias && !c.has_router_bias);
    model_config_fini(&c);
    c = parsed(QWEN3_MOE USED ",\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]}");
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(c.layers[i].kind, i == 1 ? FFN_EXPERTS : FFN_GATED);
    assert_true(c.routing.kind == ROUTE_SOFTMAX && !c.routing.normalises);
    model_config_fini(&c);
}

TEST(experts_that_cannot_be_chosen_are_refused) {
    expect_refused(QWEN3_MOE "}", ERR_INVALID, "'num_experts_per_tok' is missing");
    expect_refused(QWEN3_MOE ",\"num_experts_per_tok\":9}", ERR_INVALID, "more than there are");
    expect_refused(QWEN3_MOE ",\"num_experts_per_tok\":0}", ERR_INVALID, "from 1 to");
    expect_refused(QWEN3_MOE USED ",\"num_experts\":5000}", ERR_INVALID, "'num_experts'");
    expect_refused(QWEN3_MOE USED ",\"mlp_only_layers\":[4]}", ERR_INVALID, "no layer");
    expect_refused(QWEN3_MOE USED ",\"mlp_only_layers\":3}", ERR_INVALID, "not a list");
    expect_refused(QWEN3_MOE USED ",\"use_sliding_window\":true}", ERR_UNSUPPORTED, "windows");
    expect_refused(GLM4_MOE USED ",\"n_group\":3,\"topk_group\":1}", ERR_INVALID, "n_group");
    expect_refused(GLM4_MOE USED ",\"n_group\":8,\"topk_group\":8}", ERR_INVALID, "n_group");
    expect_refused(GLM4_MOE USED ",\"n_group\":4,\"topk_group\":1}", ERR_INVALID, "topk_group");
    expect_refused(GLM4_MOE USED ",\"n_group\":2,\"topk_group\":3}", ERR_INVALID, "topk_group");
    expect_refused(GLM4_MOE USED ",\"first_k_dense_replace\":0.5}", ERR_INVALID, "whole number");
}

TEST(gemma4_has_heads_of_two_sizes) {
    static const char *const texts[] = {
        GEMMA4 GEMMA4_ROPES ",\"global_head_dim\":128,\"num_global_key_value_heads\":2,"
                            "\"attention_k_eq_v\":true,\"use_bidirectional_attention\":\"vision\"}",
        GEMMA4 GEMMA4_ROPES ",\"attention_k_eq_v\":true,\"per_layer_config\":{\"2\":"
                            "{\"head_dim\":128,\"num_key_value_heads\":2}}}"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct model_config c = parsed(texts[i]);
        const struct kv_shape windowed = c.layers[1].kv, full = c.layers[2].kv;
        assert_true(windowed.n_heads == 4 && windowed.head_dim == 32 && !c.layers[1].k_is_v);
        assert_true(full.n_heads == 2 && full.head_dim == 128 && c.layers[2].k_is_v);
        assert_true(c.n_kv_heads == 2 && c.head_dim == 128 && c.attn_scale == 1);
        assert_int_equal(model_qkv_width(&c), (8 + 2 * 2) * 128);
        /* A page has the size of the larger ones: here both have 256 elements a token. */
        assert_int_equal(model_pages(&c, PAGE_BF16, false).page_bytes, 64 * 2 * 256 * 2);
        /* A quarter of the larger heads' pairs rotate. */
        assert_true(model_n_freqs(&c, 1) == 16 && model_n_freqs(&c, 2) == 64);
        assert_true(model_freqs(&c, 2)[15] > 0 && model_freqs(&c, 2)[16] == 0);
        assert_true(fabs(model_freqs(&c, 2)[8] - pow(10000, -8.0 / 64)) < 1e-12);
        model_config_fini(&c);
    }
}

/* Seven layers, of which the last `n` share keys; with inputs of each layer. */
#define GEMMA4_SHARED(n, types)                                                                    \
    "{\"architectures\":[\"Gemma4ForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"            \
    "\"intermediate_size\":96,\"num_hidden_layers\":7,\"num_attention_heads\":8,"                  \
    "\"num_key_value_heads\":4,\"head_dim\":32,\"max_position_embeddings\":256,"                   \
    "\"use_double_wide_mlp\":true,\"num_kv_shared_layers\":" n ",\"layer_types\":[" types "],"

#define W "\"sliding_attention\","
#define F "\"full_attention\""

TEST(gemma4_layers_share_keys_with_the_last_of_their_kind) {
    static const uint32_t numbers[] = {0, 1, 2, 3, 2, 3, 3};
    struct model_config c = parsed(GEMMA4_SHARED("3", W F "," W F "," W F "," F) GEMMA4_ROPES
                                   ",\"hidden_size_per_layer_input\":16}");
    assert_int_equal(c.n_attention, 4);
    assert_true(c.layer_inputs == 16 && c.n_input_vocab == 262144 && model_without_slices(&c));
    for (uint32_t i = 0; i < 7; i++) {
        const struct layer_shape *shape = &c.layers[i];
        assert_int_equal(shape->number, numbers[i]);
        assert_true(shape->borrows_kv == (i >= 4) && shape->ffn_dim == (i >= 4 ? 192 : 96));
        assert_true(shape->is_last_reader == (i < 2 || i == 4 || i == 6));
        assert_int_equal(shape->kv.head_dim, i == 0 || i == 2 || i == 4 ? 32 : 512);
    }
    model_config_fini(&c);
}

TEST(gemma4_is_refused_by_the_key_that_differs) {
    expect_refused(GEMMA4_SHARED("7", W F "," W F "," W F "," F) GEMMA4_ROPES "}", ERR_UNSUPPORTED,
                   "'num_kv_shared_layers' leaves no layer with keys");
    expect_refused(GEMMA4_SHARED("1.5", W F "," W F "," W F "," F) GEMMA4_ROPES "}", ERR_INVALID,
                   "num_kv_shared_layers");
    expect_refused(GEMMA4_SHARED("3", W W W W W W F) GEMMA4_ROPES "}", ERR_INVALID,
                   "a type that no layer before has");
    expect_refused(GEMMA4_SHARED("3", W F "," W F "," W F "," F) GEMMA4_ROPES
                   ",\"vocab_size_per_layer_input\":99}",
                   ERR_UNSUPPORTED, "some tokens would have no inputs");
    expect_refused(GEMMA4 "\"global_head_dim\":128}", ERR_INVALID, "'rope_parameters' is missing");
    expect_refused(GEMMA4 GEMMA4_ROPES ",\"global_head_dim\":127}", ERR_UNSUPPORTED, "is odd");
    expect_refused(GEMMA4 GEMMA4_ROPES ",\"global_head_dim\":1024}", ERR_INVALID,
                   "global_head_dim");
    expect_refused(GEMMA4 GEMMA4_ROPES ",\"attention_k_eq_v\":true,"
                                       "\"num_global_key_value_heads\":3}",
                   ERR_INVALID, "does not divide");
    expect_refused(GEMMA4 GEMMA4_ROPES ",\"per_layer_config\":{\"1\":{\"head_dim\":64}}}",
                   ERR_UNSUPPORTED, "layers of one type that differ");
    expect_refused(GEMMA4 GEMMA4_ROPES ",\"per_layer_config\":{\"2\":{\"width\":64}}}",
                   ERR_UNSUPPORTED, "another key");
    expect_refused(GEMMA4 GEMMA4_ROPES ",\"use_bidirectional_attention\":\"all\"}", ERR_INVALID,
                   "use_bidirectional_attention");
}

TEST(granites_hybrids_have_mamba_layers) {
    struct model_config c = parsed(GRANITE_HYBRID MAMBA ",\"residual_multiplier\":0.5}");
    assert_true(c.recurrent.n_layers == 1 && c.n_attention == 1 &&
                c.layers[0].mixer == MIXER_RECURRENT);
    assert_true(c.recurrent.kind == RECURRENT_MAMBA && c.recurrent.n_k_heads == 1);
    assert_true(c.recurrent.n_v_heads == 8 && c.recurrent.v_dim == 16 && c.recurrent.k_dim == 256);
    assert_true(c.recurrent.dt_least == 0 && isinf(c.recurrent.dt_most) && c.conv_bias);
    assert_true(c.mixer_eps == 1e-6F && c.norm_eps == 4e-6F && c.fused_gate_up);
    assert_true(c.layers[0].kind == FFN_GATED && c.layers[1].ffn_dim == 40 && c.layers[1].is_local);
    model_config_fini(&c);
    c = parsed(GRANITE_HYBRID ",\"layer_types\":[\"linear_attention\",\"full_attention\"],"
                              "\"mamba_d_head\":\"auto\",\"mamba_expand\":4,"
                              "\"mamba_conv_bias\":false,\"mamba_n_groups\":2,"
                              "\"time_step_limit\":[0.5,2],\"position_embedding_type\":\"rope\","
                              "\"num_local_experts\":4,\"num_experts_per_tok\":2}");
    assert_true(c.recurrent.v_dim == 32 && c.recurrent.n_k_heads == 2 && !c.conv_bias);
    assert_true(c.recurrent.dt_least == 0.5F && c.recurrent.dt_most == 2 && !c.layers[0].is_local);
    assert_true(c.layers[0].kind == FFN_EXPERTS && c.layers[0].n_experts == 4);
    assert_true(c.layers[0].ffn_dim == 24 && c.layers[0].shared_dim == 40 && c.fused_shared);
    model_config_fini(&c);
    c = parsed(GRANITE_HYBRID MAMBA ",\"time_step_limit\":[0.0,{\"__float__\":\"Infinity\"}]}");
    assert_true(isinf(c.recurrent.dt_most));
    model_config_fini(&c);
    expect_refused(GRANITE_HYBRID "}", ERR_INVALID, "'layer_types' is missing");
    expect_refused(GRANITE_HYBRID ",\"layer_types\":[\"mamba\",\"moe\"]}", ERR_UNSUPPORTED,
                   "full_attention or mamba");
    expect_refused(GRANITE_HYBRID MAMBA ",\"mamba_d_head\":24}", ERR_INVALID, "mamba_expand");
    expect_refused(GRANITE_HYBRID MAMBA ",\"mamba_n_groups\":3}", ERR_INVALID,
                   "'mamba_n_groups' does not divide the heads");
    expect_refused(GRANITE_HYBRID MAMBA ",\"mamba_proj_bias\":true}", ERR_UNSUPPORTED,
                   "mamba_proj_bias");
    expect_refused(GRANITE_HYBRID MAMBA ",\"mamba_d_conv\":1}", ERR_UNSUPPORTED, "mamba_d_conv");
    expect_refused(GRANITE_HYBRID MAMBA ",\"time_step_limit\":[2,1]}", ERR_INVALID,
                   "time_step_limit");
    expect_refused(GRANITE_HYBRID MAMBA ",\"time_step_limit\":3}", ERR_INVALID, "time_step_limit");
    expect_refused(GRANITE_HYBRID MAMBA ",\"position_embedding_type\":\"learned\"}",
                   ERR_UNSUPPORTED, "position_embedding_type");
}

TEST(a_layer_of_nemotron_is_one_part) {
    struct model_config c = parsed(NEMOTRON ",\"layer_norm_epsilon\":1e-3,"
                                            "\"hybrid_override_pattern\":\"M-M*\"}");
    assert_true(c.recurrent.n_layers == 2 && c.n_attention == 1 && c.layers[2].number == 1);
    assert_true(c.recurrent.kind == RECURRENT_MAMBA && c.recurrent.n_k_heads == 8);
    assert_true(c.layers[0].mixer == MIXER_RECURRENT && c.layers[0].kind == FFN_NONE);
    assert_true(c.layers[1].mixer == MIXER_NONE && c.layers[1].kind == FFN_PLAIN);
    assert_true(c.layers[3].mixer == MIXER_ATTENTION && c.layers[3].kind == FFN_NONE);
    assert_true(c.act == ACT_RELU2 && c.head_dim == 128 && c.layers[3].is_local);
    assert_true(c.norm_eps == 1e-3F && c.mixer_eps == 1e-3F && !model_ends_recurrent(&c));
    model_config_fini(&c);
    c = parsed(NEMOTRON ",\"layers_block_type\":[\"full_attention\",\"mlp\",\"linear_attention\","
                        "\"mlp\"],\"use_conv_bias\":false,\"mlp_bias\":true}");
    assert_true(c.layers[2].mixer == MIXER_RECURRENT && c.layers[3].kind == FFN_PLAIN);
    assert_true(!c.conv_bias && c.mlp_bias && model_ends_recurrent(&c));
    model_config_fini(&c);
    c = parsed(NEMOTRON
               ",\"layer_types\":[\"full_attention\",\"mlp\",\"linear_attention\",\"mlp\"],"
               "\"hybrid_override_pattern\":\"MMMM\"}");
    assert_true(c.layers[0].mixer == MIXER_ATTENTION && c.layers[1].kind == FFN_PLAIN);
    model_config_fini(&c);
    expect_refused(NEMOTRON "}", ERR_INVALID, "'hybrid_override_pattern' does not say of each");
    expect_refused(NEMOTRON ",\"layer_types\":[\"mamba\"]}", ERR_INVALID,
                   "'layer_types' does not say of each");
    expect_refused(NEMOTRON ",\"hybrid_override_pattern\":\"M-M\"}", ERR_INVALID,
                   "'hybrid_override_pattern' does not say of each");
    expect_refused(NEMOTRON ",\"layers_block_type\":[\"mamba\",\"moe2\",\"mlp\",\"attention\"]}",
                   ERR_UNSUPPORTED, "'layers_block_type' has a layer that is not");
    expect_refused(NEMOTRON ",\"hybrid_override_pattern\":\"MXM*\"}", ERR_UNSUPPORTED,
                   "'hybrid_override_pattern' has a layer that is not");
    expect_refused(NEMOTRON ",\"layers_block_type\":[1,2,3,4]}", ERR_UNSUPPORTED,
                   "layers_block_type");
    expect_refused(NEMOTRON ",\"hybrid_override_pattern\":\"-*-*\"}", ERR_UNSUPPORTED,
                   "has no layer of mamba");
    expect_refused(NEMOTRON ",\"hybrid_override_pattern\":\"M-M-\"}", ERR_UNSUPPORTED,
                   "full_attention");
    expect_refused(NEMOTRON ",\"hybrid_override_pattern\":\"M-M*\",\"use_bias\":true}",
                   ERR_UNSUPPORTED, "use_bias");
    expect_refused(NEMOTRON ",\"hybrid_override_pattern\":\"M-M*\",\"mamba_hidden_act\":\"gelu\"}",
                   ERR_UNSUPPORTED, "mamba_hidden_act");
}

#define NEMOTRON_EXPERTS                                                                           \
    NEMOTRON ",\"hybrid_override_pattern\":\"ME*-\",\"n_routed_experts\":6,\"moe_intermediate_"    \
             "size\":20"

TEST(experts_of_nemotron_have_no_gates) {
    struct model_config c =
        parsed(NEMOTRON_EXPERTS ",\"num_experts_per_tok\":2,\"routed_scaling_factor\":2.5,"
                                "\"moe_shared_expert_intermediate_size\":28,\"head_dim\":null,"
                                "\"attention_head_dim\":64,\"moe_latent_size\":null}");
    assert_true(c.layers[1].kind == FFN_PLAIN_EXPERTS && c.layers[1].n_experts == 6);
    assert_true(c.layers[1].n_used == 2 && c.layers[1].ffn_dim == 20 &&
                c.layers[1].shared_dim == 28);
    assert_true(c.layers[3].kind == FFN_PLAIN && c.layers[3].ffn_dim == 24);
    for (uint32_t i = 0; i < c.n_layers; i++)
        assert_true(i == 1 || (c.layers[i].n_experts == 0 && c.layers[i].shared_dim == 0));
    assert_true(c.routing.kind == ROUTE_SIGMOID && c.routing.normalises &&
                c.routing.factor == 2.5F);
    assert_true(c.has_choice_bias && !c.has_router_bias && c.head_dim == 64);
    model_config_fini(&c);
    expect_refused(NEMOTRON_EXPERTS "}", ERR_INVALID, "'num_experts_per_tok' is missing");
    expect_refused(NEMOTRON_EXPERTS ",\"num_experts_per_tok\":2,\"moe_latent_size\":16}",
                   ERR_UNSUPPORTED, "moe_latent_size");
    expect_refused(NEMOTRON_EXPERTS ",\"num_experts_per_tok\":2,\"mlp_hidden_act\":\"gelu\"}",
                   ERR_UNSUPPORTED, "'mlp_hidden_act' is not relu2");
}

/* transformers 5 does not write 'num_hidden_layers'. */
TEST(layers_of_nemotron_are_counted_where_their_number_is_missing) {
    struct model_config c = parsed(
        "{\"architectures\":[\"NemotronHForCausalLM\"],\"vocab_size\":100,\"hidden_size\":64,"
        "\"intermediate_size\":24,\"num_attention_heads\":4,\"max_position_embeddings\":256,"
        "\"hybrid_override_pattern\":\"M*-\"}");
    assert_true(c.n_layers == 3 && c.n_attention == 1);
    model_config_fini(&c);
    expect_refused("{\"architectures\":[\"NemotronHForCausalLM\"],\"vocab_size\":100,"
                   "\"hidden_size\":64}",
                   ERR_INVALID, "'num_hidden_layers' is missing");
}
