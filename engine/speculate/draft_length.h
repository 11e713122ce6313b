/* draft_length.h - decides how many tokens to guess, so that guessing never costs much.
 *
 * A sequence has credit, in steps of the model.  Each token that a step gives adds a little, and
 * each right guess adds the step that it saved.  Each guess takes what its row costs.
 *
 *   credit   += 1 / 64 per token, + 1 per right guess, - price per guess;   0 <= credit <= 4
 *   price     = 1 / 8 for each running sequence, up to 1
 *   guesses  <= credit / price, and at most one more than twice as many as were right the last time
 *
 * One sequence alone leaves most of the machine idle: a row more costs little.  Where many run, a
 * row costs what it may save.
 *
 * So where no guess is right, at most 1 / 64 of the steps' cost is lost, and once the credit of the
 * start.  Where guesses are right their number doubles, up to DRAFT_FEW.
 *
 * While credit is less than a step, only longer matches may guess, which are more than chance.
 * Guesses of which none was right double that length (min_match).  A right guess sets it to 0, and
 * it falls slowly while nothing is guessed.
 *
 * Where the backend runs ahead, a step with guesses has another price, and shared_credit.h decides.
 *
 * Thread: engine (init: any).  Memory: embedded. */
#ifndef ENGINE_SPECULATE_DRAFT_LENGTH_H
#define ENGINE_SPECULATE_DRAFT_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/speculate/shared_credit.h"

/* Where `shared` is set, only the first three members are used. */
struct draft_length {
    struct shared_credit *shared; /* the engine's; NULL: the backend does not run ahead */
    struct draft_account account; /* the sequence's account beside it */
    uint32_t n_running;           /* sequences that share the step */
    uint32_t credit;              /* in 1 / 64 of a step */
    uint32_t limit;               /* most guesses, by how many of the last ones were right */
    uint32_t min_match;           /* shortest match that may guess while credit is low */
    uint32_t n_since_change;      /* tokens since min_match changed */
};

/* Makes the state of a new sequence, with the credit of one step, or with an empty account if
 * shared is not NULL.  shared is borrowed, and must outlive it. */
void draft_length_init(struct draft_length *length, struct shared_credit *shared);
/* Sets how many sequences share the next step, at least 1, which decides what guesses cost. */
void draft_length_share(struct draft_length *length, uint32_t n_running);
/* Returns how many tokens may be guessed from a match of n_matched tokens: at most n_matched.  0:
 * there is too little credit, or the match is too short for it.  Takes no credit. */
uint32_t draft_length_most(const struct draft_length *length, uint32_t n_matched);
/* Notes that a step has given the sequence n_tokens tokens, and that n_accepted of its n_drafted
 * guesses were right; n_drafted may be 0.  Adds credit, and takes the price of the guesses. */
void draft_length_learn(struct draft_length *length, uint32_t n_tokens, uint32_t n_drafted,
                        uint32_t n_accepted);
/* Takes the price of a step that the sequence left out to wait for its newest token, if nothing was
 * guessed behind that.  Does nothing where the backend does not run ahead. */
void draft_length_waited(struct draft_length *length);
/* Takes the price of a delay by other sequences' guesses from the account.  Returns false, and
 * takes nothing, if its credit does not cover it.  shared must not be NULL. */
bool draft_length_pay_delay(struct draft_length *length);

#endif
