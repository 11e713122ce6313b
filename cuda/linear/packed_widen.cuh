/* packed_widen.cuh - fragments of packed weights become bf16 in registers, times their scales.
 *
 * A fragment is what a lane has of matrix A: four registers, of two bf16 each (strips.h).
 * Registers 0 and 2 are of the lane's first row in a strip, 1 and 3 of its second row.
 *
 * Bits 0 to 7 of a bf16 are a number in units of 2^-133: subnormal numbers and the first normal
 * ones lie on one line.  So an integer is a bf16 where it lies in its word, if the other bits are
 * cleared.  One fused operation takes the offset off and applies the scale.  The scale would be too
 * large for that, so every weight is 2^POWER too small, and sums are corrected.
 *
 * An element times its scale is rounded to bf16 once, as in the unpacked weight.  A scale of f16 is
 * the sum of two bf16, exactly.  The product with the smaller one is exact for elements of 4 bits,
 * and rounded at the 17th bit of the weight for others.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_LINEAR_PACKED_WIDEN_CUH
#define CUDA_LINEAR_PACKED_WIDEN_CUH

#include "cuda/common/mma.cuh"

enum { POWER = 26 };

/* Returns a word as the pair of bf16 whose bits it has. */
static __device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t x) {
    return *reinterpret_cast<__nv_bfloat162 *>(&x);
}

/* Returns the bits of a pair of bf16. */
static __device__ __forceinline__ uint32_t as_word(__nv_bfloat162 x) {
    return *reinterpret_cast<uint32_t *>(&x);
}

/* Returns the two products of two pairs of bf16, each rounded to bf16. */
static __device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    return as_word(__hmul2_rn(as_pair(a), as_pair(b)));
}

/* Returns a b + c of pairs of bf16, rounded to bf16 once. */
static __device__ __forceinline__ uint32_t fuse_bf16(uint32_t a, uint32_t b, uint32_t c) {
    return as_word(__hfma2(as_pair(a), as_pair(b), as_pair(c)));
}

/* Returns +-2^n as a pair of bf16. */
static __device__ __forceinline__ constexpr uint32_t power_pair(int n, bool negative = false) {
    return (uint32_t)((n + 127) << 7 | negative << 15) * 0x00010001u;
}

/* ---- elements: UNIT[i % 2] is the exponent of what 1 in register i stands for, and OFFSET the
 * exponent of what is taken off, if HAS_OFFSET.  take() makes the registers of a fragment from the
 * lane's words of it, of BITS / 4 words, without scales ---- */

struct elements_i4 {
    static constexpr int BITS = 4, OFFSET = 3, UNIT_EVEN = -133, UNIT_ODD = -129;
    static constexpr bool HAS_OFFSET = true;
    static __device__ __forceinline__ void take(const uint32_t *words, uint32_t (&a)[4]) {
        a[0] = words[0] & 0x000f000fu;
        a[1] = words[0] & 0x00f000f0u;
        a[2] = words[0] >> 8 & 0x000f000fu;
        a[3] = words[0] >> 8 & 0x00f000f0u;
    }
};

/* The bit of the sign stands for -128: with it turned over the byte is the number plus 128. */
struct elements_i8 {
    static constexpr int BITS = 8, OFFSET = 7, UNIT_EVEN = -133, UNIT_ODD = -133;
    static constexpr bool HAS_OFFSET = true;
    static __device__ __forceinline__ void take(const uint32_t *words, uint32_t (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[2 * i] = (words[i] >> 8 & 0x00ff00ffu) ^ 0x00800080u;
            a[2 * i + 1] = (words[i] & 0x00ff00ffu) ^ 0x00800080u;
        }
    }
};

/* The sign to bit 15, exponent and mantissa to bits 4 to 10. */
struct elements_e4m3 {
    static constexpr int BITS = 8, OFFSET = 0, UNIT_EVEN = -120, UNIT_ODD = -120;
    static constexpr bool HAS_OFFSET = false;
    static __device__ __forceinline__ void take(const uint32_t *words, uint32_t (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[2 * i] = (words[i] & 0x80008000u) | (words[i] >> 4 & 0x07f007f0u);
            a[2 * i + 1] = (words[i] << 8 & 0x80008000u) | (words[i] << 4 & 0x07f007f0u);
        }
    }
};

/* The sign to bit 15, exponent and mantissa to bits 6 to 8. */
struct elements_e2m1 {
    static constexpr int BITS = 4, OFFSET = 0, UNIT_EVEN = -126, UNIT_ODD = -126;
    static constexpr bool HAS_OFFSET = false;
    static __device__ __forceinline__ void take(const uint32_t *words, uint32_t (&a)[4]) {
        /* A product is the code twice, at both places. */
        const uint32_t w = words[0], high = w >> 8;
        a[0] = (w & 0x000f000fu) * 0x1040u & 0x81c081c0u;
        a[1] = (w & 0x00f000f0u) * 0x104u & 0x81c081c0u;
        a[2] = (high & 0x000f000fu) * 0x1040u & 0x81c081c0u;
        a[3] = (high & 0x00f000f0u) * 0x104u & 0x81c081c0u;
    }
};

/* ---- scales as they are stored: of the 16 rows of a strip's block row r lies at
 * 2 * (r % 8) + r / 8.  load() sets x to the scales of the lane's two rows, from the shared memory
 * where those of the strip begin ---- */

/* Returns the low or, if `second`, the high 16 bits of `two` in both halves. */
static __device__ __forceinline__ uint32_t both_halves(uint32_t two, bool second) {
    return __byte_perm(two, two, second ? 0x3232 : 0x1010);
}

struct scale_bf16 {
    static constexpr int BYTES = 2;
    static constexpr bool IS_BF16 = true;
    static __device__ __forceinline__ void load(const unsigned char *at, float (&x)[2]) {
        const float2 two = unpack_bf16(load_shared(shared_at(at + threadIdx.x % 32 / 4 * 4)));
        x[0] = two.x, x[1] = two.y;
    }
};

struct scale_f16 {
    static constexpr int BYTES = 2;
    static constexpr bool IS_BF16 = false;
    static __device__ __forceinline__ void load(const unsigned char *at, float (&x)[2]) {
        const float2 two =
            unpack_pair<__half>(load_shared(shared_at(at + threadIdx.x % 32 / 4 * 4)));
        x[0] = two.x, x[1] = two.y;
    }
};

struct scale_f32 {
    static constexpr int BYTES = 4;
    static constexpr bool IS_BF16 = false;
    static __device__ __forceinline__ void load(const unsigned char *at, float (&x)[2]) {
        uint32_t two[2];
        load_shared_two(two, shared_at(at + threadIdx.x % 32 / 4 * 8));
        x[0] = __uint_as_float(two[0]), x[1] = __uint_as_float(two[1]);
    }
};

/* Powers of two: 2^(code - 127), or NaN for 255. */
struct scale_e8m0 {
    static constexpr int BYTES = 1;
    static constexpr bool IS_BF16 = true;
    /* Returns the value of a code; 2^-127 is a subnormal number. */
    static __device__ __forceinline__ float value(uint32_t code) {
        return __uint_as_float(code == 255 ? 0x7fc00000u : max(code << 23, 0x00400000u));
    }
    static __device__ __forceinline__ void load(const unsigned char *at, float (&x)[2]) {
        const shared_at two = at + threadIdx.x % 32 / 4 * 2;
        x[0] = value(load_shared_byte(two)), x[1] = value(load_shared_byte(two.address + 1));
    }
};

/* One scale for a whole row, with which the sums are multiplied. */
struct scale_whole {
    static constexpr int BYTES = 0;
    static constexpr bool IS_BF16 = true;
};

/* A scale in f32 for a block of rows and columns.  All outputs of a warpgroup are in the same
 * block, so it comes in a register: packed_tile.cuh. */
struct scale_block {
    static constexpr int BYTES = 0;
    static constexpr bool IS_BF16 = false;
};

/* ---- scales as they are applied: set() takes a scale, whether its registers are odd, and a
 * minimum.  apply() returns a pair of elements, as take() made it, times the scale ---- */

/* Returns a pair of bf16 that are both x, rounded. */
static __device__ __forceinline__ uint32_t both_bf16(float x) {
    return pack_bf16(x, x);
}

/* A scale that is a bf16. */
template <class Elements> struct factor_bf16 {
    uint32_t scale, offset;
    __device__ __forceinline__ void set(float x, bool odd, float) {
        const uint32_t both = both_bf16(x);
        scale = multiply_bf16(both, odd ? power_pair(-Elements::UNIT_ODD - POWER)
                                        : power_pair(-Elements::UNIT_EVEN - POWER));
        offset = multiply_bf16(both, power_pair(Elements::OFFSET - POWER, true));
    }
    __device__ __forceinline__ uint32_t apply(uint32_t pair, bool) const {
        return Elements::HAS_OFFSET ? fuse_bf16(pair, scale, offset) : multiply_bf16(pair, scale);
    }
};

/* A scale as the sum of two bf16. */
template <class Elements> struct factor_sum {
    uint32_t high, low;
    __device__ __forceinline__ void set(float x, bool, float) {
        high = both_bf16(x);
        low = both_bf16(x - __uint_as_float(high & 0xffff0000u));
    }
    __device__ __forceinline__ uint32_t apply(uint32_t pair, bool odd) const {
        const uint32_t unit = odd ? power_pair(-Elements::UNIT_ODD - POWER)
                                  : power_pair(-Elements::UNIT_EVEN - POWER),
                       x = Elements::HAS_OFFSET
                               ? fuse_bf16(pair, unit, power_pair(Elements::OFFSET - POWER, true))
                               : multiply_bf16(pair, unit);
        return fuse_bf16(x, high, multiply_bf16(x, low));
    }
};

/* A scale and a minimum in f32; their sum is rounded once. */
template <class Elements> struct factor_and_min {
    float scale, min;
    __device__ __forceinline__ void set(float x, bool odd, float least) {
        const int unit = odd ? Elements::UNIT_ODD : Elements::UNIT_EVEN;
        scale = x * exp2f((float)(-unit - POWER));
        if (Elements::HAS_OFFSET) least -= x * exp2f((float)Elements::OFFSET);
        min = least * exp2f((float)-POWER);
    }
    __device__ __forceinline__ uint32_t apply(uint32_t pair, bool) const {
        const float2 x = unpack_bf16(pair);
        return pack_bf16(__fmaf_rn(x.x, scale, min), __fmaf_rn(x.y, scale, min));
    }
};

/* ---- formats ---- */

/* PER: columns of a scale's block: 16, 32, 64 or a multiple of 128. */
template <class Elements_, class Scale_, int PER_, bool HAS_MIN_ = false> struct packed_format {
    typedef Elements_ Elements;
    typedef Scale_ Scale;
    static constexpr int PER = PER_, VECTORS = Elements::BITS / 4; /* of a lane, in 64 columns */
    static constexpr bool HAS_MIN = HAS_MIN_, IN_STRIPS = Scale::BYTES > 0,
                          IS_WHOLE = std::is_same_v<Scale, scale_whole>,
                          OF_BLOCKS = std::is_same_v<Scale, scale_block>;
    static constexpr float SUM_SCALE = (float)(1 << POWER);
    typedef std::conditional_t<
        HAS_MIN, factor_and_min<Elements>,
        std::conditional_t<Scale::IS_BF16, factor_bf16<Elements>, factor_sum<Elements>>>
        factor;
};

/* Makes a fragment in bf16 of the lane's words of 16 columns: of one word if elements have 4 bits,
 * of two if 8.  factors: of the lane's two rows. */
template <class Format>
static __device__ __forceinline__ void make_fragment(const uint32_t *words,
                                                     const typename Format::factor (&factors)[2],
                                                     uint32_t (&a)[4]) {
    Format::Elements::take(words, a);
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = factors[i % 2].apply(a[i], i % 2);
}

#endif
