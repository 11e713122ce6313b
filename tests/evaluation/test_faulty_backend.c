/* test_faulty_backend.c - a planted fault changes what it says and nothing else, bit for bit,
 * whatever the steps are.
 *
 * Two sequences of random tokens run side by side through one layer, each step giving either some
 * rows; the last rows may decode.  What a fault should give is what the sound backend gives for
 * other input: a sequence that begins on the second page, or one with other positions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/cpu/cpu.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "tests/evaluation/faulty_backend.h"
#include "tests/test.h"

enum {
    N_SEQS = 2,
    N_HEADS = 2,
    DIM = 16,
    N_FREQS = DIM / 2,
    Q_WIDTH = N_HEADS * DIM,
    WIDTH = Q_WIDTH + 2 * DIM, /* one KV head */
    MAX_TOKENS = 4 * PAGE_TOKENS,
    MAX_PAGES = MAX_TOKENS / PAGE_TOKENS,
    LAYER = 1,
    N_LAYERS = 3
};

/* The tokens of the sequences, from `first` on. */
struct input {
    uint32_t first, n;
    uint32_t positions[MAX_TOKENS]; /* of all tokens, [0] is of token 0 */
};

/* How many rows a step gives each sequence; 0 ends the list, DECODE is one row that decodes. */
enum { DECODE = -1 };
static const int at_once[] = {200, 0};
static const int in_pieces[] = {1, 50, 13, 1, 70, 65, 0};
static const int on_the_edge[] = {64, 64, 72, 0};
static const int then_decoded[] = {63, DECODE, DECODE, DECODE, 131, DECODE, DECODE, DECODE, 0};

static float random_float(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 33) / 1073741824.0f - 1.0f;
}

struct cache {
    struct kv_pool pool;
    uint32_t pages[N_SEQS][MAX_PAGES];
};

static struct cache cache_create(struct backend *be) {
    struct cache cache = {.pool = {.format = PAGE_F32,
                                   .n_pages = N_SEQS * MAX_PAGES,
                                   .n_kv_heads = 1,
                                   .head_dim = DIM,
                                   .page_bytes = 2 * PAGE_TOKENS * DIM * sizeof(float)}};
    const size_t bytes = cache.pool.n_pages * cache.pool.page_bytes;
    assert_int_equal(be->ops->alloc(be, bytes, &cache.pool.base, NULL), 0);
    memset(cache.pool.base, 0xff, bytes); /* NaN: a look at an unwritten slot shows */
    for (uint32_t i = 0; i < N_SEQS * MAX_PAGES; i++)
        cache.pages[i % N_SEQS][i / N_SEQS] = N_SEQS * MAX_PAGES - 1 - i;
    return cache;
}

/* Queries, keys and values that a token of a sequence has in every run. */
static void fill_row(float *row, uint32_t seq, uint32_t token) {
    uint64_t state = 1 + seq * MAX_TOKENS + token;
    for (uint32_t i = 0; i < WIDTH; i++) row[i] = random_float(&state);
}

/* One step: rows [done, done + n) of each sequence into `out`, [N_SEQS][MAX_TOKENS][Q_WIDTH]. */
static void run_step(struct backend *be, struct cache *cache, const struct input *input,
                     uint32_t done, uint32_t n, bool decode, float *out) {
    uint32_t positions[N_SEQS * MAX_TOKENS], tokens[N_SEQS * MAX_TOKENS] = {0};
    float *qkv = malloc(sizeof(float) * N_SEQS * n * WIDTH);
    float *rows = malloc(sizeof(float) * N_SEQS * n * Q_WIDTH);
    double inv_freq[N_FREQS];
    struct kv_view views[N_SEQS][N_LAYERS] = {0};
    struct step_seq seqs[N_SEQS];
    for (uint32_t i = 0; i < N_FREQS; i++) inv_freq[i] = pow(10000, -(double)i / N_FREQS);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        views[s][LAYER] = (struct kv_view){cache->pages[s], done + n, done};
        seqs[s] = (struct step_seq){.first_row = s * n, .n_rows = n, .layers = views[s]};
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t token = input->first + done + i;
            positions[s * n + i] = input->positions[token];
            fill_row(qkv + (s * n + i) * WIDTH, s, token);
        }
    }
    const struct step step = {.n_rows = N_SEQS * n,
                              .n_seqs = N_SEQS,
                              .n_decode = decode ? N_SEQS : 0,
                              .n_layers = N_LAYERS,
                              .tokens = tokens,
                              .positions = positions,
                              .seqs = seqs};
    const struct rope_append_args rope = {
        qkv, &cache->pool, inv_freq, 1, N_FREQS, LAYER, N_HEADS, 0, 0, 0, 0, NULL};
    const struct attn_args attn = {.q = qkv,
                                   .q_stride = WIDTH,
                                   .out = rows,
                                   .kv = &cache->pool,
                                   .layer = LAYER,
                                   .n_heads = N_HEADS,
                                   .scale = 0.25f};
    assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
    assert_int_equal(be->ops->rope_append(be, &rope, NULL), 0);
    assert_int_equal(be->ops->attn_decode(be, &attn, NULL), 0);
    assert_int_equal(be->ops->attn_prefill(be, &attn, NULL), 0);
    for (uint32_t s = 0; s < N_SEQS; s++)
        memcpy(out + (s * MAX_TOKENS + input->first + done) * Q_WIDTH, rows + s * n * Q_WIDTH,
               n * Q_WIDTH * sizeof(float));
    free(rows);
    free(qkv);
}

/* What attention makes of the input, [N_SEQS][MAX_TOKENS][Q_WIDTH]; zero where there is none. */
static float *attend(struct backend *be, const struct input *input, const int *steps) {
    struct cache cache = cache_create(be);
    float *out = calloc(N_SEQS * MAX_TOKENS * Q_WIDTH, sizeof(*out));
    uint32_t done = 0;
    for (; *steps; steps++) {
        const uint32_t n = *steps == DECODE ? 1 : (uint32_t)*steps;
        run_step(be, &cache, input, done, n, *steps == DECODE, out);
        done += n;
    }
    assert_int_equal(done, input->n);
    be->ops->free(be, cache.pool.base);
    return out;
}

static struct backend *create(enum fault fault) {
    struct backend *be = NULL;
    const struct cpu_config config = {.n_threads = 2};
    const struct step_limits limits = {
        .max_rows = N_SEQS * MAX_TOKENS, .max_seqs = N_SEQS, .n_layers = N_LAYERS};
    assert_int_equal(cpu_backend_create(&be, &config, NULL), 0);
    faulty_backend_plant(be, fault);
    assert_int_equal(be->ops->reserve(be, &limits, NULL), 0);
    return be;
}

static float *attend_on(enum fault fault, const struct input *input, const int *steps) {
    struct backend *be = create(fault);
    float *out = attend(be, input, steps);
    be->ops->destroy(be);
    return out;
}

/* Of the backend as it is, without any wrapping. */
static float *attend_soundly(const struct input *input, const int *steps) {
    struct backend *be = NULL;
    const struct cpu_config config = {.n_threads = 2};
    assert_int_equal(cpu_backend_create(&be, &config, NULL), 0);
    float *out = attend(be, input, steps);
    be->ops->destroy(be);
    return out;
}

static struct input tokens_from(uint32_t first, uint32_t n, uint32_t first_position) {
    struct input input = {.first = first, .n = n};
    for (uint32_t i = 0; i < MAX_TOKENS; i++) input.positions[i] = first_position + i;
    return input;
}

static bool rows_equal(const float *a, const float *b, uint32_t from, uint32_t to) {
    for (uint32_t s = 0; s < N_SEQS; s++) {
        const size_t at = (size_t)(s * MAX_TOKENS + from) * Q_WIDTH;
        if (memcmp(a + at, b + at, (size_t)(to - from) * Q_WIDTH * sizeof(float)) != 0)
            return false;
    }
    return true;
}

static const int *const all_steps[] = {at_once, in_pieces, on_the_edge, then_decoded};
enum { N_CUTS = sizeof(all_steps) / sizeof(*all_steps), N_TOKENS = 200 };

TEST(without_a_fault_nothing_changes) {
    const struct input input = tokens_from(0, N_TOKENS, FAULT_SHIFT_FROM - 100);
    for (int i = 0; i < N_CUTS; i++) {
        float *sound = attend_soundly(&input, all_steps[i]);
        float *wrapped = attend_on(FAULT_NONE, &input, all_steps[i]);
        assert_true(rows_equal(sound, wrapped, 0, N_TOKENS));
        free(sound);
        free(wrapped);
    }
}

TEST(the_first_page_is_seen_from_within_alone) {
    static const int rest_at_once[] = {N_TOKENS - PAGE_TOKENS, 0};
    const struct input input = tokens_from(0, N_TOKENS, 0);
    const struct input rest = tokens_from(PAGE_TOKENS, N_TOKENS - PAGE_TOKENS, 0);
    float *sound = attend_soundly(&input, at_once);
    float *without = attend_soundly(&rest, rest_at_once);
    for (int i = 0; i < N_CUTS; i++) {
        float *faulty = attend_on(FAULT_DROP_FIRST_PAGE, &input, all_steps[i]);
        assert_true(rows_equal(sound, faulty, 0, PAGE_TOKENS));
        assert_true(rows_equal(without, faulty, PAGE_TOKENS, N_TOKENS));
        for (uint32_t row = PAGE_TOKENS; row < N_TOKENS; row++)
            assert_false(rows_equal(sound, faulty, row, row + 1));
        free(faulty);
    }
    free(sound);
    free(without);
}

TEST(positions_are_shifted_from_4096_on) {
    const uint32_t n_before = 100;
    const struct input input = tokens_from(0, N_TOKENS, FAULT_SHIFT_FROM - n_before);
    struct input shifted = input;
    for (uint32_t i = n_before; i < N_TOKENS; i++) shifted.positions[i]++;
    float *sound = attend_soundly(&input, at_once);
    float *expected = attend_soundly(&shifted, at_once);
    for (int i = 0; i < N_CUTS; i++) {
        float *faulty = attend_on(FAULT_SHIFT_POSITIONS, &input, all_steps[i]);
        assert_true(rows_equal(expected, faulty, 0, N_TOKENS));
        assert_true(rows_equal(sound, faulty, 0, n_before));
        assert_false(rows_equal(sound, faulty, n_before, n_before + 1));
        free(faulty);
    }
    free(sound);
    free(expected);
}

TEST(faults_have_names) {
    enum fault fault = FAULT_NONE;
    struct error err = {0};
    assert_int_equal(fault_of_name(&fault, "drop-first-page", &err), 0);
    assert_int_equal(fault, FAULT_DROP_FIRST_PAGE);
    assert_int_equal(fault_of_name(&fault, "shift-positions", &err), 0);
    assert_int_equal(fault, FAULT_SHIFT_POSITIONS);
    assert_int_equal(fault_of_name(&fault, "none", &err), 0);
    assert_int_equal(fault, FAULT_NONE);
    assert_int_equal(fault_of_name(&fault, "drop-last-page", &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "drop-first-page"));
    assert_non_null(strstr(err.text, "shift-positions"));
}
