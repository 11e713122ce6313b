/* weights.c - see weights.h.  What a family has and others have not is a condition of its rules. */
#include "engine/model/weights.h"

#include "engine/model/model.h"

#define IN_MODEL(member) offsetof(struct model, member)
#define IN_LAYER(member) offsetof(struct layer_weights, member)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct weight_rule model_rules[] = {
    {"model.embed_tokens.weight", IN_MODEL(embedding), SIDE_VOCAB, SIDE_DIM, WHEN_ALWAYS, false},
    {"model.norm.weight", IN_MODEL(final_norm), SIDE_VECTOR, SIDE_DIM, WHEN_ALWAYS, true},
    {"lm_head.weight", IN_MODEL(head), SIDE_VOCAB, SIDE_DIM, WHEN_UNTIED, false},
};

static const struct weight_rule layer_rules[] = {
    {"model.layers.#.input_layernorm.weight", IN_LAYER(attn_norm), SIDE_VECTOR, SIDE_DIM,
     WHEN_ALWAYS, true},
    {"model.layers.#.self_attn.q_proj.weight", IN_LAYER(q), SIDE_Q, SIDE_DIM, WHEN_ALWAYS, false},
    {"model.layers.#.self_attn.k_proj.weight", IN_LAYER(k), SIDE_KV, SIDE_DIM, WHEN_ALWAYS, false},
    {"model.layers.#.self_attn.v_proj.weight", IN_LAYER(v), SIDE_KV, SIDE_DIM, WHEN_ALWAYS, false},
    {"model.layers.#.self_attn.o_proj.weight", IN_LAYER(o), SIDE_DIM, SIDE_Q, WHEN_ALWAYS, false},
    {"model.layers.#.self_attn.q_proj.bias", IN_LAYER(q_bias), SIDE_VECTOR, SIDE_Q,
     WHEN_QKV_BIAS, false},
    {"model.layers.#.self_attn.k_proj.bias", IN_LAYER(k_bias), SIDE_VECTOR, SIDE_KV,
     WHEN_QKV_BIAS, false},
    {"model.layers.#.self_attn.v_proj.bias", IN_LAYER(v_bias), SIDE_VECTOR, SIDE_KV,
     WHEN_QKV_BIAS, false},
    {"model.layers.#.self_attn.o_proj.bias", IN_LAYER(o_bias), SIDE_VECTOR, SIDE_DIM,
     WHEN_O_BIAS, false},
    {"model.layers.#.self_attn.q_norm.weight", IN_LAYER(q_norm), SIDE_VECTOR, SIDE_HEAD,
     WHEN_QK_NORM, true},
    {"model.layers.#.self_attn.k_norm.weight", IN_LAYER(k_norm), SIDE_VECTOR, SIDE_HEAD,
     WHEN_QK_NORM, true},
    {"model.layers.#.post_attention_layernorm.weight", IN_LAYER(ffn_norm), SIDE_VECTOR, SIDE_DIM,
     WHEN_ALWAYS, true},
    {"model.layers.#.mlp.gate_proj.weight", IN_LAYER(gate), SIDE_FFN, SIDE_DIM, WHEN_ALWAYS, false},
    {"model.layers.#.mlp.up_proj.weight", IN_LAYER(up), SIDE_FFN, SIDE_DIM, WHEN_ALWAYS, false},
    {"model.layers.#.mlp.down_proj.weight", IN_LAYER(down), SIDE_DIM, SIDE_FFN, WHEN_ALWAYS, false},
    {"model.layers.#.mlp.gate_proj.bias", IN_LAYER(gate_bias), SIDE_VECTOR, SIDE_FFN,
     WHEN_MLP_BIAS, false},
    {"model.layers.#.mlp.up_proj.bias", IN_LAYER(up_bias), SIDE_VECTOR, SIDE_FFN,
     WHEN_MLP_BIAS, false},
    {"model.layers.#.mlp.down_proj.bias", IN_LAYER(down_bias), SIDE_VECTOR, SIDE_DIM,
     WHEN_MLP_BIAS, false},
};

const struct weight_rules weights_of_model = {model_rules, COUNT(model_rules)};
const struct weight_rules weights_of_layer = {layer_rules, COUNT(layer_rules)};

bool weights_rule_applies(const struct weight_rule *rule, const struct model_config *config) {
    switch (rule->when) {
    case WHEN_UNTIED: return !config->tied_head;
    case WHEN_QKV_BIAS: return config->qkv_bias;
    case WHEN_O_BIAS: return config->o_bias;
    case WHEN_MLP_BIAS: return config->mlp_bias;
    case WHEN_QK_NORM: return config->qk_norm;
    case WHEN_ALWAYS: break;
    }
    return true;
}

uint32_t weights_side(enum weight_side side, const struct model_config *config) {
    switch (side) {
    case SIDE_VOCAB: return config->n_vocab;
    case SIDE_DIM: return config->dim;
    case SIDE_Q: return config->n_heads * config->head_dim;
    case SIDE_KV: return config->n_kv_heads * config->head_dim;
    case SIDE_FFN: return config->ffn_dim;
    case SIDE_HEAD: return config->head_dim;
    case SIDE_VECTOR: break;
    }
    return 1;
}
