/* prefill_account.h - how the prompts of a request's sequences were computed, for usage.prefill.
 *
 * One sparse sequence makes the request sparse.  Times are sums over the sequences, density is the
 * mean of the sparse ones.
 *
 * Thread: loop.  Memory: fixed. */
#ifndef SERVER_API_PREFILL_ACCOUNT_H
#define SERVER_API_PREFILL_ACCOUNT_H

#include <stdint.h>

#include "engine/request/prefill_choice.h"

struct buffer;

struct prefill_account {
    uint32_t n_sparse; /* sequences */
    double density, index_s, attention_s; /* summed over them */
    uint64_t n_reused; /* tokens of prompts, each counted once: see prefill_account_add_reused() */
};

/* usage: of a sequence that has ended. */
void prefill_account_add(struct prefill_account *account, const struct prefill_usage *usage);
/* Of the first choice of a prompt, whose tokens count as cached in the same way: those of the
 * others come from this one. */
void prefill_account_add_reused(struct prefill_account *account, const struct prefill_usage *usage);
/* {"mode":...}; once every sequence has been added. */
void prefill_account_write(const struct prefill_account *account, struct buffer *out);

#endif
