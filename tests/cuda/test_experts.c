/* test_experts.c - routers and experts on the device against their definitions in double.
 *
 * The oracle of experts multiplies the values of weights (weight_to_float()) in double.  What is
 * between gate and down is rounded to bf16, as on the device. */
#include "cuda/host/internal.h"
#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/experts.h"
#include "engine/device/host_pool.h"
#include "engine/device/offloaded.h"
#include "engine/model/expert_offload.h"
#include "tests/cpu/router_oracle.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/packed_weights.h"

static void *workspace_of(const struct experts_shape *shape) {
    return gpu_alloc(gpu->ops->experts->workspace(gpu, shape));
}

/* ---- routers ---- */

enum { DIM = 64 };
static const float NORM_EPS = 1e-5f;

static struct weight gpu_weight(const float *values, uint32_t rows, uint32_t cols) {
    return weight_plain(gpu_array(values, (size_t)rows * cols, ELEMENT_BF16), ELEMENT_BF16, rows,
                        cols);
}

static void free_weight(const struct weight *w) {
    gpu_free((void *)w->data);
}

/* Compares the rows that a router has normalised with what they should be, and makes x these. */
static void take_normed(float *x, const float *weights, const void *normed, uint32_t n_rows) {
    float *expected = random_floats((size_t)n_rows * DIM);
    for (uint32_t row = 0; row < n_rows; row++) {
        const float *of_row = x + (size_t)row * DIM;
        const double scale = 1 / sqrt(dot(of_row, of_row, DIM) / DIM + NORM_EPS);
        for (uint32_t i = 0; i < DIM; i++)
            expected[row * DIM + i] = (float)(of_row[i] * scale * weights[i]);
    }
    gpu_read(x, normed, (size_t)n_rows * DIM, ELEMENT_BF16);
    assert_near(x, expected, (size_t)n_rows * DIM, BF16_TOLERANCE, "normalised rows");
    free(expected);
}

/* Routes rows, normalised or not; shares are multiplied with a factor of their expert, or not. */
static void check_router(const struct router_case *c, uint32_t n_rows, bool has_norm,
                         bool has_factors) {
    const uint32_t n = c->n_experts, width = c->n_used + 1;
    struct error err = {0};
    float *x = random_bf16((size_t)n_rows * DIM, 1), *router = random_bf16((size_t)n * DIM, 1),
          *biases = random_bf16(2 * (size_t)n, 1), *gate = random_bf16(DIM, 1),
          *weights = random_bf16(DIM, 1), *factors = random_bf16(n, 2),
          *shares = malloc((size_t)n_rows * width * sizeof(float));
    uint32_t *experts = malloc((size_t)n_rows * c->n_used * sizeof(*experts)), n_checked = 0;
    const struct weight w = gpu_weight(router, n, DIM), bias = gpu_weight(biases, 1, n),
                        choice = gpu_weight(biases + n, 1, n), gate_w = gpu_weight(gate, 1, DIM),
                        norm_w = gpu_weight(weights, 1, DIM), factors_w = gpu_weight(factors, 1, n);
    const struct rmsnorm_input norm = {&norm_w, NORM_EPS,
                                       gpu_poison((size_t)n_rows * DIM, ELEMENT_BF16)};
    const struct experts_shape shape = {n_rows, DIM, n, c->n_used, DIM, 0};
    const struct route_args args = {.x = gpu_array(x, (size_t)n_rows * DIM, ELEMENT_BF16),
                                    .norm = has_norm ? &norm : NULL,
                                    .n_rows = n_rows,
                                    .n_used = c->n_used,
                                    .routing = &c->routing,
                                    .router = &w,
                                    .bias = c->has_bias ? &bias : NULL,
                                    .choice_bias = c->has_choice_bias ? &choice : NULL,
                                    .factors = has_factors ? &factors_w : NULL,
                                    .shared_gate = c->has_gate ? &gate_w : NULL,
                                    .workspace = workspace_of(&shape),
                                    .experts = gpu_poison((size_t)n_rows * c->n_used, ELEMENT_F32),
                                    .shares = gpu_poison((size_t)n_rows * width, ELEMENT_F32)};
    must(gpu->ops->experts->route(gpu, &args, &err), &err);
    gpu_read(shares, args.shares, (size_t)n_rows * width, ELEMENT_F32);
    must(gpu->ops->download(gpu, experts, args.experts,
                            (size_t)n_rows * c->n_used * sizeof(*experts), &err),
         &err);
    must(gpu->ops->sync(gpu, &err), &err);
    if (has_norm) take_normed(x, weights, norm.normed, n_rows);
    for (uint32_t row = 0; row < n_rows; row++) {
        const float *of_row = x + (size_t)row * DIM;
        double all[ORACLE_EXPERTS], expected[ORACLE_EXPERTS];
        float as_float[ORACLE_EXPERTS];
        uint32_t chosen[ORACLE_EXPERTS];
        for (uint32_t e = 0; e < n; e++)
            all[e] =
                dot(of_row, router + (size_t)e * DIM, DIM) + (c->has_bias ? (double)biases[e] : 0);
        if (oracle_route(c, all, c->has_choice_bias ? biases + n : NULL, chosen) < 2e-5) continue;
        n_checked++;
        for (uint32_t r = 0; r < c->n_used; r++)
            assert_int_equal(experts[row * c->n_used + r], chosen[r]);
        oracle_shares(c, all, chosen, expected);
        for (uint32_t r = 0; r < c->n_used && has_factors; r++)
            expected[r] *= (double)factors[chosen[r]];
        expected[c->n_used] =
            (double)c->routing.shared * (c->has_gate ? sigmoid(dot(of_row, gate, DIM)) : 1);
        for (uint32_t r = 0; r < width; r++) as_float[r] = (float)expected[r];
        assert_near(shares + (size_t)row * width, as_float, width, 1e-4, "shares");
    }
    assert_true(n_checked * 2 + 1 >= n_rows); /* one row alone may be a near tie */
    free_weight(&w), free_weight(&bias), free_weight(&choice), free_weight(&gate_w);
    free_weight(&norm_w), gpu_free(norm.normed), free(weights);
    free_weight(&factors_w), free(factors);
    gpu_free((void *)args.x), gpu_free(args.workspace), gpu_free(args.experts);
    gpu_free(args.shares);
    free(x), free(router), free(biases), free(gate), free(shares), free(experts);
}

static void each_kind_of_router_is_as_defined(void **state) {
    static const struct router_case large[] = {
        {{ROUTE_SOFTMAX, true, 1, 1, 1, 1}, 128, 8, false, false, false},
        {{ROUTE_SOFTMAX_CHOSEN, false, 1, 1, 1, 1}, 32, 4, true, false, false},
        {{ROUTE_SIGMOID, true, 2.5f, 1, 8, 4}, 256, 8, false, true, true},
        {{ROUTE_SOFTMAX_CHOSEN, false, 1, 1, 1, 1}, 100, 40, false, false, false}};
    static const uint32_t counts[] = {1, 3, 70};
    for (size_t i = 0; i < COUNT(counts); i++)
        for (int kind = 0; kind < 4; kind++) {
            for (size_t k = 0; k < COUNT(router_cases); k++)
                check_router(&router_cases[k], counts[i], kind % 2, kind / 2);
            for (size_t k = 0; k < COUNT(large); k++)
                check_router(&large[k], counts[i], kind % 2, kind / 2);
        }
}

/* Routes the first n_rows rows, whose experts are each there twice.  Returns experts and shares as
 * they are: width * n_rows words and as many. */
static uint32_t *route_twins(const struct router_case *c, const float *x, const float *router,
                             uint32_t n_rows) {
    const uint32_t n = c->n_experts, width = c->n_used + 1;
    const size_t n_words = (size_t)n_rows * width;
    struct error err = {0};
    float *twins = malloc((size_t)n * DIM * sizeof(*twins));
    uint32_t *words = calloc(2 * n_words, sizeof(*words));
    for (uint32_t e = 0; e < n; e++)
        memcpy(twins + (size_t)e * DIM, router + (size_t)(e / 2) * DIM, DIM * sizeof(*twins));
    const struct weight w = gpu_weight(twins, n, DIM);
    const struct experts_shape shape = {n_rows, DIM, n, c->n_used, DIM, 0};
    const struct route_args args = {.x = gpu_array(x, (size_t)n_rows * DIM, ELEMENT_BF16),
                                    .n_rows = n_rows,
                                    .n_used = c->n_used,
                                    .routing = &c->routing,
                                    .router = &w,
                                    .workspace = workspace_of(&shape),
                                    .experts = gpu_poison((size_t)n_rows * c->n_used, ELEMENT_F32),
                                    .shares = gpu_poison(n_words, ELEMENT_F32)};
    must(gpu->ops->experts->route(gpu, &args, &err), &err);
    must(gpu->ops->download(gpu, words, args.experts, (size_t)n_rows * c->n_used * sizeof(*words),
                            &err),
         &err);
    must(gpu->ops->download(gpu, words + n_words, args.shares, n_words * sizeof(*words), &err),
         &err);
    must(gpu->ops->sync(gpu, &err), &err);
    free_weight(&w), free(twins);
    gpu_free((void *)args.x), gpu_free(args.workspace), gpu_free(args.experts);
    gpu_free(args.shares);
    return words;
}

/* Few rows are chosen for by other kernels than many.  A batch-invariant backend makes the same
 * logits of both, so the bits of the choice are the same, ties included. */
static void few_rows_choose_as_many_do(void **state) {
    enum { MANY = 40, FEW = 4 };
    static const uint32_t sizes[] = {6, 32, 100, 128, 130, 256};
    static const struct routing kinds[] = {{ROUTE_SOFTMAX, true, 1, 1, 1, 1},
                                           {ROUTE_SOFTMAX, false, 1, 1, 1, 1},
                                           {ROUTE_SOFTMAX_CHOSEN, false, 0.5f, 0.5f, 1, 1},
                                           {ROUTE_SIGMOID, true, 2.5f, 1, 1, 1}};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            const struct router_case c = {kinds[k], sizes[i], sizes[i] > 32 ? 8 : 5,
                                          false,    false,    false};
            const size_t n = FEW * (size_t)c.n_used, n_shares = FEW * ((size_t)c.n_used + 1),
                         shares_at = MANY * ((size_t)c.n_used + 1);
            float *x = random_bf16((size_t)MANY * DIM, 1),
                  *router = random_bf16((size_t)c.n_experts * DIM, 1);
            uint32_t *many = route_twins(&c, x, router, MANY),
                     *few = route_twins(&c, x, router, FEW);
            assert_memory_equal(few, many, n * sizeof(*few));
            assert_memory_equal(few + n_shares, many + shares_at, n_shares * sizeof(*few));
            free(x), free(router), free(many), free(few);
        }
}

/* ---- experts ---- */

/* A layer with its rows. */
struct layer {
    uint32_t n_experts, n_used, n_rows, dim, ffn, shared_dim;
    struct packed gate, up, down, shared[3];
    float *x, *shares, *biases[3]; /* gate, up, down */
    uint32_t *experts;
    bool has_biases;
    struct expert_gate function;
};

/* Makes a layer whose rows use 6 of its experts: the last ones. */
static struct layer make_layer_of(const struct weight_format *format, uint32_t n_experts,
                                  uint32_t n_rows, uint32_t dim, uint32_t ffn) {
    static const struct weight_format plain = {ELEMENT_BF16, SCALE_NONE, 0, 0, false};
    struct layer l = {
        .n_experts = n_experts, .n_used = 3, .n_rows = n_rows, .dim = dim, .ffn = ffn};
    l.shared_dim = 48;
    l.gate = make_packed_stack(format, l.n_experts, ffn, dim);
    l.up = make_packed_stack(format, l.n_experts, ffn, dim);
    l.down = make_packed_stack(format, l.n_experts, dim, ffn);
    l.shared[0] = make_packed(&plain, l.shared_dim, dim);
    l.shared[1] = make_packed(&plain, l.shared_dim, dim);
    l.shared[2] = make_packed(&plain, dim, l.shared_dim);
    l.x = random_bf16((size_t)n_rows * dim, 1);
    l.shares = random_floats((size_t)n_rows * (l.n_used + 1));
    l.biases[0] = random_bf16((size_t)l.n_experts * ffn, 1);
    l.biases[1] = random_bf16((size_t)l.n_experts * ffn, 1);
    l.biases[2] = random_bf16((size_t)l.n_experts * dim, 1);
    l.experts = malloc((size_t)n_rows * l.n_used * sizeof(*l.experts));
    for (uint32_t row = 0; row < n_rows; row++) /* 4 and 5 have few */
        for (uint32_t r = 0; r < l.n_used; r++)
            l.experts[row * l.n_used + r] =
                n_experts - 6 + (row % 11 == 7 ? 5 - r : (row + r * 3) % 4);
    return l;
}

static struct layer make_layer(const struct weight_format *format, uint32_t n_rows, uint32_t dim,
                               uint32_t ffn) {
    return make_layer_of(format, 6, n_rows, dim, ffn);
}

static void free_layer(struct layer *l) {
    free_packed(&l->gate), free_packed(&l->up), free_packed(&l->down);
    for (int i = 0; i < 3; i++) free_packed(&l->shared[i]);
    for (int i = 0; i < 3; i++) free(l->biases[i]);
    free(l->x), free(l->shares), free(l->experts);
}

static struct weight bias_stack(const float *values, uint32_t n, uint32_t width) {
    struct weight w = gpu_weight(values, n, width);
    w.n_stacked = n, w.rows = 1;
    return w;
}

/* Runs rows first to first + n - 1; out [n, dim] holds what is added to. */
static void run_rows(const struct layer *l, bool is_shared, uint32_t first, uint32_t n,
                     float *out) {
    struct error err = {0};
    const struct experts_shape shape = {n,         l->dim, l->n_experts,
                                        l->n_used, l->ffn, is_shared ? l->shared_dim : 0};
    const struct weight biases[] = {bias_stack(l->biases[0], l->n_experts, l->ffn),
                                    bias_stack(l->biases[1], l->n_experts, l->ffn),
                                    bias_stack(l->biases[2], l->n_experts, l->dim)};
    const bool b = l->has_biases;
    const size_t n_chosen = (size_t)n * l->n_used, n_shares = (size_t)n * (l->n_used + 1);
    uint32_t *experts = gpu_alloc(n_chosen * sizeof(*experts));
    must(gpu->ops->upload(gpu, experts, l->experts + (size_t)first * l->n_used,
                          n_chosen * sizeof(*experts), &err),
         &err);
    const struct experts_args args = {
        .x = gpu_array(l->x + (size_t)first * l->dim, (size_t)n * l->dim, ELEMENT_BF16),
        .n_rows = n,
        .n_used = l->n_used,
        .experts = experts,
        .shares = gpu_array(l->shares + (size_t)first * (l->n_used + 1), n_shares, ELEMENT_F32),
        .routed = {&l->gate.device, &l->up.device, &l->down.device, b ? &biases[0] : NULL,
                   b ? &biases[1] : NULL, b ? &biases[2] : NULL},
        .shared = {is_shared ? &l->shared[0].device : NULL, &l->shared[1].device,
                   &l->shared[2].device, NULL, NULL, NULL},
        .gate = l->function,
        .workspace = workspace_of(&shape),
        .out = gpu_array(out, (size_t)n * l->dim, ELEMENT_BF16)};
    must(gpu->ops->experts->run(gpu, &args, &err), &err);
    gpu_read(out, args.out, (size_t)n * l->dim, ELEMENT_BF16);
    for (int i = 0; i < 3; i++) free_weight(&biases[i]);
    gpu_free(experts), gpu_free((void *)args.x), gpu_free((void *)args.shares);
    gpu_free(args.workspace), gpu_free(args.out);
}

static double through(const struct expert_gate *f, double gate, double up) {
    const double most = (double)f->most;
    if (most == 0) return gate * sigmoid(gate) * up;
    gate = fmin(gate, most);
    up = fmax(fmin(up, most), -most);
    return gate * sigmoid((double)f->slope * gate) * (up + 1);
}

/* What a row's experts add up to, and the sizes of what is added. */
struct row_sum {
    double *value, *size;
};

/* Adds share times what an expert gives.  Biases may be NULL. */
static void add_expert(const struct layer *l, const float *x, double share, const float *gate,
                       const float *up, const float *down, uint32_t width,
                       const float *const biases[3], const struct row_sum *sum) {
    float *hidden = malloc(width * sizeof(*hidden));
    for (uint32_t i = 0; i < width; i++) {
        const float value = (float)through(
            &l->function,
            dot(x, gate + (size_t)i * l->dim, l->dim) + (biases[0] ? (double)biases[0][i] : 0),
            dot(x, up + (size_t)i * l->dim, l->dim) + (biases[1] ? (double)biases[1][i] : 0));
        uint16_t bits;
        weight_from_float(&value, 1, ELEMENT_BF16, &bits);
        hidden[i] = load_as_f32(&bits, 0, ELEMENT_BF16);
    }
    for (uint32_t i = 0; i < l->dim; i++) {
        const double y = share * (dot(hidden, down + (size_t)i * width, width) +
                                  (biases[2] ? (double)biases[2][i] : 0));
        sum->value[i] += y;
        sum->size[i] += fabs(y);
    }
    free(hidden);
}

static void expect_row(const struct layer *l, bool is_shared, uint32_t row,
                       const struct row_sum *sum) {
    const float *x = l->x + (size_t)row * l->dim,
                *shares = l->shares + row * (l->n_used + 1), *const none[3] = {NULL, NULL, NULL};
    for (uint32_t r = 0; r < l->n_used; r++) {
        const uint32_t e = l->experts[row * l->n_used + r];
        const size_t at = (size_t)e * l->ffn * l->dim;
        const float *const biases[3] = {l->biases[0] + e * l->ffn, l->biases[1] + e * l->ffn,
                                        l->biases[2] + e * l->dim};
        add_expert(l, x, (double)shares[r], l->gate.values + at, l->up.values + at,
                   l->down.values + at, l->ffn, l->has_biases ? biases : none, sum);
    }
    if (is_shared)
        add_expert(l, x, (double)shares[l->n_used], l->shared[0].values, l->shared[1].values,
                   l->shared[2].values, l->shared_dim, none, sum);
}

/* Weights are rounded to bf16 where kernels widen them, and so is what each expert gives where many
 * rows are grouped.  Both add to the rounding of results.  Sums are held to the largest of what is
 * added, because shares of either sign may leave little of it. */
static const double EXPERTS_TOLERANCE = 1.5e-2;

static void check_sums(const struct layer *l, bool is_shared, const char *what) {
    const size_t n = (size_t)l->n_rows * l->dim;
    float *got = random_bf16(n, 1), *expected = malloc(n * sizeof(float));
    double largest = 0;
    for (uint32_t row = 0; row < l->n_rows; row++) {
        const struct row_sum sum = {malloc(l->dim * sizeof(double)),
                                    malloc(l->dim * sizeof(double))};
        for (uint32_t i = 0; i < l->dim; i++) {
            sum.value[i] = (double)got[(size_t)row * l->dim + i];
            sum.size[i] = fabs(sum.value[i]);
        }
        expect_row(l, is_shared, row, &sum);
        for (uint32_t i = 0; i < l->dim; i++) {
            expected[(size_t)row * l->dim + i] = (float)sum.value[i];
            largest = fmax(largest, sum.size[i]);
        }
        free(sum.value), free(sum.size);
    }
    run_rows(l, is_shared, 0, l->n_rows, got);
    assert_near_of(got, expected, n, largest, EXPERTS_TOLERANCE, what);
    free(got), free(expected);
}

static const struct weight_format formats[] = {
    {ELEMENT_BF16, SCALE_NONE, 0, 0, false},     {ELEMENT_F16, SCALE_NONE, 0, 0, false},
    {ELEMENT_F32, SCALE_NONE, 0, 0, false},      {ELEMENT_I4, SCALE_BF16, 1, 128, false},
    {ELEMENT_I4, SCALE_F16, 1, 32, true},        {ELEMENT_I4, SCALE_F32, 1, 64, true},
    {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false},    {ELEMENT_E2M1, SCALE_E4M3, 1, 16, false},
    {ELEMENT_E4M3, SCALE_F32, 1, 0, false},      {ELEMENT_E4M3, SCALE_F32, 0, 0, false},
    {ELEMENT_E4M3, SCALE_BF16, 128, 128, false}, {ELEMENT_I8, SCALE_F32, 1, 0, false},
    {ELEMENT_I8, SCALE_F16, 1, 32, false},       {ELEMENT_I8, SCALE_F16, 1, 16, false},
    {ELEMENT_I4, SCALE_BF16, 1, 0, false}};

static void format_name(const struct weight_format *format, uint32_t n_rows, char *text) {
    char name[WEIGHT_FORMAT_TEXT];
    weight_format_text(format, name);
    snprintf(text, 128, "%s, %u rows", name, n_rows);
}

/* Rows on both sides of what kernels take at once, and widths that are whole tiles or are not. */
static void experts_of_each_format_are_as_defined(void **state) {
    static const uint32_t counts[] = {1, 2, 9, 60, 150},
                          sizes[][2] = {{256, 128}, {640, 384}, {40, 24}};
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t s = 0; s < COUNT(sizes); s++)
            for (size_t i = 0; i < COUNT(counts); i++) {
                char what[128];
                if (formats[f].block_cols > 0 && sizes[s][0] % formats[f].block_cols) continue;
                if (counts[i] > (small ? 9u : sizes[s][0] > 256 ? 60u : 150u)) continue;
                struct layer l = make_layer(&formats[f], counts[i], sizes[s][0], sizes[s][1]);
                format_name(&formats[f], counts[i], what);
                check_sums(&l, false, what);
                check_sums(&l, true, what);
                l.has_biases = true;
                l.function = (struct expert_gate){GATE_SILU, 1.5f, 1.702f};
                check_sums(&l, false, what);
                free_layer(&l);
            }
}

static void swap_matrices(struct packed *p, uint32_t a, uint32_t b) {
    struct error err = {0};
    struct weight at[] = {weight_matrix(&p->host, a), weight_matrix(&p->host, b)};
    const size_t data = at[0].rows * weight_row_bytes(&at[0]), scales = weight_scale_bytes(&at[0]);
    const size_t sizes[] = {data, scales, at[0].format.has_min ? scales : 0};
    const void *from[][2] = {
        {at[0].data, at[1].data}, {at[0].scales, at[1].scales}, {at[0].mins, at[1].mins}};
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < sizes[i]; k++) {
            uint8_t *x = (uint8_t *)from[i][0] + k, *y = (uint8_t *)from[i][1] + k, saved = *x;
            *x = *y, *y = saved;
        }
    gpu->ops->weight_release(gpu, &p->device);
    must(gpu->ops->weight_load(gpu, &p->host, &p->device, &err), &err);
}

/* The same rows with experts of other numbers. */
static void numbers_of_experts_change_no_bit(void **state) {
    for (size_t f = 0; f < COUNT(formats); f++)
        for (uint32_t n = 1; n <= 40; n += 39) {
            struct layer l = make_layer(&formats[f], n, 256, 128);
            const size_t n_out = (size_t)n * l.dim;
            float *got = calloc(n_out, sizeof(float)), *other = calloc(n_out, sizeof(float));
            run_rows(&l, false, 0, n, got);
            swap_matrices(&l.gate, 0, 4), swap_matrices(&l.up, 0, 4), swap_matrices(&l.down, 0, 4);
            for (uint32_t i = 0; i < n * l.n_used; i++)
                l.experts[i] = l.experts[i] == 0 ? 4 : l.experts[i] == 4 ? 0 : l.experts[i];
            run_rows(&l, false, 0, n, other);
            assert_memory_equal(got, other, n_out * sizeof(float));
            free(got), free(other);
            free_layer(&l);
        }
}

/* An expert that all rows use, with a share of 1, against the dense operations. */
static void one_expert_is_the_gated_layer(void **state) {
    for (size_t f = 0; f < COUNT(formats); f++)
        for (uint32_t n = 1; n <= 64; n *= 8) {
            struct error err = {0};
            struct layer l = make_layer(&formats[f], n, 256, 128);
            const size_t n_out = (size_t)n * l.dim;
            struct packed dense[3] = {make_packed(&formats[f], l.ffn, l.dim),
                                      make_packed(&formats[f], l.ffn, l.dim),
                                      make_packed(&formats[f], l.dim, l.ffn)};
            float *got = calloc(n_out, sizeof(float)), *expected = malloc(n_out * sizeof(float));
            void *x = gpu_array(l.x, n_out, ELEMENT_BF16),
                 *out = gpu_array(got, n_out, ELEMENT_BF16),
                 *hidden = gpu_alloc((size_t)n * l.ffn * 2),
                 *both = gpu_alloc((size_t)n * l.ffn * 4);
            const struct gated_args gated = {.x = x,
                                             .n_rows = n,
                                             .n_in = l.dim,
                                             .gate = &dense[0].device,
                                             .up = &dense[1].device,
                                             .gate_up = both,
                                             .out = hidden};
            const struct linear_args down = {
                .x = hidden,
                .n_rows = n,
                .n_in = l.ffn,
                .n_parts = 1,
                .parts = {{.w = &dense[2].device, .y = out, .y_stride = l.dim}},
                .accumulate = true};
            must(gpu->ops->gated(gpu, &gated, &err), &err);
            must(gpu->ops->linear(gpu, &down, &err), &err);
            gpu_read(expected, out, n_out, ELEMENT_BF16);
            free_packed(&l.gate), free_packed(&l.up), free_packed(&l.down);
            l.gate = dense[0], l.up = dense[1], l.down = dense[2];
            l.n_experts = l.n_used = 1;
            for (uint32_t row = 0; row < n; row++)
                l.experts[row] = 0, l.shares[2 * row] = 1, l.shares[2 * row + 1] = 0;
            run_rows(&l, false, 0, n, got);
            assert_near(got, expected, n_out, EXPERTS_TOLERANCE, "one expert");
            free(got), free(expected);
            gpu_free(x), gpu_free(out), gpu_free(hidden), gpu_free(both);
            free_layer(&l);
        }
}

/* Each row by itself has the bits that it has among others. */
static void other_rows_change_no_bit(void **state) {
    static const uint32_t counts[] = {3, 40, 300};
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t i = 0; i < COUNT(counts); i++) {
            const uint32_t n = counts[i];
            struct layer l = make_layer(&formats[f], n, 256, 128);
            float *all = calloc((size_t)n * l.dim, sizeof(float)), alone[256];
            run_rows(&l, true, 0, n, all);
            for (uint32_t row = 0; row < n; row += n / 3) {
                memset(alone, 0, sizeof(alone));
                run_rows(&l, true, row, 1, alone);
                assert_memory_equal(alone, all + (size_t)row * l.dim, sizeof(alone));
            }
            free(all);
            free_layer(&l);
        }
}

/* ---- experts in the machine's memory ---- */

static void offload_one(struct packed *p, bool is_gate) {
    struct error err = {0};
    gpu->ops->weight_release(gpu, &p->device);
    must(expert_offload_load(gpu, &p->host, is_gate, &p->device, &err), &err);
}

static struct offloaded_layer *offloaded(const struct layer *l) {
    return (struct offloaded_layer *)((char *)l->gate.device.data - OFFLOADED_BYTES);
}

/* Puts a layer's experts into the machine's memory; next: the layer after it, or NULL. */
static void offload_layer(struct layer *l, const struct layer *next) {
    offload_one(&l->gate, true), offload_one(&l->up, false), offload_one(&l->down, false);
    *offloaded(l) = (struct offloaded_layer){.mark = OFFLOADED_MARK,
                                             .gate = l->gate.device,
                                             .up = l->up.device,
                                             .down = l->down.device,
                                             .next = next ? offloaded(next) : NULL};
}

static void take_back_one(struct packed *p, void *memory) {
    struct error err = {0};
    gpu->ops->host_pool->free(gpu, memory);
    must(gpu->ops->weight_load(gpu, &p->host, &p->device, &err), &err);
}

/* Puts them back on the device. */
static void take_back_layer(struct layer *l) {
    take_back_one(&l->gate, offloaded(l));
    take_back_one(&l->up, (void *)l->up.device.data);
    take_back_one(&l->down, (void *)l->down.device.data);
}

static uint64_t fetched_bytes(const struct layer *l) {
    struct error err = {0};
    must(gpu->ops->sync(gpu, &err), &err);
    return offloaded(l)->fetched_bytes;
}

/* Returns how many experts the rows of a layer use. */
static uint32_t count_used(const struct layer *l) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < l->n_experts; e++) {
        bool is_used = false;
        for (uint32_t i = 0; i < l->n_rows * l->n_used; i++) is_used |= l->experts[i] == e;
        n += is_used;
    }
    return n;
}

/* Few rows of many experts read these in place, many rows of few experts get all of them. */
static void offloaded_experts_change_no_bit(void **state) {
    static const uint32_t cases[][2] = {{64, 1}, {64, 5}, {64, 9}, {6, 1}, {6, 9}, {6, 60}};
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t i = 0; i < COUNT(cases); i++) {
            struct layer l = make_layer_of(&formats[f], cases[i][0], cases[i][1], 256, 128);
            const size_t n = (size_t)l.n_rows * l.dim;
            const bool is_whole = i >= 4;
            float *expected = random_bf16(n, 1), *got = malloc(n * sizeof(*got));
            memcpy(got, expected, n * sizeof(*got));
            l.has_biases = i % 2;
            run_rows(&l, true, 0, l.n_rows, expected);
            offload_layer(&l, NULL);
            const uint64_t bytes = offloaded_layer_bytes(offloaded(&l));
            run_rows(&l, true, 0, l.n_rows, got);
            assert_memory_equal(got, expected, n * sizeof(*got));
            assert_int_equal(fetched_bytes(&l),
                             is_whole ? bytes : bytes / l.n_experts * count_used(&l));
            take_back_layer(&l);
            free(got), free(expected);
            free_layer(&l);
        }
}

/* Runs layers whose experts lie here and there, one after the other, three times.  What is copied
 * for a layer while another one is computed is that layer's. */
static void experts_that_are_copied_ahead_are_the_next_layers(void **state) {
    enum { N_LAYERS = 5, N_ROWS = 20, N_TIMES = 3 };
    static const bool is_offloaded[N_LAYERS] = {false, true, false, true, true};
    struct layer layers[N_LAYERS];
    const struct layer *next = NULL;
    float *expected[N_LAYERS];
    const size_t n = (size_t)N_ROWS * 256;
    for (int i = 0; i < N_LAYERS; i++) {
        layers[i] = make_layer(&formats[3], N_ROWS, 256, 128);
        expected[i] = calloc(n, sizeof(float));
        run_rows(&layers[i], false, 0, N_ROWS, expected[i]);
    }
    for (int i = N_LAYERS; i-- > 0;) {
        if (!is_offloaded[i]) continue;
        offload_layer(&layers[i], next);
        next = &layers[i];
    }
    for (int i = 0; i < N_TIMES * N_LAYERS; i++) {
        float *got = calloc(n, sizeof(float));
        run_rows(&layers[i % N_LAYERS], false, 0, N_ROWS, got);
        assert_memory_equal(got, expected[i % N_LAYERS], n * sizeof(float));
        free(got);
    }
    for (int i = 0; i < N_LAYERS; i++) {
        if (is_offloaded[i]) take_back_layer(&layers[i]);
        free(expected[i]), free_layer(&layers[i]);
    }
}

/* ---- CUDA graphs ---- */

/* A router and its experts, whose input changes from step to step. */
struct routed {
    struct route_args route;
    struct experts_args run;
};

static int run_routed(void *ctx, uint32_t n_rows, struct error *err) {
    const struct routed *r = ctx;
    (void)n_rows;
    const int rc = gpu->ops->experts->route(gpu, &r->route, err);
    return rc ? rc : gpu->ops->experts->run(gpu, &r->run, err);
}

/* Runs a step, directly or as a graph: out [n_rows, dim]. */
static void run_step(struct routed *r, const float *x, bool as_graph, float *out) {
    struct error err = {0};
    const uint32_t n_rows = r->run.n_rows, dim = r->route.router->cols;
    const size_t n = (size_t)n_rows * dim, bytes = n * sizeof(uint16_t);
    void *host = converted(x, n, ELEMENT_BF16), *zeros = calloc(1, bytes);
    must(gpu->ops->upload(gpu, (void *)r->run.x, host, bytes, &err), &err);
    must(gpu->ops->upload(gpu, r->run.out, zeros, bytes, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    must(as_graph ? gpu->ops->run_graph(gpu, n_rows, run_routed, r, &err)
                  : run_routed(r, n_rows, &err),
         &err);
    gpu_read(out, r->run.out, n, ELEMENT_BF16);
    free(host), free(zeros);
}

/* One graph serves steps whose rows choose other experts each time. */
static void check_graphs(bool is_offloaded) {
    static const uint32_t counts[] = {1, 5, 40, 90};
    static const struct routing routing = {ROUTE_SOFTMAX, true, 1, 1, 1, 1};
    for (size_t i = 0; i < COUNT(counts); i++) {
        const uint32_t n_rows = counts[i];
        struct layer l = make_layer(&formats[3], n_rows, 256, 128);
        const size_t n = (size_t)n_rows * l.dim;
        if (is_offloaded) offload_layer(&l, NULL);
        const struct experts_shape shape = {n_rows, l.dim, l.n_experts, l.n_used, l.ffn, 0};
        float *router = random_bf16((size_t)l.n_experts * l.dim, 1), *got = random_floats(n),
              *expected = random_floats(n);
        const struct weight w = gpu_weight(router, l.n_experts, l.dim);
        void *x = gpu_alloc(n * 2), *workspace = workspace_of(&shape);
        uint32_t *experts = gpu_alloc((size_t)n_rows * l.n_used * sizeof(*experts));
        float *shares = gpu_alloc((size_t)n_rows * (l.n_used + 1) * sizeof(*shares));
        struct routed r = {
            .route = {.x = x,
                      .n_rows = n_rows,
                      .n_used = l.n_used,
                      .routing = &routing,
                      .router = &w,
                      .workspace = workspace,
                      .experts = experts,
                      .shares = shares},
            .run = {.x = x,
                    .n_rows = n_rows,
                    .n_used = l.n_used,
                    .experts = experts,
                    .shares = shares,
                    .routed = {&l.gate.device, &l.up.device, &l.down.device, NULL, NULL, NULL},
                    .workspace = workspace,
                    .out = gpu_alloc(n * 2)}};
        uint64_t n_graphs = 0;
        for (int step = 0; step < 5; step++) {
            float *input = random_bf16(n, 1);
            run_step(&r, input, false, expected);
            run_step(&r, input, true, got);
            assert_memory_equal(got, expected, n * sizeof(*got));
            if (step == 1) n_graphs = gpu->n_new_graphs;
            free(input);
        }
        assert_int_equal(gpu->n_new_graphs, n_graphs);
        gpu_free(x), gpu_free(workspace), gpu_free(experts), gpu_free(shares);
        gpu_free(r.run.out), free_weight(&w), free(router), free(got), free(expected);
        if (is_offloaded) take_back_layer(&l);
        free_layer(&l);
    }
}

static void a_graph_is_captured_once(void **state) {
    check_graphs(false);
}

static void a_graph_fetches_offloaded_experts(void **state) {
    check_graphs(true);
}

static int make_invariant(void **state) {
    (void)state;
    reopen_batch_invariant();
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offloaded_experts_change_no_bit),
        cmocka_unit_test(experts_that_are_copied_ahead_are_the_next_layers),
        cmocka_unit_test(a_graph_fetches_offloaded_experts),
        cmocka_unit_test(each_kind_of_router_is_as_defined),
        cmocka_unit_test(experts_of_each_format_are_as_defined),
        cmocka_unit_test(numbers_of_experts_change_no_bit),
        cmocka_unit_test(one_expert_is_the_gated_layer),
        cmocka_unit_test(a_graph_is_captured_once),
        cmocka_unit_test_setup(other_rows_change_no_bit, make_invariant),
        cmocka_unit_test(few_rows_choose_as_many_do),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
