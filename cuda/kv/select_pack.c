/* select_pack.c - see select_pack.h. */
#include "cuda/kv/select_pack.h"

#include <string.h>

#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

bool step_has_selects(const struct step *step) {
    for (uint32_t i = 0; i < step->n_decode; i++)
        if (step->seqs[i].select) return true;
    return false;
}

bool step_has_observations(const struct step *step) {
    for (uint32_t i = 0; i < step->n_seqs; i++)
        if (step->seqs[i].observed) return true;
    return false;
}

/* Tells whether the scores of a decoding sequence are kept by attention that `selects`. */
static bool is_scored(const struct step_seq *seq) {
    return seq->select || seq->observed;
}

static uint32_t text_slots(const struct step_seq *seq) {
    return seq->n_before + seq->n_rows;
}

static bool is_sparse(const struct step_seq *seq, uint32_t layer) {
    return seq->layers[layer].n_slots < text_slots(seq) && !step_budget(seq, layer);
}

uint32_t score_slots(const struct step_seq *seq) {
    if (is_scored(seq)) return text_slots(seq);
    const bool has_scores = seq->budget && kv_has_scores(seq->budget);
    return has_scores ? seq->layers[step_first_budgeted(seq)].n_slots : 0;
}

static uint32_t count_sparse(const struct step *step, const struct step_seq *seq) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < step->n_layers; l++) n += is_sparse(seq, l);
    return n;
}

static size_t state_pages(const struct select_shape *shape, uint32_t n_selected) {
    return (size_t)shape->n_groups * ((n_selected + shape->state_slots - 1) / shape->state_slots);
}

static size_t count_lists(const struct step *step, const struct step_seq *seq,
                          const struct select_shape *shape) {
    const struct kv_select *select = seq->select;
    const size_t n_pages = select->n_candidates / PAGE_TOKENS,
                 n_states = state_pages(shape, select->n_selected);
    if (select->blocks) return n_states + n_pages;
    return n_states + step->n_layers + count_sparse(step, seq) * n_pages;
}

size_t select_pack_lists_at(const struct step *step) {
    const size_t n_observations = step_has_observations(step) ? step->n_seqs : 0;
    return (size_t)step->n_decode * SELECT_WORDS + n_observations * OBSERVATION_WORDS;
}

size_t select_pack_words(const struct step *step, const struct select_shape *shape) {
    size_t n = select_pack_lists_at(step);
    if (!step_has_selects(step) && !step_has_observations(step)) return 0;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        if (seq->select) n += count_lists(step, seq, shape);
        if (seq->observed) n += (size_t)shape->n_groups * seq->observed->n_pages;
    }
    return n;
}

/* Returns the most pages of token scores that a sequence has: KV_OBSERVED runs for each page of its
 * text. */
static size_t score_pages(const struct step_limits *limits, const struct select_shape *shape) {
    const size_t n_runs = limits->select->max_slots / PAGE_TOKENS * KV_OBSERVED,
                 each = shape->state_slots / PAGE_TOKENS;
    return shape->n_groups * ((n_runs + each - 1) / each);
}

size_t select_pack_most_words(const struct step_limits *limits, const struct select_shape *shape) {
    const struct select_limits *largest = limits->select;
    if (!largest) return 0;
    const size_t most_blocks = (size_t)limits->max_seqs * (largest->max_slots / PAGE_TOKENS),
                 most_pages = (size_t)limits->n_layers * (limits->max_slots / PAGE_TOKENS),
                 n_lists = most_blocks > most_pages ? most_blocks : most_pages;
    return limits->max_seqs *
               (SELECT_WORDS + OBSERVATION_WORDS + state_pages(shape, largest->max_selected) +
                limits->n_layers + score_pages(limits, shape)) +
           n_lists;
}

/* Appends n words at *at and returns where they begin. */
static int32_t append(int32_t *lists, size_t *at, const uint32_t *from, size_t n) {
    const int32_t place = (int32_t)*at;
    memcpy(lists + *at, from, n * sizeof(*lists));
    *at += n;
    return place;
}

static int32_t append_pool_pages(const struct step *step, const struct step_seq *seq,
                                 int32_t *lists, size_t *at) {
    const int32_t place = (int32_t)*at;
    *at += step->n_layers;
    for (uint32_t l = 0; l < step->n_layers; l++)
        lists[place + (int32_t)l] = is_sparse(seq, l)
                                        ? append(lists, at, seq->select->pool_pages[l],
                                                 seq->select->n_candidates / PAGE_TOKENS)
                                        : -1;
    return place;
}

static void pack_one(const struct step *step, const struct step_seq *seq,
                     const struct select_shape *shape, struct device_select *to, int32_t *lists,
                     size_t *at) {
    const struct kv_select *select = seq->select;
    to->n_selected = select->n_selected;
    to->n_candidates = select->n_candidates;
    to->n_sink = select->n_sink;
    to->fresh = select->fresh;
    to->states = append(lists, at, select->state_pages, state_pages(shape, select->n_selected));
    if (select->blocks)
        to->blocks = append(lists, at, select->blocks, select->n_candidates / PAGE_TOKENS);
    else to->pages = append_pool_pages(step, seq, lists, at);
}

static void pack_observations(const struct step *step, const struct select_shape *shape,
                              struct device_observation *to, int32_t *lists, size_t *at) {
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        const struct kv_observation *o = seq->observed;
        const uint32_t first = o && o->first > seq->n_before ? o->first - seq->n_before : 0;
        to[i] = (struct device_observation){0};
        if (!o || first >= seq->n_rows) continue;
        to[i] = (struct device_observation){.n_scored = o->n_scored,
                                            .selector = o->selector,
                                            .n_before = seq->n_before,
                                            .first = first,
                                            .n_pages = o->n_pages};
        to[i].pages = append(lists, at, o->pages, (size_t)shape->n_groups * o->n_pages);
    }
}

void select_pack(const struct step *step, const struct select_shape *shape, int32_t *words) {
    struct device_select *to = (struct device_select *)words;
    int32_t *lists = words + select_pack_lists_at(step), keys_at = 0, scores_at = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < step->n_decode; scores_at += (int32_t)score_slots(&step->seqs[i++])) {
        const struct step_seq *seq = &step->seqs[i];
        to[i] = (struct device_select){.scores_at = -1, .blocks = -1, .pages = -1};
        if (!is_scored(seq)) continue;
        to[i].scores_at = scores_at;
        to[i].keys_at = keys_at;
        if (seq->select) pack_one(step, seq, shape, &to[i], lists, &at);
        keys_at += (int32_t)to[i].n_candidates;
    }
    if (step_has_observations(step))
        pack_observations(
            step, shape,
            (struct device_observation *)(words + (size_t)step->n_decode * SELECT_WORDS), lists,
            &at);
}
