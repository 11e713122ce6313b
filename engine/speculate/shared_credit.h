/* shared_credit.h - decides when to guess where the backend runs ahead, so that guessing never
 * costs much.
 *
 * There a step with guesses costs whole steps, however many guesses it has (guess_price.h).  Each
 * step that a sequence waits for its newest token costs, too.  Credit is counted in steps of the
 * model: right guesses add what they saved, and tries take their price.  Each sequence has an
 * account.  It begins empty, because an account that can pay for a try at once would cost a short
 * answer too much.  The engine has a shared credit, from which an account takes what it lacks:
 *
 *                     1 / 128 per token                      1 / 128 per token
 *   the shared credit <────────────── a sequence's tokens ──────────────────> its account
 *      ▲ │                                                                     ▲ │
 *      │ └── what the account lacks for a step with guesses, or for a wait ────┘ │
 *      └──── what comes in while it is below 0, or has 4 steps already ──────────┘
 *
 * So the shared credit is full after right guesses, and pays for the first try of a new answer.
 * After wrong guesses it is empty, and tries are few.  Where no guess is right, at most 1 / 64 of
 * the time of all running sequences is lost.  What the shared credit held at the start is lost
 * once.
 *
 * A match is tried only if it is more than chance.  A longer match predicts more right tokens
 * (docs/speculation.md has the counts).  So the answer itself must have followed it for three
 * tokens for each step of the price and of the debt.  Any match is tried while the last guesses
 * saved more than they cost and the account can pay alone.
 *
 * A step with guesses also delays plain sequences, which guessed nothing.  The delay is charged to
 * a plain sequence whose own account covers it, else to the delay credit.  That gets a 128th of
 * each plain step.  Without it there are no guesses, unless the last ones delayed no plain sequence
 * that could not pay.  Where three or more sequences run, no guess may delay a step by more than a
 * quarter of its time.
 *
 * Thread: engine (shared_credit_make: any).  Memory: embedded. */
#ifndef ENGINE_SPECULATE_SHARED_CREDIT_H
#define ENGINE_SPECULATE_SHARED_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/speculate/guess_price.h"

/* The most guesses of a sequence in a step: usually DRAFT_FEW; DRAFT_MAX after a step in which at
 * least DRAFT_FEW were right.  With its newest token these are 16 and 32 rows. */
enum { DRAFT_FEW = 15, DRAFT_MAX = 31 };

/* The state that the accounts of an engine share. */
struct shared_credit {
    struct guess_price price;
    int32_t credit;       /* in 1 / 128 of a step; below 0 if a price has risen */
    int32_t delay_credit; /* in 1 / 128 of a step: delay that plain sequences may still bear */
    bool delays_plain; /* the last step with guesses delayed a plain sequence that could not pay */
};

/* A sequence's account.  Zeroed: a new one. */
struct draft_account {
    int32_t credit;      /* in 1 / 128 of a step; below 0: taken from the shared credit */
    uint32_t n_answered; /* tokens that steps have given */
    bool gains;          /* the last guesses saved more than they cost */
    bool gains_much;     /* gains, and at least DRAFT_FEW of them were right */
};

/* Returns the state of a new engine: a full shared credit, and nothing measured. */
struct shared_credit shared_credit_make(void);
/* Adds 1 / 128 of a step to the delay credit, which has a bound, for a step of generating sequences
 * without guesses. */
void shared_credit_note_plain(struct shared_credit *shared);
/* Notes a step of n_seqs sequences, some with guesses.  delays_plain: it delayed a plain sequence
 * whose account did not pay (draft_account_pay_delay).  Then the delay credit pays, once. */
void shared_credit_note_guesses(struct shared_credit *shared, uint32_t n_seqs, bool delays_plain);

/* Returns how many tokens the account's sequence may guess from a match of n_matched tokens, in a
 * step of n_running sequences.  0: none, for one of the reasons above.  Takes no credit. */
uint32_t draft_account_most(const struct draft_account *account, const struct shared_credit *shared,
                            uint32_t n_running, uint32_t n_matched);
/* Notes that a step has given the sequence n_tokens tokens, and that n_accepted of its n_drafted
 * guesses were right.  Adds 1 / 128 step per token to the account and as much to the shared credit,
 * and a step per right guess to the account.  If n_drafted > 0 it takes guess_price_step(), and
 * sets gains and gains_much. */
void draft_account_learn(struct draft_account *account, struct shared_credit *shared,
                         uint32_t n_running, uint32_t n_tokens, uint32_t n_drafted,
                         uint32_t n_accepted);
/* Takes the price of a wait for the newest token, behind which nothing was guessed.  The shared
 * credit pays what the account lacks. */
void draft_account_waited(struct draft_account *account, struct shared_credit *shared,
                          uint32_t n_running);
/* Takes the price of a delay by another sequence's guesses from the account alone.  Returns false,
 * and takes nothing, if it has too little. */
bool draft_account_pay_delay(struct draft_account *account, const struct shared_credit *shared,
                             uint32_t n_running);

#endif
