/* test_sparse.c - sparse prefill: what tiles visit against the definitions, slot by slot, and
 * attention over that against sums in double. */
#include "tests/cpu/sparse_test.h"

#include "engine/cpu/sparse_lines.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"

/* --- The k largest. --- */

TEST(the_largest_are_chosen_and_the_first_of_equal_ones) {
    for (uint32_t round = 0; round < 400; round++) {
        float scores[300];
        double wide[300];
        bool chosen[300];
        uint64_t bits[5];
        const uint32_t n = 1 + random_below(300), k = random_below(n + 1);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t what = random_below(8);
            scores[i] = what == 0   ? NAN
                        : what == 1 ? INFINITY
                        : what < 5  ? (float)random_below(4) - 1.0f
                                    : random_float();
            wide[i] = what == 0 ? -INFINITY : scores[i];
        }
        choose(wide, n, k, chosen);
        lines_select(scores, n, k, bits);
        for (uint32_t i = 0; i < n; i++) assert_int_equal(bits[i / 64] >> i % 64 & 1, chosen[i]);
    }
}

/* --- Vertical-slash. --- */

static void check_line_halves(const struct prompt *p, uint32_t head, const struct lines *lines) {
    for (uint32_t half = 0; half < n_halves_of(p); half++) {
        bool visited[MAX_SLOTS];
        const uint32_t first = half_first(p, half), end = half_end(p, half);
        visited_slots(p, head, half, visited);
        for (uint32_t slot = 0; slot < end; slot++)
            assert_int_equal(visited[slot],
                             line_visits(lines, tile_first(p, half / 2), first, slot));
        /* Nothing less than the lines: the reason for all of this. */
        for (uint32_t row = first; row < end; row++) {
            for (uint32_t slot = 0; slot <= row; slot++)
                assert_true(visited[slot] || !(lines->column[slot] || lines->diagonal[row - slot]));
        }
    }
}

static struct prompt *random_prompt(struct backend *be, uint32_t most) {
    const uint32_t first = random_below(3) ? PAGE_TOKENS * random_below(most / 128) : 0;
    struct prompt *p = prompt_make(be, first, 1 + random_below(most - first), PAGE_F32);
    for (uint32_t h = 0; h < N_HEADS; h++) {
        p->patterns[h] =
            (struct attn_pattern){PATTERN_VERTICAL_SLASH, random_below(120),
                                  random_below(3) ? 100 + random_below(10) : random_below(250)};
    }
    return p;
}

TEST(halves_of_tiles_visit_what_their_lines_meet) {
    struct backend *be = backend_make();
    struct lines lines;
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (uint32_t round = 0; round < 100; round++) {
        struct prompt *p = random_prompt(be, 800);
        p->sparse.synthetic = 1 + random_u32();
        index_prompt(p);
        for (uint32_t h = 0; h < N_HEADS; h++) {
            synthetic_lines(p, h, &lines);
            check_line_halves(p, h, &lines);
        }
        prompt_free(p);
    }
    be->ops->destroy(be);
}

/* The lines themselves, of which tiles show no more than groups of sixteen. */
static void check_lines(const struct prompt *p, uint32_t head, const struct lines *lines) {
    const struct sparse_index_args args = {.q = indexed_q(p),
                                           .q_stride = WIDTH,
                                           .kv = &p->kv,
                                           .n_heads = N_HEADS,
                                           .scale = 0.25f,
                                           .softcap = p->softcap};
    const struct kv_view view = {p->pages, p->n_slots, p->sparse.first_slot};
    void *room = malloc(lines_workspace_bytes(p->n_slots, DIM));
    uint64_t columns[MAX_SLOTS / 64], diagonals[MAX_SLOTS / 64];
    const struct lines_task task = {.cpu = (const struct cpu_backend *)p->be,
                                    .args = &args,
                                    .sparse = &p->sparse,
                                    .view = &view,
                                    .workspace = lines_workspace_layout(room, p->n_slots, DIM),
                                    .head = head,
                                    .n_slots = p->n_slots};
    lines_find(&task, &p->patterns[head], columns, diagonals);
    for (uint32_t i = 0; i < p->n_slots; i++) {
        assert_int_equal(columns[i / 64] >> i % 64 & 1, lines->column[i]);
        assert_int_equal(diagonals[i / 64] >> i % 64 & 1, lines->diagonal[i]);
    }
    free(room);
}

TEST(lines_are_those_with_the_most_attention) {
    struct backend *be = backend_make();
    struct lines lines;
    uint32_t n_clear = 0;
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (uint32_t round = 0; round < 12; round++) {
        struct prompt *p = random_prompt(be, 600);
        if (round % 2) p->softcap = 3; /* scores are about 10 at most */
        index_prompt(p);
        for (uint32_t h = 0; h < N_HEADS; h++) {
            if (!attention_lines(p, h, &lines)) continue;
            check_lines(p, h, &lines);
            check_line_halves(p, h, &lines);
            n_clear++;
        }
        prompt_free(p);
    }
    assert_true(n_clear >= 24);
    be->ops->destroy(be);
}

/* Queries that are zero look everywhere alike: all columns before the last 64 rows have the same
 * score, and so have all diagonals that all of them reach. */
TEST(of_equal_lines_the_first_and_the_nearest_are_chosen) {
    struct backend *be = backend_make();
    struct lines lines = {0};
    struct prompt *p = prompt_make(be, 128, 700, PAGE_F32);
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (uint32_t row = 0; row < p->n_slots; row++)
        memset(p->qkv + (size_t)row * WIDTH, 0, N_HEADS * DIM * sizeof(float));
    set_patterns(p, PATTERN_VERTICAL_SLASH, 45, 200);
    for (uint32_t i = 0; i < 45; i++) lines.column[i] = true;
    for (uint32_t i = 0; i < 200; i++) lines.diagonal[i] = true;
    index_prompt(p);
    for (uint32_t h = 0; h < N_HEADS; h++) check_line_halves(p, h, &lines);
    prompt_free(p);
    be->ops->destroy(be);
}

/* --- The other kinds. --- */

TEST(an_a_shape_is_the_beginning_and_the_newest) {
    struct backend *be = backend_make();
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (uint32_t round = 0; round < 60; round++) {
        struct prompt *p = random_prompt(be, 800);
        for (uint32_t h = 0; h < N_HEADS; h++) p->patterns[h].kind = PATTERN_A_SHAPE;
        for (uint32_t h = 0; h < N_HEADS; h++) p->patterns[h].p2 += p->patterns[h].p2 == 0;
        index_prompt(p);
        for (uint32_t i = 0; i < N_HEADS * n_halves_of(p); i++) {
            bool visited[MAX_SLOTS];
            const uint32_t h = i % N_HEADS, half = i / N_HEADS, first = half_first(p, half),
                           tile = tile_first(p, half / 2);
            const struct attn_pattern *pattern = &p->patterns[h];
            visited_slots(p, h, half, visited);
            for (uint32_t slot = 0; slot < half_end(p, half); slot++) {
                assert_int_equal(visited[slot], a_shape_visits(pattern, tile, first, slot));
                const bool newest = slot + (uint64_t)pattern->p2 > first;
                assert_true(visited[slot] || !(slot < pattern->p1 || newest));
            }
        }
        prompt_free(p);
    }
    be->ops->destroy(be);
}

TEST(budgets_without_bounds_do_not_overflow) {
    struct backend *be = backend_make();
    struct prompt *p = prompt_make(be, 64, 300, PAGE_F32);
    static const enum attn_pattern_kind kinds[N_HEADS] = {PATTERN_A_SHAPE, PATTERN_VERTICAL_SLASH,
                                                          PATTERN_BLOCK_SPARSE, PATTERN_A_SHAPE};
    reserve_sparse(be, 300, 364);
    for (uint32_t h = 0; h < N_HEADS; h++)
        p->patterns[h] = (struct attn_pattern){kinds[h], UINT32_MAX, UINT32_MAX};
    p->patterns[3].p1 = 0;
    index_prompt(p);
    for (uint32_t i = 0; i < N_HEADS * n_halves_of(p); i++) {
        uint32_t slots[MAX_SLOTS];
        assert_int_equal(cpu_sparse_visited(be, i % N_HEADS, i / N_HEADS, slots),
                         half_end(p, i / N_HEADS));
    }
    prompt_free(p);
    be->ops->destroy(be);
}

/* Products of a tile's mean query with the mean keys of the pages before it. */
static void page_products(const struct prompt *p, uint32_t head, uint32_t tile, double *products) {
    const uint32_t first = tile_first(p, tile), n_rows = tile_end(p, tile) - first,
                   key = (N_HEADS + head / (N_HEADS / N_KV)) * DIM;
    for (uint32_t page = 0; page < first / 64; page++) {
        products[page] = 0;
        for (uint32_t d = 0; d < DIM; d++) {
            double q = 0, k = 0;
            for (uint32_t i = 0; i < n_rows; i++)
                q += p->qkv[(size_t)(first + i) * WIDTH + head * DIM + d];
            for (uint32_t i = 0; i < 64; i++)
                k += p->qkv[(size_t)(page * 64 + i) * WIDTH + key + d];
            products[page] += q / n_rows * k / 64;
        }
    }
}

TEST(block_sparse_tiles_have_their_best_pages_their_own_and_the_first) {
    struct backend *be = backend_make();
    uint32_t n_clear = 0, n_tiles = 0;
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (uint32_t round = 0; round < 40; round++) {
        struct prompt *p = random_prompt(be, 1200);
        for (uint32_t h = 0; h < N_HEADS; h++)
            p->patterns[h] = (struct attn_pattern){PATTERN_BLOCK_SPARSE, random_below(7), 1};
        index_prompt(p);
        for (uint32_t i = 0; i < N_HEADS * n_tiles_of(p); i++, n_tiles++) {
            double products[MAX_SLOTS / 64];
            bool chosen[MAX_SLOTS / 64], visited[MAX_SLOTS];
            const uint32_t h = i % N_HEADS, tile = i / N_HEADS, own = tile_first(p, tile) / 64,
                           k = p->patterns[h].p1;
            page_products(p, h, tile, products);
            if (!choose(products, own, k < own ? k : own, chosen)) continue;
            n_clear++;
            for (uint32_t half = 2 * tile; half < 2 * tile + 2 && half < n_halves_of(p); half++) {
                visited_slots(p, h, half, visited);
                for (uint32_t slot = 0; slot < half_end(p, half); slot++) {
                    const bool expected = slot < 64 || slot / 64 >= own || chosen[slot / 64];
                    assert_int_equal(visited[slot], expected);
                }
            }
        }
        prompt_free(p);
    }
    assert_true(n_clear > n_tiles * 9 / 10);
    be->ops->destroy(be);
}

/* --- Attention. --- */

/* Of a row over what it visits, in double. */
static double expected_row(const struct prompt *p, uint32_t head, uint32_t row, const bool *visited,
                           double *out) {
    const uint32_t value = (N_HEADS + N_KV + head / (N_HEADS / N_KV)) * DIM;
    double sum = 0, max = -INFINITY;
    memset(out, 0, DIM * sizeof(*out));
    for (uint32_t slot = 0; slot <= row; slot++)
        if (visited[slot]) max = fmax(max, logit(p, head, row, slot));
    for (uint32_t slot = 0; slot <= row; slot++) {
        if (!visited[slot]) continue;
        const double weight = exp(logit(p, head, row, slot) - max);
        sum += weight;
        for (uint32_t d = 0; d < DIM; d++)
            out[d] += weight * stored(p->qkv[(size_t)slot * WIDTH + value + d], p->kv.format);
    }
    for (uint32_t d = 0; d < DIM; d++) out[d] /= sum;
    return (max + log(sum)) / log(2);
}

/* out, lse and totals against what the halves say that they visit. */
static void check_attention(const struct prompt *p, double tolerance) {
    const size_t n = p->sparse.n_rows;
    double *out = malloc(n * N_HEADS * DIM * sizeof(double)),
           *lse = malloc(n * N_HEADS * sizeof(double)), pairs[PATTERN_N_KINDS] = {0};
    struct sparse_totals totals;
    for (uint32_t h = 0; h < N_HEADS; h++) {
        bool visited[MAX_SLOTS];
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t row = p->sparse.first_slot + i;
            if (i % SPARSE_HALF == 0) visited_slots(p, h, i / SPARSE_HALF, visited);
            const size_t at = (size_t)i * N_HEADS + h;
            lse[at] = expected_row(p, h, row, visited, out + at * DIM);
            for (uint32_t slot = 0; slot <= row; slot++)
                pairs[p->patterns[h].kind] += visited[slot];
        }
    }
    assert_close(p->out, out, n * N_HEADS * DIM, tolerance);
    assert_close(p->lse, lse, n * N_HEADS, tolerance);
    assert_int_equal(p->be->ops->sparse->totals(p->be, &totals, NULL), 0);
    for (uint32_t kind = 0; kind < PATTERN_N_KINDS; kind++)
        assert_true(totals.visited[kind] == pairs[kind]);
    free(out);
    free(lse);
}

static void mix_patterns(struct prompt *p) {
    p->patterns[0] = (struct attn_pattern){PATTERN_VERTICAL_SLASH, 40, 102};
    p->patterns[1] = (struct attn_pattern){PATTERN_A_SHAPE, 20, 70};
    p->patterns[2] = (struct attn_pattern){PATTERN_BLOCK_SPARSE, 2, 1};
    p->patterns[3] = (struct attn_pattern){PATTERN_DENSE, 0, 0};
}

static void attention_is_that_over_the_visited_slots_on(struct backend *be) {
    static const uint32_t sizes[][2] = {{0, 1},    {0, 63},    {0, 64},    {0, 65},   {0, 127},
                                        {0, 129},  {0, 700},   {64, 1},    {64, 64},  {192, 129},
                                        {576, 63}, {640, 127}, {448, 256}, {128, 513}};
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        static const enum page_format formats[] = {PAGE_F32, PAGE_BF16, PAGE_FP8};
        for (uint32_t d = 0; d < 3; d++) {
            struct prompt *p = prompt_make(be, sizes[i][0], sizes[i][1], formats[d]);
            mix_patterns(p);
            if (i % 2) p->softcap = 4;
            index_prompt(p);
            attend_prompt(p, true);
            check_attention(p, 3e-6);
            prompt_free(p);
        }
    }
}

TEST(attention_is_that_over_the_visited_slots) {
    for_each_backend(attention_is_that_over_the_visited_slots_on);
}

static void what_covers_everything_has_the_bits_of_dense_attention_on(struct backend *be) {
    static const struct attn_pattern all[] = {
        {PATTERN_VERTICAL_SLASH, 900, 100}, {PATTERN_VERTICAL_SLASH, 30, 900},
        {PATTERN_A_SHAPE, 0, 900},          {PATTERN_A_SHAPE, 900, 1},
        {PATTERN_BLOCK_SPARSE, 15, 1},      {PATTERN_DENSE, 0, 0}};
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct prompt *p = prompt_make(be, 128, 700, PAGE_F32);
        const size_t n = p->sparse.n_rows * N_HEADS;
        float *out = malloc(n * DIM * sizeof(float)), *lse = malloc(n * sizeof(float));
        attend_prompt(p, false);
        memcpy(out, p->out, n * DIM * sizeof(float));
        memcpy(lse, p->lse, n * sizeof(float));
        set_patterns(p, all[i].kind, all[i].p1, all[i].p2);
        index_prompt(p);
        attend_prompt(p, true);
        assert_memory_equal(p->out, out, n * DIM * sizeof(float));
        assert_memory_equal(p->lse, lse, n * sizeof(float));
        free(out);
        free(lse);
        prompt_free(p);
    }
}

TEST(what_covers_everything_has_the_bits_of_dense_attention) {
    for_each_backend(what_covers_everything_has_the_bits_of_dense_attention_on);
}

/* As the engine does with one layer of a long prompt: one index, then rows a slice at a time. */
TEST(slices_of_an_index_give_the_same_bits) {
    static const uint32_t slices[] = {128, 256, 384};
    struct backend *be = backend_make();
    struct prompt *p = prompt_make(be, 192, 700, PAGE_BF16);
    struct prompt_step s;
    const size_t bytes = p->sparse.n_rows * N_HEADS * DIM * sizeof(float);
    float *whole = malloc(bytes);
    reserve_sparse(be, 700, 892);
    mix_patterns(p);
    index_prompt(p);
    attend_prompt(p, true);
    memcpy(whole, p->out, bytes);
    for (size_t i = 0; i < sizeof(slices) / sizeof(slices[0]); i++) {
        memset(p->out, 0xff, bytes);
        for (uint32_t row = 0; row < 700; row += slices[i]) {
            const uint32_t n = 700 - row < slices[i] ? 700 - row : slices[i];
            assert_int_equal(attend_rows(p, row, n, true, &s), 0);
        }
        assert_memory_equal(p->out, whole, bytes);
    }
    free(whole);
    prompt_free(p);
    be->ops->destroy(be);
}

/* --- Dense heads and tiles. --- */

static double density_of(const struct prompt *p, uint32_t head) {
    double pairs = 0, causal = 0;
    for (uint32_t half = 0; half < n_halves_of(p); half++) {
        bool visited[MAX_SLOTS];
        if (tile_end(p, half / 2) > p->sparse.dense_from) break;
        visited_slots(p, head, half, visited);
        for (uint32_t row = half_first(p, half); row < half_end(p, half); row++) {
            for (uint32_t slot = 0; slot <= row; slot++) pairs += visited[slot];
            causal += row + 1;
        }
    }
    return pairs / causal;
}

TEST(a_head_above_the_density_is_dense) {
    struct backend *be = backend_make();
    struct sparse_totals totals;
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (uint32_t from = 600; from <= 1000; from += 400) {
        struct prompt *p = prompt_make(be, 64, 800, PAGE_F32);
        double density[N_HEADS];
        mix_patterns(p);
        p->sparse.dense_from = from;
        index_prompt(p);
        for (uint32_t h = 0; h < 3; h++) density[h] = density_of(p, h);
        for (uint32_t h = 0; h < 3; h++) assert_true(fabs(p->density[h] - density[h]) < 1e-6);
        assert_true(p->density[3] == 1); /* its pattern is dense */
        for (uint32_t h = 0; h < 3; h++) {
            assert_true(density[h] > 0.1 && density[h] < 0.95);
            p->sparse.dense_above = (float)(density[h] * 1.001);
            index_prompt(p);
            assert_int_equal(cpu_sparse_kind(be, h), p->patterns[h].kind);
            p->sparse.dense_above = (float)(density[h] * 0.999);
            assert_int_equal(be->ops->sparse->totals(be, &totals, NULL), 0);
            index_prompt(p);
            assert_int_equal(cpu_sparse_kind(be, h), PATTERN_DENSE);
            assert_true(fabs(p->density[h] - density[h]) < 1e-6); /* of its choice, all the same */
            attend_prompt(p, true);
            assert_int_equal(be->ops->sparse->totals(be, &totals, NULL), 0);
            const enum attn_pattern_kind kind = p->patterns[h].kind;
            assert_true(totals.n_dense >= 1 && totals.visited[kind] == totals.causal[kind]);
        }
        prompt_free(p);
    }
    be->ops->destroy(be);
}

TEST(a_tile_with_a_row_at_dense_from_is_dense) {
    struct backend *be = backend_make();
    struct prompt *p = prompt_make(be, 64, 800, PAGE_F32);
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    mix_patterns(p);
    for (uint32_t from = 574; from <= 577; from++) { /* the tile [448, 576), and the next */
        bool visited[MAX_SLOTS];
        p->sparse.dense_from = from;
        index_prompt(p);
        for (uint32_t h = 0; h < 3; h++) {
            for (uint32_t half = 4; half < n_halves_of(p); half++) {
                uint32_t n = 0;
                visited_slots(p, h, half, visited);
                for (uint32_t slot = 0; slot < half_end(p, half); slot++) n += visited[slot];
                assert_int_equal(n == half_end(p, half), half >= (from < 576 ? 6 : 8));
            }
        }
        attend_prompt(p, true);
        check_attention(p, 3e-6);
    }
    prompt_free(p);
    be->ops->destroy(be);
}

/* --- Totals, neighbours and limits. --- */

TEST(totals_are_since_the_last_call) {
    struct backend *be = backend_make();
    struct prompt *p = prompt_make(be, 128, 300, PAGE_F32);
    struct sparse_totals once, twice, none;
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    mix_patterns(p);
    index_prompt(p);
    attend_prompt(p, true);
    assert_int_equal(be->ops->sparse->totals(be, &once, NULL), 0);
    attend_prompt(p, true);
    attend_prompt(p, true);
    assert_int_equal(be->ops->sparse->totals(be, &twice, NULL), 0);
    assert_int_equal(be->ops->sparse->totals(be, &none, NULL), 0);
    for (uint32_t kind = 0; kind < PATTERN_FILTERS; kind++) { /* a head has none of that kind */
        assert_true(once.causal[kind] == 128 * 300 + 300 * 301 / 2);
        assert_true(once.visited[kind] > 0 && 2 * once.visited[kind] == twice.visited[kind]);
        assert_true(none.visited[kind] == 0 && none.causal[kind] == 0);
    }
    assert_true(once.visited[PATTERN_DENSE] == once.causal[PATTERN_DENSE]);
    assert_true(once.index_s > 0 && once.attention_s > 0);
    assert_true(twice.index_s == 0 && twice.attention_s > 0 && none.attention_s == 0);
    prompt_free(p);
    be->ops->destroy(be);
}

/* The same prompt twice in a step, once dense and once sparse: each as if it were alone. */
TEST(a_dense_prompt_beside_a_sparse_one_is_unmoved) {
    struct backend *be = backend_make();
    struct prompt *p = prompt_make(be, 0, 400, PAGE_F32);
    const size_t n = (size_t)400 * N_HEADS * DIM;
    float *alone = malloc(2 * n * sizeof(float)), *both = malloc(2 * n * sizeof(float)),
          *qkv = malloc((size_t)800 * WIDTH * sizeof(float));
    reserve_sparse(be, 400, 400);
    mix_patterns(p);
    attend_prompt(p, false);
    memcpy(alone, p->out, n * sizeof(float));
    index_prompt(p);
    attend_prompt(p, true);
    memcpy(alone + n, p->out, n * sizeof(float));
    for (uint32_t i = 0; i < 2; i++)
        memcpy(qkv + (size_t)i * 400 * WIDTH, p->qkv, (size_t)400 * WIDTH * sizeof(float));
    const struct kv_view view = {p->pages, 400, 0};
    const struct step_seq seqs[2] = {
        {.n_rows = 400, .layers = &view},
        {.first_row = 400, .n_rows = 400, .layers = &view, .sparse = &p->sparse}};
    const struct step step = {.n_rows = 800, .n_seqs = 2, .n_layers = 1, .seqs = seqs};
    const struct attn_args args = {
        .q = qkv, .q_stride = WIDTH, .out = both, .kv = &p->kv, .n_heads = N_HEADS, .scale = 0.25f};
    assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
    assert_int_equal(be->ops->attn_prefill(be, &args, NULL), 0);
    assert_memory_equal(both, alone, 2 * n * sizeof(float));
    assert_memory_not_equal(both, both + n, n * sizeof(float));
    free(alone);
    free(both);
    free(qkv);
    prompt_free(p);
    be->ops->destroy(be);
}

TEST(what_was_not_reserved_or_indexed_is_refused) {
    struct backend *be = backend_make();
    struct prompt *p = prompt_make(be, 64, 300, PAGE_F32);
    struct prompt_step s;
    mix_patterns(p);
    assert_int_equal(index_rows(p, &s), ERR_UNSUPPORTED);
    reserve_sparse(be, 0, 0);
    assert_int_equal(index_rows(p, &s), ERR_UNSUPPORTED);
    reserve_sparse(be, 299, 364);
    assert_int_equal(index_rows(p, &s), ERR_INVALID);
    reserve_sparse(be, 300, 363);
    assert_int_equal(index_rows(p, &s), ERR_INVALID);
    reserve_sparse(be, 300, 364);
    assert_int_equal(attend_rows(p, 0, 300, true, &s), ERR_INVALID); /* no index yet */
    assert_int_equal(index_rows(p, &s), 0);
    assert_int_equal(attend_rows(p, 64, 236, true, &s), ERR_INVALID); /* in the middle of a tile */
    assert_int_equal(attend_rows(p, 128, 172, true, &s), 0);
    p->sparse.n_rows = 172; /* of other rows */
    assert_int_equal(attend_rows(p, 128, 172, true, &s), ERR_INVALID);
    prompt_free(p);
    be->ops->destroy(be);
}
