/* choice.c - the list of product kernels, and which of them computes a product: see product.h.
 *
 *   rows   <= 16   one launch for all parts, norm and gate included: reading the weights is the
 *                  whole cost, or launches are (is_small()).  "stream" on compute capability 9.0,
 *                  "few" elsewhere
 *   rows  <= 192   on compute capability 9.0 "wide": one launch for all parts, gate included.  From
 *                  9 rows on where memory is fast (open_wide()) and weights are not small
 *   more than 192  on 9.0 "gated", for gated products that fill the device
 *   rows  <= 256   "wide" for others, and for long sums
 *   more rows      "cublaslt"; parts that lie side by side (q, k, v or gate, up) are one product
 *   else           "any": f16 and f32 weights, odd widths, slowly
 *
 * Weights that are not plain are products of the kernels for them.  If they lie in strips
 * (strips.h), on compute capability 9.0 "packed stream" takes up to 8 rows, and "packed wide" any
 * number.  "packed direct" takes one row of few bytes.  What none of these takes is "unpacked":
 * widened to bf16 in slabs, for which a kernel of the above is chosen.
 *
 * Products whose x is rounded to E4M3 are "wide" up to 256 rows, 128 with scales of blocks.  More
 * rows are "fp8", but from 257 to 511 rows of one scale each, which are of cuBLASLt.
 *
 * A batch-invariant backend takes "invariant", whose sums have one order, or "any", for any number
 * of rows.
 *
 * Thread: engine.  Memory: none. */
#include <string.h>

#include "cuda/linear/direct_cut.h"
#include "cuda/linear/gated_cut.h"
#include "cuda/linear/packed_cut.h"
#include "cuda/linear/packed_wide_cut.h"
#include "cuda/linear/product.h"
#include "cuda/linear/slab.h"
#include "cuda/linear/wide_cut.h"
#include "engine/base/sizes.h"

enum { ALIGN = 16, WIDTH = 8 };         /* of bf16 that is read in vectors: bytes, elements */
enum { SMALL_BYTES = 4 << 20 };         /* see is_small() */
enum { FP8_FROM = 512 };                /* rows with a scale each: fewer are faster by cuBLASLt */
enum { BF16_BYTES = 2, F32_BYTES = 4 }; /* of results */

/* Only the list names them. */
product_open open_stream, open_packed_stream, open_wide, open_gated, open_fp8, open_packed_wide;
product_launch launch_few, launch_stream, launch_packed_stream, launch_wide, launch_gated,
    launch_fp8, launch_cublaslt, launch_invariant, launch_any, launch_unpacked,
    launch_packed_direct, launch_packed_wide;

static bool aligned(const void *p, size_t to) {
    return (uintptr_t)p % to == 0;
}

/* Says whether x and the weights are as all kernels but "any" read them. */
static bool is_bf16(const struct product *p) {
    bool fits = weight_is_plain(&p->w_format) && p->w_format.element == ELEMENT_BF16 &&
                p->n_in % WIDTH == 0 && aligned(p->x, ALIGN);
    for (uint32_t i = 0; i < p->n_parts; i++) fits &= aligned(p->parts[i].w, ALIGN);
    return fits;
}

/* Says whether x, the weights and their scales are as the kernels of rounded inputs read them. */
static bool is_rounded(const struct product *p) {
    bool fits = p->x_scales && p->n_in % FP8_BLOCK == 0 && aligned(p->x, ALIGN);
    for (uint32_t i = 0; i < p->n_parts; i++)
        fits &= aligned(p->parts[i].w, ALIGN) && aligned(p->parts[i].scales, ALIGN);
    return fits;
}

static bool has_blocks(const struct product *p) {
    return p->x_scale_stride > 0;
}

/* Says whether the weights are so few that launches take the time, not their bytes: a kernel that
 * takes the norm, too, is then faster.  Nothing was measured between 8 and 34 MB. */
static bool is_small(const struct product *p) {
    size_t n = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) n += p->parts[i].n_out;
    return n * p->n_in * BF16_BYTES <= SMALL_BYTES;
}

/* ---- up to FEW_MAX_ROWS rows ---- */

static bool few_rows_fit(const struct product *p) {
    return p->n_rows <= FEW_MAX_ROWS && is_bf16(p) &&
           (!p->norm_weight || (p->norm_dtype == ELEMENT_BF16 && aligned(p->norm_weight, ALIGN)));
}

static bool stream_fits(const struct product_device *device, const struct product *p) {
    return device->streams && few_rows_fit(p) && (!p->norm_weight || p->n_in <= STREAM_MAX_NORM);
}

/* Leaves the product to "stream" where that runs: a norm that "stream" does not take is computed
 * before. */
static bool few_fits(const struct product_device *device, const struct product *p) {
    return !device->streams && few_rows_fit(p);
}

static float few_rows_cost(const struct product_device *device, const struct product *p) {
    (void)device, (void)p;
    return 3;
}

/* ---- up to WIDE_MAX_ROWS rows ---- */

static bool wide_fits(const struct product_device *device, const struct product *p) {
    const size_t pair = 2 * (p->y_f32 ? F32_BYTES : BF16_BYTES);
    const uint32_t most = has_blocks(p) ? WIDE_MAX_BLOCK_ROWS : WIDE_MAX_ROWS;
    bool fits = device->wide.n_clusters > 0 && p->n_rows <= most &&
                (p->x_scales ? is_rounded(p) : is_bf16(p));
    if (p->gated) return fits && p->parts[0].n_out % WIDTH == 0 && aligned(p->parts[0].y, ALIGN);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const struct product_part *part = &p->parts[i];
        fits &= part->n_out % WIDTH == 0 && part->y_stride % 2 == 0 && aligned(part->y, pair);
    }
    return fits;
}

/* Leaves products of more than WIDE_WHOLE_ROWS rows to cuBLASLt, which is faster, but for gated
 * ones and long sums. */
static float wide_cost(const struct product_device *device, const struct product *p) {
    if (p->x_scales) return 2;
    const uint32_t from = is_small(p) ? FEW_MAX_ROWS + 1 : device->wide_from;
    bool pays = p->n_rows >= from && !p->is_partial;
    for (uint32_t i = 0; i < p->n_parts; i++)
        pays &= p->gated || p->n_rows <= WIDE_WHOLE_ROWS || p->n_in > p->parts[i].n_out;
    return pays ? 2 : PRODUCT_NEVER;
}

/* ---- more rows ---- */

static bool gated_fits(const struct product_device *device, const struct product *p) {
    return device->n_gated_clusters > 0 && p->gated && is_bf16(p) &&
           aligned(p->parts[0].y, ALIGN) && gated_takes(p->n_rows, p->n_in, p->parts[0].n_out);
}

/* Counts WIDE_MAX_ROWS rows where there are fewer: the other kernels then compute as many. */
static float gated_cost(const struct product_device *device, const struct product *p) {
    const uint32_t n_out = p->parts[0].n_out, n_clusters = device->n_gated_clusters;
    const bool pays = p->n_rows > WIDE_WHOLE_ROWS &&
                      gated_fills(max_u32(p->n_rows, WIDE_MAX_ROWS), n_out, n_clusters) &&
                      (p->n_rows > WIDE_MAX_ROWS || gated_beats_wide(p->n_in, n_out, n_clusters));
    return pays ? 1 : PRODUCT_NEVER;
}

static bool fp8_fits(const struct product_device *device, const struct product *p) {
    bool fits = device->n_fp8_clusters > 0 && is_rounded(p);
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts); i++) {
        const struct product_part *part = &p->parts[i];
        fits &= part->n_out % WIDTH == 0 && part->y_stride % WIDTH == 0 && aligned(part->y, ALIGN);
    }
    return fits;
}

static float fp8_cost(const struct product_device *device, const struct product *p) {
    (void)device;
    return has_blocks(p) || p->n_rows >= FP8_FROM ? 3 : PRODUCT_NEVER;
}

/* Looks at the joined parts as one, whose result and bias are the first part's. */
static bool cublaslt_fits(const struct product_device *device, const struct product *p) {
    const struct product_part *part = &p->parts[0];
    (void)device;
    return !p->gated && product_is_joined(p) && !has_blocks(p) &&
           (p->x_scales ? is_rounded(p) : is_bf16(p)) && part->n_out % WIDTH == 0 &&
           product_join(p).parts[0].n_out % WIDTH == 0 && part->y_stride % WIDTH == 0 &&
           aligned(part->y, ALIGN) &&
           (!part->bias ||
            (part->bias_dtype == ELEMENT_BF16 && aligned(part->bias, ALIGN) && !p->y_f32));
}

static float cublaslt_cost(const struct product_device *device, const struct product *p) {
    (void)device, (void)p;
    return 4;
}

/* ---- kernels whose sums have one order ---- */

static bool invariant_fits(const struct product_device *device, const struct product *p) {
    (void)device;
    return !p->gated && is_bf16(p);
}

static float invariant_cost(const struct product_device *device, const struct product *p) {
    (void)p;
    return device->batch_invariant ? 1 : PRODUCT_NEVER;
}

static bool any_fits(const struct product_device *device, const struct product *p) {
    (void)device;
    return !p->gated && product_is_joined(p) && weight_is_plain(&p->w_format);
}

static float any_cost(const struct product_device *device, const struct product *p) {
    (void)device, (void)p;
    return 5;
}

/* ---- weights that are not plain ---- */

static bool packed_stream_fits(const struct product_device *device, const struct product *p) {
    struct packed_cut cut;
    bool fits =
        device->packed_streams && p->in_strips && aligned(p->x, ALIGN) &&
        (!p->norm_weight || (p->norm_dtype == ELEMENT_BF16 && aligned(p->norm_weight, ALIGN))) &&
        packed_make_cut(p, PACKED_MAX_BYTES, &cut);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const struct product_part *part = &p->parts[i];
        fits &= aligned(part->w, ALIGN);
        if (p->w_format.block_cols)
            fits &= aligned(part->scales, ALIGN) && aligned(part->mins, ALIGN);
    }
    return fits;
}

static float packed_stream_cost(const struct product_device *device, const struct product *p) {
    (void)device, (void)p;
    return 2;
}

/* Up to so many bytes "packed direct" is faster.  In Llama-3-8B products of 8 and 12 MB in
 * 4 bits took 1.2 us less.  One of 16 MB in 8 bits took 1.3 to 2.9 us more. */
enum { DIRECT_MOST_BYTES = 12 << 20 };

static bool packed_direct_fits(const struct product_device *device, const struct product *p) {
    struct direct_cut cut;
    return p->n_rows == 1 && direct_takes(&p->w_format) &&
           direct_cut_columns(&p->w_format, p->n_in, 1 + p->gated, &cut) &&
           packed_stream_fits(device, p);
}

static float packed_direct_cost(const struct product_device *device, const struct product *p) {
    size_t n = 0;
    (void)device;
    for (uint32_t i = 0; i < p->n_parts; i++) n += p->parts[i].n_out;
    n = n * p->n_in * element_bits(p->w_format.element) / 8;
    return n <= DIRECT_MOST_BYTES ? 1 : PRODUCT_NEVER;
}

static bool packed_wide_fits(const struct product_device *device, const struct product *p) {
    bool fits = device->packed_wide.n_clusters[1] > 0 && p->in_strips &&
                packed_wide_find_format(&p->w_format) != N_PACKED_WIDE_FORMATS &&
                aligned(p->x, ALIGN);
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts) && !p->y_f32; i++)
        fits &= p->parts[i].n_out % WIDTH == 0 && p->parts[i].y_stride % WIDTH == 0 &&
                aligned(p->parts[i].y, ALIGN);
    return fits;
}

/* Leaves few rows to "packed stream". */
static float packed_wide_cost(const struct product_device *device, const struct product *p) {
    (void)device, (void)p;
    return 3;
}

/* Checks that there is a kernel for each slab of gate and up.  Others are never refused: "any"
 * takes their slabs. */
static bool unpacked_fits(const struct product_device *device, const struct product *p) {
    struct slab slab;
    bool fits = !weight_is_plain(&p->w_format) && !element_is_packed(p->w_format.element);
    const uint32_t n = slab_all_rows(p), n_in_slab = slab_rows(p);
    for (uint32_t first = 0; p->gated && fits && first < n; first += n_in_slab) {
        slab_cut(p, device->slab, first, &slab);
        fits = product_choose(device, &slab.p) != NULL;
    }
    return fits;
}

static float unpacked_cost(const struct product_device *device, const struct product *p) {
    (void)device, (void)p;
    return 5;
}

/* ---- the list ---- */

const struct product_kernel product_kernels[] = {
    {.name = "stream",
     .open = open_stream,
     .fits = stream_fits,
     .cost = few_rows_cost,
     .launch = launch_stream,
     .takes_norm = true,
     .takes_idle = true},
    {.name = "few",
     .fits = few_fits,
     .cost = few_rows_cost,
     .launch = launch_few,
     .takes_norm = true,
     .takes_idle = true},
    {.name = "wide",
     .open = open_wide,
     .fits = wide_fits,
     .cost = wide_cost,
     .launch = launch_wide,
     .takes_codes = true},
    {.name = "gated",
     .open = open_gated,
     .fits = gated_fits,
     .cost = gated_cost,
     .launch = launch_gated},
    {.name = "fp8",
     .open = open_fp8,
     .fits = fp8_fits,
     .cost = fp8_cost,
     .launch = launch_fp8,
     .takes_codes = true,
     .rounds = true},
    {.name = "cublaslt",
     .fits = cublaslt_fits,
     .cost = cublaslt_cost,
     .launch = launch_cublaslt,
     .takes_codes = true},
    {.name = "invariant",
     .fits = invariant_fits,
     .cost = invariant_cost,
     .launch = launch_invariant,
     .is_invariant = true,
     .takes_idle = true},
    {.name = "any",
     .fits = any_fits,
     .cost = any_cost,
     .launch = launch_any,
     .is_invariant = true,
     .takes_idle = true},
    {.name = "packed direct",
     .fits = packed_direct_fits,
     .cost = packed_direct_cost,
     .launch = launch_packed_direct,
     .takes_norm = true},
    {.name = "packed stream",
     .open = open_packed_stream,
     .fits = packed_stream_fits,
     .cost = packed_stream_cost,
     .launch = launch_packed_stream,
     .takes_norm = true},
    {.name = "packed wide",
     .open = open_packed_wide,
     .fits = packed_wide_fits,
     .cost = packed_wide_cost,
     .launch = launch_packed_wide},
    {.name = "unpacked",
     .fits = unpacked_fits,
     .cost = unpacked_cost,
     .launch = launch_unpacked,
     .is_invariant = true,
     .takes_idle = true},
    {.name = NULL},
};

const struct product_kernel *product_choose(const struct product_device *device,
                                            const struct product *p) {
    const struct product_kernel *best = NULL;
    float least = PRODUCT_NEVER;
    for (const struct product_kernel *k = product_kernels; k->name; k++) {
        if (device->batch_invariant && !k->is_invariant) continue;
        if (p->x_scales && !k->takes_codes) continue;
        if (!k->fits(device, p)) continue;
        const float cost = k->cost(device, p);
        if (cost >= least) continue;
        least = cost;
        best = k;
    }
    return best;
}

const struct product_kernel *product_find(const char *name) {
    const struct product_kernel *k = product_kernels;
    while (strcmp(k->name, name) != 0) k++;
    return k;
}

/* ---- parts that lie side by side ---- */

bool product_is_joined(const struct product *p) {
    for (uint32_t i = 0; i + 1 < p->n_parts; i++)
        if (!p->parts[i].joins_next) return false;
    return true;
}

struct product product_join(const struct product *p) {
    struct product joined = *p;
    joined.n_parts = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        if (i > 0 && p->parts[i - 1].joins_next)
            joined.parts[joined.n_parts - 1].n_out += p->parts[i].n_out;
        else joined.parts[joined.n_parts++] = p->parts[i];
    }
    return joined;
}
