/* grammar.h - texts that an answer may be: a grammar is compiled once, and says at each token which
 * ones may follow.
 *
 *   vocabulary (a tokenizer's) ─┐
 *   schema, regex, … ───────────┴► grammar ─► matcher of one sequence ─► mask of the next token
 *
 * The work is done by a library (xgrammar, Apache-2.0), of which this is all that is known outside
 * of xgrammar.cc.  A build without it has absent.c, in which nothing can be compiled.
 *
 * Thread: vocabularies and grammars are immutable, and may be used on any thread at once; a matcher
 * belongs to one thread at a time.  Memory: grammars are counted; what clients make of them is
 * bounded by grammar_cache.h. */
#ifndef ENGINE_GRAMMAR_GRAMMAR_H
#define ENGINE_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct error;
struct grammar; /* opaque, as all here */
struct grammar_matcher;
struct grammar_vocab;
struct tokenizer;

enum grammar_kind {
    GRAMMAR_JSON,        /* any JSON object; the text is not read */
    GRAMMAR_JSON_SCHEMA, /* JSON that a schema allows (engine/grammar/schema.h) */
    GRAMMAR_REGEX,       /* a text that the whole expression matches */
    GRAMMAR_EBNF,        /* GBNF, rules NAME ::= …; the first is root */
    GRAMMAR_TAGS         /* xgrammar's structural tags, in JSON: pieces of the others */
};

/* Tells whether this build can compile grammars. */
bool grammar_is_available(void);

/* Tokens that are no text. */
struct grammar_tokens {
    const uint32_t *eos; /* [n_eos]: they end a text */
    uint32_t n_eos;
    const uint32_t *marks; /* [n_marks]: only formats of GRAMMAR_TAGS allow them, by their ids */
    uint32_t n_marks;
};

/* Prepares a tokenizer's tokens.  n_vocab: of the model, which may have more.  Without an end token
 * there is nothing to tell the end by (ERR_UNSUPPORTED). */
int grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *tokenizer,
                         uint32_t n_vocab, const struct grammar_tokens *special, struct error *err);
void grammar_vocab_destroy(struct grammar_vocab *vocab); /* NULL is allowed */

/* What compiling may take. */
struct grammar_limits {
    double seconds; /* of a processor */
    int64_t bytes;
    bool (*is_stopped)(const void *user); /* tells whether it should end; NULL: it should not */
    const void *user;
};

/* Compiles a text of n bytes, which is ERR_INVALID if it is wrong, or asks for what the library
 * would leave out; ERR_FULL: it takes more than the limits; ERR_STOPPED.  limits NULL: there are
 * none. */
int grammar_compile(struct grammar **out, const struct grammar_vocab *vocab, enum grammar_kind kind,
                    const char *text, size_t n, const struct grammar_limits *limits,
                    struct error *err);
struct grammar *grammar_ref(struct grammar *grammar); /* NULL is allowed, as below */
void grammar_unref(struct grammar *grammar);
size_t grammar_bytes(const struct grammar *grammar);

/* ---- one sequence ---- */

static inline uint32_t grammar_mask_words(uint32_t n_vocab) {
    return (n_vocab + 31) / 32;
}

/* Holds a reference to the grammar.  ERR_NOMEM; ERR_FULL: it takes too long. */
int grammar_matcher_create(struct grammar_matcher **out, struct grammar *grammar);
void grammar_matcher_destroy(struct grammar_matcher *matcher); /* NULL is allowed */
/* Sets how much processor time the calls that follow may take together; at first there is no bound.
 * A call that would take more is ended and returns ERR_FULL, and so does one that would make the
 * matcher keep too much.  After that, and after ERR_NOMEM, a matcher can only be destroyed. */
void grammar_matcher_allow(struct grammar_matcher *matcher, double seconds);
/* Takes the next token.  ERR_INVALID if it may not follow; ERR_FULL; ERR_NOMEM. */
int grammar_matcher_accept(struct grammar_matcher *matcher, uint32_t token);
/* Tells whether an end token has been taken: nothing may follow. */
bool grammar_matcher_is_over(const struct grammar_matcher *matcher);
/* Writes a bit for each token that may follow, [grammar_mask_words(n_vocab)], the first in bit 0.
 * Not after the end.  ERR_FULL; ERR_NOMEM. */
int grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask);
/* Copies the text that must follow in any case, as far as it fits: it may have no end.  *n: its
 * bytes.  Not after the end.  ERR_FULL; ERR_NOMEM. */
int grammar_matcher_forced(struct grammar_matcher *matcher, char *text, size_t capacity, size_t *n);

#ifdef __cplusplus
}
#endif

#endif
