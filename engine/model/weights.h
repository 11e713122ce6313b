/* weights.h - the map from tensor names to the members of struct model.  It is one for all
 * families, in Llama's names; some have others for the same things (family_names.h).  The config
 * says which of them a model has.
 *
 * Thread: any.  Memory: none of its own. */
#ifndef ENGINE_MODEL_WEIGHTS_H
#define ENGINE_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct family_name;
struct layer_shape;
struct model_config;

/* A side of a tensor, in terms of the configuration. */
enum weight_side {
    SIDE_NONE,
    SIDE_VECTOR,
    SIDE_ONE,
    SIDE_VOCAB,
    SIDE_POSITIONS,
    SIDE_DIM,
    SIDE_Q,
    SIDE_KV,
    SIDE_QK,
    SIDE_QKV,
    SIDE_FFN,
    SIDE_DENSE,
    SIDE_GATE_UP,
    SIDE_HEAD,
    SIDE_HEADS,
    SIDE_EXPERTS,
    SIDE_SHARED,
    SIDE_2SHARED,     /* gate and up of the shared expert */
    SIDE_INPUT,       /* model_config.layer_inputs: a layer's own input, */
    SIDE_INPUTS,      /* and those of all layers */
    SIDE_INPUT_VOCAB, /* tokens of their table */
    /* Of a recurrent layer (struct recurrent_shape): */
    SIDE_KEYS,    /* q, or k */
    SIDE_2KEYS,   /* both */
    SIDE_VALUES,  /* v, or z; of short convolutions b, c or x */
    SIDE_2VALUES, /* two of these */
    SIDE_3VALUES,
    SIDE_CHANNELS,   /* q, k and v */
    SIDE_CHANNELS_Z, /* these and z */
    /* Of Mamba-2 (x, B and C are v, k and q): */
    SIDE_X_B,        /* x and B */
    SIDE_Z_X_B,      /* these and z */
    SIDE_Z_CHANNELS, /* z, x, B and C */
    SIDE_MAMBA,      /* these and a: all products */
    SIDE_V_HEADS,    /* b, or a */
    SIDE_B_A,        /* both */
    SIDE_V_HEAD,
    SIDE_TAPS,  /* of the convolution */
    SIDE_Q_GATE /* of attention with an output gate: q and the gate */
};

/* What tensors a model has, as a set of bits, of which an enum has too few. */
#define TRAIT(n) (UINT64_C(1) << (n))
#define TRAIT_TIED TRAIT(0)
#define TRAIT_QKV_BIAS TRAIT(1)
#define TRAIT_O_BIAS TRAIT(2)
#define TRAIT_MLP_BIAS TRAIT(3)
#define TRAIT_QK_NORM TRAIT(4)
#define TRAIT_POST_NORMS TRAIT(5)
#define TRAIT_OWN_FFN_NORMS TRAIT(6)
#define TRAIT_FUSED_QKV TRAIT(7)
#define TRAIT_FUSED_GATE_UP TRAIT(8)
#define TRAIT_PLAIN_FFN TRAIT(9)
#define TRAIT_NORM_BIAS TRAIT(10)
#define TRAIT_SHARED_NORM TRAIT(11)
#define TRAIT_LEARNED_POSITIONS TRAIT(12)
#define TRAIT_SINKS TRAIT(13)
#define TRAIT_EXPERTS TRAIT(14)
#define TRAIT_WHOLE_QK_NORM TRAIT(15)
#define TRAIT_NO_PRE_NORMS TRAIT(16)
#define TRAIT_EXPERTS_SINGLE TRAIT(17) /* how the files have them (enum expert_layout) */
#define TRAIT_EXPERTS_STACKED TRAIT(18)
#define TRAIT_EXPERTS_FUSED TRAIT(19)
#define TRAIT_SHARED_EXPERT TRAIT(20)
#define TRAIT_SHARED_GATE TRAIT(21)
#define TRAIT_ROUTER_BIAS TRAIT(22)
#define TRAIT_CHOICE_BIAS TRAIT(23)
#define TRAIT_NO_ATTENTION TRAIT(24)
#define TRAIT_RECURRENT_BY_GROUP TRAIT(25)
#define TRAIT_OUTPUT_GATE TRAIT(26)
#define TRAIT_K_IS_V TRAIT(27)
#define TRAIT_LAYER_SCALES TRAIT(28)
#define TRAIT_BOTH TRAIT(29)
#define TRAIT_SHARED TRAIT(30)       /* several ranks have it, each a part */
#define TRAIT_BORROWS_KV TRAIT(31)   /* layer_shape.borrows_kv */
#define TRAIT_LAYER_INPUTS TRAIT(32) /* model_config.layer_inputs */
#define TRAIT_GATES_BY_GROUP TRAIT(33)
#define TRAIT_DELTA TRAIT(34) /* of recurrent layers: their kind */
#define TRAIT_CONVOLUTION TRAIT(35)
#define TRAIT_MAMBA TRAIT(36)
#define TRAIT_CONV_BIAS TRAIT(37)
#define TRAIT_FUSED_SHARED TRAIT(38)
#define TRAIT_NO_MIXER TRAIT(39) /* MIXER_NONE */
#define TRAIT_NO_FFN TRAIT(40)   /* FFN_NONE */

struct weight_rule {
    const char *name;      /* '#' stands for the layer's number, '@' for the expert's */
    size_t at;             /* offset of the struct weight, in struct model or layer_weights */
    enum weight_side rows; /* SIDE_VECTOR: the tensor has one dimension, cols */
    enum weight_side cols;
    enum weight_side stacked; /* matrices of a stack (weight_find.h); SIDE_NONE: it is no stack */
    /* The tensor holds other rows, too: it has `whole`, and `before` of them come before these, as
     * a whole or (weight_find.h) in each group.  SIDE_NONE: it holds only these.  A vector holds
     * other elements. */
    enum weight_side whole, before;
    uint64_t with, without; /* a model has the tensor if it has all and none of these */
    bool is_norm;           /* a vector that scales: 1 where weights are random */
    bool is_from_0;         /* of a norm: as it is, whatever model_config.norms_from_one says */
    bool is_small;          /* read like a vector, not multiplied with */
    bool is_log;            /* the device gets -exp of it, unless the files have that */
    bool is_rotary;         /* its rows are q's or k's (rotary_order.h) */
    bool is_table;          /* its rows are looked up */
    bool is_last;           /* of the norm before the logits (model_config.logit_scale) */
    bool over_root;         /* it is divided by the root of the model's width */
    bool is_host;           /* the decoder reads it, as f32; the device does not get it */
    /* It is added to a product whose columns ranks share (model_share.h).  Rank 0 alone has it, so
     * that the sum over the ranks has it once. */
    bool is_in_sum;
};

struct weight_rules {
    const struct weight_rule *rules;
    size_t n;
};

extern const struct weight_rules weights_of_model, weights_of_layer;

enum { WEIGHTS_MAX_NAME = 128 };

/* Writes the name that a tensor has to out [WEIGHTS_MAX_NAME].  It is the family's own
 * name, or else the rule's, with numbers for '#' and '@'.  names: as in family_own_name(). */
void weights_tensor_name(char *out, const struct family_name *names, const char *rule_name,
                         uint32_t layer, uint32_t expert);

/* Writes the name that a tensor has in the model's own files, as above. */
void weights_file_name(char *out, const struct model_config *config, const char *rule_name,
                       uint32_t layer, uint32_t expert);

/* Returns the rule of the model with this name, which must exist. */
const struct weight_rule *weights_find(const char *name);
/* Returns true if the model has the tensor, in a layer of this shape.  shape: NULL for rules of the
 * model. */
bool weights_rule_applies(const struct weight_rule *rule, const struct model_config *config,
                          const struct layer_shape *shape);
/* Returns true if the tensor is a router's, or the gate of a shared expert.  It is small, and is
 * not quantised, because what it chooses would change. */
bool weights_are_router(const struct weight_rule *rule);
/* Returns what the model needs the tensor for: bits of enum weight_use. */
unsigned weights_uses(const struct weight_rule *rule, const struct model_config *config);
/* Returns a side's length; shape: NULL for sides that no layer's shape says. */
uint32_t weights_side(enum weight_side side, const struct model_config *config,
                      const struct layer_shape *shape);

#endif
