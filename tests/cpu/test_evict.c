/* test_evict.c - bounded caches against their definition: an oracle in double that has a list of
 * the tokens each KV head keeps, in the order of the text, and rotates, attends and sorts anew for
 * every row.  Outputs, kept tokens, ranks, scores and totals must agree; where two scores are
 * within rounding of each other either may go, and the oracle goes on with the backend's choice. */
#include "tests/cpu/cpu_test.h"

#include "engine/base/sizes.h"
#include "engine/cpu/vec.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

enum { N_LAYERS = 2 };

struct shape {
    uint32_t n_heads, n_kv, dim, n_freqs;
    float rope_scale;
    enum page_format format; /* of pages */
    float softcap;
    float slope; /* of head 0; each later one has half of the one before.  0: there are none */
};

struct plan {
    struct shape shape;
    struct kv_budget budget;
    uint32_t chunk, n_prompt, n_text;
    uint32_t nan_row; /* its queries are NaN; none if it is past the text */
};

struct token {
    uint32_t position;
    double score;
};

/* What a KV head of a layer keeps, by the definition. */
struct oracle_head {
    struct token *kept; /* in the order of the text */
    uint32_t n;
    double lost[KV_LOST_TERMS]; /* struct kv_page_state */
    uint32_t lost_at, n_events;
};

struct run {
    struct plan plan;
    struct backend *be;
    struct kv_pool kv;
    uint32_t *pages[N_LAYERS];
    uint32_t n_pages;          /* of a layer */
    uint32_t n_kept, n_done;   /* slots between steps; tokens of the text so far */
    uint32_t turn;             /* where the present turn, and so its first chunk, began */
    float *qkv[N_LAYERS];      /* [n_text, (n_heads + 2 n_kv) * dim], before RoPE */
    float *out[N_LAYERS];      /* [n_text, n_heads * dim] */
    double *inv_freq, *angles; /* [n_freqs]; [n_text][2][n_freqs] */
    struct oracle_head *heads; /* [N_LAYERS][n_kv] */
    double *expected;          /* [n_heads * dim], of one row */
    struct evict_total total;
};

static uint32_t row_width(const struct shape *s) {
    return (s->n_heads + 2 * s->n_kv) * s->dim;
}

/* --- A run: one sequence, its inputs and its pages. --- */

/* Keys and values that pages of the format can hold exactly. */
static float *random_inputs(const struct plan *p) {
    const uint32_t width = row_width(&p->shape), q_width = p->shape.n_heads * p->shape.dim;
    float *x = random_floats((size_t)p->n_text * width);
    for (size_t i = 0; i < (size_t)p->n_text * width; i++) {
        char element[4];
        x[i] *= 2; /* sharp and flat rows */
        if (p->nan_row == i / width && i % width < q_width) x[i] = NAN;
        if (i % width < q_width || p->shape.format == PAGE_FP8) continue;
        store_f32_as(element, 0, x[i], page_element(p->shape.format));
        x[i] = load_as_f32(element, 0, page_element(p->shape.format));
    }
    for (size_t i = 0; p->shape.format == PAGE_FP8 && i < (size_t)p->n_text * width;
         i += p->shape.dim)
        if (i % width >= q_width) make_exact_in_fp8(x + i, p->shape.dim);
    return x;
}

static void make_angles(struct run *r) {
    const struct shape *s = &r->plan.shape;
    r->inv_freq = malloc(s->n_freqs * sizeof(double));
    r->angles = malloc((size_t)r->plan.n_text * 2 * s->n_freqs * sizeof(double));
    for (uint32_t i = 0; i < s->n_freqs; i++) r->inv_freq[i] = pow(10000, -(double)i / s->n_freqs);
    for (uint32_t position = 0; position < r->plan.n_text; position++) {
        double *c = r->angles + (size_t)position * 2 * s->n_freqs;
        for (uint32_t i = 0; i < s->n_freqs; i++) {
            c[i] = cos(position * r->inv_freq[i]) * s->rope_scale;
            c[i + s->n_freqs] = sin(position * r->inv_freq[i]) * s->rope_scale;
        }
    }
}

static void make_pages(struct run *r) {
    const struct shape *s = &r->plan.shape;
    const uint32_t most = r->plan.budget.capacity + r->plan.chunk + 1;
    r->n_pages = (most + PAGE_TOKENS - 1) / PAGE_TOKENS;
    const uint32_t n = 2 * N_LAYERS * r->n_pages;
    r->kv = (struct kv_pool){.format = s->format,
                             .n_pages = n,
                             .n_kv_heads = s->n_kv,
                             .head_dim = s->dim,
                             .tracked = true};
    r->kv.page_bytes = kv_page_bytes(&r->kv);
    assert_int_equal(r->be->ops->alloc(r->be, n * r->kv.page_bytes, &r->kv.base, NULL), 0);
    memset(r->kv.base, 0xff, n * r->kv.page_bytes); /* NaN: reading an unwritten slot shows */
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        r->pages[layer] = malloc(r->n_pages * sizeof(uint32_t));
        for (uint32_t i = 0; i < r->n_pages; i++)
            r->pages[layer][i] = n - 1 - 2 * (i * N_LAYERS + layer);
    }
}

static void run_init(struct run *r, struct backend *be, const struct plan *plan) {
    const struct shape *s = &plan->shape;
    *r = (struct run){.plan = *plan, .be = be};
    make_pages(r);
    make_angles(r);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        r->qkv[layer] = random_inputs(plan);
        r->out[layer] = calloc((size_t)plan->n_text * s->n_heads * s->dim, sizeof(float));
    }
    r->expected = calloc(s->n_heads * s->dim, sizeof(double));
    r->heads = calloc(N_LAYERS * s->n_kv, sizeof(*r->heads));
    for (uint32_t i = 0; i < N_LAYERS * s->n_kv; i++)
        r->heads[i].kept = calloc(plan->budget.capacity + plan->chunk + 1, sizeof(struct token));
}

static void run_fini(struct run *r) {
    for (uint32_t i = 0; i < N_LAYERS * r->plan.shape.n_kv; i++) free(r->heads[i].kept);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        free(r->pages[layer]);
        free(r->qkv[layer]);
        free(r->out[layer]);
    }
    free(r->heads);
    free(r->expected);
    free(r->inv_freq);
    free(r->angles);
    r->be->ops->free(r->be, r->kv.base);
}

/* --- Steps. --- */

/* A run's part in a step: its next n rows. */
struct part {
    struct run *run;
    uint32_t n_rows;
    struct kv_view views[N_LAYERS];
};

static bool is_prompt(const struct run *r) {
    return r->n_done < r->plan.n_prompt;
}

static uint32_t chunk_end(const struct run *r) {
    const uint32_t chunk = r->plan.chunk;
    return min_u32(r->turn + ((r->n_done - r->turn) / chunk + 1) * chunk, r->plan.n_prompt);
}

/* The first of the part's rows that counts for scores. */
static uint32_t score_row_of(const struct run *r, uint32_t n_rows) {
    const uint32_t end = chunk_end(r);
    const uint32_t window = r->plan.budget.window;
    if (window == 0 || end - r->n_done <= window) return 0;
    return min_u32(end - window - r->n_done, n_rows);
}

static struct step_seq describe(struct part *p, uint32_t first_row) {
    const struct run *r = p->run;
    const bool full = !is_prompt(r) && r->n_kept == r->plan.budget.capacity;
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        p->views[layer] = (struct kv_view){r->pages[layer], r->n_kept + p->n_rows,
                                           full ? KV_FREE_SLOT : r->n_kept};
    struct step_seq seq = {.first_row = first_row,
                           .n_rows = p->n_rows,
                           .layers = p->views,
                           .budget = &r->plan.budget,
                           .n_before = r->n_done};
    if (!is_prompt(r)) return seq;
    seq.begins_chunk = (r->n_done - r->turn) % r->plan.chunk == 0;
    seq.compress = r->n_done + p->n_rows == chunk_end(r);
    seq.score_row = score_row_of(r, p->n_rows);
    return seq;
}

static void advance(struct part *p) {
    struct run *r = p->run;
    const bool bounds = !is_prompt(r) || r->n_done + p->n_rows == chunk_end(r);
    r->n_kept += p->n_rows;
    r->n_done += p->n_rows;
    if (bounds) r->n_kept = min_u32(r->n_kept, r->plan.budget.capacity);
}

/* Rows of all parts in one array, as the operations want them. */
static float *gather_rows(const struct part *parts, uint32_t n_parts, uint32_t layer,
                          uint32_t n_rows) {
    const uint32_t width = row_width(&parts[0].run->plan.shape);
    float *rows = malloc((size_t)n_rows * width * sizeof(float)), *at = rows;
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct run *r = parts[i].run;
        const size_t n = (size_t)parts[i].n_rows * width;
        memcpy(at, r->qkv[layer] + (size_t)r->n_done * width, n * sizeof(float));
        at += n;
    }
    return rows;
}

static void scatter_out(const struct part *parts, uint32_t n_parts, uint32_t layer,
                        const float *out) {
    const struct shape *s = &parts[0].run->plan.shape;
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct run *r = parts[i].run;
        const size_t width = s->n_heads * s->dim, n = parts[i].n_rows * width;
        memcpy(r->out[layer] + r->n_done * width, out, n * sizeof(float));
        out += n;
    }
}

static void run_layer(const struct part *parts, uint32_t n_parts, uint32_t layer, uint32_t n_rows) {
    const struct run *r = parts[0].run;
    const struct shape *s = &r->plan.shape;
    const struct backend_ops *ops = r->be->ops;
    float *qkv = gather_rows(parts, n_parts, layer, n_rows),
          *out = random_floats((size_t)n_rows * s->n_heads * s->dim);
    float slopes[24];
    for (uint32_t h = 0; h < s->n_heads; h++) slopes[h] = ldexpf(s->slope, -(int)h);
    const struct rope_append_args rope = {
        qkv, &r->kv, r->inv_freq, s->rope_scale, s->n_freqs, layer, s->n_heads, 0, 0, 0, 0, NULL};
    const struct attn_args attn = {.q = qkv,
                                   .q_stride = row_width(s),
                                   .out = out,
                                   .kv = &r->kv,
                                   .layer = layer,
                                   .n_heads = s->n_heads,
                                   .scale = (float)(1 / sqrt(s->dim)),
                                   .softcap = s->softcap,
                                   .inv_freq = r->inv_freq,
                                   .rope_scale = s->rope_scale,
                                   .n_freqs = s->n_freqs,
                                   .slopes = s->slope > 0 ? slopes : NULL,
                                   .group = NO_GROUP};
    assert_int_equal(ops->rope_append(r->be, &rope, NULL), 0);
    assert_int_equal(ops->attn_decode(r->be, &attn, NULL), 0);
    assert_int_equal(ops->attn_prefill(r->be, &attn, NULL), 0);
    assert_int_equal(ops->evict->decode(r->be, &attn, NULL), 0);
    assert_int_equal(ops->evict->chunk(r->be, &attn, NULL), 0);
    scatter_out(parts, n_parts, layer, out);
    free(qkv);
    free(out);
}

/* Closes the free slot before a turn that follows generated tokens. */
static void order_before_turn(const struct run *r, const struct kv_pool *kv) {
    const uint32_t capacity = r->plan.budget.capacity;
    struct kv_view views[N_LAYERS];
    if (!is_prompt(r) || r->n_done != r->turn || r->turn <= capacity) return;
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        views[layer] = (struct kv_view){r->pages[layer], capacity + 1, capacity};
    assert_int_equal(r->be->ops->evict->order(r->be, kv, views, N_LAYERS, NULL), 0);
}

/* The parts share one pool (the first run's); those that decode come first. */
static void run_step(struct part *parts, uint32_t n_parts) {
    enum { MOST_PARTS = 4, MOST_ROWS = 2048 };
    struct backend *be = parts[0].run->be;
    struct step_seq seqs[MOST_PARTS];
    struct evict_total totals[MOST_PARTS];
    uint32_t positions[MOST_ROWS];
    struct step step = {
        .n_seqs = n_parts, .n_layers = N_LAYERS, .positions = positions, .seqs = seqs};
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct run *r = parts[i].run;
        const bool ranks = r->plan.budget.cache_positions;
        order_before_turn(r, &parts[0].run->kv);
        seqs[i] = describe(&parts[i], step.n_rows);
        step.n_decode += !is_prompt(r);
        for (uint32_t row = 0; row < parts[i].n_rows; row++)
            positions[step.n_rows++] = (ranks ? r->n_kept : r->n_done) + row;
    }
    assert_true(step.n_rows <= MOST_ROWS);
    assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        run_layer(parts, n_parts, layer, step.n_rows);
    assert_int_equal(be->ops->evict->oldest(be, &parts[0].run->kv, 0, N_LAYERS, NULL), 0);
    assert_int_equal(be->ops->evict->totals(be, &parts[0].run->kv, totals, NULL), 0);
    assert_int_equal(be->ops->sync(be, NULL), 0);
    for (uint32_t i = 0; i < n_parts; i++) {
        parts[i].run->total = totals[i];
        advance(&parts[i]);
    }
}

static void run_rows(struct run *r, uint32_t n_rows) {
    run_step(&(struct part){.run = r, .n_rows = n_rows}, 1);
}

/* --- The definition. --- */

static void rotate(const struct run *r, const float *x, uint32_t position, double *out) {
    const uint32_t n = r->plan.shape.n_freqs;
    const double *c = r->angles + (size_t)position * 2 * n, *s = c + n;
    for (uint32_t d = 0; d < r->plan.shape.dim; d++) out[d] = x[d];
    for (uint32_t i = 0; i < n; i++) {
        out[i] = x[i] * c[i] - x[i + n] * s[i];
        out[i + n] = x[i + n] * c[i] + x[i] * s[i];
    }
}

/* q . k of a query head (or, with head >= n_heads, the keys and values) in a token's row. */
static const float *input_of(const struct run *r, uint32_t layer, uint32_t token, uint32_t head) {
    return r->qkv[layer] + (size_t)token * row_width(&r->plan.shape) + head * r->plan.shape.dim;
}

static uint32_t position_of(const struct run *r, const struct oracle_head *h, uint32_t rank) {
    return r->plan.budget.cache_positions ? rank : h->kept[rank].position;
}

/* Softmax over everything kept, in p. */
static void probabilities(const struct run *r, const struct oracle_head *h, uint32_t layer,
                          uint32_t head, const double *keys, double *p) {
    const uint32_t dim = r->plan.shape.dim;
    double q[256], max = -INFINITY, sum = 0;
    rotate(r, input_of(r, layer, h->kept[h->n - 1].position, head), position_of(r, h, h->n - 1), q);
    for (uint32_t i = 0; i < h->n; i++) {
        p[i] = 0;
        for (uint32_t d = 0; d < dim; d++) p[i] += q[d] * keys[(size_t)i * dim + d];
        p[i] /= sqrt(dim);
        if (r->plan.shape.softcap > 0)
            p[i] = r->plan.shape.softcap * tanh(p[i] / r->plan.shape.softcap);
        p[i] -= ldexp(r->plan.shape.slope, -(int)head) *
                (position_of(r, h, h->n - 1) - position_of(r, h, i));
        max = fmax(max, p[i]);
    }
    for (uint32_t i = 0; i < h->n; i++) sum += p[i] = exp(p[i] - max);
    for (uint32_t i = 0; i < h->n; i++) p[i] /= sum;
}

/* The newest token attends; p_all gets the group's probabilities together. */
static void oracle_attend(const struct run *r, const struct oracle_head *h, uint32_t layer,
                          uint32_t kv_head, double *p_all) {
    const struct shape *s = &r->plan.shape;
    const uint32_t group = s->n_heads / s->n_kv, dim = s->dim;
    double *p = malloc(h->n * sizeof(double)), *keys = malloc((size_t)h->n * dim * sizeof(double));
    for (uint32_t i = 0; i < h->n; i++) {
        p_all[i] = 0;
        rotate(r, input_of(r, layer, h->kept[i].position, s->n_heads + kv_head),
               position_of(r, h, i), keys + (size_t)i * dim);
    }
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        double *out = r->expected + (size_t)head * dim;
        memset(out, 0, dim * sizeof(double));
        probabilities(r, h, layer, head, keys, p);
        for (uint32_t i = 0; i < h->n; i++) {
            const float *v =
                input_of(r, layer, h->kept[i].position, s->n_heads + s->n_kv + kv_head);
            for (uint32_t d = 0; d < dim; d++) out[d] += p[i] * v[d];
            p_all[i] += p[i];
        }
    }
    free(p);
    free(keys);
}

static void oracle_score(const struct run *r, struct oracle_head *h, const double *p) {
    const struct kv_budget *b = &r->plan.budget;
    if (b->score == KV_SCORE_NONE) return;
    for (uint32_t i = 0; i < h->n; i++)
        h->kept[i].score = h->kept[i].score * (b->score == KV_SCORE_DECAY ? b->decay : 1) + p[i];
}

/* What the i-th kept token is judged by, when n_text tokens have been. */
static double value_of(const struct run *r, const struct oracle_head *h, uint32_t i,
                       uint32_t n_text) {
    const struct kv_budget *b = &r->plan.budget;
    const struct token *t = &h->kept[i];
    if (b->score == KV_SCORE_MEAN) return t->score / (n_text - t->position);
    if (b->pooling == KV_POOLING_NONE || n_text > r->plan.n_prompt || i + b->window >= h->n)
        return t->score;
    const int64_t half = b->kernel / 2;
    double sum = 0, max = 0;
    for (int64_t k = (int64_t)i - half; k <= (int64_t)i + half; k++) {
        if (k < 0 || k + b->window >= h->n) continue;
        sum += h->kept[k].score;
        max = fmax(max, h->kept[k].score);
    }
    return b->pooling == KV_POOLING_MAX ? max : sum;
}

static bool is_candidate(const struct run *r, const struct token *t, uint32_t n_text) {
    return t->position >= r->plan.budget.n_sink && t->position + r->plan.budget.n_recent < n_text;
}

static bool lower(double a, double b) {
    return isnan(a) ? !isnan(b) : a < b;
}

/* The next to go of those not marked: the lowest, the older of equals. */
static uint32_t oracle_lowest(const struct run *r, const struct oracle_head *h, uint32_t n_text,
                              const bool *leaves) {
    uint32_t lowest = UINT32_MAX;
    for (uint32_t i = 0; i < h->n; i++) {
        if (leaves[i] || !is_candidate(r, &h->kept[i], n_text)) continue;
        if (lowest == UINT32_MAX ||
            lower(value_of(r, h, i, n_text), value_of(r, h, lowest, n_text)))
            lowest = i;
    }
    assert_true(lowest != UINT32_MAX);
    return lowest;
}

/* --- What the backend did. --- */

static const struct kv_page_state *state_of(const struct run *r, uint32_t layer, uint32_t kv_head,
                                            uint32_t slot) {
    return (const void *)((const char *)r->kv.base +
                          r->pages[layer][slot / PAGE_TOKENS] * r->kv.page_bytes +
                          kv_state_offset(&r->kv, kv_head));
}

/* Where the backend has the token of a position: UINT32_MAX if it has not. */
static uint32_t backend_slot(const struct run *r, uint32_t layer, uint32_t kv_head,
                             uint32_t position) {
    const struct kv_page_state *first = state_of(r, layer, kv_head, 0);
    const bool hole = first->free_slot < r->n_kept;
    for (uint32_t slot = 0; slot < r->n_kept + hole; slot++) {
        if (hole && slot == first->free_slot) continue;
        if (state_of(r, layer, kv_head, slot)->position[slot % PAGE_TOKENS] == position)
            return slot;
    }
    return UINT32_MAX;
}

static bool nearly(double a, double b) {
    return fabs(a - b) <= 1e-4 * fmax(fabs(a), fabs(b)) + 1e-30;
}

/* The backend may have kept another token than the oracle only where rounding decides between
 * them; equal scores are decided by age. */
static void allow_near_ties(const struct run *r, const struct oracle_head *h, uint32_t n_text,
                            const bool *leaves, const bool *left) {
    for (uint32_t i = 0; i < h->n; i++) {
        for (uint32_t k = 0; k < h->n; k++) {
            if (!leaves[i] || left[i] || leaves[k] || !left[k]) continue;
            const double a = value_of(r, h, i, n_text), b = value_of(r, h, k, n_text);
            /* Pooled scores are equal where they come from the same token: age decides. */
            assert_true(is_candidate(r, &h->kept[k], n_text) && a != b && nearly(a, b));
        }
    }
}

/* The token's share of what the newest row gave to those that stay. */
static void oracle_lose(struct oracle_head *h, const struct token *t, double share,
                        uint32_t n_text) {
    const double age = n_text - t->position;
    for (uint32_t k = 0; k < KV_LOST_TERMS; k++) h->lost[k] += share * age * exp(-age / (1 << k));
}

static void oracle_fade(struct oracle_head *h, uint32_t n_text) {
    for (uint32_t k = 0; k < KV_LOST_TERMS; k++)
        h->lost[k] *= exp(-(double)(n_text - h->lost_at) / (1 << k));
    h->lost_at = n_text;
    h->n_events++;
}

/* Down to the capacity: p is the newest row's probabilities. */
static void oracle_evict(struct run *r, uint32_t layer, uint32_t kv_head, uint32_t n_text,
                         const double *p) {
    const uint32_t group = r->plan.shape.n_heads / r->plan.shape.n_kv,
                   capacity = r->plan.budget.capacity;
    struct oracle_head *h = &r->heads[layer * r->plan.shape.n_kv + kv_head];
    bool *leaves = calloc(h->n, sizeof(bool)), *left = calloc(h->n, sizeof(bool));
    double kept = 0;
    uint32_t n = 0, n_left = 0;
    for (uint32_t i = capacity; i < h->n; i++) leaves[oracle_lowest(r, h, n_text, leaves)] = true;
    for (uint32_t i = 0; i < h->n; i++) {
        left[i] = backend_slot(r, layer, kv_head, h->kept[i].position) == UINT32_MAX;
        n_left += left[i];
    }
    assert_int_equal(n_left, h->n - capacity);
    allow_near_ties(r, h, n_text, leaves, left);
    for (uint32_t i = 0; i < h->n; i++) kept += left[i] ? 0 : p[i] / group;
    oracle_fade(h, n_text);
    for (uint32_t i = 0; i < h->n; i++) {
        if (left[i]) oracle_lose(h, &h->kept[i], p[i] / group / fmax(kept, KV_LEAST_KEPT), n_text);
        else h->kept[n++] = h->kept[i];
    }
    h->n = n;
    free(leaves);
    free(left);
}

static void check_state(const struct run *r, uint32_t layer, uint32_t kv_head, bool compressed) {
    const struct oracle_head *h = &r->heads[layer * r->plan.shape.n_kv + kv_head];
    assert_int_equal(h->n, r->n_kept);
    for (uint32_t i = 0; i < h->n; i++) {
        const uint32_t slot = backend_slot(r, layer, kv_head, h->kept[i].position);
        assert_true(slot != UINT32_MAX);
        if (compressed) assert_int_equal(slot, i);
        const struct kv_page_state *state = state_of(r, layer, kv_head, slot);
        const float score = state->score[slot % PAGE_TOKENS];
        assert_int_equal(state->rank[slot % PAGE_TOKENS], i);
        assert_true(isnan(score) ? isnan(h->kept[i].score) : nearly(score, h->kept[i].score));
    }
}

static void check_totals(const struct run *r) {
    const uint32_t n_heads = N_LAYERS * r->plan.shape.n_kv;
    double kept = 0, n_events = 0;
    for (uint32_t i = 0; i < n_heads; i++) {
        double loss = 0;
        for (uint32_t k = 0; k < KV_LOST_TERMS; k++)
            loss += log(2) / (1 << k) * r->heads[i].lost[k];
        kept += 1 / (1 + loss) / n_heads;
        n_events += r->heads[i].n_events;
    }
    assert_int_equal(r->total.n_evictions * n_heads, n_events);
    if (r->plan.budget.score == KV_SCORE_NONE || n_events == 0 || isnan(kept))
        assert_true(isnan(r->total.retained_attention));
    else assert_true(nearly(r->total.retained_attention, kept));
}

static void check_row(struct run *r, uint32_t layer, uint32_t token, uint32_t kv_head) {
    const struct shape *s = &r->plan.shape;
    const size_t width = s->n_heads * s->dim, n = width / s->n_kv;
    assert_close(r->out[layer] + token * width + kv_head * n, r->expected + kv_head * n, n, 1e-4);
}

/* Tokens [first, end) have been computed as a chunk, or as one generated token. */
static void check_tokens(struct run *r, uint32_t first, uint32_t end) {
    const struct kv_budget *b = &r->plan.budget;
    const bool prompt = end <= r->plan.n_prompt;
    double *p = malloc((b->capacity + r->plan.chunk + 1) * sizeof(double));
    for (uint32_t i = 0; i < N_LAYERS * r->plan.shape.n_kv; i++) {
        const uint32_t layer = i / r->plan.shape.n_kv, kv_head = i % r->plan.shape.n_kv;
        struct oracle_head *h = &r->heads[i];
        const bool window = prompt && b->score == KV_SCORE_WINDOW;
        for (uint32_t k = 0; window && k < h->n; k++) h->kept[k].score = 0;
        for (uint32_t token = first; token < end; token++) {
            h->kept[h->n++] = (struct token){.position = token};
            oracle_attend(r, h, layer, kv_head, p);
            check_row(r, layer, token, kv_head);
            if (!window || token + b->window >= end) oracle_score(r, h, p);
        }
        const bool evicts = h->n > b->capacity;
        if (evicts) oracle_evict(r, layer, kv_head, end, p);
        check_state(r, layer, kv_head, prompt);
    }
    check_totals(r);
    free(p);
}

/* The text up to a token, the prompt's chunks cut at random, all of it compared. */
static void run_and_check_to(struct run *r, uint32_t n_text) {
    while (r->n_done < n_text) {
        const uint32_t first = r->n_done, end = is_prompt(r) ? chunk_end(r) : first + 1;
        while (r->n_done < end) run_rows(r, 1 + random_below(end - r->n_done));
        check_tokens(r, first, end);
    }
}

static void run_and_check(struct backend *be, const struct plan *plan) {
    struct run r;
    run_init(&r, be, plan);
    run_and_check_to(&r, plan->n_text);
    run_fini(&r);
}

/* --- Cases. --- */

static struct shape random_shape(void) {
    static const uint32_t dims[] = {64, 80, 128};
    struct shape s = {.n_kv = 1 + random_below(3), .dim = dims[random_below(3)], .rope_scale = 1};
    s.n_heads = s.n_kv * (1 + random_below(8));
    s.n_freqs = s.dim / (random_below(4) ? 2 : 4);
    if (random_below(4) == 0) s.rope_scale = 1.125f;
    if (random_below(2) == 0) s.softcap = 1.5f; /* scores are about 5 at most */
    if (random_below(2) == 0) s.slope = 0.1f;
    if (s.slope > 0 && random_below(2) == 0) s.n_freqs = 0; /* as models with ALiBi have it */
    return s;
}

static struct kv_budget random_budget(enum kv_score score) {
    static const uint32_t capacities[] = {1, 63, 64, 65, 200};
    struct kv_budget b = {.capacity = capacities[random_below(5)], .score = score, .decay = 0.9f};
    b.n_sink = random_below(min_u32(b.capacity, 6));
    b.n_recent = b.capacity - b.n_sink;
    if (score != KV_SCORE_NONE) b.n_recent = 1 + random_below(b.n_recent);
    if (score == KV_SCORE_WINDOW) b.window = 1 + random_below(80);
    return b;
}

static struct plan random_plan(enum kv_score score, bool cache_positions) {
    static const uint32_t chunks[] = {1, 7, 64, 100, 130};
    struct plan p = {
        .shape = random_shape(), .budget = random_budget(score), .chunk = chunks[random_below(5)]};
    const uint32_t prompts[] = {1, p.budget.capacity, p.budget.capacity + 1,
                                2 * p.budget.capacity + random_below(2 * p.chunk)};
    p.budget.cache_positions = cache_positions;
    /* Keys in narrow types are compared where they are stored as they are. */
    if (cache_positions) p.shape.format = (enum page_format)random_below(4);
    p.n_prompt = prompts[random_below(4)];
    p.n_text = p.n_prompt + 1 + random_below(300);
    p.nan_row = UINT32_MAX;
    if (random_below(3) == 0) p.chunk = p.n_prompt; /* read whole */
    return p;
}

/* A prompt that is read whole, and whose scores are pooled. */
static struct plan pooled_plan(enum kv_pooling pooling, bool cache_positions) {
    struct plan p = random_plan(KV_SCORE_WINDOW, cache_positions);
    p.n_prompt = p.chunk = p.budget.capacity + random_below(300);
    p.n_text = p.n_prompt + 1 + random_below(50);
    p.budget.pooling = pooling;
    p.budget.kernel = 1 + 2 * random_below(6);
    p.budget.window = 1 + random_below(p.budget.n_recent);
    return p;
}

static void pooled_scores_equal_the_definition_on(struct backend *be) {
    for (enum kv_pooling pooling = KV_POOLING_MAX; pooling <= KV_POOLING_AVERAGE; pooling++)
        for (uint32_t i = 0; i < 2; i++) {
            const struct plan plan = pooled_plan(pooling, i);
            run_and_check(be, &plan);
        }
}

TEST(pooled_scores_equal_the_definition) {
    for_each_backend(pooled_scores_equal_the_definition_on);
}

/* Five kinds of scores and two of positions: every second backend has the other half of them. */
static void bounded_caches_equal_the_definition_on(struct backend *be) {
    static bool cache_positions;
    for (enum kv_score score = KV_SCORE_NONE; score <= KV_SCORE_WINDOW; score++) {
        const struct plan plan = random_plan(score, cache_positions);
        run_and_check(be, &plan);
        cache_positions = !cache_positions;
    }
}

TEST(bounded_caches_equal_the_definition) {
    for_each_backend(bounded_caches_equal_the_definition_on);
}

/* Turns of a conversation: what is generated, and then a prompt behind it, in its own chunks. */
static void turns_equal_the_definition_on(struct backend *be) {
    static bool cache_positions;
    for (enum kv_score score = KV_SCORE_NONE; score <= KV_SCORE_WINDOW; score++) {
        struct plan plan = score == KV_SCORE_WINDOW && random_below(2)
                               ? pooled_plan(KV_POOLING_MAX, cache_positions)
                               : random_plan(score, cache_positions);
        const uint32_t n_first = plan.n_text, n_turns = 3;
        struct run r;
        plan.n_text += n_turns * 300;
        run_init(&r, be, &plan);
        run_and_check_to(&r, n_first);
        for (uint32_t turn = 0; turn < n_turns; turn++) {
            r.turn = r.n_done;
            r.plan.n_prompt = r.n_done + 1 + random_below(2) * random_below(150);
            run_and_check_to(&r, r.plan.n_prompt + random_below(2) * random_below(150));
        }
        run_fini(&r);
        cache_positions = !cache_positions;
    }
}

TEST(turns_equal_the_definition) {
    for_each_backend(turns_equal_the_definition_on);
}

/* A NaN row spoils every score it touches: those leave first, and then all is well again. */
static void what_a_nan_row_touched_leaves_first_on(struct backend *be) {
    struct plan plan = {
        .shape = {4, 2, 64, 32, 1, PAGE_F32, 2},
        .budget = {.capacity = 40, .n_sink = 2, .n_recent = 10, .score = KV_SCORE_SUM},
        .chunk = 32,
        .n_prompt = 70,
        .n_text = 200};
    static const uint32_t nan_rows[] = {0, 45, 69, 100};
    for (size_t i = 0; i < sizeof(nan_rows) / sizeof(nan_rows[0]); i++) {
        plan.nan_row = nan_rows[i];
        run_and_check(be, &plan);
    }
}

TEST(what_a_nan_row_touched_leaves_first) {
    for_each_backend(what_a_nan_row_touched_leaves_first_on);
}

/* Queries of zero see everything alike: of tokens that came before the window, all equal, the
 * older ones go. */
static void of_equals_the_older_goes_on(struct backend *be) {
    const struct plan plan = {.shape = {3, 1, 64, 32, 1, PAGE_F32, 0},
                              .budget = {.capacity = 20,
                                         .n_sink = 1,
                                         .n_recent = 5,
                                         .score = KV_SCORE_WINDOW,
                                         .window = 64},
                              .chunk = 128,
                              .n_prompt = 128,
                              .n_text = 128,
                              .nan_row = UINT32_MAX};
    struct run r;
    run_init(&r, be, &plan);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        for (uint32_t token = 0; token < plan.n_text; token++)
            memset(r.qkv[layer] + (size_t)token * row_width(&plan.shape), 0,
                   3 * 64 * sizeof(float));
    run_rows(&r, 128);
    for (uint32_t slot = 0; slot < 20; slot++) {
        const uint32_t expected = slot == 0 ? 0 : slot < 15 ? 50 + slot : 108 + slot;
        assert_int_equal(state_of(&r, 0, 0, slot)->position[slot], expected);
    }
    run_fini(&r);
}

TEST(of_equals_the_older_goes) {
    for_each_backend(of_equals_the_older_goes_on);
}

/* The same inputs again, from the start.  What no cut writes is the same for all of them. */
static void rewind_run(struct run *r) {
    const struct shape *s = &r->plan.shape;
    r->n_kept = r->n_done = 0;
    memset(r->kv.base, 0, r->kv.n_pages * r->kv.page_bytes);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        memset(r->out[layer], 0, (size_t)r->plan.n_text * s->n_heads * s->dim * sizeof(float));
}

static void run_whole(struct run *r, uint32_t piece) {
    while (r->n_done < r->plan.n_text) {
        const uint32_t end = is_prompt(r) ? chunk_end(r) : r->n_done + 1;
        while (r->n_done < end) run_rows(r, min_u32(piece, end - r->n_done));
    }
}

/* A copy of everything a run gave: outputs and pages. */
static char *results_of(const struct run *r, size_t *size) {
    const size_t out_bytes = (size_t)r->plan.n_text * r->plan.shape.n_heads * r->plan.shape.dim *
                             sizeof(float),
                 page_bytes = r->kv.n_pages * r->kv.page_bytes;
    *size = N_LAYERS * out_bytes + page_bytes;
    char *all = malloc(*size);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        memcpy(all + layer * out_bytes, r->out[layer], out_bytes);
    memcpy(all + N_LAYERS * out_bytes, r->kv.base, page_bytes);
    return all;
}

TEST(pieces_and_threads_change_no_bit) {
    static const uint32_t pieces[] = {130, 100, 64, 13, 1};
    struct backend *be[2];
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(
            cpu_backend_create(&be[i], &(struct cpu_config){.n_threads = 1 + 2 * i}, NULL), 0);
    for (enum kv_score score = KV_SCORE_NONE; score <= KV_SCORE_WINDOW; score++) {
        struct plan plan = random_plan(score, score % 2);
        struct run r;
        char *expected = NULL;
        size_t size;
        plan.chunk = 130;
        plan.n_prompt = 300;
        plan.n_text = 320;
        run_init(&r, be[0], &plan);
        for (uint32_t i = 0; i < 5; i++) {
            r.be = be[i % 2];
            rewind_run(&r);
            run_whole(&r, pieces[i]);
            char *got = results_of(&r, &size);
            if (expected) assert_memory_equal(got, expected, size);
            else expected = got;
            if (got != expected) free(got);
        }
        free(expected);
        r.be = be[0];
        run_fini(&r);
    }
    for (uint32_t i = 0; i < 2; i++) be[i]->ops->destroy(be[i]);
}

/* Makes b use pages of a's pool that a leaves alone. */
static void share_pool(struct run *a, struct run *b) {
    const uint32_t n = b->n_pages;
    assert_true(N_LAYERS * n <= a->kv.n_pages / 2);
    b->be->ops->free(b->be, b->kv.base);
    b->kv = a->kv;
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        for (uint32_t i = 0; i < n; i++)
            b->pages[layer][i] = a->kv.n_pages - 2 - 2 * (i * N_LAYERS + layer);
}

static void assert_same_out(const struct run *r, float *const *expected) {
    const size_t n = (size_t)r->n_done * r->plan.shape.n_heads * r->plan.shape.dim;
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        assert_memory_equal(r->out[layer], expected[layer], n * sizeof(float));
}

/* One decodes with scores, the other computes its prompt at cache positions: each as if alone. */
static void a_batch_changes_no_bit_on(struct backend *be) {
    struct plan plans[2] = {random_plan(KV_SCORE_SUM, false), random_plan(KV_SCORE_DECAY, true)};
    struct run runs[2];
    float *alone[2][N_LAYERS];
    for (uint32_t i = 0; i < 2; i++) {
        plans[i].shape = (struct shape){6, 2, 64, 32, 1, PAGE_F32, 2, 0};
        plans[i].budget.capacity = 100;
        plans[i].budget.n_recent = 50;
        plans[i].chunk = 80;
        plans[i].n_prompt = i ? 300 : 30;
        plans[i].n_text = 300;
        run_init(&runs[i], be, &plans[i]);
        run_whole(&runs[i], 7);
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            const size_t bytes = (size_t)300 * 6 * 64 * sizeof(float);
            alone[i][layer] = malloc(bytes);
            memcpy(alone[i][layer], runs[i].out[layer], bytes);
        }
        rewind_run(&runs[i]);
    }
    share_pool(&runs[0], &runs[1]);
    run_rows(&runs[0], 30);
    while (runs[1].n_done < 300) {
        const uint32_t n_rows = min_u32(7, chunk_end(&runs[1]) - runs[1].n_done);
        struct part parts[2] = {{.run = &runs[0], .n_rows = 1},
                                {.run = &runs[1], .n_rows = n_rows}};
        run_step(parts, 2);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_same_out(&runs[i], alone[i]);
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) free(alone[i][layer]);
    }
    runs[1].kv.base = NULL;
    run_fini(&runs[1]);
    run_fini(&runs[0]);
}

TEST(a_batch_changes_no_bit) {
    for_each_backend(a_batch_changes_no_bit_on);
}
