/* recent_answers.c - see recent_answers.h. */
#include "engine/speculate/recent_answers.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"

/* Ends an answer.  Token ids are below the vocabulary's size. */
#define END UINT32_MAX

struct slot {
    uint64_t scope; /* of the token's answer */
    uint32_t token;
    uint32_t earlier; /* the position before this one in its chain */
};

struct recent_answers {
    uint32_t n_slots;   /* a power of 2 */
    uint32_t n_written; /* the next position */
    uint32_t *heads;    /* [n_slots] */
    struct slot *slots; /* [n_slots] */
};

int recent_answers_create(struct recent_answers **out, uint32_t n_tokens) {
    assert(n_tokens > 2 * RECENT_MIN && (n_tokens & (n_tokens - 1)) == 0);
    struct recent_answers *recent = calloc(1, sizeof(*recent));
    if (!recent) return ERR_NOMEM;
    recent->n_slots = n_tokens;
    recent->heads = calloc(n_tokens, sizeof(*recent->heads));
    recent->slots = calloc(n_tokens, sizeof(*recent->slots));
    if (!recent->heads || !recent->slots) {
        recent_answers_destroy(recent);
        return ERR_NOMEM;
    }
    recent->slots[n_tokens - 1].token = END; /* before the first position */
    *out = recent;
    return 0;
}

void recent_answers_destroy(struct recent_answers *recent) {
    if (!recent) return;
    free(recent->heads);
    free(recent->slots);
    free(recent);
}

static struct slot *slot_at(const struct recent_answers *recent, uint32_t position) {
    return &recent->slots[position & (recent->n_slots - 1)];
}

/* Returns the head of the chain for the RECENT_MIN tokens before `end`. */
static uint32_t *head_of(const struct recent_answers *recent, uint64_t scope, const uint32_t *end) {
    uint64_t hash = scope;
    for (uint32_t i = 1; i <= RECENT_MIN; i++)
        hash = (hash ^ end[-(ptrdiff_t)i]) * UINT64_C(0x9E3779B97F4A7C15);
    return &recent->heads[(hash ^ hash >> 32) & (recent->n_slots - 1)];
}

static void write_slot(struct recent_answers *recent, uint64_t scope, uint32_t token,
                       uint32_t *head) {
    const uint32_t at = recent->n_written++;
    *slot_at(recent, at) = (struct slot){scope, token, head ? *head : at};
    if (head) *head = at;
}

void recent_answers_add(struct recent_answers *recent, uint64_t scope, const uint32_t *tokens,
                        uint32_t n_tokens) {
    const uint32_t most = min_u32(RECENT_ANSWER_MOST, recent->n_slots / 2);
    if (n_tokens <= RECENT_MIN) return;
    if (n_tokens > most) tokens += n_tokens - most;
    n_tokens = min_u32(n_tokens, most);
    for (uint32_t i = 0; i < n_tokens; i++)
        write_slot(recent, scope, tokens[i],
                   i < RECENT_MIN ? NULL : head_of(recent, scope, tokens + i));
    write_slot(recent, scope, END, NULL);
}

/* Returns how many positions ago a position was written. */
static uint32_t age_of(const struct recent_answers *recent, uint32_t position) {
    return recent->n_written - position;
}

/* Returns for how many tokens, at most SUFFIX_MAX, what was written before the position is the
 * text's end. */
static uint32_t match_length(const struct recent_answers *recent, uint64_t scope,
                             const uint32_t *tokens, uint32_t n_tokens, uint32_t position) {
    const uint32_t most = min_u32(n_tokens, SUFFIX_MAX);
    const struct slot *next = slot_at(recent, position);
    uint32_t n = 0;
    if (next->scope != scope || next->token == END) return 0;
    while (n < most && slot_at(recent, position - 1 - n)->token == tokens[n_tokens - 1 - n]) n++;
    return n;
}

static void consider(struct suffix_match *best, const struct recent_answers *recent, uint64_t scope,
                     const uint32_t *tokens, uint32_t n_tokens, uint32_t position) {
    const uint32_t length = match_length(recent, scope, tokens, n_tokens, position);
    if (length >= RECENT_MIN && length > best->length)
        *best = (struct suffix_match){position, length};
}

/* Compares slots as they are now.  So a position whose slot has been written again since is no
 * match, or is one of what is there. */
struct suffix_match recent_answers_find(const struct recent_answers *recent, uint64_t scope,
                                        const uint32_t *tokens, uint32_t n_tokens,
                                        const uint32_t *hint) {
    struct suffix_match best = {0};
    if (n_tokens < RECENT_MIN || recent->n_written == 0) return best;
    if (hint) consider(&best, recent, scope, tokens, n_tokens, *hint);
    uint32_t at = *head_of(recent, scope, tokens + n_tokens);
    for (uint32_t n = 0; n < RECENT_MAX_VISITED && best.length < SUFFIX_MAX; n++) {
        if (age_of(recent, at) > recent->n_slots) break;
        consider(&best, recent, scope, tokens, n_tokens, at);
        const uint32_t earlier = slot_at(recent, at)->earlier;
        if (age_of(recent, earlier) <= age_of(recent, at)) break;
        at = earlier;
    }
    return best;
}

uint32_t recent_answers_copy(const struct recent_answers *recent, uint32_t position,
                             uint32_t *tokens, uint32_t n_most) {
    uint32_t n = 0;
    for (; n < n_most; n++) {
        const uint32_t token = slot_at(recent, position + n)->token;
        if (token == END) break;
        tokens[n] = token;
    }
    return n;
}
