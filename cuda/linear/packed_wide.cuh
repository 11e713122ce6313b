/* packed_wide.cuh - y = x W^T for packed weights on Hopper, any number of rows: a template.
 * packed_wide_4_bits.cu and packed_wide_8_bits.cu have its kernels.
 *
 *   tile        ROWS rows of x against 64 outputs for each warpgroup.  wgmma computes y transposed:
 *               W is its matrix A, in registers, and x its matrix B, in shared memory
 *   gated       the first half of the warpgroups has gate's sums, the other half up's for the same
 *               outputs; at the tile's end two of them exchange half of their sums
 *   split       where tiles are too few for the device, the blocks of a cluster have shares of a
 *               tile's columns; each adds up the sums of some rows, which the others put into its
 *               shared memory
 *   order       rows_at_once row tiles against all outputs, tile after tile of these; then the next
 *               row tiles.  So x stays in L2 while all of W passes through
 *
 *      stage       | x: ROWS x 64 or 128 | strips of W: a warp's 16 rows | ... | their scales |
 *
 *   producers   one thread asks for W, which never changes, so it fills the ring before the kernel
 *               before has ended; another asks for x
 *   consumers   a warp takes its words of W from shared memory, makes bf16 of them and multiplies
 *               (packed_widen.cuh), a chunk of 16 to 64 columns at a time.  One chunk is made while
 *               wgmma reads the chunk before
 *   results     meet in shared memory, so that whole lines are written
 *
 * Sums have one order for a number of rows, whatever the timing.
 *
 * Code for the sums must leave the compiler able to run wgmma and what makes the next chunk at the
 * same time (tests/cuda/test_wgmma.sh).
 *
 * Shared: struct packed_plan.  Bound: memory for few rows, power for many.
 * Oracle: unpacked.cu, and sums in double (tests/cuda/test_packed.c). */
#ifndef CUDA_LINEAR_PACKED_WIDE_CUH
#define CUDA_LINEAR_PACKED_WIDE_CUH

#include "cuda/common/sm90.cuh"
#include "cuda/linear/packed_wide_cut.h"
#include "cuda/linear/packed_widen.cuh"
#include "cuda/linear/product.cuh"
#include "cuda/linear/strips.h"

typedef __nv_bfloat16 bf16;

enum {
    GROUP_THREADS = 128, /* of a warpgroup */
    STRIP = STRIP_ROWS,
    GROUP_OUTPUTS = 64, /* rows of W: a warpgroup's */
    GROUP_STRIPS = GROUP_OUTPUTS / STRIP,
    UNIT_COLUMNS = 64,
    VECTOR_BYTES = 512, /* of all lanes of a warp */
    MEMORY_BYTES = 227 << 10,
    N_PRODUCERS = 128
};

/* Shared memory of a block.  ROWS: of x in a tile.  GROUPS: warpgroups of consumers. */
template <class Format_, int ROWS_, int GROUPS_> struct packed_plan {
    typedef Format_ Format;
    static constexpr int ROWS = ROWS_, GROUPS = GROUPS_, N_CONSUMERS = GROUPS * GROUP_THREADS,
                         N_THREADS = N_CONSUMERS + N_PRODUCERS;
    /* The kernel is launched with (consumers + producers) / (GROUPS + 1) for each thread. */
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 ? 40 : 32,
                         CONSUMER_REGISTERS = GROUPS == 2 ? 232 : 112;
    /* Columns of a stage, and 16 columns each of a chunk. */
    static constexpr int COLUMNS = ROWS > 128 ? 64 : PACKED_WIDE_STAGE_COLUMNS,
                         UNITS = COLUMNS / UNIT_COLUMNS,
                         CHUNK = ROWS <= 64    ? COLUMNS / 32
                                 : GROUPS == 4 ? 1
                                               : 2;
    static constexpr int CHUNK_WORDS = CHUNK * Format::VECTORS; /* of a thread and row */
    static constexpr int BOX_BYTES = ROWS * 128, X_BYTES = UNITS * BOX_BYTES,
                         STRIP_BYTES = UNITS * Format::VECTORS * VECTOR_BYTES,
                         BOX_STRIP_BYTES = STRIP_BYTES < 1024 ? STRIP_BYTES : 1024,
                         N_STRIPS = GROUPS * GROUP_STRIPS, W_BYTES = N_STRIPS * STRIP_BYTES,
                         MAX_BLOCKS = (COLUMNS + Format::PER - 1) / Format::PER;
    static constexpr int GROUP_RESULTS = ROWS * GROUP_OUTPUTS * 2,
                         RESULT_BYTES = GROUPS * GROUP_RESULTS;
    /* Of the scales of a stage, and of its minima. */
    static constexpr int SCALE_BYTES = N_STRIPS * MAX_BLOCKS * STRIP * Format::Scale::BYTES,
                         N_SCALES = Format::HAS_MIN ? 2 : 1;
    static constexpr int FIT =
        (MEMORY_BYTES - 512 - RESULT_BYTES) / (X_BYTES + W_BYTES + N_SCALES * SCALE_BYTES);
    static constexpr int N_STAGES = FIT < 8 ? FIT : 8;
    typedef ring_place<N_STAGES> place;
    typedef float accumulator[ROWS / 2];
    struct {
        /* w: boxes of BOX_STRIP_BYTES of each strip, one behind the other */
        unsigned char x[X_BYTES], w[W_BYTES];
    } stages[N_STAGES];
    unsigned char results[RESULT_BYTES];
    unsigned char scales[N_STAGES][N_SCALES][SCALE_BYTES > 0 ? SCALE_BYTES : 16];
    uint64_t full[N_STAGES], empty[N_STAGES];
    static_assert(W_BYTES % 1024 == 0 && SCALE_BYTES % 128 == 0, "copies are aligned");
    static_assert(N_STAGES >= 2, "a stage is copied while another one is multiplied");
};

struct packed_params {
    CUtensorMap x, w[LINEAR_MAX_PARTS], scales[LINEAR_MAX_PARTS], mins[LINEAR_MAX_PARTS];
    struct product p;
    uint32_t n_tiles, n_row_tiles;           /* of outputs, and of rows */
    uint32_t rows_at_once;                   /* row tiles */
    uint32_t n_items, n_splits;              /* n_items: tiles times shares */
    uint32_t block_shift, scale_strip_bytes; /* log2 of a block's columns; of a stage */
};

/* An item is the stages [begin, end) of a tile, from this strip of a part and this row on. */
struct packed_item {
    uint32_t part, strip, row, begin, end;
};

/* Returns item number i, below n_items.  Row tiles of the same weights follow each other, at most
 * rows_at_once of them.  With several shares a tile's shares are neighbours, a block each. */
template <class Plan>
static __device__ __forceinline__ struct packed_item find_item(const struct packed_params &w,
                                                               uint32_t i) {
    const uint32_t n_stages = (w.p.n_in + Plan::COLUMNS - 1) / Plan::COLUMNS,
                   split = i % w.n_splits;
    i /= w.n_splits;
    const uint32_t most = w.rows_at_once * w.n_tiles, first = i / most * w.rows_at_once,
                   n = min(w.rows_at_once, w.n_row_tiles - first), at = i % most;
    uint32_t tile = at / n;
    struct packed_item item = {};
    item.row = (first + at % n) * Plan::ROWS;
    const uint32_t per_tile = w.p.gated ? Plan::N_STRIPS / 2 : Plan::N_STRIPS;
    item.part = 0;
#pragma unroll 1
    for (; item.part + 1 < w.p.n_parts && !w.p.gated; item.part++) {
        const uint32_t n_tiles =
            (w.p.parts[item.part].n_out + Plan::N_STRIPS * STRIP - 1) / (Plan::N_STRIPS * STRIP);
        if (tile < n_tiles) break;
        tile -= n_tiles;
    }
    item.strip = tile * per_tile;
    item.begin = n_stages * split / w.n_splits;
    item.end = n_stages * (split + 1) / w.n_splits;
    return item;
}

/* ---- producers ---- */

/* Starts copying stage k of a tile that begins at this strip of a part, with its scales, to a place
 * in the ring.  Copies all strips of the tile, or if gated half of them, to where strip `first`
 * is. */
template <class Plan>
static __device__ __forceinline__ void load_strips(const struct packed_params &w, Plan *plan,
                                                   uint32_t part, uint32_t strip, uint32_t k,
                                                   uint32_t first, uint32_t stage) {
    constexpr int N_BOXES = Plan::STRIP_BYTES / Plan::BOX_STRIP_BYTES,
                  BOX_WORDS = Plan::BOX_STRIP_BYTES / 4,
                  BLOCK_WORDS = STRIP * Plan::Format::Scale::BYTES / 4;
    const uint64_t policy = pass_through_policy();
    const uint32_t block = k * Plan::COLUMNS >> w.block_shift;
    uint64_t *full = &plan->full[stage];
#pragma unroll
    for (int b = 0; b < N_BOXES; b++) {
        unsigned char *to =
            plan->stages[stage].w + (b * Plan::N_STRIPS + first) * Plan::BOX_STRIP_BYTES;
        if (w.n_row_tiles == 1)
            tensor_load_hinted(to, &w.w[part], (k * N_BOXES + b) * BOX_WORDS, strip, full, policy);
        else tensor_load(to, &w.w[part], (k * N_BOXES + b) * BOX_WORDS, strip, full);
    }
    const uint32_t at = first * w.scale_strip_bytes;
    if (!Plan::Format::IS_WHOLE)
        tensor_load(plan->scales[stage][0] + at, &w.scales[part], block * BLOCK_WORDS, strip, full);
    if (Plan::Format::HAS_MIN)
        tensor_load(plan->scales[stage][1] + at, &w.mins[part], block * BLOCK_WORDS, strip, full);
}

/* Does the part of the thread that copies weights.  It fills every stage of the block's items
 * that the consumers have released, and returns when the last copy has been started. */
template <class Plan>
static __device__ __forceinline__ void load_weights(const struct packed_params &w, Plan *plan) {
    const uint32_t bytes = Plan::W_BYTES + Plan::N_SCALES * Plan::N_STRIPS * w.scale_strip_bytes;
    typename Plan::place at = {0, 1};
    for (uint32_t i = blockIdx.x; i < w.n_items; i += gridDim.x) {
        const struct packed_item item = find_item<Plan>(w, i);
#pragma unroll 1
        for (uint32_t k = item.begin; k < item.end; k++, at.advance()) {
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(&plan->full[at.stage], bytes);
            if (!w.p.gated) {
                load_strips(w, plan, item.part, item.strip, k, 0, at.stage);
                continue;
            }
            load_strips(w, plan, 0, item.strip, k, 0, at.stage);
            load_strips(w, plan, 1, item.strip, k, Plan::N_STRIPS / 2, at.stage);
        }
    }
}

/* Does the part of the thread that copies rows of x, in the order of load_weights().  It waits
 * for the kernel that computes x. */
template <class Plan>
static __device__ __forceinline__ void load_x(const struct packed_params &w, Plan *plan) {
    typename Plan::place at = {0, 1};
    wait_for_previous();
    for (uint32_t i = blockIdx.x; i < w.n_items; i += gridDim.x) {
        const struct packed_item item = find_item<Plan>(w, i);
#pragma unroll 1
        for (uint32_t k = item.begin; k < item.end; k++, at.advance()) {
            uint64_t *full = &plan->full[at.stage];
            barrier_wait(&plan->empty[at.stage], at.parity);
            barrier_arrive_expect(full, Plan::X_BYTES);
#pragma unroll
            for (int u = 0; u < Plan::UNITS; u++) {
                unsigned char *to = plan->stages[at.stage].x + u * Plan::BOX_BYTES;
                const int column = k * Plan::COLUMNS + u * UNIT_COLUMNS;
                tensor_load(to, &w.x, column, item.row, full);
            }
        }
    }
}

/* ---- consumers ---- */

/* Returns the number of the thread's warpgroup in the block. */
static __device__ __forceinline__ uint32_t warpgroup() {
    return __shfl_sync(0xffffffffu, threadIdx.x / GROUP_THREADS, 0);
}

/* Tells the producers that the thread's warpgroup has read a stage.  All its threads call it when
 * each of them has. */
template <class Plan>
static __device__ __forceinline__ void release_stage(Plan *plan, uint32_t stage) {
    if (threadIdx.x % GROUP_THREADS == 0) barrier_arrive(&plan->empty[stage]);
}

/* Loads the lane's words of a chunk of a stage, number `chunk`, of one of its strips. */
template <class Plan>
static __device__ __forceinline__ void load_words(const Plan *plan, uint32_t stage, uint32_t strip,
                                                  int chunk, uint32_t (&words)[Plan::CHUNK_WORDS]) {
    constexpr int N = Plan::CHUNK_WORDS, PER_BOX = Plan::BOX_STRIP_BYTES / VECTOR_BYTES;
    const int first = chunk * N, vector = first / 4;
    const shared_at from = plan->stages[stage].w +
                           vector / PER_BOX * (Plan::N_STRIPS * Plan::BOX_STRIP_BYTES) +
                           strip * Plan::BOX_STRIP_BYTES + vector % PER_BOX * VECTOR_BYTES +
                           threadIdx.x % 32 * 16 + first % 4 * 4;
    if constexpr (N == 1) words[0] = load_shared(from);
    else if constexpr (N == 2) load_shared_two(words, from);
    else load_shared_four(words, from);
    if constexpr (N == 8) load_shared_four(words + 4, shared_at(from.address + VECTOR_BYTES));
}

/* Loads the scales of the lane's two rows of a strip, in block of columns number `block` of a
 * stage.  Loads minima, too, if the format has them. */
template <class Plan, class Factor>
static __device__ __forceinline__ void load_factors(const struct packed_params &w, const Plan *plan,
                                                    uint32_t stage, uint32_t strip, uint32_t block,
                                                    Factor (&factors)[2]) {
    typedef typename Plan::Format::Scale Scale;
    const uint32_t at = strip * w.scale_strip_bytes + block * STRIP * Scale::BYTES;
    float scale[2], min[2] = {};
    Scale::load(plan->scales[stage][0] + at, scale);
    if (Plan::Format::HAS_MIN) Scale::load(plan->scales[stage][1] + at, min);
#pragma unroll
    for (int r = 0; r < 2; r++) factors[r].set(scale[r], r, min[r]);
}

/* Multiplies the item's stages as they arrive, from *at on in the ring, and releases each.  Sets
 * the warp's sums of its strip, number `strip` of a stage, before scales of whole rows.
 *
 *   sums[4 j + 2 h + e]   row 8 j + lane % 4 * 2 + e of x, row lane / 4 + 8 h of the strip */
template <class Plan>
static __device__ __forceinline__ void multiply(const struct packed_params &w,
                                                const struct packed_item &item, uint32_t strip,
                                                Plan *plan, typename Plan::place *at,
                                                typename Plan::accumulator &sums) {
    typedef typename Plan::Format Format;
    constexpr int CHUNK = Plan::CHUNK, N_CHUNKS = Plan::UNITS * 4 / CHUNK;
    uint32_t a[2][CHUNK][4], last = 0;
    typename Format::factor factors[2];
    if (Format::IS_WHOLE) load_factors(w, plan, 0, strip, 0, factors);
#pragma unroll 1
    for (uint32_t k = item.begin; k < item.end; k++, at->advance()) {
        const uint64_t x = wgmma_matrix(plan->stages[at->stage].x, 0);
        barrier_wait(&plan->full[at->stage], at->parity);
#pragma unroll
        for (int chunk = 0; chunk < N_CHUNKS; chunk++) {
            uint32_t words[Plan::CHUNK_WORDS];
            load_words(plan, at->stage, strip, chunk, words);
            wgmma_wait<1>();
            if (chunk == 1 && k > item.begin) release_stage(plan, last);
#pragma unroll
            for (int s = 0; s < CHUNK; s++) {
                const int slab = chunk * CHUNK + s;
                if (!Format::IS_WHOLE && slab * 16 % Format::PER == 0)
                    load_factors(w, plan, at->stage, strip, slab * 16 / Format::PER, factors);
                make_fragment<Format>(words + s * Format::VECTORS, factors, a[chunk % 2][s]);
            }
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < CHUNK; s++) {
                const int slab = chunk * CHUNK + s;
                wgmma_register_a_k_major(
                    sums, a[chunk % 2][s],
                    wgmma_advance(x, slab / 4 * Plan::BOX_BYTES + slab % 4 * 32),
                    k > item.begin || slab > 0);
            }
            wgmma_commit();
        }
        last = at->stage;
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    release_stage(plan, last);
}

/* ---- shares of sums ---- */

/* The groups of 8 rows of x, [begin, end), whose results the block writes. */
struct packed_rows {
    int begin, end;
    __device__ __forceinline__ bool has(int j) const { return j >= begin && j < end; }
};

/* Writes x to the shared memory of another block of the cluster.  `at` is the same place in this
 * block's memory, and `block` a rank in the cluster.  Only a barrier of the cluster says that x
 * is there. */
static __device__ __forceinline__ void store_remote(uint32_t at, uint32_t block, float4 x) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}" ::"r"(at),
                 "r"(block), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}

/* Puts sums into the shared memory of the blocks that write them, where the ring has been.  Then
 * adds what the other blocks have put there to this block's sums, in the order of the blocks. */
template <class Plan>
static __device__ __forceinline__ void add_shares(const struct packed_params &w, Plan *plan,
                                                  const struct packed_rows &mine,
                                                  typename Plan::accumulator &sums) {
    constexpr int N = Plan::ROWS / 8, STEP = Plan::N_CONSUMERS * 16;
    const int n_splits = (int)w.n_splits, rank = (int)(blockIdx.x % w.n_splits);
    const uint32_t room = shared_at(plan->stages).address + threadIdx.x * 16;
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int owner = ((j + 1) * n_splits - 1) / N, begin = N * owner / n_splits,
                  n = N * (owner + 1) / n_splits - begin;
        if (owner == rank) continue;
        store_remote(room + ((rank - (rank > owner)) * n + j - begin) * STEP, owner,
                     make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll 1
    for (int other = 0; other < n_splits - 1; other++) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (!mine.has(j)) continue;
            uint32_t four[4];
            load_shared(
                four, shared_at(room + (other * (mine.end - mine.begin) + j - mine.begin) * STEP));
#pragma unroll
            for (int i = 0; i < 4; i++) sums[4 * j + i] += __uint_as_float(four[i]);
        }
    }
}

/* ---- results ---- */

/* The outputs of a warpgroup, and where they are in shared memory before they are written: rows of
 * 64 outputs, 128 bytes.  If gated, two warpgroups have the same outputs: one has gate's sums, the
 * other one up's.  Each of them writes every second group of 8 rows. */
struct packed_results {
    const struct product_part *part; /* of the warpgroup's weights */
    uint32_t at, group, first_row, first_out;
};

/* Returns the outputs of the thread's warpgroup in this item. */
template <class Plan>
static __device__ __forceinline__ struct packed_results find_results(const struct packed_params &w,
                                                                     const struct packed_item &item,
                                                                     Plan *plan) {
    const uint32_t group = warpgroup();
    return {&w.p.parts[w.p.gated ? group / (Plan::GROUPS / 2) : item.part],
            shared_at(plan->results + group * Plan::GROUP_RESULTS).address, group, item.row,
            item.strip * STRIP + (w.p.gated ? group % (Plan::GROUPS / 2) : group) * GROUP_OUTPUTS};
}

/* Waits until all threads of the warpgroup are here. */
static __device__ __forceinline__ void sync_group(const struct packed_results &r) {
    named_sync(1 + (int)r.group, GROUP_THREADS);
}

/* Returns where bf16 outputs 8c to 8c + 7 of the warpgroup are in shared memory, of its row `row`
 * there. */
static __device__ __forceinline__ shared_at result_at(const struct packed_results &r, uint32_t row,
                                                      uint32_t c) {
    return shared_at(r.at + row * 128 + ((c ^ row % 8) * 16));
}

/* Returns a lane's address for four matrices of 8 rows and 8 outputs.  They are of 16 rows, from
 * 8 * octet on, and of the warp's 16 outputs. */
static __device__ __forceinline__ shared_at matrix_at(const struct packed_results &r, int octet) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % GROUP_THREADS / 32, m = lane / 8;
    return result_at(r, 8 * (octet + m / 2) + lane % 8, 2 * warp + m % 2);
}

/* Returns the number in the part of the thread's first or second output.  It is that of row
 * lane / 4, or 8 rows further, of the warp's strip. */
static __device__ __forceinline__ uint32_t output_of(const struct packed_results &r, int second) {
    return r.first_out + threadIdx.x % GROUP_THREADS / 32 * STRIP + threadIdx.x % 32 / 4 +
           8 * second;
}

/* Starts reading y, bf16, to where results are in shared memory: what they will be added to, of the
 * rows `mine`.  Returns before it is there: add_old() waits. */
template <class Plan>
static __device__ __forceinline__ void read_old(const struct packed_params &w,
                                                const struct packed_results &r,
                                                const struct packed_rows &mine) {
#pragma unroll 1
    for (int i = mine.begin * 64 + threadIdx.x % GROUP_THREADS; i < mine.end * 64;
         i += GROUP_THREADS) {
        const uint32_t row = r.first_row + i / 8, out = r.first_out + i % 8 * 8;
        const bool valid = row < w.p.n_rows && out < r.part->n_out;
        const bf16 *y = static_cast<const bf16 *>(r.part->y);
        if (valid) y += row * r.part->y_stride + out;
        copy_async(result_at(r, i / 8, i % 8), y, valid);
    }
    copy_async_commit();
}

/* Adds what read_old() has read to the sums of the rows `mine`.  It waits for those reads.  All
 * threads of the warpgroup call it. */
template <class Plan>
static __device__ __forceinline__ void add_old(const struct packed_results &r,
                                               const struct packed_rows &mine,
                                               typename Plan::accumulator &sums) {
    copy_async_wait_all();
    sync_group(r);
#pragma unroll
    for (int j = 0; j < Plan::ROWS / 8; j += 2) {
        if (!mine.has(j) && !mine.has(j + 1)) continue;
        uint32_t old[4];
        load_matrix_trans(old, matrix_at(r, j));
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const float2 x = unpack_bf16(old[m]);
            sums[4 * j + 2 * m] += x.x;
            sums[4 * j + 2 * m + 1] += x.y;
        }
    }
}

/* Returns the one scale that the part's row of W has, or that all its rows have.  The format has
 * no blocks of columns, and scales of f32, f16 or bf16. */
static __device__ __forceinline__ float load_row_scale(const struct product &p,
                                                       const struct product_part *part,
                                                       uint32_t row) {
    const enum element type = p.w_format.scale == SCALE_F32   ? ELEMENT_F32
                              : p.w_format.scale == SCALE_F16 ? ELEMENT_F16
                                                              : ELEMENT_BF16;
    return load_element(part->scales, p.w_format.block_rows ? row : 0, type);
}

/* Corrects the sums' power of two, multiplies them by their rows' scales, and adds biases. */
template <class Plan>
static __device__ __forceinline__ void apply_rows(const struct packed_params &w,
                                                  const struct packed_results &r,
                                                  typename Plan::accumulator &sums) {
    for (int h = 0; h < 2; h++) {
        const uint32_t out = min(output_of(r, h), r.part->n_out - 1);
        float scale = (float)(1 << POWER), bias = 0.0f;
        if (Plan::Format::IS_WHOLE) scale *= load_row_scale(w.p, r.part, out);
        if (r.part->bias) bias = load_element(r.part->bias, out, r.part->bias_dtype);
#pragma unroll
        for (int i = 2 * h; i < Plan::ROWS / 2; i += 4) {
            sums[i] = __fmaf_rn(sums[i], scale, bias);
            sums[i + 1] = __fmaf_rn(sums[i + 1], scale, bias);
        }
    }
}

/* Puts the warp's 16 outputs of two groups of 8 rows, from row 8 * octet on, into shared memory, as
 * bf16.  first, second: the thread's four sums of each group. */
static __device__ __forceinline__ void share_four(const struct packed_results &r, int octet,
                                                  const float *first, const float *second) {
    const uint32_t words[4] = {pack_bf16(first[0], first[1]), pack_bf16(first[2], first[3]),
                               pack_bf16(second[0], second[1]), pack_bf16(second[2], second[3])};
    store_matrix_trans(matrix_at(r, octet), words);
}

/* Puts the warpgroup's sums, as bf16, where write_results() reads them; not if gated.  All
 * threads of the warpgroup call it.  It does not wait: write_results() does. */
template <class Plan>
static __device__ __forceinline__ void share_results(const struct packed_results &r,
                                                     const struct packed_rows &mine,
                                                     const typename Plan::accumulator &sums) {
#pragma unroll
    for (int j = 0; j < Plan::ROWS / 8; j += 2)
        if (mine.has(j) || mine.has(j + 1)) share_four(r, j, sums + 4 * j, sums + 4 * j + 4);
}

/* Exchanges sums with the other warpgroup of a pair, multiplies gate's by up's, and shares the
 * results that this warpgroup writes, as share_results() does.  Of each two groups of 8 rows gate's
 * warpgroup writes the first one, and up's the second one. */
template <class Plan>
static __device__ __forceinline__ void share_gated(const struct packed_params &w, Plan *plan,
                                                   const struct packed_results &r,
                                                   typename Plan::accumulator &sums) {
    constexpr int N = Plan::ROWS / 16, STEP = GROUP_THREADS * 16;
    constexpr uint32_t PAIRS = Plan::GROUPS / 2;
    const bool is_up = r.group >= PAIRS;
    const int barrier = 1 + Plan::GROUPS + (int)(r.group % PAIRS);
    const uint32_t thread = threadIdx.x % GROUP_THREADS * 16, own = r.at + thread,
                   other = shared_at(plan->results +
                                     (r.group + PAIRS) % Plan::GROUPS * Plan::GROUP_RESULTS)
                               .address +
                           thread;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float *first = sums + 8 * j, *second = first + 4;
        store_shared_four(shared_at(own + j * STEP), is_up ? first[0] : second[0],
                          is_up ? first[1] : second[1], is_up ? first[2] : second[2],
                          is_up ? first[3] : second[3]);
    }
    named_sync(barrier, 2 * GROUP_THREADS);
#pragma unroll
    for (int j = 0; j < N; j++) {
        uint32_t got[4];
        load_shared(got, shared_at(other + j * STEP));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float mine = is_up ? sums[8 * j + 4 + i] : sums[8 * j + i],
                        theirs = __uint_as_float(got[i]);
            sums[4 * j + i] =
                gate_mul_short(is_up ? theirs : mine, is_up ? mine : theirs, w.p.kind);
        }
    }
    named_sync(barrier, 2 * GROUP_THREADS);
#pragma unroll
    for (int j = 0; j < N; j += 2) share_four(r, j, sums + 4 * j, sums + 4 * j + 4);
}

/* Writes the bf16 results that the warpgroup has put into shared memory to y, of the rows `mine`.
 * All its threads call it.  It waits for them before it reads, and before it returns. */
template <class Plan>
static __device__ __forceinline__ void write_results(const struct packed_params &w,
                                                     const struct packed_results &r,
                                                     const struct packed_rows &mine) {
    const int n = Plan::ROWS * 8 / (w.p.gated ? 2 : 1),
              is_up = w.p.gated && r.group >= Plan::GROUPS / 2;
    sync_group(r);
#pragma unroll 4
    for (int i = threadIdx.x % GROUP_THREADS; i < n; i += GROUP_THREADS) {
        const int octet = w.p.gated ? 2 * (i / 64) + is_up : i / 64;
        const uint32_t row = r.first_row + octet * 8 + i / 8 % 8, out = r.first_out + i % 8 * 8;
        if (!mine.has(octet) || row >= w.p.n_rows || out >= r.part->n_out) continue;
        const struct product_part *part = w.p.gated ? &w.p.parts[0] : r.part;
        uint32_t four[4];
        load_shared(four, result_at(r, i / 8, i % 8));
        bf16 *y = static_cast<bf16 *>(part->y) + row * part->y_stride + out;
        *reinterpret_cast<uint4 *>(y) = make_uint4(four[0], four[1], four[2], four[3]);
    }
    sync_group(r);
}

/* Writes the thread's sums of the rows `mine` to y in f32, or adds them to it if accumulate. */
template <class Plan>
static __device__ __forceinline__ void write_f32(const struct packed_params &w,
                                                 const struct packed_results &r,
                                                 const struct packed_rows &mine,
                                                 const typename Plan::accumulator &sums) {
#pragma unroll
    for (int j = 0; j < Plan::ROWS / 8; j++) {
        if (!mine.has(j)) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = r.first_row + 8 * j + threadIdx.x % 4 * 2 + i % 2,
                           out = output_of(r, i / 2);
            if (row >= w.p.n_rows || out >= r.part->n_out) continue;
            float *y = static_cast<float *>(r.part->y) + row * r.part->y_stride + out;
            *y = w.p.accumulate ? *y + sums[4 * j + i] : sums[4 * j + i];
        }
    }
}

/* Makes results of an item's sums and writes them.  It changes sums.  With several shares all
 * blocks of the cluster must call it. */
template <class Plan>
static __device__ __forceinline__ void finish(const struct packed_params &w, Plan *plan,
                                              const struct packed_item &item,
                                              const struct packed_rows &mine,
                                              typename Plan::accumulator &sums) {
    const struct packed_results r = find_results(w, item, plan);
    if (w.n_splits > 1) add_shares<Plan>(w, plan, mine, sums);
    apply_rows<Plan>(w, r, sums);
    if (w.p.y_f32) {
        write_f32<Plan>(w, r, mine, sums);
        return;
    }
    if (w.p.accumulate) add_old<Plan>(r, mine, sums);
    if (w.p.gated) share_gated(w, plan, r, sums);
    else share_results<Plan>(r, mine, sums);
    write_results<Plan>(w, r, mine);
}

/* Returns the groups of 8 rows of a tile that the block writes.  These are all, or its part of them
 * where the blocks of a cluster have shares. */
template <class Plan>
static __device__ __forceinline__ struct packed_rows find_rows(const struct packed_params &w) {
    const int n = Plan::ROWS / 8, rank = (int)(blockIdx.x % w.n_splits), of = (int)w.n_splits;
    return {n * rank / of, n * (rank + 1) / of};
}

/* Does the consumers' part of the kernel; each of their threads calls it once.  It multiplies
 * what the producers copy and writes the results of each of the block's items.  With several
 * shares a block has one item only, because shares are exchanged where the ring has been. */
template <class Plan>
static __device__ __forceinline__ void consume(const struct packed_params &w, Plan *plan) {
    typename Plan::place at = {0, 0};
    wait_for_previous();
    for (uint32_t i = blockIdx.x; i < w.n_items; i += gridDim.x) {
        const struct packed_item item = find_item<Plan>(w, i);
        typename Plan::accumulator sums;
        if (w.p.accumulate && !w.p.y_f32)
            read_old<Plan>(w, find_results(w, item, plan), find_rows<Plan>(w));
        multiply<Plan>(w, item, threadIdx.x / 32, plan, &at, sums);
        finish<Plan>(w, plan, find_item<Plan>(w, i), find_rows<Plan>(w), sums);
    }
}

/* The kernel: N_CONSUMERS threads multiply, and one thread of each of the two warps behind them
 * copies.  The blocks take items in turn.  With several shares the grid has a block for each item,
 * in clusters of n_splits: consume() says why. */
template <class Plan>
static __global__ void __launch_bounds__(Plan::N_THREADS, 1)
    packed_kernel(const __grid_constant__ struct packed_params w) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char packed_memory[];
    Plan *plan = reinterpret_cast<Plan *>(packed_memory);
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < Plan::N_STAGES; i++) {
            barrier_init(&plan->full[i], 2);
            barrier_init(&plan->empty[i], Plan::GROUPS);
        }
        barriers_publish();
    }
    __syncthreads();
    if (threadIdx.x < Plan::N_CONSUMERS) {
        registers_raise<Plan::CONSUMER_REGISTERS>();
        consume<Plan>(w, plan);
    } else {
        registers_lower<Plan::PRODUCER_REGISTERS>();
        const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        if (warp == Plan::N_CONSUMERS / 32 && elect_lane()) load_weights<Plan>(w, plan);
        if (warp == Plan::N_CONSUMERS / 32 + 1 && elect_lane()) load_x<Plan>(w, plan);
    }
#endif
}

/* ---- host ---- */

/* Starts the kernel for a product that this plan fits, with n_splits shares of the columns for
 * each tile.  Returns CUDA's error. */
template <class Plan>
static cudaError_t launch_packed(const struct product *p, uint32_t n_splits, struct launch launch) {
    struct packed_params w = {};
    w.p = *p;
    w.n_splits = n_splits;
    const uint32_t per_tile =
                       p->gated ? Plan::GROUPS * GROUP_OUTPUTS / 2 : Plan::GROUPS * GROUP_OUTPUTS,
                   n_parts = p->gated ? 1 : p->n_parts;
    for (uint32_t i = 0; i < n_parts; i++)
        w.n_tiles += (p->parts[i].n_out + per_tile - 1) / per_tile;
    w.n_row_tiles = (p->n_rows + Plan::ROWS - 1) / Plan::ROWS;
    w.rows_at_once = 2048 / Plan::ROWS;
    w.n_items = w.n_row_tiles * w.n_tiles * n_splits;
    const uint32_t block_cols = p->w_format.block_cols ? p->w_format.block_cols : p->n_in,
                   n_blocks_k = (p->n_in + block_cols - 1) / block_cols,
                   n_stage_blocks =
                       block_cols < (uint32_t)Plan::COLUMNS ? Plan::COLUMNS / block_cols : 1;
    while (1u << w.block_shift < block_cols) w.block_shift++;
    constexpr uint32_t scale_bytes = Plan::Format::Scale::BYTES;
    w.scale_strip_bytes = n_stage_blocks * STRIP * scale_bytes;
    cudaError_t rc =
        tensor_map_matrix(&w.x, p->x, p->n_rows, p->n_in, (uint64_t)p->n_in * 2, Plan::ROWS);
    const uint32_t box_strips = p->gated ? Plan::N_STRIPS / 2 : Plan::N_STRIPS;
    for (uint32_t i = 0; i < p->n_parts && !rc; i++) {
        const uint32_t n_strips = (p->parts[i].n_out + STRIP - 1) / STRIP,
                       box_bytes = n_stage_blocks * STRIP * scale_bytes;
        const uint64_t row_bytes = (uint64_t)n_blocks_k * STRIP * scale_bytes;
        rc = tensor_map_bytes(
            &w.w[i], p->parts[i].w, n_strips,
            (uint64_t)p->n_in / UNIT_COLUMNS * Plan::Format::VECTORS * VECTOR_BYTES, box_strips,
            Plan::BOX_STRIP_BYTES);
        if (!rc && !Plan::Format::IS_WHOLE)
            rc = tensor_map_bytes(&w.scales[i], p->parts[i].scales, n_strips, row_bytes, box_strips,
                                  box_bytes);
        if (!rc && Plan::Format::HAS_MIN)
            rc = tensor_map_bytes(&w.mins[i], p->parts[i].mins, n_strips, row_bytes, box_strips,
                                  box_bytes);
    }
    if (rc) return rc;
    const uint32_t most = launch.n_multiprocessors, n_waves = (w.n_items + most - 1) / most,
                   n_blocks = n_splits > 1 ? w.n_items : (w.n_items + n_waves - 1) / n_waves;
    return launch_clusters(launch, packed_kernel<Plan>, n_splits, n_blocks, Plan::N_THREADS,
                           sizeof(Plan), w);
}

/* ---- the kernels of a format ---- */

struct packed_wide_kernels {
    cudaError_t (*launch[N_PACKED_WIDE_TILES])(const struct product *p, uint32_t n_splits,
                                               struct launch launch);
    bool (*open)(struct packed_wide_device *device);
};

/* Gives a kernel its shared memory, and lowers the numbers of clusters to those that run at the
 * same time.  False: the device cannot run it. */
template <class Plan> static bool open_packed(struct packed_wide_device *device) {
    if (!runs_sm90_code(packed_kernel<Plan>) ||
        cudaFuncSetAttribute(packed_kernel<Plan>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(Plan)) != cudaSuccess)
        return false;
    for (uint32_t n_splits = 1; n_splits <= PACKED_WIDE_MAX_SPLITS && device; n_splits++) {
        int n = 0;
        if (count_clusters(packed_kernel<Plan>, n_splits, Plan::N_THREADS, sizeof(Plan), &n) !=
            cudaSuccess)
            n = 0;
        device->n_clusters[n_splits] = min((uint32_t)n, device->n_clusters[n_splits]);
    }
    return true;
}

/* Returns the launches of these plans, and a function that opens all of them. */
template <class... Plans> static constexpr struct packed_wide_kernels list_kernels() {
    return {{launch_packed<Plans>...},
            [](struct packed_wide_device *device) { return (open_packed<Plans>(device) && ...); }};
}

/* Returns the kernels of a packed_format, in the order of packed_wide_tiles. */
template <class Format> static constexpr struct packed_wide_kernels kernels_of() {
    return list_kernels<
        packed_plan<Format, 16, 4>, packed_plan<Format, 16, 2>, packed_plan<Format, 32, 4>,
        packed_plan<Format, 32, 2>, packed_plan<Format, 64, 4>, packed_plan<Format, 64, 2>,
        packed_plan<Format, 128, 4>, packed_plan<Format, 128, 2>, packed_plan<Format, 256, 2>>();
}

#endif
