/* usage.h - what KV caches have held, evicted and fetched: a list of named numbers.
 *
 *   kv_count(), kv_report() ──fill──► struct kv_usage of a request ──► usage.kv, by kv_numbers
 *                                     added to engine_stats.kv     ──► metrics, by kv_numbers
 *
 * Only engine/kv/kv_sequence.c, and what is worked out from several numbers, name one.  Everything
 * between passes the list through.
 *
 * Thread: any.  Memory: constants. */
#ifndef ENGINE_REQUEST_USAGE_H
#define ENGINE_REQUEST_USAGE_H

#include <stdbool.h>
#include <stdint.h>

/* In the order in which they are written.  Tokens are counted in each KV head of each layer. */
enum kv_number {
    KV_BUDGET_TOKENS,      /* that a bounded cache may keep */
    KV_RESIDENT_TOKENS,    /* in the cache at the end */
    KV_EVICTED_TOKENS,     /* evicted from it */
    KV_RETAINED_ATTENTION, /* struct evict_total; not known until it is tracked */
    KV_OFFLOADED_TOKENS,   /* resident tokens that sparse layers have in the host pool only */
    KV_SELECTED_TOKENS,    /* struct select_total.n_chosen, over all steps */
    KV_FETCHED_TOKENS,     /* its n_fetched */
    KV_FETCHED_COPIES,     /* its n_copies */
    KV_MOVED_COPIES,       /* how many of these came from the host pool */
    KV_N_NUMBERS
};

/* What a sum over sequences, or over time, makes of a number. */
enum kv_adding {
    KV_ADD_COUNT, /* the sum; in metrics, of all requests so far */
    KV_ADD_LEVEL, /* the sum; in metrics, of those that run now */
    KV_ADD_MEAN   /* the mean of those that know it; no metric */
};

struct kv_number_info {
    const char *name;
    enum kv_adding adding;
    uint32_t mechanisms; /* bit kv_mechanism: where usage.kv has the number; elsewhere it is null.
                            0: it does not show it */
    /* Of the metric; NULL: there is none. */
    const char *metric, *help;
    bool by_policy; /* a sample for each policy, not one for all */
};

extern const struct kv_number_info kv_numbers[KV_N_NUMBERS];

struct kv_usage {
    double values[KV_N_NUMBERS]; /* NAN: not known */
};

#endif
