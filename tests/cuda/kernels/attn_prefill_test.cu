/* attn_prefill_test.cu - the prefill attention kernels against a double oracle, with and without
 * splits; --bench times them.  --wide and --bench-wide are of heads of 256 alone.
 *
 * Values past a sequence's last slot, in unused pages, in the output and in partial results are NaN
 * before each run, pages are shuffled and each list of them ends in -1.  Tolerance: weights and
 * outputs are rounded to bf16 (2^-9 relative each), so the norm of the difference stays under 4e-3
 * of the norm of the result.  Log-sum-exps, base 2, are of sums in f32: within 2e-3. */
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "cuda/attention/prefill/sm90_wide.cuh"
#include "cuda/common/sm90.cuh"
#include "engine/device/pages.h"
#include "tests/cuda/kernels/prefill_batch.cuh"

/* --- the oracle --- */

/* The row's log-sum-exp in base 2. */
static double oracle_row(const struct batch &b, uint32_t seq, uint32_t i, int head, double *out) {
    const int dim = b.shape.dim, kv_head = head / (b.shape.n_heads / b.shape.n_kv_heads);
    const uint32_t n = b.slots[seq] - b.rows[seq] + i + 1,
                   first = b.shape.window > 0 && n > b.shape.window ? n - b.shape.window : 0;
    const uint16_t *q = &b.q[(b.first_row[seq] + i) * q_stride(b.shape) + (size_t)head * dim];
    std::vector<double> w(n), query(dim);
    double top = -INFINITY, sum = 0.0;
    for (int d = 0; d < dim; d++) query[d] = from_half(q[d], PAGE_BF16);
    for (uint32_t slot = first; slot < n; slot++) {
        const int page = b.table[b.table_at[seq] + slot / PAGE_TOKENS];
        const uint16_t *k = &b.pool[slot_at(b, page, 0, kv_head, (int)(slot % PAGE_TOKENS))];
        for (int d = 0; d < dim; d++) w[slot] += query[d] * from_half(k[d], b.shape.format);
        w[slot] = score_of_product(b.shape, w[slot]);
        top = std::max(top, w[slot]);
    }
    for (uint32_t slot = first; slot < n; slot++) sum += w[slot] = exp(w[slot] - top);
    for (int d = 0; d < dim; d++) out[d] = 0.0;
    for (uint32_t slot = first; slot < n; slot++) {
        const int page = b.table[b.table_at[seq] + slot / PAGE_TOKENS];
        const uint16_t *v = &b.pool[slot_at(b, page, 1, kv_head, (int)(slot % PAGE_TOKENS))];
        for (int d = 0; d < dim; d++) out[d] += w[slot] / sum * from_half(v[d], b.shape.format);
    }
    return (top + log(sum)) / log(2.0);
}

/* Rows of decoding sequences stay 0. */
struct expected {
    std::vector<double> out, lse; /* [n_rows, n_heads * dim], [n_rows, n_heads] */
};

static struct expected oracle(const struct batch &b) {
    const size_t heads = (size_t)b.shape.n_heads, width = heads * b.shape.dim;
    const unsigned n_threads = std::max(1u, std::thread::hardware_concurrency());
    struct expected want = {std::vector<double>(b.n_rows * width),
                            std::vector<double>(b.n_rows * heads)};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < n_threads; t++)
        threads.emplace_back([&, t] {
            for (uint32_t seq = b.n_decode, task = 0; seq < b.n_seqs; seq++)
                for (uint32_t i = 0; i < b.rows[seq]; i++)
                    for (int head = 0; head < b.shape.n_heads; head++) {
                        const size_t at = (b.first_row[seq] + i) * heads + head;
                        if (task++ % n_threads == t)
                            want.lse[at] = oracle_row(b, seq, i, head, &want.out[at * b.shape.dim]);
                    }
        });
    for (std::thread &t : threads) t.join();
    return want;
}

/* --- correctness --- */

/* A plan of splits and its partial results. */
struct split {
    struct attn_split_view view;
    size_t partial_floats;
};

/* What is judged: a list of whole tiles (NULL) or of pieces, by a kernel. */
struct subject {
    const char *name;
    bool sm90;
    const struct split *split;

    cudaError_t launch(const struct attn_prefill_params &p) const {
        if (!split && !sm90) return launch_attn_prefill_mma(p, {});
        if (!split && p.kv.head_dim == 256) return launch_attn_prefill_wide(p, {});
        if (!split) return launch_attn_prefill_sm90(p, {});
        const cudaError_t status = sm90 ? launch_attn_split_sm90(p, split->view, {})
                                        : launch_attn_split_mma(p, split->view, {});
        return status == cudaSuccess ? launch_attn_split_merge(p, split->view, {}) : status;
    }
};

static const struct subject whole_mma = {"mma", false, nullptr},
                            whole_sm90 = {"sm90", true, nullptr};

static std::vector<uint16_t> run(const struct batch &b, const struct subject &subject) {
    std::vector<uint16_t> out((size_t)b.n_rows * b.shape.n_heads * b.shape.dim);
    CHECK(cudaMemset(b.device.out, 0xff, out.size() * 2));
    if (b.device.lse) CHECK(cudaMemset(b.device.lse, 0xff, (size_t)b.n_rows * b.shape.n_heads * 4));
    if (subject.split)
        CHECK(cudaMemset(subject.split->view.partial_out, 0xff,
                         subject.split->partial_floats * sizeof(float)));
    CHECK(subject.launch(b.device));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(out.data(), b.device.out, out.size() * 2, cudaMemcpyDeviceToHost));
    return out;
}

/* Of those that were asked for; NaN stays. */
static double worst_lse(const struct batch &b, const std::vector<double> &want) {
    std::vector<float> got(want.size());
    double worst = 0.0;
    if (!b.device.lse) return worst;
    CHECK(cudaMemcpy(got.data(), b.device.lse, got.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t i = (size_t)b.n_decode * b.shape.n_heads; i < got.size(); i++) {
        const double off = fabs(got[i] - want[i]);
        if (is_worse(off, worst)) worst = off;
    }
    return worst;
}

static void report_worst(const struct batch &b, const std::vector<uint16_t> &out,
                         const std::vector<double> &want) {
    const size_t width = (size_t)b.shape.n_heads * b.shape.dim;
    int shown = 0;
    for (size_t i = b.n_decode * width; i < out.size() && shown < 6; i++) {
        const double got = from_half(out[i], PAGE_BF16);
        if (fabs(got - want[i]) <= 0.05) continue; /* NaN falls through */
        printf("     row %zu head %zu dim %zu: %g, want %g\n", i / width, i % width / b.shape.dim,
               i % b.shape.dim, got, want[i]);
        shown++;
    }
}

static void compare(const struct batch &b, const struct expected &want,
                    const struct subject &subject) {
    const std::vector<uint16_t> out = run(b, subject);
    const size_t skipped = (size_t)b.n_decode * b.shape.n_heads * b.shape.dim;
    double difference = 0.0, norm = 0.0;
    bool untouched = true;
    char what[160];
    for (size_t i = 0; i < skipped; i++) untouched &= out[i] == 0xffff;
    for (size_t i = skipped; i < out.size(); i++) {
        const double d = from_half(out[i], PAGE_BF16) - want.out[i];
        difference += d * d;
        norm += want.out[i] * want.out[i];
    }
    const double error = sqrt(difference / norm), lse = worst_lse(b, want.lse);
    const bool again = !subject.split || run(b, subject) == out;
    snprintf(what, sizeof(what), "%s heads %d/%d dim %d %s q x%g cap %g window %u, %u sequences%s",
             subject.name, b.shape.n_heads, b.shape.n_kv_heads, b.shape.dim,
             b.shape.format == PAGE_BF16 ? "bf16" : "f16", b.shape.q_scale, b.shape.softcap,
             b.shape.window, b.n_seqs, again ? "" : ", other bits the second time");
    verdict(error < 4e-3 && lse < 2e-3 && untouched && again, what, std::max(error, lse));
    if (!(error < 4e-3)) report_worst(b, out, want.out);
}

static bool is_hopper() {
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    return prop.major == 9;
}

/* Tells whether Hopper has kernels of its own for whole tiles, and for pieces, too. */
static bool has_whole_sm90(const struct shape &s) {
    return is_hopper() && s.format == PAGE_BF16 && (s.dim == 64 || s.dim == 128 || s.dim == 256);
}

static bool has_sm90(const struct shape &s) {
    return has_whole_sm90(s) && s.dim != 256;
}

/* Of which head size tests are run: 0: all. */
static int only_dim;

static bool is_left_out(int dim) {
    return only_dim > 0 && dim != only_dim;
}

static void test_shape(const struct shape &s, const std::vector<struct seq_shape> &seqs) {
    struct batch b = make_batch(s, seqs);
    const struct expected want = oracle(b);
    compare(b, want, whole_mma);
    if (has_whole_sm90(s)) compare(b, want, whole_sm90);
    free_batch(b);
}

/* --- splits --- */

static struct attn_split_shape split_shape_of(const struct batch &b) {
    struct attn_split_shape shape;
    CHECK(attn_split_shape_of(b.device.kv, b.device.n_heads, &shape));
    return shape;
}

static struct split upload_split(const struct batch &b, const std::vector<attn_split_item> &items,
                                 uint32_t n_merges, uint32_t n_partials) {
    const struct attn_split_shape shape = split_shape_of(b);
    const size_t rows = (size_t)n_partials * shape.n_kv_heads * shape.block_rows;
    struct split s = {};
    s.partial_floats = attn_split_floats(&shape, n_partials, (uint32_t)b.shape.dim);
    s.view.items = to_device(items);
    s.view.n_items = (uint32_t)items.size();
    s.view.n_merges = n_merges;
    CHECK(cudaMalloc(&s.view.partial_out, std::max<size_t>(s.partial_floats, 4) * sizeof(float)));
    s.view.partial_lse = s.view.partial_out + rows * b.shape.dim;
    return s;
}

static void free_split(struct split &s) {
    CHECK(cudaFree((void *)s.view.items));
    CHECK(cudaFree(s.view.partial_out));
}

/* Tiles in so many pieces, by turns; also in more than they have pairs for. */
static struct split cut_by_hand(const struct batch &b, const std::vector<int32_t> &pieces) {
    const struct attn_split_shape shape = split_shape_of(b);
    const uint32_t step = attn_split_tile_rows(&shape);
    std::vector<attn_split_item> items;
    int32_t n_partials = 0;
    uint32_t n_tiles = 0;
    for (uint32_t seq = b.n_decode; seq < b.n_seqs; seq++)
        for (uint32_t row = 0; row < b.rows[seq]; row += step) {
            const int32_t n = pieces[n_tiles++ % pieces.size()],
                          n_rows = (int32_t)std::min(step, b.rows[seq] - row);
            for (int32_t i = 0; i < n; i++)
                items.push_back(
                    {(int32_t)seq, (int32_t)row, n_rows, i, n, n > 1 ? n_partials + i : -1});
            if (n > 1) n_partials += n;
        }
    const auto rest = std::stable_partition(items.begin(), items.end(), [](const auto &item) {
        return item.split == 0 && item.n_splits > 1;
    });
    return upload_split(b, items, (uint32_t)(rest - items.begin()), (uint32_t)n_partials);
}

/* As the backend does; no items: whole tiles are as good. */
static struct split cut_by_plan(const struct batch &b) {
    const struct attn_split_shape shape = split_shape_of(b);
    std::vector<attn_split_item> items(attn_split_max_items(&shape));
    std::vector<attn_split_tile> tiles(items.size());
    struct attn_split_plan plan = {};
    plan.items = items.data();
    plan.tiles = tiles.data();
    attn_split_begin(&plan);
    for (uint32_t seq = b.n_decode; seq < b.n_seqs; seq++) {
        const struct attn_split_rows rows = {seq, 0, b.rows[seq], b.slots[seq], b.shape.window};
        attn_split_add(&plan, &shape, &rows);
    }
    attn_split_cut(&plan, &shape);
    items.resize(plan.n_items);
    return upload_split(b, items, plan.n_merges, plan.n_partials);
}

static void compare_split(const struct batch &b, const struct expected &want, struct split split) {
    if (split.view.n_items > 0) {
        compare(b, want, {"mma split", false, &split});
        if (has_sm90(b.shape)) compare(b, want, {"sm90 split", true, &split});
    }
    free_split(split);
}

static void test_splits(const struct shape &s, const std::vector<struct seq_shape> &seqs) {
    struct batch b = make_batch(s, seqs, false);
    CHECK(cudaMalloc(&b.device.lse, (size_t)b.n_rows * s.n_heads * sizeof(float)));
    const struct expected want = oracle(b);
    compare(b, want, whole_mma);
    if (has_whole_sm90(s)) compare(b, want, whole_sm90);
    compare_split(b, want, cut_by_hand(b, {1}));
    compare_split(b, want, cut_by_hand(b, {2, 1, 3, 7, 40}));
    compare_split(b, want, cut_by_hand(b, {16, 5}));
    compare_split(b, want, cut_by_plan(b));
    CHECK(cudaFree(b.device.lse));
    free_batch(b);
}

/* Few rows behind texts of many lengths.  The last sequences: every tile size of the groups below,
 * to either side. */
static const std::vector<struct seq_shape> few_splits = {{1, 3}, {17, 1500}},
                                           many_splits = {{1, 5000},  {1, 1},      {2, 2049},
                                                          {16, 4096}, {31, 4127},  {33, 1000},
                                                          {64, 64},   {130, 3333}, {5, 129},
                                                          {1, 128},   {18, 2600},  {19, 1025}};

static void test_all_splits(bool small) {
    const std::vector<struct seq_shape> &seqs = small ? few_splits : many_splits;
    const int groups[][2] = {{2, 2}, {6, 2}, {8, 2}, {7, 1}, {16, 1}, {71, 1}},
              dims[] = {64, 80, 96, 128, 256};
    for (const auto &group : groups)
        for (const int dim : dims)
            for (const enum page_format format : {PAGE_BF16, PAGE_F16}) {
                if (group[0] == 71 && (dim != 64 || format != PAGE_BF16)) continue;
                if (small && (group[0] != 6 || dim == 80 || dim == 96)) continue;
                test_splits({group[0], group[1], dim, format, 1.0f}, seqs);
            }
    for (const int dim : dims)
        for (const uint32_t window : {1u, 100u, 128u, 1000u, 2500u})
            for (const float cap : {0.0f, 2.0f})
                if (!small || window == 100)
                    test_splits({6, 2, dim, PAGE_BF16, cap > 0 ? 3.0f : 1.0f, cap, window}, seqs);
    if (small) return;
    for (const int dim : {64, 128}) test_splits({8, 2, dim, PAGE_BF16, 12.0f}, seqs);
    test_splits({8, 2, 128, PAGE_BF16, 1.0f}, {{1, 20000}, {40, 16384}});
}

/* --- splits of pages of 8 bits --- */

/* The codes of a row times 2^power, with the scale that covers its largest; the row becomes what
 * they stand for. */
static uint8_t encode_row(uint16_t *row, uint8_t *codes, int dim, int power) {
    float largest = 0;
    for (int d = 0; d < dim; d++)
        row[d] = to_half(ldexpf(from_half(row[d], PAGE_BF16), power), PAGE_BF16);
    for (int d = 0; d < dim; d++) largest = fmaxf(largest, fabsf(from_half(row[d], PAGE_BF16)));
    const int exponent = (int)ceilf(log2f(largest / 448));
    for (int d = 0; d < dim; d++) {
        codes[d] = __nv_cvt_float_to_fp8(ldexpf(from_half(row[d], PAGE_BF16), -exponent),
                                         __NV_SATFINITE, __NV_E4M3);
        const float value = __half2float(__half(__nv_cvt_fp8_to_halfraw(codes[d], __NV_E4M3)));
        row[d] = to_half(ldexpf(value, exponent), PAGE_BF16);
    }
    return (uint8_t)(127 + exponent);
}

/* The batch's pages as [K, V][kv_head][slot][dim] codes, their scales, and space.  Its own become
 * what the codes stand for, of rows that differ by up to 2^6.  What no sequence has are codes that
 * are NaN, and scales that are infinite. */
static std::vector<uint8_t> encode_pages(struct batch &b) {
    const size_t n_rows = (size_t)2 * b.shape.n_kv_heads * PAGE_TOKENS,
                 page_bytes = n_rows * (b.shape.dim + 1) + 384;
    std::vector<uint8_t> pages(b.n_pages * page_bytes, 0xff);
    for (size_t i = 0; i < b.n_pages * n_rows; i++) {
        uint16_t *row = &b.pool[i * b.shape.dim];
        uint8_t *page = &pages[i / n_rows * page_bytes];
        if (row[0] == 0xffff) continue;
        page[n_rows * b.shape.dim + i % n_rows] =
            encode_row(row, page + i % n_rows * b.shape.dim, b.shape.dim, (int)(i * 5 % 7) - 3);
    }
    return pages;
}

/* A block that converts codes itself has the bits of one that reads 16-bit copies.  Returns into
 * how many items the backend's plan cuts the batch. */
static uint32_t test_codes(const struct shape &s, const std::vector<struct seq_shape> &seqs) {
    struct batch b = make_batch(s, seqs, false);
    uint32_t n_items = 0;
    const std::vector<uint8_t> pages = encode_pages(b);
    CHECK(cudaMemcpy(b.device.kv.base, b.pool.data(), b.pool.size() * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMalloc(&b.device.lse, (size_t)b.n_rows * s.n_heads * sizeof(float)));
    const struct expected want = oracle(b);
    struct batch codes = b;
    codes.device.kv.base = to_device(pages);
    codes.device.kv.format = PAGE_FP8;
    codes.device.kv.page_bytes = pages.size() / b.n_pages;
    for (const std::vector<int32_t> &cut :
         {std::vector<int32_t>{1}, {2, 1, 3, 7, 40}, {16, 5}, {}}) {
        struct split split = cut.empty() ? cut_by_plan(b) : cut_by_hand(b, cut);
        const struct subject subject = {"sm90 split, 8 bits", true, &split};
        if (split.view.n_items > 0) {
            compare(codes, want, subject);
            verdict(run(codes, subject) == run(b, subject), "8 bits: the bits of copies", 0);
        }
        n_items = split.view.n_items;
        free_split(split);
    }
    CHECK(cudaFree(codes.device.kv.base));
    CHECK(cudaFree(b.device.lse));
    free_batch(b);
    return n_items;
}

/* On devices whose blocks convert codes. */
static void test_all_codes(bool small) {
    const std::vector<struct seq_shape> &seqs = small ? few_splits : many_splits;
    if (!has_sm90({8, 2, 128, PAGE_BF16, 1.0f})) return;
    for (const int dim : {64, 128})
        for (const int n_heads : {2, 8, 14}) /* groups of 1, 4 and 7 */
            test_codes({n_heads, 2, dim, PAGE_BF16, 1.0f}, seqs);
    test_codes({8, 1, 128, PAGE_BF16, 1.0f}, seqs);
    test_codes({6, 2, 128, PAGE_BF16, 3.0f, 2.0f, 1000}, seqs);
    if (small) return;
    const uint32_t n = test_codes({8, 2, 128, PAGE_BF16, 1.0f}, {{1, 20000}, {40, 16384}});
    verdict(n > 0, "8 bits: the backend splits few rows behind long texts", 0);
}

/* A prompt in one step and in three gives the same bits. */
static void test_chunks(int dim, const struct subject &subject) {
    struct batch b = make_batch({4, 2, dim, PAGE_BF16, 1.0f}, {{700, 900}});
    const std::vector<uint16_t> whole = run(b, subject);
    const uint32_t cuts[] = {0, 300, 431, 700};
    const size_t width = (size_t)4 * dim;
    bool same = true;
    for (int i = 0; i < 3; i++) {
        struct batch c = b;
        c.first_row[0] = (int32_t)cuts[i];
        c.rows[0] = cuts[i + 1] - cuts[i];
        c.slots[0] = 200 + cuts[i + 1];
        upload(c);
        const std::vector<uint16_t> part = run(c, subject);
        same &= !memcmp(&part[cuts[i] * width], &whole[cuts[i] * width],
                        (cuts[i + 1] - cuts[i]) * width * 2);
        free_batch(c);
    }
    char what[64];
    snprintf(what, sizeof(what), "%s dim %d: three steps and one, the same bits", subject.name,
             dim);
    verdict(same, what, 0.0);
    free_batch(b);
}

/* --- clusters: pairs of heads share their stages if a group has an even number of heads --- */

/* A head has the same bits with a neighbour as without.  The first two of three heads have none;
 * then the same queries are two heads. */
static void test_pair(int dim, float cap, uint32_t window) {
    struct batch b = make_batch({3, 1, dim, PAGE_BF16, 1.0f, cap, window},
                                {{2, 2}, {129, 129}, {300, 333}, {5, 1984}, {640, 704}});
    const std::vector<uint16_t> three = run(b, whole_sm90);
    struct batch c = b;
    c.shape.n_heads = 2;
    c.device.n_heads = 2;
    const std::vector<uint16_t> two = run(c, whole_sm90);
    bool same = true;
    for (size_t row = 0; row < b.n_rows; row++)
        same &= !memcmp(&two[row * 2 * dim], &three[row * 3 * dim], (size_t)2 * dim * 2);
    char what[80];
    snprintf(what, sizeof(what), "sm90 dim %d cap %g window %u: with a neighbour, the same bits",
             dim, cap, window);
    verdict(same, what, 0.0);
    free_batch(b);
}

/* Every range of slots in the last pair, and prompts of one tile and of many. */
static void test_clusters(bool small) {
    const std::vector<struct seq_shape> few = {{70, 200}, {130, 130}},
                                        many = {{2, 2},     {2, 320},   {5, 63},   {64, 64},
                                                {65, 65},   {127, 127}, {33, 128}, {129, 129},
                                                {300, 447}, {3, 2048},  {7, 1090}, {1000, 1100}};
    for (const int dim : {64, 128, 256})
        for (const uint32_t window : {0u, 1u, 100u, 128u, 900u})
            for (const float cap : {0.0f, 2.0f}) {
                if (is_left_out(dim)) continue;
                if (small && window != 0 && window != 100) continue;
                test_shape({4, 2, dim, PAGE_BF16, cap > 0 ? 3.0f : 1.0f, cap, window},
                           small ? few : many);
                if (!small && has_whole_sm90({4, 2, dim, PAGE_BF16, 1.0f}))
                    test_pair(dim, cap, window);
            }
}

/* --- the parts of the sm90 kernel: swizzle of the copy engine, descriptors, fragments --- */

struct probe {
    CUtensorMap map;        /* [128, 128] bf16, boxes of 64 x 64 */
    const __nv_bfloat16 *a; /* [64, 128] weights, row-major */
    unsigned char *image;   /* the 32 KiB that the copy engine wrote */
    float *scores;          /* first 64 rows times all 128 rows transposed */
    float *values;          /* a times the matrix */
};

static __global__ void __launch_bounds__(128) probe_kernel(const __grid_constant__ struct probe p) {
    extern __shared__ __align__(1024) unsigned char m[];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) barrier_init(&full, 1), barriers_publish();
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expect(&full, 32768);
        for (int i = 0; i < 4; i++)
            tensor_load(m + i * 8192, &p.map, i / 2 * 64, i % 2 * 64, &full);
    }
    barrier_wait(&full, 0);
    for (int i = threadIdx.x; i < 32768; i += 128) p.image[i] = m[i];
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4,
              column = lane % 4 * 2;
    float s[64], o[64];
    uint32_t a[32];
    for (int i = 0; i < 64; i++) s[i] = o[i] = 0.0f;
    for (int i = 0; i < 32; i++)
        a[i] = *(const uint32_t *)(p.a + (row + i % 2 * 8) * 128 + i / 2 * 8 + column);
    wgmma_fence();
    for (int d = 0; d < 128; d += 16) {
        const uint64_t at = wgmma_advance(wgmma_matrix(m, 0), d / 64 * 16384 + d % 64 * 2);
        wgmma_shared_a(s, at, at, d > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(s);
    wgmma_fence();
    for (int k = 0; k < 8; k++)
        wgmma_register_a(o, a + 4 * k, wgmma_advance(wgmma_matrix(m, 16384), k * 2048));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(o);
    for (int i = 0; i < 64; i++) {
        const int at = (row + i % 4 / 2 * 8) * 128 + i / 4 * 8 + column + i % 2;
        p.scores[at] = s[i];
        p.values[at] = o[i];
    }
}

static void probe_products(const std::vector<uint16_t> &m, const std::vector<uint16_t> &a,
                           const std::vector<float> &scores, const std::vector<float> &values) {
    double worst_score = 0.0, worst_value = 0.0;
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 128; j++) {
            double s = 0.0, o = 0.0;
            for (int k = 0; k < 128; k++) {
                s += (double)from_half(m[i * 128 + k], PAGE_BF16) *
                     from_half(m[j * 128 + k], PAGE_BF16);
                o += (double)from_half(a[i * 128 + k], PAGE_BF16) *
                     from_half(m[k * 128 + j], PAGE_BF16);
            }
            worst_score = std::max(worst_score, fabs(s - scores[i * 128 + j]));
            worst_value = std::max(worst_value, fabs(o - values[i * 128 + j]));
        }
    verdict(worst_score < 1e-3, "probe: Q K^T, A and B from swizzled shared memory", worst_score);
    verdict(worst_value < 1e-3, "probe: P V, A from registers, B transposed", worst_value);
}

static void test_probe() {
    std::vector<uint16_t> m(128 * 128), a(64 * 128);
    std::vector<unsigned char> image(32768);
    std::vector<float> scores(64 * 128), values(64 * 128);
    for (uint16_t &x : m) x = to_half(random_normal(), PAGE_BF16);
    for (uint16_t &x : a) x = to_half(random_normal(), PAGE_BF16);
    uint16_t *matrix = to_device(m);
    struct probe p;
    CHECK(tensor_map_matrix(&p.map, matrix, 128, 128, 256, 64));
    p.a = (const __nv_bfloat16 *)to_device(a);
    p.image = to_device(image);
    p.scores = to_device(scores);
    p.values = to_device(values);
    probe_kernel<<<1, 128, 32768>>>(p);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(image.data(), p.image, 32768, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(scores.data(), p.scores, 32768, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(values.data(), p.values, 32768, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int row = 0; row < 128; row++)
        for (int chunk = 0; chunk < 16; chunk++)
            wrong += memcmp(&image[chunk / 8 * 16384 + row * 128 + (chunk % 8 ^ row % 8) * 16],
                            &m[row * 128 + chunk * 8], 16) != 0;
    verdict(wrong == 0, "probe: 128-byte swizzle as sm90.cuh draws it (chunks misplaced)", wrong);
    probe_products(m, a, scores, values);
    for (const void *x : {(const void *)matrix, (const void *)p.a, (const void *)p.image,
                          (const void *)p.scores, (const void *)p.values})
        CHECK(cudaFree((void *)x));
}

static void test_all(bool small) {
    const std::vector<struct seq_shape> ragged = {{1, 77},    {1, 1},     {2, 2},      {5, 5},
                                                  {63, 64},   {64, 64},   {65, 65},    {127, 130},
                                                  {128, 128}, {129, 129}, {200, 1000}, {300, 333},
                                                  {2, 2049},  {191, 640}, {257, 257}};
    const std::vector<struct seq_shape> few = {{1, 3}, {70, 200}, {130, 130}};
    const int groups[][2] = {{4, 4}, {4, 2}, {6, 2}, {8, 2}, {8, 1}},
              dims[] = {64, 80, 96, 128, 256};
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    if (prop.major == 9) test_probe();
    for (const auto &group : groups)
        for (const int dim : dims)
            for (const enum page_format format : {PAGE_BF16, PAGE_F16}) {
                if (small && (group[0] != 6 || dim == 80 || dim == 96)) continue;
                if (is_left_out(dim)) continue;
                test_shape({group[0], group[1], dim, format, 1.0f}, small ? few : ragged);
            }
    for (const int dim : dims) /* caps that bend most scores, and that flatten them */
        for (const float cap : {4.0f, 0.5f})
            if (!is_left_out(dim))
                test_shape({6, 2, dim, dim == 80 ? PAGE_F16 : PAGE_BF16, 3.0f, cap},
                           small ? few : ragged);
    test_clusters(small);
    if (only_dim == 0) test_all_splits(small);
    if (only_dim == 0) test_all_codes(small);
    if (small) return;
    for (const int dim : {64, 128, 256}) {
        if (is_left_out(dim)) continue;
        test_shape({4, 2, dim, PAGE_BF16, 12.0f}, ragged);
        test_chunks(dim, whole_mma);
        if (prop.major == 9) test_chunks(dim, whole_sm90);
    }
}

/* --- benchmarks --- */

/* Large batches are made on the device; the host keeps a copy only when a check asks for it. */
static struct batch make_bench(const struct shape &shape, uint32_t n_seqs, struct seq_shape seq) {
    struct batch b = {};
    b.shape = shape;
    b.n_seqs = n_seqs;
    b.n_rows = n_seqs * seq.n_rows;
    const uint32_t n_pages = (seq.n_slots + PAGE_TOKENS - 1) / PAGE_TOKENS;
    b.n_pages = n_pages * n_seqs;
    for (uint32_t i = 0; i < n_seqs; i++) {
        b.rows.push_back(seq.n_rows), b.slots.push_back(seq.n_slots);
        b.first_row.push_back((int32_t)(i * seq.n_rows));
        b.table_at.push_back((int32_t)(i * n_pages));
    }
    for (uint32_t i = 0; i < b.n_pages;
         i++) /* an odd multiplier scatters the pages; sizes are powers of two */
        b.table.push_back((int32_t)(i * 7919u % b.n_pages));
    b.q.resize(b.n_rows * q_stride(shape));
    b.pool.resize((size_t)b.n_pages * 2 * shape.n_kv_heads * PAGE_TOKENS * shape.dim);
    upload(b);
    fill_normal<<<2048, 256>>>((uint16_t *)b.device.q, b.q.size(), 1);
    fill_normal<<<2048, 256>>>((uint16_t *)b.device.kv.base, b.pool.size(), 2);
    CHECK(cudaMemcpy(b.q.data(), b.device.q, b.q.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(b.pool.data(), b.device.kv.base, b.pool.size() * 2, cudaMemcpyDeviceToHost));
    return b;
}

/* Some rows of the last timed run against the oracle, fewer of long ones. */
static double sampled_error(const struct batch &b) {
    const size_t width = (size_t)b.shape.n_heads * b.shape.dim;
    std::vector<double> want(b.shape.dim);
    std::vector<uint16_t> got(b.shape.dim);
    double difference = 0.0, norm = 0.0;
    const uint32_t n = std::min(24u, std::max(6u, (1u << 20) / b.slots[0]));
    for (uint32_t i = 0; i < n; i++) {
        random_normal();
        const uint32_t row = i == 0 ? b.rows[0] - 1 : (uint32_t)(random_state >> 33) % b.rows[0];
        const int head = (int)(i * 5 % (uint32_t)b.shape.n_heads);
        oracle_row(b, 0, row, head, want.data());
        CHECK(cudaMemcpy(got.data(),
                         (const uint16_t *)b.device.out + row * width + (size_t)head * b.shape.dim,
                         got.size() * 2, cudaMemcpyDeviceToHost));
        for (int d = 0; d < b.shape.dim; d++) {
            const double e = from_half(got[d], PAGE_BF16) - want[d];
            difference += e * e, norm += want[d] * want[d];
        }
    }
    return sqrt(difference / norm);
}

/* The median, in ms. */
static double bench(const struct batch &b, const struct subject &subject, int n_times) {
    std::vector<float> ms(n_times);
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    CHECK(cudaMemset(b.device.out, 0xff, (size_t)b.n_rows * b.shape.n_heads * b.shape.dim * 2));
    CHECK(subject.launch(b.device));
    for (float &t : ms) {
        CHECK(cudaEventRecord(from, 0));
        CHECK(subject.launch(b.device));
        CHECK(cudaEventRecord(to, 0));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&t, from, to));
    }
    std::sort(ms.begin(), ms.end());
    /* As the published figures count: half of the square, plus all of the older slots. */
    const double rows = b.rows[0], older = b.slots[0] - rows;
    const double flops =
        4.0 * b.shape.dim * b.shape.n_heads * b.n_seqs * (rows * rows / 2 + rows * older);
    /* Keys and values once, as if nothing were read twice. */
    const double bytes =
        (double)b.n_seqs * b.slots[0] * b.shape.n_kv_heads * b.shape.dim * 2 * sizeof(uint16_t);
    const double error = sampled_error(b);
    printf("bench,%s,%d/%d,dim %d,%u x %u rows,%u slots,%.3f ms,(%.3f - %.3f),%.1f TFLOP/s,"
           "%.0f GB/s,error %.1e\n",
           subject.name, b.shape.n_heads, b.shape.n_kv_heads, b.shape.dim, b.n_seqs, b.rows[0],
           b.slots[0], ms[n_times / 2], ms[0], ms[n_times - 1], flops / ms[n_times / 2] * 1e-9,
           bytes / ms[n_times / 2] * 1e-6, error);
    n_failed += !(error < 4e-3);
    fflush(stdout);
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    return ms[n_times / 2];
}

/* Of the one sequence of a batch, the first rows behind so many slots. */
static void set_rows(struct batch &b, uint32_t n_rows, uint32_t n_before) {
    const int32_t rows = (int32_t)n_rows, slots = (int32_t)(n_before + n_rows);
    b.rows[0] = b.n_rows = n_rows;
    b.slots[0] = n_before + n_rows;
    std::vector<attn_prefill_item> items(attn_prefill_max_items(n_rows, 1));
    b.device.n_items = attn_prefill_plan(b.rows.data(), b.slots.data(), 0, 1, items.data());
    CHECK(cudaMemcpy((void *)b.device.items, items.data(),
                     b.device.n_items * sizeof(struct attn_prefill_item), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy((void *)b.device.n_rows, &rows, sizeof(rows), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy((void *)b.device.n_slots, &slots, sizeof(slots), cudaMemcpyHostToDevice));
}

static void bench_split(const struct batch &b, bool sm90) {
    struct split split = cut_by_plan(b);
    const int n_times = b.slots[0] > 100000 ? 9 : 31;
    const double whole = bench(b, sm90 ? whole_sm90 : whole_mma, n_times);
    if (split.view.n_items > 0) {
        const double ms = bench(b, {sm90 ? "sm90 split" : "mma split", sm90, &split}, n_times);
        printf("split,%u rows,%u slots,%u blocks of %u tiles cut,%.3f ms of %.3f: %.2f times\n",
               b.rows[0], b.slots[0], split.view.n_items * b.shape.n_kv_heads, split.view.n_merges,
               ms, whole, whole / ms);
    } else {
        printf("split,%u rows,%u slots,whole\n", b.rows[0], b.slots[0]);
    }
    free_split(split);
}

/* Few rows behind many. */
static void bench_splits(const char *rows) {
    const uint32_t n_rows[] = {1, 16, 64, 256, 300, 640, 1024}, most = 1024;
    for (const uint32_t n_before : {8192u, 32768u, 131072u, 262144u}) {
        struct batch b = make_bench({32, 8, 128, PAGE_BF16, 1.0f}, 1, {most, n_before + most});
        for (const uint32_t n : n_rows) {
            if (rows && n != strtoul(rows, NULL, 10)) continue;
            set_rows(b, n, n_before);
            if (has_sm90(b.shape)) bench_split(b, true);
            if (n_before == 32768 && (n == 16 || n == 256)) bench_split(b, false);
        }
        free_batch(b);
    }
}

static void bench_all(const char *rows) {
    const struct {
        int dim;
        uint32_t n_seqs;
        struct seq_shape seq;
        int n_times;
        bool portable;
    } table[] = {{128, 1, {8192, 8192}, 31, true},     {128, 1, {32768, 32768}, 21, true},
                 {128, 1, {131072, 131072}, 9, false}, {128, 16, {2048, 2048}, 31, false},
                 {128, 1, {2048, 65536}, 9, false},    {64, 1, {8192, 8192}, 9, true},
                 {64, 1, {32768, 32768}, 9, false},    {256, 1, {8192, 8192}, 9, true},
                 {256, 1, {32768, 32768}, 9, true},    {256, 1, {2048, 131072}, 9, true}};
    for (const auto &row : table) {
        if (rows && row.seq.n_rows != strtoul(rows, NULL, 10)) continue;
        /* Heads of 256 are those of Qwen3.6-27B. */
        const int n_heads = row.dim == 256 ? 24 : 32, n_kv_heads = row.dim == 256 ? 4 : 8;
        if (is_left_out(row.dim)) continue;
        struct batch b =
            make_bench({n_heads, n_kv_heads, row.dim, PAGE_BF16, 1.0f}, row.n_seqs, row.seq);
        if (has_whole_sm90(b.shape)) bench(b, whole_sm90, row.n_times);
        if (row.portable) bench(b, whole_mma, 3);
        free_batch(b);
    }
}

int main(int argc, char **argv) {
    int n_devices = 0;
    const char *mode = argc > 1 ? argv[1] : "";
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIPPED: attn_prefill_test needs a CUDA device and found none\n");
        return 77;
    }
    printf("seed %llu\n", (unsigned long long)random_state);
    const char *rows = argc > 2 ? argv[2] : NULL; /* all shapes, or those with this many rows */
    if (!strcmp(mode, "--wide") || !strcmp(mode, "--bench-wide")) only_dim = 256;
    if (!strcmp(mode, "--bench-wide")) bench_all(rows);
    else if (!strcmp(mode, "--bench")) bench_all(rows), bench_splits(rows);
    else if (!strcmp(mode, "--bench-splits")) bench_splits(rows);
    else test_all(!strcmp(mode, "--small")); /* --small: for compute-sanitizer */
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
