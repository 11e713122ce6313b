/* fuzz_chat.c - whatever the bytes: the body of a chat is rendered or refused; see
 * fuzz_prompt.h. */
#include "server/api/conversation/request.h"
#include "tests/server/fuzz_prompt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_body(struct completion_request *out, const char *body, size_t length,
                     const struct request_limits *limits, struct api_error *err) {
    struct chat_request chat;
    const int rc = chat_request_parse(out, &chat, NULL, body, length, limits, err);
    if (!rc) chat_request_fini(&chat);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return fuzz_prompt(read_body, data, size);
}
