/* family.h - what the name of an architecture says that its config.json does not.
 *
 * Thread: any.  Memory: constant. */
#ifndef ENGINE_MODEL_FAMILY_H
#define ENGINE_MODEL_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/backend.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"

/* Whether a product has a bias. */
enum family_bias {
    BIAS_NEVER,
    BIAS_ALWAYS,
    BIAS_AS_SAID, /* by 'attention_bias', 'mlp_bias' */
    BIAS_BY_KEY   /* of o: by 'attention_out_bias' */
};

/* Whether tokens of some layers see only the newest ones before them. */
enum family_window {
    WINDOW_NEVER,
    WINDOW_AS_SAID, /* where 'sliding_window' is a number */
    WINDOW_IF_USED  /* and 'use_sliding_window' is true, from layer 'max_window_layers' on */
};

/* How layers differ in the frequencies by which they rotate q and k. */
enum family_ropes {
    ROPES_ALIKE,     /* not at all */
    ROPES_BY_WINDOW, /* those with a window have unscaled ones, maybe of another base */
    ROPES_IN_WINDOWS /* where 'sliding_window' is a number, layers without a window have none */
};

/* Which layers are recurrent (recurrent_config.h). */
enum family_recurrent {
    RECURRENT_NONE,
    RECURRENT_LINEAR,  /* Gated DeltaNet: those of 'linear_attention' in 'layer_types' */
    RECURRENT_CONV,    /* short convolutions: those of 'conv' */
    RECURRENT_GRANITE, /* Mamba-2: those of 'mamba' */
    RECURRENT_NEMOTRON /* the same: those of 'M' in 'hybrid_override_pattern' */
};

struct config_reader;
struct family_experts;
struct family_name;

struct model_family {
    const char *architecture;
    const char *type; /* its 'model_type', by which transformers finds it */
    enum family_bias qkv_bias, o_bias, mlp_bias;
    enum family_window window;
    uint32_t usual_window; /* where config.json lacks the key; 0: none */
    double norm_eps;       /* unless config.json says so */
    bool usual_bias;       /* 'attention_bias' and, without BIAS_BY_KEY, 'mlp_bias', if not said */
    /* 'intermediate_size' as a multiple of 'hidden_size', and 'max_position_embeddings', where
     * config.json lacks them; 0: it must not. */
    uint32_t usual_ffn_ratio, usual_context;
    /* Returns how many layers there are where 'num_hidden_layers' is missing; 0: too many, or it is
     * not known.  NULL: it must not be missing. */
    uint32_t (*count_layers)(const struct config_reader *r);
    /* Its names where they are not Llama's; NULL: there are none. */
    const struct family_name *keys, *tensors;
    /* Reads and checks what only this family says (family_config.h); NULL: nothing. */
    int (*read)(const struct config_reader *r, struct model_config *c);
    /* The same as the members of model_config: */
    bool qk_norm, whole_qk_norm, v_norm, no_pre_norms, post_norms, own_ffn_norms, norms_from_one;
    bool layer_scales;
    bool layer_norm, norm_bias, parallel, shared_norm;
    bool fused_qkv, qkv_by_group, fused_gate_up, paired_rotary;
    bool output_gate, recurrent_by_group;
    enum family_recurrent recurrent;
    enum model_positions positions;
    uint32_t first_position;
    enum ffn_kind ffn;                    /* of every layer, but for those with experts: */
    const struct family_experts *experts; /* NULL: there are none */
    bool experts_in_columns;
    enum softmax_kind softmax; /* unless config.json says so */
    enum act_kind act;         /* of FFN_PLAIN, where config.json lacks the key */
    double partial_rotary;     /* usual share of a head that rotates; 0: all of it, always */
    uint32_t window_period;    /* every window_period-th layer has no window; 0: all have one */
    /* Key: the same of the dense layers in front, after which layers are counted anew.  Where it is
     * 1 dense layers rotate though they have no window.  NULL: all layers are counted together. */
    const char *dense_window_period;
    bool needs_window; /* 'sliding_window' null is refused: layers differ in more */
    enum family_ropes ropes;
    /* Of ROPES_BY_WINDOW: the usual base in layers with a window; 0: as in the others. */
    double usual_local_theta;
    double usual_theta;  /* 0: 10000 */
    bool has_rope_ratio; /* 'rope_ratio' multiplies the base */
    bool has_mrope;      /* 'mrope_section' deals pairs to three positions; a text's are equal */
    bool scales_queries; /* by their position, with 'llama_4_scaling_beta' */
    /* Unless config.json says so; 0: by the heads' number, and by their size. */
    uint32_t usual_head_dim, usual_query_scalar;
    /* Caps of scores and logits where config.json lacks the key; 0: there may be none. */
    double usual_attn_softcap, usual_logit_softcap;
    bool caps_as_said;                   /* logits are capped where config.json says so */
    uint32_t usual_layer_inputs;         /* 'hidden_size_per_layer_input', if not said */
    bool usually_tied, scales_embedding; /* the latter by the root of its width */
    enum gate_kind gate;
};

/* Returns the family, NULL if it is not served. */
const struct model_family *family_find(const char *architecture);
/* Returns the architecture that a 'model_type' stands for, NULL if no served family has it. */
const char *family_of_type(const char *type);
/* Writes the names of all served architectures to out [FAMILY_LIST_BYTES], with commas between
 * them.  Those with the same end stand behind it, and do not repeat it. */
enum { FAMILY_LIST_BYTES = 512 };
void family_list(char *out);
/* Returns the served architecture whose name is the most like this one. */
const char *family_nearest(const char *architecture);
/* Returns what is missing for an architecture that is not served, "" if that is not known. */
const char *family_missing(const char *architecture);

#endif
