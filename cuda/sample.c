/* sample.c - carries sample rows and their lists to the device, and results back.
 *
 *   args:  rows [n] | counts, bias, banned of every row | results [n]
 *
 * Results come back into the pinned half of the same room; sync() hands them out. */
#include "cuda/internal.h"

#include <string.h>

#include "engine/error.h"

enum { LIST_ALIGN = 8 };

static size_t padded(size_t bytes) {
    return (bytes + LIST_ALIGN - 1) / LIST_ALIGN * LIST_ALIGN;
}

static bool changes_logits(const struct sample_row *row) {
    return row->kind == SAMPLE_DRAW && (row->n_bias || row->n_banned || row->n_counts);
}

static size_t list_bytes(const struct sample_row *row) {
    return padded(row->n_counts * sizeof(*row->counts)) + padded(row->n_bias * sizeof(*row->bias)) +
           padded(row->n_banned * sizeof(*row->banned));
}

/* Copies a list to args at *offset and returns where the device will find it. */
static const void *put_list(struct cuda_backend *cuda, size_t *offset, const void *list,
                            size_t bytes) {
    const void *device = cuda->args.device + *offset;
    if (bytes) memcpy(cuda->args.host + *offset, list, bytes);
    *offset += padded(bytes);
    return device;
}

static struct device_sample pack_row(struct cuda_backend *cuda, const struct sample_row *row,
                                     size_t *offset, float *changed) {
    struct device_sample out = {.logit_row = row->logit_row,
                                .kind = row->kind,
                                .target = row->target,
                                .top_k = row->top_k,
                                .n_top = row->n_top,
                                .temperature = row->temperature,
                                .top_p = row->top_p,
                                .min_p = row->min_p,
                                .repetition_penalty = row->repetition_penalty,
                                .presence_penalty = row->presence_penalty,
                                .frequency_penalty = row->frequency_penalty,
                                .uniform = row->uniform,
                                .changed = changed};
    if (!changed) return out;
    out.n_counts = row->n_counts;
    out.n_bias = row->n_bias;
    out.n_banned = row->n_banned;
    out.counts = put_list(cuda, offset, row->counts, row->n_counts * sizeof(*row->counts));
    out.bias = put_list(cuda, offset, row->bias, row->n_bias * sizeof(*row->bias));
    out.banned = put_list(cuda, offset, row->banned, row->n_banned * sizeof(*row->banned));
    return out;
}

/* Room in args and scratch; *input: bytes that travel, *results: offset of what comes back. */
static int make_room(struct cuda_backend *cuda, const struct sample_args *args, size_t *offset,
                     size_t *input, size_t *results, struct error *err) {
    size_t n_changed = 0;
    *input = padded(args->n * sizeof(struct device_sample));
    for (uint32_t i = 0; i < args->n; i++) {
        if (!changes_logits(&args->rows[i])) continue;
        *input += list_bytes(&args->rows[i]);
        n_changed++;
    }
    int rc = 0;
    if (cuda->n_pending == MAX_PENDING) rc = cuda_sync(&cuda->base, err);
    if (!rc) rc = args_take(cuda, *input + args->n * sizeof(struct sample_result), offset, err);
    if (!rc)
        rc = device_reserve(cuda, (void **)&cuda->changed, &cuda->changed_bytes,
                            n_changed * args->n_vocab * sizeof(float), err);
    *results = *offset + *input;
    return rc;
}

int cuda_sample(struct backend *be, const struct sample_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    size_t offset, input, results, n_changed = 0;
    if (args->n == 0) return 0;
    int rc = make_room(cuda, args, &offset, &input, &results, err);
    if (rc) return rc;
    struct device_sample *rows = (struct device_sample *)(cuda->args.host + offset);
    size_t lists = offset + padded(args->n * sizeof(*rows));
    for (uint32_t i = 0; i < args->n; i++) {
        const bool changes = changes_logits(&args->rows[i]);
        rows[i] = pack_row(cuda, &args->rows[i], &lists,
                           changes ? cuda->changed + n_changed++ * args->n_vocab : NULL);
    }
    rc = args_send(cuda, offset, input, err);
    if (rc) return rc;
    const struct sample_params params = {
        .logits = args->logits,
        .rows = (const struct device_sample *)(cuda->args.device + offset),
        .results = (struct sample_result *)(cuda->args.device + results),
        .n = args->n,
        .n_vocab = args->n_vocab};
    rc = cuda_check(cuda, launch_sample(&params, launch_of(cuda)), "sample", err);
    if (rc) return rc;
    cuda->pending[cuda->n_pending++] = (struct pending_results){
        (const struct sample_result *)(cuda->args.host + results), args->results, args->n};
    return cuda_check(cuda,
                      cudaMemcpyAsync(cuda->args.host + results, cuda->args.device + results,
                                      args->n * sizeof(struct sample_result),
                                      cudaMemcpyDeviceToHost, cuda->stream),
                      "results from the device", err);
}
