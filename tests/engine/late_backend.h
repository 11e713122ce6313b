/* late_backend.h - makes a backend behave like a device that works while the host does.
 *
 * It runs ahead, results come no earlier than collect() or sync() asks for them, and what lies in
 * their place until then is garbage.
 *
 * Thread: begin and end while no engine uses the backend.  Memory: none that outlives a step. */
#ifndef TESTS_ENGINE_LATE_BACKEND_H
#define TESTS_ENGINE_LATE_BACKEND_H

#include "engine/device/backend.h"

/* One backend at a time.  It becomes its old self at the end. */
void late_backend_begin(struct backend *be);
/* Returns how many rows began with a token that the host did not know. */
uint64_t late_backend_end(void);

#endif
