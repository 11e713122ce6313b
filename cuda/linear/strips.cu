/* strips.cu - puts the rows of packed weights into strips (strips.h), once, when they are loaded.
 *
 *   from  [n_rows][row_bytes]
 *   to    [strips][16 * row_bytes]
 *
 * Grid:   a thread for each word of data, or for each scale.      Shared: none.
 * Bound:  the bus by which the weights come.
 * Oracle: unpacked.cu, which reads strips, and every other kernel that does. */
#include "cuda/common/device.cuh"
#include "cuda/linear/strips.h"

enum { N_THREADS = 256, LANES = 32, WORDS = 4, SLAB_BYTES_OF_STRIP = LANES * WORDS * 4 };

extern "C" bool strips_take(const struct weight *w) {
    const struct weight_format *f = &w->format;
    const bool fits = f->element == ELEMENT_E4M3 || f->element == ELEMENT_I8 ||
                      f->element == ELEMENT_I4 || f->element == ELEMENT_E2M1;
    return fits && !w->rounds_input && (w->n_stacked == 1 || w->rows % STRIP_ROWS == 0) &&
           w->cols % 64 == 0 && f->block_cols % 8 == 0;
}

/* Returns byte i of a row; 0 behind the last row. */
static __device__ __forceinline__ uint32_t byte_at(const struct strips &s, uint32_t row,
                                                   uint32_t i) {
    return row < s.n_rows ? static_cast<const uint8_t *>(s.from)[(size_t)row * s.row_bytes + i] : 0;
}

/* Returns the word of 16 columns of 4 bits, which begin at byte i of their rows. */
static __device__ __forceinline__ uint32_t word_of_4(const struct strips &s, uint32_t row,
                                                     uint32_t i) {
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t two = byte_at(s, row + k % 2 * 8, i + k / 2 * 4);
        word |= (two & 15) << 4 * k | (two >> 4) << (16 + 4 * k);
    }
    return word;
}

/* Returns the word of two registers of 8 bits, whose columns begin at byte i of their rows. */
static __device__ __forceinline__ uint32_t word_of_8(const struct strips &s, uint32_t row,
                                                     uint32_t i) {
    return byte_at(s, row, i) << 8 | byte_at(s, row, i + 1) << 24 | byte_at(s, row + 8, i) |
           byte_at(s, row + 8, i + 1) << 16;
}

static __global__ void strip_elements_kernel(const __grid_constant__ struct strips s) {
    const size_t i = (size_t)blockIdx.x * N_THREADS + threadIdx.x;
    const uint32_t word = i % WORDS, lane = i / WORDS % LANES,
                   n_slabs = s.row_bytes * STRIP_ROWS / SLAB_BYTES_OF_STRIP;
    const size_t slab = i / (LANES * WORDS);
    const uint32_t row = (uint32_t)(slab / n_slabs) * STRIP_ROWS + lane / 4,
                   first = (uint32_t)(slab % n_slabs) * (SLAB_BYTES_OF_STRIP / STRIP_ROWS);
    if (slab / n_slabs * STRIP_ROWS >= s.n_rows) return;
    static_cast<uint32_t *>(s.to)[i] = s.bits == 4
                                           ? word_of_4(s, row, first + word * 8 + lane % 4)
                                           : word_of_8(s, row, first + word * 8 + lane % 4 * 2);
}

static __global__ void strip_scales_kernel(const __grid_constant__ struct strips s) {
    const uint32_t bytes = s.bits / 8, n_blocks = s.row_bytes / bytes;
    const size_t i = (size_t)blockIdx.x * N_THREADS + threadIdx.x, block = i / STRIP_ROWS;
    const uint32_t at = i % STRIP_ROWS,
                   row = (uint32_t)(block / n_blocks) * STRIP_ROWS + at / 2 + at % 2 * 8;
    if (block / n_blocks * STRIP_ROWS >= s.n_rows) return;
    for (uint32_t k = 0; k < bytes; k++)
        static_cast<uint8_t *>(s.to)[i * bytes + k] =
            (uint8_t)byte_at(s, row, (uint32_t)(block % n_blocks) * bytes + k);
}

extern "C" cudaError_t launch_strips(const struct strips *s, struct launch launch) {
    const size_t rows = ((size_t)s->n_rows + STRIP_ROWS - 1) / STRIP_ROWS * STRIP_ROWS,
                 n = rows * s->row_bytes / (s->are_scales ? s->bits / 8 : sizeof(uint32_t));
    return launch_kernel(without_overlap(launch),
                         s->are_scales ? strip_scales_kernel : strip_elements_kernel,
                         dim3((unsigned)((n + N_THREADS - 1) / N_THREADS)), dim3(N_THREADS), 0, *s);
}
