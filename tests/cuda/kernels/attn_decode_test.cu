/* attn_decode_test.cu - the decode attention against sums in double, fewer with --small.
 * --portable leaves the copy engine out.
 *
 * The seed is printed.  Exit status: 0, 1 (something is wrong), 77 (no device).
 *
 * Thread: its own.  Memory: each case allocates and frees. */
#include "cuda/common/device.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "tests/cuda/kernels/decode_oracle.cuh"

namespace {

int n_failed;

void verdict(bool ok, const char *what, double error, double limit) {
    printf("%s %-60s %.2e (limit %.0e)\n", ok ? "ok  " : "FAIL", what, error, limit);
    if (!ok) n_failed++;
}

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
             c.format == PAGE_F16 ? "f16" : "bf16", c.n_heads, c.n_kv_heads, c.dim, r.p.n_blocks,
             c.split_slots);
    const double worst = r.worst_row(&f);
    verdict(worst < OUT_LIMIT, what, worst, OUT_LIMIT);
    const double worst_lse = r.worst_lse(&f);
    verdict(worst_lse < LSE_LIMIT, "    its log-sum-exp", worst_lse, LSE_LIMIT);
    if (!r.exchange_is_empty()) verdict(false, "    its partial results, which stay", 1, 0);
    if (!c.scores) return;
    const double worst_score = r.worst_score(&f);
    verdict(worst_score < SCORE_LIMIT, "    its raw scores", worst_score, SCORE_LIMIT);
}

/* One captured graph, replayed with other lengths: only data may differ between steps. */
void check_graph_replay(uint32_t split_slots) {
    const test_case c = {"graph", 16,          2,      128,   PAGE_BF16, {4097, 700, 64, 9000},
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

/* Copies rows of `dim` elements to the pool, long after its successor may have started. */
__global__ void append_late(uint16_t *pool, const uint16_t *right, const size_t *rows) {
    let_next_start();
    const long long begin = clock64(), delay = 200000;
    while (clock64() - begin < delay) {
    }
    const size_t at = rows[blockIdx.x] + threadIdx.x;
    pool[at] = right[at];
}

/* Checks that attention sees the slot that the kernel before writes, though it reads other units
 * before that one has ended.  The slot is the sequence's last or in its middle; the step names it
 * if is_known. */
void check_appended(enum page_format format, uint32_t dim, uint32_t n_blocks, bool is_known) {
    const test_case c = {"appended", 16, 2,      dim,   format, {1, 17, 300, 4097, 9000},
                         n_blocks,   0,  RANDOM, false, true};
    fixture f(c);
    rig r(f);
    std::vector<int32_t> slots(2 * r.n_seqs, 0);
    std::vector<uint16_t> hidden = f.pool;
    std::vector<size_t> rows;
    for (uint32_t s = 0; s < r.n_seqs; s++) {
        const uint32_t n = c.n_slots[s], slot = s % 2 ? n - 1 : n / 2;
        slots[r.n_seqs + s] = (int32_t)(is_known ? slot : KV_FREE_SLOT);
        for (uint32_t h = 0; h < 2 * c.n_kv_heads; h++) {
            rows.push_back((size_t)(f.row(s, slot, h / 2, h % 2) - f.pool.data()));
            std::fill_n(hidden.begin() + (long)rows.back(), dim, NAN_BITS);
        }
    }
    device_array<uint16_t> right(f.pool.size());
    device_array<size_t> device_rows(rows.size());
    r.prepare(c.n_slots);
    right.upload(f.pool);
    r.pool.upload(hidden);
    r.append_slots.upload(slots);
    device_rows.upload(rows);
    r.p.settled = true;
    CHECK(cudaDeviceSynchronize());
    append_late<<<(uint32_t)rows.size(), dim>>>(r.pool.data, right.data, device_rows.data);
    CHECK(launch_attn_decode(r.p, 0));
    CHECK(cudaDeviceSynchronize());
    char what[96];
    snprintf(what, sizeof(what), "appended by the kernel before, d%u, blocks %u, slot %s", dim,
             n_blocks, is_known ? "known" : "unknown");
    const double worst = r.worst_row(&f);
    verdict(worst < OUT_LIMIT, what, worst, OUT_LIMIT);
}

void check_lengths() {
    for (uint32_t n : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 127u, 128u, 129u, 1000u, 4097u})
        for (uint32_t blocks : {1u, 132u}) {
            char name[32];
            snprintf(name, sizeof(name), "n=%u", n);
            check_case(
                {name, 16, 2, 128, PAGE_BF16, {n}, blocks, 0, RANDOM, n % 2 == 1, blocks > 1});
        }
    for (uint32_t blocks : {1u, 2u, 3u, 5u, 16u, 31u, 64u, 100u, 128u, 132u})
        check_case({"splits", 8, 2, 128, PAGE_BF16, {17000}, blocks, 0, RANDOM, false, true});
    for (uint32_t blocks : {1u, 7u, 132u})
        check_case({"fixed split",
                    16,
                    2,
                    128,
                    PAGE_BF16,
                    {4097, 1, 512, 513, 3000},
                    blocks,
                    512,
                    RANDOM,
                    true,
                    true});
    check_case({"fixed split", 4, 1, 128, PAGE_BF16, {70000}, 132, 512, RANDOM, false, true});
}

void check_shapes() {
    const std::vector<uint32_t> ragged = {1, 4097, 63, 64, 65, 2, 777, 1, 130, 16, 2048};
    for (uint32_t dim : {64u, 80u, 96u, 128u, 256u})
        for (enum page_format format : {PAGE_BF16, PAGE_F16})
            for (uint32_t group : {1u, 2u, 3u, 4u, 7u, 8u, 9u, 16u})
                check_case({"ragged", 2 * group, 2, dim, format, ragged, group % 2 ? 132u : 17u, 0,
                            RANDOM, group % 2 == 1, group % 3 == 1});
    check_case({"one KV head", 12, 1, 64, PAGE_BF16, ragged, 132, 0, RANDOM, true, true});
    check_case({"many short", 4, 2, 128, PAGE_BF16, std::vector<uint32_t>(300, 33), 132, 0, RANDOM,
                true, true});
    check_case({"one long, many short",
                32,
                8,
                128,
                PAGE_BF16,
                {9000, 5, 5, 5, 5, 5, 5, 200},
                132,
                0,
                RANDOM,
                true,
                true});
}

/* Items of a few equal parts, and of so many that threads read several; whole ones beside them. */
void check_parts(bool small) {
    for (uint32_t n_blocks : {9u, 16u, 24u, 40u, 64u, 72u, 104u, 128u})
        for (uint32_t dim : {64u, 80u, 128u, 256u})
            for (uint32_t group : {1u, 3u, 4u, 7u, 8u, 16u}) {
                if (small && (dim != 128 || group != 4)) continue;
                test_case c = {"parts",  2 * group, 2,      dim,  PAGE_BF16, {1, 17, 4097, 300},
                               n_blocks, 0,         RANDOM, true, true};
                if (group % 2) c.format = PAGE_F16, c.content = HUGE_LOGIT;
                if (group == 8) c.softcap = 1.5f;
                c.sinks = n_blocks % 16 == 0;
                check_case(c);
            }
}

void check_logits() {
    for (enum content content : {EQUAL_LOGITS, HUGE_LOGIT, HUGE_NEGATIVE_LOGIT})
        for (enum page_format format : {PAGE_BF16, PAGE_F16}) {
            const char *names[] = {"", "equal logits", "logit +60", "logit -60"};
            check_case(
                {names[content], 16, 2, 128, format, {1, 3000, 65}, 132, 0, content, true, true});
            check_case({names[content], 8, 2, 64, format, {5000}, 40, 0, content, false, true});
        }
}

/* Scores whose maximum rises in most units, by less than MAX_SLACK and by much more, while that of
 * every second head stays.  They rise by 15 to 45 in all, and by 300 to 900.  Random ones hardly
 * make a warp rescale its outputs. */
void check_rising() {
    for (enum content content : {SLOWLY_RISING, STEEPLY_RISING})
        for (enum page_format format : {PAGE_BF16, PAGE_F16}) {
            const char *name = content == SLOWLY_RISING ? "slowly rising" : "steeply rising";
            const std::vector<uint32_t> n_slots = {1, 17, 3000, 65};
            for (uint32_t dim : {64u, 80u, 128u, 256u})
                for (uint32_t group : {1u, 8u, 9u, 16u})
                    check_case(
                        {name, 2 * group, 2, dim, format, n_slots, 132, 0, content, false, true});
            check_case({name, 4, 1, 128, format, {9000, 40}, 2, 0, content, false, true});
            check_case({name, 8, 2, 128, format, n_slots, 32, 0, content, false, true});
        }
}

/* Scores are around 1, so this bends all of them, and 60 to what it tends to.  Sinks are not
 * bent. */
void check_caps() {
    for (enum page_format format : {PAGE_BF16, PAGE_F16})
        for (uint32_t dim : {64u, 80u, 128u, 256u}) {
            const std::vector<uint32_t> n_slots = {1, 3000, 65};
            check_case({"capped", 16, 2, dim, format, n_slots, 132, 0, RANDOM, true, true, 1.5f});
            check_case(
                {"sinks", 16, 2, dim, format, n_slots, 17, 0, RANDOM, true, true, 1.5f, true});
            check_case({"capped", 9, 1, dim, format, n_slots, 17, 0, HUGE_LOGIT, true, true, 1.5f});
        }
}

/* Keys or values that are NaN: a partial result that is NaN is not taken for one that is not there
 * yet, for which blocks would wait forever.  Other sequences stay as they are. */
void check_nan() {
    for (bool is_value : {false, true})
        for (enum page_format format : {PAGE_BF16, PAGE_F16}) {
            const test_case c = {"NaN", 16, 2,      128,   format, {3000, 4000},
                                 132,   0,  RANDOM, false, true};
            fixture f(c);
            for (uint32_t slot = 0; slot < 3000; slot += 500)
                for (uint32_t h = 0; h < 2; h++)
                    std::fill_n(f.row(0, slot, h, is_value), 128, NAN_BITS);
            rig r(f);
            r.prepare(c.n_slots);
            CHECK(launch_attn_decode(r.p, 0));
            const auto out = r.out.download();
            const size_t half = out.size() / 2;
            bool right = r.exchange_is_empty();
            for (size_t i = 0; i < out.size(); i++)
                right &= (i < half) == (bool)isnan(from_bits(out[i], PAGE_BF16));
            verdict(right, is_value ? "values that are NaN" : "keys that are NaN", !right, 0);
        }
}

/* A row's bits under fixed splits: alone, in a batch, with another number of blocks. */
void check_batch_invariance() {
    test_case c = {"invariance", 16, 2, 128, PAGE_BF16, {3001}, 132, 512, RANDOM, false, true};
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
    g_most_blocks = (uint32_t)device.multiProcessorCount;
    bool small = false;
    for (int i = 1; i < argc; i++) {
        small |= strcmp(argv[i], "--small") == 0; /* for compute-sanitizer */
        g_portable |= strcmp(argv[i], "--portable") == 0;
    }
    check_graph_replay(0);
    check_graph_replay(ATTN_FIXED_SPLIT_SLOTS);
    for (uint32_t n_blocks : {40u, 80u, 132u})
        for (bool is_known : {true, false}) {
            check_appended(PAGE_BF16, 128, n_blocks, is_known);
            check_appended(PAGE_F16, 64, n_blocks, is_known);
        }
    check_appended(PAGE_BF16, 80, 132, true); /* no shape of the copy engine's */
    check_parts(small);
    check_batch_invariance();
    check_logits();
    check_rising();
    check_caps();
    check_nan();
    if (!small) {
        check_lengths();
        check_shapes();
    }
    printf("%d failed\n", n_failed);
    return n_failed ? 1 : 0;
}
