/* unpacked.cu - products of weights that are not plain, by way of bf16.
 *
 * Rows of them are widened in a slab of memory (slab.h).  The kernel that is chosen for the slab
 * multiplies them.
 *
 *   data    [n_out, n_in] elements, scales and mins: weight.h, or in strips (strips.h)
 *   slab    bf16 [rows, n_in]   element * scale + min in f32, each rounded to the nearest, as
 *                               weight_convert() makes it when a model is loaded
 *
 * A warp widens 1,024 columns of a row; a lane has 8 neighbours in each of four loads.
 *
 * Grid:   rows of the slab / 8, and 1,024 columns.      Shared: none.
 * Bound:  memory: the packed bytes, and 2 for each element written.
 * Oracle: weight_to_float() of engine/device/weight.c, rounded to bf16: bit-exact. */
#include "cuda/common/device.cuh"
#include "cuda/host/internal.h"
#include "cuda/linear/elements.cuh"
#include "cuda/linear/slab.h"
#include "engine/base/error.h"

enum { ROWS = 8, VECTOR = 8, LOADS = 4, COLUMNS = 32 * VECTOR * LOADS };

/* Rows of a part, and where in the slab they come. */
struct slice {
    const void *data, *scales, *mins; /* of the whole part */
    uint32_t first, n;
};

struct widening : stored_rows {
    struct slice slices[LINEAR_MAX_PARTS];
    uint32_t n_rows;
    __nv_bfloat16 *out;
};

/* Holds the words of eight neighbours. */
template <enum element E> struct eight {
    uint32_t words[E == ELEMENT_F32 ? 8 : E <= ELEMENT_BF16 ? 4 : E <= ELEMENT_I8 ? 2 : 1];
};

/* Loads eight neighbours, from element i on, a multiple of 8.  They are read once. */
template <enum element E>
static __device__ __forceinline__ eight<E> load_eight(const void *row, uint32_t i) {
    constexpr int N = sizeof(eight<E>) / sizeof(uint32_t);
    const uint32_t *from = static_cast<const uint32_t *>(row) + i / VECTOR * N;
    eight<E> x;
    if constexpr (N == 1) x.words[0] = __ldcs(from);
    else if constexpr (N == 2) {
        const uint2 two = __ldcs(reinterpret_cast<const uint2 *>(from));
        x.words[0] = two.x, x.words[1] = two.y;
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) x.words[k] = __ldcs(from + k);
    }
    return x;
}

/* Returns what load_eight() does, of a row in strips, whose rows have n_in elements.  The eight are
 * of four lanes, two of each. */
template <enum element E>
static __device__ __forceinline__ eight<E> load_strip(const void *data, uint32_t row, uint32_t n_in,
                                                      uint32_t i) {
    constexpr int N = sizeof(eight<E>) / sizeof(uint32_t), BITS = 4 * N, SLAB = 256 / BITS;
    const uint32_t r = row % STRIP_ROWS, lane = r % 8 * 4, column = i % SLAB,
                   word = N == 1 ? column / 16 : column / 8;
    const uint32_t *from = static_cast<const uint32_t *>(data) +
                           ((size_t)(row / STRIP_ROWS) * (n_in / SLAB) + i / SLAB) * 128 +
                           lane * 4 + word;
    const int shift = N == 1 ? 4 * (int)(r / 8 + column % 16 / 8 * 2) : r < 8 ? 8 : 0;
    eight<E> x = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t pair = __ldg(from + 4 * k) >> shift, mask = (1u << BITS) - 1;
        x.words[k * N / 4] |= ((pair & mask) | (pair >> 16 & mask) << BITS)
                              << (k % (4 / N) * 2 * BITS);
    }
    return x;
}

/* Returns the values of two of the eight, number 2 k and the next. */
template <enum element E>
static __device__ __forceinline__ float2 two_of(const eight<E> &x, int k) {
    if constexpr (E == ELEMENT_F32)
        return make_float2(__uint_as_float(x.words[2 * k]), __uint_as_float(x.words[2 * k + 1]));
    else if constexpr (E == ELEMENT_F16) return unpack_pair<__half>(x.words[k]);
    else if constexpr (E == ELEMENT_BF16) return unpack_bf16(x.words[k]);
    else if constexpr (E == ELEMENT_E4M3) return fp8_values(x.words[k / 2] >> k % 2 * 16 & 0xffff);
    else if constexpr (E == ELEMENT_I8) {
        const uint32_t pair = x.words[k / 2] >> k % 2 * 16;
        return make_float2((float)(int8_t)pair, (float)(int8_t)(pair >> 8));
    } else {
        const uint32_t pair = x.words[0] >> 8 * k;
        return make_float2(nibble(pair & 15, E), nibble(pair >> 4 & 15, E));
    }
}

/* Returns the slice of a row of the slab; *row becomes its number in the part. */
static __device__ __forceinline__ const struct slice *find_slice(const struct widening &w,
                                                                 uint32_t *row) {
    const struct slice *slice = w.slices;
    while (*row >= slice->n) *row -= slice++->n;
    *row += slice->first;
    return slice;
}

template <enum element E>
static __global__ void __launch_bounds__(32 * ROWS)
    widen_kernel(const __grid_constant__ struct widening w) {
    const uint32_t at = blockIdx.x * ROWS + threadIdx.y,
                   column = blockIdx.y * COLUMNS + threadIdx.x * VECTOR;
    eight<E> x[LOADS];
    float scales[LOADS], mins[LOADS];
    if (at < w.n_rows) {
        uint32_t row = at;
        const struct slice *slice = find_slice(w, &row);
        const void *data = static_cast<const char *>(slice->data) + row * w.row_bytes;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const uint32_t k = column + i * 32 * VECTOR;
            if (k >= w.n_in) continue;
            const size_t block =
                find_scale(w, row, w.format.block_cols ? k / w.format.block_cols : 0);
            if constexpr (E < ELEMENT_E4M3) x[i] = load_eight<E>(data, k);
            else if (!w.in_strips) x[i] = load_eight<E>(data, k);
            else x[i] = load_strip<E>(slice->data, row, w.n_in, k);
            scales[i] = scale_at(slice->scales, block, w.format.scale);
            mins[i] = w.format.has_min ? scale_at(slice->mins, block, w.format.scale) : 0.0f;
        }
    }
    wait_for_previous(); /* the product before reads the slab */
    if (at >= w.n_rows) return;
    uint4 *out = reinterpret_cast<uint4 *>(w.out + (size_t)at * w.n_in);
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const uint32_t k = column + i * 32 * VECTOR;
        if (k >= w.n_in) continue;
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 f = two_of<E>(x[i], j);
            words[j] = pack_bf16(scaled(f.x, scales[i], mins[i], w.format.has_min),
                                 scaled(f.y, scales[i], mins[i], w.format.has_min));
        }
        out[k / VECTOR] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/* Widens rows of any length, in blocks of any width, an element a lane. */
static __global__ void widen_any_kernel(const __grid_constant__ struct widening w) {
    const uint32_t at = blockIdx.x * ROWS + threadIdx.y;
    wait_for_previous();
    if (at >= w.n_rows) return;
    uint32_t row = at;
    const struct slice *slice = find_slice(w, &row);
    for (uint32_t k = threadIdx.x; k < w.n_in; k += 32)
        store_as(&w.out[(size_t)at * w.n_in + k],
                 value_at(w, slice->data, slice->scales, slice->mins, row, k));
}

/* Sets *found if a value is NaN or infinite. */
static __global__ void check_kernel(const __grid_constant__ struct widening w, uint32_t *found) {
    const uint32_t row = blockIdx.x * ROWS + threadIdx.y;
    const struct slice *slice = w.slices;
    wait_for_previous();
    if (row >= w.n_rows) return;
    bool finite = true;
    for (uint32_t k = threadIdx.x; k < w.n_in; k += 32)
        finite &= isfinite(value_at(w, slice->data, slice->scales, slice->mins, row, k));
    if (!finite) *found = 1;
}

typedef void (*widener)(struct widening);

static widener choose_widener(const struct widening *w) {
    if (w->n_in % VECTOR != 0 || w->format.block_cols % VECTOR != 0) return widen_any_kernel;
    switch (w->format.element) {
    case ELEMENT_F32: return widen_kernel<ELEMENT_F32>;
    case ELEMENT_F16: return widen_kernel<ELEMENT_F16>;
    case ELEMENT_BF16: return widen_kernel<ELEMENT_BF16>;
    case ELEMENT_E4M3: return widen_kernel<ELEMENT_E4M3>;
    case ELEMENT_I8: return widen_kernel<ELEMENT_I8>;
    case ELEMENT_I4: return widen_kernel<ELEMENT_I4>;
    case ELEMENT_E2M1: return widen_kernel<ELEMENT_E2M1>;
    default: return NULL;
    }
}

static cudaError_t start_widening(const struct product *p, const struct slab *slab,
                                  struct launch launch) {
    struct widening w = {};
    static_cast<struct stored_rows &>(w) = stored_rows_of(&p->w_format, p->n_in, p->in_strips);
    w.out = static_cast<__nv_bfloat16 *>(const_cast<void *>(slab->p.parts[0].w));
    for (uint32_t i = 0; i < slab->p.n_parts; i++) {
        const struct product_part *part = &p->parts[slab->part[i]];
        w.slices[i] = {part->w, part->scales, part->mins, slab->first[i], slab->p.parts[i].n_out};
        w.n_rows += slab->p.parts[i].n_out;
    }
    const widener kernel = choose_widener(&w);
    if (!kernel) return cudaErrorInvalidValue;
    const uint32_t n_y = kernel == widen_any_kernel ? 1 : (p->n_in + COLUMNS - 1) / COLUMNS;
    return launch_kernel(launch, kernel, dim3((w.n_rows + ROWS - 1) / ROWS, n_y), dim3(32, ROWS), 0,
                         w);
}

/* Launches the kernels of a slab without overlap.  They read weights before they wait for the
 * kernel before, and these must be whole by then. */
static int multiply_slab(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    const bool overlap = cuda->overlap;
    cuda->overlap = false;
    const int rc = product_run(cuda, p, err);
    cuda->overlap = overlap;
    return rc;
}

extern "C" product_launch launch_unpacked;
int launch_unpacked(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    const uint32_t n = slab_all_rows(p), n_in_slab = slab_rows(p);
    int rc = 0;
    for (uint32_t first = 0; first < n && !rc; first += n_in_slab) {
        struct slab slab;
        slab_cut(p, cuda->products.slab, first, &slab);
        rc = cuda_check(cuda, start_widening(p, &slab, launch_of(cuda)),
                        "the product kernel \"unpacked\"", err);
        if (!rc) rc = multiply_slab(cuda, &slab.p, err);
    }
    return rc;
}

int unpacked_reserve(struct cuda_backend *cuda, struct error *err) {
    if (cuda->products.slab) return 0;
    return device_alloc(cuda, SLAB_BYTES, &cuda->products.slab, err);
}

/* Checks a matrix.  The slab, which no product uses yet, has the answer. */
static int check_matrix(struct cuda_backend *cuda, const struct weight *matrix, struct error *err) {
    struct widening w = {};
    static_cast<struct stored_rows &>(w) =
        stored_rows_of(&matrix->format, matrix->cols, matrix->in_strips);
    uint32_t *found = static_cast<uint32_t *>(cuda->products.slab), is_found = 0;
    w.n_rows = matrix->rows;
    w.slices[0] = {matrix->data, matrix->scales, matrix->mins, 0, matrix->rows};
    cudaError_t code = cudaMemsetAsync(found, 0, sizeof(*found), cuda->stream);
    if (!code)
        code = launch_kernel(launch_of(cuda), check_kernel, dim3((w.n_rows + ROWS - 1) / ROWS),
                             dim3(32, ROWS), 0, w, found);
    if (!code)
        code = cudaMemcpyAsync(&is_found, found, sizeof(is_found), cudaMemcpyDeviceToHost,
                               cuda->stream);
    if (!code) code = cudaStreamSynchronize(cuda->stream);
    const int rc = cuda_check(cuda, code, "checking a weight", err);
    if (rc || !is_found) return rc;
    return weight_refuse_values(err);
}

int unpacked_check(struct cuda_backend *cuda, const struct weight *w, struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < w->n_stacked && !rc; i++) {
        const struct weight matrix = weight_matrix(w, i);
        rc = check_matrix(cuda, &matrix, err);
    }
    return rc;
}
