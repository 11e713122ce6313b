/* weights.h - the map from a model family's tensor names to the members of struct model.
 *
 * Thread: any.  Memory: none of its own. */
#ifndef ENGINE_MODEL_WEIGHTS_H
#define ENGINE_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_config;

/* A side of a tensor, in terms of the configuration. */
enum weight_side { SIDE_VECTOR, SIDE_VOCAB, SIDE_DIM, SIDE_Q, SIDE_KV, SIDE_FFN };

enum weight_when { WHEN_ALWAYS, WHEN_UNTIED, WHEN_ATTN_BIAS, WHEN_MLP_BIAS };

struct weight_rule {
    const char *name;      /* layer rules: '#' stands for the layer's number */
    size_t offset;         /* of the struct weight, in struct model or struct layer_weights */
    enum weight_side rows; /* SIDE_VECTOR: the tensor has one dimension, cols */
    enum weight_side cols;
    enum weight_when when;
    bool is_norm; /* a vector that scales: 1 where weights are made up */
};

struct weight_family {
    const char *architecture;
    const struct weight_rule *model_rules, *layer_rules;
    size_t n_model_rules, n_layer_rules;
};

/* NULL: not a family this program knows. */
const struct weight_family *weights_find_family(const char *architecture);

bool weights_rule_applies(const struct weight_rule *rule, const struct model_config *config);
uint32_t weights_side(enum weight_side side, const struct model_config *config);

#endif
