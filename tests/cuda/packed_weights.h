/* packed_weights.h - weights of any format with random elements, on the device, and their values.
 *
 * Thread: the test's.  Memory: the caller frees each weight. */
#ifndef TESTS_CUDA_PACKED_WEIGHTS_H
#define TESTS_CUDA_PACKED_WEIGHTS_H

#include "engine/device/weight.h"
#include "tests/cuda/cuda_test.h"

/* A weight of random elements, and its values. */
struct packed {
    struct weight host, device;
    void *memory;
    float *values, *rounded; /* as they are, and in bf16 */
};

/* Writes scales, or mins, near `size`. */
static inline void fill_scales(void *to, size_t bytes, enum scale_type type, float size) {
    const size_t each = type == SCALE_F32 ? 4 : type == SCALE_F16 || type == SCALE_BF16 ? 2 : 1;
    for (size_t i = 0; i < bytes / each; i++) {
        const float x = size * (1 + 0.5f * (float)rand() / (float)RAND_MAX);
        if (type == SCALE_F32) ((float *)to)[i] = x;
        else if (type == SCALE_F16) weight_from_float(&x, 1, ELEMENT_F16, (uint16_t *)to + i);
        else if (type == SCALE_BF16) weight_from_float(&x, 1, ELEMENT_BF16, (uint16_t *)to + i);
        else if (type == SCALE_E8M0) ((uint8_t *)to)[i] = (uint8_t)(119 + rand() % 4);
        else ((uint8_t *)to)[i] = (uint8_t)(0x18 + rand() % 8);
    }
}

static inline void fill_data(const struct weight *w) {
    const size_t bytes = w->n_stacked * w->rows * weight_row_bytes(w);
    uint8_t *data = (uint8_t *)w->data;
    if (w->format.element <= ELEMENT_BF16) {
        float *x = random_floats((size_t)w->n_stacked * w->rows * w->cols);
        weight_from_float(x, (size_t)w->n_stacked * w->rows * w->cols, w->format.element, data);
        free(x);
        return;
    }
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(rand() >> 4);
    for (size_t i = 0; i < bytes && w->format.element == ELEMENT_E4M3; i++)
        if ((data[i] & 0x7f) > 0x68) data[i] &= 0xbf; /* no NaN, and none that outweighs all */
}

/* Makes a stack of n weights; 1: one. */
static inline struct packed make_packed_stack(const struct weight_format *format, uint32_t n,
                                              uint32_t rows, uint32_t cols) {
    struct packed p = {0};
    struct error err = {0};
    p.host = weight_plain(NULL, format->element, rows, cols);
    p.host.format = *format;
    p.host.n_stacked = n;
    p.memory = malloc(weight_copy_bytes(&p.host));
    p.host = weight_copy_at(&p.host, p.memory);
    fill_data(&p.host);
    fill_scales((void *)p.host.scales, weight_scale_bytes(&p.host), format->scale, 0.01f);
    if (format->has_min)
        fill_scales((void *)p.host.mins, weight_scale_bytes(&p.host), format->scale, -0.03f);
    p.values = malloc((size_t)n * rows * cols * sizeof(float));
    p.rounded = malloc((size_t)n * rows * cols * sizeof(float));
    for (uint32_t i = 0; i < n * rows; i++) {
        const struct weight matrix = weight_matrix(&p.host, i / rows);
        weight_to_float(&matrix, i % rows, p.values + (size_t)i * cols);
    }
    for (size_t i = 0; i < (size_t)n * rows * cols; i++) {
        uint16_t bits;
        weight_from_float(&p.values[i], 1, ELEMENT_BF16, &bits);
        p.rounded[i] = load_as_f32(&bits, 0, ELEMENT_BF16);
    }
    must(gpu->ops->weight_load(gpu, &p.host, &p.device, &err), &err);
    return p;
}

static inline struct packed make_packed(const struct weight_format *format, uint32_t rows,
                                        uint32_t cols) {
    return make_packed_stack(format, 1, rows, cols);
}

static inline void free_packed(struct packed *p) {
    gpu->ops->weight_release(gpu, &p->device);
    free(p->memory), free(p->values), free(p->rounded);
}

#endif
