/* shown.h - the text of an answer's tokens, as its request has them shown.
 *
 * Thread: any.  Memory: the caller's. */
#ifndef ENGINE_REQUEST_SHOWN_H
#define ENGINE_REQUEST_SHOWN_H

#include "engine/request/request.h"
#include "engine/tokenizer/tokenizer.h"

/* Returns true if the token is no text. */
static inline bool shown_hides(const struct sampling_params *params,
                               const struct tokenizer *tokenizer, uint32_t token) {
    const struct shown_token *shown = sampling_shown(params, token);
    if (shown) return shown->is_hidden;
    return params->skip_special && tokenizer_is_special(tokenizer, token);
}

/* Does detokenizer_push(). */
static inline long shown_push(struct detokenizer *d, const struct tokenizer *tokenizer,
                              const struct sampling_params *params, uint32_t token, char *buffer,
                              size_t capacity) {
    const struct shown_token *shown = sampling_shown(params, token);
    if (shown && shown->is_hidden) return 0;
    if (shown && shown->byte)
        return detokenizer_push_byte(d, tokenizer, shown->byte, buffer, capacity);
    return detokenizer_push(d, tokenizer, token, params->skip_special && !shown, buffer, capacity);
}

#endif
