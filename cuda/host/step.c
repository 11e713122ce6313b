/* step.c - sends the description of a step to the device: one pinned block, one copy.
 *
 *   struct device_step             pointers to the arrays below, always at the same address
 *   struct device_step             the same, but it names the copies of kv/prompt_copies.c
 *   struct device_recurrent        names the states and chunks below
 *   attention's plans              attention.cu: their places are fixed, too
 *   tokens positions row_seq       [n_rows] each
 *   first_row seq_rows             [n_seqs] each
 *   n_slots append_slot table_at   [n_layers][n_seqs] each
 *   table                          [n_layers][layer_pages]: a layer's lists, one after the other:
 *                                  ranked prompts' (kv/prompt_copies.c), other prompts', the rest
 *   items                          [item_words], attn_prefill's work: attention.cu
 *   budgets                        [n_seqs] struct device_budget, if some sequence has one
 *   selections, observations       if some sequence has one: select_pack.h
 *   states chunks                  [n_seqs] struct device_state, [n_chunks] struct device_chunk, if
 *                                  the model has recurrent layers
 *
 * The arrays are int32, for all layers at once.  layer_pages is the most pages that a layer's lists
 * have. */
#include "cuda/host/internal.h"

#include <assert.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/recurrent.h"
#include "engine/device/step.h"

/* The sizes of a step's arrays, before it is packed. */
struct step_shape {
    size_t n_rows, n_seqs, n_views, n_layers, layer_pages;
    size_t plan_bytes, item_words; /* attention's */
    bool has_budgets;
    size_t select_words;
    bool has_states;
    size_t n_chunks; /* of prompts, as recurrent layers cut them */
};

enum { BUDGET_WORDS = sizeof(struct device_budget) / sizeof(int32_t) };
enum { STATE_WORDS = sizeof(struct device_state) / sizeof(int32_t) };
enum { CHUNK_WORDS = sizeof(struct device_chunk) / sizeof(int32_t) };

static size_t count_pages(const struct step *step, uint32_t seq, uint32_t layer) {
    return kv_n_pages(step->seqs[seq].layers[layer].n_slots);
}

static bool has_budgets(const struct step *step) {
    for (uint32_t i = 0; i < step->n_seqs; i++)
        if (step->seqs[i].budget) return true;
    return false;
}

/* Returns how many chunks the rows of a sequence are in. */
static size_t count_chunks(const struct step_seq *seq) {
    return (seq->n_before % CHUNK_ROWS + seq->n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
}

static size_t count_prompt_chunks(const struct step *step) {
    size_t n = 0;
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) n += count_chunks(&step->seqs[i]);
    return n;
}

static struct step_shape shape_of(const struct step *step, const struct select_shape *select) {
    struct step_shape shape = {
        .n_rows = step->n_rows, .n_seqs = step->n_seqs, .n_layers = step->n_layers};
    shape.n_views = shape.n_layers * shape.n_seqs;
    for (uint32_t l = 0; l < step->n_layers; l++) {
        size_t n = 0;
        for (uint32_t i = 0; i < step->n_seqs; i++) n += count_pages(step, i, l);
        if (n > shape.layer_pages) shape.layer_pages = n;
    }
    shape.has_budgets = has_budgets(step);
    shape.select_words = select_pack_words(step, select);
    shape.has_states = step->has_states;
    if (shape.has_states) shape.n_chunks = count_prompt_chunks(step);
    return shape;
}

enum { RECURRENT_AT = 2 * sizeof(struct device_step) };
static_assert(RECURRENT_AT + sizeof(struct device_recurrent) <= STEP_HEADER_BYTES,
              "the header has outgrown its place");

static size_t count_bytes(const struct step_shape *s) {
    const size_t words = 3 * s->n_rows + 2 * s->n_seqs + 3 * s->n_views +
                         s->n_layers * s->layer_pages + s->item_words +
                         (s->has_budgets ? s->n_seqs * BUDGET_WORDS : 0) + s->select_words +
                         (s->has_states ? s->n_seqs * STATE_WORDS : 0) + s->n_chunks * CHUNK_WORDS;
    return round_up(STEP_HEADER_BYTES + s->plan_bytes + words * sizeof(int32_t), ARGS_ALIGNMENT);
}

/* Returns the next n words of the block, host side, and sets the device's pointer to them. */
static int32_t *take(struct mirror *block, size_t n, const int32_t **device) {
    int32_t *host = (int32_t *)(block->host + block->used);
    *device = (const int32_t *)(block->device + block->used);
    block->used += n * sizeof(int32_t);
    return host;
}

static void pack_rows(struct mirror *block, const struct step *step, struct device_step *out) {
    const size_t bytes = step->n_rows * sizeof(int32_t);
    int32_t *tokens = take(block, step->n_rows, &out->tokens);
    int32_t *positions = take(block, step->n_rows, &out->positions);
    int32_t *row_seq = take(block, step->n_rows, &out->row_seq);
    if (step->tokens) memcpy(tokens, step->tokens, bytes);
    if (step->positions) memcpy(positions, step->positions, bytes);
    for (uint32_t i = 0; i < step->n_seqs; i++)
        for (uint32_t j = 0; j < step->seqs[i].n_rows; j++)
            row_seq[step->seqs[i].first_row + j] = (int32_t)i;
}

/* A layer's lists of pages, and the arrays that take them. */
struct lists {
    const struct step *step;
    uint32_t layer;
    int32_t *table, *table_at;
};

enum which { ALL, ONLY_RANKED, ONLY_OTHERS };

/* Packs lists of sequences [first, end) from place `at` of the table on; returns where they end. */
static size_t pack_lists(const struct lists *to, uint32_t first, uint32_t end, enum which which,
                         size_t at) {
    for (uint32_t i = first; i < end; i++) {
        const struct step_seq *seq = &to->step->seqs[i];
        if (which != ALL && step_seq_is_ranked(seq) != (which == ONLY_RANKED)) continue;
        const size_t n = count_pages(to->step, i, to->layer);
        to->table_at[i] = (int32_t)at;
        memcpy(to->table + at, seq->layers[to->layer].pages, n * sizeof(int32_t));
        at += n;
    }
    return at;
}

static struct step_arrays pack_seqs(struct mirror *block, const struct step *step,
                                    const struct step_shape *shape, struct device_step *out) {
    int32_t *first_row = take(block, shape->n_seqs, &out->first_row);
    int32_t *seq_rows = take(block, shape->n_seqs, &out->seq_rows);
    int32_t *n_slots = take(block, shape->n_views, &out->n_slots);
    int32_t *append_slot = take(block, shape->n_views, &out->append_slot);
    int32_t *table_at = take(block, shape->n_views, &out->table_at);
    int32_t *table = take(block, shape->n_layers * shape->layer_pages, &out->table);
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        first_row[i] = (int32_t)step->seqs[i].first_row;
        seq_rows[i] = (int32_t)step->seqs[i].n_rows;
    }
    for (uint32_t l = 0; l < step->n_layers; l++) {
        for (uint32_t i = 0; i < step->n_seqs; i++) {
            const struct kv_view *view = &step->seqs[i].layers[l];
            n_slots[(size_t)l * step->n_seqs + i] = (int32_t)view->n_slots;
            append_slot[(size_t)l * step->n_seqs + i] = (int32_t)view->append_slot;
        }
        const struct lists lists = {step, l, table + l * shape->layer_pages,
                                    table_at + (size_t)l * step->n_seqs};
        size_t at = pack_lists(&lists, step->n_decode, step->n_seqs, ONLY_RANKED, 0);
        at = pack_lists(&lists, step->n_decode, step->n_seqs, ONLY_OTHERS, at);
        pack_lists(&lists, 0, step->n_decode, ALL, at);
    }
    struct step_arrays arrays = {.n_slots = n_slots, .table_at = table_at, .seq_rows = seq_rows};
    arrays.items = take(block, shape->item_words, &arrays.device_items);
    return arrays;
}

static void pack_budgets(struct mirror *block, const struct step *step, struct device_step *out) {
    const int32_t *device;
    struct device_budget *to =
        (struct device_budget *)take(block, step->n_seqs * (size_t)BUDGET_WORDS, &device);
    out->budgets = (const struct device_budget *)device;
    int32_t at = 0;
    for (uint32_t i = 0; i < step->n_seqs; at += (int32_t)score_slots(&step->seqs[i++])) {
        const struct step_seq *seq = &step->seqs[i];
        const struct kv_budget *budget = seq->budget;
        to[i] = (struct device_budget){.scores_at = -1};
        if (!budget) continue;
        to[i] = (struct device_budget){.capacity = budget->capacity,
                                       .n_sink = budget->n_sink,
                                       .n_recent = budget->n_recent,
                                       .score = budget->score,
                                       .decay = budget->decay,
                                       .window = budget->window,
                                       .pooling = budget->pooling,
                                       .kernel = budget->kernel,
                                       .cache_positions = budget->cache_positions,
                                       .n_before = seq->n_before,
                                       .score_row = seq->score_row,
                                       .begins_chunk = seq->begins_chunk,
                                       .compress = seq->compress,
                                       .scores_at = kv_has_scores(budget) ? at : -1};
        for (uint32_t l = 0; l < step->n_layers; l++)
            if (step_budget(seq, l)) to[i].layers[l / 32] |= 1u << l % 32;
    }
}

static void pack_selects(struct cuda_backend *cuda, const struct step_shape *shape) {
    const struct step *step = cuda->host_step;
    const int32_t *device;
    int32_t *words = take(&cuda->step_block, shape->select_words, &device);
    select_pack(step, &cuda->select.shape, words);
    cuda->step.selects = (const struct device_select *)device;
    cuda->step.select_lists = device + select_pack_lists_at(step);
    if (step_has_observations(step))
        cuda->step.observations =
            (const struct device_observation *)(device + (size_t)step->n_decode * SELECT_WORDS);
}

/* Packs a sequence's rows as chunks; returns how many. */
static uint32_t pack_chunks(struct device_chunk *to, const struct step *step, uint32_t seq) {
    const struct step_seq *from = &step->seqs[seq];
    uint32_t n = 0;
    for (uint32_t row = 0; row < from->n_rows; n++) {
        const uint32_t room = CHUNK_ROWS - (from->n_before + row) % CHUNK_ROWS,
                       n_rows = min_u32(room, from->n_rows - row);
        to[n] = (struct device_chunk){.seq = seq,
                                      .first_row = from->first_row + row,
                                      .n_rows = n_rows,
                                      .is_last = row + n_rows == from->n_rows};
        row += n_rows;
    }
    return n;
}

static void pack_states(struct mirror *block, const struct step *step,
                        const struct step_shape *shape, struct device_recurrent *out) {
    const int32_t *device;
    struct device_state *states =
        (struct device_state *)take(block, shape->n_seqs * STATE_WORDS, &device);
    out->states = (const struct device_state *)device;
    struct device_chunk *chunks =
        (struct device_chunk *)take(block, shape->n_chunks * CHUNK_WORDS, &device);
    out->chunks = (const struct device_chunk *)device;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        const bool is_new = seq->state.from == STATE_ZERO;
        states[i] = (struct device_state){.from = is_new ? -1 : (int32_t)seq->state.from,
                                          .to = (int32_t)seq->state.to,
                                          .n_before = seq->n_before,
                                          .first_chunk = out->n_chunks};
        if (i >= step->n_decode) out->n_chunks += pack_chunks(chunks + out->n_chunks, step, i);
    }
}

/* Packs the headers.  kv/prompt_copies.c numbers its copies in order, so the second header's
 * table is the same in every layer. */
static void pack_headers(struct cuda_backend *cuda, const struct device_step *step) {
    struct device_step headers[2] = {*step, *step};
    headers[1].table = cuda->prompt_copies.numbers;
    headers[1].layer_pages = 0;
    memcpy(cuda->step_block.host, headers, sizeof(headers));
    memcpy(cuda->step_block.host + RECURRENT_AT, &cuda->recurrent, sizeof(cuda->recurrent));
}

int step_reserve(struct cuda_backend *cuda, const struct step_limits *limits, struct error *err) {
    struct step_shape largest = {
        .n_rows = limits->max_rows,
        .n_seqs = limits->max_seqs,
        .n_views = (size_t)limits->n_layers * limits->max_seqs,
        .n_layers = limits->n_layers,
        .layer_pages = (size_t)limits->max_seqs * limits->max_seq_pages,
        .has_budgets = limits->tracked,
        .has_states = true,
        .n_chunks = limits->max_rows / CHUNK_ROWS + 2 * (size_t)limits->max_seqs,
        .select_words = select_pack_most_words(limits, &cuda->select.shape)};
    int rc = attention_reserve(cuda, limits, &largest.plan_bytes, &largest.item_words, err);
    return rc ? rc : mirror_reserve(cuda, &cuda->step_block, count_bytes(&largest), err);
}

int step_send(struct cuda_backend *cuda, struct error *err) {
    const struct step *step = cuda->host_step;
    struct mirror *block = &cuda->step_block;
    int rc = select_workspace(cuda, step, err);
    if (rc) return rc;
    struct step_shape shape = shape_of(step, &cuda->select.shape);
    rc = cuda_check(cuda, cudaEventSynchronize(cuda->step_copied), "waiting for the step before",
                    err);
    if (!rc) rc = attention_budget(cuda, step, &shape.plan_bytes, &shape.item_words, err);
    if (!rc) rc = mirror_reserve(cuda, block, count_bytes(&shape), err);
    if (rc) return rc;
    struct device_step *out = &cuda->step;
    *out = (struct device_step){.n_rows = step->n_rows,
                                .n_seqs = step->n_seqs,
                                .n_decode = step->n_decode,
                                .n_layers = step->n_layers,
                                .sampled = cuda->sampled,
                                .layer_pages = (uint32_t)shape.layer_pages};
    cuda->recurrent = (struct device_recurrent){0};
    block->used = STEP_HEADER_BYTES + shape.plan_bytes;
    pack_rows(block, step, out);
    const struct step_arrays arrays = pack_seqs(block, step, &shape, out);
    if (shape.has_budgets) pack_budgets(block, step, out);
    if (shape.select_words > 0) pack_selects(cuda, &shape);
    if (shape.has_states) pack_states(block, step, &shape, &cuda->recurrent);
    attention_plan(cuda, &arrays, block->host + STEP_HEADER_BYTES);
    pack_headers(cuda, out);
    cuda->device_step = (const struct device_step *)block->device;
    cuda->device_recurrent = (const struct device_recurrent *)(block->device + RECURRENT_AT);
    rc = cuda_check(
        cuda, launch_small_copy(block->device, block->host, block->used, true, launch_of(cuda)),
        "the step to the device", err);
    if (!rc)
        rc = cuda_check(cuda, cudaEventRecord(cuda->step_copied, cuda->stream), "an event", err);
    return rc ? rc : cuda_check(cuda, launch_boundary(launch_of(cuda)), "a step's beginning", err);
}

int cuda_step_begin(struct backend *be, const struct step *step, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    /* The device is chosen per thread, and steps run on another thread than create(). */
    int rc = cuda_check(cuda, cudaSetDevice(cuda->device), "choosing the device", err);
    if (!rc) rc = inflight_begin(cuda, err);
    if (!rc) rc = host_pool_await_step(cuda, step, err);
    if (rc) return rc;
    cuda->host_step = step;
    cuda->launch_rows = step->n_rows;
    cuda->prompt_copies.valid = false;
    cuda->prompt_copies.of = COPY_UNKNOWN;
    for (int i = 0; i < MAX_ROPES; i++) cuda->rotary[i].angles_valid = false;
    return step_send(cuda, err);
}
