/* text_half.h - the text model inside a model that also reads images (*ForConditionalGeneration).
 *
 * Such a model has a text model of a known family.  Its settings are in 'text_config', and its
 * tensors have a prefix.  Here these settings become those of a plain config.json, so that nothing
 * else in this room reads 'text_config'.  The parts for images are not loaded.
 *
 * Thread: any.  Memory: the caller owns what it gets. */
#ifndef ENGINE_MODEL_TEXT_HALF_H
#define ENGINE_MODEL_TEXT_HALF_H

#include <stddef.h>
#include <jansson.h>

struct error;
struct weight_source;

/* How the files name the tensors of a text model. */
struct tensor_prefix {
    const char *model; /* what they have in place of 'model.' */
    const char *head;  /* what is before 'lm_head.' */
};

/* Makes *out the text model's config.json, or NULL if `config` is not that of a wrapper.  Keys that
 * 'text_config' lacks have the values that transformers gives them.  label: names the directory in
 * messages.  ERR_INVALID, ERR_UNSUPPORTED: its text model is not served; ERR_NOMEM. */
int text_half_config(json_t **out, const json_t *config, const char *label, struct error *err);
/* Returns the name of a wrapper's architecture, NULL from the number of wrappers on. */
const char *text_half_architecture(size_t i);
/* Returns the prefix that the files' tensors have, or NULL if none is known.  files NULL: that of
 * transformers 5. */
const struct tensor_prefix *text_half_prefix(const struct weight_source *files);

#endif
