/* attn_decode_bench.cu - the speed of decode attention, as CSV, beside that of bare reads.
 * --portable leaves the copy engine out; --few=1 has few blocks read, --few=0 all.
 *
 * Thread: its own.  Memory: a pool of POOL_BYTES, the rest for each shape. */
#include <cuda_bf16.h>
#include <string.h>

#include <random>

#include "engine/device/pages.h"
#include "tests/cuda/kernels/decode_batch.cuh"

namespace {

__device__ uint32_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(x >> 32);
}

/* About normal: the sum of four uniform numbers. */
__global__ void fill_random(__nv_bfloat16 *to, size_t n, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t x = mix(seed + i * 2 + 1);
        const int sum =
            (int)(x & 255) + (int)(x >> 8 & 255) + (int)(x >> 16 & 255) + (int)(x >> 24);
        to[i] = __float2bfloat16((float)(sum - 510) / 148.0f);
    }
}

__global__ void read_all(const uint4 *from, size_t n, uint32_t *to) {
    uint32_t x = 0;
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = __ldcs(from + i + k * stride);
#pragma unroll
        for (int k = 0; k < 8; k++) x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (x == 0x12345678) *to = x;
}

constexpr int BARE_BLOCKS = 4, BARE_THREADS = 256; /* per multiprocessor; per block */
constexpr size_t BARE_READ = 4096, BARE_WRITE = 128;

/* What memory asks for writes among reads: a warp reads chunks of BARE_READ bytes that lie in a
 * row, 8 loads under way, and writes BARE_WRITE bytes for each, if there is a `to`.  Keys and
 * values are to scores as these two where head_dim is 32 times the group. */
__global__ void __launch_bounds__(BARE_THREADS, BARE_BLOCKS)
    read_and_write(const uint4 *from, size_t n_chunks, float *to, uint32_t *sink) {
    const size_t n_warps = gridDim.x * (BARE_THREADS / 32),
                 warp = blockIdx.x * (BARE_THREADS / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    uint32_t sum = 0;
    for (size_t i = n_chunks * warp / n_warps; i < n_chunks * (warp + 1) / n_warps; i++) {
        uint4 v[8];
        uint32_t x = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = __ldcs(from + (i * 8 + k) * 32 + lane);
#pragma unroll
        for (int k = 0; k < 8; k++) x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
        if (to) __stcs(to + i * 32 + lane, __uint_as_float(x));
        sum ^= x;
    }
    if (sum == 0x12345678) *sink = sum;
}

/* Attention of one (sequence, head) in double, one block; weights [n] is scratch. */
__global__ void oracle_kernel(attn_decode_params p, int n_seqs, int n, double *weights,
                              double *out) {
    const int head = blockIdx.x % p.n_heads, seq = blockIdx.x / p.n_heads;
    const int kv_head = head / (p.n_heads / p.n_kv_heads), dim = p.head_dim;
    const __nv_bfloat16 *q = (const __nv_bfloat16 *)p.q + seq * p.q_stride + (size_t)head * dim;
    double *w = weights + (size_t)blockIdx.x * n;
    auto row = [&](int slot, bool value) {
        const int page = p.step->table[p.layer * (size_t)p.step->layer_pages +
                                       seq * (p.step->layer_pages / n_seqs) + slot / 64];
        return (const __nv_bfloat16 *)((const char *)p.pool + page * p.page_bytes) +
               ((size_t)(value * p.n_kv_heads + kv_head) * 64 + slot % 64) * dim;
    };
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const uint4 *keys = (const uint4 *)row(i, false);
        double dot = 0;
        for (int chunk = 0; chunk < dim / 8; chunk++) {
            const uint4 words = keys[chunk];
            const __nv_bfloat16 *k = (const __nv_bfloat16 *)&words;
            for (int d = 0; d < 8; d++)
                dot += (double)__bfloat162float(q[chunk * 8 + d]) * __bfloat162float(k[d]);
        }
        w[i] = exp(dot * p.scale.outer); /* logits are small: no maximum needed in double */
    }
    __shared__ double sums[1024], outs[1024];
    const int n_slices = blockDim.x / dim, slice = threadIdx.x / dim, d = threadIdx.x % dim;
    sums[threadIdx.x] = outs[threadIdx.x] = 0;
    __syncthreads();
    for (int i = slice; slice < n_slices && i < n; i += n_slices) {
        sums[threadIdx.x] += w[i];
        outs[threadIdx.x] += w[i] * __bfloat162float(row(i, true)[d]);
    }
    __syncthreads();
    if (slice > 0) return;
    for (int i = 1; i < n_slices; i++) {
        sums[d] += sums[i * dim + d];
        outs[d] += outs[i * dim + d];
    }
    out[(size_t)blockIdx.x * dim + d] = outs[d] / sums[d];
}

int g_few = -1; /* whether few blocks read; -1: as attn_plan_suits_few() says */
constexpr size_t POOL_BYTES = (size_t)2 << 30;

struct bench_shape {
    uint32_t n_seqs, n_slots, n_heads, n_kv_heads, dim;
    size_t kv_bytes() const { return (size_t)n_seqs * n_slots * n_kv_heads * dim * 4; }
    size_t set_pages() const { return (size_t)n_seqs * (n_slots / 64); } /* of one batch */
    size_t score_bytes() const { return (size_t)n_seqs * n_slots * n_heads * sizeof(float); }
};

struct timing {
    double median_us, low_us, high_us, error;
    uint32_t n_blocks; /* that have work */
};

/* How a kernel follows the one before: after its end; beside its end; beside it, with the first
 * units read before its end, as in the engine's recorded steps. */
enum launch_mode { ALONE, OVERLAPPED, RECORDED };
const char *const MODE_NAMES[] = {"-", "overlap", "recorded"};

struct bench {
    device_array<__nv_bfloat16> pool{POOL_BYTES / 2};
    device_array<__nv_bfloat16> q{(size_t)1 << 20}, out{(size_t)1 << 20};
    device_array<float> scores{(size_t)64 << 20};
    device_array<double> expected{(size_t)1 << 20}, weights{(size_t)8 << 20};
    int n_sms;
    cudaStream_t stream;

    /* So many batches lie in the pool, read in turn: L2 has nothing of the one that comes next. */
    static int count_sets(const bench_shape &b) {
        return (int)std::min<size_t>(16, POOL_BYTES / b.kv_bytes());
    }

    static int launches_in_graph(const bench_shape &b) {
        return count_sets(b) * (count_sets(b) < 8 ? 4 : 2);
    }

    bench() {
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0));
        fill_random<<<1024, 256>>>(pool.data, pool.n, 1);
        fill_random<<<1024, 256>>>(q.data, q.n, 77);
        CHECK(cudaDeviceSynchronize());
    }
    ~bench() { cudaStreamDestroy(stream); }

    /* Median, lowest and highest time of a graph, in us. */
    timing time_graph(cudaGraph_t graph, int per_graph) {
        cudaGraphExec_t exec;
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        cudaEvent_t begin, end;
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
        std::vector<float> times;
        for (int i = 0; i < 18; i++) {
            float ms;
            CHECK(cudaEventRecord(begin, stream));
            CHECK(cudaGraphLaunch(exec, stream));
            CHECK(cudaEventRecord(end, stream));
            CHECK(cudaEventSynchronize(end));
            CHECK(cudaEventElapsedTime(&ms, begin, end));
            if (i >= 3) times.push_back(ms * 1000 / per_graph);
        }
        std::sort(times.begin(), times.end());
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
        CHECK(cudaGraphExecDestroy(exec));
        return {times[times.size() / 2], times.front(), times.back(), 0, 0};
    }

    double read_ceiling() {
        cudaGraph_t graph;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        read_all<<<n_sms * 8, 512, 0, stream>>>((const uint4 *)pool.data, POOL_BYTES / 16,
                                                (uint32_t *)out.data);
        CHECK(cudaStreamEndCapture(stream, &graph));
        const timing t = time_graph(graph, 1);
        CHECK(cudaGraphDestroy(graph));
        return POOL_BYTES / t.median_us * 1e-6;
    }

    timing run(const bench_shape &b, launch_mode mode, bool with_scores, uint32_t split) {
        const uint32_t group = b.n_heads / b.n_kv_heads;
        attn_decode_params p = params_of(b);
        if (!g_portable) CHECK(attn_decode_map_pool(&p, (uint32_t)(count_sets(b) * b.set_pages())));
        struct attn_plan_shape shape = {};
        shape.n_kv_heads = b.n_kv_heads, shape.split_slots = split;
        CHECK(attn_decode_count_blocks(p, &shape));
        const std::vector<uint32_t> n_slots(b.n_seqs, b.n_slots);
        const std::vector<int32_t> places = table_places(b);
        const attn_plan_batch batch = {n_slots.data(), places.data(), b.n_seqs, 0};
        shape.few = g_few >= 0 ? g_few > 0 : attn_plan_suits_few(&shape, &batch);
        device_plan plan(shape, b.n_seqs, (uint64_t)b.n_seqs * b.n_slots);
        plan.build(n_slots, places);
        p.few = shape.few, p.n_blocks = attn_plan_grid(&shape);
        device_array<int32_t> pages(count_sets(b) * b.set_pages());
        pages.upload(shuffled_sets(b));
        device_array<device_budget> budgets(b.n_seqs);
        budgets.upload(score_places(b));
        device_array<device_step> step(1); /* a set is a layer */
        device_step header = {};
        header.table = pages.data, header.layer_pages = (uint32_t)b.set_pages();
        header.budgets = with_scores ? budgets.data : nullptr;
        device_array<int32_t> appended(count_sets(b) * b.n_seqs);
        appended.upload(std::vector<int32_t>(appended.n, (int32_t)b.n_slots - 1));
        header.append_slot = appended.data, header.n_seqs = b.n_seqs;
        step.upload({header});
        device_array<float> partial_out((size_t)plan.room.n_partials * group * b.dim),
            partial_lse((size_t)plan.room.n_partials * group * b.dim / 4);
        partial_out.poison();
        partial_lse.poison();
        device_array<uint32_t> n_arrived(1);
        n_arrived.poison();
        p.step = step.data, p.tiles = plan.d_tiles.data;
        p.merges = plan.d_merges.data, p.plan_end = plan.d_end.data;
        p.partial_out = partial_out.data, p.partial_lse = partial_lse.data;
        p.n_arrived = n_arrived.data;
        p.attn_stats = {nullptr, with_scores ? scores.data : nullptr, (size_t)b.n_seqs * b.n_slots};
        p.overlap = mode != ALONE, p.settled = mode == RECORDED;
        timing t = time_launches(b, p);
        t.n_blocks = plan.n_busy;
        return t;
    }

    attn_decode_params params_of(const bench_shape &b) const {
        attn_decode_params p = {};
        p.q = q.data, p.q_stride = (size_t)b.n_heads * b.dim, p.out = out.data, p.pool = pool.data;
        p.page_bytes = (size_t)2 * b.n_kv_heads * 64 * b.dim * 2, p.kv_format = PAGE_BF16;
        p.n_heads = b.n_heads, p.n_kv_heads = b.n_kv_heads, p.head_dim = b.dim;
        p.scale = score_scale_of((float)(1 / sqrt(b.dim)), 0);
        return p;
    }

    static std::vector<int32_t> table_places(const bench_shape &b) {
        std::vector<int32_t> table_at(b.n_seqs);
        for (uint32_t i = 0; i < b.n_seqs; i++) table_at[i] = (int32_t)(i * (b.n_slots / 64));
        return table_at;
    }

    static std::vector<int32_t> shuffled_sets(const bench_shape &b) {
        const size_t set_pages = b.set_pages();
        std::vector<int32_t> table(count_sets(b) * set_pages);
        std::mt19937 random(SEED);
        for (size_t i = 0; i < table.size(); i++) table[i] = (int32_t)i;
        for (auto first = table.begin(); first != table.end(); first += (long)set_pages)
            std::shuffle(first, first + (long)set_pages, random);
        return table;
    }

    static std::vector<device_budget> score_places(const bench_shape &b) {
        std::vector<device_budget> wishes(b.n_seqs);
        for (uint32_t i = 0; i < b.n_seqs; i++) {
            wishes[i].capacity = 1;
            for (uint32_t &layers : wishes[i].layers) layers = ~0u;
            wishes[i].scores_at = (int32_t)(i * b.n_slots);
        }
        return wishes;
    }

    timing time_launches(const bench_shape &b, attn_decode_params p) {
        cudaGraph_t graph;
        const int per_graph = launches_in_graph(b);
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < per_graph; i++) {
            p.layer = (uint32_t)(i % count_sets(b));
            CHECK(launch_attn_decode(p, stream));
        }
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaMemsetAsync(out.data, 0xff, out.n * 2, stream));
        timing t = time_graph(graph, per_graph);
        CHECK(cudaGraphDestroy(graph));
        t.error = check_last(b, p);
        return t;
    }

    /* The bare kernel with the reads of a batch, and the writes of its scores. */
    timing run_bare(const bench_shape &b, bool writes) {
        const size_t n_chunks = b.kv_bytes() / BARE_READ;
        const int per_graph = launches_in_graph(b);
        cudaGraph_t graph;
        if (b.score_bytes() != n_chunks * BARE_WRITE || b.score_bytes() > scores.n * 4) {
            printf("FAIL the bare kernel does not write what attention does\n");
            exit(1);
        }
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < per_graph; i++)
            read_and_write<<<n_sms * BARE_BLOCKS, BARE_THREADS, 0, stream>>>(
                (const uint4 *)(pool.data + i % count_sets(b) * (b.kv_bytes() / 2)), n_chunks,
                writes ? scores.data : nullptr, (uint32_t *)out.data);
        CHECK(cudaStreamEndCapture(stream, &graph));
        const timing t = time_graph(graph, per_graph);
        CHECK(cudaGraphDestroy(graph));
        return t;
    }

    double check_last(const bench_shape &b, const attn_decode_params &p) {
        const uint32_t n_seqs =
            std::min<size_t>(b.n_seqs, weights.n / ((size_t)b.n_slots * b.n_heads));
        oracle_kernel<<<n_seqs * b.n_heads, 1024>>>(p, b.n_seqs, b.n_slots, weights.data,
                                                    expected.data);
        CHECK(cudaDeviceSynchronize());
        const auto right = expected.download();
        const auto got = out.download();
        distance sum;
        for (size_t i = 0; i < (size_t)n_seqs * b.n_heads * b.dim; i++)
            sum.add(__bfloat162float(got[i]), right[i]);
        return sum.relative();
    }
};

const bench_shape BENCH_SHAPES[] = {
    {256, 256, 16, 2, 128},  {128, 512, 16, 2, 128}, {64, 1024, 16, 2, 128},
    {32, 2048, 16, 2, 128},  {16, 4096, 16, 2, 128}, {8, 8192, 16, 2, 128},
    {4, 16384, 16, 2, 128},  {2, 32768, 16, 2, 128}, {1, 65536, 16, 2, 128},
    {1, 131072, 16, 2, 128}, {1, 32768, 32, 8, 128}, {1, 131072, 32, 8, 128},
    {32, 8192, 32, 8, 128},
};

void print_rows(bench &b, double ceiling, const bench_shape *shapes, int n, launch_mode mode,
                bool scores, uint32_t split) {
    for (int i = 0; i < n; i++) {
        const bench_shape &s = shapes[i];
        const double bytes = (double)s.kv_bytes();
        const timing t = b.run(s, mode, scores, split);
        printf("%u x %u,%u/%u,%u,%s,%s,%u,%u,%.1f,%.1f,%.1f,%.1f,%.2f,%.3f,%.1e\n", s.n_seqs,
               s.n_slots, s.n_heads, s.n_kv_heads, s.dim, MODE_NAMES[mode], scores ? "scores" : "-",
               split, t.n_blocks, bytes * 1e-6, t.median_us, t.low_us, t.high_us,
               bytes / t.median_us * 1e-6, bytes / t.median_us * 1e-6 / ceiling, t.error);
    }
}

/* What asking for scores costs, and what writing as much costs a kernel that only reads. */
void print_score_costs(bench &b) {
    const bench_shape shapes[] = {{1, 131072, 32, 8, 128},
                                  {64, 2048, 32, 8, 128},
                                  {32, 8192, 32, 8, 128},
                                  {4, 65536, 32, 8, 128},
                                  {64, 8192, 32, 8, 128}};
    printf("B x n,KV MB,score MB,attention us,with scores us,costs,bare reads us,with writes us,"
           "costs\n");
    for (const bench_shape &s : shapes) {
        const double plain = b.run(s, OVERLAPPED, false, 0).median_us,
                     scores = b.run(s, OVERLAPPED, true, 0).median_us,
                     reads = b.run_bare(s, false).median_us, writes = b.run_bare(s, true).median_us;
        printf("%u x %u,%.1f,%.1f,%.1f,%.1f,%.1f %%,%.1f,%.1f,%.1f %%\n", s.n_seqs, s.n_slots,
               (double)s.kv_bytes() * 1e-6, (double)s.score_bytes() * 1e-6, plain, scores,
               (scores / plain - 1) * 100, reads, writes, (writes / reads - 1) * 100);
    }
}

void run_bench() {
    bench b;
    const double ceiling = b.read_ceiling();
    printf("read ceiling %.3f TB/s, %s\n", ceiling, g_portable ? "cp.async" : "copy engine");
    printf("B x n,heads,dim,launch,scores,split,blocks,KV MB,us median,us low,us high,TB/s,of "
           "ceiling,error\n");
    print_rows(b, ceiling, BENCH_SHAPES, 13, RECORDED, false, 0);
    print_rows(b, ceiling, BENCH_SHAPES, 13, OVERLAPPED, false, 0);
    print_rows(b, ceiling, BENCH_SHAPES, 13, ALONE, false, 0);
    print_rows(b, ceiling, BENCH_SHAPES, 13, OVERLAPPED, true, 0);
    print_rows(b, ceiling, BENCH_SHAPES, 13, OVERLAPPED, false, ATTN_FIXED_SPLIT_SLOTS);
    const bench_shape others[] = {{8, 16384, 16, 2, 64},  {4, 4096, 32, 32, 128},
                                  {1, 1024, 32, 8, 128},  {1, 4096, 32, 8, 128},
                                  {64, 2048, 32, 8, 128}, {8, 4096, 8, 2, 256},
                                  {8, 16384, 16, 1, 128}};
    print_rows(b, ceiling, others, 7, OVERLAPPED, false, 0);
    print_score_costs(b);
    printf("read ceiling again %.3f TB/s\n", b.read_ceiling());
}
} // namespace

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        g_portable |= strcmp(argv[i], "--portable") == 0;
        if (strncmp(argv[i], "--few=", 6) == 0) g_few = atoi(argv[i] + 6);
    }
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    printf("%s, %d multiprocessors, seed %u\n", device.name, device.multiProcessorCount, SEED);
    run_bench();
    return 0;
}
