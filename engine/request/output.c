/* output.c - see output.h. */
#include "engine/request/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/sample.h"
#include "engine/request/event.h"
#include "engine/request/request.h"
#include "engine/request/shown.h"

struct output_token {
    struct sample_result result;
    uint64_t text_end; /* the token may be shown once this many bytes of text are */
};

int output_init(struct output *out, const struct tokenizer *tokenizer,
                const struct sampling_params *params) {
    *out = (struct output){.tokenizer = tokenizer, .params = params, .thought = params->thought};
    out->detokenizer.begun = true; /* the prompt's text precedes it */
    return stop_match_init(&out->stops, params->stop, params->n_stop);
}

void output_fini(struct output *out) {
    stop_match_fini(&out->stops);
    free(out->text);
    free(out->tokens);
    *out = (struct output){0};
}

static int reserve_text(struct output *out, size_t n_more) {
    if (out->n_text + n_more <= out->text_capacity) return 0;
    size_t capacity = 2 * out->text_capacity + n_more;
    char *text = realloc(out->text, capacity);
    if (!text) return ERR_NOMEM;
    out->text = text;
    out->text_capacity = capacity;
    return 0;
}

static int reserve_token(struct output *out) {
    if (out->n_tokens < out->token_capacity) return 0;
    uint32_t capacity = 2 * out->token_capacity + 2;
    struct output_token *tokens = realloc(out->tokens, capacity * sizeof(*tokens));
    if (!tokens) return ERR_NOMEM;
    out->tokens = tokens;
    out->token_capacity = capacity;
    return 0;
}

/* Appends the text that the token completes; returns where it begins, or ERR_NOMEM. */
static int append_text(struct output *out, uint32_t token, size_t *begin) {
    size_t length = 0;
    *begin = out->n_text;
    if (!out->tokenizer) return 0;
    /* Padding of the vocabulary has no text. */
    if (!tokenizer_token_bytes(out->tokenizer, token, &length)) return 0;
    if (reserve_text(out, 3 * length + DETOKENIZER_GROWTH)) return ERR_NOMEM;
    const long n = shown_push(&out->detokenizer, out->tokenizer, out->params, token,
                              out->text + out->n_text, out->text_capacity - out->n_text);
    if (n < 0) return (int)n;
    out->n_text += (size_t)n;
    return 0;
}

/* Looks for a stop string that the bytes from `begin` to `end` complete, and cuts the text at
 * it.  counts: such a string ends the text; else it is passed over, but one that begins there may
 * be complete later. */
static int match_stops(struct output *out, size_t begin, size_t end, bool counts, uint32_t *index) {
    size_t n_read;
    while (stop_match_read(&out->stops, out->text + begin, end - begin, &n_read, index)) {
        begin += n_read;
        if (!counts) {
            stop_match_pass(&out->stops);
            continue;
        }
        out->n_text = begin;
        if (!out->params->include_stop) out->n_text -= out->stops.patterns[*index].length;
        out->n_held = 0;
        return 1;
    }
    out->n_held = stop_match_held(&out->stops);
    return 0;
}

/* Reads the text from `begin` on while it may be a thought.  What is held before one is looked
 * through once it is known to be none.  So is the mark that ends what is said: no stop string has
 * such a byte.  Returns 1 if a stop string is complete.  *begin: what is left, said. */
static int follow_thought(struct output *out, size_t *begin, bool counts, uint32_t *index) {
    for (; *begin < out->n_text && !thought_is_over(&out->thought); ++*begin) {
        const enum thought_place before = out->thought.place;
        const enum thought_step step = thought_take(&out->thought, out->text[*begin]);
        const enum thought_place place = out->thought.place;
        if (step == THOUGHT_HOLDS && place == THOUGHT_BEFORE) {
            out->n_held++;
            continue;
        }
        const size_t first = *begin - (before == THOUGHT_BEFORE ? out->n_held : 0);
        out->n_held = 0;
        const bool said = (step == THOUGHT_PASSES && place == THOUGHT_BEHIND) ||
                          (before == THOUGHT_BEHIND && place == THOUGHT_HEADER);
        if (said && match_stops(out, first, *begin + 1, counts, index)) return 1;
    }
    return 0;
}

/* Looks for stop strings in the text from `begin` on.  counts: they end the text. */
static int read_stops(struct output *out, size_t begin, bool counts, uint32_t *index) {
    if (out->stops.n_patterns == 0) return 0;
    if (follow_thought(out, &begin, counts, index)) return 1;
    return begin < out->n_text ? match_stops(out, begin, out->n_text, counts, index) : 0;
}

int output_push(struct output *out, const struct sample_result *result, enum output_mode mode,
                uint32_t *index) {
    size_t begin = out->n_text;
    if (reserve_token(out)) return ERR_NOMEM;
    int code = mode == OUTPUT_SILENT ? 0 : append_text(out, result->token, &begin);
    if (code) return code;
    /* A character that waits for the rest of its bytes will end after the present end of the
     * text. */
    uint64_t end = out->n_shown + out->n_text + (out->detokenizer.n_pending > 0);
    out->tokens[out->n_tokens++] = (struct output_token){*result, end};
    return mode == OUTPUT_TEXT || mode == OUTPUT_EARLY
               ? read_stops(out, begin, mode == OUTPUT_TEXT, index)
               : 0;
}

int output_flush(struct output *out) {
    if (reserve_text(out, DETOKENIZER_GROWTH)) return ERR_NOMEM;
    long n = detokenizer_finish(&out->detokenizer, out->tokenizer, out->text + out->n_text,
                                out->text_capacity - out->n_text);
    if (n < 0) return (int)n;
    out->n_text += (size_t)n;
    return 0;
}

static void fill_tokens(const struct output *out, struct engine_event *event,
                        struct token_logprob *tops) {
    bool wanted = out->params->n_logprobs >= 0;
    for (uint32_t i = 0; i < event->n_tokens; i++) {
        const struct sample_result *r = &out->tokens[i].result;
        struct token_info *info = &event->tokens[i];
        *info = (struct token_info){.token = r->token, .logprob = wanted ? r->logprob : NAN};
        info->n_top = r->n_top;
        info->top = tops;
        memcpy(tops, r->top, r->n_top * sizeof(*tops));
        tops += r->n_top;
    }
}

int output_take(struct output *out, bool last, struct engine_event **event) {
    size_t n_text = last ? out->n_text : out->n_text - out->n_held, n_tops = 0;
    uint32_t n_tokens = 0;
    while (n_tokens < out->n_tokens &&
           (last || out->tokens[n_tokens].text_end <= out->n_shown + n_text))
        n_tops += out->tokens[n_tokens++].result.n_top;
    *event = NULL;
    if (n_text == 0 && n_tokens == 0 && !last) return 0;
    struct token_logprob *tops;
    *event = event_create(last ? EVENT_FINISH : EVENT_TEXT, n_text, n_tokens, n_tops, &tops);
    if (!*event) return ERR_NOMEM;
    if (n_text > 0) memcpy((*event)->text, out->text, n_text);
    fill_tokens(out, *event, tops);
    out->n_text -= n_text;
    if (out->n_text > 0) memmove(out->text, out->text + n_text, out->n_text);
    out->n_shown += n_text;
    out->n_tokens -= n_tokens;
    if (out->n_tokens > 0)
        memmove(out->tokens, out->tokens + n_tokens, out->n_tokens * sizeof(*out->tokens));
    return 0;
}
