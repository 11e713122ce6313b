/* weights.h - the map from tensor names to the members of struct model.  It is one for all
 * families: they call the same things by the same names.  The config says which of the rest a model
 * has.
 *
 * Thread: any.  Memory: none of its own. */
#ifndef ENGINE_MODEL_WEIGHTS_H
#define ENGINE_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_config;

/* A side of a tensor, in terms of the configuration. */
enum weight_side {
    SIDE_NONE,
    SIDE_VECTOR,
    SIDE_VOCAB,
    SIDE_DIM,
    SIDE_Q,
    SIDE_KV,
    SIDE_QK,
    SIDE_QKV,
    SIDE_FFN,
    SIDE_GATE_UP,
    SIDE_HEAD
};

enum weight_when {
    WHEN_ALWAYS,
    WHEN_UNTIED,
    WHEN_QKV_BIAS,
    WHEN_O_BIAS,
    WHEN_MLP_BIAS,
    WHEN_QK_NORM,
    WHEN_POST_NORMS,
    WHEN_FFN_NORM,
    WHEN_OWN_FFN_NORMS,
    WHEN_SPLIT_QKV,
    WHEN_FUSED_QKV,
    WHEN_SPLIT_GATE_UP,
    WHEN_FUSED_GATE_UP
};

struct weight_rule {
    const char *name;      /* layer rules: '#' stands for the layer's number */
    size_t at;             /* offset of the struct weight, in struct model or layer_weights */
    enum weight_side rows; /* SIDE_VECTOR: the tensor has one dimension, cols */
    enum weight_side cols;
    /* The tensor holds other rows, too: it has `whole`, and `before` of them come before these.
     * SIDE_NONE: it holds only these. */
    enum weight_side whole, before;
    enum weight_when when;
    bool is_norm; /* a vector that scales: 1 where weights are random */
    bool turns;   /* its rows are q's or k's (rotary_order.h) */
};

struct weight_rules {
    const struct weight_rule *rules;
    size_t n;
};

extern const struct weight_rules weights_of_model, weights_of_layer;

/* Returns the rule of the model with this name, which must exist. */
const struct weight_rule *weights_find(const char *name);
bool weights_rule_applies(const struct weight_rule *rule, const struct model_config *config);
uint32_t weights_side(enum weight_side side, const struct model_config *config);

#endif
