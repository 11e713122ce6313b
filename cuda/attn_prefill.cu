/* attn_prefill.cu - prefill attention on the host: the work list and the choice of the kernel.
 *
 * Thread: engine.  Memory: the caller's. */
#include "cuda/attn_prefill.cuh"

#include <algorithm>

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

static bool wants_sm90(const struct attn_prefill_params &p) {
    static const bool is_there = attn_prefill_sm90_is_there();
    return is_there && !p.turned && p.kv.dtype == DTYPE_BF16 &&
           (p.kv.head_dim == 64 || p.kv.head_dim == 128);
}

cudaError_t launch_attn_prefill(const struct attn_prefill_params &p, cudaStream_t stream) {
    return wants_sm90(p) ? launch_attn_prefill_sm90(p, stream) : launch_attn_prefill_mma(p, stream);
}

cudaError_t launch_attn_prefill_sparse(const struct attn_prefill_params &p,
                                       const struct sparse_view &s, cudaStream_t stream) {
    const bool sm90 = wants_sm90(p) && attn_sparse_sm90_fits(s, p.kv.head_dim);
    return sm90 ? launch_attn_sparse_sm90(p, s, stream) : launch_attn_sparse_mma(p, s, stream);
}
