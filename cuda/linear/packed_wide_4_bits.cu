/* packed_wide_4_bits.cu - the packed wide kernels for int4 without minima: packed_wide.cuh. */
#include "cuda/linear/packed_wide.cuh"

const struct packed_wide_kernels
    packed_wide_i4_rows = kernels_of<packed_format<elements_i4, scale_whole, 128>>(),
    packed_wide_i4_bf16 = kernels_of<packed_format<elements_i4, scale_bf16, 128>>(),
    packed_wide_i4_bf16_64 = kernels_of<packed_format<elements_i4, scale_bf16, 64>>(),
    packed_wide_i4_bf16_32 = kernels_of<packed_format<elements_i4, scale_bf16, 32>>(),
    packed_wide_i4_f16 = kernels_of<packed_format<elements_i4, scale_f16, 128>>(),
    packed_wide_i4_f16_64 = kernels_of<packed_format<elements_i4, scale_f16, 64>>(),
    packed_wide_i4_f16_32 = kernels_of<packed_format<elements_i4, scale_f16, 32>>(),
    packed_wide_i4_f16_16 = kernels_of<packed_format<elements_i4, scale_f16, 16>>(),
    packed_wide_i4_f32 = kernels_of<packed_format<elements_i4, scale_f32, 128>>();
