/* packed_cut.c - see packed_cut.h. */
#include "cuda/linear/packed_cut.h"

#include "engine/base/sizes.h"

static uint32_t bytes_of_scale(enum scale_type type) {
    return type == SCALE_F32 ? 4 : type == SCALE_E8M0 ? 1 : 2;
}

/* Says whether an element comes with such scales. */
static bool takes_scale(const struct weight_format *f) {
    const bool is_float = f->scale == SCALE_F32 || f->scale == SCALE_F16 || f->scale == SCALE_BF16;
    switch (f->element) {
    case ELEMENT_I4:
    case ELEMENT_I8: return is_float;
    case ELEMENT_E4M3: return (is_float || f->scale == SCALE_E8M0) && !f->has_min;
    case ELEMENT_E2M1: return f->scale == SCALE_E8M0 && f->block_cols == 32 && !f->has_min;
    default: return false;
    }
}

static bool is_power_of_2(uint32_t n) {
    return n > 0 && (n & (n - 1)) == 0;
}

static uint32_t unit_columns(const struct product *p) {
    return PACKED_UNIT_BYTES * 8 / PACKED_ROWS / element_bits(p->w_format.element);
}

/* Sets what the format decides: units and groups. */
static bool cut_columns(const struct product *p, struct packed_cut *cut) {
    const struct weight_format *f = &p->w_format;
    const uint32_t unit = unit_columns(p), group = f->block_cols;
    const bool is_e4m3 = f->element == ELEMENT_E4M3;
    cut->n_units = (uint32_t)div_up(p->n_in, unit);
    cut->n_slabs = (uint32_t)div_up(p->n_in, unit / 2);
    cut->n_groups = group ? (uint32_t)div_up(p->n_in, group) : 1;
    if (group == 0) return !f->has_min && f->block_rows <= 1;
    cut->groups_a_unit = group < unit ? unit / group : 1;
    while (unit << cut->group_shift < group) cut->group_shift++;
    return is_power_of_2(group) && group >= (is_e4m3 ? unit : 16) &&
           (f->block_rows == 1 || (is_e4m3 && f->scale == SCALE_F32 && f->block_rows > 0 &&
                                   f->block_rows % PACKED_ROWS == 0));
}

/* Sets the shares of n_in, and how many a block takes. */
static bool cut_shares(const struct product *p, struct packed_cut *cut) {
    const uint32_t unit = unit_columns(p);
    cut->n_shares = 1;
    while (p->n_in > cut->n_shares * PACKED_SHARE && cut->n_shares <= PACKED_MAX_SHARES)
        cut->n_shares *= 2;
    cut->share_units = (uint32_t)div_up(cut->n_units, cut->n_shares);
    for (cut->split = 1; cut->split < cut->n_shares; cut->split *= 2) {
        const size_t columns = (size_t)cut->share_units * unit * (cut->n_shares / cut->split);
        if (p->n_rows * columns * 2 <= PACKED_X_BYTES) break;
    }
    return cut->n_shares <= PACKED_MAX_SHARES;
}

static uint32_t aligned(uint32_t at) {
    return (at + 127) / 128 * 128;
}

/* Returns the bytes of the scales of a block's part of a strip, at most. */
static uint32_t strip_scales(const struct product *p, const struct packed_cut *cut) {
    const struct weight_format *f = &p->w_format;
    const uint32_t units = cut->block_shares * cut->share_units,
                   groups = (units * cut->groups_a_unit >> cut->group_shift) + 2;
    if (cut->groups_a_unit == 0) return 0;
    return aligned(groups * bytes_of_scale(f->scale) * (f->block_rows == 1 ? PACKED_ROWS : 1) + 32);
}

/* Lays shared memory out: what has to be there, and then a ring of stages. */
static bool lay_out(const struct product *p, uint32_t max_bytes, struct packed_cut *cut) {
    const struct weight_format *f = &p->w_format;
    const uint32_t row_bytes = PACKED_MAX_ROWS * (uint32_t)sizeof(float),
                   units = cut->block_shares * cut->share_units, columns = units * unit_columns(p),
                   share_stages = (uint32_t)div_up(cut->share_units, PACKED_STAGE_UNITS),
                   last_units = cut->n_units - (cut->n_shares - 1) * cut->share_units,
                   strip_stages = share_stages * (cut->block_shares - 1) +
                                  (uint32_t)div_up(last_units, PACKED_STAGE_UNITS),
                   groups = units * (cut->groups_a_unit ? cut->groups_a_unit : 1);
    uint32_t at = PACKED_BARRIER_BYTES;
    cut->x_pitch = columns * 2 + 16;
    cut->mins_at = strip_scales(p, cut);
    cut->slot_bytes = cut->mins_at * (f->has_min ? 2 : 1);
    cut->plans_at = at,
    at += PACKED_TEAMS * PACKED_PLANS * PACKED_WARPS * PACKED_PLAN_ROW * row_bytes;
    cut->squares_at = at, at += cut->block_shares * (PACKED_WARPS + 1) * row_bytes;
    cut->exchange_at = at;
    if (cut->split > 1) at += PACKED_EPOCH * PACKED_ROWS * row_bytes;
    cut->sums_at = at = aligned(at);
    if (f->element == ELEMENT_I4) at += 2 * groups * row_bytes; /* in two units */
    if (f->element == ELEMENT_I8) at += groups * row_bytes;
    cut->norm_at = at = aligned(at);
    if (p->norm_weight) at += columns * 2;
    cut->x_at = at = aligned(at);
    cut->slots_at = at = aligned(at + p->n_rows * cut->x_pitch);
    /* A team waits for a stage behind those of another team's share: the ring must have both. */
    for (uint32_t n = PACKED_MAX_STAGES; n > share_stages + PACKED_TEAMS - 1; n--) {
        cut->n_stages = n;
        /* A slot is filled anew when the ring is past the last stage of its strip. */
        cut->n_slots = 1 + (uint32_t)div_up(n - 1, strip_stages);
        cut->stages_at = aligned(at + cut->n_slots * cut->slot_bytes);
        cut->total = cut->stages_at + n * PACKED_STAGE_BYTES;
        if (cut->total <= max_bytes) return true;
    }
    return false;
}

bool packed_make_cut(const struct product *p, uint32_t max_bytes, struct packed_cut *cut) {
    *cut = (struct packed_cut){0};
    if (p->n_rows > PACKED_MAX_ROWS || p->n_in % 64 != 0 || !takes_scale(&p->w_format) ||
        !cut_columns(p, cut) || !cut_shares(p, cut))
        return false;
    for (; cut->split <= cut->n_shares; cut->split *= 2) {
        cut->block_shares = cut->n_shares / cut->split;
        if (lay_out(p, max_bytes, cut)) return true;
    }
    return false;
}
