/* recurrent.c - layers with a recurrent state on the device (engine/device/recurrent.h): which
 * kernels run them, and on what workspace. */
#include "engine/device/recurrent.h"

#include "cuda/host/internal.h"
#include "cuda/recurrent/recurrent_kernels.h"
#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/step.h"

enum { ALIGN = 256 };

/* A set of kernels for all rows of a step. */
struct recurrent_way {
    bool (*fits)(const struct cuda_backend *cuda, const struct recurrent_shape *shape);
    size_t (*workspace)(const struct recurrent_shape *shape, uint32_t n_rows);
    cudaError_t (*run)(const struct cuda_backend *cuda, const struct recurrent_args *args,
                       const struct recurrent_params *params);
};

/* ---- decoding ---- */

static bool delta_fits(const struct recurrent_shape *s) {
    return s->kind == RECURRENT_DELTA && s->k_dim == DELTA_DIM && s->v_dim == DELTA_DIM &&
           s->width == DELTA_WIDTH && s->n_v_heads / s->n_k_heads <= DELTA_MOST_SHARED;
}

/* Says whether Mamba-2's fast kernels take the shape: a head is half a tile, or a quarter. */
static bool mamba_fits(const struct recurrent_shape *s) {
    const bool has_size = s->v_dim == MAMBA_V_DIM || s->v_dim == MAMBA_SMALL_V_DIM;
    return s->kind == RECURRENT_MAMBA && s->k_dim == MAMBA_K_DIM && has_size &&
           s->width == DELTA_WIDTH && recurrent_n_channels(s) % TILE_CHANNELS == 0;
}

static bool decode_fits(const struct recurrent_shape *s) {
    return delta_fits(s) || mamba_fits(s);
}

/* Launches the rows that decode.  A step without prompts may be a graph, whose launch is for any
 * number of them. */
static cudaError_t run_decode(const struct cuda_backend *cuda,
                              const struct recurrent_params *params) {
    struct recurrent_params p = *params;
    if (has_prompts(cuda)) p.n_rows = cuda->step.n_decode;
    return p.kind == RECURRENT_DELTA ? launch_delta_decode(&p, launch_of(cuda))
                                     : launch_mamba_decode(&p, launch_of(cuda));
}

static uint32_t n_prompts(const struct cuda_backend *cuda) {
    return cuda->step.n_seqs - cuda->step.n_decode;
}

/* ---- prompts by chunks ---- */

/* Returns the bytes of a window's tiles; what is solved lies behind them. */
static size_t tile_bytes(const struct recurrent_shape *s, uint32_t n_chunks) {
    return round_up(prompt_tile_bytes(recurrent_n_channels(s), n_chunks), ALIGN);
}

/* Runs the rows that decode, and all chunks of prompts, a window at a time. */
static cudaError_t run_windows(const struct cuda_backend *cuda, const struct recurrent_args *args,
                               const struct recurrent_params *p,
                               cudaError_t (*run)(const struct recurrent_params *p,
                                                  const struct recurrent_window *w,
                                                  struct launch launch)) {
    const uint32_t n_chunks = cuda->recurrent.n_chunks,
                   n_most = min_u32(args->n_rows, WINDOW_CHUNKS);
    struct recurrent_window w = {.n_prompts = n_prompts(cuda)};
    w.tiles = (void *)round_up((uintptr_t)args->workspace, ALIGN);
    w.solved = (char *)w.tiles + tile_bytes(&args->states->shape, n_most);
    cudaError_t status = run_decode(cuda, p);
    for (uint32_t first = 0; first < n_chunks && status == cudaSuccess; first += w.n_chunks) {
        w.first_chunk = first;
        w.n_chunks = min_u32(n_most, n_chunks - first);
        status = launch_prompt_convolve(p, &w, launch_of(cuda));
        if (status == cudaSuccess) status = run(p, &w, launch_of(cuda));
    }
    return status;
}

static bool chunks_fit(const struct cuda_backend *cuda, const struct recurrent_shape *s) {
    (void)cuda;
    return delta_fits(s) && delta_scan_runs();
}

static size_t chunks_workspace(const struct recurrent_shape *s, uint32_t n_rows) {
    const uint32_t n_chunks = min_u32(n_rows, WINDOW_CHUNKS);
    return tile_bytes(s, n_chunks) + delta_solved_bytes(s->n_v_heads, n_chunks) + ALIGN;
}

static cudaError_t run_delta_window(const struct recurrent_params *p,
                                    const struct recurrent_window *w, struct launch launch) {
    const cudaError_t status = launch_delta_prepare(p, w, launch);
    return status == cudaSuccess ? launch_delta_scan(p, w, launch) : status;
}

static cudaError_t run_chunks(const struct cuda_backend *cuda, const struct recurrent_args *args,
                              const struct recurrent_params *p) {
    const cudaError_t status = run_windows(cuda, args, p, run_delta_window);
    if (status != cudaSuccess || cuda->recurrent.n_chunks == 0) return status;
    return launch_delta_output(p, launch_of(cuda));
}

static bool mamba_chunks_fit(const struct cuda_backend *cuda, const struct recurrent_shape *s) {
    (void)cuda;
    return mamba_fits(s);
}

static size_t mamba_workspace(const struct recurrent_shape *s, uint32_t n_rows) {
    const uint32_t n_chunks = min_u32(n_rows, WINDOW_CHUNKS);
    return tile_bytes(s, n_chunks) + mamba_weighed_bytes(s->n_v_heads, n_chunks) + ALIGN;
}

static cudaError_t run_mamba_window(const struct recurrent_params *p,
                                    const struct recurrent_window *w, struct launch launch) {
    const cudaError_t status = launch_mamba_prepare(p, w, launch);
    return status == cudaSuccess ? launch_mamba_scan(p, w, launch) : status;
}

static cudaError_t run_mamba(const struct cuda_backend *cuda, const struct recurrent_args *args,
                             const struct recurrent_params *p) {
    return run_windows(cuda, args, p, run_mamba_window);
}

/* ---- any heads ---- */

static bool any_fits(const struct cuda_backend *cuda, const struct recurrent_shape *s) {
    (void)cuda;
    return s->kind != RECURRENT_CONVOLUTION && s->k_dim <= RECURRENT_ANY_MOST_DIM &&
           s->v_dim <= RECURRENT_ANY_MOST_DIM && s->v_dim % RECURRENT_ANY_COLUMNS == 0;
}

static size_t any_workspace(const struct recurrent_shape *s, uint32_t n_rows) {
    return recurrent_any_bytes(recurrent_n_channels(s), n_rows) + ALIGN;
}

static cudaError_t run_any(const struct cuda_backend *cuda, const struct recurrent_args *args,
                           const struct recurrent_params *params) {
    struct recurrent_params p = *params;
    void *workspace = (void *)round_up((uintptr_t)args->workspace, ALIGN);
    p.only_prompts = decode_fits(&args->states->shape);
    p.n_seqs = has_prompts(cuda) ? cuda->step.n_seqs : p.n_rows;
    const cudaError_t status = p.only_prompts ? run_decode(cuda, params) : cudaSuccess;
    if (status != cudaSuccess || (p.only_prompts && !has_prompts(cuda))) return status;
    return launch_recurrent_any(&p, workspace, launch_of(cuda));
}

/* ---- short convolutions ---- */

static bool convolution_fits(const struct cuda_backend *cuda, const struct recurrent_shape *s) {
    (void)cuda;
    return s->kind == RECURRENT_CONVOLUTION && s->n_v_heads % 2 == 0;
}

static size_t convolution_workspace(const struct recurrent_shape *s, uint32_t n_rows) {
    (void)s, (void)n_rows;
    return ALIGN;
}

static cudaError_t run_convolution(const struct cuda_backend *cuda,
                                   const struct recurrent_args *args,
                                   const struct recurrent_params *params) {
    (void)args;
    const cudaError_t status = launch_short_convolution(params, launch_of(cuda));
    if (status != cudaSuccess || !has_prompts(cuda)) return status;
    return launch_keep_inputs(params, n_prompts(cuda), launch_of(cuda));
}

/* ---- the operations ---- */

/* In the order of preference. */
static const struct recurrent_way ways[] = {
    {chunks_fit, chunks_workspace, run_chunks},
    {mamba_chunks_fit, mamba_workspace, run_mamba},
    {any_fits, any_workspace, run_any},
    {convolution_fits, convolution_workspace, run_convolution}};

static const struct recurrent_way *way_of(const struct backend *be,
                                          const struct recurrent_shape *shape) {
    for (size_t i = 0; i < COUNT(ways); i++)
        if (ways[i].fits(CUDA_BACKEND(be), shape)) return &ways[i];
    return NULL;
}

static bool cuda_recurrent_takes(const struct backend *be, const struct recurrent_shape *shape) {
    return way_of(be, shape) != NULL;
}

static size_t cuda_recurrent_workspace(const struct backend *be,
                                       const struct recurrent_shape *shape, uint32_t n_rows) {
    return way_of(be, shape)->workspace(shape, n_rows);
}

/* Returns a weight without data where the kind of layer has none. */
static struct plain_weight plain_of(const struct weight *w) {
    return w ? (struct plain_weight){w->data, w->format.element} : (struct plain_weight){0};
}

static struct recurrent_params params_of(const struct cuda_backend *cuda,
                                         const struct recurrent_args *args) {
    const struct recurrent_shape *shape = &args->states->shape;
    return (struct recurrent_params){
        .step = cuda->device_step,
        .states_of = cuda->device_recurrent,
        .qkv = args->qkv,
        .z = args->z,
        .b = args->b,
        .a = args->a,
        .qkv_stride = args->qkv_stride,
        .gates_stride = args->gates_stride,
        .conv = plain_of(args->conv),
        .rates = plain_of(args->rates),
        .dt_bias = plain_of(args->dt_bias),
        .norm = plain_of(args->norm),
        .skip = plain_of(args->skip),
        .conv_biases = {plain_of(args->conv_biases[0]), plain_of(args->conv_biases[1]),
                        plain_of(args->conv_biases[2])},
        .eps = args->eps,
        .kind = shape->kind,
        .dt_least = shape->dt_least,
        .dt_most = shape->dt_most,
        .states = state_at(args->states, 0, args->layer),
        .slot_bytes = args->states->slot_bytes,
        .inputs_at = round_up(recurrent_n_elements(shape) * sizeof(float), STATE_ALIGN),
        .n_k_heads = shape->n_k_heads,
        .n_v_heads = shape->n_v_heads,
        .k_dim = shape->k_dim,
        .v_dim = shape->v_dim,
        .width = shape->width,
        .n_channels = recurrent_n_channels(shape),
        .v_heads_apart = shape->v_heads_apart,
        .n_rows = args->n_rows,
        .out = args->out};
}

static int cuda_recurrent_run(struct backend *be, const struct recurrent_args *args,
                              struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const struct recurrent_params params = params_of(cuda, args);
    if (!cuda->recurrent.states)
        return error_set(err, ERR_INVALID, "cuda: the step names no recurrent states");
    return cuda_check(cuda, way_of(be, &args->states->shape)->run(cuda, args, &params),
                      "a recurrent layer", err);
}

const struct recurrent_ops cuda_recurrent_ops = {.takes = cuda_recurrent_takes,
                                                 .workspace = cuda_recurrent_workspace,
                                                 .run = cuda_recurrent_run,
                                                 .chunk = CHUNK_ROWS};
