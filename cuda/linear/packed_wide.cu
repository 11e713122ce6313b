/* packed_wide.cu - the product kernel "packed wide": which kernel of packed_wide.cuh computes a
 * product, and its start. */
#include "cuda/host/internal.h"
#include "cuda/linear/packed_wide.cuh"

/* In the order of enum packed_wide_format. */
static const struct packed_wide_kernels *const all_kernels[] = {
    &packed_wide_i4_rows,       &packed_wide_i4_bf16,       &packed_wide_i4_bf16_64,
    &packed_wide_i4_bf16_32,    &packed_wide_i4_f16,        &packed_wide_i4_f16_64,
    &packed_wide_i4_f16_32,     &packed_wide_i4_f16_16,     &packed_wide_i4_f32,
    &packed_wide_i4_f32_min,    &packed_wide_i4_f32_64_min, &packed_wide_i4_f32_32_min,
    &packed_wide_i4_f16_32_min, &packed_wide_i4_f16_16_min, &packed_wide_i8_rows,
    &packed_wide_i8_bf16,       &packed_wide_i8_f16,        &packed_wide_i8_f16_32,
    &packed_wide_i8_f16_16,     &packed_wide_i8_f16_32_min, &packed_wide_e4m3_rows,
    &packed_wide_e4m3_blocks,   &packed_wide_e2m1_32};

static_assert(sizeof(all_kernels) / sizeof(*all_kernels) == N_PACKED_WIDE_FORMATS,
              "each format has its kernels");

static cudaError_t start_packed(const struct product *p, const struct packed_wide_device *device,
                                struct launch launch) {
    const enum packed_wide_format format = packed_wide_find_format(&p->w_format);
    if (format == N_PACKED_WIDE_FORMATS || device->n_clusters[1] == 0) return cudaErrorNotSupported;
    const struct packed_wide_cut cut = packed_wide_choose_cut(p, device);
    launch.n_multiprocessors = device->n_clusters[cut.n_splits] * cut.n_splits;
    return all_kernels[format]->launch[cut.tile](p, cut.n_splits, launch);
}

extern "C" product_launch launch_packed_wide;
int launch_packed_wide(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    return cuda_check(cuda, start_packed(p, &cuda->products.packed_wide, launch_of(cuda)),
                      "the product kernel \"packed wide\"", err);
}

extern "C" product_open open_packed_wide;
int open_packed_wide(struct cuda_backend *cuda, struct error *) {
    struct packed_wide_device device;
    for (uint32_t &n : device.n_clusters) n = cuda->n_multiprocessors;
    bool opens = true;
    for (int i = 0; i < N_PACKED_WIDE_FORMATS && opens; i++)
        opens = all_kernels[i]->open(i == 0 ? &device : nullptr);
    if (opens) cuda->products.packed_wide = device;
    cudaGetLastError(); /* an answer, not a fault */
    return 0;
}
