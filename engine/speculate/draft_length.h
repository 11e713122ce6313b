/* draft_length.h - decides how many tokens to guess, so that guessing never costs much.
 *
 * An account, in steps of the model: each token that a step gives pays in a little, each guess that
 * was right pays in the step that it saved, and each guess takes out what its row costs.
 *
 *   credit   += 1 / 64 per token, + 1 per right guess, - price per guess;   0 <= credit <= 4
 *   price     = 1 / 8 for each running sequence, up to 1
 *   guesses  <= credit / price, and at most one more than twice as many as were right the last time
 *
 * One sequence alone leaves most of the machine idle: a row more costs little.  Where many run, a
 * row costs what it may save.
 *
 * So where no guess is right, at most 1 / 64 of the steps' cost is lost on them, and what the
 * account held at the start.  Where guesses are right their number doubles, up to DRAFT_FEW.
 *
 * A match that was of no use doubles the length that the next one must have, while there is less
 * than a step left: that is spent on matches that are more than chance.  One that was of use ends
 * that, and time does slowly.
 *
 * Where the backend runs ahead a step with guesses has another price, and draft_fund.h decides.
 *
 * Thread: engine (init: any).  Memory: embedded. */
#ifndef ENGINE_SPECULATE_DRAFT_LENGTH_H
#define ENGINE_SPECULATE_DRAFT_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/speculate/draft_fund.h"

struct draft_length {
    struct draft_fund *fund;      /* NULL: the backend does not run ahead */
    struct draft_account account; /* with the fund */
    uint32_t n_running;           /* sequences that share the step */
    uint32_t credit;              /* in 1 / 64 of a step */
    uint32_t limit;               /* by the last guesses */
    uint32_t doubt;               /* matches must be as long, where there is little credit */
    uint32_t n_idle;              /* tokens since it was raised or lowered */
};

/* Opens an account.  The fund is borrowed; NULL: the backend does not run ahead. */
void draft_length_init(struct draft_length *length, struct draft_fund *fund);
/* Sets the price of guesses to that in a step of so many running sequences. */
void draft_length_share(struct draft_length *length, uint32_t n_running);
/* Returns how many tokens may be guessed from a match of n_matched tokens. */
uint32_t draft_length_most(const struct draft_length *length, uint32_t n_matched);
/* Notes that a step has given n_tokens tokens: of its n_drafted guesses n_accepted were right. */
void draft_length_learn(struct draft_length *length, uint32_t n_tokens, uint32_t n_drafted,
                        uint32_t n_accepted);
/* Notes that the sequence has waited for its newest token, behind which nothing was guessed. */
void draft_length_waited(struct draft_length *length);
/* Tells whether the account, which must have a fund, has paid for the delay by others' guesses. */
bool draft_length_bear(struct draft_length *length);

#endif
