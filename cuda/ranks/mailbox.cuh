/* mailbox.cuh - how kernels write to other ranks' mailboxes, and wait for what comes to their own.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_RANKS_MAILBOX_CUH
#define CUDA_RANKS_MAILBOX_CUH

#include "cuda/common/device.cuh"
#include "cuda/ranks/mailbox.h"

/* Stores to memory that another device reads. */
static __device__ __forceinline__ void store_to_rank(uint4 *to, uint4 x) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

/* Sets a flag, behind all that the thread, and those that it has met at a barrier, have written. */
static __device__ __forceinline__ void set_flag(uint32_t *flag, uint32_t number) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}

static __device__ __forceinline__ uint32_t read_flag(const uint32_t *flag) {
    uint32_t number;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(flag) : "memory");
    return number;
}

static __device__ __forceinline__ uint64_t load_volatile(const uint64_t *from) {
    uint64_t x;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

static __device__ __forceinline__ uint64_t now_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

static __device__ __forceinline__ struct mailbox *own_box(const struct rank_links &links) {
    return links.boxes[links.rank];
}

/* Returns where a rank's memory is that all ranks can write, if they cannot write its device's. */
static __device__ __forceinline__ void *stage_of(const struct rank_links &links) {
    return reinterpret_cast<char *>(own_box(links)) + mailbox_stage_at(links.n);
}

static __device__ __forceinline__ bool is_stopped(const struct rank_links &links) {
    return load_volatile(&own_box(links)->is_stopped) != 0;
}

/* Says the same to all threads of the block, which meet. */
static __device__ __forceinline__ bool block_is_stopped(const struct rank_links &links) {
    return __syncthreads_or(is_stopped(links));
}

/* A thread's wait.  The clock, and the host's memory, are looked at now and then. */
class wait_limit {
    uint64_t begun_ns = 0;
    uint32_t n_looks = 0;

  public:
    /* Says whether to give up waiting for another rank.  Then all ranks stop. */
    __device__ __forceinline__ bool is_over(const struct rank_links &links, enum rank_wait what,
                                            uint32_t other) {
        enum { LOOKS = 1024 };
        if (++n_looks % LOOKS != 0) return false;
        const uint64_t now = now_ns();
        if (begun_ns == 0) begun_ns = now;
        const bool is_late = now - begun_ns > links.limit_ns;
        if (!is_late && load_volatile(&links.report->word) == 0) return false;
        if (is_late && load_volatile(&links.report->word) == 0) {
            const uint64_t word = rank_report_word(what, links.rank, other);
            asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(&links.report->word), "l"(word)
                         : "memory");
        }
        own_box(links)->is_stopped = 1;
        return true;
    }
};

/* Waits for a flag of this round or a later one; returns false if it does not come. */
static __device__ __forceinline__ bool await_flag(const struct rank_links &links,
                                                  const uint32_t *flag, uint32_t number,
                                                  enum rank_wait what, uint32_t other) {
    wait_limit limit;
    while ((int32_t)(read_flag(flag) - number) < 0)
        if (limit.is_over(links, what, other)) return false;
    return true;
}

/* Returns a word that is not MISSING: a NaN, or two of bf16, stays one. */
static __device__ __forceinline__ uint32_t present(uint32_t word) {
    return word == MISSING ? 0x7fff7fffu : word;
}

/* Waits for a word; returns false if it does not come. */
static __device__ __forceinline__ bool await_word(const struct rank_links &links,
                                                  const uint32_t *from, uint32_t other,
                                                  uint32_t *out) {
    wait_limit limit;
    while ((*out = load_volatile(from)) == MISSING)
        if (limit.is_over(links, WAIT_SUM, other)) return false;
    return true;
}

/* Waits for all words of a vector; returns false if they do not come. */
static __device__ __forceinline__ bool await_vector(const struct rank_links &links,
                                                    const uint4 *from, uint32_t other, uint4 *out) {
    wait_limit limit;
    for (;;) {
        *out = load_volatile(from);
        if (have_come(*out)) return true;
        if (limit.is_over(links, WAIT_SUM, other)) return false;
    }
}

#endif
