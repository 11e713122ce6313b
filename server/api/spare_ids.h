/* spare_ids.h - memory for the next long list of token ids, made ready before the list comes.
 *
 * The system takes about as long to clear the pages of 100,000 ids as a job to read them.  A list's
 * memory does not come back soon: it goes to the engine, and on as the name of a cached state.  So
 * when a job has read a long list, one of the pool's threads prepares memory for one a little
 * longer.
 *
 * Thread: as the functions say.  Memory: one array. */
#ifndef SERVER_API_SPARE_IDS_H
#define SERVER_API_SPARE_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

/* Zero-initialise. */
struct spare_ids {
    _Atomic(uint32_t *) ids; /* NULL: there are none */
    uv_work_t work;
    size_t n_wanted;
    bool is_busy; /* the pool works */
};

/* Returns an array for at least that many ids, which the caller may realloc() and must free(), and
 * for how many; NULL: there is none.  Thread: any. */
uint32_t *spare_ids_take(struct spare_ids *spare, size_t least, size_t *capacity);
/* Prepares an array for the next list, after one of n ids.  Short ones need none.  Thread: loop. */
void spare_ids_prepare(struct spare_ids *spare, uv_loop_t *loop, size_t n);
/* Frees the array; the loop has ended.  Thread: any. */
void spare_ids_fini(struct spare_ids *spare);

#endif
