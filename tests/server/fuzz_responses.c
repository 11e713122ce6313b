/* fuzz_responses.c - whatever the bytes: the body of POST /v1/responses is rendered or refused; see
 * fuzz_prompt.h. */
#include "server/api/conversation/request.h"
#include "server/api/responses/request.h"
#include "tests/server/fuzz_prompt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_body(struct completion_request *out, const char *body, size_t length,
                     const struct request_limits *limits, struct api_error *err) {
    struct chat_request chat;
    struct responses_echo echo = {0};
    const int rc = responses_request_parse(out, &chat, &echo, body, length, limits, err);
    responses_echo_fini(&echo);
    if (!rc) chat_request_fini(&chat);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_prompt(read_body, data, size);
}
