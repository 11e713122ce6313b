/* canonical.c - see canonical.h. */
#include "engine/model/canonical.h"

#include <string.h>

#include "engine/device/half.h"
#include "engine/device/packed.h"

enum { E8M0_NAN = 0xff };

/* The format of each packed type.  shift: what is subtracted from values so that four bits hold
 * them; mins make up for it. */
static const struct canonical {
    struct weight_format format;
    uint8_t shift;
} all[] = {
    [ELEMENT_Q4_0 - ELEMENT_Q4_0] = {{ELEMENT_I4, SCALE_F16, 1, 32, false}, 0},
    [ELEMENT_Q4_1 - ELEMENT_Q4_0] = {{ELEMENT_I4, SCALE_F16, 1, 32, true}, 8},
    [ELEMENT_Q5_0 - ELEMENT_Q4_0] = {{ELEMENT_I8, SCALE_F16, 1, 32, false}, 0},
    [ELEMENT_Q5_1 - ELEMENT_Q4_0] = {{ELEMENT_I8, SCALE_F16, 1, 32, true}, 0},
    [ELEMENT_Q8_0 - ELEMENT_Q4_0] = {{ELEMENT_I8, SCALE_F16, 1, 32, false}, 0},
    [ELEMENT_IQ4_NL - ELEMENT_Q4_0] = {{ELEMENT_I8, SCALE_F16, 1, 32, false}, 0},
    [ELEMENT_MXFP4 - ELEMENT_Q4_0] = {{ELEMENT_E2M1, SCALE_E8M0, 1, 32, false}, 0},
    [ELEMENT_Q2_K - ELEMENT_Q4_0] = {{ELEMENT_I4, SCALE_F16, 1, 16, true}, 0},
    [ELEMENT_Q3_K - ELEMENT_Q4_0] = {{ELEMENT_I4, SCALE_F16, 1, 16, false}, 0},
    [ELEMENT_Q4_K - ELEMENT_Q4_0] = {{ELEMENT_I4, SCALE_F16, 1, 32, true}, 8},
    [ELEMENT_Q5_K - ELEMENT_Q4_0] = {{ELEMENT_I8, SCALE_F16, 1, 32, true}, 0},
    [ELEMENT_Q6_K - ELEMENT_Q4_0] = {{ELEMENT_I8, SCALE_F16, 1, 16, false}, 0},
    [ELEMENT_IQ4_XS - ELEMENT_Q4_0] = {{ELEMENT_I8, SCALE_F16, 1, 32, false}, 0},
};

struct weight_format canonical_format(const struct weight_format *format) {
    return element_is_packed(format->element) ? all[format->element - ELEMENT_Q4_0].format
                                              : *format;
}

/* Writes four bits of each of n codes. */
static void put_nibbles(const uint8_t *codes, uint32_t n, uint8_t *out) {
    for (uint32_t i = 0; i < n; i += 2)
        out[i / 2] = (uint8_t)((codes[i] & 15) | (codes[i + 1] & 15) << 4);
}

/* Writes the elements of a block; out: those of the row, from the block's first on. */
static void put_elements(const struct packed_type *type, const struct packed_parts *parts,
                         const struct canonical *to, uint8_t *out) {
    uint8_t codes[PACKED_MOST];
    const int zero = to->format.element == ELEMENT_I4 ? 8 : 0;
    if (to->format.element == ELEMENT_E2M1) { /* its codes are the same */
        put_nibbles(parts->codes, type->n, out);
        return;
    }
    for (uint32_t i = 0; i < type->n; i++)
        codes[i] = (uint8_t)(packed_value(type, parts->codes[i]) - to->shift + zero);
    if (zero) put_nibbles(codes, type->n, out);
    else memcpy(out, codes, type->n);
}

/* Writes a scale or a min as number i of an array; returns false if it is NaN or infinite there. */
static bool put_f16(float value, void *array, size_t i) {
    uint16_t *out = (uint16_t *)array + i;
    weight_from_float(&value, 1, ELEMENT_F16, out);
    return half_is_finite(*out);
}

/* Does the same with the scale of E2M1.  The values of the packed type are twice as large. */
static bool put_e8m0(float half, void *array, size_t i) {
    const float scale = 2 * half;
    uint32_t bits;
    memcpy(&bits, &scale, sizeof(bits));
    ((uint8_t *)array)[i] = (uint8_t)(bits >> 23);
    return bits >> 23 != E8M0_NAN;
}

/* Writes the scales and mins of a block; first: the number of its first one in the matrix. */
static bool put_scales(const struct packed_type *type, const struct packed_parts *parts,
                       const struct canonical *to, const struct weight *matrix, size_t first) {
    bool finite = true;
    for (int span = 0; span < type->n / type->span; span++) {
        const float scale = packed_scale(type, parts, span);
        const size_t at = first + (size_t)span;
        finite &= to->format.scale == SCALE_E8M0 ? put_e8m0(scale, (void *)matrix->scales, at)
                                                 : put_f16(scale, (void *)matrix->scales, at);
        if (type->has_min)
            finite &= put_f16(packed_min(type, parts, span) + (float)to->shift * scale,
                              (void *)matrix->mins, at);
    }
    return finite;
}

bool canonical_row(const struct weight *packed, uint32_t row, const struct weight *to) {
    const struct packed_type *type = packed_type(packed->format.element);
    const struct canonical *canonical = &all[packed->format.element - ELEMENT_Q4_0];
    const uint8_t *block = weight_row_at(packed, row);
    uint8_t *out = (uint8_t *)weight_row_at(to, row);
    const size_t row_scales = (size_t)row * (packed->cols / type->span);
    bool finite = true;
    for (uint32_t i = 0; i < packed->cols; i += type->n, block += type->bytes) {
        struct packed_parts parts;
        packed_split(type, block, &parts);
        put_elements(type, &parts, canonical, out + element_bytes(to->format.element, i));
        finite &= put_scales(type, &parts, canonical, to, row_scales + i / type->span);
    }
    return finite;
}
