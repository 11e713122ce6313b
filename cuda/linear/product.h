/* product.h - products of activations and weights, and the list of the kernels that compute them.
 *
 *   linear.c    cuts an operation's parts into products, and launches what choose finds
 *   choice.c    the list: what each kernel takes, and what it costs
 *   *.cu        a kernel each, with its launcher, a product_launch; cublaslt.c has cuBLASLt
 *
 * A kernel is added with its file, its row in the list and its line in cuda/meson.build.
 *
 * Nothing here needs CUDA's headers, so tests without a device see the choice.
 *
 * Thread: engine, and device code.  Memory: none of its own. */
#ifndef CUDA_LINEAR_PRODUCT_H
#define CUDA_LINEAR_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/backend.h"
#include "engine/device/weight.h"

struct cuda_backend;

#ifdef __cplusplus
extern "C" {
#endif

/* One of the matrices that the same rows are multiplied by, such as q, k and v.  On the device. */
struct product_part {
    const void *w; /* [n_out, n_in] in the product's w_format; scales and mins as in weight.h */
    const void *scales, *mins; /* NULL where the format has none */
    const void *bias;          /* [n_out] or NULL */
    enum element bias_dtype;
    void *y; /* bf16 or f32, row i at y + i * y_stride elements */
    size_t y_stride;
    uint32_t n_out;
    bool joins_next; /* the next part's weights and results lie right behind these, and neither part
                        has a bias: both can be computed as one matrix */
};

/* Where the results of a gated product are wanted as E4M3, with a scale for each FP8_BLOCK outputs
 * of a row.  The members are as in quantise_params. */
struct rounded_result {
    uint8_t *codes; /* NULL: bf16 results are wanted */
    float *scales;
    uint32_t scale_stride;
    float most;
};

/* The parameters of every product kernel: y = x W^T (+ b), or y += x W^T (+ b) if accumulate, for
 * all parts.  With norm_weight the product is of RMSNorm(x).  If gated, the two parts are gate and
 * up, and only parts[0].y is written: kind(gate) * up.  A kernel's fits() says what it takes. */
struct product {
    const void *x; /* bf16 [n_rows, n_in]; with x_scales E4M3 */
    /* What x is multiplied by: [n_rows], or if x_scale_stride > 0 for each FP8_BLOCK columns
     * [n_in / FP8_BLOCK][x_scale_stride].  NULL: x has no scales.  Otherwise the scales of W are
     * f32, and each row has one, or each FP8_BLOCK x FP8_BLOCK elements. */
    const float *x_scales;
    uint32_t x_scale_stride;
    uint32_t n_rows, n_in, n_parts;
    struct product_part parts[LINEAR_MAX_PARTS];
    struct weight_format w_format; /* of every part */
    bool in_strips;                /* the arrays of every part lie as strips.h says */
    bool rounds_input;             /* as in struct weight, of every part; x has no scales yet */
    float input_most;
    enum element norm_dtype; /* of norm_weight */
    const void *norm_weight; /* [n_in], or NULL */
    float eps;
    struct rounded_result rounded;
    bool gated, accumulate, y_f32;
    bool is_partial; /* the operation has more parts than these */
    enum gate_kind kind;
    uint32_t n_idle; /* multiprocessors that the kernel before leaves idle, if takes_idle; else 0 */
};

enum {
    FEW_MAX_ROWS = 16,        /* that the few and stream kernels take */
    STREAM_MAX_NORM = 8192,   /* columns of a norm that the stream kernel takes */
    WIDE_MAX_ROWS = 256,      /* that the wide kernel takes */
    WIDE_MAX_BLOCK_ROWS = 128 /* that it takes with scales of blocks */
};

enum {
    FP8_BLOCK = 128,     /* columns, and rows, of a block of E4M3 with a scale */
    FP8_ROWS_ALIGN = 16, /* rows of W are a multiple, where each has a scale */
    FP8_SCALE_ROWS = 4,  /* x_scale_stride is n_rows, rounded up to a multiple */
    FP8_PAST_ROWS = 256  /* kernels read the scales of at most so many rows behind the last */
};

enum { WIDE_SHARE_BYTES = 256 * 112 * 4 }; /* a tile's sums in f32 */

/* How a product reads x and W. */
enum product_mode {
    MODE_BF16,
    MODE_FP8_ROWS,  /* E4M3; each row of x and of W has a scale */
    MODE_FP8_BLOCKS /* E4M3; each FP8_BLOCK columns of a row of x, and each block of W, have one */
};

/* Returns the product's mode, which the scales of x decide. */
static inline enum product_mode product_mode_of(const struct product *p) {
    if (!p->x_scales) return MODE_BF16;
    return p->x_scale_stride > 0 ? MODE_FP8_BLOCKS : MODE_FP8_ROWS;
}

/* What the wide kernel has on this device. */
struct wide_device {
    uint32_t n_clusters; /* that run at the same time; 0: the kernel does not run here */
    /* WIDE_SHARE_BYTES for each multiprocessor, all MISSING_BYTE between kernels */
    void *shares;
    bool fast_memory; /* find_memory_rate() of linear_wide.cu */
};

enum { PACKED_WIDE_MAX_SPLITS = 8 };

/* What the packed wide kernel has on this device. */
struct packed_wide_device {
    /* Clusters of so many blocks that run at the same time; [1] is 0 if the kernel does not run */
    uint32_t n_clusters[PACKED_WIDE_MAX_SPLITS + 1];
};

/* What the choice of a kernel has to know of the device; set by open() of the kernels. */
struct product_device {
    bool batch_invariant; /* only kernels that are invariant run */
    bool streams;         /* the stream kernel runs here */
    bool packed_streams;  /* the packed stream kernel, too */
    struct wide_device wide;
    uint32_t wide_from; /* rows from which the wide kernel is faster than the stream kernel */
    uint32_t n_gated_clusters; /* of the gated kernel, that run at the same time; 0: none */
    uint32_t n_fp8_clusters;   /* of the fp8 kernel, alike */
    struct packed_wide_device packed_wide;
    void *slab; /* slab.h; NULL: no weight was loaded that needs it */
};

/* Makes a kernel ready when the backend is created, and sets its members of cuda->products.  0 if
 * the kernel does not run on the device, too.  ERR_DEVICE, ERR_NOMEM. */
typedef int product_open(struct cuda_backend *cuda, struct error *err);
/* Launches a kernel on cuda's stream for a product that fits it, with at least one row.
 * ERR_DEVICE; ERR_UNSUPPORTED: cuBLASLt has no algorithm, and "any" must be launched instead. */
typedef int product_launch(struct cuda_backend *cuda, const struct product *p, struct error *err);

/* Costs are compared with each other only.  What costs PRODUCT_NEVER is not chosen: other kernels
 * are faster, or the operation in smaller products is. */
#define PRODUCT_NEVER 1e30f

/* A row of the list. */
struct product_kernel {
    const char *name;
    product_open *open; /* NULL: it is always ready */
    /* Says whether the kernel can compute the product here.  A norm does not matter if
     * takes_norm is false: the caller computes it before. */
    bool (*fits)(const struct product_device *device, const struct product *p);
    /* Returns the cost of a product that fits. */
    float (*cost)(const struct product_device *device, const struct product *p);
    product_launch *launch;
    bool is_invariant; /* a row's bits depend on nothing but the row and the weights */
    bool takes_norm;
    bool takes_codes; /* it takes products whose x has scales, or these only: fits() says so */
    bool rounds;      /* it leaves results as E4M3 where product.rounded says so */
    bool takes_idle;  /* it counts multiprocessors as taken that the kernel before leaves idle */
};

/* The list of all kernels; the last row has no name.  The kernel "any" is the reference, which
 * takes any shape and dtype. */
extern const struct product_kernel product_kernels[];

/* Returns the kernel that costs least of those that the product fits, with all of its parts in one
 * launch.  NULL: none fits, or each that does costs PRODUCT_NEVER. */
const struct product_kernel *product_choose(const struct product_device *device,
                                            const struct product *p);
/* Returns the kernel of this name, which must be in the list. */
const struct product_kernel *product_find(const char *name);

/* Says whether all parts can be computed as one matrix: each joins the next, or there is one. */
bool product_is_joined(const struct product *p);
/* Returns the product with each run of parts that join as one part, whose n_out is their sum. */
struct product product_join(const struct product *p);

#ifdef __cplusplus
}
#endif

#endif
