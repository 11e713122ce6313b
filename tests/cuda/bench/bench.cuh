/* bench.cuh - what the benchmarks of kernels share: random data, and timing a replayed graph.
 *
 * Thread: main.  Memory: none of its own. */
#ifndef TESTS_CUDA_BENCH_BENCH_CUH
#define TESTS_CUDA_BENCH_BENCH_CUH

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda/common/device.cuh"

static void check(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    exit(1);
}

static __global__ void fill_kernel(__nv_bfloat16 *to, size_t n, float scale) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
        store_as(to + i, ((float)(x >> 40) / 8388608.0f - 1.0f) * scale);
    }
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

#endif
