/* recurrent.h - the group of operations for layers with a recurrent state: Gated DeltaNet, short
 * convolutions between two gates, and Mamba-2.
 *
 * Gated DeltaNet
 *
 *   q, k, v, z, b, a   products of the layer's input, made by linear()
 *
 *   short convolution  y[t] = silu(sum over j of w[j] * x[t - (width - 1) + j]), each channel of
 *                      q, k and v by itself; rows before the text are 0
 *   vectors            q = norm2(q) / sqrt(k_dim),  k = norm2(k),  norm2(x) = x / sqrt(x.x + 1e-6);
 *                      v head h has the q and k of its k head, recurrent_k_head()
 *   gates              g = rate * softplus(a + dt_bias),  beta = sigmoid(b), for each v head
 *   recurrence         S = exp(g) * S;  S += k (x) (beta * (v - S^T k));  o = S^T q
 *   output             out = rmsnorm(o) * norm * silu(z), for each v head
 *
 * Short convolutions (as in LFM2), each channel by itself
 *
 *   b, c, x            products of the layer's input
 *   short convolution  y[t] = sum over j of w[j] * u[t - (width - 1) + j],  u = b * x
 *   output             out = c * y
 *
 * Mamba-2 (as in Granite 4 H and Nemotron-H); B and C are those of a k head, as k and q above
 *
 *   x, B, C, z, a      products of the layer's input
 *
 *   short convolution  as of Gated DeltaNet, of x, B and C, with a bias
 *   gates              dt = softplus(a + dt_bias), from dt_least to dt_most, for each v head
 *   recurrence         S = exp(rate * dt) * S;  S += B (x) (dt * x);  o = S^T C + skip * x
 *   output             out = o * silu(z); the caller norms it
 *
 * The state of a layer is S, which short convolutions lack, and the convolution's last width - 1
 * inputs.  A recurrent state is that of all recurrent layers after some token of a text.  It has a
 * fixed size.
 *
 *   pool   [n_slots] recurrent states; a slot is named by its number, as a page is
 *   slot   [n_layers] f32 S [n_v_heads][k_dim][v_dim], act [width][n_channels]; k_dim 0: no S
 *
 * Each sequence of a step says from which slot its rows begin, and into which the state goes after
 * the last of them (step_seq.state).  So the state before a step can stay, as it is, in the slot
 * that it has: nothing needs to be copied.
 *
 *   a text begins        from STATE_ZERO to 7
 *   it goes on           from 7 to 7
 *   and 7 is left alone  from 7 to 9: others may begin from 7, at the same time, too
 *
 * Sums are f32, and so are gates, S, and all between the convolution and `out`.  A state does not
 * depend on how the rows before it were cut into steps, but for rounding of f32 sums.
 *
 * The layout of a slot's bytes is private to the backend; only its size is known.  So between two
 * steps a state can be copied to the host's memory, and back to any slot (backend_ops.download(),
 * upload()).
 *
 * Thread: engine.  Memory: arguments are the caller's; the workspace has workspace() bytes and need
 * not keep anything between two calls. */
#ifndef ENGINE_DEVICE_RECURRENT_H
#define ENGINE_DEVICE_RECURRENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/sizes.h"
#include "engine/device/dtype.h"

struct backend;
struct error;
struct weight;

/* The most rows of the convolution's weights. */
enum { RECURRENT_MAX_WIDTH = 8 };

/* In step_seq.state: the state before a text's first token, all zeros. */
#define STATE_ZERO UINT32_MAX

/* What recurrent layers compute. */
enum recurrent_kind { RECURRENT_DELTA, RECURRENT_CONVOLUTION, RECURRENT_MAMBA };

/* What a model's recurrent layers have in common.  Of short convolutions each channel is a v head,
 * of one element, and there are no k heads.  Of Mamba-2 a k head is a group, and k_dim is the size
 * of its state. */
struct recurrent_shape {
    uint32_t n_layers;             /* recurrent ones only; 0: the model has none */
    uint32_t n_k_heads, n_v_heads; /* the second is a multiple of the first */
    uint32_t k_dim, v_dim;         /* elements of a head */
    uint32_t width;                /* of the convolution: 2 to RECURRENT_MAX_WIDTH */
    /* The v heads of a k head are n_k_heads apart.  Otherwise they follow one another. */
    bool v_heads_apart;
    enum recurrent_kind kind;
    float dt_least, dt_most; /* of Mamba-2 */
};

/* Returns the k head whose q and k a v head has. */
static inline uint32_t recurrent_k_head(const struct recurrent_shape *shape, uint32_t v_head) {
    return shape->v_heads_apart ? v_head % shape->n_k_heads
                                : v_head / (shape->n_v_heads / shape->n_k_heads);
}

/* Returns the elements of a row's q and k together with v: the channels of the convolution. */
static inline uint32_t recurrent_n_channels(const struct recurrent_shape *shape) {
    return 2 * shape->n_k_heads * shape->k_dim + shape->n_v_heads * shape->v_dim;
}

/* Returns the elements of a row's products that come before z: the convolution's inputs, or b, c
 * and x, of which its inputs are made. */
static inline uint32_t recurrent_n_inputs(const struct recurrent_shape *shape) {
    return (shape->kind == RECURRENT_CONVOLUTION ? 3 : 1) * recurrent_n_channels(shape);
}

/* Returns the elements of a row of z, b and a.  Mamba-2 has no b. */
static inline uint32_t recurrent_n_gates(const struct recurrent_shape *shape) {
    const uint32_t n_scalars = shape->kind == RECURRENT_MAMBA ? 1 : 2;
    return shape->kind == RECURRENT_CONVOLUTION ? 0 : shape->n_v_heads * (shape->v_dim + n_scalars);
}

/* Returns the elements of S of a layer. */
static inline size_t recurrent_n_elements(const struct recurrent_shape *shape) {
    return (size_t)shape->n_v_heads * shape->k_dim * shape->v_dim;
}

enum { STATE_ALIGN = 128 };

/* Returns the bytes of a layer's state, rounded up so that each begins a cache line.  There is
 * space for `width` inputs, so that a device may write the newest one beside those that it
 * reads. */
static inline size_t recurrent_layer_bytes(const struct recurrent_shape *shape, enum dtype act) {
    const size_t n_inputs = (size_t)shape->width * recurrent_n_channels(shape);
    return round_up(recurrent_n_elements(shape) * sizeof(float), STATE_ALIGN) +
           round_up(activation_bytes(act, n_inputs), STATE_ALIGN);
}

/* The pool of recurrent states. */
struct state_pool {
    void *base; /* [n_slots][slot_bytes], from backend_ops.alloc() */
    uint32_t n_slots;
    struct recurrent_shape shape;
    size_t layer_bytes, slot_bytes; /* recurrent_layer_bytes(), and n_layers times that */
};

/* Returns a pool of n_slots states of this shape, without its memory. */
static inline struct state_pool state_pool_of(const struct recurrent_shape *shape, enum dtype act,
                                              uint32_t n_slots) {
    const size_t layer_bytes = recurrent_layer_bytes(shape, act);
    return (struct state_pool){.base = NULL,
                               .n_slots = n_slots,
                               .shape = *shape,
                               .layer_bytes = layer_bytes,
                               .slot_bytes = shape->n_layers * layer_bytes};
}

/* Returns where a layer's state begins in a slot. */
static inline char *state_at(const struct state_pool *pool, uint32_t slot, uint32_t layer) {
    return (char *)pool->base + slot * pool->slot_bytes + layer * pool->layer_bytes;
}

/* Runs a layer for all rows of the step, from the products of its input to the input of its last
 * product.  Rows of a sequence follow one another; those of different sequences do not meet.  Rows
 * past the step's end are padding (backend_ops.run_graph): they change no state. */
struct recurrent_args {
    /* act, row i at qkv + i * qkv_stride: q [n_k_heads, k_dim], k [n_k_heads, k_dim],
     * v [n_v_heads, v_dim], as they are before the convolution.  Or b, c, x: each
     * [n_channels].  Or, of Mamba-2, x [n_v_heads, v_dim], B and C [n_k_heads, k_dim]. */
    const void *qkv;
    size_t qkv_stride;
    /* act, row i at z + i * gates_stride, and so on: z [n_v_heads, v_dim], b and a [n_v_heads].
     * Short convolutions read none of these, nor the weights but conv. */
    const void *z, *b, *a;
    size_t gates_stride;
    /* All plain (weight_is_plain()).  conv has n_channels rows of `width`, the newest input's
     * weight last; as a stack of n_channels matrices of one row. */
    const struct weight *conv, *rates, *dt_bias; /* the last two: [n_v_heads]; rates are < 0 */
    const struct weight *norm;                   /* of Gated DeltaNet: [v_dim] */
    const struct weight *skip;                   /* of Mamba-2: [n_v_heads] */
    /* Of Mamba-2: the convolution's biases of x, B and C; NULL: it has none. */
    const struct weight *conv_biases[3];
    float eps; /* of the norm */
    const struct state_pool *states;
    uint32_t layer;  /* < states->shape.n_layers */
    uint32_t n_rows; /* of the step, with padding */
    void *workspace;
    void *out; /* act [n_rows, n_v_heads * v_dim], packed */
};

/* NULL in backend_ops: the backend cannot run models with recurrent layers. */
struct recurrent_ops {
    /* Returns true if the device has kernels for this shape. */
    bool (*takes)(const struct backend *be, const struct recurrent_shape *shape);
    /* Returns the bytes of workspace for steps of at most n_rows rows. */
    size_t (*workspace)(const struct backend *be, const struct recurrent_shape *shape,
                        uint32_t n_rows);
    int (*run)(struct backend *be, const struct recurrent_args *args, struct error *err);
    /* Rows of a prompt that are computed together: from a multiple of so many tokens of the text up
     * to the next.  The bits of a state depend on steps that end between two. */
    uint32_t chunk;
};

#endif
