/* packed_stream.cu - y = x W^T for up to 8 rows of bf16 and packed W on Hopper.
 *
 *   producer    one thread asks the copy engine for the block's strips of W, a ring of stages ahead
 *   consumers   PACKED_TEAMS teams of PACKED_WARPS warps multiply units of them with x on tensor
 *               cores.  Teams take turns at the shares of strips
 *   storers     warps that add up what the warps of a team have, and store the results
 *
 *   strip       16 rows of W (strips.h).  A stage is a part of a share of one, and one copy
 *   tile        a strip, or one of gate and then one of up
 *   x           in shared memory, normalised, and times CODES_X
 *   scales      of a strip: a copy that is asked for before its first stage, to a slot of its own,
 *               with a barrier of its own: the team of a later share waits for no other stage
 *
 * The next tiles of a block are on their way while it multiplies one.  Blocks of the next kernel
 * fill their rings before they wait for this one, because weights never change.
 *
 * If x is too large for the shared memory of a block, the blocks of a cluster take shares of the
 * columns.  Each adds up its own for some tiles.  Then it fetches the sums of its part of these
 * tiles from the shared memory of the others, and stores the results.
 *
 * The sum of a row of x and a row of W has one order, whatever the number of rows is.  Shares are
 * added one after the other, and in each the warps.  The sum of squares has one order, too.
 *
 * Shared: packed_cut.h.
 * Bound:  memory, the bytes of W.        Oracle: weight_to_float(). */
#include "cuda/host/internal.h"
#include "cuda/linear/packed_consumer.cuh"
#include "cuda/linear/packed_storer.cuh"

/* ---- producer ---- */

/* Starts copying scales, and minimums, of the block's part of a strip: from the multiple of 16
 * bytes before them to that behind them. */
static __device__ __forceinline__ void load_scales(const struct packed_block &b,
                                                   const struct product_part *part, uint32_t strip,
                                                   uint32_t slot, uint64_t policy) {
    const struct weight_format &f = b.p.w_format;
    const size_t from = scales_from(b, strip), begin = from / 16 * 16;
    const uint32_t rows = f.block_rows == 1 ? PACKED_ROWS : 1,
                   n = (uint32_t)(from - begin + b.n_groups * rows * bytes_of_scale(f.scale) + 15) /
                       16 * 16;
    uint64_t *full = &b.barriers()->scales_full[slot];
    char *to = b.slot(slot);
    barrier_arrive_expect(full, f.has_min ? 2 * n : n);
    bulk_load(to, static_cast<const char *>(part->scales) + begin, n, full, policy);
    if (f.has_min)
        bulk_load(to + b.cut.mins_at, static_cast<const char *>(part->mins) + begin, n, full,
                  policy);
}

struct packed_producer {
    const struct packed_block &b;
    const struct packed_work &work;
    ring at, arriving;
    uint32_t in_flight, n_asked, slot;
    uint64_t policy;

    /* Waits for a free stage, and says that it gets `bytes` of W.  Asks for the strip's scales
     * before them if there are any. */
    __device__ __forceinline__ void ask(uint32_t bytes, const struct product_part *scaled,
                                        uint32_t strip) {
        struct packed_barriers *barriers = b.barriers();
        if (n_asked++ >= in_flight) {
            barrier_wait(&barriers->full[arriving.stage], arriving.parity);
            arriving.advance();
        }
        barrier_wait(&barriers->empty[at.stage], at.parity);
        if (scaled) load_scales(b, scaled, strip, slot, policy);
        barrier_arrive_expect(&barriers->full[at.stage], bytes);
    }

    __device__ __forceinline__ void load_strip(const struct product_part *part, uint32_t strip,
                                               bool has_groups) {
        const char *from = static_cast<const char *>(part->w) +
                           ((size_t)strip * b.cut.n_slabs + 2 * b.first_unit) * HALF_UNIT_BYTES;
        uint32_t slabs_left = min(2 * b.n_units, b.cut.n_slabs - 2 * b.first_unit);
        const struct product_part *scaled = has_groups ? part : nullptr;
#pragma unroll 1
        for (uint32_t share = 0; share < b.cut.block_shares; share++)
#pragma unroll 1
            for (uint32_t left = b.units_of(share); left > 0;) {
                const uint32_t units = min((uint32_t)PACKED_STAGE_UNITS, left),
                               slabs = min(2 * units, slabs_left), bytes = slabs * HALF_UNIT_BYTES;
                ask(bytes, scaled, strip);
                bulk_load(b.stage(at.stage), from, bytes, &b.barriers()->full[at.stage], policy);
                at.advance();
                scaled = nullptr;
                from += bytes;
                slabs_left -= slabs;
                left -= units;
            }
        if (++slot == b.cut.n_slots) slot = 0;
    }
};

static __device__ __forceinline__ void load_norm(const struct packed_block &b, uint64_t policy) {
    const uint32_t unit = b.columns_of_unit() * sizeof(bf16), from = b.first_unit * unit,
                   bytes = min(b.n_units * unit, b.p.n_in * (uint32_t)sizeof(bf16) - from);
    uint64_t *full = &b.barriers()->norm_full;
    barrier_arrive_expect(full, bytes);
    bulk_load(b.memory + b.cut.norm_at, static_cast<const char *>(b.p.norm_weight) + from, bytes,
              full, policy);
}

static __device__ __forceinline__ void produce(const struct packed_block &b,
                                               const struct packed_work &work, uint32_t cluster,
                                               bool has_groups) {
    const struct product &p = b.p;
    struct packed_producer producer = {b,
                                       work,
                                       {b.cut.n_stages, 0, 1},
                                       {b.cut.n_stages, 0, 0},
                                       min((uint32_t)IN_FLIGHT, b.cut.n_stages),
                                       0,
                                       0,
                                       pass_through_policy()};
    if (p.norm_weight) load_norm(b, producer.policy);
#pragma unroll 1
    for (uint32_t tile = cluster; tile < work.n_tiles; tile += work.n_clusters) {
        uint32_t strip = tile;
        const struct product_part *part = find_strip(p, &strip);
#pragma unroll 1
        for (uint32_t i = 0; i <= p.gated; i++) producer.load_strip(part + i, strip, has_groups);
    }
}

/* ---- x ---- */

/* Copies the block's columns of x to shared memory, times the norm's weights, and adds up squares.
 * A warp takes pieces of a row and share: each PACKED_WARPS-th 32 vectors, whatever the number of
 * rows is. */
static __device__ __forceinline__ void fetch_x(const struct packed_block &b, uint32_t warp,
                                               uint32_t lane) {
    enum { DEPTH = PACKED_SHARE / 8 / 32 / PACKED_WARPS, BATCH = 4 };
    const struct product &p = b.p;
    const uint32_t unit = b.columns_of_unit() / 8, share = b.cut.share_units * unit,
                   n_vectors = p.n_in / 8, first = b.first_unit * unit,
                   n_pieces = p.n_rows * b.cut.block_shares * PACKED_WARPS,
                   power = pack_bf16(CODES_X, CODES_X);
    const uint4 *norm = b.at<const uint4>(b.cut.norm_at);
    for (uint32_t begin = warp; begin < n_pieces; begin += BATCH * N_WORKERS) {
        uint4 x[BATCH][DEPTH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
#pragma unroll
            for (int j = 0; j < DEPTH; j++) {
                const uint32_t piece = begin + k * N_WORKERS, part = piece / PACKED_WARPS,
                               row = part / b.cut.block_shares, s = part % b.cut.block_shares,
                               at = (piece % PACKED_WARPS + j * PACKED_WARPS) * 32 + lane,
                               vector = first + s * share + at;
                x[k][j] = make_uint4(0, 0, 0, 0);
                if (piece < n_pieces && at < share && vector < n_vectors)
                    asm volatile(
                        "ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                        : "=r"(x[k][j].x), "=r"(x[k][j].y), "=r"(x[k][j].z), "=r"(x[k][j].w)
                        : "l"(static_cast<const uint4 *>(p.x) + (size_t)row * n_vectors + vector));
            }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const uint32_t piece = begin + k * N_WORKERS, part = piece / PACKED_WARPS,
                           row = part / b.cut.block_shares, s = part % b.cut.block_shares;
            if (piece >= n_pieces) break;
            uint4 *to = b.at<uint4>(b.cut.x_at + row * b.cut.x_pitch) + s * share;
            float squares = 0.0f;
#pragma unroll
            for (int j = 0; j < DEPTH; j++) {
                const uint32_t at = (piece % PACKED_WARPS + j * PACKED_WARPS) * 32 + lane;
                uint4 v = x[k][j];
                if (at >= share) break;
                if (p.norm_weight && first + s * share + at < n_vectors) {
                    squares += sum_squares(v);
                    const uint4 w = norm[s * share + at];
                    v = make_uint4(multiply_pair(v.x, w.x), multiply_pair(v.y, w.y),
                                   multiply_pair(v.z, w.z), multiply_pair(v.w, w.w));
                }
                to[at] = make_uint4(multiply_pair(v.x, power), multiply_pair(v.y, power),
                                    multiply_pair(v.z, power), multiply_pair(v.w, power));
            }
            if (!p.norm_weight) continue;
            squares = warp_sum(squares);
            if (lane == 0)
                b.at<float>(b.cut.squares_at)[(row * b.cut.block_shares + s) * PACKED_WARPS +
                                              piece % PACKED_WARPS] = squares;
        }
    }
}

/* ---- the kernel ---- */

template <class S>
static __global__ void __launch_bounds__(THREADS, 1)
    packed_kernel(const __grid_constant__ struct product p,
                  const __grid_constant__ struct packed_cut cut,
                  const __grid_constant__ struct packed_work work) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char memory[];
    const struct packed_block b(p, cut, memory);
    const uint32_t cluster = blockIdx.x / cut.split;
    struct packed_barriers *barriers = b.barriers();
    let_next_start();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < cut.n_stages; i++) {
            barrier_init(&barriers->full[i], 1);
            barrier_init(&barriers->empty[i], PACKED_WARPS);
        }
        for (uint32_t i = 0; i < cut.n_slots; i++) barrier_init(&barriers->scales_full[i], 1);
        barrier_init(&barriers->norm_full, 1);
        for (int i = 0; i < PACKED_TEAMS * PACKED_PLANS; i++) {
            barrier_init(&barriers->plan_full[0][i], PACKED_WARPS);
            barrier_init(&barriers->plan_empty[0][i], N_STORERS);
        }
        barrier_init(&barriers->ready, cut.split);
        barrier_init(&barriers->done, cut.split);
        barriers_publish();
    }
    __syncthreads();
    if (cut.split > 1) {
        cluster_arrive_relaxed();
        cluster_wait();
    }
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) produce(b, work, cluster, S::GROUPS > 0);
        return;
    }
    if (p.norm_weight) barrier_wait(&barriers->norm_full, 0);
    wait_for_previous();
    fetch_x(b, threadIdx.x / 32 - 1, threadIdx.x % 32);
    named_sync(BARRIER_X, N_WORKERS * 32);
    if (threadIdx.x < 32 * (1 + N_STORERS)) store(b, work, cluster);
    else consume<S>(b, work, cluster);
#endif
}

/* ---- the list of kernels ---- */

typedef void packed_function(struct product, struct packed_cut, struct packed_work);

struct packed_entry {
    enum element element;
    uint32_t groups; /* of a unit */
    packed_function *kernel;
};

static const struct packed_entry entries[] = {
    {ELEMENT_I4, 0, packed_kernel<packed_shape<codes_i4, 0>>},
    {ELEMENT_I4, 1, packed_kernel<packed_shape<codes_i4, 1>>},
    {ELEMENT_I4, 2, packed_kernel<packed_shape<codes_i4, 2>>},
    {ELEMENT_I4, 4, packed_kernel<packed_shape<codes_i4, 4>>},
    {ELEMENT_I4, 8, packed_kernel<packed_shape<codes_i4, 8>>},
    {ELEMENT_I8, 0, packed_kernel<packed_shape<codes_i8, 0>>},
    {ELEMENT_I8, 1, packed_kernel<packed_shape<codes_i8, 1>>},
    {ELEMENT_I8, 2, packed_kernel<packed_shape<codes_i8, 2>>},
    {ELEMENT_I8, 4, packed_kernel<packed_shape<codes_i8, 4>>},
    {ELEMENT_E4M3, 0, packed_kernel<packed_shape<codes_e4m3, 0>>},
    {ELEMENT_E4M3, 1, packed_kernel<packed_shape<codes_e4m3, 1>>},
    {ELEMENT_E2M1, 4, packed_kernel<packed_shape<codes_e2m1, 4>>},
};

extern "C" product_open open_packed_stream;
int open_packed_stream(struct cuda_backend *cuda, struct error *) {
    cuda->products.packed_streams = true;
    for (const struct packed_entry &e : entries)
        cuda->products.packed_streams &=
            runs_sm90_code(e.kernel) &&
            cudaFuncSetAttribute(e.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 PACKED_MAX_BYTES) == cudaSuccess;
    return 0;
}

static packed_function *find_kernel(enum element element, uint32_t groups) {
    for (const struct packed_entry &e : entries)
        if (e.element == element && e.groups == groups) return e.kernel;
    return nullptr;
}

static cudaError_t start_packed(const struct product *p, struct launch launch) {
    struct packed_cut cut;
    const uint32_t n_tiles = count_tiles(p, PACKED_ROWS * (1 + p->gated));
    if (n_tiles == 0 || p->n_rows == 0) return cudaSuccess;
    if (!packed_make_cut(p, PACKED_MAX_BYTES, &cut)) return cudaErrorInvalidValue;
    packed_function *kernel = find_kernel(p->w_format.element, cut.groups_a_unit);
    int n_clusters = (int)launch.n_multiprocessors;
    if (!kernel || n_clusters == 0) return cudaErrorInvalidValue;
    if (cut.split > 1) {
        const cudaError_t status =
            count_clusters(kernel, cut.split, THREADS, cut.total, &n_clusters);
        if (status != cudaSuccess) return status;
    }
    const struct packed_work work = {n_tiles, min(n_tiles, (uint32_t)n_clusters)};
    return launch_clusters(launch, kernel, cut.split, work.n_clusters * cut.split, THREADS,
                           cut.total, *p, cut, work);
}

extern "C" product_launch launch_packed_stream;
int launch_packed_stream(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    return cuda_check(cuda, start_packed(p, launch_of(cuda)),
                      "the product kernel \"packed stream\"", err);
}
