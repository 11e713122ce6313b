/* pages.c - see pages.h. */
#include "engine/cpu/pages.h"

#include <string.h>

#include "engine/cpu/fp8.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/vec.h"
#include "engine/device/pages.h"

void copy_elements(char *to, uint32_t to_stride, const char *from, uint32_t from_stride, uint32_t n,
                   enum page_format format) {
    const uint32_t size = page_row_bytes(format, 1);
    if (to_stride == 1 && from_stride == 1) {
        memcpy(to, from, (size_t)n * size);
    } else if (size == 1) {
        for (size_t i = 0; i < n; i++) to[i * to_stride] = from[i * from_stride];
    } else if (size == 4) {
        for (size_t i = 0; i < n; i++)
            ((float *)to)[i * to_stride] = ((const float *)from)[i * from_stride];
    } else {
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)to)[i * to_stride] = ((const uint16_t *)from)[i * from_stride];
    }
}

static void copy_row(const struct kv_pool *kv, uint32_t head, uint32_t to_page, uint32_t to_at,
                     uint32_t from_page, uint32_t from_at) {
    const struct page_row to = page_row(kv, to_page, head, to_at),
                          from = page_row(kv, from_page, head, from_at);
    copy_elements(to.first, to.stride, from.first, from.stride, kv->head_dim, kv->format);
    if (page_is_scaled(kv->format))
        page_scales(kv, to_page, head)[to_at] = page_scales(kv, from_page, head)[from_at];
}

void copy_token(const struct kv_pool *kv, uint32_t kv_head, uint32_t to_page, uint32_t to_at,
                uint32_t from_page, uint32_t from_at) {
    copy_row(kv, kv_head, to_page, to_at, from_page, from_at);
    copy_row(kv, kv->n_kv_heads + kv_head, to_page, to_at, from_page, from_at);
}

/* ---- elements and their types ---- */

void page_write_row(const struct kv_pool *kv, uint32_t page, uint32_t head, uint32_t at,
                    const float *from) {
    const uint32_t dim = kv->head_dim;
    const struct page_row to = page_row(kv, page, head, at);
    if (page_is_scaled(kv->format))
        page_scales(kv, page, head)[at] =
            fp8_pack((uint8_t *)to.first, to.stride, (const char *)from, 1, dim, ELEMENT_F32);
    else
        for (size_t d = 0; d < dim; d++)
            store_f32_as(to.first, d * to.stride, from[d], page_element(kv->format));
}

struct page_rows page_rows(const struct cpu_kernels *kernels, const struct kv_pool *kv,
                           uint32_t page, uint32_t head, float *workspace) {
    const char *stored = page_of_head(kv, page, head);
    const uint32_t dim = kv->head_dim;
    float factors[PAGE_TOKENS];
    if (!page_is_scaled(kv->format)) return (struct page_rows){stored, page_element(kv->format)};
    kernels->to_f32(workspace, stored, (size_t)PAGE_TOKENS * dim, page_element(kv->format));
    const uint8_t *scales = page_scales(kv, page, head);
    for (uint32_t i = 0; i < PAGE_TOKENS; i++) factors[i] = fp8_factor(scales[i]);
    if (head < kv->n_kv_heads)
        for (uint32_t d = 0; d < dim; d++)
            for (uint32_t i = 0; i < PAGE_TOKENS; i++)
                workspace[(size_t)d * PAGE_TOKENS + i] *= factors[i];
    else
        for (uint32_t i = 0; i < PAGE_TOKENS; i++)
            for (uint32_t d = 0; d < dim; d++) workspace[(size_t)i * dim + d] *= factors[i];
    return (struct page_rows){workspace, ELEMENT_F32};
}
