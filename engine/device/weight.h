/* weight.h - matrices on a device, and how their elements are stored.
 *
 * A format is a few numbers, not a name.  A reader of files converts what it finds to them, so
 * nothing else knows the names of file formats.  The exception are packed elements, which numbers
 * cannot describe: packed.h.
 *
 *   data     [rows] of weight_row_bytes(): the elements of a row, in whole bytes
 *   scales   [row blocks][column blocks]: a number for each block of elements
 *   mins     as scales, and of the same type
 *
 * The value of an element is element * scale + min; that of a packed one is in packed.h.  A block
 * is block_rows x block_cols elements; blocks at the lower and the right edge may be smaller.
 *
 * All sizes of weights are computed here.  weight_to_float() is plain C: what every kernel that
 * reads weights is compared with.
 *
 * Thread: any.  Memory: none; a view borrows the memory of its weight. */
#ifndef ENGINE_DEVICE_WEIGHT_H
#define ENGINE_DEVICE_WEIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct error;

/* Of elements of 4 bits the first is in the lower half of a byte. */
enum element {
    ELEMENT_F32,
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_E4M3, /* sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7f and 0xff are NaN */
    ELEMENT_I8,   /* -128 to 127 */
    ELEMENT_I4,   /* the code, 0 to 15, less 8 */
    ELEMENT_E2M1, /* sign, 2 bits of exponent (bias 1), 1 of mantissa: 0 to 6 */
    /* Packed: blocks of 32 or, from Q2_K to IQ4_XS, of 256 elements, with their scales inside. */
    ELEMENT_Q4_0,
    ELEMENT_Q4_1,
    ELEMENT_Q5_0,
    ELEMENT_Q5_1,
    ELEMENT_Q8_0,
    ELEMENT_IQ4_NL,
    ELEMENT_MXFP4,
    ELEMENT_Q2_K,
    ELEMENT_Q3_K,
    ELEMENT_Q4_K,
    ELEMENT_Q5_K,
    ELEMENT_Q6_K,
    ELEMENT_IQ4_XS
};

/* Returns the elements of a block that is packed, and the bytes of n of them, a multiple. */
uint32_t packed_block(enum element element);
size_t packed_bytes(enum element element, size_t n);

enum scale_type {
    SCALE_NONE, /* every scale is 1; of packed elements, too */
    SCALE_F32,
    SCALE_F16,
    SCALE_BF16,
    SCALE_E8M0, /* 2^(code - 127); 0xff is NaN */
    SCALE_E4M3
};

struct weight_format {
    enum element element;
    enum scale_type scale;
    uint16_t block_rows, block_cols; /* of a scale; 0: the whole side */
    bool has_min;                    /* else every min is 0; with scales only */
};

/* A matrix, row-major, rows = output features; or a stack of them.  A vector is one row. */
struct weight {
    const void *data; /* NULL: absent (an optional bias) */
    const void *scales, *mins;
    struct weight_format format;
    uint32_t n_stacked;  /* matrices, one behind the other; 1: it is no stack */
    uint32_t rows, cols; /* of each matrix, which has blocks of its own */
    bool in_strips;      /* the arrays lie in a device's own order (cuda/linear/strips.h) */
    /* A product with the weight rounds its input to E4M3, from backend.rounds_inputs_from rows on.
     * Each row of the input gets a scale, or each part of a row that meets a block of the weight.
     * Elements beyond input_most, if it is not 0, become that. */
    bool rounds_input;
    float input_most;
};

/* What a weight is needed for, as a set of bits. */
enum weight_use {
    WEIGHT_PRODUCT = 1, /* x is multiplied with it */
    WEIGHT_TABLE = 2,   /* its rows are looked up */
    WEIGHT_VECTOR = 4   /* a norm, a bias, sinks */
};

static inline const struct weight *weight_if_present(const struct weight *weight) {
    return weight->data ? weight : NULL;
}

static inline bool element_is_packed(enum element element) {
    return element >= ELEMENT_Q4_0;
}

/* Returns the bits of an element that is not packed. */
static inline uint32_t element_bits(enum element element) {
    static const uint8_t bits[] = {32, 16, 16, 8, 8, 4, 4};
    return bits[element];
}

/* Returns the bytes of n adjacent elements: whole ones.  Packed: n is a multiple of the block. */
static inline size_t element_bytes(enum element element, size_t n) {
    if (element_is_packed(element)) return packed_bytes(element, n);
    return (n * element_bits(element) + 7) / 8;
}

/* Returns true if elements are floats of at least 16 bits that need no scale. */
static inline bool weight_is_plain(const struct weight_format *format) {
    return format->element <= ELEMENT_BF16 && format->scale == SCALE_NONE;
}

static inline bool weight_same_format(const struct weight_format *a,
                                      const struct weight_format *b) {
    return a->element == b->element && a->scale == b->scale && a->block_rows == b->block_rows &&
           a->block_cols == b->block_cols && a->has_min == b->has_min;
}

/* Writes the format for messages, such as "E4M3 with F32 scales of 128 x 128 elements". */
enum { WEIGHT_FORMAT_TEXT = 80 };
void weight_format_text(const struct weight_format *format, char text[WEIGHT_FORMAT_TEXT]);

/* Returns a weight without scales, not a stack. */
struct weight weight_plain(const void *data, enum element element, uint32_t rows, uint32_t cols);

static inline size_t weight_row_bytes(const struct weight *w) {
    return element_bytes(w->format.element, w->cols);
}

/* Returns where the elements of a row are. */
static inline const void *weight_row_at(const struct weight *w, uint32_t row) {
    return (const char *)w->data + row * weight_row_bytes(w);
}

/* Returns the bytes of data, scales and mins. */
uint64_t weight_bytes(const struct weight *w);
/* Returns the bytes of the scales of all matrices; its mins have as many. */
uint64_t weight_scale_bytes(const struct weight *w);
/* Returns how many scales there are, and the value of scale number i. */
uint64_t weight_n_scales(const struct weight *w);
float weight_scale_at(const struct weight *w, size_t i);

/* Data, scales and mins of a copy begin at multiples of this. */
enum { WEIGHT_COPY_ALIGN = 16 };
/* Returns the bytes that a copy of a weight takes: data, scales and mins behind one another.  They
 * are weight_bytes() where there are no scales. */
uint64_t weight_copy_bytes(const struct weight *w);
/* Returns the weight as it lies in `memory` [weight_copy_bytes()]; copies nothing. */
struct weight weight_copy_at(const struct weight *w, void *memory);

/* Makes *out a view of n rows from `first` on; w is no stack.  Returns false if they begin inside a
 * block. */
bool weight_rows(const struct weight *w, uint32_t first, uint32_t n, struct weight *out);

/* Tells whether a copy can have n columns of a weight from `first` on.  It cannot if they begin or
 * end inside a byte or a packed block, or begin inside a block of scales. */
bool weight_can_cut(const struct weight *w, uint32_t first, uint32_t n);
/* Copies columns of a weight, from `first` on, with their scales to another one.  That has as many
 * rows, and the columns that are copied; these can be cut.  Neither is a stack. */
void weight_copy_columns(const struct weight *from, uint32_t first, const struct weight *to);

/* Returns a view of matrix number i of a stack. */
struct weight weight_matrix(const struct weight *w, uint32_t i);

/* Writes the values of a row's elements: out [cols]. */
void weight_to_float(const struct weight *w, uint32_t row, float *out);
/* Says that a weight has values that are no numbers: ERR_INVALID. */
int weight_refuse_values(struct error *err);
/* Writes n values to out as elements that need no scale, rounded to the nearest, ties to even. */
void weight_from_float(const float *values, size_t n, enum element element, void *out);

#ifdef __cplusplus
}
#endif

#endif
