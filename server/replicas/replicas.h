/* replicas.h - the engines behind one port, each with the whole model, as if they were one
 * (engine.h).
 *
 *   completions ─► replicas_submit() ─► router ─┬─► engine 0 ─┐
 *                                               └─► engine 1 ─┴─► replicas_take_events()
 *
 * Each prompt of a submission goes to a replica with all of its choices.  An answer does not depend
 * on which one it is: they have the same settings and as many pages.  One replica is called
 * directly.
 *
 * A replica that fails ends its own requests, with an error that names it.  Later ones go to the
 * others.  So do they while a replica's step is stuck; its own requests wait for that step.
 *
 * Thread: loop, but for replicas_name() and replicas_admit().  Memory: a few bytes for each
 * sequence that runs. */
#ifndef SERVER_REPLICAS_REPLICAS_H
#define SERVER_REPLICAS_REPLICAS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

struct replicas; /* opaque: the fields live in replicas.c */

/* Takes n engines, at least 1, that have started; they are the caller's still if it fails.
 * most_step_s: seconds after which a step counts as stuck; 0: never.  ERR_NOMEM. */
int replicas_create(struct replicas **out, struct engine *const *engines, uint32_t n,
                    bool prefix_caching, uint64_t most_step_s, struct error *err);
void replicas_destroy(struct replicas *replicas); /* NULL is allowed; stops first */

uint32_t replicas_n(const struct replicas *replicas);
/* Returns what each of them is. */
const struct engine_info *replicas_info(const struct replicas *replicas);

/* Does what the functions of these names in engine.h do.  Ids are unique among all replicas.  After
 * a submission that fails, requests that a replica has had have no arrays any more. */
int replicas_check_room(struct replicas *replicas, uint32_t n_requests, struct error *err);
/* Computes the names by which prompts are routed, if there are several replicas.  Without memory
 * that is done when they are submitted.  Thread: any. */
void replicas_name(const struct replicas *replicas, struct engine_request *requests, uint32_t n);
int replicas_admit(struct replicas *replicas, struct engine_request *requests, uint32_t n_requests,
                   struct error *err);
int replicas_submit(struct replicas *replicas, struct engine_request *requests, uint32_t n_requests,
                    uint64_t *ids, struct error *err);
void replicas_cancel(struct replicas *replicas, uint64_t request_id);
struct engine_event *replicas_take_events(struct replicas *replicas);
/* Tells whether a step of any has taken longer than most_step_s. */
bool replicas_are_stuck(const struct replicas *replicas);
uint64_t replicas_disk_failure(struct replicas *replicas, struct error *out);
void replicas_skip_saving(struct replicas *replicas);
void replicas_stop(struct replicas *replicas);

/* Writes what all of them have done together, or one of them. */
void replicas_stats(struct replicas *replicas, struct engine_stats *out);
void replicas_stats_of(struct replicas *replicas, uint32_t replica, struct engine_stats *out);

/* Returns how many ranks there are, those of all replicas, and tells of one: those of a replica
 * follow those of the one before it. */
uint32_t replicas_n_ranks(const struct replicas *replicas);
void replicas_rank(const struct replicas *replicas, uint32_t rank, struct engine_rank *out);

/* Tells whether a replica has not failed; and how many have not. */
bool replicas_is_healthy(const struct replicas *replicas, uint32_t replica);
uint32_t replicas_n_healthy(const struct replicas *replicas);
/* Returns true once for each replica that has failed: which it is, and why. */
bool replicas_take_failure(struct replicas *replicas, uint32_t *replica, struct error *why);

#endif
