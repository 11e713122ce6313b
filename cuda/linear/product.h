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

struct product_part {
    const void *w;    /* [n_out, n_in] */
    const void *bias; /* [n_out] or NULL */
    enum element bias_dtype;
    void *y; /* bf16 or f32, row i at y + i * y_stride elements */
    size_t y_stride;
    uint32_t n_out;
    bool joins_next; /* the next part's weights and results lie behind these; both have no bias */
};

/* y = x W^T (+ b) or y += x W^T (+ b) for all parts: the parameters of every product kernel.  With
 * norm_weight the product is of RMSNorm(x).  If gated, the parts are gate and up, and parts[0].y is
 * kind(gate) * up.  The list says which kernels take what. */
struct product {
    const void *x; /* bf16 [n_rows, n_in] */
    uint32_t n_rows, n_in, n_parts;
    struct product_part parts[LINEAR_MAX_PARTS];
    enum element w_dtype;    /* of every part */
    enum element norm_dtype; /* of norm_weight */
    const void *norm_weight; /* [n_in], or NULL */
    float eps;
    bool gated, accumulate, y_f32;
    bool is_partial; /* the operation has more parts than these */
    enum gate_kind kind;
    uint32_t n_idle; /* the stream kernel: multiprocessors that the kernel before leaves idle */
};

/* The most rows that kernels take, and the widest norm. */
enum { FEW_MAX_ROWS = 16, STREAM_MAX_NORM = 8192, WIDE_MAX_ROWS = 256 };

/* The part of the device that the wide kernel uses. */
enum { WIDE_SHARE_BYTES = 256 * 112 * 4 };
struct wide_room {
    uint32_t n_clusters; /* that run at the same time; 0: it does not run here */
    /* WIDE_SHARE_BYTES for each multiprocessor, all MISSING_BYTE between kernels */
    void *shares;
    bool fast_memory; /* find_memory_rate() of linear_wide.cu */
};

/* What the choice has to know of the device. */
struct product_device {
    bool batch_invariant; /* only kernels that are invariant run */
    bool streams;         /* the stream kernel runs here */
    struct wide_room wide;
    uint32_t wide_from; /* rows from which the wide kernel is faster than the stream kernel */
    uint32_t n_gated_clusters; /* of the gated kernel, that run at the same time; 0: none */
};

/* Makes a kernel ready, and tells cuda->products what it has to know. */
typedef int product_open(struct cuda_backend *cuda, struct error *err);
/* Launches a kernel for a product that fits it.  ERR_UNSUPPORTED: cuBLASLt has no algorithm. */
typedef int product_launch(struct cuda_backend *cuda, const struct product *p, struct error *err);

/* Costs are compared with each other only.  What costs PRODUCT_NEVER is not chosen: other kernels
 * are faster, or the operation in smaller products is. */
#define PRODUCT_NEVER 1e30f

struct product_kernel {
    const char *name;
    product_open *open; /* NULL: it is always ready */
    /* Says whether the kernel can compute the product.  A norm does not count where the kernel
     * takes none: it is computed before. */
    bool (*fits)(const struct product_device *device, const struct product *p);
    float (*cost)(const struct product_device *device, const struct product *p);
    product_launch *launch;
    bool is_invariant; /* a row's bits depend on nothing but the row and the weights */
    bool takes_norm;
    bool takes_idle; /* it counts multiprocessors as taken that the kernel before leaves idle */
};

/* All kernels; the last has no name.  The reference, which takes any shape and dtype, is "any". */
extern const struct product_kernel product_kernels[];

/* Returns the kernel that costs least of those that take all parts of the product at once; NULL:
 * there is none. */
const struct product_kernel *product_choose(const struct product_device *device,
                                            const struct product *p);
/* Returns a kernel by its name, which must exist. */
const struct product_kernel *product_find(const char *name);

/* Says whether the parts are one matrix with one result. */
bool product_is_joined(const struct product *p);
/* Returns the product with each run of joined parts as one part. */
struct product product_join(const struct product *p);

#ifdef __cplusplus
}
#endif

#endif
