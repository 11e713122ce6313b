/* test_speculation.c - guesses with a fake model (scheduler_fixture.h), which mostly goes on with
 * the alphabet and so repeats its own text: what a request gives must not depend on what was
 * guessed.
 *
 * All tests run twice: a step at a time, and with the next step planned before the results of one
 * are there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/page_pool.h"
#include "tests/engine/scheduler_fixture.h"
#include "tests/kv_types.h"
#include "tests/test.h"

static const struct speculation_choice suffix = {.mode = SPECULATION_SUFFIX};

/* A prompt that goes through the alphabet, so that its end has been there before. */
static struct engine_request alphabet_request(struct client *c, uint32_t n_prompt,
                                              uint32_t max_tokens) {
    struct engine_request r = client_request(c, n_prompt, max_tokens);
    for (uint32_t i = 0; i < n_prompt; i++) r.prompt[i] = 'a' + i % 26;
    r.speculation = suffix;
    return r;
}

/* Some of the requests cannot be guessed for, and do without. */
static struct engine_request random_request(struct client *c, bool mixed) {
    struct engine_request r = client_request(c, 1 + (uint32_t)rand() % 250, (uint32_t)rand() % 200);
    client_fill_prompt(&r);
    r.priority = rand() % 3;
    r.cache_salt = (uint64_t)(rand() % 2);
    r.client = (uint64_t)(rand() % 2);
    r.params.n_prompt_logprobs = rand() % 10 == 0 ? 0 : -1;
    r.params.sampler.presence_penalty = rand() % 10 == 0;
    r.params.min_tokens = rand() % 4 == 0 ? (uint32_t)rand() % 50 : 0;
    r.params.seed = (uint64_t)rand();
    if (rand() % 8) r.speculation = suffix;
    if (mixed && rand() % 3 == 0)
        r.kv = (struct kv_choice){.mechanism = KV_BOUNDED,
                                  .type = TYPE_STREAMING,
                                  .n_sink = (uint32_t)rand() % 5,
                                  .n_recent = 1 + (uint32_t)rand() % 150};
    return r;
}

struct load {
    uint32_t n_pages, max_rows, max_seqs, n_blocks;
    bool mixed;
};

static void check_sums(const struct engine_stats *stats, const struct client *clients, uint32_t n) {
    struct speculation_usage sum = {0};
    for (uint32_t i = 0; i < n; i++) {
        const struct speculation_usage *one = &clients[i].last.speculation;
        speculation_usage_add(&sum, one);
        assert_true(one->n_accepted <= one->n_drafted && one->n_drafts <= one->n_drafted);
        assert_true(one->is_on || one->n_drafts == 0);
        assert_true(one->n_accepted <= clients[i].last.n_generated);
        assert_true(one->n_recent_drafted <= one->n_drafted);
        assert_true(one->n_recent_accepted <= one->n_recent_drafted);
    }
    assert_true(stats->speculation.n_drafts == sum.n_drafts);
    assert_true(stats->speculation.n_drafted == sum.n_drafted);
    assert_true(stats->speculation.n_accepted == sum.n_accepted);
    assert_true(stats->speculation.n_recent_drafted == sum.n_recent_drafted);
    assert_true(stats->speculation.n_recent_accepted == sum.n_recent_accepted);
}

static struct engine_stats random_load(struct load load, unsigned seed) {
    enum { N = 200 };
    struct fixture f;
    struct client *clients = calloc(N, sizeof(*clients));
    struct engine_stats stats;
    print_message("pages %u rows %u seqs %u blocks %u seed %u\n", load.n_pages, load.max_rows,
                  load.max_seqs, load.n_blocks, seed);
    fixture_init(&f, load.n_pages, load.max_rows, load.max_seqs);
    if (load.n_blocks) fixture_add_store(&f, load.n_blocks);
    srand(seed);
    for (uint32_t i = 0, n = 1; i < N || scheduler_n_live(f.scheduler) + f.n_inflight > 0; n++) {
        for (int k = rand() % 3; k > 0 && i < N; k--, i++) {
            struct engine_request r = random_request(&clients[i], load.mixed);
            fixture_submit(&f, &r, i + 1);
        }
        fixture_cancel_one(&f, clients, N, 10);
        fixture_step(&f, n);
        assert_true(n < 200000);
    }
    for (int i = 0; i < N; i++) client_check(&clients[i]);
    scheduler_stats(f.scheduler, &stats);
    check_sums(&stats, clients, N);
    fixture_fini(&f); /* every page is back */
    free(clients);
    return stats;
}

TEST(random_requests_give_what_they_give_alone) {
    static const struct load loads[] = {{MAX_PAGES, 512, 16, 0, false},
                                        {40, 64, 8, 0, false},
                                        {16, 33, 8, 0, false},
                                        {16, 8, 8, 0, false},
                                        {16, 9, 1, 0, false},
                                        {20, 40, 8, 60, false},
                                        {60, 64, 8, 0, true}};
    for (unsigned i = 0; i < sizeof(loads) / sizeof(*loads); i++) {
        const struct engine_stats stats = random_load(loads[i], i + 1);
        const struct speculation_usage *s = &stats.speculation;
        assert_true(s->n_accepted > 0 && s->n_accepted < s->n_drafted);
        assert_true(s->n_recent_accepted > 0 && s->n_recent_accepted < s->n_recent_drafted);
        if (loads[i].n_pages < 30 && loads[i].max_seqs > 1) assert_true(stats.n_preempted > 0);
        if (loads[i].n_blocks) assert_true(stats.n_swapped_in > 0);
    }
}

/* Runs one request and returns how many steps it took. */
static uint64_t steps_of(struct fixture *f, struct engine_request *r) {
    struct engine_stats stats;
    fixture_submit(f, r, 1);
    fixture_run(f);
    scheduler_stats(f->scheduler, &stats);
    return stats.n_steps;
}

TEST(a_text_that_repeats_itself_takes_fewer_steps) {
    struct fixture f;
    uint64_t n_steps[2];
    for (int on = 0; on < 2; on++) {
        struct client c = {0};
        fixture_init(&f, 60, 64, 4);
        struct engine_request r = alphabet_request(&c, 60, 400);
        r.params.ignore_eos = true;
        if (!on) r.speculation.mode = SPECULATION_OFF;
        n_steps[on] = steps_of(&f, &r);
        client_check(&c);
        assert_true(c.last.speculation.is_on == on);
        fixture_fini(&f);
    }
    assert_true(n_steps[1] < n_steps[0] * 2 / 3);
}

TEST(no_row_is_computed_behind_the_last_token) {
    for (uint32_t n = 1; n < 20; n++) {
        struct fixture f;
        struct client c = {0};
        fixture_init(&f, 60, 64, 4);
        struct engine_request r = alphabet_request(&c, 127, n);
        fixture_submit(&f, &r, 1);
        fixture_run(&f);
        client_check(&c);
        assert_true(c.last.speculation.n_drafted < n);
        fixture_fini(&f);
    }
}

TEST(what_is_computed_behind_a_wrong_guess_fails_nothing) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 60, 64, 4);
    struct engine_request r = alphabet_request(&c, 60, 40);
    r.params.ignore_eos = true;
    /* All that has followed x so far is no number; the model goes on with the alphabet. */
    for (uint32_t i = 0; i < 60; i++) r.prompt[i] = i % 4 == 3 ? POISON : 'u' + i % 4;
    r.prompt[59] = 'w';
    r.prompt[58] = 'v';
    r.prompt[57] = 'u';
    fixture_submit(&f, &r, 1);
    fixture_run(&f);
    client_check(&c);
    assert_true(c.last.speculation.n_drafted > c.last.speculation.n_accepted);
    fixture_fini(&f);
}

TEST(guesses_take_no_row_from_other_sequences) {
    struct fixture f;
    struct client c[4] = {0};
    fixture_init(&f, 60, 4, 4); /* a row each, and none to spare */
    for (uint32_t i = 0; i < 4; i++) {
        struct engine_request r = alphabet_request(&c[i], 60 + i, 40);
        r.params.ignore_eos = true;
        fixture_submit(&f, &r, i + 1);
    }
    fixture_run(&f);
    for (uint32_t i = 0; i < 4; i++) client_check(&c[i]);
    fixture_fini(&f);
}

/* A request and its answer, and a second one with the same answer.  Its own text has nothing to
 * guess from: it is shorter than the alphabet. */
struct two_requests {
    const char *what;
    uint64_t salts[2], clients[2];
    bool is_off[2], cancels, has_none;
    bool finds; /* the second one guesses from the first one's answer */
};

static struct client ask_again(struct fixture *f, const struct two_requests *two, int which) {
    struct client c = {0};
    struct engine_request r = alphabet_request(&c, 3, which == 0 ? 200 : 20);
    r.params.ignore_eos = true;
    r.cache_salt = two->salts[which];
    r.client = two->clients[which];
    if (two->is_off[which]) r.speculation.mode = SPECULATION_OFF;
    fixture_submit(f, &r, (uint64_t)which + 1);
    for (uint32_t n = 1; which == 0 && two->cancels && n < 40; n++) fixture_step(f, n);
    if (which == 0 && two->cancels) fixture_cancel_one(f, &c, 1, 1);
    fixture_run(f);
    client_check(&c);
    return c;
}

TEST(a_recent_answer_is_found_where_it_may_be) {
    static const struct two_requests all[] = {
        {"nothing apart", .finds = true},
        {"one salt and client", .salts = {5, 5}, .clients = {6, 6}, .finds = true},
        {"another salt", .salts = {5, 6}},
        {"a salt behind none", .salts = {0, 6}},
        {"none behind a salt", .salts = {6, 0}},
        {"another client", .salts = {5, 5}, .clients = {6, 7}},
        {"a client as the salt was", .salts = {5, 6}, .clients = {6, 5}},
        {"the first one off", .is_off = {true, false}},
        {"the second one off", .is_off = {false, true}},
        {"the first one cancelled", .cancels = true},
        {"no store", .has_none = true},
    };
    for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++) {
        struct fixture f;
        print_message("%s\n", all[i].what);
        fixture_init(&f, 60, 64, 4);
        struct recent_answers *recent = f.shared.recent;
        if (all[i].has_none) f.shared.recent = NULL;
        const struct client first = ask_again(&f, &all[i], 0), second = ask_again(&f, &all[i], 1);
        assert_true(first.last.speculation.n_recent_drafted == 0);
        assert_true((second.last.speculation.n_recent_accepted > 4) == all[i].finds);
        assert_true((second.last.speculation.n_recent_drafted > 0) == all[i].finds);
        f.shared.recent = recent;
        fixture_fini(&f);
    }
}

/* Steps of a millisecond, whatever is in them.  makes_graphs: graphs are made for all of them. */
static void run_timed(struct fixture *f, struct engine_request *r, uint64_t id, bool makes_graphs) {
    fixture_submit(f, r, id);
    for (uint32_t n = 1; scheduler_n_live(f->scheduler) + f->n_inflight > 0; n++) {
        clock_s += 1e-3;
        if (makes_graphs) scheduler_note_new_graph(f->scheduler);
        fixture_step(f, n);
    }
}

TEST(what_guesses_cost_is_learned_from_steps_that_only_generate) {
    struct fixture f;
    struct client c[2] = {0};
    const struct guess_price *price = &f.guess_credit.price;
    fixture_init(&f, 60, 64, 4);
    f.guess_credit = shared_credit_make();
    struct engine_request r = alphabet_request(&c[0], 300, 1); /* steps of a prompt */
    run_timed(&f, &r, 1, false);
    assert_int_equal(price->n_plain[0], 0);
    r = alphabet_request(&c[1], 60, 700);
    r.params.ignore_eos = true;
    run_timed(&f, &r, 2, false);
    assert_true((price->n_plain[0] > 0) == run_ahead);
    assert_true((price->n_guessing[0] > 0) == run_ahead);
    assert_true((guess_price_delay(price, 1) < GUESS_PRICE_FIRST) == run_ahead);
    for (int i = 0; i < 2; i++) client_check(&c[i]);
    fixture_fini(&f);
}

TEST(nothing_is_learned_from_steps_that_make_graphs) {
    struct fixture f;
    struct client c = {0};
    fixture_init(&f, 60, 64, 4);
    f.guess_credit = shared_credit_make();
    struct engine_request r = alphabet_request(&c, 60, 700);
    r.params.ignore_eos = true;
    run_timed(&f, &r, 1, true);
    assert_int_equal(f.guess_credit.price.n_plain[0] + f.guess_credit.price.n_guessing[0], 0);
    client_check(&c);
    fixture_fini(&f);
}

/* Short answers, some of which leave the alphabet behind a token that was waited for.  The credit
 * falls in a step in which no guess was wrong. */
TEST(a_wait_that_comes_to_nothing_is_paid) {
    struct fixture f;
    bool has_paid = false;
    fixture_init(&f, 60, 64, 4);
    for (uint32_t i = 0; i < 60; i++) {
        struct client c = {0};
        struct engine_request r = alphabet_request(&c, 60 + i, 6);
        r.params.ignore_eos = true;
        fixture_submit(&f, &r, i + 1);
        for (uint32_t n = 1; scheduler_n_live(f.scheduler) + f.n_inflight > 0; n++) {
            struct engine_stats before, after;
            const int32_t credit = f.guess_credit.credit;
            scheduler_stats(f.scheduler, &before);
            fixture_step(&f, n);
            scheduler_stats(f.scheduler, &after);
            has_paid |= f.guess_credit.credit < credit &&
                        after.speculation.n_drafts == before.speculation.n_drafts;
        }
        client_check(&c);
    }
    assert_true(has_paid == run_ahead);
    fixture_fini(&f);
}

int main(void) {
    repeats = true;
    return fixture_main();
}
