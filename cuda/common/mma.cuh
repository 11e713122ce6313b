/* mma.cuh - tensor cores from compute capability 8.0 on: asynchronous copies to shared memory,
 * fragments, products.
 *
 * Fragments of mma.m16n8k16, lane l of a warp; two 16-bit numbers to a register:
 *   A [16 x 16]  a[0..3]: row l / 4 (+ 8: a[1], a[3]), columns l % 4 * 2 and + 1 (+ 8: a[2], a[3])
 *   B [16 x 8]   b0, b1: rows l % 4 * 2 and + 1 (+ 8: b1), column l / 4
 *   C [16 x 8]   c[0..3]: row l / 4 (+ 8: c[2], c[3]), columns l % 4 * 2 and + 1 */
#ifndef CUDA_COMMON_MMA_CUH
#define CUDA_COMMON_MMA_CUH

#include <type_traits>

#include "cuda/common/device.cuh"

/* An address in shared memory, as instructions take it. */
struct shared_at {
    uint32_t address;
    __device__ __forceinline__ shared_at(uint32_t at) : address(at) {}
    __device__ __forceinline__ shared_at(const void *p)
        : address((uint32_t)__cvta_generic_to_shared(p)) {}
};

/* ---- copies ---- */

/* Starts copying 16 bytes to shared memory; writes zeros when !valid, and then does not read
 * `from`. */
static __device__ __forceinline__ void copy_async(shared_at to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.address), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* Starts the same copy; L2 reads all 128 bytes around it, which are wanted soon. */
static __device__ __forceinline__ void copy_async_line(shared_at to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to.address),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_async(shared_at to, const void *from, bool valid,
                                                  uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(
                     to.address),
                 "l"(from), "r"(valid ? 16 : 0), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N committed groups are pending. */
template <int N> static __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void copy_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Returns the policy for data that L2 needs once: it is evicted first. */
static __device__ __forceinline__ uint64_t pass_through_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ __forceinline__ void store_global(float *to, float2 x, uint64_t policy) {
    asm volatile("st.global.L2::cache_hint.v2.f32 [%0], {%1, %2}, %3;" ::"l"(to), "f"(x.x),
                 "f"(x.y), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void clear_16_bytes(shared_at to) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to.address), "r"(0) : "memory");
}

/* ---- fragments ---- */

/* Loads four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrix(uint32_t (&r)[4], shared_at from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from.address)
                 : "memory");
}

static __device__ __forceinline__ void load_matrix_trans(uint32_t (&r)[4], shared_at from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from.address)
                 : "memory");
}

/* Stores four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8.  Needs 9.0. */
static __device__ __forceinline__ void store_matrix(shared_at to, uint32_t (&r)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to.address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}

/* Stores four 8 x 8 matrices, each transposed; lane l names row l % 8 of matrix l / 8.  Needs
 * 9.0. */
static __device__ __forceinline__ void store_matrix_trans(shared_at to, const uint32_t (&r)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to.address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}

static __device__ __forceinline__ uint32_t load_shared(shared_at from) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from.address) : "memory");
    return x;
}

static __device__ __forceinline__ void load_shared(uint32_t (&x)[4], shared_at from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from.address)
                 : "memory");
}

static __device__ __forceinline__ void load_shared_two(uint32_t *x, shared_at from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(from.address)
                 : "memory");
}

static __device__ __forceinline__ void load_shared_four(uint32_t *x, shared_at from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from.address)
                 : "memory");
}

static __device__ __forceinline__ void store_shared_four(shared_at to, float x, float y, float z,
                                                         float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to.address), "f"(x), "f"(y),
                 "f"(z), "f"(w)
                 : "memory");
}

static __device__ __forceinline__ uint32_t load_shared_byte(shared_at from) {
    uint32_t x;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(from.address) : "memory");
    return x;
}

static __device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Packs two numbers of type T into a register; `low` comes first in memory. */
template <typename T> static __device__ __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<T, __half>) {
        __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&pair);
    } else {
        return pack_bf16(low, high);
    }
}

/* ---- products ---- */

/* Adds a b to c. */
template <typename T = __nv_bfloat16>
static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<T, __half>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

template <typename T = __nv_bfloat16>
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    mma<T>(c, a[0], a[1], a[2], a[3], b0, b1);
}

#endif
