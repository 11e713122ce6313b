/* exchange.h - arguments of the operation that exchanges rows for columns (collective.h), and where
 * each element goes.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_EXCHANGE_H
#define ENGINE_DEVICE_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kernels call these functions, too. */
#ifdef __CUDACC__
#define EXCHANGE_CALL static __host__ __device__ __forceinline__
#else
#define EXCHANGE_CALL static inline
#endif

/* Rows that a rank has of those that all ranks have together. */
struct rank_rows {
    uint32_t first, n;
};

/* Returns a rank's own rows: a part of n_rows that differs from the others' by one row at most. */
EXCHANGE_CALL struct rank_rows rank_rows_of(uint32_t n_rows, uint32_t rank, uint32_t n_ranks) {
    const uint32_t first = (uint32_t)((uint64_t)n_rows * rank / n_ranks),
                   end = (uint32_t)((uint64_t)n_rows * (rank + 1) / n_ranks);
    return (struct rank_rows){first, end - first};
}

/* Columns that lie side by side in a row: heads of q, of k, or of v. */
struct exchange_part {
    uint32_t all;       /* where they begin in a row of all columns, which are those of rank 0, */
    uint32_t own;       /* of the next rank, …; and in a row that has those of one rank only */
    uint32_t n;         /* columns of one rank */
    uint32_t n_sharing; /* ranks that follow one another and have the same columns, >= 1 */
};

enum { EXCHANGE_PARTS = 3 };

/* Exchanges rows of which each rank has some for columns of which each has some, or the other way
 * round.  Each of `from` and `to` has either all rows or the rank's own ones (rank_rows_of()), not
 * both its own.  What a rank has itself it gets from no other.  All but the addresses is the same
 * on all ranks. */
struct exchange_args {
    const void *from;              /* act; it may change as soon as the call has ended */
    void *to;                      /* act; rows that `to` gets may lie where they are in `from` */
    size_t from_stride, to_stride; /* elements from a row to the next */
    uint32_t n_rows;               /* of all ranks */
    bool from_own_rows, to_own_rows;
    bool to_own_columns; /* from has all columns, and to the rank's; else it is the other way */
    uint32_t n_parts;
    struct exchange_part parts[EXCHANGE_PARTS];
};

/* What a rank sends to another one, or to itself. */
struct exchange_block {
    uint32_t from_row, to_row, n_rows;
};

EXCHANGE_CALL struct exchange_block exchange_block_of(const struct exchange_args *args,
                                                      uint32_t sender, uint32_t receiver,
                                                      uint32_t n_ranks) {
    const struct rank_rows sent = rank_rows_of(args->n_rows, sender, n_ranks),
                           taken = rank_rows_of(args->n_rows, receiver, n_ranks);
    if (args->from_own_rows) return (struct exchange_block){0, sent.first, sent.n};
    if (args->to_own_rows) return (struct exchange_block){taken.first, 0, taken.n};
    return (struct exchange_block){0, 0, args->n_rows};
}

/* Returns where a part begins in a row of `from`, and in one of `to`. */
EXCHANGE_CALL uint32_t exchange_from(const struct exchange_args *args,
                                     const struct exchange_part *part, uint32_t receiver) {
    return args->to_own_columns ? part->all + receiver / part->n_sharing * part->n : part->own;
}

EXCHANGE_CALL uint32_t exchange_to(const struct exchange_args *args,
                                   const struct exchange_part *part, uint32_t sender) {
    return args->to_own_columns ? part->own : part->all + sender / part->n_sharing * part->n;
}

/* Tells whether each rank has all that it gets. */
EXCHANGE_CALL bool exchange_is_alone(const struct exchange_args *args) {
    return args->to_own_columns && !args->from_own_rows;
}

#endif
