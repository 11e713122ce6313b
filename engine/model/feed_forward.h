/* feed_forward.h - what follows attention in a layer: its kinds, its sizes, and how it runs.
 *
 * A new kind is a value of ffn_kind, a row of the table in feed_forward.c, and rules in weights.c.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef ENGINE_MODEL_FEED_FORWARD_H
#define ENGINE_MODEL_FEED_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/pages.h"

struct decoder;
struct error;
struct experts_shape;
struct model_config;

enum ffn_kind {
    FFN_GATED,         /* down(gate(x) * up(x)), with model_config.gate of gate(x) */
    FFN_PLAIN,         /* down(up(x)), with model_config.act of up(x) */
    FFN_EXPERTS,       /* several of FFN_GATED, of which each row uses some (experts.h) */
    FFN_PLAIN_EXPERTS, /* the same of FFN_PLAIN */
    FFN_BOTH, /* FFN_GATED and FFN_EXPERTS, each with norms of its own; their sum is normed */
    FFN_NONE  /* the layer is its mixer alone */
};

/* What mixes the rows of a text in a layer. */
enum mixer_kind {
    MIXER_ATTENTION,
    MIXER_RECURRENT, /* a recurrent state (recurrent_layer.h) */
    MIXER_NONE       /* nothing: the layer is its feed-forward part alone */
};

/* What the layers of a model may differ in; but all with experts are of one shape, as are all
 * that are recurrent (model_config.recurrent). */
struct layer_shape {
    enum mixer_kind mixer;
    /* Its number among the recurrent layers, or among those that attend.  A step and the KV cache
     * know the latter alone, by these numbers.  Without a mixer: 0. */
    uint32_t number;
    /* It has no keys and values, but those of an earlier layer, whose number it has
     * (shared_keys.h). */
    bool borrows_kv;
    bool is_last_reader; /* no layer behind it has its number */
    bool is_local;       /* it rotates by model_config.local_freq, unscaled, not by inv_freq */
    bool rotates;        /* even where layers without a window do not */
    struct kv_shape kv;
    bool k_is_v; /* it has no v of its own: values are the keys before their norm and rotation */
    /* Its feed-forward part: */
    enum ffn_kind kind;
    uint32_t ffn_dim;   /* rows of up, and of gate */
    uint32_t dense_dim; /* of FFN_BOTH: the same of the dense part; ffn_dim is that of an expert */
    /* Of layers with experts: how many there are, and how many of them a row uses.  Then the rows
     * of the shared expert's up; 0: there is none. */
    uint32_t n_experts, n_used, shared_dim;
};

/* Elements of a row in the decoder's buffers gate_up and ffn, which all layers share. */
struct ffn_widths {
    uint32_t gate_up, ffn;
};

/* Returns the widths that the model's widest layers need. */
struct ffn_widths feed_forward_widths(const struct model_config *config);
/* Returns true if some layer is FFN_BOTH. */
bool feed_forward_has_both(const struct model_config *config);
/* Returns the sizes of the model's experts, for steps of n_rows; n_experts 0: it has none. */
struct experts_shape feed_forward_experts(const struct model_config *config, uint32_t n_rows);
/* Returns the multiply-adds of one row in a feed-forward part, the mean of the model's layers.  Of
 * experts those count that a row uses. */
double feed_forward_work(const struct model_config *config);

/* Runs the rest of a layer on n_rows rows.  attn_out, act [n_rows, mixer_attn_width()]: what
 * attention computed, which an output gate changes.  inputs: the rows' inputs of all layers
 * (layer_inputs.h), if the model has any.  x, act [n_rows, dim]: the residual stream, to which the
 * layer adds. */
int feed_forward_run(struct decoder *d, uint32_t layer, void *attn_out, const void *inputs, void *x,
                     uint32_t n_rows, struct error *err);

#endif
