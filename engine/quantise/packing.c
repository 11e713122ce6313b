/* packing.c - see packing.h. */
#include "engine/quantise/packing.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/device/half.h"
#include "engine/device/packed.h"
#include "engine/quantise/rounding.h"

enum { FEW = 32, MANY = 256, N_SUBS = MANY / FEW, MAX_6_BITS = 63, MAX_4_BITS = 15 };
/* The search tries scales from STEPS steps less to STEPS more, each this part of a code. */
enum { STEPS = 9 };
static const float STEP = 0.1f;

const struct packing packings[] = {
    {"q8_0", ELEMENT_Q8_0, ELEMENT_Q8_0, 7},
    {"q5_0", ELEMENT_Q5_0, ELEMENT_Q5_0, 8},
    {"q4_0", ELEMENT_Q4_0, ELEMENT_Q4_0, 2},
    {"q4_k", ELEMENT_Q4_K, ELEMENT_Q5_0, 14},
    {0},
};

/* Writes a number as f16, and returns it as it is stored. */
static float put_f16(uint8_t *at, float value) {
    uint16_t bits;
    weight_from_float(&value, 1, ELEMENT_F16, &bits);
    memcpy(at, &bits, sizeof(bits));
    return half_to_float(bits);
}

static float inverse_of(float scale) {
    return scale != 0 ? 1 / scale : 0;
}

/* Returns x / scale as the nearest code from least to most.  A sum of 1.5 * 2^23 has no place for a
 * fraction; rintf() would be a call for each element. */
static float code_of(float x, float inverse, float least, float most) {
    const float whole = 12582912;
    const float code = x * inverse;
    return (code < least ? least : code > most ? most : code) + whole - whole;
}

/* Returns the element that is farthest from 0. */
static float farthest(const float *x) {
    float most = 0;
    for (int i = 0; i < FEW; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    return most;
}

/* ---- blocks of 32 with a scale ---- */

static void q8_0(const float *x, uint8_t *block) {
    const float inverse = inverse_of(put_f16(block, fabsf(farthest(x)) / 127));
    for (int i = 0; i < FEW; i++) block[2 + i] = (uint8_t)(int8_t)code_of(x[i], inverse, -127, 127);
}

/* Returns the scale that suits the codes which a first scale gives, and how well: the more, the
 * less is lost. */
static float fit_scale(const float *x, float scale, float half, float *gain) {
    const float inverse = inverse_of(scale);
    float products = 0, squares = 0;
    for (int i = 0; i < FEW; i++) {
        const float code = code_of(x[i], inverse, -half, half - 1);
        products += x[i] * code;
        squares += code * code;
    }
    *gain = squares > 0 ? products * products / squares : 0;
    return squares > 0 ? products / squares : 0;
}

/* Returns the best scale of codes from -half to half - 1.  The farthest element is near -half. */
static float search_scale(const float *x, float half) {
    const float far = farthest(x);
    float best = 0, best_gain = 0;
    for (int step = -STEPS; step <= STEPS; step++) {
        float gain;
        const float scale = fit_scale(x, far / -(half + STEP * (float)step), half, &gain);
        if (gain > best_gain) best = scale, best_gain = gain;
    }
    return best;
}

/* Writes the low 4 bits of codes as halves of bytes. */
static void put_halves(const uint8_t *codes, uint8_t *qs) {
    for (int i = 0; i < FEW / 2; i++) qs[i] = (uint8_t)((codes[i] & 15) | codes[i + FEW / 2] << 4);
}

static void q4_0(const float *x, uint8_t *block) {
    const float inverse = inverse_of(put_f16(block, search_scale(x, 8)));
    uint8_t codes[FEW];
    for (int i = 0; i < FEW; i++) codes[i] = (uint8_t)(code_of(x[i], inverse, -8, 7) + 8);
    put_halves(codes, block + 2);
}

static void q5_0(const float *x, uint8_t *block) {
    const float inverse = inverse_of(put_f16(block, search_scale(x, 16)));
    uint8_t codes[FEW];
    memset(block + 2, 0, 4);
    for (int i = 0; i < FEW; i++) {
        codes[i] = (uint8_t)(code_of(x[i], inverse, -16, 15) + 16);
        block[2 + i / 8] |= (uint8_t)((codes[i] >> 4) << i % 8);
    }
    put_halves(codes, block + 6);
}

/* ---- Q4_K ---- */

struct line {
    float scale, min; /* x is about scale * code - min; neither is negative */
};

/* Returns the line through the codes that a first line gives, by least squares. */
static struct line fit_line(const float *x, const struct line *first) {
    const float inverse = inverse_of(first->scale);
    float sum_l = 0, sum_l2 = 0, sum_x = 0, sum_xl = 0;
    for (int i = 0; i < FEW; i++) {
        const float l = code_of(x[i] + first->min, inverse, 0, MAX_4_BITS);
        sum_l += l;
        sum_l2 += l * l;
        sum_x += x[i];
        sum_xl += x[i] * l;
    }
    const float under = FEW * sum_l2 - sum_l * sum_l;
    if (under <= 0) return *first;
    const struct line free = {(FEW * sum_xl - sum_x * sum_l) / under,
                              (sum_l * sum_xl - sum_x * sum_l2) / under};
    if (free.min >= 0) return free;
    return (struct line){sum_l2 > 0 ? sum_xl / sum_l2 : 0, 0};
}

static float line_error(const float *x, const struct line *line) {
    const float inverse = inverse_of(line->scale);
    float sum = 0;
    for (int i = 0; i < FEW; i++) {
        const float code = code_of(x[i] + line->min, inverse, 0, MAX_4_BITS),
                    error = line->scale * code - line->min - x[i];
        sum += error * error;
    }
    return sum;
}

static struct line search_line(const float *x) {
    float least = 0, most = x[0], best_error = INFINITY;
    struct line best = {0};
    for (int i = 0; i < FEW; i++) least = fminf(least, x[i]), most = fmaxf(most, x[i]);
    for (int step = -STEPS; step <= STEPS; step++) {
        const struct line first = {(most - least) / (MAX_4_BITS + STEP * (float)step), -least},
                          line = fit_line(x, &first);
        const float error = line_error(x, &line);
        if (line.scale < 0 || !(error < best_error)) continue;
        best = line;
        best_error = error;
    }
    return best;
}

/* Writes scales and minimums of 6 bits: 4 of each in whole bytes, whose high bits have those of the
 * other 4. */
static void put_scales(const uint8_t *scales, const uint8_t *mins, uint8_t *out) {
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(scales[i] | (scales[i + 4] >> 4) << 6);
        out[i + 4] = (uint8_t)(mins[i] | (mins[i + 4] >> 4) << 6);
        out[i + 8] = (uint8_t)((scales[i + 4] & 15) | (mins[i + 4] & 15) << 4);
    }
}

static void q4_k(const float *x, uint8_t *block) {
    struct line lines[N_SUBS], most = {0};
    uint8_t scales[N_SUBS], mins[N_SUBS], codes[MANY];
    for (int i = 0; i < N_SUBS; i++) {
        lines[i] = search_line(x + i * FEW);
        most.scale = fmaxf(most.scale, lines[i].scale);
        most.min = fmaxf(most.min, lines[i].min);
    }
    const float d = put_f16(block, most.scale / MAX_6_BITS),
                dmin = put_f16(block + 2, most.min / MAX_6_BITS);
    for (int i = 0; i < N_SUBS; i++) {
        scales[i] = (uint8_t)code_of(lines[i].scale, inverse_of(d), 0, MAX_6_BITS);
        mins[i] = (uint8_t)code_of(lines[i].min, inverse_of(dmin), 0, MAX_6_BITS);
        const float inverse = inverse_of(d * scales[i]);
        for (int j = i * FEW; j < (i + 1) * FEW; j++)
            codes[j] = (uint8_t)code_of(x[j] + dmin * mins[i], inverse, 0, MAX_4_BITS);
    }
    put_scales(scales, mins, block + 4);
    for (int i = 0; i < MANY / 2; i++) {
        const uint8_t *pair = codes + i / FEW * 2 * FEW + i % FEW;
        block[16 + i] = (uint8_t)(pair[0] | pair[FEW] << 4);
    }
}

/* ---- rows ---- */

static void (*pack_of(enum element element))(const float *, uint8_t *) {
    switch (element) {
    case ELEMENT_Q8_0: return q8_0;
    case ELEMENT_Q5_0: return q5_0;
    case ELEMENT_Q4_0: return q4_0;
    case ELEMENT_Q4_K: return q4_k;
    default: return NULL;
    }
}

/* Returns true if all are numbers that f16 has, so that no sum of squares is infinite. */
static bool are_small(const float *values, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(values[i]) < 65504)) return false;
    return true;
}

bool packing_row(enum element element, const float *values, size_t n, void *out,
                 struct rounding_error *sum) {
    void (*const pack)(const float *, uint8_t *) = pack_of(element);
    const size_t size = packed_block(element), bytes = packed_bytes(element, size);
    uint8_t *block = out;
    float stored[MANY];
    assert(pack);
    for (size_t at = 0; at < n; at += size, block += bytes) {
        if (!are_small(values + at, size)) return false;
        pack(values + at, block);
        packed_to_float(element, block, size, stored);
        for (size_t i = 0; i < size; i++) {
            const double x = values[at + i], error = stored[i] - x;
            sum->error += error * error;
            sum->values += x * x;
        }
    }
    return true;
}
