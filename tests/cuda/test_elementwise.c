/* test_elementwise.c - embedding, norms, activations and gather of the CUDA backend against the
 * CPU's. */
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "engine/device/weight.h"
#include "tests/cuda/cuda_test.h"

static const uint32_t widths[] = {1, 3, 8, 15, 16, 17, 24, 384, 1000, 4096, 10240};
enum { N_WIDTHS = sizeof(widths) / sizeof(widths[0]) };
static const uint32_t heights[] = {1, 2, 37, 300};
enum { N_HEIGHTS = sizeof(heights) / sizeof(heights[0]) };

static void check_rmsnorm(uint32_t n_rows, uint32_t dim, uint32_t gap, enum element dtype,
                          bool in_place) {
    const size_t stride = dim + gap, n = n_rows * stride;
    struct error err = {0};
    float *x = random_bf16(n, 3), *w = random_bf16(dim, 2), *expected = random_floats(n_rows * dim),
          *got = random_floats(n);
    void *host_w = converted(w, dim, dtype), *gpu_x = gpu_array(x, n, ELEMENT_BF16),
         *gpu_w = gpu_array(w, dim, dtype);
    void *out = in_place ? gpu_x : gpu_poison(n_rows * dim, ELEMENT_BF16);
    const struct weight cpu_weight = weight_plain(host_w, dtype, 1, dim),
                        gpu_weight = weight_plain(gpu_w, dtype, 1, dim);
    struct rmsnorm_args args = {x,   &cpu_weight, expected, n_rows, dim, stride,
                                dim, 1e-5f,       1,        false,  0};
    must(cpu->ops->rmsnorm(cpu, &args, &err), &err);
    args = (struct rmsnorm_args){
        gpu_x, &gpu_weight, out, n_rows, dim, stride, in_place ? stride : dim, 1e-5f, 1, false, 0};
    must(gpu->ops->rmsnorm(gpu, &args, &err), &err);
    gpu_read(got, out, in_place ? n : n_rows * dim, ELEMENT_BF16);
    for (size_t r = 0; in_place && r < n_rows; r++)
        memmove(got + r * dim, got + r * stride, dim * sizeof(float));
    assert_near(got, expected, n_rows * dim, BF16_TOLERANCE, "rmsnorm");
    if (!in_place) gpu_free(out);
    gpu_free(gpu_x), gpu_free(gpu_w);
    free(x), free(w), free(expected), free(got), free(host_w);
}

static void rmsnorm_equals_the_cpu(void **state) {
    for (size_t i = 0; i < N_WIDTHS; i++)
        for (size_t j = 0; j < N_HEIGHTS; j++)
            for (enum element dtype = ELEMENT_F32; dtype <= ELEMENT_BF16; dtype++)
                check_rmsnorm(heights[j], widths[i], (i + j) % 3 * 4, dtype, (i + j) % 2);
}

/* Rows of heads with a gap behind them; in place, or added to what is there.  Without a weight the
 * sum is scaled, too. */
static void check_rmsnorm_of_heads(uint32_t n_rows, uint32_t n_heads, uint32_t dim, bool accumulate,
                                   bool has_weight) {
    const size_t stride = n_heads * dim + 8, n = n_rows * stride;
    struct error err = {0};
    float *x = random_bf16(n, 3), *w = random_bf16(dim, 2), *expected = random_bf16(n, 1),
          *got = random_floats(n);
    void *gpu_x = gpu_array(x, n, ELEMENT_BF16), *gpu_w = gpu_array(w, dim, ELEMENT_F32),
         *gpu_out = accumulate ? gpu_array(expected, n, ELEMENT_BF16) : gpu_x;
    const struct weight cpu_weight = weight_plain(w, ELEMENT_F32, 1, dim),
                        gpu_weight = weight_plain(gpu_w, ELEMENT_F32, 1, dim);
    struct rmsnorm_args args = {.x = x,
                                .weight = has_weight ? &cpu_weight : NULL,
                                .out = accumulate ? expected : x,
                                .n_rows = n_rows,
                                .dim = dim,
                                .x_stride = stride,
                                .out_stride = stride,
                                .eps = 1e-5f,
                                .n_heads = n_heads,
                                .accumulate = accumulate,
                                .sum_scale = has_weight ? 0 : 0.75f};
    must(cpu->ops->rmsnorm(cpu, &args, &err), &err);
    args.x = gpu_x;
    args.weight = has_weight ? &gpu_weight : NULL;
    args.out = gpu_out;
    must(gpu->ops->rmsnorm(gpu, &args, &err), &err);
    gpu_read(got, gpu_out, n, ELEMENT_BF16);
    assert_near(got, accumulate ? expected : x, n, BF16_TOLERANCE, "rmsnorm of heads");
    if (accumulate) gpu_free(gpu_out);
    gpu_free(gpu_x), gpu_free(gpu_w);
    free(x), free(w), free(expected), free(got);
}

static void rmsnorm_of_heads_equals_the_cpu(void **state) {
    static const uint32_t dims[] = {6, 64, 80, 128, 256, 4096};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            check_rmsnorm_of_heads(1, 1, dims[i], accumulate, true);
            check_rmsnorm_of_heads(37, 5, dims[i], accumulate, true);
            check_rmsnorm_of_heads(37, 5, dims[i], accumulate, false);
        }
}

static void check_layernorm(uint32_t n_rows, uint32_t dim, enum element dtype, bool in_place) {
    const size_t n = (size_t)n_rows * dim;
    struct error err = {0};
    float *x = random_bf16(n, 3), *w = random_bf16(dim, 2), *b = random_bf16(dim, 1),
          *expected = random_floats(n), *got = random_floats(n);
    for (size_t i = 0; i < n; i++) x[i] += (float)(i / dim % 2 * 4);
    void *host_w = converted(w, dim, dtype), *gpu_x = gpu_array(x, n, ELEMENT_BF16),
         *gpu_w = gpu_array(w, dim, dtype), *gpu_b = gpu_array(b, dim, ELEMENT_F32),
         *out = in_place ? gpu_x : gpu_poison(n, ELEMENT_BF16);
    const struct weight cpu_weight = weight_plain(host_w, dtype, 1, dim),
                        gpu_weight = weight_plain(gpu_w, dtype, 1, dim),
                        cpu_bias = weight_plain(b, ELEMENT_F32, 1, dim),
                        gpu_bias = weight_plain(gpu_b, ELEMENT_F32, 1, dim);
    gpu_read(x, gpu_x, n, ELEMENT_BF16); /* as the sum was rounded */
    struct layernorm_args args = {x,   &cpu_weight, in_place ? &cpu_bias : NULL, expected, n_rows,
                                  dim, 1e-5f};
    must(cpu->ops->layernorm(cpu, &args, &err), &err);
    args.x = gpu_x;
    args.weight = &gpu_weight;
    args.bias = in_place ? &gpu_bias : NULL;
    args.out = out;
    must(gpu->ops->layernorm(gpu, &args, &err), &err);
    gpu_read(got, out, n, ELEMENT_BF16);
    assert_near(got, expected, n, BF16_TOLERANCE, "layernorm");
    if (!in_place) gpu_free(out);
    gpu_free(gpu_x), gpu_free(gpu_w), gpu_free(gpu_b);
    free(x), free(w), free(b), free(expected), free(got), free(host_w);
}

static void layernorm_equals_the_cpu(void **state) {
    for (size_t i = 0; i < N_WIDTHS; i++)
        for (size_t j = 0; j < N_HEIGHTS; j++)
            for (enum element dtype = ELEMENT_F32; dtype <= ELEMENT_BF16; dtype++)
                check_layernorm(heights[j], widths[i], dtype, (i + j) % 2);
}

static void activations_equal_the_cpu(void **state) {
    struct error err = {0};
    for (size_t i = 0; i < 3 * N_WIDTHS; i++) {
        const uint32_t rows = heights[i % N_HEIGHTS], dim = widths[i / 3], n = rows * dim;
        const enum act_kind kind = i % 3;
        float *x = random_bf16(n, 6), *got = random_floats(n);
        x[0] = NAN;
        void *gpu_x = gpu_array(x, n, ELEMENT_BF16);
        must(cpu->ops->activate(cpu, &(struct activate_args){x, rows, dim, kind}, &err), &err);
        must(gpu->ops->activate(gpu, &(struct activate_args){gpu_x, rows, dim, kind}, &err), &err);
        gpu_read(got, gpu_x, n, ELEMENT_BF16);
        assert_true(isnan(got[0]) && isnan(x[0]));
        assert_near(got + 1, x + 1, n - 1, BF16_TOLERANCE, "activation");
        gpu_free(gpu_x);
        free(x), free(got);
    }
}

static void output_gates_equal_the_cpu(void **state) {
    struct error err = {0};
    for (size_t i = 0; i < N_WIDTHS; i++) {
        const uint32_t rows = heights[i % N_HEIGHTS], dim = widths[i], n = rows * dim;
        float *x = random_bf16(n, 6), *gate = random_bf16(n, 100), *got = random_floats(n);
        void *gpu_x = gpu_array(x, n, ELEMENT_BF16), *gpu_gate = gpu_array(gate, n, ELEMENT_BF16);
        must(cpu->ops->gate(cpu, &(struct gate_args){x, gate, rows, dim}, &err), &err);
        must(gpu->ops->gate(gpu, &(struct gate_args){gpu_x, gpu_gate, rows, dim}, &err), &err);
        gpu_read(got, gpu_x, n, ELEMENT_BF16);
        assert_near(got, x, n, BF16_TOLERANCE, "gate");
        gpu_free(gpu_x), gpu_free(gpu_gate);
        free(x), free(gate), free(got);
    }
}

/* kind(x Wg^T) * u, where each row has a u of its own, a part of a longer row. */
static void gates_of_rows_equal_the_cpu(void **state) {
    enum { N_IN = 64 };
    struct error err = {0};
    for (size_t i = 0; i < 2 * N_WIDTHS; i++) {
        const uint32_t rows = heights[i % N_HEIGHTS], dim = widths[i / 2], n = rows * dim,
                       stride = 3 * dim;
        const enum gate_kind kind = i % 2 ? GATE_GELU : GATE_SILU;
        float *x = random_bf16(rows * N_IN, 1), *gate = random_bf16(dim * N_IN, 1),
              *u = random_bf16(rows * stride, 6), *on_cpu = random_floats(n),
              *workspace = random_floats(2 * (size_t)n), *got = random_floats(n);
        void *gpu_x = gpu_array(x, rows * N_IN, ELEMENT_BF16),
             *gpu_gate = gpu_array(gate, dim * N_IN, ELEMENT_BF16),
             *gpu_u = gpu_array(u, rows * stride, ELEMENT_BF16),
             *gpu_workspace = gpu_poison(2 * (size_t)n, ELEMENT_BF16),
             *gpu_out = gpu_poison(n, ELEMENT_BF16);
        const struct weight w = weight_plain(gate, ELEMENT_F32, dim, N_IN),
                            own = weight_plain(u + dim, ELEMENT_F32, rows, stride),
                            gpu_w = weight_plain(gpu_gate, ELEMENT_BF16, dim, N_IN),
                            gpu_own =
                                weight_plain((uint16_t *)gpu_u + dim, ELEMENT_BF16, rows, stride);
        struct gated_args args = {.x = x,
                                  .n_rows = rows,
                                  .n_in = N_IN,
                                  .gate = &w,
                                  .up_bias = &own,
                                  .gate_up = workspace,
                                  .out = on_cpu,
                                  .kind = kind};
        must(cpu->ops->gated(cpu, &args, &err), &err);
        args.x = gpu_x, args.gate = &gpu_w, args.up_bias = &gpu_own;
        args.gate_up = gpu_workspace, args.out = gpu_out;
        must(gpu->ops->gated(gpu, &args, &err), &err);
        gpu_read(got, gpu_out, n, ELEMENT_BF16);
        assert_near(got, on_cpu, n, 2 * BF16_TOLERANCE, "gate of rows");
        gpu_free(gpu_x), gpu_free(gpu_gate), gpu_free(gpu_u), gpu_free(gpu_workspace);
        gpu_free(gpu_out);
        free(x), free(gate), free(u), free(on_cpu), free(workspace), free(got);
    }
}

static void check_learned_positions(uint32_t n_rows, uint32_t dim, enum element dtype) {
    enum { N_POSITIONS = 400, FIRST = 2 };
    const size_t n = (size_t)n_rows * dim;
    struct error err = {0};
    uint32_t *tokens = calloc(n_rows, sizeof(*tokens)),
             *positions = calloc(n_rows, sizeof(*positions));
    float *table = random_bf16(N_POSITIONS * (size_t)dim, 1), *x = random_bf16(n, 1),
          *got = random_floats(n);
    void *host = converted(table, N_POSITIONS * (size_t)dim, dtype),
         *gpu_table = gpu_array(table, N_POSITIONS * (size_t)dim, dtype),
         *gpu_x = gpu_array(x, n, ELEMENT_BF16);
    const struct weight cpu_weight = weight_plain(host, dtype, N_POSITIONS, dim),
                        gpu_weight = weight_plain(gpu_table, dtype, N_POSITIONS, dim);
    for (uint32_t i = 0; i < n_rows; i++) positions[i] = random_below(N_POSITIONS - FIRST);
    const struct step step = {.n_rows = n_rows, .tokens = tokens, .positions = positions};
    must(cpu->ops->step_begin(cpu, &step, &err), &err);
    must(cpu->ops->add_positions(cpu, &(struct add_positions_args){&cpu_weight, FIRST, x}, &err),
         &err);
    must(gpu->ops->step_begin(gpu, &step, &err), &err);
    must(
        gpu->ops->add_positions(gpu, &(struct add_positions_args){&gpu_weight, FIRST, gpu_x}, &err),
        &err);
    gpu_read(got, gpu_x, n, ELEMENT_BF16);
    assert_near(got, x, n, BF16_TOLERANCE, "learned positions");
    gpu_free(gpu_table), gpu_free(gpu_x);
    free(tokens), free(positions), free(table), free(x), free(got), free(host);
}

static void learned_positions_equal_the_cpu(void **state) {
    for (size_t i = 0; i < N_WIDTHS; i++)
        for (enum element dtype = ELEMENT_F32; dtype <= ELEMENT_BF16; dtype++)
            check_learned_positions(heights[i % N_HEIGHTS], widths[i], dtype);
}

static void check_embed(uint32_t n_rows, uint32_t dim, enum element dtype) {
    enum { VOCAB = 50 };
    struct error err = {0};
    uint32_t *tokens = malloc(n_rows * sizeof(*tokens));
    float *table = random_bf16(VOCAB * (size_t)dim, 1),
          *expected = random_floats((size_t)n_rows * dim),
          *got = random_floats((size_t)n_rows * dim);
    void *host = converted(table, VOCAB * (size_t)dim, dtype),
         *gpu_table = gpu_array(table, VOCAB * (size_t)dim, dtype),
         *out = gpu_poison((size_t)n_rows * dim, ELEMENT_BF16);
    const struct weight cpu_weight = weight_plain(host, dtype, VOCAB, dim),
                        gpu_weight = weight_plain(gpu_table, dtype, VOCAB, dim);
    for (uint32_t i = 0; i < n_rows; i++) tokens[i] = random_below(VOCAB);
    const struct step step = {.n_rows = n_rows, .tokens = tokens};
    const float scale = n_rows % 2 ? 1 : 2;
    must(cpu->ops->step_begin(cpu, &step, &err), &err);
    must(cpu->ops->embed(cpu, &(struct embed_args){&cpu_weight, expected, scale}, &err), &err);
    must(gpu->ops->step_begin(gpu, &step, &err), &err);
    must(gpu->ops->embed(gpu, &(struct embed_args){&gpu_weight, out, scale}, &err), &err);
    gpu_read(got, out, (size_t)n_rows * dim, ELEMENT_BF16);
    assert_memory_equal(got, expected, (size_t)n_rows * dim * sizeof(float)); /* copies are exact */
    gpu_free(gpu_table), gpu_free(out);
    free(tokens), free(table), free(expected), free(got), free(host);
}

static void embedding_equals_the_cpu(void **state) {
    for (size_t i = 0; i < N_WIDTHS; i++)
        for (enum element dtype = ELEMENT_F32; dtype <= ELEMENT_BF16; dtype++)
            check_embed(heights[i % N_HEIGHTS], widths[i], dtype);
}

static void gather_picks_rows(void **state) {
    enum { FROM = 40, N = 70 };
    struct error err = {0};
    uint32_t rows[N];
    for (size_t i = 0; i < N_WIDTHS; i++) {
        const uint32_t dim = widths[i];
        float *x = random_bf16((size_t)FROM * dim, 1), *got = random_floats((size_t)N * dim);
        void *gpu_x = gpu_array(x, (size_t)FROM * dim, ELEMENT_BF16),
             *out = gpu_poison((size_t)N * dim, ELEMENT_BF16);
        for (int k = 0; k < N; k++) rows[k] = random_below(FROM);
        must(gpu->ops->gather_rows(gpu, &(struct gather_rows_args){gpu_x, out, rows, N, dim}, &err),
             &err);
        gpu_read(got, out, (size_t)N * dim, ELEMENT_BF16);
        for (int k = 0; k < N; k++)
            assert_memory_equal(got + (size_t)k * dim, x + (size_t)rows[k] * dim,
                                dim * sizeof(float));
        gpu_free(gpu_x), gpu_free(out);
        free(x), free(got);
    }
}

/* Logits: from linear to flat, one of them NaN; what lies behind is left alone. */
static void soft_cap_equals_the_cpu(void **state) {
    struct error err = {0};
    for (size_t i = 0; i < N_WIDTHS; i++) {
        const uint32_t rows = heights[i % N_HEIGHTS], n = rows * widths[i];
        float *x = random_floats(n + 1), *got = random_floats(n + 1);
        for (uint32_t k = 0; k < n; k++) x[k] *= k % 2 ? 10 : 200;
        x[0] = NAN;
        void *gpu_x = gpu_array(x, n + 1, ELEMENT_F32);
        must(cpu->ops->soft_cap(cpu, &(struct soft_cap_args){x, rows, widths[i], 30}, &err), &err);
        must(gpu->ops->soft_cap(gpu, &(struct soft_cap_args){gpu_x, rows, widths[i], 30}, &err),
             &err);
        gpu_read(got, gpu_x, n + 1, ELEMENT_F32);
        assert_true(isnan(got[0]) && got[n] == x[n]);
        assert_near(got + 1, x + 1, n, 1e-6, "soft cap");
        gpu_free(gpu_x);
        free(x), free(got);
    }
}

/* ---- norms of heads before RoPE ---- */

enum { ROPE_PAGES = 2, KV_HEADS = 2 };

/* What rope_append reads and writes, for one sequence. */
struct rope_rig {
    uint32_t n_heads, dim, n_rows;
    struct kv_pool kv;
    float *rows; /* what qkv begins with */
    size_t n_qkv, pool_bytes;
    struct weight norms[2];
    double inv_freq[128];
};

/* Normalises heads as a part of rope_append, or before it.  Returns the bits of qkv, and behind
 * them those of the pages. */
static uint8_t *run_rope(const struct rope_rig *r, bool apart) {
    struct error err = {0};
    uint32_t positions[ROPE_PAGES * PAGE_TOKENS], pages[ROPE_PAGES] = {1, 0};
    const struct kv_view view = {pages, r->n_rows, 0};
    const struct step_seq seq = {.n_rows = r->n_rows, .layers = &view};
    const struct step step = {.n_rows = r->n_rows,
                              .n_seqs = 1,
                              .n_decode = r->n_rows == 1,
                              .n_layers = 1,
                              .positions = positions,
                              .seqs = &seq};
    const struct head_norms norms = {&r->norms[0], &r->norms[1], 1e-6f};
    struct rope_append_args args = {.qkv = gpu_array(r->rows, r->n_qkv, ELEMENT_BF16),
                                    .kv = &r->kv,
                                    .inv_freq = r->inv_freq,
                                    .rope_scale = 1,
                                    .n_freqs = r->dim / 2,
                                    .n_heads = r->n_heads,
                                    .norms = &norms};
    uint8_t *bits = malloc(r->n_qkv * 2 + r->pool_bytes);
    for (uint32_t i = 0; i < r->n_rows; i++) positions[i] = 1000 + i;
    must(gpu->ops->step_begin(gpu, &step, &err), &err);
    if (apart) {
        must(norm_heads(gpu, &args, r->n_rows, &err), &err);
        args.norms = NULL;
    }
    must(gpu->ops->rope_append(gpu, &args, &err), &err);
    must(gpu->ops->download(gpu, bits, args.qkv, r->n_qkv * 2, &err), &err);
    must(gpu->ops->download(gpu, bits + r->n_qkv * 2, r->kv.base, r->pool_bytes, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    gpu_free(args.qkv);
    return bits;
}

static void check_head_norms(uint32_t n_heads, uint32_t dim, uint32_t n_rows,
                             enum page_format format) {
    struct rope_rig r = {.n_heads = n_heads, .dim = dim, .n_rows = n_rows};
    float *weights = random_bf16(2 * (size_t)dim, 2);
    r.kv = (struct kv_pool){
        .format = format, .n_pages = ROPE_PAGES, .n_kv_heads = KV_HEADS, .head_dim = dim};
    r.kv.page_bytes = kv_page_bytes(&r.kv);
    r.pool_bytes = ROPE_PAGES * r.kv.page_bytes;
    r.kv.base = gpu_poison(r.pool_bytes / 2, ELEMENT_BF16);
    r.n_qkv = (size_t)n_rows * (n_heads + 2 * KV_HEADS) * dim;
    r.rows = random_bf16(r.n_qkv, 3);
    for (uint32_t i = 0; i < 2; i++)
        r.norms[i] =
            weight_plain(gpu_array(weights + i * dim, dim, ELEMENT_BF16), ELEMENT_BF16, 1, dim);
    for (uint32_t i = 0; i < dim / 2; i++) r.inv_freq[i] = pow(10000, -2.0 * i / dim);
    uint8_t *together = run_rope(&r, false), *apart = run_rope(&r, true);
    assert_memory_equal(together, apart, r.n_qkv * 2 + r.pool_bytes);
    for (uint32_t i = 0; i < 2; i++) gpu_free((void *)r.norms[i].data);
    gpu_free(r.kv.base);
    free(weights), free(r.rows), free(together), free(apart);
}

/* A head's norm has the same bits whether it is a part of rope_append or not.  Rows are few and
 * many.  Heads are a warp's, or a part of one, and some no kernel takes. */
static void norms_of_heads_have_the_same_bits_in_rope(void **state) {
    static const uint32_t dims[] = {16, 64, 96, 128, 256}, counts[] = {1, 5, 16, 17, 100};
    for (size_t i = 0; i < COUNT(dims); i++)
        for (size_t j = 0; j < COUNT(counts); j++) {
            check_head_norms(7, dims[i], counts[j], PAGE_BF16);
            check_head_norms(4, dims[i], counts[j], PAGE_FP8);
        }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_heads_have_the_same_bits_in_rope),
        cmocka_unit_test(rmsnorm_equals_the_cpu),
        cmocka_unit_test(rmsnorm_of_heads_equals_the_cpu),
        cmocka_unit_test(layernorm_equals_the_cpu),
        cmocka_unit_test(activations_equal_the_cpu),
        cmocka_unit_test(output_gates_equal_the_cpu),
        cmocka_unit_test(gates_of_rows_equal_the_cpu),
        cmocka_unit_test(learned_positions_equal_the_cpu),
        cmocka_unit_test(embedding_equals_the_cpu),
        cmocka_unit_test(gather_picks_rows),
        cmocka_unit_test(soft_cap_equals_the_cpu),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
