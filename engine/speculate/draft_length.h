/* draft_length.h - decides how many tokens to guess, so that guessing never costs much.
 *
 * An account, in steps of the model: each token that a step gives pays in a little, each guess that
 * was right pays in the step that it saved, and each guess takes out what its row costs.
 *
 *   credit   += 1 / 64 per token, + 1 per right guess, - price per guess;   0 <= credit <= 4
 *   price     = 1 / 8 for each running sequence, up to 1
 *   guesses  <= credit / price, and at most one more than twice as many as were right the last time
 *
 * A backend that runs ahead must end a step before the next one can have guesses, and computes that
 * one by the kernels of prompts, without a graph: on an H100 it takes twice the time of another step
 * of a model of 31 million parameters, for all that run.  There the first guess of a step costs a
 * whole step of each running sequence, and a step has credit for four guesses or none.
 *
 * One sequence alone leaves most of the machine idle: a row more costs little.  Where many run, a row
 * costs what it may save.
 *
 * So where no guess is right, at most 1 / 64 of the steps' cost is lost on them, and what the account
 * held at the start.  Where guesses are right their number doubles, up to DRAFT_MAX.
 *
 * A match that was of no use doubles the length that the next one must have, while there is less than
 * a step left: that is spent on matches that are more than chance.  One that was of use ends that, and
 * time does slowly.
 *
 * Thread: engine.  Memory: embedded. */
#ifndef ENGINE_SPECULATE_DRAFT_LENGTH_H
#define ENGINE_SPECULATE_DRAFT_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

enum { DRAFT_MAX = 16 };

struct draft_length {
    bool runs_ahead; /* the backend does */
    uint32_t credit; /* in 1 / 64 of a step; */
    uint32_t first;  /* as well: the price of a step's first guess */
    uint32_t price;  /* as well: of each other one */
    uint32_t limit;  /* by the last guesses */
    uint32_t doubt;  /* matches must be as long, where there is little credit */
    uint32_t n_idle; /* tokens since it was raised or lowered */
};

void draft_length_init(struct draft_length *length, bool runs_ahead);
/* Sets the price of guesses in a step of so many running sequences. */
void draft_length_share(struct draft_length *length, uint32_t n_running);
/* Returns how many tokens may be guessed from a match of n_matched tokens. */
uint32_t draft_length_most(const struct draft_length *length, uint32_t n_matched);
/* Notes that a step has given n_tokens tokens: of its n_drafted guesses n_accepted were right. */
void draft_length_learn(struct draft_length *length, uint32_t n_tokens, uint32_t n_drafted,
                        uint32_t n_accepted);

#endif
