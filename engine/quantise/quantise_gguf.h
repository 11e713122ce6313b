/* quantise_gguf.h - a model's folder as one GGUF file with packed matrices.
 *
 * Matrices of layers are packed as the plan says.  The embedding and a head of its own are Q8_0,
 * and vectors F32.  A matrix whose rows are not whole blocks has another type (packing.h), or stays
 * as it is.
 *
 * Thread: any one, which starts others.  Memory: keys and tokens, and a row for each thread. */
#ifndef ENGINE_QUANTISE_QUANTISE_GGUF_H
#define ENGINE_QUANTISE_QUANTISE_GGUF_H

struct error;
struct layer_loss;
struct model_config;
struct quantise_plan;
struct weight_source;

/* Writes the file plan->to, which must not exist.  files: of the folder.  losses: [n_layers],
 * zeroed.  Errors are those of quantise(); ERR_UNSUPPORTED, too, if GGUF has no keys or names for
 * what the model is. */
int quantise_gguf(const struct quantise_plan *plan, const struct model_config *config,
                  const struct weight_source *files, struct layer_loss *losses, struct error *err);

#endif
