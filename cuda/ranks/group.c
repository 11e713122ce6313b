/* group.c - see group.h. */
#include "cuda/ranks/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/internal.h"
#include "engine/base/error.h"
#include "engine/base/meeting.h"
#include "engine/device/collective.h"

/* backend.ranks is the group's first member, so that a backend finds its group by it. */
struct cuda_group {
    struct backend *ranks[RANKS_MAX];
    uint32_t n;
    struct meeting meeting;
    const void *shown[RANKS_MAX]; /* the operand of each rank */
    const struct gather_columns_args *gathered[RANKS_MAX];
    cudaEvent_t ready[RANKS_MAX], done[RANKS_MAX]; /* operands are written; they are read */
};

static struct cuda_group *group_of(const struct backend *be) {
    return (struct cuda_group *)(uintptr_t)be->ranks;
}

void cuda_use_device(const struct backend *be) {
    (void)cudaSetDevice(((const struct cuda_backend *)be)->device); /* what follows fails, too */
}

/* Makes the rank's stream wait for the events of ranks first to end - 1. */
static int await(struct cuda_backend *cuda, const cudaEvent_t *events, uint32_t first, uint32_t end,
                 struct error *err) {
    int rc = 0;
    for (uint32_t i = first; i < end && !rc; i++)
        if (i != cuda->base.rank)
            rc = cuda_check(cuda, cudaStreamWaitEvent(cuda->stream, events[i], 0),
                            "waiting for a rank", err);
    return rc;
}

/* Records that the rank's stream has come here, and meets the other ranks. */
static int record(struct cuda_backend *cuda, const cudaEvent_t *events, struct error *err) {
    const int rc =
        cuda_check(cuda, cudaEventRecord(events[cuda->base.rank], cuda->stream), "an event", err);
    return rc ? rc : meeting_attend(&group_of(&cuda->base)->meeting, err);
}

static int add_parts(struct cuda_backend *cuda, const struct sum_args *args, struct error *err) {
    const struct cuda_group *group = group_of(&cuda->base);
    struct sum_params params = {.x = args->x,
                                .n = args->n,
                                .n_ranks = group->n,
                                .accumulate = args->accumulate,
                                .is_wide = args->n % 8 == 0 && (uintptr_t)args->x % 16 == 0};
    memcpy(params.parts, group->shown, group->n * sizeof(*params.parts));
    return cuda_check(cuda, launch_sum(&params, cuda->stream), "a sum over ranks", err);
}

static int sum(struct backend *be, const struct sum_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct cuda_group *group = group_of(be);
    group->shown[be->rank] = args->part;
    int rc = record(cuda, group->ready, err);
    if (!rc) rc = await(cuda, group->ready, 0, group->n, err);
    if (!rc) rc = add_parts(cuda, args, err);
    if (!rc) rc = record(cuda, group->done, err);
    return rc ? rc : await(cuda, group->done, 0, group->n, err);
}

/* Copies the columns of another rank to those of rank 0. */
static int take_columns(struct cuda_backend *cuda, const struct gather_columns_args *to,
                        const struct gather_columns_args *from, struct error *err) {
    const size_t pitch = to->width * sizeof(float);
    if (to->n_rows == 0) return 0;
    return cuda_check(cuda,
                      cudaMemcpy2DAsync(to->x + from->first, pitch, from->x + from->first, pitch,
                                        from->n_cols * sizeof(float), to->n_rows, cudaMemcpyDefault,
                                        cuda->stream),
                      "logits of a rank", err);
}

static int gather_columns(struct backend *be, const struct gather_columns_args *args,
                          struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct cuda_group *group = group_of(be);
    const bool takes = be->rank == 0;
    group->gathered[be->rank] = args;
    int rc = record(cuda, group->ready, err);
    if (!rc && takes) rc = await(cuda, group->ready, 0, group->n, err);
    for (uint32_t i = 1; i < group->n && takes && !rc; i++)
        rc = take_columns(cuda, args, group->gathered[i], err);
    if (!rc) rc = record(cuda, group->done, err);
    return rc ? rc : await(cuda, group->done, 0, 1, err);
}

static void interrupt(struct backend *be) {
    meeting_interrupt(&group_of(be)->meeting);
}

static void resume(struct backend *be) {
    meeting_resume(&group_of(be)->meeting);
}

const struct collective_ops cuda_collective_ops = {
    .sum = sum, .gather_columns = gather_columns, .interrupt = interrupt, .resume = resume};

/* Lets a device read another one's memory. */
static int join_devices(int device, int other, struct error *err) {
    int can = 0;
    if (device == other) return 0;
    if (cudaDeviceCanAccessPeer(&can, device, other) != cudaSuccess || !can)
        return error_set(err, ERR_UNSUPPORTED,
                         "--tensor-parallel-devices: CUDA device %d cannot read the memory of "
                         "device %d",
                         device, other);
    cudaSetDevice(device);
    const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
    if (code == cudaSuccess) return 0;
    cudaGetLastError(); /* clears it */
    if (code == cudaErrorPeerAccessAlreadyEnabled) return 0;
    return error_set(err, ERR_UNSUPPORTED, "CUDA devices %d and %d: %s", device, other,
                     cudaGetErrorString(code));
}

static int make_events(struct cuda_group *group, const uint32_t *devices, struct error *err) {
    for (uint32_t i = 0; i < group->n; i++) {
        struct cuda_backend *cuda = CUDA_BACKEND(group->ranks[i]);
        int rc = cuda_check(cuda, cudaSetDevice((int)devices[i]), "choosing the device", err);
        if (!rc)
            rc =
                cuda_check(cuda, cudaEventCreateWithFlags(&group->ready[i], cudaEventDisableTiming),
                           "an event", err);
        if (!rc)
            rc = cuda_check(cuda, cudaEventCreateWithFlags(&group->done[i], cudaEventDisableTiming),
                            "an event", err);
        for (uint32_t other = 0; other < group->n && !rc; other++)
            rc = join_devices((int)devices[i], (int)devices[other], err);
        if (rc) return rc;
    }
    return 0;
}

static void free_group(struct cuda_group *group) {
    for (uint32_t i = 0; i < group->n; i++) {
        if (group->ready[i]) cudaEventDestroy(group->ready[i]);
        if (group->done[i]) cudaEventDestroy(group->done[i]);
    }
    meeting_fini(&group->meeting);
    free(group);
}

/* Says in what depends on them, and in the log, how many ranks there are. */
static void name_ranks(struct backend *be, uint32_t n_ranks) {
    const size_t n = strlen(be->arithmetic), n_described = strlen(be->description);
    snprintf(be->arithmetic + n, sizeof(be->arithmetic) - n, ", %u ranks", n_ranks);
    snprintf(be->description + n_described, sizeof(be->description) - n_described, ", %u ranks",
             n_ranks);
}

static int join(struct backend *const *ranks, const uint32_t *devices, uint32_t n_ranks,
                struct error *err) {
    struct cuda_group *group = calloc(1, sizeof(*group));
    if (!group) return error_set(err, ERR_NOMEM, "cuda: no memory for %u ranks", n_ranks);
    group->n = n_ranks;
    meeting_init(&group->meeting, n_ranks);
    memcpy(group->ranks, ranks, n_ranks * sizeof(*ranks));
    const int rc = make_events(group, devices, err);
    if (rc) {
        free_group(group);
        return rc;
    }
    for (uint32_t i = 0; i < n_ranks; i++) {
        name_ranks(ranks[i], n_ranks);
        ranks[i]->ranks = group->ranks;
        ranks[i]->n_ranks = n_ranks;
        ranks[i]->rank = i;
        ranks[i]->runs_ahead = false; /* the other ranks have no sampled tokens */
        ranks[i]->repeats = false;    /* and meetings are in no CUDA graph */
    }
    return 0;
}

void cuda_group_destroy(struct backend *rank_0) {
    struct cuda_group *group = group_of(rank_0);
    if (!group) return;
    for (uint32_t i = 1; i < group->n; i++) group->ranks[i]->ops->destroy(group->ranks[i]);
    free_group(group);
}

/* Says that a rank's device cannot be used: that is an error, not a reason for the CPU. */
static int refuse_rank(uint32_t n_ranks, uint32_t rank, struct error *err) {
    const struct error why = *err;
    return error_set(err, ERR_INVALID, "--tensor-parallel-size %u, rank %u: %.400s", n_ranks, rank,
                     why.text);
}

int cuda_ranks_create(struct backend **out, const struct cuda_config *config,
                      const uint32_t *devices, uint32_t n_ranks, struct error *err) {
    struct backend *ranks[CUDA_MOST_RANKS] = {0};
    struct cuda_config own = *config;
    uint32_t n_made = 0;
    int rc = 0;
    while (n_made < n_ranks && !rc) {
        own.device = devices[n_made];
        rc = cuda_backend_create(&ranks[n_made], &own, err);
        n_made += rc == 0;
    }
    if (rc == ERR_UNSUPPORTED && n_made > 0) rc = refuse_rank(n_ranks, n_made, err);
    if (!rc) rc = join(ranks, devices, n_ranks, err);
    if (!rc) *out = ranks[0];
    for (uint32_t i = 0; i < n_made && rc; i++) ranks[i]->ops->destroy(ranks[i]);
    return rc;
}
