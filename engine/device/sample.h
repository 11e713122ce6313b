/* sample.h - rows of logits become tokens and log-probabilities: arguments and results.
 *
 * Thread: engine.  Memory: borrowed. */
#ifndef ENGINE_DEVICE_SAMPLE_H
#define ENGINE_DEVICE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

enum { SAMPLE_MAX_TOP = 20 };

struct logit_bias {
    uint32_t token;
    float bias;
};

/* A token the sequence has seen, once per distinct token. */
struct token_count {
    uint32_t token;
    uint32_t n_output; /* times generated */
    bool in_prompt;
};

enum sample_kind {
    SAMPLE_DRAW, /* choose a token */
    SAMPLE_SCORE /* report the log-probability of `target` (prompt log-probabilities) */
};

/* The numbers by which a token is sampled.  They come from the request to every backend as they
 * are: a new sampling parameter is a member here. */
struct sampler {
    float temperature;                                             /* 0: greedy */
    float top_p;                                                   /* (0, 1]; 1: off */
    float min_p;                                                   /* [0, 1]; 0: off */
    uint32_t top_k;                                                /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
};

/* Instructions for one row of logits.  The order is: bias, bans and what is allowed, repetition,
 * frequency and presence penalties, temperature, top_k, min_p, top_p (kept tokens' mass >= top_p).
 * Then the sampled token is the first kept one, in the order of token ids, at which the sum of the
 * probabilities exceeds `uniform`.  Ties go to the lower token id.  Log-probabilities are of the
 * unmodified logits (log-softmax). */
struct sample_row {
    uint32_t logit_row; /* row of the logits matrix */
    enum sample_kind kind;
    uint32_t target; /* SAMPLE_SCORE */
    struct sampler sampler;
    double uniform; /* [0, 1): a random number, made by the engine from the request's seed */
    const struct token_count *counts; /* host [n_counts], for the penalties */
    uint32_t n_counts;
    const struct logit_bias *bias; /* host [n_bias] */
    uint32_t n_bias;
    const uint32_t *banned; /* host [n_banned]: logit -inf (end tokens before min_tokens) */
    uint32_t n_banned;
    /* Host [(n_vocab + 31) / 32], a bit for each token, the first in bit 0: tokens whose bit is 0
     * have logit -inf.  NULL: all are allowed. */
    const uint32_t *allowed;
    uint32_t n_top; /* how many top log-probabilities are wanted, <= SAMPLE_MAX_TOP */
};

struct token_logprob {
    uint32_t token;
    float logprob;
};

struct sample_result {
    uint32_t token; /* sampled, or the target */
    float logprob;  /* of token */
    uint32_t rank;  /* 1: token has the highest logit */
    bool invalid;   /* the row has a NaN or +inf, or no finite logit: only this request fails */
    uint32_t n_top;
    struct token_logprob top[SAMPLE_MAX_TOP]; /* best first */
};

struct sample_args {
    const void *logits; /* f32 [*, vocab] */
    uint32_t n_vocab, n;
    const struct sample_row *rows; /* host [n] */
    struct sample_result *results; /* host [n], valid after collect() or sync() */
};

#endif
