/* gguf_config.c - see gguf_config.h. */
#include "engine/gguf/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/gguf_json.h"
#include "engine/gguf/gguf_writing.h"

static const struct gguf_architecture architectures[] = {
    {"llama", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", true, 0},
    {"mistral3", "Ministral3ForCausalLM", NULL, NULL, true, GGUF_TEMPERATURE},
    {"qwen2", "Qwen2ForCausalLM", NULL, NULL, false, 0},
    {"qwen3", "Qwen3ForCausalLM", NULL, NULL, false, 0},
    {"qwen2moe", "Qwen2MoeForCausalLM", NULL, "Qwen2MoeForCausalLM", false, GGUF_SHARED_EXPERT},
    {"qwen3moe", "Qwen3MoeForCausalLM", NULL, "Qwen3MoeForCausalLM", false, 0},
    {"glm4moe", "Glm4MoeForCausalLM", NULL, "Glm4MoeForCausalLM", false,
     GGUF_LATE_FFN_NORM | GGUF_SHARED_EXPERT | GGUF_SIGMOID | GGUF_GUESSES},
    {"glm4", "Glm4ForCausalLM", NULL, NULL, true, 0},
    {"chatglm", "GlmForCausalLM", NULL, NULL, true, 0},
    {"qwen35", "Qwen3_5ForCausalLM", NULL, NULL, false,
     GGUF_LATE_FFN_NORM | GGUF_RECURRENT | GGUF_V_HEADS_APART | GGUF_GUESSES},
    {"qwen35moe", "Qwen3_5MoeForCausalLM", NULL, "Qwen3_5MoeForCausalLM", false,
     GGUF_LATE_FFN_NORM | GGUF_RECURRENT | GGUF_V_HEADS_APART | GGUF_GUESSES | GGUF_SHARED_EXPERT},
    {"qwen3next", "Qwen3NextForCausalLM", NULL, "Qwen3NextForCausalLM", false,
     GGUF_LATE_FFN_NORM | GGUF_RECURRENT | GGUF_SHARED_EXPERT},
    {"gemma2", "Gemma2ForCausalLM", NULL, NULL, false, 0},
    {"gemma3", "Gemma3ForCausalLM", NULL, NULL, false, 0},
    {"gemma4", "Gemma4ForCausalLM", NULL, NULL, false, GGUF_TWO_HEADS},
    {"phi3", "Phi3ForCausalLM", NULL, NULL, false, 0},
    {"smollm3", "SmolLM3ForCausalLM", NULL, NULL, true, 0},
    {"olmo2", "Olmo2ForCausalLM", "Olmo3ForCausalLM", NULL, false, GGUF_ANY_WINDOW},
    {"granite", "GraniteForCausalLM", NULL, NULL, true, GGUF_MULTIPLIERS},
    {"seed_oss", "SeedOssForCausalLM", NULL, NULL, false, GGUF_LATE_FFN_NORM},
    {"gpt-oss", "GptOssForCausalLM", NULL, "GptOssForCausalLM", false,
     GGUF_LATE_FFN_NORM | GGUF_EXACT_YARN},
    {"command-r", "CohereForCausalLM", NULL, NULL, true, GGUF_LAYER_NORM | GGUF_LOGIT_SCALE},
    {"cohere2", "Cohere2ForCausalLM", NULL, NULL, true,
     GGUF_LAYER_NORM | GGUF_LOGIT_SCALE | GGUF_ANY_WINDOW},
    {"cohere2moe", "Cohere2MoeForCausalLM", NULL, "Cohere2MoeForCausalLM", true,
     GGUF_COHERE_EXPERTS | GGUF_LOGIT_SCALE | GGUF_ANY_WINDOW | GGUF_GUESSES},
    {"lfm2", "Lfm2ForCausalLM", NULL, NULL, false, GGUF_CONVOLUTIONS},
    {"lfm2moe", "Lfm2MoeForCausalLM", NULL, "Lfm2MoeForCausalLM", false, GGUF_CONVOLUTIONS},
    {"granitehybrid", "GraniteMoeHybridForCausalLM", NULL, "GraniteMoeHybridForCausalLM", true,
     GGUF_MULTIPLIERS | GGUF_MAMBA},
    {"nemotron_h", "NemotronHForCausalLM", NULL, NULL, true, GGUF_MAMBA | GGUF_ONE_PART},
    {"nemotron_h_moe", "NemotronHForCausalLM", NULL, "NemotronHForCausalLM", true,
     GGUF_MAMBA | GGUF_ONE_PART | GGUF_GUESSES},
    {"exaone4", "Exaone4ForCausalLM", NULL, NULL, false, GGUF_ANY_WINDOW}};

enum { N_ARCHITECTURES = sizeof(architectures) / sizeof(*architectures) };

/* Of models that are served, but not from GGUF: converters of their time left out settings, such as
 * the base of rotary frequencies. */
static const char *const only_safetensors[] = {"falcon", "gptneox", "mpt"};

/* What becomes of a key. */
enum key_use {
    USE_COPY,      /* a member of config.json; a list is one value for all layers */
    USE_LAYERS,    /* a member, or a list of one truth value for each layer: has it a window? */
    USE_RECURRENT, /* the same: is it recurrent? */
    USE_ROPE,      /* a member of the rotary settings */
    USE_COUNT,     /* a member, unless it is 0 */
    USE_OWN,       /* it is read by itself */
    USE_ZERO,      /* it must be 0: what it counts is not supported */
    USE_NONE       /* it changes nothing */
};

/* Keys behind "ARCHITECTURE.", of those with all of the traits `with` and none of `without`. */
static const struct known_key {
    const char *key;
    enum key_use use;
    bool is_required;
    const char *name;
    unsigned with, without;
} known_keys[] = {
    {"context_length", USE_COPY, true, "max_position_embeddings", 0, 0},
    {"embedding_length", USE_COPY, true, "hidden_size", 0, 0},
    {"block_count", USE_COPY, true, "num_hidden_layers", 0, 0},
    {"feed_forward_length", USE_COPY, true, "intermediate_size", 0,
     GGUF_TWO_HEADS | GGUF_RECURRENT | GGUF_COHERE_EXPERTS | GGUF_ONE_PART},
    {"feed_forward_length", USE_COPY, true, "prefix_dense_intermediate_size", GGUF_COHERE_EXPERTS,
     0},
    {"feed_forward_length", USE_COUNT, false, "intermediate_size", GGUF_RECURRENT, 0},
    {"feed_forward_length", USE_OWN, true, NULL, GGUF_TWO_HEADS, 0},
    {"feed_forward_length", USE_OWN, true, NULL, GGUF_ONE_PART, 0},
    {"attention.head_count", USE_COPY, true, "num_attention_heads", 0, 0},
    {"attention.head_count_kv", USE_COPY, false, "num_key_value_heads", 0,
     GGUF_TWO_HEADS | GGUF_CONVOLUTIONS | GGUF_MAMBA},
    {"attention.head_count_kv", USE_OWN, true, NULL, GGUF_TWO_HEADS, 0},
    {"attention.head_count_kv", USE_OWN, true, NULL, GGUF_CONVOLUTIONS, 0},
    {"attention.head_count_kv", USE_OWN, true, NULL, GGUF_MAMBA, 0},
    {"shortconv.l_cache", USE_COPY, true, "conv_L_cache", GGUF_CONVOLUTIONS, 0},
    {"attention.key_length", USE_COPY, false, "head_dim", 0, GGUF_TWO_HEADS},
    {"attention.key_length", USE_OWN, true, NULL, GGUF_TWO_HEADS, 0},
    {"attention.key_length_swa", USE_COPY, true, "head_dim", GGUF_TWO_HEADS, 0},
    {"attention.value_length_swa", USE_OWN, false, NULL, GGUF_TWO_HEADS, 0},
    {"attention.shared_kv_layers", USE_COPY, false, "num_kv_shared_layers", GGUF_TWO_HEADS, 0},
    {"embedding_length_per_layer_input", USE_COPY, true, "hidden_size_per_layer_input",
     GGUF_TWO_HEADS, 0},
    {"rope.dimension_count_swa", USE_OWN, false, NULL, GGUF_TWO_HEADS, 0},
    {"attention.layer_norm_rms_epsilon", USE_COPY, true, "rms_norm_eps", 0,
     GGUF_LAYER_NORM | GGUF_COHERE_EXPERTS | GGUF_CONVOLUTIONS | GGUF_ONE_PART},
    {"attention.layer_norm_rms_epsilon", USE_COPY, true, "layer_norm_epsilon", GGUF_ONE_PART, 0},
    {"attention.layer_norm_rms_epsilon", USE_COPY, true, "norm_eps", GGUF_CONVOLUTIONS, 0},
    {"attention.layer_norm_rms_epsilon", USE_COPY, false, "rms_norm_eps", GGUF_COHERE_EXPERTS, 0},
    {"attention.layer_norm_epsilon", USE_COPY, true, "layer_norm_eps", GGUF_LAYER_NORM, 0},
    {"attention.layer_norm_epsilon", USE_COPY, false, "layer_norm_eps", GGUF_COHERE_EXPERTS, 0},
    {"attention.scale", USE_COPY, true, "attention_multiplier", GGUF_MULTIPLIERS, 0},
    {"embedding_scale", USE_COPY, false, "embedding_multiplier", GGUF_MULTIPLIERS, 0},
    {"residual_scale", USE_COPY, false, "residual_multiplier", GGUF_MULTIPLIERS, 0},
    {"logit_scale", USE_COPY, false, "logits_scaling", GGUF_MULTIPLIERS, 0},
    {"logit_scale", USE_COPY, true, "logit_scale", GGUF_LOGIT_SCALE, 0},
    {"attention.sliding_window", USE_OWN, false, NULL, 0, 0},
    {"attention.sliding_window_pattern", USE_LAYERS, false, "sliding_window_pattern", 0, 0},
    {"attention.value_length", USE_OWN, false, NULL, 0, 0},
    {"attention.causal", USE_OWN, false, NULL, 0, 0},
    {"attn_logit_softcapping", USE_COPY, false, "attn_logit_softcapping", 0, 0},
    {"final_logit_softcapping", USE_COPY, false, "final_logit_softcapping", 0, 0},
    {"rope.freq_base", USE_COPY, false, "rope_theta", 0, GGUF_TWO_HEADS},
    {"rope.freq_base", USE_OWN, true, NULL, GGUF_TWO_HEADS, 0},
    {"rope.freq_base_swa", USE_COPY, false, "rope_local_base_freq", 0, GGUF_TWO_HEADS},
    {"rope.freq_base_swa", USE_OWN, true, NULL, GGUF_TWO_HEADS, 0},
    {"rope.dimension_count", USE_OWN, false, NULL, 0, GGUF_RECURRENT},
    {"rope.dimension_count", USE_OWN, true, NULL, GGUF_RECURRENT, 0},
    {"rope.dimension_sections", USE_NONE, false, NULL, GGUF_RECURRENT, 0}, /* of images */
    {"full_attention_interval", USE_COPY, false, "full_attention_interval", GGUF_RECURRENT, 0},
    {"attention.recurrent_layers", USE_RECURRENT, false, NULL, GGUF_RECURRENT, 0},
    {"ssm.conv_kernel", USE_COPY, true, "linear_conv_kernel_dim", GGUF_RECURRENT, 0},
    {"ssm.state_size", USE_COPY, true, "linear_key_head_dim", GGUF_RECURRENT, 0},
    {"ssm.group_count", USE_COPY, true, "linear_num_key_heads", GGUF_RECURRENT, 0},
    {"ssm.time_step_rank", USE_COPY, true, "linear_num_value_heads", GGUF_RECURRENT, 0},
    {"ssm.inner_size", USE_OWN, true, NULL, GGUF_RECURRENT, 0},
    {"ssm.conv_kernel", USE_COPY, true, "mamba_d_conv", GGUF_MAMBA, GGUF_ONE_PART},
    {"ssm.state_size", USE_COPY, true, "mamba_d_state", GGUF_MAMBA, GGUF_ONE_PART},
    {"ssm.group_count", USE_COPY, true, "mamba_n_groups", GGUF_MAMBA, GGUF_ONE_PART},
    {"ssm.time_step_rank", USE_COPY, true, "mamba_n_heads", GGUF_MAMBA, GGUF_ONE_PART},
    {"ssm.conv_kernel", USE_COPY, true, "conv_kernel", GGUF_ONE_PART, 0},
    {"ssm.state_size", USE_COPY, true, "ssm_state_size", GGUF_ONE_PART, 0},
    {"ssm.group_count", USE_COPY, true, "n_groups", GGUF_ONE_PART, 0},
    {"ssm.time_step_rank", USE_COPY, true, "mamba_num_heads", GGUF_ONE_PART, 0},
    {"ssm.inner_size", USE_OWN, true, NULL, GGUF_MAMBA, 0},
    /* Converters write these of Granite 4, too, where no layer is recurrent. */
    {"ssm.conv_kernel", USE_NONE, false, NULL, GGUF_MULTIPLIERS, GGUF_MAMBA},
    {"ssm.state_size", USE_NONE, false, NULL, GGUF_MULTIPLIERS, GGUF_MAMBA},
    {"ssm.group_count", USE_NONE, false, NULL, GGUF_MULTIPLIERS, GGUF_MAMBA},
    {"ssm.time_step_rank", USE_NONE, false, NULL, GGUF_MULTIPLIERS, GGUF_MAMBA},
    {"ssm.inner_size", USE_NONE, false, NULL, GGUF_MULTIPLIERS, GGUF_MAMBA},
    {"expert_shared_feed_forward_length", USE_NONE, false, NULL, GGUF_MULTIPLIERS, GGUF_MAMBA},
    {"rope.scaling.type", USE_OWN, false, NULL, 0, 0},
    {"rope.scaling.factor", USE_OWN, false, NULL, 0, 0},
    {"rope.scaling.original_context_length", USE_ROPE, false, "original_max_position_embeddings", 0,
     0},
    {"rope.scaling.attn_factor", USE_ROPE, false, "attention_factor", 0, 0},
    {"rope.scaling.yarn_beta_fast", USE_ROPE, false, "beta_fast", 0, 0},
    {"rope.scaling.yarn_beta_slow", USE_ROPE, false, "beta_slow", 0, 0},
    {"rope.scaling.yarn_log_multiplier", USE_ROPE, false, "mscale_all_dim", GGUF_TEMPERATURE, 0},
    {"attention.temperature_scale", USE_ROPE, false, "llama_4_scaling_beta", GGUF_TEMPERATURE, 0},
    {"rope.scaling.finetuned", USE_NONE, false, NULL, 0, GGUF_MAMBA},
    {"rope.scaling.finetuned", USE_OWN, false, NULL, GGUF_MAMBA, 0}, /* does anything rotate? */
    {"expert_count", USE_COUNT, false, "num_local_experts", 0, GGUF_TWO_HEADS},
    {"expert_count", USE_COUNT, false, "num_experts", GGUF_TWO_HEADS, 0},
    {"expert_used_count", USE_COUNT, false, "num_experts_per_tok", 0, GGUF_TWO_HEADS},
    {"expert_used_count", USE_COUNT, false, "top_k_experts", GGUF_TWO_HEADS, 0},
    {"expert_feed_forward_length", USE_COUNT, false, "moe_intermediate_size", 0,
     GGUF_COHERE_EXPERTS},
    {"expert_feed_forward_length", USE_COPY, true, "intermediate_size", GGUF_COHERE_EXPERTS, 0},
    {"expert_shared_feed_forward_length", USE_NONE, false, NULL, GGUF_COHERE_EXPERTS, 0},
    {"expert_shared_feed_forward_length", USE_COUNT, false, "shared_intermediate_size", GGUF_MAMBA,
     GGUF_ONE_PART},
    {"expert_shared_feed_forward_length", USE_COUNT, false, "moe_shared_expert_intermediate_size",
     GGUF_ONE_PART, 0},
    {"expert_shared_count", USE_NONE, false, NULL, GGUF_ONE_PART, 0},
    {"expert_weights_norm", USE_OWN, false, NULL, GGUF_ONE_PART, 0},
    {"expert_gating_func", USE_OWN, false, NULL, GGUF_ONE_PART, 0},
    {"expert_weights_scale", USE_COPY, false, "routed_scaling_factor", GGUF_ONE_PART, 0},
    {"expert_group_count", USE_COUNT, false, "n_group", GGUF_ONE_PART, 0},
    {"expert_group_used_count", USE_COUNT, false, "topk_group", GGUF_ONE_PART, 0},
    {"expert_shared_count", USE_COUNT, false, "num_shared_experts", GGUF_COHERE_EXPERTS, 0},
    {"leading_dense_block_count", USE_COUNT, false, "first_k_dense_replace", GGUF_COHERE_EXPERTS,
     0},
    {"leading_dense_block_count", USE_COPY, false, "num_dense_layers", GGUF_CONVOLUTIONS, 0},
    {"expert_weights_scale", USE_COPY, false, "routed_scaling_factor", GGUF_CONVOLUTIONS, 0},
    {"expert_gating_func", USE_OWN, false, NULL, GGUF_CONVOLUTIONS, 0},
    {"expert_weights_norm", USE_OWN, false, NULL, GGUF_COHERE_EXPERTS, 0},
    {"expert_gating_func", USE_OWN, false, NULL, GGUF_COHERE_EXPERTS, 0},
    {"expert_shared_feed_forward_length", USE_COPY, true, "shared_expert_intermediate_size",
     GGUF_SHARED_EXPERT, GGUF_SIGMOID},
    {"expert_weights_norm", USE_OWN, false, NULL, GGUF_SHARED_EXPERT, 0},
    {"expert_gating_func", USE_OWN, false, NULL, GGUF_SHARED_EXPERT, 0},
    {"expert_shared_count", USE_COPY, true, "n_shared_experts", GGUF_SIGMOID, 0},
    {"leading_dense_block_count", USE_COPY, true, "first_k_dense_replace", GGUF_SIGMOID, 0},
    {"expert_weights_scale", USE_COPY, false, "routed_scaling_factor", GGUF_SIGMOID, 0},
    {"expert_group_count", USE_COUNT, false, "n_group", GGUF_SIGMOID, 0},
    {"expert_group_used_count", USE_COUNT, false, "topk_group", GGUF_SIGMOID, 0},
    {"nextn_predict_layers", USE_COUNT, false, "num_nextn_predict_layers", GGUF_GUESSES, 0},
    {"nextn_predict_layers", USE_ZERO, false, NULL, 0, GGUF_GUESSES},
    {"tensor_data_layout", USE_NONE, false, NULL, 0, 0}, /* how the file was made */
    {"vocab_size", USE_NONE, false, NULL, 0, 0},         /* the embedding says it */
};

enum { N_KNOWN = sizeof(known_keys) / sizeof(*known_keys) };

/* Returns true if files of the architecture may have the key. */
static bool may_have(const struct gguf_architecture *architecture, const struct known_key *key) {
    return (architecture->traits & key->with) == key->with &&
           (architecture->traits & key->without) == 0;
}

/* Returns the number of a key in the table; N_KNOWN: the architecture has no such key. */
static size_t find_key(const struct gguf_architecture *architecture, const char *name) {
    size_t k = 0;
    while (k < N_KNOWN &&
           !(strcmp(known_keys[k].key, name) == 0 && may_have(architecture, &known_keys[k])))
        k++;
    return k;
}

/* Writes the value that all elements of a list have. */
static int copy_common(const struct gguf_writing *w, const struct known_key *key,
                       const struct gguf_value *value) {
    struct gguf_value first = *value;
    if (value->type == GGUF_ARRAY) {
        if (value->n == 0 || value->n > WRITING_MAX_LIST || value->element == GGUF_STRING ||
            value->element == GGUF_ARRAY)
            return writing_refuse(w, ERR_INVALID, key->key, "is not a number, or a list of them");
        first = gguf_element(value, 0);
    }
    json_t *common = gguf_to_json(&first);
    for (uint64_t i = 1; value->type == GGUF_ARRAY && i < value->n; i++) {
        const struct gguf_value element = gguf_element(value, i);
        json_t *other = gguf_to_json(&element);
        const bool differs = !json_equal(common, other);
        json_decref(other);
        if (!differs) continue;
        json_decref(common);
        return writing_refuse(w, ERR_UNSUPPORTED, key->key, "differs between layers");
    }
    return writing_put(w, w->config, key->name, common);
}

/* Writes a period, or which layers are of this type; the others have full attention. */
static int copy_layers(const struct gguf_writing *w, const struct known_key *key,
                       const struct gguf_value *value, const char *those) {
    if (value->type != GGUF_ARRAY && key->name) return copy_common(w, key, value);
    if (value->type != GGUF_ARRAY || value->element != GGUF_BOOL || value->n > WRITING_MAX_LIST)
        return writing_refuse(w, ERR_INVALID, key->key, "is not a list of true and false");
    json_t *types = json_array();
    for (uint64_t i = 0; types && i < value->n; i++) {
        const struct gguf_value layer = gguf_element(value, i);
        const char *type = gguf_truth(&layer, false) ? those : "full_attention";
        if (!json_array_append_new(types, json_string(type))) continue;
        json_decref(types);
        return writing_no_memory(w);
    }
    return writing_put(w, w->config, "layer_types", types);
}

static int take_key(const struct gguf_writing *w, const struct known_key *key,
                    const struct gguf_value *value) {
    double number = 1;
    const bool is_zero = gguf_number(value, &number) && number == 0;
    switch (key->use) {
    case USE_COPY: return copy_common(w, key, value);
    case USE_LAYERS: return copy_layers(w, key, value, "sliding_attention");
    case USE_RECURRENT: return copy_layers(w, key, value, "linear_attention");
    case USE_ROPE: return writing_put(w, w->rope, key->name, gguf_to_json(value));
    case USE_COUNT: return is_zero ? 0 : copy_common(w, key, value);
    case USE_ZERO:
        if (is_zero) return 0;
        return writing_refuse(w, ERR_UNSUPPORTED, key->key,
                              "is not 0: predicted tokens are not supported");
    case USE_OWN:
    case USE_NONE: break;
    }
    return 0;
}

/* Takes every key of the architecture, each of which must be known. */
static int take_keys(const struct gguf_writing *w) {
    const size_t n_prefix = strlen(w->architecture->name);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < gguf_n_keys(w->keys); i++) {
        char name[WRITING_NAME_BYTES] = {0};
        size_t n;
        const char *key = gguf_key_at(w->keys, i, &n);
        if (n <= n_prefix || memcmp(key, w->architecture->name, n_prefix) != 0 ||
            key[n_prefix] != '.')
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(n - n_prefix - 1), key + n_prefix + 1);
        const size_t k = find_key(w->architecture, name);
        if (k == N_KNOWN)
            return writing_refuse(w, ERR_UNSUPPORTED, name, "is a key that is not supported");
        rc = take_key(w, &known_keys[k], writing_key(w, name));
    }
    for (size_t k = 0; !rc && k < N_KNOWN; k++)
        if (known_keys[k].is_required && may_have(w->architecture, &known_keys[k]) &&
            !writing_key(w, known_keys[k].key))
            rc = writing_refuse(w, ERR_INVALID, known_keys[k].key, "is missing");
    return rc;
}

/* Checks what must be as it usually is. */
static int check_attention(const struct gguf_writing *w) {
    double value_length = writing_head_dim(w), rotated = writing_head_dim(w);
    gguf_number(writing_key(w, "attention.value_length"), &value_length);
    gguf_number(writing_key(w, "rope.dimension_count"), &rotated);
    if (value_length != writing_head_dim(w))
        return writing_refuse(w, ERR_UNSUPPORTED, "attention.value_length",
                              "is not the length of keys");
    if (!gguf_truth(writing_key(w, "attention.causal"), true))
        return writing_refuse(w, ERR_UNSUPPORTED, "attention.causal",
                              "is false: attention to later tokens is not supported");
    if (w->architecture->traits & GGUF_MULTIPLIERS && !(w->architecture->traits & GGUF_MAMBA) &&
        !gguf_truth(writing_key(w, "rope.scaling.finetuned"), true))
        return writing_refuse(w, ERR_UNSUPPORTED, "rope.scaling.finetuned",
                              "is false: attention without positions is not supported here");
    if (rotated == writing_head_dim(w) || w->architecture->traits & GGUF_ONE_PART) return 0;
    if (!(rotated > 0 && rotated < writing_head_dim(w)))
        return writing_refuse(w, ERR_INVALID, "rope.dimension_count",
                              "is not from 1 to the size of a head");
    return writing_put(w, w->config, "partial_rotary_factor",
                       json_real(rotated / writing_head_dim(w)));
}

/* Writes how many layers answer, without those behind them that guess tokens. */
static int put_answering(const struct gguf_writing *w) {
    const double n = writing_number(w, "num_hidden_layers"),
                 n_guess = writing_number(w, "num_nextn_predict_layers");
    json_t *types = json_object_get(w->config, "layer_types");
    if (n_guess == 0) return 0;
    if (n_guess >= n)
        return writing_refuse(w, ERR_INVALID, "nextn_predict_layers",
                              "leaves no layer that answers");
    while ((double)json_array_size(types) > n - n_guess)
        json_array_remove(types, json_array_size(types) - 1);
    return writing_put(w, w->config, "num_hidden_layers", json_integer((json_int_t)(n - n_guess)));
}

/* Writes whether the heads of q and k are normed, for GLM. */
static int put_glm(const struct gguf_writing *w) {
    if (!(w->architecture->traits & GGUF_SIGMOID)) return 0;
    return writing_put(w, w->config, "use_qk_norm",
                       json_boolean(gguf_files_find(w->files, "blk.0.attn_q_norm.weight")));
}

/* Writes how routers make shares: those of a token's experts add up to 1, but where a key may say
 * that they do. */
static int put_experts(const struct gguf_writing *w) {
    static const char key[] = "expert_count", function[] = "expert_gating_func";
    const unsigned traits = w->architecture->traits;
    const bool is_sigmoid =
        traits & (GGUF_SIGMOID | GGUF_COHERE_EXPERTS | GGUF_CONVOLUTIONS | GGUF_ONE_PART);
    const double usual = is_sigmoid ? 2 : 1; /* llama.cpp's numbers of functions */
    double said = usual;
    if (!json_object_get(w->config, "num_local_experts")) return 0;
    if (!w->architecture->experts)
        return writing_refuse(w, ERR_UNSUPPORTED, key,
                              "is not 0: this architecture is supported without experts only");
    gguf_number(writing_key(w, function), &said);
    if (said != usual)
        return writing_refuse(w, ERR_UNSUPPORTED, function, "is not that of this architecture");
    const bool usually = traits & GGUF_RECURRENT ||
                         !(traits & (GGUF_SHARED_EXPERT | GGUF_COHERE_EXPERTS)),
               adds_up = gguf_truth(writing_key(w, "expert_weights_norm"), usually);
    if (traits & GGUF_COHERE_EXPERTS) {
        const int rc = writing_put(w, w->config, "expert_selection_fn", json_string("sigmoid"));
        if (rc) return rc;
    }
    return writing_put(w, w->config, "norm_topk_prob", json_boolean(adds_up));
}

/* Writes the window, and the architecture.  Of the architecture llama, files with a window are
 * Mistral's, and those with experts Mixtral's; of olmo2, those with a window are OLMo 3's. */
static int put_window(const struct gguf_writing *w) {
    static const char key[] = "attention.sliding_window";
    const bool any = w->architecture->traits & GGUF_ANY_WINDOW;
    const struct gguf_value *value = writing_key(w, key);
    const char *model = w->architecture->model;
    uint64_t window = 0;
    if (value && !gguf_whole(value, &window))
        return writing_refuse(w, ERR_INVALID, key, "is not a whole number");
    if (window > 0 && (any || window < writing_number(w, "max_position_embeddings"))) {
        if (strncmp(model, "Qwen", 4) == 0)
            return writing_refuse(w, ERR_UNSUPPORTED, key, "is less than the context");
        if (w->architecture->windowed) model = w->architecture->windowed;
    }
    if (json_object_get(w->config, "num_local_experts")) model = w->architecture->experts;
    const int rc = writing_put(w, w->config, "architectures", json_pack("[s]", model));
    if (!rc && any && window == 0) return writing_put(w, w->config, "sliding_window", json_null());
    if (rc || !value || window == 0) return rc;
    return writing_put(w, w->config, "sliding_window", json_integer((json_int_t)window));
}

/* Writes what scores are divided by the root of, for Gemma.  Its largest models, which only the
 * number of their layers shows, take the width of all heads, as llama.cpp does. */
static int put_query_scalar(const struct gguf_writing *w) {
    static const struct {
        const char *architecture;
        double n_layers;
    } largest[] = {{"gemma2", 46}, {"gemma3", 62}};
    for (size_t i = 0; i < sizeof(largest) / sizeof(*largest); i++) {
        if (strcmp(w->architecture->name, largest[i].architecture) != 0) continue;
        const double heads = writing_number(w, "num_attention_heads"),
                     scalar =
                         writing_number(w, "num_hidden_layers") == largest[i].n_layers && heads > 0
                             ? writing_number(w, "hidden_size") / heads
                             : writing_head_dim(w);
        return writing_put(w, w->config, "query_pre_attn_scalar", json_real(scalar));
    }
    return 0;
}

/* Writes what the tensors say. */
static int put_tensors(const struct gguf_writing *w) {
    const struct gguf_tensor *table = gguf_files_find(w->files, "token_embd.weight");
    const bool tied = !gguf_files_find(w->files, "output.weight");
    if (!table || table->n_dims != 2)
        return error_set(w->err, ERR_INVALID, "%.200s: tensor 'token_embd.weight' is missing",
                         w->label);
    const int rc = writing_put(w, w->config, "vocab_size", json_integer(table->dims[0]));
    return rc ? rc : writing_put(w, w->config, "tie_word_embeddings", json_boolean(tied));
}

int gguf_architecture_of(const struct gguf_architecture **out, const struct gguf_files *files,
                         const char *label, struct error *err) {
    const struct gguf_value *value = gguf_find(gguf_files_keys(files), "general.architecture");
    char all[N_ARCHITECTURES * 16] = "";
    size_t n = 0;
    const int n_name = value ? (int)(value->n < 60 ? value->n : 60) : 0;
    if (!value || value->type != GGUF_STRING)
        return error_set(err, ERR_INVALID, "%.200s: 'general.architecture' is missing", label);
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        const char *name = architectures[i].name;
        *out = &architectures[i];
        if (value->n == strlen(name) && memcmp(value->bytes, name, value->n) == 0) return 0;
        n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s", n ? ", " : "", name);
    }
    for (size_t i = 0; i < sizeof(only_safetensors) / sizeof(*only_safetensors); i++)
        if (value->n == strlen(only_safetensors[i]) &&
            memcmp(value->bytes, only_safetensors[i], value->n) == 0)
            return error_set(err, ERR_UNSUPPORTED,
                             "%.200s: the architecture '%s' is served from safetensors only: its "
                             "files in GGUF lack settings",
                             label, only_safetensors[i]);
    return error_set(err, ERR_UNSUPPORTED,
                     "%.200s: the architecture '%.*s' is not supported in GGUF; these are: %s",
                     label, n_name, (const char *)value->bytes, all);
}

/* Returns the first architecture of a model; has_experts: the model has some. */
static const struct gguf_architecture *find_architecture(const char *model, bool has_experts) {
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        const struct gguf_architecture *a = &architectures[i];
        const char *const models[] = {a->model, a->windowed, a->experts};
        for (size_t k = 0; k < sizeof(models) / sizeof(*models); k++)
            if (models[k] && strcmp(models[k], model) == 0 && (a->experts || !has_experts))
                return a;
    }
    return NULL;
}

const struct gguf_architecture *gguf_architecture_for(const char *model) {
    return find_architecture(model, false);
}

int gguf_config(json_t **out, const struct gguf_files *files, const char *label,
                struct error *err) {
    struct gguf_writing w = {
        .files = files, .keys = gguf_files_keys(files), .label = label, .err = err};
    int rc = gguf_architecture_of(&w.architecture, files, label, err);
    if (rc) return rc;
    w.config = json_object();
    w.rope = json_object();
    if (!w.config || !w.rope) rc = writing_no_memory(&w);
    if (!rc) rc = take_keys(&w);
    if (!rc) rc = put_tensors(&w);
    const bool has_two_heads = !rc && w.architecture->traits & GGUF_TWO_HEADS;
    if (!rc && has_two_heads) rc = gguf_put_two_heads(&w);
    if (!rc && !has_two_heads) rc = check_attention(&w);
    if (!rc) rc = put_experts(&w);
    if (!rc) rc = put_answering(&w);
    if (!rc) rc = put_glm(&w);
    if (!rc) rc = put_window(&w);
    if (!rc) rc = gguf_put_recurrent(&w);
    if (!rc) rc = put_query_scalar(&w);
    if (!rc && !has_two_heads) rc = gguf_put_rope(&w);
    json_decref(w.rope);
    if (rc) json_decref(w.config);
    else *out = w.config;
    return rc;
}

bool gguf_config_key(const json_t *config, const char *member, char out[GGUF_KEY_BYTES]) {
    const json_t *model = json_array_get(json_object_get(config, "architectures"), 0);
    const bool has_experts = json_object_get(config, "num_local_experts");
    const struct gguf_architecture *architecture =
        json_is_string(model) ? find_architecture(json_string_value(model), has_experts) : NULL;
    for (size_t i = 0; architecture && i < N_KNOWN; i++) {
        const char *name = known_keys[i].name;
        if (!name || strcmp(name, member) != 0 || !may_have(architecture, &known_keys[i])) continue;
        snprintf(out, GGUF_KEY_BYTES, "%s.%s", architecture->name, known_keys[i].key);
        return true;
    }
    return false;
}

/* Appends the tokens that end an answer, if control tokens have such texts.  *found: some have. */
static int find_texts(json_t *ends, const struct gguf *keys, const char *const *texts,
                      bool *found) {
    struct gguf_strings strings = {.array = gguf_find(keys, "tokenizer.ggml.tokens")};
    size_t n;
    const char *text;
    for (json_int_t id = 0; (text = gguf_next_string(keys, &strings, &n)); id++)
        for (size_t i = 0; texts[i]; i++) {
            if (n != strlen(texts[i]) || memcmp(text, texts[i], n) != 0) continue;
            if (json_array_append_new(ends, json_integer(id))) return ERR_NOMEM;
            *found = true;
        }
    return 0;
}

/* Appends the token that ends a turn.  Where a call ends an answer, <|end|> ends a message of one
 * only. */
static int find_turn_end(json_t *ends, const struct gguf *keys) {
    static const char *const calls[] = {"<|call|>", NULL}, *const turns[] = {
                                                               "<|eot_id|>", "<|im_end|>",
                                                               "<end_of_turn>", "<|end|>", NULL};
    bool found = false;
    const int rc = find_texts(ends, keys, calls, &found);
    return rc || found ? rc : find_texts(ends, keys, turns, &found);
}

int gguf_generation(json_t **out, const struct gguf_files *files, const char *label,
                    struct error *err) {
    static const char *const end_keys[] = {"tokenizer.ggml.eos_token_id",
                                           "tokenizer.ggml.eot_token_id",
                                           "tokenizer.ggml.eom_token_id"};
    const struct gguf *keys = gguf_files_keys(files);
    const struct gguf_value *bos = gguf_find(keys, "tokenizer.ggml.bos_token_id");
    json_t *ends = json_array(), *root = json_object();
    int rc = ends && root ? 0 : ERR_NOMEM;
    for (int i = 0; !rc && i < 3; i++) {
        const struct gguf_value *value = gguf_find(keys, end_keys[i]);
        if (value && json_array_append_new(ends, gguf_to_json(value))) rc = ERR_NOMEM;
    }
    if (!rc && !gguf_find(keys, end_keys[1])) rc = find_turn_end(ends, keys);
    if (!rc && bos && json_object_set_new(root, "bos_token_id", gguf_to_json(bos))) rc = ERR_NOMEM;
    if (!rc && json_array_size(ends) > 0 && json_object_set(root, "eos_token_id", ends))
        rc = ERR_NOMEM;
    json_decref(ends);
    if (!rc) *out = root;
    else json_decref(root);
    return rc ? error_set(err, rc, "%.200s: no memory for its tokens", label) : 0;
}
