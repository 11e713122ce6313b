/* test_select.c - selections of tokens against their definition: an oracle in double chooses anew
 * in every step, from inputs that it keeps itself.  Outputs, token scores, which tokens are
 * chosen, their slots, what lies in these and totals must agree.  Where two candidates score the
 * same within rounding either may be chosen, and the oracle goes on with the backend's choice.
 *
 *   layer   0   1   2      3      4        5      6   7        8
 *           F   w   sparse sparse a window sparse F   a window sparse
 *
 * RoPE's frequencies are 0: keys lie in their pages as they are.
 * Where the store is fp8, keys and values are such that it loses nothing, or what it may lose is
 * allowed for. */
#include "tests/cpu/cpu_test.h"

#include "engine/base/count.h"
#include "engine/cpu/vec.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

enum {
    N_LAYERS = 9,
    N_GROUPS = 2,
    N_HOST_LAYERS = 4,
    MOST_RUNS = 5,
    MOST_ROWS = 2048,
    MOST_DIM = 128,
    WINDOW = 100
};

/* Of attention to keys and values that came from an fp8 store: a 16th for values; keys of 64
 * uniform elements are off by a 30th each, in both directions, and scores with them by 0.05. */
#define ROUGH_TOLERANCE 0.15

static const struct layer_group groups[N_GROUPS] = {{0, 2, 6}, {6, 8, 9}};
static const uint32_t windows[N_LAYERS] = {[4] = WINDOW, [7] = WINDOW};
/* Each layer's host layer; -1: it is not sparse. */
static const int host_layers[N_LAYERS] = {-1, -1, 0, 1, -1, 2, -1, -1, 3};
enum { GROUP_LAYERS = 3 }; /* of the first group; the other has one */

struct shape {
    uint32_t n_heads, n_kv, dim;
    enum page_format format; /* of pages and store */
    bool fp8;                /* the store is */
    float softcap;
    bool sinks; /* zero sinks */
};

struct plan {
    uint32_t n_prompt, n_text;
    uint32_t n_selected, n_tail, n_sink; /* n_selected 0: everything is seen */
    bool on_device;
    uint32_t n_keys; /* 0: every token has keys of its own; else there are as many different ones */
    bool odd;        /* some queries are zero, some NaN */
    bool rough;      /* the store cannot hold keys and values exactly */
    enum kv_selector selector;
    uint32_t chunk; /* rows of the prompt in a step; 0: all */
    const struct kv_budget *budget;
};

/* A backend with a pool and a store, whose pages and blocks come in random order. */
struct rig {
    struct backend *be;
    struct shape shape;
    struct kv_pool kv;
    struct host_pool store;
    uint32_t *pages, *blocks; /* what is free lies at the end */
    uint32_t n_pages, n_blocks;
};

/* A sequence. */
struct run {
    struct rig *rig;
    struct plan plan;
    uint32_t n_done, n_left; /* tokens of the text; pages whose tokens are in the store only */
    float *qkv[N_LAYERS], *out[N_LAYERS]; /* [n_text][…] */
    uint32_t *text_pages[N_LAYERS], *chosen_pages[N_LAYERS], *state_pages, *blocks;
    uint32_t *view_pages[N_LAYERS];
    struct kv_view views[N_LAYERS];
    struct kv_select select; /* n_candidates 0: not in this step */
    struct kv_observation observed;
    uint32_t *observed_pages;
    double **scores[N_LAYERS]; /* the oracle's: [n_text], those of each query, or NULL */
    uint32_t *held[N_GROUPS];  /* [n_selected]: what the slots held before the step */
    struct select_total total, expected;
};

static uint32_t pages_for(uint32_t n_tokens) {
    return (n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

static uint32_t row_width(const struct shape *s) {
    return (s->n_heads + 2 * s->n_kv) * s->dim;
}

/* The group a layer is a sparse one of; NULL: it sees everything. */
static const struct layer_group *group_of(uint32_t layer) {
    return host_layers[layer] < 0 ? NULL : &groups[host_layers[layer] >= GROUP_LAYERS];
}

static uint32_t host_layer_of(uint32_t layer) {
    return (uint32_t)host_layers[layer];
}

/* --- Pool, store and sequences. --- */

static uint32_t *shuffled(uint32_t n) {
    uint32_t *order = malloc(n * sizeof(*order));
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = random_below(i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    return order;
}

static void rig_init(struct rig *rig, struct backend *be, struct shape shape) {
    const uint32_t n_pages = 2500, n_blocks = 200;
    *rig = (struct rig){.be = be, .shape = shape, .n_pages = n_pages, .n_blocks = n_blocks};
    rig->kv = (struct kv_pool){.format = shape.format,
                               .n_pages = n_pages,
                               .n_kv_heads = shape.n_kv,
                               .head_dim = shape.dim,
                               .tracked = true};
    rig->kv.page_bytes = kv_page_bytes(&rig->kv);
    rig->store = (struct host_pool){.format = shape.format,
                                    .n_blocks = n_blocks,
                                    .n_host_layers = N_HOST_LAYERS,
                                    .n_kv_heads = shape.n_kv,
                                    .head_dim = shape.dim,
                                    .fp8 = shape.fp8};
    rig->pages = shuffled(n_pages);
    rig->blocks = shuffled(n_blocks);
    assert_int_equal(be->ops->alloc(be, n_pages * rig->kv.page_bytes, &rig->kv.base, NULL), 0);
    assert_int_equal(be->ops->host_pool->alloc(be, n_blocks * host_pool_block_bytes(&rig->store),
                                               &rig->store.base, NULL),
                     0);
}

static void rig_fini(struct rig *rig) {
    rig->be->ops->free(rig->be, rig->kv.base);
    rig->be->ops->host_pool->free(rig->be, rig->store.base);
    free(rig->pages);
    free(rig->blocks);
}

/* NaN: a read of what was not written shows. */
static void poison(const struct rig *rig, uint32_t page) {
    memset((char *)rig->kv.base + page * rig->kv.page_bytes, 0xff, rig->kv.page_bytes);
}

static uint32_t *take_pages(struct rig *rig, uint32_t n) {
    uint32_t *pages = malloc((n ? n : 1) * sizeof(*pages));
    assert_true(n <= rig->n_pages);
    for (uint32_t i = 0; i < n; i++) poison(rig, pages[i] = rig->pages[--rig->n_pages]);
    return pages;
}

/* Keys and values that pages of the format, and the store, can hold exactly. */
static float *random_inputs(const struct shape *s, const struct plan *p) {
    const uint32_t width = row_width(s), q_width = s->n_heads * s->dim, kv_width = s->n_kv * s->dim;
    float *x = random_floats((size_t)p->n_text * width);
    for (size_t i = 0; i < (size_t)p->n_text * width; i++) {
        char element[4];
        x[i] *= 2; /* sharp and flat rows */
        if (i % width < q_width || s->format == PAGE_FP8) continue;
        store_f32_as(element, 0, x[i], page_element(s->format));
        x[i] = load_as_f32(element, 0, page_element(s->format));
    }
    for (size_t i = 0; s->fp8 && !p->rough && i < (size_t)p->n_text * width; i += s->dim)
        if (i % width >= q_width) make_exact_in_fp8(x + i, s->dim);
    for (uint32_t row = p->n_keys; p->n_keys && row < p->n_text; row++)
        memcpy(x + (size_t)row * width + q_width,
               x + (size_t)random_below(p->n_keys) * width + q_width, kv_width * sizeof(float));
    for (uint32_t row = 0; p->odd && row < p->n_text; row++) {
        const uint32_t kind = random_below(8), head = random_below(s->n_heads);
        float *q = x + (size_t)row * width;
        for (uint32_t i = 0; i < q_width && kind < 2; i++) q[i] = kind ? 0 : NAN;
        if (kind == 2) q[head * s->dim + random_below(s->dim)] = NAN;
    }
    return x;
}

static void run_init(struct run *r, struct rig *rig, const struct plan *plan) {
    const struct shape *s = &rig->shape;
    const uint32_t n = pages_for(plan->n_text), n_chosen = plan->n_selected / PAGE_TOKENS;
    *r = (struct run){.rig = rig, .plan = *plan};
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        r->qkv[layer] = random_inputs(s, plan);
        r->scores[layer] = calloc(plan->n_text, sizeof(double *));
        r->out[layer] = calloc((size_t)plan->n_text * s->n_heads * s->dim, sizeof(float));
        r->text_pages[layer] = take_pages(rig, n);
        r->chosen_pages[layer] = take_pages(rig, group_of(layer) ? n_chosen : 0);
        r->view_pages[layer] = malloc((n + n_chosen) * sizeof(uint32_t));
    }
    for (uint32_t g = 0; g < N_GROUPS; g++)
        r->held[g] = calloc(plan->n_selected + 1, sizeof(uint32_t));
    const uint32_t each = kv_state_slots(&rig->kv);
    r->state_pages = take_pages(rig, N_GROUPS * ((plan->n_selected + each - 1) / each));
    r->blocks = malloc(n * sizeof(uint32_t));
    assert_true(plan->on_device || n <= rig->n_blocks);
    for (uint32_t i = 0; !plan->on_device && i < n; i++)
        r->blocks[i] = rig->blocks[--rig->n_blocks];
    r->select.fresh = true;
    r->observed.selector = plan->selector;
    r->observed.n_pages = n * KV_OBSERVED / kv_score_runs(&rig->kv) + 1;
    r->observed.pages = r->observed_pages = take_pages(rig, N_GROUPS * r->observed.n_pages);
}

static void run_fini(struct run *r) {
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        for (uint32_t i = 0; i < r->plan.n_text; i++) free(r->scores[layer][i]);
        free(r->scores[layer]);
        free(r->qkv[layer]);
        free(r->out[layer]);
        free(r->text_pages[layer]);
        free(r->chosen_pages[layer]);
        free(r->view_pages[layer]);
    }
    for (uint32_t g = 0; g < N_GROUPS; g++) free(r->held[g]);
    free(r->state_pages);
    free(r->observed_pages);
    free(r->blocks);
}

/* --- The definition. --- */

/* Of a token: a query head's query or, with head >= n_heads, keys and values. */
static const float *input_of(const struct run *r, uint32_t layer, uint32_t token, uint32_t head) {
    const struct shape *s = &r->rig->shape;
    return r->qkv[layer] + (size_t)token * row_width(s) + head * s->dim;
}

/* A token's softmax over n tokens. */
static void probabilities_of(const struct run *r, uint32_t layer, uint32_t query, uint32_t head,
                             const uint32_t *tokens, uint32_t n, double *p) {
    const struct shape *s = &r->rig->shape;
    const uint32_t kv_head = head / (s->n_heads / s->n_kv);
    const float *q = input_of(r, layer, query, head);
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float *k = input_of(r, layer, tokens[i], s->n_heads + kv_head);
        double score = 0;
        for (uint32_t d = 0; d < s->dim; d++) score += (double)q[d] * k[d];
        p[i] = score / sqrt(s->dim);
        if (s->softcap > 0) p[i] = s->softcap * tanh(p[i] / s->softcap);
        max = fmax(max, p[i]);
    }
    for (uint32_t i = 0; i < n; i++) sum += p[i] = exp(p[i] - max);
    if (s->sinks) sum += exp(-max);
    for (uint32_t i = 0; i < n; i++) p[i] /= sum;
}

static void probabilities(const struct run *r, uint32_t layer, uint32_t head,
                          const uint32_t *tokens, uint32_t n, double *p) {
    probabilities_of(r, layer, r->n_done, head, tokens, n, p);
}

static void check_out(const struct run *r, uint32_t layer, const uint32_t *tokens, uint32_t n,
                      double tolerance) {
    const struct shape *s = &r->rig->shape;
    double *p = malloc(n * sizeof(double)), expected[MOST_DIM];
    for (uint32_t head = 0; head < s->n_heads; head++) {
        memset(expected, 0, sizeof(expected));
        probabilities(r, layer, head, tokens, n, p);
        for (uint32_t i = 0; i < n; i++) {
            const float *v =
                input_of(r, layer, tokens[i], s->n_heads + s->n_kv + head / (s->n_heads / s->n_kv));
            for (uint32_t d = 0; d < s->dim; d++) expected[d] += p[i] * v[d];
        }
        const float *out = r->out[layer] + ((size_t)r->n_done * s->n_heads + head) * s->dim;
        assert_close(out, expected, s->dim, tolerance);
    }
    free(p);
}

struct candidate {
    double token_scores;
    uint32_t token;
    bool expected, got;
};

/* Best first, of equals the lower token. */
static int compare_candidates(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->token_scores != y->token_scores) return x->token_scores > y->token_scores ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* How much the token scores of a query count that is so many tokens older than the newest one. */
static double weight_of(enum kv_selector selector, uint32_t age) {
    if (age == 0 || selector == KV_SELECTOR_ACCUMULATED) return 1;
    if (selector == KV_SELECTOR_LAST || age >= KV_OBSERVED) return 0;
    return selector == KV_SELECTOR_UNIFORM ? 1 : pow(2, -(double)age);
}

/* The token scores of one query, which sees the tokens up to its own.  The next queries ask for
 * them again. */
static const double *query_scores(const struct run *r, uint32_t layer, uint32_t query) {
    const uint32_t n = query + 1;
    double **kept = &r->scores[layer][query];
    if (*kept) return *kept;
    double *p = malloc(n * sizeof(double)), *token_scores = *kept = malloc(n * sizeof(double));
    uint32_t *all = malloc(n * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++) all[i] = i;
    for (uint32_t i = 0; i < n; i++) token_scores[i] = -1;
    for (uint32_t head = 0; head < r->rig->shape.n_heads; head++) {
        probabilities_of(r, layer, query, head, all, n, p);
        for (uint32_t i = 0; i < n; i++) token_scores[i] = fmax(token_scores[i], p[i]);
    }
    free(p);
    free(all);
    return token_scores;
}

/* Whether a query's score of a token counts: where all do, only once the token's page is whole. */
static bool counts(enum kv_selector selector, uint32_t query, uint32_t token) {
    return selector != KV_SELECTOR_ACCUMULATED || token / PAGE_TOKENS < (query + 1) / PAGE_TOKENS;
}

static struct candidate *oracle_choice(const struct run *r, uint32_t layer) {
    const uint32_t n = r->select.n_candidates;
    struct candidate *c = calloc(n, sizeof(*c));
    const bool window = r->plan.selector != KV_SELECTOR_LAST;
    for (uint32_t i = 0; i < n; i++) c[i].token = i;
    for (uint32_t age = 0; age <= r->n_done; age++) {
        const double weight = weight_of(r->plan.selector, age);
        const uint32_t query = r->n_done - age;
        if (weight == 0) continue;
        const double *token_scores = query_scores(r, layer, query);
        for (uint32_t i = 0; i < n && i <= query; i++)
            if (counts(r->plan.selector, query, i))
                c[i].token_scores += weight * (window ? fmax(token_scores[i], 0) : token_scores[i]);
    }
    for (uint32_t i = 0; i < r->plan.n_sink; i++) c[i].token_scores = INFINITY;
    qsort(c, r->select.n_candidates, sizeof(*c), compare_candidates);
    for (uint32_t i = 0; i < r->plan.n_selected; i++) c[i].expected = true;
    return c;
}

/* --- What the backend did. --- */

static uint32_t held_token(const struct run *r, uint32_t g, uint32_t slot) {
    const struct kv_pool *kv = &r->rig->kv;
    const uint32_t each = kv_state_slots(kv), n_pages = (r->plan.n_selected + each - 1) / each,
                   page = r->state_pages[g * n_pages + slot / each];
    return ((const uint32_t *)((const char *)kv->base + page * kv->page_bytes))[slot % each];
}

/* Another token than the oracle's may be there only where rounding decides between them. */
static void check_choice(const struct run *r, uint32_t g) {
    const uint32_t n = r->select.n_candidates;
    struct candidate *c = oracle_choice(r, groups[g].filter);
    bool *got = calloc(n, sizeof(bool));
    for (uint32_t slot = 0; slot < r->plan.n_selected; slot++) {
        const uint32_t token = held_token(r, g, slot);
        assert_true(token < n && !got[token]);
        got[token] = true;
    }
    for (uint32_t i = 0; i < n; i++) c[i].got = got[c[i].token];
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = i + 1; c[i].expected && !c[i].got && k < n; k++) {
            if (!c[k].got || c[k].expected) continue;
            assert_true(c[i].token_scores != c[k].token_scores &&
                        c[i].token_scores < c[k].token_scores * (1 + 1e-4));
        }
    }
    free(c);
    free(got);
}

/* A token that is chosen again stays; new ones go, ascending, to the slots that are free,
 * ascending. */
static void check_slots(struct run *r, uint32_t g) {
    bool *was = calloc(r->plan.n_text, sizeof(bool)), *is = calloc(r->plan.n_text, sizeof(bool));
    uint32_t n_new = 0, last = 0;
    for (uint32_t slot = 0; slot < r->plan.n_selected; slot++) {
        is[held_token(r, g, slot)] = true;
        if (!r->select.fresh) was[r->held[g][slot]] = true;
    }
    for (uint32_t slot = 0; slot < r->plan.n_selected; slot++) {
        const uint32_t token = held_token(r, g, slot), before = r->held[g][slot];
        if (was[token]) assert_int_equal(token, before);
        if (was[token]) continue;
        assert_true(r->select.fresh || !is[before]);
        assert_true(n_new == 0 || token > last);
        last = token;
        n_new++;
    }
    free(was);
    free(is);
    r->expected.n_chosen += r->plan.n_selected;
    r->expected.n_fetched += n_new;
    r->expected.n_copies += n_new * (g == 0 ? GROUP_LAYERS : 1);
}

/* Returns how far an element may be off that comes from the store.  largest: of its head's row. */
static float allowed_error(const struct run *r, float element, float largest) {
    return r->plan.rough ? fmaxf(fabsf(element) / 16, largest / 224 / 1024) : 0;
}

/* Returns the largest of a row's elements, for allowed_error(). */
static float largest_of(const struct run *r, const float *row) {
    float largest = 0;
    for (uint32_t i = 0; r->plan.rough && i < r->rig->shape.dim; i++)
        largest = fmaxf(largest, fabsf(row[i]));
    return largest;
}

/* What a row's elements are multiples of; at: the slot in the page. */
static float factor_of(const struct run *r, const char *page, uint32_t row, size_t at) {
    const struct kv_pool *kv = &r->rig->kv;
    if (kv->format != PAGE_FP8) return 1;
    return fp8_factor((uint8_t)page[page_layout_of(kv).scales_at + (size_t)row * PAGE_TOKENS + at]);
}

/* A slot holds the token's very keys and values. */
static void check_slot(const struct run *r, uint32_t layer, uint32_t slot, uint32_t token) {
    const struct shape *s = &r->rig->shape;
    const size_t head_size = (size_t)PAGE_TOKENS * s->dim, at = slot % PAGE_TOKENS;
    const char *page = (const char *)r->rig->kv.base +
                       r->chosen_pages[layer][slot / PAGE_TOKENS] * r->rig->kv.page_bytes;
    for (uint32_t head = 0; head < s->n_kv; head++) {
        const float *k = input_of(r, layer, token, s->n_heads + head), *v = k + s->n_kv * s->dim;
        const float k_factor = factor_of(r, page, head, at),
                    v_factor = factor_of(r, page, s->n_kv + head, at);
        const float k_largest = largest_of(r, k), v_largest = largest_of(r, v);
        for (uint32_t d = 0; d < s->dim; d++) {
            const size_t k_at = head * head_size + d * PAGE_TOKENS + at,
                         v_at = (s->n_kv + head) * head_size + at * s->dim + d;
            const float k_is = load_as_f32(page, k_at, page_element(s->format)) * k_factor,
                        v_is = load_as_f32(page, v_at, page_element(s->format)) * v_factor;
            assert_true(fabsf(k_is - k[d]) <= allowed_error(r, k[d], k_largest));
            assert_true(fabsf(v_is - v[d]) <= allowed_error(r, v[d], v_largest));
        }
    }
}

/* Sinks are chosen whatever their scores are. */
static void check_scores(const struct run *r, uint32_t g, const float *token_scores) {
    struct candidate *c = oracle_choice(r, groups[g].filter);
    for (uint32_t i = 0; i < r->select.n_candidates; i++)
        if (c[i].token_scores < INFINITY)
            assert_true(fabs(token_scores[c[i].token] - c[i].token_scores) <=
                        1e-4 * fabs(c[i].token_scores));
    free(c);
}

static void check_group(struct run *r, uint32_t g, const float *token_scores) {
    check_choice(r, g);
    if (token_scores) check_scores(r, g, token_scores);
    check_slots(r, g);
    for (uint32_t slot = 0; slot < r->plan.n_selected; slot++) {
        const uint32_t token = held_token(r, g, slot);
        /* What stays is looked at from time to time. */
        const bool looks =
            r->select.fresh || r->held[g][slot] != token || (r->n_done + slot) % 8 == 0;
        r->held[g][slot] = token;
        for (uint32_t layer = 0; looks && layer < N_LAYERS; layer++)
            if (group_of(layer) == &groups[g]) check_slot(r, layer, slot, token);
    }
}

/* Attention over what the newest token saw in a layer. */
static void check_layer(const struct run *r, uint32_t layer) {
    const struct layer_group *group = group_of(layer);
    const bool sparse = group && r->select.n_candidates > 0;
    uint32_t *tokens = malloc((r->n_done + 1) * sizeof(uint32_t)), n = 0,
             first = sparse ? r->select.n_candidates : 0;
    if (windows[layer] > 0 && r->n_done + 1 > WINDOW) first = r->n_done + 1 - WINDOW;
    for (uint32_t slot = 0; sparse && slot < r->plan.n_selected; slot++)
        tokens[n++] = r->held[group - groups][slot];
    for (uint32_t i = first; i <= r->n_done; i++) tokens[n++] = i;
    check_out(r, layer, tokens, n, sparse && r->plan.rough ? ROUGH_TOLERANCE : 1e-4);
    free(tokens);
}

/* --- Steps. --- */

static bool is_prompt(const struct run *r) {
    return r->n_done < r->plan.n_prompt;
}

static uint32_t rows_of(const struct run *r) {
    const uint32_t n_left = is_prompt(r) ? r->plan.n_prompt - r->n_done : 1;
    return r->plan.chunk > 0 && r->plan.chunk < n_left ? r->plan.chunk : n_left;
}

/* How many tokens lie before the tail of a text of n_stored tokens, in whole pages. */
static uint32_t n_before_tail(const struct run *r, uint32_t n_stored) {
    if (n_stored < r->plan.n_tail) return 0;
    return (n_stored - r->plan.n_tail) / PAGE_TOKENS * PAGE_TOKENS;
}

/* How many candidates the next token has; 0: it sees everything. */
static uint32_t candidates_of(const struct run *r) {
    if (is_prompt(r) || r->plan.n_selected == 0) return 0;
    const uint32_t n = n_before_tail(r, r->n_done + 1);
    return n > r->plan.n_selected ? n : 0;
}

/* What is kept of the step's last queries, for those that look back at them; NULL: nothing is. */
static const struct kv_observation *observe(struct run *r) {
    const uint32_t end = r->n_done + rows_of(r), last = KV_OBSERVED - 1,
                   n_scored = n_before_tail(r, end + last), most = n_before_tail(r, r->plan.n_text);
    if (r->plan.selector == KV_SELECTOR_LAST) return NULL;
    const bool all = r->plan.selector == KV_SELECTOR_ACCUMULATED;
    const uint32_t scored = all ? end / PAGE_TOKENS * PAGE_TOKENS : n_scored;
    r->observed.first = all || end < KV_OBSERVED ? 0 : end - KV_OBSERVED;
    r->observed.n_scored = scored < most ? scored : most;
    return &r->observed;
}

/* What is in the store only, is nowhere else. */
static void leave_pages(struct run *r) {
    for (; !r->plan.on_device && r->n_left < r->select.n_candidates / PAGE_TOKENS; r->n_left++)
        for (uint32_t layer = 0; layer < N_LAYERS; layer++)
            if (group_of(layer)) poison(r->rig, r->text_pages[layer][r->n_left]);
}

static struct kv_view view_of(struct run *r, uint32_t layer) {
    const uint32_t n_before = r->n_done, n_rows = rows_of(r);
    if (r->plan.budget && n_before >= r->plan.budget->capacity)
        return (struct kv_view){r->text_pages[layer], r->plan.budget->capacity + 1, KV_FREE_SLOT};
    if (!r->select.n_candidates || !group_of(layer))
        return (struct kv_view){r->text_pages[layer], n_before + n_rows, n_before};
    const uint32_t first = r->select.n_candidates / PAGE_TOKENS,
                   n_chosen = r->plan.n_selected / PAGE_TOKENS,
                   slot = r->plan.n_selected + n_before - r->select.n_candidates;
    memcpy(r->view_pages[layer], r->chosen_pages[layer], n_chosen * sizeof(uint32_t));
    memcpy(r->view_pages[layer] + n_chosen, r->text_pages[layer] + first,
           (pages_for(n_before + 1) - first) * sizeof(uint32_t));
    return (struct kv_view){r->view_pages[layer], slot + 1, slot};
}

static struct step_seq describe(struct run *r, uint32_t first_row) {
    r->expected = (struct select_total){0};
    r->select.n_candidates = candidates_of(r);
    r->select.n_selected = r->plan.n_selected;
    r->select.n_sink = r->plan.n_sink;
    r->select.state_pages = r->state_pages;
    if (r->plan.on_device) r->select.pool_pages = (const uint32_t *const *)r->text_pages;
    else r->select.blocks = r->blocks;
    leave_pages(r);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) r->views[layer] = view_of(r, layer);
    return (struct step_seq){.first_row = first_row,
                             .n_rows = rows_of(r),
                             .layers = r->views,
                             .n_before = r->n_done,
                             .budget = r->plan.budget,
                             .select = r->select.n_candidates ? &r->select : NULL,
                             .observed = observe(r)};
}

static void store_layer(struct run *r, uint32_t layer, uint32_t first, uint32_t end) {
    const struct offload_args args = {&r->rig->kv,
                                      &r->rig->store,
                                      host_layer_of(layer),
                                      end - first,
                                      r->text_pages[layer] + first,
                                      r->blocks + first};
    assert_int_equal(r->rig->be->ops->host_pool->offload(r->rig->be, &args, NULL), 0);
}

/* Pages that the step completed go to the store, too. */
static void advance(struct run *r) {
    const uint32_t first = r->n_done / PAGE_TOKENS, end = (r->n_done + rows_of(r)) / PAGE_TOKENS;
    for (uint32_t layer = 0; !r->plan.on_device && layer < N_LAYERS; layer++)
        if (group_of(layer)) store_layer(r, layer, first, end);
    r->n_done += rows_of(r);
    if (r->select.n_candidates) r->select.fresh = false;
}

/* Copies the rows of all sequences together, or apart again. */
static void move_rows(struct run *runs, uint32_t n_runs, uint32_t layer, float *qkv, float *out) {
    const struct shape *s = &runs[0].rig->shape;
    const size_t width = row_width(s), out_width = s->n_heads * s->dim;
    for (uint32_t i = 0; i < n_runs; i++) {
        const uint32_t n = rows_of(&runs[i]), first = runs[i].n_done;
        if (qkv) memcpy(qkv, runs[i].qkv[layer] + first * width, n * width * sizeof(float));
        if (out) memcpy(runs[i].out[layer] + first * out_width, out, n * out_width * sizeof(float));
        qkv += qkv ? n * width : 0;
        out += out ? n * out_width : 0;
    }
}

static void run_select(struct run *runs, uint32_t n_runs, uint32_t g, const struct attn_args *attn,
                       bool checked) {
    struct rig *rig = runs[0].rig;
    const bool alone = n_runs == 1 && runs[0].select.n_candidates > 0;
    float *token_scores =
        alone ? malloc(runs[0].select.n_candidates * sizeof(*token_scores)) : NULL;
    const struct select_args args = {*attn,       &groups[g],  g, host_layer_of(groups[g].first),
                                     &rig->store, token_scores};
    const struct select_ops *ops = rig->be->ops->select;
    assert_int_equal(ops->select(rig->be, &args, NULL), 0);
    assert_int_equal(ops->observe(rig->be, &args, NULL), 0);
    for (uint32_t i = 0; i < n_runs && checked; i++)
        if (runs[i].select.n_candidates) check_group(&runs[i], g, token_scores);
    free(token_scores);
}

static void run_layer(struct run *runs, uint32_t n_runs, uint32_t layer, uint32_t n_rows,
                      bool checked) {
    struct rig *rig = runs[0].rig;
    const struct shape *s = &rig->shape;
    const struct backend_ops *ops = rig->be->ops;
    const double inv_freq[MOST_DIM] = {0};
    const struct weight zeros = {0};
    float *qkv = malloc((size_t)n_rows * row_width(s) * sizeof(float)),
          *out = random_floats((size_t)n_rows * s->n_heads * s->dim);
    move_rows(runs, n_runs, layer, qkv, NULL);
    const struct rope_append_args rope = {qkv,        &rig->kv, inv_freq, 1, s->dim / 2, layer,
                                          s->n_heads, 0,        0,        0, 0,          NULL};
    struct attn_args attn = {.q = qkv,
                             .q_stride = row_width(s),
                             .out = out,
                             .kv = &rig->kv,
                             .layer = layer,
                             .n_heads = s->n_heads,
                             .scale = (float)(1 / sqrt(s->dim)),
                             .softcap = s->softcap,
                             .sinks = s->sinks ? &zeros : NULL,
                             .inv_freq = inv_freq,
                             .rope_scale = 1,
                             .n_freqs = s->dim / 2,
                             .selects = layer == groups[0].filter || layer == groups[1].filter};
    assert_int_equal(ops->rope_append(rig->be, &rope, NULL), 0);
    assert_int_equal(ops->attn_decode(rig->be, &attn, NULL), 0);
    assert_int_equal(ops->attn_prefill(rig->be, &attn, NULL), 0);
    if (attn.selects) run_select(runs, n_runs, layer == groups[1].filter, &attn, checked);
    assert_int_equal(ops->evict->decode(rig->be, &attn, NULL), 0);
    assert_int_equal(ops->evict->chunk(rig->be, &attn, NULL), 0);
    move_rows(runs, n_runs, layer, NULL, out);
    for (uint32_t i = 0; i < n_runs && checked; i++)
        if (!is_prompt(&runs[i])) check_layer(&runs[i], layer);
    free(qkv);
    free(out);
}

/* The next rows of all sequences; those that decode come first. */
static void run_step(struct run *runs, uint32_t n_runs, bool checked) {
    struct backend *be = runs[0].rig->be;
    struct step_seq seqs[MOST_RUNS];
    struct select_total totals[MOST_RUNS] = {{0}};
    uint32_t positions[MOST_ROWS];
    struct step step = {.n_seqs = n_runs,
                        .n_layers = N_LAYERS,
                        .windows = windows,
                        .positions = positions,
                        .seqs = seqs};
    for (uint32_t i = 0; i < n_runs; i++) {
        seqs[i] = describe(&runs[i], step.n_rows);
        step.n_decode += !is_prompt(&runs[i]);
        assert_true(step.n_rows + rows_of(&runs[i]) <= MOST_ROWS);
        for (uint32_t row = 0; row < rows_of(&runs[i]); row++)
            positions[step.n_rows++] = runs[i].n_done + row;
    }
    assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        run_layer(runs, n_runs, layer, step.n_rows, checked);
    assert_int_equal(be->ops->evict->oldest(be, &runs[0].rig->kv, 0, N_LAYERS, NULL), 0);
    assert_int_equal(be->ops->select->totals(be, totals, NULL), 0);
    for (uint32_t i = 0; i < n_runs; i++) {
        runs[i].total = totals[i];
        if (checked) assert_memory_equal(&totals[i], &runs[i].expected, sizeof(totals[i]));
        advance(&runs[i]);
    }
}

/* The whole text of one sequence, all of it compared.  Returns how many tokens were fetched. */
static uint64_t run_and_check(struct backend *be, struct shape shape, const struct plan *plan) {
    struct rig rig;
    struct run r;
    uint64_t n_fetched = 0;
    rig_init(&rig, be, shape);
    run_init(&r, &rig, plan);
    while (r.n_done < plan->n_text) {
        /* Sometimes a sequence has lost what it held. */
        if (random_below(50) == 0) {
            r.select.fresh = true;
            for (uint32_t i = 0; i < plan->n_selected / PAGE_TOKENS; i++)
                for (uint32_t layer = 0; layer < N_LAYERS; layer++)
                    if (group_of(layer)) poison(&rig, r.chosen_pages[layer][i]);
        }
        run_step(&r, 1, true);
        n_fetched += r.total.n_fetched;
    }
    assert_true(r.select.n_candidates > plan->n_selected);
    run_fini(&r);
    rig_fini(&rig);
    return n_fetched;
}

/* --- Cases. --- */

static struct shape random_shape(void) {
    static const uint32_t dims[] = {16, 64, 80, 128};
    struct shape s = {.n_kv = 1 + random_below(2),
                      .dim = dims[random_below(4)],
                      .format = (enum page_format)random_below(4),
                      .fp8 = random_below(2)};
    s.fp8 |= s.format == PAGE_FP8;
    s.n_heads = s.n_kv * (1 + random_below(4));
    if (random_below(2) == 0) s.softcap = 2;
    s.sinks = random_below(2);
    return s;
}

static struct plan random_plan(bool on_device) {
    struct plan p = {.n_prompt = 1 + random_below(250),
                     .n_selected = 64 * (1 + random_below(3)),
                     .n_tail = 64 * (1 + random_below(2)),
                     .on_device = on_device};
    p.n_sink = random_below(3) ? random_below(6) : p.n_selected;
    p.n_text = p.n_selected + p.n_tail + 64 + random_below(150);
    if (p.n_text < p.n_prompt + 70) p.n_text = p.n_prompt + 70;
    return p;
}

static void selections_equal_the_definition_on(struct backend *be) {
    for (uint32_t on_device = 0; on_device < 2; on_device++) {
        const struct plan plan = random_plan(on_device);
        run_and_check(be, random_shape(), &plan);
    }
}

TEST(selections_equal_the_definition) {
    for_each_backend(selections_equal_the_definition_on);
}

/* By the last queries: of chunks of a prompt, of generated tokens that are too early to select, and
 * of those that select. */
static void a_window_of_queries_chooses_on(struct backend *be) {
    static uint32_t n_runs; /* those on the device and those with a store take turns */
    const uint32_t chunks[] = {0, 5, 16, 37};
    for (enum kv_selector s = KV_SELECTOR_UNIFORM; s <= KV_SELECTOR_ACCUMULATED; s++) {
        struct plan plan = random_plan(n_runs++ % 2);
        plan.n_prompt = 100 + random_below(100);
        if (plan.n_text < plan.n_prompt + 100) plan.n_text = plan.n_prompt + 100;
        plan.selector = s;
        plan.chunk = chunks[random_below(4)];
        plan.odd = random_below(2);
        run_and_check(be, random_shape(), &plan);
    }
}

TEST(a_window_of_queries_chooses) {
    for_each_backend(a_window_of_queries_chooses_on);
}

/* The newest query alone chooses others.  So the test above can tell the selectors apart. */
TEST(selectors_choose_differently) {
    uint64_t n_fetched[KV_SELECTOR_ACCUMULATED + 1];
    for (enum kv_selector s = KV_SELECTOR_LAST; s <= KV_SELECTOR_ACCUMULATED; s++) {
        struct backend *be = NULL;
        rng_state = 99;
        const struct plan plan = {.n_prompt = 200,
                                  .n_text = 400,
                                  .n_selected = 64,
                                  .n_tail = 64,
                                  .on_device = true,
                                  .selector = s};
        assert_int_equal(cpu_backend_create(&be, &(struct cpu_config){.n_threads = 3}, NULL), 0);
        n_fetched[s] =
            run_and_check(be, (struct shape){2, 1, 16, PAGE_F32, false, 0, false}, &plan);
        be->ops->destroy(be);
    }
    assert_true(n_fetched[KV_SELECTOR_ACCUMULATED] < n_fetched[KV_SELECTOR_UNIFORM]);
    assert_true(n_fetched[KV_SELECTOR_UNIFORM] < n_fetched[KV_SELECTOR_EXPONENTIAL]);
    assert_true(n_fetched[KV_SELECTOR_EXPONENTIAL] < n_fetched[KV_SELECTOR_LAST]);
}

/* Keys that are equal score the same: the lower token is chosen.  A query of zero makes all of
 * them equal, one of NaN counts for no token. */
static void ties_and_nan_are_defined_on(struct backend *be) {
    static uint32_t n_runs; /* few keys, and all that differ, take turns */
    const uint32_t n_keys = 8 * (n_runs++ % 2);
    struct plan plan = random_plan(n_keys > 0);
    plan.n_keys = n_keys;
    plan.odd = true;
    run_and_check(be, random_shape(), &plan);
}

TEST(ties_and_nan_are_defined) {
    for_each_backend(ties_and_nan_are_defined_on);
}

/* The tail moves on over many pages, and what is chosen changes slowly enough that slots matter. */
TEST(a_long_text_stays_exact) {
    for (uint32_t on_device = 0; on_device < 2; on_device++) {
        struct backend *be = NULL;
        const struct plan plan = {.n_prompt = 200,
                                  .n_text = 900,
                                  .n_selected = 128,
                                  .n_tail = 64,
                                  .n_sink = 4,
                                  .on_device = on_device};
        assert_int_equal(cpu_backend_create(&be, &(struct cpu_config){.n_threads = 3}, NULL), 0);
        const struct shape shape = {2, 1, 16, PAGE_F32, false, 0, false};
        const uint64_t n_fetched = run_and_check(be, shape, &plan);
        assert_true(n_fetched > 0 && n_fetched < 700 * N_GROUPS * 128);
        be->ops->destroy(be);
    }
}

/* Tokens come back as nearly as the format says, and attention with them. */
static void fp8_loses_little_on(struct backend *be) {
    static const enum page_format formats[] = {PAGE_F32, PAGE_F16, PAGE_BF16};
    static uint32_t n_runs; /* formats take turns */
    const enum page_format format = formats[n_runs++ % COUNT(formats)];
    struct plan plan = random_plan(false);
    plan.rough = true;
    assert_true(run_and_check(be, (struct shape){4, 2, 64, format, true, 0, false}, &plan) > 0);
}

TEST(fp8_loses_little) {
    for_each_backend(fp8_loses_little_on);
}

/* More slots than one page has room to name. */
TEST(the_tokens_of_many_slots_are_named) {
    const struct shape shape = {1, 1, 16, PAGE_BF16, false, 0, false};
    struct backend *be = NULL;
    struct rig rig;
    struct run r;
    assert_int_equal(cpu_backend_create(&be, &(struct cpu_config){.n_threads = 3}, NULL), 0);
    rig_init(&rig, be, shape);
    const uint32_t n_selected = (kv_state_slots(&rig.kv) + 200) / PAGE_TOKENS * PAGE_TOKENS;
    run_init(&r, &rig,
             &(struct plan){.n_prompt = n_selected + 200,
                            .n_text = n_selected + 230,
                            .n_tail = 64,
                            .n_selected = n_selected});
    while (r.n_done < r.plan.n_text) run_step(&r, 1, true);
    assert_true(n_selected > kv_state_slots(&rig.kv) && r.total.n_chosen == 2 * n_selected);
    run_fini(&r);
    rig_fini(&rig);
    be->ops->destroy(be);
}

static const struct kv_budget heavy = {
    .capacity = 70, .n_sink = 2, .n_recent = 20, .score = KV_SCORE_SUM};
/* What else may be in a step: both kinds of store, a text that is too short to be selected from, a
 * bounded cache, a prompt. */
static const struct plan companions[MOST_RUNS] = {
    {.n_prompt = 350, .n_text = 560, .n_selected = 128, .n_tail = 64, .n_sink = 4},
    {.n_prompt = 60, .n_text = 270, .budget = &heavy},
    {.n_prompt = 210,
     .n_text = 420,
     .n_selected = 64,
     .n_tail = 64,
     .on_device = true,
     .selector = KV_SELECTOR_UNIFORM},
    {.n_prompt = 20, .n_text = 230, .n_selected = 256, .n_tail = 64},
    {.n_prompt = 300, .n_text = 301}};

/* What the runs gave: outputs, and what the bounded one keeps. */
static float *results_of(const struct run *r, size_t *n) {
    const size_t out_size = (size_t)r->plan.n_text * r->rig->shape.n_heads * r->rig->shape.dim;
    *n = N_LAYERS * (out_size + 2 * PAGE_TOKENS);
    float *all = calloc(*n, sizeof(float)), *at = all;
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        memcpy(at, r->out[layer], out_size * sizeof(float));
        at += out_size;
        for (uint32_t page = 0; r->plan.budget && page < 2; page++, at += PAGE_TOKENS) {
            const struct kv_page_state *kept =
                (const void *)((const char *)r->rig->kv.base +
                               r->text_pages[layer][page] * r->rig->kv.page_bytes +
                               kv_state_offset(&r->rig->kv, 0));
            memcpy(at, kept->score, (page ? 7 : PAGE_TOKENS) * sizeof(float));
        }
    }
    return all;
}

/* The same inputs again, from the start. */
static void rewind_run(struct run *r) {
    r->n_done = r->n_left = 0;
    r->select = (struct kv_select){.fresh = true};
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        for (uint32_t i = 0; i < pages_for(r->plan.n_text); i++)
            poison(r->rig, r->text_pages[layer][i]);
}

static void a_batch_changes_no_bit_on(struct backend *be) {
    struct rig rig;
    struct run runs[MOST_RUNS];
    float *alone[MOST_RUNS];
    size_t n[MOST_RUNS];
    rig_init(&rig, be, (struct shape){6, 2, 64, PAGE_F32, true, 3, false});
    for (uint32_t i = 0; i < MOST_RUNS; i++) {
        run_init(&runs[i], &rig, &companions[i]);
        while (runs[i].n_done < runs[i].plan.n_text) run_step(&runs[i], 1, false);
        alone[i] = results_of(&runs[i], &n[i]);
        rewind_run(&runs[i]);
    }
    for (uint32_t i = 0; i + 1 < MOST_RUNS; i++) run_step(&runs[i], 1, false);
    for (uint32_t i = 0; i < 210; i++) run_step(runs, i == 100 ? MOST_RUNS : MOST_RUNS - 1, false);
    run_step(&runs[MOST_RUNS - 1], 1, false);
    for (uint32_t i = 0; i < MOST_RUNS; i++) {
        float *together = results_of(&runs[i], &n[i]);
        assert_int_equal(runs[i].n_done, runs[i].plan.n_text);
        assert_memory_equal(together, alone[i], n[i] * sizeof(float));
        free(together);
        free(alone[i]);
        run_fini(&runs[i]);
    }
    rig_fini(&rig);
}

TEST(a_batch_changes_no_bit) {
    for_each_backend(a_batch_changes_no_bit_on);
}
