/* test_tokenizer_merges.c - merging pieces, short ones by scanning and long ones with windows and
 * with the queue of batches, against the definition: again and again the pair of lowest rank,
 * leftmost on a tie.
 *
 * The merges are random, and so are their ranks: what a merge makes may come before it. */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/internal.h"
#include "tests/test.h"

enum { N_SYMBOLS = 3, N_MERGES = 24, N_PIECE = 400, N_TRIES = 2000 };

struct rule {
    uint32_t left, right, rank, id;
};

static uint32_t draw(uint64_t *state, uint32_t n) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

static bool is_known(const struct rule *rules, size_t n, uint32_t left, uint32_t right) {
    for (size_t i = 0; i < n; i++)
        if (rules[i].left == left && rules[i].right == right) return true;
    return false;
}

/* Distinct pairs with distinct ranks, some of which make the same token; returns their number. */
static size_t draw_rules(uint64_t *state, struct rule *rules) {
    size_t n = 0;
    for (uint32_t i = 0; i < N_MERGES; i++) {
        const uint32_t n_ids = N_SYMBOLS + (uint32_t)n;
        const uint32_t left = draw(state, n_ids);
        const uint32_t right = draw(state, 3) ? draw(state, n_ids) : left; /* as in a run */
        if (is_known(rules, n, left, right)) continue;
        const uint32_t again = draw(state, N_MERGES);
        const uint32_t id = again < n ? rules[again].id : n_ids;
        const uint32_t rank = 64 * (draw(state, 64) * N_MERGES + i); /* many share a slot */
        rules[n++] = (struct rule){left, right, rank, id};
    }
    return n;
}

static const struct rule *find_rule(const struct rule *rules, size_t n, uint32_t left,
                                    uint32_t right) {
    for (size_t i = 0; i < n; i++)
        if (rules[i].left == left && rules[i].right == right) return &rules[i];
    return NULL;
}

static size_t merge_by_definition(const struct rule *rules, size_t n_rules, uint32_t *ids,
                                  size_t n) {
    for (;;) {
        const struct rule *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const struct rule *rule = find_rule(rules, n_rules, ids[i], ids[i + 1]);
            if (!rule || (best && best->rank <= rule->rank)) continue;
            best = rule;
            at = i;
        }
        if (!best) return n;
        ids[at] = best->id;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof(*ids));
        n--;
    }
}

/* Windows, which mostly agree, and all at once. */
static void assert_merges_to(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t *ids,
                             size_t n, const uint32_t *expected, size_t n_expected) {
    uint32_t copy[N_PIECE], begins[N_PIECE];
    size_t n_at_once = n;
    memcpy(copy, ids, n * sizeof(*ids));
    assert_int_equal(bpe_merge(bpe, scratch, ids, &n), 0);
    assert_int_equal(n, n_expected);
    assert_memory_equal(ids, expected, n * sizeof(*ids));
    assert_int_equal(bpe_merge_at_once(bpe, scratch, copy, begins, &n_at_once), 0);
    assert_int_equal(n_at_once, n_expected);
    assert_memory_equal(copy, expected, n_at_once * sizeof(*copy));
    assert_int_equal(begins[0], 0);
}

TEST(pieces_merge_by_the_definition) {
    uint64_t seed = 20250808;
    struct bpe_scratch scratch = {0};
    size_t n_merged = 0;
    for (int t = 0; t < N_TRIES; t++) {
        struct rule rules[N_MERGES];
        struct bpe bpe;
        uint32_t ids[N_PIECE], expected[N_PIECE];
        const size_t n_rules = draw_rules(&seed, rules);
        const uint32_t n_letters = 1 + draw(&seed, N_SYMBOLS);
        const size_t n = 1 + draw(&seed, draw(&seed, 2) ? BPE_FEW : N_PIECE);
        for (size_t i = 0; i < n; i++) ids[i] = expected[i] = draw(&seed, n_letters);
        const size_t n_expected = merge_by_definition(rules, n_rules, expected, n);
        n_merged += n - n_expected;
        assert_int_equal(bpe_init(&bpe, n_rules), 0);
        for (size_t i = 0; i < n_rules; i++)
            bpe_add_merge(&bpe, rules[i].left, rules[i].right, rules[i].rank, rules[i].id);
        assert_merges_to(&bpe, &scratch, ids, n, expected, n_expected);
        bpe_fini(&bpe);
    }
    assert_true(n_merged > 1000);
    bpe_scratch_fini(&scratch);
}

/* b b b ... b Z: Z swallows them one after the other, but a window without it pairs them. */
TEST(an_end_may_change_all_before_it) {
    enum { B, Z, PAIR };
    struct bpe_scratch scratch = {0};
    struct bpe bpe;
    uint32_t ids[N_PIECE];
    const uint32_t expected[] = {Z};
    for (size_t i = 0; i < N_PIECE; i++) ids[i] = B;
    ids[N_PIECE - 1] = Z;
    assert_int_equal(bpe_init(&bpe, 2), 0);
    bpe_add_merge(&bpe, B, Z, 0, Z);
    bpe_add_merge(&bpe, B, B, 1, PAIR);
    assert_merges_to(&bpe, &scratch, ids, N_PIECE, expected, 1);
    bpe_fini(&bpe);
    bpe_scratch_fini(&scratch);
}
