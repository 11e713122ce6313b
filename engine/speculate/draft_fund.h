/* draft_fund.h - decides when to guess where the backend runs ahead, so that guessing never costs
 * much.
 *
 * There a step with guesses costs whole steps, however many they are, and so does each step that
 * the sequence waits for its newest token (guess_price.h).  An account, in steps of the model, gets
 * what right guesses saved, and pays these prices.  An account that can pay for a try at once would
 * cost a short answer too much.  So accounts begin with nothing, and the engine has a fund for all
 * of them, which lends what an account lacks:
 *
 *               1 / 128 per token                      1 / 128 per token
 *   the fund <──────────────────── a sequence's tokens ──────────────────> its account
 *      ▲ │                                                                     ▲ │
 *      │ └── what the account lacks for a step with guesses, or for a wait ────┘ │
 *      └──── what comes in while it is in debt, or has 4 steps already ──────────┘
 *
 * So where guesses were right lately the fund is full, and a new answer's first try is paid for at
 * once.  Where they were wrong it is empty, and there are few.  At most 1 / 64 of the time of all
 * running sequences is lost where no guess is right, and what the fund held when the engine
 * started.
 *
 * A match is tried only if it is more than chance: the answer itself must have followed it for
 * three tokens for each step of the price, and of the debt.  Of 7,680 tokens of answers that quote
 * nothing 81 stood behind a match that had been followed for 8 to 11, and on average 2.9 tokens
 * were as it said.  Where answers quote it was 9 to 16.  While an account's last guesses were worth
 * their price, and it can pay alone, any match will do.
 *
 * Others lose by guesses that they have no part in.  Those whose accounts can pay for that do.  For
 * all others the fund has patience: a step with guesses takes out its delay, and each plain step
 * pays in a 128th.  Without it there are no guesses, unless the last ones had no such bystander.
 * From three sequences on there are none at all where they would delay a step by more than a
 * quarter of its time: where one or two of four or eight streams of a small model quoted, all lost
 * 7 % by it on an H100.
 *
 * Thread: engine (draft_fund_make: any).  Memory: embedded. */
#ifndef ENGINE_SPECULATE_DRAFT_FUND_H
#define ENGINE_SPECULATE_DRAFT_FUND_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/speculate/guess_price.h"

/* The guesses of a sequence in a step: at first, and where so many were right the last time.  With
 * its newest token these are 16 and 32 rows. */
enum { DRAFT_FEW = 15, DRAFT_MAX = 31 };

/* The state that the accounts of an engine share. */
struct draft_fund {
    struct guess_price price;
    int32_t credit;      /* in 1 / 128 of a step; below 0 if a price has risen */
    int32_t patience;    /* as well */
    bool has_bystanders; /* the last step with guesses delayed a sequence with too little credit */
};

/* A sequence's account.  Zeroed: a new one. */
struct draft_account {
    int32_t credit;      /* in 1 / 128 of a step; below 0: lent by the fund */
    uint32_t n_answered; /* tokens that steps have given */
    bool gains;          /* the last guesses were worth their price, */
    bool gains_much;     /* and as many right as there are at first */
};

/* Makes the full fund of an engine that has measured nothing. */
struct draft_fund draft_fund_make(void);
/* Notes a step of generating sequences without guesses. */
void draft_fund_plain(struct draft_fund *fund);
/* Notes one of n_seqs sequences with guesses.  has_bystanders: a sequence that guessed nothing
 * could not bear the delay. */
void draft_fund_delay(struct draft_fund *fund, uint32_t n_seqs, bool has_bystanders);

/* Returns how many tokens may be guessed from a match of n_matched tokens, in a step of n_running
 * sequences. */
uint32_t draft_account_most(const struct draft_account *account, const struct draft_fund *fund,
                            uint32_t n_running, uint32_t n_matched);
/* Notes that a step has given n_tokens tokens: of its n_drafted guesses n_accepted were right. */
void draft_account_learn(struct draft_account *account, struct draft_fund *fund, uint32_t n_running,
                         uint32_t n_tokens, uint32_t n_drafted, uint32_t n_accepted);
/* Pays for having waited for the newest token, behind which nothing was guessed. */
void draft_account_waited(struct draft_account *account, struct draft_fund *fund,
                          uint32_t n_running);
/* Pays for the delay by others' guesses, if the account has enough for it. */
bool draft_account_bear(struct draft_account *account, const struct draft_fund *fund,
                        uint32_t n_running);

#endif
