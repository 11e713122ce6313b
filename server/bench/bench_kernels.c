/* bench_kernels.c - the other half of `quire bench`: single operations of the backend's table, each
 * beside its physical bound: see bench.h.
 *
 *   linear, gated   the model's own shapes, 1 to 2048 rows; each iteration takes another layer, so
 *                   that weights come from memory and not from a cache
 *   attn_decode     --batches sequences of --prompts tokens; each iteration takes other pages
 *   attn_prefill    the last step of a prompt of --prompts tokens, as long as a step may be
 *   sample          --batches rows
 *
 * A case does its operation once in each iteration.  The backend runs a case as it would run a
 * decode step (as a CUDA graph, if it can), so the device is timed and not the launch.  The bound
 * is the longer of two times: for the bytes that must be read, and for the multiply-adds.  Products
 * say by which kernel they are computed, where the device has several. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/dtype.h"
#include "engine/device/pages.h"
#include "engine/device/sample.h"
#include "engine/device/step.h"
#include "engine/memory_plan.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/random_weights.h"
#include "engine/system_memory.h"
#include "server/bench/bench.h"
#include "server/bench/report.h"

enum { N_ROWS = 4, MAX_ROWS = 2048, MAX_HEAD_ROWS = 64, MAX_ITERATIONS = 16 };
static const uint32_t row_counts[N_ROWS] = {1, 16, 64, MAX_ROWS};
/* Adjacent pages of a sequence are not adjacent in memory: pages are taken at this stride.  It is a
 * prime, so it visits all of them unless their number is a multiple of it. */
enum { PAGE_STRIDE = 7919 };
/* Together, the iterations of attention read more bytes than any cache holds. */
static const double COLD_BYTES = 256e6, RUN_SECONDS = 0.02;

struct kernels {
    const struct bench_plan *plan;
    const struct ceilings *ceilings;
    const struct engine_config *config;
    struct report report;
    struct backend *be;
    struct model *model;
    struct kv_pool kv;
    void *x, *y, *out; /* rows of random bits: inputs, and space for results */
    float *logits;     /* device, [MAX_HEAD_ROWS, n_vocab] */
    uint32_t max_rows;
    const char *product_kernel; /* of the last product; "": none, or it has no name */
    struct kernel_case *cases;
};

struct kernel_case;
/* Does the operation once; `layer` is it, if the operation has layers. */
typedef int (*iteration_body)(const struct kernel_case *c, uint32_t layer, struct error *err);

/* One row of the report.  It lives until the end, because a CUDA graph belongs to its address. */
struct kernel_case {
    struct kernel_case *next;
    struct kernels *k;
    const char *name;
    char shape[REPORT_CELL];
    iteration_body body;
    uint32_t n_rows, n_iterations;
    bool repeated;           /* by run_graph(): not a prefill operation */
    double bytes, flops;     /* of one iteration */
    const struct step *step; /* NULL: the body needs none */
};

static struct kernel_case *new_case(struct kernels *k, const char *name, iteration_body body,
                                    uint32_t n_rows, struct error *err) {
    struct kernel_case *c = calloc(1, sizeof(*c));
    if (!c) {
        error_set(err, ERR_NOMEM, "bench: no memory");
        return NULL;
    }
    *c = (struct kernel_case){
        .next = k->cases, .k = k, .name = name, .body = body, .n_rows = n_rows, .n_iterations = 1};
    k->cases = c;
    return c;
}

/* ---- timing ---- */

/* Implements graph_body; n_rows is the case's own. */
static int run_iterations(void *ctx, uint32_t n_rows, struct error *err) {
    const struct kernel_case *c = ctx;
    int rc = 0;
    (void)n_rows;
    for (uint32_t i = 0; i < c->n_iterations && !rc; i++) rc = c->body(c, i, err);
    return rc;
}

static int run_body(struct kernel_case *c, uint64_t n, struct error *err) {
    const struct backend_ops *ops = c->k->be->ops;
    int rc = 0;
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = c->repeated ? ops->run_graph(c->k->be, c->n_rows, run_iterations, c, err)
                         : run_iterations(c, c->n_rows, err);
    return rc ? rc : ops->sync(c->k->be, err);
}

static int time_body(struct kernel_case *c, uint64_t n, double *seconds, struct error *err) {
    const double begin = clock_seconds();
    const int rc = run_body(c, n, err);
    *seconds = (clock_seconds() - begin) / (double)n;
    return rc;
}

static const char *const names[] = {"operation", "shape",       "us",       "least",    "greatest",
                                    "GB_per_s",  "Gflop_per_s", "bound_by", "of_bound", "kernel"};
enum { N_COLUMNS = sizeof(names) / sizeof(*names) };

static void print_case(const struct kernel_case *c, double *seconds) {
    char cells[N_COLUMNS][REPORT_CELL];
    const struct ceilings *top = c->k->ceilings;
    const struct spread time = report_spread(seconds, c->k->plan->n_runs);
    const double memory = c->bytes / top->read_bytes_per_s,
                 arithmetic = c->flops / top->flops_per_s;
    snprintf(cells[0], REPORT_CELL, "%s", c->name);
    snprintf(cells[1], REPORT_CELL, "%s", c->shape);
    snprintf(cells[2], REPORT_CELL, "%.2f", time.median * 1e6);
    snprintf(cells[3], REPORT_CELL, "%.2f", time.least * 1e6);
    snprintf(cells[4], REPORT_CELL, "%.2f", time.greatest * 1e6);
    snprintf(cells[5], REPORT_CELL, "%.1f", c->bytes / time.median * 1e-9);
    snprintf(cells[6], REPORT_CELL, "%.1f", c->flops / time.median * 1e-9);
    snprintf(cells[7], REPORT_CELL, "%s", memory > arithmetic ? "memory" : "products");
    snprintf(cells[8], REPORT_CELL, "%.3f",
             (memory > arithmetic ? memory : arithmetic) / time.median);
    snprintf(cells[9], REPORT_CELL, "%s", c->k->product_kernel);
    report_row(&c->k->report, (const char(*)[REPORT_CELL])cells);
}

/* Runs a case twice untimed, and then timed.  In the first run buffers grow; in the second the
 * graph is captured. */
static int run_case(struct kernel_case *c, struct error *err) {
    const struct step none = {.n_layers = 0};
    double seconds[BENCH_MAX_RUNS], once = 0;
    int rc = c->k->be->ops->step_begin(c->k->be, c->step ? c->step : &none, err);
    c->k->product_kernel = "";
    for (int i = 0; i < 2 && !rc; i++) rc = run_body(c, 1, err);
    if (!rc) rc = time_body(c, 1, &once, err);
    if (rc) return rc;
    const uint64_t n = once < RUN_SECONDS ? (uint64_t)(RUN_SECONDS / once) + 1 : 1;
    for (uint64_t run = 0; run < c->k->plan->n_runs; run++) {
        if ((rc = time_body(c, n, &seconds[run], err))) return rc;
        seconds[run] /= c->n_iterations;
    }
    print_case(c, seconds);
    return 0;
}

/* ---- products ---- */

static int do_qkv(const struct kernel_case *c, uint32_t layer, struct error *err) {
    const struct layer_weights *w = &c->k->model->layers[layer];
    const size_t q = w->q.rows, kv = w->k.rows, width = q + 2 * kv,
                 size = dtype_size(c->k->be->act_dtype);
    char *y = c->k->y;
    const struct linear_args args = {
        .x = c->k->x,
        .n_rows = c->n_rows,
        .n_in = w->q.cols,
        .n_parts = weight_if_present(&w->v) ? 3 : 2,
        .parts = {{&w->q, weight_if_present(&w->q_bias), y, width},
                  {&w->k, weight_if_present(&w->k_bias), y + q * size, width},
                  {&w->v, weight_if_present(&w->v_bias), y + (q + kv) * size, width}}};
    return c->k->be->ops->linear(c->k->be, &args, err);
}

static int add_product(const struct kernel_case *c, const struct weight *w,
                       const struct weight *bias, struct error *err) {
    const struct linear_args args = {.x = c->k->x,
                                     .n_rows = c->n_rows,
                                     .n_in = w->cols,
                                     .n_parts = 1,
                                     .accumulate = true,
                                     .parts = {{w, weight_if_present(bias), c->k->out, w->rows}}};
    return c->k->be->ops->linear(c->k->be, &args, err);
}

static int do_o(const struct kernel_case *c, uint32_t layer, struct error *err) {
    const struct layer_weights *w = &c->k->model->layers[layer];
    return add_product(c, &w->o, &w->o_bias, err);
}

static int do_down(const struct kernel_case *c, uint32_t layer, struct error *err) {
    const struct layer_weights *w = &c->k->model->layers[layer];
    return add_product(c, &w->down, &w->down_bias, err);
}

static int do_gated(const struct kernel_case *c, uint32_t layer, struct error *err) {
    const struct layer_weights *w = &c->k->model->layers[layer];
    const struct gated_args args = {.x = c->k->x,
                                    .n_rows = c->n_rows,
                                    .n_in = w->gate.cols,
                                    .gate = &w->gate,
                                    .up = &w->up,
                                    .gate_bias = weight_if_present(&w->gate_bias),
                                    .up_bias = weight_if_present(&w->up_bias),
                                    .gate_up = c->k->y,
                                    .out = c->k->out};
    return c->k->be->ops->gated(c->k->be, &args, err);
}

static int do_head(const struct kernel_case *c, uint32_t layer, struct error *err) {
    (void)layer;
    const struct weight *head = &c->k->model->head;
    const struct linear_args args = {
        .x = c->k->x,
        .n_rows = c->n_rows,
        .n_in = head->cols,
        .n_parts = 1,
        .y_f32 = true,
        .parts = {{.w = head, .y = c->k->logits, .y_stride = head->rows}}};
    return c->k->be->ops->linear(c->k->be, &args, err);
}

/* Runs a product of n parts that share their input. */
static int run_product(struct kernels *k, const char *name, iteration_body body,
                       const struct weight *const *parts, uint32_t n, struct error *err) {
    const bool is_head = parts[0] == &k->model->head;
    const size_t n_in = parts[0]->cols;
    size_t n_out = 0, weights = 0;
    int rc = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_out += parts[i]->rows;
        weights += weight_bytes(parts[i]);
    }
    for (int i = 0; i < N_ROWS && !rc; i++) {
        const uint32_t n_rows = row_counts[i];
        const size_t act = dtype_size(k->be->act_dtype);
        const uint32_t n_layers = k->model->config.n_layers;
        if (n_rows > (is_head ? (uint32_t)MAX_HEAD_ROWS : k->max_rows)) continue;
        struct kernel_case *c = new_case(k, name, body, n_rows, err);
        if (!c) return ERR_NOMEM;
        if (!is_head) c->n_iterations = min_u32(n_layers, MAX_ITERATIONS);
        snprintf(c->shape, sizeof(c->shape), "%ux%zux%zu", n_rows, n_out, n_in);
        c->repeated = n_rows <= MAX_HEAD_ROWS;
        c->bytes = (double)weights + (double)n_rows * (double)((n_in + n_out) * act);
        c->flops = 2.0 * n_rows * (double)n_out * (double)n_in;
        rc = run_case(c, err);
    }
    return rc;
}

static int run_products(struct kernels *k, struct error *err) {
    const struct layer_weights *w = &k->model->layers[0];
    const struct {
        const char *name;
        iteration_body body;
        const struct weight *parts[LINEAR_MAX_PARTS];
        uint32_t n;
    } products[] = {
        {"linear qkv", do_qkv, {&w->q, &w->k, &w->v}, weight_if_present(&w->v) ? 3 : 2},
        {"linear o", do_o, {&w->o}, 1},
        {"gated", do_gated, {&w->gate, &w->up}, 2},
        {"linear down", do_down, {&w->down}, 1},
        {"linear head", do_head, {&k->model->head}, 1},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof(products) / sizeof(products[0]) && !rc; i++)
        rc = run_product(k, products[i].name, products[i].body, products[i].parts, products[i].n,
                         err);
    return rc;
}

/* ---- attention ---- */

static struct attn_args attn_args_of(const struct kernels *k, uint32_t layer) {
    const struct model_config *m = &k->model->config;
    return (struct attn_args){.q = k->x,
                              .q_stride = (size_t)m->n_heads * m->head_dim,
                              .out = k->out,
                              .kv = &k->kv,
                              .layer = layer,
                              .n_heads = m->n_heads,
                              .scale = m->attn_scale,
                              .softcap = m->attn_softcap};
}

static int do_attn_decode(const struct kernel_case *c, uint32_t layer, struct error *err) {
    const struct attn_args args = attn_args_of(c->k, layer);
    return c->k->be->ops->attn_decode(c->k->be, &args, err);
}

static int do_attn_prefill(const struct kernel_case *c, uint32_t layer, struct error *err) {
    const struct attn_args args = attn_args_of(c->k, layer);
    return c->k->be->ops->attn_prefill(c->k->be, &args, err);
}

static uint32_t iterations_of(const struct kernels *k, uint64_t n_pages) {
    const double n = COLD_BYTES / ((double)n_pages * (double)k->kv.page_bytes) + 1;
    return n < MAX_ITERATIONS ? (uint32_t)n : MAX_ITERATIONS;
}

/* Runs the case as a step of `batch` sequences of n_slots tokens, rows_each of them new. */
static int run_attention(struct kernel_case *c, uint32_t batch, uint32_t n_slots,
                         uint32_t rows_each, struct error *err) {
    const uint32_t n_pages = (uint32_t)kv_n_pages(n_slots);
    uint32_t *pages = calloc(c->k->kv.n_pages, sizeof(*pages));
    struct kv_view *views = calloc((size_t)batch * c->n_iterations, sizeof(*views));
    struct step_seq *seqs = calloc(batch, sizeof(*seqs));
    int rc = pages && views && seqs ? 0 : error_set(err, ERR_NOMEM, "bench: no memory");
    for (uint32_t i = 0; i < c->k->kv.n_pages && !rc; i++)
        pages[i] = (uint32_t)((uint64_t)i * PAGE_STRIDE % c->k->kv.n_pages);
    for (uint32_t i = 0; i < batch && !rc; i++) {
        seqs[i] = (struct step_seq){.first_row = i * rows_each,
                                    .n_rows = rows_each,
                                    .layers = views + (size_t)i * c->n_iterations};
        for (uint32_t t = 0; t < c->n_iterations; t++)
            views[(size_t)i * c->n_iterations + t] = (struct kv_view){
                pages + ((size_t)t * batch + i) * n_pages, n_slots, n_slots - rows_each};
    }
    const struct step step = {.n_rows = batch * rows_each,
                              .n_seqs = batch,
                              .n_decode = c->repeated ? batch : 0,
                              .n_layers = c->n_iterations,
                              .seqs = seqs};
    c->step = &step;
    if (!rc) rc = run_case(c, err);
    free(pages);
    free(views);
    free(seqs);
    return rc;
}

/* Returns the bytes of a slot's keys and values, with their scales if they have any. */
static double slot_bytes(const struct kv_pool *kv) {
    return (double)kv_state_offset(kv, 0) / PAGE_TOKENS;
}

static int run_attn_decode(struct kernels *k, uint32_t batch, uint32_t n_slots, struct error *err) {
    const struct model_config *m = &k->model->config;
    const uint64_t n_pages = batch * kv_n_pages(n_slots);
    const uint32_t n_iterations = iterations_of(k, n_pages);
    if (batch > k->max_rows || n_pages * n_iterations > k->kv.n_pages) {
        printf("# attn_decode,%ux%u not run: exceeds %s\n", batch, n_slots,
               batch > k->max_rows ? "--max-num-batched-tokens" : "--max-resident, or the memory");
        return 0;
    }
    struct kernel_case *c = new_case(k, "attn_decode", do_attn_decode, batch, err);
    if (!c) return ERR_NOMEM;
    snprintf(c->shape, sizeof(c->shape), "%ux%u", batch, n_slots);
    c->n_iterations = n_iterations;
    c->repeated = true;
    c->bytes = (double)batch * n_slots * slot_bytes(&k->kv);
    c->flops = 4.0 * batch * n_slots * m->n_heads * m->head_dim;
    return run_attention(c, batch, n_slots, 1, err);
}

static int run_attn_prefill(struct kernels *k, uint32_t n_slots, struct error *err) {
    const struct model_config *m = &k->model->config;
    const uint32_t n_rows = min_u32(n_slots, k->max_rows);
    if (n_rows < 2 || kv_n_pages(n_slots) > k->kv.n_pages) {
        printf("# attn_prefill,%ux%u not run: has one row, or exceeds the memory\n", n_rows,
               n_slots);
        return 0;
    }
    struct kernel_case *c = new_case(k, "attn_prefill", do_attn_prefill, n_rows, err);
    if (!c) return ERR_NOMEM;
    snprintf(c->shape, sizeof(c->shape), "%ux%u", n_rows, n_slots);
    c->bytes = (double)n_slots * slot_bytes(&k->kv) +
               2.0 * n_rows * m->n_heads * m->head_dim * (double)dtype_size(k->be->act_dtype);
    /* Row i sees the context before the step and i + 1 of the step's rows. */
    c->flops = 4.0 * m->n_heads * m->head_dim *
               ((double)n_rows * (n_slots - n_rows) + 0.5 * n_rows * (n_rows + 1.0));
    return run_attention(c, 1, n_slots, n_rows, err);
}

static int run_attentions(struct kernels *k, struct error *err) {
    const struct bench_sizes *batches = &k->plan->batches, *lengths = &k->plan->prompts;
    int rc = 0;
    for (uint32_t i = 0; i < batches->n && !rc; i++)
        for (uint32_t j = 0; j < lengths->n && !rc; j++)
            rc = run_attn_decode(k, batches->sizes[i], lengths->sizes[j], err);
    for (uint32_t j = 0; j < lengths->n && !rc; j++)
        rc = run_attn_prefill(k, lengths->sizes[j], err);
    return rc;
}

/* ---- sampling ---- */

/* Samples the rows.  The results are copied back every time, as part of the operation. */
static int sample(const struct kernel_case *c, float temperature, float top_p, struct error *err) {
    const uint32_t n_rows = c->n_rows;
    struct sample_row rows[MAX_HEAD_ROWS];
    struct sample_result results[MAX_HEAD_ROWS];
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i] = (struct sample_row){
            .logit_row = i,
            .sampler = {.temperature = temperature, .top_p = top_p, .repetition_penalty = 1},
            .uniform = (i + 0.5) / n_rows};
    const struct sample_args args = {.logits = c->k->logits,
                                     .n_vocab = c->k->model->config.n_vocab,
                                     .n = n_rows,
                                     .rows = rows,
                                     .results = results};
    const int rc = c->k->be->ops->sample(c->k->be, &args, err);
    return rc ? rc : c->k->be->ops->sync(c->k->be, err);
}

static int do_greedy(const struct kernel_case *c, uint32_t layer, struct error *err) {
    (void)layer;
    return sample(c, 0, 1, err);
}

/* Samples with top-p from random logits.  These are flat, so the nucleus has nearly all tokens: the
 * worst case. */
static int do_top_p(const struct kernel_case *c, uint32_t layer, struct error *err) {
    (void)layer;
    return sample(c, 0.8f, 0.95f, err);
}

static int run_samples(struct kernels *k, const char *name, iteration_body body,
                       struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < k->plan->batches.n && !rc; i++) {
        const uint32_t n = k->plan->batches.sizes[i];
        if (n > MAX_HEAD_ROWS) continue;
        struct kernel_case *c = new_case(k, name, body, n, err);
        if (!c) return ERR_NOMEM;
        snprintf(c->shape, sizeof(c->shape), "%ux%u", n, k->model->config.n_vocab);
        c->bytes = (double)n * k->model->config.n_vocab * sizeof(float);
        rc = run_case(c, err);
    }
    return rc;
}

/* ---- set up ---- */

/* Uploads random bits, one block again and again.  As bf16 they are weights, as f32 or f16 numbers
 * of some other size, and never zeros. */
static int fill(struct kernels *k, void *to, size_t bytes, struct error *err) {
    struct weight block = weight_plain(NULL, ELEMENT_BF16, 1024, 4096);
    struct random_weights *random = NULL;
    int rc = random_weights_create(&random, NULL, err);
    if (!rc) rc = random_weights_get(random, false, &block, err);
    const size_t block_bytes = weight_bytes(&block);
    for (size_t at = 0; at < bytes && !rc; at += block_bytes)
        rc = k->be->ops->upload(k->be, (char *)to + at, block.data,
                                bytes - at < block_bytes ? bytes - at : block_bytes, err);
    if (!rc) rc = k->be->ops->sync(k->be, err);
    random_weights_destroy(random);
    return rc;
}

static int alloc_filled(struct kernels *k, size_t bytes, void **out, struct error *err) {
    const int rc = k->be->ops->alloc(k->be, bytes, out, err);
    return rc ? rc : fill(k, *out, bytes, err);
}

static int make_buffers(struct kernels *k, struct error *err) {
    const struct model_config *m = &k->model->config;
    const size_t ffn = feed_forward_widths(m).ffn;
    size_t width = model_qkv_width(m);
    if (width < 2 * ffn) width = 2 * ffn;
    if (width < m->dim) width = m->dim;
    const size_t bytes = width * k->max_rows * dtype_size(k->be->act_dtype);
    int rc = alloc_filled(k, bytes, &k->x, err);
    if (!rc) rc = alloc_filled(k, bytes, &k->y, err);
    if (!rc) rc = alloc_filled(k, bytes, &k->out, err);
    void *logits = NULL;
    if (!rc) rc = alloc_filled(k, (size_t)MAX_HEAD_ROWS * m->n_vocab * sizeof(float), &logits, err);
    k->logits = logits;
    return rc;
}

static uint64_t available_bytes(void) {
    struct system_memory memory;
    system_memory_read(&memory);
    return memory.available;
}

/* Allocates pages for the largest case that --max-resident and half of the free memory allow. */
static int make_pool(struct kernels *k, struct error *err) {
    const struct bench_plan *plan = k->plan;
    const struct device_memory device = k->be->ops->memory(k->be);
    const uint64_t most = (device.total ? device.free : available_bytes()) / 2 / k->kv.page_bytes;
    uint64_t n = 1;
    for (uint32_t i = 0; i < plan->batches.n; i++)
        for (uint32_t j = 0; j < plan->prompts.n; j++) {
            const uint64_t pages = plan->batches.sizes[i] * kv_n_pages(plan->prompts.sizes[j]);
            const uint64_t resident = (uint64_t)plan->batches.sizes[i] * plan->prompts.sizes[j];
            const uint64_t all = pages * iterations_of(k, pages);
            if (plan->max_resident && resident > plan->max_resident) continue;
            if (all > n && all <= most) n = all;
        }
    k->kv.n_pages = (uint32_t)(n % PAGE_STRIDE == 0 ? n + 1 : n);
    return alloc_filled(k, k->kv.n_pages * k->kv.page_bytes, &k->kv.base, err);
}

static int open_kernels(struct kernels *k, struct error *err) {
    const struct model_source source = {.random = k->config->random_weights,
                                        .random_format = k->config->random_format,
                                        .unpacks_exactly = k->config->unpacks_exactly};
    int rc = model_load(&k->model, k->config->model_dir, &source, k->be, err);
    if (rc) return rc;
    k->kv = memory_plan_pages(k->config, &k->model->config);
    k->max_rows = k->config->max_batched_tokens;
    rc = make_buffers(k, err);
    return rc ? rc : make_pool(k, err);
}

static void close_kernels(struct kernels *k) {
    void *const all[] = {k->x, k->y, k->out, k->logits, k->kv.base};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (all[i]) k->be->ops->free(k->be, all[i]);
    model_destroy(k->model, k->be);
    for (struct kernel_case *c = k->cases, *next; c; c = next) {
        next = c->next;
        free(c);
    }
}

static void note_product(void *ctx, const char *kernel, uint32_t n_rows, uint32_t n_in,
                         uint32_t n_out) {
    struct kernels *k = ctx;
    (void)n_rows, (void)n_in, (void)n_out;
    k->product_kernel = kernel;
}

int bench_kernels_run(const struct bench_plan *plan, const struct ceilings *ceilings,
                      const struct engine_config *config, struct error *err) {
    struct kernels k = {.plan = plan,
                        .ceilings = ceilings,
                        .config = config,
                        .report = {plan->table, names, N_COLUMNS},
                        .be = config->backend};
    int rc = open_kernels(&k, err);
    k.be->on_product = note_product;
    k.be->on_product_ctx = &k;
    if (!rc) {
        report_begin(&k.report);
        rc = run_products(&k, err);
    }
    if (!rc) rc = run_attentions(&k, err);
    if (!rc) rc = run_samples(&k, "sample greedy", do_greedy, err);
    if (!rc) rc = run_samples(&k, "sample top_p", do_top_p, err);
    k.be->on_product = NULL;
    close_kernels(&k);
    return rc;
}
