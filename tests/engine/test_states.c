/* test_states.c - conversations under bounded KV caches, with a small model on the CPU: a request
 * goes on from the state that an earlier one left.
 *
 * Every turn must be equal, to the bit, to that of a text that really lives on in its own pages
 * (living.h); a prompt that is asked again, to itself.  Afterwards every page is free or idle. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/engine/living.h"
#include "tests/kv_types.h"
#include "tests/test.h"

struct settings {
    uint32_t n_blocks, n_host_blocks, max_batched_tokens;
    bool no_caching, batch_invariant;
};

static struct engine *start(struct settings settings) {
    struct engine_config config = {.model_dir = model_dir,
                                   .backend = backend,
                                   .max_num_seqs = 16,
                                   .max_model_len = settings.n_blocks * PAGE_TOKENS,
                                   .max_batched_tokens = settings.max_batched_tokens,
                                   .max_queued = 1024,
                                   .kv_format = PAGE_F32,
                                   .prefix_caching = !settings.no_caching,
                                   .batch_invariant = settings.batch_invariant,
                                   .bounded_caches = true};
    config.kv_cache_bytes = settings.n_blocks * n_layers * page_bytes;
    config.host_pool_bytes = settings.n_host_blocks * n_layers * page_bytes;
    return answers_start(&config);
}

static void stop(struct engine *engine) {
    answers_leave_no_page(engine);
    engine_destroy(engine);
}

static struct engine_stats stats_of(struct engine *engine) {
    struct engine_stats stats;
    answers_leave_no_page(engine);
    engine_stats(engine, &stats);
    return stats;
}

static struct kv_choice streaming(uint32_t n_recent, uint32_t chunk, bool cache_positions) {
    return (struct kv_choice){.mechanism = KV_BOUNDED,
                              .type = TYPE_STREAMING,
                              .n_sink = 4,
                              .n_recent = n_recent,
                              .chunk = chunk,
                              .cache_positions = cache_positions};
}

static struct kv_choice heavy_hitter(uint32_t n_recent, uint32_t n_heavy, enum kv_score score,
                                     uint32_t chunk) {
    return (struct kv_choice){.mechanism = KV_BOUNDED,
                              .type = TYPE_HEAVY_HITTER,
                              .n_sink = 4,
                              .n_recent = n_recent,
                              .n_heavy = n_heavy,
                              .score = score,
                              .decay = score == KV_SCORE_DECAY ? 0.99f : 0,
                              .chunk = chunk};
}

static struct kv_choice pooled(enum kv_pooling pooling) {
    struct kv_choice choice = heavy_hitter(40, 60, KV_SCORE_WINDOW, 0);
    choice.window = 32;
    choice.pooling = pooling;
    choice.kernel = 5;
    choice.whole = true;
    return choice;
}

static struct kv_choice in_cache(struct kv_choice choice) {
    choice.cache_positions = true;
    return choice;
}

static void add_random(struct recipe *r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) r->prompt[r->n_prompt++] = 300 + (uint32_t)rand() % 7000;
}

static struct recipe make_recipe(struct kv_choice choice, uint32_t n_prompt, uint32_t max_tokens) {
    struct recipe r = recipe_make(n_prompt, max_tokens);
    r.kv = choice;
    return r;
}

static uint32_t cached_of(struct engine *engine, const struct recipe *recipe) {
    struct answer a;
    a = answers_one(engine, recipe);
    const uint32_t n = a.last.n_cached;
    answer_forget(&a);
    return n;
}

/* Appends what was answered, and n new tokens. */
static void next_turn(struct recipe *r, const struct answer *a, uint32_t n_new) {
    for (uint32_t i = 0; i < a->n_tokens; i++) r->prompt[r->n_prompt++] = a->tokens[i].token;
    add_random(r, n_new);
}

static void check_against_living(const struct living *living, const struct living_token *drawn,
                                 const struct answer *a) {
    for (uint32_t i = 0; i < a->n_tokens; i++) {
        assert_int_equal(a->tokens[i].token, drawn[i].token);
        assert_memory_equal(&a->tokens[i].logprob, &drawn[i].logprob, sizeof(float)); /* the bits */
    }
    assert_int_equal(a->last.kv.values[KV_RESIDENT_TOKENS], living->n_kept);
    assert_int_equal(a->last.kv.values[KV_EVICTED_TOKENS], living->n_tokens - living->n_kept);
    const double retained = a->last.kv.values[KV_RETAINED_ATTENTION];
    assert_memory_equal(&retained, &living->retained_attention, sizeof(retained));
}

/* Holds a conversation, and its oracle beside it. */
static void converse(struct engine *engine, const struct kv_choice *choice, uint32_t n_first,
                     uint32_t n_answer, uint32_t n_turns) {
    struct recipe r = make_recipe(*choice, n_first, n_answer);
    struct living living;
    living_begin(&living, model_dir, choice, 1700);
    for (uint32_t turn = 0; turn < n_turns; turn++) {
        static struct living_token drawn[400];
        struct answer a;
        const uint32_t n_stored = living.n_tokens;
        r.params.max_tokens = turn % 2 ? n_answer : 1 + n_answer / 2;
        r.params.sampler.temperature = turn % 2 ? 1.0f : 0.0f;
        a = answers_one(engine, &r);
        living_turn(&living, r.prompt, r.n_prompt, &r.params, drawn);
        assert_int_equal(a.last.n_cached, n_stored >= PAGE_TOKENS ? n_stored : 0);
        check_against_living(&living, drawn, &a);
        next_turn(&r, &a, turn % 3 == 1 ? 0 : 1 + (uint32_t)rand() % 150);
        answer_forget(&a);
    }
    living_end(&living);
}

TEST(a_conversation_lives_on_as_one_text) {
    const struct kv_choice choices[] = {
        streaming(60, 512, true),
        streaming(61, 64, false),
        streaming(300, 100, true),
        heavy_hitter(30, 30, KV_SCORE_SUM, 64),
        heavy_hitter(1, 58, KV_SCORE_MEAN, 100),
        in_cache(heavy_hitter(60, 64, KV_SCORE_MEAN, 48)),
        heavy_hitter(40, 56, KV_SCORE_DECAY, 130),
        in_cache(heavy_hitter(40, 56, KV_SCORE_WINDOW, 90)),
        pooled(KV_POOLING_MAX),
        in_cache(pooled(KV_POOLING_AVERAGE)),
        heavy_hitter(500, 900, KV_SCORE_SUM, 512), /* nothing is evicted */
    };
    struct engine *engine = start((struct settings){.n_blocks = 200, .max_batched_tokens = 256});
    srand(21);
    for (size_t i = 0; i < sizeof(choices) / sizeof(*choices); i++)
        converse(engine, &choices[i], 64 + (uint32_t)rand() % 200, 2 + (uint32_t)rand() % 90, 4);
    stop(engine);
}

/* Results come a step late, and a row has been computed behind a stop token. */
TEST(on_a_device_that_runs_ahead_too) {
    late_backend_begin(backend);
    struct engine *engine = start((struct settings){.n_blocks = 200, .max_batched_tokens = 100});
    srand(22);
    const struct kv_choice choice = heavy_hitter(40, 56, KV_SCORE_SUM, 64);
    converse(engine, &choice, 200, 60, 4);
    struct recipe r = make_recipe(choice, 150, 40);
    struct answer a;
    a = answers_one(engine, &r);
    const uint32_t last = a.tokens[20].token;
    uint32_t n_kept = 0; /* of the answer */
    while (a.tokens[n_kept].token != last) n_kept++;
    answer_forget(&a);
    r.stop_token = &last;
    a = answers_one(engine, &r);
    assert_int_equal(a.last.n_generated, n_kept + 1);
    r.stop_token = NULL;
    for (uint32_t i = 0; i < n_kept; i++) r.prompt[r.n_prompt++] = a.tokens[i].token;
    r.prompt[r.n_prompt++] = last;
    add_random(&r, 10);
    answer_forget(&a);
    const uint32_t n_cached = cached_of(engine, &r);
    assert_int_equal(n_cached,
                     150 + n_kept + 1); /* with the stop token, whose row was on its way */
    stop(engine);
    assert_true(late_backend_end() > 0);
}

/* The last token is computed again for its logits; nothing else is. */
TEST(a_prompt_asked_again_is_found_whole) {
    const struct kv_choice choices[] = {
        streaming(60, 64, true), heavy_hitter(40, 56, KV_SCORE_SUM, 512),
        heavy_hitter(40, 56, KV_SCORE_WINDOW, 100), pooled(KV_POOLING_MAX)};
    struct engine *engine = start((struct settings){.n_blocks = 200, .max_batched_tokens = 256});
    srand(23);
    for (size_t i = 0; i < sizeof(choices) / sizeof(*choices); i++) {
        struct recipe r = make_recipe(choices[i], 130 + (uint32_t)rand() % 200, 50);
        struct answer first, again;
        first = answers_one(engine, &r);
        assert_int_equal(first.last.n_cached, 0);
        again = answers_one(engine, &r);
        assert_int_equal(again.last.n_cached, r.n_prompt - 1);
        answers_assert_same(&first, &again);
        answer_forget(&again);
        r.params.max_tokens = 7;
        again = answers_one(engine, &r);
        assert_int_equal(again.last.n_cached, r.n_prompt - 1);
        for (uint32_t t = 0; t < 7; t++)
            assert_int_equal(first.tokens[t].token, again.tokens[t].token);
        answer_forget(&again);
        answer_forget(&first);
    }
    stop(engine);
}

/* A state within a prompt is as it would be in any prompt that begins like this one: the answer is
 * that of an engine that has none.  Under `window` it depends on where the chunk ends. */
TEST(a_longer_prompt_goes_on_where_a_shorter_one_was) {
    const struct kv_choice choices[] = {
        streaming(60, 64, true), heavy_hitter(40, 56, KV_SCORE_SUM, 100),
        in_cache(heavy_hitter(40, 56, KV_SCORE_DECAY, 512)),
        heavy_hitter(40, 56, KV_SCORE_WINDOW, 100), pooled(KV_POOLING_MAX)};
    srand(24);
    for (size_t i = 0; i < sizeof(choices) / sizeof(*choices); i++) {
        struct recipe r = make_recipe(choices[i], 250, 30);
        struct answer fresh, a;
        const struct settings settings = {.n_blocks = 60, .max_batched_tokens = 256};
        struct engine *engine = start(settings);
        assert_int_equal(cached_of(engine, &r), 0);
        add_random(&r, 200);
        a = answers_one(engine, &r);
        assert_int_equal(a.last.n_cached, choices[i].score == KV_SCORE_WINDOW ? 0 : 249);
        stop(engine);
        engine = start(settings);
        fresh = answers_one(engine, &r);
        answers_assert_same(&fresh, &a);
        answer_forget(&fresh);
        answer_forget(&a);
        stop(engine);
    }
}

TEST(only_the_same_parameters_find_a_state) {
    struct engine *engine = start((struct settings){.n_blocks = 200, .max_batched_tokens = 256});
    srand(25);
    const struct kv_choice choice = heavy_hitter(40, 56, KV_SCORE_DECAY, 64);
    struct recipe r = make_recipe(choice, 200, 20), other;
    struct answer a;
    a = answers_one(engine, &r);
    next_turn(&r, &a, 30);
    answer_forget(&a);
    struct kv_choice choices[10];
    for (int i = 0; i < 10; i++) choices[i] = choice;
    choices[0].n_sink++;
    choices[1].n_recent++;
    choices[2].n_heavy++;
    choices[3].decay = 0.98f;
    choices[4].chunk = 65;
    choices[5].cache_positions = true;
    choices[6].score = KV_SCORE_MEAN;
    choices[7].n_sink++, choices[7].n_recent--;
    choices[8] = streaming(96, 64, false);
    choices[9] = (struct kv_choice){.mechanism = KV_WHOLE};
    for (int i = 0; i < 10; i++) {
        other = r;
        other.kv = choices[i];
        if (i != 3) other.kv.decay = other.kv.score == KV_SCORE_DECAY ? 0.99f : 0;
        assert_int_equal(cached_of(engine, &other), 0);
    }
    assert_int_equal(cached_of(engine, &r), 219); /* all but the answer's last token */
    other = r;
    other.prompt[100]++; /* another text */
    assert_int_equal(cached_of(engine, &other), 0);
    other = r;
    other.params.n_prompt_logprobs = 0; /* every row is needed */
    assert_int_equal(cached_of(engine, &other), 0);
    stop(engine);
    engine =
        start((struct settings){.n_blocks = 60, .max_batched_tokens = 256, .no_caching = true});
    assert_int_equal(cached_of(engine, &r), 0);
    assert_int_equal(cached_of(engine, &r), 0);
    stop(engine);
}

/* The salt is part of the name. */
TEST(salts_keep_conversations_apart) {
    struct engine *engine = start((struct settings){.n_blocks = 60, .max_batched_tokens = 256});
    srand(26);
    const struct recipe r = make_recipe(streaming(60, 64, true), 200, 5);
    const uint64_t salts[] = {0, 7, 7, 0, 8};
    for (int i = 0; i < 5; i++) {
        struct answer a = {0};
        struct error err = {0};
        uint64_t id;
        struct engine_request request = {.n_prompt = r.n_prompt,
                                         .params = r.params,
                                         .kv = r.kv,
                                         .cache_salt = salts[i],
                                         .user = &a};
        request.prompt = malloc(r.n_prompt * sizeof(*request.prompt));
        memcpy(request.prompt, r.prompt, r.n_prompt * sizeof(*request.prompt));
        assert_int_equal(engine_submit(engine, &request, 1, &id, &err), 0);
        answers_wait(engine, &a, 1);
        assert_int_equal(a.last.n_cached, i == 2 || i == 3 ? 199 : 0);
        answer_forget(&a);
    }
    stop(engine);
}

/* Each turn leaves a state: an edit of the second goes on from the first. */
TEST(the_longest_state_that_matches_is_taken) {
    struct engine *engine = start((struct settings){.n_blocks = 100, .max_batched_tokens = 256});
    srand(27);
    struct recipe turns[3];
    uint32_t n_stored[3];
    turns[0] = make_recipe(heavy_hitter(40, 56, KV_SCORE_SUM, 64), 100, 20);
    for (int i = 0; i < 3; i++) {
        struct answer a;
        a = answers_one(engine, &turns[i]);
        assert_int_equal(a.last.n_cached, i ? n_stored[i - 1] : 0);
        n_stored[i] = turns[i].n_prompt + a.n_tokens - 1;
        if (i < 2) {
            turns[i + 1] = turns[i];
            next_turn(&turns[i + 1], &a, 30);
        }
        answer_forget(&a);
    }
    struct recipe edited = turns[2];
    edited.prompt[edited.n_prompt - 1]++;
    assert_int_equal(cached_of(engine, &edited), n_stored[1]);
    edited = turns[2];
    edited.prompt[n_stored[1] - 5]++;
    assert_int_equal(cached_of(engine, &edited), n_stored[0]);
    edited = turns[0];
    edited.prompt[50]++;
    assert_int_equal(cached_of(engine, &edited), 0);
    stop(engine);
}

/* Several choices of one prompt: the first reads it, the others copy its state. */
TEST(siblings_read_their_prompt_once) {
    enum { N = 4, N_PROMPT = 700 };
    struct recipe recipes[N];
    struct answer alone[N] = {{0}}, together[N] = {{0}};
    srand(28);
    recipes[0] = make_recipe(heavy_hitter(100, 120, KV_SCORE_MEAN, 256), N_PROMPT, 40);
    for (int i = 0; i < N; i++) {
        recipes[i] = recipes[0];
        recipes[i].params.seed += (uint64_t)i;
        struct engine *engine =
            start((struct settings){.n_blocks = 60, .max_batched_tokens = 256, .no_caching = true});
        alone[i] = answers_one(engine, &recipes[i]);
        stop(engine);
    }
    for (int late = 0; late < 2; late++) {
        if (late) late_backend_begin(backend);
        struct engine *engine = start((struct settings){.n_blocks = 60, .max_batched_tokens = 256});
        for (int i = 0; i < N; i++) recipe_submit(engine, &recipes[i], &together[i]);
        answers_wait(engine, together, N);
        const struct engine_stats stats = stats_of(engine);
        assert_int_equal(stats.prompt_tokens, N * N_PROMPT);
        assert_int_equal(stats.cached_tokens, (N - 1) * (N_PROMPT - 1));
        for (int i = 0; i < N; i++) {
            answers_assert_same(&alone[i], &together[i]);
            answer_forget(&together[i]);
        }
        stop(engine);
        if (late) late_backend_end();
    }
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* A pool that cannot hold a state and a sequence beside it: the sequence takes the state over. */
TEST(a_state_is_taken_over_where_pages_are_few) {
    const struct kv_choice choice = heavy_hitter(120, 200, KV_SCORE_SUM, 60);
    struct engine *engine = start((struct settings){.n_blocks = 7, .max_batched_tokens = 256});
    srand(29);
    converse(engine, &choice, 350, 50, 5);
    stop(engine);
}

/* More conversations than pages for their states: none waits for ever, and all that is kept can be
 * given. */
TEST(states_give_way) {
    enum { N = 12 };
    static struct recipe recipes[N];
    static struct answer answers[N];
    struct engine *engine = start((struct settings){.n_blocks = 12, .max_batched_tokens = 256});
    srand(30);
    for (int i = 0; i < N; i++)
        recipes[i] = make_recipe(heavy_hitter(60, 60, KV_SCORE_SUM, 64), 200, 30);
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < N; i++) recipe_submit(engine, &recipes[i], &answers[i]);
        answers_wait(engine, answers, N);
        for (int i = 0; i < N; i++) {
            assert_int_equal(answers[i].last.reason, FINISH_LENGTH);
            next_turn(&recipes[i], &answers[i], 20);
            answer_forget(&answers[i]);
        }
    }
    /* The last state is still there, and a request that needs the whole pool gets it. */
    assert_true(cached_of(engine, &recipes[N - 1]) > 0 || cached_of(engine, &recipes[0]) > 0);
    struct recipe whole = make_recipe((struct kv_choice){.mechanism = KV_WHOLE}, 700, 60);
    assert_int_equal(cached_of(engine, &whole), 0);
    stop(engine);
}

/* Pages of every layer that the host pool then holds; the state is found there. */
TEST(a_state_waits_in_the_host_pool) {
    const struct kv_choice choice = in_cache(heavy_hitter(40, 56, KV_SCORE_MEAN, 64));
    struct engine *engine =
        start((struct settings){.n_blocks = 12, .n_host_blocks = 60, .max_batched_tokens = 256});
    srand(31);
    struct recipe r = make_recipe(choice, 150, 40);
    static struct living_token drawn[400];
    struct living living;
    living_begin(&living, model_dir, &choice, 600);
    for (int turn = 0; turn < 4; turn++) {
        struct answer a;
        const uint32_t n_stored = living.n_tokens;
        const struct recipe whole = make_recipe((struct kv_choice){.mechanism = KV_WHOLE}, 700, 60);
        a = answers_one(engine, &r);
        living_turn(&living, r.prompt, r.n_prompt, &r.params, drawn);
        assert_int_equal(a.last.n_cached, n_stored);
        check_against_living(&living, drawn, &a);
        next_turn(&r, &a, 40);
        answer_forget(&a);
        assert_int_equal(cached_of(engine, &whole), 0); /* the pool is its alone */
        assert_true(stats_of(engine).pages_offloaded > 0);
    }
    assert_true(stats_of(engine).n_swapped_in > 0);
    living_end(&living);
    stop(engine);
}

/* Seven blocks: the full request grows to six, so the one that went on from a state must leave. */
TEST(a_sequence_that_went_on_may_be_preempted) {
    struct recipe recipes[2];
    struct answer a, together[2] = {{0}};
    const struct kv_choice choice = heavy_hitter(40, 56, KV_SCORE_MEAN, 64);
    struct living living;
    static struct living_token drawn[400];
    struct engine *engine = start((struct settings){.n_blocks = 7, .max_batched_tokens = 64});
    srand(32);
    recipes[0] = make_recipe((struct kv_choice){.mechanism = KV_WHOLE}, 10, 360);
    recipes[1] = make_recipe(choice, 150, 30);
    living_begin(&living, model_dir, &choice, 600);
    a = answers_one(engine, &recipes[1]);
    living_turn(&living, recipes[1].prompt, recipes[1].n_prompt, &recipes[1].params, drawn);
    next_turn(&recipes[1], &a, 40);
    answer_forget(&a);
    recipes[1].params.max_tokens = 380;
    const uint32_t n_stored = living.n_tokens;
    for (int i = 0; i < 2; i++) recipe_submit(engine, &recipes[i], &together[i]);
    answers_wait(engine, together, 2);
    living_turn(&living, recipes[1].prompt, recipes[1].n_prompt, &recipes[1].params, drawn);
    assert_int_equal(together[1].last.n_cached, n_stored);
    check_against_living(&living, drawn, &together[1]);
    assert_int_equal(stats_of(engine).n_preempted, 1);
    for (int i = 0; i < 2; i++) answer_forget(&together[i]);
    living_end(&living);
    stop(engine);
}

/* A client that leaves in the middle of an answer: what it had is there, and nothing else stays. */
TEST(a_cancelled_answer_leaves_its_state) {
    for (int late = 0; late < 2; late++) {
        if (late) late_backend_begin(backend);
        struct engine *engine = start((struct settings){.n_blocks = 60, .max_batched_tokens = 64});
        srand(33);
        struct recipe r = make_recipe(streaming(60, 64, true), 200, 1000000);
        struct answer a = {0};
        const uint64_t id = recipe_submit(engine, &r, &a);
        while (a.n_tokens < 30) answers_drain(engine);
        engine_cancel(engine, id);
        answers_wait(engine, &a, 1);
        assert_int_equal(a.last.reason, FINISH_CANCELLED);
        const uint32_t n_told = a.n_tokens;
        next_turn(&r, &a, 20);
        answer_forget(&a);
        r.params.max_tokens = 5;
        const uint32_t n_cached = cached_of(engine, &r);
        assert_true(n_cached == 199 || n_cached == 200 + n_told || n_cached == 200 + n_told - 1);
        /* One that leaves while its prompt is read leaves no pages in use. */
        r = make_recipe(streaming(60, 64, true), 1500, 10);
        struct answer b = {0};
        engine_cancel(engine, recipe_submit(engine, &r, &b));
        answers_wait(engine, &b, 1);
        answer_forget(&b);
        stop(engine);
        if (late) late_backend_end();
    }
}

/* There an answer depends on the request alone: prompts are found, ends of answers are not. */
TEST(under_batch_invariance_only_prompts_are_found) {
    struct engine *engine = start(
        (struct settings){.n_blocks = 60, .max_batched_tokens = 256, .batch_invariant = true});
    srand(34);
    struct recipe r = make_recipe(heavy_hitter(40, 56, KV_SCORE_SUM, 64), 200, 20);
    struct answer first, second, fresh;
    first = answers_one(engine, &r);
    second = answers_one(engine, &r);
    assert_int_equal(second.last.n_cached, 199);
    answers_assert_same(&first, &second);
    next_turn(&r, &second, 30);
    answer_forget(&first);
    answer_forget(&second);
    second = answers_one(engine, &r);
    assert_int_equal(second.last.n_cached, 199);
    stop(engine);
    engine =
        start((struct settings){.n_blocks = 60, .max_batched_tokens = 256, .no_caching = true});
    fresh = answers_one(engine, &r);
    answers_assert_same(&fresh, &second);
    answer_forget(&fresh);
    answer_forget(&second);
    stop(engine);
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, NULL);
}
