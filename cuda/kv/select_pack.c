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

static uint32_t text_slots(const struct step_seq *seq) {
    return seq->n_before + seq->n_rows;
}

static bool is_sparse(const struct step_seq *seq, uint32_t layer) {
    return seq->layers[layer].n_slots < text_slots(seq) && !step_budget(seq, layer);
}

uint32_t score_slots(const struct step_seq *seq) {
    if (seq->select) return text_slots(seq);
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

size_t select_pack_words(const struct step *step, const struct select_shape *shape) {
    size_t n = 0;
    if (!step_has_selects(step)) return 0;
    for (uint32_t i = 0; i < step->n_decode; i++) {
        n += SELECT_WORDS;
        if (step->seqs[i].select) n += count_lists(step, &step->seqs[i], shape);
    }
    return n;
}

size_t select_pack_most_words(const struct step_limits *limits, const struct select_shape *shape) {
    const struct select_limits *largest = limits->select;
    if (!largest) return 0;
    const size_t most_blocks = (size_t)limits->max_seqs * (largest->max_slots / PAGE_TOKENS),
                 most_pages = (size_t)limits->n_layers * (limits->max_slots / PAGE_TOKENS),
                 n_lists = most_blocks > most_pages ? most_blocks : most_pages;
    return limits->max_seqs *
               (SELECT_WORDS + state_pages(shape, largest->max_selected) + limits->n_layers) +
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

void select_pack(const struct step *step, const struct select_shape *shape, int32_t *words) {
    struct device_select *to = (struct device_select *)words;
    int32_t *lists = words + (size_t)step->n_decode * SELECT_WORDS, keys_at = 0, scores_at = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < step->n_decode; scores_at += (int32_t)score_slots(&step->seqs[i++])) {
        const struct step_seq *seq = &step->seqs[i];
        const struct kv_select *select = seq->select;
        to[i] = (struct device_select){.blocks = -1, .pages = -1};
        if (!select) continue;
        to[i] = (struct device_select){.n_selected = select->n_selected,
                                       .n_candidates = select->n_candidates,
                                       .n_sink = select->n_sink,
                                       .fresh = select->fresh,
                                       .scores_at = scores_at,
                                       .keys_at = keys_at,
                                       .blocks = -1,
                                       .pages = -1};
        to[i].states =
            append(lists, &at, select->state_pages, state_pages(shape, select->n_selected));
        if (select->blocks)
            to[i].blocks = append(lists, &at, select->blocks, select->n_candidates / PAGE_TOKENS);
        else to[i].pages = append_pool_pages(step, seq, lists, &at);
        keys_at += (int32_t)select->n_candidates;
    }
}
