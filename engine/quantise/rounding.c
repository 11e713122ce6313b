/* rounding.c - see rounding.h. */
#include "engine/quantise/rounding.h"

#include <math.h>
#include <string.h>

#include "engine/device/weight.h"

const struct rounding roundings[] = {
    {"fp8", 8, true, false, 448},
    {"int4", 4, false, true, 7.5f},
    {"int8", 8, false, false, 127.5f},
    {0},
};

enum { LEAST_EXPONENT = -6, MANTISSA_BITS = 3, MOST_CODE = 0x7e };

/* Returns the scale as bf16, and what it is worth.  Zeros have the scale 1. */
static uint16_t scale_of(float largest, const struct rounding *rounding, float *value) {
    uint16_t scale;
    const float wanted = largest / rounding->largest;
    weight_from_float(&wanted, 1, ELEMENT_BF16, &scale);
    if (scale == 0) scale = 0x3f80;
    const struct weight one = weight_plain(&scale, ELEMENT_BF16, 1, 1);
    weight_to_float(&one, 0, value);
    return scale;
}

/* Returns the E4M3 code of x, and replaces x by what that is worth. */
static uint8_t round_float(float *x) {
    const float size = fabsf(*x);
    int exponent = LEAST_EXPONENT;
    if (size >= 0x1p-6f) exponent = ilogbf(size);
    /* A mantissa that becomes 16 carries into the exponent, as it should. */
    const float steps = rintf(ldexpf(size, MANTISSA_BITS - exponent));
    int code = (exponent - LEAST_EXPONENT) * (1 << MANTISSA_BITS) + (int)steps;
    if (code > MOST_CODE) code = MOST_CODE;
    const uint8_t with_sign = (uint8_t)(code | (signbit(*x) ? 0x80 : 0));
    const struct weight one = weight_plain(&with_sign, ELEMENT_E4M3, 1, 1);
    weight_to_float(&one, 0, x);
    return with_sign;
}

static uint8_t round_integer(float *x, uint32_t bits) {
    const float half = (float)(1 << (bits - 1));
    *x = fminf(fmaxf(rintf(*x), -half), half - 1);
    return (uint8_t)(*x + half);
}

static bool find_largest(const float *values, uint32_t n, float *largest) {
    *largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) return false;
        *largest = fmaxf(*largest, fabsf(values[i]));
    }
    return true;
}

bool rounding_row(const struct rounding *rounding, uint32_t group, const float *values, uint32_t n,
                  uint8_t *codes, uint16_t *scales, struct rounding_error *sum) {
    const uint32_t per_byte = 8 / rounding->bits;
    memset(codes, 0, rounding_bytes(rounding, n));
    for (uint32_t first = 0; first < n; first += group) {
        float largest, scale;
        if (!find_largest(values + first, group, &largest)) return false;
        scales[first / group] = scale_of(largest, rounding, &scale);
        for (uint32_t i = first; i < first + group; i++) {
            float x = values[i] / scale;
            const uint8_t code =
                rounding->is_float ? round_float(&x) : round_integer(&x, rounding->bits);
            codes[i / per_byte] |= (uint8_t)(code << (i % per_byte * rounding->bits));
            const double error = (double)x * scale - values[i];
            sum->error += error * error;
            sum->values += (double)values[i] * values[i];
        }
    }
    return true;
}
