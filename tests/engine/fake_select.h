/* fake_select.h - selections and the store on the fixture's device (scheduler_fixture.h).
 *
 * Layer 0 is the filter and all others follow it.  Which tokens are chosen looks random and changes
 * for some of them in every step; that each slot of these holds what their state says, and the tail
 * the newest tokens, is checked against layer 0, which has everything.
 *
 * Copies to the store happen as late as they may: when the next step begins, or in sync.
 *
 * Thread: the test's.  Memory: none is kept but the copies that are due. */
#ifndef TESTS_ENGINE_FAKE_SELECT_H
#define TESTS_ENGINE_FAKE_SELECT_H

#include "tests/engine/scheduler_fixture.h"

struct backend;
struct offload_args;
struct select_total;
struct step_seq;

int fake_offload_pages(struct backend *be, const struct offload_args *args, struct error *err);
int fake_reload_pages(struct backend *be, const struct offload_args *args, struct error *err);
/* Makes the copies that are due. */
void fake_store_finish(void);

/* A sparse layer of a sequence that selects, once those before it have been run; cell: what the
 * step's row leaves in layer 0. */
void fake_select_run(struct fixture *f, const struct step_seq *seq, uint32_t layer, uint32_t cell,
                     struct select_total *total);

#endif
