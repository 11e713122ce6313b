/* api_error.h - a refusal in OpenAI's format: status, type, parameter, code and a sentence.
 *
 * Thread: any.  Memory: on the caller's stack; param and code point to constants. */
#ifndef SERVER_JSON_API_ERROR_H
#define SERVER_JSON_API_ERROR_H

#include <stdint.h>

struct buffer;
struct error;

struct api_error {
    unsigned status;
    const char *param; /* NULL: none */
    const char *code;  /* NULL: none */
    uint32_t retry_s; /* seconds after which to try again (Retry-After); 0: 1 with 429, else none */
    /* Of a text that is too long, for APIs whose clients read these numbers; most is 0
     * otherwise. */
    struct {
        uint64_t prompt, answer, most;
    } tokens;
    char message[768];
};

/* Fills err and returns ERR_INVALID, so that refusing is one statement. */
int api_error_set(struct api_error *err, unsigned status, const char *code, const char *param,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Fills err where memory is lacking and returns ERR_NOMEM. */
int api_error_no_memory(struct api_error *err);

/* Fills err for a prompt of that many tokens and an answer of as many as were asked for, which are
 * more than `most` together.  Returns ERR_INVALID. */
int api_error_set_length(struct api_error *err, const char *param, uint64_t n_prompt,
                         uint64_t n_answer, uint64_t most, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* Translates an engine's ERR_*: full becomes 429; too long, invalid and unsupported 400; a failed
 * device 503; the rest 500.  Returns ERR_INVALID. */
int api_error_from(struct api_error *err, const struct error *cause, const char *param);

/* Writes an error in the shape of an API. */
typedef void (*api_error_writer)(const struct api_error *err, struct buffer *out);

/* Writes {"error":{...}}, OpenAI's shape. */
void api_error_write(const struct api_error *err, struct buffer *out);

#endif
