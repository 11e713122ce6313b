/* decoder_internal.h - what a decoder holds, for the files that compute a step: decoder.c,
 * decoder_layer.c, feed_forward.c and residual.c.  decoder.c creates it and sets its members.
 *
 * Thread: engine.  Memory: described in decoder.c. */
#ifndef ENGINE_MODEL_DECODER_INTERNAL_H
#define ENGINE_MODEL_DECODER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/backend.h"
#include "engine/device/dtype.h"
#include "engine/device/exchange.h"
#include "engine/device/step.h"
#include "engine/model/decoder.h"

/* Rows that follow one another in the step, and the activations of the first. */
struct row_range {
    void *x, *qkv;
    uint32_t n;
    struct rank_rows own; /* of these rows: those of which this rank computes the products */
};

/* What some sequence of a step adds to the operations of every step: a set of these bits. */
enum {
    STEP_EVICTS_LOWEST = 1, /* by scores, in each layer */
    STEP_EVICTS_OLDEST = 2, /* in all layers at once */
    STEP_EVICTS = STEP_EVICTS_LOWEST | STEP_EVICTS_OLDEST,
    STEP_SELECTS = 4,
    STEP_OBSERVES = 8,
    N_STEP_EXTRAS = 16
};

/* A step's operations from tokens to logits, as run_graph() gets them. */
struct step_body {
    struct decoder *decoder;
    unsigned extras;
};

struct decoder {
    const struct model *model;
    struct backend *be;
    const struct kv_pool *kv;
    struct kv_pool *pools; /* [n_layers]: kv with the shape of each layer's heads */
    struct decoder_limits limits;
    uint32_t qkv_dim; /* elements from a row of qkv to the next; the widest layer's */
    void *arena;
    void *x, *normed, *qkv, *gates, *attn, *gate_up, *ffn, *last, *last_attn, *logits, *long_x,
        *long_qkv;
    void *experts_workspace;    /* of models with experts: as in experts.h */
    void *recurrent_workspace;  /* of models with recurrent layers: as in recurrent.h */
    void *part;                 /* of a rank, or NULL: what it adds to a sum (collective.h) */
    void *products, *own_attn;  /* of ranks that share rows (row_share.h) */
    void *branch, *experts_out; /* of FFN_BOTH */
    void *inputs, *last_inputs; /* layer_inputs.h: of the step's rows, and of `last` */
    uint32_t *experts;
    float *shares;
    uint32_t *slice_rows;             /* host [max_logit_rows]: rows of the step */
    struct sample_row *slice_samples; /* host [max_logit_rows]: logit_row: in slice_rows */
    struct step_body bodies[N_STEP_EXTRAS];
    /* The step that is being submitted: */
    struct step step; /* with the model's windows */
    unsigned extras;
    const struct step_seq *sparse; /* the sequence with sparse attention, or NULL */
    uint32_t n_run;      /* layers that run: nothing reads what the others would compute */
    bool is_split;       /* the rank computes the products of its own rows only */
    bool last_attends;   /* prompts attend behind model_n_writing(), too: something reads it */
    bool has_logits;     /* of the newest step: its rows left their logits, in order */
    bool owes_evictions; /* of the newest step: the oldest tokens are still there */
    uint32_t n_sampled;  /* sample rows of the newest step: STEP_SAMPLED may name these */
};

/* Returns the address of element number `offset` of an activation buffer. */
static inline void *act_at(const struct decoder *d, void *buffer, size_t offset) {
    return (char *)buffer + activation_bytes(d->be->act_dtype, offset);
}

/* Returns the residual stream of the rank's own rows. */
static inline void *own_x(const struct decoder *d, struct row_range rows) {
    return act_at(d, rows.x, (size_t)rows.own.first * d->model->config.dim);
}

#endif
