/* grouped_8_bits.cu - the experts' kernels for elements of 8 bits: grouped.cuh. */
#include "cuda/experts/grouped.cuh"

extern const struct grouped_kernels grouped_i8_rows, grouped_i8_f16, grouped_i8_f16_32,
    grouped_e4m3_rows;

const struct grouped_kernels
    grouped_i8_rows = grouped_kernels_of<packed_format<elements_i8, scale_whole, 128>>(),
    grouped_i8_f16 = grouped_kernels_of<packed_format<elements_i8, scale_f16, 128>>(),
    grouped_i8_f16_32 = grouped_kernels_of<packed_format<elements_i8, scale_f16, 32>>(),
    grouped_e4m3_rows = grouped_kernels_of<packed_format<elements_e4m3, scale_whole, 128>>();
