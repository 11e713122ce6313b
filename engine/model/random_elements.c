/* random_elements.c - see random_elements.h. */
#include "engine/model/random_elements.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/device/packed.h"

/* The sum of four uniform 16-bit numbers has a deviation of 65536 / sqrt(3). */
static const float SUM_MEAN = 4 * 32767.5f, SUM_SCALE = 1.7320508f / 65536;

enum { TABLE = 4096, SAMPLE = 64, MAX_BLOCK = 256 };

/* The largest element that a scale of 1 covers, and how many deviations that is.  It is about what
 * rounding to the largest of a row, or of a group, leaves. */
static const struct range {
    float largest, deviations;
} ranges[] = {[ELEMENT_E4M3] = {448, 4},
              [ELEMENT_I8] = {127, 4},
              [ELEMENT_I4] = {7.5f, 2.7f},
              [ELEMENT_E2M1] = {6, 3}};

/* Where the blocks of a packed element have their scale and their minimum.  `ratio` times the scale
 * is the minimum that makes the mean of random codes 0. */
static const struct place {
    int scale, min; /* bytes from the block's begin; min -1: there is none */
    float ratio;
} places[] = {{0, -1, 0},    {0, 2, -7.5f}, {0, -1, 0},     {0, 2, -15.5f}, {0, -1, 0},
              {0, -1, 0},    {0, -1, 0},    {80, 82, 1.5f}, {108, -1, 0},   {0, 2, 7.5f},
              {0, 2, 15.5f}, {208, -1, 0},  {0, -1, 0}};

uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Returns a number that is near normal, with deviation 1. */
static float next_normal(uint64_t *state) {
    const uint64_t z = random_next(state);
    const uint32_t sum =
        (uint32_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return ((float)sum - SUM_MEAN) * SUM_SCALE;
}

/* Returns a number from 0.75 to 1.25. */
static float next_factor(uint64_t *state) {
    return 0.75f + 0.5f * (float)(random_next(state) >> 40) * 0x1p-24f;
}

static void fill_bf16(uint64_t *state, size_t n, uint8_t *out) {
    for (size_t i = 0; i < n; i++) {
        const float x = next_normal(state) * RANDOM_DEVIATION;
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        const uint16_t high = (uint16_t)(bits >> 16);
        memcpy(out + i * sizeof(high), &high, sizeof(high));
    }
}

/* Returns the code of E8M0 whose power of two is nearest to x. */
static uint8_t to_e8m0(float x) {
    return (uint8_t)(ilogbf(x * 1.41421356f) + 127);
}

/* ---- elements of 4 and 8 bits ---- */

/* Returns the code whose value is nearest to x. */
static uint8_t nearest_code(const float *values, uint32_t n, float x) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (fabsf(values[i] - x) < fabsf(values[best] - x)) best = i; /* false for NaN */
    return (uint8_t)best;
}

/* Fills a table from which each code is drawn as often as a normal number is nearest to it. */
static void make_table(enum element element, uint64_t *state, uint8_t table[TABLE]) {
    const struct range *range = &ranges[element];
    const uint32_t n = 1u << element_bits(element);
    float values[256];
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t code = (uint8_t)i;
        const struct weight one = weight_plain(&code, element, 1, 1);
        weight_to_float(&one, 0, &values[i]);
    }
    for (uint32_t i = 0; i < TABLE; i++)
        table[i] = nearest_code(values, n, next_normal(state) * range->largest / range->deviations);
}

static void fill_codes(enum element element, uint64_t *state, size_t n, uint8_t *out) {
    uint8_t table[TABLE];
    const bool are_pairs = element_bits(element) == 4;
    make_table(element, state, table);
    for (size_t i = 0; i < n; i++) {
        const uint64_t z = random_next(state);
        const uint8_t first = table[z % TABLE], second = table[z / TABLE % TABLE];
        out[i] = are_pairs ? (uint8_t)(first | second << 4) : first;
    }
}

/* ---- packed blocks ---- */

static void put_f16(uint8_t *at, float value) {
    weight_from_float(&value, 1, ELEMENT_F16, at);
}

/* Gives a block of random bytes its scale.  MXFP4 has an exponent. */
static void scale_block(enum element element, float scale, uint8_t *block) {
    const struct place *place = &places[element - ELEMENT_Q4_0];
    if (element == ELEMENT_MXFP4) block[0] = to_e8m0(scale);
    else put_f16(block + place->scale, scale);
    if (place->min >= 0) put_f16(block + place->min, scale * place->ratio);
}

static float deviation_of(const float *values, size_t n) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += values[i], squares += (double)values[i] * values[i];
    sum /= (double)n;
    return (float)sqrt(squares / (double)n - sum * sum);
}

/* Returns the deviation of values in blocks with the scale 1. */
static float unit_deviation(enum element element, uint8_t *blocks) {
    const size_t bytes = random_element_bytes(element), n = packed_block(element);
    float values[SAMPLE * MAX_BLOCK];
    for (size_t i = 0; i < SAMPLE; i++) {
        scale_block(element, 1, blocks + i * bytes);
        packed_to_float(element, blocks + i * bytes, n, values + i * n);
    }
    return deviation_of(values, SAMPLE * n);
}

static void fill_packed(enum element element, uint64_t *state, size_t n, uint8_t *out) {
    const size_t bytes = random_element_bytes(element);
    assert(n >= SAMPLE);
    for (size_t i = 0; i < n * bytes; i++) out[i] = (uint8_t)(random_next(state) >> 32);
    const float scale = RANDOM_DEVIATION / unit_deviation(element, out);
    for (size_t i = 0; i < n; i++)
        scale_block(element, scale * next_factor(state), out + i * bytes);
}

size_t random_element_bytes(enum element element) {
    return element_is_packed(element) ? packed_bytes(element, packed_block(element))
                                      : (element_bits(element) + 7) / 8;
}

void random_elements_fill(const struct weight_format *format, uint64_t *state, size_t n,
                          uint8_t *out) {
    if (element_is_packed(format->element)) fill_packed(format->element, state, n, out);
    else if (format->element == ELEMENT_BF16) fill_bf16(state, n, out);
    else fill_codes(format->element, state, n, out);
}

/* ---- scales ---- */

/* Writes number i of some numbers of a type of scales. */
static void put_scale(enum scale_type type, float value, size_t i, uint8_t *out) {
    static const uint8_t elements[] = {
        [SCALE_F32] = ELEMENT_F32, [SCALE_F16] = ELEMENT_F16, [SCALE_BF16] = ELEMENT_BF16};
    if (type == SCALE_E8M0) out[i] = to_e8m0(value);
    else weight_from_float(&value, 1, elements[type], out + element_bytes(elements[type], 1) * i);
}

void random_scales_fill(const struct weight_format *format, uint64_t *state, size_t n,
                        uint8_t *scales, uint8_t *mins) {
    const struct range *range = &ranges[format->element];
    for (size_t i = 0; i < n; i++) {
        const float scale =
            RANDOM_DEVIATION * range->deviations / range->largest * next_factor(state);
        put_scale(format->scale, scale, i, scales);
        if (!format->has_min) continue;
        const float zero = (float)(random_next(state) % 5) - 2; /* of 16 codes, from the middle */
        put_scale(format->scale, -zero * scale, i, mins);
    }
}
