/* gguf_layout.c - see gguf_layout.h. */
#include "engine/model/gguf_layout.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/model_document.h"
#include "engine/model/family_names.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"

/* The names of tensors, but for the norms behind attention. */
#define GGUF_TENSORS                                                                               \
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"},    \
        {"model.layers.#.input_layernorm", "blk.#.attn_norm"},                                     \
        {"model.layers.#.self_attn.q_proj", "blk.#.attn_q"},                                       \
        {"model.layers.#.self_attn.k_proj", "blk.#.attn_k"},                                       \
        {"model.layers.#.self_attn.v_proj", "blk.#.attn_v"},                                       \
        {"model.layers.#.self_attn.qkv_proj", "blk.#.attn_qkv"},                                   \
        {"model.layers.#.self_attn.o_proj", "blk.#.attn_output"},                                  \
        {"model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm"},                                  \
        {"model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm"},                                  \
        {"model.layers.#.self_attn.sinks", "blk.#.attn_sinks.weight"},                             \
        {"model.layers.#.linear_attn.in_proj_qkv", "blk.#.attn_qkv"},                              \
        {"model.layers.#.linear_attn.in_proj_qkvz", "blk.#.ssm_in"},                               \
        {"model.layers.#.linear_attn.in_proj_z", "blk.#.attn_gate"},                               \
        {"model.layers.#.linear_attn.in_proj_b", "blk.#.ssm_beta"},                                \
        {"model.layers.#.linear_attn.in_proj_a", "blk.#.ssm_alpha"},                               \
        {"model.layers.#.linear_attn.in_proj_ba", "blk.#.ssm_ba"},                                 \
        {"model.layers.#.linear_attn.conv1d", "blk.#.ssm_conv1d"},                                 \
        {"model.layers.#.linear_attn.A_log", "blk.#.ssm_a"},                                       \
        {"model.layers.#.linear_attn.dt_bias", "blk.#.ssm_dt.bias"},                               \
        {"model.layers.#.linear_attn.norm", "blk.#.ssm_norm"},                                     \
        {"model.layers.#.linear_attn.out_proj", "blk.#.ssm_out"},                                  \
        {"model.layers.#.mamba.in_proj", "blk.#.ssm_in"},                                          \
        {"model.layers.#.mamba.conv1d", "blk.#.ssm_conv1d"},                                       \
        {"model.layers.#.mamba.A_log", "blk.#.ssm_a"},                                             \
        {"model.layers.#.mamba.dt_bias", "blk.#.ssm_dt.bias"},                                     \
        {"model.layers.#.mamba.D", "blk.#.ssm_d"},                                                 \
        {"model.layers.#.mamba.norm", "blk.#.ssm_norm"},                                           \
        {"model.layers.#.mamba.out_proj", "blk.#.ssm_out"},                                        \
        {"model.layers.#.conv.in_proj", "blk.#.shortconv.in_proj"},                                \
        {"model.layers.#.conv.conv", "blk.#.shortconv.conv"},                                      \
        {"model.layers.#.conv.out_proj", "blk.#.shortconv.out_proj"},                              \
        {"model.layers.#.post_self_attn_layernorm", "blk.#.post_attention_norm"},                  \
        {"model.layers.#.post_mlp_layernorm", "blk.#.post_ffw_norm"},                              \
        {"model.layers.#.mlp.gate_proj", "blk.#.ffn_gate"},                                        \
        {"model.layers.#.mlp.up_proj", "blk.#.ffn_up"},                                            \
        {"model.layers.#.mlp.gate_up_proj", "blk.#.ffn_up"},                                       \
        {"model.layers.#.mlp.down_proj", "blk.#.ffn_down"},                                        \
        {"model.layers.#.mlp.gate", "blk.#.ffn_gate_inp"},                                         \
        {"model.layers.#.mlp.experts.gate_up_proj", "blk.#.ffn_gate_up_exps.weight"},              \
        {"model.layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps.weight"},                    \
        {"model.layers.#.mlp.experts.down_proj.weight", "blk.#.ffn_down_exps.weight"},             \
        {"model.layers.#.mlp.experts.down_proj.bias", "blk.#.ffn_down_exps.bias"},                 \
        {"model.layers.#.mlp.experts.gate_proj", "blk.#.ffn_gate_exps"},                           \
        {"model.layers.#.mlp.experts.up_proj", "blk.#.ffn_up_exps"},                               \
        {"model.layers.#.mlp.gate.e_score_correction_bias", "blk.#.exp_probs_b.bias"},             \
        {"model.layers.#.mlp.shared_experts.gate_proj", "blk.#.ffn_gate_shexp"},                   \
        {"model.layers.#.mlp.shared_experts.up_proj", "blk.#.ffn_up_shexp"},                       \
        {"model.layers.#.mlp.shared_experts.down_proj", "blk.#.ffn_down_shexp"},                   \
        {"model.layers.#.mlp.shared_expert_gate", "blk.#.ffn_gate_inp_shexp"},                     \
        {"model.layers.#.mlp.experts.@.gate_proj", "blk.#.ffn_gate.@"},                            \
        {"model.layers.#.mlp.experts.@.up_proj", "blk.#.ffn_up.@"},                                \
        {"model.layers.#.mlp.experts.@.down_proj", "blk.#.ffn_down.@"}, {                          \
        NULL, NULL                                                                                 \
    }

static const struct family_name usual_tensors[] = {
    {"model.layers.#.post_attention_layernorm", "blk.#.ffn_norm"},
    GGUF_TENSORS,
};

/* Of LFM2, whose last norm has the name of one behind the embedding. */
static const struct family_name lfm2_tensors_of_gguf[] = {
    {"model.norm", "token_embd_norm"},
    {"model.layers.#.post_attention_layernorm", "blk.#.ffn_norm"},
    GGUF_TENSORS,
};

/* Of files with GGUF_ONE_PART: all norms before a part have one name. */
static const struct family_name one_part_tensors[] = {
    {"model.layers.#.post_attention_layernorm", "blk.#.attn_norm"},
    GGUF_TENSORS,
};

/* Of models whose feed-forward part has norms of its own. */
static const struct family_name own_norms_tensors[] = {
    {"model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm"},
    {"model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm"},
    {"model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm"},
    GGUF_TENSORS,
};

/* Of Gemma 4.  Names with an end stand for tensors that have another one, or none, in the rules. */
static const struct family_name gemma4_tensors_of_gguf[] = {
    {"model.embed_tokens_per_layer", "per_layer_token_embd"},
    {"model.per_layer_model_projection", "per_layer_model_proj"},
    {"model.per_layer_projection_norm", "per_layer_proj_norm"},
    {"model.layers.#.per_layer_input_gate", "blk.#.inp_gate"},
    {"model.layers.#.per_layer_projection", "blk.#.proj"},
    {"model.layers.#.post_per_layer_input_norm", "blk.#.post_norm"},
    {"model.layers.#.layer_scalar", "blk.#.layer_output_scale.weight"},
    {"model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm"},
    {"model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm"},
    {"model.layers.#.pre_feedforward_layernorm_2", "blk.#.pre_ffw_norm_2"},
    {"model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm"},
    {"model.layers.#.post_feedforward_layernorm_1", "blk.#.post_ffw_norm_1"},
    {"model.layers.#.post_feedforward_layernorm_2", "blk.#.post_ffw_norm_2"},
    {"model.layers.#.router.scale", "blk.#.ffn_gate_inp.scale"},
    {"model.layers.#.router.per_expert_scale", "blk.#.ffn_down_exps.scale"},
    GGUF_TENSORS,
};

/* Of files with GGUF_LATE_FFN_NORM. */
static const struct family_name late_norm_tensors[] = {
    {"model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm"},
    GGUF_TENSORS,
};

const struct family_name *gguf_layout_tensors(const struct model_config *config) {
    const struct gguf_architecture *architecture = gguf_architecture_for(config->architecture);
    if (architecture && architecture->traits & GGUF_LATE_FFN_NORM) return late_norm_tensors;
    if (architecture && architecture->traits & GGUF_TWO_HEADS) return gemma4_tensors_of_gguf;
    if (architecture && architecture->traits & GGUF_CONVOLUTIONS) return lfm2_tensors_of_gguf;
    if (architecture && architecture->traits & GGUF_ONE_PART) return one_part_tensors;
    return config->own_ffn_norms ? own_norms_tensors : usual_tensors;
}

static bool has(const struct gguf_files *files, uint32_t layer, const char *name) {
    char whole[64];
    snprintf(whole, sizeof(whole), "blk.%" PRIu32 ".%s", layer, name);
    return gguf_files_find(files, whole) != NULL;
}

/* Returns the first layer with such a mixer; n_layers: there is none. */
static uint32_t first_layer(const struct model_config *c, enum mixer_kind mixer) {
    uint32_t i = 0;
    while (i < c->n_layers && c->layers[i].mixer != mixer) i++;
    return i;
}

/* Takes from the first layers what the others must have, too. */
static void apply(struct model_config *c, const struct gguf_files *files,
                  const struct gguf_architecture *architecture) {
    const uint32_t attends = first_layer(c, MIXER_ATTENTION),
                   recurs = first_layer(c, MIXER_RECURRENT);
    struct recurrent_shape *recurrent = &c->recurrent;
    uint32_t feeds = 0; /* the first layer with a feed-forward part */
    while (feeds < c->n_layers && c->layers[feeds].kind == FFN_NONE) feeds++;
    c->tensors = gguf_layout_tensors(c);
    c->norms_from_one = false;
    c->paired_rotary = architecture->paired_rotary;
    c->fused_qkv = has(files, attends, "attn_qkv.weight");
    c->fused_gate_up = c->layers[0].kind == FFN_GATED && !has(files, 0, "ffn_gate.weight");
    c->fused_shared = false;
    c->qkv_bias = has(files, attends, c->fused_qkv ? "attn_qkv.bias" : "attn_q.bias");
    c->o_bias = has(files, attends, "attn_output.bias");
    c->mlp_bias = has(files, feeds, "ffn_up.bias") || has(files, feeds, "ffn_up_exps.bias");
    c->recurrent_by_group = has(files, recurs, "ssm_in.weight");
    c->gates_by_group = has(files, recurs, "ssm_ba.weight");
    c->conv_bias = has(files, recurs, "ssm_conv1d.bias");
    c->has_rates = true;
    recurrent->v_heads_apart =
        architecture->traits & GGUF_V_HEADS_APART && recurrent->n_k_heads < recurrent->n_v_heads;
}

int gguf_layout_apply(struct model_config *config, const char *model, struct error *err) {
    struct gguf_files *files = NULL;
    if (!model_is_gguf(model)) return 0;
    int rc = gguf_files_open(&files, model, err);
    if (rc) return rc;
    const struct gguf_architecture *architecture;
    rc = gguf_architecture_of(&architecture, files, model, err);
    if (!rc) apply(config, files, architecture);
    gguf_files_close(files);
    return rc;
}
