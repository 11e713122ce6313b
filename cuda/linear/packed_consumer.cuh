/* packed_consumer.cuh - the warps of packed_stream.cu that multiply.
 *
 * Thread: device code, by whole warps.  Memory: the block's. */
#ifndef CUDA_LINEAR_PACKED_CONSUMER_CUH
#define CUDA_LINEAR_PACKED_CONSUMER_CUH

#include "cuda/linear/packed_block.cuh"

template <class Codes_, int GROUPS_> struct packed_shape {
    using Codes = Codes_;
    static constexpr int GROUPS = GROUPS_; /* of a unit; 0: scales are of rows */
    static constexpr int COLUMNS = PACKED_UNIT_BYTES * 8 / PACKED_ROWS / Codes::BITS;
    static constexpr int N_SLICES = COLUMNS / 16; /* mma of a unit */
    static constexpr int N_GROUPS = GROUPS ? GROUPS : 1, PER_GROUP = N_SLICES / N_GROUPS;
    static constexpr bool HAS_OFFSET = Codes::OFFSET[0] != 0;
    static constexpr int A_STAGE = PACKED_STAGE_UNITS / PACKED_WARPS; /* units of a warp: 2 */
};

/* Loads the scales of N groups that lie in pairs of rows, from the lane's rows of the first on.  If
 * is_half, only the first half of the groups exists; the others get the same. */
template <enum scale_type TYPE, int N>
static __device__ __forceinline__ void load_pairs(struct scale_pair (&to)[N], const char *from,
                                                  bool is_half, bool is_f16) {
    constexpr int SIZE = TYPE == SCALE_F32    ? 4
                         : TYPE == SCALE_E8M0 ? 1
                                              : 2,
                  GROUP = PACKED_ROWS * SIZE;
    const char *second = from - (is_half ? N / 2 * GROUP : 0);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const char *at = (i < (N + 1) / 2 ? from : second) + i * GROUP;
        if constexpr (TYPE == SCALE_F32) {
            to[i] = *reinterpret_cast<const struct scale_pair *>(at);
        } else if constexpr (TYPE == SCALE_E8M0) {
            const uint32_t codes = *reinterpret_cast<const uint16_t *>(at);
            to[i] = {e8m0_value(codes & 0xff), e8m0_value(codes >> 8)};
        } else {
            to[i] = scales_of_16_bits(*reinterpret_cast<const uint32_t *>(at), is_f16);
        }
    }
}

/* Returns the scale at this place: that of a block of rows and columns. */
static __device__ __forceinline__ float load_block_scale(const char *from, enum scale_type type) {
    if (type == SCALE_F32) return *reinterpret_cast<const float *>(from);
    if (type == SCALE_E8M0) return e8m0_value(*reinterpret_cast<const uint8_t *>(from));
    return scales_of_16_bits(*reinterpret_cast<const uint16_t *>(from), type == SCALE_F16).low;
}

template <class S> struct packed_consumer {
    using Codes = typename S::Codes;
    const struct packed_block &b;
    uint32_t warp, lane; /* warp: of the team */
    uint32_t x;          /* where the lane's row of an 8 x 8 matrix begins in shared memory */
    uint32_t
        misplaced; /* bytes from the beginning of a slot to the first scale of a block of rows */
    float sums[4];

    /* Makes warp w of a team ready, of which this is lane l; sums are not set. */
    __device__ __forceinline__ packed_consumer(const struct packed_block &block, uint32_t w,
                                               uint32_t l)
        : b(block), warp(w), lane(l), misplaced(0) {
        /* Rows past the end are the last one, and their sums are not used. */
        const uint32_t row = min(lane % PACKED_MAX_ROWS, b.p.n_rows - 1);
        x = shared_at(b.memory + b.cut.x_at + row * b.cut.x_pitch + lane / 8 * 16).address;
    }

    /* Loads fragments of x for two slices of 16 columns. */
    __device__ __forceinline__ void load_x(uint32_t (&r)[4], uint32_t column) const {
        load_matrix(r, shared_at(x + column * 2));
    }

    /* Where the sums of x over a group of a unit are, times OFFSET[0]. */
    __device__ __forceinline__ float *sums_of(uint32_t unit, int group) const {
        return b.at<float>(b.cut.sums_at) + (unit * S::N_GROUPS + group) * PACKED_MAX_ROWS;
    }

    __device__ __forceinline__ float2 group_sums(uint32_t unit, int group) const {
        return *reinterpret_cast<const float2 *>(sums_of(unit, group) + lane % 4 * 2);
    }

    /* Adds up x, times the offset, over the groups of a unit. */
    __device__ __forceinline__ void sum_unit(uint32_t unit) const {
        constexpr uint32_t OFFSET = Codes::OFFSET[0];
        uint32_t r[4];
        float part[4];
#pragma unroll
        for (int i = 0; i < S::N_SLICES; i++) {
            if (i % 2 == 0) load_x(r, unit * S::COLUMNS + i * 16);
            if (i % S::PER_GROUP == 0) part[0] = part[1] = part[2] = part[3] = 0.0f;
            mma(part, OFFSET, OFFSET, OFFSET, OFFSET, r[i % 2 * 2], r[i % 2 * 2 + 1]);
            if (i % S::PER_GROUP == S::PER_GROUP - 1 && lane < 4)
                *reinterpret_cast<float2 *>(sums_of(unit, i / S::PER_GROUP) + lane * 2) =
                    make_float2(part[0], part[1]);
        }
    }

    /* Loads the scales, or the minimums, of a unit's groups. */
    template <enum scale_type TYPE>
    __device__ __forceinline__ void load_unit(struct scale_pair (&to)[S::N_GROUPS],
                                              const char *slot, uint32_t unit, bool is_f16) const {
        constexpr uint32_t SIZE = TYPE == SCALE_F32 ? 4 : TYPE == SCALE_E8M0 ? 1 : 2;
        const uint32_t all = b.first_unit + unit,
                       group = (all * S::GROUPS >> b.cut.group_shift) - b.first_group;
        /* The last unit may have half of its columns. */
        const bool is_half = S::GROUPS > 1 && 2 * all + 1 == b.cut.n_slabs;
        load_pairs<TYPE>(to, slot + (group * PACKED_ROWS + lane / 4 * 2) * SIZE, is_half, is_f16);
    }

    /* Loads the scales, or the minimums, of N units, 8 of the strip's from one to the next. */
    template <int N>
    __device__ __forceinline__ void load_scales(struct scale_pair (&to)[N][S::N_GROUPS],
                                                const char *slot, uint32_t unit) const {
        const struct weight_format &f = b.p.w_format;
        if constexpr (Codes::BITS == 8 && !S::HAS_OFFSET) {
            if (f.block_rows != 1) {
                for (int k = 0; k < N; k++) {
                    const uint32_t group =
                        (b.first_unit + unit + k * PACKED_WARPS >> b.cut.group_shift) -
                        b.first_group;
                    to[k][0].low = to[k][0].high = load_block_scale(
                        slot + misplaced + group * bytes_of_scale(f.scale), f.scale);
                }
                return;
            }
        }
        if (!S::HAS_OFFSET && (Codes::BITS == 4 || f.scale == SCALE_E8M0))
            for (int k = 0; k < N; k++)
                load_unit<SCALE_E8M0>(to[k], slot, unit + k * PACKED_WARPS, false);
        else if (f.scale == SCALE_F32)
            for (int k = 0; k < N; k++)
                load_unit<SCALE_F32>(to[k], slot, unit + k * PACKED_WARPS, false);
        else
            for (int k = 0; k < N; k++)
                load_unit<SCALE_F16>(to[k], slot, unit + k * PACKED_WARPS, f.scale == SCALE_F16);
    }

    /* Adds the minimums of a unit's groups, times the sums of x over them, to the sums. */
    __device__ __forceinline__ void add_minimums(const char *slot, uint32_t unit) {
        struct scale_pair least[1][S::N_GROUPS];
        load_scales(least, slot + b.cut.mins_at, unit);
#pragma unroll
        for (int g = 0; g < S::N_GROUPS; g++) {
            const float2 of_x = group_sums(unit, g);
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[k] = fmaf((k < 2 ? least[0][g].low : least[0][g].high) * Codes::SUM,
                               k % 2 ? of_x.y : of_x.x, sums[k]);
        }
    }

    /* Sets the sums of a group to what takes the offset off. */
    __device__ __forceinline__ void begin_group(float (&part)[4], uint32_t unit, int group) const {
        constexpr float RATIO = Codes::LOW / Codes::HIGH; /* of the offsets, too */
        float2 of_x = make_float2(0.0f, 0.0f);
        if (S::HAS_OFFSET) of_x = group_sums(unit, group);
#pragma unroll
        for (int k = 0; k < 4; k++) part[k] = (k % 2 ? of_x.y : of_x.x) * (k < 2 ? 1.0f : RATIO);
    }

    /* Adds the products of a group, times its scales, to the sums. */
    __device__ __forceinline__ void end_group(const float (&part)[4], struct scale_pair scale) {
        const float low = scale.low * Codes::LOW, high = scale.high * Codes::HIGH;
#pragma unroll
        for (int k = 0; k < 4; k++) sums[k] = fmaf(k < 2 ? low : high, part[k], sums[k]);
    }

    /* Adds the products of a unit's words and x, times the scales of its groups, to the sums. */
    __device__ __forceinline__ void multiply_unit(const uint4 (&words)[2],
                                                  const struct scale_pair (&scale)[S::N_GROUPS],
                                                  uint32_t unit) {
        constexpr int OF_VECTOR = S::N_SLICES / 2; /* slices of 16 bytes */
        uint32_t r[S::N_SLICES / 2][4];
        float part[4];
#pragma unroll
        for (int i = 0; i < S::N_SLICES / 2; i++) load_x(r[i], unit * S::COLUMNS + i * 32);
#pragma unroll
        for (int i = 0; i < S::N_SLICES; i++) {
            const uint4 vector = words[i / OF_VECTOR];
            const uint32_t w[4] = {vector.x, vector.y, vector.z, vector.w};
            uint32_t a[4];
            Codes::fragment(w, i % OF_VECTOR, a);
            if (i % S::PER_GROUP == 0) begin_group(part, unit, i / S::PER_GROUP);
            mma(part, a, r[i / 2][i % 2 * 2], r[i / 2][i % 2 * 2 + 1]);
            if (i % S::PER_GROUP == S::PER_GROUP - 1) end_group(part, scale[i / S::PER_GROUP]);
        }
    }

    /* Multiplies N of the warp's units of a stage, and adds to the sums.  `unit` is the first of
     * them; stage: where the lane's words of it are; slot: the strip's scales. */
    template <int N>
    __device__ __forceinline__ void multiply_units(const uint4 *stage, const char *slot,
                                                   uint32_t unit) {
        uint4 words[N][2];
        struct scale_pair scale[N][S::N_GROUPS];
#pragma unroll
        for (int k = 0; k < N; k++) {
            words[k][0] = stage[k * PACKED_WARPS * 64];
            words[k][1] = stage[k * PACKED_WARPS * 64 + 32];
            scale[k][0] = {1.0f, 1.0f};
        }
        if (S::GROUPS) load_scales(scale, slot, unit);
#pragma unroll
        for (int k = 0; k < N; k++) {
            multiply_unit(words[k], scale[k], unit + k * PACKED_WARPS);
            if (S::GROUPS && S::HAS_OFFSET && b.p.w_format.has_min)
                add_minimums(slot, unit + k * PACKED_WARPS);
        }
    }

    /* Multiplies the warp's units of a share of a strip as its stages arrive, and releases these.
     * Begins with sums of 0, and advances `at` past the share.  slot: the strip's scales. */
    __device__ __forceinline__ void multiply_share(ring &at, const char *slot, uint32_t share) {
        struct packed_barriers *barriers = b.barriers();
        const uint32_t n_units = b.units_of(share);
        sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;
#pragma unroll 1
        for (uint32_t first = 0; first < n_units; first += PACKED_STAGE_UNITS, at.advance()) {
            const uint32_t n = min((uint32_t)PACKED_STAGE_UNITS, n_units - first);
            barrier_wait(&barriers->full[at.stage], at.parity);
            const uint4 *stage =
                reinterpret_cast<const uint4 *>(b.stage(at.stage)) + warp * 64 + lane;
            const uint32_t unit = share * b.cut.share_units + first + warp;
            if (n > warp + PACKED_WARPS) multiply_units<S::A_STAGE>(stage, slot, unit);
            else if (n > warp) multiply_units<1>(stage, slot, unit);
            /* Without this fence the barrier may get ahead of reads, and the copy engine overwrites
             * what they have yet to read. */
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) barrier_arrive(&barriers->empty[at.stage]);
        }
    }

    /* Writes the warp's sums to shared memory: sums[2 * i + h] is of weight row lane / 4 + 8 * i
     * and x row lane % 4 * 2 + h. */
    __device__ __forceinline__ void share_sums(float *plan) const {
        plan += (warp * PACKED_MAX_ROWS + lane % 4 * 2) * PACKED_PLAN_ROW + lane / 4;
#pragma unroll
        for (int i = 0; i < 4; i++) plan[i % 2 * PACKED_PLAN_ROW + i / 2 * 8] = sums[i];
    }
};

/* Does the consumers' part of the kernel; every thread of their warps calls it once.  The teams
 * take the shares of tiles in turn, multiply the stages that the loader fills, and leave each
 * share's sums for the storers.  Returns after the last tile of the block's cluster. */
template <class S>
static __device__ __forceinline__ void consume(const struct packed_block &b,
                                               const struct packed_work &work, uint32_t cluster) {
    const struct product &p = b.p;
    const uint32_t warp = threadIdx.x / 32 - 1 - N_STORERS, team = warp / PACKED_WARPS;
    struct packed_barriers *barriers = b.barriers();
    struct packed_consumer<S> c(b, warp % PACKED_WARPS, threadIdx.x % 32);
    ring at = {b.cut.n_stages, 0, 0}, slot = {b.cut.n_slots, 0, 0}, plan = {PACKED_PLANS, 0, 1};
    uint32_t next = 0; /* whose share comes next */
    if (S::HAS_OFFSET) {
        for (uint32_t unit = warp; unit < b.n_units; unit += N_CONSUMERS) c.sum_unit(unit);
        named_sync(BARRIER_SUMS, N_CONSUMERS * 32);
    }
#pragma unroll 1
    for (uint32_t tile = cluster; tile < work.n_tiles; tile += work.n_clusters) {
        if (!S::HAS_OFFSET && p.w_format.block_rows > 1) {
            uint32_t strip = tile;
            find_strip(p, &strip);
            c.misplaced = scales_from(b, strip) % 16;
        }
#pragma unroll 1
        for (uint32_t i = 0; i <= p.gated; i++, slot.advance())
#pragma unroll 1
            for (uint32_t share = 0; share < b.cut.block_shares; share++) {
                const bool is_mine = next == team;
                if (++next == PACKED_TEAMS) next = 0;
                if (!is_mine) {
                    at.advance(b.stages_of(share));
                    continue;
                }
                c.multiply_share(at, b.slot(slot.stage), share);
                barrier_wait(&barriers->plan_empty[team][plan.stage], plan.parity);
                c.share_sums(plan_of(b, team, plan.stage));
                __syncwarp();
                if (c.lane == 0) barrier_arrive(&barriers->plan_full[team][plan.stage]);
                plan.advance();
            }
    }
}

#endif
