/* sparse_bench.cu - how long the index of one layer takes, stage by stage, on random queries and
 * keys: 32 query heads, 8 KV heads, head_dim 128, a prompt of each length all at once.
 *
 *   sparse_bench [SLOTS ...]     32K, 128K, 512K and 1M if none is given
 *
 * CSV: pattern, slots, stage, microseconds (median of replays), the bound, time / bound.  The bound
 * is the larger of bytes / 3.35 TB/s and operations / their peak, on an H100 SXM 989 TFLOP/s of
 * bf16 and 67 of f32; 0 where nothing but launches counts.  Device memory goes to stderr.
 *
 * Thread: main.  Memory: 12 KiB of the device a slot. */
#include <cstring>

#include "cuda/attention/sparse/sparse_index.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "tests/cuda/bench/bench.cuh"

enum { HEADS = 32, KV_HEADS = 8, DIM = 128, REPLAYS = 11 };

static constexpr double BYTES_PER_S = 3.35e12, BF16_PER_S = 989e12, F32_PER_S = 67e12;

struct rig {
    uint32_t n_slots;
    struct sparse_build build;
    struct launch launch;
    void *memory, *q, *pool, *words;
    struct attn_pattern *patterns;
};

static void *device_bytes(size_t bytes) {
    void *memory;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    check(cudaMemset(memory, 0, bytes), "cudaMemset");
    return memory;
}

/* Pages in an order that no prefetcher guesses. */
static void make_step(struct rig *r) {
    const uint32_t n_pages = r->n_slots / PAGE_TOKENS;
    std::vector<int32_t> table(n_pages);
    for (uint32_t i = 0; i < n_pages; i++) table[i] = (int32_t)((uint64_t)i * 40503 % n_pages);
    char *words = static_cast<char *>(r->words = device_bytes(512 + n_pages * sizeof(int32_t)));
    struct device_step step = {};
    step.n_rows = r->n_slots;
    step.n_seqs = step.n_layers = 1;
    step.table_at = reinterpret_cast<const int32_t *>(words + 256);
    step.table = reinterpret_cast<const int32_t *>(words + 512);
    step.layer_pages = n_pages;
    check(cudaMemcpy(words, &step, sizeof(step), cudaMemcpyDefault), "step");
    check(cudaMemcpy(words + 512, table.data(), n_pages * sizeof(int32_t), cudaMemcpyDefault),
          "table");
    r->build.step = reinterpret_cast<const struct device_step *>(words);
}

static void make_inputs(struct rig *r) {
    struct kv_pool *kv = &r->build.kv;
    kv->format = PAGE_BF16;
    kv->n_pages = r->n_slots / PAGE_TOKENS;
    kv->n_kv_heads = KV_HEADS;
    kv->head_dim = DIM;
    kv->page_bytes = kv_page_bytes(kv);
    const size_t n_q = (size_t)r->n_slots * HEADS * DIM, n_kv = kv->n_pages * kv->page_bytes / 2;
    r->q = device_bytes(n_q * 2);
    kv->base = r->pool = device_bytes(n_kv * 2);
    fill_kernel<<<1024, 256>>>(static_cast<__nv_bfloat16 *>(r->q), n_q, 2.0f);
    fill_kernel<<<1024, 256>>>(static_cast<__nv_bfloat16 *>(r->pool), n_kv, 2.0f);
    check(cudaDeviceSynchronize(), "inputs");
    r->build.q = r->q;
    r->build.q_stride = HEADS * DIM;
    r->build.scale = score_scale_of(0.088f, 0);
    r->build.dense_above = 1.0f;
}

static void make_rig(struct rig *r, uint32_t n_slots, cudaStream_t stream, bool overlap) {
    *r = {};
    r->n_slots = n_slots;
    r->launch = {stream, overlap};
    make_step(r);
    make_inputs(r);
    const struct sparse_shape shape = {HEADS, KV_HEADS, DIM, n_slots, n_slots, 1000, 100};
    const size_t bytes = sparse_lay_out(&r->build, &shape, nullptr);
    r->memory = device_bytes(bytes);
    sparse_lay_out(&r->build, &shape, static_cast<char *>(r->memory));
    r->build.view.first_dense_tile = r->build.view.n_tiles;
    r->build.account =
        static_cast<struct sparse_account *>(device_bytes(sizeof(*r->build.account)));
    r->patterns =
        static_cast<struct attn_pattern *>(device_bytes(HEADS * sizeof(struct attn_pattern)));
    r->build.patterns = r->patterns;
    fprintf(stderr, "%u slots: %.1f MiB, %.1f MiB per 128K\n", n_slots, bytes / 1048576.0,
            bytes / 1048576.0 * 131072 / n_slots);
}

static void free_rig(struct rig *r) {
    for (void *memory :
         {r->memory, r->q, r->pool, r->words, (void *)r->patterns, (void *)r->build.account})
        cudaFree(memory);
}

/* ---- stages ---- */

struct stage {
    const char *name;
    cudaError_t (*launch)(const struct sparse_build *, struct launch);
    enum attn_pattern_kind kind; /* that needs it; PATTERN_DENSE: all */
    double bytes, bf16, f32;     /* per slot; f32: per slot and page */
};

static const struct stage stages[] = {
    {"scores", launch_sparse_scores, PATTERN_VERTICAL_SLASH, 2 * KV_HEADS *DIM * 2.0 + HEADS * 12.0,
     2 * 2.0 * SPARSE_QUERIES *DIM *HEADS, 0},
    {"select", launch_sparse_select, PATTERN_VERTICAL_SLASH, HEADS * 12.0, 0, 0},
    {"lists", launch_sparse_lists, PATTERN_DENSE, 0, 0, 0},
    {"pages", launch_sparse_pages, PATTERN_BLOCK_SPARSE, (HEADS + KV_HEADS) * DIM * 2.0, 0,
     2.0 * DIM *HEADS / SPARSE_TILE / 2},
    {"rule", launch_sparse_rule, PATTERN_DENSE, 0, 0, 0},
};

static bool is_needed(const struct stage &stage, enum attn_pattern_kind kind) {
    return stage.kind == PATTERN_DENSE || stage.kind == kind;
}

static double bound_us(const struct stage &s, uint32_t n_slots) {
    const double n_pages = n_slots / (double)PAGE_TOKENS;
    return 1e6 * n_slots *
           std::max(s.bytes / BYTES_PER_S,
                    std::max(s.bf16 / BF16_PER_S, s.f32 * n_pages / F32_PER_S));
}

static void print(const char *name, uint32_t n_slots, const char *stage, double us, double bound) {
    printf("%s,%u,%s,%.1f,%.1f,%.2f\n", name, n_slots, stage, us, bound,
           bound > 0 ? us / bound : 0.0);
}

/* Stages alone, each with what the one before left, then all of them. */
static void time_pattern(struct rig *r, const char *name, struct attn_pattern pattern) {
    const std::vector<struct attn_pattern> patterns(HEADS, pattern);
    double total_bound = 0;
    check(cudaMemcpy(r->patterns, patterns.data(), HEADS * sizeof(pattern), cudaMemcpyDefault),
          "patterns");
    const auto run_all = [&] {
        for (const struct stage &stage : stages)
            if (is_needed(stage, pattern.kind))
                check(stage.launch(&r->build, r->launch), stage.name);
    };
    run_all();
    for (const struct stage &stage : stages) {
        if (!is_needed(stage, pattern.kind)) continue;
        const double us = time_graph(r->launch.stream, REPLAYS, [&] {
            check(stage.launch(&r->build, r->launch), stage.name);
        });
        total_bound += bound_us(stage, r->n_slots);
        print(name, r->n_slots, stage.name, us, bound_us(stage, r->n_slots));
    }
    print(name, r->n_slots, "all", time_graph(r->launch.stream, REPLAYS, run_all), total_bound);
    fflush(stdout);
}

int main(int argc, char **argv) {
    std::vector<uint32_t> lengths = {32768, 131072, 524288, 1048576};
    struct cudaDeviceProp properties;
    cudaStream_t stream;
    if (argc > 1) lengths.clear();
    for (int i = 1; i < argc; i++)
        lengths.push_back((uint32_t)atoi(argv[i]) / SPARSE_TILE * SPARSE_TILE);
    check(cudaGetDeviceProperties(&properties, 0), "device");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    fprintf(stderr, "%s\n", properties.name);
    printf("pattern,slots,stage,us,bound_us,times_bound\n");
    for (uint32_t n_slots : lengths) {
        struct rig r;
        if (n_slots == 0) continue;
        make_rig(&r, n_slots, stream, properties.major == 9);
        time_pattern(&r, "vertical_slash 1000 6096", {PATTERN_VERTICAL_SLASH, 1000, 6096});
        time_pattern(&r, "block_sparse 100", {PATTERN_BLOCK_SPARSE, 100, 0});
        time_pattern(&r, "a_shape 1024 4096", {PATTERN_A_SHAPE, 1024, 4096});
        free_rig(&r);
    }
    return 0;
}
