/* team.h - the ranks that compute one model, driven as if they were one device.
 *
 *   engine thread ──► team_submit() ─┬─► rank 0, on the engine thread ──► results
 *                                    ├─► rank 1, on a thread of its own
 *                                    └─► …                       all submit the same step
 *
 * A rank has a backend, its share of the weights (model_share.h), its part of each page and of each
 * host block, and a decoder.  A team of one has no threads, and each call is the decoder's.
 *
 * The functions are those of decoder.h, for all ranks.  A call ends when it has ended on each rank.
 * If one fails, the others are interrupted (collective.h).  The call then reports the error of the
 * one that failed.
 *
 * Thread: engine.  Memory: allocates at create and reserve, never in a step. */
#ifndef ENGINE_TEAM_H
#define ENGINE_TEAM_H

#include <stdint.h>

#include "engine/device/host_pool.h"
#include "engine/device/pages.h"
#include "engine/device/recurrent.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/page_io.h"

struct backend;
struct decoder;
struct error;
struct evict_total;
struct layer_slice;
struct model;
struct sample_result;
struct sample_row;
struct select_total;
struct sparse_totals;
struct step;
struct team;

struct team_rank {
    struct backend *be; /* borrowed */
    /* Made by the team's owner, destroyed with the team: */
    struct model *model;
    struct kv_pool kv;        /* base NULL: not allocated */
    struct host_pool store;   /* base NULL: there is no host pool */
    struct state_pool states; /* base NULL: there are no recurrent layers */
    struct decoder *decoder;
    struct page_io io;              /* of this rank and those behind it; the owner sets io.host */
    struct checkpoint_store stored; /* and so are these; base NULL: checkpoints stay in slots */
};

/* Makes a team of a backend and the other ranks that it is one of.  ERR_NOMEM. */
int team_create(struct team **out, struct backend *rank_0, struct error *err);
/* Destroys what the ranks have, too.  NULL is allowed. */
void team_destroy(struct team *team);

uint32_t team_n_ranks(const struct team *team);
/* Returns the seconds that a rank has spent in calls so far.  Thread: any. */
double team_busy_s(const struct team *team, uint32_t rank);
/* Returns the ranks, team_n_ranks() of them. */
struct team_rank *team_ranks(struct team *team);
/* Makes what steps of up to max_seqs sequences need, once there are models.  ERR_NOMEM. */
int team_reserve(struct team *team, uint32_t max_seqs, struct error *err);

/* Submits to all ranks what the functions of the same names in decoder.h submit to one.  Totals
 * are those of all ranks, once team_collect() has returned. */
int team_submit(struct team *team, const struct step *step, const struct sample_row *samples,
                uint32_t n_samples, struct sample_result *results, struct evict_total *totals,
                struct error *err);
int team_submit_rows(struct team *team, const struct step *step, const struct sample_row *samples,
                     uint32_t n_samples, struct error *err);
int team_submit_samples(struct team *team, const struct sample_row *samples, uint32_t n_samples,
                        struct sample_result *results, struct evict_total *totals,
                        struct error *err);
int team_submit_slice(struct team *team, const struct step *step, const struct layer_slice *slice,
                      const struct sample_row *samples, uint32_t n_samples,
                      struct sample_result *results, struct evict_total *totals, struct error *err);
int team_submit_evictions(struct team *team, struct error *err);
int team_submit_totals(struct team *team, struct sparse_totals *out, struct error *err);
int team_submit_selected(struct team *team, struct select_total *out, struct error *err);
/* Waits on all ranks, and checks that their weights are still in their files.  At most two steps
 * are in flight. */
int team_collect(struct team *team, uint32_t n_newer, struct error *err);

#endif
