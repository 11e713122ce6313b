/* experts.c - mixtures of experts on the CPU (experts.h).
 *
 * Rows are sorted by expert, so that each matrix is read once for all of its rows.  An expert that
 * no row uses is not read.
 *
 *   order   the packed rows: one expert after another, each from a multiple of PACK_ROWS on
 *   place   the packed row of each pair of a row and a rank
 *
 *   x ─ gather, pack ─► gate, up of each expert ─ gate(), pack ─► down ─ sum by place ─► out
 *
 * Many rows are computed in passes, whose buffers fit MOST_BYTES. */
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/products.h"
#include "engine/device/activation.h"
#include "engine/device/experts.h"

enum { MOST_BYTES = 64 << 20, MIN_PASS_ROWS = 16, MAX_PASS_ROWS = 1024, TASK_ROWS = 16 };

#define NO_PAIR UINT32_MAX

/* The rows of one expert. */
struct expert_rows {
    uint32_t expert, first_row, n_rows; /* packed rows */
};

/* The routed experts, or the shared one. */
struct side {
    const struct expert_matrices *matrices;
    const struct expert_rows *experts;
    uint32_t n_experts;
    uint32_t first_row, n_rows; /* packed rows, with gaps */
    uint32_t ffn_dim;
    float *gate_up; /* [n_rows, 2 * ffn_dim] */
};

/* Some of the rows, with their buffers in the workspace. */
struct pass {
    struct cpu_backend *cpu;
    const struct experts_args *args;
    uint32_t first, n_rows, dim, n_ranks; /* n_ranks: with that of the shared expert */
    struct expert_rows *experts;          /* [n_experts + 1]: those that are used */
    uint32_t *order, *place, *counts;     /* [packed rows], [n_rows, n_ranks], [n_experts] */
    struct product_part *parts;           /* [2 * n_experts] */
    float *y;                             /* [packed rows, dim]: what down gives */
    struct side routed, shared;
};

static uint32_t rows_of_pass(const struct experts_shape *s) {
    const size_t routed = s->n_used * (2 * (size_t)s->ffn_dim + s->dim),
                 shared = s->shared_dim ? 2 * (size_t)s->shared_dim + s->dim : 0,
                 fit = MOST_BYTES / ((routed + shared) * sizeof(float));
    const uint32_t most = fit > MAX_PASS_ROWS ? MAX_PASS_ROWS : (uint32_t)fit;
    return min_u32(s->n_rows, most > MIN_PASS_ROWS ? most : MIN_PASS_ROWS);
}

/* Returns the most packed rows of the routed experts. */
static size_t most_packed(const struct experts_shape *s, uint32_t n_rows) {
    const size_t n_pairs = (size_t)n_rows * s->n_used;
    return n_pairs + (n_pairs < s->n_experts ? n_pairs : s->n_experts) * (PACK_ROWS - 1);
}

static void *take(uintptr_t *at, size_t bytes) {
    void *memory = (void *)*at;
    *at += round_up(bytes, CPU_BUFFER_ALIGN);
    return memory;
}

/* Places the buffers of a pass from `memory` on.  Returns their bytes. */
static size_t place_buffers(struct pass *p, const struct experts_shape *s, uint32_t n_rows,
                            void *memory) {
    uintptr_t at = (uintptr_t)memory;
    const size_t n_routed = most_packed(s, n_rows),
                 n_shared = s->shared_dim ? round_up(n_rows, PACK_ROWS) : 0,
                 n_packed = round_up(n_routed, PACK_ROWS) + n_shared;
    p->experts = take(&at, (s->n_experts + 1) * sizeof(*p->experts));
    p->order = take(&at, n_packed * sizeof(*p->order));
    p->place = take(&at, (size_t)n_rows * (s->n_used + 1) * sizeof(*p->place));
    p->counts = take(&at, s->n_experts * sizeof(*p->counts));
    p->parts = take(&at, 2 * (size_t)s->n_experts * sizeof(*p->parts));
    p->routed.gate_up = take(&at, 2 * n_packed * s->ffn_dim * sizeof(float));
    p->shared.gate_up = take(&at, 2 * n_shared * s->shared_dim * sizeof(float));
    p->y = take(&at, n_packed * s->dim * sizeof(float));
    return at - (uintptr_t)memory;
}

/* Appends a run of rows to the packed ones. */
static void append(struct pass *p, struct side *side, uint32_t expert, uint32_t n_rows) {
    struct expert_rows *rows = &p->experts[p->routed.n_experts + p->shared.n_experts];
    *rows = (struct expert_rows){expert, side->first_row + side->n_rows, n_rows};
    if (side->n_experts++ == 0) side->experts = rows;
    side->n_rows += (uint32_t)round_up(n_rows, PACK_ROWS);
    for (uint32_t i = rows->first_row + n_rows; i < side->first_row + side->n_rows; i++)
        p->order[i] = NO_PAIR;
}

/* Gives a pair of a row and a rank its packed row. */
static void put(struct pass *p, uint32_t row, uint32_t rank, uint32_t packed) {
    const uint32_t pair = row * p->n_ranks + rank;
    p->order[packed] = pair;
    p->place[pair] = packed;
}

/* Sorts the pairs by expert, and those of one by row. */
static void sort(struct pass *p, uint32_t n_experts) {
    const uint32_t n_used = p->args->n_used, *chosen = p->args->experts + (size_t)p->first * n_used;
    memset(p->counts, 0, n_experts * sizeof(*p->counts));
    for (uint32_t i = 0; i < p->n_rows * n_used; i++) p->counts[chosen[i]]++;
    for (uint32_t e = 0; e < n_experts; e++) {
        const uint32_t n = p->counts[e];
        p->counts[e] = p->routed.n_rows; /* the expert's next packed row */
        if (n > 0) append(p, &p->routed, e, n);
    }
    for (uint32_t row = 0; row < p->n_rows; row++)
        for (uint32_t rank = 0; rank < n_used; rank++)
            put(p, row, rank, p->counts[chosen[row * n_used + rank]]++);
    p->shared.first_row = p->routed.n_rows;
    if (!p->args->shared.up) return;
    append(p, &p->shared, 0, p->n_rows);
    for (uint32_t row = 0; row < p->n_rows; row++) put(p, row, n_used, p->shared.first_row + row);
}

/* What products of a side take their input from. */
struct side_input {
    const struct pass *pass;
    const struct side *side;
};

/* Returns how many of PACK_ROWS packed rows there are. */
static uint32_t n_there(const uint32_t *order) {
    uint32_t n = 1;
    while (n < PACK_ROWS && order[n] != NO_PAIR) n++;
    return n;
}

static const float *gathered_rows(void *ctx, uint32_t first, uint32_t *n, float *memory) {
    const struct side_input *in = ctx;
    const struct pass *p = in->pass;
    const uint32_t *order = p->order + in->side->first_row + first;
    const float *x = (const float *)p->args->x + (size_t)p->first * p->dim;
    *n = n_there(order);
    if (*n == 1) return x + (size_t)(order[0] / p->n_ranks) * p->dim;
    for (uint32_t i = 0; i < *n; i++)
        memcpy(memory + (size_t)i * p->dim, x + (size_t)(order[i] / p->n_ranks) * p->dim,
               p->dim * sizeof(float));
    return memory;
}

/* Clamps gate and up, so that silu(gate) * up is the clamped function: slope * gate, and
 * (up + 1) / slope.  NaN stays NaN. */
static void clamp(const struct expert_gate *gate, float *g, float *u, uint32_t n) {
    const float most = gate->most;
    for (uint32_t i = 0; i < n; i++) {
        const float up = u[i] > most ? most : u[i] < -most ? -most : u[i];
        g[i] = (g[i] > most ? most : g[i]) * gate->slope;
        u[i] = (up + 1) / gate->slope;
    }
}

/* Makes of gate and up, which follow each other, the input of down. */
static void gate_row(const struct pass *p, const struct side *side, float *gate_up, float *out) {
    const struct expert_gate *gate = &p->args->gate;
    const uint32_t dim = side->ffn_dim;
    float *up = gate_up + dim;
    if (!side->matrices->gate) {
        memcpy(out, up, dim * sizeof(*out));
        p->cpu->kernels->activate(out, dim, ACT_RELU2);
        return;
    }
    if (gate->most > 0) clamp(gate, gate_up, up, dim);
    p->cpu->kernels->gate_mul(out, gate_up, up, dim, gate->kind);
}

static const float *gated_rows(void *ctx, uint32_t first, uint32_t *n, float *memory) {
    const struct side_input *in = ctx;
    const struct side *side = in->side;
    const size_t dim = side->ffn_dim;
    *n = n_there(in->pass->order + side->first_row + first);
    for (uint32_t i = 0; i < *n; i++)
        gate_row(in->pass, side, side->gate_up + 2 * (first + i) * dim, memory + i * dim);
    return memory;
}

/* Describes an expert's product with one of its matrices.  y: of the side's first row. */
static struct product_part part_of(const struct pass *p, const struct side *side,
                                   const struct expert_rows *rows, const struct weight *stack,
                                   const struct weight *bias, float *y, size_t y_stride) {
    const uint32_t first = rows->first_row - side->first_row;
    struct product_part part = {.w = cpu_matrix(p->cpu, stack, rows->expert),
                                .first_row = first,
                                .n_rows = rows->n_rows,
                                .y = y + first * y_stride,
                                .y_stride = y_stride};
    if (bias) part.bias = weight_matrix(bias, rows->expert);
    return part;
}

/* Computes gate and up of a side's experts, or up alone.  The two of one expert follow each other
 * if the same kernels read them. */
static int run_gate_up(struct pass *p, const struct side *side, struct error *err) {
    const struct expert_matrices *m = side->matrices;
    const size_t dim = side->ffn_dim;
    const bool is_one = m->gate && weight_same_format(&m->gate->format, &m->up->format);
    const uint32_t n = side->n_experts, n_matrices = m->gate ? 2 : 1, step = is_one ? 2 : 1,
                   up = is_one ? 1 : n * (n_matrices - 1);
    struct side_input ctx = {p, side};
    const struct product_input input = {
        .n_rows = side->n_rows, .n_in = p->dim, .get = gathered_rows, .ctx = &ctx};
    for (uint32_t i = 0; i < n; i++) {
        if (m->gate)
            p->parts[i * step] =
                part_of(p, side, &side->experts[i], m->gate, m->gate_bias, side->gate_up, 2 * dim);
        p->parts[i * step + up] =
            part_of(p, side, &side->experts[i], m->up, m->up_bias, side->gate_up + dim, 2 * dim);
    }
    return products_run(p->cpu, &input, p->parts, n_matrices * n, false, err);
}

static int run_down(struct pass *p, const struct side *side, struct error *err) {
    const struct expert_matrices *m = side->matrices;
    struct side_input ctx = {p, side};
    const struct product_input input = {
        .n_rows = side->n_rows, .n_in = side->ffn_dim, .get = gated_rows, .ctx = &ctx};
    for (uint32_t i = 0; i < side->n_experts; i++)
        p->parts[i] = part_of(p, side, &side->experts[i], m->down, m->down_bias,
                              p->y + (size_t)side->first_row * p->dim, p->dim);
    return products_run(p->cpu, &input, p->parts, side->n_experts, false, err);
}

static void sum_row(const struct pass *p, uint32_t row, float *sum) {
    const uint32_t *place = p->place + (size_t)row * p->n_ranks;
    const float *shares = p->args->shares + (size_t)(p->first + row) * (p->args->n_used + 1);
    float *out = (float *)p->args->out + (size_t)(p->first + row) * p->dim;
    memset(sum, 0, p->dim * sizeof(*sum));
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        const float *y = p->y + (size_t)place[r] * p->dim, share = shares[r];
        for (uint32_t i = 0; i < p->dim; i++) sum[i] += share * y[i];
    }
    if (p->args->overwrites) memcpy(out, sum, p->dim * sizeof(*sum));
    for (uint32_t i = 0; i < p->dim && !p->args->overwrites; i++) out[i] += sum[i];
}

static void sum_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct pass *p = ctx;
    const uint32_t end = min_u32((task + 1) * TASK_ROWS, p->n_rows);
    for (uint32_t row = task * TASK_ROWS; row < end; row++)
        sum_row(p, row, scratch_of(p->cpu, worker));
}

static int run_side(struct pass *p, const struct side *side, struct error *err) {
    if (side->n_experts == 0) return 0;
    const int rc = run_gate_up(p, side, err);
    return rc ? rc : run_down(p, side, err);
}

static int run_pass(struct pass *p, const struct experts_shape *shape, struct error *err) {
    const struct experts_args *args = p->args;
    const bool is_shared = args->shared.up != NULL;
    p->n_ranks = args->n_used + is_shared;
    p->routed = (struct side){.matrices = &args->routed, .ffn_dim = shape->ffn_dim};
    p->shared = (struct side){.matrices = &args->shared, .ffn_dim = shape->shared_dim};
    place_buffers(p, shape, p->n_rows, args->workspace);
    sort(p, shape->n_experts);
    int rc = run_side(p, &p->routed, err);
    if (!rc) rc = run_side(p, &p->shared, err);
    if (!rc) rc = scratch_reserve(p->cpu, p->dim * sizeof(float), err);
    if (!rc) pool_run(p->cpu->pool, sum_task, p, (uint32_t)div_up(p->n_rows, TASK_ROWS));
    return rc;
}

static struct experts_shape shape_of(const struct experts_args *args) {
    return (struct experts_shape){
        .n_rows = args->n_rows,
        .dim = args->routed.up->cols,
        .n_experts = args->routed.up->n_stacked,
        .n_used = args->n_used,
        .ffn_dim = args->routed.up->rows,
        .shared_dim = args->shared.up ? args->shared.up->rows : 0,
    };
}

static int cpu_experts(struct backend *be, const struct experts_args *args, struct error *err) {
    const struct experts_shape shape = shape_of(args);
    const uint32_t step = rows_of_pass(&shape);
    int rc = 0;
    for (uint32_t first = 0; first < args->n_rows && !rc; first += step) {
        struct pass pass = {.cpu = (struct cpu_backend *)be,
                            .args = args,
                            .first = first,
                            .n_rows = min_u32(step, args->n_rows - first),
                            .dim = shape.dim};
        rc = run_pass(&pass, &shape, err);
    }
    return rc;
}

static size_t cpu_workspace(const struct backend *be, const struct experts_shape *shape) {
    struct pass pass;
    (void)be;
    const size_t routing = route_workspace(shape),
                 running = place_buffers(&pass, shape, rows_of_pass(shape), NULL);
    return routing > running ? routing : running;
}

const struct expert_ops cpu_expert_ops = {
    .workspace = cpu_workspace, .route = cpu_route, .run = cpu_experts};
