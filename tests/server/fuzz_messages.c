/* fuzz_messages.c - whatever the bytes: the body of POST /v1/messages is rendered or refused; see
 * fuzz_prompt.h. */
#include "server/api/conversation/request.h"
#include "server/api/messages/request.h"
#include "tests/server/fuzz_prompt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_body(struct completion_request *out, const char *body, size_t length,
                     const struct request_limits *limits, struct api_error *err) {
    struct chat_request chat;
    const int rc = messages_request_parse(out, &chat, false, body, length, limits, err);
    if (!rc) chat_request_fini(&chat);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_prompt(read_body, data, size);
}
