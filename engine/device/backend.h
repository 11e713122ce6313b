/* backend.h - the table of operations that a device implements: memory, steps, dense operations.
 *
 *   decoder (engine/model/) --> struct backend --> engine/cpu/ or cuda/
 *
 * What not every device can do is in groups of operations, each with a header that explains them.
 * A group is whole, or NULL where the device cannot do it.  The engine then offers what is left.
 *
 *   host_pool.h   tokens in system memory        sparse.h   prompts that visit part of their keys
 *   evict.h       caches of bounded size         select.h   layers that attend to chosen tokens
 *   experts.h     mixtures of experts            recurrent.h  layers with a recurrent state
 *   collective.h  several backends, one model
 *
 * The arguments of operations on a step (step.h) and its KV pages (pages.h) are in attention.h;
 * those of sample are in sample.h.
 *
 * Matrices are row-major.  `void *` is device memory, to be accessed only through operations.
 * Activations are in `act_dtype` (f32 on the CPU); logits are f32 everywhere.
 *
 * Operations may run asynchronously, in the order of their submission.  Host memory that arguments
 * point to is read before the operation returns; a step's, before its last operation returns.  So
 * the engine can describe step n + 1 while the device works on step n.  Results in host memory
 * (such as samples) are valid after collect() or sync().  The host pool is the exception: the
 * device reads and writes it when the operation runs.
 *
 * Thread: engine.  Memory: alloc() and reserve() are for start-up; afterwards no operation
 * allocates device memory.  All operations return 0 or a negative ERR_*. */
#ifndef ENGINE_DEVICE_BACKEND_H
#define ENGINE_DEVICE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/dtype.h"
#include "engine/device/weight.h"

struct attn_args;
struct backend;
struct collective_ops;
struct error;
struct evict_ops;
struct expert_ops;
struct host_pool_ops;
struct kv_pool;
struct recurrent_ops;
struct rope_append_args;
struct sample_args;
struct select_ops;
struct sparse_ops;
struct step;
struct step_limits;

enum { LINEAR_MAX_PARTS = 3 };

struct embed_args {
    const struct weight *table; /* [vocab, dim] */
    void *out;                  /* act [n_rows, dim]: the step's tokens, */
    float scale;                /* times this */
};

/* Normalises n_heads adjacent vectors of each row, each by itself. */
struct rmsnorm_args {
    const void *x;               /* act, row i at x + i * x_stride elements: [n_heads, dim] */
    const struct weight *weight; /* [dim]; NULL: all are 1 */
    void *out;                   /* act, row i at out + i * out_stride elements; may be x */
    uint32_t n_rows, dim;
    size_t x_stride, out_stride;
    float eps;
    uint32_t n_heads; /* >= 1 */
    bool accumulate;  /* out += the norm; out is not x */
    float sum_scale;  /* with accumulate: out = sum_scale * (out + the norm); 0: not scaled */
};

/* Normalises each row by its mean and its variance: out = (x - mean) / deviation * weight +
 * bias. */
struct layernorm_args {
    const void *x;                      /* act [n_rows, dim], packed */
    const struct weight *weight, *bias; /* [dim]; bias may be NULL */
    void *out;                          /* act [n_rows, dim], packed; may be x */
    uint32_t n_rows, dim;
    float eps;
};

/* A product's input that is RMSNorm(x), not x: a device may normalise while it multiplies, or
 * before. */
struct rmsnorm_input {
    const struct weight *weight; /* [n_in] */
    float eps;
    void *normed; /* act [n_rows, n_in]: workspace, not x; undefined afterwards */
};

/* One of up to LINEAR_MAX_PARTS products that share their input (q, k, v or gate, up). */
struct linear_part {
    const struct weight *w;    /* [n_out, n_in] */
    const struct weight *bias; /* [n_out] or NULL */
    void *y;                   /* row i at y + i * y_stride elements */
    size_t y_stride;
};

/* y = x W^T (+ b), or y += x W^T (+ b) when accumulate is set (the residual stream). */
struct linear_args {
    const void *x;                    /* act [n_rows, n_in], packed */
    const struct rmsnorm_input *norm; /* NULL: x as it is */
    uint32_t n_rows, n_in, n_parts;
    struct linear_part parts[LINEAR_MAX_PARTS];
    bool accumulate;
    bool y_f32; /* y is f32 whatever act_dtype is (logits) */
};

/* Returns the arguments that normalise a product's input separately, into norm->normed. */
static inline struct rmsnorm_args linear_norm(const struct linear_args *args) {
    const struct rmsnorm_args norm = {args->x,
                                      args->norm->weight,
                                      args->norm->normed,
                                      args->n_rows,
                                      args->n_in,
                                      args->n_in,
                                      args->n_in,
                                      args->norm->eps,
                                      1,
                                      false,
                                      0};
    return norm;
}

/* The function of the gate g: g * sigmoid(g), or the tanh approximation of GELU, which is
 * g * sigmoid(GELU_1 g + GELU_3 g^3). */
enum gate_kind { GATE_SILU, GATE_GELU };
#define GELU_1 1.5957691216f /* 2 sqrt(2 / pi) */
#define GELU_3 0.0713548163f /* 0.044715 of that */

/* The gated half of a feed-forward layer: out = kind(x Wg^T + bg) * (x Wu^T + bu). */
struct gated_args {
    const void *x;                    /* act [n_rows, n_in], packed */
    const struct rmsnorm_input *norm; /* NULL: x as it is */
    uint32_t n_rows, n_in;
    const struct weight *gate, *up;           /* [n_out, n_in] */
    const struct weight *gate_bias, *up_bias; /* [n_out] or NULL */
    void *gate_up; /* act [n_rows, 2 * n_out]: workspace; undefined afterwards */
    void *out;     /* act [n_rows, n_out], packed */
    enum gate_kind kind;
    /* The weight of the next product, which alone reads out, or NULL.  If it rounds its input, the
     * device may round the results at once, and leave out unwritten; that product then takes what
     * was rounded. */
    const struct weight *next;
};

/* The function of a feed-forward layer without a gate: GELU, its tanh approximation (as in
 * GATE_GELU), or max(0, x). */
enum act_kind { ACT_GELU, ACT_GELU_TANH, ACT_RELU };

/* x = kind(x), in place; NaN stays NaN. */
struct activate_args {
    void *x; /* act [n_rows, dim], packed */
    uint32_t n_rows, dim;
    enum act_kind kind;
};

/* x *= sigmoid(gate): attention whose output has a gate. */
struct gate_args {
    void *x;          /* act [n_rows, dim], packed */
    const void *gate; /* act [n_rows, dim], packed */
    uint32_t n_rows, dim;
};

/* x[i] += table[first + the position of the step's row i]: positions that were learned. */
struct add_positions_args {
    const struct weight *table; /* [n_positions, dim] */
    uint32_t first;             /* the row of position 0 */
    void *x;                    /* act [n_rows, dim]: the step's rows */
};

/* out[i] = x[rows[i]]: picks the rows that need logits. */
struct gather_rows_args {
    const void *x;        /* act [*, dim] */
    void *out;            /* act [n, dim] */
    const uint32_t *rows; /* host [n] */
    uint32_t n, dim;
};

/* Logits in place: x = cap * tanh(x / cap); NaN stays NaN. */
struct soft_cap_args {
    void *x; /* f32 [n_rows, dim] */
    uint32_t n_rows, dim;
    float cap;
};

/* Submits the operations of a step of n_rows rows, for run_graph(). */
typedef int (*graph_body)(void *ctx, uint32_t n_rows, struct error *err);

/* Whether activations are rounded to E4M3 before products with weights of E4M3: as the checkpoint
 * was made for, never, or always. */
enum input_rounding { ROUND_AS_DECLARED, ROUND_NEVER, ROUND_ALWAYS };

struct device_memory {
    uint64_t free, total; /* bytes; any process may use what is not free */
};

/* The bounds of the device, printed with every benchmark and measured in the same run. */
struct ceilings {
    double copy_bytes_per_s; /* memory far larger than the caches: bytes read + bytes written */
    double read_bytes_per_s; /* the same, read only */
    double flops_per_s;      /* multiply-adds of products, two operations each */
};

struct backend_ops {
    void (*destroy)(struct backend *be);

    /* Reports the device's memory.  total 0: the backend uses the system's memory. */
    struct device_memory (*memory)(struct backend *be);
    /* Allocates all device memory that operations need besides their arguments, for steps within
     * the limits: from then on no operation allocates there.  Workspace in the system's memory may
     * grow to the largest step seen. */
    int (*reserve)(struct backend *be, const struct step_limits *limits, struct error *err);
    /* Allocates memory, zero-filled and 64-byte aligned. */
    int (*alloc)(struct backend *be, size_t bytes, void **out, struct error *err);
    void (*free)(struct backend *be, void *memory);
    /* Returns true if the device has kernels for weights of the format; uses: bits of enum
     * weight_use. */
    bool (*takes)(const struct backend *be, const struct weight_format *format, unsigned uses);
    /* Returns true if products with a weight of this format and shape can round their input
     * (weight.rounds_input).  NULL: none can. */
    bool (*rounds)(const struct backend *be, const struct weight *weight);
    /* Makes a weight that the device takes readable by it.  out->data may be host->data (on the
     * CPU): then the host's memory must outlive *out.  Or *out is a copy, which may be in another
     * order: then that memory may change as soon as this returns.  The caller gives *out to
     * weight_release. */
    int (*weight_load)(struct backend *be, const struct weight *host, struct weight *out,
                       struct error *err);
    /* Returns the bytes of the system's memory that weight_load() allocates for a weight that the
     * device takes; 0: none.  NULL: it never does. */
    uint64_t (*repacked_bytes)(const struct backend *be, const struct weight *host);
    void (*weight_release)(struct backend *be, const struct weight *weight);
    int (*upload)(struct backend *be, void *to, const void *host, size_t bytes, struct error *err);
    int (*download)(struct backend *be, void *host, const void *from, size_t bytes,
                    struct error *err);
    /* Copies pages from[n] to to[n]; none may be in both. */
    int (*copy_pages)(struct backend *be, const struct kv_pool *kv, const uint32_t *from,
                      const uint32_t *to, uint32_t n, struct error *err);

    /* Begins a step: operations up to the next step_begin() refer to it. */
    int (*step_begin)(struct backend *be, const struct step *step, struct error *err);
    int (*embed)(struct backend *be, const struct embed_args *args, struct error *err);
    int (*add_positions)(struct backend *be, const struct add_positions_args *args,
                         struct error *err);
    int (*rmsnorm)(struct backend *be, const struct rmsnorm_args *args, struct error *err);
    int (*layernorm)(struct backend *be, const struct layernorm_args *args, struct error *err);
    int (*linear)(struct backend *be, const struct linear_args *args, struct error *err);
    int (*gated)(struct backend *be, const struct gated_args *args, struct error *err);
    int (*activate)(struct backend *be, const struct activate_args *args, struct error *err);
    int (*gate)(struct backend *be, const struct gate_args *args, struct error *err);
    int (*rope_append)(struct backend *be, const struct rope_append_args *args, struct error *err);
    int (*attn_decode)(struct backend *be, const struct attn_args *args, struct error *err);
    int (*attn_prefill)(struct backend *be, const struct attn_args *args, struct error *err);
    int (*gather_rows)(struct backend *be, const struct gather_rows_args *args, struct error *err);
    int (*soft_cap)(struct backend *be, const struct soft_cap_args *args, struct error *err);
    int (*sample)(struct backend *be, const struct sample_args *args, struct error *err);
    /* Runs the operations of `body`, or the CUDA graph captured from them for the same ctx and
     * n_rows.  For steps whose sequences all decode, or whose prompts have no budgets, selections
     * and sparse attention; and for bodies that attend to prompts once a layer, and whose arguments
     * depend only on ctx and n_rows: all that changes between two calls is in the step.  n_rows may
     * exceed step.n_rows if the backend `repeats`.  The rows past the step's end are padding: no
     * other row depends on them, and no page is written for them. */
    int (*run_graph)(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                     struct error *err);
    /* Waits until the results of all steps but the newest n_newer (counted by step_begin) are
     * valid; those of newer steps may be, too.  What was submitted behind a step's last result may
     * still run.  Reports failures of what was awaited, if no earlier call did. */
    int (*collect)(struct backend *be, uint32_t n_newer, struct error *err);
    /* Waits until all submitted operations have completed; reports failures like collect(). */
    int (*sync)(struct backend *be, struct error *err);

    /* Measures the device's bounds, for benchmarks.  Takes about a second, and memory that it frees
     * again; the backend must be idle. */
    int (*measure)(struct backend *be, struct ceilings *out, struct error *err);

    /* The groups; NULL: this device cannot do it. */
    const struct host_pool_ops *host_pool;
    const struct evict_ops *evict;
    const struct sparse_ops *sparse;
    const struct select_ops *select;
    const struct expert_ops *experts;
    const struct recurrent_ops *recurrent;
    const struct collective_ops *collective;
};

/* Implementations embed this as their first member. */
struct backend {
    const struct backend_ops *ops;
    const char *name; /* "cpu", "cuda" */
    enum dtype act_dtype;
    /* run_graph() captures a CUDA graph for each n_rows, so the caller rounds up to few sizes. */
    bool repeats;
    /* The device works while the host does, so a step is best submitted before the results of the
     * previous one are known. */
    bool runs_ahead;
    /* The backends that compute one model together (collective.h), and the number of this one among
     * them.  n_ranks 0: it is alone.  That of rank 0 owns the others. */
    struct backend *const *ranks;
    uint32_t n_ranks, rank;
    /* Which weights round their input where the device can, and from how many rows on. */
    enum input_rounding input_rounding;
    uint32_t rounds_inputs_from;
    uint64_t
        n_new_graphs; /* calls of run_graph() that found none to launch: they take far longer */
    /* Is told of each product that is launched, and of its kernel, unless it is NULL.  A CUDA graph
     * that is launched again tells nothing. */
    void (*on_product)(void *ctx, const char *kernel, uint32_t n_rows, uint32_t n_in,
                       uint32_t n_out);
    void *on_product_ctx;
    char description[128]; /* one line for the log: instruction set or device name, threads */
    char arithmetic[128];  /* what its sums depend on: two with the same text give the same bits */
};

#endif
