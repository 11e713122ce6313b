/* sm90.cuh - Hopper's instructions as functions: tensor-map copies, mbarriers, wgmma, registers.
 *
 * Shared-memory matrices are in 128-byte swizzle: rows of 64 bf16 (128 bytes), 8 rows to a
 * 1024-byte atom in which chunk c (16 bytes) of row r sits at chunk c ^ r.  Matrices start at
 * multiples of 1024 bytes; wider ones are several such columns of 64, one after the other.
 *
 * A wgmma descriptor of such a matrix (PTX ISA, "Asynchronous Warpgroup Level Matrix"):
 *   bits  0-13  start address >> 4
 *   bits 16-29  leading byte offset >> 4: from one column of 64 to the next when the rows run
 *               along the reduction (V: "MN-major"); ignored when along M or N (Q, K: "K-major")
 *   bits 32-45  stride byte offset >> 4: from one group of 8 rows to the next, 1024
 *   bits 62-63  1: 128-byte swizzle
 * The reduction advances by 16: 32 bytes within a K-major row, 16 rows = 2048 bytes otherwise.
 *
 * Code for less than 9.0 may not reach a function unless its comment says otherwise. */
#ifndef CUDA_COMMON_SM90_CUH
#define CUDA_COMMON_SM90_CUH

#include <cuda.h>
#include <cudaTypedefs.h>

#include "cuda/common/mma.cuh"

/* --- mbarriers: a phase ends when `arrivals` have come and all announced bytes have arrived --- */

static __device__ __forceinline__ void barrier_init(shared_at bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar.address), "r"(arrivals)
                 : "memory");
}

/* Makes initialised barriers visible to the copy engine; a __syncthreads() must follow. */
static __device__ __forceinline__ void barriers_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(shared_at bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar.address) : "memory");
}

static __device__ __forceinline__ void barrier_arrive_expect(shared_at bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar.address),
                 "r"(bytes)
                 : "memory");
}

/* Waits for the end of the phase of this parity: 0 for the first, then 1, 0, ... */
static __device__ __forceinline__ void barrier_wait(shared_at bar, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again%=;\n"
                 "}" ::"r"(bar.address),
                 "r"(parity)
                 : "memory");
}

/* Arrives at the barrier that a block of the cluster has at the same place.  It publishes no writes
 * to that block: with a release for the cluster each arrival would be a slow fence. */
static __device__ __forceinline__ void barrier_arrive_remote(shared_at bar, uint32_t block) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar.address),
                 "r"(block)
                 : "memory");
}

/* --- rings of stages --- */

/* A position in a ring of stages.  Consumers begin with parity 0, producers with 1: the stages are
 * empty. */
template <int N_STAGES> struct ring_place {
    uint32_t stage, parity;
    __device__ __forceinline__ void advance() {
        if (++stage < N_STAGES) return;
        stage = 0;
        parity ^= 1;
    }
};

/* --- named barriers among warpgroups: `threads` counts those that sync and that arrive --- */

static __device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* --- clusters: every thread of each of its blocks arrives, and then waits --- */

static __device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

/* Arrives without a fence: the other blocks see what barriers_publish() has published, no more. */
static __device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* --- the copy engine --- */

static __device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Starts copying a box of the matrix, from (column, row), to shared memory; its bytes count on the
 * barrier. */
static __device__ __forceinline__ void tensor_load(shared_at to, const CUtensorMap *map, int column,
                                                   int row, shared_at bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(to.address),
        "l"(map), "r"(column), "r"(row), "r"(bar.address)
        : "memory");
}

/* Starts the same copy from one matrix of a stack. */
static __device__ __forceinline__ void tensor_load(shared_at to, const CUtensorMap *map, int column,
                                                   int row, int matrix, shared_at bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4}], [%5];" ::"r"(to.address),
        "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(bar.address)
        : "memory");
}

/* Starts the same copy of one matrix for data that L2 needs in the way that `policy` says. */
static __device__ __forceinline__ void tensor_load_hinted(shared_at to, const CUtensorMap *map,
                                                          int column, int row, shared_at bar,
                                                          uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to.address),
                 "l"(map), "r"(column), "r"(row), "r"(bar.address), "l"(policy)
                 : "memory");
}

/* Starts the same copy to every block of the cluster whose bit is set in `blocks`: to the same
 * place in each, where the bytes count on the same barrier. */
static __device__ __forceinline__ void tensor_load_shared(shared_at to, const CUtensorMap *map,
                                                          int column, int row, shared_at bar,
                                                          uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to.address),
                 "l"(map), "r"(column), "r"(row), "r"(bar.address), "h"(blocks)
                 : "memory");
}

/* Starts the same copy from one matrix of a stack. */
static __device__ __forceinline__ void tensor_load_shared(shared_at to, const CUtensorMap *map,
                                                          int column, int row, int matrix,
                                                          shared_at bar, uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to.address),
                 "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(bar.address), "h"(blocks)
                 : "memory");
}

/* Starts the same copy of one matrix for data that L2 needs in the way that `policy` says. */
static __device__ __forceinline__ void tensor_load_shared(shared_at to, const CUtensorMap *map,
                                                          int column, int row, shared_at bar,
                                                          uint16_t blocks, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to.address),
        "l"(map), "r"(column), "r"(row), "r"(bar.address), "h"(blocks), "l"(policy)
        : "memory");
}

/* Starts copying bytes that lie in a row, a multiple of 16, to shared memory. */
static __device__ __forceinline__ void bulk_load(shared_at to, const void *from, uint32_t bytes,
                                                 shared_at bar, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to.address),
                 "l"(from), "r"(bytes), "r"(bar.address), "l"(policy)
                 : "memory");
}

/* Starts the same copy without a policy. */
static __device__ __forceinline__ void bulk_load(shared_at to, const void *from, uint32_t bytes,
                                                 shared_at bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to.address),
                 "l"(from), "r"(bytes), "r"(bar.address)
                 : "memory");
}

/* Starts copying a box from shared memory to the matrix, at (column, row).  What lies past the
 * matrix's end is not written. */
static __device__ __forceinline__ void tensor_store(const CUtensorMap *map, int column, int row,
                                                    shared_at from) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(column), "r"(row), "r"(from.address)
        : "memory");
}

/* Starts adding a box to the matrix; each sum is rounded to the matrix's elements. */
static __device__ __forceinline__ void tensor_add(const CUtensorMap *map, int column, int row,
                                                  shared_at from) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], "
        "[%3];" ::"l"(map),
        "r"(column), "r"(row), "r"(from.address)
        : "memory");
}

/* Makes a group of the thread's stores since the last one. */
static __device__ __forceinline__ void stores_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most N groups of the thread's stores have not read shared memory. */
template <int N> static __device__ __forceinline__ void stores_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Waits until the thread's stores are visible. */
static __device__ __forceinline__ void stores_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Returns true in one lane of a warp, always the same.  The compiler knows that it is one, so it
 * hands a copy's operands over without a loop over lanes. */
static __device__ __forceinline__ bool elect_lane() {
    uint32_t is_elected;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(is_elected));
    return is_elected;
}

/* Prefetches to L2; does nothing below 9.0. */
static __device__ __forceinline__ void prefetch_l2(const void *from, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#endif
}

/* Makes shared memory written by ordinary stores visible to wgmma and the copy engine; does nothing
 * below 9.0. */
static __device__ __forceinline__ void fence_async_proxy() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* --- registers --- */

template <int N> static __device__ __forceinline__ void registers_raise() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_lower() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- wgmma --- */

static __device__ __forceinline__ uint64_t wgmma_matrix(shared_at p, uint32_t leading_bytes) {
    return (uint64_t)((p.address & 0x3ffff) >> 4) | (uint64_t)(leading_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ uint64_t wgmma_advance(uint64_t matrix, int bytes) {
    return matrix + (uint64_t)(bytes >> 4);
}

static __device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N committed groups are pending. */
template <int N> static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving reads of an accumulator across the wait that completes it. */
template <int N> static __device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Register lists of the accumulators: 8 operands at a time. */
#define SM90_D8(d, i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define SM90_D16(d, i) SM90_D8(d, i), SM90_D8(d, i + 8)
#define SM90_D32(d, i) SM90_D16(d, i), SM90_D16(d, i + 16)
#define SM90_D64(d, i) SM90_D32(d, i), SM90_D32(d, i + 32)
#define SM90_LIST8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SM90_LIST16 SM90_LIST8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SM90_LIST24 SM90_LIST16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SM90_LIST32 SM90_LIST24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SM90_LIST48                                                                                \
    SM90_LIST32                                                                                    \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SM90_LIST56 SM90_LIST48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SM90_LIST64 SM90_LIST56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SM90_LIST96                                                                                \
    SM90_LIST64                                                                                    \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SM90_LIST112                                                                               \
    SM90_LIST96                                                                                    \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
    "%111"
#define SM90_LIST128                                                                               \
    SM90_LIST112                                                                                   \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "             \
    "%125, %126, %127"

/* Starts d[64 x N] = (add ? d : 0) + A B^T.  A and B are K-major in shared memory, with 32 bytes of
 * each row.  They are A [64 x 16] and B [N x 16] of bf16, or A [64 x 32] and B [N x 32] of E4M3. */
#define SM90_SHARED_A_OF(NAME, SHAPE, TYPES, MODES, LIST, N, A, B, ADD, ...)                       \
    static __device__ __forceinline__ void NAME(float(&d)[(N) / 2], uint64_t a, uint64_t b,        \
                                                int add) {                                         \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N SHAPE ".f32." TYPES " {" LIST          \
                     "}, %" #A ", %" #B ", p, " MODES ";\n}"                                       \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }
#define SM90_SHARED_A(N, LIST, A, B, ADD, ...)                                                     \
    SM90_SHARED_A_OF(wgmma_shared_a, "k16", "bf16.bf16", "1, 1, 0, 0", LIST, N, A, B, ADD,         \
                     __VA_ARGS__)                                                                  \
    SM90_SHARED_A_OF(wgmma_shared_a_e4m3, "k32", "e4m3.e4m3", "1, 1", LIST, N, A, B, ADD,          \
                     __VA_ARGS__)
SM90_SHARED_A(48, SM90_LIST24, 24, 25, 26, SM90_D16(d, 0), SM90_D8(d, 16))
SM90_SHARED_A(64, SM90_LIST32, 32, 33, 34, SM90_D32(d, 0))
SM90_SHARED_A(96, SM90_LIST48, 48, 49, 50, SM90_D32(d, 0), SM90_D16(d, 32))
SM90_SHARED_A(112, SM90_LIST56, 56, 57, 58, SM90_D32(d, 0), SM90_D16(d, 32), SM90_D8(d, 48))
SM90_SHARED_A(128, SM90_LIST64, 64, 65, 66, SM90_D64(d, 0))
SM90_SHARED_A(192, SM90_LIST96, 96, 97, 98, SM90_D64(d, 0), SM90_D32(d, 64))
SM90_SHARED_A(224, SM90_LIST112, 112, 113, 114, SM90_D64(d, 0), SM90_D32(d, 64), SM90_D16(d, 96))
SM90_SHARED_A(256, SM90_LIST128, 128, 129, 130, SM90_D64(d, 0), SM90_D64(d, 64))

/* Starts the same product of E4M3 if FP8, else of bf16. */
template <bool FP8, int N>
static __device__ __forceinline__ void wgmma_shared_of(float (&d)[N], uint64_t a, uint64_t b,
                                                       int add) {
    if constexpr (FP8) wgmma_shared_a_e4m3(d, a, b, add);
    else wgmma_shared_a(d, a, b, add);
}

/* Starts d[64 x N] += A B; A [64 x 16] is in registers, B [16 x N] MN-major in shared memory; N is
 * 128 or 64. */
static __device__ __forceinline__ void wgmma_register_a(float (&d)[64], const uint32_t *a,
                                                        uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SM90_LIST64 "}, "
                 "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : SM90_D32(d, 0), SM90_D32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

static __device__ __forceinline__ void wgmma_register_a(float (&d)[32], const uint32_t *a,
                                                        uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SM90_LIST32 "}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : SM90_D32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Starts d[64 x N] = (add ? d : 0) + A B^T; A [64 x 16] is in registers, B [N x 16] K-major in
 * shared memory. */
#define SM90_REGISTER_A(N, LIST, A0, A1, A2, A3, B, ADD, ...)                                      \
    static __device__ __forceinline__ void wgmma_register_a_k_major(                               \
        float(&d)[(N) / 2], const uint32_t *a, uint64_t b, int add) {                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "}, {%" #A0 \
                     ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}"                    \
                     : __VA_ARGS__                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }
SM90_REGISTER_A(16, SM90_LIST8, 8, 9, 10, 11, 12, 13, SM90_D8(d, 0))
SM90_REGISTER_A(32, SM90_LIST16, 16, 17, 18, 19, 20, 21, SM90_D16(d, 0))
SM90_REGISTER_A(64, SM90_LIST32, 32, 33, 34, 35, 36, 37, SM90_D32(d, 0))
SM90_REGISTER_A(128, SM90_LIST64, 64, 65, 66, 67, 68, 69, SM90_D64(d, 0))
SM90_REGISTER_A(256, SM90_LIST128, 128, 129, 130, 131, 132, 133, SM90_D64(d, 0), SM90_D64(d, 64))

/* --- host: tensor maps --- */

static const CUtensorMapL2promotion TENSOR_MAP_L2 = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

static inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return nullptr;
    return (PFN_cuTensorMapEncodeTiled_v12000)found;
}

/* Describes a stack of bf16 matrices for copies in 128-byte swizzle.  A box is box_rows x 64 of one
 * matrix, or of box_matrices matrices, one behind the other.  Rows past a matrix's end, and
 * matrices past the stack's, are 0.  L2 reads `l2` from memory when a copy misses. */
static inline cudaError_t tensor_map_stack(CUtensorMap *map, const void *base, uint64_t matrices,
                                           uint64_t matrix_bytes, uint64_t rows, uint64_t columns,
                                           uint64_t stride_bytes, uint32_t box_rows,
                                           uint32_t box_matrices = 1,
                                           CUtensorMapL2promotion l2 = TENSOR_MAP_L2) {
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = tensor_map_encoder();
    const cuuint64_t sizes[3] = {columns, rows, matrices},
                     strides[2] = {stride_bytes, matrix_bytes};
    const cuuint32_t box[3] = {64, box_rows, box_matrices}, steps[3] = {1, 1, 1};
    if (!encode) return cudaErrorNotSupported;
    const CUresult status =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, matrix_bytes ? 3 : 2, (void *)base, sizes,
               strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, l2,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* Describes one matrix: its boxes are requested without a matrix's number. */
static inline cudaError_t tensor_map_matrix(CUtensorMap *map, const void *base, uint64_t rows,
                                            uint64_t columns, uint64_t stride_bytes,
                                            uint32_t box_rows,
                                            CUtensorMapL2promotion l2 = TENSOR_MAP_L2) {
    return tensor_map_stack(map, base, 1, 0, rows, columns, stride_bytes, box_rows, 1, l2);
}

/* Describes one matrix of row_bytes to a row, without swizzle.  Boxes and their places are counted
 * in words of 4 bytes.  All numbers of bytes are multiples of 16, and a row of a box has at most
 * 1024. */
static inline cudaError_t tensor_map_bytes(CUtensorMap *map, const void *base, uint64_t rows,
                                           uint64_t row_bytes, uint32_t box_rows,
                                           uint32_t box_row_bytes) {
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = tensor_map_encoder();
    const cuuint64_t sizes[2] = {row_bytes / 4, rows};
    const cuuint32_t box[2] = {box_row_bytes / 4, box_rows}, steps[2] = {1, 1};
    if (!encode) return cudaErrorNotSupported;
    const CUresult status =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, (void *)base, sizes, &row_bytes, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

#endif
