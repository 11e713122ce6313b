/* choice.h - one choice of a completion: gathers the engine's events of one sequence and writes
 * them as JSON.
 *
 * A whole answer gathers everything and is written once; a stream writes after each event and
 * starts anew.  In both, offsets count characters (not bytes) of the whole choice.
 *
 * Thread: loop.  Memory: the completion owns the choice; its text and lists are freed by
 * choice_fini(). */
#ifndef SERVER_API_CHOICE_H
#define SERVER_API_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/json/buffer.h"
#include "server/json/json_check.h"

struct completion;
struct prompt;

struct choice;
struct choice_format;

/* Adds a token with its log-probabilities to the choice's lists.  skip: it is no part of the
 * text. */
typedef void (*choice_token_writer)(struct choice *choice, const struct choice_format *format,
                                    const struct token_info *info, bool skip);

/* The fields that the request asks for; the same for all its choices. */
struct choice_format {
    const struct tokenizer *tokenizer;
    choice_token_writer add_logprobs; /* the API's */
    bool echo, logprobs, token_ids, kept, skip_special;
};

struct choice {
    struct completion *completion;
    const struct prompt *prompt;
    uint32_t prompt_index;
    uint64_t engine_id;
    bool echoed;        /* the prompt has been added, if the request asks for echo */
    bool prompt_sent;   /* the prompt's ids have been written, if the request asks for them */
    bool found_counted; /* what the cache had of its prompt */
    bool finished;
    enum finish_reason reason;
    int32_t stop_string; /* index of the stop string that ended it, or -1 */
    int64_t stop_token;  /* the stop token that ended it, or -1 */

    /* The output since the last choice_clear(); the lists are JSON without their brackets, and what
     * is in the last four is up to the API. */
    struct buffer text, ids, kept;
    struct buffer tokens, token_logprobs, top_logprobs, text_offsets;

    struct json_check check; /* of the answer, without its reasoning */

    struct detokenizer detokenizer; /* follows the tokens to know their offsets */
    size_t n_characters;
    uint32_t n_tokens; /* generated */
    double sum_logprobs;
};

void choice_init(struct choice *choice, struct completion *completion, const struct prompt *prompt,
                 uint32_t prompt_index);
void choice_fini(struct choice *choice);

void choice_add(struct choice *choice, const struct choice_format *format,
                const struct engine_event *event);
bool choice_has_news(const struct choice *choice);
void choice_write(struct choice *choice, const struct choice_format *format, uint32_t index,
                  char *const *stops, struct buffer *out);
void choice_clear(struct choice *choice);
/* Writes tokens as /v1/completions has them: parallel lists of tokens, log-probabilities and
 * offsets. */
void choice_add_logprobs(struct choice *choice, const struct choice_format *format,
                         const struct token_info *info, bool skip);
/* Writes a token as its text, a JSON string.  A token that is part of a character is written as
 * OpenAI does: "bytes:\xe2\x80". */
void choice_write_token(struct buffer *out, const struct tokenizer *tokenizer, uint32_t id);
/* Writes ,"finish_reason":…,"stop_reason":…  finish: NULL or the word in place of the usual one. */
void choice_write_reason(const struct choice *choice, const char *finish, char *const *stops,
                         struct buffer *out);
/* Writes ,"prompt_token_ids":[…] with the choice's first ids, and ,"token_ids":[…]. */
void choice_write_ids(struct choice *choice, struct buffer *out);
/* Writes ,"kept_positions":{…} once the choice has ended, null if the engine has not told. */
void choice_write_kept(const struct choice *choice, struct buffer *out);
double choice_mean_logprob(const struct choice *choice);

#endif
