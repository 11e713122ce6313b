/* stream_cut.c - see stream_cut.h. */
#include "cuda/experts/stream_cut.h"

#include <math.h>

#include "engine/base/count.h"
#include "engine/base/sizes.h"

enum {
    BARRIERS_BYTES = 2048, /* barriers, and the rows of the block's pairs */
    GOOD_SHARE = 16,       /* half steps */
    PACKED_STEPS = 8,      /* of a piece, at most */
    PLAIN_STEPS = 4,
    LEAST_STEPS = 2,
    MOST_AT_ONCE = 4, /* blocks on a multiprocessor */
    FLOAT4_BYTES = 16,
    LANES = 32,
    STRIP_STEP_BYTES = 512, /* of packed elements */
    ROW_GAP = 16,           /* bytes between rows in shared memory */
    START_BYTES = 48 << 10, /* what a multiprocessor could read while a block starts */
    GOOD_WARPS = 14,        /* of a multiprocessor */
    GOOD_BYTES = 64 << 10   /* that are on their way to it */
};

static bool is_plain(const struct expert_product *p) {
    return weight_is_plain(&p->stacks[0].format);
}

static uint32_t step_columns(const struct expert_product *p) {
    return element_bits(p->stacks[0].format.element) == 4 ? 64 : 32;
}

enum scale_kind { ANY_FLOAT, HALF, E8M0, OF_BLOCKS };

/* The formats of packed elements that there are kernels for. */
static const struct {
    enum element element;
    uint32_t group; /* columns; 0: rows have scales, or matrices */
    bool has_min;
    enum scale_kind scale;
} taken_formats[] = {{ELEMENT_I4, 0, false, ANY_FLOAT}, {ELEMENT_I4, 32, true, HALF},
                     {ELEMENT_I4, 64, true, HALF},      {ELEMENT_I4, 128, true, HALF},
                     {ELEMENT_I8, 0, false, ANY_FLOAT}, {ELEMENT_I8, 32, true, HALF},
                     {ELEMENT_I8, 128, true, HALF},     {ELEMENT_E4M3, 0, false, ANY_FLOAT},
                     {ELEMENT_E4M3, 32, false, E8M0},   {ELEMENT_E4M3, 128, false, OF_BLOCKS},
                     {ELEMENT_E2M1, 32, false, E8M0}};

static bool takes_format(const struct weight_format *f) {
    const bool is_half = f->scale == SCALE_F16 || f->scale == SCALE_BF16,
               is_float = is_half || f->scale == SCALE_F32, is_e8m0 = f->scale == SCALE_E8M0;
    for (size_t i = 0; i < COUNT(taken_formats); i++) {
        if (taken_formats[i].element != f->element || taken_formats[i].group != f->block_cols)
            continue;
        if (f->has_min && !taken_formats[i].has_min) continue;
        switch (taken_formats[i].scale) {
        case ANY_FLOAT: return is_float && f->block_rows <= 1;
        case HALF: return is_half && f->block_rows == 1;
        case E8M0: return is_e8m0 && f->block_rows == 1;
        case OF_BLOCKS:
            return (is_float || is_e8m0) && f->block_rows > 0 && f->block_rows % STREAM_STRIP == 0;
        }
    }
    return false;
}

bool stream_takes(const struct expert_product *p) {
    const struct expert_stack *s = p->stacks;
    if (p->gated &&
        (!weight_same_format(&s[0].format, &s[1].format) || s[0].in_strips != s[1].in_strips))
        return false;
    if (p->n_in % 64 != 0 || p->n_in / step_columns(p) > 1u << 16) return false;
    if (is_plain(p)) return s[0].format.element == ELEMENT_BF16;
    return s[0].in_strips && takes_format(&s[0].format);
}

/* Sets what n_in and the format decide. */
static void cut_columns(const struct expert_product *p, struct stream_cut *cut) {
    const struct weight_format *f = &p->stacks[0].format;
    cut->n_steps = p->n_in / step_columns(p);
    cut->k_warps = 1;
    while (cut->k_warps < STREAM_MAX_K_WARPS && cut->k_warps * GOOD_SHARE < 2 * cut->n_steps)
        cut->k_warps *= 2;
    /* Whole pairs of steps, which may have a scale in common. */
    cut->share_steps = (uint32_t)round_up(div_up(cut->n_steps, cut->k_warps), 2);
    cut->n_strips = (uint32_t)div_up(p->n_out, STREAM_STRIP);
    if (!f->block_cols) return;
    cut->n_groups = (uint32_t)div_up(p->n_in, f->block_cols);
    if (f->block_rows > 1) cut->block_rows = f->block_rows;
    else cut->scale_bytes = f->scale == SCALE_F32 ? 4 : f->scale == SCALE_E8M0 ? 1 : 2;
}

static uint32_t aligned(uint32_t at) {
    return (uint32_t)round_up(at, 128);
}

/* Sets what a piece of so many steps takes. */
static void lay_out_slot(const struct expert_product *p, uint32_t steps, struct stream_cut *cut) {
    const struct weight_format *f = &p->stacks[0].format;
    const uint32_t columns = steps * step_columns(p);
    uint32_t bytes =
        is_plain(p) ? STREAM_STRIP * (columns * 2 + ROW_GAP) : steps * STRIP_STEP_BYTES;
    cut->scales_at = cut->mins_at = bytes;
    if (cut->scale_bytes) {
        /* The first and the last group may begin before the piece, and end behind it. */
        const uint32_t groups = columns / f->block_cols + 2;
        bytes += groups * STREAM_STRIP * cut->scale_bytes;
        cut->mins_at = bytes;
        if (f->has_min) bytes += groups * STREAM_STRIP * cut->scale_bytes;
    }
    cut->piece_steps = steps;
    cut->stack_bytes = bytes;
    cut->slot_bytes = aligned((1 + p->gated) * bytes);
}

/* Lays shared memory out for blocks of so many warps, with the largest pieces of which each warp
 * has two slots.  Returns false if there are none. */
static bool lay_out(const struct expert_product *p, uint32_t n_warps, uint32_t max_bytes,
                    struct stream_cut *cut) {
    const struct weight_format *f = &p->stacks[0].format;
    const uint32_t n_stacks = 1 + p->gated, all_rows = cut->x_tiles * STREAM_X_TILE,
                   most = min_u32(is_plain(p) ? PLAIN_STEPS : PACKED_STEPS, cut->share_steps);
    uint32_t at = BARRIERS_BYTES;
    cut->row_blocks = 0;
    if (cut->block_rows)
        cut->row_blocks = (uint32_t)div_up(cut->n_strips * STREAM_STRIP, cut->block_rows);
    cut->x_pitch = p->n_in * 2 + ROW_GAP;
    cut->plans_at = at;
    at += n_warps * n_stacks * cut->x_tiles * LANES * FLOAT4_BYTES;
    cut->sums_at = at;
    if (f->element == ELEMENT_I4 || f->element == ELEMENT_I8) at += p->n_in / 32 * all_rows * 4;
    cut->blocks_at = at = aligned(at);
    at += n_stacks * cut->row_blocks * cut->n_groups * 4;
    cut->x_at = at = aligned(at);
    cut->slots_at = at = aligned(at + cut->rows * cut->x_pitch);
    const uint32_t least = is_plain(p) ? most : LEAST_STEPS;
    for (uint32_t steps = most; steps >= least && at < max_bytes; steps -= 2) {
        lay_out_slot(p, steps, cut);
        cut->n_slots = min_u32((max_bytes - at) / (n_warps * cut->slot_bytes), STREAM_MAX_SLOTS);
        cut->total = at + cut->n_slots * n_warps * cut->slot_bytes;
        if (cut->n_slots >= 2) return true;
    }
    return false;
}

/* Returns how many experts have rows, if rows choose at random. */
static double n_active(const struct expert_order *o) {
    const double missed = pow(1 - (double)o->n_used / o->n_experts, o->n_rows);
    return fmax(1, o->n_experts * (1 - missed));
}

/* Returns the bytes of a strip, or of both. */
static double strip_bytes(const struct expert_product *p) {
    return (1.0 + p->gated) * STREAM_STRIP *
           (double)element_bytes(p->stacks[0].format.element, p->n_in);
}

/* Returns what a product costs that is cut so: about the bytes that the multiprocessor with most
 * blocks could read meanwhile. */
static double cost_of(const struct expert_product *p, const struct stream_device *device,
                      const struct stream_cut *cut) {
    const uint32_t n_warps = cut->k_warps * cut->o_warps;
    const double each = ceil(n_active(&p->order) * cut->n_blocks / device->n_multiprocessors),
                 at_once = fmin(each, cut->blocks_at_once), n_here = at_once * n_warps,
                 on_the_way = n_here * cut->n_slots * cut->slot_bytes,
                 x_bytes = (double)cut->rows * cut->x_pitch / 4,
                 bytes = each * (cut->block_strips * cut->o_warps * strip_bytes(p) + x_bytes);
    return bytes * fmax(1, fmax(GOOD_WARPS / n_here, GOOD_BYTES / on_the_way)) +
           ceil(each / at_once) * START_BYTES;
}

/* Chooses how many strips blocks of so many warps have. */
static double deal_strips(const struct expert_product *p, const struct stream_device *device,
                          struct stream_cut *cut) {
    const uint32_t most = (uint32_t)div_up(cut->n_strips, cut->o_warps);
    struct stream_cut best = *cut;
    double least = INFINITY;
    for (cut->block_strips = 1; cut->block_strips <= most; cut->block_strips++) {
        cut->n_blocks = (uint32_t)div_up(most, cut->block_strips);
        const double cost = cost_of(p, device, cut);
        if (cost >= least) continue;
        least = cost;
        best = *cut;
    }
    *cut = best;
    return least;
}

/* Lays out blocks of some warps, as many on a multiprocessor as fit.  Returns what they cost;
 * infinity: they do not fit. */
static double cut_blocks(const struct expert_product *p, const struct stream_device *device,
                         uint32_t o_warps, struct stream_cut *cut) {
    enum { RESERVED_BYTES = 1024 };
    const uint32_t n_warps = cut->k_warps * o_warps;
    cut->o_warps = o_warps;
    for (uint32_t n = min_u32(STREAM_MAX_WARPS / n_warps, MOST_AT_ONCE); n > 0; n--) {
        cut->blocks_at_once = n;
        if (lay_out(p, n_warps, (device->max_bytes + RESERVED_BYTES) / n - RESERVED_BYTES, cut))
            return deal_strips(p, device, cut);
    }
    return INFINITY;
}

/* Cuts a product for chunks of so many rows.  Returns false if x is too large. */
static bool cut_rows(const struct expert_product *p, const struct stream_device *device,
                     uint32_t rows, struct stream_cut *cut) {
    /* The next kernel's blocks find room beside small blocks. */
    const double SMALL_GAIN = 0.04;
    struct stream_cut best = *cut;
    double least = INFINITY;
    cut->rows = rows;
    cut->x_tiles = (uint32_t)div_up(rows, STREAM_X_TILE);
    for (uint32_t o = 1; o <= STREAM_MAX_O_WARPS && o * cut->k_warps <= STREAM_MAX_WARPS; o++) {
        const double cost = cut_blocks(p, device, o, cut);
        if (cost >= least * (1 - SMALL_GAIN)) continue;
        least = cost;
        best = *cut;
    }
    *cut = best;
    return least < INFINITY;
}

bool stream_make_cut(const struct expert_product *p, const struct stream_device *device,
                     struct stream_cut *cut) {
    /* With 2 rows on average, hardly any expert has more than 8.  One that has takes twice as long,
     * and all others wait for it. */
    const bool many = expert_n_pairs(&p->order) > 2 * n_active(&p->order);
    uint32_t rows = min_u32(p->order.n_rows, STREAM_X_TILE * (many ? STREAM_MAX_TILES : 1));
    *cut = (struct stream_cut){0};
    cut_columns(p, cut);
    while (rows > 0 && !cut_rows(p, device, rows, cut)) rows /= 2;
    return rows > 0;
}
