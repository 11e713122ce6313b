/* weight.c - see weight.h. */
#include "engine/device/weight.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/half.h"
#include "engine/device/packed.h"

static float of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static float from_bf16(uint16_t bits) {
    return of_bits((uint32_t)bits << 16);
}

/* Returns the value of a code.  Exponent and mantissa lie in a float's bits as they do here, 120
 * exponents below. */
static float from_e4m3(uint8_t code) {
    const uint32_t size = code & 0x7f, sign = (uint32_t)(code & 0x80) << 24;
    if (size == 0x7f) return NAN;
    const float normal = of_bits(sign | ((size << 20) + (120u << 23)));
    const float subnormal = (sign ? -0x1p-9f : 0x1p-9f) * (float)size;
    return size < 8 ? subnormal : normal;
}

static float from_e8m0(uint8_t code) {
    if (code == 0xff) return NAN;
    return code == 0 ? 0x1p-127f : of_bits((uint32_t)code << 23);
}

/* Writes the values of the codes of n elements of 4 bits, from element `first` on. */
static void nibbles_to_float(const uint8_t *data, size_t first, size_t n, const float values[16],
                             float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = values[data[(first + i) / 2] >> ((first + i) % 2 * 4) & 15];
}

/* Writes the values of n elements, from element `first` on, without their scale. */
static void elements_to_float(const void *data, size_t first, size_t n, enum element element,
                              float *out) {
    static const float i4[] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
                       e2m1[] = {0,    .5f,  1,  1.5f,  2,  3,  4,  6,
                                 -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const uint8_t *bytes = data;
    switch (element) {
    case ELEMENT_F32: memcpy(out, (const float *)data + first, n * sizeof(*out)); return;
    case ELEMENT_F16:
        for (size_t i = 0; i < n; i++) out[i] = half_to_float(((const uint16_t *)data)[first + i]);
        return;
    case ELEMENT_BF16:
        for (size_t i = 0; i < n; i++) out[i] = from_bf16(((const uint16_t *)data)[first + i]);
        return;
    case ELEMENT_E4M3:
        for (size_t i = 0; i < n; i++) out[i] = from_e4m3(bytes[first + i]);
        return;
    case ELEMENT_I8:
        for (size_t i = 0; i < n; i++) out[i] = (int8_t)bytes[first + i];
        return;
    case ELEMENT_I4: nibbles_to_float(bytes, first, n, i4, out); return;
    case ELEMENT_E2M1: nibbles_to_float(bytes, first, n, e2m1, out); return;
    default: return; /* packed: packed_to_float() */
    }
}

static float scale_at(const void *scales, size_t i, enum scale_type type) {
    switch (type) {
    case SCALE_NONE: return 1;
    case SCALE_F32: return ((const float *)scales)[i];
    case SCALE_F16: return half_to_float(((const uint16_t *)scales)[i]);
    case SCALE_BF16: return from_bf16(((const uint16_t *)scales)[i]);
    case SCALE_E8M0: return from_e8m0(((const uint8_t *)scales)[i]);
    case SCALE_E4M3: return from_e4m3(((const uint8_t *)scales)[i]);
    }
    return NAN;
}

static size_t scale_bytes(enum scale_type type) {
    static const uint8_t bytes[] = {[SCALE_F32] = 4,  [SCALE_F16] = 2,  [SCALE_BF16] = 2,
                                    [SCALE_E8M0] = 1, [SCALE_E4M3] = 1, [SCALE_NONE] = 0};
    return bytes[type];
}

static size_t blocks_of(uint32_t side, uint16_t block) {
    return block ? div_up(side, block) : 1;
}

void weight_format_text(const struct weight_format *format, char text[WEIGHT_FORMAT_TEXT]) {
    static const char *const elements[] = {"F32", "F16", "BF16", "E4M3", "I8", "I4", "E2M1"},
                             *const scales[] = {"no", "F32", "F16", "BF16", "E8M0", "E4M3"};
    const char *element = element_is_packed(format->element) ? packed_type(format->element)->name
                                                             : elements[format->element];
    char sides[2][8] = {"all", "all"};
    if (format->scale == SCALE_NONE) {
        snprintf(text, WEIGHT_FORMAT_TEXT, "%s", element);
        return;
    }
    if (format->block_rows) snprintf(sides[0], sizeof(sides[0]), "%u", format->block_rows);
    if (format->block_cols) snprintf(sides[1], sizeof(sides[1]), "%u", format->block_cols);
    snprintf(text, WEIGHT_FORMAT_TEXT, "%s with %s scales%s of %s x %s elements", element,
             scales[format->scale], format->has_min ? " and minimums" : "", sides[0], sides[1]);
}

struct weight weight_plain(const void *data, enum element element, uint32_t rows, uint32_t cols) {
    return (struct weight){
        .data = data, .format = {.element = element}, .rows = rows, .cols = cols, .n_stacked = 1};
}

uint64_t weight_n_scales(const struct weight *w) {
    const struct weight_format *f = &w->format;
    if (f->scale == SCALE_NONE) return 0;
    return (uint64_t)w->n_stacked * blocks_of(w->rows, f->block_rows) *
           blocks_of(w->cols, f->block_cols);
}

uint64_t weight_scale_bytes(const struct weight *w) {
    return weight_n_scales(w) * scale_bytes(w->format.scale);
}

float weight_scale_at(const struct weight *w, size_t i) {
    return scale_at(w->scales, i, w->format.scale);
}

uint64_t weight_bytes(const struct weight *w) {
    return (uint64_t)w->n_stacked * w->rows * weight_row_bytes(w) +
           weight_scale_bytes(w) * (w->format.has_min ? 2 : 1);
}

/* Returns where the scales of a copy begin. */
static uint64_t scales_at(const struct weight *w) {
    return round_up((uint64_t)w->n_stacked * w->rows * weight_row_bytes(w), WEIGHT_COPY_ALIGN);
}

uint64_t weight_copy_bytes(const struct weight *w) {
    const uint64_t n_scales = weight_scale_bytes(w);
    if (n_scales == 0) return weight_bytes(w);
    if (!w->format.has_min) return scales_at(w) + n_scales;
    return scales_at(w) + round_up(n_scales, WEIGHT_COPY_ALIGN) + n_scales;
}

struct weight weight_copy_at(const struct weight *w, void *memory) {
    char *scales = (char *)memory + scales_at(w);
    struct weight copy = *w;
    copy.data = memory;
    copy.scales = copy.mins = NULL;
    if (w->format.scale) copy.scales = scales;
    if (w->format.has_min) copy.mins = scales + round_up(weight_scale_bytes(w), WEIGHT_COPY_ALIGN);
    return copy;
}

struct weight weight_matrix(const struct weight *w, uint32_t i) {
    const uint64_t scales_before = weight_scale_bytes(w) / w->n_stacked * i;
    struct weight matrix = *w;
    matrix.n_stacked = 1;
    matrix.data = (const char *)w->data + (size_t)i * w->rows * weight_row_bytes(w);
    if (w->format.scale) matrix.scales = (const char *)w->scales + scales_before;
    if (w->format.has_min) matrix.mins = (const char *)w->mins + scales_before;
    return matrix;
}

bool weight_rows(const struct weight *w, uint32_t first, uint32_t n, struct weight *out) {
    const struct weight_format *f = &w->format;
    const size_t block = f->block_rows;
    if (f->scale && block && first % block != 0) return false;
    const size_t blocks_before = block ? first / block * blocks_of(w->cols, f->block_cols) : 0,
                 scales_before = blocks_before * scale_bytes(f->scale);
    *out = *w;
    if (w->data) out->data = weight_row_at(w, first);
    if (w->data && f->scale) out->scales = (const char *)w->scales + scales_before;
    if (w->data && f->has_min) out->mins = (const char *)w->mins + scales_before;
    out->rows = n;
    return true;
}

/* Returns true if n elements take whole bytes, or whole packed blocks. */
static bool is_whole(enum element element, uint32_t n) {
    if (element_is_packed(element)) return n % packed_block(element) == 0;
    return (uint64_t)n * element_bits(element) % 8 == 0;
}

bool weight_can_cut(const struct weight *w, uint32_t first, uint32_t n) {
    const struct weight_format *f = &w->format;
    const bool ends = first + n == w->cols;
    if (f->scale && f->block_cols && first % f->block_cols != 0) return false;
    return is_whole(f->element, first) && (ends || is_whole(f->element, n));
}

/* Copies the scales, or minimums, of columns. */
static void copy_scales(const struct weight *from, const void *scales, uint32_t first,
                        const struct weight *to, const void *out) {
    const struct weight_format *f = &from->format;
    const size_t size = scale_bytes(f->scale), n = blocks_of(to->cols, f->block_cols),
                 n_from = blocks_of(from->cols, f->block_cols),
                 at = f->block_cols ? first / f->block_cols : 0;
    for (size_t i = 0; i < blocks_of(to->rows, f->block_rows); i++)
        memcpy((char *)out + i * n * size, (const char *)scales + (i * n_from + at) * size,
               n * size);
}

void weight_copy_columns(const struct weight *from, uint32_t first, const struct weight *to) {
    const struct weight_format *f = &from->format;
    const size_t before = element_bytes(f->element, first), n = weight_row_bytes(to);
    for (uint32_t row = 0; row < to->rows; row++)
        memcpy((char *)weight_row_at(to, row), (const char *)weight_row_at(from, row) + before, n);
    if (f->scale) copy_scales(from, from->scales, first, to, to->scales);
    if (f->has_min) copy_scales(from, from->mins, first, to, to->mins);
}

void weight_to_float(const struct weight *w, uint32_t row, float *out) {
    const struct weight_format *f = &w->format;
    const void *data = weight_row_at(w, row);
    if (element_is_packed(f->element)) {
        packed_to_float(f->element, data, w->cols, out);
        return;
    }
    size_t block = f->block_rows ? row / f->block_rows * blocks_of(w->cols, f->block_cols) : 0;
    for (uint32_t i = 0, n; i < w->cols; i += n, block++) {
        n = f->block_cols ? min_u32(f->block_cols, w->cols - i) : w->cols;
        elements_to_float(data, i, n, f->element, out + i);
        const float scale = scale_at(w->scales, block, f->scale);
        for (uint32_t k = i; k < i + n; k++) out[k] *= scale;
        const float min = f->has_min ? scale_at(w->mins, block, f->scale) : 0;
        for (uint32_t k = i; f->has_min && k < i + n; k++) out[k] += min;
    }
}

static uint16_t to_bf16(uint32_t bits) {
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40); /* NaN stays one */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t to_f16(uint32_t bits) {
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    float x;
    memcpy(&x, &size, sizeof(x));
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (x >= 65520) return (uint16_t)(sign | 0x7c00);
    /* Below 2^-14 the steps are of 2^-24, and rintf() rounds ties to even. */
    if (x < 0x1p-14f) return (uint16_t)(sign | (uint32_t)rintf(x * 0x1p24f));
    return (uint16_t)(sign | (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13);
}

int weight_refuse_values(struct error *err) {
    return error_set(err, ERR_INVALID, "it has elements or scales that are NaN or infinite");
}

void weight_from_float(const float *values, size_t n, enum element element, void *out) {
    const bool is_bf16 = element == ELEMENT_BF16;
    if (element == ELEMENT_F32) {
        memcpy(out, values, n * sizeof(*values));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        ((uint16_t *)out)[i] = is_bf16 ? to_bf16(bits) : to_f16(bits);
    }
}
