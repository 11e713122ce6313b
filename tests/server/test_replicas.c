/* test_replicas.c - several engines as one: which gets what, what comes back, and what a failing
 * one takes along. */
#include "server/replicas/replicas.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "tests/server/fake_engine.h"
#include "tests/test.h"

enum { N = 3, N_PROMPT = 100, MOST_STEP_S = 600 };

struct rig {
    struct engine *engines[N];
    struct replicas *replicas;
    uint64_t ids[64]; /* of the requests so far, and what came back of each */
    uint32_t n_tokens[64], n_ends[64];
    struct engine_event last[64];
    uint32_t n;
};

static int set_up(void **state) {
    struct rig *rig = calloc(1, sizeof(*rig));
    struct error err;
    assert_non_null(rig);
    for (int i = 0; i < N; i++) rig->engines[i] = fake_engine_create(NULL, NULL);
    assert_int_equal(replicas_create(&rig->replicas, rig->engines, N, true, MOST_STEP_S, &err), 0);
    *state = rig;
    return 0;
}

static int tear_down(void **state) {
    struct rig *rig = *state;
    replicas_destroy(rig->replicas);
    free(rig);
    return 0;
}

/* Submits requests together: the prompt of each is a letter of the word again and again. */
static int submit(struct rig *rig, const char *word, struct error *err) {
    struct engine_request all[8];
    const uint32_t n = (uint32_t)strlen(word);
    for (uint32_t i = 0; i < n; i++) {
        all[i] = (struct engine_request){.prompt = malloc(N_PROMPT * sizeof(uint32_t)),
                                         .n_prompt = N_PROMPT,
                                         .params = sampling_defaults(),
                                         .user = &rig->n_tokens[rig->n + i]};
        for (int k = 0; k < N_PROMPT; k++) all[i].prompt[k] = (uint32_t)word[i];
    }
    const int rc = replicas_submit(rig->replicas, all, n, &rig->ids[rig->n], err);
    for (uint32_t i = 0; i < n && rc; i++) { /* they are the caller's again */
        assert_ptr_equal(all[i].user, &rig->n_tokens[rig->n + i]);
        free(all[i].prompt);
    }
    if (!rc) rig->n += n;
    return rc;
}

static void ask(struct rig *rig, char letter) {
    struct error err;
    assert_int_equal(submit(rig, (char[]){letter, 0}, &err), 0);
}

/* Takes all events: each must be of the request that its user names. */
static void take(struct rig *rig) {
    for (struct engine_event *e = replicas_take_events(rig->replicas), *next; e; e = next) {
        const size_t i = (size_t)((uint32_t *)e->user - rig->n_tokens);
        next = e->next;
        assert_in_range(i, 0, rig->n - 1);
        assert_true(e->request_id == rig->ids[i]);
        rig->n_tokens[i] += e->n_tokens;
        rig->n_ends[i] += e->kind == EVENT_FINISH;
        rig->last[i] = *e;
        engine_event_free(e);
    }
}

static void run(struct rig *rig) {
    uint32_t n_live = 1;
    while (n_live > 0) {
        n_live = 0;
        for (int i = 0; i < N; i++) n_live += fake_engine_step(rig->engines[i]);
        take(rig);
    }
}

TEST_WITH(every_request_gets_its_own_events, set_up, tear_down) {
    struct rig *rig = *state;
    for (int i = 0; i < 30; i++) ask(rig, (char)('a' + i % 26));
    for (int i = 0; i < N; i++) assert_true(fake_engine_n_live(rig->engines[i]) >= 5);
    for (uint32_t i = 0; i < rig->n; i++)
        for (uint32_t k = 0; k < i; k++) assert_true(rig->ids[i] != rig->ids[k]);
    run(rig);
    for (uint32_t i = 0; i < rig->n; i++) {
        assert_int_equal(rig->n_ends[i], 1);
        assert_int_equal(rig->n_tokens[i], 16);
        assert_int_equal(rig->last[i].reason, FINISH_LENGTH);
    }
}

TEST_WITH(a_prompt_comes_back_to_its_replica, set_up, tear_down) {
    struct rig *rig = *state;
    for (int i = 0; i < 4; i++) {
        ask(rig, 'q');
        run(rig);
    }
    for (int i = 1; i < 4; i++) assert_int_equal(rig->ids[i] % N, rig->ids[0] % N);
}

TEST_WITH(each_prompt_goes_its_own_way_with_its_choices, set_up, tear_down) {
    struct rig *rig = *state;
    struct error err;
    assert_int_equal(submit(rig, "aabbbcc", &err), 0);
    const uint64_t a = rig->ids[0] % N, b = rig->ids[2] % N, c = rig->ids[5] % N;
    assert_true(a != b && b != c && c != a);
    assert_true(rig->ids[1] % N == a && rig->ids[4] % N == b && rig->ids[6] % N == c);
    run(rig);
    for (uint32_t i = 0; i < rig->n; i++) assert_int_equal(rig->n_ends[i], 1);
}

/* Two prompts are with their replicas when the third one is refused. */
TEST_WITH(a_submission_is_taken_as_a_whole_or_not_at_all, set_up, tear_down) {
    struct rig *rig = *state;
    struct error err;
    ask(rig, 'q');
    for (int i = 0; i < N; i++) fake_engine_leave_room(rig->engines[i], i < 2);
    assert_int_equal(submit(rig, "abc", &err), ERR_FULL);
    for (int i = 0; i < N; i++) assert_int_equal(fake_engine_n_cancelled(rig->engines[i]), i < 2);
    for (int i = 0; i < N; i++) fake_engine_leave_room(rig->engines[i], 9);
    run(rig); /* nothing is heard of "ab" */
    assert_int_equal(rig->n_ends[0], 1);
    assert_int_equal(submit(rig, "abc", &err), 0);
    run(rig);
    for (uint32_t i = 0; i < rig->n; i++) assert_int_equal(rig->n_ends[i], 1);
}

TEST_WITH(a_request_is_cancelled_where_it_runs, set_up, tear_down) {
    struct rig *rig = *state;
    for (int i = 0; i < 6; i++) ask(rig, (char)('a' + i));
    replicas_cancel(rig->replicas, rig->ids[4]);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(fake_engine_n_cancelled(rig->engines[i]), i == rig->ids[4] % N);
    run(rig);
    for (uint32_t i = 0; i < rig->n; i++)
        assert_int_equal(rig->last[i].reason, i == 4 ? FINISH_CANCELLED : FINISH_LENGTH);
}

TEST_WITH(a_full_queue_is_passed_over, set_up, tear_down) {
    struct rig *rig = *state;
    struct error err;
    ask(rig, 'q');
    run(rig);
    const uint64_t home = rig->ids[0] % N;
    fake_engine_leave_room(rig->engines[home], 0);
    ask(rig, 'q');
    assert_true(rig->ids[1] % N != home);
    for (int i = 0; i < N; i++) fake_engine_leave_room(rig->engines[i], 0);
    assert_int_equal(replicas_check_room(rig->replicas, 1, &err), ERR_FULL);
    assert_int_equal(submit(rig, "q", &err), ERR_FULL);
    for (int i = 0; i < N; i++) fake_engine_leave_room(rig->engines[i], 9);
    run(rig);
    ask(rig, 'q'); /* nothing was noted of what was refused */
    assert_true(rig->ids[2] % N == home || rig->ids[2] % N == rig->ids[1] % N);
    run(rig);
}

/* A device that hangs ends no step.  If all of them do, requests wait where one replica's would. */
TEST_WITH(a_stuck_replica_is_passed_over, set_up, tear_down) {
    struct rig *rig = *state;
    ask(rig, 'q');
    run(rig);
    const uint64_t home = rig->ids[0] % N;
    fake_engine_set_step_seconds(rig->engines[home], MOST_STEP_S + 1);
    for (int i = 0; i < 9; i++) ask(rig, 'q');
    for (uint32_t i = 1; i < rig->n; i++) assert_true(rig->ids[i] % N != home);
    for (int i = 0; i < N; i++) fake_engine_set_step_seconds(rig->engines[i], MOST_STEP_S + 1);
    ask(rig, 'r');
    for (int i = 0; i < N; i++) fake_engine_set_step_seconds(rig->engines[i], MOST_STEP_S / 2);
    run(rig);
    ask(rig, 'q'); /* where its beginning is */
    assert_true(rig->ids[rig->n - 1] % N == home || rig->ids[rig->n - 1] % N == rig->ids[1] % N ||
                rig->ids[rig->n - 1] % N == rig->ids[2] % N);
    run(rig);
}

/* Its queue fills up between the question and the submission. */
TEST_WITH(a_replica_that_refuses_for_lack_of_space_is_passed_over, set_up, tear_down) {
    struct rig *rig = *state;
    ask(rig, 'q');
    run(rig);
    const uint64_t home = rig->ids[0] % N;
    fake_engine_refuse(rig->engines[home], ERR_FULL, NULL);
    ask(rig, 'q');
    assert_true(rig->ids[1] % N != home);
    run(rig);
}

TEST_WITH(a_refused_request_is_not_asked_elsewhere, set_up, tear_down) {
    struct rig *rig = *state;
    struct error err;
    for (int i = 0; i < N; i++) fake_engine_refuse(rig->engines[i], ERR_TOO_LONG, "prompt");
    assert_int_equal(submit(rig, "a", &err), ERR_TOO_LONG);
    assert_string_equal(err.param, "prompt");
    for (int i = 0; i < N; i++) assert_int_equal(fake_engine_n_live(rig->engines[i]), 0);
}

TEST_WITH(a_replica_that_fails_ends_its_own_requests, set_up, tear_down) {
    struct rig *rig = *state;
    struct error why;
    uint32_t failed = N;
    for (int i = 0; i < 9; i++) ask(rig, (char)('a' + i));
    assert_false(replicas_take_failure(rig->replicas, &failed, &why));
    fake_engine_break(rig->engines[1]);
    run(rig);
    for (uint32_t i = 0; i < rig->n; i++) {
        const bool was_there = rig->ids[i] % N == 1;
        assert_int_equal(rig->n_ends[i], 1);
        assert_int_equal(rig->last[i].reason, was_there ? FINISH_ERROR : FINISH_LENGTH);
        if (was_there)
            assert_string_equal(rig->last[i].error_text, "replica 1: the fake engine failed");
    }
    assert_int_equal(replicas_n_healthy(rig->replicas), N - 1);
    assert_true(replicas_take_failure(rig->replicas, &failed, &why));
    assert_int_equal(failed, 1);
    assert_false(replicas_take_failure(rig->replicas, &failed, &why));
    for (int i = 0; i < 9; i++) ask(rig, (char)('a' + i));
    for (uint32_t i = 9; i < rig->n; i++) assert_true(rig->ids[i] % N != 1);
    for (int i = 0; i < N; i++) fake_engine_break(rig->engines[i]);
    assert_int_equal(submit(rig, "a", &why), ERR_DEVICE);
    run(rig);
}

TEST_WITH(numbers_are_added, set_up, tear_down) {
    struct rig *rig = *state;
    struct engine_stats one, sum;
    for (int i = 0; i < 7; i++) ask(rig, (char)('a' + i));
    replicas_stats(rig->replicas, &sum);
    engine_stats(rig->engines[0], &one);
    assert_int_equal(sum.n_submitted, 7);
    assert_int_equal(sum.n_running, 7);
    assert_int_equal(sum.pages_total, N * one.pages_total);
    assert_int_equal(sum.kv[KV_RESIDENT_TOKENS][2], N * one.kv[KV_RESIDENT_TOKENS][2]);
    assert_true(sum.sparse.index_s == N * one.sparse.index_s);
    assert_int_equal(sum.n_swapped_out, N * one.n_swapped_out);
    assert_true(engine_stats_kv_use(&sum) == engine_stats_kv_use(&one));
    run(rig);
}
