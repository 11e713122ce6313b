/* prompt_end.h - what a rendered prompt ends with: whether its last message goes on, and whether a
 * thought is open there.
 *
 *   …<|im_start|>assistant\n              nothing is begun: a thought may come
 *   …<|im_start|>assistant\n<think>\n     a thought is open: the answer begins inside
 *   …assistant\n<think>\n\n</think>\n\n   it is closed: what comes is said
 *   …assistant\nThe sun                   the answer goes on: what comes is said
 *   …assistant\n<think>\nFirst I          the thought goes on
 *   …<|start|>assistant                   a header is open (channels.h)
 *
 * Only marks of the template count, and those of the message that is continued, where it begins
 * with one.  What a user writes opens and closes nothing.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_API_CONVERSATION_PROMPT_END_H
#define SERVER_API_CONVERSATION_PROMPT_END_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/request/thought.h"

struct template_text;
struct tokenizer;

/* Cuts what the template puts behind a message, so that the answer continues it.  message [n]: its
 * text.  Templates may strip its white space, and may have rewritten a thought that it begins
 * with.  Returns whether the text ends with the message then; if not, it is unchanged. */
bool prompt_end_cut(struct template_text *text, enum thought_form form, const char *message,
                    size_t n);

/* Tells where an answer begins.  continues: it goes on with the message that the text ends with.
 * tokenizer: whose special tokens begin messages; or NULL. */
struct thought prompt_end_read(const struct template_text *text, enum thought_form form,
                               bool continues, const struct tokenizer *tokenizer);

#endif
