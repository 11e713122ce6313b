/* kept.h - which tokens of a text the KV cache still has, as counts for a client that wants to see
 * it.
 *
 * Each KV head of each layer keeps tokens of its own.  So a token has a share: in how many of these
 * heads it would still be seen by the next one.
 *
 *   text     0 1 2 3 4 5 6 7 8 …         stride 1: a count for each token
 *   counts   [  0 1  ][  2 3  ] …        stride 2: a count for two, and so on
 *
 * A longer text has a larger stride, so there are never more than KV_KEPT_MAX counts.
 *
 * Thread: any one.  Memory: one block, made before the request runs. */
#ifndef ENGINE_REQUEST_KEPT_H
#define ENGINE_REQUEST_KEPT_H

#include <stdint.h>

enum { KV_KEPT_MAX = 16384 };

struct kv_kept {
    uint32_t n_tokens; /* stored tokens of the text */
    uint32_t n_heads;  /* KV heads of all layers together */
    uint32_t stride;   /* tokens that a count stands for, a power of 2; the last one may stand for
                          fewer */
    uint32_t n_counts, capacity;
    uint32_t counts[]; /* [capacity]: in how many heads its tokens are kept, summed over them */
};

/* Makes space for a text of up to n_most tokens, with nothing in it.  Returns NULL if there is no
 * memory; the caller frees it with free(). */
struct kv_kept *kv_kept_create(uint32_t n_most);
/* Begins with a text of n_tokens tokens, none of which is kept. */
void kv_kept_begin(struct kv_kept *kept, uint32_t n_tokens, uint32_t n_heads);
/* Notes that n_heads heads keep the tokens [first, end).  What is behind the text is left out. */
void kv_kept_add(struct kv_kept *kept, uint32_t first, uint32_t end, uint32_t n_heads);
/* Returns the share of heads, 0 to 1, that keep the tokens of a count; their mean if there are
 * several. */
double kv_kept_share(const struct kv_kept *kept, uint32_t index);

#endif
