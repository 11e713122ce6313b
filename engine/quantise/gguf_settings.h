/* gguf_settings.h - a model's configuration as keys of a GGUF file.
 *
 * What is written is what gguf_config.h reads.  Not every configuration has keys there: so the keys
 * are read again, and what comes back must be the configuration.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_QUANTISE_GGUF_SETTINGS_H
#define ENGINE_QUANTISE_GGUF_SETTINGS_H

#include <stdint.h>
#include <jansson.h>

struct error;
struct gguf_architecture;
struct gguf_writer;
struct model_config;

/* Writes the keys of an architecture.  config: config.json. */
void gguf_settings_put(struct gguf_writer *w, const struct gguf_architecture *architecture,
                       const struct model_config *c, const json_t *config);

/* Adds the tensors that hold divisors of rotary frequencies, if there are any; all are F32 vectors
 * of c->n_freqs.  ERR_NOMEM. */
int gguf_settings_add(struct gguf_writer *w, const struct model_config *c, const json_t *config,
                      struct error *err);
/* Writes the bytes of these, which follow tensor number `first`.  ERR_IO. */
int gguf_settings_write(const struct gguf_writer *w, uint32_t first, const struct model_config *c,
                        const json_t *config, struct error *err);

/* Checks that the configuration of the file whose header w has written is that of the model.
 * ERR_UNSUPPORTED: it differs. */
int gguf_settings_check(const struct gguf_writer *w, const struct model_config *c,
                        struct error *err);

#endif
