/* packed_wide_4_bits.cu - the packed wide kernels for elements of 4 bits: packed_wide.cuh. */
#include "cuda/linear/packed_wide.cuh"

extern const struct packed_wide_kernels packed_wide_i4_bf16, packed_wide_i4_f16,
    packed_wide_i4_f16_32, packed_wide_i4_f32_min, packed_wide_i4_f16_32_min, packed_wide_e2m1_32;

const struct packed_wide_kernels packed_wide_i4_bf16 =
                                     kernels_of<packed_format<elements_i4, scale_bf16, 128>>(),
                                 packed_wide_i4_f16 =
                                     kernels_of<packed_format<elements_i4, scale_f16, 128>>(),
                                 packed_wide_i4_f16_32 =
                                     kernels_of<packed_format<elements_i4, scale_f16, 32>>(),
                                 packed_wide_i4_f32_min =
                                     kernels_of<packed_format<elements_i4, scale_f32, 128, true>>(),
                                 packed_wide_i4_f16_32_min =
                                     kernels_of<packed_format<elements_i4, scale_f16, 32, true>>(),
                                 packed_wide_e2m1_32 =
                                     kernels_of<packed_format<elements_e2m1, scale_e8m0, 32>>();
