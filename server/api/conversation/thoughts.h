/* thoughts.h - what depends on how a model marks its thoughts.  That is which of its tokens an
 * answer's text shows, and how a form stands behind a thought.
 *
 * Thread: any.  Memory: constant; results are the caller's. */
#ifndef SERVER_API_CONVERSATION_THOUGHTS_H
#define SERVER_API_CONVERSATION_THOUGHTS_H

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "engine/request/thought.h"

struct api_error;
struct sampling_params;
struct template_text;
struct tokenizer;

/* Shows the tokens that answers are split by.  tokenizer NULL: there are none. */
int thoughts_show(struct sampling_params *params, enum thought_form form,
                  const struct tokenizer *tokenizer, struct api_error *err);
/* Shows a token in the text as it reads (byte 0) or as a byte, where the tokenizer has it as a
 * special one. */
int thoughts_show_mark(struct sampling_params *params, const char *mark, char byte,
                       const struct tokenizer *tokenizer, struct api_error *err);

/* Where a form stands. */
struct thought_lead {
    enum thought_form form;
    bool is_calls; /* the form is of calls */
    bool is_off;   /* nothing more may be thought */
    const struct tokenizer *tokenizer;
    const char *param; /* the member that asks for the form, for errors */
};

/* Puts what may be thought before a form, *format, which it takes ownership of.  *thought is where
 * the answer begins; it becomes where it begins with the form.  *format NULL: there is no memory.
 * *is_same: nothing was put before it. */
int thoughts_lead(json_t **format, struct thought *thought, const struct thought_lead *lead,
                  bool *is_same, struct api_error *err);

#endif
