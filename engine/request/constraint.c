/* constraint.c - see constraint.h.
 *
 * A client's grammar may be such that each token costs more, or that one token costs much.  So what
 * the matcher takes is bounded, and a call that would take more is ended.  It is the processor's
 * time, because a busy machine is not the grammar's fault.
 *
 *   one sequence   FIRST_SECONDS at most, for one token or in all; SECONDS_OF_TOKEN more with each
 *                  token
 *   all sequences  a credit, which grows with the time.  Where it is used up, a call still has
 *                  LEAST_SECONDS, so that only costly grammars fail for it */
#include "engine/request/constraint.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/error.h"
#include "engine/grammar/grammar.h"
#include "engine/request/request.h"
#include "engine/tokenizer/tokenizer.h"

#define FIRST_SECONDS 0.1
#define SECONDS_OF_TOKEN 0.002
#define LEAST_SECONDS 0.005
#define CREDIT_SECONDS 0.25   /* of all sequences, at most */
#define CREDIT_OF_SECOND 0.25 /* that comes with each second */

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double thread_seconds(void) {
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

/* Forces the token that comes before what the grammar says. */
static int force_prefix(struct constraint *c, uint32_t token) {
    c->forced = malloc(sizeof(*c->forced));
    if (!c->forced) return ERR_NOMEM;
    c->forced[0] = token;
    c->n_forced = 1;
    return 0;
}

int constraint_init(struct constraint *c, const struct sampling_params *params,
                    const struct tokenizer *tokenizer, uint32_t n_vocab,
                    struct constraint_credit *credit) {
    *c = (struct constraint){
        .tokenizer = tokenizer, .n_vocab = n_vocab, .credit = credit, .allowed = FIRST_SECONDS};
    if (!params->grammar) return 0;
    c->mask = calloc(grammar_mask_words(n_vocab), sizeof(*c->mask));
    int code = c->mask ? grammar_matcher_create(&c->matcher, params->grammar) : ERR_NOMEM;
    if (code == ERR_FULL) {
        c->failed = code; /* said with the first token */
        code = 0;
    }
    c->waits = params->has_prefix && params->is_free_before;
    c->awaited = params->prefix;
    if (!code && params->has_prefix && !c->waits) code = force_prefix(c, params->prefix);
    if (code) constraint_fini(c);
    return code;
}

void constraint_fini(struct constraint *c) {
    grammar_matcher_destroy(c->matcher);
    free(c->mask);
    free(c->forced);
    *c = (struct constraint){0};
}

/* Sets what the matcher may take now; returns the thread's time. */
static double begin(struct constraint *c) {
    struct constraint_credit *credit = c->credit;
    const double now = seconds_of(CLOCK_MONOTONIC);
    if (credit->at > 0) credit->seconds += CREDIT_OF_SECOND * (now - credit->at);
    if (credit->at == 0 || credit->seconds > CREDIT_SECONDS) credit->seconds = CREDIT_SECONDS;
    credit->at = now;
    const double of_all = credit->seconds > LEAST_SECONDS ? credit->seconds : LEAST_SECONDS;
    grammar_matcher_allow(c->matcher, c->allowed < of_all ? c->allowed : of_all);
    return thread_seconds();
}

/* Notes a failure, and what the matcher has taken since `began`. */
static void note(struct constraint *c, int code, double began) {
    const double taken = thread_seconds() - began;
    c->allowed -= taken;
    c->credit->seconds = c->credit->seconds > taken ? c->credit->seconds - taken : 0;
    if (!c->failed) c->failed = code;
}

static void accept(struct constraint *c, uint32_t token) {
    c->allowed += SECONDS_OF_TOKEN;
    if (c->allowed > FIRST_SECONDS) c->allowed = FIRST_SECONDS;
    const double began = begin(c);
    note(c, grammar_matcher_accept(c->matcher, token), began);
    c->is_over = !c->failed && grammar_matcher_is_over(c->matcher);
}

void constraint_take(struct constraint *c, uint32_t token) {
    if (!c->matcher || c->failed) return;
    if (c->waits) c->waits = token != c->awaited;
    else if (constraint_n_forced(c) == 0) accept(c, token);
    else if (c->forced[c->first_forced++] != token) c->failed = ERR_INVALID;
}

/* Lets the matcher take as many of the tokens as it does: *n_taken.  Returns why it takes no more,
 * unless the next one may not follow. */
static int take_all(struct constraint *c, const uint32_t *tokens, size_t n, uint32_t *n_taken) {
    int code = 0;
    for (*n_taken = 0; *n_taken < n; ++*n_taken)
        if ((code = grammar_matcher_accept(c->matcher, tokens[*n_taken]))) break;
    return code == ERR_INVALID ? 0 : code;
}

void constraint_force(struct constraint *c) {
    char text[CONSTRAINT_MAX_FORCED_BYTES];
    struct token_list tokens = {0};
    if (!c->matcher || !c->tokenizer || c->failed || c->is_over || c->waits ||
        constraint_n_forced(c) > 0)
        return;
    const double began = begin(c);
    size_t n = 0;
    int code = grammar_matcher_forced(c->matcher, text, sizeof(text), &n);
    free(c->forced);
    c->forced = NULL;
    c->first_forced = c->n_forced = 0;
    /* A text that is cut inside a character is none, and is sampled. */
    if (n > 1 && !tokenizer_encode(c->tokenizer, text, n, false, 0, &tokens, NULL) &&
        tokens.n > 1) {
        code = take_all(c, tokens.ids, tokens.n - 1, &c->n_forced);
        c->forced = tokens.ids;
    } else {
        free(tokens.ids);
    }
    note(c, code, began);
}

static void set_only(struct constraint *c, uint32_t token) {
    memset(c->mask, 0, grammar_mask_words(c->n_vocab) * sizeof(*c->mask));
    c->mask[token / 32] |= 1u << token % 32;
}

static bool has_any(const struct constraint *c) {
    for (uint32_t i = 0; i < grammar_mask_words(c->n_vocab); i++)
        if (c->mask[i]) return true;
    return false;
}

static bool is_banned(uint32_t token, const uint32_t *banned, uint32_t n_banned) {
    for (uint32_t i = 0; i < n_banned; i++)
        if (banned[i] == token) return true;
    return false;
}

/* Tells whether a token may come that is not banned.  Where others may, it is soon found. */
static bool has_other(const struct constraint *c, const uint32_t *banned, uint32_t n_banned) {
    for (uint32_t i = 0; i < grammar_mask_words(c->n_vocab); i++)
        for (uint32_t word = c->mask[i]; word; word &= word - 1)
            if (!is_banned(32 * i + (uint32_t)__builtin_ctz(word), banned, n_banned)) return true;
    return false;
}

const uint32_t *constraint_mask(struct constraint *c, const uint32_t *banned, uint32_t n_banned,
                                bool *ban) {
    *ban = n_banned > 0;
    if (!c->matcher || c->failed || c->is_over || c->waits) return NULL;
    if (constraint_n_forced(c) > 0) {
        set_only(c, c->forced[c->first_forced]);
        return c->mask;
    }
    const double began = begin(c);
    note(c, grammar_matcher_mask(c->matcher, c->mask), began);
    if (!c->failed && !has_any(c)) c->failed = ERR_NOT_FOUND;
    if (c->failed) return NULL;
    if (n_banned > 0) *ban = has_other(c, banned, n_banned);
    return c->mask;
}

int constraint_failure(const struct constraint *c, struct error *err) {
    switch (c->failed) {
    case ERR_FULL:
        return error_set(err, ERR_UNSUPPORTED,
                         "the grammar takes too much time or memory to find the next token");
    case ERR_NOT_FOUND:
        return error_set(err, ERR_UNSUPPORTED,
                         "the grammar has no next token that the model knows");
    case ERR_NOMEM: return error_set(err, ERR_NOMEM, "no memory for the grammar's state");
    default: return error_set(err, c->failed, "a token is not of the grammar");
    }
}
