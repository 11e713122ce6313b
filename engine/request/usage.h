/* usage.h - what a request's KV cache has held, lost and fetched.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_REQUEST_USAGE_H
#define ENGINE_REQUEST_USAGE_H

#include <stdint.h>

/* How much of a request's text its KV cache held and evicted, in each KV head of each layer. */
struct kv_usage {
    uint32_t n_resident;      /* tokens in the cache at the end */
    uint64_t n_evicted;       /* tokens evicted from it */
    float retained_attention; /* struct evict_total */
    uint32_t n_offloaded;     /* resident tokens that sparse layers have in the host pool only */
    uint64_t n_chosen, n_fetched, n_copies; /* struct select_total, over all steps */
};

#endif
