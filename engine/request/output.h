/* output.h - a request's generated tokens on their way to the client.
 *
 *   tokens ─► detokeniser ─► [ shown already | ready to show | held: may become a stop string ]
 *
 * Stop strings end what a text says.  In what it thinks (thought.h) they are not looked for.
 *
 * A token is in the same event as the last byte of its text, so text and tokens always agree.
 *
 * Thread: engine (init: any).  Memory: buffers keep the size of the longest text held back. */
#ifndef ENGINE_REQUEST_OUTPUT_H
#define ENGINE_REQUEST_OUTPUT_H

#include "engine/request/event.h"
#include "engine/request/stop_match.h"
#include "engine/request/thought.h"
#include "engine/tokenizer/tokenizer.h"

struct output_token;
struct sample_result;

struct output {
    const struct tokenizer *tokenizer;
    const struct sampling_params *params;
    struct detokenizer detokenizer;
    struct stop_match stops;
    char *text; /* [n_text], not shown yet */
    size_t n_text, text_capacity, n_held;
    struct thought thought;      /* whose stop strings do not count */
    uint64_t n_shown;            /* bytes shown in events */
    struct output_token *tokens; /* [n_tokens], not shown yet */
    uint32_t n_tokens, token_capacity;
};

/* Borrows tokenizer (NULL: tokens have no text) and params.  ERR_NOMEM; a failed init needs no
 * fini. */
int output_init(struct output *out, const struct tokenizer *tokenizer,
                const struct sampling_params *params);
void output_fini(struct output *out);

/* How to treat a token. */
enum output_mode {
    OUTPUT_TEXT,   /* text that may end at a stop string */
    OUTPUT_EARLY,  /* text before min_tokens tokens: stop strings that end in it do not count */
    OUTPUT_SILENT, /* an end token: counted, not shown */
    OUTPUT_END,    /* an end token that include_stop shows */
};

/* Returns 0, or 1 when stop string *index was completed (text is cut there), or ERR_NOMEM. */
int output_push(struct output *out, const struct sample_result *result, enum output_mode mode,
                uint32_t *index);

/* Takes the text and tokens that can be shown now into an EVENT_TEXT, or all of them into an
 * EVENT_FINISH if `last`.  *event is NULL if there is nothing to show and not `last`.
 * ERR_NOMEM. */
int output_take(struct output *out, bool last, struct engine_event **event);
/* Ends the text: an unfinished character becomes U+FFFD.  Not to be called after a stop string.
 * ERR_NOMEM. */
int output_flush(struct output *out);

#endif
