/* sparse_lines.c - see sparse_lines.h (algorithms: the estimate of MInference section 3.2).
 *
 *   keys     |- page 0 -|- page 1 -|- …           pass 1: maximum and sum of each row
 *   rows     the last 64, one query head          pass 2: the same products again, as
 *                                                 probabilities, to their column and diagonal
 *
 * Nothing of the size of rows x keys is kept.  A sum takes its terms in the order of the rows,
 * whichever worker computes it.  So the bits of a score depend on nothing but queries and keys. */
#include "engine/cpu/sparse_lines.h"

#include <math.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/tile.h"
#include "engine/device/attention.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"

/* Returns how many floats columns and diagonals share with mean keys: the larger of the two
 * needs. */
static size_t shared_floats(uint32_t n_pages, uint32_t dim) {
    const uint32_t each = dim > 2 * PAGE_TOKENS ? dim : 2 * PAGE_TOKENS;
    return (size_t)n_pages * each;
}

size_t lines_workspace_bytes(uint32_t n_slots, uint32_t head_dim) {
    const uint32_t n_pages = kv_n_pages(n_slots);
    return n_pages * sizeof(uint64_t) +
           sizeof(float) *
               (shared_floats(n_pages, head_dim) + n_pages + (size_t)2 * PAGE_TOKENS * head_dim +
                SPARSE_QUERIES * PAGE_TOKENS + 2 * SPARSE_QUERIES);
}

struct lines_workspace lines_workspace_layout(void *scratch, uint32_t n_slots, uint32_t head_dim) {
    const uint32_t n_pages = kv_n_pages(n_slots);
    struct lines_workspace workspace = {.bits = scratch};
    workspace.first = workspace.means = (float *)(workspace.bits + n_pages);
    workspace.second = workspace.first + (size_t)n_pages * PAGE_TOKENS;
    workspace.products = workspace.first + shared_floats(n_pages, head_dim);
    workspace.q = workspace.products + n_pages;
    workspace.keys = workspace.q + (size_t)PAGE_TOKENS * head_dim;
    workspace.scores = workspace.keys + (size_t)PAGE_TOKENS * head_dim;
    workspace.softmax = workspace.scores + SPARSE_QUERIES * PAGE_TOKENS;
    return workspace;
}

/* --- The k largest: finds the k-th of integers that sort as floats do, byte by byte. --- */

static uint32_t key_of(float x) {
    uint32_t bits;
    if (isnan(x)) return 0;
    memcpy(&bits, &x, sizeof(bits));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Returns the byte at `shift` of the k-th largest key.  Counts only keys that agree with `key` from
 * bit `shift` + 8 upward.  k becomes the rank among those that have this byte, too. */
static uint32_t byte_of_kth(const float *scores, uint32_t n, uint32_t key, int shift, uint32_t *k) {
    uint32_t count[256] = {0};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t each = key_of(scores[i]);
        if ((uint64_t)each >> (shift + 8) == (uint64_t)key >> (shift + 8))
            count[each >> shift & 255]++;
    }
    uint32_t byte = 255;
    for (; *k > count[byte]; byte--) *k -= count[byte];
    return byte;
}

void lines_select(const float *scores, uint32_t n, uint32_t k, uint64_t *bits) {
    memset(bits, 0, (n + 63) / 64 * sizeof(*bits));
    if (k == 0) return;
    uint32_t kth = 0, n_equal = k;
    for (int shift = 24; shift >= 0; shift -= 8)
        kth |= byte_of_kth(scores, n, kth, shift, &n_equal) << shift;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t key = key_of(scores[i]);
        const bool equal = key == kth && n_equal > 0;
        n_equal -= equal;
        if (key > kth || equal) bits[i / 64] |= (uint64_t)1 << i % 64;
    }
}

/* --- Columns and diagonals. --- */

/* Returns the last rows, whose attention scores the lines, as a tile of one query head. */
static struct tile asked_rows(const struct lines_task *task) {
    const uint32_t n = min_u32(SPARSE_QUERIES, task->sparse->n_rows),
                   group = task->args->n_heads / task->args->kv->n_kv_heads;
    return (struct tile){.kernels = task->cpu->kernels,
                         .kv = task->args->kv,
                         .view = task->view,
                         .kv_head = task->head / group,
                         .first_head = task->head,
                         .group = 1,
                         .n_rows = n,
                         .first_visible = task->n_slots - n + 1,
                         .softcap = task->args->softcap,
                         .bias = {.slopes = task->args->slopes, .position = task->n_slots - n}};
}

static void sum_rows(const struct lines_task *task, const struct tile *t) {
    const struct lines_workspace *workspace = &task->workspace;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        workspace->softmax[2 * r] = sink_logit(t->kernels, task->args->sinks, task->head);
        workspace->softmax[2 * r + 1] = task->args->sinks ? 1.0f : 0.0f;
    }
    for (uint32_t page = 0; page < kv_n_pages(task->n_slots); page++) {
        tile_scores(t, workspace->scores, workspace->q, page, workspace->keys);
        for (uint32_t r = 0; r < t->n_rows; r++) {
            const uint32_t n = slots_of_page(t->first_visible + r, page);
            float *softmax = workspace->softmax + 2 * r;
            if (n > 0)
                t->kernels->softmax_update(workspace->scores + r * PAGE_TOKENS, n, softmax,
                                           softmax + 1);
        }
    }
}

/* Adds the probabilities of a row's first n slots of a page to their columns and diagonals. */
static void add_to_lines(const struct lines_task *task, const struct tile *t, uint32_t row,
                         uint32_t page, uint32_t n) {
    float p[PAGE_TOKENS] = {0};
    float *columns = task->workspace.first + (size_t)page * PAGE_TOKENS;
    const uint32_t distance = t->first_visible - 1 + row - page * PAGE_TOKENS; /* its first
                                                                                * slot's */
    t->kernels->add_scores(p, 1.0f, task->workspace.scores + row * PAGE_TOKENS,
                           task->workspace.softmax + 2 * row, 1, n);
    for (uint32_t i = 0; i < n; i++) columns[i] += p[i];
    for (uint32_t i = 0; i < n; i++) task->workspace.second[distance - i] += p[i];
}

static void score_lines(const struct lines_task *task) {
    const struct lines_workspace *workspace = &task->workspace;
    const struct tile t = asked_rows(task);
    const struct attn_args queries = {
        .q = task->args->q, .q_stride = task->args->q_stride, .scale = task->args->scale};
    const uint32_t n_pages = kv_n_pages(task->n_slots);
    tile_load_queries(&queries, &t, task->sparse->n_rows - t.n_rows, workspace->q);
    sum_rows(task, &t);
    memset(workspace->first, 0, (size_t)n_pages * 2 * PAGE_TOKENS * sizeof(float));
    for (uint32_t page = 0; page < n_pages; page++) {
        tile_scores(&t, workspace->scores, workspace->q, page, workspace->keys);
        for (uint32_t r = 0; r < t.n_rows; r++) {
            const uint32_t n = slots_of_page(t.first_visible + r, page);
            if (n > 0) add_to_lines(task, &t, r, page, n);
        }
    }
}

/* Returns h of attn_sparse.synthetic. */
static float synthetic_share(const struct lines_task *task, uint32_t x) {
    uint32_t v = x * 0x9e3779b9u + task->head * 0x85ebca6bu + task->sparse->synthetic;
    v ^= v >> 16;
    v *= 0x7feb352du;
    v ^= v >> 15;
    v *= 0x846ca68bu;
    v ^= v >> 16;
    return (float)(v >> 9) * 0x1p-23f;
}

static void score_synthetic_lines(const struct lines_task *task, uint32_t p2) {
    for (uint32_t i = 0; i < task->n_slots; i++) {
        task->workspace.first[i] = synthetic_share(task, 0x80000000u | i);
        task->workspace.second[i] = i < p2 / 2 ? 2.0f : 1.0f + synthetic_share(task, i / 64);
    }
}

/* Selects the best k, and always the first n_always among them. */
static void select_lines(float *scores, uint32_t n, uint32_t k, uint32_t n_always, uint64_t *bits) {
    for (uint32_t i = 0; i < min_u32(n, n_always); i++) scores[i] = INFINITY;
    lines_select(scores, n, min_u32(n, max_u32(k, n_always)), bits);
}

void lines_find(const struct lines_task *task, const struct attn_pattern *pattern,
                uint64_t *columns, uint64_t *diagonals) {
    const uint32_t n = task->n_slots;
    if (task->sparse->synthetic) score_synthetic_lines(task, pattern->p2);
    else score_lines(task);
    select_lines(task->workspace.first, n, pattern->p1, SPARSE_MIN_COLUMNS, columns);
    select_lines(task->workspace.second, n, pattern->p2, SPARSE_MIN_DIAGONALS, diagonals);
}

/* --- Pages: their mean keys against a tile's mean query. --- */

void lines_mean_keys(const struct lines_task *task, uint32_t n_pages) {
    const struct kv_pool *kv = task->args->kv;
    const uint32_t kv_head = task->head / (task->args->n_heads / kv->n_kv_heads);
    for (uint32_t page = 0; page < n_pages; page++) {
        float *mean = task->workspace.means + (size_t)page * kv->head_dim;
        const struct page_rows keys = page_rows(task->cpu->kernels, kv, task->view->pages[page],
                                                kv_head, task->workspace.keys);
        task->cpu->kernels->to_f32(task->workspace.keys, keys.data,
                                   (size_t)PAGE_TOKENS * kv->head_dim, keys.element);
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            const float *slots = task->workspace.keys + (size_t)d * PAGE_TOKENS;
            float sum = 0.0f;
            for (uint32_t i = 0; i < PAGE_TOKENS; i++) sum += slots[i];
            mean[d] = sum / PAGE_TOKENS;
        }
    }
}

static void mean_query(const struct lines_task *task, uint32_t first_row, uint32_t n_rows,
                       float *mean) {
    const uint32_t dim = task->args->kv->head_dim;
    memset(mean, 0, dim * sizeof(float));
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *q = (const float *)task->args->q +
                         (size_t)(first_row + r) * task->args->q_stride + (size_t)task->head * dim;
        for (uint32_t d = 0; d < dim; d++) mean[d] += q[d];
    }
    for (uint32_t d = 0; d < dim; d++) mean[d] /= (float)n_rows;
}

void lines_best_pages(const struct lines_task *task, uint32_t first_row, uint32_t n_rows,
                      uint32_t n_pages, uint32_t k, uint64_t *bits) {
    const uint32_t dim = task->args->kv->head_dim;
    const float *q = task->workspace.q, *slopes = task->args->slopes, scale = task->args->scale;
    mean_query(task, first_row, n_rows, task->workspace.q);
    for (uint32_t page = 0; page < n_pages; page++) {
        const float *key = task->workspace.means + (size_t)page * dim;
        float product = 0.0f;
        for (uint32_t d = 0; d < dim; d++) product += q[d] * key[d];
        /* The mean bias of a page, but for what all pages of a tile have in common. */
        if (slopes) product = product * scale + slopes[task->head] * (float)(page * PAGE_TOKENS);
        task->workspace.products[page] = product;
    }
    lines_select(task->workspace.products, n_pages, min_u32(k, n_pages), bits);
}
