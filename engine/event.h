/* event.h - making events and keeping them in order until the step is over.
 *
 * An event is one block of memory: the struct, its tokens, their top log-probabilities, its text.
 *
 * Thread: any.  Memory: event_create allocates; engine_event_free frees. */
#ifndef ENGINE_EVENT_H
#define ENGINE_EVENT_H

#include "engine/engine.h"

/* An event with room for text_length bytes (and a NUL), n_tokens tokens and n_tops
 * log-probabilities; counts and text are set, contents are zero, *tops (may be NULL) is where
 * log-probabilities go.  NULL: no memory. */
struct engine_event *event_create(enum event_kind kind, size_t text_length, uint32_t n_tokens,
                                  size_t n_tops, struct token_logprob **tops);

struct event_list {
    struct engine_event *first, *last;
};

void event_list_append(struct event_list *list, struct engine_event *event);

#endif
