/* test_attention.c - RoPE, append and attention of the CUDA backend against the CPU's.
 *
 * Batches are ragged, and decode and prefill at once, in several layers, on scattered pages of
 * every format. */
#include "cuda/host/internal.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/score_terms.h"

enum { N_LAYERS = 2, MAX_SEQS = 8, MAX_PAGES = 40 };

struct batch {
    uint32_t n_heads, n_kv, dim, n_freqs, n_seqs, n_rows;
    uint32_t history[MAX_SEQS], rows[MAX_SEQS]; /* tokens before the step, and in it */
    enum page_format kv_format;
    uint32_t pages[N_LAYERS][MAX_SEQS][MAX_PAGES];
    struct kv_view views[MAX_SEQS][N_LAYERS];
    struct step_seq seqs[MAX_SEQS];
    uint32_t windows[N_LAYERS];
    float softcap;
    struct score_terms terms;
    float query_beta; /* with periods of 100 positions */
    uint32_t *positions;
    double inv_freq[128];
    struct kv_pool cpu_kv, gpu_kv;
};

static uint32_t width_of(const struct batch *b) {
    return (b->n_heads + 2 * b->n_kv) * b->dim;
}

static void make_pools(struct batch *b) {
    struct error err = {0};
    const uint32_t n_pages = N_LAYERS * MAX_SEQS * MAX_PAGES + 1;
    b->gpu_kv = (struct kv_pool){
        .format = b->kv_format, .n_pages = n_pages, .n_kv_heads = b->n_kv, .head_dim = b->dim};
    b->gpu_kv.page_bytes = kv_page_bytes(&b->gpu_kv);
    b->cpu_kv = b->gpu_kv;
    b->gpu_kv.base = gpu_poison(n_pages * b->gpu_kv.page_bytes / page_row_bytes(b->kv_format, 1),
                                page_element(b->kv_format));
    must(cpu->ops->alloc(cpu, n_pages * b->cpu_kv.page_bytes, &b->cpu_kv.base, &err), &err);
    for (uint32_t l = 0, next = 0; l < N_LAYERS; l++)
        for (uint32_t s = 0; s < MAX_SEQS; s++)
            for (uint32_t p = 0; p < MAX_PAGES; p++)
                b->pages[l][s][p] = (uint32_t)((uint64_t)next++ * 7 % n_pages);
    for (uint32_t i = 0; i < b->n_freqs; i++) b->inv_freq[i] = pow(10000, -(double)i / b->n_freqs);
}

static void free_batch(struct batch *b) {
    score_terms_fini(&b->terms);
    gpu_free(b->gpu_kv.base);
    cpu->ops->free(cpu, b->cpu_kv.base);
    free(b->positions);
    free(b);
}

/* One step: every sequence appends n[i] tokens (none: not in the step) to the `seen` it has. */
static struct step make_step(struct batch *b, const uint32_t *seen, const uint32_t *n) {
    struct step step = {.n_layers = N_LAYERS, .windows = b->windows, .seqs = b->seqs};
    b->positions = realloc(b->positions, 4096 * sizeof(uint32_t));
    for (int decoding = 1; decoding >= 0; decoding--) {
        for (uint32_t i = 0; i < b->n_seqs; i++) {
            if (n[i] == 0 || (n[i] == 1) != decoding) continue;
            for (uint32_t l = 0; l < N_LAYERS; l++)
                b->views[step.n_seqs][l] =
                    (struct kv_view){b->pages[l][i], seen[i] + n[i], seen[i]};
            b->seqs[step.n_seqs] = (struct step_seq){
                .first_row = step.n_rows, .n_rows = n[i], .layers = b->views[step.n_seqs]};
            for (uint32_t t = 0; t < n[i]; t++) b->positions[step.n_rows++] = seen[i] + t;
            step.n_seqs++;
        }
        if (decoding) step.n_decode = step.n_seqs;
    }
    step.positions = b->positions;
    return step;
}

static int attend(struct backend *be, const struct batch *b, const struct kv_pool *kv,
                  uint32_t layer, void *q, void *out, struct error *err) {
    const struct attn_args attn = {.q = q,
                                   .q_stride = width_of(b),
                                   .out = out,
                                   .kv = kv,
                                   .layer = layer,
                                   .n_heads = b->n_heads,
                                   .scale = (float)(1 / sqrt(b->dim)),
                                   .softcap = b->softcap,
                                   .slopes = slopes_of(&b->terms),
                                   .group = NO_GROUP,
                                   .sinks = sinks_on(&b->terms, be)};
    const int rc = be->ops->attn_decode(be, &attn, err);
    return rc ? rc : be->ops->attn_prefill(be, &attn, err);
}

static int submit_layer(struct backend *be, const struct batch *b, const struct kv_pool *kv,
                        uint32_t layer, void *qkv, void *out, struct error *err) {
    const struct rope_append_args rope = {.qkv = qkv,
                                          .kv = kv,
                                          .inv_freq = b->inv_freq,
                                          .rope_scale = 1.25f,
                                          .n_freqs = b->n_freqs,
                                          .layer = layer,
                                          .n_heads = b->n_heads,
                                          .query_beta = b->query_beta,
                                          .query_period = 100};
    const int rc = be->ops->rope_append(be, &rope, err);
    return rc ? rc : attend(be, b, kv, layer, qkv, out, err);
}

static void run_layer(struct backend *be, const struct batch *b, const struct kv_pool *kv,
                      uint32_t layer, void *qkv, void *out) {
    struct error err = {0};
    must(submit_layer(be, b, kv, layer, qkv, out, &err), &err);
    must(be->ops->sync(be, &err), &err);
}

/* Keys of the CPU are f32 or rounded once, those of the device come from bf16: 1 % of the largest
 * result is a few roundings of K and of the rotated q, through the softmax.  A wrong slot or page
 * is off by far more.  In 8 bits a key that lies half way between two codes may get either. */
static void run_step(struct batch *b, const struct step *step, bool check) {
    struct error err = {0};
    const size_t n_qkv = (size_t)step->n_rows * width_of(b),
                 n_out = (size_t)step->n_rows * b->n_heads * b->dim;
    float *expected = random_floats(n_out), *got = random_floats(n_out),
          *rotated = random_floats(n_qkv);
    must(cpu->ops->step_begin(cpu, step, &err), &err);
    must(gpu->ops->step_begin(gpu, step, &err), &err);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        float *qkv = random_bf16(n_qkv, 2);
        if (b->kv_format == PAGE_FP8) vary_rows(qkv, n_qkv / b->dim, b->dim);
        void *gpu_qkv = gpu_array(qkv, n_qkv, ELEMENT_BF16),
             *gpu_out = gpu_poison(n_out, ELEMENT_BF16);
        run_layer(cpu, b, &b->cpu_kv, l, qkv, expected);
        run_layer(gpu, b, &b->gpu_kv, l, gpu_qkv, gpu_out);
        if (check) {
            gpu_read(rotated, gpu_qkv, n_qkv, ELEMENT_BF16);
            assert_near(rotated, qkv, n_qkv, BF16_TOLERANCE, "rope");
            gpu_read(got, gpu_out, n_out, ELEMENT_BF16);
            assert_near(got, expected, n_out, 1e-2, "attention");
        }
        gpu_free(gpu_qkv), gpu_free(gpu_out);
        free(qkv);
    }
    free(expected), free(got), free(rotated);
}

/* ---- the same by a graph ---- */

enum { GRAPH_ROWS = 24 };

/* The ctx of a graph's body, whose arguments are the same in every step. */
struct graph_rig {
    struct batch *b;
    void *qkv[N_LAYERS], *out[N_LAYERS]; /* device [GRAPH_ROWS] */
};

/* More layers attend than have keys, as in models whose last layers share those of earlier ones. */
static int graph_layers(void *ctx, uint32_t n_rows, struct error *err) {
    enum { SHARING = 4 };
    struct graph_rig *r = ctx;
    int rc = 0;
    assert_int_equal(n_rows, GRAPH_ROWS);
    for (uint32_t l = 0; l < N_LAYERS && !rc; l++)
        rc = submit_layer(gpu, r->b, &r->b->gpu_kv, l, r->qkv[l], r->out[l], err);
    for (uint32_t i = 0; i < SHARING && !rc; i++)
        rc = attend(gpu, r->b, &r->b->gpu_kv, i % N_LAYERS, r->qkv[i % N_LAYERS],
                    r->out[i % N_LAYERS], err);
    return rc;
}

/* All rows see hundreds of tokens, so that results are small beside values of up to 2, but not what
 * rounds these.  Errors are held to 1 then, if no result is as large. */
static void run_graph_step(struct graph_rig *r, const struct step *step) {
    struct error err = {0};
    const struct batch *b = r->b;
    const size_t n_qkv = (size_t)step->n_rows * width_of(b),
                 n_out = (size_t)step->n_rows * b->n_heads * b->dim;
    float *qkv[N_LAYERS], *expected = random_floats(n_out), *got = random_floats(n_out);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        qkv[l] = random_bf16(n_qkv, 2);
        void *host = converted(qkv[l], n_qkv, ELEMENT_BF16);
        must(gpu->ops->upload(gpu, r->qkv[l], host, n_qkv * 2, &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        free(host);
    }
    must(cpu->ops->step_begin(cpu, step, &err), &err);
    must(gpu->ops->step_begin(gpu, step, &err), &err);
    must(gpu->ops->run_graph(gpu, GRAPH_ROWS, graph_layers, r, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        run_layer(cpu, b, &b->cpu_kv, l, qkv[l], expected);
        gpu_read(got, r->out[l], n_out, ELEMENT_BF16);
        assert_near_of(got, expected, n_out, 1, 1e-2, "attention by a graph");
        free(qkv[l]);
    }
    free(expected), free(got);
}

/* Returns how many of the device's graphs attend to prompts.  Those of other rigs went with their
 * memory. */
static uint32_t count_prompt_graphs(void) {
    const struct cuda_backend *cuda = CUDA_BACKEND(gpu);
    uint32_t n = 0;
    for (uint32_t i = 0; i < cuda->n_graphs; i++) n += cuda->graphs[i].n_prompts > 0;
    return n;
}

/* The history goes in as a prompt, then comes the step that is checked. */
static void check_batch(struct batch *b) {
    const uint32_t none[MAX_SEQS] = {0};
    make_pools(b);
    struct step step = make_step(b, none, b->history);
    if (step.n_rows) run_step(b, &step, true);
    step = make_step(b, b->history, b->rows);
    run_step(b, &step, true);
    free_batch(b);
}

static struct batch *new_batch(uint32_t n_heads, uint32_t n_kv, uint32_t dim, uint32_t n_freqs,
                               enum page_format kv_format) {
    struct batch *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    b->n_heads = n_heads, b->n_kv = n_kv, b->dim = dim, b->n_freqs = n_freqs,
    b->kv_format = kv_format;
    return b;
}

static const uint32_t shapes[][4] = {/* heads, kv heads, head_dim, rotary pairs */
                                     {1, 1, 8, 4},    {2, 1, 16, 8},    {6, 2, 64, 32},
                                     {4, 4, 128, 64}, {32, 8, 128, 64}, {8, 1, 80, 40},
                                     {3, 1, 96, 48},  {4, 2, 256, 128}, {16, 2, 64, 16}};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static const uint32_t ragged[MAX_SEQS] = {0, 1, 63, 64, 65, 130, 577, 200};

static void check_ragged(const uint32_t *rows, const uint32_t *windows, float softcap) {
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (enum page_format format = PAGE_F32; format <= PAGE_FP8; format++) {
            struct batch *b =
                new_batch(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], format);
            b->n_seqs = MAX_SEQS;
            memcpy(b->history, ragged, sizeof(ragged));
            memcpy(b->rows, rows, sizeof(b->rows));
            memcpy(b->windows, windows, sizeof(b->windows));
            b->softcap = softcap;
            check_batch(b);
        }
    }
}

static void ragged_batches_equal_the_cpu(void **state) {
    check_ragged((const uint32_t[MAX_SEQS]){1, 1, 1, 1, 70, 5, 1, 128},
                 (const uint32_t[N_LAYERS]){0, 0}, 0);
}

/* Windows that begin within a page, end with one, and are longer than most of the texts; plans of
 * their own, shared ones, and one for layers without. */
static void windows_equal_the_cpu(void **state) {
    static const uint32_t windows[][N_LAYERS] = {{17, 0}, {0, 300}, {64, 64}, {1, 129}};
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        check_ragged((const uint32_t[MAX_SEQS]){1, 1, 1, 1, 70, 5, 1, 128}, windows[i], 0);
        check_ragged((const uint32_t[MAX_SEQS]){1, 300, 1, 1, 1, 1, 200, 1}, windows[i], 0);
    }
}

/* Scores are about 10 at most: a cap that bends many of them, and one that flattens most. */
static void soft_caps_equal_the_cpu(void **state) {
    static const uint32_t windows[N_LAYERS] = {0, 50};
    check_ragged((const uint32_t[MAX_SEQS]){1, 1, 1, 1, 70, 5, 1, 128}, windows, 4);
    check_ragged((const uint32_t[MAX_SEQS]){1, 300, 1, 1, 1, 1, 200, 1}, windows, 0.5f);
}

/* Sinks and distances, alone, together, and beside a cap and a window. */
static void sinks_and_slopes_equal_the_cpu(void **state) {
    static const uint32_t rows[][MAX_SEQS] = {{1, 1, 1, 1, 70, 5, 1, 128},
                                              {1, 300, 1, 1, 1, 1, 200, 1}};
    for (uint32_t i = 0; i < 4 * N_SHAPES; i++) {
        const uint32_t *shape = shapes[i % N_SHAPES];
        const enum page_format format = (enum page_format)(PAGE_F32 + i / N_SHAPES);
        struct batch *b = new_batch(shape[0], shape[1], shape[2], shape[3], format);
        b->n_seqs = MAX_SEQS;
        memcpy(b->history, ragged, sizeof(ragged));
        memcpy(b->rows, rows[i % 2], sizeof(rows[0]));
        if (i % 3 == 1) b->windows[0] = 50;
        b->softcap = i % 5 == 3 ? 4 : 0;
        score_terms_init(&b->terms, score_case_at(1 + i % 4));
        check_batch(b);
    }
}

/* Each length of a period occurs, in the past and in the step. */
static void queries_are_scaled_by_their_position(void **state) {
    for (size_t s = 0; s < N_SHAPES; s++)
        for (enum page_format format = PAGE_F32; format <= PAGE_FP8; format++) {
            struct batch *b =
                new_batch(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], format);
            b->n_seqs = 4;
            memcpy(b->history, (const uint32_t[]){0, 99, 577, 95}, 4 * sizeof(uint32_t));
            memcpy(b->rows, (const uint32_t[]){1, 1, 40, 300}, 4 * sizeof(uint32_t));
            b->query_beta = 0.25f;
            check_batch(b);
        }
}

/* Texts so long, and rows so few, that prompts are split; with 8-bit pages so few that none are
 * copied, and too many in one prompt.  A window that leaves some pieces empty, and one in all
 * layers. */
static void few_rows_behind_long_texts_equal_the_cpu(void **state) {
    static const uint32_t windows[][N_LAYERS] = {{0, 0}, {0, 700}, {1500, 1500}},
                          rows[][4] = {{3, 40, 17, 1}, {3, 200, 17, 1}},
                          split_shapes[] = {2, 3, 7, 8};
    for (size_t s = 0; s < 4; s++) {
        const uint32_t *shape = shapes[split_shapes[s]];
        for (enum page_format format = PAGE_F16; format <= PAGE_FP8; format++) {
            for (size_t i = 0; i < 2 * sizeof(windows) / sizeof(windows[0]); i++) {
                const size_t w = i / 2;
                struct batch *b = new_batch(shape[0], shape[1], shape[2], shape[3], format);
                b->n_seqs = 4;
                memcpy(b->history, (const uint32_t[]){2300, 900, 520, 200}, 4 * sizeof(uint32_t));
                memcpy(b->rows, rows[i % 2], sizeof(rows[0]));
                memcpy(b->windows, windows[w], sizeof(b->windows));
                b->softcap = w == 1 ? 4 : 0;
                score_terms_init(&b->terms, score_case_at((uint32_t)(i + s)));
                check_batch(b);
            }
        }
    }
}

static void single_sequences_equal_the_cpu(void **state) {
    static const uint32_t lengths[][2] = {{0, 1},  {0, 2},  {63, 1},   {64, 1},   {0, 64},
                                          {0, 65}, {1, 64}, {500, 13}, {1200, 1}, {1023, 300}};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const uint32_t *shape = shapes[2 + i % 3];
        struct batch *b =
            new_batch(shape[0], shape[1], shape[2], shape[3], i % 2 ? PAGE_FP8 : PAGE_BF16);
        b->n_seqs = 1;
        b->history[0] = lengths[i][0];
        b->rows[0] = lengths[i][1];
        check_batch(b);
    }
}

/* Steps of few rows, by graphs that are set to one after the other: prompts that are attended
 * whole, in pieces, and in pieces that are merged, alone and beside sequences that decode; each
 * kind at first, recorded, and at other lengths. */
static void check_graphs(struct batch *b) {
    static const uint32_t rows[][2] = {{17, 0}, {17, 0}, {17, 0}, {0, 17}, {0, 17}, {0, 17},
                                       {5, 17}, {5, 17}, {5, 17}, {1, 17}, {1, 17}, {1, 17},
                                       {17, 1}, {17, 1}, {12, 0}, {0, 9},  {7, 7},  {1, 3},
                                       {2, 1},  {0, 24}, {24, 0}, {1, 1},  {9, 0},  {0, 2}};
    struct graph_rig r = {.b = b};
    const uint32_t none[MAX_SEQS] = {0};
    b->n_seqs = 2;
    make_pools(b);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        r.qkv[l] = gpu_poison((size_t)GRAPH_ROWS * width_of(b), ELEMENT_BF16);
        r.out[l] = gpu_poison((size_t)GRAPH_ROWS * b->n_heads * b->dim, ELEMENT_BF16);
    }
    struct step step = make_step(b, none, b->history);
    run_step(b, &step, false);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        step = make_step(b, b->history, rows[i]);
        run_graph_step(&r, &step);
        for (uint32_t j = 0; j < 2; j++) b->history[j] += rows[i][j];
    }
    /* No graph copies prompts' pages, as those of 8 bits are where they are not converted. */
    if (b->kv_format != PAGE_FP8) assert_true(count_prompt_graphs() >= 2);
    for (uint32_t l = 0; l < N_LAYERS; l++) gpu_free(r.qkv[l]), gpu_free(r.out[l]);
    free_batch(b);
}

static void graphs_of_few_rows_equal_the_cpu(void **state) {
    static const uint32_t windows[][N_LAYERS] = {{0, 0}, {0, 300}};
    for (size_t s = 0; s < N_SHAPES; s++) {
        for (enum page_format format = PAGE_F32; format <= PAGE_FP8; format++) {
            for (uint32_t w = 0; w < 2; w++) {
                struct batch *b =
                    new_batch(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], format);
                b->history[0] = 200, b->history[1] = 2000;
                memcpy(b->windows, windows[w], sizeof(b->windows));
                b->softcap = w == 1 ? 4 : 0;
                score_terms_init(&b->terms, score_case_at((uint32_t)(w + s)));
                check_graphs(b);
            }
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_sequences_equal_the_cpu),
        cmocka_unit_test(ragged_batches_equal_the_cpu),
        cmocka_unit_test(windows_equal_the_cpu),
        cmocka_unit_test(soft_caps_equal_the_cpu),
        cmocka_unit_test(sinks_and_slopes_equal_the_cpu),
        cmocka_unit_test(queries_are_scaled_by_their_position),
        cmocka_unit_test(few_rows_behind_long_texts_equal_the_cpu),
        cmocka_unit_test(graphs_of_few_rows_equal_the_cpu),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
