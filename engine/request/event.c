/* event.c - see event.h.
 *
 * Thread: any.  Memory: one allocation an event. */
#include "engine/request/event.h"

#include <stdlib.h>

struct engine_event *event_create(enum event_kind kind, size_t text_length, uint32_t n_tokens,
                                  size_t n_tops, struct token_logprob **tops) {
    /* Descending alignment, so that no padding is needed between the parts. */
    struct engine_event *event;
    size_t tokens_at = sizeof(*event);
    size_t tops_at = tokens_at + n_tokens * sizeof(*event->tokens);
    size_t text_at = tops_at + n_tops * sizeof(**tops);
    char *block = calloc(1, text_at + text_length + 1);
    if (!block) return NULL;
    event = (struct engine_event *)block;
    event->kind = kind;
    event->tokens = (struct token_info *)(block + tokens_at);
    event->n_tokens = n_tokens;
    event->text = block + text_at;
    event->text_length = text_length;
    if (tops) *tops = (struct token_logprob *)(block + tops_at);
    return event;
}

void engine_event_free(struct engine_event *event) {
    free(event->kept);
    free(event);
}

void event_list_append(struct event_list *list, struct engine_event *event) {
    event->next = NULL;
    if (list->last) list->last->next = event;
    else list->first = event;
    list->last = event;
}
