/* absent.c - grammar.h of a build without the library: nothing can be compiled. */
#include "engine/grammar/grammar.h"

#include "engine/base/error.h"

bool grammar_is_available(void) {
    return false;
}

static int refuse(struct error *err) {
    return error_set(err, ERR_UNSUPPORTED,
                     "this build of quire cannot constrain answers: it has no xgrammar");
}

int grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *tokenizer,
                         uint32_t n_vocab, const struct grammar_tokens *special,
                         struct error *err) {
    (void)out, (void)tokenizer, (void)n_vocab, (void)special;
    return refuse(err);
}

void grammar_vocab_destroy(struct grammar_vocab *vocab) {
    (void)vocab;
}

int grammar_compile(struct grammar **out, const struct grammar_vocab *vocab, enum grammar_kind kind,
                    const char *text, size_t n, const struct grammar_limits *limits,
                    struct error *err) {
    (void)out, (void)vocab, (void)kind, (void)text, (void)n, (void)limits;
    return refuse(err);
}

struct grammar *grammar_ref(struct grammar *grammar) {
    return grammar;
}

void grammar_unref(struct grammar *grammar) {
    (void)grammar;
}

size_t grammar_bytes(const struct grammar *grammar) {
    (void)grammar;
    return 0;
}

int grammar_matcher_create(struct grammar_matcher **out, struct grammar *grammar) {
    (void)out, (void)grammar;
    return ERR_UNSUPPORTED;
}

void grammar_matcher_destroy(struct grammar_matcher *matcher) {
    (void)matcher;
}

/* Without a grammar there is no matcher, so what follows is not called. */

int grammar_matcher_accept(struct grammar_matcher *matcher, uint32_t token) {
    (void)matcher, (void)token;
    return ERR_UNSUPPORTED;
}

void grammar_matcher_allow(struct grammar_matcher *matcher, double seconds) {
    (void)matcher, (void)seconds;
}

bool grammar_matcher_is_over(const struct grammar_matcher *matcher) {
    (void)matcher;
    return false;
}

int grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask) {
    (void)matcher, (void)mask;
    return ERR_UNSUPPORTED;
}

int grammar_matcher_forced(struct grammar_matcher *matcher, char *text, size_t capacity,
                           size_t *n) {
    (void)matcher, (void)text, (void)capacity, (void)n;
    return ERR_UNSUPPORTED;
}
