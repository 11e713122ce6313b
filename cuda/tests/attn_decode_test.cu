/* attn_decode_test.cu - the decode attention against sums in double, fewer with --small; with
 * --bench, its speed.  --portable leaves the copy engine out.
 *
 * Pages lie scattered in a pool that is NaN wherever no slot is in use, outputs are poisoned, and
 * the seed is printed.  Exit status: 0, 1 (something is wrong), 77 (no device).
 *
 * Thread: its own.  Memory: each case allocates and frees. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cuda/attn_decode.cuh"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

namespace {

constexpr uint16_t NAN_BITS = 0xffff; /* NaN in bf16 and in f16 */
constexpr unsigned SEED = 20261121;
int n_failed;
bool g_portable; /* leave the copy engine out */

void verdict(bool ok, const char *what, double error, double limit) {
    printf("%s %-60s %.2e (limit %.0e)\n", ok ? "ok  " : "FAIL", what, error, limit);
    if (!ok) n_failed++;
}

float from_bits(uint16_t bits, enum dtype dtype) {
    if (dtype == DTYPE_F16) {
        __half_raw raw;
        raw.x = bits;
        return __half2float(__half(raw));
    }
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}

uint16_t to_bits(float x, enum dtype dtype) {
    uint16_t bits;
    if (dtype == DTYPE_F16) {
        __half h = __float2half(x);
        memcpy(&bits, &h, 2);
    } else {
        __nv_bfloat16 h = __float2bfloat16(x);
        memcpy(&bits, &h, 2);
    }
    return bits;
}

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
    void poison() { CHECK(cudaMemset(data, 0xff, n * sizeof(T))); }
};

/* ---- a plan on the device ---------------------------------------------------------------- */

struct device_plan {
    struct attn_plan_shape shape;
    struct attn_plan_room room;
    std::vector<attn_tile> tiles;
    std::vector<attn_merge> merges;
    device_array<attn_tile> d_tiles;
    device_array<attn_merge> d_merges;

    device_plan(struct attn_plan_shape s, uint32_t max_seqs, uint64_t max_slots)
        : shape(s), room(attn_plan_room(&s, max_seqs, max_slots)), tiles(room.n_tiles),
          merges(room.n_merges), d_tiles(room.n_tiles), d_merges(room.n_merges) {}

    void build(const std::vector<uint32_t> &n_slots, const std::vector<int32_t> &table_at) {
        attn_plan plan = {tiles.data(), merges.data(), 0, 0, 0};
        const attn_plan_batch batch = {n_slots.data(), table_at.data(), (uint32_t)n_slots.size()};
        attn_plan_build(&plan, &shape, &batch);
        if (plan.n_tiles > room.n_tiles || plan.n_merges > room.n_merges ||
            plan.n_partials > room.n_partials) {
            printf("FAIL plan larger than its room\n");
            exit(1);
        }
        d_tiles.upload(tiles);
        d_merges.upload(merges);
    }
};

/* ---- correctness ------------------------------------------------------------------------- */

enum content { RANDOM, EQUAL_LOGITS, HUGE_LOGIT, HUGE_NEGATIVE_LOGIT };

struct test_case {
    const char *name;
    uint32_t n_heads, n_kv_heads, dim;
    enum dtype dtype;
    std::vector<uint32_t> n_slots;
    uint32_t n_blocks;
    uint32_t split_slots;
    enum content content;
    bool scores, overlap;
};

struct fixture {
    test_case c;
    std::mt19937 random{SEED};
    uint32_t n_pages = 0;
    size_t head_elements, page_elements;
    std::vector<int32_t> pages, pages_at; /* each list ends in one that is never to be followed */
    std::vector<uint16_t> pool, q;

    explicit fixture(const test_case &c_) : c(c_) {
        head_elements = (size_t)PAGE_TOKENS * c.dim;
        page_elements = 2 * c.n_kv_heads * head_elements;
        make_pages();
        fill();
    }

    void make_pages() {
        for (uint32_t n : c.n_slots) n_pages += (n + PAGE_TOKENS - 1) / PAGE_TOKENS;
        n_pages += 3; /* some that nobody owns */
        std::vector<int32_t> order(n_pages);
        for (uint32_t i = 0; i < n_pages; i++) order[i] = (int32_t)i;
        std::shuffle(order.begin(), order.end(), random);
        size_t next = 0;
        for (uint32_t n : c.n_slots) {
            pages_at.push_back((int32_t)pages.size());
            for (uint32_t i = 0; i * PAGE_TOKENS < n; i++) pages.push_back(order[next++]);
            pages.push_back(INT32_MIN);
        }
    }

    uint16_t *row(uint32_t seq, uint32_t slot, uint32_t head, bool value) {
        size_t page = (size_t)pages[(size_t)pages_at[seq] + slot / PAGE_TOKENS];
        return &pool[page * page_elements + (value * c.n_kv_heads + head) * head_elements +
                     slot % PAGE_TOKENS * (size_t)c.dim];
    }

    void fill() {
        std::normal_distribution<float> normal;
        pool.assign(n_pages * page_elements, NAN_BITS);
        q.resize(c.n_slots.size() * c.n_heads * c.dim);
        for (auto &x : q)
            x = to_bits(c.content == EQUAL_LOGITS ? 0.0f : normal(random), DTYPE_BF16);
        for (uint32_t s = 0; s < c.n_slots.size(); s++)
            for (uint32_t slot = 0; slot < c.n_slots[s]; slot++)
                for (uint32_t h = 0; h < 2 * c.n_kv_heads; h++) {
                    uint16_t *to = row(s, slot, h / 2, h % 2);
                    for (uint32_t d = 0; d < c.dim; d++) to[d] = to_bits(normal(random), c.dtype);
                }
        if (c.content == HUGE_LOGIT || c.content == HUGE_NEGATIVE_LOGIT) plant_huge();
    }

    /* The middle key points along the first query of its group: q.k * scale is +-60 for that head.
     */
    void plant_huge() {
        for (uint32_t s = 0; s < c.n_slots.size(); s++)
            for (uint32_t h = 0; h < c.n_kv_heads; h++) {
                const uint16_t *query =
                    &q[(s * c.n_heads + h * (c.n_heads / c.n_kv_heads)) * c.dim];
                double norm = 0, goal = (c.content == HUGE_LOGIT ? 60 : -60) * sqrt(c.dim);
                for (uint32_t d = 0; d < c.dim; d++)
                    norm += pow(from_bits(query[d], DTYPE_BF16), 2);
                uint16_t *key = row(s, c.n_slots[s] / 2, h, false);
                for (uint32_t d = 0; d < c.dim; d++)
                    key[d] =
                        to_bits((float)(from_bits(query[d], DTYPE_BF16) * goal / norm), c.dtype);
            }
    }

    /* out [dim], scores [n_slots] of one query head. */
    void oracle(uint32_t seq, uint32_t head, std::vector<double> *out,
                std::vector<double> *scores) {
        const uint32_t n = c.n_slots[seq], kv_head = head / (c.n_heads / c.n_kv_heads);
        const uint16_t *query = &q[(seq * c.n_heads + head) * c.dim];
        double max = -INFINITY, sum = 0;
        scores->resize(n);
        out->assign(c.dim, 0);
        for (uint32_t i = 0; i < n; i++) {
            const uint16_t *key = row(seq, i, kv_head, false);
            double dot = 0;
            for (uint32_t d = 0; d < c.dim; d++)
                dot += (double)from_bits(query[d], DTYPE_BF16) * from_bits(key[d], c.dtype);
            (*scores)[i] = dot / sqrt(c.dim);
            max = std::max(max, (*scores)[i]);
        }
        for (double s : *scores) sum += exp(s - max);
        for (uint32_t i = 0; i < n; i++) {
            const uint16_t *value = row(seq, i, kv_head, true);
            const double p = exp((*scores)[i] - max) / sum;
            for (uint32_t d = 0; d < c.dim; d++) (*out)[d] += p * from_bits(value[d], c.dtype);
        }
    }
};

constexpr size_t MAX_PREPARED = 8;
constexpr size_t SCORE_PAD = 5; /* slots behind each item's that must stay as they were */

uint32_t longest_of(const std::vector<uint32_t> &n_slots) {
    return *std::max_element(n_slots.begin(), n_slots.end());
}

uint64_t sum_of(const std::vector<uint32_t> &n_slots) {
    uint64_t sum = 0;
    for (uint32_t n : n_slots) sum += n;
    return sum;
}

/* Sum of squares of the error and of what is right; NaN stays NaN. */
struct distance {
    double error = 0, norm = 0;
    void add(double got, double expected) {
        error += (got - expected) * (got - expected);
        norm += expected * expected;
    }
    double relative() const { return sqrt(error / std::max(norm, 1e-300)); }
};

/* A case on the device, ready to be launched. */
struct rig {
    const fixture &f;
    uint32_t n_seqs, group, score_stride;
    device_plan plan;
    device_array<uint16_t> q, pool, out;
    device_array<device_step> step{1};
    device_array<int32_t> table; /* two layers; the first is never to be followed */
    int n_prepared = 0;
    device_array<float> partial_out, partial_lse, scores, lse;
    device_array<device_budget> budgets;
    attn_decode_params p = {};

    explicit rig(const fixture &f_)
        : f(f_), n_seqs((uint32_t)f.c.n_slots.size()), group(f.c.n_heads / f.c.n_kv_heads),
          score_stride(longest_of(f.c.n_slots) + SCORE_PAD),
          plan({f.c.n_blocks, f.c.n_kv_heads, f.c.split_slots}, n_seqs, sum_of(f.c.n_slots)),
          q(f.q.size()), pool(f.pool.size()), out(f.q.size()),
          table(2 * (f.pages.size() + MAX_PREPARED)),
          partial_out((size_t)plan.room.n_partials * group * f.c.dim),
          partial_lse((size_t)plan.room.n_partials * group),
          scores(f.c.scores ? (size_t)n_seqs * f.c.n_heads * score_stride : 0),
          lse((size_t)n_seqs * f.c.n_heads), budgets(n_seqs) {
        const test_case &c = f.c;
        q.upload(f.q);
        pool.upload(f.pool);
        p.q = q.data, p.q_stride = (size_t)c.n_heads * c.dim, p.out = out.data;
        p.pool = pool.data, p.page_bytes = f.page_elements * 2, p.kv_dtype = c.dtype;
        p.n_heads = c.n_heads, p.n_kv_heads = c.n_kv_heads, p.head_dim = c.dim;
        p.scale = (float)(1 / sqrt(c.dim)), p.step = step.data, p.layer = 1;
        p.tiles = plan.d_tiles.data, p.n_blocks = c.n_blocks, p.merges = plan.d_merges.data;
        p.max_merges = plan.room.n_merges;
        p.partial_out = partial_out.data, p.partial_lse = partial_lse.data;
        p.traces = {lse.data, c.scores ? scores.data : nullptr, (size_t)n_seqs * score_stride};
        std::vector<device_budget> wishes(n_seqs);
        for (uint32_t i = 0; i < n_seqs; i++) {
            wishes[i].capacity = 1;
            wishes[i].scores_at = (int32_t)(i * score_stride);
        }
        budgets.upload(wishes);
        p.overlap = c.overlap;
        if (!g_portable) CHECK(attn_decode_map_pool(&p, f.n_pages));
    }

    /* Each time the page tables lie elsewhere: a captured graph has to follow. */
    void place_tables(const std::vector<uint32_t> &n_slots) {
        const size_t moved = (size_t)n_prepared++, layer_pages = f.pages.size() + moved;
        std::vector<int32_t> host(2 * layer_pages, INT32_MIN), table_at = f.pages_at;
        std::copy(f.pages.begin(), f.pages.end(), host.begin() + (long)(layer_pages + moved));
        for (int32_t &at : table_at) at += (int32_t)moved;
        device_step header = {};
        header.table = table.data, header.layer_pages = (uint32_t)layer_pages;
        header.budgets = f.c.scores ? budgets.data : nullptr;
        table.upload(host);
        step.upload({header});
        plan.build(n_slots, table_at);
    }

    void prepare(const std::vector<uint32_t> &n_slots) {
        place_tables(n_slots);
        out.poison();
        partial_out.poison();
        partial_lse.poison();
        scores.poison();
        lse.poison();
    }

    /* Largest relative error of a row of the output, against sums in double. */
    double worst_row(fixture *of) const {
        const auto got = out.download();
        std::vector<double> expected, unused;
        double worst = 0;
        for (uint32_t row = 0; row < n_seqs * f.c.n_heads; row++) {
            of->oracle(row / f.c.n_heads, row % f.c.n_heads, &expected, &unused);
            distance d;
            for (uint32_t i = 0; i < f.c.dim; i++)
                d.add(from_bits(got[(size_t)row * f.c.dim + i], DTYPE_BF16), expected[i]);
            if (!(d.relative() <= worst)) worst = d.relative();
        }
        return worst;
    }

    /* Largest relative error of a log-sum-exp, base 2. */
    double worst_lse(fixture *of) const {
        const auto got = lse.download();
        std::vector<double> unused, scores_of_row;
        double worst = 0;
        for (uint32_t row = 0; row < n_seqs * f.c.n_heads; row++) {
            if (f.c.n_slots[row / f.c.n_heads] == 0) continue;
            of->oracle(row / f.c.n_heads, row % f.c.n_heads, &unused, &scores_of_row);
            const double max = *std::max_element(scores_of_row.begin(), scores_of_row.end());
            double sum = 0;
            for (double score : scores_of_row) sum += exp(score - max);
            const double expected = max / log(2) + log2(sum);
            const double error = fabs(got[row] - expected) / (1 + fabs(expected));
            if (!(error <= worst)) worst = error;
        }
        return worst;
    }

    /* The same of the raw scores; infinite if anything behind them was written. */
    double worst_score(fixture *of) const {
        const auto got = scores.download();
        std::vector<double> unused, expected;
        double worst = 0;
        for (uint32_t row = 0; row < n_seqs * f.c.n_heads; row++) {
            const uint32_t seq = row / f.c.n_heads, n = f.c.n_slots[seq];
            of->oracle(seq, row % f.c.n_heads, &unused, &expected);
            const uint32_t kv_head = row % f.c.n_heads / group;
            const float *item =
                &got[(size_t)(kv_head * n_seqs + seq) * score_stride * group];
            distance d;
            d.norm = n; /* a single score may be next to zero */
            for (uint32_t i = 0; i < n; i++)
                d.add(item[(size_t)i * group + row % group], expected[i]);
            if (!(d.relative() <= worst)) worst = d.relative();
            for (uint32_t i = n; i < score_stride; i++) {
                uint32_t bits;
                memcpy(&bits, &item[(size_t)i * group + row % group], 4);
                if (bits != 0xffffffff) worst = INFINITY;
            }
        }
        return worst;
    }
};

/* P is rounded to 16 bits (2^-9 for bf16) and so is the output: 2e-3 each at worst, per element. */
constexpr double OUT_LIMIT = 5e-3, SCORE_LIMIT = 1e-5;
/* Scores are off by 1e-5 at most, and so is the logarithm of their sum; it is rounded, too. */
constexpr double LSE_LIMIT = 3e-5;

void check_case(const test_case &c) {
    fixture f(c);
    rig r(f);
    r.prepare(c.n_slots);
    CHECK(launch_attn_decode(r.p, 0));
    CHECK(cudaDeviceSynchronize());
    char what[128];
    snprintf(what, sizeof(what), "%s %s %u/%u d%u blocks %u split %u", c.name,
             c.dtype == DTYPE_F16 ? "f16" : "bf16", c.n_heads, c.n_kv_heads, c.dim, c.n_blocks,
             c.split_slots);
    const double worst = r.worst_row(&f);
    verdict(worst < OUT_LIMIT, what, worst, OUT_LIMIT);
    const double worst_lse = r.worst_lse(&f);
    verdict(worst_lse < LSE_LIMIT, "    its log-sum-exp", worst_lse, LSE_LIMIT);
    if (!c.scores) return;
    const double worst_score = r.worst_score(&f);
    verdict(worst_score < SCORE_LIMIT, "    its raw scores", worst_score, SCORE_LIMIT);
}

/* One captured graph, replayed with other lengths: only data may differ between steps. */
void check_graph_replay(uint32_t split_slots) {
    const test_case c = {"graph", 16,          2,      128,   DTYPE_BF16, {4097, 700, 64, 9000},
                         132,     split_slots, RANDOM, false, true};
    fixture f(c);
    rig r(f);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(launch_attn_decode(r.p, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (const auto &n_slots : std::vector<std::vector<uint32_t>>{
             {4097, 700, 64, 9000}, {1, 1, 1, 1}, {4096, 699, 63, 8999}, {100, 2, 3, 9000}}) {
        f.c.n_slots = n_slots;
        r.prepare(n_slots);
        CHECK(cudaDeviceSynchronize()); /* a captured stream does not wait for the default one */
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        const double worst = r.worst_row(&f);
        verdict(worst < OUT_LIMIT, "graph replayed with other lengths", worst, OUT_LIMIT);
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
}

void check_lengths() {
    for (uint32_t n : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 127u, 128u, 129u, 1000u, 4097u})
        for (uint32_t blocks : {1u, 132u}) {
            char name[32];
            snprintf(name, sizeof(name), "n=%u", n);
            check_case(
                {name, 16, 2, 128, DTYPE_BF16, {n}, blocks, 0, RANDOM, n % 2 == 1, blocks > 1});
        }
    for (uint32_t blocks : {1u, 2u, 3u, 5u, 16u, 31u, 64u, 100u, 128u, 264u})
        check_case({"splits", 8, 2, 128, DTYPE_BF16, {17000}, blocks, 0, RANDOM, false, true});
    for (uint32_t blocks : {1u, 7u, 132u})
        check_case({"fixed split",
                    16,
                    2,
                    128,
                    DTYPE_BF16,
                    {4097, 1, 512, 513, 3000},
                    blocks,
                    512,
                    RANDOM,
                    true,
                    true});
    check_case({"fixed split", 4, 1, 128, DTYPE_BF16, {70000}, 132, 512, RANDOM, false, true});
}

void check_shapes() {
    const std::vector<uint32_t> ragged = {1, 4097, 63, 64, 65, 2, 777, 1, 130, 16, 2048};
    for (uint32_t dim : {64u, 80u, 96u, 128u, 256u})
        for (enum dtype dtype : {DTYPE_BF16, DTYPE_F16})
            for (uint32_t group : {1u, 2u, 3u, 4u, 7u, 8u, 9u, 16u})
                check_case({"ragged", 2 * group, 2, dim, dtype, ragged, group % 2 ? 132u : 17u, 0,
                            RANDOM, group % 2 == 1, group % 3 == 1});
    check_case({"one KV head", 12, 1, 64, DTYPE_BF16, ragged, 132, 0, RANDOM, true, true});
    check_case({"many short", 4, 2, 128, DTYPE_BF16, std::vector<uint32_t>(300, 33), 132, 0, RANDOM,
                true, true});
    check_case({"one long, many short",
                32,
                8,
                128,
                DTYPE_BF16,
                {9000, 5, 5, 5, 5, 5, 5, 200},
                132,
                0,
                RANDOM,
                true,
                true});
}

void check_logits() {
    for (enum content content : {EQUAL_LOGITS, HUGE_LOGIT, HUGE_NEGATIVE_LOGIT})
        for (enum dtype dtype : {DTYPE_BF16, DTYPE_F16}) {
            const char *names[] = {"", "equal logits", "logit +60", "logit -60"};
            check_case(
                {names[content], 16, 2, 128, dtype, {1, 3000, 65}, 132, 0, content, true, true});
            check_case({names[content], 8, 2, 64, dtype, {5000}, 40, 0, content, false, true});
        }
}

/* A row's bits under fixed splits: alone, in a batch, with another number of blocks. */
void check_batch_invariance() {
    test_case c = {"invariance", 16, 2, 128, DTYPE_BF16, {3001}, 132, 512, RANDOM, false, true};
    const auto output = [](const fixture &f) {
        rig r(f);
        r.prepare(f.c.n_slots);
        CHECK(launch_attn_decode(r.p, 0));
        return r.out.download();
    };
    fixture alone(c);
    const auto expected = output(alone);
    bool same = true;
    for (uint32_t blocks : {1u, 50u, 132u}) {
        c.n_slots = {77, 3001, 4097, 1};
        c.n_blocks = blocks;
        fixture batch(c);
        for (uint32_t slot = 0; slot < 3001; slot++)
            for (uint32_t h = 0; h < 4; h++)
                memcpy(batch.row(1, slot, h / 2, h % 2), alone.row(0, slot, h / 2, h % 2), 256);
        std::copy(alone.q.begin(), alone.q.end(), batch.q.begin() + (long)alone.q.size());
        const auto got = output(batch);
        same &= std::equal(expected.begin(), expected.end(), got.begin() + (long)expected.size());
    }
    verdict(same, "fixed splits: same bits alone, in batches, on 1..132 blocks", !same, 0);
}

/* ---- speed ------------------------------------------------------------------------------- */

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
        w[i] = exp(dot * p.scale); /* logits are small: no maximum needed in double */
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

constexpr size_t POOL_BYTES = (size_t)2 << 30;

struct bench_shape {
    uint32_t n_seqs, n_slots, n_heads, n_kv_heads, dim;
    size_t kv_bytes() const { return (size_t)n_seqs * n_slots * n_kv_heads * dim * 4; }
    size_t score_bytes() const { return (size_t)n_seqs * n_slots * n_heads * sizeof(float); }
};

struct timing {
    double median_us, low_us, high_us, error;
};

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
        return {times[times.size() / 2], times.front(), times.back(), 0};
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

    timing run(const bench_shape &b, bool overlap, bool with_scores, uint32_t split) {
        const uint32_t group = b.n_heads / b.n_kv_heads, n_pages = b.n_slots / 64;
        const size_t page_bytes = (size_t)2 * b.n_kv_heads * 64 * b.dim * 2,
                     set_pages = (size_t)b.n_seqs * n_pages;
        const int n_sets = count_sets(b);
        attn_decode_params p = {};
        p.q = q.data, p.q_stride = (size_t)b.n_heads * b.dim, p.out = out.data, p.pool = pool.data;
        p.page_bytes = page_bytes, p.kv_dtype = DTYPE_BF16, p.n_heads = b.n_heads;
        p.n_kv_heads = b.n_kv_heads, p.head_dim = b.dim, p.scale = (float)(1 / sqrt(b.dim));
        uint32_t n_blocks;
        if (!g_portable) CHECK(attn_decode_map_pool(&p, (uint32_t)(n_sets * set_pages)));
        CHECK(attn_decode_count_blocks(p, &n_blocks));
        device_plan plan({n_blocks, b.n_kv_heads, split}, b.n_seqs, (uint64_t)b.n_seqs * b.n_slots);
        std::vector<int32_t> table_at(b.n_seqs);
        for (uint32_t i = 0; i < b.n_seqs; i++) table_at[i] = (int32_t)(i * n_pages);
        plan.build(std::vector<uint32_t>(b.n_seqs, b.n_slots), table_at);
        std::vector<int32_t> table(n_sets * set_pages);
        std::mt19937 random(SEED);
        for (int s = 0; s < n_sets; s++) {
            auto first = table.begin() + (long)(s * set_pages);
            for (size_t i = 0; i < set_pages; i++) first[(long)i] = (int32_t)(s * set_pages + i);
            std::shuffle(first, first + (long)set_pages, random);
        }
        device_array<int32_t> pages(table.size());
        pages.upload(table);
        device_array<device_step> step(1); /* a set is a layer */
        device_step header = {};
        header.table = pages.data, header.layer_pages = (uint32_t)set_pages;
        device_array<device_budget> budgets(b.n_seqs);
        std::vector<device_budget> wishes(b.n_seqs);
        for (uint32_t i = 0; i < b.n_seqs; i++) {
            wishes[i].capacity = 1;
            wishes[i].scores_at = (int32_t)(i * b.n_slots);
        }
        budgets.upload(wishes);
        header.budgets = with_scores ? budgets.data : nullptr;
        step.upload({header});
        device_array<float> partial_out((size_t)plan.room.n_partials * group * b.dim),
            partial_lse((size_t)plan.room.n_partials * group);
        p.step = step.data, p.tiles = plan.d_tiles.data, p.n_blocks = n_blocks;
        p.merges = plan.d_merges.data, p.max_merges = plan.room.n_merges;
        p.partial_out = partial_out.data, p.partial_lse = partial_lse.data;
        p.traces = {nullptr, with_scores ? scores.data : nullptr, (size_t)b.n_seqs * b.n_slots};
        p.overlap = overlap;
        cudaGraph_t graph;
        const int per_graph = launches_in_graph(b);
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < per_graph; i++) {
            p.layer = (uint32_t)(i % n_sets);
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

void print_rows(bench &b, double ceiling, const bench_shape *shapes, int n, bool overlap,
                bool scores, uint32_t split) {
    for (int i = 0; i < n; i++) {
        const bench_shape &s = shapes[i];
        const double bytes = (double)s.kv_bytes();
        const timing t = b.run(s, overlap, scores, split);
        printf("%u x %u,%u/%u,%u,%s,%s,%u,%.1f,%.1f,%.1f,%.1f,%.2f,%.3f,%.1e\n", s.n_seqs,
               s.n_slots, s.n_heads, s.n_kv_heads, s.dim, overlap ? "overlap" : "-",
               scores ? "scores" : "-", split, bytes * 1e-6, t.median_us, t.low_us, t.high_us,
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
        const double plain = b.run(s, true, false, 0).median_us,
                     scores = b.run(s, true, true, 0).median_us,
                     reads = b.run_bare(s, false).median_us,
                     writes = b.run_bare(s, true).median_us;
        printf("%u x %u,%.1f,%.1f,%.1f,%.1f,%.1f %%,%.1f,%.1f,%.1f %%\n", s.n_seqs, s.n_slots,
               (double)s.kv_bytes() * 1e-6, (double)s.score_bytes() * 1e-6, plain, scores,
               (scores / plain - 1) * 100, reads, writes, (writes / reads - 1) * 100);
    }
}

void run_bench() {
    bench b;
    const double ceiling = b.read_ceiling();
    printf("read ceiling %.3f TB/s, %s\n", ceiling, g_portable ? "cp.async" : "copy engine");
    printf("B x n,heads,dim,launch,scores,split,KV MB,us median,us low,us high,TB/s,of "
           "ceiling,error\n");
    print_rows(b, ceiling, BENCH_SHAPES, 13, true, false, 0);
    print_rows(b, ceiling, BENCH_SHAPES, 13, false, false, 0);
    print_rows(b, ceiling, BENCH_SHAPES, 13, true, true, 0);
    print_rows(b, ceiling, BENCH_SHAPES, 13, true, false, ATTN_FIXED_SPLIT_SLOTS);
    const bench_shape others[] = {{8, 16384, 16, 2, 64},  {4, 4096, 32, 32, 128},
                                  {1, 1024, 32, 8, 128},  {1, 4096, 32, 8, 128},
                                  {64, 2048, 32, 8, 128}, {8, 4096, 8, 2, 256},
                                  {8, 16384, 16, 1, 128}};
    print_rows(b, ceiling, others, 7, true, false, 0);
    print_score_costs(b);
    printf("read ceiling again %.3f TB/s\n", b.read_ceiling());
}
} // namespace

int main(int argc, char **argv) {
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIPPED: no CUDA device\n");
        return 77;
    }
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    printf("%s, %d multiprocessors, seed %u\n", device.name, device.multiProcessorCount, SEED);
    bool small = false, bench = false;
    for (int i = 1; i < argc; i++) {
        small |= strcmp(argv[i], "--small") == 0; /* for compute-sanitizer */
        bench |= strcmp(argv[i], "--bench") == 0;
        g_portable |= strcmp(argv[i], "--portable") == 0;
    }
    if (bench) {
        run_bench();
        return 0;
    }
    check_graph_replay(0);
    check_graph_replay(ATTN_FIXED_SPLIT_SLOTS);
    check_batch_invariance();
    check_logits();
    if (!small) {
        check_lengths();
        check_shapes();
    }
    printf("%d failed\n", n_failed);
    return n_failed ? 1 : 0;
}
