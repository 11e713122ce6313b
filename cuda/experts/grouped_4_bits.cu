/* grouped_4_bits.cu - the experts' kernels for elements of 4 bits: grouped.cuh. */
#include "cuda/experts/grouped.cuh"

extern const struct grouped_kernels grouped_i4_bf16, grouped_i4_f16, grouped_i4_f16_32,
    grouped_i4_f32_min, grouped_i4_f16_32_min, grouped_e2m1_32;

const struct grouped_kernels
    grouped_i4_bf16 = grouped_kernels_of<packed_format<elements_i4, scale_bf16, 128>>(),
    grouped_i4_f16 = grouped_kernels_of<packed_format<elements_i4, scale_f16, 128>>(),
    grouped_i4_f16_32 = grouped_kernels_of<packed_format<elements_i4, scale_f16, 32>>(),
    grouped_i4_f32_min = grouped_kernels_of<packed_format<elements_i4, scale_f32, 128, true>>(),
    grouped_i4_f16_32_min = grouped_kernels_of<packed_format<elements_i4, scale_f16, 32, true>>(),
    grouped_e2m1_32 = grouped_kernels_of<packed_format<elements_e2m1, scale_e8m0, 32>>();
