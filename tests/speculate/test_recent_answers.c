/* test_recent_answers.c - the store against a list of answers, searched one by one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/speculate/recent_answers.h"
#include "tests/test.h"

enum { N_TOKENS = 1024, N_ANSWERS = 400, MOST = 120 };

struct answer {
    uint64_t scope;
    uint32_t n, tokens[MOST];
};

static void make_answer(struct answer *answer, const struct answer *others, uint32_t n_others) {
    answer->scope = 1 + (uint64_t)(rand() % 3);
    answer->n = (uint32_t)rand() % MOST;
    for (uint32_t i = 0; i < answer->n;) {
        const struct answer *other = n_others > 0 ? &others[(uint32_t)rand() % n_others] : NULL;
        const uint32_t from =
            other && other->n > 0 && rand() % 3 ? (uint32_t)rand() % other->n : UINT32_MAX;
        for (uint32_t k = (uint32_t)rand() % 40; k > 0 && i < answer->n; k--, i++)
            answer->tokens[i] = other && from < other->n - 1 ? other->tokens[(from + k) % other->n]
                                                             : (uint32_t)rand() % 3;
    }
}

/* Returns the longest match of the text's end in answers of the scope: those of the list that the
 * store has not forgotten whole.  A part of the oldest one may still be there. */
static uint32_t look_everywhere(const struct answer *answers, uint32_t n_answers, uint64_t scope,
                                const uint32_t *tokens, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = n_answers, n_back = 0; i-- > 0;) {
        const struct answer *a = &answers[i];
        if (a->n <= RECENT_MIN) continue;
        n_back += a->n + 1;
        const uint32_t first = n_back > N_TOKENS ? n_back - N_TOKENS : 0;
        for (uint32_t end = first + 1; a->scope == scope && end < a->n; end++) {
            uint32_t length = 0;
            while (length < end - first && length < n && length < SUFFIX_MAX &&
                   a->tokens[end - 1 - length] == tokens[n - 1 - length])
                length++;
            if (length >= RECENT_MIN && length > best) best = length;
        }
        if (first > 0) break;
    }
    return best;
}

/* Looks for the end of a text that another answer has, too, or nearly. */
static void check_one(const struct recent_answers *recent, const struct answer *answers,
                      uint32_t n_answers, uint32_t *n_found) {
    struct answer text;
    make_answer(&text, answers, n_answers);
    if (text.n == 0) return;
    const uint32_t expected = look_everywhere(answers, n_answers, text.scope, text.tokens, text.n);
    const struct suffix_match match =
        recent_answers_find(recent, text.scope, text.tokens, text.n, NULL);
    /* A chain is followed only so far, so a longer match may be missed; none is made up. */
    assert_true(match.length <= expected);
    *n_found += match.length == expected && expected > 0;
    uint32_t next[MOST];
    if (match.length > 0) {
        const uint32_t n = recent_answers_copy(recent, match.end, next, MOST);
        assert_true(n > 0 && n < MOST);
    }
}

TEST(it_finds_what_a_search_of_all_answers_finds) {
    uint32_t n_found = 0;
    for (unsigned seed = 1; seed <= 10; seed++) {
        struct answer *answers = calloc(N_ANSWERS, sizeof(*answers));
        struct recent_answers *recent = NULL;
        srand(seed);
        assert_int_equal(recent_answers_create(&recent, N_TOKENS), 0);
        for (uint32_t i = 0; i < N_ANSWERS; i++) {
            make_answer(&answers[i], answers, i);
            recent_answers_add(recent, answers[i].scope, answers[i].tokens, answers[i].n);
            for (int k = 0; k < 5; k++) check_one(recent, answers, i + 1, &n_found);
        }
        recent_answers_destroy(recent);
        free(answers);
    }
    print_message("%u found\n", n_found);
    assert_true(n_found > 1000);
}

static void fill(uint32_t *tokens, uint32_t n, uint32_t first) {
    for (uint32_t i = 0; i < n; i++) tokens[i] = first + i;
}

static struct recent_answers *store_of_one(uint64_t scope) {
    struct recent_answers *recent = NULL;
    uint32_t tokens[100];
    fill(tokens, 100, 1000);
    assert_int_equal(recent_answers_create(&recent, N_TOKENS), 0);
    recent_answers_add(recent, scope, tokens, 100);
    return recent;
}

TEST(an_answer_is_found_by_its_scope_alone) {
    struct recent_answers *recent = store_of_one(7);
    uint32_t text[20], next[200];
    fill(text, 20, 1010);
    const struct suffix_match match = recent_answers_find(recent, 7, text, 20, NULL);
    assert_int_equal(match.length, 20);
    assert_int_equal(recent_answers_copy(recent, match.end, next, 200), 70); /* to its end */
    for (uint32_t i = 0; i < 70; i++) assert_int_equal(next[i], 1030 + i);
    for (uint64_t scope = 0; scope < 100; scope++)
        if (scope != 7)
            assert_int_equal(recent_answers_find(recent, scope, text, 20, &match.end).length, 0);
    recent_answers_destroy(recent);
}

TEST(a_match_has_its_least_length_and_something_behind_it) {
    struct recent_answers *recent = store_of_one(7);
    uint32_t text[100];
    fill(text, 100, 1000);
    for (uint32_t n = 0; n <= 100; n++) {
        const struct suffix_match match = recent_answers_find(recent, 7, text, n, NULL);
        const uint32_t most = n < SUFFIX_MAX ? n : SUFFIX_MAX;
        assert_int_equal(match.length, n < RECENT_MIN || n == 100 ? 0 : most);
    }
    text[9] = 0; /* only what comes behind it is the same */
    for (uint32_t n = 11; n < 30; n++)
        assert_int_equal(recent_answers_find(recent, 7, text, n, NULL).length,
                         n - 10 < RECENT_MIN ? 0 : n - 10);
    recent_answers_destroy(recent);
}

TEST(of_equal_ones_the_hint_and_else_the_newest_is_taken) {
    struct recent_answers *recent = store_of_one(7);
    uint32_t tokens[30], next;
    fill(tokens, 20, 1020);
    fill(tokens + 20, 10, 5000);
    const struct suffix_match first = recent_answers_find(recent, 7, tokens, 20, NULL);
    recent_answers_add(recent, 7, tokens, 30);
    const struct suffix_match newest = recent_answers_find(recent, 7, tokens, 20, NULL);
    assert_int_equal(recent_answers_copy(recent, newest.end, &next, 1), 1);
    assert_int_equal(next, 5000);
    const struct suffix_match hinted = recent_answers_find(recent, 7, tokens, 20, &first.end);
    assert_int_equal(hinted.end, first.end);
    assert_int_equal(recent_answers_copy(recent, hinted.end, &next, 1), 1);
    assert_int_equal(next, 1040);
    recent_answers_destroy(recent);
}

TEST(the_oldest_answers_are_forgotten) {
    struct recent_answers *recent = store_of_one(7);
    uint32_t tokens[100], text[50];
    fill(text, 50, 1000);
    const struct suffix_match first = recent_answers_find(recent, 7, text, 50, NULL);
    uint32_t n = 1;
    for (; recent_answers_find(recent, 7, text, 50, &first.end).length > 0; n++) {
        fill(tokens, 100, 1000 * (n + 1));
        recent_answers_add(recent, 7, tokens, 100);
    }
    assert_int_equal(n, N_TOKENS / 101 + 1);
    for (uint32_t i = 0; i < n; i++) {
        fill(text, 50, 1000 * (i + 1));
        assert_int_equal(recent_answers_find(recent, 7, text, 50, NULL).length > 0, i > 0);
    }
    recent_answers_destroy(recent);
}

TEST(of_a_long_answer_the_newest_tokens_are_kept) {
    enum { LONG = 10 * N_TOKENS };
    static uint32_t tokens[LONG];
    struct recent_answers *recent = store_of_one(7);
    fill(tokens, LONG, 2000);
    recent_answers_add(recent, 7, tokens, LONG);
    assert_int_equal(recent_answers_find(recent, 7, tokens, LONG - 1, NULL).length, SUFFIX_MAX);
    assert_int_equal(recent_answers_find(recent, 7, tokens, LONG / 2, NULL).length, 0);
    fill(tokens, 50, 1000); /* the one before it is still there */
    assert_int_equal(recent_answers_find(recent, 7, tokens, 50, NULL).length, 50);
    recent_answers_destroy(recent);
}

TEST(short_answers_and_an_empty_store_have_nothing) {
    struct recent_answers *recent = NULL;
    uint32_t tokens[RECENT_MIN + 1] = {0};
    assert_int_equal(recent_answers_create(&recent, N_TOKENS), 0);
    for (uint32_t n = 0; n <= RECENT_MIN + 1; n++) {
        assert_int_equal(recent_answers_find(recent, 0, tokens, n, NULL).length, 0);
        if (n <= RECENT_MIN) recent_answers_add(recent, 0, tokens, n);
    }
    recent_answers_add(recent, 0, tokens, RECENT_MIN + 1);
    assert_int_equal(recent_answers_find(recent, 0, tokens, RECENT_MIN, NULL).length, RECENT_MIN);
    recent_answers_destroy(recent);
}
