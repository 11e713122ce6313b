/* batch.c - see batch.h. */
#include "engine/schedule/batch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/schedule/sequence.h"

int batch_init(struct batch *batch, uint32_t max_rows, uint32_t max_seqs, struct error *err) {
    *batch = (struct batch){.max_rows = max_rows, .max_seqs = max_seqs};
    batch->entries = calloc(max_seqs, sizeof(*batch->entries));
    batch->seqs = calloc(max_seqs, sizeof(*batch->seqs));
    batch->tokens = calloc(max_rows, sizeof(*batch->tokens));
    batch->positions = calloc(max_rows, sizeof(*batch->positions));
    batch->samples = calloc(max_rows, sizeof(*batch->samples));
    batch->results = calloc(max_rows, sizeof(*batch->results));
    batch->totals = calloc(max_seqs, sizeof(*batch->totals));
    batch->selected = calloc(max_seqs, sizeof(*batch->selected));
    if (batch->entries && batch->seqs && batch->tokens && batch->positions && batch->samples &&
        batch->results && batch->totals && batch->selected)
        return 0;
    batch_fini(batch);
    return error_set(err, ERR_NOMEM, "no memory for steps of %u rows", max_rows);
}

void batch_fini(struct batch *batch) {
    free(batch->entries);
    free(batch->seqs);
    free(batch->tokens);
    free(batch->positions);
    free(batch->samples);
    free(batch->results);
    free(batch->totals);
    free(batch->selected);
    *batch = (struct batch){0};
}

static void put_tokens(const struct sequence *seq, uint32_t *to) {
    uint32_t begin = seq->kv.n_tokens;
    if (seq->n_sampled == 0) { /* guesses lie behind the tokens that are known */
        memcpy(to, seq->tokens + begin, seq->n_rows * sizeof(*to));
    } else { /* every token before the in-flight one is stored already */
        assert(seq->n_sampled == 1 && begin == seq->n_tokens && seq->n_rows == 1);
        to[0] = STEP_SAMPLED | seq->draw_row;
    }
}

/* Returns the position of the sequence's first row, in the text or among the tokens that the cache
 * keeps of it. */
static uint32_t first_position(const struct step_seq *seq) {
    const uint32_t layer = step_first_budgeted(seq);
    return step_ranked(seq, layer) ? seq->layers[layer].n_slots - seq->n_rows : seq->n_before;
}

/* Makes the sequence the one that chooses its keys, for n_rows rows from slot `first` on, which are
 * indexed together. */
static void choose_keys(struct batch *batch, struct sequence *seq, struct step_seq *out,
                        uint32_t first, uint32_t n_rows) {
    assert(!batch->sparse); /* one in a step */
    assert(seq->prefill.is_sparse && first % PAGE_TOKENS == 0);
    batch->sparse = seq;
    batch->choice = seq->prefill.sparse;
    batch->choice.first_slot = first;
    batch->choice.n_rows = n_rows;
    out->sparse = &batch->choice;
}

/* Adds the sequence, whose n_rows rows of the batch follow its first n_before tokens, with what is
 * sampled of them.  Nothing is sampled of a slice that does not leave the last layer. */
static struct batch_entry *add_entry(struct batch *batch, struct sequence *seq, uint32_t n_before,
                                     uint32_t n_rows) {
    struct step *step = &batch->step;
    struct batch_entry *entry = &batch->entries[step->n_seqs++];
    struct sample_row *samples = batch->samples + batch->n_samples;
    *entry = (struct batch_entry){.seq = seq, .first_sample = batch->n_samples};
    step->n_layers = seq->kv.space->n_layers;
    if (batch->kind == STEP_TIME_STEP || batch->slice.layer == step->n_layers)
        entry->n_samples = sequence_sample_rows(seq, n_before, n_rows, step->n_rows, samples,
                                                &batch->reads_tokens);
    entry->draws = entry->n_samples > 0 && samples[entry->n_samples - 1].kind == SAMPLE_DRAW;
    batch->n_samples += entry->n_samples;
    step->n_rows += n_rows;
    return entry;
}

static void add(struct batch *batch, struct sequence *seq) {
    struct step *step = &batch->step;
    assert(step->n_seqs < batch->max_seqs && step->n_rows + seq->n_rows <= batch->max_rows);
    uint32_t begin = seq->kv.n_tokens, first = step->n_rows;
    put_tokens(seq, batch->tokens + first);
    struct step_seq *out = &batch->seqs[step->n_seqs];
    kv_view(&seq->kv, 0, seq->n_rows, out);
    out->first_row = first;
    batch->selects |= out->select != NULL;
    if (seq->is_sparse_chunk) choose_keys(batch, seq, out, begin, seq->n_rows);
    for (uint32_t i = 0; i < seq->n_rows; i++)
        batch->positions[first + i] = first_position(out) + i;
    add_entry(batch, seq, begin, seq->n_rows)->n_stored = begin + seq->n_rows;
    batch->n_drafting += seq->n_drafts > 0;
}

/* Tells whether attn_decode computes the sequence's row.  attn_prefill computes the rows of a
 * prompt, however few a step has: a row's bits must not depend on how its prompt was cut into
 * steps.  The last row of a layer-major prompt is always computed alone, and by attn_decode:
 * attn_prefill takes many times as long for one row that sees so many slots. */
static bool is_decoding(const struct sequence *seq) {
    return seq->n_rows == 1 && seq->kv.n_tokens >= seq->n_together;
}

static void begin(struct batch *batch, enum step_time_kind kind) {
    batch->step =
        (struct step){.tokens = batch->tokens, .positions = batch->positions, .seqs = batch->seqs};
    batch->n_samples = batch->n_drafting = 0;
    batch->kind = kind;
    batch->selects = batch->reads_tokens = batch->decodes = false;
    batch->sparse = NULL;
    batch->visited = (struct sparse_totals){0};
}

void batch_build(struct batch *batch, struct sequence *const *seqs, uint32_t n_seqs) {
    begin(batch, STEP_TIME_STEP);
    for (int decoding = 1; decoding >= 0; decoding--) {
        for (uint32_t i = 0; i < n_seqs; i++)
            if (seqs[i]->n_rows > 0 && is_decoding(seqs[i]) == decoding) add(batch, seqs[i]);
        if (decoding) batch->step.n_decode = batch->step.n_seqs;
    }
    batch->decodes = batch->step.n_decode + batch->n_drafting > 0;
}

void batch_build_slice(struct batch *batch, struct sequence *seq, uint32_t n_rows) {
    struct step_seq *out = &batch->seqs[0];
    const uint32_t stored = seq->kv.n_tokens, before = seq->slice.first_row,
                   first = stored + before;
    assert(n_rows > 0 && n_rows <= batch->max_rows);
    begin(batch, STEP_TIME_SLICE);
    batch->slice = seq->slice;
    batch->slice.n_rows = n_rows;
    kv_view(&seq->kv, before, n_rows, out);
    if (seq->was_sparse) choose_keys(batch, seq, out, stored, seq->slice.n_prompt_rows);
    memcpy(batch->tokens, seq->tokens + first, n_rows * sizeof(*batch->tokens));
    for (uint32_t i = 0; i < n_rows; i++) batch->positions[i] = first + i;
    add_entry(batch, seq, first, n_rows)->n_stored = stored;
}

const struct evict_total *batch_evicted(const struct batch *batch, uint32_t at) {
    const bool is_whole =
        batch->kind == STEP_TIME_STEP || layer_slice_is_final(&batch->slice, batch->step.n_layers);
    return batch->step.seqs[at].budget && is_whole ? &batch->totals[at] : NULL;
}

void batch_complete_samples(struct batch *batch) {
    for (uint32_t i = 0; i < batch->step.n_seqs; i++) {
        const struct batch_entry *entry = &batch->entries[i];
        if (entry->draws)
            sequence_complete_row(entry->seq,
                                  &batch->samples[entry->first_sample + entry->n_samples - 1]);
    }
}

int batch_submitted(const struct batch *batch, struct error *err) {
    int code = 0;
    for (uint32_t i = 0; i < batch->step.n_seqs && !code; i++) {
        struct sequence *seq = batch->entries[i].seq;
        code = kv_submitted(&seq->kv, seq->tokens,
                            batch->kind == STEP_TIME_SLICE ? &batch->slice : NULL, err);
    }
    return code;
}

bool batch_only_generates(const struct batch *batch) {
    return batch->kind == STEP_TIME_STEP &&
           batch->step.n_decode + batch->n_drafting == batch->step.n_seqs;
}
