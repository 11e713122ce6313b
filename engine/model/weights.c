/* weights.c - see weights.h.  A rule's `with` and `without` say which models have the tensor. */
#include "engine/model/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/model/family_names.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/model_share.h"
#include "engine/model/text_half.h"

#define IN_MODEL(member) offsetof(struct model, member)
#define IN_LAYER(member) offsetof(struct layer_weights, member)
enum { UINT32_DIGITS = 11 }; /* with the 0 at the end */

/* A rule is two lines: what it reads, and what for. */
// clang-format off
static const struct weight_rule model_rules[] = {
    {.name = "model.embed_tokens.weight", .at = IN_MODEL(embedding),
     .rows = SIDE_VOCAB, .cols = SIDE_DIM, .is_table = true},
    {.name = "model.embed_positions.weight", .at = IN_MODEL(positions),
     .rows = SIDE_POSITIONS, .cols = SIDE_DIM, .with = TRAIT_LEARNED_POSITIONS, .is_table = true},
    {.name = "model.embed_tokens_per_layer.weight", .at = IN_MODEL(input_embedding),
     .rows = SIDE_INPUT_VOCAB, .cols = SIDE_INPUTS, .with = TRAIT_LAYER_INPUTS, .is_table = true},
    {.name = "model.per_layer_model_projection.weight", .at = IN_MODEL(input_projection),
     .rows = SIDE_INPUTS, .cols = SIDE_DIM, .with = TRAIT_LAYER_INPUTS},
    {.name = "model.per_layer_projection_norm.weight", .at = IN_MODEL(input_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_INPUT, .with = TRAIT_LAYER_INPUTS, .is_norm = true},
    {.name = "model.norm.weight", .at = IN_MODEL(final_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .is_norm = true, .is_last = true},
    {.name = "model.norm.bias", .at = IN_MODEL(final_norm_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_NORM_BIAS, .is_last = true},
    {.name = "lm_head.weight", .at = IN_MODEL(head),
     .rows = SIDE_VOCAB, .cols = SIDE_DIM, .without = TRAIT_TIED},
    {.name = "model.embed_tokens.weight", .at = IN_MODEL(head),
     .rows = SIDE_VOCAB, .cols = SIDE_DIM, .with = TRAIT_TIED | TRAIT_SHARED},
};

static const struct weight_rule layer_rules[] = {
    {.name = "model.layers.#.input_layernorm.weight", .at = IN_LAYER(attn_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .without = TRAIT_NO_PRE_NORMS | TRAIT_NO_MIXER,
     .is_norm = true},
    {.name = "model.layers.#.input_layernorm.bias", .at = IN_LAYER(attn_norm_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_NORM_BIAS, .without = TRAIT_NO_MIXER},
    {.name = "model.layers.#.self_attn.q_proj.weight", .at = IN_LAYER(q),
     .rows = SIDE_Q, .cols = SIDE_DIM,
     .without = TRAIT_FUSED_QKV | TRAIT_NO_ATTENTION | TRAIT_OUTPUT_GATE, .is_rotary = true},
    {.name = "model.layers.#.self_attn.q_proj.weight", .at = IN_LAYER(q),
     .rows = SIDE_Q, .cols = SIDE_DIM, .whole = SIDE_Q_GATE, .with = TRAIT_OUTPUT_GATE,
     .is_rotary = true},
    {.name = "model.layers.#.self_attn.q_proj.weight", .at = IN_LAYER(output_gate),
     .rows = SIDE_Q, .cols = SIDE_DIM, .whole = SIDE_Q_GATE, .before = SIDE_Q,
     .with = TRAIT_OUTPUT_GATE},
    {.name = "model.layers.#.self_attn.k_proj.weight", .at = IN_LAYER(k),
     .rows = SIDE_KV, .cols = SIDE_DIM,
     .without = TRAIT_FUSED_QKV | TRAIT_NO_ATTENTION | TRAIT_BORROWS_KV, .is_rotary = true},
    {.name = "model.layers.#.self_attn.v_proj.weight", .at = IN_LAYER(v),
     .rows = SIDE_KV, .cols = SIDE_DIM,
     .without = TRAIT_FUSED_QKV | TRAIT_NO_ATTENTION | TRAIT_K_IS_V | TRAIT_BORROWS_KV},
    {.name = "model.layers.#.self_attn.qkv_proj.weight", .at = IN_LAYER(q),
     .rows = SIDE_Q, .cols = SIDE_DIM, .whole = SIDE_QKV, .with = TRAIT_FUSED_QKV, .is_rotary = true},
    {.name = "model.layers.#.self_attn.qkv_proj.weight", .at = IN_LAYER(k),
     .rows = SIDE_KV, .cols = SIDE_DIM, .whole = SIDE_QKV, .before = SIDE_Q,
     .with = TRAIT_FUSED_QKV, .is_rotary = true},
    {.name = "model.layers.#.self_attn.qkv_proj.weight", .at = IN_LAYER(v),
     .rows = SIDE_KV, .cols = SIDE_DIM, .whole = SIDE_QKV, .before = SIDE_QK,
     .with = TRAIT_FUSED_QKV},
    {.name = "model.layers.#.self_attn.o_proj.weight", .at = IN_LAYER(o),
     .rows = SIDE_DIM, .cols = SIDE_Q, .without = TRAIT_NO_ATTENTION},
    {.name = "model.layers.#.self_attn.q_proj.bias", .at = IN_LAYER(q_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_Q, .with = TRAIT_QKV_BIAS, .without = TRAIT_FUSED_QKV,
     .is_rotary = true},
    {.name = "model.layers.#.self_attn.k_proj.bias", .at = IN_LAYER(k_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_KV, .with = TRAIT_QKV_BIAS,
     .without = TRAIT_FUSED_QKV | TRAIT_BORROWS_KV, .is_rotary = true},
    {.name = "model.layers.#.self_attn.v_proj.bias", .at = IN_LAYER(v_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_KV, .with = TRAIT_QKV_BIAS,
     .without = TRAIT_FUSED_QKV | TRAIT_K_IS_V | TRAIT_BORROWS_KV},
    {.name = "model.layers.#.self_attn.qkv_proj.bias", .at = IN_LAYER(q_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_Q, .whole = SIDE_QKV,
     .with = TRAIT_QKV_BIAS | TRAIT_FUSED_QKV, .is_rotary = true},
    {.name = "model.layers.#.self_attn.qkv_proj.bias", .at = IN_LAYER(k_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_KV, .whole = SIDE_QKV, .before = SIDE_Q,
     .with = TRAIT_QKV_BIAS | TRAIT_FUSED_QKV, .is_rotary = true},
    {.name = "model.layers.#.self_attn.qkv_proj.bias", .at = IN_LAYER(v_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_KV, .whole = SIDE_QKV, .before = SIDE_QK,
     .with = TRAIT_QKV_BIAS | TRAIT_FUSED_QKV},
    {.name = "model.layers.#.self_attn.o_proj.bias", .at = IN_LAYER(o_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_O_BIAS, .is_in_sum = true},
    {.name = "model.layers.#.self_attn.q_norm.weight", .at = IN_LAYER(q_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_HEAD, .with = TRAIT_QK_NORM, .is_norm = true},
    {.name = "model.layers.#.self_attn.k_norm.weight", .at = IN_LAYER(k_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_HEAD, .with = TRAIT_QK_NORM, .without = TRAIT_BORROWS_KV,
     .is_norm = true},
    {.name = "model.layers.#.self_attn.q_norm.weight", .at = IN_LAYER(q_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_Q, .with = TRAIT_WHOLE_QK_NORM, .is_norm = true},
    {.name = "model.layers.#.self_attn.k_norm.weight", .at = IN_LAYER(k_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_KV, .with = TRAIT_WHOLE_QK_NORM, .is_norm = true},
    {.name = "model.layers.#.self_attn.sinks", .at = IN_LAYER(sinks),
     .rows = SIDE_VECTOR, .cols = SIDE_HEADS, .with = TRAIT_SINKS},
    {.name = "model.layers.#.post_self_attn_layernorm.weight", .at = IN_LAYER(attn_post_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_POST_NORMS,
     .without = TRAIT_OWN_FFN_NORMS, .is_norm = true},
    {.name = "model.layers.#.post_mlp_layernorm.weight", .at = IN_LAYER(ffn_post_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_POST_NORMS,
     .without = TRAIT_OWN_FFN_NORMS, .is_norm = true},
    {.name = "model.layers.#.post_attention_layernorm.weight", .at = IN_LAYER(ffn_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM,
     .without = TRAIT_OWN_FFN_NORMS | TRAIT_SHARED_NORM | TRAIT_NO_FFN, .is_norm = true},
    {.name = "model.layers.#.post_attention_layernorm.bias", .at = IN_LAYER(ffn_norm_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_NORM_BIAS,
     .without = TRAIT_SHARED_NORM | TRAIT_NO_FFN},
    {.name = "model.layers.#.input_layernorm.weight", .at = IN_LAYER(ffn_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_SHARED_NORM, .is_norm = true},
    {.name = "model.layers.#.input_layernorm.bias", .at = IN_LAYER(ffn_norm_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_SHARED_NORM | TRAIT_NORM_BIAS},
    {.name = "model.layers.#.post_attention_layernorm.weight", .at = IN_LAYER(attn_post_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_OWN_FFN_NORMS, .is_norm = true},
    {.name = "model.layers.#.pre_feedforward_layernorm.weight", .at = IN_LAYER(ffn_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_OWN_FFN_NORMS,
     .without = TRAIT_NO_PRE_NORMS, .is_norm = true},
    {.name = "model.layers.#.post_feedforward_layernorm.weight", .at = IN_LAYER(ffn_post_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_OWN_FFN_NORMS, .is_norm = true},

    {.name = "model.layers.#.linear_attn.in_proj_qkv.weight", .at = IN_LAYER(q),
     .rows = SIDE_KEYS, .cols = SIDE_DIM, .whole = SIDE_CHANNELS, .with = TRAIT_DELTA,
     .without = TRAIT_RECURRENT_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_qkv.weight", .at = IN_LAYER(k),
     .rows = SIDE_KEYS, .cols = SIDE_DIM, .whole = SIDE_CHANNELS, .before = SIDE_KEYS,
     .with = TRAIT_DELTA, .without = TRAIT_RECURRENT_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_qkv.weight", .at = IN_LAYER(v),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .whole = SIDE_CHANNELS, .before = SIDE_2KEYS,
     .with = TRAIT_DELTA, .without = TRAIT_RECURRENT_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_z.weight", .at = IN_LAYER(z),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .with = TRAIT_DELTA,
     .without = TRAIT_RECURRENT_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_b.weight", .at = IN_LAYER(b),
     .rows = SIDE_V_HEADS, .cols = SIDE_DIM, .with = TRAIT_DELTA,
     .without = TRAIT_GATES_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_a.weight", .at = IN_LAYER(a),
     .rows = SIDE_V_HEADS, .cols = SIDE_DIM, .with = TRAIT_DELTA,
     .without = TRAIT_GATES_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_qkvz.weight", .at = IN_LAYER(q),
     .rows = SIDE_KEYS, .cols = SIDE_DIM, .whole = SIDE_CHANNELS_Z,
     .with = TRAIT_DELTA | TRAIT_RECURRENT_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_qkvz.weight", .at = IN_LAYER(k),
     .rows = SIDE_KEYS, .cols = SIDE_DIM, .whole = SIDE_CHANNELS_Z, .before = SIDE_KEYS,
     .with = TRAIT_DELTA | TRAIT_RECURRENT_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_qkvz.weight", .at = IN_LAYER(v),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .whole = SIDE_CHANNELS_Z, .before = SIDE_2KEYS,
     .with = TRAIT_DELTA | TRAIT_RECURRENT_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_qkvz.weight", .at = IN_LAYER(z),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .whole = SIDE_CHANNELS_Z, .before = SIDE_CHANNELS,
     .with = TRAIT_DELTA | TRAIT_RECURRENT_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_ba.weight", .at = IN_LAYER(b),
     .rows = SIDE_V_HEADS, .cols = SIDE_DIM, .whole = SIDE_B_A,
     .with = TRAIT_DELTA | TRAIT_GATES_BY_GROUP},
    {.name = "model.layers.#.linear_attn.in_proj_ba.weight", .at = IN_LAYER(a),
     .rows = SIDE_V_HEADS, .cols = SIDE_DIM, .whole = SIDE_B_A, .before = SIDE_V_HEADS,
     .with = TRAIT_DELTA | TRAIT_GATES_BY_GROUP},
    {.name = "model.layers.#.linear_attn.conv1d.weight", .at = IN_LAYER(conv),
     .rows = SIDE_ONE, .cols = SIDE_TAPS, .stacked = SIDE_CHANNELS, .with = TRAIT_DELTA,
     .is_small = true},
    {.name = "model.layers.#.linear_attn.A_log", .at = IN_LAYER(rates),
     .rows = SIDE_VECTOR, .cols = SIDE_V_HEADS, .with = TRAIT_DELTA, .is_log = true},
    {.name = "model.layers.#.linear_attn.dt_bias", .at = IN_LAYER(dt_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_V_HEADS, .with = TRAIT_DELTA},
    {.name = "model.layers.#.linear_attn.norm.weight", .at = IN_LAYER(mixer_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_V_HEAD, .with = TRAIT_DELTA, .is_norm = true,
     .is_from_0 = true},
    {.name = "model.layers.#.linear_attn.out_proj.weight", .at = IN_LAYER(o),
     .rows = SIDE_DIM, .cols = SIDE_VALUES, .with = TRAIT_DELTA},

    {.name = "model.layers.#.conv.in_proj.weight", .at = IN_LAYER(q),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .whole = SIDE_3VALUES, .with = TRAIT_CONVOLUTION},
    {.name = "model.layers.#.conv.in_proj.weight", .at = IN_LAYER(k),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .whole = SIDE_3VALUES, .before = SIDE_VALUES,
     .with = TRAIT_CONVOLUTION},
    {.name = "model.layers.#.conv.in_proj.weight", .at = IN_LAYER(v),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .whole = SIDE_3VALUES, .before = SIDE_2VALUES,
     .with = TRAIT_CONVOLUTION},
    {.name = "model.layers.#.conv.conv.weight", .at = IN_LAYER(conv),
     .rows = SIDE_ONE, .cols = SIDE_TAPS, .stacked = SIDE_CHANNELS, .with = TRAIT_CONVOLUTION,
     .is_small = true},
    {.name = "model.layers.#.conv.out_proj.weight", .at = IN_LAYER(o),
     .rows = SIDE_DIM, .cols = SIDE_VALUES, .with = TRAIT_CONVOLUTION},

    {.name = "model.layers.#.mamba.in_proj.weight", .at = IN_LAYER(z),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .whole = SIDE_MAMBA, .with = TRAIT_MAMBA},
    {.name = "model.layers.#.mamba.in_proj.weight", .at = IN_LAYER(q),
     .rows = SIDE_VALUES, .cols = SIDE_DIM, .whole = SIDE_MAMBA, .before = SIDE_VALUES,
     .with = TRAIT_MAMBA},
    {.name = "model.layers.#.mamba.in_proj.weight", .at = IN_LAYER(k),
     .rows = SIDE_KEYS, .cols = SIDE_DIM, .whole = SIDE_MAMBA, .before = SIDE_2VALUES,
     .with = TRAIT_MAMBA},
    {.name = "model.layers.#.mamba.in_proj.weight", .at = IN_LAYER(v),
     .rows = SIDE_KEYS, .cols = SIDE_DIM, .whole = SIDE_MAMBA, .before = SIDE_Z_X_B,
     .with = TRAIT_MAMBA},
    {.name = "model.layers.#.mamba.in_proj.weight", .at = IN_LAYER(a),
     .rows = SIDE_V_HEADS, .cols = SIDE_DIM, .whole = SIDE_MAMBA, .before = SIDE_Z_CHANNELS,
     .with = TRAIT_MAMBA},
    {.name = "model.layers.#.mamba.conv1d.weight", .at = IN_LAYER(conv),
     .rows = SIDE_ONE, .cols = SIDE_TAPS, .stacked = SIDE_CHANNELS, .with = TRAIT_MAMBA,
     .is_small = true},
    {.name = "model.layers.#.mamba.conv1d.bias", .at = IN_LAYER(q_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_VALUES, .whole = SIDE_CHANNELS,
     .with = TRAIT_MAMBA | TRAIT_CONV_BIAS},
    {.name = "model.layers.#.mamba.conv1d.bias", .at = IN_LAYER(k_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_KEYS, .whole = SIDE_CHANNELS, .before = SIDE_VALUES,
     .with = TRAIT_MAMBA | TRAIT_CONV_BIAS},
    {.name = "model.layers.#.mamba.conv1d.bias", .at = IN_LAYER(v_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_KEYS, .whole = SIDE_CHANNELS, .before = SIDE_X_B,
     .with = TRAIT_MAMBA | TRAIT_CONV_BIAS},
    {.name = "model.layers.#.mamba.A_log", .at = IN_LAYER(rates),
     .rows = SIDE_VECTOR, .cols = SIDE_V_HEADS, .with = TRAIT_MAMBA, .is_log = true},
    {.name = "model.layers.#.mamba.dt_bias", .at = IN_LAYER(dt_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_V_HEADS, .with = TRAIT_MAMBA},
    {.name = "model.layers.#.mamba.D", .at = IN_LAYER(skip),
     .rows = SIDE_VECTOR, .cols = SIDE_V_HEADS, .with = TRAIT_MAMBA},
    {.name = "model.layers.#.mamba.norm.weight", .at = IN_LAYER(mixer_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_VALUES, .with = TRAIT_MAMBA, .is_norm = true},
    {.name = "model.layers.#.mamba.out_proj.weight", .at = IN_LAYER(o),
     .rows = SIDE_DIM, .cols = SIDE_VALUES, .with = TRAIT_MAMBA},

    {.name = "model.layers.#.mlp.gate_proj.weight", .at = IN_LAYER(dense_gate),
     .rows = SIDE_DENSE, .cols = SIDE_DIM, .with = TRAIT_BOTH},
    {.name = "model.layers.#.mlp.up_proj.weight", .at = IN_LAYER(dense_up),
     .rows = SIDE_DENSE, .cols = SIDE_DIM, .with = TRAIT_BOTH},
    {.name = "model.layers.#.mlp.down_proj.weight", .at = IN_LAYER(dense_down),
     .rows = SIDE_DIM, .cols = SIDE_DENSE, .with = TRAIT_BOTH},
    {.name = "model.layers.#.post_feedforward_layernorm_1.weight", .at = IN_LAYER(dense_post_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_BOTH, .is_norm = true},
    {.name = "model.layers.#.pre_feedforward_layernorm_2.weight", .at = IN_LAYER(experts_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_BOTH, .is_norm = true},
    {.name = "model.layers.#.post_feedforward_layernorm_2.weight", .at = IN_LAYER(experts_post_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_BOTH, .is_norm = true},
    {.name = "model.layers.#.router.scale", .at = IN_LAYER(router_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_BOTH, .is_norm = true, .over_root = true},
    {.name = "model.layers.#.router.per_expert_scale", .at = IN_LAYER(factors),
     .rows = SIDE_VECTOR, .cols = SIDE_EXPERTS, .with = TRAIT_BOTH, .is_norm = true},
    {.name = "model.layers.#.layer_scalar", .at = IN_LAYER(scale),
     .rows = SIDE_VECTOR, .cols = SIDE_ONE, .with = TRAIT_LAYER_SCALES, .is_norm = true, .is_host = true},
    {.name = "model.layers.#.per_layer_input_gate.weight", .at = IN_LAYER(input_gate),
     .rows = SIDE_INPUT, .cols = SIDE_DIM, .with = TRAIT_LAYER_INPUTS},
    {.name = "model.layers.#.per_layer_projection.weight", .at = IN_LAYER(input_projection),
     .rows = SIDE_DIM, .cols = SIDE_INPUT, .with = TRAIT_LAYER_INPUTS},
    {.name = "model.layers.#.post_per_layer_input_norm.weight", .at = IN_LAYER(input_post_norm),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_LAYER_INPUTS, .is_norm = true},
    {.name = "model.layers.#.mlp.gate_proj.weight", .at = IN_LAYER(gate),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .without = TRAIT_FUSED_GATE_UP | TRAIT_PLAIN_FFN | TRAIT_EXPERTS | TRAIT_NO_FFN},
    {.name = "model.layers.#.mlp.up_proj.weight", .at = IN_LAYER(up),
     .rows = SIDE_FFN, .cols = SIDE_DIM,
     .without = TRAIT_FUSED_GATE_UP | TRAIT_EXPERTS | TRAIT_NO_FFN},
    {.name = "model.layers.#.mlp.gate_up_proj.weight", .at = IN_LAYER(gate),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .whole = SIDE_GATE_UP, .with = TRAIT_FUSED_GATE_UP,
     .without = TRAIT_EXPERTS},
    {.name = "model.layers.#.mlp.gate_up_proj.weight", .at = IN_LAYER(up),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .whole = SIDE_GATE_UP, .before = SIDE_FFN,
     .with = TRAIT_FUSED_GATE_UP, .without = TRAIT_EXPERTS},
    {.name = "model.layers.#.mlp.down_proj.weight", .at = IN_LAYER(down),
     .rows = SIDE_DIM, .cols = SIDE_FFN, .without = TRAIT_EXPERTS | TRAIT_NO_FFN},
    {.name = "model.layers.#.mlp.gate_proj.bias", .at = IN_LAYER(gate_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_FFN, .with = TRAIT_MLP_BIAS,
     .without = TRAIT_PLAIN_FFN | TRAIT_EXPERTS | TRAIT_NO_FFN},
    {.name = "model.layers.#.mlp.up_proj.bias", .at = IN_LAYER(up_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_FFN, .with = TRAIT_MLP_BIAS,
     .without = TRAIT_EXPERTS | TRAIT_NO_FFN},
    {.name = "model.layers.#.mlp.down_proj.bias", .at = IN_LAYER(down_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .with = TRAIT_MLP_BIAS,
     .without = TRAIT_EXPERTS | TRAIT_NO_FFN, .is_in_sum = true},

    {.name = "model.layers.#.mlp.gate.weight", .at = IN_LAYER(router),
     .rows = SIDE_EXPERTS, .cols = SIDE_DIM, .with = TRAIT_EXPERTS},
    {.name = "model.layers.#.mlp.gate.bias", .at = IN_LAYER(router_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_EXPERTS, .with = TRAIT_EXPERTS | TRAIT_ROUTER_BIAS},
    {.name = "model.layers.#.mlp.gate.e_score_correction_bias", .at = IN_LAYER(choice_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_EXPERTS, .with = TRAIT_EXPERTS | TRAIT_CHOICE_BIAS},
    {.name = "model.layers.#.mlp.experts.@.gate_proj.weight", .at = IN_LAYER(gate),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS, .with = TRAIT_EXPERTS_SINGLE,
     .without = TRAIT_PLAIN_FFN},
    {.name = "model.layers.#.mlp.experts.@.up_proj.weight", .at = IN_LAYER(up),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS, .with = TRAIT_EXPERTS_SINGLE},
    {.name = "model.layers.#.mlp.experts.@.down_proj.weight", .at = IN_LAYER(down),
     .rows = SIDE_DIM, .cols = SIDE_FFN, .stacked = SIDE_EXPERTS, .with = TRAIT_EXPERTS_SINGLE},
    {.name = "model.layers.#.mlp.experts.gate_proj.weight", .at = IN_LAYER(gate),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS, .with = TRAIT_EXPERTS_STACKED,
     .without = TRAIT_PLAIN_FFN},
    {.name = "model.layers.#.mlp.experts.up_proj.weight", .at = IN_LAYER(up),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS, .with = TRAIT_EXPERTS_STACKED},
    {.name = "model.layers.#.mlp.experts.down_proj.weight", .at = IN_LAYER(down),
     .rows = SIDE_DIM, .cols = SIDE_FFN, .stacked = SIDE_EXPERTS, .with = TRAIT_EXPERTS_STACKED},
    {.name = "model.layers.#.mlp.experts.gate_up_proj", .at = IN_LAYER(gate),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS, .whole = SIDE_GATE_UP,
     .with = TRAIT_EXPERTS_FUSED},
    {.name = "model.layers.#.mlp.experts.gate_up_proj", .at = IN_LAYER(up),
     .rows = SIDE_FFN, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS, .whole = SIDE_GATE_UP,
     .before = SIDE_FFN, .with = TRAIT_EXPERTS_FUSED},
    {.name = "model.layers.#.mlp.experts.down_proj", .at = IN_LAYER(down),
     .rows = SIDE_DIM, .cols = SIDE_FFN, .stacked = SIDE_EXPERTS, .with = TRAIT_EXPERTS_FUSED},
    {.name = "model.layers.#.mlp.experts.gate_proj.bias", .at = IN_LAYER(gate_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_FFN, .stacked = SIDE_EXPERTS,
     .with = TRAIT_EXPERTS_STACKED | TRAIT_MLP_BIAS},
    {.name = "model.layers.#.mlp.experts.up_proj.bias", .at = IN_LAYER(up_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_FFN, .stacked = SIDE_EXPERTS,
     .with = TRAIT_EXPERTS_STACKED | TRAIT_MLP_BIAS},
    {.name = "model.layers.#.mlp.experts.down_proj.bias", .at = IN_LAYER(down_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS,
     .with = TRAIT_EXPERTS_STACKED | TRAIT_MLP_BIAS, .is_in_sum = true},
    {.name = "model.layers.#.mlp.experts.gate_up_proj_bias", .at = IN_LAYER(gate_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_FFN, .stacked = SIDE_EXPERTS, .whole = SIDE_GATE_UP,
     .with = TRAIT_EXPERTS_FUSED | TRAIT_MLP_BIAS},
    {.name = "model.layers.#.mlp.experts.gate_up_proj_bias", .at = IN_LAYER(up_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_FFN, .stacked = SIDE_EXPERTS, .whole = SIDE_GATE_UP,
     .before = SIDE_FFN, .with = TRAIT_EXPERTS_FUSED | TRAIT_MLP_BIAS},
    {.name = "model.layers.#.mlp.experts.down_proj_bias", .at = IN_LAYER(down_bias),
     .rows = SIDE_VECTOR, .cols = SIDE_DIM, .stacked = SIDE_EXPERTS,
     .with = TRAIT_EXPERTS_FUSED | TRAIT_MLP_BIAS, .is_in_sum = true},
    {.name = "model.layers.#.mlp.shared_experts.gate_proj.weight", .at = IN_LAYER(shared_gate),
     .rows = SIDE_SHARED, .cols = SIDE_DIM, .with = TRAIT_SHARED_EXPERT,
     .without = TRAIT_FUSED_SHARED | TRAIT_PLAIN_FFN},
    {.name = "model.layers.#.mlp.shared_experts.up_proj.weight", .at = IN_LAYER(shared_up),
     .rows = SIDE_SHARED, .cols = SIDE_DIM, .with = TRAIT_SHARED_EXPERT,
     .without = TRAIT_FUSED_SHARED},
    {.name = "model.layers.#.mlp.shared_experts.gate_up_proj.weight", .at = IN_LAYER(shared_gate),
     .rows = SIDE_SHARED, .cols = SIDE_DIM, .whole = SIDE_2SHARED,
     .with = TRAIT_SHARED_EXPERT | TRAIT_FUSED_SHARED},
    {.name = "model.layers.#.mlp.shared_experts.gate_up_proj.weight", .at = IN_LAYER(shared_up),
     .rows = SIDE_SHARED, .cols = SIDE_DIM, .whole = SIDE_2SHARED, .before = SIDE_SHARED,
     .with = TRAIT_SHARED_EXPERT | TRAIT_FUSED_SHARED},
    {.name = "model.layers.#.mlp.shared_experts.down_proj.weight", .at = IN_LAYER(shared_down),
     .rows = SIDE_DIM, .cols = SIDE_SHARED, .with = TRAIT_SHARED_EXPERT},
    {.name = "model.layers.#.mlp.shared_expert_gate.weight", .at = IN_LAYER(shared_expert_gate),
     .rows = SIDE_ONE, .cols = SIDE_DIM, .with = TRAIT_SHARED_EXPERT | TRAIT_SHARED_GATE},
};
// clang-format on

const struct weight_rules weights_of_model = {model_rules, COUNT(model_rules)};
const struct weight_rules weights_of_layer = {layer_rules, COUNT(layer_rules)};

void weights_tensor_name(char *out, const struct family_name *names, const char *rule_name,
                         uint32_t layer, uint32_t expert) {
    const char *own = family_own_name(names, rule_name), *suffix = "";
    const size_t most = WEIGHTS_MAX_NAME - UINT32_DIGITS;
    char usual[WEIGHTS_MAX_NAME];
    size_t n = 0;
    if (own == rule_name) {
        suffix = strrchr(rule_name, '.');
        snprintf(usual, sizeof(usual), "%.*s", (int)(suffix - rule_name), rule_name);
        own = family_own_name(names, usual);
    }
    for (const char *c = own; *c && n < most; c++) {
        if (*c == '#') n += (size_t)snprintf(out + n, UINT32_DIGITS, "%" PRIu32, layer);
        else if (*c == '@') n += (size_t)snprintf(out + n, UINT32_DIGITS, "%" PRIu32, expert);
        else out[n++] = *c;
    }
    snprintf(out + n, WEIGHTS_MAX_NAME - n, "%s", suffix);
}

void weights_file_name(char *out, const struct model_config *config, const char *rule_name,
                       uint32_t layer, uint32_t expert) {
    static const char usual[] = "model.";
    const struct tensor_prefix *prefix = config->prefix;
    char name[WEIGHTS_MAX_NAME];
    weights_tensor_name(out, config->tensors, rule_name, layer, expert);
    if (!prefix) return;
    snprintf(name, sizeof(name), "%s", out);
    const bool is_in_model = strncmp(name, usual, strlen(usual)) == 0;
    snprintf(out, WEIGHTS_MAX_NAME, "%s%s", is_in_model ? prefix->model : prefix->head,
             name + (is_in_model ? strlen(usual) : 0));
}

const struct weight_rule *weights_find(const char *name) {
    size_t i = 0;
    while (i + 1 < COUNT(model_rules) && strcmp(model_rules[i].name, name) != 0) i++;
    return &model_rules[i];
}

static uint64_t traits_of(const struct model_config *c, const struct layer_shape *shape) {
    const bool experts = shape && shape->n_experts > 0,
               attends = !shape || shape->mixer == MIXER_ATTENTION,
               recurs = shape && shape->mixer == MIXER_RECURRENT;
    const enum expert_layout layout = c->expert_layout;
    const enum recurrent_kind kind = c->recurrent.kind;
    const struct {
        bool has;
        uint64_t trait;
    } all[] = {
        {c->tied_head, TRAIT_TIED},
        {c->qkv_bias && attends, TRAIT_QKV_BIAS},
        {c->o_bias && attends, TRAIT_O_BIAS},
        {c->mlp_bias, TRAIT_MLP_BIAS},
        {c->qk_norm && attends, TRAIT_QK_NORM},
        {c->post_norms, TRAIT_POST_NORMS},
        {c->own_ffn_norms, TRAIT_OWN_FFN_NORMS},
        {c->fused_qkv, TRAIT_FUSED_QKV},
        {c->fused_gate_up, TRAIT_FUSED_GATE_UP},
        {shape && (shape->kind == FFN_PLAIN || shape->kind == FFN_PLAIN_EXPERTS), TRAIT_PLAIN_FFN},
        {c->norm_bias, TRAIT_NORM_BIAS},
        {c->shared_norm, TRAIT_SHARED_NORM},
        {c->positions == POSITIONS_LEARNED, TRAIT_LEARNED_POSITIONS},
        {c->softmax == SOFTMAX_SINKS, TRAIT_SINKS},
        {c->whole_qk_norm, TRAIT_WHOLE_QK_NORM},
        {c->no_pre_norms, TRAIT_NO_PRE_NORMS},
        {experts, TRAIT_EXPERTS},
        {experts && layout == EXPERTS_SINGLE, TRAIT_EXPERTS_SINGLE},
        {experts && layout == EXPERTS_STACKED, TRAIT_EXPERTS_STACKED},
        {experts && layout >= EXPERTS_FUSED, TRAIT_EXPERTS_FUSED},
        {experts && shape->shared_dim > 0, TRAIT_SHARED_EXPERT},
        {c->has_shared_gate, TRAIT_SHARED_GATE},
        {c->has_router_bias, TRAIT_ROUTER_BIAS},
        {c->has_choice_bias, TRAIT_CHOICE_BIAS},
        {!attends, TRAIT_NO_ATTENTION},
        {shape && shape->mixer == MIXER_NONE, TRAIT_NO_MIXER},
        {shape && shape->kind == FFN_NONE, TRAIT_NO_FFN},
        {recurs && kind == RECURRENT_DELTA, TRAIT_DELTA},
        {recurs && kind == RECURRENT_CONVOLUTION, TRAIT_CONVOLUTION},
        {recurs && kind == RECURRENT_MAMBA, TRAIT_MAMBA},
        {c->conv_bias, TRAIT_CONV_BIAS},
        {c->fused_shared, TRAIT_FUSED_SHARED},
        {c->recurrent_by_group, TRAIT_RECURRENT_BY_GROUP},
        {c->gates_by_group, TRAIT_GATES_BY_GROUP},
        {c->output_gate && attends, TRAIT_OUTPUT_GATE},
        {model_shares_weights(c), TRAIT_SHARED},
        {shape && shape->k_is_v, TRAIT_K_IS_V},
        {c->layer_scales, TRAIT_LAYER_SCALES},
        {shape && shape->kind == FFN_BOTH, TRAIT_BOTH},
        {shape && shape->borrows_kv, TRAIT_BORROWS_KV},
        {c->layer_inputs > 0, TRAIT_LAYER_INPUTS},
    };
    uint64_t traits = 0;
    for (size_t i = 0; i < COUNT(all); i++)
        if (all[i].has) traits |= all[i].trait;
    return traits;
}

bool weights_rule_applies(const struct weight_rule *rule, const struct model_config *config,
                          const struct layer_shape *shape) {
    const uint64_t traits = traits_of(config, shape);
    return (traits & rule->with) == rule->with && (traits & rule->without) == 0;
}

bool weights_are_router(const struct weight_rule *rule) {
    return rule->rows == SIDE_EXPERTS || rule->rows == SIDE_ONE;
}

unsigned weights_uses(const struct weight_rule *rule, const struct model_config *config) {
    const bool is_head = config->tied_head && !model_shares_weights(config) &&
                         rule->at == IN_MODEL(embedding) && rule->is_table;
    if (rule->rows == SIDE_VECTOR || rule->is_small) return WEIGHT_VECTOR;
    return rule->is_table ? WEIGHT_TABLE | (is_head ? WEIGHT_PRODUCT : 0) : WEIGHT_PRODUCT;
}

uint32_t weights_side(enum weight_side side, const struct model_config *config,
                      const struct layer_shape *shape) {
    const struct kv_shape heads = shape ? shape->kv : (struct kv_shape){0};
    const uint32_t q = config->n_heads * heads.head_dim, kv = heads.n_heads * heads.head_dim;
    const struct recurrent_shape *recurrent = &config->recurrent;
    const uint32_t keys = recurrent->n_k_heads * recurrent->k_dim,
                   values = recurrent->n_v_heads * recurrent->v_dim;
    switch (side) {
    case SIDE_NONE: break;
    case SIDE_VECTOR:
    case SIDE_ONE: return 1;
    case SIDE_VOCAB: return config->n_vocab;
    case SIDE_POSITIONS: return config->max_position + config->first_position;
    case SIDE_DIM: return config->dim;
    case SIDE_Q: return q;
    case SIDE_KV: return kv;
    case SIDE_QK: return q + kv;
    case SIDE_QKV: return q + 2 * kv;
    case SIDE_FFN: return shape->ffn_dim;
    case SIDE_DENSE: return shape->dense_dim;
    case SIDE_GATE_UP: return 2 * shape->ffn_dim;
    case SIDE_HEAD: return heads.head_dim;
    case SIDE_HEADS: return config->n_heads;
    case SIDE_EXPERTS: return shape->n_experts;
    case SIDE_SHARED: return shape->shared_dim;
    case SIDE_2SHARED: return 2 * shape->shared_dim;
    case SIDE_INPUT: return config->layer_inputs;
    case SIDE_INPUTS: return config->n_layers * config->layer_inputs;
    case SIDE_INPUT_VOCAB: return config->n_input_vocab;
    case SIDE_KEYS: return keys;
    case SIDE_2KEYS: return 2 * keys;
    case SIDE_VALUES: return values;
    case SIDE_2VALUES: return 2 * values;
    case SIDE_3VALUES: return 3 * values;
    case SIDE_CHANNELS: return 2 * keys + values;
    case SIDE_CHANNELS_Z:
    case SIDE_Z_CHANNELS: return 2 * keys + 2 * values;
    case SIDE_X_B: return keys + values;
    case SIDE_Z_X_B: return keys + 2 * values;
    case SIDE_MAMBA: return 2 * keys + 2 * values + recurrent->n_v_heads;
    case SIDE_V_HEADS: return recurrent->n_v_heads;
    case SIDE_B_A: return 2 * recurrent->n_v_heads;
    case SIDE_V_HEAD: return recurrent->v_dim;
    case SIDE_TAPS: return recurrent->width;
    case SIDE_Q_GATE: return 2 * q;
    }
    return 0;
}
