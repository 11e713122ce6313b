/* drafter.h - guesses one sequence's next tokens from its own text and from recent answers:
 * speculation without a model.
 *
 * The guesses are what followed the longest earlier occurrence of the text's end, in the text
 * (suffix_index.h) or, where that one is longer, in a recent answer (recent_answers.h);
 * draft_length.h says how many there may be.  So an answer that quotes its prompt, itself or
 * another answer is guessed, and any other is left alone.  (Prompt lookup decoding, Saxena 2023;
 * SuffixDecoding, Oliaro et al. 2024.)
 *
 * Guesses change no answer.  A step computes the sequence's last token and its n guesses as n + 1
 * rows, and each row is sampled as it would be without guesses: from the same logits, with the same
 * parameters and the same random number.  The first row's token is the answer's next one.  If it is
 * the first guess, the second row saw the right text, and its token comes next; and so on up to the
 * first token that is not the guess.  The keys and values of later rows are given up.  That is
 * rejection sampling for a draft that puts all probability on one token.  The guess x is accepted
 * with the probability p(x), and otherwise the token comes from p without x, renormalised
 * (Leviathan et al. 2023, section 2.3; Chen et al. 2023, theorem 1).  So tokens have the same
 * distribution as without guesses.  Where a row's bits do not depend on other rows, one seed gives
 * the same tokens.
 *
 * Thread: engine (init: any).  Memory: that of the index, 8 to 16 bytes a token of the text;
 * recent answers are borrowed. */
#ifndef ENGINE_SPECULATE_DRAFTER_H
#define ENGINE_SPECULATE_DRAFTER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/speculate/draft_length.h"
#include "engine/speculate/recent_answers.h"
#include "engine/speculate/suffix_index.h"

/* The most tokens that drafter_read() indexes at once, so that no step waits for a long prompt. */
enum { DRAFTER_READ_MOST = 16384 };

/* One sequence's guesses.  The caller has the text, and passes all of it each time. */
struct drafter {
    struct suffix_index index;
    struct draft_length length;
    const struct recent_answers *recent; /* or NULL */
    uint64_t scope;                      /* only recent answers of this scope are seen */
    /* The last guesses: where they were found, and put.  copied_at 0: there were none. */
    uint32_t copied_from, copied_at;
    bool copied_recent; /* from an answer */
};

/* Makes a drafter for a text of up to n_most tokens.  recent: it also copies from these answers, of
 * this scope only; NULL: from none.  shared: the engine's credit; NULL: the backend does not run
 * ahead.  Both are borrowed.  ERR_NOMEM; a failed init needs no fini. */
int drafter_init(struct drafter *drafter, uint32_t n_most, const struct recent_answers *recent,
                 uint64_t scope, struct shared_credit *shared);
void drafter_fini(struct drafter *drafter); /* a zeroed struct is allowed */

/* Indexes what is new of the text of n_tokens tokens, at most DRAFTER_READ_MOST tokens.  Called
 * until drafter_is_ready() can see all of it. */
void drafter_read(struct drafter *drafter, const uint32_t *tokens, uint32_t n_tokens);
/* Tells whether drafter_guess() would guess now: all of the text is indexed, its end has a match,
 * and there is credit for it. */
bool drafter_is_ready(const struct drafter *drafter, const uint32_t *tokens, uint32_t n_tokens);
/* Writes up to `most` guesses to tokens[n_tokens] and behind it, where there must be space, and
 * returns their number.  0: there is no match, no credit, or text that is not indexed yet. */
uint32_t drafter_guess(struct drafter *drafter, uint32_t *tokens, uint32_t n_tokens, uint32_t most);
/* Sets how many sequences share the step that the next guesses are for, at least 1. */
void drafter_share(struct drafter *drafter, uint32_t n_running);
/* Notes that a step has given the sequence n_tokens tokens, and that n_accepted of its n_drafted
 * guesses were right; n_drafted may be 0. */
void drafter_learn(struct drafter *drafter, uint32_t n_tokens, uint32_t n_drafted,
                   uint32_t n_accepted);
/* Notes that the sequence left out a step to wait for its newest token, and that nothing was
 * guessed behind that: the wait costs credit. */
void drafter_waited(struct drafter *drafter);
/* Takes the price of a delay by other sequences' guesses.  Returns false, and takes nothing, if the
 * sequence has too little credit of its own.  The drafter must have a shared credit. */
bool drafter_pay_delay(struct drafter *drafter);

#endif
