/* fuzz_responses.c - whatever the bytes: the body of POST /v1/responses is rendered or refused; see
 * fuzz_prompt.h. */
#include <stdlib.h>

#include "server/api/conversation/request.h"
#include "server/api/responses/request.h"
#include "server/api/responses/store.h"
#include "tests/server/fuzz_prompt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Makes a store that has a response to go on from, and to refer to. */
static struct responses_store *make_store(void) {
    static const struct responses_store_config config = {.max_bytes = 1 << 20};
    struct responses_store *store = NULL;
    struct buffer input = {0}, output = {0};
    struct stored_turn *before = NULL;
    buffer_puts(&input, "{\"type\":\"message\",\"role\":\"user\",\"content\":\"q\"}");
    buffer_puts(&output, "{\"id\":\"msg_1_0\",\"type\":\"message\",\"role\":\"assistant\","
                         "\"content\":[{\"type\":\"output_text\",\"text\":\"a\"}]}");
    const struct new_response response = {.client = 1,
                                          .id = "resp_1",
                                          .head = {"", 0},
                                          .tail = {"", 0},
                                          .input = &input,
                                          .output = &output,
                                          .before = &before};
    if (responses_store_create(&store, &config, NULL)) abort();
    responses_store_add(store, &response, 0);
    return store;
}

static int read_body(struct completion_request *out, const char *body, size_t length,
                     const struct request_limits *limits, struct api_error *err) {
    struct chat_request chat;
    static struct responses_store *store;
    struct responses_asked asked = {0};
    if (!store) store = make_store();
    const struct history_source source = {.store = store, .client = 1, .max_bytes = 1 << 16};
    const int rc = responses_request_parse(out, &chat, &asked, body, length, &source, limits, err);
    responses_asked_fini(&asked, store);
    if (!rc) chat_request_fini(&chat);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_prompt(read_body, data, size);
}
