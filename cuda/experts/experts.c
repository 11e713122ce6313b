/* experts.c - mixtures of experts on the device (engine/device/experts.h): the operations, and the
 * list of kernels for the experts' products (expert_product.h).
 *
 *   route   logits by the operation linear ─► choose
 *   run     [shared expert by the dense operations] sort ─► gate, up ─► down ─► combine
 *
 * Many rows are computed in passes, whose buffers fit MOST_BYTES.  Offloaded experts: fetch.h. */
#include "engine/device/experts.h"

#include "cuda/experts/expert_kernels.h"
#include "cuda/experts/fetch.h"
#include "cuda/experts/grouped_cut.h"
#include "cuda/experts/stream_cut.h"
#include "cuda/host/internal.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"

enum { ALIGN = 256, BF16_BYTES = 2, F32_BYTES = 4, MIN_PASS_ROWS = 64 };
static const size_t MOST_BYTES = (size_t)512 << 20;

/* ---- the list of kernels ---- */

static bool takes_all(const struct cuda_backend *cuda, const struct expert_product *p) {
    (void)cuda, (void)p;
    return true;
}

static bool stream_fits(const struct cuda_backend *cuda, const struct expert_product *p) {
    struct stream_cut cut;
    return cuda->expert_stream.n_multiprocessors > 0 && stream_takes(p) &&
           stream_make_cut(p, &cuda->expert_stream, &cut);
}

static bool grouped_fits(const struct cuda_backend *cuda, const struct expert_product *p) {
    uint32_t format;
    return cuda->products.packed_wide.n_clusters[1] > 0 && grouped_takes(p, &format);
}

expert_launch launch_experts_any, launch_experts_grouped, launch_experts_stream;

/* In the order of preference; the last one takes everything.  If sums must not depend on other
 * rows, kernels with most_rows are left out: then one kernel computes any number of rows. */
static const struct expert_kernel expert_kernels[] = {
    {"stream", stream_fits, launch_experts_stream, STREAM_MAX_ROWS, STREAM_FIND_PAIRS, true},
    {"grouped", grouped_fits, launch_experts_grouped, 0, 0, false},
    {"stream", stream_fits, launch_experts_stream, 0, STREAM_FIND_PAIRS, true},
    {"any", takes_all, launch_experts_any, 0, 0, true}};

static const struct expert_kernel *choose_kernel(const struct cuda_backend *cuda,
                                                 const struct expert_product *p) {
    const struct expert_kernel *k = expert_kernels;
    while ((k->most_rows && (cuda->batch_invariant || p->order.n_rows > k->most_rows)) ||
           !k->fits(cuda, p))
        k++;
    return k;
}

/* ---- workspace ---- */

/* The buffers of a pass. */
struct pass_buffers {
    uint32_t *first, *pair, *place;
    void *hidden;                         /* bf16 [n_pairs, ffn_dim] */
    void *y;                              /* f32 or bf16 [n_pairs, dim] */
    void *shared_gate_up, *shared_hidden; /* bf16 [n_rows, 2 * shared_dim], [n_rows, shared_dim] */
    void *shared_y;                       /* as y [n_rows, dim] */
};

static uint32_t rows_of_pass(const struct experts_shape *s) {
    const size_t routed =
                     s->n_used * (BF16_BYTES * (size_t)s->ffn_dim + F32_BYTES * (size_t)s->dim),
                 shared = 3 * BF16_BYTES * (size_t)s->shared_dim + F32_BYTES * (size_t)s->dim,
                 fit = MOST_BYTES / (routed + (s->shared_dim ? shared : 0));
    return min_u32(s->n_rows, fit > MIN_PASS_ROWS ? (uint32_t)fit : MIN_PASS_ROWS);
}

static void *take(uintptr_t *at, size_t bytes) {
    void *memory = (void *)*at;
    *at += round_up(bytes, ALIGN);
    return memory;
}

/* Places the buffers of a pass from `memory` on.  Returns their bytes. */
static size_t place_buffers(struct pass_buffers *b, const struct experts_shape *s, uint32_t n_rows,
                            void *memory) {
    uintptr_t at = (uintptr_t)memory;
    const size_t n_pairs = (size_t)n_rows * s->n_used, n_shared = s->shared_dim ? n_rows : 0;
    b->first = take(&at, (s->n_experts + 1) * sizeof(*b->first));
    b->pair = take(&at, n_pairs * sizeof(*b->pair));
    b->place = take(&at, n_pairs * sizeof(*b->place));
    b->hidden = take(&at, n_pairs * s->ffn_dim * BF16_BYTES);
    b->y = take(&at, n_pairs * s->dim * F32_BYTES);
    b->shared_gate_up = take(&at, n_shared * 2 * s->shared_dim * BF16_BYTES);
    b->shared_hidden = take(&at, n_shared * s->shared_dim * BF16_BYTES);
    b->shared_y = take(&at, n_shared * s->dim * F32_BYTES);
    return at - (uintptr_t)memory;
}

static size_t round_logits(uint32_t n_rows, uint32_t n_experts) {
    return round_up((size_t)n_rows * n_experts * F32_BYTES, ALIGN);
}

static size_t cuda_experts_workspace(const struct backend *be, const struct experts_shape *s) {
    struct pass_buffers buffers;
    (void)be;
    const size_t routing = round_logits(s->n_rows, s->n_experts) + s->n_rows * F32_BYTES,
                 running = place_buffers(&buffers, s, rows_of_pass(s), NULL);
    /* The caller's memory is aligned to 64 bytes only. */
    return (routing > running ? routing : running) + ALIGN;
}

static void *aligned(void *workspace) {
    return (void *)round_up((uintptr_t)workspace, ALIGN);
}

/* ---- route ---- */

static struct choose_params choose_of(const struct route_args *args) {
    const struct weight *bias = args->bias, *choice_bias = args->choice_bias,
                        *factors = args->factors;
    return (struct choose_params){
        .bias = bias ? bias->data : NULL,
        .bias_dtype = bias ? bias->format.element : ELEMENT_F32,
        .choice_bias = choice_bias ? choice_bias->data : NULL,
        .choice_bias_dtype = choice_bias ? choice_bias->format.element : ELEMENT_F32,
        .factors = factors ? factors->data : NULL,
        .factors_dtype = factors ? factors->format.element : ELEMENT_F32,
        .routing = *args->routing,
        .n_rows = args->n_rows,
        .n_experts = args->router->rows,
        .n_used = args->n_used,
        .experts = args->experts,
        .shares = args->shares};
}

static bool is_bf16(const struct weight *w) {
    return weight_is_plain(&w->format) && w->format.element == ELEMENT_BF16;
}

/* Says whether the kernel for few rows makes the logits, and how.  Its sums are not those of other
 * kernels, so it would make bits depend on the number of rows. */
static bool takes_few(const struct cuda_backend *cuda, const struct route_args *args, float *logits,
                      float *gates, struct router_params *out) {
    const struct weight *gate = args->shared_gate, *norm = args->norm ? args->norm->weight : NULL;
    *out = (struct router_params){.n_rows = args->n_rows,
                                  .n_experts = args->router->rows,
                                  .logits = logits,
                                  .gates = gates,
                                  .x = args->x,
                                  .norm = norm ? norm->data : NULL,
                                  .normed = norm ? args->norm->normed : NULL,
                                  .eps = norm ? args->norm->eps : 0,
                                  .router = args->router->data,
                                  .shared_gate = gate ? gate->data : NULL,
                                  .dim = args->router->cols};
    return !cuda->batch_invariant && is_bf16(args->router) && (!gate || is_bf16(gate)) &&
           (!norm || is_bf16(norm)) && router_takes(out, launch_of(cuda));
}

static int cuda_route(struct backend *be, const struct route_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const uint32_t n_experts = args->router->rows;
    float *logits = aligned(args->workspace),
          *gates = logits + round_logits(args->n_rows, n_experts) / F32_BYTES;
    struct router_params few;
    struct choose_params choose = choose_of(args);
    int rc;
    if (takes_few(cuda, args, logits, gates, &few)) {
        rc = cuda_check(cuda, launch_router(&few, launch_of(cuda)), "the router", err);
    } else {
        struct route_args plain = *args;
        rc = route_norm(be, &plain, err);
        const struct linear_args products = route_products(&plain, logits, gates);
        if (!rc) rc = cuda_linear(be, &products, err);
    }
    choose.logits = logits;
    choose.gates = args->shared_gate ? gates : NULL;
    return rc ? rc
              : cuda_check(cuda, launch_choose(&choose, launch_of(cuda)), "choosing experts", err);
}

/* ---- run ---- */

/* Some of the rows. */
struct pass {
    struct cuda_backend *cuda;
    const struct experts_args *args;
    uint32_t first, n_rows, dim;
    struct pass_buffers buffers;
    struct expert_order order;
};

static const void *rows_from(const void *rows, uint32_t first, uint32_t dim) {
    return (const uint16_t *)rows + (size_t)first * dim;
}

static struct expert_stack stack_of(const struct weight *w, const struct weight *bias) {
    return (struct expert_stack){.w = w->data,
                                 .scales = w->scales,
                                 .mins = w->mins,
                                 .bias = bias ? bias->data : NULL,
                                 .bias_dtype = bias ? bias->format.element : ELEMENT_F32,
                                 .format = w->format,
                                 .in_strips = w->in_strips};
}

static struct expert_product gate_up_of(const struct pass *p) {
    const struct expert_matrices *m = &p->args->routed;
    return (struct expert_product){
        .order = p->order,
        .x = rows_from(p->args->x, p->first, p->dim),
        .gathers = true,
        .n_in = p->dim,
        .n_out = m->gate->rows,
        .stacks = {stack_of(m->gate, m->gate_bias), stack_of(m->up, m->up_bias)},
        .gated = true,
        .gate = p->args->gate,
        .y = p->buffers.hidden};
}

static struct expert_product down_of(const struct pass *p) {
    const struct expert_matrices *m = &p->args->routed;
    return (struct expert_product){.order = p->order,
                                   .x = p->buffers.hidden,
                                   .n_in = m->down->cols,
                                   .n_out = p->dim,
                                   .stacks = {stack_of(m->down, m->down_bias)},
                                   .y = p->buffers.y};
}

/* Computes what the shared expert gives, by the dense operations. */
static int run_shared(const struct pass *p, bool is_f32, struct error *err) {
    const struct expert_matrices *m = &p->args->shared;
    struct backend *be = &p->cuda->base;
    const struct gated_args gated = {.x = rows_from(p->args->x, p->first, p->dim),
                                     .n_rows = p->n_rows,
                                     .n_in = p->dim,
                                     .gate = m->gate,
                                     .up = m->up,
                                     .gate_bias = m->gate_bias,
                                     .up_bias = m->up_bias,
                                     .gate_up = p->buffers.shared_gate_up,
                                     .out = p->buffers.shared_hidden,
                                     .kind = p->args->gate.kind,
                                     .next = m->down};
    const struct linear_args down = {.x = p->buffers.shared_hidden,
                                     .n_rows = p->n_rows,
                                     .n_in = m->down->cols,
                                     .n_parts = 1,
                                     .parts = {{.w = m->down,
                                                .bias = m->down_bias,
                                                .y = p->buffers.shared_y,
                                                .y_stride = p->dim}},
                                     .y_f32 = is_f32};
    if (p->args->gate.most > 0)
        return error_set(err, ERR_UNSUPPORTED,
                         "cuda: a shared expert with clamped gate and up is not supported");
    const int rc = cuda_gated(be, &gated, err);
    return rc ? rc : cuda_linear(be, &down, err);
}

static int run_pass(struct pass *p, struct error *err) {
    struct cuda_backend *cuda = p->cuda;
    const struct experts_args *args = p->args;
    struct expert_product gate_up = gate_up_of(p), down = down_of(p);
    const struct expert_kernel *up_kernel = choose_kernel(cuda, &gate_up),
                               *down_kernel = choose_kernel(cuda, &down);
    const uint32_t n_found = min_u32(up_kernel->finds_pairs, down_kernel->finds_pairs);
    gate_up.finds_order = down.finds_order = expert_n_pairs(&p->order) <= n_found;
    down.order_is_old = up_kernel->finds_pairs > 0;
    down.y_f32 = down_kernel->writes_f32;
    const struct combine_params sum = {
        .place = p->buffers.place,
        .shares = args->shares + (size_t)p->first * (args->n_used + 1),
        .y = p->buffers.y,
        .shared = args->shared.gate ? p->buffers.shared_y : NULL,
        .is_f32 = down.y_f32,
        .out = (void *)rows_from(args->out, p->first, p->dim),
        .overwrites = args->overwrites,
        .n_rows = p->n_rows,
        .n_used = args->n_used,
        .dim = p->dim};
    int rc = args->shared.gate ? run_shared(p, down.y_f32, err) : 0;
    if (!rc && direct_experts_fit(cuda, &gate_up, &down))
        return cuda_check(cuda, launch_direct_experts(&gate_up, &down, &sum, launch_of(cuda)),
                          "a row's experts", err);
    if (!rc && !gate_up.finds_order)
        rc = cuda_check(cuda, launch_sort(&p->order, launch_of(cuda)), "sorting by expert", err);
    if (!rc) rc = up_kernel->launch(cuda, &gate_up, err);
    if (!rc) rc = down_kernel->launch(cuda, &down, err);
    if (rc) return rc;
    return cuda_check(cuda, launch_combine(&sum, launch_of(cuda)), "adding up experts", err);
}

static struct experts_shape shape_of(const struct experts_args *args) {
    return (struct experts_shape){.n_rows = args->n_rows,
                                  .dim = args->routed.gate->cols,
                                  .n_experts = args->routed.gate->n_stacked,
                                  .n_used = args->n_used,
                                  .ffn_dim = args->routed.gate->rows,
                                  .shared_dim = args->shared.gate ? args->shared.gate->rows : 0};
}

static int run_passes(struct cuda_backend *cuda, const struct experts_args *args,
                      struct error *err) {
    const struct experts_shape shape = shape_of(args);
    const uint32_t step = rows_of_pass(&shape);
    int rc = 0;
    for (uint32_t first = 0; first < args->n_rows && !rc; first += step) {
        struct pass pass = {.cuda = cuda,
                            .args = args,
                            .first = first,
                            .n_rows = min_u32(step, args->n_rows - first),
                            .dim = shape.dim};
        place_buffers(&pass.buffers, &shape, pass.n_rows, aligned(args->workspace));
        pass.order = (struct expert_order){.experts = args->experts + (size_t)first * args->n_used,
                                           .first = pass.buffers.first,
                                           .pair = pass.buffers.pair,
                                           .place = pass.buffers.place,
                                           .n_rows = pass.n_rows,
                                           .n_used = args->n_used,
                                           .n_experts = shape.n_experts};
        rc = run_pass(&pass, err);
    }
    return rc;
}

/* Launches the kernels without overlap where they read copies.  They read weights before they wait
 * for the kernel before, and these must be there by then. */
static int cuda_run_experts(struct backend *be, const struct experts_args *args,
                            struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct experts_args own = *args;
    struct fetched_experts fetched;
    const bool overlap = cuda->overlap;
    int rc = expert_fetch(cuda, &own, &fetched, err);
    cuda->overlap = overlap && !fetched.is_whole;
    if (!rc) rc = run_passes(cuda, &own, err);
    cuda->overlap = overlap;
    return rc ? rc : expert_fetch_count(cuda, &own, &fetched, err);
}

const struct expert_ops cuda_expert_ops = {
    .workspace = cuda_experts_workspace, .route = cuda_route, .run = cuda_run_experts};
