/* late_backend.c - see late_backend.h. */
#include "tests/engine/late_backend.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LATE = 64 };

/* What a sample operation of step number `step` drew. */
struct late_results {
    struct sample_result *to, *results;
    uint32_t n;
    uint64_t step;
};

/* The CPU's operations get no context of ours, so this one backend's lies here. */
static struct {
    struct backend *be;
    const struct backend_ops *real;
    struct backend_ops ops;
    struct late_results late[MAX_LATE]; /* [n_late], the oldest first */
    uint32_t n_late;
    uint64_t n_begun, n_drawn_rows;
} late;

static int late_step_begin(struct backend *be, const struct step *step, struct error *err) {
    late.n_begun++;
    for (uint32_t i = 0; i < step->n_rows; i++)
        late.n_drawn_rows += (step->tokens[i] & STEP_DRAWN) != 0;
    return late.real->step_begin(be, step, err);
}

static int late_sample(struct backend *be, const struct sample_args *args, struct error *err) {
    struct sample_args own = *args;
    own.results = malloc((args->n + 1) * sizeof(*own.results));
    assert(own.results && late.n_late < MAX_LATE);
    int code = late.real->sample(be, &own, err);
    memset(args->results, 0xee, args->n * sizeof(*args->results));
    late.late[late.n_late++] =
        (struct late_results){args->results, own.results, args->n, late.n_begun};
    return code;
}

static int late_collect(struct backend *be, uint32_t n_newer, struct error *err) {
    uint32_t n = 0;
    while (n < late.n_late && late.late[n].step + n_newer <= late.n_begun) {
        struct late_results *done = &late.late[n++];
        memcpy(done->to, done->results, done->n * sizeof(*done->to));
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
    late.ops.collect = late_collect;
    late.ops.sync = late_sync;
    late.n_begun = late.n_drawn_rows = 0;
    be->ops = &late.ops;
    be->runs_ahead = true;
}

uint64_t late_backend_end(void) {
    assert(late.n_late == 0);
    late.be->ops = late.real;
    late.be->runs_ahead = false;
    return late.n_drawn_rows;
}
