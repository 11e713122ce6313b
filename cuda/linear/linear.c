/* linear.c - chooses how a product is computed.
 *
 *   rows   <= 16   one launch of our own kernel for all parts, norm and gate included: reading the
 *                  weights is the whole cost, or launches are (is_small()).  linear_stream.cu on
 *                  compute capability 9.0, linear_kernels.cu elsewhere
 *   rows  <= 192   on compute capability 9.0 one launch for all parts, gate included, of
 *                  linear_wide.cu; its header has the times of both.  From 9 rows on where memory
 *                  is fast (wide_open()) and weights are not small
 *   more than 192  on 9.0 one launch of linear_gated.cu for gated products that fill the device
 *   rows  <= 256   linear_wide.cu for others, and for long sums
 *   more rows      cuBLASLt; parts that lie side by side (q, k, v or gate, up) are one product
 *   else           f16 and f32 weights, odd widths: any shape, slowly
 *
 * A batch-invariant backend takes the kernels whose sums have one order (linear_invariant.cu, and
 * the one for any shape), for any number of rows.
 *
 * cuBLASLt sees everything transposed, because it counts columns first: y^T = (W^T)^T x^T.  The
 * answers of its heuristics are cached by shape, with the number of rows rounded up to a step of a
 * coarse scale: an algorithm for 512 rows is right for 400, and asking costs more than a small
 * product. */
#include "cuda/host/internal.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/linear/gated_cut.h"
#include "cuda/linear/wide_cut.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/weight.h"

enum { WORKSPACE_BYTES = 64 << 20, BLAS_ALIGN = 16, BLAS_WIDTH = 8 };
enum { FAST_WIDE_FROM = 9 };    /* see wide_open() */
enum { SMALL_BYTES = 4 << 20 }; /* see is_small() */

static int blas_check(struct cuda_backend *cuda, cublasStatus_t status, const char *what,
                      struct error *err) {
    if (cuda->failed || status == CUBLAS_STATUS_SUCCESS)
        return cuda_check(cuda, cudaSuccess, what, err);
    cuda->failed = true;
    return error_set(err, ERR_DEVICE, "cuda: %s: cuBLASLt: %s", what,
                     cuda->blas.status_string(status));
}

/* Makes launch_wide() ready where the device runs it, and sets from how many rows on it is ahead of
 * launch_stream(), whose blocks hold 8 rows of x and read more of them with every tile.  With an
 * H100's memory, both wait for the weights then, and launch_wide() is 2.3 % slower.  With an H200's,
 * the other waits for x: launch_wide() takes an eighth less. */
static int wide_open(struct cuda_backend *cuda, struct error *err) {
    const size_t bytes = (size_t)cuda->n_multiprocessors * WIDE_SHARE_BYTES;
    int rc =
        cuda_check(cuda, open_wide(cuda->device, &cuda->wide), "asking for the memory's rate", err);
    cuda->wide_from = cuda->wide.fast_memory ? FAST_WIDE_FROM : FEW_MAX_ROWS + 1;
    if (rc || cuda->wide.n_clusters == 0) return rc;
    rc = device_alloc(cuda, bytes, &cuda->wide.shares, err);
    if (rc) return rc;
    return cuda_check(cuda, cudaMemsetAsync(cuda->wide.shares, MISSING_BYTE, bytes, cuda->stream),
                      "clearing memory", err);
}

int linear_open(struct cuda_backend *cuda, struct error *err) {
    cuda->streams = open_stream();
    cuda->matmuls = calloc(MATMUL_CACHE, sizeof(*cuda->matmuls));
    if (!cuda->matmuls) return error_set(err, ERR_NOMEM, "cuda: no memory");
    int rc = blas_open(&cuda->blas, err);
    if (!rc) rc = wide_open(cuda, err);
    cuda->n_gated_clusters = open_gated(cuda->n_multiprocessors);
    if (!rc) rc = device_alloc(cuda, WORKSPACE_BYTES, &cuda->workspace, err);
    if (rc) return rc;
    /* Where cuBLASLt splits a sum, it adds up whole tiles of partial results.  They include rows
     * past the end, which it never wrote; nothing uses their sums. */
    return cuda_check(cuda, cudaMemsetAsync(cuda->workspace, 0, WORKSPACE_BYTES, cuda->stream),
                      "clearing memory", err);
}

void linear_close(struct cuda_backend *cuda) {
    blas_close(&cuda->blas);
    cudaFree(cuda->workspace);
    cudaFree(cuda->wide.shares);
    free(cuda->matmuls);
}

/* ---- one product through cuBLASLt ---- */

struct matmul {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
};

static void matmul_fini(const struct blas *blas, struct matmul *m) {
    if (m->desc) blas->desc_destroy(m->desc);
    if (m->w) blas->layout_destroy(m->w);
    if (m->x) blas->layout_destroy(m->x);
    if (m->y) blas->layout_destroy(m->y);
}

/* Describes a product; layouts are columns x rows as we see them. */
static cublasStatus_t matmul_init(const struct blas *blas, struct matmul *m,
                                  const struct matmul_key *key, const void *bias) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t y_type = key->y_f32 ? CUDA_R_32F : CUDA_R_16BF, bias_type = CUDA_R_16BF;
    *m = (struct matmul){0};
    cublasStatus_t s = blas->desc_create(&m->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = blas->desc_set(m->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    if (!s && bias) {
        s = blas->desc_set(m->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
        if (!s) s = blas->desc_set(m->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
        if (!s)
            s = blas->desc_set(m->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                               sizeof(bias_type));
    }
    if (!s) s = blas->layout_create(&m->w, CUDA_R_16BF, key->n_in, key->n_out, key->n_in);
    if (!s) s = blas->layout_create(&m->x, CUDA_R_16BF, key->n_in, key->n_rows, key->n_in);
    if (!s) s = blas->layout_create(&m->y, y_type, key->n_out, key->n_rows, (int64_t)key->y_stride);
    return s;
}

static uint64_t hash_of(const struct matmul_key *key) {
    const uint64_t words[] = {
        key->n_out, key->n_in, key->n_rows, key->y_stride,
        (uint64_t)key->accumulate << 2 | (uint64_t)key->y_f32 << 1 | (uint64_t)key->bias};
    uint64_t hash = 14695981039346656037u; /* FNV-1a over words */
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        hash = (hash ^ words[i]) * 1099511628211u;
    return hash ^ hash >> 32;
}

static bool same_key(const struct matmul_key *a, const struct matmul_key *b) {
    return a->n_out == b->n_out && a->n_in == b->n_in && a->n_rows == b->n_rows &&
           a->y_stride == b->y_stride && a->accumulate == b->accumulate && a->y_f32 == b->y_f32 &&
           a->bias == b->bias;
}

static void ask_heuristics(struct cuda_backend *cuda, const struct matmul *m,
                           struct matmul_entry *entry) {
    const uint64_t workspace = WORKSPACE_BYTES;
    /* Parts of a split sum are added in f32.  In bf16, which is allowed by default, each addition
     * would round. */
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t best;
    int n = 0;
    cublasStatus_t s = cuda->blas.preference_create(&preference);
    if (!s)
        s = cuda->blas.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                      &workspace, sizeof(workspace));
    if (!s)
        s = cuda->blas.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                      &schemes, sizeof(schemes));
    if (!s)
        s = cuda->blas.get_heuristic(cuda->blas.handle, m->desc, m->w, m->x, m->y, m->y, preference,
                                     1, &best, &n);
    if (preference) cuda->blas.preference_destroy(preference);
    if (s || n == 0) return;
    entry->usable = best.state == CUBLAS_STATUS_SUCCESS;
    entry->algo = best.algo;
}

/* Rounds a number of rows up: to eights up to 64 rows, then to four steps from each power of two to
 * the next, and above 384 rows to multiples of 128.  Tiles have that many rows: what suits 1,280
 * takes 1.15 times as long for 1,152, and what cuBLASLt expects to suit 448 takes 1.4 times as long
 * as its choice for 512 (H100 and H200, the products of Llama-3-8B). */
static uint32_t round_rows(uint32_t n) {
    uint32_t step = 8;
    if (n > 384) return (uint32_t)round_up(n, 128);
    while (n > 8 * step) step *= 2;
    return (uint32_t)round_up(n, step);
}

/* Returns a shape's cache entry; asks the heuristics the first time.  The entry replaces another
 * shape with the same hash. */
static struct matmul_entry *find_entry(struct cuda_backend *cuda, const struct matmul_key *key) {
    struct matmul_key rounded = *key;
    rounded.n_rows = round_rows(key->n_rows);
    struct matmul_entry *entry = &cuda->matmuls[hash_of(&rounded) % MATMUL_CACHE];
    if (entry->known && same_key(&entry->key, &rounded)) return entry;
    /* cuBLASLt only looks at its alignment. */
    static const _Alignas(BLAS_ALIGN) char any_bias[BLAS_ALIGN];
    struct matmul m;
    *entry = (struct matmul_entry){.key = rounded, .known = true};
    if (!matmul_init(&cuda->blas, &m, &rounded, key->bias ? any_bias : NULL))
        ask_heuristics(cuda, &m, entry);
    matmul_fini(&cuda->blas, &m);
    return entry;
}

/* ---- the choice ---- */

static bool aligned(const void *p, size_t to) {
    return (uintptr_t)p % to == 0;
}

static bool bf16_fits(const struct linear_args *args, uint32_t part, uint32_t n) {
    bool fits = args->n_in % BLAS_WIDTH == 0 && aligned(args->x, BLAS_ALIGN);
    for (uint32_t i = part; i < part + n; i++)
        fits &= args->parts[i].w->format.element == ELEMENT_BF16 &&
                aligned(args->parts[i].w->data, BLAS_ALIGN);
    return fits;
}

/* Says whether the weights are so few that launches take the time, not their bytes.  A step of 16
 * rows of 12 layers, with products of up to 2 MB, took 500 us on an H200 with launch_wide() and
 * norms of their own, and 382 with launch_stream(), with that of a head of 8 MB, too, or without.
 * Nothing was measured between these and Llama-3-8B's, of 34 MB and more. */
static bool is_small(const struct linear_args *args) {
    size_t n = 0;
    for (uint32_t i = 0; i < args->n_parts; i++) n += args->parts[i].w->rows;
    return n * args->n_in * sizeof(uint16_t) <= SMALL_BYTES;
}

/* Returns from how many rows on launch_wide() is ahead of launch_stream(). */
static uint32_t wide_from(const struct cuda_backend *cuda, const struct linear_args *args) {
    return is_small(args) ? FEW_MAX_ROWS + 1 : cuda->wide_from;
}

/* Says whether launch_wide() takes the product and is ahead of the others.  For 224 and 256 rows a
 * layer of Llama-3-8B took 3 % less with q, k, v and o by cuBLASLt, and the head was its by 4 %;
 * gate, up and down were not. */
static bool wide_fits(const struct cuda_backend *cuda, const struct linear_args *args, bool gated) {
    bool fits = cuda->wide.n_clusters > 0 && !cuda->batch_invariant &&
                args->n_rows >= wide_from(cuda, args) && args->n_rows <= WIDE_MAX_ROWS &&
                bf16_fits(args, 0, args->n_parts);
    for (uint32_t i = 0; i < args->n_parts && fits; i++) {
        const struct linear_part *part = &args->parts[i];
        fits = (gated || args->n_rows <= WIDE_WHOLE_ROWS || args->n_in > part->w->rows) &&
               part->w->rows % 8 == 0 && part->y_stride % 2 == 0 &&
               aligned(part->y, args->y_f32 ? 2 * sizeof(float) : 2 * sizeof(uint16_t));
    }
    return fits;
}

/* Says whether the product, with its norm, is one launch of the kernel for few rows. */
static bool fits_one_launch(const struct cuda_backend *cuda, const struct linear_args *args) {
    const struct weight *norm = args->norm ? args->norm->weight : NULL;
    return !cuda->batch_invariant && args->n_rows <= FEW_MAX_ROWS &&
           !wide_fits(cuda, args, false) && bf16_fits(args, 0, args->n_parts) &&
           (!norm || (norm->format.element == ELEMENT_BF16 && aligned(norm->data, BLAS_ALIGN) &&
                      (!cuda->streams || args->n_in <= STREAM_MAX_NORM)));
}

static bool blas_fits(const struct linear_args *args, const struct linear_part *part) {
    const struct weight *bias = part->bias;
    if (part->w->rows % BLAS_WIDTH || part->y_stride % BLAS_WIDTH || !aligned(part->y, BLAS_ALIGN))
        return false;
    return !bias || (bias->format.element == ELEMENT_BF16 && aligned(bias->data, BLAS_ALIGN) &&
                     !args->y_f32);
}

typedef cudaError_t (*product_launcher)(const struct product *params, struct launch launch);

static struct product own_params(const struct linear_args *args, uint32_t first, uint32_t n) {
    struct product params = {.x = args->x,
                             .n_rows = args->n_rows,
                             .n_in = args->n_in,
                             .n_parts = n,
                             .w_dtype = args->parts[first].w->format.element,
                             .norm_weight = args->norm ? args->norm->weight->data : NULL,
                             .eps = args->norm ? args->norm->eps : 0,
                             .accumulate = args->accumulate,
                             .y_f32 = args->y_f32};
    for (uint32_t i = 0; i < n; i++) {
        const struct linear_part *part = &args->parts[first + i];
        params.parts[i] = (struct product_part){
            .w = part->w->data,
            .bias = part->bias ? part->bias->data : NULL,
            .bias_dtype = part->bias ? part->bias->format.element : ELEMENT_F32,
            .y = part->y,
            .y_stride = part->y_stride,
            .n_out = part->w->rows};
    }
    return params;
}

static int run_own(struct cuda_backend *cuda, const struct linear_args *args, uint32_t first,
                   uint32_t n, product_launcher product, struct error *err) {
    struct product params = own_params(args, first, n);
    params.n_idle = cuda->n_idle;
    cuda->n_idle = 0;
    return cuda_check(cuda, product(&params, launch_of(cuda)), "linear", err);
}

/* Returns 0, an error, or ERR_UNSUPPORTED when cuBLASLt has no algorithm for the shape. */
static int run_blas(struct cuda_backend *cuda, const struct linear_args *args,
                    const struct linear_part *part, uint32_t n_out, struct error *err) {
    const float one = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    const struct matmul_key key = {.n_out = n_out,
                                   .n_in = args->n_in,
                                   .n_rows = args->n_rows,
                                   .y_stride = part->y_stride,
                                   .accumulate = args->accumulate,
                                   .y_f32 = args->y_f32,
                                   .bias = part->bias != NULL};
    const struct matmul_entry *entry = find_entry(cuda, &key);
    if (!entry->usable) return ERR_UNSUPPORTED;
    struct matmul m;
    cublasStatus_t s = matmul_init(&cuda->blas, &m, &key, part->bias ? part->bias->data : NULL);
    if (!s)
        s = cuda->blas.matmul(cuda->blas.handle, m.desc, &one, part->w->data, m.w, args->x, m.x,
                              &beta, part->y, m.y, part->y, m.y, &entry->algo, cuda->workspace,
                              WORKSPACE_BYTES, cuda->stream);
    matmul_fini(&cuda->blas, &m);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE)
        return ERR_UNSUPPORTED;
    return blas_check(cuda, s, "a product", err);
}

/* Returns how many parts from `first` on are one matrix with one result: they have no biases, and
 * neither the weights nor the results have a gap.  *n_out becomes their rows in all. */
static uint32_t count_joined(const struct linear_args *args, uint32_t first, uint32_t *n_out) {
    const size_t y_bytes = args->y_f32 ? sizeof(float) : sizeof(uint16_t);
    const struct linear_part *part = &args->parts[first];
    uint32_t n = 1;
    *n_out = part->w->rows;
    for (; first + n < args->n_parts; n++) {
        const struct linear_part *next = part + 1;
        const char *w_end = (const char *)part->w->data + part->w->rows * weight_row_bytes(part->w);
        if (part->bias || next->bias || !weight_same_format(&part->w->format, &next->w->format) ||
            part->y_stride != next->y_stride)
            break;
        if (w_end != next->w->data || (char *)part->y + part->w->rows * y_bytes != next->y) break;
        part = next;
        *n_out += part->w->rows;
    }
    return n;
}

int linear_many_rows(struct cuda_backend *cuda, const struct linear_args *args, struct error *err) {
    int rc = 0;
    for (uint32_t first = 0, n; first < args->n_parts && !rc; first += n) {
        uint32_t n_out;
        n = count_joined(args, first, &n_out);
        const bool fits = bf16_fits(args, first, n) && blas_fits(args, &args->parts[first]) &&
                          n_out % BLAS_WIDTH == 0;
        rc = fits ? run_blas(cuda, args, &args->parts[first], n_out, err) : ERR_UNSUPPORTED;
        if (rc != ERR_UNSUPPORTED) continue;
        rc = 0;
        for (uint32_t i = first; i < first + n && !rc; i++)
            rc = run_own(cuda, args, i, 1, launch_linear_any, err);
    }
    return rc;
}

/* Computes the parts with `fast` where they fit it, all in one launch if all do. */
static int run_parts(struct cuda_backend *cuda, const struct linear_args *args,
                     product_launcher fast, struct error *err) {
    int rc = 0;
    if (bf16_fits(args, 0, args->n_parts)) return run_own(cuda, args, 0, args->n_parts, fast, err);
    for (uint32_t i = 0; i < args->n_parts && !rc; i++)
        rc = run_own(cuda, args, i, 1, bf16_fits(args, i, 1) ? fast : launch_linear_any, err);
    return rc;
}

static product_launcher few_rows(const struct cuda_backend *cuda) {
    return cuda->streams ? launch_stream : launch_few;
}

/* ---- up to WIDE_MAX_ROWS rows ---- */

static int run_wide(struct cuda_backend *cuda, const struct linear_args *args, struct error *err) {
    struct product params = own_params(args, 0, args->n_parts);
    params.n_parts = 0;
    for (uint32_t first = 0, n; first < args->n_parts; first += n) {
        struct product_part *part = &params.parts[params.n_parts++];
        *part = params.parts[first];
        n = count_joined(args, first, &part->n_out);
    }
    return cuda_check(cuda, launch_wide(&params, &cuda->wide, launch_of(cuda)), "linear", err);
}

/* ---- operations ---- */

/* Computes the norm in a kernel of its own, and makes *args a product without one. */
static int normalise(struct backend *be, struct linear_args *args, struct error *err) {
    if (!args->norm) return 0;
    const struct rmsnorm_args norm = linear_norm(args);
    const int rc = cuda_rmsnorm(be, &norm, err);
    args->x = args->norm->normed;
    args->norm = NULL;
    return rc;
}

int cuda_linear(struct backend *be, const struct linear_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct linear_args plain = *args;
    if (args->n_rows == 0) return 0;
    if (!fits_one_launch(cuda, args)) {
        const int rc = normalise(be, &plain, err);
        if (rc) return rc;
    }
    if (wide_fits(cuda, &plain, false)) return run_wide(cuda, &plain, err);
    if (cuda->batch_invariant) return run_parts(cuda, &plain, launch_linear_invariant, err);
    return args->n_rows > FEW_MAX_ROWS ? linear_many_rows(cuda, &plain, err)
                                       : run_parts(cuda, &plain, few_rows(cuda), err);
}

/* Says whether launch_gated() takes the product and is ahead of the others.  Up to WIDE_MAX_ROWS
 * these compute as many rows, so missing ones do not count. */
static bool many_rows_fit(const struct cuda_backend *cuda, const struct linear_args *both) {
    const uint32_t n_out = both->parts[0].w->rows, n_clusters = cuda->n_gated_clusters;
    if (cuda->batch_invariant || both->n_rows <= WIDE_WHOLE_ROWS || !bf16_fits(both, 0, 2))
        return false;
    return gated_fits(max_u32(both->n_rows, WIDE_MAX_ROWS), both->n_in, n_out, n_clusters) &&
           (both->n_rows > WIDE_MAX_ROWS || gated_beats_wide(both->n_in, n_out, n_clusters));
}

/* The kernels that compute a gated product in one launch; NO_LAUNCH if none of them can. */
enum gated_launch { NO_LAUNCH, FEW_ROWS, UP_TO_WIDE_ROWS, MANY_ROWS };

/* Chooses for a product without a norm. */
static enum gated_launch choose_gated(const struct cuda_backend *cuda,
                                      const struct linear_args *both, const void *out) {
    if (!aligned(out, BLAS_ALIGN)) return NO_LAUNCH;
    if (many_rows_fit(cuda, both)) return MANY_ROWS;
    return wide_fits(cuda, both, true) ? UP_TO_WIDE_ROWS : NO_LAUNCH;
}

static int run_gated(struct cuda_backend *cuda, const struct linear_args *both, enum gate_kind kind,
                     void *out, enum gated_launch how, struct error *err) {
    const struct launch launch = launch_of(cuda);
    struct product params = own_params(both, 0, 2);
    cudaError_t rc = cudaErrorInvalidValue;
    params.gated = true;
    params.kind = kind;
    params.parts[0].y = out;
    params.parts[0].y_stride = params.parts[0].n_out;
    switch (how) {
    case FEW_ROWS: rc = few_rows(cuda)(&params, launch); break;
    case UP_TO_WIDE_ROWS: rc = launch_wide(&params, &cuda->wide, launch); break;
    case MANY_ROWS: rc = launch_gated(&params, cuda->n_gated_clusters, launch); break;
    case NO_LAUNCH: break;
    }
    return cuda_check(cuda, rc, "gated", err);
}

int cuda_gated(struct backend *be, const struct gated_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const uint32_t n_out = args->gate->rows;
    uint16_t *gate = args->gate_up; /* bf16 */
    struct linear_args both = {
        .x = args->x,
        .norm = args->norm,
        .n_rows = args->n_rows,
        .n_in = args->n_in,
        .n_parts = 2,
        .parts = {{args->gate, args->gate_bias, gate, 2 * (size_t)n_out},
                  {args->up, args->up_bias, gate + n_out, 2 * (size_t)n_out}}};
    const struct gate_mul_params gated = {.gate_up = gate,
                                          .out = args->out,
                                          .n_rows = args->n_rows,
                                          .dim = n_out,
                                          .kind = args->kind};
    if (fits_one_launch(cuda, &both))
        return run_gated(cuda, &both, args->kind, args->out, FEW_ROWS, err);
    int rc = normalise(be, &both, err);
    if (rc) return rc;
    const enum gated_launch how = choose_gated(cuda, &both, args->out);
    if (how != NO_LAUNCH) return run_gated(cuda, &both, args->kind, args->out, how, err);
    rc = cuda_linear(be, &both, err);
    return rc ? rc : cuda_check(cuda, launch_gate_mul(&gated, launch_of(cuda)), "gate_mul", err);
}
