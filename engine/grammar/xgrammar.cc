/* xgrammar.cc - grammar.h by the library xgrammar.
 *
 * The only C++ of the engine: the library has no C interface.  No exception leaves this file.
 *
 * The library warns where it leaves out part of a schema.  Such a warning is a refusal here, so what a
 * client asks for is never ignored.  Its two functions for messages are defined here, and keep the
 * last message of a thread while that compiles.
 *
 * Thread: see grammar.h.  Memory: see grammar.h. */
#include "engine/grammar/grammar.h"

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <dlpack/dlpack.h>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include "engine/base/error.h"
extern "C" {
#include "engine/tokenizer/tokenizer.h"
}

namespace {

/* Where the library's warnings go while a thread compiles; NULL: nowhere. */
thread_local std::string *warning;

/* JSON is written in one line, with a space behind commas and colons.  Otherwise a model may write white
 * space for ever, and there is nowhere only one way. */
constexpr bool FREE_SPACE = false;

} // namespace

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string &, int, const std::string &message) {
    throw std::runtime_error(message);
}

void LogMessageImpl(const std::string &, int, int level, const std::string &message) {
    if (level >= 2 && warning && warning->empty()) *warning = message;
}

} // namespace xgrammar

struct grammar_vocab {
    xgrammar::TokenizerInfo info;
    uint32_t n_vocab;
};

struct grammar {
    xgrammar::CompiledGrammar compiled;
    uint32_t n_vocab;
    std::atomic<unsigned> n_refs;
};

struct grammar_matcher {
    xgrammar::GrammarMatcher matcher;
    grammar *owner;
};

/* Calls work(), which may throw, and returns what it returns. */
template <typename Work> static int guarded(struct error *err, Work work) {
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return error_set(err, ERR_NOMEM, "no memory for the grammar");
    } catch (const std::exception &e) {
        return error_set(err, ERR_INVALID, "%s", e.what());
    } catch (...) {
        return error_set(err, ERR_INVALID, "the grammar cannot be compiled");
    }
}

bool grammar_is_available(void) {
    return true;
}

int grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *tokenizer,
                         uint32_t n_vocab, const uint32_t *eos, uint32_t n_eos, struct error *err) {
    if (n_eos == 0)
        return error_set(err, ERR_UNSUPPORTED,
                         "answers of this model cannot be constrained: it has no end token");
    return guarded(err, [&] {
        /* A token without bytes is never allowed: special tokens, and what has no text. */
        std::vector<std::string> tokens(n_vocab);
        for (uint32_t i = 0; i < n_vocab; i++) {
            size_t n = 0;
            const char *bytes = tokenizer_token_bytes(tokenizer, i, &n); /* NULL: padding */
            if (bytes && !tokenizer_is_special(tokenizer, i)) tokens[i].assign(bytes, n);
        }
        const std::vector<int32_t> ends(eos, eos + n_eos);
        *out = new grammar_vocab{xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW,
                                                         static_cast<int>(n_vocab), ends),
                                 n_vocab};
        return 0;
    });
}

void grammar_vocab_destroy(struct grammar_vocab *vocab) {
    delete vocab;
}

static xgrammar::CompiledGrammar compile(xgrammar::GrammarCompiler &compiler,
                                         enum grammar_kind kind, const std::string &text) {
    switch (kind) {
    case GRAMMAR_JSON:
        return compiler.CompileJSONSchema("{\"type\":\"object\"}", FREE_SPACE, std::nullopt,
                                          std::nullopt, false);
    case GRAMMAR_JSON_SCHEMA:
        return compiler.CompileJSONSchema(text, FREE_SPACE, std::nullopt, std::nullopt, false);
    case GRAMMAR_REGEX: return compiler.CompileRegex(text);
    case GRAMMAR_EBNF: return compiler.CompileGrammar(text);
    case GRAMMAR_TAGS: return compiler.CompileStructuralTag(text);
    }
    throw std::runtime_error("an unknown kind of grammar");
}

/* Sets `warning` as long as it lives. */
struct warnings_kept {
    explicit warnings_kept(std::string *to) { warning = to; }
    ~warnings_kept() { warning = nullptr; }
};

int grammar_compile(struct grammar **out, const struct grammar_vocab *vocab, enum grammar_kind kind,
                    const char *text, size_t n, struct error *err) {
    return guarded(err, [&] {
        std::string left_out;
        const warnings_kept kept(&left_out);
        xgrammar::GrammarCompiler compiler(vocab->info, 1, false);
        xgrammar::CompiledGrammar compiled = compile(compiler, kind, std::string(text, n));
        if (!left_out.empty()) return error_set(err, ERR_INVALID, "%s", left_out.c_str());
        *out = new grammar{compiled, vocab->n_vocab, {1}};
        return 0;
    });
}

struct grammar *grammar_ref(struct grammar *grammar) {
    if (grammar) grammar->n_refs.fetch_add(1, std::memory_order_relaxed);
    return grammar;
}

void grammar_unref(struct grammar *grammar) {
    if (grammar && grammar->n_refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete grammar;
}

size_t grammar_bytes(const struct grammar *grammar) {
    return grammar->compiled.MemorySizeBytes();
}

int grammar_matcher_create(struct grammar_matcher **out, struct grammar *grammar) {
    return guarded(nullptr, [&] {
        *out = new grammar_matcher{xgrammar::GrammarMatcher(grammar->compiled), nullptr};
        (*out)->owner = grammar_ref(grammar);
        return 0;
    });
}

void grammar_matcher_destroy(struct grammar_matcher *matcher) {
    if (!matcher) return;
    struct grammar *owner = matcher->owner;
    delete matcher;
    grammar_unref(owner);
}

int grammar_matcher_accept(struct grammar_matcher *matcher, uint32_t token) {
    return guarded(nullptr, [&] {
        return matcher->matcher.AcceptToken(static_cast<int32_t>(token)) ? 0 : ERR_INVALID;
    });
}

bool grammar_matcher_is_over(const struct grammar_matcher *matcher) {
    return matcher->matcher.IsTerminated();
}

int grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask) {
    const uint32_t n_vocab = matcher->owner->n_vocab, n_words = grammar_mask_words(n_vocab);
    return guarded(nullptr, [&] {
        int64_t shape = n_words;
        DLTensor tensor = {};
        tensor.data = mask;
        tensor.device = {kDLCPU, 0};
        tensor.ndim = 1;
        tensor.dtype = {kDLInt, 32, 1};
        tensor.shape = &shape;
        if (!matcher->matcher.FillNextTokenBitmask(&tensor))
            for (uint32_t i = 0; i < n_words; i++) mask[i] = UINT32_MAX;
        return 0;
    });
}

size_t grammar_matcher_forced(struct grammar_matcher *matcher, char *text, size_t capacity) {
    size_t n = 0;
    guarded(nullptr, [&] {
        const std::string forced = matcher->matcher.FindJumpForwardString();
        n = forced.copy(text, capacity);
        return 0;
    });
    return n;
}
