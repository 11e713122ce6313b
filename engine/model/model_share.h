/* model_share.h - what of a model each rank has, where several backends compute it together
 * (collective.h).
 *
 *   whole       q heads, KV heads, heads of recurrent layers, feed-forward width, vocabulary of the
 *               head
 *   rank's      a part of each, in order: of 32 heads, four ranks have 0-7, 8-15, 16-23, 24-31
 *
 * KV heads, and key heads of recurrent layers, are repeated where there are more ranks than these.
 * What is as wide as the residual stream is on every rank: norms, and the embedding, because a
 * token's row is needed whole.
 *
 * Where ranks share rows, each has all weights but those that belong to heads of attention, and a
 * part of the heads only (row_share.h).
 *
 * A weight is shared as its sides are.  A side of which the rank has a part has another length in
 * the rank's configuration than in the whole one; weights_side() gives both.
 *
 * Thread: any.  Memory: see model_share_make(). */
#ifndef ENGINE_MODEL_MODEL_SHARE_H
#define ENGINE_MODEL_MODEL_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct model_config;

/* Elements of a side. */
struct side_part {
    uint32_t first, n;
};

/* Makes *out the configuration of whole->rank.  It borrows whole's arrays, but owns `layers`.
 * ERR_UNSUPPORTED, naming the setting: a side cannot be divided by so many. */
int model_share_make(struct model_config *out, const struct model_config *whole, struct error *err);
/* Tells whether a rank has only a part of the weights. */
bool model_shares_weights(const struct model_config *config);
/* Returns the rank's part of a side that has `whole` elements, of which the rank has n. */
struct side_part model_share_of(const struct model_config *config, uint32_t whole, uint32_t n);
/* Returns the rank's part of the vocabulary.  Ranks may have different numbers of tokens. */
struct side_part model_share_vocab(const struct model_config *config);

#endif
