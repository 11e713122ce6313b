/* packed.h - elements that lie in blocks with their scales, as GGUF files have them.
 *
 * Numbers are little-endian, d, m and dmin are f16.  "Halves": the low 4 bits of byte j are element
 * j, and the high ones element j + 16.
 *
 *   Q4_0    32 elements in 18 bytes   d  qs[16]                 halves; d (q - 8)
 *   Q4_1    32             20         d  m  qs[16]              halves; d q + m
 *   Q5_0    32             22         d  qh[4]  qs[16]          halves, bit j of qh is the fifth;
 *                                                               d (q - 16)
 *   Q5_1    32             24         d  m  qh[4]  qs[16]       as Q5_0; d q + m
 *   Q8_0    32             34         d  i8 q[32]               d q
 *   IQ4_NL  32             18         d  qs[16]                 halves; d table[q]
 *   MXFP4   32             17         e  qs[16]                 halves; 2^(e - 128) twice[q]
 *   Q2_K   256             84         scales[16]  qs[64]  d  dmin
 *   Q3_K   256            110         hmask[32]  qs[64]  scales[12]  d
 *   Q4_K   256            144         d  dmin  scales[12]  qs[128]
 *   Q5_K   256            176         d  dmin  scales[12]  qh[32]  qs[128]
 *   Q6_K   256            210         ql[128]  qh[64]  i8 scales[16]  d
 *   IQ4_XS 256            136         d  scales_h[2]  scales_l[4]  qs[128]
 *
 * In blocks of 256, each 16 or 32 elements have a scale, and in some types a minimum.  These are
 * whole numbers of 4, 6 or 8 bits, in units of d and dmin.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_PACKED_H
#define ENGINE_DEVICE_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/weight.h"

struct packed_parts;

/* What the blocks of a type have in common.  The value of an element is
 *
 *   d * scales[i / span] * value + min,   value = table[code], or code - offset without a table,
 *   min = m, or -m * mins[i / span] where spans have scales, or 0 where the type has none. */
struct packed_type {
    const char *name;
    uint16_t n, bytes; /* of a block: elements, and what they take */
    uint8_t span;      /* elements with a scale in common: n, 32 or 16 */
    uint8_t bits;      /* of a code: 4, 5, 6 or 8 */
    uint8_t offset;
    bool has_min;
    const int8_t *table; /* [16] */
    void (*split)(const uint8_t *block, struct packed_parts *out);
};

enum { PACKED_MOST = 256, PACKED_SPANS = 16 };

/* The numbers of a block.  What its type does not have is 1 (scales, mins) or 0 (m). */
struct packed_parts {
    uint8_t codes[PACKED_MOST];
    int8_t scales[PACKED_SPANS];
    uint8_t mins[PACKED_SPANS];
    uint16_t d, m; /* f16; of MXFP4 d is the upper half of an f32 */
};

const struct packed_type *packed_type(enum element element);

/* Writes the numbers of a block, exactly as they are in it. */
void packed_split(const struct packed_type *type, const void *block, struct packed_parts *out);

/* Returns the value of a code: a whole number. */
static inline int packed_value(const struct packed_type *type, uint8_t code) {
    return type->table ? type->table[code] : code - type->offset;
}
/* Returns the factor of a span's values, and what is added to their products: 0 if the type has no
 * minimums. */
float packed_scale(const struct packed_type *type, const struct packed_parts *parts, int span);
float packed_min(const struct packed_type *type, const struct packed_parts *parts, int span);

/* Writes the values of n elements, whole blocks: out [n].  Each is computed in f32, in the order of
 * operations that gguf-py has, and so it is equal to what that computes. */
void packed_to_float(enum element element, const void *blocks, size_t n, float *out);

#endif
