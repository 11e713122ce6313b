/* pages.cu - chooses for every tile of block-sparse heads the pages whose mean key has the largest
 * product with the tile's mean query.
 *
 *   means      f32; of a tile's rows, and of the pages that lie wholly before the last tile
 *   products   [heads][64 tiles or more][pages], in f32: tensor cores would round the means, and so
 *              change the order of pages.  A block computes 64 x 64, a thread 4 x 4; pages that no
 *              tile may choose are left out
 *   choice     one block per (head, tile)
 *
 * The products of all tiles would be N^2 / 8192 numbers a head, so they are computed for some tiles
 * at a time.
 *
 * Bound: products, head_dim * N^2 / 16384 multiply-adds a head, in f32; means, reading q and K.
 * Oracle: engine/cpu/, ties to the lower page. */
#include "cuda/attention/sparse/sparse_index.h"
#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "cuda/common/topk.cuh"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"

enum { MEAN_THREADS = 128, THREADS = 256 };
enum { SIDE = 64, DEPTH = 16, PER_THREAD = 4, SIDE_PAD = 4 };

static_assert(SIDE == (int)SPARSE_PAGE_BATCH &&
                  (SIDE / PER_THREAD) * (SIDE / PER_THREAD) == THREADS,
              "a block's share");

static __device__ __forceinline__ bool is_block_sparse(const struct sparse_build &b,
                                                       uint32_t head) {
    return b.patterns[head].kind == PATTERN_BLOCK_SPARSE;
}

/* Returns how many pages a tile may choose from: those before its own. */
static __device__ __forceinline__ uint32_t pages_before(const struct sparse_build &b,
                                                        uint32_t tile) {
    return (b.view.first_slot + tile * SPARSE_TILE) / PAGE_TOKENS;
}

/* ---- means ---- */

/* Computes the mean query of each tile.  Grid (tiles, heads). */
static __global__ void __launch_bounds__(MEAN_THREADS)
    sparse_mean_queries_kernel(const struct sparse_build b) {
    const uint32_t tile = blockIdx.x, head = blockIdx.y, dim = b.kv.head_dim;
    const uint32_t n = min(b.view.n_rows - tile * SPARSE_TILE, (uint32_t)SPARSE_TILE);
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(b.q) +
                             (size_t)tile * SPARSE_TILE * b.q_stride + (size_t)head * dim;
    let_next_start();
    wait_for_previous();
    if (!is_block_sparse(b, head)) return;
    float *to = b.mean_queries + ((size_t)head * b.view.n_tiles + tile) * dim;
    for (uint32_t d = threadIdx.x; d < dim; d += MEAN_THREADS) {
        float sum = 0.0f;
#pragma unroll 16
        for (uint32_t row = 0; row < n; row++) sum += to_float(q[row * b.q_stride + d]);
        to[d] = sum / (float)n;
    }
}

/* Computes the mean key of each page.  Grid (pages, KV heads). */
static __global__ void __launch_bounds__(MEAN_THREADS)
    sparse_mean_keys_kernel(const struct sparse_build b) {
    const uint32_t page = blockIdx.x, kv_head = blockIdx.y, dim = b.kv.head_dim;
    const uint32_t group = b.view.n_heads / b.kv.n_kv_heads;
    let_next_start();
    wait_for_previous();
    bool is_wanted = false;
    for (uint32_t i = 0; i < group; i++) is_wanted |= is_block_sparse(b, kv_head * group + i);
    if (!is_wanted) return;
    const char *keys =
        row_at(b.kv, pages_of(*b.step, b.layer, b.seq)[page], kv_row(&b.kv, 0, kv_head, 0));
    float *to = b.mean_keys + ((size_t)kv_head * b.page_stride + page) * dim;
    for (uint32_t d = threadIdx.x; d < dim; d += MEAN_THREADS) {
        float sum = 0.0f;
#pragma unroll 16
        for (uint32_t slot = 0; slot < PAGE_TOKENS; slot++)
            sum += load_element(keys, slot * dim + d, b.kv.format);
        to[d] = sum / PAGE_TOKENS;
    }
}

/* ---- products ---- */

/* Loads DEPTH dimensions of SIDE rows, transposed; zeros after the last of either. */
static __device__ __forceinline__ void load_side(float (*to)[SIDE + SIDE_PAD], const float *from,
                                                 uint32_t n_rows, uint32_t dim, uint32_t depth) {
    for (uint32_t i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
        const uint32_t row = i / DEPTH, d = i % DEPTH;
        to[d][row] = row < n_rows && depth + d < dim ? from[(size_t)row * dim + depth + d] : 0.0f;
    }
}

/* Makes scores of products: adds the mean bias of each page, but for what all pages of a tile have
 * in common. */
static __device__ __forceinline__ void add_biases(float (&products)[PER_THREAD][PER_THREAD],
                                                  const struct sparse_build &b, uint32_t head,
                                                  uint32_t page) {
    for (uint32_t i = 0; i < PER_THREAD; i++)
        for (uint32_t j = 0; j < PER_THREAD; j++)
            products[i][j] = products[i][j] * b.product_scale +
                             b.slopes[head] * (float)((page + j) * PAGE_TOKENS);
}

/* Multiplies mean queries by mean keys, of tiles from first_tile on.  Grid (pages / SIDE, tiles /
 * SIDE, heads). */
static __global__ void __launch_bounds__(THREADS)
    sparse_products_kernel(const struct sparse_build b, uint32_t first_tile) {
    __shared__ __align__(16) float queries[DEPTH][SIDE + SIDE_PAD], keys[DEPTH][SIDE + SIDE_PAD];
    const uint32_t head = blockIdx.z, kv_head = head / (b.view.n_heads / b.kv.n_kv_heads);
    const uint32_t page = blockIdx.x * SIDE, row = blockIdx.y * SIDE, tile = first_tile + row;
    const uint32_t dim = b.kv.head_dim;
    const uint32_t n_tiles = min(b.view.n_tiles - tile, (uint32_t)SIDE);
    const uint32_t n_pages = pages_before(b, tile + n_tiles - 1);
    const uint32_t x = threadIdx.x % (SIDE / PER_THREAD) * PER_THREAD,
                   y = threadIdx.x / (SIDE / PER_THREAD) * PER_THREAD;
    const float *q = b.mean_queries + ((size_t)head * b.view.n_tiles + tile) * dim,
                *k = b.mean_keys + ((size_t)kv_head * b.page_stride + page) * dim;
    float sums[PER_THREAD][PER_THREAD] = {};
    let_next_start();
    wait_for_previous();
    if (!is_block_sparse(b, head) || page >= n_pages) return;
    for (uint32_t depth = 0; depth < dim; depth += DEPTH) {
        load_side(queries, q, n_tiles, dim, depth);
        load_side(keys, k, n_pages - page, dim, depth);
        __syncthreads();
#pragma unroll
        for (uint32_t d = 0; d < DEPTH; d++) {
            const float4 a = *reinterpret_cast<const float4 *>(&queries[d][y]),
                         c = *reinterpret_cast<const float4 *>(&keys[d][x]);
            const float qs[PER_THREAD] = {a.x, a.y, a.z, a.w};
            const float ks[PER_THREAD] = {c.x, c.y, c.z, c.w};
#pragma unroll
            for (uint32_t i = 0; i < PER_THREAD; i++)
#pragma unroll
                for (uint32_t j = 0; j < PER_THREAD; j++)
                    sums[i][j] = fmaf(qs[i], ks[j], sums[i][j]);
        }
        __syncthreads();
    }
    if (b.slopes) add_biases(sums, b, head, page + x);
    float *to = b.products + ((size_t)head * b.batch + row + y) * b.page_stride + page + x;
    for (uint32_t i = 0; i < PER_THREAD && y + i < n_tiles; i++)
        *reinterpret_cast<float4 *>(to + i * b.page_stride) =
            make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
}

/* ---- choice ---- */

/* Writes the pages chosen from [0, n) in their order, page 0 always among them; returns their
 * number. */
static __device__ uint32_t write_pages(struct select_plan<THREADS> *plan, int32_t *to,
                                       const float *products, uint32_t n, bool any,
                                       const struct select_result &best) {
    uint32_t n_equal = 0, n_chosen = 0;
    for (uint32_t base = 0; base < n; base += THREADS) {
        const uint32_t page = base + threadIdx.x, key = page < n ? select_key(products[page]) : 0;
        const bool is_equal = any && page < n && key == best.key;
        uint32_t total;
        const uint32_t ties =
            n_equal + block_exclusive_sum<THREADS>(is_equal, plan->warp_sums[0], &total);
        n_equal += total;
        const bool above = any && page < n && key > best.key;
        const bool chosen = above || (is_equal && ties < best.n_equal) || page == 0;
        const uint32_t at =
            n_chosen + block_exclusive_sum<THREADS>(chosen, plan->warp_sums[1], &total);
        if (chosen) to[at] = (int32_t)page;
        n_chosen += total;
    }
    return n_chosen;
}

/* Chooses each tile's pages, of tiles from first_tile on.  Grid (tiles, heads). */
static __global__ void __launch_bounds__(THREADS)
    sparse_pages_kernel(const struct sparse_build b, uint32_t first_tile) {
    __shared__ struct select_plan<THREADS> plan;
    const uint32_t tile = first_tile + blockIdx.x, head = blockIdx.y;
    const struct sparse_view &v = b.view;
    let_next_start();
    wait_for_previous();
    if (!is_block_sparse(b, head)) return;
    const uint32_t n = pages_before(b, tile), k = min(b.patterns[head].p1, n);
    const size_t at = (size_t)head * v.max_tiles + tile;
    const float *products = b.products + ((size_t)head * b.batch + blockIdx.x) * b.page_stride;
    int32_t *const to = v.blocks + at * v.max_blocks;
    struct select_result best = {0, 0};
    const auto for_each = [&](const auto &visit) {
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) visit(select_key(products[i]));
    };
    if (k > 0) best = select_largest<THREADS>(&plan, {0, 1}, k, for_each);
    const uint32_t n_chosen = write_pages(&plan, to, products, n, k > 0, best);
    if (threadIdx.x) return;
    const uint64_t rows = min(v.n_rows - tile * SPARSE_TILE, (uint32_t)SPARSE_TILE);
    const uint32_t n_own = ((uint32_t)rows + PAGE_TOKENS - 1) / PAGE_TOKENS;
    for (uint32_t i = 0; i < n_own; i++) to[n_chosen + i] = (int32_t)(n + i);
    v.block_count[at] = (int32_t)(n_chosen + n_own);
    if (tile < v.first_dense_tile)
        atomicAdd(&b.visited[head],
                  (unsigned long long)(rows * n_chosen * PAGE_TOKENS + rows * (rows + 1) / 2));
}

cudaError_t launch_sparse_pages(const struct sparse_build *b, struct launch launch) {
    const struct sparse_view &v = b->view;
    const uint32_t n_pages = (v.first_slot + (v.n_tiles - 1) * SPARSE_TILE) / PAGE_TOKENS;
    cudaError_t status = launch_kernel(launch, sparse_mean_queries_kernel,
                                       dim3(v.n_tiles, v.n_heads), MEAN_THREADS, 0, *b);
    if (status == cudaSuccess && n_pages > 0)
        status = launch_kernel(launch, sparse_mean_keys_kernel, dim3(n_pages, b->kv.n_kv_heads),
                               MEAN_THREADS, 0, *b);
    for (uint32_t tile = 0; tile < v.n_tiles && status == cudaSuccess; tile += b->batch) {
        const uint32_t n = v.n_tiles - tile < b->batch ? v.n_tiles - tile : b->batch;
        const uint32_t most = (v.first_slot + (tile + n - 1) * SPARSE_TILE) / PAGE_TOKENS;
        if (most > 0)
            status = launch_kernel(launch, sparse_products_kernel,
                                   dim3((most + SIDE - 1) / SIDE, (n + SIDE - 1) / SIDE, v.n_heads),
                                   THREADS, 0, *b, tile);
        if (status == cudaSuccess)
            status = launch_kernel(launch, sparse_pages_kernel, dim3(n, v.n_heads), THREADS, 0, *b,
                                   tile);
    }
    return status;
}
