/* test_select.c - selections of the CUDA backend against the CPU's: texts whose store is blocks of
 * the system's memory, or pages, beside one that selects nothing, token after token, recorded and
 * launched again.
 *
 * A text's keys and values are known beforehand and lie in full pages of every layer; its blocks
 * are filled by the host pool's offload().  After every step the states (which token each slot
 * holds) and the scores of the first text's tokens are compared.  The chosen slots of the device
 * are compared with the text, bit by bit.  Where rounding decides between two tokens, both
 * sides begin the text anew: so no step begins differently.
 *
 * Where the store is fp8, texts are such that it loses nothing; all others are test_fp8.c's. */
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/step.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/score_terms.h"

enum { N_LAYERS = 9, N_TEXTS = 4, MAX_TOKENS = 1600, TEXT_PAGES = MAX_TOKENS / PAGE_TOKENS };
enum { MAX_SELECTED = 192, CHOSEN_PAGES = MAX_SELECTED / PAGE_TOKENS, N_SINK = 4, N_TAIL = 64 };
enum { EACH_LAYER = TEXT_PAGES + CHOSEN_PAGES, RECORDED_ROWS = 8 };
enum { N_PAGES = N_TEXTS * (N_LAYERS * EACH_LAYER + 2), N_BLOCKS = N_TEXTS * TEXT_PAGES };

/* Layer 0 is dense, 1 a filter, 2 waits, 4 has a window; 7 is the next filter, and no layer waits
 * behind it. */
static const struct layer_group groups[] = {{1, 3, 7}, {7, 8, 9}};
static const uint32_t windows[N_LAYERS] = {[4] = 100};
enum { N_GROUPS = sizeof(groups) / sizeof(groups[0]), N_HOST_LAYERS = 4, GROUP_LAYERS = 3 };

/* A layer of the first group that may have a budget, and the slots that it then has. */
enum { BUDGETED = 5, BUDGET = 200 };
static const struct kv_budget budget = {
    .capacity = 2 * BUDGET, .n_recent = 1, .score = KV_SCORE_SUM};
static const struct layer_set budgeted = {{1 << BUDGETED}};

/* Two weights are alike: scores of up to 10 are sums in f32 of exact products. */
#define TIE_TOLERANCE 1e-3

struct text {
    uint32_t n_tokens, n_selected; /* n_selected 0: it selects nothing */
    bool on_device, fresh;
    char *tokens[N_LAYERS]; /* host [token][K, V][kv head][dim] of the pool's format */
    uint32_t pages[N_LAYERS][TEXT_PAGES], chosen[N_LAYERS][CHOSEN_PAGES], blocks[TEXT_PAGES];
    uint32_t states[N_GROUPS];
    uint32_t sparse_pages[N_LAYERS][EACH_LAYER]; /* of the step: chosen, then the tail */
    const uint32_t *pool_pages[N_LAYERS];
    struct kv_select select;
    bool is_divided; /* BUDGETED has a budget, and selects nothing */
    struct kv_view views[N_LAYERS];
};

/* What one backend has. */
struct side {
    struct backend *be;
    struct kv_pool kv;
    struct host_pool store;
    void *q[N_LAYERS], *out[N_LAYERS], *token_scores[N_GROUPS]; /* the first text's */
    struct select_total totals[N_TEXTS];
};

struct rig {
    uint32_t n_heads, n_kv, dim;
    float softcap;
    struct score_terms terms;
    uint32_t positions[N_TEXTS];
    struct side cpu, gpu;
    struct text texts[N_TEXTS];
    float *q[N_LAYERS]; /* of the step */
    struct step_seq seqs[N_TEXTS];
    struct step step;
    bool with_blocks, fp8; /* fp8: blocks are */
    uint32_t n_states, n_ties, n_fetched;
};

static size_t n_elements(const struct rig *r) {
    return 2 * (size_t)r->n_kv * r->dim;
}

/* With a scale for each row, behind them, where elements are codes. */
static size_t token_bytes(const struct rig *r) {
    return n_elements(r) * page_row_bytes(r->cpu.kv.format, 1) +
           (r->cpu.kv.format == PAGE_FP8 ? 2 * r->n_kv : 0);
}

static uint8_t scale_of(const struct rig *r, const char *token, size_t row) {
    return (uint8_t)token[n_elements(r) + row];
}

static const struct layer_group *group_of(uint32_t layer) {
    for (uint32_t g = 0; g < N_GROUPS; g++)
        if (layer >= groups[g].first && layer < groups[g].end && windows[layer] == 0)
            return &groups[g];
    return NULL;
}

/* As in attn_args. */
static uint32_t sparse_group(uint32_t layer) {
    const struct layer_group *group = group_of(layer);
    return group ? (uint32_t)(group - groups) : NO_GROUP;
}

/* Returns the host layer of the group's first sparse layer. */
static uint32_t first_host_layer(uint32_t group) {
    return group == 0 ? 0 : GROUP_LAYERS;
}

/* ---- pages ---- */

/* A page of tokens as a backend has them: [K, V][head][slot][dim]; the CPU's keys lie by
 * dim. */
static void *as_page(const struct rig *r, const char *tokens, bool by_dim) {
    const size_t size = page_row_bytes(r->cpu.kv.format, 1);
    char *page = calloc(1, r->cpu.kv.page_bytes);
    assert_non_null(page);
    for (size_t at = 0; at < PAGE_TOKENS; at++)
        for (size_t h = 0; h < 2 * r->n_kv; h++)
            for (size_t d = 0; d < r->dim; d++) {
                const size_t place = by_dim && h < r->n_kv ? d * PAGE_TOKENS + at : at * r->dim + d;
                memcpy(page + (h * PAGE_TOKENS * r->dim + place) * size,
                       tokens + at * token_bytes(r) + (h * r->dim + d) * size, size);
            }
    for (size_t at = 0; r->cpu.kv.format == PAGE_FP8 && at < PAGE_TOKENS; at++)
        for (size_t h = 0; h < 2 * r->n_kv; h++)
            page[page_layout_of(&r->cpu.kv).scales_at + h * PAGE_TOKENS + at] =
                (char)scale_of(r, tokens + at * token_bytes(r), h);
    return page;
}

static void put_page(const struct rig *r, struct side *side, uint32_t page, const char *tokens) {
    struct error err = {0};
    void *bytes = as_page(r, tokens, side->be == cpu);
    must(side->be->ops->upload(side->be, (char *)side->kv.base + page * side->kv.page_bytes, bytes,
                               side->kv.page_bytes, &err),
         &err);
    must(side->be->ops->sync(side->be, &err), &err);
    free(bytes);
}

static void *get_page(const struct rig *r, struct side *side, uint32_t page) {
    struct error err = {0};
    void *bytes = malloc(r->cpu.kv.page_bytes);
    must(
        side->be->ops->download(side->be, bytes, (char *)side->kv.base + page * side->kv.page_bytes,
                                side->kv.page_bytes, &err),
        &err);
    must(side->be->ops->sync(side->be, &err), &err);
    return bytes;
}

static void store_text(struct rig *r, struct side *side, const struct text *t) {
    struct error err = {0};
    for (uint32_t l = 0, host_layer = 0; l < N_LAYERS; l++) {
        if (!group_of(l)) continue;
        const struct offload_args args = {&side->kv,  &side->store, host_layer++,
                                          TEXT_PAGES, t->pages[l],  t->blocks};
        must(side->be->ops->host_pool->offload(side->be, &args, &err), &err);
    }
    must(side->be->ops->sync(side->be, &err), &err);
    for (uint32_t l = 0; l < N_LAYERS; l++) /* what follows must not live on these */
        for (uint32_t p = 0; group_of(l) && p + 8 < TEXT_PAGES; p += 3) {
            char *nothing = calloc(PAGE_TOKENS, token_bytes(r));
            assert_non_null(nothing);
            if ((p + 2) * PAGE_TOKENS < t->n_tokens - N_TAIL - PAGE_TOKENS)
                put_page(r, side, t->pages[l][p], nothing);
            free(nothing);
        }
}

/* ---- a step ---- */

static struct step_seq describe(struct text *t, uint32_t row) {
    const uint32_t n = t->n_tokens, n_candidates = (n - N_TAIL) / PAGE_TOKENS * PAGE_TOKENS;
    const bool selects = t->n_selected > 0 && n_candidates > t->n_selected;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        t->pool_pages[l] = group_of(l) ? t->pages[l] : NULL;
        t->views[l] = (struct kv_view){t->pages[l], n, n - 1};
        if (!selects || !group_of(l)) continue;
        const uint32_t first = t->n_selected / PAGE_TOKENS, skip = n_candidates / PAGE_TOKENS;
        memcpy(t->sparse_pages[l], t->chosen[l], first * sizeof(uint32_t));
        memcpy(t->sparse_pages[l] + first, t->pages[l] + skip,
               (TEXT_PAGES - skip) * sizeof(uint32_t));
        const uint32_t slots = t->n_selected + n - n_candidates;
        t->views[l] = (struct kv_view){t->sparse_pages[l], slots, slots - 1};
    }
    if (t->is_divided)
        t->views[BUDGETED] = (struct kv_view){t->pages[BUDGETED], BUDGET, BUDGET - 1};
    t->select = (struct kv_select){.n_selected = t->n_selected,
                                   .n_candidates = n_candidates,
                                   .n_sink = N_SINK,
                                   .fresh = t->fresh,
                                   .state_pages = t->states,
                                   .blocks = t->on_device ? NULL : t->blocks,
                                   .pool_pages = t->on_device ? t->pool_pages : NULL};
    return (struct step_seq){.first_row = row,
                             .n_rows = 1,
                             .layers = t->views,
                             .n_before = n - 1,
                             .budget = t->is_divided ? &budget : NULL,
                             .budgeted = t->is_divided ? &budgeted : NULL,
                             .select = selects ? &t->select : NULL};
}

static int run_layers(struct rig *r, struct side *side, struct error *err) {
    const struct backend_ops *ops = side->be->ops;
    int rc = 0;
    for (uint32_t l = 0, g = 0; l < N_LAYERS && !rc; l++) {
        const bool filters = g < N_GROUPS && groups[g].filter == l;
        const struct select_args args = {.attn = {.q = side->q[l],
                                                  .q_stride = r->n_heads * r->dim,
                                                  .out = side->out[l],
                                                  .kv = &side->kv,
                                                  .layer = l,
                                                  .n_heads = r->n_heads,
                                                  .scale = (float)(1 / sqrt(r->dim)),
                                                  .softcap = r->softcap,
                                                  .slopes = slopes_of(&r->terms),
                                                  .group = sparse_group(l),
                                                  .sinks = sinks_on(&r->terms, side->be),
                                                  .selects = filters},
                                         .group = &groups[filters ? g : 0],
                                         .group_index = g,
                                         .first_host_layer = first_host_layer(g),
                                         .store = r->with_blocks ? &side->store : NULL,
                                         .token_scores = side->token_scores[filters ? g : 0]};
        rc = ops->attn_decode(side->be, &args.attn, err);
        if (!rc && filters) rc = ops->select->select(side->be, &args, err);
        g += filters;
    }
    return rc;
}

static int recorded_body(void *ctx, uint32_t n_rows, struct error *err) {
    struct rig *r = ctx;
    (void)n_rows;
    return run_layers(r, &r->gpu, err);
}

static void make_step(struct rig *r) {
    struct error err = {0};
    const size_t n = (size_t)N_TEXTS * r->n_heads * r->dim;
    r->step = (struct step){
        .n_rows = N_TEXTS, .n_seqs = N_TEXTS, .n_decode = N_TEXTS, .n_layers = N_LAYERS};
    r->step.windows = windows;
    r->step.seqs = r->seqs;
    r->step.positions = r->positions;
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        r->seqs[i] = describe(&r->texts[i], i);
        r->positions[i] = r->texts[i].n_tokens - 1;
    }
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        /* Near what the step before asked for: so some tokens are chosen again. */
        float *change = random_bf16(n, 1);
        for (size_t i = 0; i < n; i++) r->q[l][i] = 0.9f * r->q[l][i] + 0.5f * change[i];
        void *host = converted(r->q[l], n, ELEMENT_BF16);
        for (size_t i = 0; i < n; i++) r->q[l][i] = load_as_f32(host, i, ELEMENT_BF16);
        must(gpu->ops->upload(gpu, r->gpu.q[l], host, n * 2, &err), &err);
        memcpy(r->cpu.q[l], r->q[l], n * sizeof(float));
        free(host), free(change);
    }
    must(gpu->ops->sync(gpu, &err), &err);
}

static void run_step(struct rig *r) {
    struct error err = {0};
    must(cpu->ops->step_begin(cpu, &r->step, &err), &err);
    must(run_layers(r, &r->cpu, &err), &err);
    must(cpu->ops->select->totals(cpu, r->cpu.totals, &err), &err);
    must(cpu->ops->sync(cpu, &err), &err);
    must(gpu->ops->step_begin(gpu, &r->step, &err), &err);
    must(gpu->ops->run_graph(gpu, RECORDED_ROWS, recorded_body, r, &err), &err);
    must(gpu->ops->select->totals(gpu, r->gpu.totals, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
}

/* ---- what became of it ---- */

/* In double, without the common denominators: what a filter thinks of a token, [n_heads]. */
static double head_score(const struct rig *r, const struct text *t, uint32_t layer, uint32_t row,
                         uint32_t head, uint32_t token) {
    const char *key = t->tokens[layer] + token * token_bytes(r);
    const float *q = r->q[layer] + ((size_t)row * r->n_heads + head) * r->dim;
    const uint32_t kv_head = head / (r->n_heads / r->n_kv);
    double sum = 0;
    for (uint32_t d = 0; d < r->dim; d++)
        sum +=
            (double)q[d] * load_as_f32(key, kv_head * r->dim + d, page_element(r->cpu.kv.format));
    if (r->cpu.kv.format == PAGE_FP8) sum *= fp8_factor(scale_of(r, key, kv_head));
    const double score = sum / sqrt(r->dim), cap = r->softcap,
                 cost = r->terms.is.slopes
                            ? r->terms.slopes[head] * (double)(t->n_tokens - 1 - token)
                            : 0;
    return (cap > 0 ? cap * tanh(score / cap) : score) - cost;
}

static double token_score(const struct rig *r, const struct text *t, uint32_t layer, uint32_t row,
                          uint32_t token) {
    double best = 0;
    for (uint32_t head = 0; head < r->n_heads; head++) {
        double sum = 0;
        if (r->terms.is.sinks == ZERO_SINKS) sum = 1;
        if (r->terms.is.sinks == LEARNED_SINKS) sum = exp((double)r->terms.logits[head]);
        for (uint32_t i = 0; i < t->n_tokens; i++)
            sum += exp(head_score(r, t, layer, row, head, i));
        best = fmax(best, exp(head_score(r, t, layer, row, head, token)) / sum);
    }
    return best;
}

static bool has(const uint32_t *tokens, uint32_t n, uint32_t token) {
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] == token) return true;
    return false;
}

/* A token that only one side has must score as much as those that only the other has. */
static void expect_ties(const struct rig *r, const struct text *t, uint32_t group, uint32_t row,
                        const uint32_t *got, const uint32_t *expected) {
    const uint32_t n = t->n_selected, layer = groups[group].filter;
    for (uint32_t a = 0; a < n; a++) {
        if (has(expected, n, got[a])) continue;
        for (uint32_t b = 0; b < n; b++) {
            if (has(got, n, expected[b])) continue;
            const double x = token_score(r, t, layer, row, got[a]),
                         y = token_score(r, t, layer, row, expected[b]);
            if (fabs(x - y) > TIE_TOLERANCE * fmax(x, y))
                fail_msg("token %u is chosen with %g, not %u with %g", got[a], x, expected[b], y);
        }
    }
}

static void expect_sinks(const uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < N_SINK; i++) assert_true(has(tokens, n, i));
}

/* The chosen slots hold what the text has, bit by bit. */
static void expect_contents(struct rig *r, const struct text *t, uint32_t group,
                            const uint32_t *tokens) {
    char *expected = malloc(PAGE_TOKENS * token_bytes(r));
    assert_non_null(expected);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t p = 0; group_of(l) == &groups[group] && p < t->n_selected / PAGE_TOKENS;
             p++) {
            if (t->is_divided && l == BUDGETED) continue;
            for (uint32_t at = 0; at < PAGE_TOKENS; at++)
                memcpy(expected + at * token_bytes(r),
                       t->tokens[l] + tokens[p * PAGE_TOKENS + at] * token_bytes(r),
                       token_bytes(r));
            void *page = as_page(r, expected, false), *got = get_page(r, &r->gpu, t->chosen[l][p]);
            /* Elements, and scales right behind them. */
            assert_memory_equal(got, page, PAGE_TOKENS * token_bytes(r));
            free(page), free(got);
        }
    free(expected);
}

/* True: both sides have the same in every slot. */
static bool compare_group(struct rig *r, const struct text *t, uint32_t row, uint32_t group) {
    uint32_t *got = get_page(r, &r->gpu, t->states[group]),
             *expected = get_page(r, &r->cpu, t->states[group]);
    const size_t bytes = t->n_selected * sizeof(*got);
    const bool same = memcmp(got, expected, bytes) == 0;
    if (!same) expect_ties(r, t, group, row, got, expected);
    expect_sinks(got, t->n_selected);
    expect_contents(r, t, group, got);
    for (uint32_t i = 0; same && i < t->n_selected; i++) assert_true(got[i] < t->n_tokens);
    r->n_states++;
    r->n_ties += !same;
    free(got), free(expected);
    return same;
}

/* Queries and keys are the same bits: sums, exponentials and denominators are rounded. */
static void compare_scores(const struct rig *r, uint32_t group) {
    const uint32_t n = r->texts[0].select.n_candidates;
    const float *expected = r->cpu.token_scores[group];
    float *got = random_floats(n);
    gpu_read(got, r->gpu.token_scores[group], n, ELEMENT_F32);
    for (uint32_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - expected[i]) <= 1e-3f * expected[i]))
            fail_msg("token %u has the score %g, not %g", i, (double)got[i], (double)expected[i]);
    free(got);
}

static void compare_outputs(const struct rig *r, uint32_t row, uint32_t layer) {
    const size_t n = (size_t)r->n_heads * r->dim, first = row * n;
    float *got = random_floats(first + n);
    gpu_read(got, r->gpu.out[layer], first + n, ELEMENT_BF16);
    assert_near(got + first, (float *)r->cpu.out[layer] + first, n, 2e-2, "attention");
    free(got);
}

static void compare_step(struct rig *r) {
    for (uint32_t g = 0; g < N_GROUPS; g++) compare_scores(r, g);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        struct text *t = &r->texts[i];
        bool same = true;
        if (r->seqs[i].select) {
            for (uint32_t g = 0; g < N_GROUPS; g++) same &= compare_group(r, t, i, g);
            assert_int_equal(r->gpu.totals[i].n_chosen, N_GROUPS * t->n_selected);
            if (same) assert_int_equal(r->gpu.totals[i].n_fetched, r->cpu.totals[i].n_fetched);
            if (same) assert_int_equal(r->gpu.totals[i].n_copies, r->cpu.totals[i].n_copies);
            if (t->fresh) assert_int_equal(r->gpu.totals[i].n_fetched, N_GROUPS * t->n_selected);
            else r->n_fetched += r->gpu.totals[i].n_fetched;
            t->fresh = !same;
        }
        for (uint32_t l = 0; l < N_LAYERS; l++)
            if (same || !group_of(l)) compare_outputs(r, i, l);
    }
}

/* ---- cases ---- */

/* Rows of x as tokens of PAGE_FP8. */
static char *tokens_of_codes(const struct rig *r, const float *x) {
    const uint32_t n_rows = 2 * r->n_kv;
    char *tokens = malloc(MAX_TOKENS * token_bytes(r));
    assert_non_null(tokens);
    for (size_t i = 0; i < (size_t)MAX_TOKENS * n_rows; i++) {
        char *token = tokens + i / n_rows * token_bytes(r);
        const size_t row = i % n_rows;
        token[n_elements(r) + row] =
            (char)fp8_pack((uint8_t *)token + row * r->dim, 1, (const char *)(x + i * r->dim), 1,
                           r->dim, ELEMENT_F32);
    }
    return tokens;
}

static void make_tokens(struct rig *r, struct text *t) {
    const size_t n = MAX_TOKENS * n_elements(r);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        float *x = random_bf16(n, 2);
        for (size_t i = 0; r->fp8 && i < n; i += r->dim) make_exact_in_fp8(x + i, r->dim);
        t->tokens[l] = r->cpu.kv.format == PAGE_FP8
                           ? tokens_of_codes(r, x)
                           : converted(x, n, page_element(r->cpu.kv.format));
        free(x);
        for (uint32_t p = 0; p < TEXT_PAGES; p++) {
            const char *tokens = t->tokens[l] + p * PAGE_TOKENS * token_bytes(r);
            put_page(r, &r->cpu, t->pages[l][p], tokens);
            put_page(r, &r->gpu, t->pages[l][p], tokens);
        }
    }
}

static void make_texts(struct rig *r) {
    /* The third becomes long enough to select after a few steps. */
    static const uint32_t n_tokens[N_TEXTS] = {700, 410, 300, 1400},
                          n_selected[N_TEXTS] = {128, 0, 192, 64};
    uint32_t next = 0, block = 0;
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        struct text *t = &r->texts[i];
        t->n_tokens = n_tokens[i], t->n_selected = n_selected[i];
        t->on_device = !r->with_blocks || i == 3;
        t->fresh = true;
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            for (uint32_t p = 0; p < TEXT_PAGES; p++) t->pages[l][p] = next++ * 7 % N_PAGES;
            for (uint32_t p = 0; p < CHOSEN_PAGES; p++) t->chosen[l][p] = next++ * 7 % N_PAGES;
        }
        for (uint32_t g = 0; g < N_GROUPS; g++) t->states[g] = next++ * 7 % N_PAGES;
        for (uint32_t p = 0; p < TEXT_PAGES; p++) t->blocks[p] = block++ * 3 % N_BLOCKS;
        make_tokens(r, t);
    }
    assert_true(N_PAGES % 7 != 0 && N_BLOCKS % 3 != 0 && next == N_PAGES && block == N_BLOCKS);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        if (r->texts[i].on_device) continue;
        store_text(r, &r->cpu, &r->texts[i]);
        store_text(r, &r->gpu, &r->texts[i]);
    }
}

static void make_side(struct rig *r, struct side *side, struct backend *be, enum page_format format,
                      bool tracked) {
    struct error err = {0};
    const size_t n = (size_t)RECORDED_ROWS * r->n_heads * r->dim * sizeof(float);
    side->be = be;
    side->kv = (struct kv_pool){
        .format = format, .n_pages = N_PAGES, .n_kv_heads = r->n_kv, .head_dim = r->dim};
    side->kv.tracked = tracked;
    side->kv.page_bytes = kv_page_bytes(&side->kv);
    must(be->ops->alloc(be, N_PAGES * side->kv.page_bytes, &side->kv.base, &err), &err);
    side->store =
        (struct host_pool){NULL, format, N_BLOCKS, N_HOST_LAYERS, r->n_kv, r->dim, r->fp8};
    must(be->ops->host_pool->alloc(be, N_BLOCKS * host_pool_block_bytes(&side->store),
                                   &side->store.base, &err),
         &err);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        must(be->ops->alloc(be, n, &side->q[l], &err), &err);
        must(be->ops->alloc(be, n, &side->out[l], &err), &err);
    }
    for (uint32_t g = 0; g < N_GROUPS; g++)
        must(be->ops->alloc(be, MAX_TOKENS * sizeof(float), &side->token_scores[g], &err), &err);
    const struct select_limits largest = {.max_slots = MAX_TOKENS,
                                          .max_selected = MAX_SELECTED,
                                          .n_groups = N_GROUPS,
                                          .max_group_layers = GROUP_LAYERS};
    const struct step_limits limits = {.max_rows = RECORDED_ROWS,
                                       .max_seqs = RECORDED_ROWS,
                                       .max_seq_pages = TEXT_PAGES,
                                       .max_slots = N_TEXTS * MAX_TOKENS,
                                       .kv_format = format,
                                       .tracked = tracked,
                                       .max_logit_rows = 1,
                                       .n_layers = N_LAYERS,
                                       .n_heads = r->n_heads,
                                       .n_kv_heads = r->n_kv,
                                       .head_dim = r->dim,
                                       .n_freqs = 1,
                                       .n_vocab = 64,
                                       .select = &largest};
    must(be->ops->reserve(be, &limits, &err), &err);
}

static void free_side(struct side *side) {
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        side->be->ops->free(side->be, side->q[l]);
        side->be->ops->free(side->be, side->out[l]);
    }
    for (uint32_t g = 0; g < N_GROUPS; g++) side->be->ops->free(side->be, side->token_scores[g]);
    side->be->ops->host_pool->free(side->be, side->store.base);
    side->be->ops->free(side->be, side->kv.base);
}

/* Of blocks: what their elements are. */
enum store_kind { IN_PAGES, IN_BLOCKS, IN_FP8_BLOCKS };

static struct rig *new_rig(const uint32_t *shape, enum page_format format, enum store_kind kind,
                           bool is_divided) {
    struct rig *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->n_heads = shape[0], r->n_kv = shape[1], r->dim = shape[2];
    r->with_blocks = kind != IN_PAGES;
    r->fp8 = kind == IN_FP8_BLOCKS || format == PAGE_FP8;
    make_side(r, &r->cpu, cpu, format, is_divided);
    make_side(r, &r->gpu, gpu, format, is_divided);
    make_texts(r);
    r->texts[0].is_divided = r->texts[3].is_divided = is_divided;
    for (uint32_t l = 0; l < N_LAYERS; l++)
        r->q[l] = random_bf16((size_t)N_TEXTS * r->n_heads * r->dim, 2);
    return r;
}

static void free_rig(struct rig *r) {
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t i = 0; i < N_TEXTS; i++) free(r->texts[i].tokens[l]);
        free(r->q[l]);
    }
    score_terms_fini(&r->terms);
    free_side(&r->cpu), free_side(&r->gpu);
    free(r);
}

static void check_rig(const uint32_t *shape, enum page_format format, enum store_kind kind,
                      struct score_case terms, bool is_divided) {
    static const char *const names[] = {"pages", "blocks", "fp8 blocks"};
    struct rig *r = new_rig(shape, format, kind, is_divided);
    score_terms_init(&r->terms, terms);
    if (format == PAGE_F16 || kind == IN_PAGES) r->softcap = 6; /* scores are about 10 at most */
    const uint32_t n_steps = small ? 4 : 80;
    for (uint32_t step = 0; step < n_steps; step++) {
        make_step(r);
        run_step(r);
        compare_step(r);
        for (uint32_t i = 0; i < N_TEXTS; i++) r->texts[i].n_tokens += small ? 40 : 1;
    }
    printf("%u/%u heads of %u, format %d, %s: %u states, %u near ties, %u tokens fetched\n",
           r->n_heads, r->n_kv, r->dim, (int)format, names[kind], r->n_states, r->n_ties,
           r->n_fetched);
    assert_true(r->n_states > 2 * n_steps && r->n_ties * 4 < r->n_states && r->n_fetched > 0);
    free_rig(r);
}

static void check_shape(const uint32_t *shape, enum page_format format, enum store_kind kind) {
    check_rig(shape, format, kind, score_case_at(0), false);
}

static const uint32_t shapes[][3] = {/* heads, kv heads, head_dim */
                                     {8, 2, 64},  {32, 8, 128}, {6, 1, 80}, {8, 1, 128},
                                     {4, 4, 128}, {17, 1, 64},  {2, 1, 20}};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static void bf16_selections_equal_the_cpu(void **state) {
    for (uint32_t i = 0; i < N_SHAPES; i += small ? N_SHAPES - 1 : 1)
        check_shape(shapes[i], PAGE_BF16, IN_BLOCKS);
    check_shape(shapes[0], PAGE_BF16, IN_PAGES);
}

static void f16_selections_equal_the_cpu(void **state) {
    check_shape(shapes[small ? N_SHAPES - 1 : 1], PAGE_F16, IN_BLOCKS);
}

static void f32_selections_equal_the_cpu(void **state) {
    check_shape(shapes[small ? N_SHAPES - 1 : 0], PAGE_F32, IN_BLOCKS);
}

static void fp8_selections_equal_the_cpu(void **state) {
    for (uint32_t i = 0; i < N_SHAPES; i += small ? N_SHAPES - 1 : 1)
        check_shape(shapes[i], PAGE_BF16, IN_FP8_BLOCKS);
    check_shape(shapes[0], PAGE_F16, IN_FP8_BLOCKS);
    check_shape(shapes[0], PAGE_F32, IN_FP8_BLOCKS);
    for (uint32_t i = 0; i < N_SHAPES; i += small ? N_SHAPES - 1 : 1)
        check_shape(shapes[i], PAGE_FP8, IN_BLOCKS);
    check_shape(shapes[0], PAGE_FP8, IN_PAGES);
}

/* Chosen tokens lie in any order, and are as far away as in the text. */
static void sinks_and_slopes_equal_the_cpu(void **state) {
    for (uint32_t i = 0; i < N_SHAPES; i += small ? N_SHAPES - 1 : 1)
        check_rig(shapes[i], i % 2 ? PAGE_FP8 : PAGE_BF16, i % 3 ? IN_BLOCKS : IN_PAGES,
                  score_case_at(1 + i % 4), false);
}

/* It attends to its own slots, and nothing is fetched for it. */
static void a_layer_with_a_budget_does_not_follow(void **state) {
    for (uint32_t i = 0; i < N_SHAPES; i += small ? N_SHAPES - 1 : 2)
        check_rig(shapes[i], i % 4 ? PAGE_FP8 : PAGE_BF16, i % 3 ? IN_BLOCKS : IN_PAGES,
                  score_case_at(0), true);
}

/* What was written by then is in the blocks, although the pages are written again by the step that
 * begins next: here by rope_append, with nothing to wait for but what step_begin() says. */
static void copies_end_before_a_step_writes_their_pages(void **state) {
    enum { N = 8, KV = 2, DIM = 64, ROWS = N * PAGE_TOKENS, WIDTH = 3 * KV * DIM };
    struct error err = {0};
    struct kv_pool kv = {.format = PAGE_BF16, .n_pages = N, .n_kv_heads = KV, .head_dim = DIM};
    struct host_pool store = {NULL, PAGE_BF16, N, 1, KV, DIM, false};
    const uint32_t pages[N] = {3, 1, 0, 7, 6, 2, 5, 4}, blocks[N] = {5, 0, 7, 1, 4, 6, 2, 3};
    const double inv_freq[DIM / 2] = {0}; /* nothing turns */
    uint32_t positions[ROWS] = {0};
    const struct kv_view view = {pages, ROWS, 0};
    const struct step_seq seq = {.n_rows = ROWS, .layers = &view};
    const struct step step = {
        .n_rows = ROWS, .n_seqs = 1, .n_layers = 1, .positions = positions, .seqs = &seq};
    kv.page_bytes = kv_page_bytes(&kv);
    kv.base = gpu_alloc(N * kv.page_bytes);
    must(gpu->ops->host_pool->alloc(gpu, N * host_pool_block_bytes(&store), &store.base, &err),
         &err);
    float *first = random_bf16(ROWS * WIDTH, 2), *second = random_bf16(ROWS * WIDTH, 2);
    void *rows[2] = {gpu_array(first, ROWS * WIDTH, ELEMENT_BF16),
                     gpu_array(second, ROWS * WIDTH, ELEMENT_BF16)};
    for (uint32_t i = 0; i < 2; i++) {
        const struct rope_append_args rope = {rows[i], &kv, inv_freq, 1.0f, DIM / 2, 0,
                                              KV,      0,   0,        0,    0,       NULL};
        must(gpu->ops->step_begin(gpu, &step, &err), &err);
        must(gpu->ops->rope_append(gpu, &rope, &err), &err);
        const struct offload_args args = {&kv, &store, 0, N, pages, blocks};
        if (i == 0) must(gpu->ops->host_pool->offload(gpu, &args, &err), &err);
    }
    must(gpu->ops->sync(gpu, &err), &err);
    const uint16_t *stored = store.base;
    for (uint32_t t = 0; t < ROWS; t++)
        for (uint32_t i = 0; i < 2 * KV * DIM; i++) {
            const size_t block = blocks[t / PAGE_TOKENS];
            const float x = load_as_f32(
                stored, (block * PAGE_TOKENS + t % PAGE_TOKENS) * 2 * KV * DIM + i, ELEMENT_BF16);
            if (x != first[t * WIDTH + KV * DIM + i])
                fail_msg("token %u, element %u: %g, not %g", t, i, x,
                         first[t * WIDTH + KV * DIM + i]);
        }
    gpu_free(rows[0]), gpu_free(rows[1]), gpu_free(kv.base);
    gpu->ops->host_pool->free(gpu, store.base);
    free(first), free(second);
}

/* Pages that go to the host pool come back to others as they went, elements and scales; the copies
 * out need not have ended before. */
static void check_reload(enum page_format format, uint32_t n_kv, uint32_t dim) {
    enum { N = 12, MOVED = 6, N_HOST_LAYERS = 2 };
    const uint32_t from[MOVED] = {3, 1, 0, 7, 6, 2}, blocks[MOVED] = {5, 0, 3, 1, 4, 2},
                   to[MOVED] = {11, 4, 9, 5, 8, 10};
    struct error err = {0};
    struct kv_pool kv = {.format = format, .n_pages = N, .n_kv_heads = n_kv, .head_dim = dim};
    struct host_pool store = {NULL, format, MOVED, N_HOST_LAYERS, n_kv, dim, format == PAGE_FP8};
    kv.page_bytes = kv_page_bytes(&kv);
    const size_t n_bytes = N * kv.page_bytes, n_tokens = kv_state_offset(&kv, 0);
    char *host = malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; i++) host[i] = (char)random_below(256);
    kv.base = gpu_alloc(n_bytes);
    must(gpu->ops->upload(gpu, kv.base, host, n_bytes, &err), &err);
    must(gpu->ops->host_pool->alloc(gpu, MOVED * host_pool_block_bytes(&store), &store.base, &err),
         &err);
    const struct offload_args out = {&kv, &store, 1, MOVED, from, blocks},
                              back = {&kv, &store, 1, MOVED, to, blocks};
    must(gpu->ops->host_pool->offload(gpu, &out, &err), &err);
    must(gpu->ops->host_pool->reload(gpu, &back, &err), &err);
    char *now = malloc(n_bytes);
    must(gpu->ops->download(gpu, now, kv.base, n_bytes, &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
    for (uint32_t i = 0; i < MOVED; i++)
        memcpy(host + to[i] * kv.page_bytes, host + from[i] * kv.page_bytes, n_tokens);
    assert_memory_equal(now, host, n_bytes);
    gpu->ops->host_pool->free(gpu, store.base);
    gpu_free(kv.base);
    free(host), free(now);
}

static void pages_come_back_as_they_went(void **state) {
    static const enum page_format formats[] = {PAGE_F32, PAGE_F16, PAGE_BF16, PAGE_FP8};
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        check_reload(formats[i], 8, 128);
        check_reload(formats[i], 2, 64);
        check_reload(formats[i], 1, 20);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_selections_equal_the_cpu),
        cmocka_unit_test(f16_selections_equal_the_cpu),
        cmocka_unit_test(f32_selections_equal_the_cpu),
        cmocka_unit_test(fp8_selections_equal_the_cpu),
        cmocka_unit_test(sinks_and_slopes_equal_the_cpu),
        cmocka_unit_test(a_layer_with_a_budget_does_not_follow),
        cmocka_unit_test(copies_end_before_a_step_writes_their_pages),
        cmocka_unit_test(pages_come_back_as_they_went),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
