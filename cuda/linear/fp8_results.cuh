/* fp8_results.cuh - what becomes of a tile's sums in linear_fp8.cu: scales, biases, the gate, and
 * the results as bf16, f32 or E4M3.
 *
 * A thread's sums[4 j + 2 h + e] is of these:
 *
 *   row      lane / 4 + 8 h of the warp's 16
 *   column   8 j + lane % 4 * 2 + e of the tile
 *
 * Thread: device code, by whole warpgroups.  Memory: the block's. */
#ifndef CUDA_LINEAR_FP8_RESULTS_CUH
#define CUDA_LINEAR_FP8_RESULTS_CUH

#include "cuda/linear/fp8_tile.cuh"

/* Multiplies sums by the scales of their rows of x and of W. */
template <class Plan>
static __device__ __forceinline__ void scale_sums(const float *of_columns, const float (&of_row)[2],
                                                  typename Plan::accumulator &sums) {
#pragma unroll
    for (int j = 0; j < Plan::WIDTH / 8; j++) {
        const float2 of_column =
            *reinterpret_cast<const float2 *>(of_columns + j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sums[4 * j + 2 * half] *= of_row[half] * of_column.x;
            sums[4 * j + 2 * half + 1] *= of_row[half] * of_column.y;
        }
    }
}

template <class Plan>
static __device__ __forceinline__ void add_bias(const struct product &p,
                                                const struct fp8_place &place,
                                                typename Plan::accumulator &sums) {
    constexpr int N_COLUMNS = Plan::WIDTH / 8;
#pragma unroll
    for (int j = 0; j < N_COLUMNS; j++) {
        const bool up = p.gated && j >= N_COLUMNS / 2;
        const struct product_part *part = &p.parts[place.part + up];
        const uint32_t out = place.first + (up ? j - N_COLUMNS / 2 : j) * 8 + threadIdx.x % 4 * 2;
        if (!part->bias || out >= part->n_out) continue;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float b = load_element(part->bias, out + e, part->bias_dtype);
            sums[4 * j + e] += b, sums[4 * j + 2 + e] += b;
        }
    }
}

/* Leaves a warp's rows of a box of results.  Group i of 8 outputs, of row half h, is
 * words[i / 2][h + i % 2 * 2] of each thread. */
static __device__ __forceinline__ void leave_box(unsigned char *box, uint32_t (&words)[4][4]) {
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x % GROUP_THREADS / 32 * 16 + lane % 16,
                   chunk = lane / 16 ^ lane % 8;
#pragma unroll
    for (int i = 0; i < 4; i++)
        store_matrix(box + row * (BOX_COLUMNS * 2) + (chunk ^ 2 * i) * 16, words[i]);
}

/* Stores results in f32, or adds them. */
template <class Plan>
static __device__ __forceinline__ void store_f32(const struct product &p,
                                                 const struct fp8_place &place, uint32_t row,
                                                 const typename Plan::accumulator &sums) {
    const struct product_part *part = &p.parts[place.part];
    const uint32_t first = place.first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < Plan::WIDTH / 2; i += 2) {
        const uint32_t out = first + i / 4 * 8, at = row + i / 2 % 2 * 8;
        if (at >= p.n_rows || out >= part->n_out) continue;
        store_result(p, part, at, out, sums[i]);
        store_result(p, part, at, out + 1, sums[i + 1]);
    }
}

/* Leaves the sums, or kind(gate) * up, as bf16. */
template <class Plan, bool GATED>
static __device__ __forceinline__ void leave_tile(const struct product &p, Plan *plan,
                                                  const typename Plan::accumulator &sums) {
    constexpr int UP = Plan::WIDTH / 4;
#pragma unroll
    for (int box = 0; box < (GATED ? Plan::N_BOXES / 2 : Plan::N_BOXES); box++) {
        uint32_t words[4][4];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int at = box * (BOX_COLUMNS / 2) + 2 * i;
            words[i / 4][i % 4] =
                GATED ? pack_bf16(gate_mul_short(sums[at], sums[at + UP], p.kind),
                                  gate_mul_short(sums[at + 1], sums[at + 1 + UP], p.kind))
                      : pack_bf16(sums[at], sums[at + 1]);
        }
        leave_box(plan->results[box], words);
    }
}

/* Stores kind(gate) * up of 128 outputs as E4M3, with a scale for each row. */
template <class Plan>
static __device__ __forceinline__ void store_codes(const struct fp8_params &f,
                                                   const struct fp8_place &place, uint32_t row,
                                                   typename Plan::accumulator &sums) {
    constexpr int UP = Plan::WIDTH / 4;
    const struct rounded_result &to = f.p.rounded;
    float factor[2];
#pragma unroll
    for (int i = 0; i < UP; i++) sums[i] = gate_mul_short(sums[i], sums[i + UP], f.p.kind);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float largest = 0.0f; /* fmaxf ignores NaN */
#pragma unroll
        for (int i = 2 * h; i < UP; i += 4)
            largest = fmaxf(largest, fmaxf(fabsf(sums[i]), fabsf(sums[i + 1])));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        const float scale = fp8_scale_for(largest, to.most);
        factor[h] = 1.0f / scale;
        if (threadIdx.x % 4 == 0 && row + h * 8 < f.p.n_rows)
            to.scales[(size_t)(place.first / FP8_BLOCK) * to.scale_stride + row + h * 8] = scale;
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *v = &sums[32 * half + 8 * i + 2 * h];
                x[i] = fp8_codes(v[0] * factor[h], v[1] * factor[h]) |
                       (uint32_t)fp8_codes(v[4] * factor[h], v[5] * factor[h]) << 16;
            }
            transpose_words(x);
            if (row + h * 8 >= f.p.n_rows) continue;
            uint8_t *codes = to.codes + (size_t)(row + h * 8) * f.p.parts[0].n_out + place.first +
                             half * 64 + threadIdx.x % 4 * 16;
            *reinterpret_cast<uint4 *>(codes) =
                make_uint4(__byte_perm(x[0], x[1], 0x5410), __byte_perm(x[2], x[3], 0x5410),
                           __byte_perm(x[0], x[1], 0x7632), __byte_perm(x[2], x[3], 0x7632));
        }
}

#endif
