/* experts.c - see experts.h. */
#include "engine/device/experts.h"

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
