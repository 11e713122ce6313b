/* test_select_pack.c - a step's selections as words for the device: every list is found where its
 * sequence says, and nothing is written past what was counted. */
#include "tests/cpu/cpu_test.h"

#include "cuda/kv/select_pack.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

enum { N_LAYERS = 5, N_SEQS = 4, N_GROUPS = 2, N_SELECTED = 128, N_CANDIDATES = 320 };
enum { SLOTS = 421, FEW_SLOTS = N_SELECTED + SLOTS - N_CANDIDATES, GUARD = 0x5a5a5a5a };

/* Layers 2 and 4 are sparse. */
static const uint32_t n_slots[N_LAYERS] = {SLOTS, SLOTS, FEW_SLOTS, SLOTS, FEW_SLOTS};

struct rig {
    uint32_t states[N_SEQS][N_GROUPS * 2], lists[N_SEQS][N_LAYERS][N_CANDIDATES / PAGE_TOKENS];
    const uint32_t *pool_pages[N_SEQS][N_LAYERS];
    struct kv_select selects[N_SEQS];
    struct kv_view views[N_LAYERS];
    struct step_seq seqs[N_SEQS];
    struct step step;
};

/* Sequence 0 has blocks, 1 selects nothing, 2 has pages, 3 computes its prompt. */
static void make_rig(struct rig *r) {
    uint32_t next = 1000;
    *r = (struct rig){.step = {.n_seqs = N_SEQS, .n_decode = 3, .n_layers = N_LAYERS}};
    r->step.seqs = r->seqs;
    for (uint32_t l = 0; l < N_LAYERS; l++) r->views[l].n_slots = n_slots[l];
    for (uint32_t i = 0; i < N_SEQS; i++) {
        for (uint32_t j = 0; j < N_GROUPS * 2; j++) r->states[i][j] = next++;
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            const bool sparse = n_slots[l] < SLOTS;
            for (uint32_t j = 0; j < N_CANDIDATES / PAGE_TOKENS; j++) r->lists[i][l][j] = next++;
            r->pool_pages[i][l] = sparse ? r->lists[i][l] : NULL; /* the others are not read */
        }
        r->selects[i] = (struct kv_select){.n_selected = N_SELECTED,
                                           .n_candidates = N_CANDIDATES,
                                           .n_sink = 4 + i,
                                           .fresh = i == 2,
                                           .state_pages = r->states[i]};
        if (i == 0) r->selects[i].blocks = r->lists[i][0];
        else r->selects[i].pool_pages = r->pool_pages[i];
        r->seqs[i] = (struct step_seq){
            .first_row = i, .n_rows = 1, .layers = r->views, .n_before = SLOTS - 1};
        if (i == 0 || i == 2) r->seqs[i].select = &r->selects[i];
    }
}

static void expect_list(const int32_t *lists, int32_t at, const uint32_t *expected, size_t n) {
    assert_true(at >= 0);
    assert_memory_equal(lists + at, expected, n * sizeof(*lists));
}

static void check_pack(uint32_t state_slots) {
    struct rig r;
    make_rig(&r);
    const struct select_shape shape = {N_GROUPS, state_slots};
    const size_t n = select_pack_words(&r.step, &shape), n_pages = N_CANDIDATES / PAGE_TOKENS;
    const size_t n_states = N_GROUPS * ((N_SELECTED + state_slots - 1) / state_slots);
    assert_int_equal(n, 3 * SELECT_WORDS + 2 * n_states + n_pages + N_LAYERS + 2 * n_pages);
    int32_t *words = malloc((n + 1) * sizeof(*words));
    assert_non_null(words);
    words[n] = GUARD;
    select_pack(&r.step, &shape, words);
    assert_int_equal(words[n], GUARD);
    const struct device_select *s = (const void *)words;
    const int32_t *lists = words + 3 * SELECT_WORDS;
    assert_int_equal(s[1].n_selected, 0);
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_int_equal(s[i].n_selected, N_SELECTED);
        assert_int_equal(s[i].n_candidates, N_CANDIDATES);
        assert_int_equal(s[i].n_sink, 4 + i);
        assert_int_equal(s[i].fresh, i == 2);
        assert_int_equal(s[i].scores_at, i == 0 ? 0 : SLOTS);
        assert_int_equal(s[i].keys_at, i == 0 ? 0 : N_CANDIDATES);
        expect_list(lists, s[i].states, r.states[i], n_states);
    }
    expect_list(lists, s[0].blocks, r.lists[0][0], n_pages);
    assert_int_equal(s[0].pages, -1);
    assert_int_equal(s[2].blocks, -1);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        const int32_t at = lists[s[2].pages + (int32_t)l];
        if (n_slots[l] < SLOTS) expect_list(lists, at, r.lists[2][l], n_pages);
        else assert_int_equal(at, -1);
    }
    free(words);
}

TEST(lists_are_where_sequences_say) {
    check_pack(65536); /* a state is one page */
    check_pack(64);    /* or two */
}

/* Sequence 0 is observed and selects, 1 is observed only.  3 computes its prompt, of which the rows
 * from 5 on count. */
TEST(observations_are_where_sequences_say) {
    enum { N_SCORE_PAGES = 3, N_BEFORE = SLOTS - 1 };
    static const bool is_observed[N_SEQS] = {true, true, false, true};
    struct rig r;
    struct kv_observation observed[N_SEQS];
    uint32_t pages[N_SEQS][N_GROUPS * N_SCORE_PAGES], next = 5000;
    make_rig(&r);
    r.seqs[3].n_rows = 20;
    r.step.n_rows = 23;
    for (uint32_t i = 0; i < N_SEQS; i++) {
        for (uint32_t j = 0; j < N_GROUPS * N_SCORE_PAGES; j++) pages[i][j] = next++;
        observed[i] = (struct kv_observation){.selector = KV_SELECTOR_UNIFORM,
                                              .first = N_BEFORE + (i == 3 ? 5 : 0) - (i == 1),
                                              .n_scored = 64 * (i + 1),
                                              .pages = pages[i],
                                              .n_pages = N_SCORE_PAGES};
        r.seqs[i].n_before = N_BEFORE;
        if (is_observed[i]) r.seqs[i].observed = &observed[i];
    }
    const struct select_shape shape = {N_GROUPS, 65536};
    const size_t n = select_pack_words(&r.step, &shape), first = 3 * SELECT_WORDS,
                 lists_at = first + N_SEQS * OBSERVATION_WORDS;
    assert_int_equal(select_pack_lists_at(&r.step), lists_at);
    int32_t *words = malloc((n + 1) * sizeof(*words));
    assert_non_null(words);
    words[n] = GUARD;
    select_pack(&r.step, &shape, words);
    assert_int_equal(words[n], GUARD);
    const struct device_select *s = (const void *)words;
    const struct device_observation *o = (const void *)(words + first);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(s[i].n_selected, i == 1 ? 0 : N_SELECTED);
        assert_int_equal(s[i].scores_at, i * SLOTS);
    }
    for (uint32_t i = 0; i < N_SEQS; i++) {
        assert_int_equal(o[i].n_scored, is_observed[i] ? 64 * (i + 1) : 0);
        if (!is_observed[i]) continue;
        assert_int_equal(o[i].first, i == 3 ? 5 : 0);
        assert_int_equal(o[i].n_before, N_BEFORE);
        expect_list(words + lists_at, o[i].pages, pages[i], N_GROUPS * N_SCORE_PAGES);
    }
    observed[3].first = N_BEFORE + 20; /* behind the step's rows */
    select_pack(&r.step, &shape, words);
    assert_int_equal(o[3].n_scored, 0);
    free(words);
}

TEST(steps_without_selections_have_no_words) {
    struct rig r;
    make_rig(&r);
    const struct select_shape shape = {N_GROUPS, 64};
    assert_true(step_has_selects(&r.step));
    for (uint32_t i = 0; i < N_SEQS; i++) r.seqs[i].select = NULL;
    assert_false(step_has_selects(&r.step));
    assert_int_equal(select_pack_words(&r.step, &shape), 0);
    assert_int_equal(select_pack_most_words(&(struct step_limits){.max_seqs = 4}, &shape), 0);
}

TEST(no_step_within_limits_has_more_words_than_the_most) {
    struct rig r;
    make_rig(&r);
    const struct select_shape shape = {N_GROUPS, 64};
    const struct select_limits largest = {
        .max_slots = SLOTS, .max_selected = N_SELECTED, .n_groups = N_GROUPS};
    const struct step_limits limits = {
        .max_seqs = 3, .max_slots = 2 * N_CANDIDATES, .n_layers = N_LAYERS, .select = &largest};
    for (uint32_t kinds = 0; kinds < 4; kinds++) { /* each of the two: blocks, or pages */
        for (uint32_t i = 0; i < 3; i += 2)
            r.selects[i].blocks = kinds >> i / 2 & 1 ? r.lists[i][0] : NULL;
        for (uint32_t i = 0; i < 3; i += 2) r.selects[i].pool_pages = r.pool_pages[i];
        assert_true(select_pack_words(&r.step, &shape) <= select_pack_most_words(&limits, &shape));
    }
}
