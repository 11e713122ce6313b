/* test_drafter.c - what is guessed, and how much. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/speculate/drafter.h"
#include "tests/test.h"

enum { N = 4000 };

/* Guesses and answers until the text has n_end tokens: token i is answer[i].  Returns the steps. */
static uint32_t answer_all(struct drafter *d, uint32_t *tokens, uint32_t n, const uint32_t *answer,
                           uint32_t n_end, uint32_t *n_guessed) {
    uint32_t n_steps = 0;
    for (*n_guessed = 0; n < n_end; n_steps++) {
        drafter_read(d, tokens, n);
        const bool ready = drafter_is_ready(d, tokens, n);
        const uint32_t n_drafted = drafter_guess(d, tokens, n, n_end - n - 1);
        assert_true(n_drafted <= DRAFT_MAX && (n_drafted == 0 || ready));
        uint32_t n_right = 0;
        while (n_right < n_drafted && tokens[n + n_right] == answer[n + n_right]) n_right++;
        memcpy(tokens + n, answer + n, (n_right + 1) * sizeof(*tokens));
        n += n_right + 1;
        *n_guessed += n_drafted;
        drafter_learn(d, n_right + 1, n_drafted, n_right);
    }
    return n_steps;
}

TEST(a_quotation_is_followed_to_its_end) {
    uint32_t text[N], answer[N], n_guessed;
    struct drafter d;
    srand(1);
    for (uint32_t i = 0; i < N / 2; i++) answer[i] = answer[N / 2 + i] = (uint32_t)rand() % 30000;
    memcpy(text, answer, (N / 2 + 4) * sizeof(*text));
    assert_int_equal(drafter_init(&d, N, NULL, 0, NULL), 0);
    const uint32_t n_steps = answer_all(&d, text, N / 2 + 4, answer, N, &n_guessed);
    assert_true(n_steps < (N / 2) / 14);
    drafter_fini(&d);
    /* It is also where a step with guesses costs more, behind the tokens that show it to be one. */
    struct shared_credit shared = shared_credit_make();
    assert_int_equal(drafter_init(&d, N, NULL, 0, &shared), 0);
    assert_true(answer_all(&d, text, N / 2 + 4, answer, N, &n_guessed) < n_steps + 6);
    drafter_fini(&d);
}

/* Every token is one of few, so that something is always found, and nothing follows from it. */
TEST(where_no_guess_is_right_few_are_made) {
    uint32_t text[N], answer[N], n_guessed;
    struct drafter d;
    srand(2);
    for (uint32_t i = 0; i < N; i++) answer[i] = i % 4 ? i % 4 : 4 + i;
    memcpy(text, answer, 400 * sizeof(*text));
    assert_int_equal(drafter_init(&d, N, NULL, 0, NULL), 0);
    uint32_t n_steps = answer_all(&d, text, 400, answer, N, &n_guessed);
    assert_true(n_guessed > 0 && n_guessed <= 8 + (N - 400) / 8);
    assert_true(n_steps == N - 400);
    drafter_fini(&d);
    /* In company a row costs more, and fewer are spent. */
    assert_int_equal(drafter_init(&d, N, NULL, 0, NULL), 0);
    drafter_share(&d, 30);
    n_steps = answer_all(&d, text, 400, answer, N, &n_guessed);
    assert_true(n_guessed > 0 && n_guessed <= 1 + (N - 400) / 64);
    drafter_fini(&d);
    /* Three tokens are no evidence where a step with guesses takes as long as three others. */
    struct shared_credit shared = shared_credit_make();
    for (int i = 0; i < 20; i++) guess_price_measure(&shared.price, 1, 0, 1);
    for (int i = 0; i < 20; i++) guess_price_measure(&shared.price, 1, 1, 3);
    assert_int_equal(drafter_init(&d, N, NULL, 0, &shared), 0);
    n_steps = answer_all(&d, text, 400, answer, N, &n_guessed);
    assert_true(n_guessed == 0 && n_steps == N - 400);
    drafter_fini(&d);
}

TEST(a_quotation_behind_a_long_text_of_its_own_is_noticed) {
    uint32_t text[N], answer[N], n_guessed;
    struct drafter d;
    srand(3);
    for (uint32_t i = 0; i < N; i++)
        answer[i] = i < 3000 && i % 4 ? i % 4 : 4 + (uint32_t)rand() % 30000;
    memcpy(answer + 3000, answer + 100, 500 * sizeof(*answer));
    memcpy(text, answer, 400 * sizeof(*text));
    assert_int_equal(drafter_init(&d, N, NULL, 0, NULL), 0);
    answer_all(&d, text, 400, answer, 3000, &n_guessed);
    assert_true(answer_all(&d, text, 3000, answer, 3500, &n_guessed) < 100);
    drafter_fini(&d);
}

TEST(a_period_goes_on_beyond_the_text) {
    uint32_t text[100];
    struct drafter d;
    assert_int_equal(drafter_init(&d, 100, NULL, 0, NULL), 0);
    for (uint32_t i = 0; i < 20; i++) text[i] = i % 3;
    drafter_read(&d, text, 20);
    assert_int_equal(drafter_guess(&d, text, 20, 2), 2);
    assert_int_equal(drafter_guess(&d, text, 20, 50), 4); /* until more have been right */
    for (uint32_t i = 20; i < 24; i++) assert_int_equal(text[i], i % 3);
    drafter_fini(&d);
}

TEST(a_long_prompt_is_read_in_pieces) {
    enum { LONG = 3 * DRAFTER_READ_MOST };
    uint32_t *text = calloc(LONG + 20, sizeof(*text)), n_pieces = 0;
    struct drafter d;
    assert_int_equal(drafter_init(&d, LONG + 20, NULL, 0, NULL), 0);
    for (; !drafter_is_ready(&d, text, LONG); n_pieces++) {
        assert_int_equal(drafter_guess(&d, text, LONG, 4), 0);
        drafter_read(&d, text, LONG);
    }
    assert_int_equal(n_pieces, 3);
    assert_int_equal(drafter_guess(&d, text, LONG, 4), 4);
    drafter_fini(&d);
    free(text);
}
