/* packed_wide_8_bits.cu - the packed wide kernels for elements of 8 bits: packed_wide.cuh. */
#include "cuda/linear/packed_wide.cuh"

const struct packed_wide_kernels
    packed_wide_i8_rows = kernels_of<packed_format<elements_i8, scale_whole, 128>>(),
    packed_wide_i8_bf16 = kernels_of<packed_format<elements_i8, scale_bf16, 128>>(),
    packed_wide_i8_f16 = kernels_of<packed_format<elements_i8, scale_f16, 128>>(),
    packed_wide_i8_f16_32 = kernels_of<packed_format<elements_i8, scale_f16, 32>>(),
    packed_wide_i8_f16_16 = kernels_of<packed_format<elements_i8, scale_f16, 16>>(),
    packed_wide_i8_f16_32_min = kernels_of<packed_format<elements_i8, scale_f16, 32, true>>(),
    packed_wide_e4m3_rows = kernels_of<packed_format<elements_e4m3, scale_whole, 128>>(),
    packed_wide_e4m3_blocks = kernels_of<packed_format<elements_e4m3, scale_block, 128>>();
