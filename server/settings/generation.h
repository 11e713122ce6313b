/* generation.h - what the model's generation_config.json says of sampling: the default of what a
 * request does not say.
 *
 * A model without that file may have the same members in its config.json, as transformers reads
 * them.
 *
 * Thread: any, at the start; read-only afterwards.  Memory: none is kept. */
#ifndef SERVER_SETTINGS_GENERATION_H
#define SERVER_SETTINGS_GENERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/sample.h"

struct error;

struct generation {
    struct sampler sampler;
    uint32_t max_tokens; /* of chats that do not say; 0: what the context leaves */
    char source[32];     /* the file's name; "": nothing was taken */
    char taken[256];     /* what differs from quire's own defaults, for the log; "": nothing */
    char unused[256];    /* members that would change answers and are not used; "": none */
};

/* Reads the files of the model's directory into *out; reads: false gives quire's own defaults.
 * ERR_INVALID: the text names file, member, and what is allowed. */
int generation_load(struct generation *out, const char *model_dir, bool reads, struct error *err);

#endif
