/* constraint.h - keeps one sequence's tokens inside its grammar: which may come next, and which
 * must.
 *
 *   token ─► constraint_take() ─► constraint_mask(): the tokens that may follow
 *                              └► forced: tokens of the text that must follow in any case
 *
 * Where the grammar leaves one way, the rest of the way need not be sampled: its text is cut into
 * tokens as the tokenizer would, but for the last one, which might be longer with what follows it.
 *
 * Thread: engine (init: any).  Memory: one mask, and a matcher that grows with the text. */
#ifndef ENGINE_REQUEST_CONSTRAINT_H
#define ENGINE_REQUEST_CONSTRAINT_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct grammar_matcher;
struct sampling_params;
struct tokenizer;

enum { CONSTRAINT_MAX_FORCED_BYTES = 512 };

/* What the matchers of all sequences may take of the engine thread, beyond what each may have for
 * its token in any case. */
struct constraint_credit {
    double seconds; /* of a processor, that are left */
    double at;      /* when they were counted, in seconds; 0: never */
};

/* Zero-initialised: everything is allowed. */
struct constraint {
    struct grammar_matcher *matcher; /* NULL: no grammar */
    struct constraint_credit *credit;
    double allowed; /* processor seconds that the sequence's own matcher may still take */
    const struct tokenizer *tokenizer;
    uint32_t n_vocab;
    uint32_t *mask; /* grammar_mask_words(n_vocab) */
    bool waits;     /* everything is allowed until the token `awaited`; then the grammar begins */
    uint32_t awaited;
    /* [n_forced]: they come next, and the matcher has taken them already. */
    uint32_t *forced;
    uint32_t first_forced, n_forced;
    bool is_over; /* the grammar's end token has been taken */
    int failed;   /* ERR_*: no token may follow, or it takes too long to find out which */
};

/* Borrows the tokenizer and the credit that all sequences share; params without a grammar:
 * everything is allowed.  ERR_NOMEM; a failed init needs no fini. */
int constraint_init(struct constraint *c, const struct sampling_params *params,
                    const struct tokenizer *tokenizer, uint32_t n_vocab,
                    struct constraint_credit *credit);
void constraint_fini(struct constraint *c);

/* Takes the sequence's next token, sampled or forced. */
void constraint_take(struct constraint *c, uint32_t token);
/* Looks for tokens that are forced to follow. */
void constraint_force(struct constraint *c);
static inline uint32_t constraint_n_forced(const struct constraint *c) {
    return c->n_forced - c->first_forced;
}
/* Returns the first of them. */
static inline uint32_t constraint_next_forced(const struct constraint *c) {
    return c->forced[c->first_forced];
}

/* Returns which tokens may come next, valid until the next call; NULL: all, or none can be told any
 * more.  `banned` [n_banned] are end tokens that should not come: *ban becomes false if nothing
 * else may. */
const uint32_t *constraint_mask(struct constraint *c, const uint32_t *banned, uint32_t n_banned,
                                bool *ban);
/* Writes why it has failed, and returns the code: ERR_UNSUPPORTED where the grammar is at fault. */
int constraint_failure(const struct constraint *c, struct error *err);

#endif
