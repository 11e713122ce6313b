/* backend.h - the inside of the CPU backend: one struct, one function per operation that every
 * backend has, and the tables of the groups.
 *
 * Thread: engine; inside pool_run() a function may touch only its own worker's scratch and its
 * task's output. Memory: scratch grows to the largest step seen and is kept. */
#ifndef ENGINE_CPU_BACKEND_H
#define ENGINE_CPU_BACKEND_H

#include <stdatomic.h>

#include "engine/cpu/buffer.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/sparse.h"
#include "engine/cpu/threads.h"
#include "engine/cpu/weight_memory.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/select.h"

struct collective_ops;
struct cpu_group;
struct evict_ops;
struct expert_ops;
struct experts_shape;
struct route_args;
struct host_pool_ops;
struct int8_layout;
struct recurrent_ops;
struct sample_args;
struct sparse_ops;
struct step;

/* cos and sin of every rank, for keys that are rotated when they are read; see angles.c. */
struct rank_angles {
    struct cpu_buffer table;    /* f32 [n_ranks][2][angle_stride(n_freqs)] */
    struct cpu_buffer inv_freq; /* f64 [n_freqs]: the table's frequencies */
    float rope_scale;           /* factor of the table's cos and sin */
    uint32_t n_freqs, n_ranks;
};

/* What attention saves for token scores of bounded caches and for selections; see attention.c,
 * evict.c and select.c. */
struct score_inputs {
    bool wanted;                  /* some sequence of the step has scores or a selection */
    struct cpu_buffer first_page; /* u32 [n_decode + 1]: prefix sums of these sequences' pages */
    struct cpu_buffer raw;        /* f32 [page][n_heads][PAGE_TOKENS]: decode's scores in base 2 */
    struct cpu_buffer softmax;    /* f32 [n_rows][n_heads][2]: maximum (base 2) and sum */
};

/* The selection of one sequence in the current step. */
struct selection {
    uint32_t n_moves; /* tokens fetched for the newest layer group */
    struct select_total total;
};

struct selections {
    bool wanted;                    /* some sequence of the step has a selection */
    struct cpu_buffer token_scores; /* f32 [page][PAGE_TOKENS]: token scores; pages as in raw */
    struct cpu_buffer moves;        /* struct move, one for each token score; see select.c */
    struct cpu_buffer done;         /* struct selection [n_decode] */
};

struct cpu_backend {
    struct backend base;
    struct pool *pool;
    struct cpu_group *group; /* group.h; NULL: it is alone */
    _Atomic double waited_s; /* for the group's other ranks; written by the rank's own thread */
    const struct cpu_kernels *kernels;
    /* How inputs of products are rounded to bf16, where weights are; NULL: they are not. */
    const struct product_kernels *bf16_products;
    /* For weights that are repacked when they are loaded, a row for each enum int8_kind; NULL: none
     * is. */
    const struct product_kernels *int8_products;
    struct weight_memory weights; /* those that were repacked */
    const struct step *step;      /* the current step */
    uint32_t *sampled;            /* [n_sampled]: by the previous step, until this samples */
    uint32_t n_sampled, sampled_capacity;
    bool drew;                    /* the current step has sampled */
    bool angles_valid[MAX_ROPES]; /* for the current step */
    struct cpu_buffer scratch;    /* per worker: scratch_bytes each */
    size_t scratch_bytes;
    /* f32 [n_rows][2][n_freqs]: cos, sin; with two_positions, the same of text_positions behind
     * them. */
    struct cpu_buffer angles[MAX_ROPES];
    bool two_positions;               /* of some of the step's rows */
    struct cpu_buffer text_positions; /* u32 [n_rows] */
    struct cpu_buffer tasks;          /* how the current operation is cut into tasks */
    struct cpu_buffer partials;       /* of attention; see attention.c */
    bool bounded;                     /* some sequence of the step has a budget */
    struct rank_angles rank_angles;
    struct score_inputs scores;
    /* Of heads that lose tokens, and that other ranks have, too: evict.c. */
    struct cpu_buffer shared_scores, shared_losses;
    struct selections selections;
    struct sparse_index sparse; /* of the layer that index() processed last */
    struct cpu_buffer inputs;   /* packed inputs of a product, see linear.c */
};

/* Makes at least `bytes` of scratch available to every worker. */
int scratch_reserve(struct cpu_backend *cpu, size_t bytes, struct error *err);
void *scratch_of(const struct cpu_backend *cpu, uint32_t worker);
/* Returns the sequence that has a row of the step. */
const struct step_seq *seq_of_row(const struct step *step, uint32_t row);
/* Computes the angles of the step's rows into cpu->angles[args->rope]. */
int row_angles_prepare(struct cpu_backend *cpu, const struct rope_append_args *args,
                       struct error *err);
/* Returns the cosines by which a row of the sequence is rotated in the layer; sines follow. */
/* Returns what the queries of a row are multiplied with, after row_angles_prepare(). */
float row_query_scale(const struct cpu_backend *cpu, const struct rope_append_args *args,
                      const struct step_seq *seq, uint32_t row);
const float *row_angles(const struct cpu_backend *cpu, const struct rope_append_args *args,
                        const struct step_seq *seq, uint32_t row);
/* Computes the angles of all ranks in the step, if any sequence has its positions in the cache. */
int rank_angles_prepare(struct cpu_backend *cpu, const struct attn_args *args, struct error *err);
/* Resets the selections at the beginning of a step. */
int select_begin(struct cpu_backend *cpu, const struct step *step, struct error *err);
void select_free(struct selections *selections);
/* Returns where a group's state holds the token number of a slot. */
uint32_t *select_token_in(const struct kv_pool *kv, const struct kv_select *select, uint32_t group,
                          uint32_t slot);
/* Writes the values of a row of a weight: out [cols]. */
void weight_row(const struct cpu_backend *cpu, const struct weight *w, uint32_t row, float *out);
/* Finishes a gated product: computes args->out from args->gate_up. */
int gate_mul_rows(struct cpu_backend *cpu, const struct gated_args *args);
/* Does the same where gate_up holds gates alone, [n_rows, n_out], and up_bias a row for each. */
int gate_mul_own_rows(struct cpu_backend *cpu, const struct gated_args *args);

/* Allocates cleared memory, for the KV pool and the host pool alike.  cpu_free() accepts NULL. */
int cpu_alloc(struct backend *be, size_t bytes, void **out, struct error *err);
void cpu_free(struct backend *be, void *memory);
bool cpu_takes(const struct backend *be, const struct weight_format *format, unsigned uses);
/* Returns true, and the layout, if weights of the format are repacked when they are loaded. */
bool cpu_repacks(const struct cpu_backend *cpu, const struct weight_format *format,
                 struct int8_layout *out);
int cpu_weight_load(struct backend *be, const struct weight *host, struct weight *out,
                    struct error *err);
/* Returns matrix number i of a stack that was loaded. */
struct weight cpu_matrix(const struct cpu_backend *cpu, const struct weight *stack, uint32_t i);
uint64_t cpu_repacked_bytes(const struct backend *be, const struct weight *host);
void cpu_weight_release(struct backend *be, const struct weight *weight);
int cpu_embed(struct backend *be, const struct embed_args *args, struct error *err);
int cpu_add_positions(struct backend *be, const struct add_positions_args *args, struct error *err);
int cpu_rmsnorm(struct backend *be, const struct rmsnorm_args *args, struct error *err);
/* Implements collective_ops.rmsnorm(). */
int cpu_rmsnorm_parts(struct backend *be, const struct rmsnorm_args *args, struct error *err);
int cpu_layernorm(struct backend *be, const struct layernorm_args *args, struct error *err);
int cpu_linear(struct backend *be, const struct linear_args *args, struct error *err);
int cpu_gated(struct backend *be, const struct gated_args *args, struct error *err);
int cpu_activate(struct backend *be, const struct activate_args *args, struct error *err);
int cpu_gate(struct backend *be, const struct gate_args *args, struct error *err);
int cpu_rope_append(struct backend *be, const struct rope_append_args *args, struct error *err);
int cpu_attn_decode(struct backend *be, const struct attn_args *args, struct error *err);
int cpu_attn_prefill(struct backend *be, const struct attn_args *args, struct error *err);
int cpu_gather_rows(struct backend *be, const struct gather_rows_args *args, struct error *err);
int cpu_soft_cap(struct backend *be, const struct soft_cap_args *args, struct error *err);
/* Routes rows, and returns the bytes of its workspace: cpu_expert_ops uses both.  See route.c. */
int cpu_route(struct backend *be, const struct route_args *args, struct error *err);
size_t route_workspace(const struct experts_shape *shape);
int cpu_measure(struct backend *be, struct ceilings *out, struct error *err);
int cpu_sample(struct backend *be, const struct sample_args *args, struct error *err);

/* The groups' tables, defined in evict.c, experts.c, host_pool.c, recurrent.c, select.c and
 * sparse.c. */
extern const struct evict_ops cpu_evict_ops;
extern const struct expert_ops cpu_expert_ops;
extern const struct host_pool_ops cpu_host_pool_ops;
extern const struct recurrent_ops cpu_recurrent_ops;
extern const struct select_ops cpu_select_ops;
extern const struct sparse_ops cpu_sparse_ops;

#endif
