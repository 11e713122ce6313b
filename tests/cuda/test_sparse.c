/* test_sparse.c - sparse prompts of the CUDA backend against the CPU's: which slots the tiles of
 * every head visit, what is reported about them, and attention over them.
 *
 * Both backends start from the same numbers, which bf16 holds exactly.  Frequencies are all 0, so
 * nothing is rounded on the way to the scores.  These differ by the order of f32 sums, 1e-6 of a
 * score.  Two scores around the last one chosen may be that close, and then the sides choose
 * differently; among a thousand random scores neighbours are 1e-3 apart, so that one head in a
 * thousand may do so.  MOST_TIES of all heads are allowed to.  What does not come from scores
 * (A-shape, synthetic lines, dense tiles) is the same without exception. */
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/score_terms.h"

#include "cuda/attention/sparse/sparse_test.h"
#include "engine/cpu/sparse.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"

enum { MAX_SLOTS = 2400, N_PAGES = 2 * (MAX_SLOTS / PAGE_TOKENS + 2), OTHER_ROWS = 70 };
enum { MOST_HEADS = 16, MOST_TIES = 2 };

static uint32_t n_heads_seen, n_ties;

struct shape {
    uint32_t n_heads, n_kv, dim;
    enum page_format format;
    uint32_t first_slot, n_rows;
    uint32_t dense_tail; /* rows from there on are dense */
    float dense_above;
    uint32_t synthetic;
    uint32_t slice; /* attn_prefill: rows at a time; 0: all of them, in the step of index() */
    float softcap;
};

static const struct shape shapes[] = {
    {8, 2, 128, PAGE_BF16, 0, 700, 0, 1.0f, 0, 0, 6},
    {8, 8, 64, PAGE_BF16, 64, 128, 0, 1.0f, 0, 0, 0},
    {8, 1, 64, PAGE_F16, 192, 513, 64, 1.0f, 0, 256, 6},
    {6, 2, 80, PAGE_BF16, 0, 64, 0, 1.0f, 0, 0, 0},
    {5, 1, 96, PAGE_BF16, 320, 1, 0, 1.0f, 0, 0, 0},
    {14, 2, 128, PAGE_BF16, 1024, 1025, 130, 1.0f, 0, 640, 0},
    {4, 2, 256, PAGE_F16, 128, 300, 0, 0.5f, 0, 0, 6},
    {4, 2, 72, PAGE_BF16, 128, 200, 10, 0.6f, 0, 0, 0},
    {8, 2, 128, PAGE_FP8, 64, 900, 40, 1.0f, 0, 256, 0},
    {6, 2, 80, PAGE_FP8, 192, 300, 0, 0.5f, 0, 0, 6},
    {4, 2, 72, PAGE_FP8, 128, 200, 10, 0.6f, 0, 0, 0},
    /* Behind 8 bits, whose plan of copies is not one for f32. */
    {4, 4, 16, PAGE_F32, 64, 350, 0, 1.0f, 0, 128, 6},
    {8, 2, 128, PAGE_BF16, 512, 1500, 64, 1.0f, 77, 512, 0},
    {8, 4, 128, PAGE_BF16, 0, 2300, 0, 0.7f, 0, 0, 0},
};

struct rig {
    const struct shape *shape;
    struct attn_pattern patterns[MOST_HEADS];
    struct attn_sparse sparse;
    struct kv_pool cpu_kv, gpu_kv;
    uint32_t pages[2][N_PAGES / 2]; /* of the other prompt, of the sparse one */
    struct kv_view views[2];
    struct step_seq seqs[2];
    struct step step;
    uint32_t positions[OTHER_ROWS + MAX_SLOTS];
    struct score_terms terms;
    float *qkv; /* [OTHER_ROWS + n_slots] rows: the other prompt's, then all of the sparse one */
    void *gpu_qkv;
    float *out, *lse, *gpu_out, *gpu_lse; /* of the same rows */
    void *out_on_gpu, *lse_on_gpu;
    bool differs[MOST_HEADS]; /* both sides may be right */
};

static size_t width_of(const struct shape *s) {
    return (size_t)(s->n_heads + 2 * s->n_kv) * s->dim;
}

static uint32_t slots_of(const struct shape *s) {
    return s->first_slot + s->n_rows;
}

/* ---- setting up ---- */

static void make_patterns(struct rig *r) {
    static const struct attn_pattern kinds[] = {
        {PATTERN_VERTICAL_SLASH, 30, 100},
        {PATTERN_A_SHAPE, 70, 130},
        {PATTERN_BLOCK_SPARSE, 3, 0},
        {PATTERN_VERTICAL_SLASH, 100, 250},
        {PATTERN_DENSE, 0, 0},
        {PATTERN_VERTICAL_SLASH, 400, 5000},
        {PATTERN_BLOCK_SPARSE, 100, 0},
        {PATTERN_A_SHAPE, 0, 1},
    };
    for (uint32_t i = 0; i < r->shape->n_heads; i++) {
        r->patterns[i] = kinds[i % 8];
        if (i < 8) continue;
        r->patterns[i].p1 = random_below(200);
        r->patterns[i].p2 = 1 + random_below(600);
    }
}

static void make_pools(struct rig *r) {
    const struct shape *s = r->shape;
    struct error err = {0};
    struct kv_pool kv = {
        .format = s->format, .n_pages = N_PAGES, .n_kv_heads = s->n_kv, .head_dim = s->dim};
    kv.page_bytes = kv_page_bytes(&kv);
    r->cpu_kv = r->gpu_kv = kv;
    must(cpu->ops->alloc(cpu, N_PAGES * kv.page_bytes, &r->cpu_kv.base, &err), &err);
    r->gpu_kv.base = gpu_poison(N_PAGES * kv.page_bytes / 2, ELEMENT_F16);
    for (uint32_t i = 0; i < N_PAGES; i++) r->pages[i % 2][i / 2] = N_PAGES - 1 - i;
}

static void make_rig(struct rig *r, const struct shape *s, struct score_case terms) {
    const size_t n = OTHER_ROWS + slots_of(s), n_out = n * s->n_heads * s->dim;
    *r = (struct rig){.shape = s};
    score_terms_init(&r->terms, terms);
    make_patterns(r);
    make_pools(r);
    r->sparse = (struct attn_sparse){.patterns = r->patterns,
                                     .first_slot = s->first_slot,
                                     .n_rows = s->n_rows,
                                     .dense_from = slots_of(s) - s->dense_tail,
                                     .dense_above = s->dense_above,
                                     .synthetic = s->synthetic};
    r->qkv = random_bf16(n * width_of(s), 2);
    if (s->format == PAGE_FP8) vary_rows(r->qkv, n * width_of(s) / s->dim, s->dim);
    r->gpu_qkv = gpu_array(r->qkv, n * width_of(s), ELEMENT_BF16);
    r->out = random_floats(n_out);
    r->gpu_out = random_floats(n_out);
    r->lse = random_floats(n * s->n_heads);
    r->gpu_lse = random_floats(n * s->n_heads);
    r->out_on_gpu = gpu_poison(n_out, ELEMENT_BF16);
    r->lse_on_gpu = gpu_poison(n * s->n_heads, ELEMENT_F32);
}

static void free_rig(struct rig *r) {
    score_terms_fini(&r->terms);
    cpu->ops->free(cpu, r->cpu_kv.base);
    gpu_free(r->gpu_kv.base);
    gpu_free(r->gpu_qkv);
    gpu_free(r->out_on_gpu);
    gpu_free(r->lse_on_gpu);
    free(r->qkv);
    free(r->out);
    free(r->gpu_out);
    free(r->lse);
    free(r->gpu_lse);
}

static void reserve(struct backend *be, const struct shape *s) {
    struct error err = {0};
    const struct sparse_limits largest = {s->n_rows, slots_of(s)};
    const struct step_limits limits = {.max_rows = OTHER_ROWS + MAX_SLOTS,
                                       .max_seqs = 2,
                                       .max_seq_pages = N_PAGES / 2,
                                       .max_slots = OTHER_ROWS + MAX_SLOTS,
                                       .kv_format = s->format,
                                       .n_layers = 1,
                                       .n_heads = s->n_heads,
                                       .n_kv_heads = s->n_kv,
                                       .head_dim = s->dim,
                                       .n_vocab = 16,
                                       .sparse = &largest};
    must(be->ops->reserve(be, &limits, &err), &err);
}

/* ---- steps ---- */

/* Rows [first, first + n) of the sparse prompt, behind the other prompt if there is one. */
static void describe_step(struct rig *r, bool other, uint32_t first, uint32_t n, bool sparse) {
    uint32_t n_seqs = 0;
    if (other) {
        r->views[0] = (struct kv_view){r->pages[0], OTHER_ROWS, 0};
        r->seqs[n_seqs++] =
            (struct step_seq){.first_row = 0, .n_rows = OTHER_ROWS, .layers = &r->views[0]};
    }
    r->views[1] = (struct kv_view){r->pages[1], first + n, first};
    r->seqs[n_seqs++] = (struct step_seq){.first_row = other ? OTHER_ROWS : 0,
                                          .n_rows = n,
                                          .layers = &r->views[1],
                                          .sparse = sparse ? &r->sparse : NULL};
    for (uint32_t i = 0; i < OTHER_ROWS; i++) r->positions[i] = i;
    for (uint32_t i = 0; i < n; i++) r->positions[r->seqs[n_seqs - 1].first_row + i] = first + i;
    r->step = (struct step){.n_rows = (other ? OTHER_ROWS : 0) + n,
                            .n_seqs = n_seqs,
                            .n_layers = 1,
                            .positions = r->positions,
                            .seqs = r->seqs};
}

/* Row 0 of the step in r's arrays: its prompts lie side by side there when it has both. */
struct side {
    struct backend *be;
    const struct kv_pool *kv;
    char *qkv, *out;
    float *lse;
    size_t size; /* of an element */
};

static struct side side_of(struct rig *r, bool on_gpu, uint32_t row) {
    const size_t in = row * width_of(r->shape),
                 out = (size_t)row * r->shape->n_heads * r->shape->dim,
                 lse = (size_t)row * r->shape->n_heads;
    if (on_gpu)
        return (struct side){gpu,
                             &r->gpu_kv,
                             (char *)r->gpu_qkv + in * 2,
                             (char *)r->out_on_gpu + out * 2,
                             (float *)r->lse_on_gpu + lse,
                             2};
    return (struct side){cpu,          &r->cpu_kv,   (char *)(r->qkv + in), (char *)(r->out + out),
                         r->lse + lse, sizeof(float)};
}

static void append(const struct rig *r, const struct side *s) {
    struct error err = {0};
    static const double freq[128];
    must(s->be->ops->step_begin(s->be, &r->step, &err), &err);
    const struct rope_append_args rope = {
        s->qkv, s->kv, freq, 1.0f, r->shape->dim / 2, 0, r->shape->n_heads, 0, 0, 0, 0, NULL};
    must(s->be->ops->rope_append(s->be, &rope, &err), &err);
}

static void attend(const struct rig *r, const struct side *s) {
    struct error err = {0};
    const struct attn_args args = {.q = s->qkv,
                                   .q_stride = width_of(r->shape),
                                   .out = s->out,
                                   .kv = s->kv,
                                   .n_heads = r->shape->n_heads,
                                   .scale = (float)(1 / sqrt(r->shape->dim)),
                                   .softcap = r->shape->softcap,
                                   .slopes = slopes_of(&r->terms),
                                   .group = NO_GROUP,
                                   .sinks = sinks_on(&r->terms, s->be),
                                   .lse = s->lse};
    must(s->be->ops->attn_prefill(s->be, &args, &err), &err);
}

static void build_index(const struct rig *r, const struct side *s, float *density) {
    struct error err = {0};
    const uint32_t first_row = r->step.seqs[r->step.n_seqs - 1].first_row;
    const struct sparse_index_args args = {.q = s->qkv + first_row * width_of(r->shape) * s->size,
                                           .q_stride = width_of(r->shape),
                                           .kv = s->kv,
                                           .n_heads = r->shape->n_heads,
                                           .scale = (float)(1 / sqrt(r->shape->dim)),
                                           .softcap = r->shape->softcap,
                                           .slopes = slopes_of(&r->terms),
                                           .sinks = sinks_on(&r->terms, s->be),
                                           .density = density};
    must(s->be->ops->sparse->index(s->be, &args, &err), &err);
}

/* With `other` the arrays begin with its rows, and those in front of first_slot lie between it and
 * the indexed ones: so it goes with the first rows of the prompt, which are not indexed, or, where
 * there are none, with the indexed ones. */
static void run_side(struct rig *r, bool on_gpu, float *density, struct sparse_totals *totals) {
    const struct shape *s = r->shape;
    const bool beside = s->first_slot == 0;
    struct error err = {0};
    struct side side = side_of(r, on_gpu, 0);
    if (!beside) {
        describe_step(r, true, 0, s->first_slot, false);
        append(r, &side);
        attend(r, &side);
        side = side_of(r, on_gpu, OTHER_ROWS + s->first_slot);
    }
    describe_step(r, beside, s->first_slot, s->n_rows, true);
    append(r, &side);
    build_index(r, &side, density);
    if (s->slice == 0) attend(r, &side);
    for (uint32_t row = 0; s->slice > 0 && row < s->n_rows; row += s->slice) {
        const uint32_t n = s->n_rows - row < s->slice ? s->n_rows - row : s->slice;
        side = side_of(r, on_gpu, OTHER_ROWS + s->first_slot + row);
        describe_step(r, false, s->first_slot + row, n, true);
        must(side.be->ops->step_begin(side.be, &r->step, &err), &err);
        attend(r, &side);
    }
    must(side.be->ops->sparse->totals(side.be, totals, &err), &err);
    must(side.be->ops->sync(side.be, &err), &err);
}

/* ---- comparison ---- */

static bool may_differ(const struct rig *r, uint32_t head) {
    const enum attn_pattern_kind kind = r->patterns[head].kind;
    return kind == PATTERN_BLOCK_SPARSE ||
           (kind == PATTERN_VERTICAL_SLASH && r->shape->synthetic == 0);
}

static void compare_half(struct rig *r, uint32_t head, uint32_t half) {
    static uint32_t got[MAX_SLOTS], expected[MAX_SLOTS];
    struct error err = {0};
    uint32_t n;
    must(cuda_sparse_visited(gpu, head, half, got, &n, &err), &err);
    const uint32_t n_expected = cpu_sparse_visited(cpu, head, half, expected);
    if (n == n_expected && memcmp(got, expected, n * sizeof(*got)) == 0) return;
    if (!may_differ(r, head)) {
        uint32_t i = 0;
        while (i < n && i < n_expected && got[i] == expected[i]) i++;
        fail_msg("head %u of kind %d, half %u: %u slots, not %u; the first other one is slot %u",
                 head, r->patterns[head].kind, half, n, n_expected,
                 i < n_expected ? expected[i] : got[i]);
    }
    r->differs[head] = true;
}

/* Returns whether all heads are the same. */
static bool compare_sets(struct rig *r) {
    const uint32_t n_halves = (r->shape->n_rows + SPARSE_HALF - 1) / SPARSE_HALF;
    bool same = true;
    for (uint32_t head = 0; head < r->shape->n_heads; head++) {
        for (uint32_t half = 0; half < n_halves; half++) compare_half(r, head, half);
        n_heads_seen++;
        n_ties += r->differs[head];
        same &= !r->differs[head];
    }
    return same;
}

static void compare_reports(const struct rig *r, const float *density,
                            const float *expected_density, const struct sparse_totals *got,
                            const struct sparse_totals *expected) {
    for (uint32_t head = 0; head < r->shape->n_heads; head++)
        if (!r->differs[head] && r->patterns[head].kind != PATTERN_DENSE)
            assert_near(density + head, expected_density + head, 1, 1e-6, "density");
    for (int kind = 0; kind < PATTERN_N_KINDS; kind++) {
        assert_true(got->causal[kind] == expected->causal[kind]);
        assert_true(got->visited[kind] == expected->visited[kind]);
    }
    assert_int_equal(got->n_dense, expected->n_dense);
    assert_true(got->index_s > 0 && got->attention_s > 0);
}

/* Outputs as in test_attention.c: probabilities are rounded to 16 bits before they meet values. */
static void compare_attention(struct rig *r) {
    const struct shape *s = r->shape;
    const size_t first = s->first_slot ? OTHER_ROWS + s->first_slot : 0,
                 n = OTHER_ROWS + slots_of(s), width = (size_t)s->n_heads * s->dim;
    gpu_read(r->gpu_out, r->out_on_gpu, n * width, ELEMENT_BF16);
    gpu_read(r->gpu_lse, r->lse_on_gpu, n * s->n_heads, ELEMENT_F32);
    for (uint32_t head = 0; head < s->n_heads; head++) {
        if (r->differs[head]) continue;
        for (size_t row = first; row < n; row++) {
            const size_t at = row * width + (size_t)head * s->dim, l = row * s->n_heads + head;
            assert_near_of(r->gpu_out + at, r->out + at, s->dim, 1, 1e-2, "attention");
            assert_near_of(r->gpu_lse + l, r->lse + l, 1, 1, 2e-3, "log-sum-exp");
        }
    }
}

static void run_shape(const struct shape *s, struct score_case terms) {
    struct rig r;
    float density[MOST_HEADS], expected_density[MOST_HEADS];
    struct sparse_totals got, expected;
    make_rig(&r, s, terms);
    reserve(cpu, s);
    reserve(gpu, s);
    run_side(&r, false, expected_density, &expected);
    run_side(&r, true, density, &got);
    if (compare_sets(&r)) compare_reports(&r, density, expected_density, &got, &expected);
    compare_attention(&r);
    free_rig(&r);
}

static void sparse_prompts_visit_what_the_cpu_chooses(void **state) {
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (small && shapes[i].n_rows > 600) continue;
        run_shape(&shapes[i], score_case_at(0));
    }
    printf("%u of %u heads differ by near ties\n", n_ties, n_heads_seen);
    assert_true(n_ties <= MOST_TIES);
}

static void sinks_and_slopes_equal_the_cpu(void **state) {
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (small && shapes[i].n_rows > 600) continue;
        run_shape(&shapes[i], score_case_at(1 + i % 4));
        if (!small) run_shape(&shapes[i], score_case_at(1 + (i + 1) % 4));
    }
    printf("%u of %u heads differ by near ties\n", n_ties, n_heads_seen);
    assert_true(n_ties <= 3 * MOST_TIES);
}

static void nothing_was_visited_since(void **state) {
    struct error err = {0};
    struct sparse_totals totals;
    memset(&totals, 0xff, sizeof(totals));
    must(gpu->ops->sparse->totals(gpu, &totals, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    for (int kind = 0; kind < PATTERN_N_KINDS; kind++)
        assert_true(totals.visited[kind] == 0 && totals.causal[kind] == 0);
    assert_true(totals.index_s == 0 && totals.attention_s == 0 && totals.n_dense == 0);
}

static void too_many_lines_are_refused(void **state) {
    struct error err = {0};
    struct shape s = shapes[1];
    struct rig r;
    make_rig(&r, &s, score_case_at(0));
    r.patterns[0] = (struct attn_pattern){PATTERN_VERTICAL_SLASH, SPARSE_MAX_COLUMNS + 1, 100};
    describe_step(&r, false, 0, s.n_rows, true);
    r.sparse.first_slot = 0;
    const struct side side = side_of(&r, true, 0);
    append(&r, &side);
    const struct sparse_index_args args = {.q = side.qkv,
                                           .q_stride = width_of(&s),
                                           .kv = side.kv,
                                           .n_heads = s.n_heads,
                                           .scale = 0.1f};
    assert_int_equal(gpu->ops->sparse->index(gpu, &args, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "vertical lines"));
    free_rig(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sparse_prompts_visit_what_the_cpu_chooses),
        cmocka_unit_test(sinks_and_slopes_equal_the_cpu),
        cmocka_unit_test(nothing_was_visited_since),
        cmocka_unit_test(too_many_lines_are_refused),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
