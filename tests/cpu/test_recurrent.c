/* test_recurrent.c - Gated DeltaNet, short convolutions and Mamba-2 on the CPU against their
 * definitions in float64.  Their bits must not depend on the steps in which the same rows come. */
#include "engine/device/recurrent.h"

#include "engine/device/step.h"
#include "tests/cpu/cpu_test.h"

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
    struct weight conv, w_rates, w_dt_bias, w_norm, w_skip, w_biases[3];
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
    l->conv = weight_plain(l->taps, ELEMENT_F32, 1, shape->width);
    l->conv.n_stacked = l->n_channels;
    l->w_rates = weight_plain(l->rates, ELEMENT_F32, 1, shape->n_v_heads);
    l->w_dt_bias = weight_plain(l->dt_bias, ELEMENT_F32, 1, shape->n_v_heads);
    l->w_norm = weight_plain(l->norm, ELEMENT_F32, 1, shape->v_dim);
    l->w_skip = weight_plain(l->skip, ELEMENT_F32, 1, shape->n_v_heads);
    const uint32_t n_keys = shape->n_k_heads * shape->k_dim,
                   widths[] = {l->n_values, n_keys, n_keys};
    const float *biases = l->biases;
    for (size_t i = 0; i < COUNT(widths); biases += widths[i++])
        l->w_biases[i] = weight_plain(biases, ELEMENT_F32, 1, widths[i]);
}

static void free_layer(struct layer *l) {
    float *all[] = {l->qkv,   l->z,       l->b,    l->a,    l->taps,
                    l->rates, l->dt_bias, l->norm, l->skip, l->biases};
    for (size_t i = 0; i < COUNT(all); i++) free(all[i]);
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

/* The convolution of a text's token, one channel, with a bias. */
static double convolve(const struct layer *l, uint32_t first, uint32_t token, uint32_t channel,
                       double bias) {
    const uint32_t width = l->shape.width;
    double sum = bias;
    for (uint32_t j = 0; j < width; j++)
        if (token + j + 1 >= width)
            sum +=
                l->taps[channel * width + j] *
                (double)l->qkv[(size_t)(first + token + j + 1 - width) * l->n_channels + channel];
    return silu(sum);
}

static double convolved(const struct layer *l, uint32_t first, uint32_t token, uint32_t channel) {
    return convolve(l, first, token, channel, 0);
}

static double biased(const struct layer *l, uint32_t first, uint32_t token, uint32_t channel) {
    return convolve(l, first, token, channel, l->biases[channel]);
}

static void make_unit(double *x, uint32_t n, double factor) {
    double sum = 1e-6;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++) x[i] *= factor / sqrt(sum);
}

/* One head of one text: the definition, token after token. */
static void define_head(const struct layer *l, uint32_t first, uint32_t n_tokens, uint32_t head,
                        double *out) {
    const struct recurrent_shape *s = &l->shape;
    const uint32_t each = s->n_v_heads / s->n_k_heads,
                   k_head = s->v_heads_apart ? head % s->n_k_heads : head / each,
                   n_keys = s->n_k_heads * s->k_dim;
    double *state = calloc((size_t)s->k_dim * s->v_dim, sizeof(*state)), q[256], k[256], o[256];
    for (uint32_t t = 0; t < n_tokens; t++) {
        const size_t row = first + t, gate = row * s->n_v_heads + head;
        double mean = 0;
        for (uint32_t i = 0; i < s->k_dim; i++) {
            q[i] = convolved(l, first, t, k_head * s->k_dim + i);
            k[i] = convolved(l, first, t, n_keys + k_head * s->k_dim + i);
        }
        make_unit(q, s->k_dim, 1 / sqrt(s->k_dim));
        make_unit(k, s->k_dim, 1);
        const double decay = exp(l->rates[head] * log1p(exp(l->a[gate] + l->dt_bias[head]))),
                     beta = 1 / (1 + exp(-l->b[gate]));
        for (uint32_t j = 0; j < s->v_dim; j++) {
            const double v = convolved(l, first, t, 2 * n_keys + head * s->v_dim + j);
            double seen = 0;
            for (uint32_t i = 0; i < s->k_dim; i++)
                seen += (state[i * s->v_dim + j] *= decay) * k[i];
            o[j] = 0;
            for (uint32_t i = 0; i < s->k_dim; i++)
                o[j] += (state[i * s->v_dim + j] += k[i] * beta * (v - seen)) * q[i];
            mean += o[j] * o[j] / s->v_dim;
        }
        for (uint32_t j = 0; j < s->v_dim; j++) {
            const size_t at = row * l->n_values + head * s->v_dim + j;
            out[at] = o[j] / sqrt(mean + 1e-5) * l->norm[j] * silu(l->z[at]);
        }
    }
    free(state);
}

/* The same of a short convolution: one channel of one text. */
static void define_channel(const struct layer *l, uint32_t first, uint32_t n_tokens,
                           uint32_t channel, double *out) {
    const uint32_t width = l->shape.width, n = l->n_channels;
    for (uint32_t t = 0; t < n_tokens; t++) {
        double sum = 0;
        for (uint32_t j = 0; j < width; j++) {
            if (t + j + 1 < width) continue;
            const float *b = l->qkv + (size_t)(first + t + j + 1 - width) * 3 * n + channel;
            sum += (double)l->taps[channel * width + j] * b[0] * b[2 * n];
        }
        const size_t row = first + t;
        out[row * n + channel] = sum * l->qkv[row * 3 * n + n + channel];
    }
}

/* The same of Mamba-2: one head of one text. */
static void define_scan(const struct layer *l, uint32_t first, uint32_t n_tokens, uint32_t head,
                        double *out) {
    const struct recurrent_shape *s = &l->shape;
    const uint32_t group = head / (s->n_v_heads / s->n_k_heads), n_keys = s->n_k_heads * s->k_dim;
    double *state = calloc((size_t)s->k_dim * s->v_dim, sizeof(*state)), b[256], c[256];
    for (uint32_t t = 0; t < n_tokens; t++) {
        const size_t row = first + t;
        const double a = l->a[row * s->n_v_heads + head] + (double)l->dt_bias[head],
                     dt = fmin(fmax(log1p(exp(a)), s->dt_least), s->dt_most),
                     decay = exp(l->rates[head] * dt);
        for (uint32_t i = 0; i < s->k_dim; i++) {
            b[i] = biased(l, first, t, l->n_values + group * s->k_dim + i);
            c[i] = biased(l, first, t, l->n_values + n_keys + group * s->k_dim + i);
        }
        for (uint32_t j = 0; j < s->v_dim; j++) {
            const double x = biased(l, first, t, head * s->v_dim + j);
            const size_t at = row * l->n_values + head * s->v_dim + j;
            double sum = l->skip[head] * x;
            for (uint32_t i = 0; i < s->k_dim; i++) {
                double *to = &state[i * s->v_dim + j];
                sum += (*to = decay * *to + dt * x * b[i]) * c[i];
            }
            out[at] = sum * silu(l->z[at]);
        }
    }
    free(state);
}

static void (*const definitions[])(const struct layer *l, uint32_t first, uint32_t n_tokens,
                                   uint32_t head,
                                   double *out) = {[RECURRENT_DELTA] = define_head,
                                                   [RECURRENT_CONVOLUTION] = define_channel,
                                                   [RECURRENT_MAMBA] = define_scan};

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
    const uint32_t stride = l->n_inputs + 3, n_gates = l->n_values + 2 * s->n_v_heads;
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
    const struct recurrent_args args = {
        .qkv = qkv,
        .qkv_stride = stride,
        .z = gates,
        .b = gates + l->n_values,
        .a = gates + l->n_values + s->n_v_heads,
        .gates_stride = n_gates,
        .conv = &l->conv,
        .rates = &l->w_rates,
        .dt_bias = &l->w_dt_bias,
        .norm = &l->w_norm,
        .skip = &l->w_skip,
        .conv_biases = {&l->w_biases[0], &l->w_biases[1], &l->w_biases[2]},
        .eps = 1e-5F,
        .states = &run->states,
        .layer = layer,
        .n_rows = step.n_rows,
        .workspace = workspace,
        .out = out};
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
    for (uint32_t i = 0, row = 0; i < N_TEXTS; row += lengths[i++])
        for (uint32_t h = 0; h < shape->n_v_heads; h++)
            definitions[shape->kind](&l, row, lengths[i], h, expected);
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
