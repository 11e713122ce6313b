/* sample_bench.cu - times the sampling of rows of 128,256 logits.
 *
 *   CSV: logits, filter, rows, us (median)
 *
 * `real` logits have the shape of a model's: normal, and a few far above; `flat` ones keep nearly
 * all tokens; `equal` ones are told apart by their ids alone.  A graph repeats the kernel over the
 * same rows, as after the product that made them: most of 64 rows are in the second-level cache.
 *
 * Thread: main.  Memory: 140 MB of the device. */
#include <cmath>
#include <cstring>
#include <random>

#include "cuda/sampling/sample_kernel.cu"
#include "engine/device/sample.h"
#include "tests/cuda/bench/bench.cuh"

enum { N_VOCAB = 128256, MAX_ROWS = 256, N_BUFFERS = 20, N_REPLAYS = 5 };

struct filter {
    const char *name;
    float temperature, top_p;
    uint32_t top_k, n_top;
};

static const struct filter filters[] = {
    {"greedy", 0.0f, 1.0f, 0, 0},
    {"draw", 1.0f, 1.0f, 0, 0},
    {"top_p 0.95", 0.8f, 0.95f, 0, 0},
    {"top_k 50", 0.8f, 1.0f, 50, 0},
    {"top_k 20,000", 1.0f, 1.0f, 20000, 0},
    {"top_k 50, top_p 0.95", 0.8f, 0.95f, 50, 0},
    {"greedy, 20 reported", 0.0f, 1.0f, 0, 20},
};

static float logit(int kind, std::mt19937 &random) {
    if (kind == 0) {
        const float x = std::normal_distribution<float>(0.0f, 3.0f)(random);
        return random() % 20000 ? x : x + 5.0f + (float)(random() % 10);
    }
    return kind == 1 ? std::uniform_real_distribution<float>(0.0f, 0.1f)(random) : 1.0f;
}

template <typename T> static T *device_copy(const std::vector<T> &from) {
    T *to;
    check(cudaMalloc(&to, from.size() * sizeof(T)), "memory");
    check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
    return to;
}

static void run_filter(const char *kind, const float *logits, const struct filter &filter,
                       uint32_t n, struct launch launch) {
    std::vector<struct device_sample> rows(n);
    for (uint32_t i = 0; i < n; i++) {
        memset(&rows[i], 0, sizeof(rows[i]));
        rows[i].logit_row = i;
        rows[i].sampler.temperature = filter.temperature;
        rows[i].sampler.top_p = filter.top_p;
        rows[i].sampler.top_k = filter.top_k;
        rows[i].n_top = filter.n_top;
        rows[i].uniform = (i + 0.5) / n;
    }
    const struct device_sample *device_rows = device_copy(rows);
    struct sample_result *results = device_copy(std::vector<struct sample_result>(n));
    int32_t *sampled = device_copy(std::vector<int32_t>(n));
    const struct sample_params params = {logits, device_rows, results, sampled, n, N_VOCAB};
    const double us = time_graph(launch.stream, N_REPLAYS, [&] {
        for (int i = 0; i < N_BUFFERS; i++) check(launch_sample(&params, launch), "sample");
    });
    printf("%s,\"%s\",%u,%.1f\n", kind, filter.name, n, us / N_BUFFERS);
    cudaFree((void *)device_rows);
    cudaFree(results);
    cudaFree(sampled);
}

int main(void) {
    static const char *const kinds[] = {"real", "flat", "equal"};
    std::mt19937 random(1);
    cudaStream_t stream;
    int n_multiprocessors;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, 0), "device");
    const struct launch launch = {stream, true, (uint32_t)n_multiprocessors};
    printf("logits,filter,rows,us\n");
    for (int kind = 0; kind < 3; kind++) {
        std::vector<float> logits((size_t)MAX_ROWS * N_VOCAB);
        for (float &x : logits) x = logit(kind, random);
        float *device = device_copy(logits);
        for (const struct filter &filter : filters)
            for (uint32_t n : {1u, 16u, 64u, 256u})
                run_filter(kinds[kind], device, filter, n, launch);
        check(cudaFree(device), "memory");
    }
    return 0;
}
