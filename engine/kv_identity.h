/* kv_identity.h - what decides the bits of cached pages beside their tokens: the identity under
 * which the tier on disk keeps them.
 *
 * It covers the model (model_digest.h), the device and what its sums depend on, the program's
 * build, and the layout of pages.  So a cache that another model, device, element type or version
 * of the program wrote is not found, and grows old on disk.
 *
 * Thread: any one.  Memory: none. */
#ifndef ENGINE_KV_IDENTITY_H
#define ENGINE_KV_IDENTITY_H

#include "engine/base/digest.h"

struct engine_config;
struct error;
struct kv_space;
struct model;

/* Works out the identity of a complete space.  ERR_IO, ERR_NOMEM. */
int kv_identity(struct digest_value *out, const struct engine_config *config,
                const struct model *model, const struct kv_space *space, struct error *err);

#endif
