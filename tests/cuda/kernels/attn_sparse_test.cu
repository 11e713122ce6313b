/* attn_sparse_test.cu - sparse prefill attention against a double oracle that walks the slots which
 * the index arrays name; --bench times it next to the dense kernel.
 *
 * Every head of a batch has an index of its own: lines in clusters, at random, none, all; first and
 * newest slots; pages; dense.  Or a filter chose slots for each.  Memory around the slots is NaN as
 * in attn_prefill_test.cu, and the tolerance is the same.  A kernel that hangs is ended by an
 * alarm. */
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "cuda/attention/sparse/sparse_view.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "tests/cuda/kernels/prefill_batch.cuh"

enum { ALARM_SECONDS = 60 };

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % n);
}

/* --- an index: host copies, and the same on the device --- */

enum lines { LINES_CLUSTERED, LINES_UNIFORM, LINES_NONE, LINES_ALL, LINES_LOCAL };

struct head_choice {
    enum attn_pattern_kind kind;
    enum lines lines;
    uint32_t p1, p2; /* as in attn_pattern */
};

struct index {
    uint32_t first_slot, n_slots, n_tiles, n_heads;
    uint32_t first_dense_tile, max_distances, mark_words, max_columns, max_blocks;
    std::vector<struct sparse_head> heads;
    std::vector<int32_t> distances, columns, column_count, blocks, block_count;
    std::vector<uint32_t> marks;
    struct sparse_view device;
};

static int32_t tile_group(const struct index &x, uint32_t tile) {
    return (int32_t)((x.first_slot + tile * SPARSE_TILE) / SPARSE_GROUP);
}

static std::vector<bool> choose_diagonals(enum lines lines, uint32_t n, uint32_t n_chosen) {
    std::vector<bool> chosen(n, lines == LINES_ALL);
    uint32_t near = lines == LINES_LOCAL ? n_chosen : lines == LINES_CLUSTERED ? n_chosen / 2 : 1;
    for (uint32_t o = 0; o < std::min(n, near); o++) chosen[o] = true;
    const uint32_t run = lines == LINES_CLUSTERED ? 64 : 1;
    if (lines == LINES_CLUSTERED || lines == LINES_UNIFORM)
        for (uint32_t done = near; done < n_chosen; done += run) {
            const uint32_t from = random_below(n);
            for (uint32_t o = from; o < std::min(n, from + run); o++) chosen[o] = true;
        }
    return chosen;
}

static bool is_marked(const struct index &x, uint32_t head, int32_t distance) {
    const uint32_t bit = (uint32_t)(distance + SPARSE_MARK_SHIFT);
    return x.marks[(size_t)head * x.mark_words + bit / 32] >> bit % 32 & 1;
}

/* A half visits a distance where one of the groups of diagonals d - 1 .. d + 3 has a chosen one. */
static void mark_distances(struct index &x, uint32_t head, const std::vector<bool> &chosen) {
    const int32_t end =
        (int32_t)((x.n_slots + SPARSE_GROUP - 1) / SPARSE_GROUP) + SPARSE_HALF_GROUPS;
    std::vector<bool> coarse(end + SPARSE_HALF_GROUPS);
    for (size_t o = 0; o < chosen.size(); o++)
        if (chosen[o]) coarse[o / SPARSE_GROUP] = true;
    for (int32_t d = 1 - SPARSE_HALF_GROUPS; d < end; d++) {
        bool visited = d <= 0;
        for (int32_t c = std::max(d - 1, 0); c < d + SPARSE_HALF_GROUPS; c++) visited |= coarse[c];
        const uint32_t bit = (uint32_t)(d + SPARSE_MARK_SHIFT);
        if (visited) x.marks[(size_t)head * x.mark_words + bit / 32] |= 1u << bit % 32;
    }
}

static int32_t list_distances(struct index &x, uint32_t head, int32_t at, bool lower, bool upper) {
    const int32_t n_groups = (int32_t)((x.n_slots + SPARSE_GROUP - 1) / SPARSE_GROUP);
    int32_t n = 0;
    for (int32_t d = 1; d < n_groups; d++)
        if (is_marked(x, head, d) == lower && is_marked(x, head, d + SPARSE_HALF_GROUPS) == upper)
            x.distances[(size_t)head * x.max_distances + at + n++] = d;
    return n;
}

static void add_distances(struct index &x, uint32_t head, const std::vector<bool> &chosen) {
    struct sparse_head &h = x.heads[head];
    mark_distances(x, head, chosen);
    h.n_both = list_distances(x, head, 0, true, true);
    h.n_lower = list_distances(x, head, h.n_both, true, false);
    h.n_upper = list_distances(x, head, h.n_both + h.n_lower, false, true);
}

static void add_columns(struct index &x, uint32_t head, uint32_t n_chosen) {
    std::vector<bool> chosen(x.n_slots);
    for (uint32_t i = 0; i < n_chosen; i++)
        chosen[i < 30 ? std::min(i, x.n_slots - 1) : random_below(x.n_slots)] = true;
    for (uint32_t slot = 0; slot < x.n_slots; slot++)
        if (chosen[slot])
            x.columns[(size_t)head * x.max_columns + x.heads[head].n_columns++] = (int32_t)slot;
}

/* Chooses slots before the index's first, for a head whose filter chose. */
static void add_chosen(struct index &x, uint32_t head, uint32_t n_chosen) {
    std::set<int32_t> chosen;
    for (uint32_t i = 0; i < n_chosen && x.first_slot > 0; i++)
        chosen.insert((int32_t)random_below(x.first_slot));
    x.heads[head].n_columns = (int32_t)chosen.size();
    std::copy(chosen.begin(), chosen.end(), &x.columns[(size_t)head * x.max_columns]);
}

static bool covers(const struct index &x, uint32_t head, int32_t R, int32_t half, int32_t group) {
    return group < x.heads[head].n_first ||
           is_marked(x, head, R + half * SPARSE_HALF_GROUPS - group);
}

static void count_columns(struct index &x, uint32_t head) {
    const int32_t *columns = &x.columns[(size_t)head * x.max_columns];
    for (uint32_t tile = 0; tile < x.n_tiles; tile++) {
        const int32_t R = tile_group(x, tile);
        int32_t n = 0;
        for (int32_t i = 0; i < x.heads[head].n_columns && columns[i] < R * SPARSE_GROUP; i++)
            n += !covers(x, head, R, 0, columns[i] / SPARSE_GROUP) ||
                 !covers(x, head, R, 1, columns[i] / SPARSE_GROUP);
        x.column_count[(size_t)head * x.n_tiles + tile] = n;
    }
}

static void add_pages(struct index &x, uint32_t head, uint32_t n_best) {
    const int32_t n_pages = (int32_t)((x.n_slots + PAGE_TOKENS - 1) / PAGE_TOKENS);
    for (uint32_t tile = 0; tile < x.n_tiles; tile++) {
        const int32_t own = tile_group(x, tile) / SPARSE_PAGE_GROUPS;
        std::set<int32_t> pages = {0, own, std::min(own + 1, n_pages - 1)};
        for (uint32_t i = 0; i < n_best && own > 0; i++)
            pages.insert((int32_t)random_below((uint32_t)own));
        const size_t at = (size_t)head * x.n_tiles + tile;
        x.block_count[at] = (int32_t)pages.size();
        std::copy(pages.begin(), pages.end(), &x.blocks[at * x.max_blocks]);
    }
}

static void add_head(struct index &x, uint32_t head, const struct head_choice &choice) {
    struct sparse_head &h = x.heads[head];
    h.kind = choice.kind;
    switch (choice.kind) {
    case PATTERN_A_SHAPE:
        h.n_first = (int32_t)((choice.p1 + SPARSE_GROUP - 1) / SPARSE_GROUP);
        add_distances(x, head, choose_diagonals(LINES_LOCAL, x.n_slots, choice.p2));
        return;
    case PATTERN_VERTICAL_SLASH:
        h.n_first = 2;
        add_distances(x, head, choose_diagonals(choice.lines, x.n_slots, choice.p2));
        add_columns(x, head, choice.lines == LINES_NONE ? 0 : choice.p1);
        count_columns(x, head);
        return;
    case PATTERN_BLOCK_SPARSE: add_pages(x, head, choice.p1); return;
    case PATTERN_FILTERS: add_chosen(x, head, choice.p1); return;
    default: return;
    }
}

static void upload_index(struct index &x) {
    struct sparse_view &v = x.device;
    v.heads = to_device(x.heads);
    v.distances = to_device(x.distances);
    v.marks = to_device(x.marks);
    v.columns = to_device(x.columns);
    v.column_count = to_device(x.column_count);
    v.blocks = to_device(x.blocks);
    v.block_count = to_device(x.block_count);
    v.max_distances = x.max_distances, v.mark_words = x.mark_words;
    v.max_columns = v.column_stride = x.max_columns, v.max_tiles = x.n_tiles,
    v.max_blocks = x.max_blocks;
    v.n_heads = x.n_heads, v.first_slot = x.first_slot, v.n_slots = x.n_slots;
    v.n_rows = x.n_slots - x.first_slot, v.n_tiles = x.n_tiles;
    v.first_dense_tile = x.first_dense_tile;
}

/* Heads take the choices in turns. */
static struct index make_index(uint32_t first_slot, uint32_t n_slots, uint32_t n_heads,
                               uint32_t first_dense_tile,
                               const std::vector<struct head_choice> &choices) {
    struct index x = {};
    const uint32_t n_groups = (n_slots + SPARSE_GROUP - 1) / SPARSE_GROUP;
    x.first_slot = first_slot, x.n_slots = n_slots, x.n_heads = n_heads;
    x.n_tiles = (n_slots - first_slot + SPARSE_TILE - 1) / SPARSE_TILE;
    x.first_dense_tile = first_dense_tile;
    x.max_distances = n_groups + 8, x.mark_words = (n_groups + 12) / 32 + 1;
    x.max_columns = x.max_blocks = 1;
    for (const struct head_choice &c : choices)
        if (c.kind == PATTERN_VERTICAL_SLASH || c.kind == PATTERN_FILTERS)
            x.max_columns = std::max(x.max_columns, c.p1);
        else if (c.kind == PATTERN_BLOCK_SPARSE) x.max_blocks = std::max(x.max_blocks, c.p1 + 3);
    x.heads.resize(n_heads);
    x.distances.resize((size_t)n_heads * x.max_distances);
    x.marks.resize((size_t)n_heads * x.mark_words);
    x.columns.resize((size_t)n_heads * x.max_columns);
    x.column_count.resize((size_t)n_heads * x.n_tiles);
    x.block_count.resize((size_t)n_heads * x.n_tiles);
    x.blocks.resize(x.max_blocks > 1 ? x.block_count.size() * x.max_blocks : 1);
    for (uint32_t head = 0; head < n_heads; head++)
        add_head(x, head, choices[head % choices.size()]);
    upload_index(x);
    return x;
}

static void free_index(struct index &x) {
    void *all[] = {x.device.heads,        x.device.distances, x.device.marks,      x.device.columns,
                   x.device.column_count, x.device.blocks,    x.device.block_count};
    for (void *p : all) CHECK(cudaFree(p));
}

/* Of each slot in front of the tile's end whether the half visits it: from the arrays' meaning. */
static std::vector<bool> visited_slots(const struct index &x, uint32_t head, uint32_t half) {
    const struct sparse_head &h = x.heads[head];
    const uint32_t tile = half / 2;
    const int32_t R = tile_group(x, tile), end = (R + SPARSE_TILE_GROUPS) * SPARSE_GROUP;
    const bool dense = h.kind == PATTERN_DENSE || tile >= x.first_dense_tile;
    std::vector<bool> visited(end, dense);
    const auto visit = [&](int32_t from, int32_t n) {
        for (int32_t slot = std::max(from, 0); slot < std::min(from + n, end); slot++)
            visited[slot] = true;
    };
    if (dense) return visited;
    if (h.kind == PATTERN_BLOCK_SPARSE) {
        const size_t at = (size_t)head * x.n_tiles + tile;
        for (int32_t i = 0; i < x.block_count[at]; i++)
            visit(x.blocks[at * x.max_blocks + i] * PAGE_TOKENS, PAGE_TOKENS);
        return visited;
    }
    for (int32_t i = 0; i < h.n_columns; i++) visit(x.columns[(size_t)head * x.max_columns + i], 1);
    if (h.kind == PATTERN_FILTERS) {
        visit((int32_t)x.first_slot, end);
        return visited;
    }
    visit(0, h.n_first * SPARSE_GROUP);
    visit(R * SPARSE_GROUP, SPARSE_TILE);
    for (int32_t group = 0; group < R; group++)
        if (is_marked(x, head, R + (int32_t)(half % 2) * SPARSE_HALF_GROUPS - group))
            visit(group * SPARSE_GROUP, SPARSE_GROUP);
    return visited;
}

/* --- the oracle --- */

struct expected {
    std::vector<double> out; /* [n_rows, n_heads * dim] */
    std::vector<double> lse; /* [n_rows, n_heads] */
};

/* One row's output and base-2 sum, over the slots that are visited and not behind it. */
static double oracle_row(const struct batch &b, uint32_t row, int head,
                         const std::vector<bool> &visited, double *out) {
    const int dim = b.shape.dim, kv_head = head / (b.shape.n_heads / b.shape.n_kv_heads);
    const uint32_t n = b.slots[0] - b.rows[0] + row + 1;
    const uint16_t *q = &b.q[row * q_stride(b.shape) + (size_t)head * dim];
    const auto at = [&](int is_v, uint32_t slot) {
        return &b.pool[slot_at(b, b.table[slot / PAGE_TOKENS], is_v, kv_head,
                               (int)(slot % PAGE_TOKENS))];
    };
    std::vector<double> w(n, -INFINITY), query(dim);
    double top = -INFINITY, sum = 0.0;
    for (int d = 0; d < dim; d++) query[d] = from_half(q[d], PAGE_BF16);
    for (uint32_t slot = 0; slot < n; slot++) {
        if (!visited[slot]) continue;
        double score = 0.0;
        for (int d = 0; d < dim; d++) score += query[d] * from_half(at(0, slot)[d], b.shape.format);
        top = std::max(top, w[slot] = score_of_product(b.shape, score));
    }
    for (double &x : w) sum += x = exp(x - top);
    std::fill(out, out + dim, 0.0);
    for (uint32_t slot = 0; slot < n; slot++)
        if (w[slot] > 0.0)
            for (int d = 0; d < dim; d++)
                out[d] += w[slot] / sum * from_half(at(1, slot)[d], b.shape.format);
    return (top + log(sum)) / log(2.0);
}

static struct expected oracle(const struct batch &b, const struct index &x) {
    const size_t n_heads = (size_t)b.shape.n_heads, width = n_heads * b.shape.dim;
    const uint32_t first = (b.slots[0] - b.rows[0] - x.first_slot) / SPARSE_TILE;
    const uint32_t n_halves = (b.rows[0] + SPARSE_HALF - 1) / SPARSE_HALF;
    struct expected e = {std::vector<double>(b.n_rows * width),
                         std::vector<double>(b.n_rows * n_heads)};
    const auto work = [&](uint32_t half, size_t head) {
        const std::vector<bool> visited = visited_slots(x, (uint32_t)head, 2 * first + half);
        const uint32_t end = std::min((half + 1) * SPARSE_HALF, b.rows[0]);
        for (uint32_t row = half * SPARSE_HALF; row < end; row++)
            e.lse[row * n_heads + head] =
                oracle_row(b, row, (int)head, visited, &e.out[row * width + head * b.shape.dim]);
    };
    const unsigned n_threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < n_threads; t++)
        threads.emplace_back([&, t] {
            for (size_t i = t; i < n_halves * n_heads; i += n_threads)
                work((uint32_t)(i / n_heads), i % n_heads);
        });
    for (std::thread &t : threads) t.join();
    return e;
}

/* --- correctness --- */

using launcher = cudaError_t (*)(const struct attn_prefill_params &, const struct sparse_view &,
                                 cudaStream_t);

/* The head whose rows are the farthest from what they should be. */
static double worst_head(const struct batch &b, const std::vector<uint16_t> &out,
                         const std::vector<double> &want, int *head) {
    const int dim = b.shape.dim, n_heads = b.shape.n_heads;
    double worst = 0.0;
    for (int h = 0; h < n_heads; h++) {
        double difference = 0.0, norm = 0.0;
        for (size_t row = 0; row < b.n_rows; row++)
            for (int d = 0; d < dim; d++) {
                const size_t i = (row * n_heads + h) * dim + d;
                const double e = from_half(out[i], PAGE_BF16) - want[i];
                difference += e * e, norm += want[i] * want[i];
            }
        const double error = sqrt(difference / norm);
        if (is_worse(error, worst)) worst = error, *head = h;
    }
    return worst;
}

static void compare(struct batch b, const struct index &x, const struct expected &want,
                    launcher launch, const char *name) {
    const size_t n = (size_t)b.n_rows * b.shape.n_heads;
    std::vector<uint16_t> out(n * b.shape.dim);
    std::vector<float> lse(n);
    CHECK(cudaMalloc(&b.device.lse, n * sizeof(float)));
    CHECK(cudaMemset(b.device.lse, 0xff, n * sizeof(float)));
    CHECK(cudaMemset(b.device.out, 0xff, out.size() * 2));
    alarm(ALARM_SECONDS);
    CHECK(launch(b.device, x.device, 0));
    CHECK(cudaDeviceSynchronize());
    alarm(0);
    CHECK(cudaMemcpy(out.data(), b.device.out, out.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(lse.data(), b.device.lse, n * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(b.device.lse));
    int head = 0;
    const double error = worst_head(b, out, want.out, &head);
    double worst_lse = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double e = fabs(lse[i] - want.lse[i]);
        if (is_worse(e, worst_lse)) worst_lse = e;
    }
    char what[128];
    snprintf(what, sizeof(what),
             "%s heads %d/%d dim %d %s cap %g, index %u.., rows %u of %u, lse %.0e", name,
             b.shape.n_heads, b.shape.n_kv_heads, b.shape.dim,
             b.shape.format == PAGE_BF16 ? "bf16" : "f16", b.shape.softcap, x.first_slot, b.rows[0],
             b.slots[0], worst_lse);
    verdict(error < 4e-3 && worst_lse < 1e-3, what, error);
    if (!(error < 4e-3)) printf("     worst: head %d, kind %d\n", head, x.heads[head].kind);
}

static bool has_sm90(const struct shape &s) {
    return attn_prefill_sm90_is_there() && s.format == PAGE_BF16 && (s.dim == 64 || s.dim == 128);
}

/* Rows of a step: those of the index from tile `first_tile` on, n_rows at most. */
struct extent {
    uint32_t first_slot, n_slots, first_tile, n_rows, first_dense_tile;
};

static const std::vector<struct head_choice> every_kind = {
    {PATTERN_VERTICAL_SLASH, LINES_CLUSTERED, 300, 400},
    {PATTERN_VERTICAL_SLASH, LINES_UNIFORM, 150, 12},
    {PATTERN_BLOCK_SPARSE, LINES_NONE, 5, 0},
    {PATTERN_VERTICAL_SLASH, LINES_NONE, 0, 0},
    {PATTERN_A_SHAPE, LINES_LOCAL, 200, 250},
    {PATTERN_DENSE, LINES_NONE, 0, 0},
    {PATTERN_VERTICAL_SLASH, LINES_ALL, 40, 0},
    {PATTERN_VERTICAL_SLASH, LINES_UNIFORM, 700, 1}};

static const std::vector<struct head_choice> filters = {{PATTERN_FILTERS, LINES_NONE, 200, 0},
                                                        {PATTERN_FILTERS, LINES_NONE, 1, 0},
                                                        {PATTERN_FILTERS, LINES_NONE, 5000, 0}};

static void test_choices(const struct shape &shape, const struct extent &e,
                         const std::vector<struct head_choice> &choices) {
    const uint32_t first = e.first_slot + e.first_tile * SPARSE_TILE,
                   n_rows = std::min(e.n_rows, e.n_slots - first);
    struct index x =
        make_index(e.first_slot, e.n_slots, (uint32_t)shape.n_heads, e.first_dense_tile, choices);
    struct batch b = make_batch(shape, {{n_rows, first + n_rows}});
    b.n_decode = 0;
    free_batch(b);
    upload(b); /* one row is a prompt's here, too */
    const struct expected want = oracle(b, x);
    compare(b, x, want, launch_attn_sparse_mma, "mma");
    if (has_sm90(shape)) compare(b, x, want, launch_attn_sparse_sm90, "sm90");
    free_batch(b);
    free_index(x);
}

static void test_extent(const struct shape &shape, const struct extent &e) {
    test_choices(shape, e, every_kind);
    test_choices(shape, e, filters);
}

static void test_all(bool small) {
    const uint32_t all = UINT32_MAX;
    const std::vector<struct extent> extents = {
        {0, 1, 0, all, all},      {0, 64, 0, all, all},       {0, 129, 0, all, all},
        {64, 191, 0, all, all},   {0, 333, 0, all, all},      {448, 449, 0, all, all},
        {0, 1300, 0, all, 8},     {320, 1137, 0, all, all},   {0, 2048, 3, 256, all},
        {192, 1700, 5, 384, all}, {1024, 2500, 10, all, all}, {0, 640, 0, 512, 2}};
    const std::vector<struct extent> few = {{0, 70, 0, all, all}, {64, 530, 1, all, 3}};
    for (const struct extent &e : small ? few : extents)
        for (const int dim : {64, 128}) test_extent({8, 2, dim, PAGE_BF16, 1.0f}, e);
    if (small) return;
    const struct extent e = {128, 1200, 1, all, all};
    for (const int dim : {64, 80, 96, 128, 256})
        for (const enum page_format format : {PAGE_BF16, PAGE_F16})
            test_extent({8, 4, dim, format, 1.0f}, e);
    for (const int dim : {64, 128, 256}) test_extent({8, 4, dim, PAGE_BF16, 4.0f, 3.0f}, e);
    for (const int dim : {64, 128}) {
        test_extent({8, 8, dim, PAGE_BF16, 4.0f}, e);
        test_extent({16, 1, dim, PAGE_BF16, 4.0f}, e);
    }
}

/* --- benchmarks --- */

/* A prompt of n rows from slot 0 on, made on the device; the host knows no keys. */
static struct batch make_bench(uint32_t n) {
    struct batch b = {};
    b.shape = {32, 8, 128, PAGE_BF16, 1.0f};
    b.n_seqs = 1, b.n_rows = n, b.n_pages = n / PAGE_TOKENS;
    b.rows = b.slots = {n};
    b.first_row = b.table_at = {0};
    for (uint32_t i = 0; i < b.n_pages; i++) b.table.push_back((int32_t)(i * 7919u % b.n_pages));
    upload(b);
    const size_t n_q = (size_t)n * b.shape.n_heads * b.shape.dim,
                 n_pool = (size_t)2 * n * b.shape.n_kv_heads * b.shape.dim;
    CHECK(cudaFree((void *)b.device.q));
    CHECK(cudaFree(b.device.kv.base));
    CHECK(cudaMalloc((void **)&b.device.q, n_q * 2));
    CHECK(cudaMalloc(&b.device.kv.base, n_pool * 2));
    b.device.q_stride = (size_t)b.shape.n_heads * b.shape.dim;
    fill_normal<<<2048, 256>>>((uint16_t *)b.device.q, n_q, 1);
    fill_normal<<<2048, 256>>>((uint16_t *)b.device.kv.base, n_pool, 2);
    CHECK(cudaDeviceSynchronize());
    return b;
}

template <typename Launch> static double median_ms(int n_times, Launch launch) {
    std::vector<float> ms(n_times);
    cudaEvent_t from, to;
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    alarm(ALARM_SECONDS);
    if (n_times > 1) CHECK(launch());
    for (float &t : ms) {
        CHECK(cudaEventRecord(from, 0));
        CHECK(launch());
        CHECK(cudaEventRecord(to, 0));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&t, from, to));
    }
    alarm(0);
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    std::sort(ms.begin(), ms.end());
    return ms[n_times / 2];
}

/* Keys in front of a tile: of both halves, and of groups of one half alone. */
struct tile_keys {
    size_t both, lower, upper, columns;
};

static struct tile_keys keys_of(const struct index &x, uint32_t head, uint32_t tile) {
    const struct sparse_head &h = x.heads[head];
    const size_t at = (size_t)head * x.n_tiles + tile;
    const int32_t R = tile_group(x, tile);
    if (h.kind == PATTERN_DENSE) return {(size_t)R * SPARSE_GROUP, 0, 0, 0};
    if (h.kind == PATTERN_BLOCK_SPARSE)
        return {(size_t)(x.block_count[at] - 2) * PAGE_TOKENS, 0, 0, 0};
    const int32_t n_first = std::min(h.n_first, R),
                  *list = &x.distances[(size_t)head * x.max_distances];
    const auto count = [&](int32_t n) {
        const size_t found = std::upper_bound(list, list + n, R - n_first) - list;
        list += n;
        return found * SPARSE_GROUP;
    };
    const size_t both = count(h.n_both), lower = count(h.n_lower);
    return {both + n_first * SPARSE_GROUP, lower, count(h.n_upper), (size_t)x.column_count[at]};
}

/* Means over heads and rows: the keys that the index names, and those that are computed, in whole
 * pairs of 128, of which a half's count half. */
static void count_keys(const struct index &x, double *visited, double *computed) {
    const auto pairs = [](size_t n) { return (n + 127) / 128; };
    double n_visited = 0.0, n_pairs = 0.0;
    for (uint32_t head = 0; head < x.n_heads; head++)
        for (uint32_t tile = 0; tile < x.n_tiles; tile++) {
            const struct tile_keys k = keys_of(x, head, tile);
            n_visited +=
                (double)(k.both + k.columns) + 0.5 * (double)(k.lower + k.upper) + SPARSE_TILE / 2;
            n_pairs += (double)(1 + pairs(k.both) + pairs(k.columns)) +
                       0.5 * (double)(pairs(k.lower) + pairs(k.upper));
        }
    *visited = n_visited / x.n_heads / x.n_tiles;
    *computed = n_pairs * 128 / x.n_heads / x.n_tiles;
}

static void bench(const struct batch &b, const char *name, const struct head_choice &choice,
                  double dense_ms) {
    struct index x = make_index(0, b.n_rows, (uint32_t)b.shape.n_heads, UINT32_MAX, {choice});
    double visited, computed;
    count_keys(x, &visited, &computed);
    const auto time = [&](launcher launch, int n_times) {
        return median_ms(n_times, [&] { return launch(b.device, x.device, 0); });
    };
    const bool has = has_sm90(b.shape);
    const int n_times = choice.kind == PATTERN_DENSE ? 1 : 9;
    const double ms = time(has ? launch_attn_sparse_sm90 : launch_attn_sparse_mma, n_times);
    const double flops = 4.0 * b.shape.dim * b.shape.n_heads * b.n_rows * computed;
    printf("bench,%s,%s,%u rows,%.0f keys a row,%.0f computed,%.3f ms,%.1f TFLOP/s,%.2f of dense\n",
           has ? "sm90" : "mma", name, b.n_rows, visited, computed, ms, flops / ms * 1e-9,
           ms / dense_ms);
    if (has && b.n_rows <= 32768 && choice.kind != PATTERN_DENSE)
        printf("bench,mma,%s,%u rows,%.3f ms\n", name, b.n_rows, time(launch_attn_sparse_mma, 1));
    fflush(stdout);
    free_index(x);
}

static void bench_all(const char *rows) {
    const struct {
        const char *name;
        struct head_choice choice;
    } table[] = {
        {"vertical-slash clustered", {PATTERN_VERTICAL_SLASH, LINES_CLUSTERED, 1000, 6096}},
        {"vertical-slash local", {PATTERN_VERTICAL_SLASH, LINES_LOCAL, 1000, 6096}},
        {"vertical-slash columns", {PATTERN_VERTICAL_SLASH, LINES_LOCAL, 3500, 100}},
        {"block-sparse", {PATTERN_BLOCK_SPARSE, LINES_NONE, 100, 0}},
        {"A-shape", {PATTERN_A_SHAPE, LINES_LOCAL, 1024, 4096}},
        {"dense heads", {PATTERN_DENSE, LINES_NONE, 0, 0}}};
    for (const uint32_t n : {32768u, 131072u, 524288u}) {
        if (rows && n != strtoul(rows, NULL, 10)) continue;
        struct batch b = make_bench(n);
        const double dense_ms =
            median_ms(n > 131072 ? 1 : 3, [&] { return launch_attn_prefill(b.device, {}); });
        printf("bench,dense,,%u rows,%.3f ms,%.1f TFLOP/s\n", n, dense_ms,
               2.0 * b.shape.dim * b.shape.n_heads * n * n / dense_ms * 1e-9);
        for (const auto &row : table) bench(b, row.name, row.choice, dense_ms);
        free_batch(b);
    }
}

int main(int argc, char **argv) {
    int n_devices = 0;
    const char *mode = argc > 1 ? argv[1] : "";
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIPPED: attn_sparse_test needs a CUDA device and found none\n");
        return 77;
    }
    printf("seed %llu\n", (unsigned long long)random_state);
    if (!strcmp(mode, "--bench"))
        bench_all(argc > 2 ? argv[2] : NULL); /* all lengths, or this one */
    else test_all(!strcmp(mode, "--small"));  /* --small: for compute-sanitizer */
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
