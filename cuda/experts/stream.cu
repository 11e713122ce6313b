/* stream.cu - products of few rows with the experts' matrices, as fast as memory brings these.
 *
 *   x [rows, n_in] ─ to shared memory, times CODES_X ─┐
 *   W, a piece of a strip ─ copy engine ─► a slot ────┴─► mma.m16n8k16 ─► sums of a share
 *   shares of a strip ─ by way of shared memory ─► one warp adds them up and stores the results
 *
 * A block has some strips of one expert, and a warp a share of their columns (stream_cut.h).  Each
 * warp asks the copy engine for its own pieces, several ahead, so nothing waits for other warps
 * but the sums.  W is multiplied as its bits lie (linear/packed_codes.cuh), or as bf16.
 *
 * An expert's rows are computed in chunks.  If there are few pairs, each block finds its own among
 * them, and no other kernel has to put them in order.
 *
 * Down asks for weights before it waits for gate and up.  It may, because the pairs' order is older
 * (order_is_old).
 *
 * The sum of a row and a row of W has one order.  Shares are added one after the other.
 *
 *   shared  barriers, rows | sums of shares | sums of x | scales of blocks | x | slots of each warp
 *
 * Grid:   n_blocks for each expert, or for each that few pairs may have.
 * Bound:  memory, the bytes of the matrices that are used.
 * Oracle: weight_to_float() (tests/cuda/test_experts.c). */
#include "cuda/common/sm90.cuh"
#include "cuda/experts/expert_tile.cuh"
#include "cuda/experts/stream_cut.h"
#include "cuda/host/internal.h"
#include "cuda/linear/elements.cuh"
#include "cuda/linear/packed_codes.cuh"

typedef __nv_bfloat16 bf16;

enum { MAX_ROWS = STREAM_X_TILE * STREAM_MAX_TILES, MAX_THREADS = 32 * STREAM_MAX_WARPS };

/* What lies at the beginning of shared memory. */
struct stream_plan {
    uint64_t full[STREAM_MAX_WARPS][STREAM_MAX_SLOTS];
    uint32_t place[MAX_ROWS], x_row[MAX_ROWS]; /* of the chunk's pairs */
};

/* ---- formats ---- */

/* How scales of groups lie in a slot, or that rows have them. */
enum stream_scales { SCALES_ROWS, SCALES_16_BITS, SCALES_E8M0, SCALES_BLOCKS };

/* PER: columns that have a scale, or 0: the row has one. */
template <class Codes_, int PER_, enum stream_scales SCALES_>
struct packed_weights {
    using Codes = Codes_; static constexpr enum stream_scales SCALES = SCALES_;
    static constexpr bool IS_PACKED = true, HAS_OFFSET = Codes::OFFSET[0] != 0;
    static constexpr int COLUMNS = 256 / Codes::BITS, PER = PER_ ? PER_ : 1 << 20;
    static constexpr int GROUPS = PER < COLUMNS ? COLUMNS / PER : 1, SLICES = COLUMNS / 16;
    static constexpr bool PAIRS = PER >= 2 * COLUMNS; /* two steps have a scale in common */
    static constexpr int SCALE_BYTES = SCALES == SCALES_16_BITS ? 2
                                       : SCALES == SCALES_E8M0  ? 1
                                                                : 0;
};
struct plain_weights {
    static constexpr enum stream_scales SCALES = SCALES_ROWS;
    static constexpr bool IS_PACKED = false, HAS_OFFSET = false, PAIRS = false;
    static constexpr int COLUMNS = 32, PER = 1 << 20, GROUPS = 1, SLICES = 2, SCALE_BYTES = 0;
};

/* Holds a scale of weight row lane / 4 of the strip, and one of the row 8 further on. */
struct two_scales {
    float low, high;
};

/* ---- a block and its warps ---- */

/* The rows of an expert that a block multiplies. */
struct stream_rows {
    uint32_t expert, first, n; /* places in sorted order; n 0: there is no such expert */
};

/* NS: stacks, 2 for gate and up.  NT: tiles of x at most. */
template <class F_, int NS_, int NT_> struct stream_warp {
    using F = F_;
    static constexpr int NS = NS_, NT = NT_;
    const struct expert_product &p;
    const struct stream_cut &cut;
    char *memory;
    uint32_t lane, warp, k, o; /* o: of the warps with other strips */
    uint32_t first_step, n_steps, n_pieces, first_strip, n_strips;
    uint32_t expert, n_rows;
    uint64_t policy;
    uint32_t next_strip, next_piece, next_slot; /* what is asked for next, and the slot it gets */
    uint32_t slot, parity;
    char *slots;
    uint64_t *full;

    __device__ __forceinline__ stream_warp(const struct expert_product &product,
                                           const struct stream_cut &c, char *shared)
        : p(product), cut(c), memory(shared), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
          k(warp % c.k_warps), o(warp / c.k_warps), first_step(min(k * c.share_steps, c.n_steps)),
          n_steps(min(c.share_steps, c.n_steps - first_step)),
          n_pieces((n_steps + c.piece_steps - 1) / c.piece_steps),
          first_strip(blockIdx.x * c.block_strips * c.o_warps + o), n_strips(0), expert(0),
          n_rows(0), policy(pass_through_policy()), next_strip(0), next_piece(0), next_slot(0),
          slot(0), parity(0), slots(shared + c.slots_at + warp * c.n_slots * c.slot_bytes),
          full(reinterpret_cast<struct stream_plan *>(shared)->full[warp]) {
        /* Strips that follow each other are of different warps. */
        if (first_strip < c.n_strips)
            n_strips = min(c.block_strips, (c.n_strips - first_strip + c.o_warps - 1) / c.o_warps);
        if (n_pieces == 0) next_strip = n_strips; /* nothing to ask for */
    }

    __device__ __forceinline__ struct stream_plan *plan() const {
        return reinterpret_cast<struct stream_plan *>(memory);
    }
    __device__ __forceinline__ uint32_t strip_of(uint32_t i) const {
        return first_strip + i * cut.o_warps;
    }

    /* ---- asking for pieces ---- */

    /* Starts copying the scales, or the minimums, of a piece.  Returns the bytes. */
    __device__ __forceinline__ uint32_t ask_scales(char *to, const void *scales, uint32_t strip,
                                                   uint32_t begin, uint32_t steps,
                                                   uint64_t *barrier) const {
        constexpr uint32_t GROUP = STREAM_STRIP * F::SCALE_BYTES;
        const uint32_t first = begin * F::COLUMNS / F::PER,
                       end =
                           min(((begin + steps) * F::COLUMNS + F::PER - 1) / F::PER, cut.n_groups),
                       bytes = (end - first) * GROUP;
        bulk_load(
            to, static_cast<const char *>(scales) + ((size_t)strip * cut.n_groups + first) * GROUP,
            bytes, barrier, policy);
        return bytes;
    }

    /* Asks for a piece of a strip, which is number `strip` of all experts' strips.  One lane calls
     * it. */
    __device__ __forceinline__ void ask_packed(char *to, uint64_t *barrier, uint32_t strip,
                                               uint32_t begin, uint32_t steps) const {
        const size_t from = ((size_t)strip * cut.n_steps + begin) * 512;
        uint32_t bytes = NS * steps * 512;
#pragma unroll
        for (int s = 0; s < NS; s++) {
            const struct expert_stack &stack = p.stacks[s];
            char *own = to + s * cut.stack_bytes;
            bulk_load(own, static_cast<const char *>(stack.w) + from, steps * 512, barrier, policy);
            if constexpr (F::SCALE_BYTES > 0)
                bytes +=
                    ask_scales(own + cut.scales_at, stack.scales, strip, begin, steps, barrier);
            if constexpr (F::SCALE_BYTES > 0 && F::HAS_OFFSET)
                if (stack.format.has_min)
                    bytes +=
                        ask_scales(own + cut.mins_at, stack.mins, strip, begin, steps, barrier);
        }
        barrier_arrive_expect(barrier, bytes);
    }

    /* Asks for a piece of a strip of plain rows, a row a lane. */
    __device__ __forceinline__ void ask_plain(char *to, uint64_t *barrier, uint32_t strip,
                                              uint32_t begin, uint32_t steps) const {
        const uint32_t bytes = steps * F::COLUMNS * 2, row = lane % STREAM_STRIP,
                       n = min((uint32_t)STREAM_STRIP, p.n_out - strip * STREAM_STRIP);
        if (lane == 0) barrier_arrive_expect(barrier, NS * n * bytes);
        __syncwarp();
        if (row >= n || lane / STREAM_STRIP >= NS) return;
        const struct expert_stack &stack = p.stacks[lane / STREAM_STRIP];
        bulk_load(to + lane / STREAM_STRIP * cut.stack_bytes + row * plain_pitch(),
                  static_cast<const char *>(stack.w) +
                      (((size_t)expert * p.n_out + strip * STREAM_STRIP + row) * p.n_in +
                       begin * F::COLUMNS) *
                          2,
                  bytes, barrier, policy);
    }

    /* Asks for the next piece, if there is one. */
    __device__ __forceinline__ void ask() {
        if (next_strip >= n_strips) return;
        const uint32_t begin = next_piece * cut.piece_steps,
                       steps = min(cut.piece_steps, n_steps - begin), strip = strip_of(next_strip);
        char *to = slots + next_slot * cut.slot_bytes;
        if constexpr (F::IS_PACKED) {
            if (elect_lane())
                ask_packed(to, full + next_slot, expert * cut.n_strips + strip, first_step + begin,
                           steps);
        } else {
            ask_plain(to, full + next_slot, strip, first_step + begin, steps);
        }
        if (++next_slot == cut.n_slots) next_slot = 0;
        if (++next_piece < n_pieces) return;
        next_piece = 0;
        next_strip++;
    }

    /* Begins with the first strip, all slots being empty. */
    __device__ __forceinline__ void begin() {
        if (n_pieces > 0) next_strip = 0;
        next_piece = 0;
        next_slot = slot;
#pragma unroll 1
        for (uint32_t i = 0; i < cut.n_slots; i++) ask();
    }

    /* ---- x ---- */

    /* Where the lane's row of an 8 x 8 matrix of a tile begins. */
    __device__ __forceinline__ uint32_t x_at(uint32_t tile) const {
        /* Rows past the end are the last one, and their sums are not used. */
        const uint32_t row = min(tile * STREAM_X_TILE + lane % 8, n_rows - 1);
        return shared_at(memory + cut.x_at + row * cut.x_pitch + lane / 8 * 16).address;
    }

    /* Where the lane's two sums of x over a group of a step are, times OFFSET[0]. */
    __device__ __forceinline__ float2 *sums_of(uint32_t step, int group, uint32_t tile) const {
        return reinterpret_cast<float2 *>(memory + cut.sums_at) +
               ((step * F::GROUPS + group) * NT + tile) * (STREAM_X_TILE / 2) + lane % 4;
    }

    /* Adds x up, times the offset, over the groups of the steps.  Warps have each some of these. */
    __device__ __forceinline__ void sum_x(uint32_t tile) const {
        constexpr int PER_GROUP = F::SLICES / F::GROUPS;
        constexpr uint32_t OFFSET = F::Codes::OFFSET[0];
        const uint32_t x = x_at(tile);
        for (uint32_t step = warp; step < cut.n_steps; step += blockDim.x / 32) {
            uint32_t r[4];
            float part[4];
#pragma unroll
            for (int i = 0; i < F::SLICES; i++) {
                if (i % 2 == 0) load_matrix(r, x + (step * F::COLUMNS + i * 16) * 2);
                if (i % PER_GROUP == 0) part[0] = part[1] = part[2] = part[3] = 0.0f;
                mma(part, OFFSET, OFFSET, OFFSET, OFFSET, r[i % 2 * 2], r[i % 2 * 2 + 1]);
                if (i % PER_GROUP == PER_GROUP - 1 && lane < 4)
                    *sums_of(step, i / PER_GROUP, tile) = make_float2(part[0], part[1]);
            }
        }
    }

    /* ---- multiplying ---- */

    /* Where a piece is, and what it is of. */
    struct piece {
        const char *at;
        uint32_t begin, block; /* its first step; the strip's row of blocks with scales */
    };

    /* Returns the scales, or the minimums, of a group of a step. */
    __device__ __forceinline__ struct two_scales scales_of(const struct piece &piece, uint32_t from,
                                                           int s, uint32_t step, int group) const {
        if constexpr (F::SCALES == SCALES_ROWS) {
            return {1.0f, 1.0f};
        } else if constexpr (F::SCALES == SCALES_BLOCKS) {
            const float x = reinterpret_cast<const float *>(
                memory + cut.blocks_at)[(s * cut.row_blocks + piece.block) * cut.n_groups +
                                        step * F::COLUMNS / F::PER];
            return {x, x};
        } else {
            const uint32_t at = F::PER > F::COLUMNS
                                    ? step * F::COLUMNS / F::PER - piece.begin * F::COLUMNS / F::PER
                                    : (step - piece.begin) * F::GROUPS + group;
            const char *two = piece.at + s * cut.stack_bytes + from +
                              (at * STREAM_STRIP + lane / 4 * 2) * F::SCALE_BYTES;
            if constexpr (F::SCALES == SCALES_E8M0) {
                const uint32_t codes = *reinterpret_cast<const uint16_t *>(two);
                return {e8m0_value(codes & 0xff), e8m0_value(codes >> 8)};
            } else {
                const uint32_t pair = *reinterpret_cast<const uint32_t *>(two);
                const float2 x = p.stacks[0].format.scale == SCALE_F16 ? unpack_pair<__half>(pair)
                                                                       : unpack_bf16(pair);
                return {x.x, x.y};
            }
        }
    }

    /* Multiplies U steps of packed elements with TILES tiles of x.  Two steps that have a scale in
     * common are added up before it is applied; if U is 1, the share has no second one. */
    template <int U, int TILES>
    __device__ __forceinline__ void multiply_packed(float (&sums)[NS][NT][4],
                                                    const struct piece &piece, uint32_t step,
                                                    const uint32_t (&x_of)[NT]) const {
        using Codes = typename F::Codes;
        constexpr int PER_GROUP = F::SLICES / F::GROUPS, PAIR = F::PAIRS && U > 1 ? 2 : 1;
        constexpr float RATIO = Codes::LOW / Codes::HIGH; /* of the offsets, too */
        uint4 words[U][NS];
        uint32_t x[U][TILES][F::SLICES / 2][4];
        float part[U][NS][TILES][F::GROUPS][4];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int s = 0; s < NS; s++)
                words[u][s] = reinterpret_cast<const uint4 *>(
                    piece.at + s * cut.stack_bytes)[(step + u - piece.begin) * 32 + lane];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int t = 0; t < TILES; t++) {
#pragma unroll
                for (int i = 0; i < F::SLICES / 2; i++)
                    load_matrix(x[u][t][i], x_of[t] + ((step + u) * F::COLUMNS + i * 32) * 2);
#pragma unroll
                for (int g = 0; g < F::GROUPS; g++) {
                    const float2 of_x = offset_of<PAIR>(step + u, u, g, t);
#pragma unroll
                    for (int s = 0; s < NS; s++)
#pragma unroll
                        for (int c = 0; c < 4; c++)
                            part[u][s][t][g][c] =
                                (c % 2 ? of_x.y : of_x.x) * (c < 2 ? 1.0f : RATIO);
                }
            }
#pragma unroll
        for (int i = 0; i < F::SLICES; i++)
#pragma unroll
            for (int u = 0; u < U; u++)
#pragma unroll
                for (int s = 0; s < NS; s++) {
                    const uint32_t w[4] = {words[u][s].x, words[u][s].y, words[u][s].z,
                                           words[u][s].w};
                    uint32_t a[4];
                    Codes::fragment(w, i, a);
#pragma unroll
                    for (int t = 0; t < TILES; t++)
                        mma(part[u][s][t][i / PER_GROUP], a, x[u][t][i / 2][i % 2 * 2],
                            x[u][t][i / 2][i % 2 * 2 + 1]);
                }
#pragma unroll
        for (int u = 0; u < U; u += PAIR)
#pragma unroll
            for (int s = 0; s < NS; s++)
#pragma unroll
                for (int g = 0; g < F::GROUPS; g++) {
                    const struct two_scales scale = scales_of(piece, cut.scales_at, s, step + u, g);
                    const float low = scale.low * Codes::LOW, high = scale.high * Codes::HIGH;
#pragma unroll
                    for (int t = 0; t < TILES; t++)
#pragma unroll
                        for (int c = 0; c < 4; c++) {
                            float x = part[u][s][t][g][c];
                            if (PAIR == 2) x += part[u + PAIR - 1][s][t][g][c];
                            sums[s][t][c] = fmaf(c < 2 ? low : high, x, sums[s][t][c]);
                        }
                    if constexpr (F::SCALE_BYTES > 0 && F::HAS_OFFSET)
                        if (p.stacks[0].format.has_min)
                            add_minimums<TILES, PAIR>(sums[s], piece, s, step + u, g);
                }
    }

    /* Returns the sums of x over a group of a step, times the offset that they take off.  Two steps
     * that have a scale in common are added up. */
    template <int PAIR>
    __device__ __forceinline__ float2 offset_of(uint32_t step, int u, int group,
                                                uint32_t tile) const {
        if (!F::HAS_OFFSET || u % PAIR) return make_float2(0.0f, 0.0f);
        const float2 x = *sums_of(step, group, tile);
        if (PAIR == 1) return x;
        const float2 y = *sums_of(step + 1, group, tile);
        return make_float2(x.x + y.x, x.y + y.y);
    }

    template <int TILES, int PAIR>
    __device__ __forceinline__ void add_minimums(float (&sums)[NT][4], const struct piece &piece,
                                                 int s, uint32_t step, int group) const {
        const struct two_scales least = scales_of(piece, cut.mins_at, s, step, group);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const float2 of_x = offset_of<PAIR>(step, 0, group, t);
#pragma unroll
            for (int c = 0; c < 4; c++)
                sums[t][c] = fmaf((c < 2 ? least.low : least.high) * F::Codes::SUM,
                                  c % 2 ? of_x.y : of_x.x, sums[t][c]);
        }
    }

    __device__ __forceinline__ uint32_t plain_pitch() const {
        return cut.piece_steps * F::COLUMNS * 2 + 16;
    }

    /* Multiplies U steps of bf16 with TILES tiles of x. */
    template <int U, int TILES>
    __device__ __forceinline__ void multiply_plain(float (&sums)[NS][NT][4],
                                                   const struct piece &piece, uint32_t step,
                                                   const uint32_t (&x_of)[NT]) const {
        const uint32_t from = shared_at(piece.at).address + lane % 16 * plain_pitch() +
                              (step - piece.begin) * F::COLUMNS * 2 + lane / 16 * 16;
        uint32_t a[U][NS][2][4], x[U][TILES][4];
#pragma unroll
        for (int u = 0; u < U; u++) {
#pragma unroll
            for (int s = 0; s < NS; s++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    load_matrix(a[u][s][i],
                                from + s * cut.stack_bytes + (u * F::COLUMNS + i * 16) * 2);
#pragma unroll
            for (int t = 0; t < TILES; t++)
                load_matrix(x[u][t], x_of[t] + (step + u) * F::COLUMNS * 2);
        }
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int s = 0; s < NS; s++)
#pragma unroll
                    for (int t = 0; t < TILES; t++)
                        mma(sums[s][t], a[u][s][i], x[u][t][i * 2], x[u][t][i * 2 + 1]);
    }

    template <int U, int TILES>
    __device__ __forceinline__ void multiply_steps(float (&sums)[NS][NT][4],
                                                   const struct piece &piece, uint32_t step,
                                                   const uint32_t (&x_of)[NT]) const {
        if constexpr (F::IS_PACKED) multiply_packed<U, TILES>(sums, piece, step, x_of);
        else multiply_plain<U, TILES>(sums, piece, step, x_of);
    }

    /* Multiplies the warp's share of a strip. */
    template <int TILES>
    __device__ __forceinline__ void multiply(float (&sums)[NS][NT][4], uint32_t strip,
                                             const uint32_t (&x_of)[NT]) {
        /* Chains of products that do not wait for each other hide what one takes. */
        constexpr int MANY = 4 / (NS * TILES) > 0 ? 4 / (NS * TILES) : 1,
                      U = F::PAIRS && MANY < 2 ? 2 : MANY;
        uint32_t block = 0;
        if constexpr (F::SCALES == SCALES_BLOCKS) block = strip * STREAM_STRIP / cut.block_rows;
#pragma unroll 1
        for (uint32_t i = 0; i < n_pieces; i++) {
            const uint32_t begin = first_step + i * cut.piece_steps,
                           end = min(begin + cut.piece_steps, first_step + n_steps);
            const struct piece piece = {slots + slot * cut.slot_bytes, begin, block};
            uint32_t step = begin;
            barrier_wait(full + slot, parity);
#pragma unroll 1
            for (; step + U <= end; step += U) multiply_steps<U, TILES>(sums, piece, step, x_of);
            if constexpr (U > 2)
                for (; step + 2 <= end; step += 2)
                    multiply_steps<2, TILES>(sums, piece, step, x_of);
            if constexpr (U > 1)
                if (step < end) multiply_steps<1, TILES>(sums, piece, step, x_of);
            /* Without this fence the copy engine may overwrite what has yet to be read. */
            fence_async_proxy();
            __syncwarp();
            if (++slot == cut.n_slots) {
                slot = 0;
                parity ^= 1;
            }
            ask();
        }
    }

    /* ---- results ---- */

    /* Where warps leave the sums of a share: of one of the warps for the same strip. */
    __device__ __forceinline__ float4 *plan_of(uint32_t of, uint32_t stack, uint32_t tile) const {
        return reinterpret_cast<float4 *>(memory + cut.plans_at) +
               (((o * cut.k_warps + of) * NS + stack) * NT + tile) * 32 + lane;
    }

    /* Adds the shares of a strip up. */
    __device__ __forceinline__ void add_shares(float (&sums)[4], uint32_t stack,
                                               uint32_t tile) const {
        sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;
        for (uint32_t i = 0; i < cut.k_warps; i++) {
            const float4 x = *plan_of(i, stack, tile);
            sums[0] += x.x, sums[1] += x.y, sums[2] += x.z, sums[3] += x.w;
        }
    }
};

/* What the warp that stores a strip's results needs besides: loaded before it is wanted. */
template <class Warp> struct stream_outlet {
    static constexpr int NS = Warp::NS;
    float scale[NS][2], bias[NS][2]; /* of the lane's first row and of its second */

    __device__ __forceinline__ void load(const Warp &w, uint32_t strip) {
#pragma unroll
        for (int s = 0; s < NS; s++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const struct expert_stack &stack = w.p.stacks[s];
                const uint32_t out = strip * STREAM_STRIP + w.lane / 4 + i * 8;
                const size_t row = (size_t)w.expert * w.p.n_out + out;
                scale[s][i] = 1.0f, bias[s][i] = 0.0f;
                if (out >= w.p.n_out) continue;
                if (Warp::F::IS_PACKED && Warp::F::SCALES == SCALES_ROWS)
                    scale[s][i] = scale_at(stack.scales, stack.format.block_rows ? row : w.expert,
                                           stack.format.scale);
                if (stack.bias) bias[s][i] = load_element(stack.bias, row, stack.bias_dtype);
            }
    }

    __device__ __forceinline__ void store(const Warp &w, uint32_t strip, uint32_t tile) const {
        float sums[NS][4];
#pragma unroll
        for (int s = 0; s < NS; s++) w.add_shares(sums[s], s, tile);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint32_t row = tile * STREAM_X_TILE + w.lane % 4 * 2 + c % 2,
                           out = strip * STREAM_STRIP + w.lane / 4 + c / 2 * 8;
            if (row >= w.n_rows || out >= w.p.n_out) continue;
            const size_t at = (size_t)w.plan()->place[row] * w.p.n_out + out;
            const float x = fmaf(sums[0][c], scale[0][c / 2], bias[0][c / 2]);
            if constexpr (NS == 2)
                store_as(static_cast<bf16 *>(w.p.y) + at,
                         expert_gate_mul(w.p.gate, x,
                                         fmaf(sums[1][c], scale[1][c / 2], bias[1][c / 2])));
            else static_cast<float *>(w.p.y)[at] = x;
        }
    }
};

/* Computes all strips of a warp for the chunk of rows in shared memory, which has TILES tiles.  The
 * warps of a strip take turns at storing it. */
template <int TILES, class Warp> static __device__ __forceinline__ void run_strips(Warp &w) {
    const uint32_t n_threads = w.cut.k_warps * 32;
    const int written = 1 + 2 * (int)w.o, read = written + 1; /* named barriers: 1 to 14 */
    uint32_t x_of[Warp::NT], turn = 0;
    bool has_read = true; /* the warp stored the strip before, or there was none */
#pragma unroll
    for (int t = 0; t < TILES; t++) x_of[t] = w.x_at(t);
#pragma unroll 1
    for (uint32_t i = 0; i < w.n_strips; i++) {
        const uint32_t strip = w.strip_of(i);
        const bool stores = turn == w.k;
        stream_outlet<Warp> outlet;
        float sums[Warp::NS][Warp::NT][4] = {};
        if (++turn == w.cut.k_warps) turn = 0;
        if (stores) outlet.load(w, strip);
        w.template multiply<TILES>(sums, strip, x_of);
        if (!has_read) named_sync(read, n_threads);
#pragma unroll
        for (int s = 0; s < Warp::NS; s++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
                *w.plan_of(w.k, s, t) =
                    make_float4(sums[s][t][0], sums[s][t][1], sums[s][t][2], sums[s][t][3]);
        named_sync(written, n_threads);
        if (stores)
#pragma unroll
            for (int t = 0; t < TILES; t++) outlet.store(w, strip, t);
        if (stores && i + 1 < w.n_strips) named_arrive(read, n_threads);
        has_read = stores;
    }
}

/* ---- the pairs of a block ---- */

/* Finds the rows of expert number `slot` of those that pairs have, if there are at most 32 pairs: a
 * lane has a pair each.  *place and *is_own become what the lane's pair has. */
static __device__ __forceinline__ struct stream_rows find_among_few(const struct expert_order &o,
                                                                    uint32_t slot, uint32_t *place,
                                                                    bool *is_own) {
    const uint32_t lane = threadIdx.x % 32, n_pairs = o.n_rows * o.n_used,
                   expert = lane < n_pairs ? o.experts[lane] : UINT32_MAX;
    uint32_t n_less = 0, n_before = 0, n_slots = 0;
    if (o.n_rows == 1) { /* any order will do for pairs of different experts: that of the ranks */
        *place = lane;
        *is_own = lane == slot;
        return {__shfl_sync(0xffffffffu, expert, slot), slot, 1};
    }
    for (uint32_t i = 0; i < n_pairs; i++) {
        const uint32_t other = __shfl_sync(0xffffffffu, expert, i);
        n_less += other < expert;
        n_before += other == expert && i < lane;
    }
    const uint32_t firsts = __ballot_sync(0xffffffffu, lane < n_pairs && n_before == 0);
    for (uint32_t i = 0; i < n_pairs; i++)
        n_slots += __shfl_sync(0xffffffffu, expert, i) < expert && (firsts >> i & 1);
    *place = n_less + n_before;
    *is_own = lane < n_pairs && n_slots == slot;
    const uint32_t own = __ballot_sync(0xffffffffu, *is_own);
    if (!own) return {0, 0, 0};
    const int first = __ffs((int)own) - 1;
    return {__shfl_sync(0xffffffffu, expert, first), __shfl_sync(0xffffffffu, *place, first),
            (uint32_t)__popc(own)};
}

/* Finds the block's expert and its rows. */
static __device__ __forceinline__ struct stream_rows find_rows(const struct expert_product &p,
                                                               uint32_t *place, bool *is_own) {
    if (!p.finds_order) {
        const uint32_t first = p.order.first[blockIdx.y];
        return {blockIdx.y, first, p.order.first[blockIdx.y + 1] - first};
    }
    return find_among_few(p.order, blockIdx.y, place, is_own);
}

/* Writes where the rows of a chunk come from, and where their results go. */
static __device__ __forceinline__ void list_rows(const struct expert_product &p,
                                                 struct stream_plan *plan,
                                                 const struct stream_rows &rows, uint32_t begin,
                                                 uint32_t n, uint32_t place, bool is_own) {
    const uint32_t i = threadIdx.x, first = rows.first + begin;
    if (p.finds_order) {
        if (i >= 32 || !is_own || place < first || place >= first + n) return;
        plan->place[place - first] = place;
        plan->x_row[place - first] = p.gathers ? i / p.order.n_used : place;
    } else if (i < n) {
        plan->place[i] = first + i;
        plan->x_row[i] = x_row_of(p, first + i);
    }
}

/* Copies the chunk's rows of x to shared memory. */
template <class F>
static __device__ __forceinline__ void load_x(const struct expert_product &p,
                                              const struct stream_cut &cut, char *memory,
                                              uint32_t n_rows) {
    enum { AT_ONCE = 4 };
    const struct stream_plan *plan = reinterpret_cast<const struct stream_plan *>(memory);
    const uint32_t n_vectors = p.n_in / 8, power = pack_bf16(CODES_X, CODES_X);
    for (uint32_t v = threadIdx.x; v < n_vectors; v += blockDim.x)
        for (uint32_t begin = 0; begin < n_rows; begin += AT_ONCE) {
            uint4 x[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const uint32_t row = plan->x_row[min(begin + i, n_rows - 1)];
                asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(x[i].x), "=r"(x[i].y), "=r"(x[i].z), "=r"(x[i].w)
                             : "l"(static_cast<const uint4 *>(p.x) + (size_t)row * n_vectors + v));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (begin + i >= n_rows) break;
                if (F::IS_PACKED)
                    x[i] = make_uint4(multiply_pair(x[i].x, power), multiply_pair(x[i].y, power),
                                      multiply_pair(x[i].z, power), multiply_pair(x[i].w, power));
                *reinterpret_cast<uint4 *>(memory + cut.x_at + (begin + i) * cut.x_pitch + v * 16) =
                    x[i];
            }
        }
}

/* Loads the scales of blocks of rows that the block's strips are in, in f32. */
static __device__ __forceinline__ void load_block_scales(const struct expert_product &p,
                                                         const struct stream_cut &cut, char *memory,
                                                         uint32_t expert) {
    const uint32_t of_matrix = cut.row_blocks * cut.n_groups;
    for (uint32_t i = threadIdx.x; i < (1 + p.gated) * of_matrix; i += blockDim.x) {
        const struct expert_stack &s = p.stacks[i / of_matrix];
        reinterpret_cast<float *>(memory + cut.blocks_at)[i] =
            scale_at(s.scales, (size_t)expert * of_matrix + i % of_matrix, s.format.scale);
    }
}

/* ---- the kernel ---- */

template <class F, int NS, int NT>
static __global__ void __launch_bounds__(MAX_THREADS, 1)
    stream_kernel(const __grid_constant__ struct expert_product p,
                  const __grid_constant__ struct stream_cut cut) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char memory[];
    struct stream_plan *plan = reinterpret_cast<struct stream_plan *>(memory);
    stream_warp<F, NS, NT> w(p, cut, memory);
    uint32_t place = 0;
    bool is_own = false;
    if (w.lane == 0) {
#pragma unroll 1
        for (uint32_t i = 0; i < cut.n_slots; i++) barrier_init(w.full + i, 1);
        barriers_publish();
    }
    __syncwarp();
    if (!p.order_is_old) wait_for_previous();
    let_next_start();
    const struct stream_rows rows = find_rows(p, &place, &is_own);
    if (rows.n == 0) {
        if (p.order_is_old) wait_for_previous();
        return;
    }
    w.expert = rows.expert;
    w.begin();
    if (p.finds_order && p.gathers && blockIdx.x == 0 && threadIdx.x < 32 && is_own)
        p.order.place[threadIdx.x] = place; /* for combine.cu */
    if constexpr (F::SCALES == SCALES_BLOCKS) load_block_scales(p, cut, memory, rows.expert);
    if (p.order_is_old) wait_for_previous();
#pragma unroll 1
    for (uint32_t begin = 0; begin < rows.n; begin += cut.rows) {
        w.n_rows = min(cut.rows, rows.n - begin);
        if (begin > 0) w.begin();
        __syncthreads(); /* nothing of the chunk before is read any more */
        list_rows(p, plan, rows, begin, w.n_rows, place, is_own);
        __syncthreads();
        load_x<F>(p, cut, memory, w.n_rows);
        __syncthreads();
        if constexpr (F::HAS_OFFSET) {
            for (uint32_t t = 0; t * STREAM_X_TILE < w.n_rows; t++) w.sum_x(t);
            __syncthreads();
        }
        if (NT == 2 && w.n_rows > STREAM_X_TILE) run_strips<NT>(w);
        else run_strips<1>(w);
    }
#endif
}

/* ---- the list of kernels ---- */

typedef void stream_function(struct expert_product, struct stream_cut);

struct stream_entry {
    enum element element;
    uint32_t per;
    enum stream_scales scales;
    stream_function *kernels[2][STREAM_MAX_TILES]; /* of a stack, or of two; by tiles of x */
};

template <class F>
static constexpr struct stream_entry entry(enum element element, uint32_t per = 0) {
    return {element,
            per,
            F::SCALES,
            {{stream_kernel<F, 1, 1>, stream_kernel<F, 1, 2>},
             {stream_kernel<F, 2, 1>, stream_kernel<F, 2, 2>}}};
}

static const struct stream_entry entries[] = {
    entry<plain_weights>(ELEMENT_BF16),
    entry<packed_weights<codes_i4, 0, SCALES_ROWS>>(ELEMENT_I4),
    entry<packed_weights<codes_i4, 32, SCALES_16_BITS>>(ELEMENT_I4, 32),
    entry<packed_weights<codes_i4, 64, SCALES_16_BITS>>(ELEMENT_I4, 64),
    entry<packed_weights<codes_i4, 128, SCALES_16_BITS>>(ELEMENT_I4, 128),
    entry<packed_weights<codes_i8, 0, SCALES_ROWS>>(ELEMENT_I8),
    entry<packed_weights<codes_i8, 32, SCALES_16_BITS>>(ELEMENT_I8, 32),
    entry<packed_weights<codes_i8, 128, SCALES_16_BITS>>(ELEMENT_I8, 128),
    entry<packed_weights<codes_e4m3, 0, SCALES_ROWS>>(ELEMENT_E4M3),
    entry<packed_weights<codes_e4m3, 32, SCALES_E8M0>>(ELEMENT_E4M3, 32),
    entry<packed_weights<codes_e4m3, 128, SCALES_BLOCKS>>(ELEMENT_E4M3, 128),
    entry<packed_weights<codes_e2m1, 32, SCALES_E8M0>>(ELEMENT_E2M1, 32),
};

static stream_function *find_kernel(const struct expert_product *p, uint32_t x_tiles) {
    const struct weight_format *f = &p->stacks[0].format;
    for (const struct stream_entry &e : entries)
        if (e.element == f->element && e.per == f->block_cols)
            return e.kernels[p->gated][x_tiles - 1];
    return nullptr;
}

extern "C" int stream_open(struct cuda_backend *cuda, struct error *err) {
    int max_bytes = 0;
    const int rc = cuda_check(
        cuda,
        cudaDeviceGetAttribute(&max_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, cuda->device),
        "asking for shared memory", err);
    bool runs = true;
    for (const struct stream_entry &e : entries)
        for (stream_function *const *kernel = e.kernels[0]; kernel < e.kernels[2]; kernel++)
            runs = runs && runs_sm90_code(*kernel) &&
                   cudaFuncSetAttribute(*kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        max_bytes) == cudaSuccess;
    cuda->expert_stream = {runs ? cuda->n_multiprocessors : 0, (uint32_t)max_bytes};
    return rc;
}

static cudaError_t start_stream(const struct cuda_backend *cuda, const struct expert_product *p) {
    struct stream_cut cut;
    if (!stream_make_cut(p, &cuda->expert_stream, &cut)) return cudaErrorInvalidValue;
    stream_function *kernel = find_kernel(p, cut.x_tiles);
    if (!kernel) return cudaErrorInvalidValue;
    const uint32_t n_pairs = expert_n_pairs(&p->order), n_experts = p->order.n_experts;
    return launch_kernel(launch_of(cuda), kernel,
                         dim3(cut.n_blocks, p->finds_order ? min(n_pairs, n_experts) : n_experts),
                         dim3(32 * cut.k_warps * cut.o_warps), cut.total, *p, cut);
}

extern "C" expert_launch launch_experts_stream;
int launch_experts_stream(struct cuda_backend *cuda, const struct expert_product *p,
                          struct error *err) {
    return cuda_check(cuda, start_stream(cuda, p), "the experts' kernel \"stream\"", err);
}
