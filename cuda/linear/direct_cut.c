/* direct_cut.c - see direct_cut.h. */
#include "cuda/linear/direct_cut.h"

#include "engine/base/sizes.h"

static uint32_t slab_columns(const struct weight_format *f) {
    return 256 / element_bits(f->element);
}

uint32_t direct_slabs(const struct weight_format *f, uint32_t n_in) {
    return n_in % slab_columns(f) == 0 ? n_in / slab_columns(f) : 0;
}

bool direct_takes(const struct weight_format *f) {
    const bool is_16_bits = f->scale == SCALE_F16 || f->scale == SCALE_BF16;
    const uint32_t group = f->block_cols;
    if (f->has_min || element_is_packed(f->element)) return false;
    switch (f->element) {
    case ELEMENT_I4:
        if (group == 0) return f->block_rows <= 1;
        return f->block_rows == 1 && is_16_bits && (group == 32 || group == 64 || group == 128);
    case ELEMENT_I8: return group == 0 && f->block_rows <= 1;
    case ELEMENT_E4M3:
        if (group == 0) return f->block_rows <= 1;
        return group == 128 && f->scale == SCALE_F32 && f->block_rows % DIRECT_ROWS == 0;
    case ELEMENT_E2M1: return group == 32 && f->block_rows == 1 && f->scale == SCALE_E8M0;
    default: return false;
    }
}

bool direct_make_cut(const struct weight_format *f, uint32_t n_slabs, uint32_t warp_slabs,
                     struct direct_cut *cut) {
    const uint32_t columns = slab_columns(f);
    *cut = (struct direct_cut){
        .n_slabs = n_slabs,
        .n_groups = f->block_cols ? (uint32_t)div_up((size_t)n_slabs * columns, f->block_cols) : 0,
        .n_warps = (uint32_t)div_up(n_slabs, warp_slabs),
        .warp_slabs = warp_slabs,
        .x_bytes = warp_slabs * columns * 2};
    return n_slabs > 0 && cut->n_warps <= DIRECT_MAX_WARPS;
}

bool direct_cut_columns(const struct weight_format *f, uint32_t n_in, uint32_t n_strips,
                        struct direct_cut *cut) {
    const uint32_t n_slabs = direct_slabs(f, n_in);
    return direct_make_cut(f, n_slabs, DIRECT_FEW, cut) ||
           (n_strips == 1 && direct_make_cut(f, n_slabs, DIRECT_MANY, cut));
}
