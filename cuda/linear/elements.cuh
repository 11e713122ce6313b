/* elements.cuh - reads single elements of weights of any format that is not packed, and their
 * scales.  They lie as weight.h says, or in strips (strips.h).
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_LINEAR_ELEMENTS_CUH
#define CUDA_LINEAR_ELEMENTS_CUH

#include "cuda/common/device.cuh"
#include "cuda/linear/strips.h"

/* How the rows of a matrix are stored. */
struct stored_rows {
    struct weight_format format;
    uint32_t n_in, n_blocks; /* columns; scales of a row, or of a block of rows */
    size_t row_bytes;
    bool in_strips, scales_in_strips;
};

/* Returns how the rows of a weight of this format with n_in columns are stored. */
static inline struct stored_rows stored_rows_of(const struct weight_format *format, uint32_t n_in,
                                                bool in_strips) {
    const uint32_t block_cols = format->block_cols;
    struct stored_rows rows = {};
    rows.format = *format;
    rows.n_in = n_in;
    rows.n_blocks = block_cols ? (n_in + block_cols - 1) / block_cols : 1;
    rows.row_bytes = element_bytes(format->element, n_in);
    rows.in_strips = in_strips;
    rows.scales_in_strips = in_strips && strips_hold_scales(format);
    return rows;
}

/* Returns the bytes of a scale of this type. */
static __device__ __forceinline__ uint32_t scale_bytes_of(enum scale_type type) {
    return type == SCALE_NONE ? 0 : type == SCALE_F32 ? 4 : type >= SCALE_E8M0 ? 1 : 2;
}

/* Returns scale number i, in f32; 1 where there are none. */
static __device__ __forceinline__ float scale_at(const void *scales, size_t i,
                                                 enum scale_type type) {
    const uint8_t code = type >= SCALE_E8M0 ? __ldg(static_cast<const uint8_t *>(scales) + i) : 0;
    switch (type) {
    case SCALE_NONE: return 1.0f;
    case SCALE_F32: return __ldg(static_cast<const float *>(scales) + i);
    case SCALE_F16: return to_float(__ldg(static_cast<const __half *>(scales) + i));
    case SCALE_BF16: return to_float(__ldg(static_cast<const __nv_bfloat16 *>(scales) + i));
    case SCALE_E8M0:
        return __uint_as_float(code == 0xff ? 0x7fffffffu
                               : code == 0  ? 0x00400000u /* 2^-127 */
                                            : (uint32_t)code << 23);
    case SCALE_E4M3: return fp8_values(code).x;
    }
    return 0.0f;
}

/* Returns the value of a code of four bits.  E2M1 is f16 with the same bits, times 2^14. */
static __device__ __forceinline__ float nibble(uint32_t code, enum element element) {
    if (element == ELEMENT_I4) return (float)((int)code - 8);
    return to_float(__ushort_as_half((unsigned short)((code & 8) << 12 | (code & 7) << 9))) *
           16384.0f;
}

/* Returns element i of a row that begins there, in f32, without its scale. */
static __device__ __forceinline__ float element_at(const void *row, uint32_t i,
                                                   enum element element) {
    if (element <= ELEMENT_BF16) return load_element(row, i, element);
    if (element == ELEMENT_I8) return (float)static_cast<const int8_t *>(row)[i];
    const uint8_t *codes = static_cast<const uint8_t *>(row);
    if (element == ELEMENT_E4M3) return fp8_values(codes[i]).x;
    return nibble(codes[i / 2] >> i % 2 * 4 & 15, element);
}

/* Returns element * scale + min.  They are rounded apart, as everywhere. */
static __device__ __forceinline__ float scaled(float x, float scale, float min, bool has_min) {
    const float product = __fmul_rn(x, scale);
    return has_min ? __fadd_rn(product, min) : product;
}

/* Returns element i of a row of a matrix that lies in strips, in f32, without its scale. */
static __device__ __forceinline__ float element_in_strip(const struct stored_rows &w,
                                                         const void *data, uint32_t row,
                                                         uint32_t i) {
    const uint32_t
        bits = w.row_bytes * 8 / w.n_in,
        slab = 256 / bits, r = row % STRIP_ROWS, c = i % 16, reg = r / 8 + c / 8 * 2,
        lane = r % 8 * 4 + c % 8 / 2,
        words = i % slab / 16 * (bits / 4) + (bits == 4 ? 0 : reg / 2),
        bit = bits == 4 ? 4 * (reg + 4 * (c % 2)) : 8 * (2 * (c % 2) + 1 - reg % 2),
        word = static_cast<const uint32_t *>(
            data)[(((size_t)(row / STRIP_ROWS) * (w.n_in / slab) + i / slab) * 32 + lane) * 4 +
                  words],
        code = word >> bit & ((1u << bits) - 1);
    if (w.format.element == ELEMENT_I8) return (float)(int8_t)code;
    return w.format.element == ELEMENT_E4M3 ? fp8_values(code).x : nibble(code, w.format.element);
}

/* Returns the index in the array of scales of the one for this row and block of columns. */
static __device__ __forceinline__ size_t find_scale(const struct stored_rows &w, uint32_t row,
                                                    uint32_t block) {
    const uint32_t r = row % STRIP_ROWS;
    if (w.scales_in_strips)
        return ((size_t)(row / STRIP_ROWS) * w.n_blocks + block) * STRIP_ROWS + r % 8 * 2 + r / 8;
    return (w.format.block_rows ? (size_t)(row / w.format.block_rows) * w.n_blocks : 0) + block;
}

/* Returns the value of element i of a row of a matrix, in f32: with its scale and minimum. */
static __device__ __forceinline__ float value_at(const struct stored_rows &w, const void *data,
                                                 const void *scales, const void *mins, uint32_t row,
                                                 uint32_t i) {
    const size_t block = find_scale(w, row, w.format.block_cols ? i / w.format.block_cols : 0);
    const float scale = scale_at(scales, block, w.format.scale),
                min = w.format.has_min ? scale_at(mins, block, w.format.scale) : 0.0f,
                x = w.in_strips ? element_in_strip(w, data, row, i)
                                : element_at(static_cast<const char *>(data) + row * w.row_bytes, i,
                                             w.format.element);
    return scaled(x, scale, min, w.format.has_min);
}

#endif
