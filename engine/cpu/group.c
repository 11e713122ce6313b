/* group.c - see group.h.
 *
 * A collective operation is two meetings.  At the first each rank has shown where its operand is.
 * At the second all have read those of the others, so that they may change.  A rank that waits at a
 * meeting spins briefly, then sleeps: there may be fewer processors than ranks. */
#include "engine/cpu/group.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/base/thread.h"
#include "engine/cpu/backend.h"
#include "engine/cpu/buffer.h"
#include "engine/cpu/threads.h"
#include "engine/device/collective.h"

enum { SPIN_ROUNDS = 4000, TASK_ELEMENTS = 1 << 14 };

struct cpu_group {
    uint32_t n;
    struct backend *ranks[RANKS_MAX];
    const void *shown[RANKS_MAX]; /* the operand of each rank */
    const struct gather_columns_args *gathered[RANKS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t met;
    atomic_uint n_arrived, n_meetings;
    atomic_bool interrupted;
};

static bool is_over(struct cpu_group *group, unsigned meeting) {
    return atomic_load(&group->n_meetings) != meeting || atomic_load(&group->interrupted);
}

static void wake(struct cpu_group *group) {
    pthread_mutex_lock(&group->lock);
    pthread_cond_broadcast(&group->met);
    pthread_mutex_unlock(&group->lock);
}

static void wait_for_meeting(struct cpu_group *group, unsigned meeting) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (is_over(group, meeting)) return;
        thread_pause();
    }
    pthread_mutex_lock(&group->lock);
    while (!is_over(group, meeting)) pthread_cond_wait(&group->met, &group->lock);
    pthread_mutex_unlock(&group->lock);
}

/* Waits until all ranks are here. */
static int meet(struct cpu_group *group, struct error *err) {
    const unsigned meeting = atomic_load(&group->n_meetings);
    if (atomic_fetch_add(&group->n_arrived, 1) + 1 == group->n) {
        atomic_store(&group->n_arrived, 0);
        atomic_fetch_add(&group->n_meetings, 1);
        wake(group);
    } else {
        wait_for_meeting(group, meeting);
    }
    /* A meeting that all have come to counts, even if another rank has failed since. */
    if (atomic_load(&group->n_meetings) != meeting) return 0;
    return error_set(err, ERR_STOPPED, "cpu: another rank has failed");
}

/* Shows the other ranks an operand, and waits until all have shown one. */
static int show(struct cpu_backend *cpu, const void *operand, struct error *err) {
    cpu->group->shown[cpu->base.rank] = operand;
    return meet(cpu->group, err);
}

/* ---- sums and maximums ---- */

struct reduction {
    const struct cpu_group *group;
    float *out;
    size_t n;
    bool accumulate;
};

static void sum_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct reduction *r = ctx;
    const size_t first = (size_t)task * TASK_ELEMENTS, end = min_u64(first + TASK_ELEMENTS, r->n);
    float sums[256];
    for (size_t at = first; at < end; at += COUNT(sums)) {
        const size_t n = min_u64(COUNT(sums), end - at);
        memcpy(sums, (const float *)r->group->shown[0] + at, n * sizeof(*sums));
        for (uint32_t rank = 1; rank < r->group->n; rank++) {
            const float *part = (const float *)r->group->shown[rank] + at;
            for (size_t i = 0; i < n; i++) sums[i] += part[i];
        }
        for (size_t i = 0; i < n; i++)
            r->out[at + i] = sums[i] + (r->accumulate ? r->out[at + i] : 0);
    }
}

static int sum(struct backend *be, const struct sum_args *args, struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct reduction r = {
        .group = cpu->group, .out = args->x, .n = args->n, .accumulate = args->accumulate};
    const int rc = show(cpu, args->part, err);
    if (rc) return rc;
    pool_run(cpu->pool, sum_task, &r, (uint32_t)div_up(args->n, TASK_ELEMENTS));
    return meet(cpu->group, err);
}

static void largest_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct reduction *r = ctx;
    const size_t first = (size_t)task * TASK_ELEMENTS, end = min_u64(first + TASK_ELEMENTS, r->n);
    memcpy(r->out + first, (const float *)r->group->shown[0] + first,
           (end - first) * sizeof(float));
    for (uint32_t rank = 1; rank < r->group->n; rank++) {
        const float *other = r->group->shown[rank];
        for (size_t i = first; i < end; i++)
            r->out[i] = other[i] > r->out[i] ? other[i] : r->out[i];
    }
}

int cpu_group_largest(struct cpu_backend *cpu, float *x, size_t n, struct error *err) {
    if (!cpu->group) return 0;
    int rc = cpu_buffer_reserve(&cpu->largest, n * sizeof(float), err);
    if (!rc) rc = show(cpu, x, err);
    if (rc) return rc;
    struct reduction r = {.group = cpu->group, .out = cpu->largest.data, .n = n};
    pool_run(cpu->pool, largest_task, &r, (uint32_t)div_up(n, TASK_ELEMENTS));
    if ((rc = meet(cpu->group, err))) return rc;
    memcpy(x, r.out, n * sizeof(*x));
    return 0;
}

/* ---- columns ---- */

/* Copies the columns of another rank to those of rank 0. */
static void take_columns(const struct gather_columns_args *to,
                         const struct gather_columns_args *from) {
    for (uint32_t row = 0; row < to->n_rows; row++) {
        const size_t at = (size_t)row * to->width + from->first;
        memcpy(to->x + at, from->x + at, from->n_cols * sizeof(float));
    }
}

static int gather_columns(struct backend *be, const struct gather_columns_args *args,
                          struct error *err) {
    const struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct cpu_group *group = cpu->group;
    group->gathered[be->rank] = args;
    const int rc = meet(group, err);
    if (rc) return rc;
    for (uint32_t rank = 1; rank < group->n && be->rank == 0; rank++)
        take_columns(args, group->gathered[rank]);
    return meet(group, err);
}

static void interrupt(struct backend *be) {
    struct cpu_group *group = ((struct cpu_backend *)be)->group;
    atomic_store(&group->interrupted, true);
    wake(group);
}

static void resume(struct backend *be) {
    struct cpu_group *group = ((struct cpu_backend *)be)->group;
    atomic_store(&group->n_arrived, 0);
    atomic_store(&group->interrupted, false);
}

const struct collective_ops cpu_collective_ops = {
    .sum = sum, .gather_columns = gather_columns, .interrupt = interrupt, .resume = resume};

/* ---- the group ---- */

int cpu_group_create(struct cpu_group **out, struct backend *const *ranks, uint32_t n_ranks,
                     struct error *err) {
    struct cpu_group *group = calloc(1, sizeof(*group));
    if (!group) return error_set(err, ERR_NOMEM, "cpu: no memory for %u ranks", n_ranks);
    group->n = n_ranks;
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->met, NULL);
    memcpy(group->ranks, ranks, n_ranks * sizeof(*ranks));
    for (uint32_t i = 0; i < n_ranks; i++) {
        ((struct cpu_backend *)ranks[i])->group = group;
        ranks[i]->ranks = group->ranks;
        ranks[i]->n_ranks = n_ranks;
        ranks[i]->rank = i;
    }
    *out = group;
    return 0;
}

void cpu_group_destroy(struct cpu_group *group) {
    if (!group) return;
    for (uint32_t i = 1; i < group->n; i++) group->ranks[i]->ops->destroy(group->ranks[i]);
    pthread_cond_destroy(&group->met);
    pthread_mutex_destroy(&group->lock);
    free(group);
}
