/* linear.c - dense products: all rows of x with each weight (products.h). */
#include "engine/cpu/backend.h"
#include "engine/cpu/products.h"
#include "engine/device/backend.h"
#include "engine/device/gated_products.h"

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

/* Computes out = kind(x Wg^T + bg) * up_bias without up.  up_bias then has a row for each of x. */
int cpu_gated(struct backend *be, const struct gated_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    const struct linear_args products = gated_products(args, sizeof(float));
    const int rc = cpu_linear(be, &products, err);
    if (rc) return rc;
    return args->up ? gate_mul_rows(cpu, args) : gate_mul_own_rows(cpu, args);
}
