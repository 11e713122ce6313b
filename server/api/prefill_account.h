/* prefill_account.h - sums up how the prompts of a request's sequences were computed, for
 * usage.prefill.
 *
 * One sparse sequence makes the request sparse.  Where all are dense, the first one says why.
 * Times are sums over the sequences; density is the mean of the sparse ones.
 *
 * Thread: loop.  Memory: fixed. */
#ifndef SERVER_API_PREFILL_ACCOUNT_H
#define SERVER_API_PREFILL_ACCOUNT_H

#include <stdint.h>

#include "engine/request/prefill_choice.h"

struct buffer;

struct prefill_account {
    uint32_t n_sparse;                    /* sequences */
    double density, index_s, attention_s; /* summed over the sparse sequences */
    enum dense_reason why_dense;          /* of the first dense sequence */
    /* Prompt tokens, counted once per prompt: see prefill_account_add_reused(). */
    uint64_t n_reused;
};

/* Adds the usage of a sequence that has ended. */
void prefill_account_add(struct prefill_account *account, const struct prefill_usage *usage);
/* Adds the reused tokens of a prompt's first choice, as its cached tokens are counted.  The
 * prompt's other choices reuse the tokens of the first. */
void prefill_account_add_reused(struct prefill_account *account, const struct prefill_usage *usage);
/* Returns why every sequence was dense, by the word of usage.prefill.why_dense; NULL: one was
 * sparse, or none has been added. */
const char *prefill_account_reason(const struct prefill_account *account);
/* Writes {"mode":...}; call it once every sequence has been added. */
void prefill_account_write(const struct prefill_account *account, struct buffer *out);

#endif
