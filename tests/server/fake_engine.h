/* fake_engine.h - an engine without a model, and a tokenizer whose tokens are bytes, for tests of
 * the server.
 *
 * Tokens 0..255 are bytes; 256 is the beginning of a text.  A sequence answers with the letters of
 * "abcdefghijklmnopqrstuvwxyz" in turn, one event per call of fake_engine_step(), starting at the
 * letter that its seed names.  Everything runs on the test's own thread.
 *
 * Thread: the test's, and the thread pool for the tokenizer.  Memory: the engine owns its
 * requests. */
#ifndef TESTS_SERVER_FAKE_ENGINE_H
#define TESTS_SERVER_FAKE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

enum {
    FAKE_BOS = 256,
    FAKE_N_VOCAB = 257,
    FAKE_MAX_LEN = 128,
    FAKE_KV_TOKENS = 1024,
    FAKE_STORE_BYTES = 1 << 20,
    FAKE_MAX_SELECTED = 4096
};

struct engine *fake_engine_create(void (*wake)(void *), void *wake_ctx);

/* One token (or the end) for every sequence; returns how many sequences are left. */
uint32_t fake_engine_step(struct engine *engine);

/* Makes the next submits fail, about that parameter; code 0: no more. */
void fake_engine_refuse(struct engine *engine, int code, const char *param);
void fake_engine_leave_room(struct engine *engine, uint32_t n); /* for n requests more */
/* Makes sequences answer with this ASCII text, a byte a token; NULL: with letters. */
void fake_engine_answer(struct engine *engine, const char *text);
void fake_engine_fail_after(struct engine *engine, uint32_t n); /* sequences fail after n tokens */
/* Makes the engine fail for good, with all of its sequences. */
void fake_engine_break(struct engine *engine);
/* Sets how long the step that runs has taken. */
void fake_engine_set_step_seconds(struct engine *engine, double seconds);
uint32_t fake_engine_n_live(const struct engine *engine);
uint32_t fake_engine_n_cancelled(const struct engine *engine);

/* Returns the tokenizer of every fake engine: a token is a byte, or FAKE_BOS, the special "<s>". */
const struct tokenizer *fake_tokenizer(void);

#endif
