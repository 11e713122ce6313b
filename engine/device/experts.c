/* experts.c - see experts.h. */
#include "engine/device/experts.h"

int route_norm(struct backend *be, struct route_args *args, struct error *err) {
    const struct linear_args input = {
        .x = args->x, .norm = args->norm, .n_rows = args->n_rows, .n_in = args->router->cols};
    if (!args->norm) return 0;
    const struct rmsnorm_args norm = linear_norm(&input);
    args->x = norm.out;
    args->norm = NULL;
    return be->ops->rmsnorm(be, &norm, err);
}

struct linear_args route_products(const struct route_args *args, float *logits, float *gates) {
    return (struct linear_args){
        .x = args->x,
        .n_rows = args->n_rows,
        .n_in = args->router->cols,
        .n_parts = args->shared_gate ? 2 : 1,
        .y_f32 = true,
        .parts = {{.w = args->router, .y = logits, .y_stride = args->router->rows},
                  {.w = args->shared_gate, .y = gates, .y_stride = 1}}};
}
