/* attn_decode.cu - see attn_decode.cuh: the kernel, its launch, and the choice of its shape.
 *
 *   block    N_WARPS warps, a chain of the plan's tiles: up to 16 query heads of one KV head, slots
 *            [begin, end) of one sequence
 *   units    16 or 32 slots of a page; each warp reads its own            ring.cuh
 *   unit     scores, softmax, outputs                                     unit.cuh
 *            pages of 8 bits                                              fp8.cuh
 *            maxima and sums of either                                    softmax.cuh
 *            scores that are saved                                        scores.cuh
 *   tile     queries before, and the warps' results after                 tile.cuh
 *   item     of several tiles: blocks merge its partial results           exchange.cuh
 *
 * Grid:   attn_plan_grid() x N_WARPS * 32 threads.
 * Shared: N_WARPS rings.           Bound: memory, 2 * n_slots * n_kv_heads * head_dim * 2 bytes
 *                                 (8 bits: 2 * n_slots * n_kv_heads * (head_dim + 1)).
 * Oracle: sums in double (tests/cuda/kernels/attn_decode_test.cu). */
#include "cuda/attention/decode/attn_decode.cuh"

#include "cuda/attention/decode/exchange.cuh"
#include "cuda/attention/decode/ring.cuh"
#include "cuda/attention/decode/tile.cuh"
#include "cuda/attention/decode/unit.cuh"
#include "engine/device/pages.h"

template <class S>
static __global__ void __launch_bounds__(S::N_WARPS * 32)
    attn_decode_kernel(const __grid_constant__ attn_decode_params p) {
#if __CUDA_ARCH__ < 900
    if constexpr (S::BULK) return; /* never launched: attn_decode_map_pool() asks for 9.0 */
#endif
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[S::N_WARPS * S::N_STAGES];
    __shared__ int free_stage[S::N_WARPS];
    __shared__ uint32_t number; /* of the block's arrival */
    const int group = p.n_heads / p.n_kv_heads;

    attn_tile tile = load_tile(p.tiles, blockIdx.x);
    unit_cursor ahead = {};
    ahead.table = table_of_layer(p);
    const unit_ring r = make_ring<S>(memory, barriers);
    if (p.overlap && !p.awaited) prefetch_first_units<S>(p, tile, ahead.table, r.warp, r.lane);
    cursor_enter<S>(&ahead, p, tile, r.warp);
    cursor_settle<S>(&ahead, p, r.warp, r.lane);
    let_next_start();
    /* Stage that the next requested unit goes to: the free one. */
    int next = p.settled ? ask_settled_units<S>(&ahead, p, r) : 0;
    uint32_t parity = 1;
    wait_for_previous();
    if (tile.begin == tile.end) return;

    for (; next < S::N_STAGES - 1; next++) ask_unit<S>(&ahead, p, next, r);
    decode_state<S> st;
    st.scale_log2 = in_register(p.scale.outer * LOG2_E);
    load_queries<S>(&st, p, tile, group, r.lane);
    tile_duties d = duties_of<S>(p, tile, group);
    for (;;) {
        convert_queries<S>(&st);
        clear_results<S>(&st);
        for (int slot = first_unit<S>(tile) + r.warp * S::UNIT_SLOTS; slot < tile.end;
             slot += S::N_WARPS * S::UNIT_SLOTS) {
            ask_unit<S>(&ahead, p, next, r);
            /* The stage after the newest unit's holds the oldest. */
            if (++next == S::N_STAGES) next = 0, parity ^= 1;
            await_unit<S>(next, parity, tile.end - slot, r);
            attend_unit<S>(&st, p, tile, d, slot, r.stages + next * S::STAGE_BYTES, group,
                           ahead.table, r);
            __syncwarp(); /* all lanes have read: the stage is free */
        }
        const attn_tile done = tile;
        arrival a = {};
        if (done.next >= 0) tile = load_tile(p.tiles, done.next);
        else a = arrive(p, done, r.lane);
        hand_over<S>(reinterpret_cast<warp_result<S> *>(
                         memory + (size_t)(r.warp * S::N_STAGES + next) * S::STAGE_BYTES),
                     st, r.lane);
        if (done.next >= 0) {
            load_queries<S>(&st, p, tile, group, r.lane);
            d = duties_of<S>(p, tile, group);
        }
        if (r.lane == 0) free_stage[r.warp] = next;
        if (S::BULK) fence_async_proxy();
        __syncthreads();
        store_tile<S>(p, done, memory, free_stage, group);
        if (done.next < 0) {
            if (done.n_merges > 0) merge_items<S>(p, a, done.n_merges, group, &number, memory);
            return;
        }
        __syncthreads(); /* results are read: the stages are free again */
    }
}

/* ---- launching ---- */

/* Launches shape S, or counts its blocks that a multiprocessor runs at the same time if that is
 * given. */
template <class S>
static cudaError_t start_shape(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    const cudaError_t error = cudaFuncSetAttribute(
        attn_decode_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::RING_BYTES);
    if (error != cudaSuccess) return error;
    if (n_resident)
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n_resident, attn_decode_kernel<S>,
                                                             S::N_WARPS * 32, S::RING_BYTES);
    return launch_kernel(launch_on(stream, p.overlap && !p.awaited), attn_decode_kernel<S>,
                         p.n_blocks, S::N_WARPS * 32, S::RING_BYTES, p);
}

/* Launches shape S, or F for few blocks; or counts the blocks of S. */
template <class S, class F = S>
static cudaError_t launch_shape(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    return p.few && !n_resident ? start_shape<F>(p, stream, nullptr)
                                : start_shape<S>(p, stream, n_resident);
}

static constexpr int bulk_stages(int dim, bool fp8) {
    if (dim == 64) return 4;
    return fp8 ? 3 : 2;
}

/* The shape that the copy engine fills: see suits_copy_engine(). */
template <typename T, int D, bool PLACED = true, int SLOT_TILES = sizeof(T) == 1 ? 2 : 1>
using bulk_shape = decode_shape<T, D, 1, D == 256 || SLOT_TILES == 2 ? 4 : 8,
                                bulk_stages(D, sizeof(T) == 1), true, PLACED, SLOT_TILES>;

/* If few blocks read, a warp has a unit or two, so what counts is how long one takes.  So units of
 * 8 bits have 16 slots, too. */
template <typename T, int D, bool PLACED> using few_shape = bulk_shape<T, D, PLACED, 1>;

/* Chooses the warps and stages of the rings.  With the copy engine those of 16 bits take 128 KiB,
 * one block per multiprocessor.  Those of 8 bits take 108 KiB, two blocks of 4 warps x 3 stages.
 * Other shapes were slower (docs/benchmarks/gpu-kernels.md).  Without the copy engine they take
 * less than 99 KiB, all that 8.6 has. */
template <typename T, int D, bool PLACED>
static cudaError_t launch_dim(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    constexpr bool FP8 = sizeof(T) == 1;
    constexpr int WARPS = D == 256 ? 2 : 4, STAGES = D <= 64 ? 4 : D <= 96 ? 3 : 2;
    if (p.n_heads / p.n_kv_heads > 8)
        return launch_shape<decode_shape<T, D, 2, WARPS, STAGES, false, PLACED>>(p, stream,
                                                                                 n_resident);
    if constexpr (D % 64 == 0)
        if (p.use_map)
            return launch_shape<bulk_shape<T, D, PLACED>, few_shape<T, D, PLACED>>(p, stream,
                                                                                   n_resident);
    return launch_shape<decode_shape<T, D, 1, WARPS, FP8 ? 4 : STAGES, false, PLACED>>(p, stream,
                                                                                       n_resident);
}

template <typename T, bool PLACED>
static cudaError_t launch_type(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    switch (p.head_dim) {
    case 64: return launch_dim<T, 64, PLACED>(p, stream, n_resident);
    case 80: return launch_dim<T, 80, PLACED>(p, stream, n_resident);
    case 96: return launch_dim<T, 96, PLACED>(p, stream, n_resident);
    case 128: return launch_dim<T, 128, PLACED>(p, stream, n_resident);
    case 256: return launch_dim<T, 256, PLACED>(p, stream, n_resident);
    default: return cudaErrorInvalidValue;
    }
}

/* Launches a kernel without the code that asks where keys stand, unless some need it.  With 8-bit
 * pages that is half of the code, and a step of one sequence is 4 % slower with it even where it
 * does not run: presumably a layer's kernels no longer fit the instruction cache. */
template <typename T>
static cudaError_t launch_pages(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    return p.rotates || p.bias.slopes ? launch_type<T, true>(p, stream, n_resident)
                                      : launch_type<T, false>(p, stream, n_resident);
}

static cudaError_t launch_checked(const attn_decode_params &p, cudaStream_t stream,
                                  int *n_resident) {
    if (p.n_kv_heads == 0 || p.n_heads == 0 || p.n_heads % p.n_kv_heads != 0 ||
        p.n_heads / p.n_kv_heads > ATTN_DECODE_MAX_GROUP)
        return cudaErrorInvalidValue;
    switch (p.kv_format) {
    case PAGE_BF16: return launch_pages<__nv_bfloat16>(p, stream, n_resident);
    case PAGE_F16: return launch_pages<__half>(p, stream, n_resident);
    case PAGE_FP8: return launch_pages<uint8_t>(p, stream, n_resident);
    default: return cudaErrorInvalidValue;
    }
}

static bool suits_copy_engine(const attn_decode_params &p) {
    return p.head_dim % 64 == 0 && p.n_heads / p.n_kv_heads <= 8;
}

/* Describes the pool's elements.  Dimensions: columns of a part (128 bytes of a row, or all of its
 * 64), row, part, K or V, page.  A box is a unit, K and V. */
static CUresult map_elements(PFN_cuTensorMapEncodeTiled_v12000 encode, attn_decode_params *p,
                             uint32_t n_pages, uint32_t slot_tiles) {
    const uint32_t size = page_row_bytes(p->kv_format, 1),
                   row_bytes = page_row_bytes(p->kv_format, p->head_dim),
                   part_bytes = row_bytes < 128 ? row_bytes : 128, n_parts = row_bytes / part_bytes,
                   part = part_bytes / size;
    const cuuint64_t n_rows = (cuuint64_t)p->n_kv_heads * PAGE_TOKENS;
    const cuuint64_t sizes[5] = {part, n_rows, n_parts, 2, n_pages};
    const cuuint64_t strides[4] = {row_bytes, part_bytes, n_rows * row_bytes, p->page_bytes};
    const cuuint32_t box[5] = {part, slot_tiles * ATTN_UNIT_SLOTS, n_parts, 2, 1},
                     steps[5] = {1, 1, 1, 1, 1};
    const CUtensorMapDataType type =
        size == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
    /* L2 is not asked for more than lines of 128 bytes: with 256 some devices read a tenth
     * slower. */
    return encode(&p->maps[slot_tiles - 1].elements, type, 5, const_cast<void *>(p->pool), sizes,
                  strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  part_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* Describes the scales behind the elements.  Dimensions: row, K or V, page.  A box is a unit's. */
static CUresult map_scales(PFN_cuTensorMapEncodeTiled_v12000 encode, attn_decode_params *p,
                           uint32_t n_pages, uint32_t slot_tiles) {
    const cuuint64_t n_rows = (cuuint64_t)p->n_kv_heads * PAGE_TOKENS;
    const cuuint64_t sizes[3] = {n_rows, 2, n_pages}, strides[2] = {n_rows, p->page_bytes};
    const cuuint32_t box[3] = {slot_tiles * ATTN_UNIT_SLOTS, 2, 1}, steps[3] = {1, 1, 1};
    const size_t scales_at = page_scales_at(p->kv_format, p->n_kv_heads, p->head_dim);
    char *scales = static_cast<char *>(const_cast<void *>(p->pool)) + scales_at;
    return encode(&p->maps[slot_tiles - 1].scales, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, scales, sizes,
                  strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* Describes the pool for units of slot_tiles * 16 slots. */
static CUresult map_units(PFN_cuTensorMapEncodeTiled_v12000 encode, attn_decode_params *p,
                          uint32_t n_pages, uint32_t slot_tiles) {
    const CUresult result = map_elements(encode, p, n_pages, slot_tiles);
    if (result != CUDA_SUCCESS || p->kv_format != PAGE_FP8) return result;
    return map_scales(encode, p, n_pages, slot_tiles);
}

cudaError_t attn_decode_map_pool(attn_decode_params *p, uint32_t n_pages) {
    p->use_map = false;
    if (!suits_copy_engine(*p) ||
        !runs_sm90_code(attn_decode_kernel<bulk_shape<__nv_bfloat16, 128>>))
        return cudaSuccess;
    const auto encode = tensor_map_encoder();
    if (!encode) return cudaErrorNotSupported;
    CUresult result = map_units(encode, p, n_pages, 1);
    if (result == CUDA_SUCCESS && p->kv_format == PAGE_FP8)
        result = map_units(encode, p, n_pages, 2);
    p->use_map = result == CUDA_SUCCESS;
    return p->use_map ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t attn_decode_count_blocks(const attn_decode_params &p, struct attn_plan_shape *shape) {
    int device, n_multiprocessors;
    int n_resident = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = launch_checked(p, nullptr, &n_resident);
    if (error != cudaSuccess) return error;
    shape->n_blocks = (uint32_t)(n_multiprocessors * n_resident);
    shape->n_few = (uint32_t)(n_multiprocessors * 8 / 11);
    shape->part_units = p.use_map && p.kv_format == PAGE_FP8 ? 2 : 1;
    return cudaSuccess;
}

cudaError_t launch_attn_decode(const attn_decode_params &p, cudaStream_t stream) {
    if (p.n_blocks == 0) return cudaErrorInvalidValue;
    return launch_checked(p, stream, nullptr);
}
