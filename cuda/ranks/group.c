/* group.c - see group.h. */
#include "cuda/ranks/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/inflight.h"
#include "cuda/host/internal.h"
#include "cuda/ranks/mailbox.h"
#include "engine/base/clock.h"
#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/base/meeting.h"
#include "engine/base/sizes.h"
#include "engine/device/collective.h"

enum {
    RESIDENT_BLOCKS = 16,    /* that may wait at the same time, of the ranks of one device */
    DEFAULT_LIMIT_MS = 30000 /* of a wait */
};
static const double probe_limit_s = 2, probe_host_limit_s = 5; /* of the kernel, and of the host */

/* backend.ranks is the group's first member, so that a backend finds its group by it. */
struct cuda_group {
    struct backend *ranks[RANKS_MAX];
    uint32_t n, most_blocks;
    struct rank_links links[RANKS_MAX]; /* as each rank sees them */
    struct rank_report *report;         /* pinned */
    bool through_host;                  /* mailboxes are in pinned memory, too */
    bool is_stuck;   /* a kernel does not end, and so nothing of it can be freed */
    bool hosts_meet; /* around each launch of what waits; */
    struct meeting meeting;
    bool wants[RANKS_MAX]; /* of cuda_group_agree() */
};

static struct cuda_group *group_of(const struct backend *be) {
    return (struct cuda_group *)(uintptr_t)be->ranks;
}

void cuda_use_device(const struct backend *be) {
    (void)cudaSetDevice(((const struct cuda_backend *)be)->device); /* what follows fails, too */
}

static volatile uint64_t *word_of(const struct cuda_group *group) {
    return &group->report->word;
}

/* ---- where ranks share a device ---- */

/* Meets the hosts of the other ranks, unless launches are only recorded. */
static int meet(const struct cuda_backend *cuda, struct error *err) {
    struct cuda_group *group = group_of(&cuda->base);
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (!group || !group->hosts_meet) return 0;
    if (cudaStreamIsCapturing(cuda->stream, &status) != cudaSuccess) return 0; /* reported later */
    return status == cudaStreamCaptureStatusNone ? meeting_attend(&group->meeting, err) : 0;
}

int cuda_group_meet(const struct backend *be, struct error *err) {
    return meet((const struct cuda_backend *)be, err);
}

int cuda_group_agree(const struct backend *be, bool wants, bool *do_all, struct error *err) {
    struct cuda_group *group = group_of(be);
    *do_all = wants;
    if (!group || !group->hosts_meet) return 0;
    group->wants[be->rank] = wants;
    const int rc = meeting_attend(&group->meeting, err);
    for (uint32_t i = 0; i < group->n; i++) *do_all &= group->wants[i];
    return rc ? rc : meeting_attend(&group->meeting, err); /* all have read it */
}

/* ---- operations ---- */

/* Launches a rank's side of an operation.  Hosts meet around it where ranks share a device. */
static int launch_met(struct cuda_backend *cuda, const struct rank_operation *op,
                      struct error *err) {
    int rc = meet(cuda, err);
    if (!rc)
        rc = cuda_check(cuda, op->launch(op, group_of(&cuda->base)->most_blocks, launch_of(cuda)),
                        op->what, err);
    return rc ? rc : meet(cuda, err);
}

static struct rank_links links_of(const struct backend *be) {
    return group_of(be)->links[be->rank];
}

static int sum(struct backend *be, const struct sum_args *args, struct error *err) {
    const struct rank_operation op = {
        .what = "a sum over ranks",
        .launch = launch_sum,
        .sum = {.links = links_of(be),
                .part = args->part,
                .x = args->x,
                .n = args->n,
                .accumulate = args->accumulate,
                .is_wide = ((uintptr_t)args->x | (uintptr_t)args->part) % 16 == 0}};
    return launch_met(CUDA_BACKEND(be), &op, err);
}

static int gather_columns(struct backend *be, const struct gather_columns_args *args,
                          struct error *err) {
    const struct rank_operation op = {.what = "logits of all ranks",
                                      .launch = launch_columns,
                                      .columns = {.links = links_of(be),
                                                  .x = args->x,
                                                  .n_rows = args->n_rows,
                                                  .width = args->width,
                                                  .first = args->first,
                                                  .n_cols = args->n_cols}};
    return launch_met(CUDA_BACKEND(be), &op, err);
}

static int rmsnorm(struct backend *be, const struct rmsnorm_args *args, struct error *err) {
    const struct rank_operation op = {.what = "a norm over ranks",
                                      .launch = launch_rank_norm,
                                      .norm = {.links = links_of(be),
                                               .x = args->x,
                                               .weight = args->weight->data,
                                               .out = args->out,
                                               .element = args->weight->format.element,
                                               .n_rows = args->n_rows,
                                               .dim = args->dim,
                                               .x_stride = args->x_stride,
                                               .out_stride = args->out_stride,
                                               .eps = args->eps}};
    return launch_met(CUDA_BACKEND(be), &op, err);
}

static int exchange(struct backend *be, const struct exchange_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct cuda_group *group = group_of(be);
    const struct exchange_params params = {.links = group->links[be->rank], .args = *args};
    int rc = meet(cuda, err);
    if (!rc)
        rc = cuda_check(cuda, launch_exchange(&params, group->most_blocks, launch_of(cuda)),
                        "rows of all ranks", err);
    return rc ? rc : meet(cuda, err);
}

static int share_sampled(struct backend *be, uint32_t n, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const bool has_them = be->rank == 0;
    const int rc = has_them ? 0 : sampled_reserve(cuda, cuda->n_sampled + n, err);
    if (rc) return rc;
    if (!has_them) cuda->n_sampled += n;
    const struct rank_operation op = {
        .what = "sampled tokens",
        .launch = launch_tokens,
        .tokens = {.links = links_of(be), .tokens = cuda->sampled + (cuda->n_sampled - n), .n = n}};
    return launch_met(cuda, &op, err);
}

static void interrupt(struct backend *be) {
    struct cuda_group *group = group_of(be);
    if (*word_of(group) == 0) *word_of(group) = rank_report_word(WAIT_NONE, be->rank, 0);
    meeting_interrupt(&group->meeting);
}

/* Empties a rank's mailbox.  No kernel of any rank runs. */
static cudaError_t empty_mailbox(const struct cuda_group *group, uint32_t rank) {
    char *box = (char *)group->links[rank].boxes[rank], *words = box + mailbox_small_at();
    const size_t n_missing = mailbox_large_at(group->n) - mailbox_small_at();
    if (group->through_host) {
        memset(box, 0, mailbox_small_at());
        memset(words, MISSING_BYTE, n_missing);
        return cudaSuccess;
    }
    cudaError_t code = cudaMemset(box, 0, mailbox_small_at());
    if (code == cudaSuccess) code = cudaMemset(words, MISSING_BYTE, n_missing);
    return code == cudaSuccess ? cudaDeviceSynchronize() : code;
}

/* Waits for all kernels of all ranks. */
static void await_ranks(const struct cuda_group *group) {
    for (uint32_t i = 0; i < group->n; i++)
        cudaStreamSynchronize(
            CUDA_BACKEND(group->ranks[i])->stream); /* a failure is reported later */
}

static void resume(struct backend *be) {
    struct cuda_group *group = group_of(be);
    await_ranks(group);
    for (uint32_t i = 0; i < group->n; i++) {
        struct cuda_backend *cuda = CUDA_BACKEND(group->ranks[i]);
        cuda_use_device(&cuda->base);
        inflight_forget(cuda);
        cuda->failed |= empty_mailbox(group, i) != cudaSuccess;
    }
    *word_of(group) = 0;
    meeting_resume(&group->meeting);
    cuda_use_device(be);
}

const struct collective_ops cuda_collective_ops = {.sum = sum,
                                                   .gather_columns = gather_columns,
                                                   .rmsnorm = rmsnorm,
                                                   .exchange = exchange,
                                                   .share_sampled = share_sampled,
                                                   .interrupt = interrupt,
                                                   .resume = resume};

int cuda_group_check(const struct backend *be, struct error *err) {
    static const char *const whats[] = {[WAIT_NONE] = "",          [WAIT_SUM] = "a sum",
                                        [WAIT_COLUMNS] = "logits", [WAIT_TOKENS] = "sampled tokens",
                                        [WAIT_PROBE] = "a probe",  [WAIT_EXCHANGE] = "rows"};
    const struct cuda_group *group = group_of(be);
    const uint64_t word = group ? *word_of(group) : 0;
    const uint32_t what = word >> 32 & 0xff, rank = word >> 16 & 0xffff, other = word & 0xffff;
    if (word == 0) return 0;
    if (what == WAIT_NONE || what >= COUNT(whats))
        return error_set(err, ERR_STOPPED, "another rank has failed");
    return error_set(err, ERR_DEVICE,
                     "cuda: rank %u has waited %.1f s for rank %u, for %s, and has given up", rank,
                     (double)group->links->limit_ns * 1e-9, other, whats[what]);
}

/* ---- joining ---- */

static int device_of(const struct cuda_group *group, uint32_t rank) {
    return CUDA_BACKEND(group->ranks[rank])->device;
}

/* Tells whether all devices can write each other's memory. */
static bool can_all_write(const struct cuda_group *group) {
    for (uint32_t i = 0; i < group->n; i++)
        for (uint32_t k = 0; k < group->n; k++) {
            const int device = device_of(group, i), other = device_of(group, k);
            int can = device == other;
            if (!can && cudaDeviceCanAccessPeer(&can, device, other) != cudaSuccess) return false;
            if (!can) return false;
        }
    return true;
}

/* Lets a device write another one's memory. */
static int join_devices(int device, int other, struct error *err) {
    if (device == other) return 0;
    cudaSetDevice(device);
    const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
    if (code == cudaSuccess) return 0;
    cudaGetLastError(); /* clears it */
    if (code == cudaErrorPeerAccessAlreadyEnabled) return 0;
    return error_set(err, ERR_INVALID, "CUDA devices %d and %d: %s", device, other,
                     cudaGetErrorString(code));
}

static int make_mailbox(struct cuda_group *group, uint32_t rank, void **out, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(group->ranks[rank]);
    const size_t bytes = mailbox_bytes(group->n, group->through_host);
    if (!group->through_host) return device_alloc(cuda, bytes, out, err);
    return cuda_check(cuda, cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                      "pinned memory for what ranks exchange", err);
}

/* Makes the rank's mailbox, and loads the kernels that wait, before one of them does. */
static int open_rank(struct cuda_group *group, uint32_t rank, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(group->ranks[rank]);
    void *box = NULL;
    int rc = 0;
    for (uint32_t other = 0; other < group->n && !rc && !group->through_host; other++)
        rc = join_devices(cuda->device, device_of(group, other), err);
    if (rc) return rc;
    cuda_use_device(&cuda->base);
    rc = make_mailbox(group, rank, &box, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < group->n; i++) group->links[i].boxes[rank] = box;
    rc = cuda_check(cuda, empty_mailbox(group, rank), "a mailbox", err);
    if (!rc) rc = cuda_check(cuda, load_sums(), "sums over ranks", err);
    if (!rc) rc = cuda_check(cuda, load_norms(), "norms over ranks", err);
    if (!rc) rc = cuda_check(cuda, load_exchanges(), "rows of all ranks", err);
    return rc ? rc : cuda_check(cuda, load_columns(), "what ranks exchange", err);
}

/* Returns the most ranks that one device has. */
static uint32_t count_sharing(const struct cuda_group *group) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < group->n; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < group->n; k++)
            n += CUDA_BACKEND(group->ranks[i])->device == CUDA_BACKEND(group->ranks[k])->device;
        most = max_u32(most, n);
    }
    return most;
}

static int open_ranks(struct cuda_group *group, const struct rank_options *options,
                      struct error *err) {
    const uint32_t n_sharing = count_sharing(group);
    group->most_blocks = n_sharing == 1 ? UINT32_MAX : max_u32(RESIDENT_BLOCKS / n_sharing, 1);
    if (cudaHostAlloc((void **)&group->report, sizeof(*group->report),
                      cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
        return error_set(err, ERR_NOMEM, "cuda: no pinned memory for %u ranks", group->n);
    *group->report = (struct rank_report){0};
    group->hosts_meet = n_sharing > 1 && !options->hosts_apart;
    group->through_host = options->through_host || !can_all_write(group);
    int rc = 0;
    for (uint32_t i = 0; i < group->n; i++) {
        struct rank_links *links = &group->links[i];
        links->report = group->report;
        links->limit_ns = (options->limit_ms ? options->limit_ms : DEFAULT_LIMIT_MS) * 1000000ull;
        links->n = group->n;
        links->rank = i;
        links->starts_next = n_sharing == 1;
        links->through_host = group->through_host;
    }
    for (uint32_t i = 0; i < group->n && !rc; i++) rc = open_rank(group, i, err);
    return rc;
}

/* ---- probing ---- */

/* Launches a rank's side of a probe. */
static int launch_side(struct cuda_group *group, uint32_t rank, uint32_t other, uint32_t *sum,
                       struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(group->ranks[rank]);
    struct rank_links links = group->links[rank];
    links.limit_ns = (uint64_t)(probe_limit_s * 1e9);
    cuda_use_device(&cuda->base);
    return cuda_check(cuda, launch_probe(&links, other, rank + 1, sum, launch_of(cuda)), "a probe",
                      err);
}

static bool is_running(const struct cuda_group *group, uint32_t rank) {
    return cudaStreamQuery(CUDA_BACKEND(group->ranks[rank])->stream) == cudaErrorNotReady;
}

/* Probes two ranks with a sum of 4 bytes.  Memory to which access was granted may be out of reach
 * all the same, and a kernel that writes there may never end.  So the host's wait has a limit. */
static int probe_pair(struct cuda_group *group, uint32_t rank, uint32_t other, struct error *err) {
    volatile uint32_t *sums = group->report->sums;
    const double begun_s = clock_seconds();
    sums[0] = sums[1] = 0;
    int rc = launch_side(group, rank, other, &group->report->sums[0], err);
    if (!rc) rc = launch_side(group, other, rank, &group->report->sums[1], err);
    while (is_running(group, rank) || is_running(group, other))
        if (clock_seconds() - begun_s > probe_host_limit_s) {
            group->is_stuck = true;
            break;
        }
    if (rc) return rc;
    const uint32_t expected = rank + 1 + other + 1;
    if (!group->is_stuck && sums[0] == expected && sums[1] == expected) return 0;
    return error_set(
        err, ERR_INVALID,
        "--tensor-parallel-devices: ranks %u and %u, on CUDA devices %d and %d, cannot "
        "work together: a sum of 4 bytes over them %s",
        rank, other, device_of(group, rank), device_of(group, other),
        sums[0] && sums[1] ? "is wrong" : "has not come within 2 s");
}

static int probe_pairs(struct cuda_group *group, struct error *err) {
    int rc = 0;
    for (uint32_t rank = 0; rank < group->n && !rc; rank++)
        for (uint32_t other = rank + 1; other < group->n && !rc; other++)
            rc = probe_pair(group, rank, other, err);
    return rc;
}

/* ---- its life ---- */

static void free_group(struct cuda_group *group) {
    for (uint32_t i = 0; i < group->n; i++) {
        cuda_use_device(group->ranks[i]);
        if (group->through_host) cudaFreeHost(group->links[i].boxes[i]);
        else cudaFree(group->links[i].boxes[i]);
    }
    cudaFreeHost(group->report);
    meeting_fini(&group->meeting);
    free(group);
}

/* Says in what depends on them, and in the log, how many ranks there are. */
static void name_ranks(const struct cuda_group *group, struct backend *be) {
    const size_t n = strlen(be->arithmetic), n_described = strlen(be->description);
    snprintf(be->arithmetic + n, sizeof(be->arithmetic) - n, ", %u ranks", group->n);
    snprintf(be->description + n_described, sizeof(be->description) - n_described, ", %u ranks%s",
             group->n, group->through_host ? " through the host" : "");
}

/* Makes the group.  *is_stuck: it cannot be freed, and so the ranks cannot be destroyed. */
static int join(struct backend *const *ranks, uint32_t n_ranks, const struct rank_options *options,
                bool *is_stuck, struct error *err) {
    struct cuda_group *group = calloc(1, sizeof(*group));
    if (!group) return error_set(err, ERR_NOMEM, "cuda: no memory for %u ranks", n_ranks);
    group->n = n_ranks;
    meeting_init(&group->meeting, n_ranks);
    memcpy(group->ranks, ranks, n_ranks * sizeof(*ranks));
    int rc = open_ranks(group, options, err);
    if (!rc) rc = probe_pairs(group, err);
    if (rc) {
        *is_stuck = group->is_stuck;
        if (!group->is_stuck) free_group(group);
        return rc;
    }
    for (uint32_t i = 0; i < n_ranks; i++) {
        name_ranks(group, ranks[i]);
        ranks[i]->ranks = group->ranks;
        ranks[i]->n_ranks = n_ranks;
        ranks[i]->rank = i;
    }
    return 0;
}

void cuda_group_destroy(struct backend *rank_0) {
    struct cuda_group *group = group_of(rank_0);
    if (!group) return;
    interrupt(rank_0); /* what still waits for a rank ends */
    await_ranks(group);
    struct backend *others[RANKS_MAX];
    const uint32_t n = group->n;
    memcpy(others, group->ranks, n * sizeof(*others));
    free_group(group);
    for (uint32_t i = 1; i < n; i++) others[i]->ops->destroy(others[i]);
    cuda_use_device(rank_0);
}

/* Says that a rank's device cannot be used: that is an error, not a reason for the CPU. */
static int refuse_rank(uint32_t n_ranks, uint32_t rank, struct error *err) {
    const struct error why = *err;
    return error_set(err, ERR_INVALID, "--tensor-parallel-size %u, rank %u: %.400s", n_ranks, rank,
                     why.text);
}

/* Prepares the driver for ranks of one device, before it is first used.  A stream that shares a
 * queue with another one begins nothing while that waits; a rank has three. */
static void prepare_driver(const uint32_t *devices, uint32_t n_ranks) {
    bool are_shared = false;
    for (uint32_t i = 0; i < n_ranks; i++)
        for (uint32_t k = 0; k < i; k++) are_shared |= devices[i] == devices[k];
    if (are_shared) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int cuda_ranks_create(struct backend **out, const struct cuda_config *config,
                      const uint32_t *devices, uint32_t n_ranks, const struct rank_options *options,
                      struct error *err) {
    struct backend *ranks[CUDA_MOST_RANKS] = {0};
    struct cuda_config own = *config;
    uint32_t n_made = 0;
    bool is_stuck = false;
    int rc = 0;
    prepare_driver(devices, n_ranks);
    while (n_made < n_ranks && !rc) {
        own.device = devices[n_made];
        rc = cuda_backend_create(&ranks[n_made], &own, err);
        n_made += rc == 0;
    }
    if (rc == ERR_UNSUPPORTED && n_made > 0) rc = refuse_rank(n_ranks, n_made, err);
    if (!rc) rc = join(ranks, n_ranks, options, &is_stuck, err);
    if (!rc) *out = ranks[0];
    for (uint32_t i = 0; i < n_made && rc && !is_stuck; i++) ranks[i]->ops->destroy(ranks[i]);
    return rc;
}
