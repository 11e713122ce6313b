/* test_attention.c - RoPE, append and attention over scattered pages against sums in double;
 * decode, prefill and any cut of a prompt into steps must give the same bits. */
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "tests/cpu/cpu_test.h"

struct shape {
    uint32_t n_heads, n_kv, dim, n_tokens, window;
    float softcap;
    enum { NO_SINKS, ZERO_SINKS, SINKS } sinks;
};

/* One sequence: its inputs, its pages in a shuffled pool, and what attention should give. */
struct fixture {
    struct shape s;
    struct kv_pool kv;
    uint32_t *pages;
    uint32_t *positions;
    double *inv_freq;
    float *sink_logits; /* [n_heads] */
    struct weight sinks;
    float *qkv; /* [n_tokens, (n_heads + 2 n_kv) * dim], before RoPE */
};

static uint32_t row_width(const struct shape *s) {
    return (s->n_heads + 2 * s->n_kv) * s->dim;
}

static double sink_of(const struct fixture *f, uint32_t head) {
    return f->s.sinks == SINKS ? f->sink_logits[head] : f->s.sinks == ZERO_SINKS ? 0 : -INFINITY;
}

static void rotate(double *x, const double *inv_freq, uint32_t dim, uint32_t position) {
    for (uint32_t i = 0; i < dim / 2; i++) {
        double c = cos(position * inv_freq[i]), s = sin(position * inv_freq[i]), a = x[i],
               b = x[i + dim / 2];
        x[i] = a * c - b * s;
        x[i + dim / 2] = b * c + a * s;
    }
}

/* Returns what attention is by its definition, [n_tokens, n_heads * dim]. */
static double *oracle(const struct fixture *f) {
    const struct shape *s = &f->s;
    uint32_t width = row_width(s), dim = s->dim;
    double *all = malloc((size_t)s->n_tokens * width * sizeof(double)),
           *p = malloc(s->n_tokens * sizeof(double)),
           *expected = calloc((size_t)s->n_tokens * s->n_heads * dim, sizeof(double));
    for (size_t i = 0; i < (size_t)s->n_tokens * width; i++) all[i] = f->qkv[i];
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        for (uint32_t h = 0; h < s->n_heads + s->n_kv; h++)
            rotate(all + (size_t)t * width + h * dim, f->inv_freq, dim, t);
    }
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        for (uint32_t h = 0; h < s->n_heads; h++) {
            const double *q = all + (size_t)t * width + h * dim;
            uint32_t kv_at = (s->n_heads + h / (s->n_heads / s->n_kv)) * dim;
            double max = -INFINITY, sum = 0, *out = expected + ((size_t)t * s->n_heads + h) * dim;
            const uint32_t first = s->window > 0 && t >= s->window ? t + 1 - s->window : 0;
            for (uint32_t j = first; j <= t; j++) {
                p[j] = 0;
                for (uint32_t d = 0; d < dim; d++)
                    p[j] += q[d] * all[(size_t)j * width + kv_at + d];
                p[j] /= sqrt(dim);
                if (s->softcap > 0) p[j] = s->softcap * tanh(p[j] / s->softcap);
                max = fmax(max, p[j]);
            }
            max = fmax(max, sink_of(f, h));
            for (uint32_t j = first; j <= t; j++) sum += p[j] = exp(p[j] - max);
            sum += exp(sink_of(f, h) - max);
            for (uint32_t j = first; j <= t; j++) {
                for (uint32_t d = 0; d < dim; d++)
                    out[d] += p[j] / sum * all[(size_t)j * width + kv_at + s->n_kv * dim + d];
            }
        }
    }
    free(all);
    free(p);
    return expected;
}

static struct fixture fixture_make(struct backend *be, struct shape s, enum page_format format) {
    uint32_t n_pages = (s.n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS, pool = 2 * n_pages + 1;
    struct fixture f = {.s = s};
    f.kv = (struct kv_pool){
        .format = format, .n_pages = pool, .n_kv_heads = s.n_kv, .head_dim = s.dim};
    f.kv.page_bytes = kv_page_bytes(&f.kv);
    assert_int_equal(be->ops->alloc(be, pool * f.kv.page_bytes, &f.kv.base, NULL), 0);
    memset(f.kv.base, 0xff, pool * f.kv.page_bytes); /* NaN: reading an unwritten slot shows */
    f.pages = malloc(n_pages * sizeof(uint32_t));
    for (uint32_t i = 0; i < n_pages; i++) f.pages[i] = pool - 1 - 2 * i;
    f.positions = malloc(s.n_tokens * sizeof(uint32_t));
    for (uint32_t i = 0; i < s.n_tokens; i++) f.positions[i] = i;
    f.inv_freq = malloc(s.dim / 2 * sizeof(double));
    for (uint32_t i = 0; i < s.dim / 2; i++) f.inv_freq[i] = pow(10000, -2.0 * i / s.dim);
    f.qkv = random_floats((size_t)s.n_tokens * row_width(&s));
    for (size_t i = 0; i < (size_t)s.n_tokens * row_width(&s); i++)
        f.qkv[i] *= 3; /* sharp and flat rows */
    f.sink_logits = random_floats(s.n_heads);
    for (uint32_t i = 0; i < s.n_heads; i++) f.sink_logits[i] *= i % 3 == 2 ? 200 : 10;
    f.sinks = (struct weight){.data = s.sinks == SINKS ? f.sink_logits : NULL,
                              .format = {.element = ELEMENT_F32}};
    return f;
}

static void fixture_free(struct backend *be, struct fixture *f) {
    be->ops->free(be, f->kv.base);
    free(f->pages);
    free(f->positions);
    free(f->inv_freq);
    free(f->sink_logits);
    free(f->qkv);
}

/* Makes NaN of the pages before the first row's window, which others may have by now. */
static void expire_pages(struct fixture *f, uint32_t first) {
    const uint32_t n_seen = f->s.window - 1,
                   n = f->s.window > 0 && first > n_seen ? (first - n_seen) / PAGE_TOKENS : 0;
    for (uint32_t i = 0; i < n; i++)
        memset((char *)f->kv.base + f->pages[i] * f->kv.page_bytes, 0xff, f->kv.page_bytes);
}

/* Feeds tokens [first, first + n) as the one sequence of a step; what they append becomes that of
 * `instead`, a pool of the same shape, before it is attended to. */
static void feed_other(struct backend *be, struct fixture *f, uint32_t first, uint32_t n,
                       const struct kv_pool *instead, float *out) {
    uint32_t width = row_width(&f->s);
    expire_pages(f, first);
    struct kv_view view = {f->pages, first + n, first};
    struct step_seq seq = {.n_rows = n, .layers = &view};
    struct step step = {.n_rows = n,
                        .n_seqs = 1,
                        .n_decode = n == 1,
                        .positions = f->positions + first,
                        .windows = &f->s.window,
                        .seqs = &seq};
    float *qkv = malloc((size_t)n * width * sizeof(float));
    memcpy(qkv, f->qkv + (size_t)first * width, (size_t)n * width * sizeof(float));
    struct rope_append_args rope = {qkv, &f->kv, f->inv_freq, 1.0f, f->s.dim / 2, 0, f->s.n_heads,
                                    0,   0,      0,           0,    NULL};
    struct attn_args attn = {.q = qkv,
                             .q_stride = width,
                             .out = out,
                             .kv = &f->kv,
                             .n_heads = f->s.n_heads,
                             .scale = (float)(1 / sqrt(f->s.dim)),
                             .softcap = f->s.softcap,
                             .sinks = f->s.sinks ? &f->sinks : NULL};
    assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
    assert_int_equal(be->ops->rope_append(be, &rope, NULL), 0);
    if (instead) memcpy(f->kv.base, instead->base, instead->n_pages * instead->page_bytes);
    assert_int_equal(be->ops->attn_decode(be, &attn, NULL), 0);
    assert_int_equal(be->ops->attn_prefill(be, &attn, NULL), 0);
    assert_int_equal(be->ops->sync(be, NULL), 0);
    free(qkv);
}

static void feed(struct backend *be, struct fixture *f, uint32_t first, uint32_t n, float *out) {
    feed_other(be, f, first, n, NULL, out);
}

static void feed_in_chunks(struct backend *be, struct fixture *f, uint32_t chunk, float *out) {
    for (uint32_t first = 0; first < f->s.n_tokens; first += chunk) {
        uint32_t n = f->s.n_tokens - first < chunk ? f->s.n_tokens - first : chunk;
        feed(be, f, first, n, out + (size_t)first * f->s.n_heads * f->s.dim);
    }
}

static const struct shape shapes[] =
    {/* either side of a page and of a chunk of 512 */
     {1, 1, 8, 1, 0, 0, NO_SINKS},
     {2, 1, 16, 63, 0, 0, NO_SINKS},
     {6, 2, 64, 64, 0, 0, NO_SINKS},
     {6, 2, 64, 65, 0, 0, NO_SINKS},
     {4, 4, 128, 130, 0, 0, NO_SINKS},
     {8, 1, 20, 97, 0, 0, NO_SINKS},
     {6, 2, 64, 513, 0, 0, NO_SINKS},
     {3, 1, 64, 1030, 0, 0, NO_SINKS},
     {2, 2, 80, 512, 0, 0, NO_SINKS},
     /* windows within a page, of whole pages, of more than a chunk; one token is the smallest */
     {2, 1, 16, 63, 10, 0, NO_SINKS},
     {6, 2, 64, 513, 1, 0, NO_SINKS},
     {6, 2, 64, 700, 64, 0, NO_SINKS},
     {4, 4, 128, 1100, 100, 0, NO_SINKS},
     {3, 1, 64, 1230, 513, 0, NO_SINKS},
     /* scores are about 10 at most: caps that flatten, that bend, and beside windows */
     {2, 1, 16, 63, 0, 0.5f, NO_SINKS},
     {6, 2, 64, 700, 0, 4, NO_SINKS},
     {4, 4, 128, 600, 100, 6, NO_SINKS},
     /* sinks that take a little or nearly all; behind a softcap, which is not theirs */
     {2, 1, 16, 1, 0, 0, ZERO_SINKS},
     {6, 2, 64, 513, 0, 0, ZERO_SINKS},
     {6, 2, 64, 513, 0, 0, SINKS},
     {3, 1, 64, 1230, 513, 2, SINKS}};

static double tolerance_of(enum page_format format) {
    return format == PAGE_F32   ? 4e-6
           : format == PAGE_F16 ? 3e-3
                                : 3e-2; /* rounded K moves logits of size ~10 */
}

/* By shape: what a fixture is whose random numbers begin with the shape's.  It takes longer than
 * what is judged by it. */
static double *definitions[sizeof(shapes) / sizeof(shapes[0])];

static void attention_equals_the_definition_on(struct backend *be) {
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (enum page_format format = PAGE_F32; format <= PAGE_BF16; format++) {
            rng_state = 1 + i;
            struct fixture f = fixture_make(be, shapes[i], format);
            size_t n = (size_t)f.s.n_tokens * f.s.n_heads * f.s.dim;
            float *out = random_floats(n);
            feed_in_chunks(be, &f, f.s.n_tokens, out);
            if (!definitions[i]) definitions[i] = oracle(&f);
            assert_close(out, definitions[i], n, tolerance_of(format));
            fixture_free(be, &f);
            free(out);
        }
    }
}

TEST(attention_equals_the_definition) {
    for_each_backend(attention_equals_the_definition_on);
    for (size_t i = 0; i < sizeof(definitions) / sizeof(*definitions); i++) free(definitions[i]);
}

/* A key is a column of its page. */
static size_t first_element(const struct kv_pool *kv, uint32_t row, uint32_t at) {
    const uint32_t dim = kv->head_dim;
    return (size_t)row * PAGE_TOKENS * dim + (row < kv->n_kv_heads ? at : at * dim);
}

/* The row of an f32 page, in 8 bits, is what the other page has; then the f32 page has what they
 * stand for. */
static void check_row(const struct kv_pool *wide, const struct kv_pool *kv, uint32_t page,
                      uint32_t row, uint32_t at) {
    uint8_t codes[128];
    const uint32_t stride = row < kv->n_kv_heads ? PAGE_TOKENS : 1;
    const size_t first = first_element(kv, row, at);
    float *x = (float *)((char *)wide->base + page * wide->page_bytes) + first;
    const uint8_t *stored = (const uint8_t *)kv->base + page * kv->page_bytes,
                  scale = fp8_pack(codes, 1, (const char *)x, stride, kv->head_dim, ELEMENT_F32);
    assert_int_equal(stored[page_layout_of(kv).scales_at + (size_t)row * PAGE_TOKENS + at], scale);
    for (uint32_t d = 0; d < kv->head_dim; d++)
        assert_int_equal(stored[first + (size_t)d * stride], codes[d]);
    fp8_unpack((char *)x, stride, codes, scale, kv->head_dim, ELEMENT_F32);
}

/* Appended rows are rounded as a store's are, and attention is that over pages of what they stand
 * for, bit for bit: of the step's own rows, too. */
static void pages_in_8_bits_are_seen_as_they_are_stored_on(struct backend *be) {
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const uint64_t seed = rng_state;
        struct fixture wide = fixture_make(be, shapes[i], PAGE_F32);
        rng_state = seed;
        struct fixture f = fixture_make(be, shapes[i], PAGE_FP8);
        const uint32_t n_tokens = f.s.n_tokens;
        const size_t n = (size_t)n_tokens * f.s.n_heads * f.s.dim;
        float *expected = random_floats(n), *out = random_floats(n);
        feed(be, &wide, 0, n_tokens, expected);
        feed(be, &f, 0, n_tokens, out);
        for (uint32_t t = 0; t < n_tokens; t++)
            for (uint32_t row = 0; row < 2 * f.s.n_kv; row++)
                check_row(&wide.kv, &f.kv, f.pages[t / PAGE_TOKENS], row, t % PAGE_TOKENS);
        struct kv_pool copy = wide.kv;
        copy.base = malloc(copy.n_pages * copy.page_bytes);
        memcpy(copy.base, wide.kv.base, copy.n_pages * copy.page_bytes);
        feed_other(be, &wide, 0, n_tokens, &copy, expected);
        assert_memory_equal(out, expected, n * sizeof(float));
        free(copy.base);
        fixture_free(be, &wide);
        fixture_free(be, &f);
        free(expected);
        free(out);
    }
}

TEST(pages_in_8_bits_are_seen_as_they_are_stored) {
    for_each_backend(pages_in_8_bits_are_seen_as_they_are_stored_on);
}

static void any_cut_gives_the_same_bits_on(struct backend *be) {
    static const uint32_t chunks[] = {1, 7, 64, 100, 512};
    for (size_t i = 5; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct fixture f = fixture_make(be, shapes[i], i % 2 ? PAGE_FP8 : PAGE_F32);
        size_t n = (size_t)f.s.n_tokens * f.s.n_heads * f.s.dim;
        float *whole = random_floats(n), *cut = random_floats(n);
        feed_in_chunks(be, &f, f.s.n_tokens, whole);
        for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
            feed_in_chunks(be, &f, chunks[c], cut);
            assert_memory_equal(cut, whole, n * sizeof(float));
        }
        free(whole);
        free(cut);
        fixture_free(be, &f);
    }
}

TEST(any_cut_gives_the_same_bits) {
    for_each_backend(any_cut_gives_the_same_bits_on);
}

/* Three sequences in one step: two decode, one prefills; each must equal what it gets alone. */
static void a_batch_gives_the_same_bits_on(struct backend *be) {
    static const struct shape each[3] = {{6, 2, 64, 700, 0, 3, NO_SINKS},
                                         {6, 2, 64, 33, 0, 3, NO_SINKS},
                                         {6, 2, 64, 140, 0, 3, NO_SINKS}};
    static const uint32_t n_rows[3] = {1, 1, 90};
    uint32_t width = row_width(&each[0]), out_width = 6 * 64, row = 0;
    struct fixture f[3];
    float *alone = random_floats(92 * 384), *batch = random_floats(92 * 384),
          *qkv = malloc(92 * width * sizeof(float));
    uint32_t positions[92];
    struct kv_view views[3];
    struct step_seq seqs[3];
    struct kv_pool shared = {
        .format = PAGE_F32, .n_kv_heads = 2, .head_dim = 64, .page_bytes = 2 * 2 * 64 * 64 * 4};
    uint32_t *pages[3], next = 0;
    shared.n_pages = 64;
    assert_int_equal(be->ops->alloc(be, shared.n_pages * shared.page_bytes, &shared.base, NULL), 0);
    for (int i = 0; i < 3; i++) {
        f[i] = fixture_make(be, each[i], PAGE_F32);
        uint32_t first = each[i].n_tokens - n_rows[i];
        float *scrap = random_floats((size_t)first * out_width);
        feed(be, &f[i], 0, first, scrap);
        feed(be, &f[i], first, n_rows[i], alone + (size_t)row * out_width);
        free(scrap);
        uint32_t n_pages = (each[i].n_tokens + 63) / 64;
        pages[i] = malloc(n_pages * sizeof(uint32_t));
        for (uint32_t p = 0; p < n_pages; p++) {
            pages[i][p] = next++;
            memcpy((char *)shared.base + pages[i][p] * shared.page_bytes,
                   (char *)f[i].kv.base + f[i].pages[p] * shared.page_bytes, shared.page_bytes);
        }
        views[i] = (struct kv_view){pages[i], each[i].n_tokens, first};
        seqs[i] = (struct step_seq){.first_row = row, .n_rows = n_rows[i], .layers = &views[i]};
        memcpy(qkv + (size_t)row * width, f[i].qkv + (size_t)first * width,
               (size_t)n_rows[i] * width * sizeof(float));
        for (uint32_t t = 0; t < n_rows[i]; t++) positions[row++] = first + t;
    }
    struct step step = {
        .n_rows = 92, .n_seqs = 3, .n_decode = 2, .positions = positions, .seqs = seqs};
    struct rope_append_args rope = {qkv, &shared, f[0].inv_freq, 1.0f, 32, 0, 6, 0, 0, 0, 0, NULL};
    struct attn_args attn = {.q = qkv,
                             .q_stride = width,
                             .out = batch,
                             .kv = &shared,
                             .n_heads = 6,
                             .scale = 0.125f,
                             .softcap = each[0].softcap};
    assert_int_equal(be->ops->step_begin(be, &step, NULL), 0);
    assert_int_equal(be->ops->rope_append(be, &rope, NULL), 0);
    assert_int_equal(be->ops->attn_decode(be, &attn, NULL), 0);
    assert_int_equal(be->ops->attn_prefill(be, &attn, NULL), 0);
    assert_memory_equal(batch, alone, 92 * 384 * sizeof(float));
    for (int i = 0; i < 3; i++) {
        free(pages[i]);
        fixture_free(be, &f[i]);
    }
    be->ops->free(be, shared.base);
    free(alone);
    free(batch);
    free(qkv);
}

TEST(a_batch_gives_the_same_bits) {
    for_each_backend(a_batch_gives_the_same_bits_on);
}

TEST(copied_pages_are_equal) {
    struct backend *be = NULL;
    assert_int_equal(cpu_backend_create(&be, &(struct cpu_config){.n_threads = 1}, NULL), 0);
    struct kv_pool kv = {
        .n_pages = 4, .n_kv_heads = 1, .head_dim = 8, .page_bytes = 2 * 64 * 8 * 4};
    assert_int_equal(be->ops->alloc(be, 4 * kv.page_bytes, &kv.base, NULL), 0);
    char *base = kv.base;
    for (size_t i = 0; i < 4 * kv.page_bytes; i++) base[i] = (char)random_u32();
    uint32_t from[] = {3, 0}, to[] = {1, 2};
    assert_int_equal(be->ops->copy_pages(be, &kv, from, to, 2, NULL), 0);
    assert_memory_equal(base + kv.page_bytes, base + 3 * kv.page_bytes, kv.page_bytes);
    assert_memory_equal(base + 2 * kv.page_bytes, base, kv.page_bytes);
    be->ops->free(be, kv.base);
    be->ops->destroy(be);
}
