/* api_error.c - see api_error.h. */
#include "server/json/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/json/buffer.h"

static void fill(struct api_error *err, unsigned status, const char *code, const char *param) {
    err->status = status;
    err->code = code;
    err->retry_s = 0;
    err->param = param;
    err->tokens.prompt = err->tokens.answer = err->tokens.most = 0;
}

int api_error_set(struct api_error *err, unsigned status, const char *code, const char *param,
                  const char *format, ...) {
    fill(err, status, code, param);
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof(err->message), format, args);
    va_end(args);
    return ERR_INVALID;
}

int api_error_no_memory(struct api_error *err) {
    api_error_set(err, 500, NULL, NULL, "no memory for the request");
    return ERR_NOMEM;
}

int api_error_set_length(struct api_error *err, const char *param, uint64_t n_prompt,
                         uint64_t n_answer, uint64_t most, const char *format, ...) {
    fill(err, 400, "context_length_exceeded", param);
    err->tokens.prompt = n_prompt;
    err->tokens.answer = n_answer;
    err->tokens.most = most;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof(err->message), format, args);
    va_end(args);
    return ERR_INVALID;
}

int api_error_from(struct api_error *err, const struct error *cause, const char *param) {
    switch (cause->code) {
    case ERR_FULL: return api_error_set(err, 429, "queue_full", NULL, "%s", cause->text);
    case ERR_TOO_LONG:
        return api_error_set(err, 400, "context_length_exceeded", param, "%s", cause->text);
    case ERR_INVALID: return api_error_set(err, 400, NULL, param, "%s", cause->text);
    case ERR_UNSUPPORTED: return api_error_set(err, 400, "unsupported", param, "%s", cause->text);
    case ERR_DEVICE: return api_error_set(err, 503, "engine_failed", NULL, "%s", cause->text);
    default: return api_error_set(err, 500, NULL, NULL, "%s", cause->text);
    }
}

static const char *type_of(unsigned status) {
    if (status == 429) return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

static void write_or_null(struct buffer *out, const char *text) {
    if (text) {
        buffer_json_string(out, text, strlen(text));
    } else {
        buffer_puts(out, "null");
    }
}

void api_error_write(const struct api_error *err, struct buffer *out) {
    buffer_puts(out, "{\"error\":{\"message\":");
    buffer_json_string(out, err->message, strlen(err->message));
    buffer_puts(out, ",\"type\":");
    write_or_null(out, type_of(err->status));
    buffer_puts(out, ",\"param\":");
    write_or_null(out, err->param);
    buffer_puts(out, ",\"code\":");
    write_or_null(out, err->code);
    buffer_puts(out, "}}");
}
