/* fake_select.c - see fake_select.h. */
#include "tests/engine/fake_select.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/step.h"
#include "tests/test.h"

enum { MOST_TOKENS = 4096, MOST_COPIES = 1024, BASE = 1000 /* of a layer's cells */ };

static struct copy {
    const struct page *from;
    char *to;
} copies[MOST_COPIES];
static uint32_t n_copies;

/* A token of the fake store: its cell in the place of the key. */
static uint32_t *store_cell(const struct host_pool *store, uint32_t host_layer, uint32_t block,
                            uint32_t token) {
    char *base = (char *)store->base + block * host_pool_block_bytes(store);
    const uint32_t at = host_layer * PAGE_TOKENS + token % PAGE_TOKENS;
    return (uint32_t *)(void *)(base + at * host_pool_token_bytes(store));
}

int fake_offload_pages(struct backend *be, const struct offload_args *args, struct error *err) {
    (void)be;
    if (device.fails) return error_set(err, ERR_DEVICE, "the cable is loose");
    assert_true(args->host_layer < args->store->n_host_layers);
    for (uint32_t i = 0; i < args->n; i++) {
        assert_true(n_copies < MOST_COPIES && args->blocks[i] < args->store->n_blocks);
        copies[n_copies++] =
            (struct copy){(struct page *)args->kv->base + args->pages[i],
                          (char *)store_cell(args->store, args->host_layer, args->blocks[i], 0)};
    }
    device.n_stored += args->n;
    return 0;
}

/* Behind all copies that were submitted before. */
int fake_reload_pages(struct backend *be, const struct offload_args *args, struct error *err) {
    (void)be, (void)err;
    fake_store_finish();
    for (uint32_t i = 0; i < args->n; i++) {
        struct page *page = (struct page *)args->kv->base + args->pages[i];
        const char *from = (char *)store_cell(args->store, args->host_layer, args->blocks[i], 0);
        for (uint32_t t = 0; t < PAGE_TOKENS; t++) {
            memcpy(&page->cells[t], from + 2 * t * sizeof(uint32_t), sizeof(uint32_t));
            page->choices[t] = 0;
        }
    }
    device.n_reloaded += args->n;
    return 0;
}

void fake_store_finish(void) {
    for (uint32_t i = 0; i < n_copies; i++)
        for (uint32_t t = 0; t < PAGE_TOKENS; t++)
            memcpy(copies[i].to + 2 * t * sizeof(uint32_t), &copies[i].from->cells[t],
                   sizeof(uint32_t));
    n_copies = 0;
}

static uint32_t *cell_at(struct fixture *f, const uint32_t *pages, uint32_t slot) {
    return &f->memory[pages[slot / PAGE_TOKENS]].cells[slot % PAGE_TOKENS];
}

static uint32_t *state_at(struct fixture *f, const struct kv_select *select, uint32_t slot) {
    const uint32_t n = kv_state_slots(&f->pool);
    return (uint32_t *)(void *)&f->memory[select->state_pages[slot / n]] + slot % n;
}

struct candidate {
    uint32_t token, key;
};

static int by_key(const void *a, const void *b) {
    const struct candidate *left = a, *right = b;
    return (left->key > right->key) - (left->key < right->key);
}

/* Each token's key is another one every eighth step. */
static void choose(const struct kv_select *select, uint32_t n_before, bool *chosen) {
    static struct candidate candidates[MOST_TOKENS];
    assert_true(select->n_candidates <= MOST_TOKENS && select->n_sink <= select->n_selected);
    for (uint32_t t = 0; t < select->n_candidates; t++) {
        const uint32_t key = fixture_mix(fixture_mix(7, t), (n_before + t) / 8);
        candidates[t] = (struct candidate){t, t < select->n_sink ? 0 : key};
        chosen[t] = false;
    }
    qsort(candidates, select->n_candidates, sizeof(*candidates), by_key);
    for (uint32_t i = 0; i < select->n_selected; i++) chosen[candidates[i].token] = true;
}

static uint32_t fetch(struct fixture *f, const struct kv_select *select, uint32_t layer,
                      uint32_t token) {
    assert_true((select->blocks == NULL) != (select->pool_pages == NULL));
    if (!select->blocks) return *cell_at(f, select->pool_pages[layer], token);
    return *store_cell(&f->store, layer - 1, select->blocks[token / PAGE_TOKENS], token);
}

/* Slots whose token is not chosen again get those that are not there, both in ascending order.
 * changed: these slots. */
static void replace(struct fixture *f, const struct kv_select *select, bool *missing,
                    bool *changed) {
    uint32_t next = 0;
    for (uint32_t s = 0; s < select->n_selected; s++) {
        const uint32_t token = select->fresh ? 0 : *state_at(f, select, s);
        if (!select->fresh) assert_true(token < select->n_candidates);
        changed[s] = select->fresh || !missing[token];
        if (!changed[s]) missing[token] = false;
    }
    for (uint32_t s = 0; s < select->n_selected; s++) {
        if (!changed[s]) continue;
        while (!missing[next]) next++;
        *state_at(f, select, s) = next++;
    }
}

static uint32_t fetch_changed(struct fixture *f, const struct step_seq *seq, uint32_t layer,
                              const bool *changed) {
    const struct kv_select *select = seq->select;
    uint32_t n_fetched = 0;
    for (uint32_t s = 0; s < select->n_selected; s++) {
        if (!changed[s]) continue;
        *cell_at(f, seq->layers[layer].pages, s) = fetch(f, select, layer, *state_at(f, select, s));
        n_fetched++;
    }
    return n_fetched;
}

static void check_slots(struct fixture *f, const struct step_seq *seq, uint32_t layer) {
    const struct kv_select *select = seq->select;
    const struct kv_view *all = &seq->layers[0], *view = &seq->layers[layer];
    for (uint32_t s = 0; s < view->n_slots; s++) {
        const uint32_t token = s < select->n_selected
                                   ? *state_at(f, select, s)
                                   : select->n_candidates + s - select->n_selected;
        assert_int_equal(*cell_at(f, view->pages, s),
                         *cell_at(f, all->pages, token) + BASE * layer);
    }
}

void fake_select_run(struct fixture *f, const struct step_seq *seq, uint32_t layer, uint32_t cell,
                     struct select_total *total) {
    static bool chosen[MOST_TOKENS], changed[MOST_TOKENS]; /* by layer 1, for those behind it */
    const struct kv_select *select = seq->select;
    const struct kv_view *view = &seq->layers[layer];
    assert_true(seq->n_rows == 1 && !seq->budget && !seq->sparse);
    assert_true(select->n_selected % PAGE_TOKENS == 0 && select->n_candidates % PAGE_TOKENS == 0);
    assert_true(select->n_selected < select->n_candidates);
    assert_int_equal(view->append_slot, select->n_selected + seq->n_before - select->n_candidates);
    assert_int_equal(view->n_slots, view->append_slot + 1);
    if (layer == 1) {
        choose(select, seq->n_before, chosen);
        replace(f, select, chosen, changed);
        *total = (struct select_total){.n_chosen = select->n_selected};
    }
    const uint32_t n_fetched = fetch_changed(f, seq, layer, changed);
    total->n_fetched = n_fetched;
    total->n_copies += n_fetched;
    *cell_at(f, view->pages, view->append_slot) = cell + BASE * layer;
    check_slots(f, seq, layer);
}
