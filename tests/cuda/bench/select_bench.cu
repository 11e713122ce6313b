/* select_bench.cu - what a selection costs: 32 query heads, 8 KV heads of 128, bf16, one sequence.
 *
 *   keys, slots   from raw scores to the chosen tokens; then what must be fetched (all of it:
 *                 fresh)
 *   blocks        2,048 and 512 tokens for each of 12 layers from the system's memory, in order
 *   pages         the same from pages on the device
 *   store         pages to blocks
 *   fp8 …         blocks and store, with elements of 8 bits: bytes are those of the store
 *
 *   select_bench [CANDIDATES ...]     128K, 450K and 1M if none is given
 *
 * CSV: what, candidates, tokens, microseconds (median of replays), GB/s.
 *
 * Thread: main.  Memory: a seventh of a KiB of the device a candidate, 2 GiB for pages and 2 GiB of
 * the system's for blocks. */
#include <cstring>

#include "cuda/kv/select.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "tests/cuda/bench/bench.cuh"

enum { HEADS = 32, KV_HEADS = 8, DIM = 128, LAYERS = 12, REPLAYS = 11, MOST_SELECTED = 2048 };
enum { BLOCKS = 640, CHOSEN_PAGES = MOST_SELECTED / PAGE_TOKENS }; /* 40,960 tokens */
enum { N_PAGES = LAYERS * (BLOCKS + CHOSEN_PAGES) + 1 };

static void *device_bytes(size_t bytes) {
    void *memory;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    check(cudaMemset(memory, 0, bytes), "cudaMemset");
    return memory;
}

template <typename T> static T *device_array(size_t n) {
    return static_cast<T *>(device_bytes(n * sizeof(T)));
}

static __global__ void fill_scores_kernel(float *scores, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
        scores[i] = (float)(x >> 40) / 1048576.0f; /* [0, 16) */
    }
}

/* One sequence on the device; its words lie behind the step. */
struct rig {
    struct device_step step;
    struct kv_pool kv;
    struct host_pool store;
    struct device_select select;
    std::vector<int32_t> words; /* lists of selections, then page tables */
    struct fetch_params fetch;
};

static int32_t append(std::vector<int32_t> *words, const std::vector<int32_t> &more) {
    const size_t at = words->size();
    words->insert(words->end(), more.begin(), more.end());
    return (int32_t)at;
}

/* In an order that no prefetcher guesses. */
static std::vector<int32_t> scattered(uint32_t n, uint32_t first) {
    std::vector<int32_t> out(n);
    for (uint32_t i = 0; i < n; i++) out[i] = (int32_t)(first + (uint64_t)i * 40503 % n);
    return out;
}

static void make_pools(struct rig *r) {
    r->kv = {nullptr, PAGE_BF16, N_PAGES, KV_HEADS, DIM, 0, false};
    r->kv.page_bytes = kv_page_bytes(&r->kv);
    r->kv.base = device_bytes(N_PAGES * r->kv.page_bytes);
    r->store = {nullptr, PAGE_BF16, BLOCKS, LAYERS, KV_HEADS, DIM, false};
    check(cudaHostAlloc(&r->store.base, BLOCKS * host_pool_block_bytes(&r->store),
                        cudaHostAllocPortable | cudaHostAllocMapped),
          "pinned memory");
    memset(r->store.base, 1, BLOCKS * host_pool_block_bytes(&r->store));
}

/* Lists of tokens to fetch are written by hand: n of them, all over the store. */
static void make_fetches(struct rig *r, uint32_t n) {
    std::vector<struct fetch> fetches(n);
    for (uint32_t i = 0; i < n; i++)
        fetches[i] = {0, i, (uint32_t)((uint64_t)i * 40503 % (BLOCKS * PAGE_TOKENS)), 0};
    check(cudaMemcpy(const_cast<struct fetch *>(r->fetch.fetches), fetches.data(),
                     n * sizeof(struct fetch), cudaMemcpyDefault),
          "fetches");
    check(cudaMemcpy(const_cast<uint32_t *>(r->fetch.n_fetches), &n, sizeof(n), cudaMemcpyDefault),
          "fetches");
}

static void make_rig(struct rig *r) {
    *r = {};
    make_pools(r);
    std::vector<int32_t> &lists = r->words, where(LAYERS);
    r->select.blocks = -1;
    r->select.states = append(&lists, {N_PAGES - 1});
    r->select.pages = append(&lists, where);
    for (int l = 0; l < LAYERS; l++)
        lists[(size_t)r->select.pages + l] =
            append(&lists, scattered(BLOCKS, (uint32_t)l * BLOCKS));
    const int32_t tables = append(&lists, {});
    for (int l = 0; l < LAYERS; l++)
        append(&lists, scattered(CHOSEN_PAGES, LAYERS * BLOCKS + (uint32_t)l * CHOSEN_PAGES));
    const int32_t table_at = append(&lists, std::vector<int32_t>(LAYERS));
    int32_t *device = device_array<int32_t>(lists.size());
    check(cudaMemcpy(device, lists.data(), lists.size() * 4, cudaMemcpyDefault), "lists");
    r->step.n_rows = r->step.n_seqs = r->step.n_decode = 1;
    r->step.n_layers = LAYERS;
    r->step.table = device + tables;
    r->step.layer_pages = CHOSEN_PAGES;
    r->step.table_at = device + table_at;
    r->step.select_lists = device;
    r->fetch.kv = r->kv;
    r->fetch.fetches = device_array<struct fetch>(MOST_SELECTED);
    r->fetch.n_fetches = device_array<uint32_t>(1);
}

/* The step with a selection of these sizes; on the device. */
static const struct device_step *send_step(struct rig *r, uint32_t n_candidates,
                                           uint32_t n_selected) {
    r->select.n_candidates = n_candidates;
    r->select.n_selected = n_selected;
    r->select.n_sink = 4;
    r->select.fresh = 1;
    struct device_select *select = device_array<struct device_select>(1);
    struct device_step *step = device_array<struct device_step>(1);
    r->step.selects = select;
    check(cudaMemcpy(select, &r->select, sizeof(*select), cudaMemcpyDefault), "selection");
    check(cudaMemcpy(step, &r->step, sizeof(*step), cudaMemcpyDefault), "step");
    return step;
}

static void print(const char *what, uint32_t n_candidates, uint32_t n_tokens, double us,
                  double bytes) {
    printf("%s,%u,%u,%.1f,%.1f\n", what, n_candidates, n_tokens, us, bytes / us / 1e3);
    fflush(stdout);
}

static void time_choice(struct rig *r, uint32_t n, struct launch launch, int n_blocks) {
    struct select_params p = {};
    p.step = send_step(r, n, MOST_SELECTED);
    p.attn_stats.lse = device_array<float>(HEADS);
    p.attn_stats.scores = device_array<float>((size_t)n * HEADS);
    p.attn_stats.score_stride = n;
    p.kv = r->kv;
    p.n_heads = HEADS;
    p.state_slots = kv_state_slots(&r->kv);
    p.n_blocks = (uint32_t)n_blocks;
    struct select_workspace *room = &p.room;
    *room = {device_array<uint32_t>(n),
             device_array<uint32_t>(n / 32),
             device_array<uint32_t>(n / 32),
             device_array<uint32_t>(SELECT_DIGITS * SELECT_BINS),
             device_array<uint32_t>(SELECT_DIGITS * 2),
             device_array<uint32_t>(MOST_SELECTED),
             device_array<struct select_total>(1),
             {},
             device_array<uint32_t>(FETCH_KINDS),
             MOST_SELECTED};
    for (auto &fetches : room->fetches) fetches = device_array<struct fetch>(MOST_SELECTED);
    fill_scores_kernel<<<1024, 256>>>(p.attn_stats.scores, (size_t)n * HEADS);
    check(cudaDeviceSynchronize(), "scores");
    const auto run = [&] {
        check(launch_select_keys(&p, 1, launch), "keys");
        check(launch_select_slots(&p, 1, launch), "slots");
    };
    print("keys + slots", n, MOST_SELECTED, time_graph(launch.stream, REPLAYS, run),
          (double)n * HEADS * 4);
    for (void *memory : {(void *)p.attn_stats.lse, (void *)p.attn_stats.scores, (void *)room->keys})
        cudaFree(memory);
}

/* With fp8 in a part of the memory. */
static struct host_pool store_of(const struct rig *r, bool fp8) {
    struct host_pool store = r->store;
    store.fp8 = fp8;
    return store;
}

static void time_blocks(struct rig *r, uint32_t n, bool fp8, struct launch launch) {
    r->fetch.step = send_step(r, BLOCKS * PAGE_TOKENS, MOST_SELECTED);
    r->fetch.store = store_of(r, fp8);
    make_fetches(r, n);
    const double us = time_graph(launch.stream, REPLAYS, [&] {
        for (uint32_t l = 0; l < LAYERS; l++) {
            struct fetch_params p = r->fetch;
            p.first_layer = p.first_host_layer = l;
            check(launch_fetch(&p, 1, launch), "blocks");
        }
    });
    print(fp8 ? "fp8 blocks" : "blocks", 0, n, us,
          (double)n * LAYERS * host_pool_token_bytes(&r->fetch.store));
}

static void time_pages(struct rig *r, uint32_t n, struct launch launch) {
    r->fetch.step = send_step(r, BLOCKS * PAGE_TOKENS, MOST_SELECTED);
    r->fetch.store = {};
    make_fetches(r, n);
    const double us = time_graph(launch.stream, REPLAYS,
                                 [&] { check(launch_fetch(&r->fetch, LAYERS, launch), "pages"); });
    print("pages", 0, n, us, (double)n * LAYERS * host_pool_token_bytes(&r->store));
}

static void time_store(struct rig *r, bool fp8, struct launch launch) {
    struct offload_params p = {r->kv, store_of(r, fp8), 0, 128, {}};
    for (uint32_t i = 0; i < p.n; i++) p.copies[i] = {i * 5 % BLOCKS, i * 3 % BLOCKS};
    const double us = time_graph(launch.stream, REPLAYS,
                                 [&] { check(launch_offload_pages(&p, launch), "store"); });
    print(fp8 ? "fp8 store" : "store", 0, p.n * PAGE_TOKENS, us,
          (double)p.n * PAGE_TOKENS * host_pool_token_bytes(&p.store));
}

int main(int argc, char **argv) {
    std::vector<uint32_t> lengths = {131072, 450048, 1000000};
    struct cudaDeviceProp properties;
    cudaStream_t stream;
    if (argc > 1) lengths.clear();
    for (int i = 1; i < argc; i++) lengths.push_back((uint32_t)atoi(argv[i]));
    check(cudaGetDeviceProperties(&properties, 0), "device");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    fprintf(stderr, "%s\n", properties.name);
    const struct launch launch = {stream, properties.major == 9}, alone = {stream, false};
    struct rig r;
    make_rig(&r);
    printf("what,candidates,tokens,us,gb_per_s\n");
    for (uint32_t n : lengths)
        if (n / PAGE_TOKENS * PAGE_TOKENS > MOST_SELECTED)
            time_choice(&r, n / PAGE_TOKENS * PAGE_TOKENS, launch,
                        2 * properties.multiProcessorCount);
    for (bool fp8 : {false, true})
        for (uint32_t n : {2048u, 512u}) time_blocks(&r, n, fp8, alone);
    for (uint32_t n : {2048u, 512u}) time_pages(&r, n, launch);
    for (bool fp8 : {false, true}) time_store(&r, fp8, alone);
    return 0;
}
