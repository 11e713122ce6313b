/* late_backend.c - see late_backend.h. */
#include "tests/engine/late_backend.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/sample.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"

enum { MAX_LATE = 64 };

/* What an operation of step number `step` had to say. */
struct late_results {
    void *to, *results;
    size_t bytes;
    uint64_t step;
};

/* The CPU's operations get no context of ours, so this one backend's lies here. */
static struct {
    struct backend *be;
    const struct backend_ops *real;
    struct backend_ops ops;
    struct evict_ops evict;
    struct select_ops select;
    struct sparse_ops sparse;
    struct late_results late[MAX_LATE]; /* [n_late], the oldest first */
    uint32_t n_late, n_seqs, n_decode;  /* n_seqs, n_decode: of the newest step */
    uint64_t n_begun, n_sampled_rows;
} late;

static int late_step_begin(struct backend *be, const struct step *step, struct error *err) {
    late.n_begun++;
    late.n_seqs = step->n_seqs;
    late.n_decode = step->n_decode;
    for (uint32_t i = 0; i < step->n_rows; i++)
        late.n_sampled_rows += (step->tokens[i] & STEP_SAMPLED) != 0;
    return late.real->step_begin(be, step, err);
}

/* Puts garbage where the results will come. */
static void hold_back(void *to, void *results, size_t bytes) {
    assert(late.n_late < MAX_LATE);
    memset(to, 0xee, bytes);
    late.late[late.n_late++] = (struct late_results){to, results, bytes, late.n_begun};
}

static int late_sample(struct backend *be, const struct sample_args *args, struct error *err) {
    struct sample_args own = *args;
    own.results = malloc((args->n + 1) * sizeof(*own.results));
    assert(own.results);
    int code = late.real->sample(be, &own, err);
    hold_back(args->results, own.results, args->n * sizeof(*args->results));
    return code;
}

static int late_evict_totals(struct backend *be, const struct kv_pool *kv,
                             struct evict_total *totals, struct error *err) {
    struct evict_total *own = calloc(late.n_seqs, sizeof(*own));
    assert(own);
    int code = late.real->evict->totals(be, kv, own, err);
    hold_back(totals, own, late.n_seqs * sizeof(*own));
    return code;
}

static int late_select_totals(struct backend *be, struct select_total *totals, struct error *err) {
    struct select_total *own = calloc(late.n_decode, sizeof(*own));
    assert(own);
    int code = late.real->select->totals(be, own, err);
    hold_back(totals, own, late.n_decode * sizeof(*own));
    return code;
}

static int late_sparse_totals(struct backend *be, struct sparse_totals *totals, struct error *err) {
    struct sparse_totals *own = calloc(1, sizeof(*own));
    assert(own);
    int code = late.real->sparse->totals(be, own, err);
    hold_back(totals, own, sizeof(*own));
    return code;
}

static int late_collect(struct backend *be, uint32_t n_newer, struct error *err) {
    uint32_t n = 0;
    while (n < late.n_late && late.late[n].step + n_newer <= late.n_begun) {
        struct late_results *done = &late.late[n++];
        memcpy(done->to, done->results, done->bytes);
        free(done->results);
    }
    late.n_late -= n;
    memmove(late.late, late.late + n, late.n_late * sizeof(*late.late));
    return late.real->collect(be, n_newer, err);
}

static int late_sync(struct backend *be, struct error *err) {
    int code = late_collect(be, 0, err);
    return code ? code : late.real->sync(be, err);
}

void late_backend_begin(struct backend *be) {
    late.be = be;
    late.real = be->ops;
    late.ops = *be->ops;
    late.ops.step_begin = late_step_begin;
    late.ops.sample = late_sample;
    late.evict = *be->ops->evict;
    late.evict.totals = late_evict_totals;
    late.ops.evict = &late.evict;
    late.select = *be->ops->select;
    late.select.totals = late_select_totals;
    late.ops.select = &late.select;
    late.sparse = *be->ops->sparse;
    late.sparse.totals = late_sparse_totals;
    late.ops.sparse = &late.sparse;
    late.ops.collect = late_collect;
    late.ops.sync = late_sync;
    late.n_begun = late.n_sampled_rows = 0;
    be->ops = &late.ops;
    be->runs_ahead = true;
}

uint64_t late_backend_end(void) {
    assert(late.n_late == 0);
    late.be->ops = late.real;
    late.be->runs_ahead = false;
    return late.n_sampled_rows;
}
