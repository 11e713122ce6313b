/* rope.cu - RoPE, and appending keys and values to the cache.
 *
 *   rows        bf16, row-major
 *   cache       pages [K,V][n_kv_heads][PAGE_TOKENS][head_dim], and the states of budgets;
 *               a slot holds one row's
 *
 * A thread moves 16 bytes of a row where width and addresses allow it (4 or 8 of few rows), else an
 * element.  The odd widths are those of tests and tiny models, not of models that are served for
 * speed.
 *
 * Bound: memory, each input and output once.     Oracle: engine/cpu/elementwise.c. */
#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "cuda/elementwise/vectors.cuh"
#include "engine/device/evict.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

enum { ROPE_HEADS = 16, ROPE_WARPS = 4, ROPE_FEW_ROWS = 16, FP8_LANE_ELEMENTS = 8 };

/* ---- angles ---- */

/* Stores the cosine and the sine of a row's angle. */
static __device__ __forceinline__ void store_angle(const struct angles_params &p, size_t row,
                                                   size_t freq, uint32_t position) {
    double s, c;
    sincos(position * p.inv_freq[freq], &s, &c);
    p.angles[row * 2 * p.n_freqs + freq] = (float)(c * p.scale);
    p.angles[(row * 2 + 1) * p.n_freqs + freq] = (float)(s * p.scale);
}

/* Computes the angles in double: a float angle is off by 0.06 radians at position 1,000,000.  It
 * runs once a step, for all layers. */
static __global__ void angles_kernel(struct angles_params p) {
    let_next_start();
    wait_for_previous();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const struct device_step &step = *p.step;
    if (i >= (size_t)step.n_rows * p.n_freqs) return;
    const size_t row = i / p.n_freqs, f = i % p.n_freqs;
    const uint32_t position = (uint32_t)step.positions[row];
    store_angle(p, row, f, position);
    if (!p.in_text) return;
    const uint32_t seq = (uint32_t)step.row_seq[row];
    const bool bounded = step.budgets && step.budgets[seq].capacity > 0;
    store_angle(p, p.n_rows + row, f,
                bounded ? step.budgets[seq].n_before + (uint32_t)row - (uint32_t)step.first_row[seq]
                        : position);
}

cudaError_t launch_angles(const struct angles_params *p, struct launch launch) {
    const size_t n = (size_t)p->n_rows * p->n_freqs;
    if (n == 0) return cudaSuccess;
    return launch_kernel(launch, angles_kernel, (unsigned)((n + 127) / 128), 128, 0, *p);
}

/* ---- rotating and appending ---- */

/* Where a row's key or value is stored, and what its KV head notes about it. */
struct append_place {
    char *row;
    uint8_t *scale;                     /* the row's, where rows have any */
    const struct device_budget *budget; /* NULL: nothing is noted, and keys are rotated */
    struct kv_page_state *first, *page; /* of the list's first page, and of the slot's */
    uint32_t slot, rank, position;
};

static __device__ __forceinline__ void place_in_page(struct append_place *place,
                                                     const struct rope_append_params &p,
                                                     const int32_t *pages, uint32_t is_v,
                                                     uint32_t kv_head) {
    const int32_t page = pages[place->slot / PAGE_TOKENS];
    const uint32_t row = kv_row(&p.kv, is_v, kv_head, place->slot % PAGE_TOKENS);
    place->row = row_at(p.kv, page, row);
    place->scale = row_scale(p.kv, page, row);
    place->page = page_state(p.kv, page, kv_head);
}

/* Finds the place of a row's key or value.  It may run while the previous kernel does, because it
 * reads what the step has.  Only find_free_slot() reads the KV head's own free slot. */
static __device__ __forceinline__ struct append_place place_of(const struct rope_append_params &p,
                                                               uint32_t row, uint32_t is_v,
                                                               uint32_t kv_head) {
    const struct device_step &s = *p.step;
    const size_t seq = (size_t)s.row_seq[row], view = p.layer * (size_t)s.n_seqs + seq;
    const uint32_t i = row - (uint32_t)s.first_row[seq];
    const int32_t *pages = pages_of(s, p.layer, seq);
    struct append_place place = {};
    place.slot = (uint32_t)s.append_slot[view];
    place.budget = budget_of(s, seq, p.layer);
    if (place.budget) {
        place.rank = (uint32_t)s.n_slots[view] - (uint32_t)s.seq_rows[seq] + i;
        place.position = place.budget->n_before + i;
        place.first = page_state(p.kv, pages[0], kv_head);
    }
    if (place.slot == KV_FREE_SLOT) return place;
    place.slot += i;
    place_in_page(&place, p, pages, is_v, kv_head);
    return place;
}

/* Completes the place after the wait for the previous kernel, which may have freed the slot. */
static __device__ __forceinline__ void find_free_slot(struct append_place *place,
                                                      const struct rope_append_params &p,
                                                      uint32_t row, uint32_t is_v,
                                                      uint32_t kv_head) {
    if (place->slot != KV_FREE_SLOT) return;
    place->slot = place->first->free_slot;
    place_in_page(place, p, pages_of(*p.step, p.layer, (size_t)p.step->row_seq[row]), is_v,
                  kv_head);
}

/* Notes the token in its KV head's states, in one thread of each (row, KV head). */
static __device__ __forceinline__ void note_token(const struct append_place &place) {
    const uint32_t at = place.slot % PAGE_TOKENS;
    place.page->position[at] = place.position;
    place.page->rank[at] = place.rank;
    place.page->score[at] = 0.0f;
    if (place.position > 0) return;
    place.first->free_slot = place.budget->capacity;
    place.first->n_evictions = place.first->lost_at = 0;
    for (uint32_t k = 0; k < KV_LOST_TERMS; k++) place.first->lost[k] = 0.0f;
}

/* Returns the angles of a row in the layer: by its position in the cache, or in the text. */
static __device__ __forceinline__ const float *angles_of(const struct rope_append_params &p,
                                                         uint32_t row) {
    const size_t at = (size_t)row * 2 * p.n_freqs;
    if (!p.text_angles) return p.angles + at;
    const struct device_budget *budget = budget_of(*p.step, (size_t)p.step->row_seq[row], p.layer);
    return (budget && budget->cache_positions ? p.angles : p.text_angles) + at;
}

/* Returns what a row's queries are multiplied with after their rotation. */
static __device__ __forceinline__ float query_scale(const struct rope_append_params &p,
                                                    uint32_t row) {
    const struct device_step &s = *p.step;
    if (p.query_beta == 0) return 1.0f;
    const uint32_t position = row_position(s, (size_t)s.row_seq[row], p.layer, row);
    return 1.0f + p.query_beta * logf((float)(1 + position / p.query_period));
}

/* The angles of N pairs. */
template <int N> struct pair_angles {
    static constexpr int AT_ONCE = N < 4 ? N : 4;
    typedef vector<float, AT_ONCE> floats;
    floats cosines[N / AT_ONCE], sines[N / AT_ONCE];

    /* c and s are multiples of 16 bytes, or of N floats if that is less. */
    __device__ __forceinline__ pair_angles(const float *c, const float *s) {
#pragma unroll
        for (int j = 0; j < N / AT_ONCE; j++) {
            cosines[j] = reinterpret_cast<const floats *>(c)[j];
            sines[j] = reinterpret_cast<const floats *>(s)[j];
        }
    }
    __device__ __forceinline__ float cosine(int j) const {
        return cosines[j / AT_ONCE].x[j % AT_ONCE];
    }
    __device__ __forceinline__ float sine(int j) const {
        return sines[j / AT_ONCE].x[j % AT_ONCE];
    }
};

/* A thread's share of a head as numbers: N pairs of elements. */
template <int N> struct head_pairs {
    typedef vector<uint32_t, N / 2> words; /* N bf16 */
    typedef vector<uint16_t, N / 2> codes; /* N of 8 bits */
    float low[N], high[N];

    __device__ __forceinline__ void unpack(const words &a, const words &b) {
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const float2 u = unpack_bf16(a.x[j / 2]), v = unpack_bf16(b.x[j / 2]);
            low[j] = u.x, low[j + 1] = u.y;
            high[j] = v.x, high[j + 1] = v.y;
        }
    }

    __device__ __forceinline__ void pack(words *a, words *b) const {
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            a->x[j / 2] = pack_bf16(low[j], low[j + 1]);
            b->x[j / 2] = pack_bf16(high[j], high[j + 1]);
        }
    }

    /* Rotates, or else leaves the pairs as they are. */
    __device__ __forceinline__ void rotate(const pair_angles<N> &by, bool rotates) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float u = low[j], v = high[j];
            /* Which product is fused is said, so that keys have the same bits in every build. */
            const float x = fmaf(u, by.cosine(j), -(v * by.sine(j))),
                        y = fmaf(v, by.cosine(j), u * by.sine(j));
            low[j] = rotates ? x : u;
            high[j] = rotates ? y : v;
        }
    }

    __device__ __forceinline__ void multiply(float factor) {
#pragma unroll
        for (int j = 0; j < N; j++) low[j] *= factor, high[j] *= factor;
    }

    __device__ __forceinline__ float largest() const {
        float most = 0.0f; /* fmaxf ignores NaN */
#pragma unroll
        for (int j = 0; j < N; j++) most = fmaxf(most, fmaxf(fabsf(low[j]), fabsf(high[j])));
        return most;
    }

    __device__ __forceinline__ void store_codes(uint8_t *x, uint32_t n, float factor) const {
        codes first, second;
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            first.x[j / 2] = fp8_codes(low[j] * factor, low[j + 1] * factor);
            second.x[j / 2] = fp8_codes(high[j] * factor, high[j + 1] * factor);
        }
        *reinterpret_cast<codes *>(x) = first;
        *reinterpret_cast<codes *>(x + n) = second;
    }
};

/* Returns the largest x of a head's threads: a power of two of them, side by side in a warp; WARP:
 * all of it.  No x is negative, so one instruction for integers does what warp_max() takes five
 * exchanges for. */
template <bool WARP> static __device__ __forceinline__ float head_max(float x, uint32_t n_threads) {
    if (WARP) return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
    const uint32_t first = threadIdx.y * n_threads % 32,
                   mask = (n_threads < 32 ? (1u << n_threads) - 1 : ~0u) << first;
    for (uint32_t step = n_threads / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(mask, x, step));
    return x;
}

/* Normalises a thread's share of a head: N pairs, from element `at` on.  The weights never change,
 * so they are loaded while the previous kernel still runs. */
template <int N> struct head_norm {
    typedef typename head_pairs<N>::words words;
    words low, high; /* weights */

    __device__ __forceinline__ void load(const void *weight, uint32_t at, uint32_t n) {
        const bf16 *from = static_cast<const bf16 *>(weight) + at;
        low = *reinterpret_cast<const words *>(from);
        high = *reinterpret_cast<const words *>(from + n);
    }

    /* Returns the sum of the head's squares.  Its order is that of rmsnorm_vector_kernel, where a
     * lane has a vector of the head, whatever N is. */
    static __device__ __forceinline__ float sum(const bf16 *head, uint32_t n, const words &a,
                                                const words &b) {
        if constexpr (N == VECTOR) {
            const uint32_t first = threadIdx.y * blockDim.x % 32,
                           mask = (blockDim.x < 32 ? (1u << blockDim.x) - 1 : ~0u) << first;
            float squares = sum_squares(vector_of(a)) + sum_squares(vector_of(b));
            for (uint32_t step = blockDim.x / 2; step > 0; step /= 2)
                squares += __shfl_xor_sync(mask, squares, step);
            return squares;
        } else {
            const uint32_t lane = threadIdx.x, n_vectors = 2 * n / VECTOR;
            uint4 own = make_uint4(0, 0, 0, 0);
            if (lane < n_vectors) own = reinterpret_cast<const uint4 *>(head)[lane];
            return warp_sum(sum_squares(own));
        }
    }
    static __device__ __forceinline__ uint4 vector_of(const words &x) {
        return make_uint4(x.x[0], x.x[1], x.x[2], x.x[3]);
    }

    static __device__ __forceinline__ void scale_words(words &x, float scale,
                                                       const words &weights) {
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            const float2 w = unpack_bf16(weights.x[j]);
            x.x[j] = scale_pair(x.x[j], scale, w.x, w.y, 0, 1.0f);
        }
    }

    __device__ __forceinline__ void apply(const bf16 *head, uint32_t n, float eps, words &a,
                                          words &b) const {
        const float scale = rsqrtf(sum(head, n, a, b) / (float)(2 * n) + eps);
        scale_words(a, scale, low);
        scale_words(b, scale, high);
    }
};

/* Rotates and appends where RoPE covers whole heads, and pages are bf16 or, CODES, of 8 bits.
 * NORMS: it normalises heads first.  A thread has N pairs of a head: threadIdx.x numbers them, and
 * threadIdx.y the heads of a block.  With fewer than VECTOR pairs a head is a warp's.  The slot is
 * looked up while the previous kernel still runs. */
template <bool CODES, bool NORMS, int N>
static __global__ void rope_append_vector_kernel(struct rope_append_params p) {
    const uint32_t row = blockIdx.x, head = blockIdx.y * blockDim.y + threadIdx.y, n = p.n_freqs;
    const uint32_t n_heads = p.n_heads + 2 * p.kv.n_kv_heads, at = threadIdx.x * N;
    const bool is_q = head < p.n_heads, is_v = head >= p.n_heads + p.kv.n_kv_heads,
               inside = head < n_heads && row < p.step->n_rows;
    const uint32_t kv_head = is_q ? 0 : (head - p.n_heads) % p.kv.n_kv_heads;
    struct append_place place = {};
    p.kv.format = CODES ? PAGE_FP8 : PAGE_BF16; /* as it is: a constant from here on */
    if (!is_q && inside) place = place_of(p, row, is_v, kv_head);
    const bool norms = NORMS && !is_v;
    head_norm<N> norm;
    if (norms) norm.load(is_q ? p.q_norm : p.k_norm, at, n);
    const bool rotates = !is_v && !(place.budget && place.budget->cache_positions);
    let_next_start();
    wait_for_previous();
    if (!inside) return;
    typedef typename head_pairs<N>::words words;
    bf16 *x = static_cast<bf16 *>(p.qkv) + row * p.qkv_stride + (size_t)head * p.kv.head_dim + at;
    words a = *reinterpret_cast<const words *>(x), b = *reinterpret_cast<const words *>(x + n);
    const float *c = angles_of(p, row) + at;
    const pair_angles<N> angles(c, c + n);
    head_pairs<N> pairs; /* codes are of keys before these are rounded */
    if (norms) norm.apply(x - at, n, p.norm_eps, a, b);
    pairs.unpack(a, b);
    /* With codes every head's row is unpacked.  If angles were for a branch only, the compiler
     * would unpack before it, and so wait for the row before it asks for them. */
    if (CODES || rotates) pairs.rotate(angles, rotates);
    if (is_q && p.query_beta != 0) pairs.multiply(query_scale(p, row));
    if (rotates) pairs.pack(&a, &b);
    if (rotates || norms) {
        *reinterpret_cast<words *>(x) = a;
        *reinterpret_cast<words *>(x + n) = b;
    }
    if (is_q) return;
    find_free_slot(&place, p, row, is_v, kv_head);
    if (place.budget && is_v && threadIdx.x == 0) note_token(place);
    if (!CODES) {
        bf16 *slot = reinterpret_cast<bf16 *>(place.row) + at;
        *reinterpret_cast<words *>(slot) = a;
        *reinterpret_cast<words *>(slot + n) = b;
        return;
    }
    const uint32_t scale =
        fp8_scale(head_max<N != VECTOR>(pairs.largest(), blockDim.x), FP8_MOST_SCALE);
    if (threadIdx.x == 0) *place.scale = (uint8_t)scale;
    pairs.store_codes(reinterpret_cast<uint8_t *>(place.row) + at, n, fp8_factor(2 * 127 - scale));
}

/* Rotates and appends with a row of threads (threadIdx.y) for one head of one token: q heads are
 * rotated, k heads rotated and appended, v heads appended.  Pairs are (i, i + n_freqs); elements
 * behind them are not rotated. */
static __global__ void rope_append_kernel(struct rope_append_params p) {
    const uint32_t row = blockIdx.x, head = blockIdx.y * blockDim.y + threadIdx.y;
    const uint32_t n_heads = p.n_heads + 2 * p.kv.n_kv_heads, n = p.n_freqs, dim = p.kv.head_dim;
    let_next_start();
    wait_for_previous();
    if (head >= n_heads || row >= p.step->n_rows) return;
    bf16 *x = static_cast<bf16 *>(p.qkv) + row * p.qkv_stride + (size_t)head * dim;
    const bool is_q = head < p.n_heads, is_v = head >= p.n_heads + p.kv.n_kv_heads;
    struct append_place place = {};
    if (!is_q) {
        const uint32_t kv_head = (head - p.n_heads) % p.kv.n_kv_heads;
        place = place_of(p, row, is_v, kv_head);
        find_free_slot(&place, p, row, is_v, kv_head);
        if (place.budget && is_v && threadIdx.x == 0) note_token(place);
    }
    const bool rotations = !is_v && !(place.budget && place.budget->cache_positions);
    const float *c = angles_of(p, row), *s = c + n, factor = is_q ? query_scale(p, row) : 1.0f;
    if (rotations) {
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            const float a = to_float(x[i]), b = to_float(x[i + n]);
            const float u = a * c[i] - b * s[i], v = b * c[i] + a * s[i];
            store_as(x + i, u * factor);
            store_as(x + i + n, v * factor);
            if (is_q) continue;
            store_element(place.row, i, u, p.kv.format);
            store_element(place.row, i + n, v, p.kv.format);
        }
    }
    for (uint32_t i = 2 * n + threadIdx.x; factor != 1.0f && i < dim; i += blockDim.x)
        store_as(x + i, to_float(x[i]) * factor);
    if (is_q) return;
    for (uint32_t i = (rotations ? 2 * n : 0) + threadIdx.x; i < dim; i += blockDim.x)
        store_element(place.row, i, to_float(x[i]), p.kv.format);
}

/* Returns element i of a head, rotated. */
static __device__ __forceinline__ float rotated(const bf16 *x, uint32_t i, uint32_t n,
                                                const float *c, const float *s) {
    if (i >= 2 * n) return to_float(x[i]);
    if (i < n) return to_float(x[i]) * c[i] - to_float(x[i + n]) * s[i];
    return to_float(x[i]) * c[i - n] + to_float(x[i - n]) * s[i - n];
}

/* Rotates and appends to pages of PAGE_FP8, a warp a head: lane i has elements i, i + 32 and so
 * on. */
static __global__ void rope_append_fp8_kernel(struct rope_append_params p) {
    const uint32_t row = blockIdx.x, head = blockIdx.y * blockDim.y + threadIdx.y;
    const uint32_t n_heads = p.n_heads + 2 * p.kv.n_kv_heads, dim = p.kv.head_dim;
    let_next_start();
    wait_for_previous();
    if (head >= n_heads || row >= p.step->n_rows) return;
    bf16 *x = static_cast<bf16 *>(p.qkv) + row * p.qkv_stride + (size_t)head * dim;
    const bool is_q = head < p.n_heads, is_v = head >= p.n_heads + p.kv.n_kv_heads;
    struct append_place place = {};
    if (!is_q) {
        const uint32_t kv_head = (head - p.n_heads) % p.kv.n_kv_heads;
        place = place_of(p, row, is_v, kv_head);
        find_free_slot(&place, p, row, is_v, kv_head);
        if (place.budget && is_v && threadIdx.x == 0) note_token(place);
    }
    const uint32_t n = is_v || (place.budget && place.budget->cache_positions) ? 0 : p.n_freqs;
    const float *c = angles_of(p, row), *s = c + p.n_freqs;
    const float factor = is_q ? query_scale(p, row) : 1.0f;
    float u[FP8_LANE_ELEMENTS], largest = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < FP8_LANE_ELEMENTS; j++) {
        const uint32_t i = threadIdx.x + 32 * j;
        u[j] = i < dim ? rotated(x, i, n, c, s) * factor : 0.0f;
        largest = fmaxf(largest, fabsf(u[j])); /* fmaxf ignores NaN */
    }
    __syncwarp(); /* all lanes have read what the stores below overwrite */
    const uint32_t scale = fp8_scale(warp_max(largest), FP8_MOST_SCALE);
    const float inverse = fp8_factor(2 * 127 - scale);
    if (!is_q && threadIdx.x == 0) *place.scale = (uint8_t)scale;
#pragma unroll
    for (uint32_t j = 0; j < FP8_LANE_ELEMENTS; j++) {
        const uint32_t i = threadIdx.x + 32 * j;
        if (i < (factor != 1.0f ? dim : 2 * n)) store_as(x + i, u[j]);
        if (!is_q && i < dim) reinterpret_cast<uint8_t *>(place.row)[i] = fp8_code(u[j] * inverse);
    }
}

/* Tells whether a thread may take 8 pairs at a time.  With codes the threads of a head must share a
 * warp. */
static bool has_vectors(const struct rope_append_params *p) {
    const uint32_t n_threads = p->n_freqs / VECTOR;
    const bool share = n_threads <= 32 && (n_threads & (n_threads - 1)) == 0,
               suits = p->kv.format == PAGE_FP8 ? share : p->kv.format == PAGE_BF16;
    return suits && n_threads <= 64 && p->n_freqs * 2 == p->kv.head_dim &&
           vectors_fit(p->n_freqs, p->qkv, p->kv.base) && p->qkv_stride % VECTOR == 0 &&
           (uintptr_t)p->angles % 16 == 0;
}

/* Says no where the lanes that add up a head's squares are not a power of two in one warp. */
bool rope_append_takes_norms(const struct rope_append_params *p) {
    const uint32_t n_threads = p->n_freqs / VECTOR;
    return has_vectors(p) && n_threads <= 16 && (n_threads & (n_threads - 1)) == 0 &&
           vectors_fit(p->n_freqs, p->q_norm, p->k_norm);
}

template <int N>
static cudaError_t launch_pairs(const struct rope_append_params *p, uint32_t heads,
                                struct launch launch) {
    const uint32_t n_heads = p->n_heads + 2 * p->kv.n_kv_heads;
    static void (*const kernels[2][2])(struct rope_append_params) = {
        {rope_append_vector_kernel<false, false, N>, rope_append_vector_kernel<false, true, N>},
        {rope_append_vector_kernel<true, false, N>, rope_append_vector_kernel<true, true, N>}};
    return launch_kernel(launch, kernels[p->kv.format == PAGE_FP8][p->q_norm != nullptr],
                         dim3(p->n_rows, (n_heads + heads - 1) / heads),
                         dim3(p->n_freqs / N, heads), 0, *p);
}

/* Lets a warp take a head of 128 or 256 elements where rows are few, and gives a thread 8 pairs
 * where they are many.  The bits are the same, so a batch-invariant backend may choose, too. */
static cudaError_t launch_vectors(const struct rope_append_params *p, struct launch launch) {
    const bool few = p->n_rows <= ROPE_FEW_ROWS;
    if (few && p->n_freqs == 2 * 32) return launch_pairs<2>(p, ROPE_WARPS, launch);
    if (few && p->n_freqs == 4 * 32) return launch_pairs<4>(p, ROPE_WARPS, launch);
    return launch_pairs<VECTOR>(p, ROPE_HEADS, launch);
}

cudaError_t launch_rope_append(const struct rope_append_params *p, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    const uint32_t n_heads = p->n_heads + 2 * p->kv.n_kv_heads;
    const bool codes = p->kv.format == PAGE_FP8;
    if (has_vectors(p)) return launch_vectors(p, launch);
    if (codes && p->kv.head_dim > 32 * FP8_LANE_ELEMENTS) return cudaErrorInvalidValue;
    return codes ? launch_kernel(launch, rope_append_fp8_kernel, dim3(p->n_rows, (n_heads + 3) / 4),
                                 dim3(32, 4), 0, *p)
                 : launch_kernel(launch, rope_append_kernel, dim3(p->n_rows, (n_heads + 3) / 4),
                                 dim3(64, 4), 0, *p);
}
