/* grouped_test.cu - the kernels of cuda/experts/grouped.cuh against sums in double; --bench times
 * them.
 *
 *   each format   small stacks whose sizes are no multiples of tiles, every plan.  All outputs are
 *                 written, and some are compared with sums in double.  Plans agree in every bit.  A
 *                 row alone has the bits that it has among others
 *   --bench       CSV: model, rows, us of gate and up, of down, of both with the sum over ranks.
 *                 TB/s of the weights that are used, TFLOP/s.  Weights are more than L2 holds
 *
 * Thread: main.  Memory: 2 GB of the device. */
#include <cmath>
#include <cstring>
#include <random>

#include "cuda/experts/expert_kernels.h"
#include "cuda/experts/grouped.cuh"
#include "tests/cuda/bench/bench.cuh"

struct layer {
    const char *name;
    const struct grouped_kernels *kernels;
    struct weight_format format;
    uint32_t dim, n_experts, n_used, ffn;
    bool has_bias;
    struct expert_gate gate;
};

static const struct weight_format I4 = {ELEMENT_I4, SCALE_BF16, 1, 128, false},
                                  MX = {ELEMENT_E2M1, SCALE_E8M0, 1, 32, false},
                                  E4M3 = {ELEMENT_E4M3, SCALE_F32, 1, 0, false},
                                  BF16 = {ELEMENT_BF16, SCALE_NONE, 0, 0, false};
static const struct expert_gate SILU = {GATE_SILU, 0, 0}, CLAMPED = {GATE_SILU, 7.0f, 1.702f};

static std::mt19937_64 randoms(20261130);

/* ---- memory ---- */

template <typename T> struct buffer {
    std::vector<T> host;
    T *device;
    explicit buffer(size_t n) : host(n), device(nullptr) {
        check(cudaMalloc(&device, n * sizeof(T)), "memory");
    }
    ~buffer() { cudaFree(device); }
    void upload() {
        check(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyDefault), "copy");
    }
    void download() {
        check(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDefault), "copy");
    }
    /* Fills device and host with the byte. */
    void fill(int byte) {
        memset(host.data(), byte, host.size() * sizeof(T));
        check(cudaMemset(device, byte, host.size() * sizeof(T)), "fill");
    }
};

static float uniform(float most) {
    return ((float)(randoms() >> 40) / 8388608.0f - 1.0f) * most;
}

static uint16_t bits_of(float x) {
    const bf16 rounded = __float2bfloat16_rn(x);
    uint16_t bits;
    memcpy(&bits, &rounded, 2);
    return bits;
}

static float value_of(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
}

/* ---- weights: their bytes are random, in the order of the device ---- */

static size_t n_scales_of(const struct weight_format &f, size_t rows, uint32_t cols) {
    if (f.scale == SCALE_NONE) return 0;
    return rows * (f.block_cols ? (cols + f.block_cols - 1) / f.block_cols : 1);
}

static size_t scale_size(const struct weight_format &f) {
    return f.scale == SCALE_F32 ? 4 : f.scale == SCALE_BF16 ? 2 : 1;
}

struct stack {
    struct weight_format format;
    uint32_t rows, cols; /* rows: of all matrices */
    buffer<uint8_t> data, scales;
    buffer<float> bias;
    stack(const struct weight_format &f, uint32_t all_rows, uint32_t n_cols)
        : format(f), rows(all_rows), cols(n_cols),
          data((size_t)all_rows * n_cols * element_bits(f.element) / 8),
          scales(n_scales_of(f, all_rows, n_cols) * scale_size(f) + 16), bias(all_rows) {
        fill();
    }

    void fill() {
        const float size = 1.7f / sqrtf((float)cols);
        const uint64_t exponent = 127 + (int)floorf(log2f(size)) - 1,
                       plain = (exponent << 7) * 0x0001000100010001u;
        for (size_t i = 0; i + 8 <= data.host.size(); i += 8) {
            uint64_t word = randoms();
            if (format.element == ELEMENT_E4M3) word &= 0xbfbfbfbfbfbfbfbfu; /* no NaN */
            if (format.element == ELEMENT_BF16) word = (word & 0x807f807f807f807fu) | plain;
            memcpy(&data.host[i], &word, 8);
        }
        const size_t n = n_scales_of(format, rows, cols);
        for (size_t i = 0; i < n; i++) {
            const float scale = size * (1.2f + uniform(0.5f)) / 4;
            const uint16_t half = bits_of(scale);
            const uint8_t code =
                (uint8_t)(126 - (int)log2f(sqrtf((float)cols)) + randoms() % 3 - 2);
            if (format.scale == SCALE_F32) memcpy(&scales.host[i * 4], &scale, 4);
            else if (format.scale == SCALE_BF16) memcpy(&scales.host[i * 2], &half, 2);
            else scales.host[i] = code;
        }
        for (float &b : bias.host) b = uniform(0.5f);
        data.upload(), scales.upload(), bias.upload();
    }

    float scale_at(size_t i) const {
        uint16_t half;
        float x;
        if (format.scale == SCALE_F32) {
            memcpy(&x, &scales.host[i * 4], 4);
            return x;
        }
        memcpy(&half, &scales.host[i * 2], 2);
        return format.scale == SCALE_BF16 ? value_of(half) : ldexpf(1, scales.host[i] - 127);
    }

    /* Returns the code of an element in strips (cuda/linear/strips.h). */
    uint32_t code_at(uint32_t row, uint32_t i) const {
        const uint32_t bits = element_bits(format.element), slab = 256 / bits, r = row % 16,
                       c = i % 16, reg = r / 8 + c / 8 * 2, lane = r % 8 * 4 + c % 8 / 2,
                       word = i % slab / 16 * (bits / 4) + (bits == 4 ? 0 : reg / 2),
                       shift =
                           bits == 4 ? 4 * (reg + 4 * (c % 2)) : 8 * (2 * (c % 2) + 1 - reg % 2);
        const size_t at = (((size_t)(row / 16) * (cols / slab) + i / slab) * 32 + lane) * 4 + word;
        uint32_t x;
        memcpy(&x, &data.host[at * 4], 4);
        return x >> shift & ((1u << bits) - 1);
    }

    /* Returns an element as the kernels take it: rounded to bf16. */
    double at(uint32_t row, uint32_t i) const {
        static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        if (format.element == ELEMENT_BF16) {
            uint16_t bits;
            memcpy(&bits, &data.host[((size_t)row * cols + i) * 2], 2);
            return value_of(bits);
        }
        const uint32_t code = code_at(row, i);
        if (format.element == ELEMENT_E4M3) {
            const int exponent = code >> 3 & 15, mantissa = code & 7;
            const float size =
                exponent ? ldexpf(1 + mantissa / 8.0f, exponent - 7) : ldexpf(mantissa / 8.0f, -6);
            return (double)(code & 128 ? -size : size) * scale_at(row);
        }
        const uint32_t n_blocks = (cols + format.block_cols - 1) / format.block_cols;
        const float scale = scale_at(((size_t)(row / 16) * n_blocks + i / format.block_cols) * 16 +
                                     row % 8 * 2 + row % 16 / 8),
                    x = format.element == ELEMENT_I4 ? (float)code - 8
                                                     : (code & 8 ? -1 : 1) * e2m1[code & 7];
        return value_of(bits_of(x * scale));
    }

    struct expert_stack params(bool has_bias) const {
        return {data.device,
                format.scale ? scales.device : nullptr,
                nullptr,
                has_bias ? bias.device : nullptr,
                ELEMENT_F32,
                format,
                format.element != ELEMENT_BF16};
    }
};

/* ---- routing, drawn at random ---- */

struct routing_of_rows {
    uint32_t n_rows, n_used, n_experts;
    buffer<uint32_t> first, pair, place;
    buffer<float> shares;
    std::vector<uint32_t> experts; /* of a place in sorted order */
    routing_of_rows(uint32_t rows, uint32_t used, uint32_t n)
        : n_rows(rows), n_used(used), n_experts(n), first(n + 1), pair((size_t)rows * used),
          place((size_t)rows * used), shares((size_t)rows * (used + 1)) {
        std::vector<std::vector<uint32_t>> of(n);
        for (uint32_t row = 0; row < rows; row++) {
            std::vector<uint32_t> all(n);
            for (uint32_t e = 0; e < n; e++) all[e] = e;
            for (uint32_t r = 0; r < used; r++) {
                std::swap(all[r], all[r + randoms() % (n - r)]);
                of[all[r]].push_back(row * used + r);
            }
        }
        uint32_t at = 0;
        for (uint32_t e = 0; e < n; e++) {
            first.host[e] = at;
            for (uint32_t p : of[e]) {
                pair.host[at] = p, place.host[p] = at++;
                experts.push_back(e);
            }
        }
        first.host[n] = at;
        for (float &s : shares.host) s = 1.0f / (float)used;
        first.upload(), pair.upload(), place.upload(), shares.upload();
    }
    struct expert_order order() const {
        return {nullptr, first.device, pair.device, place.device, n_rows, n_used, n_experts};
    }
};

/* ---- a layer ---- */

struct tensors {
    const struct layer &l;
    struct stack gate, up, down;
    explicit tensors(const struct layer &layer)
        : l(layer), gate(layer.format, layer.n_experts * layer.ffn, layer.dim),
          up(layer.format, layer.n_experts * layer.ffn, layer.dim),
          down(layer.format, layer.n_experts * layer.dim, layer.ffn) {}
};

struct rows {
    const struct layer &l;
    struct routing_of_rows routing;
    buffer<uint16_t> x, h, y, out;
    rows(const struct layer &layer, uint32_t n)
        : l(layer), routing(n, layer.n_used, layer.n_experts), x((size_t)n * layer.dim),
          h((size_t)n * layer.n_used * layer.ffn), y((size_t)n * layer.n_used * layer.dim),
          out((size_t)n * layer.dim) {
        for (uint16_t &bits : x.host) bits = bits_of(uniform(1.7f));
        x.upload();
        h.fill(0xff), y.fill(0xff), out.fill(0);
    }
};

static struct expert_product gate_up_of(const struct tensors &t, const struct rows &r) {
    struct expert_product p = {};
    p.order = r.routing.order();
    p.x = r.x.device, p.gathers = true;
    p.n_in = t.l.dim, p.n_out = t.l.ffn;
    p.stacks[0] = t.gate.params(t.l.has_bias), p.stacks[1] = t.up.params(t.l.has_bias);
    p.gated = true, p.gate = t.l.gate;
    p.y = r.h.device;
    return p;
}

static struct expert_product down_of(const struct tensors &t, const struct rows &r) {
    struct expert_product p = {};
    p.order = r.routing.order();
    p.x = r.h.device;
    p.n_in = t.l.ffn, p.n_out = t.l.dim;
    p.stacks[0] = t.down.params(t.l.has_bias);
    p.y = r.y.device;
    return p;
}

static struct combine_params sum_of(const struct rows &r) {
    struct combine_params p = {};
    p.place = r.routing.place.device, p.shares = r.routing.shares.device;
    p.y = r.y.device, p.out = r.out.device;
    p.n_rows = r.routing.n_rows, p.n_used = r.l.n_used, p.dim = r.l.dim;
    return p;
}

static struct launch on(cudaStream_t stream) {
    struct launch launch = launch_on(stream, true);
    int n;
    check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0), "device");
    launch.n_multiprocessors = (uint32_t)n;
    return launch;
}

static void run(const struct tensors &t, struct rows &r, int plan) {
    const struct expert_product gate_up = gate_up_of(t, r), down = down_of(t, r);
    check(t.l.kernels->launch[plan](&gate_up, on(0)), "gate and up");
    check(t.l.kernels->launch[plan](&down, on(0)), "down");
    check(cudaDeviceSynchronize(), t.l.name);
    r.h.download(), r.y.download();
}

/* ---- checks ---- */

static int n_failures;

static void expect(bool is_right, const struct layer &l, const char *what, double a, double b) {
    if (is_right) return;
    if (n_failures++ < 20) fprintf(stderr, "%s: %s: %g, %g\n", l.name, what, a, b);
}

/* Returns the product of a row of x with a row of a stack, and the sum of its terms' sizes. */
static double dot(const struct stack &w, uint32_t row, const uint16_t *x, double *size) {
    double sum = 0;
    for (uint32_t i = 0; i < w.cols; i++) {
        const double term = w.at(row, i) * value_of(x[i]);
        sum += term, *size += fabs(term);
    }
    return sum;
}

static double gate_of(const struct expert_gate &gate, double g, double u) {
    if (gate.most == 0) return g / (1 + exp(-g)) * u;
    g = fmin(g, gate.most), u = fmax(-gate.most, fmin(u, gate.most));
    return g / (1 + exp(-gate.slope * g)) * (u + 1);
}

/* Compares some outputs with sums in double. */
static double compare(const struct tensors &t, const struct rows &r, int n) {
    const struct layer &l = t.l;
    double worst = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t place = (uint32_t)(randoms() % r.routing.experts.size()),
                       expert = r.routing.experts[place],
                       row = r.routing.pair.host[place] / l.n_used, out = randoms() % l.ffn,
                       at = randoms() % l.dim;
        const uint16_t *x = &r.x.host[(size_t)row * l.dim], *h = &r.h.host[(size_t)place * l.ffn];
        double size = 0, size_y = 0, g = dot(t.gate, expert * l.ffn + out, x, &size),
               u = dot(t.up, expert * l.ffn + out, x, &size),
               y = dot(t.down, expert * l.dim + at, h, &size_y);
        if (l.has_bias) {
            g += t.gate.bias.host[expert * l.ffn + out], u += t.up.bias.host[expert * l.ffn + out];
            y += t.down.bias.host[expert * l.dim + at];
        }
        const double wanted = gate_of(l.gate, g, u), got = value_of(h[out]),
                     got_y = value_of(r.y.host[(size_t)place * l.dim + at]),
                     error = fabs(got - wanted) / (fabs(wanted) / 256 + size * 4e-5),
                     error_y = fabs(got_y - y) / (fabs(y) / 256 + size_y * 4e-6);
        expect(error <= 1, l, "gate and up differ from sums in double", got, wanted);
        expect(error_y <= 1, l, "down differs from sums in double", got_y, y);
        worst = fmax(worst, fmax(error, error_y));
    }
    return worst;
}

static bool same(const std::vector<uint16_t> &a, const std::vector<uint16_t> &b) {
    return memcmp(a.data(), b.data(), a.size() * 2) == 0;
}

/* Says whether every output was written: what is filled before is a NaN of these bits. */
static bool is_whole(const std::vector<uint16_t> &a) {
    for (uint16_t bits : a)
        if (bits == 0xffff) return false;
    return true;
}

/* A row of many, alone: its pairs have the same bits. */
static void check_alone(const struct tensors &t, const struct rows &all, int plan) {
    const struct layer &l = t.l;
    const uint32_t row = (uint32_t)(randoms() % all.routing.n_rows);
    struct rows one(l, 1);
    std::vector<std::pair<uint32_t, uint32_t>> pairs; /* the expert, and the rank */
    for (uint32_t r = 0; r < l.n_used; r++)
        pairs.push_back({all.routing.experts[all.routing.place.host[row * l.n_used + r]], r});
    std::sort(pairs.begin(), pairs.end());
    for (uint32_t e = 0, at = 0; e <= l.n_experts; e++) {
        one.routing.first.host[e] = at;
        if (at < l.n_used && pairs[at].first == e)
            one.routing.pair.host[at] = pairs[at].second, at++;
    }
    one.routing.first.upload(), one.routing.pair.upload();
    memcpy(one.x.host.data(), &all.x.host[(size_t)row * l.dim], l.dim * 2);
    one.x.upload();
    run(t, one, plan);
    for (uint32_t i = 0; i < l.n_used; i++) {
        const size_t place = all.routing.place.host[row * l.n_used + pairs[i].second];
        expect(
            memcmp(&one.h.host[(size_t)i * l.ffn], &all.h.host[place * l.ffn], l.ffn * 2) == 0 &&
                memcmp(&one.y.host[(size_t)i * l.dim], &all.y.host[place * l.dim], l.dim * 2) == 0,
            l, "a row alone has other bits", row, plan);
    }
}

static void check_layer(const struct layer &l, uint32_t n_rows) {
    const struct tensors t(l);
    struct rows r(l, n_rows);
    std::vector<uint16_t> h, y;
    double worst = 0;
    for (int plan = 0; plan < N_GROUPED_PLANS; plan++) {
        r.h.fill(0xff), r.y.fill(0xff);
        run(t, r, plan);
        expect(is_whole(r.h.host), l, "some of gate and up is not written", plan, n_rows);
        expect(is_whole(r.y.host), l, "some of down is not written", plan, n_rows);
        if (plan == 0) h = r.h.host, y = r.y.host;
        expect(same(h, r.h.host) && same(y, r.y.host), l, "plans differ", plan, n_rows);
        worst = fmax(worst, compare(t, r, 100));
        check_alone(t, r, plan);
    }
    printf("%s, %u rows: worst error %.2f of what is allowed\n", l.name, n_rows, worst);
    fflush(stdout);
}

/* ---- times ---- */

static double time_of(cudaStream_t stream, int n, const struct expert_product *a,
                      const struct expert_product *b, const struct combine_params *sum,
                      const struct grouped_kernels *kernels, int plan) {
    return time_graph(stream, 7,
                      [&] {
                          for (int i = 0; i < n; i++) {
                              if (a) check(kernels->launch[plan](a, on(stream)), "gate and up");
                              if (b) check(kernels->launch[plan](b, on(stream)), "down");
                              if (sum) check(launch_combine(sum, on(stream)), "sum");
                          }
                      }) /
           n;
}

static void bench(const struct tensors &t, uint32_t n_rows, int plan) {
    cudaStream_t stream;
    struct rows r(t.l, n_rows);
    const struct expert_product gate_up = gate_up_of(t, r), down = down_of(t, r);
    const struct combine_params sum = sum_of(r);
    const int n = n_rows > 512 ? 3 : 10;
    uint32_t n_active = 0;
    for (uint32_t e = 0; e < t.l.n_experts; e++)
        n_active += r.routing.first.host[e + 1] > r.routing.first.host[e];
    run(t, r, plan);
    check(cudaStreamCreate(&stream), "stream");
    const double up_us = time_of(stream, n, &gate_up, nullptr, nullptr, t.l.kernels, plan),
                 down_us = time_of(stream, n, nullptr, &down, nullptr, t.l.kernels, plan),
                 all_us = time_of(stream, n, &gate_up, &down, &sum, t.l.kernels, plan),
                 weights = 3.0 * t.l.dim * t.l.ffn,
                 bytes = (t.gate.data.host.size() * 3.0 + t.gate.scales.host.size() * 3.0) *
                         n_active / t.l.n_experts;
    printf("%s,%u,%d,%.1f,%.1f,%.1f,%.2f,%.0f\n", t.l.name, n_rows, plan, up_us, down_us, all_us,
           bytes / all_us * 1e-6, weights * 2 * n_rows * t.l.n_used / all_us * 1e-6);
    fflush(stdout);
    check(cudaStreamDestroy(stream), "stream");
}

int main(int argc, char **argv) {
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIPPED: grouped_test needs a CUDA device and found none\n");
        return 77;
    }
    static const struct layer small[] = {
        {"int4, 320 columns", &grouped_i4_bf16, I4, 320, 9, 3, 192, false, SILU},
        {"MXFP4, clamped, biases", &grouped_e2m1_32, MX, 320, 7, 2, 448, true, CLAMPED},
        {"E4M3", &grouped_e4m3_rows, E4M3, 192, 5, 2, 448, true, SILU},
        {"bf16", &grouped_bf16, BF16, 320, 6, 3, 192, true, SILU}};
    static const struct layer models[] = {
        {"Qwen3-30B-A3B int4", &grouped_i4_bf16, I4, 2048, 128, 8, 768, false, SILU},
        {"gpt-oss-20b MXFP4", &grouped_e2m1_32, MX, 2880, 32, 4, 2880, true, CLAMPED},
        {"Qwen3-30B-A3B bf16", &grouped_bf16, BF16, 2048, 128, 8, 768, false, SILU}};
    for (const struct layer &l : small)
        for (uint32_t n_rows : {1, 40, 333}) check_layer(l, n_rows);
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        printf("model,rows,plan,gate and up us,down us,layer us,TB/s,TFLOP/s\n");
        for (const struct layer &l : models) {
            const struct tensors t(l);
            for (uint32_t n_rows : {16, 64, 256, 1024, 4096})
                for (int plan = 0; plan < N_GROUPED_PLANS; plan++) bench(t, n_rows, plan);
        }
    }
    if (n_failures > 0) fprintf(stderr, "%d failures\n", n_failures);
    return n_failures > 0;
}
