/* packed_codes.cuh - packed elements as fragments for tensor cores, where their bits lie.
 *
 * The bits of a code, moved to a place in a bf16, are a tiny number that is proportional to the
 * element.  Bits 0 to 7 of a bf16 are linear, since numbers below 2^-126 run on into the least
 * exponent.  Nothing is multiplied or rounded.  x is multiplied by CODES_X before, so that products
 * are far from the least f32.  A sum is multiplied by what its rows of W need:
 *
 *   I4     code * 2^-133, or code * 2^-129 in the rows from 8 on; the 8 that the code has too much
 *          is taken off through the sum of x
 *   I8     the same with code + 128 and 2^-133
 *   E4M3   * 2^-120: exponent and mantissa in bits 4 to 10.  NaNs become 480 and -480
 *   E2M1   * 2^-126: exponent and mantissa in bits 6 to 8
 *
 * A lane's words of a strip (strips.h) are fragments of matrix A of mma.m16n8k16: 4 bits, a word
 * each; 8 bits, two words.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_LINEAR_PACKED_CODES_CUH
#define CUDA_LINEAR_PACKED_CODES_CUH

#include "cuda/common/device.cuh"

/* x may be up to 2^79, and products are exact from 2^-41 on. */
static constexpr float CODES_X = 0x1p48f;

/* LOW and HIGH: what sums of the first and the last 8 rows are multiplied by.  OFFSET: pairs to be
 * added to the fragments of both; 0: none.  SUM: the sum of x over that of LOW's OFFSET times x.
 * fragment() makes fragment number i of a lane's words, 16 columns, in a. */
struct codes_i4 {
    static constexpr int BITS = 4;
    static constexpr float LOW = 0x1p85f, HIGH = 0x1p81f, SUM = -0x1p82f;
    static constexpr uint32_t OFFSET[2] = {0x80088008, 0x80808080};
    static __device__ __forceinline__ void fragment(const uint32_t *words, int i,
                                                    uint32_t (&a)[4]) {
        const uint32_t word = words[i], high = word >> 8;
        a[0] = word & 0x000f000f, a[1] = word & 0x00f000f0;
        a[2] = high & 0x000f000f, a[3] = high & 0x00f000f0;
    }
};

struct codes_i8 {
    static constexpr int BITS = 8;
    static constexpr float LOW = 0x1p85f, HIGH = LOW, SUM = -0x1p78f;
    static constexpr uint32_t OFFSET[2] = {0x80808080, 0x80808080};
    /* Returns bytes 0 and 2, plus 128.  One instruction; two operations in C become two. */
    static __device__ __forceinline__ uint32_t pair(uint32_t word) {
        uint32_t codes;
        asm("lop3.b32 %0, %1, %2, %3, 0x28;"
            : "=r"(codes)
            : "r"(word), "r"(0x00800080), "r"(0x00ff00ff));
        return codes;
    }
    static __device__ __forceinline__ void fragment(const uint32_t *words, int i,
                                                    uint32_t (&a)[4]) {
        a[0] = pair(words[2 * i] >> 8), a[1] = pair(words[2 * i]);
        a[2] = pair(words[2 * i + 1] >> 8), a[3] = pair(words[2 * i + 1]);
    }
};

struct codes_e4m3 {
    static constexpr int BITS = 8;
    static constexpr float LOW = 0x1p72f, HIGH = LOW, SUM = 0;
    static constexpr uint32_t OFFSET[2] = {0, 0};
    static __device__ __forceinline__ void fragment(const uint32_t *words, int i,
                                                    uint32_t (&a)[4]) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t word = words[2 * i + k];
            a[2 * k] = (word & 0x80008000) | (word >> 4 & 0x07f007f0);
            a[2 * k + 1] = (word << 8 & 0x80008000) | (word << 4 & 0x07f007f0);
        }
    }
};

struct codes_e2m1 {
    static constexpr int BITS = 4;
    static constexpr float LOW = 0x1p78f, HIGH = LOW, SUM = 0;
    static constexpr uint32_t OFFSET[2] = {0, 0};
    static __device__ __forceinline__ void fragment(const uint32_t *words, int i,
                                                    uint32_t (&a)[4]) {
        /* A product is the code twice: its sign at bit 15, and the rest from bit 6 on. */
        const uint32_t word = words[i], high = word >> 8;
        a[0] = (word & 0x000f000f) * 0x1040 & 0x81c081c0;
        a[1] = (word & 0x00f000f0) * 0x104 & 0x81c081c0;
        a[2] = (high & 0x000f000f) * 0x1040 & 0x81c081c0;
        a[3] = (high & 0x00f000f0) * 0x104 & 0x81c081c0;
    }
};

/* Returns 2^(code - 127); 255, which is NaN, becomes infinity. */
static __device__ __forceinline__ float e8m0_value(uint32_t code) {
    return __uint_as_float(max(code << 23, 0x00400000u));
}

#endif
