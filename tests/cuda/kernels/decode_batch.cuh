/* decode_batch.cuh - what the test and the benchmark of decode attention share: device memory, a
 * plan on the device, and the distance of a result from what is right.
 *
 * Thread: main.  Memory: each object's own, on the device. */
#ifndef TESTS_CUDA_KERNELS_DECODE_BATCH_CUH
#define TESTS_CUDA_KERNELS_DECODE_BATCH_CUH

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "cuda/attention/decode/attn_decode.cuh"
#include "tests/cuda/kernels/worst.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

namespace {

constexpr unsigned SEED = 20261121;
bool g_portable; /* leave the copy engine out */
/* Blocks that a grid may have, so that all are resident: the device's multiprocessors. */
uint32_t g_most_blocks = UINT32_MAX;

/* Device memory that frees itself. */
template <typename T> struct device_array {
    T *data = nullptr;
    size_t n;
    explicit device_array(size_t n_) : n(n_) { CHECK(cudaMalloc(&data, (n ? n : 1) * sizeof(T))); }
    ~device_array() { cudaFree(data); }
    device_array(const device_array &) = delete;
    void upload(const std::vector<T> &from) {
        CHECK(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> download() const {
        std::vector<T> to(n);
        CHECK(cudaMemcpy(to.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
    /* Fills it with NaNs that no arithmetic makes, as memory for partial results is that has
     * none. */
    void poison() { CHECK(cudaMemset(data, 0xff, n * sizeof(T))); }
};

struct device_plan {
    struct attn_plan_shape shape;
    struct attn_plan_budget room;
    std::vector<attn_tile> tiles;
    std::vector<attn_merge> merges;
    std::vector<attn_load> loads;
    uint32_t n_busy = 0; /* blocks that have tiles */
    device_array<attn_tile> d_tiles;
    device_array<attn_merge> d_merges;
    device_array<attn_plan_end> d_end{1};

    device_plan(struct attn_plan_shape s, uint32_t max_seqs, uint64_t max_slots)
        : shape(s), room(attn_plan_budget(&s, max_seqs, max_slots)), tiles(room.n_tiles),
          merges(room.n_merges), loads(room.n_loads), d_tiles(room.n_tiles),
          d_merges(room.n_merges) {}

    void build(const std::vector<uint32_t> &n_slots, const std::vector<int32_t> &table_at) {
        attn_plan_end end;
        attn_plan plan = {tiles.data(), merges.data(), loads.data(), &end, 0, 0, 0};
        const attn_plan_batch batch = {n_slots.data(), table_at.data(), (uint32_t)n_slots.size(),
                                       0};
        attn_plan_build(&plan, &shape, &batch);
        if (plan.n_tiles > room.n_tiles || plan.n_merges > room.n_merges ||
            plan.n_partials > room.n_partials) {
            printf("FAIL plan larger than its room\n");
            exit(1);
        }
        n_busy = (uint32_t)end.n_blocks;
        d_tiles.upload(tiles);
        d_merges.upload(merges);
        d_end.upload({end});
    }
};

/* Sum of squares of the error and of what is right; NaN stays NaN. */
struct distance {
    double error = 0, norm = 0;
    void add(double got, double expected) {
        error += (got - expected) * (got - expected);
        norm += expected * expected;
    }
    double relative() const { return sqrt(error / std::max(norm, 1e-300)); }
};

} // namespace

#endif
