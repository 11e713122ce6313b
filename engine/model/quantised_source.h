/* quantised_source.h - a weight_source of safetensors files with quantised modules.
 *
 * A module X is "X.weight" here, whatever tensors it has (quantised_tensor.h).  All other tensors
 * are those of the files.
 *
 * Thread: as of every source.  Memory: that of the files. */
#ifndef ENGINE_MODEL_QUANTISED_SOURCE_H
#define ENGINE_MODEL_QUANTISED_SOURCE_H

struct error;
struct quantisation;
struct weight_source;

/* Opens the directory's files.  how: copied.  On failure *out is untouched. */
int quantised_source_open(struct weight_source **out, const char *dir,
                          const struct quantisation *how, struct error *err);

#endif
