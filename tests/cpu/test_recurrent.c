/* test_recurrent.c - Gated DeltaNet, short convolutions and Mamba-2 on the CPU against their
 * definitions in float64.  Their bits must not depend on the steps in which the same rows come. */
#include "engine/device/recurrent.h"

#include "engine/device/step.h"
#include "tests/cpu/cpu_test.h"
#include "tests/recurrent_args.h"
#include "tests/recurrent_oracle.h"

enum { N_TEXTS = 3, N_SLOTS = 2 * N_TEXTS, MAX_TOKENS = 90 };

static const struct recurrent_shape shapes[] = {
    {1, 1, 1, 5, 16, 2, false, RECURRENT_DELTA, 0, 0},
    {2, 2, 4, 32, 16, 4, false, RECURRENT_DELTA, 0, 0},
    {1, 1, 3, 128, 128, 4, false, RECURRENT_DELTA, 0, 0},
    {3, 2, 2, 20, 48, 8, false, RECURRENT_DELTA, 0, 0},
    {2, 2, 6, 32, 16, 4, true, RECURRENT_DELTA, 0, 0},
    {2, 0, 7, 0, 1, 3, false, RECURRENT_CONVOLUTION, 0, 0},
    {1, 0, 40, 0, 1, 8, false, RECURRENT_CONVOLUTION, 0, 0},
    {1, 1, 1, 5, 16, 2, false, RECURRENT_MAMBA, 0, INFINITY},
    {2, 1, 6, 32, 16, 4, false, RECURRENT_MAMBA, 0, INFINITY},
    {1, 2, 4, 128, 64, 4, false, RECURRENT_MAMBA, 0.3F, 1.1F},
    {1, 4, 4, 20, 80, 8, false, RECURRENT_MAMBA, 0, INFINITY},
};
static const uint32_t lengths[N_TEXTS] = {MAX_TOKENS, 1, 67};

/* The rows of all texts, one text behind the other, and the weights of a layer. */
struct layer {
    struct recurrent_shape shape;
    uint32_t n_inputs, n_channels, n_values, n_rows;
    float *qkv, *z, *b, *a; /* [n_rows] of n_inputs, n_values and twice n_v_heads */
    float *taps, *rates, *dt_bias, *norm, *skip, *biases;
    struct recurrent_weights weights;
};

static void make_layer(struct layer *l, const struct recurrent_shape *shape) {
    *l = (struct layer){.shape = *shape,
                        .n_inputs = recurrent_n_inputs(shape),
                        .n_channels = recurrent_n_channels(shape),
                        .n_values = shape->n_v_heads * shape->v_dim};
    for (int i = 0; i < N_TEXTS; i++) l->n_rows += lengths[i];
    l->qkv = random_floats((size_t)l->n_rows * l->n_inputs);
    l->z = random_floats((size_t)l->n_rows * l->n_values);
    l->b = random_floats((size_t)l->n_rows * shape->n_v_heads);
    l->a = random_floats((size_t)l->n_rows * shape->n_v_heads);
    l->taps = random_floats((size_t)l->n_channels * shape->width);
    l->rates = random_floats(shape->n_v_heads);
    l->dt_bias = random_floats(shape->n_v_heads);
    l->norm = random_floats(shape->v_dim);
    l->skip = random_floats(shape->n_v_heads);
    l->biases = random_floats(l->n_channels);
    for (uint32_t h = 0; h < shape->n_v_heads; h++) /* slow enough to remember */
        l->rates[h] = -expf(l->rates[h] - 3);
    struct recurrent_weights *w = &l->weights;
    w->conv = weight_plain(l->taps, ELEMENT_F32, 1, shape->width);
    recurrent_stack_conv(&w->conv, l->n_channels);
    w->rates = weight_plain(l->rates, ELEMENT_F32, 1, shape->n_v_heads);
    w->dt_bias = weight_plain(l->dt_bias, ELEMENT_F32, 1, shape->n_v_heads);
    w->norm = weight_plain(l->norm, ELEMENT_F32, 1, shape->v_dim);
    w->skip = weight_plain(l->skip, ELEMENT_F32, 1, shape->n_v_heads);
    const uint32_t n_keys = shape->n_k_heads * shape->k_dim,
                   widths[] = {l->n_values, n_keys, n_keys};
    const float *biases = l->biases;
    for (size_t i = 0; i < COUNT(widths); biases += widths[i++])
        w->biases[i] = weight_plain(biases, ELEMENT_F32, 1, widths[i]);
}

static void free_layer(struct layer *l) {
    float *all[] = {l->qkv,   l->z,       l->b,    l->a,    l->taps,
                    l->rates, l->dt_bias, l->norm, l->skip, l->biases};
    for (size_t i = 0; i < COUNT(all); i++) free(all[i]);
}

static double *doubles_of(const float *from, size_t n) {
    double *x = calloc(n, sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = from[i];
    return x;
}

static double as_it_is(double x) {
    return x;
}

/* The layer in float64, and its rows. */
struct definition {
    struct oracle_layer layer;
    double *qkv, *z, *b, *a;
    double *weights[6];
};

static void define(struct definition *d, const struct layer *l) {
    const struct recurrent_shape *s = &l->shape;
    const float *from[] = {l->taps, l->biases, l->rates, l->dt_bias, l->norm, l->skip};
    const size_t sizes[] = {(size_t)l->n_channels * s->width,
                            l->n_channels,
                            s->n_v_heads,
                            s->n_v_heads,
                            s->v_dim,
                            s->n_v_heads};
    for (size_t i = 0; i < COUNT(from); i++) d->weights[i] = doubles_of(from[i], sizes[i]);
    d->layer = (struct oracle_layer){.shape = *s,
                                     .taps = d->weights[0],
                                     .biases = s->kind == RECURRENT_MAMBA ? d->weights[1] : NULL,
                                     .rates = d->weights[2],
                                     .dt_bias = d->weights[3],
                                     .norm = d->weights[4],
                                     .skip = d->weights[5],
                                     .eps = 1e-5,
                                     .stored = as_it_is};
    d->qkv = doubles_of(l->qkv, (size_t)l->n_rows * l->n_inputs);
    d->z = doubles_of(l->z, (size_t)l->n_rows * l->n_values);
    d->b = doubles_of(l->b, (size_t)l->n_rows * s->n_v_heads);
    d->a = doubles_of(l->a, (size_t)l->n_rows * s->n_v_heads);
}

static void free_definition(struct definition *d) {
    for (size_t i = 0; i < COUNT(d->weights); i++) free(d->weights[i]);
    free(d->qkv), free(d->z), free(d->b), free(d->a);
}

/* Computes the n rows of a text that begins in row `first`. */
static void define_text(const struct definition *d, size_t first, uint32_t n, double *out) {
    const struct recurrent_shape *s = &d->layer.shape;
    const uint32_t n_channels = recurrent_n_channels(s), n_values = s->n_v_heads * s->v_dim;
    const double *qkv = d->qkv + first * recurrent_n_inputs(s);
    out += first * n_values;
    if (s->kind == RECURRENT_CONVOLUTION) {
        for (size_t i = 0; i < (size_t)n * n_channels; i++)
            out[i] = oracle_short_convolution(&d->layer, qkv, i / n_channels,
                                              (uint32_t)(i % n_channels));
        return;
    }
    const size_t n_state = (size_t)s->k_dim * s->v_dim;
    double *vectors = calloc((size_t)n * n_channels, sizeof(*vectors));
    for (size_t row = 0; row < n; row++)
        oracle_vectors(&d->layer, qkv, row, vectors + row * n_channels);
    for (uint32_t h = 0; h < s->n_v_heads; h++) {
        double *state = calloc(n_state, sizeof(*state));
        oracle_recur(&d->layer, vectors, d->a + first * s->n_v_heads, d->b + first * s->n_v_heads,
                     n, h, state, out);
        free(state);
    }
    oracle_finish(&d->layer, d->z + first * n_values, out, (size_t)n * s->n_v_heads);
    free(vectors);
}

/* Where the texts' states are, and how far they have come. */
struct run {
    struct state_pool states;
    struct state_slots slots[N_TEXTS];
    uint32_t n_done[N_TEXTS];
    float *out; /* [n_rows, n_values] of the layer */
};

static float *copy_rows(const float *from, size_t first, size_t n, size_t width, float *to,
                        size_t stride) {
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * stride, from + (first + i) * width, width * sizeof(float));
    return to;
}

/* Computes the next n[i] rows of each text in one step, with gaps between the rows' parts. */
static void step(struct backend *be, const struct layer *l, struct run *run, const uint32_t *n,
                 uint32_t layer) {
    const struct recurrent_shape *s = &l->shape;
    struct step_seq seqs[N_TEXTS];
    struct step step = {.seqs = seqs, .has_states = true};
    struct error err = {0};
    uint32_t texts[N_TEXTS];
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        if (n[i] == 0) continue;
        texts[step.n_seqs] = i;
        seqs[step.n_seqs++] = (struct step_seq){.first_row = step.n_rows,
                                                .n_rows = n[i],
                                                .n_before = run->n_done[i],
                                                .state = run->slots[i]};
        step.n_rows += n[i];
    }
    const uint32_t stride = l->n_inputs + 3, n_gates = recurrent_gates_width(s);
    float *qkv = random_floats((size_t)step.n_rows * stride),
          *gates = random_floats((size_t)step.n_rows * n_gates),
          *out = random_floats((size_t)step.n_rows * l->n_values);
    for (uint32_t i = 0, row = 0; i < N_TEXTS; row += lengths[i++])
        for (uint32_t j = 0; j < step.n_seqs; j++) {
            if (texts[j] != i) continue;
            const size_t first = row + run->n_done[i], at = seqs[j].first_row;
            float *to = gates + at * n_gates;
            copy_rows(l->qkv, first, n[i], l->n_inputs, qkv + at * stride, stride);
            copy_rows(l->z, first, n[i], l->n_values, to, n_gates);
            copy_rows(l->b, first, n[i], s->n_v_heads, to + l->n_values, n_gates);
            copy_rows(l->a, first, n[i], s->n_v_heads, to + l->n_values + s->n_v_heads, n_gates);
        }
    void *workspace =
        aligned_alloc(64, round_up(be->ops->recurrent->workspace(be, s, step.n_rows), 64));
    const struct recurrent_rows rows = {.qkv = qkv,
                                        .qkv_stride = stride,
                                        .gates = gates,
                                        .element = ELEMENT_F32,
                                        .n_rows = step.n_rows,
                                        .workspace = workspace,
                                        .out = out};
    const struct recurrent_args args = recurrent_args_of(&l->weights, &rows, &run->states, layer);
    assert_int_equal(be->ops->step_begin(be, &step, &err), 0);
    assert_int_equal(be->ops->recurrent->run(be, &args, &err), 0);
    for (uint32_t i = 0, row = 0; i < N_TEXTS; row += lengths[i++])
        for (uint32_t j = 0; j < step.n_seqs; j++)
            if (texts[j] == i)
                copy_rows(out, seqs[j].first_row, n[i], l->n_values,
                          run->out + (size_t)(row + run->n_done[i]) * l->n_values, l->n_values);
    for (uint32_t i = 0; i < N_TEXTS; i++) run->n_done[i] += n[i];
    free(qkv);
    free(gates);
    free(out);
    free(workspace);
}

/* Computes all texts in steps of at most `most` rows of each.  is_moving: each step's states go to
 * other slots than they come from. */
static float *run_texts(struct backend *be, const struct layer *l, uint32_t most, bool is_moving) {
    struct run run = {.states = state_pool_of(&l->shape, DTYPE_F32, N_SLOTS),
                      .out = calloc((size_t)l->n_rows * l->n_values, sizeof(float))};
    run.states.base = malloc(N_SLOTS * run.states.slot_bytes);
    memset(run.states.base, 0x3f, N_SLOTS * run.states.slot_bytes);
    for (uint32_t i = 0; i < N_TEXTS; i++) run.slots[i] = (struct state_slots){STATE_ZERO, 2 * i};
    for (bool more = true; more;) {
        uint32_t n[N_TEXTS], n_rows = 0;
        for (uint32_t i = 0; i < N_TEXTS; i++)
            n_rows += n[i] = min_u32(lengths[i] - run.n_done[i], most ? most : 1 + random_below(9));
        more = n_rows > 0;
        if (more) step(be, l, &run, n, l->shape.n_layers - 1);
        for (uint32_t i = 0; i < N_TEXTS; i++)
            if (n[i] > 0)
                run.slots[i] = (struct state_slots){run.slots[i].to, run.slots[i].to ^ is_moving};
    }
    free(run.states.base);
    return run.out;
}

static void check_shape(struct backend *be, const struct recurrent_shape *shape) {
    struct layer l;
    make_layer(&l, shape);
    assert_true(be->ops->recurrent->takes(be, shape));
    const size_t n = (size_t)l.n_rows * l.n_values;
    double *expected = calloc(n, sizeof(*expected));
    struct definition d;
    define(&d, &l);
    for (uint32_t i = 0, row = 0; i < N_TEXTS; row += lengths[i++])
        define_text(&d, row, lengths[i], expected);
    free_definition(&d);
    float *whole = run_texts(be, &l, MAX_TOKENS, false);
    assert_close(whole, expected, n, 1e-5);
    const uint32_t cuts[] = {1, 3, 64, 0};
    for (size_t i = 0; i < COUNT(cuts); i++) {
        float *cut = run_texts(be, &l, cuts[i], i % 2 == 0);
        assert_memory_equal(cut, whole, n * sizeof(float));
        free(cut);
    }
    free(whole);
    free(expected);
    free_layer(&l);
}

static void check_shapes(struct backend *be) {
    for (size_t i = 0; i < COUNT(shapes); i++) check_shape(be, &shapes[i]);
}

TEST(is_its_definition_and_does_not_depend_on_the_steps) {
    for_each_backend(check_shapes);
}

/* x *= sigmoid(gate), at lengths that are no whole registers. */
static void check_gate(struct backend *be) {
    for (uint32_t dim = 1; dim < 70; dim += 7) {
        const uint32_t n_rows = 1 + random_below(40);
        const size_t n = (size_t)n_rows * dim;
        float *x = random_floats(n), *gate = random_floats(n);
        double *expected = calloc(n, sizeof(*expected));
        struct error err = {0};
        for (size_t i = 0; i < n; i++) {
            gate[i] *= i % 5 ? 3 : 60;
            expected[i] = x[i] / (1 + exp(-(double)gate[i]));
        }
        const struct gate_args args = {x, gate, n_rows, dim};
        assert_int_equal(be->ops->gate(be, &args, &err), 0);
        assert_close(x, expected, n, 1e-6);
        free(x);
        free(gate);
        free(expected);
    }
}

static double through_gate(double gate, enum gate_kind kind) {
    if (kind == GATE_SILU) return gate / (1 + exp(-gate));
    return gate / 2 * (1 + tanh(sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate)));
}

/* kind(x Wg^T) * u, where each row has a u of its own, a part of a longer row. */
static void check_own_rows(struct backend *be) {
    enum { N_IN = 5, AT = 3 };
    for (uint32_t dim = 1; dim < 70; dim += 7) {
        const uint32_t n_rows = 1 + random_below(40), stride = 3 * dim + AT;
        const size_t n = (size_t)n_rows * dim;
        const enum gate_kind kind = dim % 2 ? GATE_GELU : GATE_SILU;
        float *x = random_floats(n_rows * N_IN), *gate = random_floats(dim * N_IN),
              *u = random_floats((size_t)n_rows * stride), *gate_up = random_floats(2 * n),
              *out = random_floats(n);
        double *expected = calloc(n, sizeof(*expected));
        const struct weight w = weight_plain(gate, ELEMENT_F32, dim, N_IN),
                            rows = weight_plain(u + AT, ELEMENT_F32, n_rows, stride);
        const struct gated_args args = {.x = x,
                                        .n_rows = n_rows,
                                        .n_in = N_IN,
                                        .gate = &w,
                                        .up_bias = &rows,
                                        .gate_up = gate_up,
                                        .out = out,
                                        .kind = kind};
        struct error err = {0};
        for (size_t i = 0; i < n; i++) {
            double sum = 0;
            for (uint32_t k = 0; k < N_IN; k++)
                sum += (double)x[i / dim * N_IN + k] * (double)gate[i % dim * N_IN + k];
            expected[i] = through_gate(sum, kind) * (double)u[i / dim * stride + AT + i % dim];
        }
        assert_int_equal(be->ops->gated(be, &args, &err), 0);
        assert_close(out, expected, n, 1e-5);
        free(x), free(gate), free(u), free(gate_up), free(out), free(expected);
    }
}

TEST(gates_multiply) {
    for_each_backend(check_gate);
    for_each_backend(check_own_rows);
}
