/* observe.h - the token scores of a sequence's last queries, which are kept in its pages (struct
 * kv_observation of engine/device/select.h).
 *
 * Thread: any worker, each with its own pages; observe_rows(): engine.  Memory: none beside the
 * backend's buffers. */
#ifndef ENGINE_CPU_OBSERVE_H
#define ENGINE_CPU_OBSERVE_H

#include <stdint.h>

struct backend;
struct error;
struct kv_observation;
struct kv_pool;
struct select_args;

/* Raises each of PAGE_TOKENS scores to one head's probability if that is larger; NaN is below
 * everything. */
void keep_larger(float *token_scores, const float *p);

/* Keeps the scores, PAGE_TOKENS floats, that the query at this position of the text gives a page's
 * tokens. */
void observed_keep(const struct kv_pool *kv, const struct kv_observation *o, uint32_t group_index,
                   uint32_t page, uint32_t position, const float *scores);
/* Writes the weighted sum over the queries up to this position, PAGE_TOKENS floats. */
void observed_sum(const struct kv_pool *kv, const struct kv_observation *o, uint32_t group_index,
                  uint32_t page, uint32_t position, float *sum);

/* Implements select_ops.observe(). */
int observe_rows(struct backend *be, const struct select_args *args, struct error *err);

#endif
