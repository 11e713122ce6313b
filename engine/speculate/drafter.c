/* drafter.c - see drafter.h. */
#include "engine/speculate/drafter.h"

#include "engine/base/sizes.h"

int drafter_init(struct drafter *drafter, uint32_t n_most, const struct recent_answers *recent,
                 uint64_t scope, struct shared_credit *shared) {
    *drafter = (struct drafter){.recent = recent, .scope = scope};
    draft_length_init(&drafter->length, shared);
    return suffix_index_init(&drafter->index, n_most);
}

void drafter_fini(struct drafter *drafter) {
    suffix_index_fini(&drafter->index);
}

void drafter_read(struct drafter *drafter, const uint32_t *tokens, uint32_t n_tokens) {
    suffix_index_extend(&drafter->index, tokens, n_tokens, DRAFTER_READ_MOST);
}

/* A place where the text's end has been before, in the text or in a recent answer. */
struct source {
    struct suffix_match match;
    bool is_recent;
};

/* Finds the match to guess from: the longer one, of equally long ones the text's own.  Where the
 * text has gone on as the last guesses' source did, that one is the hint: a quotation is followed
 * to its end. */
static struct source find(const struct drafter *drafter, const uint32_t *tokens,
                          uint32_t n_tokens) {
    const bool has_read = drafter->index.n_indexed + 1 >= n_tokens,
               has_hint = drafter->copied_at > 0;
    const uint32_t hint = drafter->copied_from + (n_tokens - drafter->copied_at);
    struct source best = {0};
    if (!has_read || draft_length_most(&drafter->length, SUFFIX_MAX) == 0) return best;
    best.match = suffix_index_find(&drafter->index, tokens, n_tokens,
                                   has_hint && !drafter->copied_recent ? hint : 0);
    if (!drafter->recent || best.match.length == SUFFIX_MAX) return best;
    const struct suffix_match other =
        recent_answers_find(drafter->recent, drafter->scope, tokens, n_tokens,
                            has_hint && drafter->copied_recent ? &hint : NULL);
    return other.length > best.match.length ? (struct source){other, true} : best;
}

bool drafter_is_ready(const struct drafter *drafter, const uint32_t *tokens, uint32_t n_tokens) {
    return draft_length_most(&drafter->length, find(drafter, tokens, n_tokens).match.length) > 0;
}

/* Copies one by one: a source that reaches into the guesses themselves goes on periodically. */
static void copy_own(uint32_t *tokens, uint32_t n_tokens, uint32_t from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) tokens[n_tokens + i] = tokens[from + i];
}

uint32_t drafter_guess(struct drafter *drafter, uint32_t *tokens, uint32_t n_tokens,
                       uint32_t most) {
    const struct source source = find(drafter, tokens, n_tokens);
    const uint32_t from = source.match.end;
    uint32_t n = min_u32(most, draft_length_most(&drafter->length, source.match.length));
    if (n == 0) return 0;
    if (source.is_recent) n = recent_answers_copy(drafter->recent, from, tokens + n_tokens, n);
    else copy_own(tokens, n_tokens, from, n);
    drafter->copied_from = from;
    drafter->copied_at = n_tokens;
    drafter->copied_recent = source.is_recent;
    return n;
}

void drafter_share(struct drafter *drafter, uint32_t n_running) {
    draft_length_share(&drafter->length, n_running);
}

void drafter_learn(struct drafter *drafter, uint32_t n_tokens, uint32_t n_drafted,
                   uint32_t n_accepted) {
    draft_length_learn(&drafter->length, n_tokens, n_drafted, n_accepted);
}

void drafter_waited(struct drafter *drafter) {
    draft_length_waited(&drafter->length);
}

bool drafter_pay_delay(struct drafter *drafter) {
    return draft_length_pay_delay(&drafter->length);
}
