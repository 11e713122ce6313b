/* grouped_4_bits.cu - the experts' kernels for int4 without minima: grouped.cuh. */
#include "cuda/experts/grouped.cuh"

const struct grouped_kernels
    grouped_i4_rows = grouped_kernels_of<packed_format<elements_i4, scale_whole, 128>>(),
    grouped_i4_bf16 = grouped_kernels_of<packed_format<elements_i4, scale_bf16, 128>>(),
    grouped_i4_bf16_64 = grouped_kernels_of<packed_format<elements_i4, scale_bf16, 64>>(),
    grouped_i4_bf16_32 = grouped_kernels_of<packed_format<elements_i4, scale_bf16, 32>>(),
    grouped_i4_f16 = grouped_kernels_of<packed_format<elements_i4, scale_f16, 128>>(),
    grouped_i4_f16_64 = grouped_kernels_of<packed_format<elements_i4, scale_f16, 64>>(),
    grouped_i4_f16_32 = grouped_kernels_of<packed_format<elements_i4, scale_f16, 32>>(),
    grouped_i4_f16_16 = grouped_kernels_of<packed_format<elements_i4, scale_f16, 16>>(),
    grouped_i4_f32 = grouped_kernels_of<packed_format<elements_i4, scale_f32, 128>>();
