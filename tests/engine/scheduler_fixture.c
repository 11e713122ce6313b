/* scheduler_fixture.c - see scheduler_fixture.h. */
#include "tests/engine/scheduler_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/sample.h"
#include "engine/device/select.h"
#include "engine/device/step.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/state_cache.h"
#include "tests/engine/fake_select.h"
#include "tests/engine/fake_tokenizer.h"
#include "tests/test.h"

bool run_ahead, repeats;
struct device device;
double clock_s;

static const uint32_t eos[] = {FAKE_EOS};

static void inflight_fini(struct inflight_step *inflight_step) {
    free(inflight_step->results);
    free(inflight_step->totals);
    free(inflight_step->selected);
    free(inflight_step->pages.pages);
    free(inflight_step->blocks.pages);
}

static int fake_download(struct backend *be, void *host, const void *from, size_t bytes,
                         struct error *err) {
    (void)be;
    if (device.fails) return error_set(err, ERR_DEVICE, "the cable is loose");
    fake_store_finish(); /* submitted before */
    memcpy(host, from, bytes);
    device.n_downloads++;
    return 0;
}

static int fake_upload(struct backend *be, void *to, const void *host, size_t bytes,
                       struct error *err) {
    (void)be, (void)err;
    fake_store_finish();
    memcpy(to, host, bytes);
    device.n_uploads++;
    return 0;
}

static int fake_copy_pages(struct backend *be, const struct kv_pool *kv, const uint32_t *from,
                           const uint32_t *to, uint32_t n, struct error *err) {
    (void)be, (void)err;
    struct page *pages = kv->base;
    for (uint32_t i = 0; i < n; i++) pages[to[i]] = pages[from[i]];
    return 0;
}

struct kept {
    uint32_t position, cell, slot;
};

static int by_position(const void *a, const void *b) {
    const struct kept *left = a, *right = b;
    return (left->position > right->position) - (left->position < right->position);
}

static void order_layer(struct page *pages, const struct kv_view *layer) {
    static struct kept kept[1024];
    struct page *first = &pages[layer->pages[0]];
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < layer->n_slots; slot++) {
        const struct page *page = &pages[layer->pages[slot / PAGE_TOKENS]];
        if (slot != first->free_slot)
            kept[n++] = (struct kept){page->positions[slot % PAGE_TOKENS],
                                      page->cells[slot % PAGE_TOKENS], slot};
    }
    assert_int_equal(n, layer->n_slots - 1);
    qsort(kept, n, sizeof(*kept), by_position);
    for (uint32_t i = 0; i < n; i++) {
        struct page *page = &pages[layer->pages[i / PAGE_TOKENS]];
        page->positions[i % PAGE_TOKENS] = kept[i].position;
        page->cells[i % PAGE_TOKENS] = kept[i].cell;
    }
    first->free_slot = n;
}

/* The first `capacity` slots, and no free one, in the order of the text. */
static int fake_order(struct backend *be, const struct kv_pool *kv, const struct kv_view *layers,
                      uint32_t n_layers, struct error *err) {
    (void)be, (void)err;
    for (uint32_t l = 0; l < n_layers; l++) order_layer(kv->base, &layers[l]);
    return 0;
}

static int fake_sync(struct backend *be, struct error *err) {
    (void)be, (void)err;
    fake_store_finish();
    return 0;
}

static const struct host_pool_ops fake_host_pool = {.offload = fake_offload_pages,
                                                    .reload = fake_reload_pages};
static const struct evict_ops fake_evict = {.order = fake_order};
static const struct backend_ops fake_ops = {.download = fake_download,
                                            .upload = fake_upload,
                                            .copy_pages = fake_copy_pages,
                                            .host_pool = &fake_host_pool,
                                            .evict = &fake_evict,
                                            .sync = fake_sync};
static struct backend fake_backend = {.ops = &fake_ops};

static double fake_now_s(void) {
    return clock_s;
}

static const struct attn_pattern patterns[N_LAYERS]; /* a head each */

static void make_caches(struct fixture *f) {
    assert_int_equal(prefix_cache_create(&f->space.cache, &f->space, NULL), 0);
    assert_int_equal(state_cache_create(&f->space.states, &f->space, NULL), 0);
}

/* Makes a credit for which a step with guesses takes as long as any, so that many are made.  The
 * clock stands still: nothing else is measured. */
static struct shared_credit *cheap_guesses(struct fixture *f) {
    f->guess_credit = shared_credit_make();
    for (int i = 0; i < 100; i++)
        guess_price_measure(&f->guess_credit.price, 1, (uint32_t)i / 50, 1);
    return &f->guess_credit;
}

void fixture_init(struct fixture *f, uint32_t n_pages, uint32_t max_rows, uint32_t max_seqs) {
    fixture_init_with(f, n_pages,
                      (struct scheduler_config){.max_rows = max_rows, .max_seqs = max_seqs});
}

void fixture_init_with(struct fixture *f, uint32_t n_pages, struct scheduler_config config) {
    *f = (struct fixture){
        .n_pages = n_pages, .max_rows = config.max_rows, .max_seqs = config.max_seqs};
    memset(&device, 0, sizeof(device));
    f->memory = calloc(n_pages, sizeof(*f->memory));
    f->pool = (struct kv_pool){.base = f->memory, .page_bytes = sizeof(*f->memory)};
    f->space.io.be = &fake_backend;
    f->space.io.memory = &f->pool;
    f->space.groups = &f->group;
    f->space.n_groups = 1;
    fixture_set_layers(f, N_LAYERS);
    assert_int_equal(page_pool_create(&f->space.pool, n_pages, NULL), 0);
    make_caches(f);
    f->shared = (struct sequence_shared){.space = &f->space,
                                         .tokenizer = fake_tokenizer,
                                         .eos = eos,
                                         .n_eos = 1,
                                         .prefill = {.available = true,
                                                     .max_tokens = UINT32_MAX,
                                                     .patterns = patterns,
                                                     .n_heads_in_all = N_LAYERS,
                                                     .min_sparse_tokens = UINT32_MAX},
                                         .max_long_rows = config.max_long_rows};
    assert_int_equal(recent_answers_create(&f->shared.recent, N_RECENT_TOKENS), 0);
    if (run_ahead) f->shared.guess_credit = config.guess_credit = cheap_guesses(f);
    config.space = &f->space;
    config.now_s = fake_now_s;
    if (config.row_work <= 0) config.row_work = 1;
    if (config.enter_work <= 0) config.enter_work = 1;
    assert_int_equal(scheduler_create(&f->scheduler, &config, NULL), 0);
}

void fixture_set_layers(struct fixture *f, uint32_t n_layers) {
    f->space.n_layers = n_layers;
    f->group = (struct layer_group){.filter = 0, .first = 1, .end = n_layers};
}

void fixture_add_store(struct fixture *f, uint32_t n_blocks) {
    f->store = (struct host_pool){.format = PAGE_F32,
                                  .n_blocks = n_blocks,
                                  .n_host_layers = f->space.n_layers - 1,
                                  .n_kv_heads = 1,
                                  .head_dim = 1};
    f->store.base = calloc(n_blocks, host_pool_block_bytes(&f->store));
    f->space.io.host = &f->store;
    f->space.swaps = &f->swaps;
    assert_int_equal(page_pool_create(&f->space.blocks, n_blocks, NULL), 0);
    state_cache_destroy(f->space.states);
    prefix_cache_destroy(f->space.cache);
    make_caches(f);
}

void fixture_fini(struct fixture *f) {
    assert_int_equal(scheduler_n_live(f->scheduler), 0);
    scheduler_destroy(f->scheduler);
    assert_int_equal(kv_make_free(&f->space, f->n_pages), 0);
    assert_int_equal(page_pool_n_free(f->space.pool), f->n_pages); /* nothing leaked */
    if (f->space.blocks) {
        kv_drop_offloaded(&f->space, f->store.n_blocks);
        assert_int_equal(page_pool_n_free(f->space.blocks), f->store.n_blocks);
    }
    state_cache_destroy(f->space.states);
    prefix_cache_destroy(f->space.cache);
    page_pool_destroy(f->space.pool);
    page_pool_destroy(f->space.blocks);
    recent_answers_destroy(f->shared.recent);
    fake_store_finish();
    free(f->store.base);
    for (uint32_t i = 0; i < f->n_inflight; i++) inflight_fini(&f->inflight[i]);
    free(f->memory);
    free(f->sampled);
}

uint32_t fixture_mix(uint32_t hash, uint32_t token) {
    return (hash ^ token) * 16777619u + 12345;
}

static uint32_t predict(uint32_t hash) {
    hash ^= hash >> 15;
    return hash % 200 == 0 ? FAKE_EOS : 'a' + hash % 26;
}

/* What the kernel for generated tokens leaves in the cache beside the token. */
static uint32_t decode_mark(const struct kv_space *space) {
    return space->batch_invariant ? DECODED : 0;
}

/* What the device reads: it knows what it drew last. */
static uint32_t token_of(struct fixture *f, const struct step *step, uint32_t row) {
    uint32_t token = step->tokens[row];
    if (!(token & STEP_SAMPLED)) return token;
    f->sampled_rows_run++;
    return f->sampled[token & ~STEP_SAMPLED];
}

/* As predicted, drawn as number n_generated of a request with that seed, which counts or not.
 * last: the token before. */
static uint32_t draw(uint32_t hash, uint32_t last, double uniform, uint32_t n_counted) {
    hash = fixture_mix(fixture_mix(hash, (uint32_t)(uniform * 65536)), n_counted);
    if (repeats && (hash >> 8) % 8 != 0) return 'a' + (last + 1) % 26;
    return predict(hash);
}

static uint32_t count_outputs(const struct sample_row *row) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < row->n_counts; i++) n += row->counts[i].n_output;
    return n;
}

/* A row of the step on its way through a layer. */
struct row_set {
    const uint32_t *tokens, *positions; /* of the sequence's rows */
    uint32_t *hashes;                   /* of all that each of them sees */
    uint32_t layer, mark;
    bool decoding;
    uint32_t choice; /* of the sequence, see struct page */
};

static uint32_t *cell_of(struct fixture *f, const struct kv_view *view, uint32_t slot) {
    return &f->memory[view->pages[slot / PAGE_TOKENS]].cells[slot % PAGE_TOKENS];
}

static void set_hash(const struct row_set *rows, uint32_t i, uint32_t hash) {
    if (rows->layer > 0) assert_int_equal(rows->hashes[i], hash);
    rows->hashes[i] = hash;
}

static uint32_t *choice_at(struct fixture *f, const struct kv_view *view, uint32_t slot) {
    return &f->memory[view->pages[slot / PAGE_TOKENS]].choices[slot % PAGE_TOKENS];
}

/* By `synthetic`, which the tests set to tell choices apart. */
static uint32_t choice_of(const struct sequence *seq) {
    return seq->prefill.is_sparse ? 1 + seq->prefill.sparse.synthetic : 0;
}

/* Sparse rows leave their choice behind, and no row may see another one than its own. */
static void check_choices(struct fixture *f, const struct step_seq *seq,
                          const struct row_set *rows) {
    const struct kv_view *view = &seq->layers[rows->layer];
    for (uint32_t slot = 0; slot < view->n_slots; slot++) {
        uint32_t *choice = choice_at(f, view, slot);
        if (slot >= view->append_slot) *choice = seq->sparse ? rows->choice : 0;
        else if (*choice > 0) assert_int_equal(*choice, rows->choice);
    }
}

static void run_full(struct fixture *f, const struct step_seq *seq, const struct row_set *rows) {
    const struct kv_view *view = &seq->layers[rows->layer];
    check_choices(f, seq, rows);
    const uint32_t first = view->append_slot, base = rows->layer * 1000;
    uint32_t hash = 7;
    assert_int_equal(first + seq->n_rows, view->n_slots);
    for (uint32_t slot = 0; slot < view->n_slots; slot++) {
        uint32_t *cell = cell_of(f, view, slot);
        if (slot >= first) *cell = rows->tokens[slot - first] + base + rows->mark;
        hash = fixture_mix(hash, *cell - base);
        if (slot < first) continue;
        assert_int_equal(rows->positions[slot - first], slot);
        set_hash(rows, slot - first, hash);
    }
}

/* Which of n tokens, in order of the text, goes first. */
static uint32_t victim(const struct kept *kept, const struct kv_budget *budget) {
    uint32_t at = 0;
    while (kept[at].position < budget->n_sink) at++;
    return at;
}

static void put(struct fixture *f, const struct kv_view *view, struct kept token) {
    *cell_of(f, view, token.slot) = token.cell;
    f->memory[view->pages[token.slot / PAGE_TOKENS]].positions[token.slot % PAGE_TOKENS] =
        token.position;
}

static uint32_t append(struct fixture *f, const struct step_seq *seq, const struct row_set *rows,
                       struct kept *kept) {
    const struct kv_view *view = &seq->layers[rows->layer];
    const bool full = view->append_slot == KV_FREE_SLOT;
    const uint32_t free_slot = f->memory[view->pages[0]].free_slot;
    if (full) assert_int_equal(view->n_slots, seq->budget->capacity + 1);
    else assert_int_equal(view->append_slot + seq->n_rows, view->n_slots);
    for (uint32_t i = 0; i < seq->n_rows; i++)
        put(f, view,
            (struct kept){seq->n_before + i, rows->tokens[i] + rows->mark,
                          full ? free_slot : view->append_slot + i});
    for (uint32_t slot = 0; slot < view->n_slots; slot++) {
        const struct page *page = &f->memory[view->pages[slot / PAGE_TOKENS]];
        kept[slot] = (struct kept){page->positions[slot % PAGE_TOKENS],
                                   page->cells[slot % PAGE_TOKENS], slot};
    }
    qsort(kept, view->n_slots, sizeof(*kept), by_position);
    return view->n_slots;
}

static void run_bounded(struct fixture *f, const struct step_seq *seq, const struct row_set *rows) {
    static struct kept kept[1024];
    const struct kv_view *view = &seq->layers[rows->layer];
    const struct kv_budget *budget = seq->budget;
    struct page *state = &f->memory[view->pages[0]];
    uint32_t n = append(f, seq, rows, kept), hash = 7;
    if (seq->n_before == 0) state->free_slot = budget->capacity;
    for (uint32_t i = 0; i < n; i++) {
        hash = fixture_mix(hash, kept[i].cell);
        if (i + seq->n_rows < n) continue;
        const uint32_t row = i + seq->n_rows - n;
        assert_int_equal(rows->positions[row], budget->cache_positions ? i : seq->n_before + row);
        set_hash(rows, row, hash);
    }
    if (rows->decoding && n > budget->capacity) state->free_slot = kept[victim(kept, budget)].slot;
    if (!seq->compress) return;
    for (; n > budget->capacity; n--) {
        const uint32_t at = victim(kept, budget);
        memmove(kept + at, kept + at + 1, (n - 1 - at) * sizeof(*kept));
    }
    for (uint32_t i = 0; i < n; i++) put(f, view, (struct kept){kept[i].position, kept[i].cell, i});
    state->free_slot = budget->capacity;
}

/* Steps number their totals, so that it shows which came last. */
static void run_totals(const struct batch *batch) {
    for (uint32_t s = 0; s < batch->step.n_seqs; s++)
        if (batch->step.seqs[s].budget)
            batch->totals[s].retained_attention = (float)batch->entries[s].n_stored;
}

static void visit(struct batch *batch, uint64_t n_rows) {
    batch->visited.visited[PATTERN_A_SHAPE] += (double)n_rows;
    batch->visited.causal[PATTERN_A_SHAPE] += 2 * (double)n_rows;
    batch->visited.attention_s += 0.5;
}

/* A piece of a sparse prompt that goes in chunks is indexed by itself. */
static void check_chunk(struct fixture *f, struct batch *batch, const struct step_seq *seq) {
    const struct attn_sparse *sparse = seq->sparse;
    if (!sparse) return;
    f->n_chunks++;
    assert_true(sparse->first_slot % PAGE_TOKENS == 0);
    assert_int_equal(sparse->first_slot, seq->n_before);
    assert_int_equal(sparse->n_rows, seq->n_rows);
    visit(batch, seq->n_rows);
}

/* Slices come in order, and all of a layer before the next. */
static void check_order(struct fixture *f, const struct batch *batch) {
    const struct layer_slice *slice = &batch->slice;
    struct layer_slice *next = &f->next_slice;
    if (slice->layer == 0 && slice->first_row == 0) {
        f->long_seq = batch->entries[0].seq;
        *next = *slice;
    }
    assert_ptr_equal(batch->entries[0].seq, f->long_seq);
    assert_int_equal(slice->layer, next->layer);
    assert_int_equal(slice->first_row, next->first_row);
    assert_int_equal(slice->n_prompt_rows, next->n_prompt_rows);
    next->first_row += slice->n_rows;
    assert_true(next->first_row % SPARSE_TILE == 0 || next->first_row == slice->n_prompt_rows);
    if (next->first_row < slice->n_prompt_rows) return;
    next->first_row = 0;
    next->layer++;
}

static void check_indexed(const struct attn_sparse *sparse, const struct layer_slice *slice,
                          uint32_t first_slot) {
    assert_int_equal(sparse->first_slot, first_slot);
    assert_int_equal(sparse->n_rows, slice->n_prompt_rows);
    assert_true(sparse->first_slot % PAGE_TOKENS == 0);
}

/* Rows that leave the last layer: each scores the token after it, which shows that none is left out
 * or comes twice. */
static void run_leaving(struct fixture *f, struct batch *batch, const struct kv_view *last) {
    const struct layer_slice *slice = &batch->slice;
    assert_true(slice->leaves_last);
    assert_int_equal(last->n_slots, last->append_slot + slice->n_rows);
    for (uint32_t i = 0; i < batch->n_samples; i++) {
        const struct sample_row *row = &batch->samples[i];
        assert_int_equal(row->kind, SAMPLE_SCORE);
        const uint32_t slot = last->append_slot + row->logit_row,
                       token = batch->step.tokens[row->logit_row];
        assert_int_equal(*cell_of(f, last, slot), token + (slice->layer - 1) * 1000);
        batch->results[i] = (struct sample_result){.token = row->target,
                                                   .logprob = -(float)(token % 1000),
                                                   .rank = 1,
                                                   .invalid = token == POISON};
    }
}

static void run_slice(struct fixture *f, struct batch *batch) {
    const struct layer_slice *slice = &batch->slice;
    const struct step_seq *seq = &batch->step.seqs[0];
    const bool leaves = slice->layer == f->space.n_layers;
    const struct kv_view *view = &seq->layers[leaves ? slice->layer - 1 : slice->layer];
    const struct row_set rows = {.layer = slice->layer, .choice = choice_of(batch->entries[0].seq)};
    check_order(f, batch);
    assert_true(batch->step.n_seqs == 1 && batch->step.n_decode == 0);
    assert_true(leaves || batch->n_samples == 0);
    assert_int_equal(slice->n_rows, batch->step.n_rows);
    assert_int_equal(view->n_slots, view->append_slot + slice->n_rows);
    assert_true((batch->sparse != NULL) == (seq->sparse != NULL));
    if (seq->sparse) check_indexed(seq->sparse, slice, view->append_slot - slice->first_row);
    f->n_slices++;
    if (seq->sparse) visit(batch, slice->n_rows);
    if (leaves) {
        run_leaving(f, batch, view);
        return;
    }
    check_choices(f, seq, &rows);
    for (uint32_t i = 0; i < slice->n_rows; i++) {
        const uint32_t token = batch->step.tokens[i], slot = view->append_slot + i;
        assert_int_equal(batch->step.positions[i], slot);
        *cell_of(f, view, slot) = token + slice->layer * 1000;
        if (slice->layer > 0) /* it has been through the layer before */
            assert_int_equal(*cell_of(f, view - 1, slot), token + (slice->layer - 1) * 1000);
    }
}

/* A chunk ends at the prompt's end, or behind a unit of it. */
static void check_cut(const struct fixture *f, const struct batch *batch, uint32_t seq) {
    const uint32_t n_stored = batch->entries[seq].n_stored, unit = f->space.prompt_unit;
    assert_true(unit == 0 || n_stored == batch->entries[seq].seq->n_prompt || n_stored % unit == 0);
}

/* A step's tokens, and the hashes of all that each row sees. */
struct ran_rows {
    uint32_t *tokens, *hashes;
};

/* The fake model: runs a step's rows over f->memory. */
static struct ran_rows run_rows(struct fixture *f, struct batch *batch) {
    const struct step *step = &batch->step;
    uint32_t *hashes = calloc(step->n_rows, sizeof(*hashes));
    uint32_t *tokens = calloc(step->n_rows, sizeof(*tokens));
    assert_true(step->n_rows <= f->max_rows && step->n_seqs <= f->max_seqs);
    for (uint32_t i = 0; i < step->n_rows; i++) tokens[i] = token_of(f, step, i);
    f->rows_run += step->n_rows;
    for (uint32_t s = 0, row = 0; s < step->n_seqs; s++) {
        const struct step_seq *seq = &step->seqs[s];
        assert_int_equal(seq->first_row, row);
        const bool decoding = s < step->n_decode;
        if (decoding) assert_int_equal(seq->n_rows, 1);
        else check_cut(f, batch, s);
        assert_true(!seq->select || (decoding && batch->selects));
        for (uint32_t l = 0; l < f->space.n_layers; l++) {
            const struct row_set rows = {tokens + row,
                                         step->positions + row,
                                         hashes + row,
                                         l,
                                         decoding ? decode_mark(&f->space) : 0,
                                         decoding,
                                         choice_of(batch->entries[s].seq)};
            if (seq->budget) run_bounded(f, seq, &rows);
            else if (l == 0 || !seq->select) run_full(f, seq, &rows);
            else fake_select_run(f, seq, l, rows.tokens[0] + rows.mark, &batch->selected[s]);
        }
        check_chunk(f, batch, seq);
        row += seq->n_rows;
    }
    run_totals(batch);
    return (struct ran_rows){tokens, hashes};
}

static void run_samples(struct batch *batch, const struct ran_rows *ran) {
    const uint32_t *tokens = ran->tokens, *hashes = ran->hashes;
    for (uint32_t i = 0; i < batch->n_samples; i++) {
        const struct sample_row *row = &batch->samples[i];
        struct sample_result *r = &batch->results[i];
        *r = (struct sample_result){.rank = 1};
        r->token =
            draw(hashes[row->logit_row], tokens[row->logit_row], row->uniform, count_outputs(row));
        for (uint32_t j = 0; j < row->n_banned; j++)
            if (r->token == row->banned[j]) r->token = 'z';
        if (row->kind == SAMPLE_SCORE) r->token = row->target;
        r->logprob = -(float)(hashes[row->logit_row] % 1000);
        r->invalid = tokens[row->logit_row] == POISON;
    }
}

/* Runs a step; as the engine does, in two parts where samples read the tokens before them. */
static void run_step(struct fixture *f, struct batch *batch) {
    struct error err;
    if (batch->kind == STEP_TIME_SLICE) {
        run_slice(f, batch);
        assert_int_equal(batch_submitted(batch, &err), 0);
        return;
    }
    const struct ran_rows ran = run_rows(f, batch);
    assert_int_equal(batch_submitted(batch, &err), 0);
    if (batch->reads_tokens && f->n_inflight > 0) fixture_complete_step(f);
    if (batch->reads_tokens) batch_complete_samples(batch);
    run_samples(batch, &ran);
    free(ran.tokens);
    free(ran.hashes);
}

static void watch(struct page_list *list, const uint32_t *pages, uint32_t n) {
    list->pages = realloc(list->pages, (list->n + n + 1) * sizeof(*list->pages));
    memcpy(list->pages + list->n, pages, n * sizeof(*pages));
    list->n += n;
}

/* What the sequence's rows are computed from must not be let go before that is over. */
static void watch_seq(struct fixture *f, struct inflight_step *inflight_step,
                      const struct step_seq *seq) {
    const struct kv_select *select = seq->select;
    for (uint32_t l = 0; l < f->space.n_layers; l++)
        watch(&inflight_step->pages, seq->layers[l].pages,
              (seq->layers[l].n_slots + PAGE_TOKENS - 1) / PAGE_TOKENS);
    if (!select) return;
    const uint32_t n_slots = kv_state_slots(&f->pool), n_pages = select->n_candidates / PAGE_TOKENS;
    watch(&inflight_step->pages, select->state_pages, (select->n_selected + n_slots - 1) / n_slots);
    if (select->blocks) watch(&inflight_step->blocks, select->blocks, n_pages);
    else watch(&inflight_step->pages, select->pool_pages[1], n_pages);
}

static void check_watched(const struct page_list *list, const struct page_pool *pool) {
    for (uint32_t i = 0; i < list->n; i++)
        assert_true(page_pool_n_holders(pool, list->pages[i]) > 0);
}

/* Runs the step, but keeps the results back. */
void fixture_submit_step(struct fixture *f, struct batch *batch) {
    const size_t bytes = batch->n_samples * sizeof(*batch->results);
    struct inflight_step submitted = {.batch = batch, .results = malloc(bytes + 1)},
                         *inflight_step = &submitted;
    fake_store_finish();
    for (uint32_t s = 0; s < batch->step.n_seqs; s++)
        watch_seq(f, inflight_step, &batch->step.seqs[s]);
    run_step(f, batch);
    f->sampled = realloc(f->sampled, (batch->n_samples + 1) * sizeof(*f->sampled));
    for (uint32_t i = 0; i < batch->n_samples; i++) f->sampled[i] = batch->results[i].token;
    inflight_step->visited = batch->visited;
    memset(&batch->visited, 0xee, sizeof(batch->visited));
    memcpy(inflight_step->results, batch->results, bytes);
    memset(batch->results, 0xee, bytes);
    inflight_step->totals = malloc(batch->step.n_seqs * sizeof(*inflight_step->totals));
    memcpy(inflight_step->totals, batch->totals,
           batch->step.n_seqs * sizeof(*inflight_step->totals));
    memset(batch->totals, 0xee, batch->step.n_seqs * sizeof(*batch->totals));
    inflight_step->selected = malloc(batch->step.n_seqs * sizeof(*inflight_step->selected));
    memcpy(inflight_step->selected, batch->selected,
           batch->step.n_seqs * sizeof(*inflight_step->selected));
    memset(batch->selected, 0xee, batch->step.n_seqs * sizeof(*batch->selected));
    f->inflight[f->n_inflight++] = submitted;
}

void fixture_complete_step(struct fixture *f) {
    struct inflight_step inflight_step = f->inflight[0];
    f->inflight[0] = f->inflight[1];
    f->n_inflight--;
    check_watched(&inflight_step.pages, f->space.pool);
    check_watched(&inflight_step.blocks, f->space.blocks);
    memcpy(inflight_step.batch->results, inflight_step.results,
           inflight_step.batch->n_samples * sizeof(*inflight_step.results));
    memcpy(inflight_step.batch->totals, inflight_step.totals,
           inflight_step.batch->step.n_seqs * sizeof(*inflight_step.totals));
    memcpy(inflight_step.batch->selected, inflight_step.selected,
           inflight_step.batch->step.n_seqs * sizeof(*inflight_step.selected));
    inflight_step.batch->visited = inflight_step.visited;
    inflight_fini(&inflight_step);
    scheduler_finish_step(f->scheduler, &f->events);
}

/* The tokens that a request keeps, by the definition, and the hash of them. */
struct memory {
    const struct kv_choice *kv;
    uint32_t n, n_text, capacity;
    struct kept *kept;
};

static void remember(struct memory *m, uint32_t cell) {
    m->kept = realloc(m->kept, (m->n + 1) * sizeof(*m->kept));
    m->kept[m->n++] = (struct kept){m->n_text++, cell, 0};
}

static void forget(struct memory *m) {
    const struct kv_budget budget = {.n_sink = m->kv->n_sink};
    for (; kv_choice_is_bounded(m->kv) && m->n > m->capacity; m->n--) {
        const uint32_t at = victim(m->kept, &budget);
        memmove(m->kept + at, m->kept + at + 1, (m->n - 1 - at) * sizeof(*m->kept));
    }
}

static uint32_t hash_of(const struct memory *m) {
    uint32_t hash = 7;
    for (uint32_t i = 0; i < m->n; i++) hash = fixture_mix(hash, m->kept[i].cell);
    return hash;
}

/* The last token of a prompt that goes layer by layer is computed like a generated one. */
static uint32_t last_mark(const struct fixture *f, const struct engine_request *r) {
    const struct dense_rule *dense =
        prefill_dense_rule(&r->kv, NULL, r->params.n_prompt_logprobs >= 0);
    const struct kv_plan kv = kv_plan_make(&r->kv, r->n_prompt, r->params.max_tokens);
    const struct prefill_plan plan = prefill_plan_make(&r->prefill, &f->shared.prefill, dense, &kv);
    const bool layer_major =
        prefill_order(&plan, 0, f->shared.max_long_rows) == PREFILL_LAYER_MAJOR;
    return layer_major ? decode_mark(&f->space) : 0;
}

/* The hash that the prompt's last row sees; then it is over. */
static uint32_t remember_prompt(struct memory *m, const struct engine_request *r,
                                uint32_t mark_of_last) {
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        if (i > 0 && i % (m->kv->chunk ? m->kv->chunk : KV_DEFAULT_CHUNK) == 0) forget(m);
        remember(m, r->prompt[i] + (i + 1 == r->n_prompt ? mark_of_last : 0));
    }
    const uint32_t hash = hash_of(m);
    forget(m);
    return hash;
}

static struct expectation expect(const struct fixture *f, const struct engine_request *r) {
    const struct sampling_params *p = &r->params;
    const bool counting = p->sampler.presence_penalty != 0;
    struct expectation e = {.reason = FINISH_LENGTH};
    struct memory m = {.kv = &r->kv, .capacity = (uint32_t)kv_choice_capacity(&r->kv)};
    uint32_t hash = remember_prompt(&m, r, last_mark(f, r)), last = r->prompt[r->n_prompt - 1];
    while (e.n_generated < p->max_tokens) {
        uint32_t n = e.n_generated;
        uint32_t token = draw(hash, last, rng_uniform(p->seed, n), counting ? n : 0);
        if (token == FAKE_EOS && n < p->min_tokens && !p->ignore_eos) token = 'z';
        last = token;
        e.n_generated++;
        if (token == FAKE_EOS && !p->ignore_eos) {
            e.reason = FINISH_STOP;
            break;
        }
        if (token != FAKE_EOS) e.text[strlen(e.text)] = (char)token; /* that has no text */
        if (e.n_generated == p->max_tokens) break; /* the last token is not stored */
        remember(&m, token + decode_mark(&f->space));
        hash = hash_of(&m);
        forget(&m);
    }
    e.n_resident = m.n;
    e.n_stored = m.n_text;
    e.n_evicted = m.n_text - m.n;
    free(m.kept);
    return e;
}

void fixture_drain(struct fixture *f, uint32_t step_number) {
    struct engine_event *e = f->events.first, *next;
    for (; e; e = next) {
        struct client *c = e->user;
        next = e->next;
        assert_false(c->finished); /* nothing follows the final event */
        if (e->kind == EVENT_PROMPT) {
            c->n_prompt_infos = e->n_tokens;
            if (e->n_tokens > 1) c->first_score = e->tokens[1].logprob;
        } else {
            /* One event a step. */
            assert_true(step_number == 0 || c->step_of_last_event != step_number);
            c->step_of_last_event = step_number;
        }
        strcat(c->text, e->text);
        if (e->kind == EVENT_FINISH) {
            c->finished = true;
            c->last = *e;
        }
        engine_event_free(e);
    }
    f->events = (struct event_list){0};
}

struct engine_request client_request(struct client *c, uint32_t n_prompt, uint32_t max_tokens) {
    struct engine_request r = {.n_prompt = n_prompt, .params = sampling_defaults(), .user = c};
    r.prompt = calloc(n_prompt, sizeof(*r.prompt));
    r.params.max_tokens = max_tokens;
    r.params.has_seed = true;
    return r;
}

void fixture_submit(struct fixture *f, struct engine_request *r, uint64_t id) {
    struct client *c = r->user;
    struct sequence *seq;
    c->expected = expect(f, r);
    c->bounded = kv_choice_is_bounded(&r->kv);
    c->submitted = true;
    const struct request_plan plan = request_plan_make(&f->shared, r);
    assert_int_equal(request_plan_check(&plan, &f->space, NULL), 0);
    assert_int_equal(sequence_create(&seq, &f->shared, r, &plan, id), 0);
    scheduler_add(f->scheduler, seq, &f->events);
}

void fixture_refuse(struct fixture *f, struct engine_request *r) {
    const struct request_plan plan = request_plan_make(&f->shared, r);
    assert_int_equal(request_plan_check(&plan, &f->space, NULL), ERR_TOO_LONG);
    sampling_fini(&r->params);
    free(r->prompt);
}

bool fixture_step(struct fixture *f, uint32_t number) {
    struct batch *batch = scheduler_plan(f->scheduler);
    scheduler_end_failed(f->scheduler, &f->events);
    if (batch) fixture_submit_step(f, batch);
    assert_int_equal(scheduler_n_inflight(f->scheduler), f->n_inflight);
    bool some = f->n_inflight > 0;
    if (f->n_inflight > (batch && run_ahead)) fixture_complete_step(f);
    fixture_drain(f, number);
    return some;
}

void fixture_run(struct fixture *f) {
    for (uint32_t n = 1; fixture_step(f, n); n++) assert_true(n < 100000);
}

void fixture_cancel_one(struct fixture *f, struct client *clients, uint32_t n, int patience) {
    const uint32_t victim = (uint32_t)rand() % n;
    struct client *client = &clients[victim];
    if (rand() % patience != 0 || !client->submitted || client->finished) return;
    client->cancelled = true;
    scheduler_cancel(f->scheduler, victim + 1, &f->events);
    fixture_drain(f, 0);
    assert_true(client->finished);
}

void client_check(const struct client *c) {
    assert_true(c->finished);
    if (c->last.reason == FINISH_CANCELLED) {
        assert_true(c->cancelled);
        assert_memory_equal(c->text, c->expected.text, strlen(c->text)); /* a prefix */
        return;
    }
    assert_int_equal(c->last.reason, c->expected.reason);
    assert_string_equal(c->text, c->expected.text);
    assert_int_equal(c->last.n_generated, c->expected.n_generated);
    assert_int_equal(c->last.kv.values[KV_RESIDENT_TOKENS], c->expected.n_resident);
    assert_int_equal(c->last.kv.values[KV_EVICTED_TOKENS], c->expected.n_evicted);
    if (c->bounded)
        assert_true(c->last.kv.values[KV_RETAINED_ATTENTION] == (float)c->expected.n_stored);
    else assert_true(isnan(c->last.kv.values[KV_RETAINED_ATTENTION]));
}

void client_fill_prompt(struct engine_request *r) {
    uint32_t family = (uint32_t)rand() % 3, shared = (uint32_t)rand() % (r->n_prompt + 1);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = i < shared ? 'a' + (family + i) % 26 : 'a' + (uint32_t)rand() % 26;
}

int fixture_main(void) {
    const int n_failed = tests_run("step by step", NULL, NULL);
    run_ahead = true;
    return n_failed + tests_run("a step ahead", NULL, NULL);
}
