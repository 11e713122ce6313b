/* elementwise_bench.cu - times the kernels that touch each row on its own over the rows of a long
 * prefill step and of a decode step of Llama-3-8B, beside a plain copy.
 *
 *   CSV: kernel, rows, us (median), TB/s read and written, fraction of the copy
 *
 * A graph repeats the kernel over buffers that take turns, so that the second-level cache is cold
 * where the rows are many; where they are few, what is timed is the launch and the latency.
 *
 * Thread: main.  Memory: 6 GB of the device. */
#include "cuda/elementwise/elementwise.cu"
#include "cuda/elementwise/rope.cu"
#include "engine/device/pages.h"
#include "engine/device/weight.h"
#include "tests/cuda/bench/bench.cuh"

enum {
    DIM = 4096,
    FFN = 14336,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    MAX_ROWS = 8192,
    N_SETS = 4,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
};

struct arena {
    bf16 *in[N_SETS], *out[N_SETS], *weight;
    float *angles;
    uint32_t *rows;
    struct device_step *step;
    cudaStream_t stream;
};

static const size_t set_elements = (size_t)MAX_ROWS * 2 * FFN;

/* One sequence whose slots are its rows, in pages in order. */
static void make_step(struct arena *arena) {
    std::vector<int32_t> words(3 * MAX_ROWS);
    int32_t *device;
    /* tokens, and the rows of a gather */
    for (int i = 0; i < MAX_ROWS; i++) words[i] = (int32_t)((i * 7919u) % MAX_ROWS);
    for (int i = 0; i < MAX_ROWS; i++) words[MAX_ROWS + i] = i; /* pages; [0] is 0: all the rest */
    check(cudaMalloc(&device, words.size() * sizeof(int32_t)), "memory");
    check(cudaMemcpy(device, words.data(), words.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
          "copy");
    const int32_t *zero = device + 2 * MAX_ROWS;
    struct device_step step = {};
    step.n_rows = MAX_ROWS;
    step.n_seqs = step.n_layers = 1;
    step.tokens = device;
    step.row_seq = step.first_row = step.append_slot = step.table_at = zero;
    step.table = device + MAX_ROWS;
    step.layer_pages = MAX_ROWS / PAGE_TOKENS;
    check(cudaMalloc(&arena->step, sizeof(step)), "memory");
    check(cudaMemcpy(arena->step, &step, sizeof(step), cudaMemcpyHostToDevice), "copy");
    arena->rows = reinterpret_cast<uint32_t *>(device);
}

static void make_arena(struct arena *arena) {
    check(cudaStreamCreate(&arena->stream), "stream");
    for (int i = 0; i < N_SETS; i++) {
        check(cudaMalloc(&arena->in[i], set_elements * sizeof(bf16)), "memory");
        check(cudaMalloc(&arena->out[i], set_elements * sizeof(bf16)), "memory");
        fill_kernel<<<1024, 256, 0, arena->stream>>>(arena->in[i], set_elements, 1.0f);
    }
    check(cudaMalloc(&arena->weight, FFN * sizeof(bf16)), "memory");
    check(cudaMalloc(&arena->angles, (size_t)MAX_ROWS * HEAD_DIM * sizeof(float)), "memory");
    fill_kernel<<<64, 256, 0, arena->stream>>>(arena->weight, FFN, 1.0f);
    check(cudaMemsetAsync(arena->angles, 0, (size_t)MAX_ROWS * HEAD_DIM * sizeof(float),
                          arena->stream),
          "memory");
    make_step(arena);
}

static cudaError_t run_rmsnorm(const struct arena *a, int set, uint32_t n, struct launch launch) {
    const struct rmsnorm_params p = {a->in[set], a->weight, ELEMENT_BF16, a->out[set], n,     DIM,
                                     DIM,        DIM,       1e-5f,        1,           false, 1.0f};
    return launch_rmsnorm(&p, launch);
}

static cudaError_t run_silu(const struct arena *a, int set, uint32_t n, struct launch launch) {
    const struct gate_mul_params p = {a->in[set], a->out[set], n, FFN};
    return launch_gate_mul(&p, launch);
}

static cudaError_t run_rope(const struct arena *a, int set, uint32_t n, struct launch launch) {
    struct kv_pool kv = {};
    kv.base = a->out[set];
    kv.format = PAGE_BF16;
    kv.n_kv_heads = KV_HEADS;
    kv.head_dim = HEAD_DIM;
    kv.page_bytes = kv_page_bytes(&kv);
    struct rope_append_params p = {};
    p.step = a->step;
    p.qkv = a->in[set];
    p.qkv_stride = QKV;
    p.angles = a->angles;
    p.kv = kv;
    p.n_rows = n;
    p.n_heads = HEADS;
    p.n_freqs = HEAD_DIM / 2;
    return launch_rope_append(&p, launch);
}

static cudaError_t run_embed(const struct arena *a, int set, uint32_t n, struct launch launch) {
    const struct embed_params p = {a->step, a->in[set], ELEMENT_BF16, a->out[set], n, DIM, 1.0f};
    return launch_embed(&p, launch);
}

static cudaError_t run_gather(const struct arena *a, int set, uint32_t n, struct launch launch) {
    const struct gather_params p = {a->in[set], a->out[set], a->rows, n, DIM};
    return launch_gather(&p, launch);
}

struct pass {
    const char *name;
    cudaError_t (*run)(const struct arena *a, int set, uint32_t n_rows, struct launch launch);
    size_t row_bytes; /* read and written */
};

static const struct pass passes[] = {
    {"rmsnorm", run_rmsnorm, 4 * DIM},
    {"silu_mul", run_silu, 6 * FFN},
    {"rope_append", run_rope,
     2 * (QKV + (HEADS + KV_HEADS) * HEAD_DIM + 2 * KV_HEADS * HEAD_DIM) + 4 * HEAD_DIM},
    {"embed", run_embed, 4 * DIM},
    {"gather", run_gather, 4 * DIM}};

static double bench_copy(const struct arena *arena) {
    const double us = time_graph(arena->stream, 5, [&] {
        for (int i = 0; i < N_SETS; i++)
            check(cudaMemcpyAsync(arena->out[i], arena->in[i], set_elements * sizeof(bf16),
                                  cudaMemcpyDeviceToDevice, arena->stream),
                  "copy");
    });
    return 2.0 * N_SETS * set_elements * sizeof(bf16) / us * 1e-6;
}

int main() {
    enum { N_LAUNCHES = 16 };
    struct arena arena = {};
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIPPED, NOTHING WAS MEASURED: there is no CUDA device\n");
        return 77;
    }
    make_arena(&arena);
    const struct launch launch = {arena.stream, true};
    const double copy = bench_copy(&arena);
    printf("kernel,rows,us,TB/s,of copy (%.3f TB/s)\n", copy);
    for (const struct pass &pass : passes)
        for (uint32_t n_rows : {1u, 64u, 2048u, (uint32_t)MAX_ROWS}) {
            const double us =
                time_graph(arena.stream, 9,
                           [&] {
                               for (int i = 0; i < N_LAUNCHES; i++)
                                   check(pass.run(&arena, i % N_SETS, n_rows, launch), pass.name);
                           }) /
                N_LAUNCHES;
            const double rate = (double)pass.row_bytes * n_rows / us * 1e-6;
            printf("%s,%u,%.2f,%.3f,%.3f\n", pass.name, n_rows, us, rate, rate / copy);
        }
    return 0;
}
