/* operations.c - the operations that are one kernel each: converts arguments to parameters, and
 * launches. */
#include "cuda/host/internal.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/elementwise/gate.h"
#include "cuda/ranks/group.h"
#include "engine/base/error.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

int cuda_embed(struct backend *be, const struct embed_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct embed_params params = {.step = cuda->device_step,
                                        .table = args->table->data,
                                        .element = args->table->format.element,
                                        .out = args->out,
                                        .n_rows = cuda->launch_rows,
                                        .dim = args->table->cols,
                                        .scale = args->scale};
    return cuda_check(cuda, launch_embed(&params, launch_of(cuda)), "embed", err);
}

int cuda_add_positions(struct backend *be, const struct add_positions_args *args,
                       struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct add_positions_params params = {.step = cuda->device_step,
                                                .table = args->table->data,
                                                .element = args->table->format.element,
                                                .x = args->x,
                                                .n_rows = cuda->launch_rows,
                                                .dim = args->table->cols,
                                                .first = args->first};
    return cuda_check(cuda, launch_add_positions(&params, launch_of(cuda)), "add_positions", err);
}

int cuda_rmsnorm(struct backend *be, const struct rmsnorm_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct rmsnorm_params params = {
        .x = args->x,
        .weight = args->weight ? args->weight->data : NULL,
        .element = args->weight ? args->weight->format.element : ELEMENT_F32,
        .out = args->out,
        .n_rows = args->n_rows,
        .dim = args->dim,
        .x_stride = args->x_stride,
        .out_stride = args->out_stride,
        .eps = args->eps,
        .n_heads = args->n_heads,
        .accumulate = args->accumulate,
        .out_scale = args->sum_scale != 0 ? args->sum_scale : 1};
    return cuda_check(cuda, launch_rmsnorm(&params, launch_of(cuda)), "rmsnorm", err);
}

int cuda_layernorm(struct backend *be, const struct layernorm_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct layernorm_params params = {
        .x = args->x,
        .weight = args->weight->data,
        .bias = args->bias ? args->bias->data : NULL,
        .element = args->weight->format.element,
        .bias_element = args->bias ? args->bias->format.element : ELEMENT_F32,
        .out = args->out,
        .n_rows = args->n_rows,
        .dim = args->dim,
        .eps = args->eps};
    return cuda_check(cuda, launch_layernorm(&params, launch_of(cuda)), "layernorm", err);
}

int cuda_activate(struct backend *be, const struct activate_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct activate_params params = {
        .x = args->x, .n = (size_t)args->n_rows * args->dim, .kind = args->kind};
    return cuda_check(cuda, launch_activate(&params, launch_of(cuda)), "activate", err);
}

int cuda_gate(struct backend *be, const struct gate_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct gate_params params = {
        .x = args->x, .gate = args->gate, .n = (size_t)args->n_rows * args->dim};
    return cuda_check(cuda, launch_gate(&params, launch_of(cuda)), "gate", err);
}

static int send_array(struct cuda_backend *cuda, void *to, const void *host, size_t bytes,
                      struct error *err) {
    struct args room;
    int rc = args_take(cuda, bytes, &room, err);
    if (rc) return rc;
    memcpy(room.host, host, bytes);
    return args_send(cuda, &room, to, bytes, err);
}

int rotary_open(struct cuda_backend *cuda, struct error *err) {
    int rc = 0;
    for (int i = 0; i < MAX_ROPES && !rc; i++) {
        struct rotary *r = &cuda->rotary[i];
        rc = device_alloc(cuda, sizeof(r->inv_freq), (void **)&r->device_freqs, err);
        if (rc) break;
        rc = device_alloc(cuda, 2 * MAX_FREQS * sizeof(float), (void **)&r->device_rotations, err);
    }
    return rc;
}

void rotary_close(struct cuda_backend *cuda) {
    for (int i = 0; i < MAX_ROPES; i++) {
        cudaFree(cuda->rotary[i].angles);
        cudaFree(cuda->rotary[i].device_freqs);
        cudaFree(cuda->rotary[i].device_rotations);
    }
}

int freqs_send(struct cuda_backend *cuda, struct rotary *rotary, const double *inv_freq,
               uint32_t n_freqs, struct error *err) {
    const size_t bytes = n_freqs * sizeof(double);
    const double two_pi = 6.283185307179586476925;
    float rotations[MAX_FREQS][2];
    if (n_freqs == 0) return 0;
    if (n_freqs > MAX_FREQS)
        return error_set(err, ERR_UNSUPPORTED, "cuda: %u rotary pairs, at most %d are supported",
                         n_freqs, MAX_FREQS);
    if (rotary->n_freqs == n_freqs && memcmp(rotary->inv_freq, inv_freq, bytes) == 0) return 0;
    for (uint32_t i = 0; i < n_freqs; i++) {
        rotations[i][0] = (float)(inv_freq[i] / two_pi);
        rotations[i][1] = (float)(inv_freq[i] / two_pi - rotations[i][0]);
    }
    int rc = send_array(cuda, rotary->device_freqs, inv_freq, bytes, err);
    if (!rc)
        rc = send_array(cuda, rotary->device_rotations, rotations, n_freqs * sizeof(rotations[0]),
                        err);
    if (rc) return rc;
    memcpy(rotary->inv_freq, inv_freq, bytes);
    rotary->n_freqs = n_freqs;
    return 0;
}

int slopes_send(struct cuda_backend *cuda, const float *slopes, uint32_t n_heads,
                struct error *err) {
    struct slopes *sent = &cuda->slopes;
    const size_t bytes = n_heads * sizeof(*slopes);
    if (!slopes) return 0;
    if (sent->n == n_heads && memcmp(sent->host, slopes, bytes) == 0) return 0;
    float *host = realloc(sent->host, bytes);
    if (!host) return error_set(err, ERR_NOMEM, "cuda: no memory");
    sent->host = host;
    sent->n = 0;
    int rc = device_reserve(cuda, (void **)&sent->device, &sent->bytes, bytes, err);
    if (!rc) rc = send_array(cuda, sent->device, slopes, bytes, err);
    if (rc) return rc;
    memcpy(host, slopes, bytes);
    sent->n = n_heads;
    return 0;
}

void slopes_close(struct cuda_backend *cuda) {
    cudaFree(cuda->slopes.device);
    free(cuda->slopes.host);
}

struct score_bias score_bias_of(const struct cuda_backend *cuda, const struct attn_args *args) {
    if (!args->slopes) return (struct score_bias){0};
    return (struct score_bias){.slopes = cuda->slopes.device,
                               .step = cuda->device_step,
                               .kv = *args->kv,
                               .layer = args->layer,
                               .group = args->group,
                               .state_slots = kv_state_slots(args->kv)};
}

struct head_sinks head_sinks_of(const struct weight *sinks) {
    if (!sinks) return (struct head_sinks){0};
    return (struct head_sinks){sinks->data, sinks->format.element, true};
}

static int room_for_angles(struct cuda_backend *cuda, struct rotary *rotary, size_t n_rows,
                           uint32_t n_freqs, bool in_text, struct error *err) {
    return device_reserve(cuda, (void **)&rotary->angles, &rotary->angles_bytes,
                          (1 + in_text) * n_rows * 2 * n_freqs * sizeof(float), err);
}

int angles_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err) {
    int rc = 0;
    for (int i = 0; i < MAX_ROPES && !rc; i++)
        rc = room_for_angles(cuda, &cuda->rotary[i], limits->max_rows, limits->n_freqs,
                             limits->tracked, err);
    return rc;
}

/* Tells whether rows may have another position in layers with a window than in others.  That must
 * not depend on the step: a graph is for many. */
static bool has_two_positions(const struct cuda_backend *cuda, const struct kv_pool *kv) {
    return kv->tracked && cuda->host_step->windows;
}

static int make_angles(struct cuda_backend *cuda, struct rotary *rotary,
                       const struct rope_append_args *args, struct error *err) {
    const bool in_text = has_two_positions(cuda, args->kv);
    int rc = freqs_send(cuda, rotary, args->inv_freq, args->n_freqs, err);
    if (!rc) rc = room_for_angles(cuda, rotary, cuda->launch_rows, args->n_freqs, in_text, err);
    if (rc) return rc;
    const struct angles_params params = {.step = cuda->device_step,
                                         .inv_freq = rotary->device_freqs,
                                         .angles = rotary->angles,
                                         .n_rows = cuda->launch_rows,
                                         .n_freqs = args->n_freqs,
                                         .scale = args->rope_scale,
                                         .in_text = in_text};
    rc = cuda_check(cuda, launch_angles(&params, launch_of(cuda)), "rotary angles", err);
    rotary->angles_valid = !rc;
    return rc;
}

/* Adds the norms of heads to the kernel's parameters, or if it does not take them, launches kernels
 * for them. */
static int add_norms(struct cuda_backend *cuda, const struct rope_append_args *args,
                     struct rope_append_params *params, struct error *err) {
    const struct head_norms *norms = args->norms;
    if (!norms) return 0;
    const bool are_bf16 =
        norms->q->format.element == ELEMENT_BF16 && norms->k->format.element == ELEMENT_BF16;
    params->q_norm = norms->q->data;
    params->k_norm = norms->k->data;
    params->norm_eps = norms->eps;
    if (are_bf16 && rope_append_takes_norms(params)) return 0;
    params->q_norm = params->k_norm = NULL;
    return norm_heads(&cuda->base, args, cuda->launch_rows, err);
}

int cuda_rope_append(struct backend *be, const struct rope_append_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    struct rotary *rotary = &cuda->rotary[args->rope];
    cuda->prompt_copies.valid = false;
    int rc = rotary->angles_valid ? 0 : make_angles(cuda, rotary, args, err);
    if (rc) return rc;
    const size_t n_angles = (size_t)cuda->launch_rows * 2 * args->n_freqs;
    const bool in_text = has_two_positions(cuda, args->kv);
    struct rope_append_params params = {.step = cuda->device_step,
                                        .qkv = args->qkv,
                                        .qkv_stride = rope_row_stride(args),
                                        .angles = rotary->angles,
                                        .text_angles = in_text ? rotary->angles + n_angles : NULL,
                                        .kv = *args->kv,
                                        .n_rows = cuda->launch_rows,
                                        .n_heads = args->n_heads,
                                        .n_freqs = args->n_freqs,
                                        .layer = args->layer,
                                        .query_beta = args->query_beta,
                                        .query_period = args->query_period};
    rc = add_norms(cuda, args, &params, err);
    if (rc) return rc;
    return cuda_check(cuda, launch_rope_append(&params, launch_of(cuda)), "rope_append", err);
}

int cuda_gather_rows(struct backend *be, const struct gather_rows_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const size_t bytes = args->n * sizeof(uint32_t);
    struct args room;
    cuda_use_device(
        be); /* it may be the first operation since the thread worked for another rank */
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

int cuda_soft_cap(struct backend *be, const struct soft_cap_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct soft_cap_params params = {
        .x = args->x, .n = (size_t)args->n_rows * args->dim, .scale = score_scale_of(1, args->cap)};
    return cuda_check(cuda, launch_soft_cap(&params, launch_of(cuda)), "soft_cap", err);
}
