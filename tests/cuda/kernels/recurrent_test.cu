/* recurrent_test.cu - the kernels of Gated DeltaNet and Mamba-2 (cuda/recurrent/) against the
 * recurrence in double.
 *
 *   recurrent_test            tests; 77 without a device of compute capability 9.0
 *   recurrent_test --bench [delta|mamba]    times, as CSV: kernel, shape, microseconds, bytes a
 *                                           second
 *
 * The oracle takes the vectors as the convolution stored them, so what is left are the errors of
 * sums and of split products.  The convolution is tested by itself. */
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "cuda/recurrent/delta.cuh"
#include "tests/cuda/bench/bench.cuh"
#include "tests/recurrent_oracle.h"

/* ---- random numbers ---- */

static uint64_t random_state = 88172645463325252u;

static double uniform_random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) / 9007199254740992.0;
}

static double normal_random() {
    double sum = -6.0;
    for (int i = 0; i < 12; i++) sum += uniform_random();
    return sum;
}

static double from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t to_bf16(double x) {
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

typedef std::vector<uint16_t> halves;
typedef std::vector<double> doubles;

static halves random_halves(size_t n, double scale) {
    halves x(n);
    for (uint16_t &e : x) e = to_bf16(normal_random() * scale);
    return x;
}

template <typename T> static T *to_device(const std::vector<T> &x) {
    void *at;
    check(cudaMalloc(&at, x.size() * sizeof(T) + 256), "memory");
    check(cudaMemcpy(at, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice), "a copy");
    return static_cast<T *>(at);
}

template <typename T> static std::vector<T> from_device(const void *at, size_t n) {
    std::vector<T> x(n);
    check(cudaMemcpy(x.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost), "a copy");
    return x;
}

/* ---- a layer and a step ---- */

struct layer {
    recurrent_shape shape;
    halves conv, dt_bias, norm, biases, skip;
    std::vector<float> rates;
    bool is_delta() const { return shape.kind == RECURRENT_DELTA; }
    uint32_t n_channels() const { return recurrent_n_channels(&shape); }
    uint32_t n_values() const { return shape.n_v_heads * shape.v_dim; }
    uint32_t n_keys() const { return shape.n_k_heads * shape.k_dim; }
    uint32_t gates_width() const { return n_values() + 2 * shape.n_v_heads; }
    size_t head_size() const { return (size_t)shape.k_dim * shape.v_dim; }
};

static layer make_layer_of(const recurrent_shape &shape) {
    layer l = {shape, {}, {}, {}, {}, {}, {}};
    l.conv = random_halves((size_t)l.n_channels() * DELTA_WIDTH, 0.5);
    l.norm = random_halves(shape.v_dim, 1.0);
    l.biases = random_halves(l.n_channels(), 0.5);
    l.skip = random_halves(shape.n_v_heads, 1.0);
    for (uint32_t h = 0; h < shape.n_v_heads; h++) {
        const double dt = exp(log(1e-3) + uniform_random() * log(100.0));
        l.rates.push_back((float)(-1.0 - 15.0 * uniform_random()));
        l.dt_bias.push_back(to_bf16(dt + log(-expm1(-dt))));
    }
    return l;
}

static layer make_layer(uint32_t n_k_heads, uint32_t n_v_heads, bool v_heads_apart = false) {
    return make_layer_of({1, n_k_heads, n_v_heads, DELTA_DIM, DELTA_DIM, DELTA_WIDTH, v_heads_apart,
                          RECURRENT_DELTA, 0.0f, 0.0f});
}

static layer make_mamba(uint32_t n_k_heads, uint32_t n_v_heads, uint32_t v_dim,
                        float dt_least = 0.0f, float dt_most = INFINITY) {
    return make_layer_of({1, n_k_heads, n_v_heads, MAMBA_K_DIM, v_dim, DELTA_WIDTH, false,
                          RECURRENT_MAMBA, dt_least, dt_most});
}

struct rows {
    halves qkv, z, a, b; /* of all rows */
};

static rows make_rows(const layer &l, size_t n, double gate_scale) {
    rows r;
    r.qkv = random_halves(n * l.n_channels(), 1.0);
    r.z = random_halves(n * l.n_values(), 1.0);
    r.a = random_halves(n * l.shape.n_v_heads, gate_scale);
    r.b = random_halves(n * l.shape.n_v_heads, gate_scale);
    return r;
}

struct sequence {
    uint32_t n_rows;
    device_state state;
};

/* A layer with its states, on the device. */
struct rig {
    const layer &l;
    uint32_t n_slots;
    recurrent_params p = {};
    size_t state_bytes;
    cudaStream_t stream;
    launch on;
    std::vector<void *> owned;

    template <typename T> T *own(T *at) {
        owned.push_back((void *)at);
        return at;
    }
    rig(const layer &l, uint32_t n_slots) : l(l), n_slots(n_slots) {
        const recurrent_shape &shape = l.shape;
        p.n_k_heads = shape.n_k_heads, p.n_v_heads = shape.n_v_heads;
        p.v_heads_apart = shape.v_heads_apart, p.kind = shape.kind, p.n_channels = l.n_channels();
        p.k_dim = shape.k_dim, p.v_dim = shape.v_dim, p.width = shape.width, p.eps = 1e-6f;
        p.dt_least = shape.dt_least, p.dt_most = shape.dt_most;
        p.conv = {own(to_device(l.conv)), ELEMENT_BF16};
        p.dt_bias = {own(to_device(l.dt_bias)), ELEMENT_BF16};
        p.norm = {own(to_device(l.norm)), ELEMENT_BF16};
        p.skip = {own(to_device(l.skip)), ELEMENT_BF16};
        p.rates = {own(to_device(l.rates)), ELEMENT_F32};
        const uint16_t *biases = own(to_device(l.biases));
        if (!l.is_delta()) {
            p.conv_biases[0] = {biases, ELEMENT_BF16};
            p.conv_biases[1] = {biases + l.n_values(), ELEMENT_BF16};
            p.conv_biases[2] = {biases + l.n_values() + l.n_keys(), ELEMENT_BF16};
        }
        p.inputs_at = recurrent_n_elements(&shape) * sizeof(float);
        p.slot_bytes = p.inputs_at + (size_t)DELTA_WIDTH * l.n_channels() * sizeof(bf16);
        void *states;
        check(cudaMalloc(&states, n_slots * p.slot_bytes), "memory");
        check(cudaMemset(states, 0xff, n_slots * p.slot_bytes), "memory");
        p.states = static_cast<char *>(own(states));
        int device, n;
        check(cudaGetDevice(&device), "device");
        check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device), "device");
        check(cudaStreamCreate(&stream), "stream");
        on = launch_on(stream, true);
        on.n_multiprocessors = (uint32_t)n;
    }
    ~rig() {
        for (void *at : owned) cudaFree(at);
        cudaStreamDestroy(stream);
    }
    doubles state(uint32_t slot) const {
        const size_t n = p.inputs_at / sizeof(float);
        const std::vector<float> s = from_device<float>(p.states + slot * p.slot_bytes, n);
        return doubles(s.begin(), s.end());
    }
};

/* The description of a step on the device, and its windows. */
struct device_rows {
    rig &r;
    recurrent_params p;
    uint32_t n_chunks = 0, n_prompts = 0, n_rows = 0;
    void *tiles, *solved;
    uint32_t window_chunks;

    device_rows(rig &r, const rows &in, const std::vector<sequence> &seqs, uint32_t n_decode,
                uint32_t window_chunks = WINDOW_CHUNKS)
        : r(r), p(r.p), window_chunks(window_chunks) {
        std::vector<int32_t> first_row, seq_rows;
        std::vector<device_state> states;
        std::vector<device_chunk> chunks;
        for (uint32_t i = 0; i < seqs.size(); i++) {
            device_state state = seqs[i].state;
            state.first_chunk = (uint32_t)chunks.size();
            for (uint32_t row = 0; i >= n_decode && row < seqs[i].n_rows;) {
                const uint32_t room = CHUNK_ROWS - (state.n_before + row) % CHUNK_ROWS,
                               n = std::min(room, seqs[i].n_rows - row);
                chunks.push_back({i, n_rows + row, n, row + n == seqs[i].n_rows});
                row += n;
            }
            first_row.push_back((int32_t)n_rows);
            seq_rows.push_back((int32_t)seqs[i].n_rows);
            states.push_back(state);
            n_rows += seqs[i].n_rows;
        }
        n_chunks = (uint32_t)chunks.size();
        n_prompts = (uint32_t)seqs.size() - n_decode;
        device_step step = {};
        step.n_rows = n_rows, step.n_seqs = (uint32_t)seqs.size(), step.n_decode = n_decode;
        step.first_row = r.own(to_device(first_row));
        step.seq_rows = r.own(to_device(seq_rows));
        const device_recurrent states_of = {r.own(to_device(states)), r.own(to_device(chunks)),
                                            n_chunks};
        p.states_of = r.own(to_device(std::vector<device_recurrent>{states_of}));
        p.step = r.own(to_device(std::vector<device_step>{step}));
        /* z, b and a in one matrix: as when one product makes them. */
        p.gates_stride = r.l.gates_width(), p.qkv_stride = r.l.n_channels();
        p.qkv = repeated(in.qkv, p.qkv_stride);
        const uint16_t *gates = static_cast<uint16_t *>(repeated(join(in), p.gates_stride));
        p.z = gates;
        p.b = gates + r.l.n_values();
        p.a = gates + r.l.n_values() + p.n_v_heads;
        p.n_rows = n_rows;
        const size_t out_bytes = (size_t)n_rows * r.l.n_values() * sizeof(bf16);
        check(cudaMalloc(&p.out, out_bytes), "memory");
        check(cudaMemset(r.own(p.out), 0xff, out_bytes), "memory");
        check(cudaMalloc(&tiles, prompt_tile_bytes(p.n_channels, window_chunks)), "memory");
        const auto solved_bytes = r.l.is_delta() ? delta_solved_bytes : mamba_weighed_bytes;
        check(cudaMalloc(&solved, solved_bytes(p.n_v_heads, window_chunks)), "memory");
        r.own(tiles), r.own(solved);
    }
    halves join(const rows &in) const {
        const size_t n_heads = p.n_v_heads, n_z = r.l.n_values(), n = in.a.size() / n_heads;
        halves all(n * p.gates_stride);
        for (size_t row = 0; row < n; row++) {
            uint16_t *to = &all[row * p.gates_stride];
            memcpy(to, &in.z[row * n_z], n_z * sizeof(*to));
            memcpy(to + n_z, &in.b[row * n_heads], n_heads * sizeof(*to));
            memcpy(to + n_z + n_heads, &in.a[row * n_heads], n_heads * sizeof(*to));
        }
        return all;
    }
    /* Returns n_rows rows on the device: those of x, again and again. */
    void *repeated(const halves &x, size_t width) {
        const size_t whole = n_rows * width * sizeof(uint16_t), once = x.size() * sizeof(uint16_t);
        char *at;
        check(cudaMalloc(&at, whole), "memory");
        for (size_t done = 0; done < whole; done += once)
            check(cudaMemcpy(at + done, x.data(), std::min(once, whole - done),
                             cudaMemcpyHostToDevice),
                  "a copy");
        return r.own(at);
    }
    recurrent_window window(uint32_t first) const {
        return {first, std::min(window_chunks, n_chunks - first), n_prompts, tiles, solved};
    }
    /* Runs the prompts, and calls `seen` when a window's tiles are there. */
    void run_prompts(const std::function<void(const recurrent_window &)> &seen = {}) {
        for (uint32_t first = 0; first < n_chunks; first += window_chunks) {
            const recurrent_window w = window(first);
            check(launch_prompt_convolve(&p, &w, r.on), "convolve");
            if (seen) {
                check(cudaStreamSynchronize(r.stream), "convolve");
                seen(w);
            }
            const bool is_delta = r.l.is_delta();
            check((is_delta ? launch_delta_prepare : launch_mamba_prepare)(&p, &w, r.on),
                  "prepare");
            check((is_delta ? launch_delta_scan : launch_mamba_scan)(&p, &w, r.on), "scan");
        }
    }
    /* Makes out of o, where the scan has not. */
    void run_output() const {
        if (r.l.is_delta()) check(launch_delta_output(&p, r.on), "output");
    }
    void run_decode() const {
        check(r.l.is_delta() ? launch_delta_decode(&p, r.on) : launch_mamba_decode(&p, r.on),
              "decode");
    }
    void finish() const { check(cudaStreamSynchronize(r.stream), "kernels"); }
    doubles outputs() const {
        const halves x = from_device<uint16_t>(p.out, (size_t)n_rows * r.l.n_values());
        doubles y(x.size());
        for (size_t i = 0; i < x.size(); i++) y[i] = from_bf16(x[i]);
        return y;
    }
};

/* ---- the oracle ---- */

static doubles doubles_of(const halves &x) {
    doubles y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = from_bf16(x[i]);
    return y;
}

static double rounded(double x) {
    return from_bf16(to_bf16(x));
}

/* The layer in float64; vectors are stored in bf16. */
struct definition {
    doubles taps, biases, rates, dt_bias, norm, skip;
    oracle_layer of;
    explicit definition(const layer &l)
        : taps(doubles_of(l.conv)), biases(doubles_of(l.biases)),
          rates(l.rates.begin(), l.rates.end()), dt_bias(doubles_of(l.dt_bias)),
          norm(doubles_of(l.norm)), skip(doubles_of(l.skip)),
          of{l.shape,      taps.data(),    l.is_delta() ? nullptr : biases.data(),
             rates.data(), dt_bias.data(), norm.data(),
             skip.data(),  1e-6,           rounded} {}
    definition(const definition &) = delete;
};

/* Runs all v heads over n rows of vectors, from the states on. */
static void recur(const definition &d, const doubles &vectors, const doubles &a, const doubles &b,
                  size_t n, doubles &states, double *out) {
    const recurrent_shape &s = d.of.shape;
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 16; t++)
        threads.emplace_back([&, t] {
            for (uint32_t h = t; h < s.n_v_heads; h += 16)
                oracle_recur(&d.of, vectors.data(), a.data(), b.data(), n, h,
                             &states[(size_t)h * s.k_dim * s.v_dim], out);
        });
    for (std::thread &t : threads) t.join();
}

static int n_failures;

static double relative_error(const double *x, const double *want, size_t n) {
    double error = 0.0, size = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (!std::isfinite(x[i])) return INFINITY;
        error += (x[i] - want[i]) * (x[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(error) / std::max(sqrt(size), 1e-30); /* less than f32 has */
}

static void expect(const char *what, uint32_t n, double error, double most) {
    const bool failed = !(error <= most);
    n_failures += failed;
    printf("%-6s %-40s %6u  error %.2e, at most %.0e\n", failed ? "FAILED" : "ok", what, n, error,
           most);
}

/* ---- tests ---- */

/* Takes the vectors out of a window's tiles. */
static void read_tiles(const device_rows &d, const recurrent_window &w,
                       const std::vector<device_chunk> &chunks, doubles &vectors) {
    const uint32_t n = d.p.n_channels;
    const halves tiles = from_device<uint16_t>(w.tiles, (size_t)w.n_chunks * n * CHUNK_ROWS);
    for (uint32_t slot = 0; slot < w.n_chunks; slot++)
        for (uint32_t i = 0; i < CHUNK_ROWS; i++)
            for (uint32_t c = 0; c < n; c++) {
                const device_chunk &chunk = chunks[w.first_chunk + slot];
                const uint32_t row = tile_row(i);
                const size_t at =
                    ((size_t)slot * (n / HALF_CHANNELS) + c / HALF_CHANNELS) * HALF_BYTES +
                    row * 128 + (c % 64 / 8 ^ row % 8) * 16 + c % 8 * 2;
                const double x = from_bf16(tiles[at / 2]);
                if (i < chunk.n_rows) vectors[(size_t)(chunk.first_row + i) * n + c] = x;
                else if (x != 0.0) n_failures++;
            }
}

static rows part_of(const layer &l, const rows &in, size_t first, size_t n) {
    const auto cut = [&](const halves &x, size_t width) {
        return halves(x.begin() + (ptrdiff_t)(first * width),
                      x.begin() + (ptrdiff_t)((first + n) * width));
    };
    return {cut(in.qkv, l.n_channels()), cut(in.z, l.n_values()), cut(in.a, l.shape.n_v_heads),
            cut(in.b, l.shape.n_v_heads)};
}

struct answer {
    doubles vectors, out; /* of all rows */
};

/* Runs prompts on the device, and compares what comes out of each with the oracle's.  States that
 * the sequences begin from are taken from the device. */
static answer test_prompts(const char *what, rig &r, const rows &in,
                           const std::vector<sequence> &seqs, double state_error,
                           uint32_t window_chunks = WINDOW_CHUNKS) {
    const layer &l = r.l;
    const uint32_t n_heads = l.shape.n_v_heads;
    const size_t row_size = l.n_values(), head_size = l.head_size();
    const definition def(l);
    std::vector<doubles> states;
    for (const sequence &s : seqs)
        states.push_back(s.state.from < 0 ? doubles(r.p.inputs_at / 4, 0.0)
                                          : r.state((uint32_t)s.state.from));
    device_rows d(r, in, seqs, 0, window_chunks);
    const std::vector<device_chunk> chunks = from_device<device_chunk>(
        from_device<device_recurrent>(d.p.states_of, 1)[0].chunks, d.n_chunks);
    answer got;
    got.vectors.resize((size_t)d.n_rows * l.n_channels());
    d.run_prompts([&](const recurrent_window &w) { read_tiles(d, w, chunks, got.vectors); });
    d.finish();
    const doubles raw = d.outputs();
    d.run_output();
    d.finish();
    got.out = d.outputs();
    doubles out(raw.size());
    double state_worst = 0.0;
    size_t first = 0;
    for (size_t i = 0; i < seqs.size(); i++) {
        const rows mine = part_of(l, in, first, seqs[i].n_rows);
        const doubles vectors(
            got.vectors.begin() + (ptrdiff_t)(first * l.n_channels()),
            got.vectors.begin() + (ptrdiff_t)((first + seqs[i].n_rows) * l.n_channels()));
        recur(def, vectors, doubles_of(mine.a), doubles_of(mine.b), seqs[i].n_rows, states[i],
              &out[first * row_size]);
        const doubles state = r.state((uint32_t)seqs[i].state.to);
        for (uint32_t h = 0; h < n_heads; h++)
            state_worst = std::max(
                state_worst,
                relative_error(&state[h * head_size], &states[i][h * head_size], head_size));
        first += seqs[i].n_rows;
    }
    expect(what, d.n_rows, state_worst, state_error);
    if (l.is_delta())
        expect("  o", d.n_rows, relative_error(raw.data(), out.data(), out.size()), 4e-3);
    oracle_finish(&def.of, doubles_of(in.z).data(), out.data(), (size_t)d.n_rows * n_heads);
    expect("  out", d.n_rows, relative_error(got.out.data(), out.data(), out.size()), 6e-3);
    return got;
}

static void test_lengths(const layer &l) {
    for (uint32_t n :
         {1u, 2u, 3u, 4u, 15u, 16u, 17u, 63u, 64u, 65u, 127u, 128u, 129u, 200u, 1000u, 5000u}) {
        rig r(l, 1);
        const rows in = make_rows(l, n, 1.0);
        const answer got = test_prompts("prompt", r, in, {{n, {-1, 0, 0, 0}}}, 1e-5);
        const definition def(l);
        const doubles qkv = doubles_of(in.qkv);
        doubles want, one(l.n_channels());
        for (size_t row = 0; row<n; row += n> 200 ? 97 : 1) {
            oracle_vectors(&def.of, qkv.data(), row, one.data());
            want.assign(got.vectors.begin() + (ptrdiff_t)(row * one.size()),
                        got.vectors.begin() + (ptrdiff_t)((row + 1) * one.size()));
            const double error = relative_error(want.data(), one.data(), one.size());
            if (!(error < 1e-3)) expect("  vectors of row", (uint32_t)row, error, 1e-3);
        }
    }
}

/* Runs rows [0, ends.back()) in steps that end there, as prompts or, if `decodes`, row by row. */
static doubles state_after_steps(const layer &l, const rows &in, const std::vector<uint32_t> &ends,
                                 bool decodes, doubles *out) {
    rig r(l, 2);
    uint32_t first = 0;
    int32_t from = -1, to = 0;
    out->clear();
    for (uint32_t end : ends) {
        device_rows d(r, part_of(l, in, first, end - first), {{end - first, {from, to, first, 0}}},
                      decodes);
        if (decodes) d.run_decode();
        else {
            d.run_prompts();
            d.run_output();
        }
        d.finish();
        const doubles part = d.outputs();
        out->insert(out->end(), part.begin(), part.end());
        first = end;
        from = to;
        to = end % 3 == 0 ? to : 1 - to; /* in place, and elsewhere */
    }
    return r.state((uint32_t)from);
}

static void test_cuts(const layer &l) {
    const uint32_t n = 700;
    const rows in = make_rows(l, n, 1.0);
    doubles whole_out, out;
    const doubles whole = state_after_steps(l, in, {n}, false, &whole_out);
    const std::vector<uint32_t> odd = {1, 2, 5, 63, 65, 100, 128, 190, 333, 641, n},
                                even = {64, 192, 448, n};
    const doubles cut = state_after_steps(l, in, odd, false, &out);
    expect("cut at odd places: state", n, relative_error(cut.data(), whole.data(), cut.size()),
           1e-5);
    expect("cut at odd places: out", n, relative_error(out.data(), whole_out.data(), out.size()),
           2e-3);
    const doubles same = state_after_steps(l, in, even, false, &out);
    expect("cut at chunks: the same bits", n, same != whole || out != whole_out, 0);
    std::vector<uint32_t> ones;
    for (uint32_t i = 1; i <= n; i++) ones.push_back(i);
    const doubles decoded = state_after_steps(l, in, ones, true, &out);
    expect("row by row: state", n, relative_error(decoded.data(), whole.data(), cut.size()), 1e-5);
    expect("row by row: out", n, relative_error(out.data(), whole_out.data(), out.size()), 6e-3);
}

/* Several prompts at once, some of which go on from states, in windows of any size. */
static void test_many(const layer &l) {
    for (uint32_t window : {1u, 3u, 64u}) {
        rig r(l, 8);
        const rows before = make_rows(l, 40, 1.0);
        device_rows d(r, before, {{7, {-1, 0, 0, 0}}, {30, {-1, 1, 0, 0}}, {3, {-1, 2, 0, 0}}}, 0);
        d.run_prompts();
        d.finish();
        const std::vector<sequence> seqs = {{100, {0, 3, 7, 0}},  {1, {2, 2, 3, 0}},
                                            {64, {-1, 4, 0, 0}},  {2, {1, 5, 30, 0}},
                                            {333, {-1, 6, 0, 0}}, {40, {1, 7, 30, 0}}};
        test_prompts("several", r, make_rows(l, 540, 1.0), seqs, 1e-5, window);
    }
}

static void test_wild_gates(const layer &l) {
    const uint32_t n = 300;
    for (double scale : {30.0, 300.0}) {
        rig r(l, 1);
        test_prompts("wild gates", r, make_rows(l, n, scale), {{n, {-1, 0, 0, 0}}}, 2e-5);
    }
}

static void test_extremes(const layer &l) {
    const uint32_t n = 300;
    test_wild_gates(l);
    rows alike = make_rows(l, n, 1.0);
    for (size_t i = l.n_channels(); i < alike.qkv.size(); i++)
        alike.qkv[i] = alike.qkv[i % l.n_channels()];
    for (uint16_t &b : alike.b) b = to_bf16(20.0);
    for (uint16_t &a : alike.a) a = to_bf16(-30.0);
    rig same(l, 1);
    test_prompts("equal keys that replace and stay", same, alike, {{n, {-1, 0, 0, 0}}}, 1e-4);
    rows none = make_rows(l, n, 1.0);
    for (size_t i = 0; i < none.qkv.size(); i++)
        if (i / l.n_channels() % 3) none.qkv[i] = 0;
    rig zero(l, 1);
    test_prompts("rows of zeros", zero, none, {{n, {-1, 0, 0, 0}}}, 1e-5);
}

/* Returns what a prompt of rows [first, first + n) of `before` and then row `last` of `in` gives:
 * the state, and the last row's output. */
static std::vector<doubles> as_prompt(const layer &l, const rows &before, size_t first, uint32_t n,
                                      const rows &in, size_t last) {
    rig r(l, 1);
    rows whole = part_of(l, before, first, n);
    const rows end = part_of(l, in, last, 1);
    const auto add = [](halves &to, const halves &x) { to.insert(to.end(), x.begin(), x.end()); };
    add(whole.qkv, end.qkv), add(whole.z, end.z), add(whole.a, end.a), add(whole.b, end.b);
    device_rows d(r, whole, {{n + 1, {-1, 0, 0, 0}}}, 0);
    d.run_prompts();
    d.run_output();
    d.finish();
    const doubles out = d.outputs();
    return {r.state(0), doubles(out.end() - (ptrdiff_t)l.n_values(), out.end())};
}

/* Sequences that decode beside a prompt, against the same as prompts. */
static void test_decode(const layer &l, uint32_t n_decode) {
    const uint32_t width = l.n_values();
    rig r(l, n_decode + 1);
    std::vector<sequence> seqs;
    for (uint32_t i = 0; i < n_decode; i++) seqs.push_back({5 + i % 3, {-1, (int32_t)i, 0, 0}});
    uint32_t n = 0;
    for (const sequence &s : seqs) n += s.n_rows;
    const rows before = make_rows(l, n, 1.0), in = make_rows(l, n_decode + 70, 1.0);
    device_rows d(r, before, seqs, 0);
    d.run_prompts();
    d.finish();
    std::vector<sequence> both = seqs;
    for (sequence &s : both) s.state.from = s.state.to, s.state.n_before = s.n_rows, s.n_rows = 1;
    both.push_back({70, {-1, (int32_t)n_decode, 0, 0}});
    device_rows next(r, in, both, n_decode);
    next.run_decode();
    next.run_prompts();
    next.run_output();
    next.finish();
    const doubles got = next.outputs();
    double worst_state = 0.0, worst_out = 0.0;
    for (uint32_t i = 0, first = 0; i < n_decode; first += seqs[i++].n_rows) {
        const std::vector<doubles> want = as_prompt(l, before, first, seqs[i].n_rows, in, i);
        worst_state = std::max(worst_state,
                               relative_error(r.state(i).data(), want[0].data(), want[0].size()));
        worst_out =
            std::max(worst_out, relative_error(&got[(size_t)i * width], want[1].data(), width));
    }
    expect("decode: states", n_decode, worst_state, 1e-5);
    expect("decode: out", n_decode, worst_out, 8e-3);
    for (size_t i = (size_t)n_decode * width; i < got.size(); i++)
        if (!std::isfinite(got[i])) n_failures++;
}

static int run_tests() {
    const layer small = make_layer(2, 6), twins = make_layer(2, 4), large = make_layer(16, 48),
                apart = make_layer(2, 6, true);
    test_lengths(small);
    test_many(small);
    test_cuts(small);
    test_extremes(small);
    test_decode(small, 3);
    test_decode(small, 70);
    test_many(twins);
    test_many(apart);
    test_cuts(apart);
    test_decode(apart, 3);
    rig r(large, 1);
    test_prompts("16 and 48 heads", r, make_rows(large, 150, 1.0), {{150, {-1, 0, 0, 0}}}, 1e-5);
    printf("Mamba-2\n");
    const layer mamba = make_mamba(1, 6, 64), narrow = make_mamba(2, 8, 32),
                limited = make_mamba(2, 6, 64, 0.01f, 0.1f), tiny = make_mamba(1, 48, 64);
    test_lengths(mamba);
    for (const layer *l : {&mamba, &narrow, &limited}) {
        test_many(*l);
        test_cuts(*l);
        test_decode(*l, 3);
    }
    test_decode(mamba, 70);
    test_wild_gates(mamba);
    rig h(tiny, 1);
    test_prompts("48 heads of 64", h, make_rows(tiny, 150, 1.0), {{150, {-1, 0, 0, 0}}}, 1e-5);
    printf("%d failures\n", n_failures);
    return n_failures > 0;
}

/* ---- times ---- */

static std::string name_of(const layer &l) {
    const recurrent_shape &s = l.shape;
    return std::string(l.is_delta() ? "delta " : "mamba ") + std::to_string(s.n_k_heads) + "/" +
           std::to_string(s.n_v_heads) + " heads of " + std::to_string(s.v_dim);
}

static void bench_prompts(const layer &l, const rows &in, uint32_t n_rows, uint32_t n_seqs,
                          uint32_t window) {
    rig r(l, n_seqs);
    std::vector<sequence> seqs;
    for (uint32_t i = 0; i < n_seqs; i++) seqs.push_back({n_rows / n_seqs, {-1, (int32_t)i, 0, 0}});
    device_rows d(r, in, seqs, 0, window);
    const int runs = 5;
    const auto each = [&](cudaError_t (*launch)(const recurrent_params *, const recurrent_window *,
                                                struct launch)) {
        return time_graph(r.stream, runs, [&] {
            for (uint32_t first = 0; first < d.n_chunks; first += window) {
                const recurrent_window w = d.window(first);
                check(launch(&d.p, &w, r.on), "a kernel");
            }
        });
    };
    const bool is_delta = l.is_delta();
    const double whole = time_graph(r.stream, runs, [&] { d.run_prompts(); }),
                 convolve = each(launch_prompt_convolve),
                 prepare = each(is_delta ? launch_delta_prepare : launch_mamba_prepare),
                 scan = each(is_delta ? launch_delta_scan : launch_mamba_scan),
                 output = is_delta ? time_graph(r.stream, runs, [&] { d.run_output(); }) : 0.0,
                 least = (double)n_rows * 2 * (l.n_channels() + 2 * l.n_values());
    printf("prompt,%s,%u rows,%u sequences,window %u: whole %.1f us (convolve %.1f prepare %.1f "
           "scan %.1f) output %.1f, %.2f TB/s of what is read and written once\n",
           name_of(l).c_str(), n_rows, n_seqs, window, whole, convolve, prepare, scan, output,
           least / (whole + output) * 1e-6);
    fflush(stdout);
}

static void bench_decode(const layer &l, const rows &in, uint32_t n_seqs) {
    const uint32_t n_sets = std::max(2u, 256 / n_seqs); /* more than L2 holds */
    rig r(l, n_seqs * n_sets);
    std::vector<device_rows> sets;
    for (uint32_t i = 0; i < n_sets; i++) {
        std::vector<sequence> seqs;
        for (uint32_t j = 0; j < n_seqs; j++) {
            const int32_t slot = (int32_t)(i * n_seqs + j);
            seqs.push_back({1, {slot, slot, 64, 0}});
        }
        sets.emplace_back(r, in, seqs, n_seqs, 1);
    }
    check(cudaMemset(r.p.states, 0x3c, r.n_slots * r.p.slot_bytes), "states");
    const double us = time_graph(r.stream, 9,
                                 [&] {
                                     for (device_rows &d : sets) d.run_decode();
                                 }) /
                      n_sets;
    const double bytes = 2.0 * n_seqs * r.p.inputs_at;
    printf("decode,%s,%u sequences: %.2f us a layer, %.2f TB/s\n", name_of(l).c_str(), n_seqs, us,
           bytes / us * 1e-6);
    fflush(stdout);
}

static void bench_delta() {
    const layer l27 = make_layer(16, 48), l35 = make_layer(16, 32);
    const rows in27 = make_rows(l27, 512, 1.0), in35 = make_rows(l35, 512, 1.0);
    for (uint32_t n : {1u, 2u, 4u, 8u, 64u, 256u}) bench_decode(l27, in27, n);
    for (uint32_t n : {1u, 8u, 64u}) bench_decode(l35, in35, n);
    for (uint32_t window : {16u, 32u, 64u, 128u}) bench_prompts(l27, in27, 8192, 1, window);
    for (uint32_t n : {32768u, 131072u}) bench_prompts(l27, in27, n, 1, 64);
    for (uint32_t n : {8192u, 32768u, 131072u}) bench_prompts(l35, in35, n, 1, 64);
    bench_prompts(l27, in27, 8192, 8, 128);
}

/* Granite 4 H Tiny's heads, and Small's. */
static void bench_mamba() {
    for (const layer &l : {make_mamba(1, 48, 64), make_mamba(1, 128, 64)}) {
        const rows in = make_rows(l, 512, 1.0);
        for (uint32_t n : {1u, 8u, 64u, 256u}) bench_decode(l, in, n);
        for (uint32_t n : {8192u, 32768u}) bench_prompts(l, in, n, 1, WINDOW_CHUNKS);
        bench_prompts(l, in, 8192, 8, WINDOW_CHUNKS);
    }
}

static int run_bench(const char *of) {
    if (strcmp(of, "mamba")) bench_delta();
    if (strcmp(of, "delta")) bench_mamba();
    return 0;
}

int main(int argc, char **argv) {
    int device = 0, major = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        major != 9) {
        printf("no device of compute capability 9.0\n");
        return 77;
    }
    if (argc > 1 && !strcmp(argv[1], "--bench")) return run_bench(argc > 2 ? argv[2] : "");
    return run_tests();
}
