/* model_digest.h - a digest of all that decides what a model computes, but for its device.
 *
 * It covers every byte of the weights (as checksums of pieces), config.json, and what follows from
 * the settings, such as rotary frequencies for a longer context.  Names and times of files do not
 * matter, so a copy of a model is the same model.  All weights are read once for it.
 *
 * Thread: any one.  Memory: that of config.json, until it returns. */
#ifndef ENGINE_MODEL_MODEL_DIGEST_H
#define ENGINE_MODEL_MODEL_DIGEST_H

struct digest;
struct error;
struct model;

/* Absorbs the model that was loaded from dir.  ERR_IO, ERR_NOMEM. */
int model_digest(struct digest *digest, const struct model *model, const char *dir,
                 struct error *err);

#endif
