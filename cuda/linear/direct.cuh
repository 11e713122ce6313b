/* direct.cuh - one row of x times a tile of packed W, whose bytes go from memory to registers.
 *
 * A product of few bytes takes as long as its steps wait for each other.  So there are few: a warp
 * asks for all of its slabs (strips.h) at once, before the kernel before has ended.  It loads its
 * own columns of x, and brings them into the order of matrix B by way of shared memory that is its
 * own.  The warps of a block meet once, to add up.
 *
 *   W  slabs, scales ─ registers ──────────► fragments ─┐
 *   x  the warp's columns ─ norm ─ shared ─► fragments ─┴► mma ─► 16 sums of a strip
 *
 * W is multiplied as its bits lie (packed_codes.cuh).  What a code has too much is taken off by
 * products of x with the offset.  All 8 columns of matrix B are the same row.
 *
 * Thread: device code, by whole warps.  Memory: the block's. */
#ifndef CUDA_LINEAR_DIRECT_CUH
#define CUDA_LINEAR_DIRECT_CUH

#include "cuda/common/mma.cuh"
#include "cuda/linear/direct_cut.h"
#include "cuda/linear/packed_codes.cuh"

/* What has a scale.  Those of rows and of tensors are applied by the caller. */
enum direct_scales { DIRECT_OF_ROWS, DIRECT_16_BITS, DIRECT_E8M0, DIRECT_OF_BLOCKS };

/* PER: columns of a group or block. */
template <class Codes_, int PER_, enum direct_scales SCALES_>
struct direct_format {
    using Codes = Codes_; static constexpr enum direct_scales SCALES = SCALES_;
    static constexpr bool HAS_OFFSET = Codes::OFFSET[0] != 0;
    static constexpr int COLUMNS = 256 / Codes::BITS,
    PER = PER_ ? PER_ : 1 << 20,
    SLICES = COLUMNS / 16,
    GROUPS = PER < COLUMNS ? COLUMNS / PER : 1,
    PER_GROUP = SLICES / GROUPS;
    static constexpr int SCALE_BYTES = SCALES == DIRECT_16_BITS ? 2
                                       : SCALES == DIRECT_E8M0  ? 1
                                                                : 4;
};

/* What has kernels: FORMAT(element, columns of a group or block or 0, direct_format). */
#define DIRECT_FORMATS(FORMAT)                                                                     \
    FORMAT(ELEMENT_I4, 0, direct_format<codes_i4, 0, DIRECT_OF_ROWS>)                              \
    FORMAT(ELEMENT_I4, 32, direct_format<codes_i4, 32, DIRECT_16_BITS>)                            \
    FORMAT(ELEMENT_I4, 64, direct_format<codes_i4, 64, DIRECT_16_BITS>)                            \
    FORMAT(ELEMENT_I4, 128, direct_format<codes_i4, 128, DIRECT_16_BITS>)                          \
    FORMAT(ELEMENT_I8, 0, direct_format<codes_i8, 0, DIRECT_OF_ROWS>)                              \
    FORMAT(ELEMENT_E4M3, 0, direct_format<codes_e4m3, 0, DIRECT_OF_ROWS>)                          \
    FORMAT(ELEMENT_E4M3, 128, direct_format<codes_e4m3, 128, DIRECT_OF_BLOCKS>)                    \
    FORMAT(ELEMENT_E2M1, 32, direct_format<codes_e2m1, 32, DIRECT_E8M0>)

/* Loads that stay where they are: before the wait for the kernel before. */
static __device__ __forceinline__ uint4 load_early(const void *from) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}
template <int BYTES> static __device__ __forceinline__ uint32_t load_early_word(const void *from) {
    uint32_t v;
    if constexpr (BYTES == 2)
        asm volatile("{\n.reg .b16 half;\nld.global.u16 half, [%1];\ncvt.u32.u16 %0, half;\n}"
                     : "=r"(v)
                     : "l"(from)
                     : "memory");
    else asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

/* Holds what scales the sums of weight rows lane / 4 and lane / 4 + 8. */
struct direct_pair {
    float low, high;
};

/* Slabs that are multiplied by their scales only. */
struct no_factor {
    __device__ __forceinline__ struct direct_pair operator()(int, int) const {
        return {1.0f, 1.0f};
    }
};

/* A warp, with N slabs of each of NS strips that have the same columns. */
template <class F, int NS, int N> struct direct_warp {
    using Codes = typename F::Codes;
    static constexpr int VECTORS = (N * F::COLUMNS / 8 + 31) / 32; /* of x, of a lane */
    uint4 words[NS][N];
    uint32_t scales[NS][N][F::GROUPS];
    uint4 x[VECTORS];
    float sums[NS][2]; /* of weight rows lane / 4 and lane / 4 + 8, in units of Codes */
    uint32_t lane, n;  /* n: slabs that there are */

    __device__ __forceinline__ explicit direct_warp(uint32_t n_own)
        : sums{}, lane(threadIdx.x % 32), n(n_own) {}

    /* Asks for slab i of strip s.  w, scales: where those of the strip begin.  `slab` is its number
     * in the strip; `first_scale` that of the scales. */
    __device__ __forceinline__ void ask(int s, int i, const void *w, const void *scale,
                                        uint32_t slab) {
        words[s][i] = load_early(static_cast<const uint4 *>(w) + slab * 32 + lane);
        const char *from = static_cast<const char *>(scale);
#pragma unroll
        for (int g = 0; g < F::GROUPS; g++) {
            const uint32_t group =
                F::GROUPS > 1 ? slab * F::GROUPS + g : slab * F::COLUMNS / F::PER;
            if constexpr (F::SCALES == DIRECT_OF_BLOCKS)
                scales[s][i][g] = load_early_word<4>(from + group * 4);
            else if constexpr (F::SCALES != DIRECT_OF_ROWS)
                scales[s][i][g] = load_early_word<2 * F::SCALE_BYTES>(
                    from + (group * DIRECT_ROWS + lane / 4 * 2) * F::SCALE_BYTES);
        }
    }

    /* Returns how many vectors of x the warp's slabs have. */
    __device__ __forceinline__ uint32_t n_vectors() const {
        return n * (F::COLUMNS / 8);
    }

    /* Loads the warp's columns of x, which begin at `from`, past the first-level cache. */
    __device__ __forceinline__ void load_x(const void *from) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            x[v] = make_uint4(0, 0, 0, 0);
            if (v * 32 + lane < n_vectors())
                asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(x[v].x), "=r"(x[v].y), "=r"(x[v].z), "=r"(x[v].w)
                             : "l"(static_cast<const uint4 *>(from) + v * 32 + lane)
                             : "memory");
        }
    }

    /* Multiplies x by the weights of a norm.  Returns the sum of the squares before. */
    __device__ __forceinline__ float norm(const uint4 (&weights)[VECTORS]) {
        float squares = 0.0f;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            squares += sum_squares(x[v]);
            x[v] = multiply(x[v], weights[v]);
        }
        return warp_sum(squares);
    }

    /* Puts x, times CODES_X, where multiply_all() finds it.  to: the warp's shared memory. */
    __device__ __forceinline__ void share_x(char *to) const {
        const uint32_t power = pack_bf16(CODES_X, CODES_X);
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (v * 32 + lane < N * F::COLUMNS / 8)
                reinterpret_cast<uint4 *>(to)[v * 32 + lane] =
                    multiply(x[v], make_uint4(power, power, power, power));
        __syncwarp();
    }

    /* Adds the products of all slabs to the sums.  of_slab(s, i) returns what those of a slab are
     * multiplied by, besides its scales. */
    template <class Factor>
    __device__ __forceinline__ void multiply_all(const char *shared_x, bool is_f16,
                                                 const Factor &of_slab) {
        constexpr uint32_t LOW = Codes::OFFSET[0], HIGH = Codes::OFFSET[1];
        const uint32_t at = shared_at(shared_x + lane / 8 * 16).address;
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t r[4];
            float part[NS][4], of_x[4];
            if (i >= n) break;
#pragma unroll
            for (int k = 0; k < F::SLICES; k++) {
                if (k % 2 == 0) load_matrix(r, at + (i * F::COLUMNS + k * 16) * 2);
                if (k % F::PER_GROUP == 0) clear(part, of_x);
#pragma unroll
                for (int s = 0; s < NS; s++) {
                    const uint32_t w[4] = {words[s][i].x, words[s][i].y, words[s][i].z,
                                           words[s][i].w};
                    uint32_t a[4];
                    Codes::fragment(w, k, a);
                    mma(part[s], a, r[k % 2 * 2], r[k % 2 * 2 + 1]);
                }
                if (F::HAS_OFFSET) mma(of_x, LOW, HIGH, LOW, HIGH, r[k % 2 * 2], r[k % 2 * 2 + 1]);
                if (k % F::PER_GROUP < F::PER_GROUP - 1) continue;
#pragma unroll
                for (int s = 0; s < NS; s++) {
                    const struct direct_pair scale = scale_of(s, i, k / F::PER_GROUP, is_f16),
                                             also = of_slab(s, i);
                    sums[s][0] = fmaf(scale.low * also.low, part[s][0] + of_x[0], sums[s][0]);
                    sums[s][1] = fmaf(scale.high * also.high, part[s][2] + of_x[2], sums[s][1]);
                }
            }
        }
    }

    /* Writes the sums of the strips to the warp's place [NS][16], in units of 1. */
    __device__ __forceinline__ void share_sums(float *to) const {
        if (lane % 4 > 0) return;
#pragma unroll
        for (int s = 0; s < NS; s++) {
            to[s * DIRECT_ROWS + lane / 4] = sums[s][0] * Codes::LOW;
            to[s * DIRECT_ROWS + lane / 4 + 8] = sums[s][1] * Codes::HIGH;
        }
    }

  private:
    static __device__ __forceinline__ uint4 multiply(uint4 a, uint4 b) {
        return make_uint4(multiply_pair(a.x, b.x), multiply_pair(a.y, b.y), multiply_pair(a.z, b.z),
                          multiply_pair(a.w, b.w));
    }

    static __device__ __forceinline__ void clear(float (&part)[NS][4], float (&of_x)[4]) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            of_x[c] = 0.0f;
#pragma unroll
            for (int s = 0; s < NS; s++) part[s][c] = 0.0f;
        }
    }

    __device__ __forceinline__ struct direct_pair scale_of(int s, int i, int g, bool is_f16) const {
        const uint32_t raw = F::SCALES == DIRECT_OF_ROWS ? 0 : scales[s][i][g];
        if constexpr (F::SCALES == DIRECT_OF_ROWS) return {1.0f, 1.0f};
        if constexpr (F::SCALES == DIRECT_OF_BLOCKS)
            return {__uint_as_float(raw), __uint_as_float(raw)};
        if constexpr (F::SCALES == DIRECT_E8M0)
            return {e8m0_value(raw & 0xff), e8m0_value(raw >> 8)};
        const float2 two = is_f16 ? unpack_pair<__half>(raw) : unpack_bf16(raw);
        return {two.x, two.y};
    }
};

/* Returns the sum of what n warps have of weight row `row` of strip s, in their order. */
template <int NS>
static __device__ __forceinline__ float add_direct_warps(const float *sums, uint32_t n, int s,
                                                         uint32_t row) {
    float x = 0.0f;
    for (uint32_t w = 0; w < n; w++) x += sums[(w * NS + s) * DIRECT_ROWS + row];
    return x;
}

#endif
