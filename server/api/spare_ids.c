/* spare_ids.c - see spare_ids.h. */
#include "server/api/spare_ids.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/base/populate.h"

/* Shorter lists take no time; longer ones are rare, and this is what may lie unused. */
enum { LEAST = 16 * 1024, MOST = 1024 * 1024 };

uint32_t *spare_ids_take(struct spare_ids *spare, size_t least, size_t *capacity) {
    if (least < LEAST || least > MOST) return NULL;
    uint32_t *ids = atomic_exchange(&spare->ids, NULL);
    *capacity = malloc_usable_size(ids) / sizeof(*ids);
    if (*capacity >= least) return ids;
    free(ids);
    return NULL;
}

static void prepare(uv_work_t *work) {
    struct spare_ids *spare = work->data;
    const size_t size = spare->n_wanted * sizeof(uint32_t);
    uint32_t *ids = malloc(size);
    if (ids) populate(ids, size);
    atomic_store(&spare->ids, ids); /* where none is: only one is made at a time */
}

static void prepared(uv_work_t *work, int status) {
    (void)status;
    struct spare_ids *spare = work->data;
    spare->is_busy = false;
}

void spare_ids_prepare(struct spare_ids *spare, uv_loop_t *loop, size_t n) {
    if (n < LEAST || n > MOST || spare->is_busy || atomic_load(&spare->ids)) return;
    spare->is_busy = true;
    spare->n_wanted = n + n / 8;
    spare->work.data = spare;
    uv_queue_work(loop, &spare->work, prepare, prepared);
}

void spare_ids_fini(struct spare_ids *spare) {
    free(atomic_exchange(&spare->ids, NULL));
}
