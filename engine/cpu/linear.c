/* linear.c - dense products: all rows of x with each weight (products.h). */
#include "engine/cpu/backend.h"
#include "engine/cpu/products.h"
#include "engine/device/backend.h"

static const float *rows_of_x(void *ctx, uint32_t first, uint32_t *n, float *memory) {
    const struct linear_args *args = ctx;
    (void)memory;
    *n = min_u32(PACK_ROWS, args->n_rows - first);
    return (const float *)args->x + (size_t)first * args->n_in;
}

static int run_parts(struct cpu_backend *cpu, const struct linear_args *args, struct error *err) {
    struct product_part parts[LINEAR_MAX_PARTS];
    const struct product_input input = {
        .n_rows = args->n_rows, .n_in = args->n_in, .get = rows_of_x, .ctx = (void *)args};
    for (uint32_t i = 0; i < args->n_parts; i++) {
        const struct linear_part *part = &args->parts[i];
        parts[i] = (struct product_part){
            .w = *part->w, .n_rows = args->n_rows, .y = part->y, .y_stride = part->y_stride};
        if (part->bias) parts[i].bias = *part->bias;
    }
    return products_run(cpu, &input, parts, args->n_parts, args->accumulate, err);
}

int cpu_linear(struct backend *be, const struct linear_args *args, struct error *err) {
    struct linear_args plain = *args;
    int rc = 0;
    if (args->n_rows == 0) return 0;
    if (args->norm) {
        const struct rmsnorm_args norm = linear_norm(args);
        rc = cpu_rmsnorm(be, &norm, err);
        plain.x = args->norm->normed;
    }
    return rc ? rc : run_parts((struct cpu_backend *)be, &plain, err);
}

/* Computes out = kind(x Wg^T + bg) * up_bias, where there is no up.  Then up_bias has a row for
 * each row of x. */
static int gated_by_rows(struct backend *be, const struct gated_args *args, struct error *err) {
    const struct linear_args gate = {
        .x = args->x,
        .norm = args->norm,
        .n_rows = args->n_rows,
        .n_in = args->n_in,
        .n_parts = 1,
        .parts = {{args->gate, args->gate_bias, args->gate_up, args->gate->rows}}};
    const int rc = cpu_linear(be, &gate, err);
    return rc ? rc : gate_mul_own_rows((struct cpu_backend *)be, args);
}

int cpu_gated(struct backend *be, const struct gated_args *args, struct error *err) {
    const uint32_t n_out = args->gate->rows;
    float *gate = args->gate_up;
    const struct linear_args both = {
        .x = args->x,
        .norm = args->norm,
        .n_rows = args->n_rows,
        .n_in = args->n_in,
        .n_parts = 2,
        .parts = {{args->gate, args->gate_bias, gate, 2 * (size_t)n_out},
                  {args->up, args->up_bias, gate + n_out, 2 * (size_t)n_out}}};
    if (!args->up) return gated_by_rows(be, args, err);
    int rc = cpu_linear(be, &both, err);
    return rc ? rc : gate_mul_rows((struct cpu_backend *)be, args);
}
