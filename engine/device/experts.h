/* experts.h - the group of operations for mixtures of experts: feed-forward parts of which each row
 * uses a few, which a router chooses.
 *
 *   route()   x ──► each row's experts, from rank 0 on the one that fits best, and their shares
 *   run()     out += the sum over the ranks of  share * down(gate(x) * up(x))  of that expert
 *
 * A shared expert is one that every row uses.  It has matrices of its own, and the last rank.
 *
 * The sum goes by rank.  So neither the other rows nor the experts' numbers change a bit of it.
 * The host never reads what was chosen, and n_rows and the weights alone say what is launched.
 * So a step with experts can be captured in a CUDA graph.
 *
 * Thread: engine.  Memory: arguments are the caller's; the workspace has workspace() bytes and need
 * not keep anything between two calls. */
#ifndef ENGINE_DEVICE_EXPERTS_H
#define ENGINE_DEVICE_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/backend.h"

/* The most experts of a layer, and the most that a row uses. */
enum { EXPERTS_MAX = 1024, EXPERTS_MAX_USED = 64 };

/* How logits become shares, and which experts are chosen: those of the largest shares. */
enum route_kind {
    ROUTE_SOFTMAX,        /* the softmax of all logits */
    ROUTE_SOFTMAX_CHOSEN, /* the softmax of the chosen ones: the largest logits */
    ROUTE_SIGMOID         /* the sigmoid of each logit */
};

struct routing {
    enum route_kind kind;
    bool normalises; /* the shares of a row's experts are divided by their sum */
    float factor;    /* then they are multiplied by this */
    float shared;    /* the share of the shared expert; with a gate it is multiplied by that */
    /* Experts lie in n_groups groups of equal size.  Only experts of the n_used_groups groups are
     * chosen whose two largest shares add up to most.  n_groups 1: all are. */
    uint32_t n_groups, n_used_groups;
};

struct route_args {
    const void *x; /* act [n_rows, dim], packed */
    /* Rows are normalised first, and left in norm->normed, for run().  NULL: x as it is. */
    const struct rmsnorm_input *norm;
    uint32_t n_rows, n_used;
    const struct routing *routing;
    const struct weight *router;      /* [n_experts, dim]: logits are its products with x */
    const struct weight *bias;        /* [n_experts]: added to the logits; or NULL */
    const struct weight *choice_bias; /* [n_experts]: added to shares where they are compared, not
                                         to those that are used; or NULL */
    const struct weight *factors; /* [n_experts]: final shares are multiplied by them; or NULL */
    const struct weight
        *shared_gate; /* [1, dim]: the gate is the sigmoid of its product; or NULL */
    void *workspace;
    /* By rank.  Of two that are equal the lower number comes first.  A row whose logits have NaN
     * gets any experts. */
    uint32_t *experts; /* [n_rows, n_used] */
    float *shares;     /* [n_rows, n_used + 1]; the last is that of the shared expert */
};

/* Normalises the rows of *args by an operation of its own.  Afterwards x is plain. */
int route_norm(struct backend *be, struct route_args *args, struct error *err);

/* Returns the products that make the logits [n_rows, n_experts] and, with a shared gate, its logits
 * gates [n_rows], both f32 in the caller's memory. */
struct linear_args route_products(const struct route_args *args, float *logits, float *gates);

/* Stacks of [n_out, n_in], or one each; biases may be NULL, and gate is, too (activation.h). */
struct expert_matrices {
    const struct weight *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
};

/* The function of gate and up.  most 0: it is  kind(gate) * up.  Else gate becomes at most `most`,
 * and up is clamped to -most and most.  Then it is  gate * sigmoid(slope * gate) * (up + 1). */
struct expert_gate {
    enum gate_kind kind;
    float most, slope;
};

struct experts_args {
    const void *x; /* act [n_rows, dim], packed; not out */
    uint32_t n_rows, n_used;
    const uint32_t *experts; /* as route() made them */
    const float *shares;
    struct expert_matrices routed, shared; /* shared.up NULL: there is no shared expert */
    struct expert_gate gate;
    void *workspace;
    void *out;       /* act [n_rows, dim], packed */
    bool overwrites; /* out is the sum; else the sum is added to it */
};

/* Sizes that a workspace is made for: the largest of a model's layers. */
struct experts_shape {
    uint32_t n_rows, dim, n_experts, n_used, ffn_dim, shared_dim; /* shared_dim 0: none */
};

struct expert_ops {
    size_t (*workspace)(const struct backend *be, const struct experts_shape *shape);
    int (*route)(struct backend *be, const struct route_args *args, struct error *err);
    int (*run)(struct backend *be, const struct experts_args *args, struct error *err);
};

#endif
