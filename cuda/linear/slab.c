/* slab.c - see slab.h. */
#include "cuda/linear/slab.h"

#include "engine/base/sizes.h"

enum { UNIT = 128, BF16_BYTES = 2 }; /* UNIT: rows that all kernels have in whole tiles */

uint32_t slab_all_rows(const struct product *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts); i++) n += p->parts[i].n_out;
    return n;
}

/* Slabs have about as many rows each: a small last one would leave most of a device idle. */
uint32_t slab_rows(const struct product *p) {
    const uint64_t row_bytes = (uint64_t)p->n_in * BF16_BYTES * (p->gated ? 2 : 1),
                   most = max_u64(SLAB_BYTES / row_bytes, 1),
                   whole = most < UNIT ? most : most / UNIT * UNIT, all = slab_all_rows(p),
                   n_slabs = max_u64(div_up(all, whole), 1);
    return (uint32_t)min_u64(whole, round_up(div_up(all, n_slabs), UNIT));
}

/* Returns n rows of a part, from `first` on, as they lie in the slab. */
static struct product_part rows_of(const struct product *p, uint32_t part, uint32_t first,
                                   uint32_t n, char *memory) {
    const size_t y_bytes = p->y_f32 ? sizeof(float) : BF16_BYTES;
    struct product_part rows = p->parts[part];
    rows.w = memory;
    rows.scales = rows.mins = NULL;
    rows.n_out = n;
    rows.joins_next = false;
    if (rows.y) rows.y = (char *)rows.y + first * y_bytes;
    if (rows.bias) rows.bias = (const char *)rows.bias + first * element_bytes(rows.bias_dtype, 1);
    return rows;
}

/* Appends rows of a part to a slab, which has n_before rows. */
static void append(struct slab *slab, const struct product *p, uint32_t part, uint32_t first,
                   uint32_t n, char *memory, uint32_t n_before) {
    const size_t at = (size_t)n_before * p->n_in * BF16_BYTES,
                 y_bytes = p->y_f32 ? sizeof(float) : BF16_BYTES;
    const uint32_t i = slab->p.n_parts++;
    slab->part[i] = part;
    slab->first[i] = first;
    slab->p.parts[i] = rows_of(p, part, first, n, memory + at);
    if (i == 0 || p->gated) return;
    struct product_part *before = &slab->p.parts[i - 1];
    const struct product_part *now = &slab->p.parts[i];
    before->joins_next = !before->bias && !now->bias && before->y_stride == now->y_stride &&
                         (char *)before->y + before->n_out * y_bytes == now->y;
}

void slab_cut(const struct product *p, void *memory, uint32_t first, struct slab *out) {
    uint32_t n_left = min_u32(slab_rows(p), slab_all_rows(p) - first), n_before = 0;
    *out = (struct slab){.p = *p};
    out->p.n_parts = 0;
    out->p.norm_weight = NULL;
    out->p.n_idle = 0;
    out->p.w_format = (struct weight_format){.element = ELEMENT_BF16};
    out->p.in_strips = false;
    for (uint32_t i = 0; i < p->n_parts && n_left > 0; i++) {
        const uint32_t n_out = p->parts[i].n_out,
                       n = min_u32(n_left, n_out - min_u32(first, n_out));
        if (n > 0) append(out, p, i, first, n, memory, n_before);
        n_before += n;
        if (p->gated) continue; /* the same rows of up */
        first -= min_u32(first, n_out);
        n_left -= n;
    }
}
