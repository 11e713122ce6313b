/* linear_bench.cu - times the kernel for few rows over the Llama-3-8B products, beside a plain read
 * of the same bytes.
 *
 *   CSV: shape, rows, overlap, us (median), TB/s of weights, fraction of the read
 *
 * Weights are random and rotate through 1 GB, many times the second-level cache.  Launches are
 * replayed from a CUDA graph.  "model" is 32 layers and the head over 15 GB, nothing twice.
 *
 * Thread: main.  Memory: 16 GB of the device. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda/linear_kernels.cu"

static void check(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    exit(1);
}

static __global__ void fill_kernel(bf16 *to, size_t n, float scale) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
        store_as(to + i, ((float)(x >> 40) / 8388608.0f - 1.0f) * scale);
    }
}

/* The ceiling: every block reads its share and throws it away. */
static __global__ void read_kernel(const uint4 *from, size_t n, uint32_t *sink) {
    uint32_t x = 0;
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = load_once(reinterpret_cast<const bf16 *>(from + i + k * stride));
#pragma unroll
        for (int k = 0; k < 4; k++) x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (x == 0x12345678u) *sink = x;
}

struct shape {
    const char *name;
    uint32_t n_in, n_parts, n_out[3];
    bool accumulate, y_f32;
};

static const struct shape shapes[] = {{"qkv", 4096, 3, {4096, 1024, 1024}, false, false},
                                      {"o", 4096, 1, {4096}, true, false},
                                      {"gate_up", 4096, 2, {14336, 14336}, false, false},
                                      {"down", 14336, 1, {4096}, true, false},
                                      {"head", 4096, 1, {128256}, false, true}};

struct arena {
    bf16 *weights, *x;
    void *y;
    size_t n_weights; /* elements */
};

static size_t count_weights(const struct shape *s) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_parts; i++) n += (size_t)s->n_out[i] * s->n_in;
    return n;
}

static struct skinny_params params_of(const struct shape *s, const struct arena *arena, size_t at,
                                      uint32_t n_rows) {
    struct skinny_params p = {};
    p.x = arena->x;
    p.n_rows = n_rows;
    p.n_in = s->n_in;
    p.n_parts = s->n_parts;
    p.w_dtype = DTYPE_BF16;
    p.accumulate = s->accumulate;
    p.y_f32 = s->y_f32;
    size_t width = 0, y_at = 0;
    for (uint32_t i = 0; i < s->n_parts; i++) width += s->n_out[i];
    for (uint32_t i = 0; i < s->n_parts; i++) {
        p.parts[i].w = arena->weights + at;
        p.parts[i].y = static_cast<bf16 *>(arena->y) + y_at;
        p.parts[i].y_stride = width;
        p.parts[i].n_out = s->n_out[i];
        at += (size_t)s->n_out[i] * s->n_in;
        y_at += s->n_out[i];
    }
    return p;
}

/* Median microseconds of a replay of what `record` puts on the stream. */
template <typename Record>
static double time_graph(cudaStream_t stream, int n_replays, Record record) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    std::vector<float> times;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    record();
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int i = 0; i < n_replays + 2; i++) {
        float ms;
        check(cudaEventRecord(begin, stream), "event");
        check(cudaGraphLaunch(exec, stream), "replay");
        check(cudaEventRecord(end, stream), "event");
        check(cudaEventSynchronize(end), "replay");
        check(cudaEventElapsedTime(&ms, begin, end), "event");
        if (i >= 2) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    check(cudaGraphExecDestroy(exec), "graph");
    check(cudaGraphDestroy(graph), "graph");
    return times[times.size() / 2] * 1e3;
}

static double bench_read(const struct arena *arena, cudaStream_t stream) {
    const size_t bytes = (size_t)4 << 30;
    const double us = time_graph(stream, 5, [&] {
        read_kernel<<<132 * 8, 512, 0, stream>>>(reinterpret_cast<const uint4 *>(arena->weights),
                                                 bytes / 16, static_cast<uint32_t *>(arena->y));
    });
    return (double)bytes / us * 1e-6;
}

typedef cudaError_t (*launcher)(const struct skinny_params *p, struct launch launch);

static void bench_shape(const struct shape *s, const struct arena *arena, cudaStream_t stream,
                        uint32_t n_rows, bool overlap, double read, const char *name,
                        launcher run) {
    const size_t n = count_weights(s), n_sets = std::max<size_t>(1, ((size_t)1 << 29) / n);
    const double us = time_graph(stream, 9,
                                 [&] {
                                     for (size_t i = 0; i < n_sets; i++) {
                                         const struct skinny_params p =
                                             params_of(s, arena, i * n, n_rows);
                                         check(run(&p, (struct launch){stream, overlap}), s->name);
                                     }
                                 }) /
                      (double)n_sets;
    const double rate = 2.0 * (double)n / us * 1e-6;
    printf("%s,%s,%u,%d,%.2f,%.3f,%.3f\n", name, s->name, n_rows, overlap, us, rate, rate / read);
}

static void bench_model(const struct arena *arena, cudaStream_t stream, uint32_t n_rows,
                        bool overlap, double read, const char *name, launcher run) {
    size_t total = 0;
    const double us = time_graph(stream, 5, [&] {
        size_t at = 0;
        for (int layer = 0; layer < 33; layer++)
            for (const struct shape &s : shapes) {
                if ((layer == 32) != s.y_f32) continue;
                const struct skinny_params p = params_of(&s, arena, at, n_rows);
                check(run(&p, (struct launch){stream, overlap}), s.name);
                at += count_weights(&s);
            }
        total = at;
    });
    const double rate = 2.0 * (double)total / us * 1e-6;
    printf("%s,model,%u,%d,%.2f,%.3f,%.3f\n", name, n_rows, overlap, us, rate, rate / read);
}

#ifndef LINEAR_VARIANTS
#define LINEAR_VARIANTS                                                                            \
    { "own", launch_skinny }
#endif
struct variant {
    const char *name;
    launcher run;
};

int main() {
    static const struct variant variants[] = {LINEAR_VARIANTS};
    struct arena arena = {};
    cudaStream_t stream;
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIPPED, NOTHING WAS MEASURED: there is no CUDA device\n");
        return 77;
    }
    arena.n_weights = (size_t)7600 << 20;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaMalloc(&arena.weights, arena.n_weights * sizeof(bf16)), "memory for weights");
    check(cudaMalloc(&arena.x, 16 * 14336 * sizeof(bf16)), "memory");
    check(cudaMalloc(&arena.y, 16 * 128256 * sizeof(float)), "memory");
    fill_kernel<<<1024, 256, 0, stream>>>(arena.weights, arena.n_weights, 0.02f);
    fill_kernel<<<64, 256, 0, stream>>>(arena.x, 16 * 14336, 1.0f);
    check(cudaMemsetAsync(arena.y, 0, 16 * 128256 * sizeof(float), stream), "memory");
    const double read = bench_read(&arena, stream);
    printf("variant,shape,rows,overlap,us,TB/s,of read (%.3f TB/s)\n", read);
    for (const struct variant &v : variants) {
        for (uint32_t n_rows : {1u, 4u, 16u})
            for (int overlap = 0; overlap < 2; overlap++) {
                if (n_rows > 1 && !overlap) continue;
                for (const struct shape &s : shapes)
                    bench_shape(&s, &arena, stream, n_rows, overlap, read, v.name, v.run);
                bench_model(&arena, stream, n_rows, overlap, read, v.name, v.run);
            }
    }
    return 0;
}
