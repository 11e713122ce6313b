/* packed_storer.cuh - the warps of packed_stream.cu that add up what consumers have, and store.
 *
 * Thread: device code, by the N_STORERS warps.  Memory: the block's, and that of its
 * cluster. */
#ifndef CUDA_LINEAR_PACKED_STORER_CUH
#define CUDA_LINEAR_PACKED_STORER_CUH

#include "cuda/linear/packed_block.cuh"

/* ---- the norm ---- */

/* Adds up the warps' squares of a row of x in one of the block's shares of the columns, and returns
 * the sum. */
static __device__ __forceinline__ float add_squares(const struct packed_block &b, uint32_t row,
                                                    uint32_t share) {
    const float *from =
        b.at<float>(b.cut.squares_at) + (row * b.cut.block_shares + share) * PACKED_WARPS;
    float x = 0.0f;
    for (uint32_t w = 0; w < PACKED_WARPS; w++) x += from[w];
    return x;
}

/* Returns where the results of add_squares() for a row lie for the other blocks. */
static __device__ __forceinline__ float *shared_squares(const struct packed_block &b,
                                                        uint32_t row) {
    return b.at<float>(b.cut.squares_at) + (PACKED_WARPS * b.p.n_rows + row) * b.cut.block_shares;
}

/* Returns the RMSNorm's factor of a row whose squares add up to this. */
static __device__ __forceinline__ float norm_factor(const struct product &p, float squares) {
    return rsqrtf(squares / (float)p.n_in + p.eps);
}

/* ---- results ---- */

/* Returns the scale of a whole row of W, or the tensor's; 1 where groups have scales. */
static __device__ __forceinline__ float row_scale(const struct product &p,
                                                  const struct product_part *part, uint32_t out) {
    const struct weight_format &f = p.w_format;
    const uint32_t at = f.block_rows ? out : 0;
    if (f.block_cols || out >= part->n_out) return 1.0f;
    if (f.scale == SCALE_F32) return static_cast<const float *>(part->scales)[at];
    if (f.scale == SCALE_E8M0) return e8m0_value(static_cast<const uint8_t *>(part->scales)[at]);
    return scales_of_16_bits(static_cast<const uint16_t *>(part->scales)[at], f.scale == SCALE_F16)
        .low;
}

/* Where a thread's results of a tile go, and the scales that are multiplied with them. */
struct outlet {
    const struct product_part *part;
    uint32_t strip, out;
    float scale[2];

    /* Finds where output `column` of a tile's 16 goes.  Past the part's end it stores nothing. */
    __device__ __forceinline__ outlet(const struct product &p, uint32_t tile, uint32_t column)
        : strip(tile) {
        part = find_strip(p, &strip);
        out = strip * PACKED_ROWS + column;
        scale[0] = row_scale(p, part, out);
        scale[1] = p.gated ? row_scale(p, part + 1, out) : 1.0f;
    }
    /* Stores a result: x times its scale and factor, with bias; if gated, of gate x and of up. */
    __device__ __forceinline__ void store(const struct product &p, uint32_t row, float factor,
                                          float x, float up) const {
        if (out >= part->n_out || row >= p.n_rows) return;
        x = with_bias(part, out, x * scale[0] * factor);
        if (p.gated) x = gate_mul(x, with_bias(part + 1, out, up * scale[1] * factor), p.kind);
        store_result(p, part, row, out, x);
    }
};

/* ---- clusters ---- */

/* Returns the float at this place of the shared memory of another block of the cluster.  `from`
 * is the same place in this block's memory, and `block` a rank in the cluster.  The float must
 * have been written before a meet(), and may be overwritten after the next one. */
static __device__ __forceinline__ float load_remote(const float *from, uint32_t block) {
    float x;
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %1, %2;\n"
                 "ld.shared::cluster.f32 %0, [there];\n}"
                 : "=f"(x)
                 : "r"(shared_at(from).address), "r"(block)
                 : "memory");
    return x;
}

/* Waits until the storers of each of the cluster's n blocks are here.  What they wrote before, or
 * read, has been written or read then.  at: the block's barrier, in the phase of this parity.
 * thread: the storer's. */
static __device__ __forceinline__ void meet(uint64_t *at, uint32_t parity, uint32_t n,
                                            uint32_t thread) {
    const uint32_t barrier = shared_at(at).address;
    named_sync(BARRIER_STORERS, N_STORERS * 32);
    if (thread < n)
        asm volatile(
            "{\n.reg .b32 there;\n"
            "mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
            "r"(thread)
            : "memory");
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again%=:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again%=;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

struct packed_storer {
    const struct packed_block &b;
    const struct packed_work &work;
    uint32_t thread, row, out; /* of x and of a strip: what the thread adds up and stores */
    float factor;              /* of the norm */

    /* Makes the storers' thread t ready; find_factor() comes next. */
    __device__ __forceinline__ packed_storer(const struct packed_block &block,
                                             const struct packed_work &w, uint32_t t)
        : b(block), work(w), thread(t), row(t / PACKED_ROWS), out(t % PACKED_ROWS), factor(1.0f) {}

    /* Computes the factor of the norm for the thread's row from the block's shares, and lets the
     * other blocks of the cluster see their squares.  Without a norm the factor stays 1. */
    __device__ __forceinline__ void find_factor() {
        float squares = 0.0f;
        if (!b.p.norm_weight || row >= b.p.n_rows) return;
        for (uint32_t s = 0; s < b.cut.block_shares; s++) {
            const float x = add_squares(b, row, s);
            if (b.cut.split > 1 && out == 0) shared_squares(b, row)[s] = x;
            squares += x;
        }
        factor = norm_factor(b.p, squares);
    }

    /* Returns what the warps of a team have of the block's `number`-th share of a strip. */
    __device__ __forceinline__ float add_warps(uint32_t number) const {
        const uint32_t team = number % PACKED_TEAMS, count = number / PACKED_TEAMS,
                       half = count % PACKED_PLANS, parity = count / PACKED_PLANS % 2;
        const float *plan = plan_of(b, team, half) + row * PACKED_PLAN_ROW + out;
        float x = 0.0f;
        barrier_wait(&b.barriers()->plan_full[team][half], parity);
        if (row < b.p.n_rows)
#pragma unroll
            for (int w = 0; w < PACKED_WARPS; w++) x += plan[w * PACKED_MAX_ROWS * PACKED_PLAN_ROW];
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(&b.barriers()->plan_empty[team][half]);
        return x;
    }

    /* Where the sums of a share lie until the cluster meets: of tile `tile` of the epoch, strip
     * `strip` of that and the block's share. */
    __device__ __forceinline__ float *exchanged(uint32_t tile, uint32_t strip,
                                                uint32_t share) const {
        const uint32_t i = (tile * (1 + b.p.gated) + strip) * b.cut.block_shares + share;
        return b.at<float>(b.cut.exchange_at) + (i * PACKED_MAX_ROWS + row) * PACKED_ROWS + out;
    }

    /* Adds up the shares of all blocks of the cluster, of a strip of a tile of the epoch.  Returns
     * the sum of the thread's row and output. */
    __device__ __forceinline__ float add_blocks(uint32_t tile, uint32_t strip) const {
        const uint32_t n_shares = b.cut.block_shares;
        float x = 0.0f;
        for (uint32_t k = 0; k < b.cut.n_shares; k++)
            x += load_remote(exchanged(tile, strip, k % n_shares), k / n_shares);
        return x;
    }

    /* Adds the sums of all blocks up for this block's tiles of an epoch, every split-th of n_tiles,
     * and stores the results.  Waits for the cluster before and after.  parity: of the epoch. */
    __device__ __forceinline__ void store_epoch(uint32_t first_tile, uint32_t n_tiles,
                                                uint32_t parity) {
        const struct product &p = b.p;
        const uint32_t n_shares = b.cut.block_shares;
        float squares = 0.0f;
        meet(&b.barriers()->ready, parity, b.cut.split, thread);
        if (row < p.n_rows) {
            for (uint32_t k = 0; p.norm_weight && k < b.cut.n_shares; k++)
                squares += load_remote(shared_squares(b, row) + k % n_shares, k / n_shares);
            if (p.norm_weight) factor = norm_factor(p, squares);
#pragma unroll 1
            for (uint32_t i = b.rank; i < n_tiles; i += b.cut.split) {
                const struct outlet to(p, first_tile + i * work.n_clusters, out);
                to.store(p, row, factor, add_blocks(i, 0), p.gated ? add_blocks(i, 1) : 0.0f);
            }
        }
        meet(&b.barriers()->done, parity, b.cut.split, thread);
    }

    /* Adds up a tile, whose first share is the block's `number`-th, and stores it or leaves it for
     * the cluster. */
    __device__ __forceinline__ void store_tile(uint32_t tile, uint32_t number,
                                               uint32_t in_epoch) const {
        const struct outlet to(b.p, tile, out);
        float gate = 0.0f, up = 0.0f;
#pragma unroll 1
        for (uint32_t i = 0; i <= b.p.gated; i++)
#pragma unroll 1
            for (uint32_t share = 0; share < b.cut.block_shares; share++, number++) {
                const float x = add_warps(number);
                if (b.cut.split > 1 && row < b.p.n_rows) *exchanged(in_epoch, i, share) = x;
                if (i) up += x;
                else gate += x;
            }
        if (b.cut.split == 1) to.store(b.p, row, factor, gate, up);
    }
};

/* Does the storers' part of the kernel; each of their threads calls it once.  It adds the warps'
 * sums of every tile and writes the results.  Blocks of a cluster exchange their sums first,
 * which they do for several tiles at once.  Returns when all results are written. */
static __device__ __forceinline__ void store(const struct packed_block &b,
                                             const struct packed_work &work, uint32_t cluster) {
    const uint32_t shares_a_tile = (1 + b.p.gated) * b.cut.block_shares,
                   epoch = PACKED_EPOCH / shares_a_tile;
    struct packed_storer storer(b, work, threadIdx.x - 32);
    uint32_t n_tiles = 0, parity = 0, epoch_tile = cluster, number = 0;
    storer.find_factor();
#pragma unroll 1
    for (uint32_t tile = cluster; tile < work.n_tiles; tile += work.n_clusters) {
        storer.store_tile(tile, number, n_tiles);
        number += shares_a_tile;
        if (b.cut.split == 1) continue;
        if (++n_tiles < epoch && tile + work.n_clusters < work.n_tiles) continue;
        storer.store_epoch(epoch_tile, n_tiles, parity);
        epoch_tile = tile + work.n_clusters;
        n_tiles = 0;
        parity ^= 1;
    }
}

#endif
