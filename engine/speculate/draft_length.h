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

struct draft_length {
    struct shared_credit *shared; /* NULL: the backend does not run ahead */
    struct draft_account account; /* used where shared is not NULL */
    uint32_t n_running;           /* sequences that share the step */
    uint32_t credit;              /* in 1 / 64 of a step */
    uint32_t limit;               /* most guesses, by how many of the last ones were right */
    uint32_t min_match;           /* shortest match that may guess while credit is low */
    uint32_t n_since_change;      /* tokens since min_match changed */
};

/* Begins with little credit.  shared is borrowed; NULL: the backend does not run ahead. */
void draft_length_init(struct draft_length *length, struct shared_credit *shared);
/* Sets how many sequences run in the next step, which decides what guesses cost. */
void draft_length_share(struct draft_length *length, uint32_t n_running);
/* Returns how many tokens may be guessed from a match of n_matched tokens. */
uint32_t draft_length_most(const struct draft_length *length, uint32_t n_matched);
/* Notes that a step has given n_tokens tokens.  Of its n_drafted guesses n_accepted were right. */
void draft_length_learn(struct draft_length *length, uint32_t n_tokens, uint32_t n_drafted,
                        uint32_t n_accepted);
/* Notes that the sequence has waited for its newest token, behind which nothing was guessed. */
void draft_length_waited(struct draft_length *length);
/* Takes the price of a delay by another sequence's guesses.  False: there is too little credit.
 * shared must not be NULL. */
bool draft_length_pay_delay(struct draft_length *length);

#endif
