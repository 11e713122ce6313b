/* test_experts.c - routers against their definition in double, and experts against dense products.
 *
 * Experts are held to the bits of the dense operations, or to sums in double. */
#include "engine/device/experts.h"
#include "tests/cpu/cpu_test.h"
#include "tests/cpu/router_oracle.h"

enum { DIM = 40, FFN = 24, SHARED = 56, MAX_EXPERTS = 24, MAX_ROWS = 40 };

static struct weight vector_of(const float *values, uint32_t n) {
    return weight_plain(values, ELEMENT_F32, 1, n);
}

static void *workspace_for(struct backend *be, uint32_t n_rows, uint32_t n_experts,
                           uint32_t n_used) {
    const struct experts_shape shape = {n_rows, DIM, n_experts, n_used, FFN, SHARED};
    void *memory;
    assert_int_equal(be->ops->alloc(be, be->ops->experts->workspace(be, &shape), &memory, NULL), 0);
    return memory;
}

static void check_router(struct backend *be, const struct router_case *c, uint32_t n_rows) {
    const uint32_t n = c->n_experts, width = c->n_used + 1;
    float *x = random_floats((size_t)n_rows * DIM), *router = random_floats((size_t)n * DIM),
          *biases = random_floats(2 * (size_t)n), *gate = random_floats(DIM);
    uint32_t experts[MAX_ROWS * MAX_EXPERTS], n_checked = 0;
    float shares[MAX_ROWS * (MAX_EXPERTS + 1)];
    const struct weight w = weight_plain(router, ELEMENT_F32, n, DIM), bias = vector_of(biases, n),
                        choice = vector_of(biases + n, n), gate_w = vector_of(gate, DIM);
    void *workspace = workspace_for(be, n_rows, n, c->n_used);
    const struct route_args args = {.x = x,
                                    .n_rows = n_rows,
                                    .n_used = c->n_used,
                                    .routing = &c->routing,
                                    .router = &w,
                                    .bias = c->has_bias ? &bias : NULL,
                                    .choice_bias = c->has_choice_bias ? &choice : NULL,
                                    .shared_gate = c->has_gate ? &gate_w : NULL,
                                    .workspace = workspace,
                                    .experts = experts,
                                    .shares = shares};
    assert_int_equal(be->ops->experts->route(be, &args, NULL), 0);
    for (uint32_t row = 0; row < n_rows; row++) {
        const float *of_row = x + (size_t)row * DIM;
        double all[MAX_EXPERTS], expected[MAX_EXPERTS + 1];
        uint32_t chosen[MAX_EXPERTS];
        for (uint32_t e = 0; e < n; e++)
            all[e] =
                dot(of_row, router + (size_t)e * DIM, DIM) + (c->has_bias ? (double)biases[e] : 0);
        if (oracle_route(c, all, c->has_choice_bias ? biases + n : NULL, chosen) < 1e-5) continue;
        n_checked++;
        for (uint32_t r = 0; r < c->n_used; r++)
            assert_int_equal(experts[row * c->n_used + r], chosen[r]);
        oracle_shares(c, all, chosen, expected);
        expected[c->n_used] =
            (double)c->routing.shared * (c->has_gate ? sigmoid(dot(of_row, gate, DIM)) : 1);
        assert_close(shares + (size_t)row * width, expected, width, 1e-5);
    }
    assert_true(n_checked * 10 >= n_rows * 9);
    be->ops->free(be, workspace);
    free(x), free(router), free(biases), free(gate);
}

static void check_routers(struct backend *be) {
    for (size_t i = 0; i < COUNT(router_cases); i++) {
        check_router(be, &router_cases[i], 1);
        check_router(be, &router_cases[i], MAX_ROWS);
    }
}

TEST(each_kind_of_router_is_as_defined) {
    for_each_backend(check_routers);
}

/* Of equal shares the first experts are taken; NaN takes some that exist. */
static void check_ties(struct backend *be) {
    const struct router_case c = {{ROUTE_SIGMOID, true, 1, 1, 2, 1}, 8, 3, false, false, false};
    float x[2 * DIM] = {0}, router[8 * DIM] = {0}, shares[2 * 4];
    uint32_t experts[2 * 3];
    x[DIM] = NAN;
    const struct weight w = weight_plain(router, ELEMENT_F32, 8, DIM);
    void *workspace = workspace_for(be, 2, 8, 3);
    const struct route_args args = {.x = x,
                                    .n_rows = 2,
                                    .n_used = 3,
                                    .routing = &c.routing,
                                    .router = &w,
                                    .workspace = workspace,
                                    .experts = experts,
                                    .shares = shares};
    assert_int_equal(be->ops->experts->route(be, &args, NULL), 0);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(experts[r], r);
        assert_true(experts[3 + r] < 8);
        assert_true(fabsf(shares[r] - 1 / 3.0f) < 1e-6f && isnan(shares[4 + r]));
    }
    be->ops->free(be, workspace);
}

TEST(of_equal_experts_the_first_are_taken) {
    for_each_backend(check_ties);
}

/* Stacks of experts with their memory, and rows with random choices. */
struct layer {
    uint32_t n_experts, n_used, n_rows;
    float *memory[9], *x, *out, *shares;
    uint32_t *experts;
    struct weight gate, up, down, gate_bias, up_bias, down_bias, shared[3];
    struct expert_gate function;
    bool has_biases, is_shared, has_no_gates;
    void *workspace;
};

static struct weight stack_of(float **memory, uint32_t n, uint32_t rows, uint32_t cols) {
    struct weight w;
    *memory = random_floats((size_t)n * rows * cols);
    w = weight_plain(*memory, ELEMENT_F32, rows, cols);
    w.n_stacked = n;
    return w;
}

/* Chooses different experts for each row. */
static void choose(struct layer *l) {
    for (uint32_t row = 0; row < l->n_rows; row++) {
        uint32_t *chosen = l->experts + row * l->n_used;
        const uint32_t first = random_below(l->n_experts);
        for (uint32_t r = 0; r < l->n_used; r++) chosen[r] = (first + r * 3) % l->n_experts;
    }
}

static struct layer make_layer(struct backend *be, uint32_t n_experts, uint32_t n_used,
                               uint32_t n_rows) {
    struct layer l = {.n_experts = n_experts, .n_used = n_used, .n_rows = n_rows};
    l.gate = stack_of(&l.memory[0], n_experts, FFN, DIM);
    l.up = stack_of(&l.memory[1], n_experts, FFN, DIM);
    l.down = stack_of(&l.memory[2], n_experts, DIM, FFN);
    l.gate_bias = stack_of(&l.memory[3], n_experts, 1, FFN);
    l.up_bias = stack_of(&l.memory[4], n_experts, 1, FFN);
    l.down_bias = stack_of(&l.memory[5], n_experts, 1, DIM);
    l.shared[0] = stack_of(&l.memory[6], 1, SHARED, DIM);
    l.shared[1] = stack_of(&l.memory[7], 1, SHARED, DIM);
    l.shared[2] = stack_of(&l.memory[8], 1, DIM, SHARED);
    l.x = random_floats((size_t)n_rows * DIM);
    l.out = calloc((size_t)n_rows * DIM, sizeof(float));
    l.shares = random_floats((size_t)n_rows * (n_used + 1));
    l.experts = calloc((size_t)n_rows * n_used, sizeof(*l.experts));
    l.workspace = workspace_for(be, n_rows, n_experts, n_used);
    choose(&l);
    return l;
}

static void free_layer(struct backend *be, struct layer *l) {
    for (int i = 0; i < 9; i++) free(l->memory[i]);
    be->ops->free(be, l->workspace);
    free(l->x), free(l->out), free(l->shares), free(l->experts);
}

/* Runs rows first to first + n - 1 by themselves. */
static void run_rows(struct backend *be, const struct layer *l, uint32_t first, uint32_t n,
                     float *out) {
    const bool b = l->has_biases;
    const struct experts_args args = {
        .x = l->x + (size_t)first * DIM,
        .n_rows = n,
        .n_used = l->n_used,
        .experts = l->experts + (size_t)first * l->n_used,
        .shares = l->shares + (size_t)first * (l->n_used + 1),
        .routed = {l->has_no_gates ? NULL : &l->gate, &l->up, &l->down, b ? &l->gate_bias : NULL,
                   b ? &l->up_bias : NULL, b ? &l->down_bias : NULL},
        .shared = {l->is_shared && !l->has_no_gates ? &l->shared[0] : NULL,
                   l->is_shared ? &l->shared[1] : NULL, &l->shared[2], NULL, NULL, NULL},
        .gate = l->function,
        .workspace = l->workspace,
        .out = out};
    assert_int_equal(be->ops->experts->run(be, &args, NULL), 0);
}

static double through(const struct layer *l, double gate, double up) {
    const struct expert_gate *f = &l->function;
    const double most = (double)f->most, positive = fmax(up, 0);
    if (l->has_no_gates) return positive * positive;
    if (most == 0) return gate * sigmoid(gate) * up;
    gate = fmin(gate, most);
    up = fmax(fmin(up, most), -most);
    return gate * sigmoid((double)f->slope * gate) * (up + 1);
}

/* Adds share times what an expert gives: weights and biases of one, in float. */
static void add_expert(const struct layer *l, const float *x, double share, const float *gate,
                       const float *up, const float *down, uint32_t width, uint32_t e,
                       double *out) {
    double hidden[SHARED];
    float rounded[SHARED];
    const bool b = l->has_biases && width == FFN;
    for (uint32_t i = 0; i < width; i++) {
        hidden[i] = through(
            l, dot(x, gate + (size_t)i * DIM, DIM) + (b ? (double)l->memory[3][e * FFN + i] : 0),
            dot(x, up + (size_t)i * DIM, DIM) + (b ? (double)l->memory[4][e * FFN + i] : 0));
        rounded[i] = (float)hidden[i];
    }
    for (uint32_t i = 0; i < DIM; i++)
        out[i] += share * (dot(rounded, down + (size_t)i * width, width) +
                           (b ? (double)l->memory[5][e * DIM + i] : 0));
}

static void check_sums(struct backend *be, const struct layer *l) {
    double *expected = calloc((size_t)l->n_rows * DIM, sizeof(*expected));
    for (size_t i = 0; i < (size_t)l->n_rows * DIM; i++) l->out[i] = (float)(expected[i] = 0.25);
    for (uint32_t row = 0; row < l->n_rows; row++) {
        const float *x = l->x + (size_t)row * DIM, *shares = l->shares + row * (l->n_used + 1);
        double *out = expected + (size_t)row * DIM;
        for (uint32_t r = 0; r < l->n_used; r++) {
            const uint32_t e = l->experts[row * l->n_used + r];
            const size_t at = (size_t)e * FFN * DIM;
            add_expert(l, x, (double)shares[r], l->memory[0] + at, l->memory[1] + at,
                       l->memory[2] + at, FFN, e, out);
        }
        if (l->is_shared)
            add_expert(l, x, (double)shares[l->n_used], l->memory[6], l->memory[7], l->memory[8],
                       SHARED, 0, out);
    }
    run_rows(be, l, 0, l->n_rows, l->out);
    assert_close(l->out, expected, (size_t)l->n_rows * DIM, 1e-5);
    free(expected);
}

static void check_layers(struct backend *be) {
    static const uint32_t counts[] = {1, 2, 17, 60};
    for (size_t i = 0; i < COUNT(counts); i++) {
        struct layer l = make_layer(be, 8, 3, counts[i]);
        check_sums(be, &l);
        l.is_shared = true;
        check_sums(be, &l);
        l.has_biases = true;
        l.function = (struct expert_gate){GATE_SILU, 1.5f, 1.702f};
        check_sums(be, &l);
        l.has_biases = false;
        l.has_no_gates = true;
        check_sums(be, &l);
        l.is_shared = false;
        check_sums(be, &l);
        free_layer(be, &l);
    }
}

TEST(experts_are_as_defined) {
    for_each_backend(check_layers);
}

/* Rows in one call against each by itself, and against experts with other numbers.  So many rows
 * are computed in two passes. */
static void check_company(struct backend *be) {
    struct layer l = make_layer(be, 8, 3, 1030);
    const size_t row_bytes = DIM * sizeof(float), matrix = (size_t)FFN * DIM * sizeof(float);
    float *swapped = calloc((size_t)l.n_rows * DIM, sizeof(float)), alone[DIM];
    l.is_shared = true;
    run_rows(be, &l, 0, l.n_rows, l.out);
    for (uint32_t row = 0; row < l.n_rows; row += 41) {
        memset(alone, 0, sizeof(alone));
        run_rows(be, &l, row, 1, alone);
        assert_memory_equal(alone, l.out + (size_t)row * DIM, row_bytes);
    }
    for (uint32_t i = 0; i < 3; i++) { /* expert 0 becomes 5, and 5 becomes 0 */
        char saved[FFN * DIM * sizeof(float)], *stack = (char *)l.memory[i];
        memcpy(saved, stack, matrix);
        memcpy(stack, stack + 5 * matrix, matrix);
        memcpy(stack + 5 * matrix, saved, matrix);
    }
    for (uint32_t i = 0; i < l.n_rows * l.n_used; i++)
        l.experts[i] = l.experts[i] == 0 ? 5 : l.experts[i] == 5 ? 0 : l.experts[i];
    run_rows(be, &l, 0, l.n_rows, swapped);
    assert_memory_equal(swapped, l.out, l.n_rows * row_bytes);
    free(swapped);
    free_layer(be, &l);
}

TEST(neither_other_rows_nor_numbers_of_experts_change_a_bit) {
    for_each_backend(check_company);
}

/* The dense operations with one expert's matrices, loaded by themselves. */
static void run_dense(struct backend *be, const struct weight host[3], const float *x,
                      uint32_t n_rows, float *out) {
    struct weight w[3];
    float *gate_up = random_floats((size_t)n_rows * 2 * host[0].rows),
          *hidden = random_floats((size_t)n_rows * host[0].rows);
    for (int i = 0; i < 3; i++)
        assert_int_equal(be->ops->weight_load(be, &host[i], &w[i], NULL), 0);
    const struct gated_args gated = {.x = x,
                                     .n_rows = n_rows,
                                     .n_in = host[0].cols,
                                     .gate = &w[0],
                                     .up = &w[1],
                                     .gate_up = gate_up,
                                     .out = hidden};
    const struct linear_args down = {.x = hidden,
                                     .n_rows = n_rows,
                                     .n_in = host[0].rows,
                                     .n_parts = 1,
                                     .parts = {{.w = &w[2], .y = out, .y_stride = host[2].rows}},
                                     .accumulate = true};
    assert_int_equal(be->ops->gated(be, &gated, NULL), 0);
    assert_int_equal(be->ops->linear(be, &down, NULL), 0);
    for (int i = 0; i < 3; i++) be->ops->weight_release(be, &w[i]);
    free(gate_up), free(hidden);
}

enum { WIDE = 256, N_STACKED = 3 };

static const struct weight_format formats[] = {
    {ELEMENT_F32, SCALE_NONE, 0, 0, false},  {ELEMENT_BF16, SCALE_NONE, 0, 0, false},
    {ELEMENT_Q8_0, SCALE_NONE, 0, 0, false}, {ELEMENT_I4, SCALE_BF16, 1, 128, false},
    {ELEMENT_I8, SCALE_F32, 1, 0, false},    {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}};

/* A stack of [WIDE, WIDE] with any bits that are numbers: halves and bytes of 0x3c stay small. */
static struct weight stack_in(const struct weight_format *format, uint8_t **memory) {
    struct weight w = {.format = *format, .n_stacked = N_STACKED, .rows = WIDE, .cols = WIDE};
    const uint64_t bytes = weight_copy_bytes(&w);
    *memory = calloc(1, bytes);
    assert_non_null(*memory);
    if (format->element == ELEMENT_F32)
        for (uint64_t i = 0; i < bytes / sizeof(float); i++)
            ((float *)(void *)*memory)[i] = random_float() / 16;
    else
        for (uint64_t i = 0; i < bytes; i++)
            (*memory)[i] = i % 2 ? (uint8_t)(random_below(2) << 7 | 0x3c) : (uint8_t)random_u32();
    w = weight_copy_at(&w, *memory);
    if (format->scale == SCALE_E8M0) memset((void *)w.scales, 0x7a, weight_scale_bytes(&w));
    return w;
}

/* Each expert alone, by rows that use it with a share of 1, against the dense operations. */
static void check_format(struct backend *be, const struct weight_format *format, uint32_t n_rows) {
    uint8_t *memory[3];
    struct weight host[3], w[3];
    float *x = random_floats((size_t)n_rows * WIDE), *out = random_floats((size_t)n_rows * WIDE),
          *expected = malloc((size_t)n_rows * WIDE * sizeof(float)), *shares = malloc(n_rows * 8);
    uint32_t *experts = malloc(n_rows * sizeof(*experts));
    const struct experts_shape shape = {n_rows, WIDE, N_STACKED, 1, WIDE, 0};
    void *workspace = malloc(be->ops->experts->workspace(be, &shape));
    for (int i = 0; i < 3; i++) {
        host[i] = stack_in(format, &memory[i]);
        assert_int_equal(be->ops->weight_load(be, &host[i], &w[i], NULL), 0);
    }
    memcpy(expected, out, (size_t)n_rows * WIDE * sizeof(float));
    for (uint32_t row = 0; row < n_rows; row++) {
        struct weight one[3];
        experts[row] = row * 2 % N_STACKED;
        shares[2 * row] = 1, shares[2 * row + 1] = 0;
        for (int i = 0; i < 3; i++) one[i] = weight_matrix(&host[i], experts[row]);
        run_dense(be, one, x + (size_t)row * WIDE, 1, expected + (size_t)row * WIDE);
    }
    const struct experts_args args = {.x = x,
                                      .n_rows = n_rows,
                                      .n_used = 1,
                                      .experts = experts,
                                      .shares = shares,
                                      .routed = {&w[0], &w[1], &w[2], NULL, NULL, NULL},
                                      .workspace = workspace,
                                      .out = out};
    assert_int_equal(be->ops->experts->run(be, &args, NULL), 0);
    assert_memory_equal(out, expected, (size_t)n_rows * WIDE * sizeof(float));
    for (int i = 0; i < 3; i++) {
        be->ops->weight_release(be, &w[i]);
        free(memory[i]);
    }
    free(x), free(out), free(expected), free(shares), free(experts), free(workspace);
}

TEST(an_expert_alone_is_the_gated_layer_bit_by_bit) {
    for (size_t i = 0; i < COUNT(formats); i++)
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
            struct backend *be = NULL;
            const struct cpu_config config = {.n_threads = n_threads, .int8_products = true};
            assert_int_equal(cpu_backend_create(&be, &config, NULL), 0);
            check_format(be, &formats[i], 1);
            check_format(be, &formats[i], 23);
            be->ops->destroy(be);
        }
}
