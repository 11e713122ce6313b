/* test_observe.c - the scores that a prompt's rows and generated tokens give to tokens, on the CUDA
 * backend against the CPU's.
 *
 * Sequences that select keep those of their last queries, and filters choose slots of prompts by
 * them.  Both sides start from the same numbers, which pages hold exactly, and nothing rotates.  So
 * scores differ by the order of f32 sums and by the rounding of 2^x.  Two tokens whose sums are
 * alike may be chosen differently: near ties, which are counted. */
#include "cuda/attention/sparse/sparse_test.h"
#include "engine/cpu/sparse.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "tests/cuda/cuda_test.h"

/* Layer 0 is a filter, 1 waits, 2 is sparse; 3 is a filter, and 4 is sparse. */
enum { N_LAYERS = 5, N_GROUPS = 2, MAX_TEXT = 1100, MAX_ROWS = 600, N_TEXTS = 4 };
enum { TEXT_PAGES = MAX_TEXT / PAGE_TOKENS + 1, N_PAGES = 700, N_SINK = 4, N_TAIL = 64 };
static const struct layer_group groups[N_GROUPS] = {{0, 2, 3}, {3, 4, 5}};

#define SCORE_TOLERANCE 2e-3

struct shape {
    uint32_t n_heads, n_kv, dim;
    enum page_format format;
    float softcap;
    bool is_biased; /* sinks, and ALiBi */
};

static const struct shape shapes[] = {
    {8, 2, 128, PAGE_BF16, 0, false},  {8, 8, 64, PAGE_F16, 6, false},
    {6, 2, 80, PAGE_BF16, 0, false},   {4, 1, 256, PAGE_BF16, 0, false},
    {32, 8, 128, PAGE_FP8, 0, false},  {4, 4, 16, PAGE_F32, 6, true},
    {12, 3, 96, PAGE_BF16, 10, false}, {6, 2, 72, PAGE_FP8, 0, false},
    {8, 2, 64, PAGE_BF16, 0, true},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* A sequence, the same on both sides. */
struct text {
    enum kv_selector selector;
    uint32_t n_prompt, n_text, n_selected, chunk;
    uint32_t n_done;
    bool fresh;
    uint32_t pages[N_LAYERS][TEXT_PAGES], chosen[N_LAYERS][4], view_pages[N_LAYERS][TEXT_PAGES + 4];
    uint32_t states[N_GROUPS], *score_pages, n_score_pages;
    const uint32_t *pool_pages[N_LAYERS];
    struct kv_select select;
    struct kv_observation observed;
    struct kv_view views[N_LAYERS];
    float *qkv[N_LAYERS]; /* [n_text] rows */
};

struct side {
    struct backend *be;
    struct kv_pool kv;
    void *qkv, *out;
};

struct rig {
    const struct shape *shape;
    struct side cpu, gpu;
    struct text texts[N_TEXTS];
    uint32_t n_texts, next_page;
    struct step_seq seqs[N_TEXTS];
    struct step step;
    uint32_t positions[MAX_ROWS];
    struct attn_sparse sparse;
    struct attn_pattern pattern[64 * N_LAYERS];
    const float *rows[N_LAYERS]; /* of the step */
    uint32_t n_scores, n_choices, n_ties;
};

static size_t width_of(const struct shape *s) {
    return (size_t)(s->n_heads + 2 * s->n_kv) * s->dim;
}

static uint32_t rows_of(const struct text *t) {
    const uint32_t left = t->n_prompt > t->n_done ? t->n_prompt - t->n_done : 1;
    return left < t->chunk ? left : t->chunk;
}

static bool is_prompt(const struct text *t) {
    return t->n_done < t->n_prompt;
}

static bool is_sparse_layer(uint32_t layer) {
    return layer == 2 || layer == 4;
}

/* ---- setting up ---- */

static void make_side(struct side *side, struct backend *be, const struct shape *s) {
    struct error err = {0};
    side->be = be;
    side->kv = (struct kv_pool){
        .format = s->format, .n_pages = N_PAGES, .n_kv_heads = s->n_kv, .head_dim = s->dim};
    side->kv.page_bytes = kv_page_bytes(&side->kv);
    must(be->ops->alloc(be, N_PAGES * side->kv.page_bytes, &side->kv.base, &err), &err);
    must(be->ops->alloc(be, MAX_ROWS * width_of(s) * sizeof(float), &side->qkv, &err), &err);
    must(be->ops->alloc(be, MAX_ROWS * width_of(s) * sizeof(float), &side->out, &err), &err);
    const struct select_limits selects = {
        .max_slots = MAX_TEXT, .max_selected = 256, .n_groups = N_GROUPS, .max_group_layers = 1};
    const struct sparse_limits sparse = {MAX_ROWS, MAX_TEXT};
    const struct step_limits limits = {.max_rows = MAX_ROWS,
                                       .max_seqs = N_TEXTS,
                                       .max_seq_pages = TEXT_PAGES,
                                       .max_slots = N_TEXTS * MAX_TEXT,
                                       .max_prompt_slots = N_TEXTS * MAX_TEXT,
                                       .kv_format = s->format,
                                       .max_logit_rows = 1,
                                       .n_layers = N_LAYERS,
                                       .n_heads = s->n_heads,
                                       .n_kv_heads = s->n_kv,
                                       .head_dim = s->dim,
                                       .n_freqs = s->dim / 2,
                                       .n_vocab = 64,
                                       .select = &selects,
                                       .sparse = &sparse};
    must(be->ops->reserve(be, &limits, &err), &err);
}

static void free_side(struct side *side) {
    side->be->ops->free(side->be, side->kv.base);
    side->be->ops->free(side->be, side->qkv);
    side->be->ops->free(side->be, side->out);
}

static uint32_t take_page(struct rig *r) {
    assert_true(r->next_page < N_PAGES);
    return r->next_page++ * 11 % N_PAGES;
}

static void add_text(struct rig *r, enum kv_selector selector, uint32_t n_prompt, uint32_t n_text,
                     uint32_t n_selected, uint32_t chunk) {
    struct text *t = &r->texts[r->n_texts++];
    *t = (struct text){.selector = selector,
                       .n_prompt = n_prompt,
                       .n_text = n_text,
                       .n_selected = n_selected,
                       .chunk = chunk,
                       .fresh = true};
    const uint32_t n_pages = (uint32_t)kv_n_pages(n_text);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t p = 0; p < n_pages; p++) t->pages[l][p] = take_page(r);
        for (uint32_t p = 0; is_sparse_layer(l) && p < n_selected / PAGE_TOKENS; p++)
            t->chosen[l][p] = take_page(r);
        t->qkv[l] = random_bf16(n_text * width_of(r->shape), 2);
        if (r->shape->format == PAGE_FP8)
            for (size_t i = 0; i < n_text * width_of(r->shape); i += r->shape->dim)
                if (i % width_of(r->shape) >= r->shape->n_heads * r->shape->dim)
                    make_exact_in_fp8(t->qkv[l] + i, r->shape->dim);
    }
    for (uint32_t g = 0; g < N_GROUPS; g++) t->states[g] = take_page(r);
    t->n_score_pages = n_pages * KV_OBSERVED / kv_score_runs(&r->cpu.kv) + 1;
    t->score_pages = malloc(N_GROUPS * t->n_score_pages * sizeof(uint32_t));
    assert_non_null(t->score_pages);
    for (uint32_t i = 0; i < N_GROUPS * t->n_score_pages; i++) t->score_pages[i] = take_page(r);
}

static struct rig *new_rig(const struct shape *s) {
    struct rig *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->shape = s;
    make_side(&r->cpu, cpu, s);
    make_side(&r->gpu, gpu, s);
    return r;
}

static void free_rig(struct rig *r) {
    for (uint32_t i = 0; i < r->n_texts; i++) {
        for (uint32_t l = 0; l < N_LAYERS; l++) free(r->texts[i].qkv[l]);
        free(r->texts[i].score_pages);
    }
    free_side(&r->cpu), free_side(&r->gpu);
    free(r);
}

/* ---- a step ---- */

static uint32_t before_tail(const struct text *t, uint32_t n) {
    const uint32_t most = n < t->n_text ? n : t->n_text;
    return most > N_TAIL ? (most - N_TAIL) / PAGE_TOKENS * PAGE_TOKENS : 0;
}

static const struct kv_observation *observe(struct text *t) {
    const uint32_t end = t->n_done + rows_of(t);
    if (t->selector == KV_SELECTOR_LAST) return NULL;
    const bool all = t->selector == KV_SELECTOR_ACCUMULATED;
    const uint32_t n = all ? end / PAGE_TOKENS * PAGE_TOKENS
                           : before_tail(t, end + KV_OBSERVED - 1),
                   most = before_tail(t, t->n_text), last = end > t->n_prompt ? end : t->n_prompt;
    t->observed = (struct kv_observation){.selector = t->selector,
                                          .first = all ? 0 : last - KV_OBSERVED,
                                          .n_scored = n < most ? n : most,
                                          .pages = t->score_pages,
                                          .n_pages = t->n_score_pages};
    return &t->observed;
}

static struct kv_view view_of(struct text *t, uint32_t layer) {
    const uint32_t n = t->n_done + rows_of(t), skip = t->select.n_candidates / PAGE_TOKENS,
                   first = t->n_selected / PAGE_TOKENS;
    t->pool_pages[layer] = is_sparse_layer(layer) ? t->pages[layer] : NULL;
    if (!t->select.n_candidates || !is_sparse_layer(layer))
        return (struct kv_view){t->pages[layer], n, t->n_done};
    memcpy(t->view_pages[layer], t->chosen[layer], first * sizeof(uint32_t));
    memcpy(t->view_pages[layer] + first, t->pages[layer] + skip,
           (TEXT_PAGES - skip) * sizeof(uint32_t));
    const uint32_t slots = t->n_selected + n - t->select.n_candidates;
    return (struct kv_view){t->view_pages[layer], slots, slots - 1};
}

static struct step_seq describe(struct rig *r, struct text *t, uint32_t first_row) {
    const uint32_t n = before_tail(t, t->n_done + 1);
    const bool selects = !is_prompt(t) && n > t->n_selected;
    t->select = (struct kv_select){.n_selected = t->n_selected,
                                   .n_candidates = selects ? n : 0,
                                   .n_sink = N_SINK,
                                   .fresh = t->fresh,
                                   .state_pages = t->states,
                                   .pool_pages = t->pool_pages};
    for (uint32_t l = 0; l < N_LAYERS; l++) t->views[l] = view_of(t, l);
    return (struct step_seq){.first_row = first_row,
                             .n_rows = rows_of(t),
                             .layers = t->views,
                             .n_before = t->n_done,
                             .select = selects ? &t->select : NULL,
                             .observed = observe(t),
                             .sparse = r->sparse.patterns && is_prompt(t) ? &r->sparse : NULL};
}

/* Makes a step of the texts that are not at their ends; those that decode come first. */
static bool make_step(struct rig *r, struct text **texts) {
    r->step = (struct step){.n_layers = N_LAYERS, .positions = r->positions, .seqs = r->seqs};
    for (uint32_t prompts = 0; prompts < 2; prompts++)
        for (uint32_t i = 0; i < r->n_texts; i++) {
            struct text *t = &r->texts[i];
            if (t->n_done >= t->n_text || is_prompt(t) != (prompts == 1)) continue;
            texts[r->step.n_seqs] = t;
            r->seqs[r->step.n_seqs++] = describe(r, t, r->step.n_rows);
            for (uint32_t row = 0; row < rows_of(t); row++)
                r->positions[r->step.n_rows++] = t->n_done + row;
            r->step.n_decode += prompts == 0;
        }
    assert_true(r->step.n_rows <= MAX_ROWS);
    return r->step.n_seqs > 0;
}

/* Puts the layer's rows of all texts together, on one side. */
static void load_rows(struct rig *r, struct side *side, struct text **texts, uint32_t layer) {
    const size_t width = width_of(r->shape), n = r->step.n_rows * width;
    struct error err = {0};
    float *rows = malloc(n * sizeof(*rows)), *at = rows;
    assert_non_null(rows);
    for (uint32_t i = 0; i < r->step.n_seqs; i++) {
        const uint32_t n_rows = r->seqs[i].n_rows;
        memcpy(at, texts[i]->qkv[layer] + texts[i]->n_done * width, n_rows * width * sizeof(*at));
        at += n_rows * width;
    }
    if (side->be == cpu) {
        memcpy(side->qkv, rows, n * sizeof(*rows));
    } else {
        void *host = converted(rows, n, ELEMENT_BF16);
        must(gpu->ops->upload(gpu, side->qkv, host, n * 2, &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        free(host);
    }
    free(rows);
}

static uint32_t filter_of(uint32_t layer) {
    return layer == groups[0].filter ? 0 : layer == groups[1].filter ? 1 : N_GROUPS;
}

static int run_filter(const struct rig *r, struct side *side, const struct attn_args *attn,
                      uint32_t g, struct error *err) {
    const struct select_ops *ops = side->be->ops->select;
    const struct select_args args = {
        .attn = *attn, .group = &groups[g], .group_index = g, .first_host_layer = g};
    bool selects = false, chooses = false;
    for (uint32_t i = 0; i < r->step.n_seqs; i++) {
        selects |= r->seqs[i].select != NULL;
        chooses |= r->seqs[i].sparse && r->seqs[i].sparse->groups;
    }
    int rc = selects ? ops->select(side->be, &args, err) : 0;
    if (!rc) rc = ops->observe(side->be, &args, err);
    return rc || !chooses ? rc : side->be->ops->sparse->choose(side->be, attn, err);
}

static void run_layer(struct rig *r, struct side *side, struct text **texts, uint32_t layer) {
    static const double inv_freq[256];
    static const float slopes[] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.5f, 0.03125f, 0.25f, 0.0625f};
    static const struct weight zeros;
    const struct shape *s = r->shape;
    const struct backend_ops *ops = side->be->ops;
    struct error err = {0};
    const struct rope_append_args rope = {side->qkv,  &side->kv, inv_freq, 1.0f, s->dim / 2, layer,
                                          s->n_heads, 0,         0,        0,    0,          NULL};
    const uint32_t g = filter_of(layer);
    const struct attn_args attn = {.q = side->qkv,
                                   .q_stride = width_of(s),
                                   .out = side->out,
                                   .kv = &side->kv,
                                   .layer = layer,
                                   .n_heads = s->n_heads,
                                   .scale = (float)(1 / sqrt(s->dim)),
                                   .softcap = s->softcap,
                                   .slopes = s->is_biased ? slopes : NULL,
                                   .sinks = s->is_biased ? &zeros : NULL,
                                   .group = is_sparse_layer(layer) ? layer / 3 : NO_GROUP,
                                   .selects = g < N_GROUPS};
    load_rows(r, side, texts, layer);
    must(ops->rope_append(side->be, &rope, &err), &err);
    must(ops->attn_decode(side->be, &attn, &err), &err);
    must(ops->attn_prefill(side->be, &attn, &err), &err);
    if (g < N_GROUPS) must(run_filter(r, side, &attn, g, &err), &err);
}

/* ---- comparison ---- */

static void *read_page(struct side *side, uint32_t page) {
    struct error err = {0};
    void *bytes = malloc(side->kv.page_bytes);
    assert_non_null(bytes);
    must(
        side->be->ops->download(side->be, bytes, (char *)side->kv.base + page * side->kv.page_bytes,
                                side->kv.page_bytes, &err),
        &err);
    must(side->be->ops->sync(side->be, &err), &err);
    return bytes;
}

/* Compares the runs that the step's queries have written. */
static void compare_scores(struct rig *r, const struct text *t, uint32_t g) {
    const struct kv_observation *o = &t->observed;
    const uint32_t n_runs = kv_score_runs(&r->cpu.kv), n_places = kv_observed_runs(o->selector),
                   end = t->n_done + rows_of(t),
                   first = o->first > t->n_done ? o->first : t->n_done;
    for (uint32_t p = 0; p < t->n_score_pages; p++) {
        const uint32_t page = t->score_pages[g * t->n_score_pages + p];
        float *got = read_page(&r->gpu, page), *expected = read_page(&r->cpu, page);
        for (uint32_t run = 0; run < n_runs; run++) {
            const uint32_t of = p * n_runs + run, text_page = of / n_places, place = of % n_places;
            bool written = n_places == 1 && first < end;
            for (uint32_t q = first; q < end; q++) written |= q % n_places == place;
            if (!written || text_page >= o->n_scored / PAGE_TOKENS) continue;
            char what[100];
            snprintf(what, sizeof(what),
                     "scores by selector %d of page %u, place %u, from row %u of %u",
                     (int)o->selector, text_page, place, t->n_done, t->n_prompt);
            assert_near_of(got + run * PAGE_TOKENS, expected + run * PAGE_TOKENS, PAGE_TOKENS, 1e-6,
                           SCORE_TOLERANCE, what);
            r->n_scores++;
        }
        free(got), free(expected);
    }
}

static bool has(const uint32_t *tokens, uint32_t n, uint32_t token) {
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] == token) return true;
    return false;
}

/* Compares which tokens are in the slots, whatever their order; returns whether the slots are the
 * same. */
static bool compare_choice(struct rig *r, const struct text *t, uint32_t g) {
    uint32_t *got = read_page(&r->gpu, t->states[g]), *expected = read_page(&r->cpu, t->states[g]);
    uint32_t n_others = 0;
    for (uint32_t i = 0; i < t->n_selected; i++) n_others += !has(expected, t->n_selected, got[i]);
    const bool same = memcmp(got, expected, t->n_selected * sizeof(*got)) == 0;
    if (n_others > 2)
        fail_msg("selector %d behind %u of %u tokens: %u of %u chosen tokens are others",
                 (int)t->observed.selector, t->n_done, t->n_prompt, n_others, t->n_selected);
    r->n_choices++;
    r->n_ties += n_others > 0;
    free(got), free(expected);
    return same;
}

static void compare_outputs(const struct rig *r, uint32_t layer, bool same) {
    const size_t n = (size_t)r->step.n_rows * r->shape->n_heads * r->shape->dim;
    float *got = random_floats(n);
    if (is_sparse_layer(layer) && !same) {
        free(got);
        return;
    }
    gpu_read(got, r->gpu.out, n, ELEMENT_BF16);
    assert_near(got, r->cpu.out, n, 2e-2, "attention");
    free(got);
}

static bool compare_filter(struct rig *r, struct text **texts, uint32_t g) {
    bool same = true;
    for (uint32_t i = 0; i < r->step.n_seqs; i++) {
        if (r->seqs[i].observed) compare_scores(r, texts[i], g);
        if (!r->seqs[i].select) continue;
        const bool mine = compare_choice(r, texts[i], g);
        if (!mine) texts[i]->fresh = true;
        same &= mine;
    }
    return same;
}

static void run_steps(struct rig *r) {
    struct text *texts[N_TEXTS];
    struct error err = {0};
    while (make_step(r, texts)) {
        bool same = true;
        must(cpu->ops->step_begin(cpu, &r->step, &err), &err);
        must(gpu->ops->step_begin(gpu, &r->step, &err), &err);
        for (uint32_t i = 0; i < r->step.n_seqs; i++)
            if (r->seqs[i].select) texts[i]->fresh = false;
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            run_layer(r, &r->cpu, texts, l);
            run_layer(r, &r->gpu, texts, l);
            /* A device chooses beside its layers; the layer behind a filter has waited for that. */
            if (l > 0 && filter_of(l - 1) < N_GROUPS)
                same = compare_filter(r, texts, filter_of(l - 1));
            compare_outputs(r, l, same);
        }
        for (uint32_t i = 0; i < r->step.n_seqs; i++) texts[i]->n_done += rows_of(texts[i]);
    }
}

/* ---- cases ---- */

/* Texts with every selector in one step; the third begins to select while it generates. */
static void check_selectors(const struct shape *s) {
    struct rig *r = new_rig(s);
    add_text(r, KV_SELECTOR_ACCUMULATED, 330, 352, 64, 150);
    add_text(r, KV_SELECTOR_UNIFORM, 300, 312, 128, 128);
    add_text(r, KV_SELECTOR_EXPONENTIAL, 180, 203, 64, 200);
    add_text(r, KV_SELECTOR_ACCUMULATED, 40, 70, 64, 40);
    run_steps(r);
    printf("%u/%u heads of %u, format %d: %u runs of scores, %u choices, %u near ties\n",
           s->n_heads, s->n_kv, s->dim, (int)s->format, r->n_scores, r->n_choices, r->n_ties);
    assert_true(r->n_scores > 100 && r->n_choices > 40 && r->n_ties * 8 <= r->n_choices);
    free_rig(r);
}

static void queries_are_observed_as_on_the_cpu(void **state) {
    for (uint32_t i = 0; i < N_SHAPES; i += small ? 5 : 1) check_selectors(&shapes[i]);
}

/* However a prompt is cut into steps, what it accumulates has the same bits.  Steps are of whole
 * pages, for which attention's log-sum-exp has the same bits, too. */
static void accumulated_scores_do_not_depend_on_chunks(void **state) {
    static const uint32_t chunks[] = {500, 128, 64, 192};
    float *first = NULL;
    size_t n = 0;
    reopen_batch_invariant();
    for (uint32_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        struct rig *r = new_rig(&shapes[0]);
        struct error err = {0};
        struct text *texts[N_TEXTS];
        rng_state = 11;
        add_text(r, KV_SELECTOR_ACCUMULATED, 400, 460, 64, chunks[i]);
        while (is_prompt(&r->texts[0]) && make_step(r, texts)) {
            must(gpu->ops->step_begin(gpu, &r->step, &err), &err);
            run_layer(r, &r->gpu, texts, 0);
            r->texts[0].n_done += rows_of(&r->texts[0]);
        }
        float *scores = read_page(&r->gpu, r->texts[0].score_pages[0]);
        n = r->texts[0].observed.n_scored;
        if (!first) first = scores;
        else {
            assert_memory_equal(scores, first, n * sizeof(*scores));
            free(scores);
        }
        free_rig(r);
    }
    assert_true(n >= 256);
    free(first);
}

/* ---- filters ---- */

static void compare_filtered(struct rig *r) {
    static uint32_t got[MAX_TEXT], expected[MAX_TEXT];
    struct error err = {0};
    for (uint32_t half = 0; half * SPARSE_HALF < r->sparse.n_rows; half++)
        for (uint32_t head = 0; head < r->shape->n_heads; head += r->shape->n_heads - 1) {
            uint32_t n, n_others = 0;
            must(cuda_sparse_visited(gpu, head, half, got, &n, &err), &err);
            const uint32_t n_expected = cpu_sparse_visited(cpu, head, half, expected);
            assert_int_equal(n, n_expected);
            for (uint32_t i = 0; i < n; i++) n_others += !has(expected, n, got[i]);
            assert_true(n_others <= 1);
            r->n_choices++;
            r->n_ties += n_others > 0;
        }
}

/* Chunks of a prompt beside others: the layers behind each filter visit what it has chosen.  A
 * second pass, whose filters choose everything, attends as dense prompts do. */
static void check_filters(const struct shape *s, uint32_t n_selected, uint32_t chunk,
                          uint32_t dense_tail) {
    struct rig *r = new_rig(s);
    struct text *texts[N_TEXTS];
    struct error err = {0};
    struct sparse_totals got, expected;
    for (uint32_t i = 0; i < s->n_heads * N_LAYERS; i++)
        r->pattern[i] = (struct attn_pattern){PATTERN_FILTERS, n_selected, chunk};
    add_text(r, KV_SELECTOR_LAST, 1000, 1000, 64, chunk);
    while (is_prompt(&r->texts[0])) {
        struct text *t = &r->texts[0];
        r->sparse = (struct attn_sparse){.patterns = r->pattern,
                                         .first_slot = t->n_done,
                                         .n_rows = rows_of(t),
                                         .dense_from = t->n_prompt - dense_tail,
                                         .groups = groups,
                                         .n_groups = N_GROUPS,
                                         .dense_above = 0.7f};
        make_step(r, texts);
        must(cpu->ops->step_begin(cpu, &r->step, &err), &err);
        must(gpu->ops->step_begin(gpu, &r->step, &err), &err);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            const uint32_t n_ties = r->n_ties;
            run_layer(r, &r->cpu, texts, l);
            run_layer(r, &r->gpu, texts, l);
            if (filter_of(l) < N_GROUPS) compare_filtered(r);
            compare_outputs(r, l, n_ties == r->n_ties);
        }
        must(cpu->ops->sparse->totals(cpu, &expected, &err), &err);
        must(gpu->ops->sparse->totals(gpu, &got, &err), &err);
        must(gpu->ops->sync(gpu, &err), &err);
        assert_true(got.visited[PATTERN_FILTERS] == expected.visited[PATTERN_FILTERS]);
        assert_true(got.causal[PATTERN_FILTERS] == expected.causal[PATTERN_FILTERS]);
        t->n_done += rows_of(t);
    }
    printf("filters, %u/%u heads of %u, format %d, %u of chunks of %u: %u sets, %u near ties\n",
           s->n_heads, s->n_kv, s->dim, (int)s->format, n_selected, chunk, r->n_choices, r->n_ties);
    assert_true(r->n_ties * 20 <= r->n_choices);
    free_rig(r);
}

static void filters_choose_as_on_the_cpu(void **state) {
    for (uint32_t i = 0; i < N_SHAPES; i += small ? 5 : 1) {
        check_filters(&shapes[i], 200, 256, 0);
        if (small) continue;
        check_filters(&shapes[i], 77, 192, 100);
        check_filters(&shapes[i], 1000, 320, 0); /* everything */
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_are_observed_as_on_the_cpu),
        cmocka_unit_test(filters_choose_as_on_the_cpu),
        cmocka_unit_test(accumulated_scores_do_not_depend_on_chunks),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
