/* test_recurrent.c - layers with a recurrent state on the device against the CPU's.
 *
 * Heads have any size.  There are prompts, sequences that decode beside them, and states that stay
 * or move to other slots.
 *
 * The device rounds q, k and v to bf16, before their norms and after, and outputs twice.  So
 * outputs are compared loosely; kernels/recurrent_test.cu compares states closely. */
#include "tests/cuda/cuda_test.h"

#include "engine/device/host_pool.h"
#include "engine/device/recurrent.h"
#include "engine/device/step.h"
#include "tests/recurrent_args.h"

enum { N_SEQS = 4, N_SLOTS = 2 * N_SEQS, N_STEPS = 3 };

/* Relative to the largest output. */
static const double tolerance = 0.03;

static const struct recurrent_shape shapes[] = {
    {2, 2, 6, 128, 128, 4, false, RECURRENT_DELTA, 0, 0},
    {2, 2, 6, 128, 128, 4, true, RECURRENT_DELTA, 0, 0},
    {1, 1, 9, 128, 128, 4, false, RECURRENT_DELTA, 0, 0},
    {1, 3, 27, 128, 128, 4, true, RECURRENT_DELTA, 0, 0},
    {1, 2, 4, 32, 16, 4, false, RECURRENT_DELTA, 0, 0},
    {1, 2, 4, 32, 16, 4, true, RECURRENT_DELTA, 0, 0},
    {2, 1, 3, 20, 48, 8, false, RECURRENT_DELTA, 0, 0},
    {1, 2, 2, 256, 256, 3, false, RECURRENT_DELTA, 0, 0},
    {2, 1, 6, 128, 64, 4, false, RECURRENT_MAMBA, 0, INFINITY},
    {1, 2, 8, 128, 32, 4, false, RECURRENT_MAMBA, 0.3F, 1.1F},
    {1, 1, 5, 128, 64, 4, false, RECURRENT_MAMBA, 0, INFINITY},
    {2, 2, 4, 20, 48, 8, false, RECURRENT_MAMBA, 0, INFINITY},
    {1, 1, 4, 24, 16, 3, false, RECURRENT_MAMBA, 0.3F, 1.1F},
    {1, 2, 2, 256, 256, 4, false, RECURRENT_MAMBA, 0, INFINITY},
    {2, 0, 2048, 0, 1, 3, false, RECURRENT_CONVOLUTION, 0, 0},
    {1, 0, 10, 0, 1, 8, false, RECURRENT_CONVOLUTION, 0, 0},
};

/* The rows of each sequence in each step; sequences with one row decode, and come first. */
static const uint32_t lengths[N_STEPS][N_SEQS] = {{1, 3, 70, 200}, {1, 1, 64, 5}, {1, 1, 1, 129}};

/* A layer on one backend. */
struct layer {
    struct recurrent_weights weights;
    struct state_pool states;
};

static struct weight plain(struct backend *be, float *x, enum element element, uint32_t rows,
                           uint32_t cols) {
    const size_t n = (size_t)rows * cols;
    return weight_plain(be == gpu ? gpu_array(x, n, element) : converted(x, n, element), element,
                        rows, cols);
}

static void release(struct backend *be, const void *memory) {
    if (be == gpu) gpu_free((void *)memory);
    else free((void *)memory);
}

/* What all backends get the same values of. */
struct values {
    float *conv, *rates, *dt_bias, *norm, *skip, *biases;
    float *qkv[N_STEPS], *gates[N_STEPS]; /* [n_rows] of n_channels, and of z, b and a */
};

static uint32_t rows_of(uint32_t step) {
    uint32_t n = 0;
    for (int i = 0; i < N_SEQS; i++) n += lengths[step][i];
    return n;
}

static void make_values(struct values *v, const struct recurrent_shape *s) {
    const uint32_t n_channels = recurrent_n_channels(s);
    v->conv = random_bf16((size_t)n_channels * s->width, 1);
    v->rates = random_floats(s->n_v_heads);
    v->dt_bias = random_bf16(s->n_v_heads, 1);
    v->norm = random_bf16(s->v_dim, 1);
    v->skip = random_bf16(s->n_v_heads, 1);
    v->biases = random_bf16(n_channels, 1);
    for (uint32_t h = 0; h < s->n_v_heads; h++) v->rates[h] = -expf(v->rates[h] - 3);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        v->qkv[i] = random_bf16((size_t)rows_of(i) * recurrent_n_inputs(s), 2);
        v->gates[i] = random_bf16((size_t)rows_of(i) * recurrent_gates_width(s), 2);
    }
}

static void free_values(struct values *v) {
    float *weights[] = {v->conv, v->rates, v->dt_bias, v->norm, v->skip, v->biases};
    for (size_t i = 0; i < COUNT(weights); i++) free(weights[i]);
    for (uint32_t i = 0; i < N_STEPS; i++) free(v->qkv[i]), free(v->gates[i]);
}

/* Describes a step.  Sequences take turns between two slots, or stay where they are. */
static struct step step_of(uint32_t i, struct step_seq *seqs) {
    struct step step = {.seqs = seqs, .n_seqs = N_SEQS, .has_states = true};
    for (uint32_t j = 0; j < N_SEQS; j++) {
        uint32_t n_before = 0, at = 2 * j;
        for (uint32_t k = 0; k < i; k++) n_before += lengths[k][j], at ^= j % 2;
        seqs[j] = (struct step_seq){.first_row = step.n_rows,
                                    .n_rows = lengths[i][j],
                                    .n_before = n_before,
                                    .state = {i > 0 ? at ^ j % 2 : STATE_ZERO, at}};
        step.n_decode += lengths[i][j] == 1;
        step.n_rows += lengths[i][j];
    }
    return step;
}

/* Runs a step on a backend; `out` [n_rows, n_values]. */
static void run_step(struct backend *be, struct layer *l, const struct values *v, uint32_t i,
                     float *out) {
    const struct recurrent_shape *s = &l->states.shape;
    const uint32_t n_values = s->n_v_heads * s->v_dim, width = recurrent_gates_width(s);
    const enum element element = be == gpu ? ELEMENT_BF16 : ELEMENT_F32;
    struct step_seq seqs[N_SEQS];
    const struct step step = step_of(i, seqs);
    const size_t n_out = (size_t)step.n_rows * n_values,
                 n_bytes = be->ops->recurrent->workspace(be, s, step.n_rows);
    struct error err = {0};
    void *memory[4];
    const size_t sizes[] = {(size_t)step.n_rows * recurrent_n_inputs(s),
                            (size_t)step.n_rows * width};
    float *from[] = {v->qkv[i], v->gates[i]};
    for (int k = 0; k < 2; k++)
        memory[k] = be == gpu ? gpu_array(from[k], sizes[k], element)
                              : converted(from[k], sizes[k], element);
    memory[2] = be == gpu ? gpu_poison(n_out, element) : calloc(n_out, sizeof(float));
    memory[3] = be == gpu ? gpu_alloc(n_bytes) : aligned_alloc(64, round_up(n_bytes, 64));
    const struct recurrent_rows rows = {.qkv = memory[0],
                                        .qkv_stride = recurrent_n_inputs(s),
                                        .gates = memory[1],
                                        .element = element,
                                        .n_rows = step.n_rows,
                                        .workspace = memory[3],
                                        .out = memory[2]};
    const struct recurrent_args args =
        recurrent_args_of(&l->weights, &rows, &l->states, s->n_layers - 1);
    must(be->ops->step_begin(be, &step, &err), &err);
    must(be->ops->recurrent->run(be, &args, &err), &err);
    if (be == gpu) gpu_read(out, memory[2], n_out, element);
    else memcpy(out, memory[2], n_out * sizeof(float));
    for (int k = 0; k < 4; k++) release(be, memory[k]);
}

/* Moves every state to the host pool's memory and back, over what makes of it no number. */
static void move_states(struct backend *be, const struct state_pool *states) {
    const size_t bytes = states->slot_bytes;
    struct error err = {0};
    void *host;
    char *nan = malloc(bytes);
    memset(nan, 0xff, bytes);
    must(be->ops->host_pool->alloc(be, N_SLOTS * bytes, &host, &err), &err);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        char *slot = state_at(states, i, 0), *copy = (char *)host + i * bytes;
        must(be->ops->download(be, copy, slot, bytes, &err), &err);
        must(be->ops->upload(be, slot, nan, bytes, &err), &err);
        must(be->ops->upload(be, slot, copy, bytes, &err), &err);
    }
    must(be->ops->sync(be, &err), &err);
    be->ops->host_pool->free(be, host);
    free(nan);
}

/* Runs all steps on a backend; outputs of step i are in out[i].  moves: states leave the device
 * between steps, and come back. */
static void run_steps(struct backend *be, const struct recurrent_shape *s, const struct values *v,
                      bool moves, float *out[N_STEPS]) {
    const enum element element = be == gpu ? ELEMENT_BF16 : ELEMENT_F32;
    const uint32_t n_channels = recurrent_n_channels(s);
    struct layer l = {.weights = {.conv = plain(be, v->conv, element, n_channels, s->width),
                                  .rates = plain(be, v->rates, ELEMENT_F32, 1, s->n_v_heads),
                                  .dt_bias = plain(be, v->dt_bias, element, 1, s->n_v_heads),
                                  .norm = plain(be, v->norm, element, 1, s->v_dim),
                                  .skip = plain(be, v->skip, element, 1, s->n_v_heads)},
                      .states = state_pool_of(s, be->act_dtype, N_SLOTS)};
    struct recurrent_weights *w = &l.weights;
    recurrent_stack_conv(&w->conv, n_channels);
    const uint32_t n_keys = s->n_k_heads * s->k_dim,
                   widths[] = {s->n_v_heads * s->v_dim, n_keys, n_keys};
    const float *biases = v->biases;
    for (int i = 0; s->kind == RECURRENT_MAMBA && i < 3; biases += widths[i++])
        w->biases[i] = plain(be, (float *)biases, element, 1, widths[i]);
    const size_t bytes = N_SLOTS * l.states.slot_bytes;
    l.states.base = be == gpu ? gpu_poison(bytes / sizeof(float), ELEMENT_F32) : malloc(bytes);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        run_step(be, &l, v, i, out[i]);
        if (moves) move_states(be, &l.states);
    }
    const void *owned[] = {w->conv.data,      w->rates.data,     w->dt_bias.data,
                           w->norm.data,      w->skip.data,      w->biases[0].data,
                           w->biases[1].data, w->biases[2].data, l.states.base};
    for (size_t i = 0; i < COUNT(owned); i++) release(be, owned[i]);
}

static void check_shape(const struct recurrent_shape *s) {
    struct values v;
    float *got[N_STEPS], *expected[N_STEPS], *moved[N_STEPS];
    make_values(&v, s);
    assert_true(gpu->ops->recurrent->takes(gpu, s));
    for (uint32_t i = 0; i < N_STEPS; i++) {
        const size_t n = (size_t)rows_of(i) * s->n_v_heads * s->v_dim;
        got[i] = random_floats(n);
        expected[i] = random_floats(n);
        moved[i] = random_floats(n);
    }
    run_steps(cpu, s, &v, false, expected);
    run_steps(gpu, s, &v, false, got);
    run_steps(gpu, s, &v, true, moved);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        const size_t n = (size_t)rows_of(i) * s->n_v_heads * s->v_dim;
        assert_near(got[i], expected[i], n, tolerance, "a recurrent layer");
        assert_memory_equal(moved[i], got[i], n * sizeof(float));
        free(got[i]), free(expected[i]), free(moved[i]);
    }
    free_values(&v);
}

static void is_the_cpus_for_heads_of_any_size(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++) check_shape(&shapes[i]);
}

static void refuses_heads_that_no_kernel_takes(void **state) {
    (void)state;
    const struct recurrent_shape wide = {1, 1, 1, 512, 128, 4, false, RECURRENT_DELTA, 0, 0},
                                 odd = {1, 1, 1, 64, 6, 4, false, RECURRENT_DELTA, 0, 0},
                                 single = {1, 0, 5, 0, 1, 3, false, RECURRENT_CONVOLUTION, 0, 0},
                                 mamba = {1, 1, 1, 512, 64, 4, false, RECURRENT_MAMBA, 0, INFINITY};
    assert_false(gpu->ops->recurrent->takes(gpu, &wide));
    assert_false(gpu->ops->recurrent->takes(gpu, &odd));
    assert_false(gpu->ops->recurrent->takes(gpu, &single));
    assert_false(gpu->ops->recurrent->takes(gpu, &mamba));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_the_cpus_for_heads_of_any_size),
                                       cmocka_unit_test(refuses_heads_that_no_kernel_takes)};
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
