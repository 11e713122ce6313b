/* prompts.h - the prompts of one request: all texts or all token ids.
 *
 * `prompt` may be "text", ["text", ...], [1, 2, ...] or [[1, 2], [3], ...].  The arrays are read
 * straight from the body, four bytes a token, without a JSON object per number.
 *
 * Thread: the one that reads the request.  Memory: the list owns its texts and tokens. */
#ifndef SERVER_API_PROMPTS_H
#define SERVER_API_PROMPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tokenizer/tokenizer.h"

struct api_error;
struct byte_span;
struct json_span;
struct spare_ids;
struct template_text;

enum { PROMPTS_MAX = 2048, PROMPTS_MAX_TOKENS = 4 * 1024 * 1024 };

/* The places behind a prompt's tokens that its array has for the engine's first ones. */
enum { PROMPT_SPARE_TOKENS = 64 };

struct prompt {
    char *text; /* NULL: given as tokens */
    size_t length;
    bool decoded; /* given as tokens; text was made from them, for echo */
    /* The text is a rendered chat: special tokens are recognised in these spans only. */
    bool rendered;
    struct byte_span *trusted; /* [n_trusted] */
    size_t n_trusted;
    struct token_list tokens;
    /* Of a rendered chat: tokens before its last message, the last text that is a client's.  0:
     * there is none. */
    uint32_t n_before_last;
};

/* Zero-initialise. */
struct prompt_list {
    struct prompt *items;
    uint32_t n, capacity;
    struct spare_ids *spare; /* which a list of ids may take; or NULL */
};

void prompt_list_fini(struct prompt_list *list);

/* Adds a copy of a text. */
int prompt_list_add_text(struct prompt_list *list, const char *text, size_t length,
                         struct api_error *err);

/* Adds a rendered chat, which it takes: *text is empty afterwards. */
int prompt_list_take_rendered(struct prompt_list *list, struct template_text *text,
                              struct api_error *err);

/* Sets n_before_last of a prompt that has been tokenised. */
void prompt_find_last(struct prompt *prompt, const struct tokenizer *tokenizer);

/* Reads an array of any of the three kinds.  Ids must be below n_vocab; param names the member in
 * messages. */
int prompt_list_read(struct prompt_list *list, const struct json_span *array, uint32_t n_vocab,
                     const char *param, struct api_error *err);

#endif
