/* internal.h - the inside of the CUDA backend: its state, and one function per operation of the
 * table.
 *
 * Host side, plain C; kernels.h is the way to the device.
 *
 *   step_begin  packs the step into one block of pinned memory, one copy brings it over (step.c)
 *   operations  launch on one stream and return; small host arrays travel through `args`
 *   repeat      records what a decode step launches, and launches it again (graph.c)
 *   collect     waits for a step and hands out what it drew (inflight.c)
 *
 * Thread: engine.  Memory: reserved for the largest step (the reserve op), so that a served load
 * allocates nothing; without it blocks grow to the largest step seen and are kept. */
#ifndef CUDA_HOST_INTERNAL_H
#define CUDA_HOST_INTERNAL_H

#include <cublasLt.h>

#include "cuda/attention/sparse/sparse_view.h"
#include "cuda/cuda.h"
#include "cuda/host/blas.h"
#include "cuda/host/kernels.h"
#include "cuda/kv/select.h"
#include "cuda/kv/select_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Plans lie at fixed places behind the header: attention.cu. */
enum { STEP_HEADER_BYTES = 256 };
enum { MAX_PENDING = 8, N_INFLIGHT = 2, MAX_GRAPHS = 64 };
enum { MATMUL_CACHE = 512, N_STAGING = 2, MAX_FREQS = 512 };

/* The same bytes in pinned host memory and on the device; `used` of them are taken. */
struct mirror {
    char *host, *device;
    size_t capacity, used;
};

/* Room in a mirror. */
struct args {
    char *host, *device;
};

/* Results that an operation left in pinned memory, to be handed out. */
struct pending_results {
    const void *from;
    void *to;
    size_t bytes;
};

/* One of the steps under way: inflight.c. */
struct inflight_step {
    struct mirror args;
    struct pending_results pending[MAX_PENDING];
    uint32_t n_pending;
    cudaEvent_t done; /* recorded when the next step begins */
    bool under_way;   /* since its step began, until its results were handed out */
};

/* A product's shape and what cuBLASLt answered for it. */
struct matmul_key {
    uint32_t n_out, n_in, n_rows; /* n_rows: rounded up, see linear.c */
    size_t y_stride;
    bool accumulate, y_f32, bias;
};
struct matmul_entry {
    struct matmul_key key;
    bool known, usable;
    cublasLtMatmulAlgo_t algo;
};

/* What a body launches for n_rows rows. */
struct graph_entry {
    const void *ctx;
    uint32_t n_rows;
    cudaGraphExec_t graph; /* NULL: it has run once, so that everything it needs is there */
};

/* Of the layer that was indexed last: sparse.c. */
struct sparse_account;
struct sparse_memory {
    void *memory; /* device */
    size_t bytes;
    struct sparse_account *account; /* device; NULL: nothing was indexed yet */
    struct sparse_view view;
    uint32_t layer;
};

/* Of pools in 8 bits, the pages that prompts have of a layer, in 16: kv/dequant.c. */
struct dequant_pages {
    void *pages; /* device */
    size_t bytes;
    int32_t *numbers; /* device [pages there is room for]: 0, 1, ... */
    size_t numbers_bytes;
    bool valid; /* they are of the present step, */
    uint32_t layer;   /* this layer, as it is now, */
    const void *base; /* and this pool */
};

/* Selections: select.c.  A group's tokens come over the bus on a stream of their own, layer after
 * layer; what attends to a layer waits for it. */
struct select_memory {
    struct select_shape shape; /* n_groups 0: nothing is reserved */
    uint32_t max_rows, max_fetches, n_blocks;
    void *memory, *bits; /* of `room`: by row; by candidate */
    size_t bytes, bits_bytes;
    struct select_workspace room;
    cudaStream_t fetcher;
    cudaEvent_t attended, chosen; /* scores are there; they have been read */
    cudaEvent_t *fetched; /* [max_layers]: a sparse layer of the group is there; or, in [0], all */
    bool by_layer, choosing; /* choosing: nobody waited for `chosen` yet */
    uint32_t max_layers;
    struct layer_group group; /* that was selected for last; of its layers those from next on, */
    uint32_t next;            /* which are sparse, are to be awaited */
};

/* The store: host_pool.c.  Copies to it have a stream of their own, too. */
struct host_pool_memory;
struct host_pool_copies {
    struct host_pool_memory *memories;
    cudaStream_t stream;
    cudaEvent_t submitted, copied;
    uint32_t *pages; /* bits, host [n_pages]: of the pool's pages those under way */
    uint32_t n_pages;
    bool under_way;  /* what may overwrite them must wait for `copied` */
};

struct weight_chunk {
    struct weight_chunk *next;
    char *base;
    size_t capacity, used;
    uint32_t n_live;
};

struct staging {
    char *host;
    cudaEvent_t copied;
};

/* Of layers that turn by the same frequencies. */
struct rotary {
    bool angles_valid; /* of the current step */
    float *angles;     /* device [n_rows][2][n_freqs] */
    size_t angles_bytes;
    double inv_freq[MAX_FREQS]; /* what device_freqs and device_rotations hold */
    uint32_t n_freqs;
    double *device_freqs;
    float *device_rotations; /* struct key_rotations */
};

struct cuda_backend {
    struct backend base;
    int device;
    int node; /* which of the system's memory the store prefers, or NUMA_ANY */
    bool overlap; /* compute capability 9.0: kernels.h */
    bool failed;  /* sticky: the device answers nothing any more */
    bool batch_invariant; /* cuda.h: no choice may depend on the number of rows in a step */
    uint32_t n_copiers;
    cudaStream_t stream;

    struct inflight_step inflight[N_INFLIGHT]; /* step number i uses i % N_INFLIGHT */
    uint64_t n_steps;
    int32_t *sampled; /* device [n_sampled]: what the sample operations of the present step draw */
    uint32_t n_sampled, sampled_capacity;

    struct mirror step_block;
    cudaEvent_t step_copied; /* the step block's pinned half may be written again */
    struct device_step step; /* of the present step; its pointers are the device's */
    const struct device_step *device_step; /* the same, on the device; behind it one that names wide
                                              pages */
    const struct step *host_step;          /* what was packed; borrowed by its operations */
    uint32_t launch_rows; /* rows that operations launch: step.n_rows, or what repeat() was given */
    void *partials;              /* attention's, device: out, then lse, of each partial result */
    size_t partials_bytes;
    struct attn_stats attn_stats;   /* of attention over tracked pools, device */
    size_t lse_bytes, scores_bytes;
    struct attention *attention; /* of the pool that was attended last; NULL: none yet */
    struct sparse_memory sparse;
    struct dequant_pages dequantised;
    struct select_memory select;
    struct host_pool_copies store;
    struct rotary rotary[MAX_ROPES];

    float *changed; /* device: logits of sample rows that penalties and biases change */
    size_t changed_bytes;

    struct graph_entry graphs[MAX_GRAPHS]; /* by place; see graph.c */
    uint32_t n_graphs, next_graph;
    /* Times that memory which a recording may refer to has moved or gone: in all, and when the
     * recordings began. */
    uint64_t n_moves, n_reallocs_recorded;
    bool in_graph; /* inside repeat(): launch_rows may exceed the step's rows */

    struct blas blas;
    void *workspace;
    struct matmul_entry *matmuls; /* [MATMUL_CACHE], by hash */

    struct weight_chunk *chunks;
    size_t weight_bytes;
    struct staging staging[N_STAGING];
    uint32_t next_staging;
};

#define CUDA_BACKEND(be) ((struct cuda_backend *)(be))

static inline struct launch launch_of(const struct cuda_backend *cuda) {
    const struct launch launch = {cuda->stream, cuda->overlap};
    return launch;
}

/* 0, or ERR_DEVICE (sticky) with a sentence that says what failed. */
int cuda_check(struct cuda_backend *cuda, cudaError_t code, const char *what, struct error *err);
/* cudaMalloc; ERR_NOMEM names the numbers and the settings that change them. */
int device_alloc(struct cuda_backend *cuda, size_t bytes, void **out, struct error *err);
/* Makes *memory at least `bytes` long; what it held is lost.  Waits when it must grow. */
int device_reserve(struct cuda_backend *cuda, void **memory, size_t *capacity, size_t bytes,
                   struct error *err);
int mirror_reserve(struct cuda_backend *cuda, struct mirror *mirror, size_t bytes,
                   struct error *err);
void mirror_free(struct mirror *mirror);

int inflight_open(struct cuda_backend *cuda, struct error *err);
void inflight_close(struct cuda_backend *cuda); /* half-open is allowed */
int inflight_reserve(struct cuda_backend *cuda, size_t args_bytes, struct error *err);
/* Gives the step that begins its flight; waits until the step that had it before is done. */
int inflight_begin(struct cuda_backend *cuda, struct error *err);
/* Room for `bytes` until the results of the present step are handed out; args_send() copies what
 * was written there to device memory: its own, or what it is for. */
int args_take(struct cuda_backend *cuda, size_t bytes, struct args *out, struct error *err);
size_t args_capacity(struct cuda_backend *cuda);
int args_send(struct cuda_backend *cuda, const struct args *args, void *to, size_t bytes,
              struct error *err);
/* Brings results, which lie in args, to the host; `to` has them once they are collected. */
int results_fetch(struct cuda_backend *cuda, const struct args *from, void *to, size_t bytes,
                  struct error *err);
/* Makes room for n tokens in cuda->drawn, and keeps those that are there. */
int sampled_reserve(struct cuda_backend *cuda, uint32_t n, struct error *err);

int cuda_run_graph(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                struct error *err);
void graphs_close(struct cuda_backend *cuda);

/* Packs the present step and sends it. */
int step_send(struct cuda_backend *cuda, struct error *err);
bool step_has_budgets(const struct step *step);

int rotary_open(struct cuda_backend *cuda, struct error *err);
void rotary_close(struct cuda_backend *cuda);
/* Sees to it that the device has these frequencies: they are the model's, and travel once. */
int freqs_send(struct cuda_backend *cuda, struct rotary *rotary, const double *inv_freq,
               uint32_t n_freqs, struct error *err);
struct key_rotations key_rotations_of(const struct cuda_backend *cuda, const struct attn_args *args);
/* Room for the traces of attention. */
int attn_stats_reserve(struct cuda_backend *cuda, size_t n_rows, size_t n_slots, uint32_t n_heads,
                   struct error *err);
/* The same for the step at hand. */
int attn_stats_budget(struct cuda_backend *cuda, const struct step *step, uint32_t n_heads,
                struct error *err);

/* attention.cu.  A step's block has room for attention's plans, `bytes` right behind the header,
 * and for n_words words among its arrays; attention_plan() fills both once the arrays are there
 * (`plans`: the block's host side). */
struct attention;
struct step_arrays {
    const int32_t *n_slots, *table_at, *seq_rows; /* host */
    int32_t *items;                               /* host */
    const int32_t *device_items;
};
int attention_budget(struct cuda_backend *cuda, const struct step *step, size_t *bytes,
                   size_t *n_words, struct error *err);
/* Memory for partial results; what attention_budget() will say at most. */
int attention_reserve(struct cuda_backend *cuda, const struct step_limits *limits, size_t *bytes,
                      size_t *n_words, struct error *err);
void attention_plan(struct cuda_backend *cuda, const struct step_arrays *arrays, char *plans);
void attention_close(struct cuda_backend *cuda); /* nothing open is allowed */

/* kv/dequant.c.  What reads the prompts' pages of a layer reads these: the pool's own, or, of one
 * in 8 bits, copies of them as they are now. */
struct dequant_view {
    struct kv_pool kv;
    const struct device_step *step; /* names them, */
    const int32_t *table;           /* as does this, the layer's */
};
int dequant_open(struct cuda_backend *cuda, const struct kv_pool *kv, uint32_t layer,
              struct dequant_view *out, struct error *err);
void dequant_close(struct cuda_backend *cuda);

/* sparse.c.  The first tile of those that are indexed together in which all heads are dense. */
uint32_t sparse_first_dense_tile(const struct attn_sparse *sparse);
void sparse_memory_free(struct cuda_backend *cuda);

/* select.c.  Of the present step's candidates, whose selections are checked, too. */
int select_workspace(struct cuda_backend *cuda, const struct step *step, struct error *err);
/* Before the attention of a layer: waits for what select() had fetched for it, and, if it leaves
 * traces, until those before have been read.  *awaited: there was something to wait for. */
int select_await(struct cuda_backend *cuda, uint32_t layer, bool leaves_attn_stats, bool *awaited,
                 struct error *err);
void select_close(struct cuda_backend *cuda);

/* host_pool.c.  Lets the stream wait for copies of pages that this step may write, or of blocks
 * that it may read. */
int host_pool_await_step(struct cuda_backend *cuda, const struct step *step, struct error *err);
/* The same for all copies. */
int host_pool_await(struct cuda_backend *cuda, struct error *err);
int host_pool_sync(struct cuda_backend *cuda, struct error *err);
void host_pool_close(struct cuda_backend *cuda);

int cuda_step_begin(struct backend *be, const struct step *step, struct error *err);
int cuda_weight_upload(struct backend *be, const void *host, size_t bytes, const void **out,
                       struct error *err);
void cuda_weight_release(struct backend *be, const void *weight);
void weights_free(struct cuda_backend *cuda);

int cuda_linear(struct backend *be, const struct linear_args *args, struct error *err);
int cuda_gated(struct backend *be, const struct gated_args *args, struct error *err);
/* What cuda_linear() does with many rows: cuBLASLt, where it has the shape.  No norm. */
int linear_many_rows(struct cuda_backend *cuda, const struct linear_args *args, struct error *err);
int linear_open(struct cuda_backend *cuda, struct error *err);
void linear_close(struct cuda_backend *cuda);

int cuda_embed(struct backend *be, const struct embed_args *args, struct error *err);
int cuda_rmsnorm(struct backend *be, const struct rmsnorm_args *args, struct error *err);
int cuda_rope_append(struct backend *be, const struct rope_append_args *args, struct error *err);
int cuda_attn_decode(struct backend *be, const struct attn_args *args, struct error *err);
int cuda_attn_prefill(struct backend *be, const struct attn_args *args, struct error *err);
int cuda_attn_index(struct backend *be, const struct attn_index_args *args, struct error *err);
int cuda_sparse_totals(struct backend *be, struct sparse_totals *out, struct error *err);
int cuda_evict_decode(struct backend *be, const struct attn_args *args, struct error *err);
int cuda_evict_chunk(struct backend *be, const struct attn_args *args, struct error *err);
int cuda_evict_totals(struct backend *be, const struct kv_pool *kv, struct evict_total *totals,
                     struct error *err);
int cuda_select(struct backend *be, const struct select_args *args, struct error *err);
int cuda_select_totals(struct backend *be, struct select_total *totals, struct error *err);
int cuda_host_pool_alloc(struct backend *be, size_t bytes, void **out, struct error *err);
void cuda_host_pool_free(struct backend *be, void *memory);
int cuda_store_pages(struct backend *be, const struct host_pool_args *args, struct error *err);
int cuda_gather_rows(struct backend *be, const struct gather_rows_args *args, struct error *err);
int cuda_soft_cap(struct backend *be, const struct soft_cap_args *args, struct error *err);
int cuda_sample(struct backend *be, const struct sample_args *args, struct error *err);
int cuda_collect(struct backend *be, uint32_t n_newer, struct error *err);
int cuda_sync(struct backend *be, struct error *err);
int cuda_measure(struct backend *be, struct ceilings *out, struct error *err);

/* Each part's share of the reserve op. */
int step_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int angles_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int sample_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int dequant_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int select_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int sparse_memory_reserve(struct cuda_backend *cuda, const struct step_limits *limits,
                          struct error *err);

#ifdef __cplusplus
}
#endif

#endif
