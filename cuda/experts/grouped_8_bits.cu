/* grouped_8_bits.cu - the experts' kernels for elements of 8 bits: grouped.cuh. */
#include "cuda/experts/grouped.cuh"

const struct grouped_kernels
    grouped_i8_rows = grouped_kernels_of<packed_format<elements_i8, scale_whole, 128>>(),
    grouped_i8_bf16 = grouped_kernels_of<packed_format<elements_i8, scale_bf16, 128>>(),
    grouped_i8_f16 = grouped_kernels_of<packed_format<elements_i8, scale_f16, 128>>(),
    grouped_i8_f16_32 = grouped_kernels_of<packed_format<elements_i8, scale_f16, 32>>(),
    grouped_i8_f16_16 = grouped_kernels_of<packed_format<elements_i8, scale_f16, 16>>(),
    grouped_i8_f16_32_min = grouped_kernels_of<packed_format<elements_i8, scale_f16, 32, true>>(),
    grouped_e4m3_rows = grouped_kernels_of<packed_format<elements_e4m3, scale_whole, 128>>(),
    grouped_e4m3_blocks = grouped_kernels_of<packed_format<elements_e4m3, scale_block, 128>>();
