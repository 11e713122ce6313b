/* cublaslt.c - a product through cuBLASLt.
 *
 * cuBLASLt sees everything transposed, because it counts columns first: y^T = (W^T)^T x^T.  The
 * answers of its heuristics are cached by shape, with the number of rows rounded up to a step of a
 * coarse scale: an algorithm for 512 rows is right for 400, and asking costs more than a small
 * product.
 *
 * Thread: engine.  Memory: that of linear_open(). */
#include "cuda/host/internal.h"
#include "cuda/linear/product.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"

enum { BLAS_ALIGN = 16 };

static int blas_check(struct cuda_backend *cuda, cublasStatus_t status, struct error *err) {
    if (cuda->failed || status == CUBLAS_STATUS_SUCCESS)
        return cuda_check(cuda, cudaSuccess, "a product", err);
    cuda->failed = true;
    return error_set(err, ERR_DEVICE, "cuda: a product: cuBLASLt: %s",
                     cuda->blas.status_string(status));
}

static int unsupported(const struct product *p, struct error *err) {
    return error_set(err, ERR_UNSUPPORTED, "cuda: cuBLASLt has no algorithm for %u x %u by %u",
                     p->n_rows, p->n_in, p->parts[0].n_out);
}

/* What a product reads besides x and W; of the scales cuBLASLt only looks at the alignment when it
 * is asked for an algorithm. */
struct matmul_inputs {
    const void *bias, *w_scales, *x_scales;
};

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

/* Describes the scales of rows of E4M3.  Sums are added in as many bits as wgmma has.  That is
 * faster, and loses far less than the rounding of x does. */
static cublasStatus_t set_scales(const struct blas *blas, const struct matmul *m,
                                 const struct matmul_inputs *in) {
    const cublasLtMatmulMatrixScale_t kind = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const int8_t fast = 1;
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
        size_t bytes;
    } settings[] = {{CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &kind, sizeof(kind)},
                    {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &kind, sizeof(kind)},
                    {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &in->w_scales, sizeof(in->w_scales)},
                    {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &in->x_scales, sizeof(in->x_scales)},
                    {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)}};
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]) && !s; i++)
        s = blas->desc_set(m->desc, settings[i].attribute, settings[i].value, settings[i].bytes);
    return s;
}

/* Describes a product; layouts are columns x rows as we see them. */
static cublasStatus_t matmul_init(const struct blas *blas, struct matmul *m,
                                  const struct matmul_key *key, const struct matmul_inputs *in) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t y_type = key->y_f32 ? CUDA_R_32F : CUDA_R_16BF, bias_type = CUDA_R_16BF,
                         type = key->mode == MODE_BF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
    *m = (struct matmul){0};
    cublasStatus_t s = blas->desc_create(&m->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = blas->desc_set(m->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    if (!s && key->mode != MODE_BF16) s = set_scales(blas, m, in);
    if (!s && in->bias) {
        s = blas->desc_set(m->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
        if (!s)
            s = blas->desc_set(m->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &in->bias,
                               sizeof(in->bias));
        if (!s)
            s = blas->desc_set(m->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                               sizeof(bias_type));
    }
    if (!s) s = blas->layout_create(&m->w, type, key->n_in, key->n_out, key->n_in);
    if (!s) s = blas->layout_create(&m->x, type, key->n_in, key->n_rows, key->n_in);
    if (!s) s = blas->layout_create(&m->y, y_type, key->n_out, key->n_rows, (int64_t)key->y_stride);
    return s;
}

static uint64_t hash_of(const struct matmul_key *key) {
    const uint64_t words[] = {key->n_out, key->n_in, key->n_rows, key->y_stride,
                              (uint64_t)key->mode << 3 | (uint64_t)key->accumulate << 2 |
                                  (uint64_t)key->y_f32 << 1 | (uint64_t)key->bias};
    uint64_t hash = 14695981039346656037u; /* FNV-1a over words */
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        hash = (hash ^ words[i]) * 1099511628211u;
    return hash ^ hash >> 32;
}

static bool same_key(const struct matmul_key *a, const struct matmul_key *b) {
    return a->n_out == b->n_out && a->n_in == b->n_in && a->n_rows == b->n_rows &&
           a->y_stride == b->y_stride && a->accumulate == b->accumulate && a->y_f32 == b->y_f32 &&
           a->bias == b->bias && a->mode == b->mode;
}

static void ask_heuristics(struct cuda_backend *cuda, const struct matmul *m,
                           struct matmul_entry *entry) {
    const uint64_t workspace = MATMUL_WORKSPACE_BYTES;
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
 * the next, and above 384 rows to multiples of 128.  Tiles have that many rows, so what suits 1,280
 * is slow for 1,152.  What cuBLASLt expects to suit 448 is slower than its choice for 512
 * (docs/benchmarks/gpu-kernels.md, "Short prompts"). */
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
    static const _Alignas(BLAS_ALIGN) char any[BLAS_ALIGN];
    const struct matmul_inputs in = {key->bias ? any : NULL, any, any};
    struct matmul m;
    *entry = (struct matmul_entry){.key = rounded, .known = true};
    if (!matmul_init(&cuda->blas, &m, &rounded, &in)) ask_heuristics(cuda, &m, entry);
    matmul_fini(&cuda->blas, &m);
    return entry;
}

/* Computes a product whose parts are joined, so it is one matrix. */
int launch_cublaslt(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    const struct product joined = product_join(p);
    const struct product_part *part = &joined.parts[0];
    const float one = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
    const struct matmul_key key = {.n_out = part->n_out,
                                   .n_in = p->n_in,
                                   .n_rows = p->n_rows,
                                   .y_stride = part->y_stride,
                                   .accumulate = p->accumulate,
                                   .y_f32 = p->y_f32,
                                   .bias = part->bias != NULL,
                                   .mode = product_mode_of(p)};
    const struct matmul_inputs in = {part->bias, part->scales, p->x_scales};
    const struct matmul_entry *entry = find_entry(cuda, &key);
    if (!entry->usable) return unsupported(&joined, err);
    struct matmul m;
    cublasStatus_t s = matmul_init(&cuda->blas, &m, &key, &in);
    if (!s)
        s = cuda->blas.matmul(cuda->blas.handle, m.desc, &one, part->w, m.w, p->x, m.x, &beta,
                              part->y, m.y, part->y, m.y, &entry->algo, cuda->workspace,
                              MATMUL_WORKSPACE_BYTES, cuda->stream);
    matmul_fini(&cuda->blas, &m);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE)
        return unsupported(&joined, err);
    return blas_check(cuda, s, err);
}
