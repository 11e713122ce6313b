/* quantised_tensor.h - the tensors of a quantised module, as a struct weight.
 *
 * A module X of N rows and K columns has its codes, scales and more in tensors of their own:
 *
 *   X.weight         E4M3, I8 [N, K]     with X.weight_scale or X.weight_scale_inv: [] or [1],
 *                                        [N] or [N, 1], [N, groups], [row blocks, column blocks]
 *   X.weight_packed  I32 [N, K / 8]      codes of 4 bits, less 8, the first in the lowest bits;
 *                    I32 [N, K / 4]      of 8 bits, less 128
 *                                        with X.weight_scale [N, groups], X.weight_zero_point
 *                                        I32 [N / 8 or / 4, groups], as codes, along the rows
 *   X.weight_packed  U8 [N, K / 2]       E2M1, with X.weight_scale U8 [N, K / 32], E8M0
 *   X.qweight        I32 [K / 8, N]      GPTQ: codes along K; 8 bits: [K / 4, N]
 *                    I32 [K, N / 8]      AWQ: codes along N, in the order 0 2 4 6 1 3 5 7
 *                                        with X.scales [groups, N], X.qzeros I32 [groups, N / 8]
 *   X_blocks         U8 [E, N, K / 32, 16]   the experts of gpt-oss: E2M1, with X_scales
 *                                        U8 [E, N, K / 32], E8M0.  X is then the weight's own name
 *
 * Most lie in the file as weight.h has them.  The rest are converted.  Zero points become minimums,
 * of F32 as the scales then are: code * scale - zero * scale is exact there.
 *
 * Thread: any.  Memory: none; a weight points into the files. */
#ifndef ENGINE_MODEL_QUANTISED_TENSOR_H
#define ENGINE_MODEL_QUANTISED_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/weight.h"

struct error;
struct quantisation;
struct weight_source;

/* A module's tensors; files: a source with view(). */
struct quantised_module {
    const struct weight_source *files;
    const struct quantisation *how;
    const char *name;   /* of the module */
    uint32_t n_stacked; /* matrices, whose rows are all of `rows`; only X_blocks has several */
    uint32_t rows, cols;
    struct error *err;
};

/* Returns true if the module has codes in the files. */
bool quantised_module_exists(const struct weight_source *files, const char *name);
/* Describes the module's weight.  Data NULL: it must be converted. */
int quantised_module_get(const struct quantised_module *module, struct weight *out);
/* Converts rows first to first + to->rows - 1 to to->data, to->scales and to->mins. */
int quantised_module_read(const struct quantised_module *module, uint32_t first,
                          const struct weight *to);
/* Writes what a tensor is called: "X.weight", or X (above), for the codes of module X.  That is
 * nothing ("") for what belongs to such a module; else its own name.  name: as in
 * weight_source_ops.name. */
void quantised_name(const struct weight_source *files, const char *name, char *out, size_t size);

#endif
