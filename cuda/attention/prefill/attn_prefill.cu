/* attn_prefill.cu - prefill attention on the host: the work list and the choice of the kernel.
 *
 * Thread: engine.  Memory: the caller's. */
#include "cuda/attention/prefill/attn_prefill.cuh"

#include <algorithm>

#include "cuda/attention/prefill/sm90_wide.cuh"
#include "engine/device/pages.h"

uint32_t attn_prefill_plan(const uint32_t *n_rows, const uint32_t *n_slots, uint32_t first_seq,
                           uint32_t n_seqs, struct attn_prefill_item *items) {
    uint32_t n = 0;
    for (uint32_t seq = first_seq; seq < n_seqs; seq++)
        for (uint32_t row = 0; row < n_rows[seq]; row += ATTN_PREFILL_TILE)
            items[n++] = {(int32_t)seq, (int32_t)(row / ATTN_PREFILL_TILE)};
    const auto visible = [=](const struct attn_prefill_item &item) {
        const uint32_t end = (uint32_t)(item.tile + 1) * ATTN_PREFILL_TILE;
        return n_slots[item.seq] - n_rows[item.seq] + std::min(end, n_rows[item.seq]);
    };
    /* Not stable_sort, which allocates. */
    std::sort(items, items + n, [=](const auto &a, const auto &b) {
        if (visible(a) != visible(b)) return visible(a) > visible(b);
        return a.seq != b.seq ? a.seq < b.seq : a.tile < b.tile;
    });
    return n;
}

static bool sm90_has_dim(uint32_t head_dim) {
    static const bool is_there = attn_prefill_sm90_is_there();
    return is_there && (head_dim == 64 || head_dim == 128);
}

static bool has_sm90(const struct kv_pool &kv) {
    return kv.format == PAGE_BF16 && sm90_has_dim(kv.head_dim);
}

/* Tells whether keys and scores are as all kernels of sm_90a read them. */
static bool has_plain_scores(const struct attn_prefill_params &p) {
    return !p.rotated && !p.bias.slopes;
}

static bool wants_sm90(const struct attn_prefill_params &p) {
    return has_plain_scores(p) && has_sm90(p.kv);
}

static bool wants_wide(const struct attn_prefill_params &p) {
    static const bool is_there = attn_prefill_sm90_is_there();
    return is_there && has_plain_scores(p) && p.kv.format == PAGE_BF16 && p.kv.head_dim == 256;
}

cudaError_t launch_attn_prefill(const struct attn_prefill_params &p, struct launch launch) {
    if (wants_sm90(p)) return launch_attn_prefill_sm90(p, launch);
    return wants_wide(p) ? launch_attn_prefill_wide(p, launch) : launch_attn_prefill_mma(p, launch);
}

cudaError_t launch_attn_prefill_sparse(const struct attn_prefill_params &p,
                                       const struct sparse_view &s, cudaStream_t stream) {
    const bool sm90 = wants_sm90(p) && attn_sparse_sm90_fits(s, p.kv.head_dim);
    return sm90 ? launch_attn_sparse_sm90(p, s, stream) : launch_attn_sparse_mma(p, s, stream);
}

bool attn_split_reads_codes(const struct kv_pool &kv) {
    return kv.format == PAGE_FP8 && sm90_has_dim(kv.head_dim);
}

cudaError_t launch_attn_split(const struct attn_prefill_params &p, const struct attn_split_view &s,
                              struct launch launch) {
    const bool sm90 = wants_sm90(p) || attn_split_reads_codes(p.kv);
    const cudaError_t status =
        sm90 ? launch_attn_split_sm90(p, s, launch) : launch_attn_split_mma(p, s, launch);
    return status == cudaSuccess ? launch_attn_split_merge(p, s, launch) : status;
}

cudaError_t attn_split_shape_of(const struct kv_pool &kv, uint32_t n_heads,
                                struct attn_split_shape *shape) {
    int device, n_multiprocessors, n_resident = 1; /* sm90.cu: one block each */
    *shape = {n_heads, kv.n_kv_heads, attn_prefill_block_rows(kv.head_dim), 0, 0};
    if (n_heads / kv.n_kv_heads > shape->block_rows) return cudaSuccess;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (status == cudaSuccess && !has_sm90(kv)) status = attn_split_mma_residents(kv, &n_resident);
    /* None resident: the device is too small for the kernel, and its launch will say so. */
    if (status != cudaSuccess || n_resident == 0) return status;
    shape->n_blocks = (uint32_t)(n_multiprocessors * n_resident);
    shape->max_blocks = (uint32_t)n_multiprocessors * ATTN_SPLIT_MAX;
    return cudaSuccess;
}
