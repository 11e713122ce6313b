/* test_config.c - config.json in the spellings that exist; what the decoder cannot do is refused by
 * name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/model/config.h"
#include "engine/model/feed_forward.h"
#include "tests/test.h"

static const char base[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":100,\"hidden_"
                           "size\":64,\"intermediate_size\":96,"
                           "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"max_position_"
                           "embeddings\":256,\"eos_token_id\":2}";

#define MISTRAL "{\"architectures\":[\"MistralForCausalLM\"],"
#define PHI3 "{\"architectures\":[\"Phi3ForCausalLM\"],"
#define QWEN2 "{\"architectures\":[\"Qwen2ForCausalLM\"],"

/* Parses `base` with the members of `changes` put over it; generation may be NULL. */
static int parse(struct model_config *out, const char *changes, const char *generation,
                 uint32_t context, struct error *err) {
    json_t *root = json_loads(base, 0, NULL), *over = json_loads(changes, 0, NULL);
    json_t *gen = generation ? json_loads(generation, 0, NULL) : NULL;
    assert_non_null(root);
    assert_non_null(over);
    json_object_update(root, over);
    int rc = model_config_parse(out, root, gen, "dir", context, err);
    json_decref(root);
    json_decref(over);
    json_decref(gen);
    return rc;
}

static void expect_refused_at(uint32_t context, const char *changes, int code, const char *needle) {
    struct model_config config = {0};
    struct error err = {0};
    int rc = parse(&config, changes, NULL, context, &err);
    if (rc != code) fail_msg("%s: %d, not %d", changes, rc, code);
    assert_null(config.inv_freq);
    if (!strstr(err.text, needle)) fail_msg("'%s' does not say '%s'", err.text, needle);
}

static void expect_refused(const char *changes, int code, const char *needle) {
    expect_refused_at(0, changes, code, needle);
}

static struct model_config expect_parsed_at(uint32_t context, const char *changes,
                                            const char *generation) {
    struct model_config config = {0};
    struct error err = {0};
    if (parse(&config, changes, generation, context, &err)) fail_msg("%s: %s", changes, err.text);
    return config;
}

static struct model_config expect_parsed(const char *changes, const char *generation) {
    return expect_parsed_at(0, changes, generation);
}

TEST(fills_in_defaults) {
    struct model_config c = expect_parsed("{}", NULL);
    assert_string_equal(c.architecture, "LlamaForCausalLM");
    assert_int_equal(c.n_vocab, 100);
    assert_int_equal(c.dim, 64);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.n_freqs, 8);
    assert_int_equal(c.layers[0].ffn_dim, 96);
    assert_int_equal(c.max_position, 256);
    assert_true(c.norm_eps == 1e-6f && c.attn_scale == 0.25f && c.rope_scale == 1.0f);
    assert_false(c.tied_head || c.qkv_bias || c.o_bias || c.mlp_bias || c.has_bos);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(fabs(c.inv_freq[i] / pow(10000.0, -(double)i / 8) - 1) < 1e-12);
    model_config_fini(&c);
    assert_null(c.inv_freq);
}

TEST(reads_options) {
    struct model_config c =
        expect_parsed("{\"num_key_value_heads\":2,\"head_dim\":32,\"rms_norm_eps\":1e-5,"
                      "\"tie_word_embeddings\":true,\"attention_bias\":true,\"mlp_bias\":true,"
                      "\"torch_dtype\":\"bfloat16\",\"hidden_act\":\"silu\",\"bos_token_id\":1,"
                      "\"num_hidden_layers\":1024,\"rope_scaling\":null}",
                      NULL);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.n_layers, 1024);
    assert_true(c.norm_eps == 1e-5f && c.tied_head && c.qkv_bias && c.o_bias && c.mlp_bias);
    assert_true(c.has_bos);
    assert_int_equal(c.bos, 1);
    model_config_fini(&c);
    c = expect_parsed("{\"dtype\":\"float16\"}", NULL);
    model_config_fini(&c);
}

TEST(end_tokens_of_both_files_count_once) {
    struct model_config c =
        expect_parsed("{\"eos_token_id\":[5,6]}", "{\"eos_token_id\":[6,7],\"bos_token_id\":3}");
    const uint32_t expected[] = {5, 6, 7};
    assert_int_equal(c.n_eos, 3);
    assert_memory_equal(c.eos, expected, sizeof(expected));
    assert_true(c.has_bos);
    assert_int_equal(c.bos, 3);
    model_config_fini(&c);
    c = expect_parsed("{\"eos_token_id\":null}", "{\"eos_token_id\":9}");
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 9);
    model_config_fini(&c);
}

TEST(refuses_bad_tokens) {
    expect_refused("{\"eos_token_id\":100}", ERR_INVALID, "eos_token_id");
    expect_refused("{\"eos_token_id\":-1}", ERR_INVALID, "eos_token_id");
    expect_refused("{\"eos_token_id\":[2,\"3\"]}", ERR_INVALID, "eos_token_id");
    expect_refused("{\"bos_token_id\":1.5}", ERR_INVALID, "bos_token_id");
    expect_refused("{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", ERR_UNSUPPORTED,
                   "eos_token_id");
}

TEST(refuses_missing_or_wild_sizes) {
    static const char *const keys[] = {"vocab_size",          "hidden_size",
                                       "num_hidden_layers",   "intermediate_size",
                                       "num_attention_heads", "max_position_embeddings"};
    static const char *const values[] = {"null", "0", "-1", "1.5", "\"8\"", "4294967296", "[4]"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        for (size_t j = 0; j < sizeof(values) / sizeof(values[0]); j++) {
            char changes[128];
            snprintf(changes, sizeof(changes), "{\"%s\":%s}", keys[i], values[j]);
            expect_refused(changes, ERR_INVALID, keys[i]);
        }
    }
}

TEST(refuses_heads_that_do_not_fit) {
    expect_refused("{\"num_key_value_heads\":3}", ERR_INVALID, "num_key_value_heads");
    expect_refused("{\"num_key_value_heads\":8}", ERR_INVALID, "num_key_value_heads");
    expect_refused("{\"num_key_value_heads\":0}", ERR_INVALID, "num_key_value_heads");
    expect_refused("{\"hidden_size\":66}", ERR_INVALID, "hidden_size");
    expect_refused("{\"head_dim\":7}", ERR_UNSUPPORTED, "head_dim");
    expect_refused("{\"head_dim\":514}", ERR_INVALID, "head_dim");
    expect_refused("{\"hidden_size\":4096}", ERR_UNSUPPORTED, "head_dim");
}

#define WRAPPER(name, members)                                                                     \
    "{\"architectures\":[\"" name "ForConditionalGeneration\"]," members "}"

/* Settings of the text model are in 'text_config' alone; those beside it are an image tower's. */
TEST(reads_the_text_half_of_a_wrapper) {
    struct model_config c = expect_parsed(
        WRAPPER("Mistral3", "\"hidden_size\":7,\"torch_dtype\":\"float16\","
                            "\"text_config\":{\"model_type\":\"mistral\",\"hidden_size\":64,"
                            "\"num_hidden_layers\":3,\"sliding_window\":null,"
                            "\"tie_word_embeddings\":false}"),
        NULL);
    assert_string_equal(c.architecture, "MistralForCausalLM");
    assert_true(c.is_text_half && c.dim == 64 && c.n_layers == 3 && c.element == ELEMENT_F16);
    /* transformers' values of what is left out, and the wrapper's of what it says or does not. */
    assert_true(c.n_vocab == 32000 && c.n_kv_heads == 8 && c.layers[2].ffn_dim == 14336);
    assert_true(c.tied_head && c.eos[0] == 2 && c.n_eos == 1 && !c.windows);
    model_config_fini(&c);
    c = expect_parsed(WRAPPER("Gemma3", "\"eos_token_id\":[1,106],\"tie_word_embeddings\":false,"
                                        "\"text_config\":{\"num_hidden_layers\":6,"
                                        "\"eos_token_id\":7,\"sliding_window\":1024}"),
                      NULL);
    assert_string_equal(c.architecture, "Gemma3ForCausalLM");
    assert_true(c.dim == 2304 && c.n_heads == 8 && c.n_kv_heads == 4 && c.head_dim == 256);
    assert_true(c.n_vocab == 262208 && c.max_position == 131072 && !c.tied_head);
    assert_true(c.n_eos == 2 && c.eos[1] == 106 && c.windows[4] == 1024 && c.windows[5] == 0);
    model_config_fini(&c);
}

TEST(reads_how_a_wrapper_is_quantised) {
    struct model_config c =
        expect_parsed(WRAPPER("Gemma3", "\"quantization_config\":{\"quant_method\":\"fp8\"},"
                                        "\"text_config\":{}"),
                      NULL);
    assert_string_equal(c.quantisation.method, "fp8");
    model_config_fini(&c);
}

TEST(refuses_a_text_half_that_is_not_served) {
    expect_refused(WRAPPER("Mistral3", "\"text_config\":{\"model_type\":\"mistral4\"}"),
                   ERR_UNSUPPORTED, "'model_type' 'mistral4' is no text model of Mistral3For");
    expect_refused(WRAPPER("Gemma3", "\"text_config\":{\"model_type\":\"llama\"}"), ERR_UNSUPPORTED,
                   "'model_type' 'llama' is no text model of Gemma3For");
    expect_refused(WRAPPER("Gemma3", "\"text_config\":{\"model_type\":3}"), ERR_UNSUPPORTED,
                   "'model_type' ''");
    expect_refused(WRAPPER("Gemma3", "\"text_config\":[]"), ERR_INVALID, "'text_config' is not");
    expect_refused(WRAPPER("Gemma3", "\"text_config\":{\"rms_norm_eps\":2}"), ERR_INVALID,
                   "'rms_norm_eps'");
}

TEST(names_the_architecture_that_is_the_nearest) {
    expect_refused("{\"architectures\":[\"Qwen3ForCausalLm\"]}", ERR_UNSUPPORTED,
                   "the nearest is Qwen3ForCausalLM; these are: ForCausalLM: Llama, Mistral,");
    expect_refused("{\"architectures\":[\"Phi9ForCausalLM\"]}", ERR_UNSUPPORTED,
                   "nearest is Phi3ForCausalLM");
    expect_refused("{\"architectures\":[\"Gemma3nForConditionalGeneration\"]}", ERR_UNSUPPORTED,
                   "nearest is Gemma3ForConditionalGeneration");
    expect_refused("{\"architectures\":[\"Qwen9ForConditionalGeneration\"]}", ERR_UNSUPPORTED,
                   "; ForConditionalGeneration: Gemma3, Gemma4, Gemma4Unified, Mistral3, Qwen3_5");
}

TEST(refuses_what_the_decoder_cannot_do) {
    expect_refused("{\"architectures\":[\"MambaForCausalLM\"]}", ERR_UNSUPPORTED,
                   "MambaForCausalLM");
    expect_refused("{\"final_logit_softcapping\":30}", ERR_UNSUPPORTED, "final_logit_softcapping");
    expect_refused("{\"use_bidirectional_attention\":true}", ERR_UNSUPPORTED,
                   "use_bidirectional_attention");
    expect_refused("{\"attn_logit_softcapping\":50}", ERR_UNSUPPORTED, "attn_logit_softcapping");
    expect_refused("{\"architectures\":[\"Llama4ForConditionalGeneration\"]}", ERR_UNSUPPORTED,
                   "'Llama4ForConditionalGeneration' is not supported: there is no chunked");
    expect_refused("{\"architectures\":[]}", ERR_INVALID, "architectures");
    expect_refused("{\"architectures\":null}", ERR_INVALID, "architectures");
    expect_refused("{\"hidden_act\":\"gelu\"}", ERR_UNSUPPORTED, "hidden_act");
    expect_refused("{\"quantization_config\":{\"bits\":4}}", ERR_UNSUPPORTED,
                   "quantization_config");
    expect_refused("{\"torch_dtype\":\"int8\"}", ERR_UNSUPPORTED, "dtype");
    expect_refused("{\"partial_rotary_factor\":0.5}", ERR_UNSUPPORTED, "partial_rotary_factor");
    expect_refused("{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", ERR_UNSUPPORTED,
                   "partial_rotary_factor");
    expect_refused(PHI3 "\"partial_rotary_factor\":0.2}", ERR_UNSUPPORTED, "partial_rotary_factor");
    expect_refused(PHI3 "\"partial_rotary_factor\":0.01}", ERR_UNSUPPORTED,
                   "partial_rotary_factor");
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"unheard-of\"}}", ERR_UNSUPPORTED,
                   "unheard-of");
    expect_refused("{\"rope_scaling\":{\"mrope_section\":[1,2]}}", ERR_UNSUPPORTED,
                   "mrope_section");
    expect_refused("{\"mlp_bias\":1}", ERR_INVALID, "mlp_bias");
    expect_refused("{\"rms_norm_eps\":0}", ERR_INVALID, "rms_norm_eps");
    expect_refused("{\"rms_norm_eps\":\"1e-5\"}", ERR_INVALID, "rms_norm_eps");
}

static void expect_context(uint32_t expected, uint32_t asked, const char *changes) {
    struct model_config c = expect_parsed_at(asked, changes, NULL);
    assert_int_equal(c.max_position, expected);
    model_config_fini(&c);
}

/* Of the two layers; 0: it sees everything. */
static void expect_windows(uint32_t first, uint32_t second, const char *changes) {
    struct model_config c = expect_parsed(changes, NULL);
    assert_int_equal(c.window, first ? first : second);
    assert_true((c.windows == NULL) == (c.window == 0));
    if (c.windows) assert_true(c.windows[0] == first && c.windows[1] == second);
    assert_true(model_has_full_attention(&c) == (first == 0 || second == 0));
    model_config_fini(&c);
}

#define QWEN2_WINDOW QWEN2 "\"use_sliding_window\":true,\"sliding_window\":200,"

TEST(families_have_windows_in_their_own_layers) {
    expect_windows(0, 0, MISTRAL "\"sliding_window\":null}");
    expect_windows(0, 0, MISTRAL "\"sliding_window\":256}"); /* as long as the context */
    expect_windows(255, 255, MISTRAL "\"sliding_window\":255}");
    expect_windows(4096, 4096, MISTRAL "\"max_position_embeddings\":8192}");
    expect_windows(256, 256,
                   MISTRAL "\"sliding_window\":256,"
                           "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}");
    expect_windows(0, 0, PHI3 "\"max_position_embeddings\":8192}");
    expect_windows(200, 200, PHI3 "\"sliding_window\":200}");
    expect_windows(0, 0, "{\"sliding_window\":200}"); /* Llama has none, whatever is said */
    expect_windows(0, 0, QWEN2 "\"sliding_window\":200,\"use_sliding_window\":false}");
    expect_windows(0, 0, QWEN2_WINDOW "\"max_window_layers\":2}");
    expect_windows(0, 0, QWEN2_WINDOW "\"max_position_embeddings\":256}"); /* 28 layers have none */
    expect_windows(0, 200, QWEN2_WINDOW "\"max_window_layers\":1}");
    expect_windows(200, 200, QWEN2_WINDOW "\"max_window_layers\":0}");
    expect_windows(200, 0,
                   QWEN2_WINDOW "\"max_window_layers\":1,"
                                "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}");
}

TEST(softmax_may_have_sinks) {
    static const struct {
        const char *changes;
        enum softmax_kind softmax;
    } cases[] = {{"{}", SOFTMAX_PLAIN},
                 {"{\"softmax_type\":\"vanilla\"}", SOFTMAX_PLAIN},
                 {"{\"softmax_type\":\"off-by-one\"}", SOFTMAX_OFF_BY_ONE},
                 {"{\"softmax_type\":\"learnable\"}", SOFTMAX_SINKS}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct model_config c = expect_parsed(cases[i].changes, NULL);
        assert_int_equal(c.softmax, cases[i].softmax);
        model_config_fini(&c);
    }
    expect_refused("{\"softmax_type\":\"off_by_one\"}", ERR_UNSUPPORTED, "softmax_type");
    expect_refused("{\"softmax_type\":1}", ERR_UNSUPPORTED, "softmax_type");
}

#define GEMMA2 "{\"architectures\":[\"Gemma2ForCausalLM\"]"

static void expect_caps(float attention, float logits, const char *changes) {
    struct model_config c = expect_parsed(changes, NULL);
    assert_true(c.attn_softcap == attention && c.logit_softcap == logits);
    model_config_fini(&c);
}

TEST(gemma_2_has_settings_of_its_own) {
    expect_caps(50, 30, GEMMA2 "}");
    expect_caps(0, 0, GEMMA2 ",\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null}");
    expect_caps(20.5f, 30, GEMMA2 ",\"attn_logit_softcapping\":20.5}");
    expect_caps(50, 7, GEMMA2 ",\"final_logit_softcapping\":7}");
    expect_refused(GEMMA2 ",\"final_logit_softcapping\":0}", ERR_INVALID,
                   "final_logit_softcapping");
    expect_refused(GEMMA2 ",\"attn_logit_softcapping\":\"50\"}", ERR_INVALID,
                   "attn_logit_softcapping");
    expect_windows(100, 0, GEMMA2 ",\"sliding_window\":100}"); /* every other layer */
    struct model_config c = expect_parsed(GEMMA2 ",\"query_pre_attn_scalar\":25}", NULL);
    assert_true(c.head_dim == 256 && c.attn_scale == 0.2f && c.tied_head && !c.qk_norm);
    assert_true(c.embed_scale == sqrtf((float)c.dim) && c.gate == GATE_GELU && c.norms_from_one);
    assert_true(!c.local_freq && c.inv_freq[1] > pow(10000, -1.0 / 128) - 1e-9);
    model_config_fini(&c);
}

#define GEMMA3 "{\"architectures\":[\"Gemma3ForCausalLM\"],\"sliding_window\":100,"

/* Of a head of 16, by the second pair: theta^(-1/8). */
static void expect_thetas(double wide, double local, const char *changes) {
    struct model_config c = expect_parsed(changes, NULL);
    assert_true(c.local_freq && c.n_freqs == 8);
    assert_true(fabs(c.inv_freq[1] / wide - 1) < 1e-12);
    assert_true(fabs(c.local_freq[1] / pow(local, -1.0 / 8) - 1) < 1e-12);
    model_config_fini(&c);
}

TEST(gemma_3_has_settings_of_its_own) {
    const double million = pow(1e6, -1.0 / 8);
    expect_windows(100, 100, GEMMA3 "\"head_dim\":16}"); /* the sixth would see everything */
    expect_windows(100, 0, GEMMA3 "\"sliding_window_pattern\":2}");
    expect_windows(4096, 4096, "{\"architectures\":[\"Gemma3ForCausalLM\"]}");
    expect_thetas(million, 10000, GEMMA3 "\"head_dim\":16}");
    expect_thetas(million / 8, 3000,
                  GEMMA3 "\"head_dim\":16,\"rope_local_base_freq\":3000,"
                         "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}");
    expect_thetas(pow(500.0, -1.0 / 8), 3000,
                  GEMMA3 "\"head_dim\":16,\"rope_parameters\":{"
                         "\"full_attention\":{\"rope_theta\":500},"
                         "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":3000}}}");
    struct model_config c = expect_parsed(GEMMA3 "\"query_pre_attn_scalar\":25}", NULL);
    assert_true(c.head_dim == 256 && c.attn_scale == 0.2f && c.tied_head);
    assert_true(c.embed_scale == sqrtf((float)c.dim) && c.gate == GATE_GELU && c.norms_from_one);
    model_config_fini(&c);
    expect_refused(GEMMA3 "\"hidden_activation\":\"silu\"}", ERR_UNSUPPORTED, "hidden_activation");
    expect_refused("{\"architectures\":[\"Gemma3ForCausalLM\"],\"sliding_window\":null}",
                   ERR_UNSUPPORTED, "sliding_window");
    expect_refused(GEMMA3 "\"rope_parameters\":{\"full_attention\":{},"
                          "\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}}",
                   ERR_UNSUPPORTED, "sliding_attention");
}

TEST(refuses_windows_that_it_cannot_place) {
    expect_refused(MISTRAL "\"sliding_window\":\"200\"}", ERR_INVALID, "sliding_window");
    expect_refused(QWEN2_WINDOW "\"max_window_layers\":-1}", ERR_INVALID, "max_window_layers");
    expect_refused(QWEN2_WINDOW "\"layer_types\":[\"full_attention\"]}", ERR_INVALID,
                   "layer_types");
    expect_refused(QWEN2 "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
                   ERR_UNSUPPORTED, "layer_types");
    expect_refused(QWEN2 "\"layer_types\":[3,3]}", ERR_UNSUPPORTED, "layer_types");
}

TEST(a_family_has_its_own_biases) {
    struct model_config c = expect_parsed(QWEN2 "\"head_dim\":32}", NULL);
    assert_true(c.qkv_bias && !c.o_bias && !c.mlp_bias);
    model_config_fini(&c);
    c = expect_parsed("{\"attention_bias\":true}", NULL);
    assert_true(c.qkv_bias && c.o_bias && !c.mlp_bias);
    model_config_fini(&c);
    c = expect_parsed(MISTRAL "\"attention_bias\":false}", NULL);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias);
    model_config_fini(&c);
    c = expect_parsed("{\"architectures\":[\"Glm4ForCausalLM\"]}", NULL);
    assert_true(c.qkv_bias && !c.o_bias && c.n_freqs == 4); /* half of a head of 16 turns */
    model_config_fini(&c);
    expect_refused(MISTRAL "\"attention_bias\":true}", ERR_UNSUPPORTED, "attention_bias");
    expect_refused(QWEN2 "\"mlp_bias\":true}", ERR_UNSUPPORTED, "mlp_bias");
}

TEST(both_rope_spellings_mean_the_same) {
    static const char *const spellings[] = {
        "{\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}",
        "{\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4}}",
        "{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":500000.0}}",
        "{\"rope_theta\":1.0,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_"
        "theta\":500000.0}}",
    };
    for (size_t s = 0; s < sizeof(spellings) / sizeof(spellings[0]); s++) {
        struct model_config c = expect_parsed(spellings[s], NULL);
        for (uint32_t i = 0; i < 8; i++)
            assert_true(fabs(c.inv_freq[i] / (pow(500000.0, -(double)i / 8) / 4) - 1) < 1e-12);
        model_config_fini(&c);
    }
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_parameters\":{}}",
                   ERR_INVALID, "rope_parameters");
}

/* Llama 3.1's own numbers, head_dim 16: the three bands, with the blend computed by hand.
 * theta^(-i/8) * 8192 / 2pi turns: 1303.8 252.8 49.0 9.51 | 1.844 | 0.358 0.0693 0.0134. */
TEST(llama3_scales_each_band) {
    struct model_config c = expect_parsed(
        "{\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}}",
        NULL);
    for (uint32_t i = 0; i < 8; i++) {
        const double freq = pow(500000.0, -(double)i / 8);
        const double keep = (8192 * freq / (2 * 3.14159265358979323846) - 1.0) / 3.0;
        const double expected = i < 4 ? freq : i > 4 ? freq / 8 : freq * (keep + (1 - keep) / 8);
        assert_true(fabs(c.inv_freq[i] / expected - 1) < 1e-12);
    }
    model_config_fini(&c);
}

TEST(refuses_incomplete_rope) {
    expect_refused("{\"rope_theta\":0}", ERR_INVALID, "rope_theta");
    expect_refused("{\"rope_scaling\":7}", ERR_INVALID, "rope_scaling");
    expect_refused("{\"rope_parameters\":[]}", ERR_INVALID, "rope_parameters");
    expect_refused("{\"rope_scaling\":{\"type\":\"linear\"}}", ERR_INVALID, "factor");
    expect_refused("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", ERR_INVALID,
                   "factor");
    expect_refused("{\"rope_scaling\":{\"type\":3}}", ERR_UNSUPPORTED, "rope_type");
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", ERR_INVALID,
                   "low_freq_factor");
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
                   "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
                   ERR_INVALID, "high_freq_factor");
}

TEST(yarn_stretches_the_context) {
    expect_context(1024, 0, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}");
    expect_context(256, 0,
                   "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                   "\"original_max_position_embeddings\":64}}");
    struct model_config c =
        expect_parsed("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", NULL);
    assert_true(fabs(c.rope_scale - (0.1 * log(4) + 1)) < 1e-6);
    model_config_fini(&c);
    c = expect_parsed("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                      "\"attention_factor\":0.75}}",
                      NULL);
    assert_true(c.rope_scale == 0.75f);
    model_config_fini(&c);
    expect_refused("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_slow\":32}}",
                   ERR_INVALID, "beta_fast");
    expect_refused("{\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}",
                   ERR_INVALID, "rope_theta");
}

/* The slowest of 8 pairs; theta^(-7/8) by default. */
static double slowest_pair(uint32_t context, const char *changes, uint32_t expected_context) {
    struct model_config c = expect_parsed_at(context, changes, NULL);
    const double slowest = c.inv_freq[7];
    assert_int_equal(c.max_position, expected_context);
    model_config_fini(&c);
    return slowest;
}

/* With 8 pairs theta grows by (factor * stretch - factor + 1)^(8/7), the slowest pair's divisor
 * therefore by the inside of the bracket. */
TEST(dynamic_scaling_is_settled_by_the_longest_text) {
    static const char dynamic[] = "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":3}}";
    const double usual = pow(10000.0, -7.0 / 8);
    assert_true(fabs(slowest_pair(0, dynamic, 256) / usual - 1) < 1e-12);
    assert_true(fabs(slowest_pair(100, dynamic, 256) / usual - 1) < 1e-12);
    assert_true(fabs(slowest_pair(512, dynamic, 512) / (usual / 4) - 1) < 1e-12);
    assert_true(fabs(slowest_pair(9999, dynamic, 768) / (usual / 7) - 1) < 1e-12);
    expect_refused("{\"head_dim\":2,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":3}}",
                   ERR_UNSUPPORTED, "dynamic");
}

#define LONGROPE(short_factor)                                                                     \
    "{\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"longrope\","            \
    "\"short_factor\":" short_factor ",\"long_factor\":[1,1,1,1,1,1,1,5]}}"

TEST(longrope_is_settled_by_the_longest_text) {
    static const char longrope[] = LONGROPE("[1,1,1,1,1,1,1,2]");
    const double usual = pow(10000.0, -7.0 / 8);
    assert_true(fabs(slowest_pair(64, longrope, 64) / (usual / 2) - 1) < 1e-12);
    assert_true(fabs(slowest_pair(65, longrope, 256) / (usual / 5) - 1) < 1e-12);
    assert_true(fabs(slowest_pair(0, longrope, 256) / (usual / 5) - 1) < 1e-12);
    struct model_config c = expect_parsed(longrope, NULL);
    assert_true(fabs(c.rope_scale - sqrt(1 + log(4) / log(64))) < 1e-6);
    model_config_fini(&c);
    expect_refused(LONGROPE("[1,1,1]"), ERR_INVALID, "short_factor");
    expect_refused(LONGROPE("[1,1,1,1,1,1,1,0]"), ERR_INVALID, "short_factor");
    expect_refused(LONGROPE("[1,1,1,1,1,1,1,\"1\"]"), ERR_INVALID, "short_factor");
    expect_refused("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"long_factor\":[1]}}",
                   ERR_UNSUPPORTED, "longrope");
    expect_refused("{\"rope_scaling\":{\"type\":\"su\"}}", ERR_INVALID,
                   "original_max_position_embeddings");
}

TEST(loads_the_default_model) {
    struct model_config c = {0};
    struct error err = {0};
    assert_int_equal(model_config_load(&c, MODEL_DIR, 0, &err), 0);
    assert_int_equal(c.n_vocab, 8192);
    assert_int_equal(c.n_kv_heads, 2);
    assert_true(c.tied_head && c.n_eos >= 1);
    model_config_fini(&c);
    assert_int_equal(model_config_load(&c, MODEL_DIR "/nowhere", 0, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "nowhere/config.json"));
}
