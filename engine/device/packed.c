/* packed.c - see packed.h. */
#include "engine/device/packed.h"

#include <string.h>

#include "engine/device/half.h"

enum { FEW = 32, MANY = 256 };

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* Values of E2M1, twice as large: whole numbers. */
static const int8_t twice_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static uint16_t f16_at(const uint8_t *bytes) {
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

/* Writes 32 codes of 4 bits, the halves of 16 bytes. */
static void halves(const uint8_t *qs, uint8_t *codes) {
    for (int i = 0; i < 16; i++) {
        codes[i] = qs[i] & 15;
        codes[i + 16] = qs[i] >> 4;
    }
}

static void add_fifth_bits(const uint8_t *qh, uint8_t *codes) {
    for (int i = 0; i < FEW; i++) codes[i] |= (uint8_t)((qh[i / 8] >> i % 8 & 1) << 4);
}

/* Splits Q4_0 and IQ4_NL. */
static void q4_0(const uint8_t *b, struct packed_parts *out) {
    out->d = f16_at(b);
    halves(b + 2, out->codes);
}

static void q4_1(const uint8_t *b, struct packed_parts *out) {
    out->d = f16_at(b);
    out->m = f16_at(b + 2);
    halves(b + 4, out->codes);
}

static void q5_0(const uint8_t *b, struct packed_parts *out) {
    out->d = f16_at(b);
    halves(b + 6, out->codes);
    add_fifth_bits(b + 2, out->codes);
}

static void q5_1(const uint8_t *b, struct packed_parts *out) {
    out->d = f16_at(b);
    out->m = f16_at(b + 2);
    halves(b + 8, out->codes);
    add_fifth_bits(b + 4, out->codes);
}

static void q8_0(const uint8_t *b, struct packed_parts *out) {
    out->d = f16_at(b);
    for (int i = 0; i < FEW; i++) out->codes[i] = b[2 + i] ^ 0x80;
}

/* Takes half of the scale, so that values are whole numbers. */
static void mxfp4(const uint8_t *b, struct packed_parts *out) {
    out->d = half_of_e8m0(b[0]);
    halves(b + 1, out->codes);
}

/* Returns code i of 2 bits: 128 of them lie in 32 bytes, 32 in each pair of bits. */
static uint8_t two_bits(const uint8_t *qs, int i) {
    return qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static void q2_k(const uint8_t *b, struct packed_parts *out) {
    out->d = f16_at(b + 80);
    out->m = f16_at(b + 82);
    for (int i = 0; i < PACKED_SPANS; i++) {
        out->scales[i] = b[i] & 15;
        out->mins[i] = b[i] >> 4;
    }
    for (int i = 0; i < MANY; i++) out->codes[i] = two_bits(b + 16, i);
}

/* Returns scale i of 16, of 6 bits: the low 4 lie in 8 bytes, the high 2 in 4 more. */
static int8_t q3_scale(const uint8_t *scales, int i) {
    const int low = scales[i % 8] >> i / 8 * 4 & 15, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
    return (int8_t)((low | high << 4) - 32);
}

static void q3_k(const uint8_t *b, struct packed_parts *out) {
    out->d = f16_at(b + 108);
    for (int i = 0; i < PACKED_SPANS; i++) out->scales[i] = q3_scale(b + 96, i);
    for (int i = 0; i < MANY; i++)
        out->codes[i] = (uint8_t)(two_bits(b + 32, i) | (b[i % 32] >> i / 32 & 1) << 2);
}

/* Reads scale and minimum i of 8, of 6 bits each, from 12 bytes. */
static void q4_scale(const uint8_t *s, int i, struct packed_parts *out) {
    if (i < 4) {
        out->scales[i] = s[i] & 63;
        out->mins[i] = s[i + 4] & 63;
    } else {
        out->scales[i] = (int8_t)((s[i + 4] & 15) | (s[i - 4] >> 2 & 0x30));
        out->mins[i] = (uint8_t)(s[i + 4] >> 4 | (s[i] >> 2 & 0x30));
    }
}

static void q4_k(const uint8_t *b, struct packed_parts *out) {
    const uint8_t *qs = b + 16;
    out->d = f16_at(b);
    out->m = f16_at(b + 2);
    for (int i = 0; i < 8; i++) q4_scale(b + 4, i, out);
    for (int i = 0; i < MANY; i++) out->codes[i] = qs[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}

static void q5_k(const uint8_t *b, struct packed_parts *out) {
    const uint8_t *qh = b + 16, *qs = b + 48;
    out->d = f16_at(b);
    out->m = f16_at(b + 2);
    for (int i = 0; i < 8; i++) q4_scale(b + 4, i, out);
    for (int i = 0; i < MANY; i++)
        out->codes[i] = (uint8_t)((qs[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15) |
                                  (qh[i % 32] >> i / 32 & 1) << 4);
}

static void q6_k(const uint8_t *b, struct packed_parts *out) {
    out->d = f16_at(b + 208);
    memcpy(out->scales, b + 192, PACKED_SPANS);
    for (int i = 0; i < MANY; i++)
        out->codes[i] = (uint8_t)((b[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15) |
                                  two_bits(b + 128, i) << 4);
}

static void iq4_xs(const uint8_t *b, struct packed_parts *out) {
    const int scales_h = b[2] | b[3] << 8;
    out->d = f16_at(b);
    for (int i = 0; i < 8; i++) {
        const int low = b[4 + i / 2] >> i % 2 * 4 & 15, high = scales_h >> 2 * i & 3;
        out->scales[i] = (int8_t)((low | high << 4) - 32);
        halves(b + 8 + i * 16, out->codes + i * 32);
    }
}

static const struct packed_type all[] = {
    {"Q4_0", FEW, 18, 32, 4, 8, false, NULL, q4_0},
    {"Q4_1", FEW, 20, 32, 4, 0, true, NULL, q4_1},
    {"Q5_0", FEW, 22, 32, 5, 16, false, NULL, q5_0},
    {"Q5_1", FEW, 24, 32, 5, 0, true, NULL, q5_1},
    {"Q8_0", FEW, 34, 32, 8, 128, false, NULL, q8_0},
    {"IQ4_NL", FEW, 18, 32, 4, 0, false, iq4_values, q4_0},
    {"MXFP4", FEW, 17, 32, 4, 0, false, twice_e2m1, mxfp4},
    {"Q2_K", MANY, 84, 16, 4, 0, true, NULL, q2_k},
    {"Q3_K", MANY, 110, 16, 4, 4, false, NULL, q3_k},
    {"Q4_K", MANY, 144, 32, 4, 0, true, NULL, q4_k},
    {"Q5_K", MANY, 176, 32, 5, 0, true, NULL, q5_k},
    {"Q6_K", MANY, 210, 16, 6, 32, false, NULL, q6_k},
    {"IQ4_XS", MANY, 136, 32, 4, 0, false, iq4_values, iq4_xs}};

const struct packed_type *packed_type(enum element element) {
    return &all[element - ELEMENT_Q4_0];
}

uint32_t packed_block(enum element element) {
    return packed_type(element)->n;
}

size_t packed_bytes(enum element element, size_t n) {
    return n / packed_type(element)->n * packed_type(element)->bytes;
}

void packed_split(const struct packed_type *type, const void *block, struct packed_parts *out) {
    out->m = 0;
    memset(out->scales, 1, sizeof(out->scales));
    memset(out->mins, 1, sizeof(out->mins));
    type->split(block, out);
}

static float upper_half(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

float packed_scale(const struct packed_type *type, const struct packed_parts *parts, int span) {
    const float d = type->split == mxfp4 ? upper_half(parts->d) : half_to_float(parts->d);
    return d * (float)parts->scales[span];
}

float packed_min(const struct packed_type *type, const struct packed_parts *parts, int span) {
    const float m = type->n == FEW ? half_to_float(parts->m) : -half_to_float(parts->m);
    return m * (float)parts->mins[span];
}

/* Writes the values of a block. */
static void values_of(const struct packed_type *type, const uint8_t *block, float *out) {
    struct packed_parts parts;
    packed_split(type, block, &parts);
    for (int i = 0; i < type->n;) {
        const int span = i / type->span;
        const float scale = packed_scale(type, &parts, span), min = packed_min(type, &parts, span);
        for (int end = i + type->span; i < end; i++) {
            out[i] = scale * (float)packed_value(type, parts.codes[i]);
            if (type->has_min) out[i] += min;
        }
    }
}

void packed_to_float(enum element element, const void *blocks, size_t n, float *out) {
    const struct packed_type *type = packed_type(element);
    const uint8_t *block = blocks;
    for (size_t i = 0; i < n; i += type->n, block += type->bytes) values_of(type, block, out + i);
}
