/* scores.cu - what the last rows of a prompt attend to, summed by slot and by diagonal: the
 * estimate of vertical-slash heads (MInference, algorithm 4).
 *
 *   rows   the last n = min(64, rows), row r at slot N - n + r         pass 1  max and sum of rows
 *   keys   page c: slots 64 c + j                                      merge   lse
 *   diagonal of (r, j): o = (N - n - 64 c) + (r - j)                   pass 2  sums of 2^(s - lse)
 *
 *              j = 0 ........ 63
 *   r = 0    |  \  upper: r < j |    A page's 64 x 64 numbers meet 127 diagonals: those with r >= j
 *            |    \             |    are the `lower` part of 64 neighbouring diagonals, the others
 *            | lower: r >= j \  |    the `upper` part of the 64 before.  Neighbouring pages' parts
 *   r = 63   |                 \|    lie side by side, so each is written once without adding.
 *
 *   block   a chunk of pages; the heads of a KV head's group, four at most; 4 warps to a head, 16
 *           rows to a warp, whose queries stay in registers
 *   warp    folds its 16 x 64 numbers into 8 x 72: row r + 8, slot j + 8 is on the diagonal of row
 *           r, slot j.  Then it adds 8 numbers per diagonal, through shared memory
 *   shared  | K 2 pages | folded, per warp | sums of columns, of diagonals: 2 x per warp |
 *           a page's sums are combined while the next page is multiplied
 *
 * Every sum has a fixed order: bits do not depend on the device.
 *
 * Bound: tensor cores, 4 * 64 * N * head_dim * heads multiply-adds; K is read twice.
 * Oracle: engine/cpu/.  Other shapes take the two simple kernels at the end. */
#include "cuda/attention/sparse/sparse_index.h"
#include "cuda/common/bias.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"

enum {
    MAX_SET = 4,
    HEAD_WARPS = SPARSE_QUERIES / 16,
    HEAD_THREADS = HEAD_WARPS * 32,
    MAX_THREADS = MAX_SET * HEAD_THREADS,
    MAX_WARPS = MAX_SET * HEAD_WARPS
};
enum { BLOCKS = PAGE_TOKENS / 8 }; /* of 8 columns, an mma instruction's */
/* 8 zeros, 72 folded columns, 8 zeros; rows 8 banks apart. */
enum { FOLD_PAD = 8, FOLD_STRIDE = PAGE_TOKENS + 8 + 2 * FOLD_PAD, FOLD_FLOATS = 8 * FOLD_STRIDE };
enum { WARP_DIAGONALS = 16 + PAGE_TOKENS - 1 };
enum { SIMPLE_WARPS = 4, LANE_DIMS = 16, MAX_DIM = 32 * LANE_DIMS };

static_assert(FOLD_STRIDE % 32 == 24, "rows of a half warp's stores must not share banks");
static_assert(PAGE_TOKENS == 64 && SPARSE_QUERIES == 64, "the picture above");

/* ---- what both passes share ---- */

struct walk {
    int head;       /* of the thread's warp */
    bool is_scored; /* the head is vertical-slash */
    int row;        /* the first of the warp's 16 */
    int n_rows;     /* scored rows */
    int first_seen; /* slot of row 0 */
    int page, end;
    const int32_t *pages;
};

static __device__ __forceinline__ int scored_rows(const struct sparse_view &v) {
    return min((int)v.n_rows, (int)SPARSE_QUERIES);
}

/* Fills in *w; returns false if no warp of the block has anything to do. */
static __device__ __forceinline__ bool begin_walk(const struct sparse_build &b, struct walk *w) {
    const int group = b.view.n_heads / b.kv.n_kv_heads, set = blockDim.x / HEAD_THREADS;
    const int n_sets = (group + set - 1) / set, in_set = threadIdx.x / HEAD_THREADS;
    const int kv_head = blockIdx.y / n_sets, first = blockIdx.y % n_sets * set;
    const int n_pages = (b.view.n_slots + PAGE_TOKENS - 1) / PAGE_TOKENS;
    const bool in_group = first + in_set < group;
    w->head = kv_head * group + min(first + in_set, group - 1);
    w->is_scored = in_group && b.patterns[w->head].kind == PATTERN_VERTICAL_SLASH;
    w->row = threadIdx.x / 32 % HEAD_WARPS * 16;
    w->n_rows = scored_rows(b.view);
    w->first_seen = b.view.n_slots - w->n_rows;
    w->page = blockIdx.x * b.chunk_pages;
    w->end = min(w->page + (int)b.chunk_pages, n_pages);
    w->pages = pages_of(*b.step, b.layer, b.seq);
    return __syncthreads_or(w->is_scored);
}

template <typename T, int D>
static __device__ __forceinline__ void load_keys(T *to, const struct sparse_build &b,
                                                 const struct walk &w, int page) {
    const int kv_head = w.head / (b.view.n_heads / b.kv.n_kv_heads);
    const int n_valid = (int)b.view.n_slots - page * PAGE_TOKENS;
    const T *from = page_at<const T>(b.kv, w.pages[page]) + (size_t)kv_head * PAGE_TOKENS * D;
    for (int i = threadIdx.x; i < PAGE_TOKENS * (D / 8); i += blockDim.x) {
        const int slot = i / (D / 8), col = i % (D / 8) * 8;
        copy_async_line(to + slot * (D + 8) + col, from + slot * D + col, slot < n_valid);
    }
}

/* Loads the warp's rows as fragments; rows that do not exist become zeros. */
template <typename T, int D>
static __device__ __forceinline__ void load_queries(uint32_t (&a)[D / 16][4],
                                                    const struct sparse_build &b,
                                                    const struct walk &w) {
    const int lane = threadIdx.x % 32;
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(b.q) +
                             (size_t)((int)b.view.n_rows - w.n_rows + w.row) * b.q_stride +
                             (size_t)w.head * D;
#pragma unroll
    for (int i = 0; i < D / 16 * 4; i++) {
        const int row = lane / 4 + i % 2 * 8, col = i / 4 * 16 + lane % 4 * 2 + i % 4 / 2 * 8;
        uint32_t word = 0;
        if (w.row + row < w.n_rows)
            word = *reinterpret_cast<const uint32_t *>(q + row * b.q_stride + col);
        if constexpr (std::is_same_v<T, __half>) {
            const float2 x = unpack_bf16(word);
            word = pack<T>(x.x, x.y);
        }
        a[i / 4][i % 4] = word;
    }
}

/* Computes s [rows lane / 4 and + 8][slots 8 n + lane % 4 * 2 and + 1]. */
template <typename T, int D>
static __device__ __forceinline__ void multiply(float (&s)[BLOCKS][4],
                                                const uint32_t (&a)[D / 16][4], const T *k) {
    const int lane = threadIdx.x % 32;
    const T *at = k + (lane / 16 * 8 + lane % 8) * (D + 8) + lane / 8 % 2 * 8;
#pragma unroll
    for (int d = 0; d < D / 16; d++)
#pragma unroll
        for (int n = 0; n < BLOCKS / 2; n++) {
            uint32_t b[4];
            load_matrix(b, at + n * 16 * (D + 8) + d * 16);
            mma<T>(s[2 * n], a[d], b[0], b[1]);
            mma<T>(s[2 * n + 1], a[d], b[2], b[3]);
        }
}

/* Makes scores of a page's products where that is more than a factor. */
static __device__ __forceinline__ void alter(float (&s)[BLOCKS][4], const struct sparse_build &b,
                                             const struct walk &w, int page) {
    if (b.scale.inner > 0) cap_products(s, b.scale.inner);
    if (!b.slopes) return;
    const int lane = threadIdx.x % 32;
    const float slope = b.slopes[w.head] / b.scale.outer;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = w.row + lane / 4 + i / 2 * 8;
            const int slot = page * PAGE_TOKENS + 8 * n + lane % 4 * 2 + i % 2;
            s[n][i] -= distance_cost(slope, w.first_seen + row, slot);
        }
}

/* Sets what rows do not see to `hidden`.  Only the last pages hold such slots. */
static __device__ __forceinline__ void hide(float (&s)[BLOCKS][4], const struct walk &w, int page,
                                            float hidden) {
    const int lane = threadIdx.x % 32, base = page * PAGE_TOKENS;
    if (base + PAGE_TOKENS - 1 <= w.first_seen) return;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = w.row + lane / 4 + i / 2 * 8;
            const int slot = base + 8 * n + lane % 4 * 2 + i % 2;
            if (slot > w.first_seen + row) s[n][i] = hidden;
        }
}

/* ---- pass 1 ---- */

static __device__ __forceinline__ void merge(struct sparse_row_part *a, float max, float sum) {
    const float larger = fmaxf(a->max, max), base = larger == -INFINITY ? 0.0f : larger;
    a->sum = a->sum * exp2_fast(a->max - base) + sum * exp2_fast(max - base);
    a->max = larger;
}

static __device__ __forceinline__ void add_page(struct sparse_row_part (&rows)[2],
                                                const float (&s)[BLOCKS][4], float scale) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float max = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) max = fmaxf(max, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        max = fmaxf(max * scale, rows[h].max);
        const float base = max == -INFINITY ? 0.0f : max;
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
            sum += exp2_fast(fmaf(s[n][2 * h], scale, -base)) +
                   exp2_fast(fmaf(s[n][2 * h + 1], scale, -base));
        rows[h].sum = rows[h].sum * exp2_fast(rows[h].max - base) + sum;
        rows[h].max = max;
    }
}

/* Merges the parts of a row, which four lanes hold, and stores them. */
static __device__ __forceinline__ void store_rows(struct sparse_row_part (&rows)[2],
                                                  const struct sparse_build &b,
                                                  const struct walk &w) {
    const int lane = threadIdx.x % 32;
    for (int h = 0; h < 2; h++) {
        for (int step = 1; step < 4; step *= 2) {
            const float max = __shfl_xor_sync(0xffffffffu, rows[h].max, step);
            const float sum = __shfl_xor_sync(0xffffffffu, rows[h].sum, step);
            merge(&rows[h], max, sum);
        }
        if (lane % 4) continue;
        const size_t at = ((size_t)blockIdx.x * b.view.n_heads + w.head) * SPARSE_QUERIES + w.row +
                          lane / 4 + h * 8;
        b.row_parts[at] = rows[h];
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(MAX_THREADS)
    sparse_rows_kernel(const struct sparse_build b) {
    extern __shared__ __align__(16) unsigned char shared[];
    T *const keys = reinterpret_cast<T *>(shared);
    constexpr int STAGE = PAGE_TOKENS * (D + 8);
    const float scale = b.scale.outer * LOG2_E;
    struct walk w;
    let_next_start();
    wait_for_previous();
    if (!begin_walk(b, &w)) return;
    uint32_t a[D / 16][4];
    struct sparse_row_part rows[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    load_keys<T, D>(keys, b, w, w.page);
    load_queries<T, D>(a, b, w);
    for (int page = w.page; page < w.end; page++) {
        const int stage = (page - w.page) % 2;
        copy_async_wait_all();
        __syncthreads(); /* the page has arrived, and all warps are done with the one before */
        if (page + 1 < w.end) load_keys<T, D>(keys + (1 - stage) * STAGE, b, w, page + 1);
        if (!w.is_scored) continue;
        float s[BLOCKS][4] = {};
        multiply<T, D>(s, a, keys + stage * STAGE);
        alter(s, b, w, page);
        hide(s, w, page, -INFINITY);
        add_page(rows, s, scale);
    }
    if (w.is_scored) store_rows(rows, b, w);
}

static __global__ void __launch_bounds__(SPARSE_QUERIES)
    sparse_lse_kernel(const struct sparse_build b) {
    const size_t at = (size_t)blockIdx.x * SPARSE_QUERIES + threadIdx.x;
    const size_t stride = (size_t)b.view.n_heads * SPARSE_QUERIES;
    let_next_start();
    wait_for_previous();
    if (b.patterns[blockIdx.x].kind != PATTERN_VERTICAL_SLASH) return;
    const float sink = sink_of(b.sinks, blockIdx.x);
    float max = sink;
    for (uint32_t i = 0; i < b.n_chunks; i++) max = fmaxf(max, b.row_parts[i * stride + at].max);
    float sum = exp2_fast(sink - max);
    for (uint32_t i = 0; i < b.n_chunks; i++) {
        const struct sparse_row_part part = b.row_parts[i * stride + at];
        sum += part.sum * exp2_fast(part.max - max);
    }
    b.lse[at] = (int)threadIdx.x < scored_rows(b.view) ? max + log2f(sum) : INFINITY;
}

/* ---- pass 2 ---- */

template <typename T, int D> struct lines_plan {
    T keys[2][PAGE_TOKENS * (D + 8)];
    float folded[MAX_WARPS][FOLD_FLOATS];
    float columns[2][MAX_WARPS][PAGE_TOKENS];
    float diagonals[2][MAX_WARPS][WARP_DIAGONALS + 1];
};

/* Adds up the numbers of lanes that differ in `bit`: of 2 N sums each lane of a pair gets N. */
template <int N> static __device__ __forceinline__ void halve(float (&x)[2 * BLOCKS], int bit) {
    const bool high = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float keep = high ? x[i + N] : x[i], give = high ? x[i] : x[i + N];
        x[i] = keep + __shfl_xor_sync(0xffffffffu, give, bit);
    }
}

/* Stores the sums of the warp's columns.  A lane has x[2 n + e] in column 8 n + lane % 4 * 2 + e,
 * and so have seven others.  Of the sums of these eight it ends up with the two of block n = lane /
 * 4. */
static __device__ __forceinline__ void store_columns(float *to, const float (&p)[BLOCKS][4]) {
    const int lane = threadIdx.x % 32;
    float x[2 * BLOCKS];
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) x[i] = p[i / 2][i % 2] + p[i / 2][2 + i % 2];
    halve<BLOCKS>(x, 16);
    halve<BLOCKS / 2>(x, 8);
    halve<BLOCKS / 4>(x, 4);
    *reinterpret_cast<float2 *>(to + lane / 4 * 8 + lane % 4 * 2) = make_float2(x[0], x[1]);
}

/* Stores the sums of the warp's diagonals: to[15 + j - r] for row r of the warp's 16 and slot j of
 * the page. */
static __device__ __forceinline__ void store_diagonals(float *to, float *folded,
                                                       const float (&p)[BLOCKS][4]) {
    const int lane = threadIdx.x % 32;
    float *at = folded + lane / 4 * FOLD_STRIDE + FOLD_PAD + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n <= BLOCKS; n++) {
        float2 x = make_float2(0.0f, 0.0f);
        if (n > 0) x = make_float2(p[n - 1][0], p[n - 1][1]);
        if (n < BLOCKS) x = make_float2(x.x + p[n][2], x.y + p[n][3]);
        *reinterpret_cast<float2 *>(at + 8 * n) = x;
    }
    __syncwarp();
    for (int i = lane; i < WARP_DIAGONALS; i += 32) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < 8; r++) sum += folded[r * FOLD_STRIDE + 1 + i + r];
        to[i] = sum;
    }
    __syncwarp(); /* the next page may overwrite `folded` */
}

/* Writes a page's sums: a head's 128 threads add up those of its four warps, in their order. */
static __device__ __forceinline__ void write_page(const struct sparse_build &b,
                                                  const struct walk &w, int page,
                                                  const float (*columns)[PAGE_TOKENS],
                                                  const float (*diagonals)[WARP_DIAGONALS + 1]) {
    const int i = threadIdx.x % HEAD_THREADS, t = i - PAGE_TOKENS; /* t: row - slot */
    const int n_slots = b.view.n_slots, base = page * PAGE_TOKENS;
    const int o = w.first_seen - base + t;
    const size_t head = w.head * b.stride;
    float column = 0.0f, diagonal = 0.0f;
#pragma unroll
    for (int warp = 0; warp < HEAD_WARPS; warp++) {
        const int at = 16 * warp + 15 - t;
        if (i < PAGE_TOKENS) column += columns[warp][i];
        if (at >= 0 && at < WARP_DIAGONALS) diagonal += diagonals[warp][at];
    }
    if (i < PAGE_TOKENS && base + i < n_slots) b.columns[head + base + i] = column;
    if (o < 0 || o >= n_slots) return;
    (t < 0 ? b.upper : b.lower)[head + o] = diagonal;
    /* No page writes the other part of these diagonals. */
    if (t >= 0 && page == 0) b.upper[head + o] = 0.0f;
    if (t < 0 && base + PAGE_TOKENS >= n_slots) b.lower[head + o] = 0.0f;
}

/* Computes a warp's sums of one page. */
template <typename T, int D>
static __device__ __forceinline__ void score_page(struct lines_plan<T, D> *plan,
                                                  const struct sparse_build &b,
                                                  const struct walk &w, int page,
                                                  const uint32_t (&a)[D / 16][4],
                                                  const float (&lse)[2]) {
    const int warp = threadIdx.x / 32, stage = (page - w.page) % 2;
    const float scale = b.scale.outer * LOG2_E;
    float p[BLOCKS][4] = {};
    multiply<T, D>(p, a, plan->keys[stage]);
    alter(p, b, w, page);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[n][i] = exp2_fast(fmaf(p[n][i], scale, -lse[i / 2]));
    hide(p, w, page, 0.0f);
    store_columns(plan->columns[stage][warp], p);
    store_diagonals(plan->diagonals[stage][warp], plan->folded[warp], p);
}

template <typename T, int D>
static __global__ void __launch_bounds__(MAX_THREADS)
    sparse_lines_kernel(const struct sparse_build b) {
    extern __shared__ __align__(16) unsigned char shared[];
    struct lines_plan<T, D> &plan = *reinterpret_cast<struct lines_plan<T, D> *>(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp & ~(HEAD_WARPS - 1);
    struct walk w;
    let_next_start();
    wait_for_previous();
    if (!begin_walk(b, &w)) return;
    uint32_t a[D / 16][4];
    float lse[2];
    load_keys<T, D>(plan.keys[0], b, w, w.page);
    load_queries<T, D>(a, b, w);
    const float *own = b.lse + (size_t)w.head * SPARSE_QUERIES + w.row + lane / 4;
    for (int h = 0; h < 2; h++) lse[h] = w.is_scored ? own[8 * h] : 0.0f;
    for (int i = lane; i < FOLD_FLOATS; i += 32) plan.folded[warp][i] = 0.0f;
    for (int page = w.page; page <= w.end; page++) {
        const int stage = (page - w.page) % 2;
        copy_async_wait_all();
        __syncthreads(); /* the page has arrived; of the one before only the sums, now complete,
                            are still needed */
        if (page + 1 < w.end) load_keys<T, D>(plan.keys[1 - stage], b, w, page + 1);
        if (!w.is_scored) continue;
        if (page > w.page)
            write_page(b, w, page - 1, plan.columns[1 - stage] + first,
                       plan.diagonals[1 - stage] + first);
        if (page < w.end) score_page<T, D>(&plan, b, w, page, a, lse);
    }
}

/* ---- any shape ---- */

/* Returns q . k * scale * log2 e of a row and a slot, in every lane. */
static __device__ float simple_score(const struct sparse_build &b, const int32_t *pages, int head,
                                     int row, int slot) {
    const uint32_t lane = threadIdx.x % 32, dim = b.kv.head_dim;
    const uint32_t kv_head = head / (b.view.n_heads / b.kv.n_kv_heads);
    const char *key =
        row_at(b.kv, pages[slot / PAGE_TOKENS], kv_row(&b.kv, 0, kv_head, slot % PAGE_TOKENS));
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(b.q) +
                             (b.view.n_rows - scored_rows(b.view) + row) * b.q_stride +
                             (size_t)head * dim;
    float dot = 0.0f;
    for (uint32_t d = lane; d < dim; d += 32)
        dot += to_float(q[d]) * load_element(key, d, b.kv.format);
    float score = score_of(b.scale, warp_sum(dot));
    if (b.slopes)
        score -= distance_cost(b.slopes[head],
                               (uint32_t)((int)b.view.n_slots - scored_rows(b.view) + row), slot);
    return score * LOG2_E;
}

/* Computes a row's log-sum-exp.  Grid (rows, heads). */
static __global__ void __launch_bounds__(32 * SIMPLE_WARPS)
    sparse_rows_simple_kernel(const struct sparse_build b) {
    __shared__ struct sparse_row_part parts[SIMPLE_WARPS];
    const int row = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32;
    let_next_start();
    wait_for_previous();
    if (b.patterns[head].kind != PATTERN_VERTICAL_SLASH) return;
    const int32_t *pages = pages_of(*b.step, b.layer, b.seq);
    const int last = (int)b.view.n_slots - scored_rows(b.view) + row;
    struct sparse_row_part sum = {-INFINITY, 0.0f};
    for (int slot = warp; slot <= last; slot += SIMPLE_WARPS)
        merge(&sum, simple_score(b, pages, head, row, slot), 1.0f);
    if (threadIdx.x % 32 == 0) parts[warp] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < SIMPLE_WARPS; i++) merge(&parts[0], parts[i].max, parts[i].sum);
    merge(&parts[0], sink_of(b.sinks, head), 1.0f);
    b.lse[(size_t)head * SPARSE_QUERIES + row] = parts[0].max + log2f(parts[0].sum);
}

/* Adds up column i and diagonal i, in one warp for each i.  Grid (slots / SIMPLE_WARPS, heads). */
static __global__ void __launch_bounds__(32 * SIMPLE_WARPS)
    sparse_lines_simple_kernel(const struct sparse_build b) {
    const int i = blockIdx.x * SIMPLE_WARPS + threadIdx.x / 32, head = blockIdx.y;
    let_next_start();
    wait_for_previous();
    if (b.patterns[head].kind != PATTERN_VERTICAL_SLASH || i >= (int)b.view.n_slots) return;
    const int32_t *pages = pages_of(*b.step, b.layer, b.seq);
    const int n_rows = scored_rows(b.view), first_seen = (int)b.view.n_slots - n_rows;
    float column = 0.0f, diagonal = 0.0f;
    for (int row = 0; row < n_rows; row++) {
        const float lse = b.lse[(size_t)head * SPARSE_QUERIES + row];
        const int seen = first_seen + row;
        if (i > seen) continue;
        column += exp2_fast(simple_score(b, pages, head, row, i) - lse);
        diagonal += exp2_fast(simple_score(b, pages, head, row, seen - i) - lse);
    }
    if (threadIdx.x % 32) return;
    b.columns[head * b.stride + i] = column;
    b.lower[head * b.stride + i] = diagonal;
    b.upper[head * b.stride + i] = 0.0f;
}

static cudaError_t launch_simple(const struct sparse_build &b, struct launch launch) {
    const uint32_t n_rows = min(b.view.n_rows, (uint32_t)SPARSE_QUERIES);
    const uint32_t n_blocks = (b.view.n_slots + SIMPLE_WARPS - 1) / SIMPLE_WARPS;
    const cudaError_t status = launch_kernel(launch, sparse_rows_simple_kernel,
                                             dim3(n_rows, b.view.n_heads), 32 * SIMPLE_WARPS, 0, b);
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, sparse_lines_simple_kernel, dim3(n_blocks, b.view.n_heads),
                         32 * SIMPLE_WARPS, 0, b);
}

/* ---- launching ---- */

template <typename T, int D>
static cudaError_t launch_shape(const struct sparse_build &b, struct launch launch) {
    const uint32_t group = b.view.n_heads / b.kv.n_kv_heads;
    const uint32_t n_sets = (group + MAX_SET - 1) / MAX_SET, set = (group + n_sets - 1) / n_sets;
    const dim3 grid(b.n_chunks, b.kv.n_kv_heads * n_sets);
    const int keys = 2 * PAGE_TOKENS * (D + 8) * sizeof(T), lines = sizeof(struct lines_plan<T, D>);
    cudaError_t status = cudaFuncSetAttribute(sparse_rows_kernel<T, D>,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, keys);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(sparse_lines_kernel<T, D>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, lines);
    if (status == cudaErrorInvalidValue) { /* 8.6 has less shared memory than head_dim 256 needs */
        cudaGetLastError();
        return launch_simple(b, launch);
    }
    if (status == cudaSuccess)
        status = launch_kernel(launch, sparse_rows_kernel<T, D>, grid, set * HEAD_THREADS, keys, b);
    if (status == cudaSuccess)
        status = launch_kernel(launch, sparse_lse_kernel, b.view.n_heads, SPARSE_QUERIES, 0, b);
    if (status == cudaSuccess)
        status =
            launch_kernel(launch, sparse_lines_kernel<T, D>, grid, set * HEAD_THREADS, lines, b);
    return status;
}

template <typename T>
static cudaError_t launch_dim(const struct sparse_build &b, struct launch launch) {
    switch (b.kv.head_dim) {
    case 64: return launch_shape<T, 64>(b, launch);
    case 80: return launch_shape<T, 80>(b, launch);
    case 96: return launch_shape<T, 96>(b, launch);
    case 128: return launch_shape<T, 128>(b, launch);
    case 256: return launch_shape<T, 256>(b, launch);
    default: return launch_simple(b, launch);
    }
}

cudaError_t launch_sparse_scores(const struct sparse_build *b, struct launch launch) {
    const bool in_vectors = (uintptr_t)b->q % 16 == 0 && b->q_stride % 8 == 0;
    if (b->kv.format == PAGE_F32 || !in_vectors) return launch_simple(*b, launch);
    return b->kv.format == PAGE_F16 ? launch_dim<__half>(*b, launch)
                                    : launch_dim<__nv_bfloat16>(*b, launch);
}
