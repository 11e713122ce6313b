/* collective.h - the group of operations for backends that compute one model together: its ranks.
 *
 * A rank has a share of the weights, of the heads and of every page.  A thread for each rank
 * submits the same step to its backend.  What a rank computes from its share of a product's columns
 * is a part; the sum of all parts is the product.
 *
 *   rank 0   x ──► q k v, attention, o ──► part ┐
 *   rank 1   x ──► q k v, attention, o ──► part ┴─ sum() ──► x, the same bits on every rank
 *
 * Parts are added in the order of the ranks.  So the bits depend on the number of ranks, and on
 * nothing else.
 *
 * Or each rank has the whole weights, computes the products of some of a step's rows, and the
 * attention of some heads in all rows.  Between the two, rows are exchanged for heads:
 *
 *   rank 0   x of rows 0 … 3 ──► q k v of all heads ┐            ┌► q k v of rows 0 … 7, heads 0, 1
 *   rank 1   x of rows 4 … 7 ──► q k v of all heads ┴─exchange()─┴► q k v of rows 0 … 7, heads 2, 3
 *
 * Nothing is added up there, so the bits are those of one backend that has the same products.
 *
 * A call, or what it has submitted to the device, ends once all ranks have made it.  So all ranks
 * make the same calls in the same order.  A rank that cannot do so calls interrupt() instead.
 *
 * Thread: each rank's own; interrupt() and resume() any.  Memory: arguments are the callers'. */
#ifndef ENGINE_DEVICE_COLLECTIVE_H
#define ENGINE_DEVICE_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct error;
struct exchange_args; /* exchange.h */
struct rmsnorm_args;

enum { RANKS_MAX = 64 };

/* What ranks share beside attention's heads. */
enum ranks_share {
    RANKS_SHARE_WEIGHTS, /* each has a part of every weight, and computes all rows: sum() */
    RANKS_SHARE_ROWS     /* each has all weights, and computes some rows: exchange() */
};

/* Returns the name of the setting that says how many ranks share this. */
static inline const char *ranks_setting(enum ranks_share share) {
    return share == RANKS_SHARE_ROWS ? "--context-parallel-size" : "--tensor-parallel-size";
}

struct sum_args {
    const void *part; /* act [n]: the rank's own; it may change as soon as the call has ended */
    void *x;          /* act [n], not part */
    size_t n;         /* the same on all ranks */
    bool accumulate;  /* x += the sum of all parts; else x is that sum */
};

/* Columns of rows that lie in the same place on every rank. */
struct gather_columns_args {
    float *x;               /* f32 [n_rows, width] */
    uint32_t n_rows, width; /* the same on all ranks */
    uint32_t first, n_cols; /* the columns that the rank has computed */
};

struct collective_ops {
    int (*sum)(struct backend *be, const struct sum_args *args, struct error *err);
    /* Copies each rank's columns to the x of rank 0. */
    int (*gather_columns)(struct backend *be, const struct gather_columns_args *args,
                          struct error *err);
    /* Does what backend_ops.rmsnorm() does, with vectors of which each rank has a part of the same
     * size.  The mean square is that of all parts.  n_heads is 1, and nothing is accumulated.
     * NULL: the ranks cannot do it. */
    int (*rmsnorm)(struct backend *be, const struct rmsnorm_args *args, struct error *err);
    /* Exchanges rows for columns.  NULL: the ranks cannot share rows. */
    int (*exchange)(struct backend *be, const struct exchange_args *args, struct error *err);
    /* Returns the seconds that the rank has waited for others so far.  Thread: any.  NULL: it is
     * not known. */
    double (*waited_s)(const struct backend *be);
    /* Gives the n tokens that rank 0 has sampled last to the other ranks, for STEP_SAMPLED.  NULL:
     * no step is submitted before the host knows them. */
    int (*share_sampled)(struct backend *be, uint32_t n, struct error *err);
    /* Says how many KV heads all ranks have together in the layers that may keep a budget.  If that
     * is less than the ranks, several have the same head, each with a part of its queries.  Then
     * evict_ops evict by what all of these give a token.  To be called before a step.  NULL: they
     * cannot do that by scores. */
    void (*share_heads)(struct backend *be, uint32_t n_kv_heads);
    /* Ends the calls of all ranks with ERR_STOPPED, those that wait and later ones.  A device's
     * error comes with collect() or sync(). */
    void (*interrupt)(struct backend *be);
    /* Lets the ranks call again, after an interrupt.  No rank is in a call. */
    void (*resume)(struct backend *be);
    /* select_ops work on several ranks: all choose by the scores of all. */
    bool selects;
};

#endif
