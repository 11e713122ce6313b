/* structured.h - what a request says of the form of its answer (forms.h has the members).
 *
 *   body ─► request_structured: one text for all answers ─► compiled: sampling_params.grammar
 *
 * An API may wrap the text before it is compiled, as chats do with reasoning.
 *
 * Thread: any one.  Memory: the request owns the text. */
#ifndef SERVER_API_STRUCTURED_H
#define SERVER_API_STRUCTURED_H

#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "engine/grammar/grammar.h"

struct api_error;
struct completion_request;
struct grammar_cache;
struct grammar_trial;
struct request_reading;

enum {
    STRUCTURED_MAX_SCHEMA_BYTES = 128 << 10,
    STRUCTURED_MAX_GRAMMAR_BYTES = 64 << 10,
    STRUCTURED_MAX_REGEX_BYTES = 4096,
    STRUCTURED_MAX_CHOICES = 1024,
};

/* Zero-initialise. */
struct request_structured {
    const char *param; /* the member it comes from, a constant; NULL: answers are free */
    enum grammar_kind kind;
    char *text; /* owned, [n_text], NUL-terminated */
    size_t n_text;
    bool is_json;      /* the answer is JSON, whatever has become of the text */
    bool allows_calls; /* it is the form of what is said, and tools may be called instead */
};

void request_structured_fini(struct request_structured *structured);

/* Reads one of the ways to say what the answer must be: json (a schema), json_object, regex,
 * choice, grammar.  param: the member, a constant, for errors. */
int structured_read_way(struct request_reading *r, const char *param, const char *way,
                        const json_t *value);

/* ---- grammars as values, for what an API makes of them ---- */

/* Replaces the request's text by a structural tag's format, which it takes ownership of. */
int structured_set_format(struct completion_request *request, const char *param, json_t *format,
                          struct api_error *err);
/* Returns the request's text as a format, or NULL: there is no memory. */
json_t *structured_format(const struct request_structured *structured);

/* ---- compiling ---- */

/* Looks the text up.  *found: there is nothing left to compile.  A server without grammars
 * refuses. */
int structured_find(struct completion_request *request, struct grammar_cache *cache, bool *found,
                    struct api_error *err);
/* Compiles the text.  ERR_FULL: a quick trial is not enough; any other error is in *err. */
int structured_compile(struct completion_request *request, struct grammar_cache *cache,
                       const struct grammar_trial *trial, struct api_error *err);

#endif
