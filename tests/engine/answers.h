/* answers.h - requests to a whole engine, written down, and what comes back of them.
 *
 * Any failure fails the calling cmocka test.
 *
 * Thread: the test's.  Memory: an answer's arrays are its own, until answer_forget(). */
#ifndef TESTS_ENGINE_ANSWERS_H
#define TESTS_ENGINE_ANSWERS_H

#include "engine/device/sparse.h"
#include "engine/engine.h"
#include "tests/test.h"

/* What the tests of a program share while answers_main() runs them. */
enum { MAX_HEADS = 256 }; /* of all layers together */
extern const char *model_dir;
extern struct backend *backend;
extern uint32_t n_layers;                     /* of the checkpoint */
extern uint64_t page_bytes, plain_page_bytes; /* of f32, with statistics and without */
extern struct attn_pattern mixed[MAX_HEADS];  /* all kinds in turn */

struct answer {
    char *text;
    struct token_info *tokens; /* without their tops */
    uint32_t n_tokens;
    struct token_info *prompt;
    uint32_t n_prompt_infos, n_events;
    struct engine_event last;
    bool finished;
};

/* A request written down, so that it can be made again. */
struct recipe {
    uint32_t prompt[1600], n_prompt;
    struct sampling_params params; /* owns nothing */
    struct kv_choice kv;
    struct kv_override kv_override;
    struct prefill_choice prefill;
    struct speculation_choice speculation;
    const char *stop;           /* one stop string, or NULL */
    const uint32_t *stop_token; /* one stop token, or NULL */
};

/* A request of random tokens, with a seed of its own and log-probabilities. */
struct recipe recipe_make(uint32_t n_prompt, uint32_t max_tokens);

/* One with room for all that tests ask, in pages of f32, whose prompts may be sparse. */
struct engine_config answers_config(void);

/* Fails the test where the engine does not start. */
struct engine *answers_start(const struct engine_config *config);

/* The answer must live until it is finished. */
uint64_t recipe_submit(struct engine *engine, const struct recipe *recipe, struct answer *answer);

/* Returns the code that engine_submit() answers. */
int recipe_try(struct engine *engine, const struct recipe *recipe, struct error *err);

/* Takes all events into the answers that they belong to. */
void answers_drain(struct engine *engine);
void answers_wait(struct engine *engine, struct answer *answers, uint32_t n);
/* Waits until every page is free or cached: the step in flight when the last request ended may
 * still hold some. */
void answers_leave_no_page(struct engine *engine);

/* Makes a request of an idle engine, and waits until it is idle again. */
struct answer answers_one(struct engine *engine, const struct recipe *recipe);

/* Equal to the bit. */
void answers_assert_same(const struct answer *a, const struct answer *b);
void answer_forget(struct answer *answer);
/* Makes the requests all at once, compares each answer with the expected one to the bit, and takes
 * the engine down; returns its statistics. */
struct engine_stats answers_compare(struct engine *engine, const struct recipe *recipes,
                                    const struct answer *expected, uint32_t n);

/* The same in four ways: with cached prefixes, then ahead of the device, too, then in slices of the
 * smallest size, then batch invariant.  The configuration has none of these. */
void answers_compare_in_company(const struct engine_config *config, const struct recipe *recipes,
                                const struct answer *expected, uint32_t n);

/* Runs the program's tests with each checkpoint that its arguments name; setup may be NULL.  The
 * CPU backend has one thread: tests/cpu tells that their number changes no bit.  Returns the exit
 * status. */
int answers_main(int argc, char **argv, CMFixtureFunction setup);

#endif
