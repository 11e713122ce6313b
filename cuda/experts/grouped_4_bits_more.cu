/* grouped_4_bits_more.cu - the experts' kernels for int4 with minima, and MXFP4: grouped.cuh. */
#include "cuda/experts/grouped.cuh"

const struct grouped_kernels
    grouped_i4_f32_min = grouped_kernels_of<packed_format<elements_i4, scale_f32, 128, true>>(),
    grouped_i4_f32_64_min = grouped_kernels_of<packed_format<elements_i4, scale_f32, 64, true>>(),
    grouped_i4_f32_32_min = grouped_kernels_of<packed_format<elements_i4, scale_f32, 32, true>>(),
    grouped_i4_f16_32_min = grouped_kernels_of<packed_format<elements_i4, scale_f16, 32, true>>(),
    grouped_i4_f16_16_min = grouped_kernels_of<packed_format<elements_i4, scale_f16, 16, true>>(),
    grouped_e2m1_32 = grouped_kernels_of<packed_format<elements_e2m1, scale_e8m0, 32>>();
