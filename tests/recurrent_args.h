/* recurrent_args.h - arguments of a layer with a recurrent state, for the tests of every backend.
 *
 *   a row of gates: z [n_v_heads, v_dim], b [n_v_heads], a [n_v_heads]
 *
 * Thread: any.  Memory: the caller's. */
#ifndef TESTS_RECURRENT_ARGS_H
#define TESTS_RECURRENT_ARGS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/device/recurrent.h"
#include "engine/device/weight.h"

/* A layer's weights on one backend. */
struct recurrent_weights {
    struct weight conv, rates, dt_bias, norm, skip, biases[3];
};

/* A step's rows in the memory of the backend, elements as it computes with. */
struct recurrent_rows {
    const void *qkv, *gates;
    size_t qkv_stride;
    enum element element;
    uint32_t n_rows;
    void *workspace, *out;
};

static inline uint32_t recurrent_gates_width(const struct recurrent_shape *shape) {
    return shape->n_v_heads * (shape->v_dim + 2);
}

static inline struct recurrent_args recurrent_args_of(const struct recurrent_weights *w,
                                                      const struct recurrent_rows *rows,
                                                      const struct state_pool *states,
                                                      uint32_t layer) {
    const struct recurrent_shape *shape = &states->shape;
    const uint32_t n_values = shape->n_v_heads * shape->v_dim;
    const char *gates = rows->gates;
    return (struct recurrent_args){
        .qkv = rows->qkv,
        .qkv_stride = rows->qkv_stride,
        .z = gates,
        .b = gates + element_bytes(rows->element, n_values),
        .a = gates + element_bytes(rows->element, n_values + shape->n_v_heads),
        .gates_stride = recurrent_gates_width(shape),
        .conv = &w->conv,
        .rates = &w->rates,
        .dt_bias = &w->dt_bias,
        .norm = &w->norm,
        .skip = &w->skip,
        .conv_biases = {&w->biases[0], &w->biases[1], &w->biases[2]},
        .eps = 1e-5F,
        .states = states,
        .layer = layer,
        .n_rows = rows->n_rows,
        .workspace = rows->workspace,
        .out = rows->out};
}

/* Makes the convolution's weights those of a stack of n_channels matrices of one row. */
static inline void recurrent_stack_conv(struct weight *conv, uint32_t n_channels) {
    conv->rows = 1;
    conv->n_stacked = n_channels;
}

#endif
