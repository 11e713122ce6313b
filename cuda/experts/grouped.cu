/* grouped.cu - the kernel "grouped" of the experts' products: which kernel of grouped.cuh computes
 * a product, and its start. */
#include "cuda/experts/grouped.cuh"
#include "cuda/host/internal.h"

/* In the order of enum packed_wide_format; then bf16. */
static const struct grouped_kernels *const all_kernels[] = {
    &grouped_i4_rows,       &grouped_i4_bf16,       &grouped_i4_bf16_64,    &grouped_i4_bf16_32,
    &grouped_i4_f16,        &grouped_i4_f16_64,     &grouped_i4_f16_32,     &grouped_i4_f16_16,
    &grouped_i4_f32,        &grouped_i4_f32_min,    &grouped_i4_f32_64_min, &grouped_i4_f32_32_min,
    &grouped_i4_f16_32_min, &grouped_i4_f16_16_min, &grouped_i8_rows,       &grouped_i8_bf16,
    &grouped_i8_f16,        &grouped_i8_f16_32,     &grouped_i8_f16_16,     &grouped_i8_f16_32_min,
    &grouped_e4m3_rows,     &grouped_e4m3_blocks,   &grouped_e2m1_32,       &grouped_bf16};

static_assert(sizeof(all_kernels) / sizeof(*all_kernels) == N_GROUPED_FORMATS,
              "each format has its kernels");

static cudaError_t start_grouped(const struct expert_product *p, struct launch launch) {
    uint32_t format;
    if (!grouped_takes(p, &format)) return cudaErrorNotSupported;
    return all_kernels[format]->launch[grouped_choose_plan(&p->order)](p, launch);
}

extern "C" expert_launch launch_experts_grouped;
int launch_experts_grouped(struct cuda_backend *cuda, const struct expert_product *p,
                           struct error *err) {
    struct launch launch = launch_of(cuda);
    launch.n_multiprocessors = cuda->n_multiprocessors;
    return cuda_check(cuda, start_grouped(p, launch), "the experts' kernel \"grouped\"", err);
}
