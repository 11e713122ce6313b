/* family_names.c - see family_names.h. */
#include "engine/model/family_names.h"

#include <stddef.h>
#include <string.h>

const struct family_name neox_keys[] = {
    {"rms_norm_eps", "layer_norm_eps"},
    {"partial_rotary_factor", "rotary_pct"},
    {"rope_theta", "rotary_emb_base"},
    {NULL, NULL},
};

const struct family_name neox_tensors[] = {
    {"model.embed_tokens", "gpt_neox.embed_in"},
    {"model.norm", "gpt_neox.final_layer_norm"},
    {"lm_head", "embed_out"},
    {"model.layers.#.input_layernorm", "gpt_neox.layers.#.input_layernorm"},
    {"model.layers.#.post_attention_layernorm", "gpt_neox.layers.#.post_attention_layernorm"},
    {"model.layers.#.self_attn.qkv_proj", "gpt_neox.layers.#.attention.query_key_value"},
    {"model.layers.#.self_attn.o_proj", "gpt_neox.layers.#.attention.dense"},
    {"model.layers.#.mlp.up_proj", "gpt_neox.layers.#.mlp.dense_h_to_4h"},
    {"model.layers.#.mlp.down_proj", "gpt_neox.layers.#.mlp.dense_4h_to_h"},
    {NULL, NULL},
};

const struct family_name opt_keys[] = {
    {"intermediate_size", "ffn_dim"},
    {"hidden_act", "activation_function"},
    {"attention_bias", "enable_bias"},
    {"mlp_bias", "enable_bias"},
    {NULL, NULL},
};

const struct family_name opt_tensors[] = {
    {"model.embed_tokens", "model.decoder.embed_tokens"},
    {"model.embed_positions", "model.decoder.embed_positions"},
    {"model.norm", "model.decoder.final_layer_norm"},
    {"model.layers.#.input_layernorm", "model.decoder.layers.#.self_attn_layer_norm"},
    {"model.layers.#.post_attention_layernorm", "model.decoder.layers.#.final_layer_norm"},
    {"model.layers.#.self_attn.q_proj", "model.decoder.layers.#.self_attn.q_proj"},
    {"model.layers.#.self_attn.k_proj", "model.decoder.layers.#.self_attn.k_proj"},
    {"model.layers.#.self_attn.v_proj", "model.decoder.layers.#.self_attn.v_proj"},
    {"model.layers.#.self_attn.o_proj", "model.decoder.layers.#.self_attn.out_proj"},
    {"model.layers.#.mlp.up_proj", "model.decoder.layers.#.fc1"},
    {"model.layers.#.mlp.down_proj", "model.decoder.layers.#.fc2"},
    {NULL, NULL},
};

const struct family_name falcon_keys[] = {
    {"intermediate_size", "ffn_hidden_size"},
    {"rms_norm_eps", "layer_norm_epsilon"},
    {"num_key_value_heads", "num_kv_heads"},
    {"hidden_act", "activation"},
    {"attention_bias", "bias"},
    {"mlp_bias", "bias"},
    {NULL, NULL},
};

/* The names of Falcon's tensors, but for the norms of its layers. */
#define FALCON_TENSORS                                                                             \
    {"model.embed_tokens", "transformer.word_embeddings"}, {"model.norm", "transformer.ln_f"},     \
        {"model.layers.#.self_attn.qkv_proj", "transformer.h.#.self_attention.query_key_value"},   \
        {"model.layers.#.self_attn.o_proj", "transformer.h.#.self_attention.dense"},               \
        {"model.layers.#.mlp.up_proj", "transformer.h.#.mlp.dense_h_to_4h"},                       \
        {"model.layers.#.mlp.down_proj", "transformer.h.#.mlp.dense_4h_to_h"}, {                   \
        NULL, NULL                                                                                 \
    }

const struct family_name falcon_tensors[] = {
    {"model.layers.#.input_layernorm", "transformer.h.#.input_layernorm"},
    {"model.layers.#.post_attention_layernorm", "transformer.h.#.post_attention_layernorm"},
    FALCON_TENSORS,
};

const struct family_name falcon_two_norms_tensors[] = {
    {"model.layers.#.input_layernorm", "transformer.h.#.ln_attn"},
    {"model.layers.#.post_attention_layernorm", "transformer.h.#.ln_mlp"},
    FALCON_TENSORS,
};

const struct family_name mpt_keys[] = {
    {"hidden_size", "d_model"},
    {"num_hidden_layers", "n_layers"},
    {"num_attention_heads", "n_heads"},
    {"max_position_embeddings", "max_seq_len"},
    {"rms_norm_eps", "layer_norm_epsilon"},
    {NULL, NULL},
};

const struct family_name mpt_tensors[] = {
    {"model.embed_tokens", "transformer.wte"},
    {"model.norm", "transformer.norm_f"},
    {"model.layers.#.input_layernorm", "transformer.blocks.#.norm_1"},
    {"model.layers.#.post_attention_layernorm", "transformer.blocks.#.norm_2"},
    {"model.layers.#.self_attn.qkv_proj", "transformer.blocks.#.attn.Wqkv"},
    {"model.layers.#.self_attn.o_proj", "transformer.blocks.#.attn.out_proj"},
    {"model.layers.#.mlp.up_proj", "transformer.blocks.#.ffn.up_proj"},
    {"model.layers.#.mlp.down_proj", "transformer.blocks.#.ffn.down_proj"},
    {NULL, NULL},
};

const struct family_name qwen2_moe_keys[] = {
    {"attention_bias", "qkv_bias"},
    {NULL, NULL},
};

const struct family_name qwen2_moe_tensors[] = {
    {"model.layers.#.mlp.shared_experts.gate_proj", "model.layers.#.mlp.shared_expert.gate_proj"},
    {"model.layers.#.mlp.shared_experts.up_proj", "model.layers.#.mlp.shared_expert.up_proj"},
    {"model.layers.#.mlp.shared_experts.down_proj", "model.layers.#.mlp.shared_expert.down_proj"},
    {NULL, NULL},
};

const struct family_name mixtral_tensors[] = {
    {"model.layers.#.mlp.gate", "model.layers.#.block_sparse_moe.gate"},
    {"model.layers.#.mlp.experts.@.gate_proj", "model.layers.#.block_sparse_moe.experts.@.w1"},
    {"model.layers.#.mlp.experts.@.up_proj", "model.layers.#.block_sparse_moe.experts.@.w3"},
    {"model.layers.#.mlp.experts.@.down_proj", "model.layers.#.block_sparse_moe.experts.@.w2"},
    {NULL, NULL},
};

const struct family_name gpt_oss_tensors[] = {
    {"model.layers.#.mlp.gate", "model.layers.#.mlp.router"},
    {NULL, NULL},
};

const struct family_name gemma4_tensors[] = {
    {"model.layers.#.mlp.gate", "model.layers.#.router.proj"},
    {"model.layers.#.mlp.experts.gate_up_proj", "model.layers.#.experts.gate_up_proj"},
    {"model.layers.#.mlp.experts.down_proj", "model.layers.#.experts.down_proj"},
    {NULL, NULL},
};

const struct family_name chatglm_keys[] = {
    {"vocab_size", "padded_vocab_size"},
    {"num_hidden_layers", "num_layers"},
    {"num_key_value_heads", "multi_query_group_num"},
    {"head_dim", "kv_channels"},
    {"intermediate_size", "ffn_hidden_size"},
    {"max_position_embeddings", "seq_length"},
    {"rms_norm_eps", "layernorm_epsilon"},
    {"attention_bias", "add_qkv_bias"},
    {NULL, NULL},
};

const struct family_name chatglm_tensors[] = {
    {"model.embed_tokens", "transformer.embedding.word_embeddings"},
    {"model.norm", "transformer.encoder.final_layernorm"},
    {"lm_head", "transformer.output_layer"},
    {"model.layers.#.input_layernorm", "transformer.encoder.layers.#.input_layernorm"},
    {"model.layers.#.post_attention_layernorm",
     "transformer.encoder.layers.#.post_attention_layernorm"},
    {"model.layers.#.self_attn.qkv_proj",
     "transformer.encoder.layers.#.self_attention.query_key_value"},
    {"model.layers.#.self_attn.o_proj", "transformer.encoder.layers.#.self_attention.dense"},
    {"model.layers.#.mlp.gate_up_proj", "transformer.encoder.layers.#.mlp.dense_h_to_4h"},
    {"model.layers.#.mlp.down_proj", "transformer.encoder.layers.#.mlp.dense_4h_to_h"},
    {NULL, NULL},
};

const struct family_name lfm2_keys[] = {
    {"rms_norm_eps", "norm_eps"},
    {NULL, NULL},
};

const struct family_name lfm2_tensors[] = {
    {"model.norm", "model.embedding_norm"},
    {"model.layers.#.input_layernorm", "model.layers.#.operator_norm"},
    {"model.layers.#.post_attention_layernorm", "model.layers.#.ffn_norm"},
    {"model.layers.#.self_attn.o_proj", "model.layers.#.self_attn.out_proj"},
    {"model.layers.#.self_attn.q_norm", "model.layers.#.self_attn.q_layernorm"},
    {"model.layers.#.self_attn.k_norm", "model.layers.#.self_attn.k_layernorm"},
    {"model.layers.#.mlp.gate_proj", "model.layers.#.feed_forward.w1"},
    {"model.layers.#.mlp.up_proj", "model.layers.#.feed_forward.w3"},
    {"model.layers.#.mlp.down_proj", "model.layers.#.feed_forward.w2"},
    {"model.layers.#.mlp.gate", "model.layers.#.feed_forward.gate"},
    {"model.layers.#.mlp.gate.e_score_correction_bias", "model.layers.#.feed_forward.expert_bias"},
    {"model.layers.#.mlp.experts.@.gate_proj", "model.layers.#.feed_forward.experts.@.w1"},
    {"model.layers.#.mlp.experts.@.up_proj", "model.layers.#.feed_forward.experts.@.w3"},
    {"model.layers.#.mlp.experts.@.down_proj", "model.layers.#.feed_forward.experts.@.w2"},
    {NULL, NULL},
};

const struct family_name granite_hybrid_tensors[] = {
    {"model.layers.#.mlp.gate_up_proj", "model.layers.#.shared_mlp.input_linear"},
    {"model.layers.#.mlp.down_proj", "model.layers.#.shared_mlp.output_linear"},
    {"model.layers.#.mlp.shared_experts.gate_up_proj", "model.layers.#.shared_mlp.input_linear"},
    {"model.layers.#.mlp.shared_experts.down_proj", "model.layers.#.shared_mlp.output_linear"},
    {"model.layers.#.mlp.gate", "model.layers.#.block_sparse_moe.router.layer"},
    {"model.layers.#.mlp.experts.gate_up_proj",
     "model.layers.#.block_sparse_moe.input_linear.weight"},
    {"model.layers.#.mlp.experts.down_proj",
     "model.layers.#.block_sparse_moe.output_linear.weight"},
    {NULL, NULL},
};

const struct family_name nemotron_keys[] = {
    {"rms_norm_eps", "layer_norm_epsilon"},
    {"hidden_act", "mlp_hidden_act"},
    {NULL, NULL},
};

/* A layer is one part, with one norm. */
const struct family_name nemotron_tensors[] = {
    {"model.embed_tokens", "backbone.embeddings"},
    {"model.norm", "backbone.norm_f"},
    {"model.layers.#.input_layernorm", "backbone.layers.#.norm"},
    {"model.layers.#.post_attention_layernorm", "backbone.layers.#.norm"},
    {"model.layers.#.self_attn.q_proj", "backbone.layers.#.mixer.q_proj"},
    {"model.layers.#.self_attn.k_proj", "backbone.layers.#.mixer.k_proj"},
    {"model.layers.#.self_attn.v_proj", "backbone.layers.#.mixer.v_proj"},
    {"model.layers.#.self_attn.o_proj", "backbone.layers.#.mixer.o_proj"},
    {"model.layers.#.mlp.up_proj", "backbone.layers.#.mixer.up_proj"},
    {"model.layers.#.mlp.down_proj", "backbone.layers.#.mixer.down_proj"},
    {"model.layers.#.mlp.gate", "backbone.layers.#.mixer.gate"},
    {"model.layers.#.mlp.experts.@.up_proj", "backbone.layers.#.mixer.experts.@.up_proj"},
    {"model.layers.#.mlp.experts.@.down_proj", "backbone.layers.#.mixer.experts.@.down_proj"},
    {"model.layers.#.mlp.shared_experts.up_proj", "backbone.layers.#.mixer.shared_experts.up_proj"},
    {"model.layers.#.mlp.shared_experts.down_proj",
     "backbone.layers.#.mixer.shared_experts.down_proj"},
    {"model.layers.#.mamba.in_proj", "backbone.layers.#.mixer.in_proj"},
    {"model.layers.#.mamba.conv1d", "backbone.layers.#.mixer.conv1d"},
    {"model.layers.#.mamba.A_log", "backbone.layers.#.mixer.A_log"},
    {"model.layers.#.mamba.dt_bias", "backbone.layers.#.mixer.dt_bias"},
    {"model.layers.#.mamba.D", "backbone.layers.#.mixer.D"},
    {"model.layers.#.mamba.norm", "backbone.layers.#.mixer.norm"},
    {"model.layers.#.mamba.out_proj", "backbone.layers.#.mixer.out_proj"},
    {NULL, NULL},
};

const struct family_name cohere_keys[] = {
    {"rms_norm_eps", "layer_norm_eps"},
    {NULL, NULL},
};

const char *family_own_name(const struct family_name *names, const char *usual) {
    for (; names && names->usual; names++)
        if (strcmp(names->usual, usual) == 0) return names->own;
    return usual;
}
