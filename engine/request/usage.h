/* usage.h - what a request's KV cache has held, lost and fetched.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_REQUEST_USAGE_H
#define ENGINE_REQUEST_USAGE_H

#include <stdint.h>

/* What became of a request's text, in each KV head of each layer. */
struct kv_usage {
    uint32_t n_resident; /* tokens in the cache at the end */
    uint64_t n_evicted;  /* tokens that left it */
    float retained_attention;     /* struct evict_total */
    uint32_t n_offloaded; /* of the resident ones, in sparse layers in the system's memory only */
    uint64_t n_chosen, n_fetched, n_copies; /* struct select_total, over all steps */
};

#endif
