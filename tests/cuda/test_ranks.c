/* test_ranks.c - what CUDA ranks exchange, by definition: sums, columns, sampled tokens; and what
 * becomes of ranks that wait in vain.  Parts are added in f32 in the order of the ranks, and
 * rounded once.
 *
 * Usage: test_cuda_ranks [DEVICES [--small]]: devices with commas between them, for the ranks in
 * turn.  Without them all ranks have device 0. */
#include <pthread.h>

#include "cuda/host/internal.h"
#include "cuda/ranks/mailbox.h"
#include "cuda/ranks/ranks.h"
#include "engine/base/clock.h"
#include "engine/base/count.h"
#include "engine/device/collective.h"
#include "engine/device/exchange.h"
#include "tests/cuda/cuda_test.h"

enum { MOST_RANKS = 4, N_SUMS = 20, N_REPLAYS = 5, MOST_DEVICES = 8 };

static struct backend *ranks; /* that of rank 0 */
static uint32_t n_ranks, devices[MOST_DEVICES], n_devices = 1;

static bool through_host;

/* Opens n ranks.  hosts_apart: one thread launches for all of them. */
static void open_ranks(uint32_t n, uint32_t limit_ms, bool hosts_apart) {
    const struct cuda_config config = {0};
    const struct rank_options options = {limit_ms, through_host, hosts_apart};
    uint32_t own[MOST_RANKS];
    struct error err = {0};
    n_ranks = n;
    for (uint32_t i = 0; i < n; i++) own[i] = devices[i % n_devices];
    must(cuda_ranks_create(&ranks, &config, own, n, &options, &err), &err);
}

static void close_ranks(void) {
    ranks->ops->destroy(ranks);
}

/* What a rank computes: sums of its part, again and again, each from the last one's result. */
struct worker {
    struct backend *be;
    float *part, *x; /* [n], of bf16 values */
    void *memory[3]; /* the device's: part, x, columns */
    size_t n;
    float *got;     /* [n] */
    float *columns; /* f32 [n_rows, width] on the host: its own columns are set */
    struct gather_columns_args gather;
    bool accumulate;
    struct error err;
    int rc;
};

static void *work(void *arg) {
    struct worker *w = arg;
    const struct backend_ops *ops = w->be->ops;
    const size_t bytes = w->n * 2, f32_bytes = (size_t)w->gather.n_rows * w->gather.width * 4;
    void *host_part = converted(w->part, w->n, ELEMENT_BF16),
         *host_x = converted(w->x, w->n, ELEMENT_BF16), *part, *x, *columns;
    w->rc = ops->alloc(w->be, bytes, &w->memory[0], &w->err);
    if (!w->rc) w->rc = ops->alloc(w->be, bytes, &w->memory[1], &w->err);
    if (!w->rc) w->rc = ops->alloc(w->be, f32_bytes, &w->memory[2], &w->err);
    part = w->memory[0], x = w->memory[1], columns = w->memory[2];
    if (!w->rc) w->rc = ops->upload(w->be, x, host_x, bytes, &w->err);
    if (!w->rc) w->rc = ops->upload(w->be, columns, w->columns, f32_bytes, &w->err);
    for (int i = 0; i < N_SUMS && !w->rc; i++) {
        const struct sum_args args = {part, x, w->n, w->accumulate};
        /* The part is written anew each time: a sum that reads it too late would show. */
        w->rc = ops->upload(w->be, part, host_part, bytes, &w->err);
        if (!w->rc) w->rc = ops->collective->sum(w->be, &args, &w->err);
    }
    w->gather.x = columns;
    if (!w->rc) w->rc = ops->collective->gather_columns(w->be, &w->gather, &w->err);
    void *out = malloc(bytes);
    if (!w->rc) w->rc = ops->download(w->be, out, x, bytes, &w->err);
    if (!w->rc) w->rc = ops->download(w->be, w->columns, columns, f32_bytes, &w->err);
    if (!w->rc) w->rc = ops->sync(w->be, &w->err);
    for (size_t i = 0; i < w->n; i++) w->got[i] = load_as_f32(out, i, ELEMENT_BF16);
    free(host_part), free(host_x), free(out);
    return NULL;
}

static float rounded(float x) {
    uint16_t h;
    store_f32_as(&h, 0, x, ELEMENT_BF16);
    return load_as_f32(&h, 0, ELEMENT_BF16);
}

static void check(size_t n, bool accumulate, uint32_t n_rows, uint32_t width) {
    struct worker workers[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    float *x = random_bf16(n, 1);
    for (uint32_t r = 0; r < n_ranks; r++) {
        const uint32_t first = r * width / n_ranks, end = (r + 1) * width / n_ranks;
        workers[r] = (struct worker){
            .be = ranks->ranks[r],
            .part = random_bf16(n, 1),
            .x = x,
            .n = n,
            .got = random_floats(n),
            .columns = random_floats((size_t)n_rows * width),
            .gather = {.n_rows = n_rows, .width = width, .first = first, .n_cols = end - first},
            .accumulate = accumulate};
    }
    float *own[MOST_RANKS];
    for (uint32_t r = 0; r < n_ranks; r++) {
        own[r] = malloc((size_t)n_rows * width * sizeof(float));
        memcpy(own[r], workers[r].columns, (size_t)n_rows * width * sizeof(float));
    }
    for (uint32_t r = 0; r < n_ranks; r++) pthread_create(&threads[r], NULL, work, &workers[r]);
    for (uint32_t r = 0; r < n_ranks; r++) pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < n_ranks; r++) must(workers[r].rc, &workers[r].err);
    /* To free memory is to wait for the device, and so for ranks that wait. */
    for (uint32_t r = 0; r < n_ranks; r++)
        for (int i = 0; i < 3; i++) workers[r].be->ops->free(workers[r].be, workers[r].memory[i]);
    for (size_t i = 0; i < n; i++) {
        float expected = x[i];
        for (int k = 0; k < N_SUMS; k++) {
            float sum = 0;
            for (uint32_t r = 0; r < n_ranks; r++) sum += workers[r].part[i];
            expected = rounded(sum + (accumulate ? expected : 0));
        }
        for (uint32_t r = 0; r < n_ranks; r++) assert_true(workers[r].got[i] == expected);
    }
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t c = 0; c < width; c++) {
            uint32_t r = 0;
            while (c >= (r + 1) * width / n_ranks) r++;
            assert_true(workers[0].columns[row * width + c] == own[r][row * width + c]);
        }
    for (uint32_t r = 0; r < n_ranks; r++) {
        free(own[r]), free(workers[r].part), free(workers[r].got), free(workers[r].columns);
    }
    free(x);
}

static void check_sizes(uint32_t n) {
    /* The last ones are of several rounds of a block, and not of whole ones. */
    static const size_t sizes[] = {1, 7, 8, 4096, 5003, 1 << 18, (1 << 21) + 24, (1 << 22) + 5};
    const size_t n_sizes = small ? 5 : COUNT(sizes);
    open_ranks(n, 0, false);
    for (size_t i = 0; i < n_sizes; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check(sizes[i], accumulate, 1 + (uint32_t)i * 5, 128 + (uint32_t)i * 37);
    close_ranks();
}

static void sums_of_two_ranks_are_those_of_the_definition(void **state) {
    (void)state;
    check_sizes(2);
}

static void sums_of_three_ranks_are_those_of_the_definition(void **state) {
    (void)state;
    check_sizes(3);
}

static void sums_of_four_ranks_are_those_of_the_definition(void **state) {
    (void)state;
    check_sizes(4);
}

/* ---- CUDA graphs ---- */

static void alloc_each(size_t bytes, void *out[MOST_RANKS]) {
    struct error err = {0};
    for (uint32_t r = 0; r < n_ranks; r++)
        must(ranks->ranks[r]->ops->alloc(ranks->ranks[r], bytes, &out[r], &err), &err);
}

static void free_each(void *memory[MOST_RANKS]) {
    for (uint32_t r = 0; r < n_ranks; r++) ranks->ranks[r]->ops->free(ranks->ranks[r], memory[r]);
}

static void sync_each(void) {
    struct error err = {0};
    for (uint32_t r = 0; r < n_ranks; r++)
        must(ranks->ranks[r]->ops->sync(ranks->ranks[r], &err), &err);
}

/* Captures sums that add to x: one of all elements, two of some. */
static cudaGraphExec_t capture(struct backend *be, void *part, void *x, size_t n) {
    cudaStream_t stream = CUDA_BACKEND(be)->stream;
    const struct sum_args all = {part, x, n, true}, some = {part, x, 1000, true};
    struct error err = {0};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaSetDevice(CUDA_BACKEND(be)->device);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), 0);
    must(be->ops->collective->sum(be, &all, &err), &err);
    must(be->ops->collective->sum(be, &some, &err), &err);
    must(be->ops->collective->sum(be, &some, &err), &err);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), 0);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
    cudaGraphDestroy(graph);
    return exec;
}

static void a_captured_sum_may_be_launched_again(void **state) {
    (void)state;
    const size_t n = small ? 9000 : 200000, n_some = 1000;
    void *part[MOST_RANKS], *x[MOST_RANKS];
    float *values[MOST_RANKS], *expected = random_bf16(n, 0);
    cudaGraphExec_t graphs[MOST_RANKS];
    struct error err = {0};
    open_ranks(3, 0, true);
    alloc_each(n * 2, part);
    alloc_each(n * 2, x);
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct backend *be = ranks->ranks[r];
        values[r] = random_bf16(n, 1);
        void *host = converted(values[r], n, ELEMENT_BF16);
        must(be->ops->upload(be, part[r], host, n * 2, &err), &err);
        must(be->ops->sync(be, &err), &err);
        free(host);
        graphs[r] = capture(be, part[r], x[r], n);
    }
    for (int replay = 0; replay < N_REPLAYS; replay++)
        for (uint32_t r = 0; r < n_ranks; r++) {
            cudaSetDevice(CUDA_BACKEND(ranks->ranks[r])->device);
            assert_int_equal(cudaGraphLaunch(graphs[r], CUDA_BACKEND(ranks->ranks[r])->stream), 0);
        }
    sync_each();
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < n_ranks; r++) sum += values[r][i];
        for (int k = 0; k < N_REPLAYS * (i < n_some ? 3 : 1); k++)
            expected[i] = rounded(sum + expected[i]);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct backend *be = ranks->ranks[r];
        void *host = malloc(n * 2);
        must(be->ops->download(be, host, x[r], n * 2, &err), &err);
        must(be->ops->sync(be, &err), &err);
        for (size_t i = 0; i < n; i++)
            assert_true(load_as_f32(host, i, ELEMENT_BF16) == expected[i]);
        free(host), free(values[r]), cudaGraphExecDestroy(graphs[r]);
    }
    free_each(part), free_each(x), free(expected);
    close_ranks();
}

/* ---- norms ---- */

/* Norms rows of which each rank has a part, in place, and then again into other memory. */
static void check_norms(uint32_t n_rows, uint32_t dim, uint32_t stride) {
    const size_t n = (size_t)n_rows * stride;
    const float eps = 1e-5f;
    void *x[MOST_RANKS], *out[MOST_RANKS], *weight[MOST_RANKS];
    float *values[MOST_RANKS], *weights[MOST_RANKS];
    struct error err = {0};
    alloc_each(n * 2, x);
    alloc_each(n * 2, out);
    alloc_each(dim * 4, weight);
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct backend *be = ranks->ranks[r];
        values[r] = random_bf16(n, 1 + (float)r);
        weights[r] = random_floats(dim);
        void *host = converted(values[r], n, ELEMENT_BF16);
        must(be->ops->upload(be, x[r], host, n * 2, &err), &err);
        must(be->ops->upload(be, weight[r], weights[r], dim * 4, &err), &err);
        must(be->ops->sync(be, &err), &err);
        free(host);
    }
    for (int time = 0; time < 3; time++)
        for (uint32_t r = 0; r < n_ranks; r++) {
            struct backend *be = ranks->ranks[r];
            const struct weight w = {
                .data = weight[r], .format = {.element = ELEMENT_F32}, .rows = 1, .cols = dim};
            const struct rmsnorm_args args = {.x = x[r],
                                              .weight = &w,
                                              .out = time < 2 ? out[r] : x[r],
                                              .n_rows = n_rows,
                                              .dim = dim,
                                              .x_stride = stride,
                                              .out_stride = stride,
                                              .eps = eps,
                                              .n_heads = 1};
            must(be->ops->collective->rmsnorm(be, &args, &err), &err);
        }
    sync_each();
    float *expected = random_floats(n), *got = random_floats(n);
    void *host = malloc(n * 2);
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct backend *be = ranks->ranks[r];
        memcpy(expected, values[r], n * sizeof(*expected));
        for (uint32_t row = 0; row < n_rows; row++) {
            double sum = 0;
            for (uint32_t k = 0; k < n_ranks; k++)
                for (uint32_t i = 0; i < dim; i++)
                    sum += pow(values[k][(size_t)row * stride + i], 2);
            for (uint32_t i = 0; i < dim; i++)
                expected[(size_t)row * stride + i] *=
                    weights[r][i] / (float)sqrt(sum / (dim * n_ranks) + eps);
        }
        must(be->ops->download(be, host, x[r], n * 2, &err), &err);
        must(be->ops->sync(be, &err), &err);
        for (size_t i = 0; i < n; i++) got[i] = load_as_f32(host, i, ELEMENT_BF16);
        assert_near(got, expected, n, BF16_TOLERANCE, "a norm over ranks");
    }
    for (uint32_t r = 0; r < n_ranks; r++) free(values[r]), free(weights[r]);
    free(host), free(expected), free(got);
    free_each(x), free_each(out), free_each(weight);
}

static void norms_of_parts_are_those_of_the_whole(void **state) {
    (void)state;
    open_ranks(3, 0, true);
    check_norms(1, 40, 40);
    check_norms(33, 96, 200);
    if (!small) check_norms(9000, 520, 600); /* more rows than a launch takes */
    close_ranks();
}

/* ---- rows for columns ---- */

/* Rows of q, k and v: the columns of a rank, and how many ranks have the same k and v. */
struct exchanged {
    uint32_t n_rows, q, k, n_sharing;
    bool is_split;
};

/* What a rank has: rows of all columns, of its own, and of q of all ranks. */
enum { ALL, OWN, BACK, N_BUFFERS };

static uint32_t all_columns(const struct exchanged *e) {
    return n_ranks * e->q + 2 * (n_ranks / e->n_sharing) * e->k;
}

/* Submits a rank's side: rows for columns, and q back. */
static void submit_exchanges(uint32_t rank, const struct exchanged *e, void *memory[N_BUFFERS]) {
    struct backend *be = ranks->ranks[rank];
    const uint32_t all_q = n_ranks * e->q, all_k = n_ranks / e->n_sharing * e->k;
    const struct rank_rows rows = rank_rows_of(e->n_rows, rank, n_ranks);
    const size_t skipped = e->is_split ? (size_t)rows.first * all_columns(e) : 0;
    struct error err = {0};
    const struct exchange_args there = {.from = (uint16_t *)memory[ALL] + skipped,
                                        .to = memory[OWN],
                                        .from_stride = all_columns(e),
                                        .to_stride = e->q + 2 * e->k,
                                        .n_rows = e->n_rows,
                                        .from_own_rows = e->is_split,
                                        .to_own_columns = true,
                                        .n_parts = 3,
                                        .parts = {{0, 0, e->q, 1},
                                                  {all_q, e->q, e->k, e->n_sharing},
                                                  {all_q + all_k, e->q + e->k, e->k,
                                                   e->n_sharing}}},
                               back = {.from = memory[OWN],
                                       .to = memory[BACK],
                                       .from_stride = e->q + 2 * e->k,
                                       .to_stride = all_q,
                                       .n_rows = e->n_rows,
                                       .to_own_rows = e->is_split,
                                       .n_parts = 1,
                                       .parts = {{0, 0, e->q, 1}}};
    must(be->ops->collective->exchange(be, &there, &err), &err);
    must(be->ops->collective->exchange(be, &back, &err), &err);
}

/* Submits a rank's side of rows that all ranks get, where they are. */
static void submit_all_rows(uint32_t rank, const struct exchanged *e, void *x) {
    struct backend *be = ranks->ranks[rank];
    const uint32_t width = all_columns(e);
    struct error err = {0};
    const struct exchange_args args = {
        .from = (uint16_t *)x + (size_t)rank_rows_of(e->n_rows, rank, n_ranks).first * width,
        .to = x,
        .from_stride = width,
        .to_stride = width,
        .n_rows = e->n_rows,
        .from_own_rows = true,
        .n_parts = 1,
        .parts = {{0, 0, width, n_ranks}}};
    must(be->ops->collective->exchange(be, &args, &err), &err);
}

/* Reads a rank's memory as 16-bit words. */
static uint16_t *read_words(uint32_t rank, void *memory, size_t n) {
    struct backend *be = ranks->ranks[rank];
    struct error err = {0};
    uint16_t *out = malloc(n * sizeof(*out));
    must(be->ops->download(be, out, memory, n * sizeof(*out), &err), &err);
    must(be->ops->sync(be, &err), &err);
    return out;
}

static void assert_exchanged(uint32_t rank, const struct exchanged *e, const uint16_t *whole,
                             void *memory[N_BUFFERS]) {
    const uint32_t all = all_columns(e), own = e->q + 2 * e->k, all_q = n_ranks * e->q,
                   shared = rank / e->n_sharing, all_k = n_ranks / e->n_sharing * e->k;
    const struct rank_rows part = rank_rows_of(e->n_rows, rank, n_ranks),
                           rows = e->is_split ? part : (struct rank_rows){0, e->n_rows};
    uint16_t *got = read_words(rank, memory[OWN], (size_t)e->n_rows * own),
             *back = read_words(rank, memory[BACK], (size_t)rows.n * all_q);
    for (uint32_t row = 0; row < e->n_rows; row++) {
        const uint16_t *from = whole + (size_t)row * all, *to = got + (size_t)row * own;
        assert_memory_equal(to, from + rank * e->q, e->q * 2);
        assert_memory_equal(to + e->q, from + all_q + shared * e->k, e->k * 2);
        assert_memory_equal(to + e->q + e->k, from + all_q + all_k + shared * e->k, e->k * 2);
    }
    for (uint32_t row = 0; row < rows.n; row++)
        assert_memory_equal(back + (size_t)row * all_q, whole + (size_t)(rows.first + row) * all,
                            all_q * 2);
    free(got), free(back);
}

/* Gives a rank its rows of `whole`; the others are those of another rank, or of none. */
static void give_rows(uint32_t rank, const struct exchanged *e, const uint16_t *whole, void *x) {
    struct backend *be = ranks->ranks[rank];
    const size_t width = all_columns(e);
    const struct rank_rows part = rank_rows_of(e->n_rows, rank, n_ranks),
                           rows = e->is_split ? part : (struct rank_rows){0, e->n_rows};
    struct error err = {0};
    must(be->ops->upload(be, (uint16_t *)x + rows.first * width, whole + rows.first * width,
                         rows.n * width * 2, &err),
         &err);
    must(be->ops->sync(be, &err), &err);
}

static void check_exchange(struct exchanged e) {
    const size_t width = all_columns(&e), n = e.n_rows * width;
    void *memory[N_BUFFERS][MOST_RANKS];
    float *values = random_bf16(n, 1);
    uint16_t *whole = converted(values, n, ELEMENT_BF16);
    for (int i = 0; i < N_BUFFERS; i++) alloc_each(n * 2, memory[i]);
    for (uint32_t r = 0; r < n_ranks; r++) give_rows(r, &e, whole, memory[ALL][r]);
    for (int time = 0; time < 3; time++)
        for (uint32_t r = 0; r < n_ranks; r++) {
            void *own[] = {memory[ALL][r], memory[OWN][r], memory[BACK][r]};
            submit_exchanges(r, &e, own);
        }
    for (uint32_t r = 0; r < n_ranks && e.is_split; r++) submit_all_rows(r, &e, memory[ALL][r]);
    sync_each();
    for (uint32_t r = 0; r < n_ranks; r++) {
        void *own[] = {memory[ALL][r], memory[OWN][r], memory[BACK][r]};
        assert_exchanged(r, &e, whole, own);
        uint16_t *all = read_words(r, memory[ALL][r], n);
        assert_memory_equal(all, whole, n * 2);
        free(all);
    }
    for (int i = 0; i < N_BUFFERS; i++) free_each(memory[i]);
    free(values), free(whole);
}

static void rows_are_exchanged_for_columns(void **state) {
    (void)state;
    for (uint32_t n = 2; n <= 4; n++) {
        open_ranks(n, 0, true);
        for (int is_split = 0; is_split < 2; is_split++) {
            check_exchange((struct exchanged){5, 16, 8, 1, is_split});
            check_exchange((struct exchanged){67, 12, 3, 1, is_split}); /* no whole vectors */
            check_exchange((struct exchanged){131, 64, 16, n % 2 ? n : 2, is_split});
            if (!small) check_exchange((struct exchanged){3001, 512, 128, n, is_split});
        }
        close_ranks();
    }
}

/* ---- sampled tokens ---- */

static void all_ranks_get_the_tokens_of_rank_0(void **state) {
    (void)state;
    enum { N = 700, N_TIMES = 6 };
    struct error err = {0};
    int32_t tokens[N], got[N];
    open_ranks(4, 0, true);
    for (int time = 0; time < N_TIMES; time++) {
        for (int i = 0; i < N; i++) tokens[i] = time * 1000 + i;
        must(ranks->ops->upload(ranks, CUDA_BACKEND(ranks)->sampled, tokens, sizeof(tokens), &err),
             &err);
        for (uint32_t r = 0; r < n_ranks; r++) {
            struct backend *be = ranks->ranks[r];
            CUDA_BACKEND(be)->n_sampled = r == 0 ? N : 0;
            must(be->ops->collective->share_sampled(be, N, &err), &err);
            assert_int_equal(CUDA_BACKEND(be)->n_sampled, N);
        }
        for (uint32_t r = 0; r < n_ranks; r++) {
            struct backend *be = ranks->ranks[r];
            must(be->ops->download(be, got, CUDA_BACKEND(be)->sampled, sizeof(got), &err), &err);
            must(be->ops->sync(be, &err), &err);
            assert_memory_equal(got, tokens, sizeof(got));
        }
    }
    close_ranks();
}

/* ---- ranks that do not come ---- */

static void submit_sum(uint32_t rank, void *part, void *x, size_t n) {
    struct backend *be = ranks->ranks[rank];
    const struct sum_args args = {part, x, n, false};
    struct error err = {0};
    must(be->ops->collective->sum(be, &args, &err), &err);
}

/* Lets two ranks of three sum; says what the first one reports, and that it does so in time. */
static struct error wait_in_vain(void *part[MOST_RANKS], void *x[MOST_RANKS], size_t n,
                                 bool interrupts) {
    const double begun_s = clock_seconds();
    struct error err = {0};
    submit_sum(0, part[0], x[0], n);
    submit_sum(1, part[1], x[1], n);
    if (interrupts) ranks->ops->collective->interrupt(ranks->ranks[2]);
    assert_true(ranks->ops->sync(ranks, &err) != 0);
    assert_true(clock_seconds() - begun_s < 10);
    return err;
}

static void check_missing_rank(size_t n) {
    void *part[MOST_RANKS], *x[MOST_RANKS];
    open_ranks(3, 200, true);
    alloc_each(n * 2, part);
    alloc_each(n * 2, x);
    sync_each();
    struct error err = wait_in_vain(part, x, n, false);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "for rank 2"));
    /* What is submitted later does not wait again. */
    const double begun_s = clock_seconds();
    for (int i = 0; i < 50; i++) submit_sum(0, part[0], x[0], n);
    assert_true(ranks->ops->sync(ranks, &err) != 0);
    assert_true(clock_seconds() - begun_s < 5);
    ranks->ops->collective->resume(ranks);
    for (uint32_t r = 0; r < n_ranks; r++) submit_sum(r, part[r], x[r], n);
    sync_each();
    err = wait_in_vain(part, x, n, true);
    assert_int_equal(err.code, ERR_STOPPED);
    free_each(part), free_each(x);
    close_ranks();
}

static void a_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    check_missing_rank(4096);
    check_missing_rank(400000);
}

static void a_probe_that_is_not_answered_ends(void **state) {
    (void)state;
    struct rank_links links = {.limit_ns = 100000000, .n = 2};
    struct rank_report *report;
    assert_int_equal(cudaHostAlloc((void **)&report, sizeof(*report), cudaHostAllocMapped), 0);
    *report = (struct rank_report){0};
    links.report = report;
    for (int i = 0; i < 2; i++) links.boxes[i] = gpu_alloc(mailbox_bytes(2, false));
    const struct launch launch = launch_on(CUDA_BACKEND(gpu)->stream, false);
    assert_int_equal(launch_probe(&links, 1, 7, &report->sums[0], launch), 0);
    assert_int_equal(cudaStreamSynchronize(CUDA_BACKEND(gpu)->stream), 0);
    assert_int_equal(report->sums[0], 0);
    assert_true(report->word == rank_report_word(WAIT_PROBE, 0, 1));
    for (int i = 0; i < 2; i++) gpu_free(links.boxes[i]);
    cudaFreeHost(report);
}

static void ranks_work_together_through_the_host(void **state) {
    through_host = true;
    sums_of_two_ranks_are_those_of_the_definition(state);
    sums_of_three_ranks_are_those_of_the_definition(state);
    a_captured_sum_may_be_launched_again(state);
    norms_of_parts_are_those_of_the_whole(state);
    rows_are_exchanged_for_columns(state);
    all_ranks_get_the_tokens_of_rank_0(state);
    a_rank_that_does_not_come_is_named(state);
    through_host = false;
}

/* Reads the devices of argv[1]. */
static void read_devices(const char *at) {
    for (n_devices = 0; n_devices < MOST_DEVICES; at++) {
        char *end;
        devices[n_devices++] = (uint32_t)strtoul(at, &end, 10);
        if (*(at = end) != ',') break;
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_two_ranks_are_those_of_the_definition),
        cmocka_unit_test(sums_of_three_ranks_are_those_of_the_definition),
        cmocka_unit_test(sums_of_four_ranks_are_those_of_the_definition),
        cmocka_unit_test(a_captured_sum_may_be_launched_again),
        cmocka_unit_test(norms_of_parts_are_those_of_the_whole),
        cmocka_unit_test(rows_are_exchanged_for_columns),
        cmocka_unit_test(all_ranks_get_the_tokens_of_rank_0),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(ranks_work_together_through_the_host),
        cmocka_unit_test(a_probe_that_is_not_answered_ends)};
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* as ranks want it; the backends come first */
    if (argc > 1 && argv[1][0] != '-') {
        read_devices(argv[1]);
        argc--, argv++;
    }
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
