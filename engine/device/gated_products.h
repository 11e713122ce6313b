/* gated_products.h - the products that the gated half of a feed-forward layer begins with.
 *
 * Thread: any.  Memory: none; the arguments point to what `args` does. */
#ifndef ENGINE_DEVICE_GATED_PRODUCTS_H
#define ENGINE_DEVICE_GATED_PRODUCTS_H

#include "engine/device/backend.h"

/* Returns the products of gate and up.  Their results are the halves of each row of args->gate_up,
 * which has elements of act_bytes.  Without up the results of gate are packed. */
static inline struct linear_args gated_products(const struct gated_args *args, size_t act_bytes) {
    const size_t n_out = args->gate->rows, stride = args->up ? 2 * n_out : n_out;
    struct linear_args products = {.x = args->x,
                                   .norm = args->norm,
                                   .n_rows = args->n_rows,
                                   .n_in = args->n_in,
                                   .n_parts = 1,
                                   .parts = {{args->gate, args->gate_bias, args->gate_up, stride}}};
    if (args->up) {
        const struct linear_part up = {args->up, args->up_bias,
                                       (char *)args->gate_up + n_out * act_bytes, stride};
        products.parts[products.n_parts++] = up;
    }
    return products;
}

#endif
