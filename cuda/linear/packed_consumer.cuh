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
    /* The unit of W's rows from 8 on by that of the others.  The sums of a pair of rows of x lie in
     * both units, so they are so many floats. */
    static constexpr float RATIO = Codes::LOW / Codes::HIGH;
    static constexpr int PAIR_SUMS = RATIO == 1 ? 2 : 4;
    static constexpr int A_STAGE = PACKED_STAGE_UNITS / PACKED_WARPS; /* units of a warp: 2 */
};

/* Where the scales of units come from.  The loops over units are made for each, so that they do not
 * ask. */
enum scale_source { NO_SCALES, OF_F16, OF_BF16, OF_F32, OF_E8M0, OF_BLOCKS };

/* Loads the scales of N groups that lie in pairs of rows, from the lane's rows of the first on.  If
 * is_half, only the first half of the groups exists; the others get the same. */
template <enum scale_source FROM, int N>
static __device__ __forceinline__ void load_pairs(struct scale_pair (&to)[N], const char *from,
                                                  bool is_half) {
    constexpr int SIZE = FROM == OF_F32 ? 4 : FROM == OF_E8M0 ? 1 : 2, GROUP = PACKED_ROWS * SIZE;
    const char *second = from - (is_half ? N / 2 * GROUP : 0);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const char *at = (i < (N + 1) / 2 ? from : second) + i * GROUP;
        if constexpr (FROM == OF_F32) {
            to[i] = *reinterpret_cast<const struct scale_pair *>(at);
        } else if constexpr (FROM == OF_E8M0) {
            const uint32_t codes = *reinterpret_cast<const uint16_t *>(at);
            to[i] = {e8m0_value(codes & 0xff), e8m0_value(codes >> 8)};
        } else {
            to[i] = scales_of_16_bits(*reinterpret_cast<const uint32_t *>(at), FROM == OF_F16);
        }
    }
}

template <class S> struct packed_consumer {
    using Codes = typename S::Codes;
    const struct packed_block &b;
    uint32_t warp, lane; /* warp: of the team */
    uint32_t x;          /* where the lane's row of an 8 x 8 matrix begins in shared memory */
    uint32_t
        misplaced; /* bytes from the beginning of a slot to the first scale of a block of rows */
    bool has_min;
    float sums[4]; /* in units of 1 / LOW and 1 / HIGH */

    /* Makes warp w of a team ready, of which this is lane l; sums are not set. */
    __device__ __forceinline__ packed_consumer(const struct packed_block &block, uint32_t w,
                                               uint32_t l)
        : b(block), warp(w), lane(l), misplaced(0), has_min(block.p.w_format.has_min) {
        /* Rows past the end are the last one, and their sums are not used. */
        const uint32_t row = min(lane % PACKED_MAX_ROWS, b.p.n_rows - 1);
        x = shared_at(b.memory + b.cut.x_at + row * b.cut.x_pitch + lane / 8 * 16).address;
    }

    /* Loads fragments of x for two slices of 16 columns. */
    __device__ __forceinline__ void load_x(uint32_t (&r)[4], uint32_t column) const {
        load_matrix(r, shared_at(x + column * 2));
    }

    /* Where the sums of a pair of rows of x over a group of a unit are, times OFFSET[0]. */
    __device__ __forceinline__ float *sums_of(uint32_t unit, int group) const {
        return b.at<float>(b.cut.sums_at) +
               ((unit * S::N_GROUPS + group) * (PACKED_MAX_ROWS / 2) + lane % 4) * S::PAIR_SUMS;
    }

    __device__ __forceinline__ float2 group_sums(uint32_t unit, int group) const {
        return *reinterpret_cast<const float2 *>(sums_of(unit, group));
    }

    /* Adds up x, times the offset, over the groups of N units, which are multiplied in turn.  Units
     * past the last are that one. */
    template <int N> __device__ __forceinline__ void sum_units(uint32_t first) const {
        constexpr uint32_t OFFSET = Codes::OFFSET[0];
        uint32_t r[N][4];
        float part[N][4];
#pragma unroll
        for (int i = 0; i < S::N_SLICES; i++)
#pragma unroll
            for (int k = 0; k < N; k++) {
                const uint32_t unit = min(first + k * N_CONSUMERS, b.n_units - 1);
                if (i % 2 == 0) load_x(r[k], unit * S::COLUMNS + i * 16);
                if (i % S::PER_GROUP == 0) part[k][0] = part[k][1] = part[k][2] = part[k][3] = 0.0f;
                mma(part[k], OFFSET, OFFSET, OFFSET, OFFSET, r[k][i % 2 * 2], r[k][i % 2 * 2 + 1]);
                if (i % S::PER_GROUP < S::PER_GROUP - 1 || lane >= 4) continue;
                float *to = sums_of(unit, i / S::PER_GROUP);
                to[0] = part[k][0], to[1] = part[k][1];
                if (S::PAIR_SUMS == 4) to[2] = part[k][0] * S::RATIO, to[3] = part[k][1] * S::RATIO;
            }
    }

    /* Adds up x over all groups of the block's units; every consumer of all teams calls it. */
    __device__ __forceinline__ void sum_x(uint32_t of_all) const {
        enum { AT_ONCE = 4 };
        for (uint32_t unit = of_all; unit < b.n_units; unit += AT_ONCE * N_CONSUMERS)
            sum_units<AT_ONCE>(unit);
        named_sync(BARRIER_SUMS, N_CONSUMERS * 32);
    }

    /* Loads the scales, or the minimums, of a unit's groups. */
    template <enum scale_source FROM>
    __device__ __forceinline__ void load_unit(struct scale_pair (&to)[S::N_GROUPS],
                                              const char *slot, uint32_t unit) const {
        constexpr uint32_t SIZE = FROM == OF_F32 ? 4 : FROM == OF_E8M0 ? 1 : 2;
        const uint32_t all = b.first_unit + unit,
                       group = (all * S::GROUPS >> b.cut.group_shift) - b.first_group;
        if constexpr (FROM == NO_SCALES) {
            to[0] = {1.0f, 1.0f};
        } else if constexpr (FROM == OF_BLOCKS) {
            to[0].low = to[0].high = reinterpret_cast<const float *>(slot + misplaced)[group];
        } else {
            /* The last unit may have half of its columns. */
            const bool is_half = S::GROUPS > 1 && 2 * all + 1 == b.cut.n_slabs;
            load_pairs<FROM>(to, slot + (group * PACKED_ROWS + lane / 4 * 2) * SIZE, is_half);
        }
    }

    /* Adds the minimums of a unit's groups, times the sums of x over them, to the sums. */
    template <enum scale_source FROM>
    __device__ __forceinline__ void add_minimums(const char *slot, uint32_t unit) {
        constexpr float LOW = Codes::SUM / Codes::LOW, HIGH = Codes::SUM / Codes::HIGH;
        struct scale_pair least[S::N_GROUPS];
        load_unit<FROM>(least, slot + b.cut.mins_at, unit);
#pragma unroll
        for (int g = 0; g < S::N_GROUPS; g++) {
            const float2 of_x = group_sums(unit, g);
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[k] = fmaf(k < 2 ? least[g].low * LOW : least[g].high * HIGH,
                               k % 2 ? of_x.y : of_x.x, sums[k]);
        }
    }

    /* Sets the sums of a group to what takes the offset off. */
    __device__ __forceinline__ void begin_group(float (&part)[4], uint32_t unit, int group) const {
        float4 of_x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if constexpr (S::HAS_OFFSET && S::PAIR_SUMS == 4) {
            of_x = *reinterpret_cast<const float4 *>(sums_of(unit, group));
        } else if constexpr (S::HAS_OFFSET) {
            const float2 pair = group_sums(unit, group);
            of_x = make_float4(pair.x, pair.y, pair.x, pair.y);
        }
        part[0] = of_x.x, part[1] = of_x.y, part[2] = of_x.z, part[3] = of_x.w;
    }

    /* Adds the products of a group, times its scales, to the sums. */
    __device__ __forceinline__ void end_group(const float (&part)[4], struct scale_pair scale) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            sums[k] = fmaf(k < 2 ? scale.low : scale.high, part[k], sums[k]);
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
    template <enum scale_source FROM, int N>
    __device__ __forceinline__ void multiply_units(const uint4 *stage, const char *slot,
                                                   uint32_t unit) {
        uint4 words[N][2];
        struct scale_pair scale[N][S::N_GROUPS];
#pragma unroll
        for (int k = 0; k < N; k++) {
            words[k][0] = stage[k * PACKED_WARPS * 64];
            words[k][1] = stage[k * PACKED_WARPS * 64 + 32];
            load_unit<FROM>(scale[k], slot, unit + k * PACKED_WARPS);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            multiply_unit(words[k], scale[k], unit + k * PACKED_WARPS);
            if (S::GROUPS && S::HAS_OFFSET && has_min)
                add_minimums<FROM>(slot, unit + k * PACKED_WARPS);
        }
    }

    /* Multiplies the warp's units of a share of a strip as its stages arrive, and releases these.
     * Begins with sums of 0, and advances `at` past the share.  of_slot: the strip's scales.
     *
     * It waits for the scales behind its first stage.  The slot's scales before these have been
     * read then, so the parity of the barrier tells the two apart. */
    template <enum scale_source FROM>
    __device__ __forceinline__ void multiply_share(ring &at, const ring &of_slot, uint32_t share) {
        struct packed_barriers *barriers = b.barriers();
        const uint32_t n_units = b.units_of(share);
        const char *slot = b.slot(of_slot.stage);
        sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;
#pragma unroll 1
        for (uint32_t first = 0; first < n_units; first += PACKED_STAGE_UNITS, at.advance()) {
            const uint32_t n = min((uint32_t)PACKED_STAGE_UNITS, n_units - first);
            barrier_wait(&barriers->full[at.stage], at.parity);
            if (FROM != NO_SCALES && first == 0)
                barrier_wait(&barriers->scales_full[of_slot.stage], of_slot.parity);
            const uint4 *stage =
                reinterpret_cast<const uint4 *>(b.stage(at.stage)) + warp * 64 + lane;
            const uint32_t unit = share * b.cut.share_units + first + warp;
            if (n > warp + PACKED_WARPS) multiply_units<FROM, S::A_STAGE>(stage, slot, unit);
            else if (n > warp) multiply_units<FROM, 1>(stage, slot, unit);
            /* Without this fence the barrier may get ahead of reads, and the copy engine overwrites
             * what they have yet to read. */
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) barrier_arrive(&barriers->empty[at.stage]);
        }
    }

    /* Writes the warp's sums to shared memory, in the unit of results.  sums[2 * i + h] is of
     * weight row lane / 4 + 8 * i and x row lane % 4 * 2 + h. */
    __device__ __forceinline__ void share_sums(float *plan) const {
        plan += (warp * PACKED_MAX_ROWS + lane % 4 * 2) * PACKED_PLAN_ROW + lane / 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            plan[i % 2 * PACKED_PLAN_ROW + i / 2 * 8] =
                sums[i] * (i < 2 ? Codes::LOW : Codes::HIGH);
    }
};

/* Multiplies the shares of the block's tiles that are the team's. */
template <class S, enum scale_source FROM>
static __device__ __forceinline__ void consume_from(const struct packed_block &b,
                                                    const struct packed_work &work,
                                                    uint32_t cluster, struct packed_consumer<S> &c,
                                                    uint32_t team) {
    struct packed_barriers *barriers = b.barriers();
    ring at = {b.cut.n_stages, 0, 0}, slot = {b.cut.n_slots, 0, 0}, plan = {PACKED_PLANS, 0, 1};
    uint32_t next = 0; /* whose share comes next */
#pragma unroll 1
    for (uint32_t tile = cluster; tile < work.n_tiles; tile += work.n_clusters) {
        if (FROM == OF_BLOCKS) {
            uint32_t strip = tile;
            find_strip(b.p, &strip);
            c.misplaced = scales_from(b, strip) % 16;
        }
#pragma unroll 1
        for (uint32_t i = 0; i <= b.p.gated; i++, slot.advance())
#pragma unroll 1
            for (uint32_t share = 0; share < b.cut.block_shares; share++) {
                const bool is_mine = next == team;
                if (++next == PACKED_TEAMS) next = 0;
                if (!is_mine) {
                    at.advance(b.stages_of(share));
                    continue;
                }
                c.template multiply_share<FROM>(at, slot, share);
                barrier_wait(&barriers->plan_empty[team][plan.stage], plan.parity);
                c.share_sums(plan_of(b, team, plan.stage));
                __syncwarp();
                if (c.lane == 0) barrier_arrive(&barriers->plan_full[team][plan.stage]);
                plan.advance();
            }
    }
}

/* Does the consumers' part of the kernel; every thread of their warps calls it once.  The teams
 * take the shares of tiles in turn, multiply the stages that the loader fills, and leave each
 * share's sums for the storers.  Returns after the last tile of the block's cluster. */
template <class S>
static __device__ __forceinline__ void consume(const struct packed_block &b,
                                               const struct packed_work &work, uint32_t cluster) {
    const struct weight_format &f = b.p.w_format;
    const uint32_t warp = threadIdx.x / 32 - 1 - N_STORERS, team = warp / PACKED_WARPS;
    struct packed_consumer<S> c(b, warp % PACKED_WARPS, threadIdx.x % 32);
    if (S::HAS_OFFSET) c.sum_x(warp);
    if constexpr (S::GROUPS == 0) {
        consume_from<S, NO_SCALES>(b, work, cluster, c, team);
    } else if constexpr (S::Codes::BITS == 4 && !S::HAS_OFFSET) {
        consume_from<S, OF_E8M0>(b, work, cluster, c, team);
    } else {
        if (!S::HAS_OFFSET && f.block_rows != 1)
            consume_from<S, OF_BLOCKS>(b, work, cluster, c, team);
        else if (!S::HAS_OFFSET && f.scale == SCALE_E8M0)
            consume_from<S, OF_E8M0>(b, work, cluster, c, team);
        else if (f.scale == SCALE_F32) consume_from<S, OF_F32>(b, work, cluster, c, team);
        else if (f.scale == SCALE_F16) consume_from<S, OF_F16>(b, work, cluster, c, team);
        else consume_from<S, OF_BF16>(b, work, cluster, c, team);
    }
}

#endif
