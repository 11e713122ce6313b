/* gguf_layout.h - how the tensors of a GGUF file differ from those of a checkpoint in safetensors.
 *
 * They have other names, Llama's rows rotate in another order, Gemma's norms have their 1, and
 * other tensors may be one.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_GGUF_LAYOUT_H
#define ENGINE_MODEL_GGUF_LAYOUT_H

struct error;
struct family_name;
struct model_config;

/* Returns the names that GGUF files have for the tensors of such a model. */
const struct family_name *gguf_layout_tensors(const struct model_config *config);

/* Changes the members that say how a checkpoint has the weights, if `model` is a GGUF file. */
int gguf_layout_apply(struct model_config *config, const char *model, struct error *err);

#endif
