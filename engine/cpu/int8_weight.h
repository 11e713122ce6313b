/* int8_weight.h - weights that were repacked for products of whole numbers (int8_kernels.c).
 *
 *   group    16 rows: sections, one behind the other
 *   section  up to 16 blocks: scales | mins | units | their blocks, each from a multiple of 64
 *            bytes on.  So a product reads memory in the order in which it lies
 *   scales   [scales of a row][16 rows], and mins, in a type of the layout
 *   units    f16 [superblocks of 256 columns][16 rows]: of scales that are whole numbers; then
 *            those of mins
 *   block    32 columns: the codes of 8 steps of 4 columns.  Byte 4 r + c of a step is row r,
 *            column c of these 4
 *
 *   8 bits   step j is 64 bytes at 64 j
 *   4 bits   steps j and j + 4 are the lower and the upper halves of 64 bytes at 64 j
 *   5 bits   as 4 bits, and 64 bytes of fifth bits behind them: bit j is of step j
 *   6 bits   as 4 bits, and twice 64 bytes behind them: two bits from 2 (j % 4) on are of step j
 *
 * A value is scale * (code - offset) + min, or scale * table[code] + min.  Rows and columns that a
 * weight lacks to whole groups and blocks are there with any codes.
 *
 * Thread: any.  Memory: the caller's. */
#ifndef ENGINE_CPU_INT8_WEIGHT_H
#define ENGINE_CPU_INT8_WEIGHT_H

#include "engine/device/weight.h"

struct error;

enum { INT8_GROUP = 16, INT8_BLOCK = 32, INT8_STEP = 64, INT8_STEPS = 8, INT8_SUPER = 256 };
enum { INT8_SECTION = 16, INT8_SECTION_COLS = INT8_SECTION * INT8_BLOCK }; /* blocks, columns */

/* How codes lie and what they are: a kernel each.  The bits, then the columns of a span, which has
 * one scale. */
enum int8_kind {
    INT8_U4_32, /* no offset; with mins */
    INT8_S4_32, /* offset 8 */
    INT8_T4_32, /* a table */
    INT8_U5_32,
    INT8_S5_32, /* offset 16 */
    INT8_S8_32, /* offset 128 */
    INT8_S6_16, /* offset 32 */
    INT8_S3_16, /* in 4 bits, offset 4 */
    INT8_U2_16, /* in 4 bits, no offset; with mins */
    INT8_KINDS
};

struct int8_kind_traits {
    uint8_t bits, span, offset;
    bool has_table;
};

/* Types of scales and mins: that of a plain element, or bytes in units. */
enum int8_scale {
    INT8_SCALE_F32 = ELEMENT_F32,
    INT8_SCALE_F16 = ELEMENT_F16,
    INT8_SCALE_BF16 = ELEMENT_BF16,
    INT8_SCALE_BYTES
};

struct int8_layout {
    enum int8_kind kind;
    enum int8_scale scale;
    uint32_t per_scale;  /* columns, a multiple of the span; 0: all */
    const int8_t *table; /* [16], of INT8_T4_32 */
    bool has_min;
};

/* Where what lies in a section: offsets. */
struct int8_section {
    size_t mins, units, min_units, codes, bytes;
};

/* Where what lies of a repacked weight. */
struct int8_weight {
    struct int8_layout layout;
    const uint8_t *data;
    uint32_t rows, n_blocks;
    uint32_t scale_cols;             /* columns of a scale as it lies here, a power of two */
    struct int8_section whole, last; /* last: of fewer blocks, where a row ends; or whole */
    size_t group_bytes, block_bytes;
};

static inline struct int8_kind_traits int8_traits(enum int8_kind kind) {
    static const struct int8_kind_traits all[INT8_KINDS] = {
        [INT8_U4_32] = {4, 32, 0, false},  [INT8_S4_32] = {4, 32, 8, false},
        [INT8_T4_32] = {4, 32, 0, true},   [INT8_U5_32] = {5, 32, 0, false},
        [INT8_S5_32] = {5, 32, 16, false}, [INT8_S8_32] = {8, 32, 128, false},
        [INT8_S6_16] = {6, 16, 32, false}, [INT8_S3_16] = {4, 16, 4, false},
        [INT8_U2_16] = {4, 16, 0, false}};
    return all[kind];
}

/* Returns what the section of a block has. */
static inline const struct int8_section *int8_section_of(const struct int8_weight *w,
                                                         uint32_t block) {
    const bool is_whole = block / INT8_SECTION * INT8_SECTION + INT8_SECTION <= w->n_blocks;
    return is_whole ? &w->whole : &w->last;
}

/* Returns true, and the layout, if weights of the format can be repacked. */
bool int8_layout_of(const struct weight_format *format, struct int8_layout *out);

/* Describes a repacked weight.  w->data is what int8_repack_group() wrote, or NULL, and its format
 * is that of the weight that was repacked. */
struct int8_weight int8_weight_of(const struct weight *w);

/* Returns the bytes of a repacked weight, a multiple of 64. */
uint64_t int8_weight_bytes(const struct int8_weight *to);

/* Repacks the rows of a group: out [group_bytes], zeros before.  Returns false if a scale or a
 * minimum is NaN or infinite. */
bool int8_repack_group(const struct weight *from, const struct int8_weight *to, uint32_t group,
                       uint8_t *out);

/* Writes the values of a row: out [cols], equal to those of weight_to_float() before. */
void int8_weight_row(const struct weight *w, uint32_t row, float *out);

#endif
