/* test_elementwise.c - norms, activations, RoPE, embedding, soft cap and gather against their
 * definitions, at ragged widths. */
#include "tests/cpu/cpu_test.h"

#include "engine/cpu/vec.h"
#include "engine/device/activation.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

static const uint32_t widths[] = {1, 3, 15, 16, 17, 384, 1000};
enum { N_WIDTHS = sizeof(widths) / sizeof(widths[0]), N_ROWS = 37 };

static void rmsnorm_equals_its_definition_on(struct backend *be) {
    for (size_t i = 0; i < N_WIDTHS; i++) {
        uint32_t dim = widths[i], stride = dim + 5;
        float *x = random_floats((size_t)N_ROWS * stride), *w = random_floats(dim),
              *out = random_floats((size_t)N_ROWS * dim);
        double *expected = malloc((size_t)N_ROWS * dim * sizeof(double));
        for (uint32_t r = 0; r < N_ROWS; r++) {
            double sum = 0;
            for (uint32_t d = 0; d < dim; d++) sum += (double)x[r * stride + d] * x[r * stride + d];
            for (uint32_t d = 0; d < dim; d++)
                expected[r * dim + d] = x[r * stride + d] / sqrt(sum / dim + 1e-5) * w[d];
        }
        struct weight weight = weight_plain(w, ELEMENT_F32, 1, dim);
        struct rmsnorm_args args = {x, &weight, out, N_ROWS, dim, stride, dim, 1e-5f, 1, false, 0};
        assert_int_equal(be->ops->rmsnorm(be, &args, NULL), 0);
        assert_close(out, expected, (size_t)N_ROWS * dim, 2e-6);
        free(x);
        free(w);
        free(out);
        free(expected);
    }
}

TEST(rmsnorm_equals_its_definition) {
    for_each_backend(rmsnorm_equals_its_definition_on);
}

/* Heads are normed apart, in place, and what lies behind them is left alone; the second time the
 * norm of what came out is added to it elsewhere. */
static void rmsnorm_knows_heads_and_adds_on(struct backend *be) {
    enum { HEADS = 3, DIM = 21, STRIDE = HEADS * DIM + 4 };
    float *x = random_floats((size_t)N_ROWS * STRIDE), *w = random_floats(DIM),
          *apart = random_floats(N_ROWS * HEADS * DIM), *sum = random_floats(N_ROWS * HEADS * DIM),
          *before = malloc(N_ROWS * HEADS * DIM * sizeof(float));
    double *expected = malloc(N_ROWS * HEADS * DIM * sizeof(double));
    const struct weight weight = weight_plain(w, ELEMENT_F32, 1, DIM);
    for (uint32_t h = 0; h < HEADS; h++) {
        const struct rmsnorm_args one = {
            x + h * DIM, &weight, apart + h * DIM, N_ROWS, DIM, STRIDE, HEADS * DIM,
            1e-5f,       1,       false,           0};
        assert_int_equal(be->ops->rmsnorm(be, &one, NULL), 0);
    }
    const float guard = x[HEADS * DIM];
    struct rmsnorm_args all = {x, &weight, x, N_ROWS, DIM, STRIDE, STRIDE, 1e-5f, HEADS, false, 0};
    assert_int_equal(be->ops->rmsnorm(be, &all, NULL), 0);
    for (uint32_t r = 0; r < N_ROWS; r++)
        assert_memory_equal(x + r * STRIDE, apart + r * HEADS * DIM, HEADS * DIM * sizeof(float));
    assert_true(x[HEADS * DIM] == guard);
    memcpy(before, sum, N_ROWS * HEADS * DIM * sizeof(float));
    all = (struct rmsnorm_args){apart,       &weight, sum,   N_ROWS, DIM, HEADS * DIM,
                                HEADS * DIM, 1e-5f,   HEADS, true,   0};
    assert_int_equal(be->ops->rmsnorm(be, &all, NULL), 0);
    all.out = apart;
    all.accumulate = false;
    assert_int_equal(be->ops->rmsnorm(be, &all, NULL), 0);
    for (uint32_t i = 0; i < N_ROWS * HEADS * DIM; i++) expected[i] = (double)before[i] + apart[i];
    assert_close(sum, expected, N_ROWS * HEADS * DIM, 2e-6);
    free(x), free(w), free(apart), free(sum), free(before), free(expected);
}

TEST(rmsnorm_knows_heads_and_adds) {
    for_each_backend(rmsnorm_knows_heads_and_adds_on);
}

static void rmsnorm_scales_sums_and_needs_no_weight_on(struct backend *be) {
    enum { DIM = 37, N = N_ROWS * DIM };
    float *x = random_floats(N), *sum = random_floats(N);
    double *expected = malloc(N * sizeof(*expected));
    for (uint32_t r = 0; r < N_ROWS; r++) {
        double squares = 0;
        for (uint32_t d = 0; d < DIM; d++) squares += (double)x[r * DIM + d] * x[r * DIM + d];
        for (uint32_t d = 0; d < DIM; d++)
            expected[r * DIM + d] =
                0.3 * (sum[r * DIM + d] + x[r * DIM + d] / sqrt(squares / DIM + 1e-5));
    }
    const struct rmsnorm_args args = {.x = x,
                                      .out = sum,
                                      .n_rows = N_ROWS,
                                      .dim = DIM,
                                      .x_stride = DIM,
                                      .out_stride = DIM,
                                      .eps = 1e-5f,
                                      .n_heads = 1,
                                      .accumulate = true,
                                      .sum_scale = 0.3f};
    assert_int_equal(be->ops->rmsnorm(be, &args, NULL), 0);
    assert_close(sum, expected, N, 2e-6);
    free(x), free(sum), free(expected);
}

TEST(rmsnorm_scales_sums_and_needs_no_weight) {
    for_each_backend(rmsnorm_scales_sums_and_needs_no_weight_on);
}

/* A mean far from 0 must not cost digits of the deviation.  With and without a bias, in place and
 * elsewhere, and rows without deviation. */
static void layernorm_equals_its_definition_on(struct backend *be) {
    for (size_t i = 0; i < 2 * N_WIDTHS; i++) {
        const uint32_t dim = widths[i / 2];
        const bool in_place = i % 2;
        float *x = random_floats((size_t)N_ROWS * dim), *w = random_floats(dim),
              *b = random_floats(dim), *out = in_place ? x : random_floats((size_t)N_ROWS * dim);
        double *expected = malloc((size_t)N_ROWS * dim * sizeof(double));
        for (uint32_t r = 0; r < N_ROWS; r++) {
            double mean = 0, squares = 0;
            for (uint32_t d = 0; d < dim; d++) x[r * dim + d] += r % 2 ? 20 : 0;
            for (uint32_t d = 0; d < dim; d++) mean += (double)x[r * dim + d] / dim;
            for (uint32_t d = 0; d < dim; d++) squares += pow(x[r * dim + d] - mean, 2) / dim;
            for (uint32_t d = 0; d < dim; d++)
                expected[r * dim + d] =
                    (x[r * dim + d] - mean) / sqrt(squares + 1e-5) * w[d] + (in_place ? b[d] : 0);
        }
        const struct weight weight = weight_plain(w, ELEMENT_F32, 1, dim),
                            bias = weight_plain(b, ELEMENT_F32, 1, dim);
        const struct layernorm_args args = {.x = x,
                                            .weight = &weight,
                                            .bias = in_place ? &bias : NULL,
                                            .out = out,
                                            .n_rows = N_ROWS,
                                            .dim = dim,
                                            .eps = 1e-5f};
        assert_int_equal(be->ops->layernorm(be, &args, NULL), 0);
        /* x itself is rounded at 20, to 1e-6 of a deviation; a row of one element is all mean. */
        assert_close(out, expected, (size_t)N_ROWS * dim, 2e-5);
        if (!in_place) free(out);
        free(x), free(w), free(b), free(expected);
    }
}

TEST(layernorm_equals_its_definition) {
    for_each_backend(layernorm_equals_its_definition_on);
}

static double activated(double x, enum act_kind kind) {
    if (kind == ACT_RELU) return x > 0 ? x : 0;
    if (kind == ACT_RELU2) return x > 0 ? x * x : 0;
    if (kind == ACT_GELU) return x / 2 * (1 + erf(x / sqrt(2)));
    return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* From where they are linear to where they are 0, NaN among them; what lies behind is left
 * alone. */
static void activations_equal_their_definitions_on(struct backend *be) {
    for (size_t i = 0; i < 4 * N_WIDTHS; i++) {
        const enum act_kind kind = (enum act_kind)(i % 4);
        const uint32_t dim = widths[i / 4], n = N_ROWS * dim;
        float *x = random_floats(n + 1);
        double *expected = malloc(n * sizeof(double));
        for (uint32_t j = 0; j < n; j++) x[j] *= j % 2 ? 1 : 8;
        x[0] = NAN;
        for (uint32_t j = 0; j < n; j++) expected[j] = activated(x[j], kind);
        const float behind = x[n];
        assert_int_equal(be->ops->activate(be, &(struct activate_args){x, N_ROWS, dim, kind}, NULL),
                         0);
        assert_true(isnan(x[0]) && x[n] == behind);
        assert_close(x + 1, expected + 1, n - 1, 2e-6);
        free(x), free(expected);
    }
}

TEST(activations_equal_their_definitions) {
    for_each_backend(activations_equal_their_definitions_on);
}

static void learned_positions_are_added_on(struct backend *be) {
    enum { N_POSITIONS = 50, DIM = 21, FIRST = 2 };
    uint32_t positions[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) positions[i] = random_below(N_POSITIONS - FIRST);
    positions[0] = N_POSITIONS - FIRST - 1;
    for (enum element element = ELEMENT_F32; element <= ELEMENT_BF16; element++) {
        char table[N_POSITIONS * DIM * 4];
        for (size_t i = 0; i < N_POSITIONS * DIM; i++)
            store_f32_as(table, i, random_float(), element);
        const struct weight w = weight_plain(table, element, N_POSITIONS, DIM);
        float *x = random_floats(N_ROWS * DIM), before[N_ROWS * DIM];
        memcpy(before, x, sizeof(before));
        const struct step step = {.n_rows = N_ROWS, .positions = positions};
        assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
        assert_int_equal(
            be->ops->add_positions(be, &(struct add_positions_args){&w, FIRST, x}, NULL), 0);
        for (size_t i = 0; i < N_ROWS * DIM; i++)
            assert_true(x[i] ==
                        before[i] + load_as_f32(table, (positions[i / DIM] + FIRST) * DIM + i % DIM,
                                                element));
        free(x);
    }
}

TEST(learned_positions_are_added) {
    for_each_backend(learned_positions_are_added_on);
}

static void embedding_widens_the_rows_of_the_tokens_on(struct backend *be) {
    enum { VOCAB = 50, DIM = 21 };
    uint32_t tokens[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) tokens[i] = random_below(VOCAB);
    for (enum element element = ELEMENT_F32; element <= ELEMENT_BF16; element++) {
        char table[VOCAB * DIM * 4];
        for (size_t i = 0; i < VOCAB * DIM; i++) store_f32_as(table, i, random_float(), element);
        struct weight w = weight_plain(table, element, VOCAB, DIM);
        float out[N_ROWS * DIM];
        struct step step = {.n_rows = N_ROWS, .tokens = tokens};
        assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
        assert_int_equal(be->ops->embed(be, &(struct embed_args){&w, out, 3}, NULL), 0);
        for (size_t i = 0; i < N_ROWS * DIM; i++) {
            assert_true(out[i] == 3 * load_as_f32(table, tokens[i / DIM] * DIM + i % DIM, element));
        }
    }
}

TEST(embedding_widens_the_rows_of_the_tokens) {
    for_each_backend(embedding_widens_the_rows_of_the_tokens_on);
}

/* From linear to flat, infinity and NaN among them; what lies behind is left alone. */
static void soft_cap_equals_its_definition_on(struct backend *be) {
    for (size_t i = 0; i < N_WIDTHS; i++) {
        const uint32_t n = N_ROWS * widths[i];
        float *x = random_floats(n + 1);
        double *expected = malloc(n * sizeof(double));
        for (uint32_t j = 0; j < n; j++) x[j] *= j % 3 == 0 ? 0.1f : j % 3 == 1 ? 30 : 1000;
        x[0] = NAN, x[1] = INFINITY, x[2] = -INFINITY;
        for (uint32_t j = 0; j < n; j++) expected[j] = 30 * tanh((double)x[j] / 30);
        const float behind = x[n];
        assert_int_equal(
            be->ops->soft_cap(be, &(struct soft_cap_args){x, N_ROWS, widths[i], 30}, NULL), 0);
        assert_true(x[n] == behind && x[1] == 30 && x[2] == -30);
        assert_true(isnan(x[0]));
        assert_close(x + 1, expected + 1, n - 1, 3e-7);
        free(x);
        free(expected);
    }
}

TEST(soft_cap_equals_its_definition) {
    for_each_backend(soft_cap_equals_its_definition_on);
}

static void gather_picks_rows_on(struct backend *be) {
    float x[40 * 7], out[5 * 7];
    uint32_t rows[5] = {39, 0, 7, 7, 12};
    for (int i = 0; i < 40 * 7; i++) x[i] = random_float();
    assert_int_equal(be->ops->gather_rows(be, &(struct gather_rows_args){x, out, rows, 5, 7}, NULL),
                     0);
    for (int i = 0; i < 5; i++)
        assert_memory_equal(out + i * 7, x + rows[i] * 7, 7 * sizeof(float));
}

TEST(gather_picks_rows) {
    for_each_backend(gather_picks_rows_on);
}

/* A million tokens in: the angle must be the double's, not a float's. */
static void rope_is_exact_at_a_million_tokens_on(struct backend *be) {
    enum { DIM = 8 };
    uint32_t position = 1000003, page = 0;
    double inv_freq[DIM / 2] = {1, 0.3, 0.01, 1e-4};
    float qkv[3 * DIM];
    double expected[2 * DIM];
    for (int i = 0; i < 3 * DIM; i++) qkv[i] = random_float();
    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < DIM / 2; i++) {
            double c = cos(position * inv_freq[i]), s = sin(position * inv_freq[i]);
            double a = qkv[h * DIM + i], b = qkv[h * DIM + i + DIM / 2];
            expected[h * DIM + i] = a * c - b * s;
            expected[h * DIM + i + DIM / 2] = b * c + a * s;
        }
    }
    float store[2 * PAGE_TOKENS * DIM];
    struct kv_pool kv = {.base = store,
                         .format = PAGE_F32,
                         .n_pages = 1,
                         .n_kv_heads = 1,
                         .head_dim = DIM,
                         .page_bytes = sizeof(store)};
    struct kv_view view = {&page, 1, 0};
    struct step_seq seq = {.n_rows = 1, .layers = &view};
    struct step step = {
        .n_rows = 1, .n_seqs = 1, .n_decode = 1, .positions = &position, .seqs = &seq};
    assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
    struct rope_append_args args = {qkv, &kv, inv_freq, 1.0f, DIM / 2, 0, 1, 0, 0, 0, 0, NULL};
    assert_int_equal(be->ops->rope_append(be, &args, NULL), 0);
    assert_close(qkv, expected, 2 * DIM, 3e-7);
    /* In the page a key is a column, a value a row. */
    for (int i = 0; i < DIM; i++)
        assert_memory_equal(store + i * PAGE_TOKENS, qkv + DIM + i, sizeof(float));
    assert_memory_equal(store + PAGE_TOKENS * DIM, qkv + 2 * DIM, DIM * sizeof(float));
    /* Queries may be scaled by their position, keys never are. */
    const double zeros[DIM / 2] = {0}, scale = 1 + 0.25 * log(1 + floor(position / 3000.0));
    for (int i = 0; i < 2 * DIM; i++) expected[i] = qkv[i] * (i < DIM ? scale : 1);
    args.inv_freq = zeros;
    args.query_beta = 0.25f;
    args.query_period = 3000;
    assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
    assert_int_equal(be->ops->rope_append(be, &args, NULL), 0);
    assert_close(qkv, expected, 2 * DIM, 3e-7 * scale);
}

TEST(rope_is_exact_at_a_million_tokens) {
    for_each_backend(rope_is_exact_at_a_million_tokens_on);
}
