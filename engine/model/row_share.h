/* row_share.h - a step of ranks that share its rows (collective.h).
 *
 *   own rows, all heads    x ─► q k v ┐                   ┌► o, feed-forward ─► x of the next layer
 *                       row_share_to_heads()     row_share_to_rows()
 *   all rows, own heads               └► pages, attention ┘
 *
 * What depends on one row alone is computed for the rank's own rows.  Attention, which joins rows,
 * is computed for the rank's own heads.  So pages, policies, patterns and scores are those of ranks
 * that share weights.
 *
 * Few rows are not split: each rank computes the products of all of them, because reading the
 * weights is what takes the time.  Then attention of all heads comes back to all ranks.
 *
 * A decoder that shares no rows has all of them, and nothing is exchanged.
 *
 * Thread: engine.  Memory: in the decoder's arena. */
#ifndef ENGINE_MODEL_ROW_SHARE_H
#define ENGINE_MODEL_ROW_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model/decoder_internal.h"

struct error;
struct model_config;

/* Where the products q, k and v of the first row lie. */
struct qkv_rows {
    void *q, *k, *v;
    size_t stride;
};

/* Returns the most rows of which one rank computes the products.  max_whole: the most rows that are
 * not split, whatever their step is. */
uint32_t row_share_most(const struct model_config *config, uint32_t max_rows, uint32_t max_whole);
/* Returns how many times as wide as the rank's are rows of all heads. */
uint32_t row_share_widening(const struct model_config *config);

/* Settles whether the rows of the step, or slice, that begins are split. */
void row_share_begin(struct decoder *d, uint32_t n_rows, bool is_whole);
/* Returns n rows of the step whose first is at x and qkv. */
struct row_range row_share_range(const struct decoder *d, void *x, void *qkv, uint32_t n);
/* Returns where the products of the rank's own rows belong. */
struct qkv_rows row_share_products(const struct decoder *d, uint32_t layer, struct row_range rows);
/* Makes of these the queries, keys and values of all rows, of the rank's heads, at rows.qkv. */
int row_share_to_heads(struct decoder *d, uint32_t layer, struct row_range rows, struct error *err);
/* Makes of the attention of all rows, at d->attn, that of the rank's own rows, of all heads.  *out:
 * where it lies. */
int row_share_to_rows(struct decoder *d, uint32_t layer, struct row_range rows, void **out,
                      struct error *err);
/* Makes `to` what all heads give to n rows; from: what the rank's heads give. */
int row_share_all_heads(struct decoder *d, uint32_t layer, const void *from, void *to, uint32_t n,
                        struct error *err);
/* Brings rows of x that other ranks have to all ranks; x: act [n, width]. */
int row_share_all_rows(struct decoder *d, void *x, uint32_t width, uint32_t n, struct error *err);
/* Tells whether this rank makes logits.  Where ranks share rows one has them whole. */
bool row_share_has_logits(const struct decoder *d);

#endif
