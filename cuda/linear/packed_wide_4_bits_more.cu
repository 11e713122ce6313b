/* packed_wide_4_bits_more.cu - the packed wide kernels for int4 with minima, and for MXFP4:
 * packed_wide.cuh. */
#include "cuda/linear/packed_wide.cuh"

const struct packed_wide_kernels packed_wide_i4_f32_min =
                                     kernels_of<packed_format<elements_i4, scale_f32, 128, true>>(),
                                 packed_wide_i4_f32_64_min =
                                     kernels_of<packed_format<elements_i4, scale_f32, 64, true>>(),
                                 packed_wide_i4_f32_32_min =
                                     kernels_of<packed_format<elements_i4, scale_f32, 32, true>>(),
                                 packed_wide_i4_f16_32_min =
                                     kernels_of<packed_format<elements_i4, scale_f16, 32, true>>(),
                                 packed_wide_i4_f16_16_min =
                                     kernels_of<packed_format<elements_i4, scale_f16, 16, true>>(),
                                 packed_wide_e2m1_32 =
                                     kernels_of<packed_format<elements_e2m1, scale_e8m0, 32>>();
