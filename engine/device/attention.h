/* attention.h - arguments of the operations that write and read the KV pages of a step's rows.
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_DEVICE_ATTENTION_H
#define ENGINE_DEVICE_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct error;
struct kv_pool;
struct weight;

/* The most sets of rotary frequencies that the layers of a model may have. */
enum { MAX_ROPES = 2 };

#define NO_GROUP UINT32_MAX

/* RMSNorm of each head of q and of k by itself. */
struct head_norms {
    const struct weight *q, *k; /* [head_dim] */
    float eps;
};

/* Normalises the heads of q and k of the step's rows in place, if there are norms.  Rotates them:
 * half-split pairs (i, i + dim/2) of the first 2 * n_freqs elements.  Then writes k and v into the
 * sequences' pages of `layer`.
 * qkv act [n_rows, (n_heads + 2 * n_kv_heads) * head_dim]: q heads, k heads, v heads.
 * With a budget it also writes the rows' position, rank and score (0) into their slots' state.
 * With cache_positions it rotates only q. */
struct rope_append_args {
    void *qkv;
    const struct kv_pool *kv;
    const double *inv_freq; /* host [n_freqs], radians per position */
    /* Multiplies cos and sin (attention factor); 1 unless the model says so. */
    float rope_scale;
    uint32_t n_freqs; /* 0: nothing is rotated, and inv_freq may be NULL */
    uint32_t layer, n_heads;
    uint32_t rope; /* < MAX_ROPES: which of the model's frequencies these are */
    /* Not 0: after its rotation q of position p is multiplied with
     * 1 + query_beta * ln(1 + floor(p / query_period)). */
    float query_beta;
    uint32_t query_period;
    size_t qkv_stride;              /* elements from a row of qkv to the next; 0: rows are packed */
    const struct head_norms *norms; /* NULL: there are none */
};

/* Returns the elements from a row of qkv to the next. */
size_t rope_row_stride(const struct rope_append_args *args);
/* Runs the norms of rope_append as operations of their own, for n_rows rows. */
int norm_heads(struct backend *be, const struct rope_append_args *args, uint32_t n_rows,
               struct error *err);

/* Attention of the step's rows over the pages of `layer`.  attn_decode handles sequences
 * [0, n_decode), attn_prefill the rest; an empty range is a no-op.  q rows are the q heads inside
 * qkv. */
struct attn_args {
    const void *q; /* act, row i at q + i * q_stride elements: [n_heads, head_dim] */
    size_t q_stride;
    void *out; /* act [n_rows, n_heads * head_dim] */
    const struct kv_pool *kv;
    uint32_t layer, n_heads;
    float scale; /* 1 / sqrt(head_dim) unless the model says otherwise */
    /* Not 0: each score, scale * q . k, becomes softcap * tanh(score / softcap) wherever scores are
     * computed, before any mask. */
    float softcap;
    /* For keys that are rotated when they are read, as in rope_append_args. */
    const double *inv_freq;
    float rope_scale;
    uint32_t n_freqs, rope;
    /* ALiBi: host [n_heads], or NULL.  Each score gets less by slopes[head] times the distance from
     * the key to the query, in positions of the step: those of the text, or with cache_positions
     * ranks. */
    const float *slopes;
    /* With slopes: the layer group (select.h) that this layer is sparse in, which names the tokens
     * in its slots where a sequence selects; NO_GROUP: none. */
    uint32_t group;
    /* f32 [n_rows, n_heads], or NULL: base-2 logarithm of the sum of exp over the visited keys and
     * the sink, for the rows that attn_prefill computes.  Not with keys that are rotated when they
     * are read. */
    float *lse;
    /* NULL: none.  Otherwise each query head's softmax has one more logit, a sink, which belongs to
     * no key and adds nothing to the output.  It is neither scaled nor soft-capped.  [n_heads] of
     * a format that weight_is_plain(); if its data are NULL, all are 0: each sum gets exp(0).
     * Attention statistics and token scores are shares of the whole sum. */
    const struct weight *sinks;
    /* select(), observe() or choose() follows, with the same arguments: attention keeps the
     * statistics that it needs. */
    bool selects;
};

#endif
