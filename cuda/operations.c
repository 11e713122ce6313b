/* operations.c - the operations that are one kernel each: arguments in, parameters out, launch. */
#include "cuda/internal.h"

#include <string.h>

#include "engine/error.h"

int cuda_embed(struct backend *be, const struct embed_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct embed_params params = {.step = cuda->device_step,
                                        .table = args->table->data,
                                        .dtype = args->table->dtype,
                                        .out = args->out,
                                        .n_rows = cuda->launch_rows,
                                        .dim = args->table->cols};
    return cuda_check(cuda, launch_embed(&params, launch_of(cuda)), "embed", err);
}

int cuda_rmsnorm(struct backend *be, const struct rmsnorm_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct rmsnorm_params params = {.x = args->x,
                                          .weight = args->weight->data,
                                          .dtype = args->weight->dtype,
                                          .out = args->out,
                                          .n_rows = args->n_rows,
                                          .dim = args->dim,
                                          .x_stride = args->x_stride,
                                          .out_stride = args->out_stride,
                                          .eps = args->eps};
    return cuda_check(cuda, launch_rmsnorm(&params, launch_of(cuda)), "rmsnorm", err);
}

/* The frequencies are the model's and stay: they travel once. */
static int send_freqs(struct cuda_backend *cuda, const struct rope_append_args *args,
                      struct error *err) {
    const size_t bytes = args->n_freqs * sizeof(double);
    if (args->n_freqs > MAX_FREQS)
        return error_set(err, ERR_UNSUPPORTED, "cuda: %u rotary pairs, at most %d are supported",
                         args->n_freqs, MAX_FREQS);
    if (cuda->n_freqs == args->n_freqs && memcmp(cuda->inv_freq, args->inv_freq, bytes) == 0)
        return 0;
    struct args room;
    int rc = args_take(cuda, bytes, &room, err);
    if (rc) return rc;
    memcpy(room.host, args->inv_freq, bytes);
    rc = args_send(cuda, &room, cuda->device_freqs, bytes, err);
    if (rc) return rc;
    memcpy(cuda->inv_freq, args->inv_freq, bytes);
    cuda->n_freqs = args->n_freqs;
    return 0;
}

static int room_for_angles(struct cuda_backend *cuda, size_t n_rows, uint32_t n_freqs,
                           struct error *err) {
    return device_reserve(cuda, (void **)&cuda->angles, &cuda->angles_bytes,
                          n_rows * 2 * n_freqs * sizeof(float), err);
}

int angles_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err) {
    return room_for_angles(cuda, limits->max_rows, limits->n_freqs, err);
}

static int make_angles(struct cuda_backend *cuda, const struct rope_append_args *args,
                       struct error *err) {
    int rc = send_freqs(cuda, args, err);
    if (!rc) rc = room_for_angles(cuda, cuda->launch_rows, args->n_freqs, err);
    if (rc) return rc;
    const struct angles_params params = {.step = cuda->device_step,
                                         .inv_freq = cuda->device_freqs,
                                         .angles = cuda->angles,
                                         .n_rows = cuda->launch_rows,
                                         .n_freqs = args->n_freqs,
                                         .scale = args->rope_scale};
    rc = cuda_check(cuda, launch_angles(&params, launch_of(cuda)), "rotary angles", err);
    cuda->angles_valid = !rc;
    return rc;
}

int cuda_rope_append(struct backend *be, const struct rope_append_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    if (!cuda->angles_valid) {
        int rc = make_angles(cuda, args, err);
        if (rc) return rc;
    }
    const struct rope_append_params params = {.step = cuda->device_step,
                                              .qkv = args->qkv,
                                              .angles = cuda->angles,
                                              .pool = args->kv->base,
                                              .dtype = args->kv->dtype,
                                              .n_rows = cuda->launch_rows,
                                              .n_heads = args->n_heads,
                                              .n_kv_heads = args->kv->n_kv_heads,
                                              .head_dim = args->kv->head_dim,
                                              .n_freqs = args->n_freqs,
                                              .layer = args->layer};
    return cuda_check(cuda, launch_rope_append(&params, launch_of(cuda)), "rope_append", err);
}

int cuda_gather_rows(struct backend *be, const struct gather_rows_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const size_t bytes = args->n * sizeof(uint32_t);
    struct args room;
    int rc = args_take(cuda, bytes, &room, err);
    if (rc) return rc;
    memcpy(room.host, args->rows, bytes);
    rc = args_send(cuda, &room, room.device, bytes, err);
    if (rc) return rc;
    const struct gather_params params = {.x = args->x,
                                         .out = args->out,
                                         .rows = (const uint32_t *)room.device,
                                         .n = args->n,
                                         .dim = args->dim};
    return cuda_check(cuda, launch_gather(&params, launch_of(cuda)), "gather_rows", err);
}
