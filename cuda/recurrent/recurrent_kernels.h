/* recurrent_kernels.h - the kernels of recurrent layers (engine/device/recurrent.h), and what they
 * read of a step.
 *
 *   decode    rows of sequences that generate: one launch does all
 *    prompts   convolve ─► prepare ─► scan ─► output, for a window of chunks at a time; of Mamba-2
 *             scan makes the output
 *   any       rows of either kind, heads of any size, a row at a time: for what the others do not
 *             take
 *
 * Of short convolutions there is one launch for all rows, and one more for the inputs that prompts
 * leave.
 *
 * A chunk is up to CHUNK_ROWS rows of a prompt.  Chunks end at multiples of CHUNK_ROWS from the
 * text's beginning, so the steps that the rows are cut into do not move them.  A window is
 * WINDOW_CHUNKS chunks of a step, of any sequences: the workspace has room for one window.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef CUDA_RECURRENT_RECURRENT_KERNELS_H
#define CUDA_RECURRENT_RECURRENT_KERNELS_H

#include "cuda/host/kernels.h"
#include "engine/device/recurrent.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CHUNK_ROWS = 64, WINDOW_CHUNKS = 64 };

/* All kernels of Gated DeltaNet but `any` are made for heads of this size and this width of the
 * convolution.  There a k head has at most DELTA_MOST_SHARED v heads. */
enum { DELTA_DIM = 128, DELTA_WIDTH = 4, DELTA_MOST_SHARED = 8 };

/* A sequence of a step. */
struct device_state {
    int32_t from, to;     /* slots; from < 0: zeros */
    uint32_t n_before;    /* tokens of the text before the first row */
    uint32_t first_chunk; /* prompts: of the step */
};

struct device_chunk {
    uint32_t seq;
    uint32_t first_row, n_rows; /* of the step */
    uint32_t is_last;           /* of the sequence's chunks in this step */
};

/* What recurrent layers read of a step, behind its header: at the same address in every step, and
 * complete before the step's first kernel starts. */
struct device_recurrent {
    const struct device_state *states; /* [n_seqs]; NULL: the model has no recurrent layers */
    const struct device_chunk *chunks; /* [n_chunks] */
    uint32_t n_chunks;
};

/* Plain weights, and the type of their elements. */
struct plain_weight {
    const void *data;
    enum element element;
};

struct recurrent_params {
    const struct device_step *step;
    const struct device_recurrent *states_of; /* the step's */
    /* bf16, as in struct recurrent_args. */
    const void *qkv, *z, *b, *a;
    size_t qkv_stride, gates_stride;
    struct plain_weight conv, rates, dt_bias, norm, skip;
    struct plain_weight conv_biases[3]; /* of Mamba-2's x, B and C; without data: none */
    float eps;
    enum recurrent_kind kind;
    float dt_least, dt_most; /* of Mamba-2 */
    /* Slot i of the layer is at states + i * slot_bytes: f32 S [n_v_heads][k_dim][v_dim].  At
     * inputs_at bytes follow the last inputs of the convolution, bf16 [width][n_channels].  That of
     * the text's token t is in row t % width. */
    char *states;
    size_t slot_bytes, inputs_at;
    uint32_t n_k_heads, n_v_heads, k_dim, v_dim, width, n_channels;
    bool v_heads_apart; /* as in struct recurrent_shape */
    uint32_t n_rows;    /* of the launch: at most so many rows, */
    uint32_t n_seqs;    /* and sequences, begin with the first one that the kernel computes */
    bool only_prompts;  /* `any` leaves sequences that decode out */
    void *out;          /* bf16 [n_rows, n_v_heads * v_dim] */
};

/* The window's chunks [first_chunk, first_chunk + n_chunks). */
struct recurrent_window {
    uint32_t first_chunk, n_chunks;
    uint32_t n_prompts; /* sequences of the step that do not decode */
    void *tiles;        /* what is behind the convolution: recurrent.cuh */
    void *solved;       /* what `prepare` makes: delta.cuh, mamba.cuh */
};

/* The channels of the convolution are a multiple of this where prompts go by windows. */
enum { TILE_CHANNELS = 128 };

/* Returns the bytes of a window's tiles and of what is solved, for n_chunks chunks. */
size_t prompt_tile_bytes(uint32_t n_channels, uint32_t n_chunks);
size_t delta_solved_bytes(uint32_t n_v_heads, uint32_t n_chunks);

/* The largest head that `any` takes; the v of a head is a multiple of the second. */
enum { RECURRENT_ANY_MOST_DIM = 256, RECURRENT_ANY_COLUMNS = 4 };
/* Returns the bytes of its workspace. */
size_t recurrent_any_bytes(uint32_t n_channels, uint32_t n_rows);
cudaError_t launch_recurrent_any(const struct recurrent_params *p, void *workspace,
                                 struct launch launch);

/* Launches a short convolution; n_v_heads and qkv_stride are even. */
cudaError_t launch_short_convolution(const struct recurrent_params *p, struct launch launch);
/* Launches what keeps its inputs of prompts. */
cudaError_t launch_keep_inputs(const struct recurrent_params *p, uint32_t n_prompts,
                               struct launch launch);

/* Launches the convolution of a window's chunks, whose width is DELTA_WIDTH. */
cudaError_t launch_prompt_convolve(const struct recurrent_params *p,
                                   const struct recurrent_window *window, struct launch launch);

/* Says whether the device runs Gated DeltaNet's kernels of prompts. */
bool delta_scan_runs(void);

cudaError_t launch_delta_decode(const struct recurrent_params *p, struct launch launch);
cudaError_t launch_delta_prepare(const struct recurrent_params *p,
                                 const struct recurrent_window *window, struct launch launch);
cudaError_t launch_delta_scan(const struct recurrent_params *p,
                              const struct recurrent_window *window, struct launch launch);
cudaError_t launch_delta_output(const struct recurrent_params *p, struct launch launch);

/* The sizes of a head's state that Mamba-2's kernels but `any` take; the width is DELTA_WIDTH. */
enum { MAMBA_K_DIM = 128, MAMBA_V_DIM = 64, MAMBA_SMALL_V_DIM = 32 };
/* Returns the bytes of what is made for a window's chunks, in the place of what is solved. */
size_t mamba_weighed_bytes(uint32_t n_v_heads, uint32_t n_chunks);
cudaError_t launch_mamba_decode(const struct recurrent_params *p, struct launch launch);
cudaError_t launch_mamba_prepare(const struct recurrent_params *p,
                                 const struct recurrent_window *window, struct launch launch);
cudaError_t launch_mamba_scan(const struct recurrent_params *p,
                              const struct recurrent_window *window, struct launch launch);

#ifdef __cplusplus
}
#endif

#endif
