/* decode_oracle.cuh - a batch of random sequences on the host, decode attention over it as sums in
 * double, and the same batch on the device to be judged by them.
 *
 * Pages lie scattered in a pool that is NaN wherever no slot is in use; outputs are poisoned.
 *
 * Thread: main.  Memory: each object's own. */
#ifndef TESTS_CUDA_KERNELS_DECODE_ORACLE_CUH
#define TESTS_CUDA_KERNELS_DECODE_ORACLE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/device/pages.h"
#include "tests/cuda/kernels/decode_batch.cuh"

namespace {

constexpr uint16_t NAN_BITS = 0xffff; /* NaN in bf16 and in f16 */

float from_bits(uint16_t bits, enum page_format format) {
    if (format == PAGE_F16) {
        __half_raw raw;
        raw.x = bits;
        return __half2float(__half(raw));
    }
    uint32_t widened = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &widened, 4);
    return x;
}

uint16_t to_bits(float x, enum page_format format) {
    uint16_t bits;
    if (format == PAGE_F16) {
        __half h = __float2half(x);
        memcpy(&bits, &h, 2);
    } else {
        __nv_bfloat16 h = __float2bfloat16(x);
        memcpy(&bits, &h, 2);
    }
    return bits;
}

enum content {
    RANDOM,
    EQUAL_LOGITS,
    HUGE_LOGIT,
    HUGE_NEGATIVE_LOGIT,
    SLOWLY_RISING, /* scores, from slot to slot: plant_rise() */
    STEEPLY_RISING
};

struct test_case {
    const char *name;
    uint32_t n_heads, n_kv_heads, dim;
    enum page_format format;
    std::vector<uint32_t> n_slots;
    uint32_t n_blocks;
    uint32_t split_slots;
    enum content content;
    bool scores, overlap;
    float softcap = 0;
    bool sinks = false;
    /* Returns a head's sink: among its scores, or far above or below them. */
    float sink_of(uint32_t head) const {
        static const float sinks_of_heads[] = {0.5f, -2.0f, 30.0f, 2.0f, -30.0f};
        return sinks ? sinks_of_heads[head % 5] : -INFINITY;
    }
    struct attn_plan_shape shape() const {
        return {.n_blocks = std::min(n_blocks, g_most_blocks),
                .n_few = 0,
                .n_kv_heads = n_kv_heads,
                .split_slots = split_slots,
                .part_units = 1,
                .few = false};
    }
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
        n_pages += 3; /* some without an owner */
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
        for (auto &x : q) x = to_bits(c.content == EQUAL_LOGITS ? 0.0f : normal(random), PAGE_BF16);
        for (uint32_t s = 0; s < c.n_slots.size(); s++)
            for (uint32_t slot = 0; slot < c.n_slots[s]; slot++)
                for (uint32_t h = 0; h < 2 * c.n_kv_heads; h++) {
                    uint16_t *to = row(s, slot, h / 2, h % 2);
                    for (uint32_t d = 0; d < c.dim; d++) to[d] = to_bits(normal(random), c.format);
                }
        if (c.content == HUGE_LOGIT || c.content == HUGE_NEGATIVE_LOGIT) plant_huge();
        if (c.content == SLOWLY_RISING) plant_rise(0.005);
        if (c.content == STEEPLY_RISING) plant_rise(0.1);
    }

    /* The middle key points along the first query of its group: q.k * scale is +-60 for that head.
     */
    void plant_huge() {
        for (uint32_t s = 0; s < c.n_slots.size(); s++)
            for (uint32_t h = 0; h < c.n_kv_heads; h++) {
                const uint16_t *query =
                    &q[(s * c.n_heads + h * (c.n_heads / c.n_kv_heads)) * c.dim];
                double norm = 0, goal = (c.content == HUGE_LOGIT ? 60 : -60) * sqrt(c.dim);
                for (uint32_t d = 0; d < c.dim; d++) norm += pow(from_bits(query[d], PAGE_BF16), 2);
                uint16_t *key = row(s, c.n_slots[s] / 2, h, false);
                for (uint32_t d = 0; d < c.dim; d++)
                    key[d] =
                        to_bits((float)(from_bits(query[d], PAGE_BF16) * goal / norm), c.format);
            }
    }

    /* Adds to q.k * scale what rises by `step` from slot to slot, and is 0 in the middle.  Every
     * second head of a group has the opposite query, so its scores fall. */
    void plant_rise(double step) {
        const uint32_t group = c.n_heads / c.n_kv_heads;
        for (uint32_t s = 0; s < c.n_slots.size(); s++)
            for (uint32_t h = 0; h < c.n_kv_heads; h++) {
                uint16_t *queries = &q[(s * c.n_heads + h * group) * c.dim];
                for (uint32_t i = c.dim; i < group * c.dim; i++)
                    queries[i] = queries[i % c.dim] ^ (i / c.dim % 2 ? 0x8000 : 0);
                double norm = 0;
                for (uint32_t d = 0; d < c.dim; d++)
                    norm += pow(from_bits(queries[d], PAGE_BF16), 2);
                for (uint32_t slot = 0; slot < c.n_slots[s]; slot++) {
                    uint16_t *key = row(s, slot, h, false);
                    const double goal = step * ((double)slot - c.n_slots[s] / 2) * sqrt(c.dim);
                    for (uint32_t d = 0; d < c.dim; d++)
                        key[d] = to_bits((float)(from_bits(key[d], c.format) +
                                                 from_bits(queries[d], PAGE_BF16) * goal / norm),
                                         c.format);
                }
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
                dot += (double)from_bits(query[d], PAGE_BF16) * from_bits(key[d], c.format);
            (*scores)[i] = dot / sqrt(c.dim);
            if (c.softcap > 0) (*scores)[i] = c.softcap * tanh((*scores)[i] / c.softcap);
            max = std::max(max, (*scores)[i]);
        }
        max = std::max(max, (double)c.sink_of(head));
        sum = exp(c.sink_of(head) - max);
        for (double s : *scores) sum += exp(s - max);
        for (uint32_t i = 0; i < n; i++) {
            const uint16_t *value = row(seq, i, kv_head, true);
            const double p = exp((*scores)[i] - max) / sum;
            for (uint32_t d = 0; d < c.dim; d++) (*out)[d] += p * from_bits(value[d], c.format);
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

/* A case on the device, ready to be launched. */
struct rig {
    const fixture &f;
    uint32_t n_seqs, group, score_stride;
    device_plan plan;
    device_array<uint16_t> q, pool, out;
    device_array<device_step> step{1};
    device_array<int32_t> table;        /* two layers; the first is never to be followed */
    device_array<int32_t> append_slots; /* of both */
    int n_prepared = 0;
    device_array<float> partial_out, partial_lse, scores, lse, sinks;
    device_array<uint32_t> n_arrived{1};
    device_array<device_budget> budgets;
    attn_decode_params p = {};

    explicit rig(const fixture &f_)
        : f(f_), n_seqs((uint32_t)f.c.n_slots.size()), group(f.c.n_heads / f.c.n_kv_heads),
          score_stride(longest_of(f.c.n_slots) + SCORE_PAD),
          plan(f.c.shape(), n_seqs, sum_of(f.c.n_slots)), q(f.q.size()), pool(f.pool.size()),
          out(f.q.size()), table(2 * (f.pages.size() + MAX_PREPARED)), append_slots(2 * n_seqs),
          partial_out((size_t)plan.room.n_partials * group * f.c.dim),
          partial_lse((size_t)plan.room.n_partials * group * f.c.dim / 4),
          scores(f.c.scores ? (size_t)n_seqs * f.c.n_heads * score_stride : 0),
          lse((size_t)n_seqs * f.c.n_heads), sinks(f.c.n_heads), budgets(n_seqs) {
        const test_case &c = f.c;
        q.upload(f.q);
        pool.upload(f.pool);
        p.q = q.data, p.q_stride = (size_t)c.n_heads * c.dim, p.out = out.data;
        p.pool = pool.data, p.page_bytes = f.page_elements * 2, p.kv_format = c.format;
        p.n_heads = c.n_heads, p.n_kv_heads = c.n_kv_heads, p.head_dim = c.dim;
        p.scale = score_scale_of((float)(1 / sqrt(c.dim)), c.softcap);
        std::vector<float> logits;
        for (uint32_t h = 0; h < c.n_heads; h++) logits.push_back(c.sink_of(h));
        sinks.upload(logits);
        p.sinks = {sinks.data, ELEMENT_F32, c.sinks};
        p.step = step.data, p.layer = 1;
        p.tiles = plan.d_tiles.data, p.n_blocks = attn_plan_grid(&plan.shape);
        p.merges = plan.d_merges.data, p.plan_end = plan.d_end.data;
        p.partial_out = partial_out.data, p.partial_lse = partial_lse.data;
        p.n_arrived = n_arrived.data;
        p.attn_stats = {lse.data, c.scores ? scores.data : nullptr, (size_t)n_seqs * score_stride};
        std::vector<device_budget> wishes(n_seqs);
        for (uint32_t i = 0; i < n_seqs; i++) {
            wishes[i].capacity = 1;
            for (uint32_t &layers : wishes[i].layers) layers = ~0u;
            wishes[i].scores_at = (int32_t)(i * score_stride);
        }
        budgets.upload(wishes);
        p.overlap = c.overlap;
        if (!g_portable) CHECK(attn_decode_map_pool(&p, f.n_pages));
        partial_out.poison();
        partial_lse.poison();
        n_arrived.poison();
        check_residency();
    }

    /* Blocks wait for each other, so all must be resident. */
    void check_residency() const {
        struct attn_plan_shape resident = {};
        CHECK(attn_decode_count_blocks(p, &resident));
        if (p.n_blocks <= resident.n_blocks) return;
        printf("FAIL %u blocks, of which %u are resident\n", p.n_blocks, resident.n_blocks);
        exit(1);
    }

    /* Returns whether partial results are empty, as every launch leaves them. */
    bool exchange_is_empty() const {
        const auto is_empty = [](const device_array<float> &x) {
            for (float value : x.download()) {
                uint32_t bits;
                memcpy(&bits, &value, sizeof(bits));
                if (bits != 0xffffffff) return false;
            }
            return true;
        };
        return is_empty(partial_out) && is_empty(partial_lse) &&
               n_arrived.download()[0] == 0xffffffff;
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
        header.n_seqs = n_seqs, header.append_slot = append_slots.data;
        table.upload(host);
        step.upload({header});
        plan.build(n_slots, table_at);
    }

    void prepare(const std::vector<uint32_t> &n_slots) {
        place_tables(n_slots);
        out.poison();
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
                d.add(from_bits(got[(size_t)row * f.c.dim + i], PAGE_BF16), expected[i]);
            if (is_worse(d.relative(), worst)) worst = d.relative();
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
            const double sink = f.c.sink_of(row % f.c.n_heads);
            const double max =
                std::max(sink, *std::max_element(scores_of_row.begin(), scores_of_row.end()));
            double sum = exp(sink - max);
            for (double score : scores_of_row) sum += exp(score - max);
            const double expected = max / log(2) + log2(sum);
            const double error = fabs(got[row] - expected) / (1 + fabs(expected));
            if (is_worse(error, worst)) worst = error;
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
            const float *item = &got[(size_t)(kv_head * n_seqs + seq) * score_stride * group];
            distance d;
            d.norm = n; /* a single score may be next to zero */
            for (uint32_t i = 0; i < n; i++)
                d.add(item[(size_t)i * group + row % group], expected[i]);
            if (is_worse(d.relative(), worst)) worst = d.relative();
            for (uint32_t i = n; i < score_stride; i++) {
                uint32_t bits;
                memcpy(&bits, &item[(size_t)i * group + row % group], 4);
                if (bits != 0xffffffff) worst = INFINITY;
            }
        }
        return worst;
    }
};

} // namespace

#endif
