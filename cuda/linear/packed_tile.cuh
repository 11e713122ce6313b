/* packed_tile.cuh - a tile of y = x W^T for packed weights on Hopper: what packed_wide.cuh and
 * cuda/experts/grouped.cuh do alike.
 *
 *   tile        ROWS rows of x against 64 outputs for each warpgroup.  wgmma computes y transposed:
 *               W is its matrix A, in registers, and x its matrix B, in shared memory
 *   gated       the first half of the warpgroups has gate's sums, the other half up's for the same
 *               outputs; at the tile's end two of them exchange half of their sums
 *
 *      stage       | x: ROWS x 64 or 128 | strips of W: a warp's 16 rows | ... | their scales |
 *
 *   consumers   a warp takes its words of W from shared memory, makes bf16 of them and multiplies
 *               (packed_widen.cuh), a chunk of 16 to 64 columns at a time.  One chunk is made while
 *               wgmma reads the chunk before
 *   results     meet in shared memory, so that whole lines are written
 *
 * Code for the sums must leave the compiler able to run wgmma and what makes the next chunk at the
 * same time (tests/cuda/test_wgmma.sh).
 *
 * Thread: device code, and launchers on the engine thread.  Memory: struct packed_plan. */
#ifndef CUDA_LINEAR_PACKED_TILE_CUH
#define CUDA_LINEAR_PACKED_TILE_CUH

#include "cuda/common/sm90.cuh"
#include "cuda/linear/packed_wide_cut.h"
#include "cuda/linear/packed_widen.cuh"
#include "cuda/linear/product.cuh"
#include "cuda/linear/strips.h"

typedef __nv_bfloat16 bf16;

/* Of tiles, only these kernels' have so many rows. */
#define SM90_LIST80                                                                                \
    SM90_LIST64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
SM90_REGISTER_A(160, SM90_LIST80, 80, 81, 82, 83, 84, 85, SM90_D64(d, 0), SM90_D16(d, 64))
SM90_REGISTER_A(192, SM90_LIST96, 96, 97, 98, 99, 100, 101, SM90_D64(d, 0), SM90_D32(d, 64))

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

/* Shared memory of a block.  ROWS: of x in a tile.  GROUPS: warpgroups of consumers.  OTHERS: bytes
 * that the kernel needs besides. */
template <class Format_, int ROWS_, int GROUPS_, int OTHERS = 0> struct packed_plan {
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
        (MEMORY_BYTES - 512 - OTHERS - RESULT_BYTES) / (X_BYTES + W_BYTES + N_SCALES * SCALE_BYTES);
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
    uint32_t n_whole, n_items, n_splits;     /* whole tiles; these and shares of the others */
    uint32_t block_shift, scale_strip_bytes; /* log2 of a block's columns; of a stage */
};

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
    if (Plan::Format::IN_STRIPS)
        tensor_load(plan->scales[stage][0] + at, &w.scales[part], block * BLOCK_WORDS, strip, full);
    if (Plan::Format::HAS_MIN)
        tensor_load(plan->scales[stage][1] + at, &w.mins[part], block * BLOCK_WORDS, strip, full);
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

/* Sets the factors of all rows of W to this. */
template <class Factor>
static __device__ __forceinline__ void set_factors(float scale, Factor (&factors)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) factors[r].set(scale, r, 0.0f);
}

/* Starts the products of a chunk's fragments and of all rows of x. */
struct all_rows {
    template <int CHUNK, int N>
    __device__ __forceinline__ void operator()(float (&sums)[N], const uint32_t (&a)[CHUNK][4],
                                               const uint64_t (&x)[CHUNK], bool add) const {
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < CHUNK; s++) wgmma_register_a_k_major(sums, a[s], x[s], add || s > 0);
        wgmma_commit();
    }
};

/* Multiplies the stages [begin, end) of a tile as they arrive, from *at on in the ring.  Releases
 * each.  Sets the warp's sums of its strip, number `strip` of a stage, before scales of whole rows.
 * blocks: find_blocks().  product: starts wgmma, as all_rows does.
 *
 *   sums[4 j + 2 h + e]   row 8 j + lane % 4 * 2 + e of x, row lane / 4 + 8 h of the strip */
template <class Plan, class Product = struct all_rows>
static __device__ __forceinline__ void multiply(const struct packed_params &w, uint32_t begin,
                                                uint32_t end, uint32_t strip, const float *blocks,
                                                Plan *plan, typename Plan::place *at,
                                                typename Plan::accumulator &sums,
                                                const Product &product = {}) {
    typedef typename Plan::Format Format;
    constexpr int CHUNK = Plan::CHUNK, N_CHUNKS = Plan::UNITS * 4 / CHUNK;
    uint32_t a[2][CHUNK][4], last = 0;
    typename Format::factor factors[2];
    float next = 1.0f;
    if constexpr (Format::IS_WHOLE) set_factors(1.0f, factors);
    if constexpr (Format::OF_BLOCKS)
        next = __ldg(blocks + (begin * Plan::COLUMNS >> w.block_shift));
#pragma unroll 1
    for (uint32_t k = begin; k < end; k++, at->advance()) {
        const uint64_t x = wgmma_matrix(plan->stages[at->stage].x, 0);
        if constexpr (Format::OF_BLOCKS) {
            /* The next stage's scale is read while this stage is multiplied. */
            set_factors(next, factors);
            next = __ldg(blocks + (min(k + 1, end - 1) * Plan::COLUMNS >> w.block_shift));
        }
        barrier_wait(&plan->full[at->stage], at->parity);
#pragma unroll
        for (int chunk = 0; chunk < N_CHUNKS; chunk++) {
            uint32_t words[Plan::CHUNK_WORDS];
            load_words(plan, at->stage, strip, chunk, words);
            wgmma_wait<1>();
            if (chunk == 1 && k > begin) release_stage(plan, last);
#pragma unroll
            for (int s = 0; s < CHUNK; s++) {
                const int slab = chunk * CHUNK + s;
                if constexpr (Format::IN_STRIPS)
                    if (slab * 16 % Format::PER == 0)
                        load_factors(w, plan, at->stage, strip, slab * 16 / Format::PER, factors);
                make_fragment<Format>(words + s * Format::VECTORS, factors, a[chunk % 2][s]);
            }
            uint64_t rows[CHUNK];
#pragma unroll
            for (int s = 0; s < CHUNK; s++) {
                const int slab = chunk * CHUNK + s;
                rows[s] = wgmma_advance(x, slab / 4 * Plan::BOX_BYTES + slab % 4 * 32);
            }
            product(sums, a[chunk % 2], rows, k > begin || chunk > 0);
        }
        last = at->stage;
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    release_stage(plan, last);
}

/* ---- results ---- */

/* The groups of 8 rows of x, [begin, end), whose results the block writes. */
struct packed_rows {
    int begin, end;
    __device__ __forceinline__ bool has(int j) const { return j >= begin && j < end; }
};

/* The outputs of a warpgroup, and where they are in shared memory before they are written: rows of
 * 64 outputs, 128 bytes.  Rows from end_row on are not written.
 *
 * If gated, two warpgroups have the same outputs: one has gate's sums, the other one up's.  Each of
 * them writes every second group of 8 rows. */
struct packed_results {
    const struct product_part *part; /* of the warpgroup's weights */
    uint32_t at, group, first_row, end_row, first_out;
    uint32_t matrix; /* of a stack: biases and scales of the matrices follow each other */
};

/* Returns the scales of the blocks that a warpgroup's outputs are in, one for each block of
 * columns.  NULL: the format has others. */
template <class Plan>
static __device__ __forceinline__ const float *find_blocks(const struct product &p,
                                                           const struct packed_results &r) {
    if constexpr (Plan::Format::OF_BLOCKS) {
        const uint32_t rows = p.w_format.block_rows, cols = p.w_format.block_cols,
                       n_down = (r.part->n_out + rows - 1) / rows,
                       n_across = (p.n_in + cols - 1) / cols,
                       row = min(r.first_out, r.part->n_out - 1) / rows;
        return static_cast<const float *>(r.part->scales) +
               ((size_t)r.matrix * n_down + row) * n_across;
    } else return nullptr;
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

/* Returns the one scale that the part's row of W has, or that all its rows have.  The format has
 * no blocks of columns, and scales of f32, f16 or bf16. */
static __device__ __forceinline__ float load_row_scale(const struct product &p,
                                                       const struct packed_results &r,
                                                       uint32_t row) {
    const enum element type = p.w_format.scale == SCALE_F32   ? ELEMENT_F32
                              : p.w_format.scale == SCALE_F16 ? ELEMENT_F16
                                                              : ELEMENT_BF16;
    return load_element(r.part->scales,
                        p.w_format.block_rows ? (size_t)r.matrix * r.part->n_out + row : r.matrix,
                        type);
}

/* Corrects the sums' power of two, multiplies them by their rows' scales, and adds biases. */
template <class Plan, int N>
static __device__ __forceinline__ void apply_rows(const struct packed_params &w,
                                                  const struct packed_results &r,
                                                  float (&sums)[N]) {
    for (int h = 0; h < 2; h++) {
        const uint32_t out = min(output_of(r, h), r.part->n_out - 1);
        float scale = Plan::Format::SUM_SCALE, bias = 0.0f;
        if (Plan::Format::IS_WHOLE) scale *= load_row_scale(w.p, r, out);
        if (r.part->bias)
            bias = load_element(r.part->bias, (size_t)r.matrix * r.part->n_out + out,
                                r.part->bias_dtype);
#pragma unroll
        for (int i = 2 * h; i < N; i += 4) {
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
template <int N>
static __device__ __forceinline__ void share_results(const struct packed_results &r,
                                                     const struct packed_rows &mine,
                                                     const float (&sums)[N]) {
#pragma unroll
    for (int j = 0; j < N / 4; j += 2)
        if (mine.has(j) || mine.has(j + 1)) share_four(r, j, sums + 4 * j, sums + 4 * j + 4);
}

/* Exchanges sums with the other warpgroup of a pair, and applies gate(g, u) to gate's and up's.
 * Shares the results that this warpgroup writes, as share_results() does.  Of each two groups of 8
 * rows gate's warpgroup writes the first one, and up's the second one. */
template <class Plan, class Gate, int N_SUMS>
static __device__ __forceinline__ void share_gated(Plan *plan, const struct packed_results &r,
                                                   const Gate &gate, float (&sums)[N_SUMS]) {
    constexpr int N = N_SUMS / 8, STEP = GROUP_THREADS * 16;
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
            sums[4 * j + i] = gate(is_up ? theirs : mine, is_up ? mine : theirs);
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
        if (!mine.has(octet) || row >= r.end_row || out >= r.part->n_out) continue;
        const struct product_part *part = w.p.gated ? &w.p.parts[0] : r.part;
        uint32_t four[4];
        load_shared(four, result_at(r, i / 8, i % 8));
        bf16 *y = static_cast<bf16 *>(part->y) + row * part->y_stride + out;
        *reinterpret_cast<uint4 *>(y) = make_uint4(four[0], four[1], four[2], four[3]);
    }
    sync_group(r);
}

/* ---- host ---- */

/* Sets what the kernels need to know of the weights of p, which are stacks of n_matrices.  Strips
 * of a stack follow each other. */
template <class Plan>
static cudaError_t describe_weights(struct packed_params *w, const struct product *p,
                                    uint32_t n_matrices) {
    constexpr uint32_t scale_bytes = Plan::Format::Scale::BYTES;
    const uint32_t block_cols = p->w_format.block_cols ? p->w_format.block_cols : p->n_in,
                   n_blocks_k = (p->n_in + block_cols - 1) / block_cols,
                   n_stage_blocks =
                       block_cols < (uint32_t)Plan::COLUMNS ? Plan::COLUMNS / block_cols : 1,
                   box_strips = p->gated ? Plan::N_STRIPS / 2 : Plan::N_STRIPS;
    cudaError_t rc = cudaSuccess;
    while (1u << w->block_shift < block_cols) w->block_shift++;
    w->scale_strip_bytes = n_stage_blocks * STRIP * scale_bytes;
    for (uint32_t i = 0; i < p->n_parts && !rc; i++) {
        const struct product_part *part = &p->parts[i];
        const uint32_t n_strips = (part->n_out + STRIP - 1) / STRIP * n_matrices,
                       box_bytes = w->scale_strip_bytes;
        const uint64_t row_bytes = (uint64_t)n_blocks_k * STRIP * scale_bytes;
        rc = tensor_map_bytes(
            &w->w[i], part->w, n_strips,
            (uint64_t)p->n_in / UNIT_COLUMNS * Plan::Format::VECTORS * VECTOR_BYTES, box_strips,
            Plan::BOX_STRIP_BYTES);
        if (!rc && Plan::Format::IN_STRIPS)
            rc = tensor_map_bytes(&w->scales[i], part->scales, n_strips, row_bytes, box_strips,
                                  box_bytes);
        if (!rc && Plan::Format::HAS_MIN)
            rc = tensor_map_bytes(&w->mins[i], part->mins, n_strips, row_bytes, box_strips,
                                  box_bytes);
    }
    return rc;
}

#endif
