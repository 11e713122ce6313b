/* fuzz_prompt.h - a body of any dialect of chats is rendered or refused with a reason, and no byte
 * of a message is trusted.
 *
 * Thread: the fuzzer's.  Memory: none is left. */
#ifndef TESTS_SERVER_FUZZ_PROMPT_H
#define TESTS_SERVER_FUZZ_PROMPT_H

#include <stddef.h>
#include <stdint.h>

struct api_error;
struct completion_request;
struct request_limits;

typedef int (*fuzz_reader)(struct completion_request *out, const char *body, size_t length,
                           const struct request_limits *limits, struct api_error *err);

/* Reads one input; returns 0, or aborts. */
int fuzz_prompt(fuzz_reader read, const uint8_t *data, size_t size);

#endif
