/* fetch.h - experts that lie in the machine's memory (engine/device/offloaded.h), and how a step
 * gets them.
 *
 *   in place   kernels read the matrices that rows use where they lie, over the bus.  Nothing else
 *              moves, and addresses are those of any step
 *   whole      the copy engine brings all experts of a layer to one of two slots on the device.
 *              Meanwhile the device computes what is before them:
 *
 *     stream   layer 3        | layer 4        | layer 5        ...
 *     copies   layer 4, slot 1  layer 5, slot 0  layer 6, slot 1
 *
 * A few rows use few experts, so in place moves fewer bytes; many rows use nearly all of them.  The
 * numbers of rows and experts decide, so graphs can have either.  Kernels are the same for both,
 * and for experts on the device.
 *
 * Thread: engine.  Memory: two slots on the device, reserved at start. */
#ifndef CUDA_EXPERTS_FETCH_H
#define CUDA_EXPERTS_FETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/experts.h"

struct cuda_backend;
struct error;
struct offloaded_layer;

/* The matrices that kernels read. */
struct fetched_experts {
    struct offloaded_layer *layer; /* NULL: they lie on the device */
    struct weight gate, up, down;  /* on the device, if they were copied */
    bool is_whole;                 /* the stream waits for copies */
};

/* Says whether experts are copied whole for so many rows. */
bool expert_fetch_is_whole(uint32_t n_rows, uint32_t n_used, uint32_t n_experts);

/* Makes the routed experts of *args readable, if they are offloaded, and begins to copy those of
 * the next layer.  args->routed then points to what *out has. */
int expert_fetch(struct cuda_backend *cuda, struct experts_args *args, struct fetched_experts *out,
                 struct error *err);
/* Counts the bytes that were fetched for *args, behind the kernels that read them. */
int expert_fetch_count(struct cuda_backend *cuda, const struct experts_args *args,
                       const struct fetched_experts *fetched, struct error *err);

/* Reserves the slots, if there are offloaded experts. */
int expert_fetches_reserve(struct cuda_backend *cuda, struct error *err);
/* Makes the stream wait for all copies of experts, and frees the slots.  A graph calls it where it
 * begins and where it ends: what slots have outside is not there when it is launched again. */
int expert_fetches_join(struct cuda_backend *cuda, struct error *err);
/* Forgets what slots have of a layer whose memory is freed. */
void expert_fetches_forget(struct cuda_backend *cuda, const void *layer);
void expert_fetches_close(struct cuda_backend *cuda);

#endif
