/* sparse_test.h - a sparse prompt, for tests: its inputs, the lines that its heads should choose,
 * by sorting, and what tiles then visit, slot by slot from the definitions. */
#ifndef TESTS_CPU_SPARSE_TEST_H
#define TESTS_CPU_SPARSE_TEST_H

#include "engine/cpu/sparse.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "tests/cpu/cpu_test.h"

enum { N_HEADS = 4, N_KV = 2, DIM = 16, WIDTH = (N_HEADS + 2 * N_KV) * DIM, MAX_SLOTS = 2048 };

#define NEVER_DENSE 2.0f

struct prompt {
    struct backend *be;
    struct kv_pool kv;
    struct attn_pattern patterns[N_HEADS];
    struct attn_sparse sparse;
    uint32_t n_slots;
    uint32_t pages[MAX_SLOTS / PAGE_TOKENS], positions[MAX_SLOTS];
    float *qkv;       /* [n_slots, WIDTH] */
    float *out, *lse; /* of the indexed rows */
    float density[N_HEADS];
    float softcap;
};

static inline void reserve_sparse(struct backend *be, uint32_t max_rows, uint32_t max_slots) {
    const struct sparse_limits largest = {max_rows, max_slots};
    const struct step_limits limits = {
        .n_heads = N_HEADS, .n_kv_heads = N_KV, .head_dim = DIM, .sparse = &largest};
    assert_int_equal(be->ops->reserve(be, &limits, NULL), 0);
}

static inline struct backend *backend_make(void) {
    struct backend *be = NULL;
    assert_int_equal(cpu_backend_create(&be, &(struct cpu_config){.n_threads = 2}, NULL), 0);
    return be;
}

/* A step of rows [first, first + n), which are appended: without rotation, as frequencies are 0. */
struct prompt_step {
    struct kv_view view;
    struct step_seq seq;
    struct step step;
};

static inline void step_fill(struct prompt_step *s, struct prompt *p, uint32_t first, uint32_t n,
                             bool sparse) {
    s->view = (struct kv_view){p->pages, first + n, first};
    s->seq = (struct step_seq){
        .n_rows = n, .layers = &s->view, .n_before = first, .sparse = sparse ? &p->sparse : NULL};
    s->step = (struct step){.n_rows = n,
                            .n_seqs = 1,
                            .n_layers = 1,
                            .positions = p->positions + first,
                            .seqs = &s->seq};
    assert_int_equal(p->be->ops->step_begin(p->be, &s->step, NULL), 0);
}

static inline void append_rows(struct prompt *p, uint32_t first, uint32_t n, bool sparse,
                               struct prompt_step *s) {
    static const double inv_freq[DIM / 2];
    struct rope_append_args rope = {p->qkv + (size_t)first * WIDTH,
                                    &p->kv,
                                    inv_freq,
                                    1.0f,
                                    DIM / 2,
                                    0,
                                    N_HEADS,
                                    0,
                                    0,
                                    0,
                                    0,
                                    NULL};
    step_fill(s, p, first, n, sparse);
    assert_int_equal(p->be->ops->rope_append(p->be, &rope, NULL), 0);
}

/* n_rows rows behind first_slot others, whose keys are in their pages when this returns. */
static inline struct prompt *prompt_make(struct backend *be, uint32_t first_slot, uint32_t n_rows,
                                         enum page_format format) {
    struct prompt *p = calloc(1, sizeof(*p));
    struct prompt_step s;
    const uint32_t n = first_slot + n_rows, n_pages = (n + PAGE_TOKENS - 1) / PAGE_TOKENS;
    assert_non_null(p);
    p->be = be;
    p->n_slots = n;
    p->kv = (struct kv_pool){
        .format = format, .n_pages = 2 * n_pages + 1, .n_kv_heads = N_KV, .head_dim = DIM};
    p->kv.page_bytes = kv_page_bytes(&p->kv);
    assert_int_equal(be->ops->alloc(be, p->kv.n_pages * p->kv.page_bytes, &p->kv.base, NULL), 0);
    memset(p->kv.base, 0xff, p->kv.n_pages * p->kv.page_bytes); /* NaN: unwritten slots show */
    for (uint32_t i = 0; i < n_pages; i++) p->pages[i] = 2 * (n_pages - i);
    for (uint32_t i = 0; i < n; i++) p->positions[i] = i;
    p->qkv = random_floats((size_t)n * WIDTH);
    for (size_t i = 0; i < (size_t)n * WIDTH; i++) p->qkv[i] *= 3; /* rows of all kinds */
    for (size_t i = 0; format == PAGE_FP8 && i < (size_t)n * WIDTH; i += DIM)
        if (i % WIDTH >= N_HEADS * DIM) make_exact_in_fp8(p->qkv + i, DIM);
    p->out = random_floats((size_t)n_rows * N_HEADS * DIM);
    p->lse = random_floats((size_t)n_rows * N_HEADS);
    p->sparse = (struct attn_sparse){.patterns = p->patterns,
                                     .first_slot = first_slot,
                                     .n_rows = n_rows,
                                     .dense_from = UINT32_MAX,
                                     .dense_above = NEVER_DENSE};
    if (first_slot > 0) append_rows(p, 0, first_slot, false, &s);
    append_rows(p, first_slot, n_rows, false, &s);
    return p;
}

static inline void prompt_free(struct prompt *p) {
    p->be->ops->free(p->be, p->kv.base);
    free(p->qkv);
    free(p->out);
    free(p->lse);
    free(p);
}

static inline void set_patterns(struct prompt *p, enum attn_pattern_kind kind, uint32_t p1,
                                uint32_t p2) {
    for (uint32_t h = 0; h < N_HEADS; h++) p->patterns[h] = (struct attn_pattern){kind, p1, p2};
}

static inline const float *indexed_q(const struct prompt *p) {
    return p->qkv + (size_t)p->sparse.first_slot * WIDTH;
}

static inline int index_rows(struct prompt *p, struct prompt_step *s) {
    const struct sparse_index_args args = {.q = indexed_q(p),
                                           .q_stride = WIDTH,
                                           .kv = &p->kv,
                                           .n_heads = N_HEADS,
                                           .scale = 0.25f,
                                           .softcap = p->softcap,
                                           .density = p->density};
    step_fill(s, p, p->sparse.first_slot, p->sparse.n_rows, true);
    return p->be->ops->sparse->index(p->be, &args, NULL);
}

/* Attention of rows [first, first + n) of the indexed ones, into their place of out and lse. */
static inline int attend_rows(struct prompt *p, uint32_t first, uint32_t n, bool sparse,
                              struct prompt_step *s) {
    const struct attn_args args = {.q = indexed_q(p) + (size_t)first * WIDTH,
                                   .q_stride = WIDTH,
                                   .out = p->out + (size_t)first * N_HEADS * DIM,
                                   .kv = &p->kv,
                                   .n_heads = N_HEADS,
                                   .scale = 0.25f,
                                   .softcap = p->softcap,
                                   .lse = p->lse + (size_t)first * N_HEADS};
    step_fill(s, p, p->sparse.first_slot + first, n, sparse);
    return p->be->ops->attn_prefill(p->be, &args, NULL);
}

static inline void index_prompt(struct prompt *p) {
    struct prompt_step s;
    assert_int_equal(index_rows(p, &s), 0);
}

static inline void attend_prompt(struct prompt *p, bool sparse) {
    struct prompt_step s;
    assert_int_equal(attend_rows(p, 0, p->sparse.n_rows, sparse, &s), 0);
}

static inline uint32_t n_tiles_of(const struct prompt *p) {
    return (p->sparse.n_rows + SPARSE_TILE - 1) / SPARSE_TILE;
}

static inline uint32_t tile_first(const struct prompt *p, uint32_t tile) {
    return p->sparse.first_slot + tile * SPARSE_TILE;
}

static inline uint32_t tile_end(const struct prompt *p, uint32_t tile) {
    const uint32_t end = tile_first(p, tile) + SPARSE_TILE;
    return end < p->n_slots ? end : p->n_slots;
}

static inline uint32_t n_halves_of(const struct prompt *p) {
    return (p->sparse.n_rows + SPARSE_HALF - 1) / SPARSE_HALF;
}

static inline uint32_t half_first(const struct prompt *p, uint32_t half) {
    return p->sparse.first_slot + half * SPARSE_HALF;
}

static inline uint32_t half_end(const struct prompt *p, uint32_t half) {
    const uint32_t end = half_first(p, half) + SPARSE_HALF;
    return end < p->n_slots ? end : p->n_slots;
}

/* --- What a head should choose. --- */

struct lines {
    double columns[MAX_SLOTS], diagonals[MAX_SLOTS]; /* scores */
    bool column[MAX_SLOTS], diagonal[MAX_SLOTS];     /* chosen */
};

struct scored {
    double score;
    uint32_t at;
};

static inline int by_score(const void *a, const void *b) {
    const struct scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

/* The k best of n; false if the last of them and the next are too close to tell in f32. */
static inline bool choose(const double *scores, uint32_t n, uint32_t k, bool *chosen) {
    struct scored all[MAX_SLOTS];
    for (uint32_t i = 0; i < n; i++) {
        all[i] = (struct scored){scores[i], i};
        chosen[i] = false;
    }
    qsort(all, n, sizeof(all[0]), by_score);
    for (uint32_t i = 0; i < k; i++) chosen[all[i].at] = true;
    return k == 0 || k == n || all[k - 1].score - all[k].score > 1e-5 * fabs(all[k].score);
}

static inline bool choose_lines(const struct prompt *p, uint32_t head, struct lines *lines) {
    const uint32_t n = p->n_slots, k_v = p->patterns[head].p1, k_s = p->patterns[head].p2;
    const uint32_t n_v = k_v > 30 ? k_v : 30, n_s = k_s > 100 ? k_s : 100;
    for (uint32_t i = 0; i < n && i < 30; i++) lines->columns[i] = INFINITY;
    for (uint32_t i = 0; i < n && i < 100; i++) lines->diagonals[i] = INFINITY;
    const bool clear = choose(lines->columns, n, n_v < n ? n_v : n, lines->column);
    return choose(lines->diagonals, n, n_s < n ? n_s : n, lines->diagonal) && clear;
}

static inline float synthetic_h(const struct prompt *p, uint32_t head, uint32_t x) {
    uint32_t v = x * 0x9e3779b9u + head * 0x85ebca6bu + p->sparse.synthetic;
    v = (v ^ v >> 16) * 0x7feb352du;
    v = (v ^ v >> 15) * 0x846ca68bu;
    v ^= v >> 16;
    return ldexpf((float)(v / 512), -23);
}

/* The scores are a definition: equal ones are equal everywhere. */
static inline void synthetic_lines(const struct prompt *p, uint32_t head, struct lines *lines) {
    memset(lines, 0, sizeof(*lines));
    for (uint32_t i = 0; i < p->n_slots; i++) {
        lines->columns[i] = synthetic_h(p, head, 0x80000000u + i);
        lines->diagonals[i] = i < p->patterns[head].p2 / 2 ? 2 : 1 + synthetic_h(p, head, i / 64);
    }
    choose_lines(p, head, lines);
}

static inline float stored(float x, enum page_format format) {
    uint32_t bits;
    if (format != PAGE_BF16) return x; /* f32, or what 8 bits can hold */
    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u; /* bf16 */
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The score of a row (a slot) and a slot, natural base. */
static inline double logit(const struct prompt *p, uint32_t head, uint32_t row, uint32_t slot) {
    const float *q = p->qkv + (size_t)row * WIDTH + head * DIM,
                *k = p->qkv + (size_t)slot * WIDTH + (N_HEADS + head / (N_HEADS / N_KV)) * DIM;
    double sum = 0;
    for (uint32_t d = 0; d < DIM; d++) sum += (double)q[d] * stored(k[d], p->kv.format);
    return p->softcap > 0 ? p->softcap * tanh(sum / 4 / p->softcap) : sum / 4;
}

/* By attention; false: see choose(). */
static inline bool attention_lines(const struct prompt *p, uint32_t head, struct lines *lines) {
    const uint32_t n = p->n_slots, n_asked = p->sparse.n_rows < 64 ? p->sparse.n_rows : 64;
    memset(lines, 0, sizeof(*lines));
    for (uint32_t row = n - n_asked; row < n; row++) {
        double probability[MAX_SLOTS], sum = 0;
        for (uint32_t j = 0; j <= row; j++) sum += probability[j] = exp(logit(p, head, row, j));
        for (uint32_t j = 0; j <= row; j++) {
            lines->columns[j] += probability[j] / sum;
            lines->diagonals[row - j] += probability[j] / sum;
        }
    }
    return choose_lines(p, head, lines);
}

/* --- What half a tile should visit: `first` is its first slot, `tile` its tile's. --- */

static inline bool line_visits(const struct lines *lines, uint32_t tile, uint32_t first,
                               uint32_t slot) {
    if (slot / 16 >= tile / 16 || slot / 16 < 2 || lines->column[slot]) return true;
    const uint32_t distance = first / 16 - slot / 16;
    for (uint32_t c = distance - 1; c <= distance + 3; c++) {
        for (uint32_t o = 16 * c; o < 16 * c + 16 && o < MAX_SLOTS; o++)
            if (lines->diagonal[o]) return true;
    }
    return false;
}

static inline bool a_shape_visits(const struct attn_pattern *pattern, uint32_t tile, uint32_t first,
                                  uint32_t slot) {
    const uint32_t group = slot / 16;
    if (group < (pattern->p1 + 15) / 16 || group >= tile / 16) return true;
    return first / 16 - group <= (pattern->p2 - 1 + 15) / 16;
}

/* The slots that (head, half) visits, ascending, each below the half's end and there once. */
static inline void visited_slots(const struct prompt *p, uint32_t head, uint32_t half,
                                 bool *visited) {
    uint32_t slots[MAX_SLOTS];
    const uint32_t n = cpu_sparse_visited(p->be, head, half, slots);
    memset(visited, 0, MAX_SLOTS * sizeof(*visited));
    for (uint32_t i = 0; i < n; i++) {
        assert_true(i == 0 || slots[i] > slots[i - 1]);
        assert_true(slots[i] < half_end(p, half));
        visited[slots[i]] = true;
    }
}

#endif
