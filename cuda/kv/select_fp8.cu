/* select_fp8.cu - copies tokens from an fp8 host pool (host_pool.fp8: bytes with a scale a head)
 * into pages of larger elements, and such pages into the host pool.
 *
 *   page    [K, V][n_kv_heads][PAGE_TOKENS][head_dim]
 *   block   [n_host_layers][PAGE_TOKENS] tokens, in the system's memory
 *   token   u8 [K, V][n_kv_heads][head_dim], u8 [K, V][n_kv_heads]: scales, up to a multiple of 16
 *
 * A row is one head's part of a token: head_dim elements.
 *
 * Grid: fetch: (blocks, layers), one warp a token; a thread moves 16 elements of a row, or one
 * where rows or addresses are no multiple of that.
 * store: blocks, of warps with a token each.  A warp first finds the scales of its rows, one a
 * lane, then the codes, so that it writes both contiguously.  Rows are read from the device's
 * memory once and then from its caches.
 * Shared: none.          Oracle: engine/cpu/fp8.c, exact. */
#include "cuda/common/pages.cuh"
#include "cuda/kv/host_pool.cuh"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

/* A thread has half as many loads in flight as elsewhere, because tokens are half as long; in turn
 * there are twice the blocks. */
enum { THREADS = MOVE_THREADS, UNROLL = 4, WARP = 32, STORE_BLOCKS = 16 };

/* ---- fetching ---- */

/* Codes of a row that a thread moves at a time, one or 16, and the row's scale. */
template <typename Codes> struct piece {
    Codes codes;
    uint8_t scale;
};

/* Returns two dequantised elements.  The scale is a power of two, so only the conversion to T
 * rounds. */
static __device__ __forceinline__ float2 values_of(uint32_t codes, float scale) {
    const float2 x = fp8_values(codes);
    return make_float2(x.x * scale, x.y * scale);
}

template <typename T>
static __device__ __forceinline__ void unpack(T *to, const piece<uint8_t> &from) {
    store_as(to, values_of(from.codes, fp8_factor(from.scale)).x);
}

template <typename T>
static __device__ __forceinline__ void unpack(T *to, const piece<uint4> &from) {
    const float scale = fp8_factor(from.scale);
    const uint32_t codes[] = {from.codes.x, from.codes.y, from.codes.z, from.codes.w};
    uint32_t words[4 * sizeof(T)];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 x = values_of(codes[i / 2] >> i % 2 * 16, scale);
        if constexpr (sizeof(T) == 4) {
            words[2 * i] = __float_as_uint(x.x);
            words[2 * i + 1] = __float_as_uint(x.y);
        } else {
            words[i] = pack_pair<T>(x.x, x.y);
        }
    }
#pragma unroll
    for (int i = 0; i < (int)sizeof(T); i++)
        reinterpret_cast<uint4 *>(to)[i] =
            make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
}

/* The number of pieces of a row, and of a token. */
template <typename Codes> struct pieces {
    uint32_t row, token;
    __device__ __forceinline__ explicit pieces(const struct kv_pool &kv) {
        row = kv.head_dim / sizeof(Codes);
        token = row * 2 * kv.n_kv_heads;
    }
};

template <typename T, typename Codes>
static __global__ void __launch_bounds__(THREADS, 2) fetch_fp8_kernel(const struct fetch_params p) {
    const pieces<Codes> n(p.kv);
    let_next_start();
    wait_for_previous();
    each_fetch(p, [&](const struct fetch &f, uint32_t page, uint32_t at, uint32_t lane) {
        uint8_t *token = token_in_store(p.store, f.source / PAGE_TOKENS,
                                        p.first_host_layer + blockIdx.y, f.source % PAGE_TOKENS);
        const uint8_t *scales = scales_of(p.store, token);
        move_units<piece<Codes>, UNROLL>(
            lane, WARP, n.token,
            [&](uint32_t i) -> piece<Codes> {
                return {__ldcs(reinterpret_cast<const Codes *>(token) + i),
                        __ldcs(scales + i / n.row)};
            },
            [&](uint32_t i, const piece<Codes> &x) {
                unpack(
                    row_at<T>(p.kv, page, i / n.row * PAGE_TOKENS + at) + i % n.row * sizeof(Codes),
                    x);
            });
    });
}

/* ---- storing ---- */

/* Returns the least scale that covers a row of the warp; NaN counts as 0. */
template <typename T, int N>
static __device__ __forceinline__ uint32_t scale_of(const vector<T, N> *row, uint32_t n_units,
                                                    uint32_t most) {
    float largest = 0.0f;
    for (uint32_t unit = threadIdx.x % WARP; unit < n_units; unit += WARP) {
        const vector<T, N> v = row[unit];
#pragma unroll
        for (int i = 0; i < N; i++) largest = fmaxf(largest, fabsf(to_float(v.x[i])));
    }
    return fp8_scale(warp_max(largest), most);
}

template <typename T, int N>
static __device__ __forceinline__ void pack_row(uint8_t *codes, const vector<T, N> *row,
                                                uint32_t n_units, uint32_t scale) {
    const float inverse = fp8_factor(2 * 127 - scale);
    for (uint32_t unit = threadIdx.x % WARP; unit < n_units; unit += WARP) {
        const vector<T, N> v = row[unit];
        vector<uint8_t, N> out;
#pragma unroll
        for (int i = 0; i < N; i++) out.x[i] = fp8_code(to_float(v.x[i]) * inverse);
        reinterpret_cast<vector<uint8_t, N> *>(codes)[unit] = out;
    }
}

/* Quantises the warp's token, 32 rows at a time, so that each lane holds one scale. */
template <typename T, int N>
static __device__ __forceinline__ void pack_token(const struct offload_params &p, uint32_t page,
                                                  uint32_t at, uint8_t *token) {
    const uint32_t dim = p.kv.head_dim, n_rows = 2 * p.kv.n_kv_heads, lane = threadIdx.x % WARP,
                   most = p.kv.format == PAGE_F16 ? FP8_MOST_SCALE_F16 : FP8_MOST_SCALE;
    const auto row = [&](uint32_t i) {
        return reinterpret_cast<const vector<T, N> *>(row_at<T>(p.kv, page, i * PAGE_TOKENS + at));
    };
    for (uint32_t first = 0; first < n_rows; first += WARP) {
        const uint32_t end = min(n_rows, first + WARP);
        uint32_t own = 0;
        for (uint32_t i = first; i < end; i++) {
            const uint32_t scale = scale_of<T, N>(row(i), dim / N, most);
            if (lane == i - first) own = scale;
        }
        for (uint32_t i = first; i < end; i++)
            pack_row<T, N>(token + i * dim, row(i), dim / N,
                           __shfl_sync(0xffffffffu, own, (int)(i - first)));
        if (first + lane < end) scales_of(p.store, token)[first + lane] = (uint8_t)own;
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    store_fp8_kernel(const __grid_constant__ struct offload_params p) {
    let_next_start();
    wait_for_previous();
    const uint32_t warp = (blockIdx.x * THREADS + threadIdx.x) / WARP,
                   n_warps = gridDim.x * THREADS / WARP;
    for (uint32_t i = warp; i < p.n * PAGE_TOKENS; i += n_warps) {
        const uint32_t at = i % PAGE_TOKENS, copy = i / PAGE_TOKENS;
        pack_token<T, N>(p, p.copies[copy].page, at,
                         token_in_store(p.store, p.copies[copy].block, p.host_layer, at));
    }
}

/* ---- launching ---- */

template <typename T>
static cudaError_t launch_fetch_of(const struct fetch_params *p, uint32_t n_layers,
                                   struct launch launch) {
    const dim3 grid(2 * BUS_BLOCKS, n_layers);
    if (p->kv.head_dim % 16 == 0 && moves_vectors(&p->kv, &p->store))
        return launch_kernel(launch, fetch_fp8_kernel<T, uint4>, grid, THREADS, 0, *p);
    return launch_kernel(launch, fetch_fp8_kernel<T, uint8_t>, grid, THREADS, 0, *p);
}

template <typename T>
static cudaError_t launch_offload_fp8_of(const struct offload_params *p, struct launch launch) {
    if (moves_vectors(&p->kv, &p->store))
        return launch_kernel(launch, store_fp8_kernel<T, 4>, STORE_BLOCKS, THREADS, 0, *p);
    return launch_kernel(launch, store_fp8_kernel<T, 1>, STORE_BLOCKS, THREADS, 0, *p);
}

cudaError_t launch_fetch_fp8(const struct fetch_params *p, uint32_t n_layers,
                             struct launch launch) {
    switch (p->kv.format) {
    case PAGE_F32: return launch_fetch_of<float>(p, n_layers, launch);
    case PAGE_F16: return launch_fetch_of<__half>(p, n_layers, launch);
    case PAGE_BF16: return launch_fetch_of<__nv_bfloat16>(p, n_layers, launch);
    case PAGE_FP8: break; /* nothing to convert: select_fetch.cu copies these */
    }
    return cudaErrorInvalidValue;
}

cudaError_t launch_offload_fp8(const struct offload_params *p, struct launch launch) {
    switch (p->kv.format) {
    case PAGE_F32: return launch_offload_fp8_of<float>(p, launch);
    case PAGE_F16: return launch_offload_fp8_of<__half>(p, launch);
    case PAGE_BF16: return launch_offload_fp8_of<__nv_bfloat16>(p, launch);
    case PAGE_FP8: break;
    }
    return cudaErrorInvalidValue;
}
