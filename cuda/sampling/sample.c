/* sample.c - sends sample rows and their lists to the device, and receives the results.
 *
 *   args:  rows [n] | counts, bias, banned, allowed of every row | results [n]
 *
 * Results are few words of each row, so the kernel writes them to the pinned half of the args by
 * itself; host/inflight.c delivers them. */
#include "cuda/host/internal.h"

#include <string.h>

#include "cuda/ranks/group.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/sample.h"
#include "engine/device/step.h"

/* args also holds gather_rows' row numbers, twice in a step, and the totals of evictions. */
enum {
    LIST_ALIGN = ARGS_ALIGNMENT,
    SHORT_LISTS_BYTES = 8192,
    GATHER_ROW_BYTES = 8,
    EVICT_TOTALS_ALIGN = 256
};

static size_t padded(size_t bytes) {
    return round_up(bytes, LIST_ALIGN);
}

static bool changes_logits(const struct sample_row *row) {
    return row->kind == SAMPLE_DRAW &&
           (row->n_bias || row->n_banned || row->n_counts || row->allowed);
}

static size_t mask_bytes(uint32_t n_vocab) {
    return ((size_t)n_vocab + 31) / 32 * sizeof(uint32_t);
}

static size_t list_bytes(const struct sample_row *row, uint32_t n_vocab) {
    return padded(row->n_counts * sizeof(*row->counts)) + padded(row->n_bias * sizeof(*row->bias)) +
           padded(row->n_banned * sizeof(*row->banned)) +
           (row->allowed ? padded(mask_bytes(n_vocab)) : 0);
}

/* Writes a list at *at, advances *at, and returns the list's device address. */
static const void *put_list(struct args *at, const void *list, size_t bytes) {
    const void *device = at->device;
    if (bytes) memcpy(at->host, list, bytes);
    *at = args_behind(at, padded(bytes));
    return device;
}

static struct device_sample pack_row(const struct sample_row *row, uint32_t n_vocab,
                                     struct args *lists, float *changed) {
    struct device_sample out = {.logit_row = row->logit_row,
                                .kind = row->kind,
                                .target = row->target,
                                .n_top = row->n_top,
                                .sampler = row->sampler,
                                .uniform = row->uniform,
                                .changed = changed};
    if (!changed) return out;
    out.n_counts = row->n_counts;
    out.n_bias = row->n_bias;
    out.n_banned = row->n_banned;
    out.counts = put_list(lists, row->counts, row->n_counts * sizeof(*row->counts));
    out.bias = put_list(lists, row->bias, row->n_bias * sizeof(*row->bias));
    out.banned = put_list(lists, row->banned, row->n_banned * sizeof(*row->banned));
    if (row->allowed) out.allowed = put_list(lists, row->allowed, mask_bytes(n_vocab));
    return out;
}

/* Takes memory in args and scratch memory; *input becomes how many bytes are sent, which precede
 * the results. */
static int make_room(struct cuda_backend *cuda, const struct sample_args *args, struct args *room,
                     size_t *input, struct error *err) {
    size_t n_changed = 0;
    *input = padded(args->n * sizeof(struct device_sample));
    for (uint32_t i = 0; i < args->n; i++) {
        if (!changes_logits(&args->rows[i])) continue;
        *input += list_bytes(&args->rows[i], args->n_vocab);
        n_changed++;
    }
    int rc = args_take(cuda, *input + args->n * sizeof(struct sample_result), room, err);
    if (!rc) rc = sampled_reserve(cuda, cuda->n_sampled + args->n, err);
    return rc ? rc
              : device_reserve(cuda, (void **)&cuda->changed, &cuda->changed_bytes,
                               n_changed * args->n_vocab * sizeof(float), err);
}

static void pack_rows(const struct sample_args *args, const struct args *room, float *changed) {
    struct device_sample *rows = (struct device_sample *)room->host;
    struct args lists = args_behind(room, padded(args->n * sizeof(*rows)));
    for (uint32_t i = 0; i < args->n; i++) {
        const bool changes = changes_logits(&args->rows[i]);
        rows[i] = pack_row(&args->rows[i], args->n_vocab, &lists, changes ? changed : NULL);
        if (changes) changed += args->n_vocab;
    }
}

static size_t row_bytes(const struct sample_row *row, uint32_t n_vocab) {
    return padded(sizeof(struct device_sample)) + list_bytes(row, n_vocab) +
           sizeof(struct sample_result);
}

static int sample_rows(struct cuda_backend *cuda, const struct sample_args *args,
                       struct error *err) {
    struct args room;
    size_t input;
    int rc = make_room(cuda, args, &room, &input, err);
    if (rc) return rc;
    pack_rows(args, &room, cuda->changed);
    rc = args_send(cuda, &room, room.device, input, err);
    if (rc) return rc;
    const size_t result_bytes = args->n * sizeof(struct sample_result);
    char *const results = room.host + input;
    memset(results, 0, result_bytes); /* the kernel writes no more of a row than it was asked for */
    const struct sample_params params = {.logits = args->logits,
                                         .rows = (const struct device_sample *)room.device,
                                         .results = (struct sample_result *)results,
                                         .sampled = cuda->sampled + cuda->n_sampled,
                                         .n = args->n,
                                         .n_vocab = args->n_vocab,
                                         .fixed_teams = cuda->batch_invariant};
    rc = cuda_check(cuda, launch_sample(&params, launch_of(cuda)), "sample", err);
    cuda->n_sampled += args->n;
    return rc ? rc : results_await(cuda, results, args->results, result_bytes, err);
}

/* Returns how many of n rows fit in args together; at least one, for which args may grow. */
static uint32_t count_fitting(struct cuda_backend *cuda, const struct sample_row *rows, uint32_t n,
                              uint32_t n_vocab) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        bytes += row_bytes(&rows[i], n_vocab);
        if (bytes > args_capacity(cuda)) return i ? i : 1;
    }
    return n;
}

/* Samples all rows at once, unless their lists are long: thousands of tokens each, for
 * penalties. */
int cuda_sample(struct backend *be, const struct sample_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    cuda_use_device(be); /* as in cuda_gather_rows() */
    for (uint32_t at = 0, n; at < args->n; at += n) {
        n = count_fitting(cuda, args->rows + at, args->n - at, args->n_vocab);
        const struct sample_args some = {.logits = args->logits,
                                         .n_vocab = args->n_vocab,
                                         .n = n,
                                         .rows = args->rows + at,
                                         .results = args->results + at};
        int rc = sample_rows(cuda, &some, err);
        if (rc) return rc;
    }
    return 0;
}

/* Reserves args for the lists of any one row, or for all rows' lists where they are short, and all
 * rows' masks; also for the pages of a bounded cache that is put in order (kv/evict.c). */
int sample_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err) {
    if (limits->n_vocab > SAMPLE_MAX_VOCAB)
        return error_set(err, ERR_UNSUPPORTED, "cuda: a vocabulary of %u tokens, more than %d",
                         limits->n_vocab, SAMPLE_MAX_VOCAB);
    const uint32_t n_vocab = limits->n_vocab, any = 0;
    const struct sample_row longest = {
        .n_counts = n_vocab, .n_bias = n_vocab, .n_banned = n_vocab, .allowed = &any};
    const size_t short_row =
        row_bytes(&(struct sample_row){.allowed = &any}, n_vocab) + SHORT_LISTS_BYTES;
    size_t bytes = limits->max_logit_rows * short_row;
    if (bytes < row_bytes(&longest, n_vocab)) bytes = row_bytes(&longest, n_vocab);
    if (limits->tracked)
        bytes += limits->max_seqs * sizeof(struct evict_total) + EVICT_TOTALS_ALIGN +
                 (size_t)limits->n_layers * limits->max_seq_pages * sizeof(int32_t);
    int rc = inflight_reserve(cuda, bytes + GATHER_ROW_BYTES * limits->max_logit_rows, err);
    if (!rc) rc = sampled_reserve(cuda, limits->max_rows, err);
    if (rc) return rc;
    return device_reserve(cuda, (void **)&cuda->changed, &cuda->changed_bytes,
                          (size_t)limits->max_logit_rows * limits->n_vocab * sizeof(float), err);
}
