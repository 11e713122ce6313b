/* linear_bench.cu - times our own kernels over the Llama-3-8B products, beside a plain read of the
 * same bytes.
 *
 *   CSV: variant, shape, rows, overlap, us (median), TB/s of weights, fraction of the read
 *
 *   bare     products alone
 *   fused    norm and SiLU inside the products
 *   stream   the same by the stream kernel
 *   apart    norm and SiLU in kernels of their own
 *   wide     16 to 256 rows by the wide kernel, with SiLU inside and the norm apart (from 193 rows
 *            on a model's gate and up are for the gated kernel, which is not here)
 *
 * Weights are random and rotate through 1 GB, many times the second-level cache.  Launches are
 * replayed from a CUDA graph.  "model" is 32 layers and the head over 15 GB, nothing twice.
 *
 * Thread: main.  Memory: 16 GB of the device. */
#include "cuda/elementwise/elementwise.cu"
#include "cuda/linear/linear_kernels.cu"
#include "cuda/linear/linear_stream.cu"
#include "cuda/linear/linear_wide.cu"
#include "cuda/linear/wide_cut.c"
#include "engine/device/weight.h"
#include "tests/cuda/bench/bench.cuh"

/* The launchers that take a backend are not used here. */
int cuda_check(struct cuda_backend *, cudaError_t code, const char *what, struct error *) {
    check(code, what);
    return 0;
}
int device_alloc(struct cuda_backend *, size_t, void **, struct error *) {
    return -1;
}
struct product product_join(const struct product *p) {
    return *p;
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
    bool accumulate, y_f32, norm, gated;
};

static const struct shape shapes[] = {
    {"qkv", 4096, 3, {4096, 1024, 1024}, false, false, true, false},
    {"o", 4096, 1, {4096}, true, false, false, false},
    {"gate_up", 4096, 2, {14336, 14336}, false, false, true, true},
    {"down", 14336, 1, {4096}, true, false, false, false},
    {"head", 4096, 1, {128256}, false, true, true, false}};

struct arena {
    bf16 *weights, *x, *norm_weight, *normed;
    void *y;
    size_t n_weights; /* elements */
    uint32_t n_multiprocessors;
    struct wide_device room;
};

static size_t count_weights(const struct shape *s) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_parts; i++) n += (size_t)s->n_out[i] * s->n_in;
    return n;
}

static struct product params_of(const struct shape *s, const struct arena *arena, size_t at,
                                uint32_t n_rows) {
    struct product p = {};
    p.x = arena->x;
    p.n_rows = n_rows;
    p.n_in = s->n_in;
    p.n_parts = s->n_parts;
    p.w_format.element = ELEMENT_BF16;
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

static double bench_read(const struct arena *arena, cudaStream_t stream) {
    const size_t bytes = (size_t)4 << 30;
    const double us = time_graph(stream, 5, [&] {
        read_kernel<<<132 * 8, 512, 0, stream>>>(reinterpret_cast<const uint4 *>(arena->weights),
                                                 bytes / 16, static_cast<uint32_t *>(arena->y));
    });
    return (double)bytes / us * 1e-6;
}

typedef cudaError_t (*launcher)(const struct shape *s, const struct arena *arena, struct product *p,
                                struct launch launch);

static cudaError_t run_bare(const struct shape *, const struct arena *, struct product *p,
                            struct launch launch) {
    return start_few(p, launch);
}

static void fuse(const struct shape *s, const struct arena *arena, struct product *p) {
    p->norm_weight = s->norm ? arena->norm_weight : nullptr;
    p->eps = 1e-5f;
    p->gated = s->gated;
    if (s->gated) p->parts[0].y_stride = p->parts[0].n_out;
}

static cudaError_t run_fused(const struct shape *s, const struct arena *arena, struct product *p,
                             struct launch launch) {
    fuse(s, arena, p);
    return start_few(p, launch);
}

static cudaError_t run_stream(const struct shape *s, const struct arena *arena, struct product *p,
                              struct launch launch) {
    fuse(s, arena, p);
    return start_stream(p, launch);
}

static void normalise(const struct arena *arena, struct product *p, struct launch launch) {
    const struct rmsnorm_params norm = {p->x,         arena->norm_weight,
                                        ELEMENT_BF16, arena->normed,
                                        p->n_rows,    p->n_in,
                                        p->n_in,      p->n_in,
                                        1e-5f,        1,
                                        false,        1.0f};
    check(launch_rmsnorm(&norm, launch), "rmsnorm");
    p->x = arena->normed;
}

static cudaError_t run_wide(const struct shape *s, const struct arena *arena, struct product *p,
                            struct launch launch) {
    if (s->norm) normalise(arena, p, launch);
    p->gated = s->gated;
    if (s->gated) p->parts[0].y_stride = p->parts[0].n_out;
    return start_wide(p, &arena->room, launch);
}

static cudaError_t run_apart(const struct shape *s, const struct arena *arena, struct product *p,
                             struct launch launch) {
    if (s->norm) normalise(arena, p, launch);
    check(start_few(p, launch), s->name);
    if (!s->gated) return cudaSuccess;
    const struct gate_mul_params silu = {arena->y, arena->normed, p->n_rows, p->parts[0].n_out};
    return launch_gate_mul(&silu, launch);
}

static void bench_shape(const struct shape *s, const struct arena *arena, cudaStream_t stream,
                        uint32_t n_rows, bool overlap, double read, const char *name,
                        launcher run) {
    const size_t n = count_weights(s), n_sets = std::max<size_t>(1, ((size_t)1 << 29) / n);
    const double us =
        time_graph(stream, 9,
                   [&] {
                       for (size_t i = 0; i < n_sets; i++) {
                           struct product p = params_of(s, arena, i * n, n_rows);
                           check(run(s, arena, &p,
                                     (struct launch){stream, overlap, arena->n_multiprocessors}),
                                 s->name);
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
                struct product p = params_of(&s, arena, at, n_rows);
                check(
                    run(&s, arena, &p, (struct launch){stream, overlap, arena->n_multiprocessors}),
                    s.name);
                at += count_weights(&s);
            }
        total = at;
    });
    const double rate = 2.0 * (double)total / us * 1e-6;
    printf("%s,model,%u,%d,%.2f,%.3f,%.3f\n", name, n_rows, overlap, us, rate, rate / read);
}

struct variant {
    const char *name;
    launcher run;
    uint32_t rows[4];
};

static void bench_variant(const struct variant *v, const struct arena *arena, cudaStream_t stream,
                          double read) {
    for (uint32_t n_rows : v->rows)
        for (int overlap = 0; overlap < 2; overlap++) {
            if (n_rows != v->rows[0] && !overlap) continue;
            for (const struct shape &s : shapes)
                bench_shape(&s, arena, stream, n_rows, overlap, read, v->name, v->run);
            bench_model(arena, stream, n_rows, overlap, read, v->name, v->run);
        }
}

int main() {
    static const struct variant variants[] = {{"bare", run_bare, {1, 4, 8, 16}},
                                              {"fused", run_fused, {1, 4, 8, 16}},
                                              {"stream", run_stream, {1, 4, 8, 16}},
                                              {"apart", run_apart, {1, 4, 8, 16}},
                                              {"wide", run_wide, {16, 64, 128, 256}}};
    const size_t n_x = (size_t)WIDE_MAX_ROWS * 14336, n_y = (size_t)WIDE_MAX_ROWS * 128256;
    struct arena arena = {};
    cudaStream_t stream;
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIPPED, NOTHING WAS MEASURED: there is no CUDA device\n");
        return 77;
    }
    struct cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "the device");
    arena.n_multiprocessors = (uint32_t)properties.multiProcessorCount;
    arena.n_weights = (size_t)7600 << 20;
    const size_t share_bytes = (size_t)arena.n_multiprocessors * WIDE_SHARE_BYTES;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaMalloc(&arena.weights, arena.n_weights * sizeof(bf16)), "memory for weights");
    check(cudaMalloc(&arena.x, n_x * sizeof(bf16)), "memory");
    check(cudaMalloc(&arena.norm_weight, 4096 * sizeof(bf16)), "memory");
    check(cudaMalloc(&arena.normed, n_x * sizeof(bf16)), "memory");
    check(cudaMalloc(&arena.y, n_y * sizeof(float)), "memory");
    check(cudaMalloc(&arena.room.shares, share_bytes), "memory");
    check(cudaMemsetAsync(arena.room.shares, MISSING_BYTE, share_bytes, stream), "memory");
    fill_kernel<<<1024, 256, 0, stream>>>(arena.weights, arena.n_weights, 0.02f);
    fill_kernel<<<64, 256, 0, stream>>>(arena.x, n_x, 1.0f);
    fill_kernel<<<64, 256, 0, stream>>>(arena.norm_weight, 4096, 1.0f);
    check(cudaMemsetAsync(arena.y, 0, n_y * sizeof(float), stream), "memory");
    check(find_wide(0, &arena.room), "rate");
    if (!open_shapes() || arena.room.n_clusters == 0) {
        fprintf(stderr, "this device does not run the stream kernel and the wide kernel\n");
        return 1;
    }
    const double read = bench_read(&arena, stream);
    printf("variant,shape,rows,overlap,us,TB/s,of read (%.3f TB/s)\n", read);
    for (const struct variant &v : variants) bench_variant(&v, &arena, stream, read);
    return 0;
}
