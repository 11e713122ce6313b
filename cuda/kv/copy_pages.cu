/* copy_pages.cu - copies KV pages to other pages of their pool.
 *
 *   one call    from 7 4 9 …     a state's pages in some layers, into those of the sequence that
 *               to   1 0 5 …     goes on from it
 *
 * One cudaMemcpyAsync() a page takes over ten times as long as its bytes.  So the pages' numbers go
 * along as a parameter, and one kernel moves as many as a parameter has space for.
 *
 * Grid:   (parts of a page, pages).   Shared: none.
 * Bound:  memory, each byte is read and written once. */
#include "cuda/common/device.cuh"
#include "engine/device/pages.h"

enum {
    BLOCK = 256,
    PER_THREAD = 4, /* words of 16 bytes, all loaded before the first is stored */
    PER_BLOCK = BLOCK * PER_THREAD,
};
static_assert(PAGE_ALIGN % sizeof(uint4) == 0, "a page is a number of whole words");

static __global__ void __launch_bounds__(BLOCK)
    copy_pages_kernel(char *base, size_t page_bytes, const struct page_copies copies) {
    const size_t n_words = page_bytes / sizeof(uint4);
    const size_t first = (size_t)blockIdx.x * PER_BLOCK + threadIdx.x;
    const uint4 *from = reinterpret_cast<uint4 *>(base + copies.from[blockIdx.y] * page_bytes);
    uint4 *to = reinterpret_cast<uint4 *>(base + copies.to[blockIdx.y] * page_bytes);
    uint4 words[PER_THREAD];
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++)
        if (first + i * BLOCK < n_words) words[i] = from[first + i * BLOCK];
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++)
        if (first + i * BLOCK < n_words) to[first + i * BLOCK] = words[i];
}

cudaError_t launch_copy_pages(const struct kv_pool *kv, const struct page_copies *copies,
                              struct launch launch) {
    if (copies->n == 0) return cudaSuccess;
    const dim3 grid((unsigned)div_up(kv->page_bytes, PER_BLOCK * sizeof(uint4)), copies->n);
    return launch_kernel(launch, copy_pages_kernel, grid, BLOCK, 0, static_cast<char *>(kv->base),
                         kv->page_bytes, *copies);
}
