/* linear.c - the operations linear and gated: cuts their parts into products (product.h), and
 * launches the kernels that are chosen for them (choice.c).  Thread: engine. */
#include <stdlib.h>
#include <string.h>

#include "cuda/elementwise/gate.h"
#include "cuda/host/internal.h"
#include "cuda/linear/product.h"
#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/gated_products.h"
#include "engine/device/weight.h"

int linear_open(struct cuda_backend *cuda, struct error *err) {
    int rc = blas_open(&cuda->blas, err);
    cuda->products.batch_invariant = cuda->batch_invariant;
    cuda->matmuls = calloc(MATMUL_CACHE, sizeof(*cuda->matmuls));
    if (!cuda->matmuls) return error_set(err, ERR_NOMEM, "cuda: no memory");
    for (const struct product_kernel *k = product_kernels; k->name && !rc; k++)
        if (k->open) rc = k->open(cuda, err);
    if (!rc) rc = device_alloc(cuda, MATMUL_WORKSPACE_BYTES, &cuda->workspace, err);
    if (rc) return rc;
    rounded_open(cuda);
    /* Where cuBLASLt splits a sum, it adds up whole tiles of partial results.  They include rows
     * past the end, which it never wrote; nothing uses their sums. */
    return cuda_check(cuda,
                      cudaMemsetAsync(cuda->workspace, 0, MATMUL_WORKSPACE_BYTES, cuda->stream),
                      "clearing memory", err);
}

void linear_close(struct cuda_backend *cuda) {
    blas_close(&cuda->blas);
    cudaFree(cuda->workspace);
    cudaFree(cuda->products.wide.shares);
    cudaFree(cuda->products.slab);
    cudaFree(cuda->rounded.memory);
    free(cuda->matmuls);
}

/* ---- from an operation to products ---- */

/* Says whether array `second` lies right behind `first`, or neither exists. */
static bool lies_behind(const void *first, uint64_t bytes, const void *second) {
    return first ? (const char *)first + bytes == second : !second;
}

/* Says whether one product can have both weights. */
static bool same_weights(const struct weight *a, const struct weight *b) {
    return weight_same_format(&a->format, &b->format) && a->in_strips == b->in_strips &&
           a->rounds_input == b->rounds_input;
}

/* Says whether the rows of the second weight are those behind the first one's, in all arrays. */
static bool continues(const struct weight *first, const struct weight *second) {
    const struct weight_format *f = &first->format;
    const uint64_t n_scales = weight_scale_bytes(first);
    const bool blocks_end = !f->scale || (f->block_rows && first->rows % f->block_rows == 0);
    return same_weights(first, second) && blocks_end &&
           lies_behind(first->data, first->rows * weight_row_bytes(first), second->data) &&
           lies_behind(first->scales, n_scales, second->scales) &&
           lies_behind(first->mins, n_scales, second->mins);
}

/* Says whether the second part lies behind the first one, its weights and its results. */
static bool joins(const struct linear_args *args, const struct linear_part *first,
                  const struct linear_part *second) {
    const size_t y_bytes = args->y_f32 ? sizeof(float) : sizeof(uint16_t);
    return !first->bias && !second->bias && continues(first->w, second->w) &&
           first->y_stride == second->y_stride &&
           (char *)first->y + first->w->rows * y_bytes == second->y;
}

/* Returns the product of the parts of an operation from `first` on that have one format. */
static struct product product_of(const struct linear_args *args, uint32_t first) {
    const struct weight *norm = args->norm ? args->norm->weight : NULL, *w = args->parts[first].w;
    struct product p = {.x = args->x,
                        .n_rows = args->n_rows,
                        .n_in = args->n_in,
                        .w_format = w->format,
                        .in_strips = w->in_strips,
                        .rounds_input = w->rounds_input,
                        .input_most = w->input_most,
                        .norm_dtype = norm ? norm->format.element : ELEMENT_F32,
                        .norm_weight = norm ? norm->data : NULL,
                        .eps = norm ? args->norm->eps : 0,
                        .accumulate = args->accumulate,
                        .y_f32 = args->y_f32};
    for (const struct linear_part *part = &args->parts[first], *end = args->parts + args->n_parts;
         part < end && same_weights(part->w, w); part++)
        p.parts[p.n_parts++] = (struct product_part){
            .w = part->w->data,
            .scales = part->w->scales,
            .mins = part->w->mins,
            .bias = part->bias ? part->bias->data : NULL,
            .bias_dtype = part->bias ? part->bias->format.element : ELEMENT_F32,
            .y = part->y,
            .y_stride = part->y_stride,
            .n_out = part->w->rows,
            .joins_next = part + 1 < end && joins(args, part, part + 1)};
    p.is_partial = p.n_parts < args->n_parts;
    p.parts[p.n_parts - 1].joins_next = false;
    return p;
}

/* Chooses a kernel for as many parts from `first` on as one takes at once, and makes *out their
 * product. */
static const struct product_kernel *choose(const struct cuda_backend *cuda, const struct product *p,
                                           uint32_t first, struct product *out) {
    const struct product_kernel *kernel = NULL;
    for (uint32_t n = p->n_parts - first; !kernel && n > 0; n--) {
        *out = *p;
        memcpy(out->parts, p->parts + first, n * sizeof(*p->parts));
        out->n_parts = n;
        out->parts[n - 1].joins_next = false;
        out->is_partial = p->is_partial || n < p->n_parts;
        kernel = product_choose(&cuda->products, out);
    }
    return kernel; /* "any" or "unpacked" takes every part */
}

static void tell_product(const struct backend *be, const char *kernel, const struct product *p) {
    uint32_t n_out = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) n_out += p->parts[i].n_out;
    if (be->on_product) be->on_product(be->on_product_ctx, kernel, p->n_rows, p->n_in, n_out);
}

static int launch(struct cuda_backend *cuda, const struct product_kernel *kernel, struct product *p,
                  struct error *err) {
    tell_product(&cuda->base, kernel->name, p);
    if (kernel->takes_idle && !p->gated) {
        p->n_idle = cuda->n_idle;
        cuda->n_idle = 0;
    }
    return kernel->launch(cuda, p, err);
}

static int run(struct cuda_backend *cuda, const struct product_kernel *kernel, struct product *p,
               struct error *err) {
    const int rc = launch(cuda, kernel, p, err);
    return rc == ERR_UNSUPPORTED && !p->x_scales ? launch(cuda, product_find("any"), p, err) : rc;
}

int product_run(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    struct product some;
    int rc = 0;
    for (uint32_t first = 0; first < p->n_parts && !rc; first += some.n_parts) {
        const struct product_kernel *kernel = choose(cuda, p, first, &some);
        rc = run(cuda, kernel, &some, err);
    }
    return rc;
}

/* Computes a product whose input kernels take rounded. */
static int run_rounded(struct cuda_backend *cuda, struct product *p, struct error *err) {
    const int rc = product_round(cuda, p, err);
    return rc ? rc : product_run(cuda, p, err);
}

static int run_parts(struct cuda_backend *cuda, const struct linear_args *args, struct error *err) {
    struct product p;
    int rc = 0;
    for (uint32_t first = 0; first < args->n_parts && !rc; first += p.n_parts) {
        p = product_of(args, first);
        rc = product_rounds(cuda, &p) ? run_rounded(cuda, &p, err) : product_run(cuda, &p, err);
    }
    return rc;
}

int linear_by(struct cuda_backend *cuda, const char *kernel, const struct linear_args *args,
              struct error *err) {
    struct product p = product_of(args, 0);
    return launch(cuda, product_find(kernel), &p, err);
}

/* ---- operations ---- */

/* Computes the norm in a kernel of its own, and makes *args a product without one. */
static int normalise(struct backend *be, struct linear_args *args, struct error *err) {
    const struct rmsnorm_args norm = linear_norm(args);
    const int rc = cuda_rmsnorm(be, &norm, err);
    args->x = args->norm->normed;
    args->norm = NULL;
    return rc;
}

int cuda_linear(struct backend *be, const struct linear_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct linear_args plain = *args;
    if (args->n_rows == 0) return 0;
    if (args->norm) {
        const struct product whole = product_of(args, 0);
        struct product p;
        if (!whole.is_partial && product_rounds(cuda, &whole)) return run_parts(cuda, args, err);
        const struct product_kernel *kernel = choose(cuda, &whole, 0, &p);
        if (kernel->takes_norm && !p.is_partial) return run(cuda, kernel, &p, err);
        const int rc = normalise(be, &plain, err);
        if (rc) return rc;
    }
    return run_parts(cuda, &plain, err);
}

/* Chooses a kernel for the gated product *p of both parts; NULL: they are products of their own. */
static const struct product_kernel *choose_gated(const struct cuda_backend *cuda,
                                                 const struct product *p) {
    const bool is_one_format = p->n_parts == 2;
    return is_one_format ? product_choose(&cuda->products, p) : NULL;
}

/* Computes the two parts of a gated product whose input is rounded, each for itself. */
static int run_apart(struct cuda_backend *cuda, const struct linear_args *both,
                     const struct product *gated, struct error *err) {
    struct product p = product_of(both, 0);
    p.x = gated->x;
    p.x_scales = gated->x_scales;
    p.x_scale_stride = gated->x_scale_stride;
    p.norm_weight = NULL;
    return product_run(cuda, &p, err);
}

/* Computes out = kind(x Wg^T + bg) * up_bias, where there is no up.  Then up_bias has a row for
 * each row of x. */
static int gated_by_rows(struct backend *be, const struct gated_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const uint32_t n_out = args->gate->rows;
    const struct linear_args gate = gated_products(args, sizeof(uint16_t));
    const struct gate_rows_params params = {.gate = args->gate_up,
                                            .x = args->up_bias->data,
                                            .x_stride = args->up_bias->cols,
                                            .out = args->out,
                                            .n_rows = args->n_rows,
                                            .dim = n_out,
                                            .kind = args->kind};
    const int rc = cuda_linear(be, &gate, err);
    return rc ? rc
              : cuda_check(cuda, launch_gate_rows(&params, launch_of(cuda)), "gate of rows", err);
}

int cuda_gated(struct backend *be, const struct gated_args *args, struct error *err) {
    if (!args->up) return gated_by_rows(be, args, err);
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const uint32_t n_out = args->gate->rows;
    struct linear_args both = gated_products(args, sizeof(uint16_t)); /* bf16 */
    if (args->n_rows == 0) return 0;
    struct product p = product_of(&both, 0);
    p.gated = true;
    p.kind = args->kind;
    p.parts[0].y = args->out;
    p.parts[0].y_stride = n_out;
    int rc = 0;
    const bool rounds = !p.is_partial && product_rounds(cuda, &p);
    if (rounds) rc = product_round(cuda, &p, err);
    if (rc) return rc;
    if (rounds) gated_round(cuda, args, &p);
    const struct product_kernel *kernel = choose_gated(cuda, &p);
    if (args->norm && !rounds && !(kernel && kernel->takes_norm)) {
        rc = normalise(be, &both, err);
        if (rc) return rc;
        p.x = both.x;
        p.norm_weight = NULL;
        kernel = choose_gated(cuda, &p);
        /* Answers' bits depend on this: gate and up are rounded before they meet. */
        if (kernel && kernel->takes_norm) kernel = NULL;
    }
    if (kernel) {
        rc = launch(cuda, kernel, &p, err);
        gated_rounded(cuda, args, &p);
        return rc;
    }
    rc = rounds ? run_apart(cuda, &both, &p, err) : run_parts(cuda, &both, err);
    return rc ? rc : gate_mul_or_round(cuda, args, err);
}
