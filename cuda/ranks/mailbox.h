/* mailbox.h - what the ranks of a model leave for each other.  A mailbox is memory of a rank's
 * device that other ranks write and only the rank itself reads.
 *
 *   struct mailbox       counters of the rank's own kernels; flags that the other ranks set
 *   small                [2][n_ranks][SMALL_VECTORS] vectors of 16 bytes: parts of short sums
 *   norms                [2][n_ranks][NORM_BLOCKS][NORM_ROWS] f32: sums of squares of rows
 *   large                [LARGE_BLOCKS][LARGE_VECTORS] vectors: parts of long ones, by block
 *   stage                what comes on its way to the rank's device, if the mailbox is elsewhere
 *
 * Where devices cannot write each other's memory, mailboxes are in pinned memory of the host.
 *
 * Nothing is read over the link between two devices, and nothing but stores crosses it.  So links
 * need no atomic operations, and a wait reads the rank's own memory.
 *
 * A block of a kernel works with the blocks of the same number on the other ranks, and with no
 * others.  Each block counts its rounds in its rank's memory, and all ranks run the same kernels in
 * the same order.  So the counts agree without a host, and a CUDA graph may be launched again.
 *
 * A wait ends after a time limit, or once the report says that the ranks have stopped.  Then the
 * rank's mailbox is stopped: its later kernels neither write to other ranks nor wait.
 *
 * Thread: device code, and the group's at create.  Memory: the group's. */
#ifndef CUDA_RANKS_MAILBOX_H
#define CUDA_RANKS_MAILBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "cuda/host/kernels.h"
#include "cuda/ranks/ranks.h"
#include "engine/device/exchange.h"

#ifdef __CUDACC__
#define MAILBOX_CALL static __host__ __device__ __forceinline__
#else
#define MAILBOX_CALL static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SMALL_THREADS = 128,
    SMALL_BLOCKS = 512,
    SMALL_VECTORS = SMALL_BLOCKS * SMALL_THREADS, /* one for each thread */
    LARGE_THREADS = 512,
    LARGE_BLOCKS = 128,
    ROUND_VECTORS = 4 * LARGE_THREADS, /* of a block of a long sum */
    /* Two halves.  Shards of a round are rounded up, by less than a vector for each rank. */
    HALF_VECTORS = ROUND_VECTORS + CUDA_MOST_RANKS,
    LARGE_VECTORS = 2 * HALF_VECTORS,
    COLUMN_THREADS = 256,
    COLUMN_BLOCKS = 64,
    EXCHANGE_THREADS = 512,
    EXCHANGE_BLOCKS = 128,
    NORM_THREADS = 256,
    NORM_BLOCKS = 128,
    NORM_ROWS = 64, /* of a block */
    STAGE_BYTES = 8 << 20
};

struct column_range {
    uint32_t first, n;
};

/* A flag is the number of the round that it belongs to. */
struct mailbox {
    uint32_t is_stopped, n_tokens, padding[30];
    uint32_t n_small[SMALL_BLOCKS], n_large[LARGE_BLOCKS], n_columns[COLUMN_BLOCKS];
    uint32_t n_norms[NORM_BLOCKS], n_exchanges[EXCHANGE_BLOCKS];
    /* Set by the other ranks: */
    uint32_t parts_came[LARGE_BLOCKS][CUDA_MOST_RANKS];
    uint32_t sums_came[LARGE_BLOCKS][CUDA_MOST_RANKS];
    uint32_t columns_open[COLUMN_BLOCKS]; /* by rank 0, */
    float *columns_to[COLUMN_BLOCKS];     /* which wants them here */
    uint32_t columns_came[COLUMN_BLOCKS][CUDA_MOST_RANKS];
    struct column_range columns[COLUMN_BLOCKS][CUDA_MOST_RANKS]; /* that have come */
    uint32_t exchange_open[EXCHANGE_BLOCKS][CUDA_MOST_RANKS];    /* by ranks that want rows */
    void *exchange_to[EXCHANGE_BLOCKS][CUDA_MOST_RANKS];         /* here */
    uint32_t exchange_came[EXCHANGE_BLOCKS][CUDA_MOST_RANKS];
    uint32_t tokens_open[CUDA_MOST_RANKS]; /* by the ranks that want tokens */
    int32_t *tokens_to[CUDA_MOST_RANKS];
    uint32_t tokens_came;
    uint32_t probe_came[CUDA_MOST_RANKS], probe[CUDA_MOST_RANKS];
};

/* What waits for what; 0: the host has stopped the ranks. */
enum rank_wait { WAIT_NONE, WAIT_SUM, WAIT_COLUMNS, WAIT_TOKENS, WAIT_PROBE, WAIT_EXCHANGE };

/* Pinned memory of the host that all devices see. */
struct rank_report {
    uint64_t word;    /* 0, or why the ranks have stopped, as one word so that it is whole */
    uint32_t sums[2]; /* of a probe, by either side */
};

MAILBOX_CALL uint64_t rank_report_word(enum rank_wait wait, uint32_t rank, uint32_t other) {
    return (uint64_t)1 << 63 | (uint64_t)wait << 32 | rank << 16 | other;
}

/* The mailboxes as a kernel sees them. */
struct rank_links {
    struct mailbox *boxes[CUDA_MOST_RANKS];
    struct rank_report *report;
    uint64_t limit_ns; /* of a wait */
    uint32_t n, rank;
    bool starts_next;  /* the rank has its device to itself, so its next kernel may start early */
    bool through_host; /* mailboxes are in the host's memory, and have a stage */
};

MAILBOX_CALL size_t mailbox_small_at(void) {
    return (sizeof(struct mailbox) + 255) / 256 * 256;
}

MAILBOX_CALL size_t mailbox_small_bytes(uint32_t n_ranks) {
    return (size_t)2 * n_ranks * SMALL_VECTORS * 16;
}

MAILBOX_CALL size_t mailbox_norms_at(uint32_t n_ranks) {
    return mailbox_small_at() + mailbox_small_bytes(n_ranks);
}

/* Begins behind what is MISSING at first. */
MAILBOX_CALL size_t mailbox_large_at(uint32_t n_ranks) {
    return mailbox_norms_at(n_ranks) +
           (size_t)2 * n_ranks * NORM_BLOCKS * NORM_ROWS * sizeof(float);
}

MAILBOX_CALL size_t mailbox_stage_at(uint32_t n_ranks) {
    return mailbox_large_at(n_ranks) + (size_t)LARGE_BLOCKS * LARGE_VECTORS * 16;
}

MAILBOX_CALL size_t mailbox_bytes(uint32_t n_ranks, bool through_host) {
    return mailbox_stage_at(n_ranks) + (through_host ? STAGE_BYTES : 0);
}

struct sum_params {
    struct rank_links links;
    const void *part; /* bf16 [n] */
    void *x;          /* bf16 [n] */
    size_t n;
    bool accumulate; /* x += the sum of all parts; else x is the sum */
    bool is_wide;    /* both begin at a multiple of 16 bytes */
};

/* Launches the kernel that is for short sums, or the other one. */
cudaError_t launch_sum_by(const struct sum_params *p, bool is_small, uint32_t n_blocks,
                          struct launch launch);

struct columns_params {
    struct rank_links links;
    float *x; /* f32 [n_rows, width] */
    uint32_t n_rows, width, first, n_cols;
};

struct exchange_params {
    struct rank_links links;
    struct exchange_args args; /* activations are bf16 */
    /* Which rows of each rank's block a launch exchanges; launch_exchange() sets both. */
    uint32_t first_row, most_rows;
};

/* Launches what exchanges rows for columns. */
cudaError_t launch_exchange(const struct exchange_params *p, uint32_t most_blocks,
                            struct launch launch);

struct norm_params {
    struct rank_links links;
    const void *x;      /* bf16, row i at x + i * x_stride elements: [dim], the rank's part */
    const void *weight; /* element [dim] */
    void *out;          /* bf16, row i at out + i * out_stride; may be x */
    enum element element;
    uint32_t n_rows, dim;
    size_t x_stride, out_stride;
    float eps;
};

struct tokens_params {
    struct rank_links links;
    int32_t *tokens; /* [n]: of rank 0; on other ranks, where they are to be */
    uint32_t n;
};

/* What all ranks launch together, each with its own parameters. */
struct rank_operation {
    const char *what; /* for errors */
    cudaError_t (*launch)(const struct rank_operation *op, uint32_t most_blocks,
                          struct launch launch);
    union {
        struct sum_params sum;
        struct columns_params columns;
        struct norm_params norm;
        struct tokens_params tokens;
    };
};

/* Their launchers.  most_blocks: of the grid, the same on all ranks. */

/* Launches the sum of all parts, in the order of the ranks. */
cudaError_t launch_sum(const struct rank_operation *op, uint32_t most_blocks, struct launch launch);
/* Launches what sends a rank's columns to rank 0, or on rank 0 receives them. */
cudaError_t launch_columns(const struct rank_operation *op, uint32_t most_blocks,
                           struct launch launch);
/* Launches RMSNorm of vectors of which each rank has a part. */
cudaError_t launch_rank_norm(const struct rank_operation *op, uint32_t most_blocks,
                             struct launch launch);
/* Launches what sends rank 0's tokens to the other ranks, or on these receives them. */
cudaError_t launch_tokens(const struct rank_operation *op, uint32_t most_blocks,
                          struct launch launch);

/* Launches one side of the sum of 4 bytes by which two ranks are probed; *sum is pinned memory.  It
 * stays as it is if the other rank does not answer. */
cudaError_t launch_probe(const struct rank_links *links, uint32_t other, uint32_t value,
                         uint32_t *sum, struct launch launch);

/* Loads the kernels of sum.cu to the present device.  To load a kernel may mean to wait for the
 * device, and so for kernels that wait for other ranks. */
cudaError_t load_sums(void);
/* Does the same for columns.cu. */
cudaError_t load_columns(void);
/* Does the same for exchange.cu. */
cudaError_t load_exchanges(void);
/* Does the same for norm.cu. */
cudaError_t load_norms(void);

#ifdef __cplusplus
}
#endif

#endif
