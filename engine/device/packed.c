/* packed.c - see packed.h. */
#include "engine/device/packed.h"

#include <stdint.h>
#include <string.h>

#include "engine/device/half.h"

enum { FEW = 32, MANY = 256 };

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* Values of E2M1, twice as large: whole numbers. */
static const int8_t twice_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float f16_at(const uint8_t *bytes) {
    return half_to_float((uint16_t)(bytes[0] | bytes[1] << 8));
}

/* Returns element i of 32, the halves of 16 bytes. */
static uint8_t half_code(const uint8_t *qs, int i) {
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static uint8_t fifth_bit(const uint8_t *qh, int i) {
    return (uint8_t)((qh[i / 8] >> i % 8 & 1) << 4);
}

static void q4_0(const uint8_t *b, float *out) {
    const float d = f16_at(b);
    for (int i = 0; i < FEW; i++) out[i] = d * (float)(half_code(b + 2, i) - 8);
}

static void q4_1(const uint8_t *b, float *out) {
    const float d = f16_at(b), m = f16_at(b + 2);
    for (int i = 0; i < FEW; i++) out[i] = d * (float)half_code(b + 4, i) + m;
}

static void q5_0(const uint8_t *b, float *out) {
    const float d = f16_at(b);
    for (int i = 0; i < FEW; i++)
        out[i] = d * (float)((half_code(b + 6, i) | fifth_bit(b + 2, i)) - 16);
}

static void q5_1(const uint8_t *b, float *out) {
    const float d = f16_at(b), m = f16_at(b + 2);
    for (int i = 0; i < FEW; i++)
        out[i] = d * (float)(half_code(b + 8, i) | fifth_bit(b + 4, i)) + m;
}

static void q8_0(const uint8_t *b, float *out) {
    const float d = f16_at(b);
    for (int i = 0; i < FEW; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

static void iq4_nl(const uint8_t *b, float *out) {
    const float d = f16_at(b);
    for (int i = 0; i < FEW; i++) out[i] = d * (float)iq4_values[half_code(b + 2, i)];
}

/* Returns 2^(code - 128); the two least ones are subnormal. */
static float half_of_e8m0(uint8_t code) {
    const uint32_t bits = code < 2 ? UINT32_C(0x00200000) << code : (uint32_t)(code - 1) << 23;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void mxfp4(const uint8_t *b, float *out) {
    const float d = half_of_e8m0(b[0]);
    for (int i = 0; i < FEW; i++) out[i] = d * (float)twice_e2m1[half_code(b + 1, i)];
}

/* Returns code i of 2 bits: 128 of them lie in 32 bytes, 32 in each pair of bits. */
static uint8_t two_bits(const uint8_t *qs, int i) {
    return qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static void q2_k(const uint8_t *b, float *out) {
    const uint8_t *scales = b, *qs = b + 16;
    const float d = f16_at(b + 80), dmin = f16_at(b + 82);
    for (int i = 0; i < MANY; i++) {
        const uint8_t scale = scales[i / 16];
        out[i] = d * (float)(scale & 15) * (float)two_bits(qs, i) - dmin * (float)(scale >> 4);
    }
}

/* Returns scale i of 16, of 6 bits: the low 4 lie in 8 bytes, the high 2 in 4 more. */
static int q3_scale(const uint8_t *scales, int i) {
    const int low = scales[i % 8] >> i / 8 * 4 & 15, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
    return (low | high << 4) - 32;
}

static void q3_k(const uint8_t *b, float *out) {
    const uint8_t *hmask = b, *qs = b + 32;
    const float d = f16_at(b + 108);
    for (int i = 0; i < MANY; i++) {
        const int less = hmask[i % 32] >> i / 32 & 1 ? 0 : 4;
        out[i] = d * (float)q3_scale(b + 96, i / 16) * (float)(two_bits(qs, i) - less);
    }
}

/* Reads scale and minimum i of 8, of 6 bits each, from 12 bytes. */
static void q4_scale(const uint8_t *s, int i, uint8_t *scale, uint8_t *min) {
    if (i < 4) {
        *scale = s[i] & 63;
        *min = s[i + 4] & 63;
    } else {
        *scale = (uint8_t)((s[i + 4] & 15) | (s[i - 4] >> 2 & 0x30));
        *min = (uint8_t)(s[i + 4] >> 4 | (s[i] >> 2 & 0x30));
    }
}

/* Computes a block of Q4_K, or of Q5_K if there are fifth bits. */
static void q45_k(const uint8_t *b, const uint8_t *qh, const uint8_t *qs, float *out) {
    const float d = f16_at(b), dmin = f16_at(b + 2);
    for (int i = 0; i < 8; i++) {
        uint8_t scale, min;
        q4_scale(b + 4, i, &scale, &min);
        const float dl = d * (float)scale, ml = dmin * (float)min;
        for (int j = 0; j < 32; j++) {
            const int low = qs[i / 2 * 32 + j] >> i % 2 * 4 & 15,
                      high = qh ? (qh[j] >> i & 1) << 4 : 0;
            out[i * 32 + j] = dl * (float)(low | high) - ml;
        }
    }
}

static void q4_k(const uint8_t *b, float *out) {
    q45_k(b, NULL, b + 16, out);
}

static void q5_k(const uint8_t *b, float *out) {
    q45_k(b, b + 16, b + 48, out);
}

static void q6_k(const uint8_t *b, float *out) {
    const uint8_t *ql = b, *qh = b + 128, *scales = b + 192;
    const float d = f16_at(b + 208);
    for (int i = 0; i < MANY; i++) {
        const int low = ql[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15,
                  code = low | two_bits(qh, i) << 4;
        out[i] = d * (float)(int8_t)scales[i / 16] * (float)(code - 32);
    }
}

static void iq4_xs(const uint8_t *b, float *out) {
    const uint8_t *scales_l = b + 4, *qs = b + 8;
    const int scales_h = b[2] | b[3] << 8;
    const float d = f16_at(b);
    for (int i = 0; i < 8; i++) {
        const int low = scales_l[i / 2] >> i % 2 * 4 & 15, high = scales_h >> 2 * i & 3;
        const float dl = d * (float)((low | high << 4) - 32);
        for (int j = 0; j < 32; j++)
            out[i * 32 + j] = dl * (float)iq4_values[half_code(qs + i * 16, j)];
    }
}

static const struct packed {
    const char *name;
    uint16_t n, bytes; /* of a block */
    void (*values)(const uint8_t *block, float *out);
} all[] = {{"Q4_0", FEW, 18, q4_0},      {"Q4_1", FEW, 20, q4_1},   {"Q5_0", FEW, 22, q5_0},
           {"Q5_1", FEW, 24, q5_1},      {"Q8_0", FEW, 34, q8_0},   {"IQ4_NL", FEW, 18, iq4_nl},
           {"MXFP4", FEW, 17, mxfp4},    {"Q2_K", MANY, 84, q2_k},  {"Q3_K", MANY, 110, q3_k},
           {"Q4_K", MANY, 144, q4_k},    {"Q5_K", MANY, 176, q5_k}, {"Q6_K", MANY, 210, q6_k},
           {"IQ4_XS", MANY, 136, iq4_xs}};

static const struct packed *find(enum element element) {
    return &all[element - ELEMENT_Q4_0];
}

uint32_t packed_block(enum element element) {
    return find(element)->n;
}

size_t packed_bytes(enum element element, size_t n) {
    return n / find(element)->n * find(element)->bytes;
}

const char *packed_name(enum element element) {
    return find(element)->name;
}

void packed_to_float(enum element element, const void *blocks, size_t n, float *out) {
    const struct packed *packed = find(element);
    const uint8_t *block = blocks;
    for (size_t i = 0; i < n; i += packed->n, block += packed->bytes)
        packed->values(block, out + i);
}
