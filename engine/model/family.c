/* family.c - see family.h.  A new family is a row here.  Where it has other names, they are in
 * family_names.c; where tensors have other shapes, there are rules in weights.c. */
#include "engine/model/family.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/sizes.h"
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
     .ropes = ROPES_BY_WINDOW,
     .usual_local_theta = 10000,
     .needs_window = true,
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
     .ffn = FFN_PLAIN,
     .fused_qkv = true,
     .qkv_by_group = true,
     .partial_rotary = 0.25},
    {.architecture = "OPTForCausalLM",
     .type = "opt",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .mlp_bias = BIAS_AS_SAID,
     .usual_bias = true,
     .norm_eps = 1e-5,
     .keys = opt_keys,
     .tensors = opt_tensors,
     .read = family_read_opt,
     .positions = POSITIONS_LEARNED,
     .first_position = 2,
     .layer_norm = true,
     .norm_bias = true,
     .ffn = FFN_PLAIN,
     .usually_tied = true,
     .act = ACT_RELU},
    {.architecture = "FalconForCausalLM",
     .type = "falcon",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .mlp_bias = BIAS_AS_SAID,
     .norm_eps = 1e-5,
     .usual_ffn_ratio = 4,
     .usual_context = 2048,
     .keys = falcon_keys,
     .tensors = falcon_tensors,
     .read = family_read_falcon,
     .layer_norm = true,
     .norm_bias = true,
     .ffn = FFN_PLAIN,
     .fused_qkv = true,
     .qkv_by_group = true,
     .usually_tied = true},
    {.architecture = "MptForCausalLM",
     .type = "mpt",
     .norm_eps = 1e-5,
     .usual_ffn_ratio = 4,
     .keys = mpt_keys,
     .tensors = mpt_tensors,
     .read = family_read_mpt,
     .layer_norm = true,
     .ffn = FFN_PLAIN,
     .fused_qkv = true,
     .usually_tied = true},
    {.architecture = "ChatGLMModel",
     .type = "chatglm",
     .qkv_bias = BIAS_AS_SAID,
     .norm_eps = 1e-5,
     .keys = chatglm_keys,
     .tensors = chatglm_tensors,
     .read = family_read_chatglm,
     .fused_qkv = true,
     .fused_gate_up = true,
     .paired_rotary = true,
     .partial_rotary = 0.5,
     .has_rope_ratio = true},
    {.architecture = "SmolLM3ForCausalLM",
     .type = "smollm3",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .mlp_bias = BIAS_AS_SAID,
     .norm_eps = 1e-6,
     .read = family_read_smollm3,
     .usual_theta = 2e6,
     .usually_tied = true},
    {.architecture = "Olmo2ForCausalLM",
     .type = "olmo2",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .norm_eps = 1e-5,
     .whole_qk_norm = true,
     .no_pre_norms = true,
     .post_norms = true,
     .own_ffn_norms = true},
    {.architecture = "Olmo3ForCausalLM",
     .type = "olmo3",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .window = WINDOW_AS_SAID,
     .usual_window = 4096,
     .norm_eps = 1e-5,
     .whole_qk_norm = true,
     .no_pre_norms = true,
     .post_norms = true,
     .own_ffn_norms = true,
     .ropes = ROPES_BY_WINDOW,
     .needs_window = true,
     .window_period = 4,
     .usual_theta = 500000},
    {.architecture = "GraniteForCausalLM",
     .type = "granite",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .mlp_bias = BIAS_AS_SAID,
     .norm_eps = 1e-6,
     .read = family_read_granite},
    {.architecture = "SeedOssForCausalLM",
     .type = "seed_oss",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_BY_KEY,
     .mlp_bias = BIAS_AS_SAID,
     .usual_bias = true,
     .norm_eps = 1e-6,
     .usual_head_dim = 128},
    {.architecture = "Ministral3ForCausalLM",
     .type = "ministral3",
     .window = WINDOW_AS_SAID,
     .norm_eps = 1e-5,
     .usual_head_dim = 128,
     .scales_queries = true},
    {.architecture = "CohereForCausalLM",
     .type = "cohere",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .norm_eps = 1e-5,
     .keys = cohere_keys,
     .read = family_read_cohere,
     .layer_norm = true,
     .parallel = true,
     .shared_norm = true,
     .paired_rotary = true,
     .usual_theta = 500000,
     .usually_tied = true},
    {.architecture = "Cohere2ForCausalLM",
     .type = "cohere2",
     .qkv_bias = BIAS_AS_SAID,
     .o_bias = BIAS_AS_SAID,
     .window = WINDOW_AS_SAID,
     .usual_window = 4096,
     .norm_eps = 1e-5,
     .keys = cohere_keys,
     .read = family_read_cohere,
     .layer_norm = true,
     .parallel = true,
     .shared_norm = true,
     .paired_rotary = true,
     .ropes = ROPES_IN_WINDOWS,
     .needs_window = true,
     .window_period = 4,
     .usually_tied = true},
    {.architecture = "Exaone4ForCausalLM",
     .type = "exaone4",
     .window = WINDOW_AS_SAID,
     .usual_window = 4096,
     .norm_eps = 1e-5,
     .qk_norm = true,
     .no_pre_norms = true,
     .post_norms = true,
     .own_ffn_norms = true,
     .ropes = ROPES_IN_WINDOWS,
     .window_period = 4},
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

void family_list(char *out) {
    static const char usual_end[] = "ForCausalLM";
    size_t n = 0;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && n < FAMILY_LIST_BYTES; i++) {
        const char *name = families[i].architecture, *end = strstr(name, usual_end);
        n += (size_t)snprintf(out + n, FAMILY_LIST_BYTES - n, "%s%.*s", i ? ", " : "",
                              end ? (int)(end - name) : (int)strlen(name), name);
    }
}

enum { MOST_LETTERS = 63 }; /* of names that are compared; what is behind them does not count */

/* Returns how many letters must be changed, added or removed to make one name of the other. */
static uint32_t edits_between(const char *a, const char *b) {
    uint32_t row[MOST_LETTERS + 1];
    const size_t n_a = strnlen(a, MOST_LETTERS), n_b = strnlen(b, MOST_LETTERS);
    for (size_t k = 0; k <= n_b; k++) row[k] = (uint32_t)k;
    for (size_t i = 0; i < n_a; i++) {
        uint32_t before = row[0]++;
        for (size_t k = 0; k < n_b; k++) {
            const uint32_t replaced = before + (a[i] != b[k]);
            before = row[k + 1];
            row[k + 1] = min_u32(replaced, min_u32(row[k + 1], row[k]) + 1);
        }
    }
    return row[n_b];
}

const char *family_nearest(const char *architecture) {
    size_t nearest = 0;
    uint32_t fewest = UINT32_MAX;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        const uint32_t n = edits_between(architecture, families[i].architecture);
        if (n < fewest) fewest = n, nearest = i;
    }
    return families[nearest].architecture;
}

const char *family_missing(const char *architecture) {
    static const char linear_attention[] = ": there is no linear attention (Gated DeltaNet)";
    static const char experts[] = ": there is no mixture of experts";
    static const char *const known[][2] = {
        {"Gemma4ForConditionalGeneration", ": there are no layers of two head sizes"},
        {"Llama4ForConditionalGeneration", experts},
        {"Llama4ForCausalLM", experts},
        {"Qwen3_5ForConditionalGeneration", linear_attention},
        {"Qwen3_5ForCausalLM", linear_attention},
        {"Qwen3_5MoeForConditionalGeneration", linear_attention},
        {"Qwen3_5MoeForCausalLM", linear_attention},
        {"Qwen3NextForCausalLM", linear_attention},
        {"Qwen2MoeForCausalLM", experts},
        {"Qwen3MoeForCausalLM", experts},
        {"MixtralForCausalLM", experts},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i][0], architecture) == 0) return known[i][1];
    return "";
}
