/* int8_weight.c - see int8_weight.h. */
#include "engine/cpu/int8_weight.h"

#include <assert.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/device/half.h"
#include "engine/device/packed.h"

static enum int8_kind kind_of(const struct packed_type *type) {
    uint32_t kind = 0;
    struct int8_kind_traits traits = int8_traits(0);
    while (traits.bits != type->bits || traits.span != type->span ||
           traits.has_table != (type->table != NULL) || traits.offset != type->offset)
        traits = int8_traits(++kind);
    return kind;
}

static bool packed_layout(enum element element, struct int8_layout *out) {
    const struct packed_type *type = packed_type(element);
    const bool has_units = type->n == INT8_SUPER;
    *out = (struct int8_layout){.kind = kind_of(type),
                                .scale = has_units                  ? INT8_SCALE_BYTES
                                         : element == ELEMENT_MXFP4 ? INT8_SCALE_BF16
                                                                    : INT8_SCALE_F16,
                                .per_scale = type->span,
                                .table = type->table,
                                .has_min = type->has_min};
    return true;
}

bool int8_layout_of(const struct weight_format *format, struct int8_layout *out) {
    static const enum int8_scale scales[] = {
        [SCALE_F32] = INT8_SCALE_F32, [SCALE_F16] = INT8_SCALE_F16, [SCALE_BF16] = INT8_SCALE_BF16};
    if (element_is_packed(format->element)) return packed_layout(format->element, out);
    *out = (struct int8_layout){.per_scale = format->block_cols, .has_min = format->has_min};
    if (format->block_cols % INT8_BLOCK != 0) return false;
    if (format->element == ELEMENT_E2M1 && format->scale == SCALE_E8M0) {
        out->kind = INT8_T4_32;
        out->table = packed_type(ELEMENT_MXFP4)->table; /* twice the values */
        out->scale = INT8_SCALE_BF16;
        return !format->has_min;
    }
    if (format->scale < SCALE_F32 || format->scale > SCALE_BF16) return false;
    out->kind = format->element == ELEMENT_I4 ? INT8_S4_32 : INT8_S8_32;
    out->scale = scales[format->scale];
    return format->element == ELEMENT_I4 || format->element == ELEMENT_I8;
}

static size_t scale_size(enum int8_scale scale) {
    return scale == INT8_SCALE_F32 ? 4 : scale == INT8_SCALE_BYTES ? 1 : 2;
}

/* Returns where what lies in a section of n blocks. */
static struct int8_section section_of(const struct int8_weight *w, uint32_t n_blocks) {
    const bool has_units = w->layout.scale == INT8_SCALE_BYTES;
    const uint32_t n_cols = n_blocks * INT8_BLOCK;
    const size_t of_scale = INT8_GROUP * scale_size(w->layout.scale),
                 scales = round_up(div_up(n_cols, w->scale_cols) * of_scale, 64),
                 units = has_units ? round_up(div_up(n_cols, INT8_SUPER) * INT8_GROUP * 2, 64) : 0;
    const int n = w->layout.has_min ? 2 : 1;
    struct int8_section s = {.mins = scales, .units = n * scales};
    s.min_units = s.units + units;
    s.codes = s.units + n * units;
    s.bytes = s.codes + n_blocks * w->block_bytes;
    return s;
}

/* Returns the columns of a scale here: the most of which each scale of the format has some, and
 * each section, too. */
static uint32_t scale_cols(uint32_t per_scale) {
    uint32_t cols = INT8_SECTION_COLS;
    while (per_scale % cols != 0) cols /= 2;
    return cols;
}

struct int8_weight int8_weight_of(const struct weight *w) {
    static const uint16_t block_bytes[] = {[4] = 256, [5] = 320, [6] = 384, [8] = 512};
    struct int8_weight to = {.data = w->data, .rows = w->rows};
    const bool can = int8_layout_of(&w->format, &to.layout);
    assert(can && w->n_stacked == 1);
    (void)can;
    to.n_blocks = (uint32_t)div_up(w->cols, INT8_BLOCK);
    to.scale_cols = scale_cols(to.layout.per_scale);
    to.block_bytes = block_bytes[int8_traits(to.layout.kind).bits];
    const uint32_t n_whole = to.n_blocks / INT8_SECTION, n_rest = to.n_blocks % INT8_SECTION;
    to.whole = section_of(&to, INT8_SECTION);
    to.last = section_of(&to, n_rest ? n_rest : INT8_SECTION);
    to.group_bytes = n_whole * to.whole.bytes + (n_rest ? to.last.bytes : 0);
    return to;
}

uint64_t int8_weight_bytes(const struct int8_weight *to) {
    return div_up(to->rows, INT8_GROUP) * to->group_bytes;
}

/* Returns the codes of a block of a group. */
static uint8_t *block_at(const struct int8_weight *to, uint8_t *group, uint32_t block) {
    const struct int8_section *s = int8_section_of(to, block);
    return group + block / INT8_SECTION * to->whole.bytes + s->codes +
           block % INT8_SECTION * to->block_bytes;
}

/* Where the numbers of a column of row i of a group lie: sections, and in these elements. */
struct place {
    uint8_t *section;
    const struct int8_section *parts;
    size_t scale, unit;
};

static struct place place_of(const struct int8_weight *w, uint8_t *group, uint32_t i,
                             uint32_t col) {
    const uint32_t section = col / INT8_SECTION_COLS, at = col % INT8_SECTION_COLS;
    return (struct place){.section = group + section * w->whole.bytes,
                          .parts = int8_section_of(w, col / INT8_BLOCK),
                          .scale = (size_t)(at / w->scale_cols) * INT8_GROUP + i,
                          .unit = (size_t)(at / INT8_SUPER) * INT8_GROUP + i};
}

/* Writes 32 codes of row i of the group, four at a time as a word. */
static void put_codes(uint8_t *block, uint32_t bits, uint32_t i, const uint8_t *codes) {
    uint32_t words[INT8_STEPS], high[2] = {0};
    uint8_t *row = block + 4 * i;
    memcpy(words, codes, sizeof(words));
    for (uint32_t j = 0; j < INT8_STEPS && bits == 8; j++)
        memcpy(row + j * INT8_STEP, &words[j], sizeof(words[j]));
    if (bits == 8) return;
    for (uint32_t j = 0; j < INT8_STEPS; j++) {
        if (bits == 5) high[0] |= (words[j] >> 4 & 0x01010101) << j;
        if (bits == 6) high[j / 4] |= (words[j] >> 4 & 0x03030303) << 2 * (j % 4);
        words[j] &= 0x0f0f0f0f;
    }
    for (uint32_t j = 0; j < 4; j++) {
        const uint32_t both = words[j] | words[j + 4] << 4;
        memcpy(row + j * INT8_STEP, &both, sizeof(both));
    }
    for (uint32_t p = 0; p < bits - 4; p++)
        memcpy(row + (4 + p) * INT8_STEP, &high[p], sizeof(high[p]));
}

static void put(uint8_t *numbers, size_t size, size_t at, const void *number) {
    memcpy(numbers + at * size, number, size);
}

/* Repacks a row of blocks of packed elements into row i of a group. */
static bool repack_packed(const struct weight *from, const struct int8_weight *to, uint32_t row,
                          uint32_t i, uint8_t *out) {
    const struct packed_type *type = packed_type(from->format.element);
    const uint8_t *block = weight_row_at(from, row);
    const bool has_units = to->layout.scale == INT8_SCALE_BYTES,
               is_f16 = to->layout.scale != INT8_SCALE_BF16;
    bool finite = true;
    struct packed_parts parts;
    for (uint32_t b = 0; b < from->cols / type->n; b++, block += type->bytes) {
        packed_split(type, block, &parts);
        finite &= half_is_finite(parts.m) && (!is_f16 || half_is_finite(parts.d));
        const uint32_t n_blocks = type->n / INT8_BLOCK, n_spans = type->n / type->span;
        for (uint32_t k = 0; k < n_blocks; k++)
            put_codes(block_at(to, out, b * n_blocks + k), type->bits, i,
                      parts.codes + k * INT8_BLOCK);
        struct place at = place_of(to, out, i, b * type->n);
        put(at.section + (has_units ? at.parts->units : 0), 2, has_units ? at.unit : at.scale,
            &parts.d);
        if (type->has_min)
            put(at.section + (has_units ? at.parts->min_units : at.parts->mins), 2,
                has_units ? at.unit : at.scale, &parts.m);
        for (uint32_t k = 0; has_units && k < n_spans; k++) {
            at = place_of(to, out, i, b * type->n + k * type->span);
            put(at.section, 1, at.scale, &parts.scales[k]);
            if (type->has_min) put(at.section + at.parts->mins, 1, at.scale, &parts.mins[k]);
        }
    }
    return finite;
}

/* Writes codes of n elements of a row, from `first` on. */
static void codes_of(const struct weight *w, uint32_t row, uint32_t first, uint32_t n,
                     uint8_t *codes) {
    const uint8_t *data = weight_row_at(w, row);
    for (uint32_t c = first; c < first + n; c++)
        codes[c - first] =
            w->format.element == ELEMENT_I8 ? data[c] ^ 0x80 : data[c / 2] >> c % 2 * 4 & 15;
}

/* Copies a number of scales or mins to where it lies in a group.  Returns false if it is NaN or
 * infinite. */
static bool put_scale(uint8_t *out, size_t at, const void *numbers, size_t i,
                      enum scale_type type) {
    if (type == SCALE_F32) {
        const uint32_t bits = ((const uint32_t *)numbers)[i];
        put(out, sizeof(bits), at, &bits);
        return (bits & 0x7f800000) != 0x7f800000;
    }
    const uint8_t code = type == SCALE_E8M0 ? ((const uint8_t *)numbers)[i] : 0;
    /* Values of E2M1 are twice as large. */
    const uint16_t bits = type == SCALE_E8M0 ? half_of_e8m0(code) : ((const uint16_t *)numbers)[i];
    put(out, sizeof(bits), at, &bits);
    return type == SCALE_F16 ? half_is_finite(bits) : (bits & 0x7f80) != 0x7f80 && code != 0xff;
}

/* Repacks a row of elements with scales beside them into row i of a group. */
static bool repack_canonical(const struct weight *from, const struct int8_weight *to, uint32_t row,
                             uint32_t i, uint8_t *out) {
    const struct weight_format *f = &from->format;
    const size_t n_cols = f->block_cols ? div_up(from->cols, f->block_cols) : 1,
                 first = f->block_rows ? row / f->block_rows * n_cols : 0;
    bool finite = true;
    for (uint32_t b = 0; b < to->n_blocks; b++) {
        uint8_t codes[INT8_BLOCK] = {0};
        codes_of(from, row, b * INT8_BLOCK, min_u32(INT8_BLOCK, from->cols - b * INT8_BLOCK),
                 codes);
        put_codes(block_at(to, out, b), int8_traits(to->layout.kind).bits, i, codes);
    }
    for (uint32_t col = 0; col < from->cols; col += to->scale_cols) {
        const struct place at = place_of(to, out, i, col);
        const size_t k = first + (f->block_cols ? col / f->block_cols : 0);
        finite &= put_scale(at.section, at.scale, from->scales, k, f->scale);
        if (f->has_min)
            finite &= put_scale(at.section + at.parts->mins, at.scale, from->mins, k, f->scale);
    }
    return finite;
}

bool int8_repack_group(const struct weight *from, const struct int8_weight *to, uint32_t group,
                       uint8_t *out) {
    const uint32_t first = group * INT8_GROUP, n = min_u32(INT8_GROUP, from->rows - first);
    bool finite = true;
    for (uint32_t i = 0; i < n; i++)
        finite &= element_is_packed(from->format.element)
                      ? repack_packed(from, to, first + i, i, out)
                      : repack_canonical(from, to, first + i, i, out);
    return finite;
}

static float number_at(const uint8_t *numbers, size_t at, enum int8_scale type) {
    uint32_t bits = 0;
    float value;
    memcpy(&bits, numbers + at * scale_size(type), scale_size(type));
    if (type == INT8_SCALE_F16) return half_to_float((uint16_t)bits);
    if (type == INT8_SCALE_BF16) bits <<= 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Returns the scale of a column of row i of a group; *min: its minimum. */
static float scale_of(const struct int8_weight *w, const uint8_t *group, uint32_t i, uint32_t col,
                      float *min) {
    const struct int8_layout *l = &w->layout;
    const struct place at = place_of(w, (uint8_t *)group, i, col);
    const uint8_t *mins = at.section + at.parts->mins;
    *min = 0;
    if (l->scale != INT8_SCALE_BYTES) {
        if (l->has_min) *min = number_at(mins, at.scale, l->scale);
        return number_at(at.section, at.scale, l->scale);
    }
    if (l->has_min)
        *min = -number_at(at.section + at.parts->min_units, at.unit, INT8_SCALE_F16) *
               (float)mins[at.scale];
    return number_at(at.section + at.parts->units, at.unit, INT8_SCALE_F16) *
           (float)(int8_t)at.section[at.scale];
}

static uint8_t code_at(const uint8_t *block, uint32_t bits, uint32_t i, uint32_t c) {
    const uint32_t j = c / 4, at = 4 * i + c % 4;
    if (bits == 8) return block[j * INT8_STEP + at];
    const uint8_t low = block[j % 4 * INT8_STEP + at] >> j / 4 * 4 & 15,
                  *high = block + 4 * INT8_STEP + at;
    if (bits == 5) return (uint8_t)(low | (*high >> j & 1) << 4);
    if (bits == 6) return (uint8_t)(low | (high[j / 4 * INT8_STEP] >> 2 * (j % 4) & 3) << 4);
    return low;
}

void int8_weight_row(const struct weight *weight, uint32_t row, float *out) {
    const struct int8_weight w = int8_weight_of(weight);
    const struct int8_kind_traits traits = int8_traits(w.layout.kind);
    uint8_t *group = (uint8_t *)w.data + row / INT8_GROUP * w.group_bytes; /* read only */
    float scale = 0, min = 0;
    for (uint32_t c = 0; c < weight->cols; c++) {
        if (c % traits.span == 0) scale = scale_of(&w, group, row % INT8_GROUP, c, &min);
        const uint8_t code = code_at(block_at(&w, group, c / INT8_BLOCK), traits.bits,
                                     row % INT8_GROUP, c % INT8_BLOCK);
        out[c] = scale * (float)(traits.has_table ? w.layout.table[code] : code - traits.offset);
        if (w.layout.has_min) out[c] += min;
    }
}
