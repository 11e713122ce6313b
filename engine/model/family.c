/* family.c - see family.h.  A new family is a row here and, where tensors have other names or
 * shapes, rules in weights.c. */
#include "engine/model/family.h"

#include <stddef.h>
#include <string.h>

#include "engine/model/family_config.h"
#include "engine/model/family_names.h"

static const struct model_family families[] = {
    {.architecture = "LlamaForCausalLM",
     .type = "llama",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .mlp_bias = BIAS_AS_SAID,
     .norm_eps = 1e-6},
    {.architecture = "MistralForCausalLM",
     .type = "mistral",
     .window = WINDOW_AS_SAID,
     .usual_window = 4096,
     .norm_eps = 1e-6},
    {.architecture = "Qwen2ForCausalLM",
     .type = "qwen2",
     .qkv_bias = BIAS_ALWAYS,
     .window = WINDOW_IF_USED,
     .usual_window = 4096,
     .norm_eps = 1e-6},
    {.architecture = "Qwen3ForCausalLM",
     .type = "qwen3",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .window = WINDOW_IF_USED,
     .usual_window = 4096,
     .norm_eps = 1e-6,
     .qk_norm = true},
    {.architecture = "Phi3ForCausalLM",
     .type = "phi3",
     .window = WINDOW_AS_SAID,
     .norm_eps = 1e-5,
     .partial_rotary = 1.0,
     .fused_qkv = true,
     .fused_gate_up = true},
    {.architecture = "GlmForCausalLM",
     .type = "glm",
     .qkv_bias = BIAS_AS_SAID,
     .usual_bias = true,
     .norm_eps = 1.5625e-7,
     .partial_rotary = 0.5,
     .fused_gate_up = true,
     .paired_rotary = true},
    {.architecture = "Glm4ForCausalLM",
     .type = "glm4",
     .qkv_bias = BIAS_AS_SAID,
     .usual_bias = true,
     .norm_eps = 1.5625e-7,
     .partial_rotary = 0.5,
     .post_norms = true,
     .fused_gate_up = true,
     .paired_rotary = true},
    {.architecture = "Gemma2ForCausalLM",
     .type = "gemma2",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .window = WINDOW_AS_SAID,
     .usual_window = 4096,
     .norm_eps = 1e-6,
     .post_norms = true,
     .own_ffn_norms = true,
     .norms_from_one = true,
     .window_period = 2,
     .usual_head_dim = 256,
     .usual_query_scalar = 256,
     .usual_attn_softcap = 50,
     .usual_logit_softcap = 30,
     .usually_tied = true,
     .scales_embedding = true,
     .gate = GATE_GELU},
    {.architecture = "Gemma3ForCausalLM",
     .type = "gemma3_text",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .window = WINDOW_AS_SAID,
     .usual_window = 4096,
     .norm_eps = 1e-6,
     .qk_norm = true,
     .post_norms = true,
     .own_ffn_norms = true,
     .norms_from_one = true,
     .usual_local_theta = 10000,
     .window_period = 6,
     .usual_theta = 1e6,
     .usual_head_dim = 256,
     .usual_query_scalar = 256,
     .usually_tied = true,
     .scales_embedding = true,
     .gate = GATE_GELU},
    {.architecture = "GPTNeoXForCausalLM",
     .type = "gpt_neox",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .mlp_bias = BIAS_ALWAYS,
     .usual_bias = true,
     .norm_eps = 1e-5,
     .keys = neox_keys,
     .tensors = neox_tensors,
     .read = family_read_neox,
     .layer_norm = true,
     .norm_bias = true,
     .plain_ffn = true,
     .fused_qkv = true,
     .qkv_by_group = true,
     .partial_rotary = 0.25},
};

const struct model_family *family_find(const char *architecture) {
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(families[i].architecture, architecture) == 0) return &families[i];
    return NULL;
}

const char *family_of_type(const char *type) {
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(families[i].type, type) == 0) return families[i].architecture;
    return NULL;
}

const char *family_missing(const char *architecture) {
    static const char *const known[][2] = {
        {"Gemma3ForConditionalGeneration", ": only text is served"},
        {"ChatGLMModel", ": its layout is not that of GlmForCausalLM, which is served"},
        {"Qwen2MoeForCausalLM", ": there is no mixture of experts"},
        {"Qwen3MoeForCausalLM", ": there is no mixture of experts"},
        {"MixtralForCausalLM", ": there is no mixture of experts"},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i][0], architecture) == 0) return known[i][1];
    return "";
}
