/* expert_offload.h - loads experts to the machine's memory (engine/device/offloaded.h).
 *
 * A matrix goes to the device first, which puts it into its own order, and from there to the
 * machine.  So no more than one is on the device at a time.
 *
 * Thread: that of the loading.  Memory: host_pool_ops.alloc()'s. */
#ifndef ENGINE_MODEL_EXPERT_OFFLOAD_H
#define ENGINE_MODEL_EXPERT_OFFLOAD_H

#include <stdbool.h>
#include <stdint.h>

struct backend;
struct error;
struct layer_weights;
struct model;
struct weight;

/* Tells whether weights can lie in memory of the machine that the device reads.  A device without
 * memory of its own has all of them there. */
bool expert_offload_is_possible(struct backend *be);
/* Loads a matrix of a layer; is_gate: with space for what is said of the layer. */
int expert_offload_load(struct backend *be, const struct weight *host, bool is_gate,
                        struct weight *out, struct error *err);
/* Says of each offloaded layer what it has, and which one is next. */
void expert_offload_link(struct model *model);
/* Frees the experts of a layer, as far as they are loaded. */
void expert_offload_release(struct backend *be, struct layer_weights *layer);
/* Returns the bytes that the device has fetched of all layers. */
uint64_t expert_offload_fetched(const struct model *model);

#endif
