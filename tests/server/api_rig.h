/* api_rig.h - the API on an engine without a model and a transport without sockets.
 *
 * Thread: the test's.  Memory: cmocka's state owns the rig. */
#ifndef TESTS_SERVER_API_RIG_H
#define TESTS_SERVER_API_RIG_H

#include <jansson.h>
#include <uv.h>

#include "server/api/server.h"
#include "server/replicas/replicas.h"
#include "server/settings/api_keys.h"
#include "tests/server/fake_http.h"

struct rig {
    uv_loop_t loop;
    struct server server;
    struct engine *engine; /* the only one of server.replicas */
};

/* "secret" (a), and "other" (b), which may use 20 tokens a minute and has weight 3. */
extern const struct api_keys rig_keys;

int rig_set_up(void **state);
int rig_tear_down(void **state);

/* A chat template that shows what a message has. */
extern const char rig_template[];

/* The same with a chat template, and a context of so many tokens. */
int rig_set_up_chat(void **state, const char *source, uint32_t context);
int rig_tear_down_chat(void **state);
void rig_change_template(const char *source);

struct http_exchange rig_post(const char *path, const char *body);
/* Hands the request in and waits for its job: afterwards it is refused or with the engine. */
void rig_begin(struct rig *rig, struct http_exchange *exchange);
void rig_step(struct rig *rig);
void rig_finish(struct rig *rig);
/* Takes a request from beginning to end; the parsed body is the caller's. */
json_t *rig_ask(struct rig *rig, const char *path, const char *body, unsigned status);

/* Checks the ids of the calls in an answer of a chat, and writes "call_the-id_CHOICE_CALL" for
 * them. */
void rig_number_calls(const json_t *answer);

/* Compares a value, as compact text in the order of the answer. */
void assert_json(const json_t *value, const char *expected);

#endif
