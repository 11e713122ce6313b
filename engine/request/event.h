/* event.h - events of a request: its text, its tokens, its end.
 *
 * An event is one block of memory: the struct, its tokens, their top log-probabilities, its text.
 * Only `kept` is a block of its own.
 *
 * Thread: any.  Memory: event_create allocates; engine_event_free frees. */
#ifndef ENGINE_REQUEST_EVENT_H
#define ENGINE_REQUEST_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/sample.h"
#include "engine/request/prefill_choice.h"
#include "engine/request/speculation.h"
#include "engine/request/usage.h"

struct kv_kept;

enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

/* One token and its log-probabilities.  top points into the event. */
struct token_info {
    uint32_t token;
    float logprob; /* NAN: not asked for, or the first prompt token */
    uint32_t n_top;
    const struct token_logprob *top;
};

enum event_kind {
    /* Prompt log-probabilities: all prompt tokens; comes before any text. */
    EVENT_PROMPT,
    EVENT_PROGRESS, /* some of the prompt has been computed; for lack of memory it may be missing */
    EVENT_TEXT,     /* the generated text, and the tokens completed, since the last event */
    EVENT_FINISH    /* the one final event; may hold the last text and tokens, too */
};

struct engine_event {
    struct engine_event *next;
    uint64_t request_id;
    void *user;
    enum event_kind kind;
    /* UTF-8, whole characters, and bytes that stand for tokens (shown_token); NUL-terminated.  May
     * be empty, never NULL. */
    char *text;
    size_t text_length;
    struct token_info *tokens;
    uint32_t n_tokens;
    uint32_t n_prompt, n_cached; /* tokens; cached = found in the prefix cache */
    uint32_t n_processed;        /* EVENT_PROGRESS: of the n_prompt tokens, with the n_cached */
    /* EVENT_FINISH: */
    enum finish_reason reason;
    bool stopped_by_string; /* FINISH_STOP because of stop[stop_index] */
    bool stopped_by_token;  /* FINISH_STOP because of one of its stop_tokens (stop_token) */
    uint32_t stop_index, stop_token;
    uint32_t n_generated; /* tokens */
    struct kv_usage kv;
    struct prefill_usage prefill;
    struct speculation_usage speculation;
    /* Owned: what is kept, of a request that asked for it and has ended by itself; else NULL. */
    struct kv_kept *kept;
    int error_code; /* FINISH_ERROR */
    char error_text[256];
};

void engine_event_free(struct engine_event *event); /* one event, not the list */

/* Creates an event with space for text_length bytes and a NUL, n_tokens tokens and n_tops
 * log-probabilities.  Its counts and the text pointer are set, its contents are zero.  *tops (tops
 * may be NULL) is the array for log-probabilities.  Returns NULL if there is no memory. */
struct engine_event *event_create(enum event_kind kind, size_t text_length, uint32_t n_tokens,
                                  size_t n_tops, struct token_logprob **tops);

struct event_list {
    struct engine_event *first, *last;
};

void event_list_append(struct event_list *list, struct engine_event *event);

#endif
