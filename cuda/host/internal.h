/* internal.h - the inside of the CUDA backend: its state, one function per operation that every
 * backend has, and the tables of the groups.
 *
 * Host side, plain C; kernels.h declares the kernels' launchers.
 *
 *   step_begin  packs the step into one block of pinned memory and sends it with one copy (step.c)
 *   operations  launch on one stream and return; small host arrays travel through `args`
 *   run_graph   captures a step's launches as a CUDA graph, and launches it again (graph.c)
 *   collect     waits for a step and delivers its results (inflight.c)
 *
 * Thread: engine.  Memory: reserved for the largest step (the reserve op), so that serving
 * allocates nothing; without the reserve op, buffers grow to the largest step seen and are kept. */
#ifndef CUDA_HOST_INTERNAL_H
#define CUDA_HOST_INTERNAL_H

#include <cublasLt.h>

#include "cuda/attention/sparse/sparse_view.h"
#include "cuda/cuda.h"
#include "cuda/experts/stream_cut.h"
#include "cuda/host/blas.h"
#include "cuda/host/kernels.h"
#include "cuda/kv/select.h"
#include "cuda/kv/select_pack.h"
#include "cuda/linear/product.h"
#include "cuda/recurrent/recurrent_kernels.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"

struct attn_sparse;
struct evict_ops;
struct expert_ops;
struct host_pool_ops;
struct recurrent_ops;
struct sample_args;
struct select_args;
struct select_ops;
struct sparse_ops;
struct step;
struct step_limits;
struct step_seq;
struct token_score_params;

#ifdef __cplusplus
extern "C" {
#endif

/* Attention's plans lie at fixed places behind the header: attention.cu. */
enum { STEP_HEADER_BYTES = 384 };
enum { MAX_PENDING = 8, N_INFLIGHT = 2, MAX_GRAPHS = 256 };
enum { MATMUL_CACHE = 2048, MATMUL_WORKSPACE_BYTES = 64 << 20, N_STAGING = 2, MAX_FREQS = 512 };

/* The same bytes in pinned host memory and on the device; the first `used` of them are taken. */
struct mirror {
    char *host, *device;
    size_t capacity, used;
};

/* A range of a mirror. */
struct args {
    char *host, *device;
};

static inline struct args args_behind(const struct args *args, size_t bytes) {
    const struct args behind = {args->host + bytes, args->device + bytes};
    return behind;
}

/* Results that an operation left in pinned memory, to be copied to the caller's memory. */
struct pending_results {
    const void *from;
    void *to;
    size_t bytes;
};

/* One of the in-flight steps: inflight.c. */
struct inflight_step {
    struct mirror args;
    struct pending_results pending[MAX_PENDING];
    uint32_t n_pending;
    cudaEvent_t fetched; /* recorded behind the copies of its results, the newest ones so far */
    cudaEvent_t done;    /* recorded when the next step begins */
    bool under_way;      /* from its step's begin until it is known to be done */
};

/* A product's shape, and cuBLASLt's choice for it. */
struct matmul_key {
    uint32_t n_out, n_in, n_rows; /* n_rows: rounded up, see cublaslt.c */
    size_t y_stride;
    bool accumulate, y_f32, bias;
    enum product_mode mode;
};
struct matmul_entry {
    struct matmul_key key;
    bool known, usable;
    cublasLtMatmulAlgo_t algo;
};

/* The CUDA graph of what a body launches for n_rows rows. */
struct graph_entry {
    const void *ctx;
    uint32_t n_rows, launch_kind;
    cudaGraphExec_t graph; /* NULL: the body has run once, so everything that it needs exists */
    /* If the step has prompts: what the graph was made from, each layer's attention to prompts,
     * and the kernels that compute it. */
    cudaGraph_t recorded;
    struct attn_args *prompts; /* [n_prompts] */
    uint32_t n_prompts;
    struct step_nodes nodes;
};

/* The index of the layer, or group, that was indexed last: sparse.c. */
struct sparse_account;
struct sparse_memory {
    void *memory; /* device */
    size_t bytes;
    struct sparse_account *account; /* device; NULL: no layer has been indexed */
    struct sparse_view view;
    const struct layer_group *group; /* whose filter has chosen; NULL: `layer` was indexed */
    uint32_t layer;
    double visited, causal; /* pairs of prompts whose filters choose, not yet in the account */
};

/* 16-bit copies of the pages that prompts have in a layer: kv/prompt_copies.c.  Ranked sequences
 * have keys that are stored before RoPE, and are rotated by their ranks. */
struct prompt_copies {
    void *pages; /* device */
    size_t bytes;
    int32_t *numbers; /* device [numbers_bytes / 4]: 0, 1, ... */
    size_t numbers_bytes;
    uint32_t n_reserved; /* pages; 0: none were reserved, and the copies grow */
    enum { COPY_UNKNOWN, COPY_NONE, COPY_RANKED, COPY_ALL } of; /* the present step's prompts */
    enum page_format planned_for; /* the pool's format by which `of` was chosen */
    bool only_ranked;             /* there are copies, and all of the step's prompts are ranked */
    bool is_rotated;              /* the copies' keys are */
    bool valid;                   /* the copies are of the present step, */
    uint32_t layer;               /* of this layer as it is now, */
    const void *base;             /* and of this pool */
};

/* Selections: select.c.  A group's tokens are fetched on a stream of their own, layer after layer;
 * a layer's attention waits for them. */
struct select_memory {
    struct select_shape shape; /* n_groups 0: no memory is reserved */
    uint32_t max_rows, max_fetches, n_blocks;
    void *memory, *bits; /* the memory of `room`: by row; by candidate */
    size_t bytes, bits_bytes;
    struct select_workspace room;
    cudaStream_t fetcher;
    cudaEvent_t attended, chosen; /* the scores are written; the scores have been read */
    cudaEvent_t *fetched;    /* [max_layers]: the group's sparse layers, each or, in [0], all */
    bool by_layer, choosing; /* choosing: the main stream has not waited for `chosen` yet */
    uint32_t max_layers;
    struct layer_group group; /* selected last; its sparse layers */
    uint32_t next;            /* from `next` on have not been awaited */
};

/* The host pool: host_pool.c.  Copies to it run on a stream of their own. */
struct host_pool_memory;
struct host_pool_copies {
    struct host_pool_memory *memories;
    cudaStream_t stream;
    cudaEvent_t submitted, copied;
    uint32_t *pages; /* bits, host [n_pages]: the pool's pages that are being copied */
    uint32_t n_pages;
    bool under_way; /* a step that may write these pages must wait for `copied` */
};

struct weight_chunk {
    struct weight_chunk *next;
    char *base;
    size_t capacity, used;
    uint32_t n_live;
};

/* Chunks for one of the arrays of weights: weights.c. */
enum { WEIGHT_DATA, WEIGHT_SCALES, WEIGHT_MINS, WEIGHT_ARRAYS };
struct weight_chunks {
    struct weight_chunk *newest; /* and older ones behind it */
    size_t bytes;                /* of all arrays that were loaded */
};

struct staging {
    char *host;
    cudaEvent_t copied;
};

/* The rotary angles of layers that share frequencies. */
struct rotary {
    bool angles_valid; /* `angles` are those of the present step */
    /* Device [n_rows][2][n_freqs].  Where layers have windows, those of the text's positions follow
     * (angles_params). */
    float *angles;
    size_t angles_bytes;
    double inv_freq[MAX_FREQS]; /* what device_freqs and device_rotations were made from */
    uint32_t n_freqs;
    double *device_freqs;
    float *device_rotations; /* struct key_rotations */
};

/* The slopes of ALiBi, which are the model's. */
struct slopes {
    float *device, *host; /* [n]; host: what `device` was made from */
    size_t bytes;         /* of `device` */
    uint32_t n;
};

struct cuda_backend {
    struct backend base;
    int device;
    int node;             /* the NUMA node whose memory the host pool prefers, or NUMA_ANY */
    bool overlap;         /* compute capability 9.0: kernels.h */
    bool failed;          /* sticky: the device no longer works */
    bool batch_invariant; /* cuda.h: no choice that changes bits may depend on a step's rows */
    uint32_t n_multiprocessors, n_copiers;
    uint32_t n_idle; /* multiprocessors that decode attention leaves to the next product */
    cudaStream_t stream;

    struct inflight_step inflight[N_INFLIGHT]; /* step number i uses place i % N_INFLIGHT */
    uint64_t n_steps;
    int32_t *sampled; /* device [n_sampled]: the tokens that the present step has sampled */
    uint32_t n_sampled, sampled_capacity;

    struct mirror step_block;
    cudaEvent_t step_copied; /* after it the step block's pinned half may be written again */
    struct device_step step; /* the present step; its pointers are device memory */
    /* The same on the device; behind it lies one that names the copies of prompts' pages. */
    const struct device_step *device_step;
    struct device_recurrent recurrent; /* likewise for recurrent layers, */
    const struct device_recurrent *device_recurrent;
    const struct step *host_step; /* what was packed; borrowed while the step runs */
    uint32_t launch_rows;         /* rows that operations launch: step.n_rows, or run_graph()'s */
    void *partials;               /* partial results of attention to prompts: outputs, then lse */
    size_t partials_bytes;
    void *exchange; /* the same of decode attention; empty between launches: exchange.cuh */
    size_t exchange_bytes;
    struct attn_stats attn_stats; /* device; written by attention over tracked pools */
    size_t lse_bytes, scores_bytes;
    struct attention *attention; /* attention's state for the pool attended last; NULL: none yet */
    struct sparse_memory sparse;
    struct prompt_copies prompt_copies;
    struct select_memory select;
    struct host_pool_copies store;
    struct rotary rotary[MAX_ROPES];
    struct slopes slopes;

    float *changed; /* device: logits of the sample rows that have penalties or biases */
    size_t changed_bytes;

    struct graph_entry graphs[MAX_GRAPHS]; /* a ring; see graph.c */
    uint32_t n_graphs, next_graph;
    /* How often memory that a CUDA graph may refer to has been reallocated or freed: in all, and
     * the count at which the present graphs are valid. */
    uint64_t n_moves, n_reallocs_recorded;
    bool in_graph;             /* inside run_graph(): launch_rows may exceed the step's rows */
    struct graph_entry *graph; /* being recorded, or being set to the present step; or NULL */

    struct blas blas;
    void *workspace;
    struct product_device products;
    struct stream_device expert_stream; /* n_multiprocessors 0: the kernel does not run here */
    struct matmul_entry *matmuls;       /* [MATMUL_CACHE], by the key's hash */
    /* The input of the present product in E4M3, and its scales: rounded.c. */
    struct rounded_memory {
        void *memory; /* device */
        size_t bytes;
        void *codes;           /* where that input is: in `memory`, or where the gate left it */
        uint32_t most_columns; /* of such inputs; 0: no weight asks for them */
        /* What the next product's input would be, had it not been rounded already; or NULL. */
        const void *of;
    } rounded;

    struct weight_chunks weights[WEIGHT_ARRAYS];
    struct staging staging[N_STAGING];
    uint32_t next_staging;
};

#define CUDA_BACKEND(be) ((struct cuda_backend *)(be))

/* Says whether a graph is being recorded: its kernels start when all that is before it has
 * ended. */
static inline bool is_recording(const struct cuda_backend *cuda) {
    return cuda->graph && !cuda->graph->graph;
}

/* Says whether the present step has rows that attn_prefill attends. */
static inline bool has_prompts(const struct cuda_backend *cuda) {
    return cuda->step.n_seqs > cuda->step.n_decode;
}

static inline struct launch launch_of(const struct cuda_backend *cuda) {
    const struct launch launch = {cuda->stream, cuda->overlap, cuda->n_multiprocessors, NULL};
    return launch;
}

/* Returns 0, or ERR_DEVICE (sticky) with a sentence that says what failed. */
int cuda_check(struct cuda_backend *cuda, cudaError_t code, const char *what, struct error *err);
/* Allocates device memory with cudaMalloc; ERR_NOMEM's text names the sizes and the settings that
 * change them. */
int device_alloc(struct cuda_backend *cuda, size_t bytes, void **out, struct error *err);
/* Makes *memory at least `bytes` long; what it held is lost if it grows.  Waits for the stream when
 * it must grow. */
int device_reserve(struct cuda_backend *cuda, void **memory, size_t *capacity, size_t bytes,
                   struct error *err);
int mirror_reserve(struct cuda_backend *cuda, struct mirror *mirror, size_t bytes,
                   struct error *err);
void mirror_free(struct mirror *mirror);

int inflight_open(struct cuda_backend *cuda, struct error *err);
void inflight_close(struct cuda_backend *cuda); /* half open is allowed */
int inflight_reserve(struct cuda_backend *cuda, size_t args_bytes, struct error *err);
/* Begins an in-flight step; waits until the step that had its place before has completed. */
int inflight_begin(struct cuda_backend *cuda, struct error *err);
/* Takes `bytes` of args until the present step's results are delivered.  args_send() copies what
 * was written there to device memory: to the range's own device half, or to another place. */
int args_take(struct cuda_backend *cuda, size_t bytes, struct args *out, struct error *err);
/* A part of args that is sent to its device half, or fetched, begins at a multiple of this; so many
 * bytes are copied at a time. */
enum { ARGS_ALIGNMENT = 16 };
size_t args_capacity(struct cuda_backend *cuda);
int args_send(struct cuda_backend *cuda, const struct args *args, void *to, size_t bytes,
              struct error *err);
/* Fetches results, which lie in args, to the host; `to` holds them once they are collected. */
int results_fetch(struct cuda_backend *cuda, const struct args *from, void *to, size_t bytes,
                  struct error *err);
/* Does the same with results that the kernels launched so far write to args' host half. */
int results_await(struct cuda_backend *cuda, const void *host, void *to, size_t bytes,
                  struct error *err);
/* Grows cuda->sampled to at least n tokens, and keeps those that are there. */
int sampled_reserve(struct cuda_backend *cuda, uint32_t n, struct error *err);

int cuda_run_graph(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                   struct error *err);
void graphs_close(struct cuda_backend *cuda);
/* Notes attention to prompts in a layer for the graph that is being recorded. */
void graph_note_prompts(struct cuda_backend *cuda, const struct attn_args *args);

/* Packs the present step and sends it to the device. */
int step_send(struct cuda_backend *cuda, struct error *err);

int rotary_open(struct cuda_backend *cuda, struct error *err);
void rotary_close(struct cuda_backend *cuda);
/* Sends the frequencies unless the device has them: they are the model's, so they are sent once. */
int freqs_send(struct cuda_backend *cuda, struct rotary *rotary, const double *inv_freq,
               uint32_t n_freqs, struct error *err);
struct key_rotations key_rotations_of(const struct cuda_backend *cuda,
                                      const struct attn_args *args);
/* Sends the slopes [n_heads] likewise; none if NULL. */
int slopes_send(struct cuda_backend *cuda, const float *slopes, uint32_t n_heads,
                struct error *err);
void slopes_close(struct cuda_backend *cuda);
/* Returns what distances take from the scores of args, once slopes_send() has sent its slopes. */
struct score_bias score_bias_of(const struct cuda_backend *cuda, const struct attn_args *args);
/* Returns the sinks of attn_args as kernels read them. */
struct head_sinks head_sinks_of(const struct weight *sinks);
/* Reserves the memory of the attention statistics. */
int attn_stats_reserve(struct cuda_backend *cuda, size_t n_rows, size_t n_slots, uint32_t n_heads,
                       struct error *err);
/* Reserves the memory of the step's attention statistics. */
int attn_stats_budget(struct cuda_backend *cuda, const struct step *step, uint32_t n_heads,
                      struct error *err);

/* attention.cu.  A step's block holds attention's plans, `bytes` right behind the header, and
 * n_words words among its arrays.  attention_plan() fills both once the arrays are filled (`plans`:
 * the block's host side). */
struct attention;
struct step_arrays {
    const int32_t *n_slots, *table_at, *seq_rows; /* host */
    int32_t *items;                               /* host */
    const int32_t *device_items;
};
int attention_budget(struct cuda_backend *cuda, const struct step *step, size_t *bytes,
                     size_t *n_words, struct error *err);
/* Reserves memory for partial results, and returns the most that attention_budget() will ask
 * for. */
int attention_reserve(struct cuda_backend *cuda, const struct step_limits *limits, size_t *bytes,
                      size_t *n_words, struct error *err);
void attention_plan(struct cuda_backend *cuda, const struct step_arrays *arrays, char *plans);
/* Returns what the launches of the step's attention depend on beside the number of rows: see
 * graph.c. */
uint32_t attention_launch_kind(const struct cuda_backend *cuda);
/* The most kernels that attention to prompts has in a layer where a graph has it. */
enum { MOST_PROMPT_KERNELS = 2 };
/* Says whether a graph can have the step's attention: there are no prompts, or all of their rows
 * see all that is before them, in pages that are read as they are, and nothing is evicted. */
bool attention_fits_graph(const struct cuda_backend *cuda);
void attention_close(struct cuda_backend *cuda); /* allowed when nothing is open */

/* kv/prompt_copies.c.  A layer's prompts as they are now. */
struct prompt_view {
    struct prompt_pages stored; /* of prompts whose keys are as attention wants them */
    struct prompt_pages ranked; /* of the others, */
    bool is_rotated;            /* whose keys are rotated there */
};
/* Says whether keys are stored before RoPE, and rotated by their ranks. */
bool step_seq_is_ranked(const struct step_seq *seq);
/* Tells whether some prompt of the step counts positions in the cache in this layer; all that do so
 * anywhere then do. */
bool step_layer_is_ranked(const struct step *step, uint32_t layer);
/* Decides which of the present step's prompts are copied; attention_plan() may then leave them
 * out. */
void prompt_copies_plan(struct cuda_backend *cuda, enum page_format format);
/* Makes the copies, unless they are there.  rotations: of ranked prompts' keys; NULL: these are not
 * read. */
int prompt_copies_open(struct cuda_backend *cuda, const struct kv_pool *kv, uint32_t layer,
                       const struct key_rotations *rotations, struct prompt_view *out,
                       struct error *err);
void prompt_copies_close(struct cuda_backend *cuda);

/* Returns the first tile, of those that are indexed together, in which all heads are dense
 * (sparse.c). */
uint32_t sparse_first_dense_tile(const struct attn_sparse *sparse);
/* Returns the group that the layer belongs to where filters choose, else NULL. */
const struct layer_group *filter_group_of(const struct step *step, const struct attn_sparse *sparse,
                                          uint32_t layer);
/* Tells whether the index says what the layer's heads visit of the sequence. */
bool sparse_has_index(const struct cuda_backend *cuda, const struct step_seq *seq, uint32_t layer);
/* Counts what the rows of a prompt whose filters choose visit in a layer without a window. */
void sparse_count_pairs(struct cuda_backend *cuda, const struct step_seq *seq,
                        const struct attn_args *args);
void sparse_memory_free(struct cuda_backend *cuda);

/* Reserves the candidates' workspace of the present step, and checks its selections (select.c). */
int select_workspace(struct cuda_backend *cuda, const struct step *step, struct error *err);
/* Makes a layer's attention wait for what select() has fetched for the layer.  If the attention
 * writes attention statistics, it also waits until the previous ones have been read.  *awaited
 * becomes whether there was something to wait for. */
int select_await(struct cuda_backend *cuda, uint32_t layer, bool leaves_attn_stats, bool *awaited,
                 struct error *err);
void select_close(struct cuda_backend *cuda);
struct select_params select_params_of(const struct cuda_backend *cuda,
                                      const struct select_args *args);
/* Fills in what the token scores of prompts' rows are made from (observe.c). */
int token_score_params_of(struct cuda_backend *cuda, const struct attn_args *args,
                          struct token_score_params *out, struct error *err);

/* Makes the stream wait for copies of pages that this step may write, or of host blocks that it may
 * read (host_pool.c). */
int host_pool_await_step(struct cuda_backend *cuda, const struct step *step, struct error *err);
/* Makes the stream wait for all copies. */
int host_pool_await(struct cuda_backend *cuda, struct error *err);
int host_pool_sync(struct cuda_backend *cuda, struct error *err);
void host_pool_close(struct cuda_backend *cuda);

int cuda_step_begin(struct backend *be, const struct step *step, struct error *err);
bool cuda_takes(const struct backend *be, const struct weight_format *format, unsigned uses);
int cuda_weight_load(struct backend *be, const struct weight *host, struct weight *out,
                     struct error *err);
void cuda_weight_release(struct backend *be, const struct weight *weight);
void weights_free(struct cuda_backend *cuda);

int cuda_linear(struct backend *be, const struct linear_args *args, struct error *err);
int cuda_gated(struct backend *be, const struct gated_args *args, struct error *err);
/* Computes an operation by the kernel of this name, which must take all of its parts at once. */
int linear_by(struct cuda_backend *cuda, const char *kernel, const struct linear_args *args,
              struct error *err);
/* Launches the kernels that are chosen for the parts of a product without a norm: all in one
 * launch, or some. */
int product_run(struct cuda_backend *cuda, const struct product *p, struct error *err);
/* Makes the kernel "unpacked" ready, which every weight needs whose format is not plain. */
int unpacked_reserve(struct cuda_backend *cuda, struct error *err);
/* Checks that no value of a weight on the device, which is not plain, is NaN or infinite.  Waits
 * for the stream.  ERR_INVALID, ERR_DEVICE. */
int unpacked_check(struct cuda_backend *cuda, const struct weight *w, struct error *err);
/* Says from how many rows on inputs are rounded (linear/rounded.c), once its kernels are open. */
void rounded_open(struct cuda_backend *cuda);
bool cuda_rounds(const struct backend *be, const struct weight *weight);
/* Makes *out the weight with scales in f32, one for each block, or for each row if it has no blocks
 * of columns.  The caller frees them. */
int weight_widen_scales(const struct weight *host, struct weight *out, struct error *err);
int rounded_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
/* Says whether kernels take all parts of a product with its input rounded, and are to do so. */
bool product_rounds(const struct cuda_backend *cuda, const struct product *p);
/* Makes *p, the gated product of args, leave its results as the next product reads them.  Changes
 * nothing if that does not round its input, or no kernel of *p does. */
void gated_round(const struct cuda_backend *cuda, const struct gated_args *args, struct product *p);
/* Notes, after the launch of *p, where it has left them. */
void gated_rounded(struct cuda_backend *cuda, const struct gated_args *args,
                   const struct product *p);
/* Rounds the input, unless it is there already, and makes *p a product of it, without a norm. */
int product_round(struct cuda_backend *cuda, struct product *p, struct error *err);
/* Rounds what the gate makes of gate and up for args->next, if that rounds its input.  Else writes
 * it to args->out. */
int gate_mul_or_round(struct cuda_backend *cuda, const struct gated_args *args, struct error *err);
int linear_open(struct cuda_backend *cuda, struct error *err);
void linear_close(struct cuda_backend *cuda);

int cuda_embed(struct backend *be, const struct embed_args *args, struct error *err);
int cuda_add_positions(struct backend *be, const struct add_positions_args *args,
                       struct error *err);
int cuda_rmsnorm(struct backend *be, const struct rmsnorm_args *args, struct error *err);
int cuda_layernorm(struct backend *be, const struct layernorm_args *args, struct error *err);
int cuda_activate(struct backend *be, const struct activate_args *args, struct error *err);
int cuda_gate(struct backend *be, const struct gate_args *args, struct error *err);
int cuda_rope_append(struct backend *be, const struct rope_append_args *args, struct error *err);
int cuda_attn_decode(struct backend *be, const struct attn_args *args, struct error *err);
int cuda_attn_prefill(struct backend *be, const struct attn_args *args, struct error *err);
int cuda_gather_rows(struct backend *be, const struct gather_rows_args *args, struct error *err);
int cuda_soft_cap(struct backend *be, const struct soft_cap_args *args, struct error *err);
int cuda_sample(struct backend *be, const struct sample_args *args, struct error *err);
int cuda_observe(struct backend *be, const struct select_args *args, struct error *err);
int cuda_collect(struct backend *be, uint32_t n_newer, struct error *err);
int cuda_sync(struct backend *be, struct error *err);
int cuda_measure(struct backend *be, struct ceilings *out, struct error *err);

/* The groups' tables, defined in kv/evict.c, kv/host_pool.c, kv/select.c, recurrent/recurrent.c and
 * attention/sparse/sparse.c. */
extern const struct evict_ops cuda_evict_ops;
extern const struct host_pool_ops cuda_host_pool_ops;
extern const struct select_ops cuda_select_ops;
extern const struct expert_ops cuda_expert_ops;
extern const struct recurrent_ops cuda_recurrent_ops;
/* Makes the stream kernel of experts ready. */
int stream_open(struct cuda_backend *cuda, struct error *err);
extern const struct sparse_ops cuda_sparse_ops;

/* Reserves its module's part of the reserve op, as do those below. */
int step_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int angles_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int sample_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int prompt_copies_reserve(struct cuda_backend *cuda, const struct step_limits *limits,
                          struct error *err);
int select_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err);
int sparse_memory_reserve(struct cuda_backend *cuda, const struct step_limits *limits,
                          struct error *err);

#ifdef __cplusplus
}
#endif

#endif
