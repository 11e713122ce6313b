/* xgrammar.cc - grammar.h by the library xgrammar.
 *
 * The only C++ of the engine: the library has no C interface.  No exception leaves this file.
 *
 * The library warns where it leaves out part of a schema.  Such a warning is a refusal here, so
 * what a client asks for is never ignored.  Its two functions for messages are defined here, and
 * keep the last message of a thread while that compiles.
 *
 * A mask that took long is kept with the grammar, under a key of the matcher's state.  Within a
 * string the same state comes again with each token, and with each sequence of the grammar.  The
 * key is GetStateKey() of packagefiles/xgrammar-state-key.patch.
 *
 * How much the library has to do, the grammar alone decides.  Its loops count units of work, by
 * packagefiles/xgrammar-limits.patch, and call a function here now and then, which ends work that
 * has taken too long by an exception.
 *
 * Thread: see grammar.h.  Memory: see grammar.h. */
#include "engine/grammar/grammar.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <dlpack/dlpack.h>
#include <malloc.h>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include "engine/base/error.h"
#include "engine/grammar/regex_text.h"
#include "engine/grammar/work.hh"
extern "C" {
#include "engine/tokenizer/tokenizer.h"
}

namespace {

/* Where the library's warnings go while a thread compiles; NULL: nowhere. */
thread_local std::string *warning;

/* JSON is written in one line, with a space behind commas and colons.  Otherwise a model may write
 * white space for ever, and there is nowhere only one way. */
constexpr bool FREE_SPACE = false;

/* Masks that are found faster are found again.  Which ones are kept changes no answer. */
constexpr std::chrono::microseconds WORTH_KEEPING(10);

/* States that a matcher may keep: some, and some more for each byte of its text. */
constexpr size_t MAX_STATES = 512 << 10, MAX_STATES_OF_BYTE = 16;

/* What compiling has taken is given back to the system if it was this much at once. */
constexpr int64_t TRIMMED_BYTES = 4 << 20;

/* What the first states of a matcher may take. */
constexpr double FIRST_SECONDS = 0.1;

} // namespace

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string &, int, const std::string &message) {
    work_go_on();
    throw std::runtime_error(message);
}

void LogMessageImpl(const std::string &, int, int level, const std::string &message) {
    if (level >= 2 && warning && warning->empty()) *warning = message;
    work_go_on();
}

} // namespace xgrammar

struct grammar_vocab {
    xgrammar::TokenizerInfo info;
    uint32_t n_vocab;
};

namespace {

using state_key = std::vector<int32_t>;

struct kept_mask {
    size_t hash;
    state_key key;
    std::vector<uint32_t> mask;
};

/* Masks that took long, the oldest of which gives way to a new one.  Any thread may use it. */
class mask_store {
  public:
    static constexpr size_t MAX_MASKS = 64;

    bool find(const state_key &key, uint32_t *mask);
    void keep(const state_key &key, const uint32_t *mask, size_t n_words);

  private:
    std::mutex lock;
    std::vector<kept_mask> kept;
    size_t next = 0;
};

size_t hash_of(const state_key &key) {
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a, by words */
    for (const int32_t word : key) hash = (hash ^ static_cast<uint32_t>(word)) * 0x100000001b3;
    return hash;
}

bool mask_store::find(const state_key &key, uint32_t *mask) {
    const size_t hash = hash_of(key);
    const std::lock_guard<std::mutex> held(lock);
    for (const kept_mask &one : kept) {
        if (one.hash != hash || one.key != key) continue;
        std::copy(one.mask.begin(), one.mask.end(), mask);
        return true;
    }
    return false;
}

void mask_store::keep(const state_key &key, const uint32_t *mask, size_t n_words) {
    kept_mask made{hash_of(key), key, std::vector<uint32_t>(mask, mask + n_words)};
    const std::lock_guard<std::mutex> held(lock);
    if (kept.size() < MAX_MASKS) kept.push_back(std::move(made));
    else kept[next++ % MAX_MASKS] = std::move(made);
}

} // namespace

struct grammar {
    xgrammar::CompiledGrammar compiled;
    uint32_t n_vocab;
    size_t n_bytes; /* of `compiled` */
    std::atomic<unsigned> n_refs;
    mask_store masks;

    grammar(const xgrammar::CompiledGrammar &from, uint32_t n, size_t bytes)
        : compiled(from), n_vocab(n), n_bytes(bytes), n_refs(1) {}
};

struct grammar_matcher {
    xgrammar::GrammarMatcher matcher;
    grammar *owner;
    state_key key;  /* of the state that a mask is asked of */
    double allowed; /* processor seconds that are left; at first there is no bound */
};

static int say_ended(struct error *err, enum work_ended::reason why) {
    switch (why) {
    case work_ended::MEMORY: return error_set(err, ERR_FULL, "it takes too much memory to compile");
    case work_ended::DEPTH: return error_set(err, ERR_INVALID, "it is nested too deeply");
    case work_ended::STOPPED: return error_set(err, ERR_STOPPED, "it was to be compiled no more");
    case work_ended::TIME: break;
    }
    return error_set(err, ERR_FULL, "it takes too long to compile");
}

/* Calls work(), which may throw, and returns what it returns. */
template <typename Work> static int guarded(struct error *err, Work work) {
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return error_set(err, ERR_NOMEM, "no memory for the grammar");
    } catch (const work_ended &end) {
        return say_ended(err, end.why);
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
                         uint32_t n_vocab, const struct grammar_tokens *special,
                         struct error *err) {
    if (special->n_eos == 0)
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
        /* The library takes a token by its id only where it has bytes.  No text has this one. */
        for (uint32_t i = 0; i < special->n_marks; i++)
            if (special->marks[i] < n_vocab) tokens[special->marks[i]].assign("\xff");
        const std::vector<int32_t> ends(special->eos, special->eos + special->n_eos);
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

/* Finds by the library which tokens may follow. */
static void fill_mask(xgrammar::GrammarMatcher &matcher, uint32_t *mask, uint32_t n_words) {
    int64_t shape = n_words;
    DLTensor tensor = {};
    tensor.data = mask;
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &shape;
    if (!matcher.FillNextTokenBitmask(&tensor)) std::fill_n(mask, n_words, UINT32_MAX);
}

/* Compiles a text by a compiler that ends with it.  Rules that are alike share their masks. */
static xgrammar::CompiledGrammar compile_within(const xgrammar::TokenizerInfo &info,
                                                enum grammar_kind kind, const char *text,
                                                size_t n) {
    xgrammar::GrammarCompiler compiler(info, 1, true);
    return compile(compiler, kind, std::string(text, n));
}

/* Tries the first states and the first mask, which every sequence asks for. */
static void try_begin(const xgrammar::CompiledGrammar &compiled, uint32_t n_vocab) {
    xgrammar::GrammarMatcher matcher(compiled);
    std::vector<uint32_t> mask(grammar_mask_words(n_vocab));
    fill_mask(matcher, mask.data(), grammar_mask_words(n_vocab));
}

/* Refuses what the library would leave out.  Its warning says what, and that it is ignored. */
static int refuse_left_out(struct error *err, const std::string &said) {
    static const char *const ignored[] = {" It is ignored", " and is ignored", " is ignored",
                                          "; ignoring", "; falling back"};
    std::string what = said;
    for (const char *phrase : ignored) {
        const size_t at = what.find(phrase), behind = what.find(':', at);
        if (at == std::string::npos) continue;
        const bool is_last = phrase[0] == ';' || behind == std::string::npos;
        const bool is_said = what.find("not supported") < at || what.find("cannot be") < at;
        what.replace(at, is_last ? std::string::npos : behind - at,
                     is_said ? "" : " is not supported");
    }
    return error_set(err, ERR_INVALID, "%s", what.c_str());
}

int grammar_compile(struct grammar **out, const struct grammar_vocab *vocab, enum grammar_kind kind,
                    const char *text, size_t n, const struct grammar_limits *limits,
                    struct error *err) {
    static const struct grammar_limits none = {HUGE_VAL, INT64_MAX, nullptr, nullptr};
    if (!limits) limits = &none;
    if (kind == GRAMMAR_REGEX) {
        const char *fault = regex_text_fault(std::string(text, n).c_str());
        if (fault) return error_set(err, ERR_INVALID, "the expression %s", fault);
    }
    int64_t peak_bytes = 0;
    const int code = guarded(err, [&] {
        std::string left_out;
        const warnings_kept kept(&left_out);
        const uint32_t n_vocab = vocab->n_vocab;
        int64_t n_bytes = 0;
        const xgrammar::CompiledGrammar compiled = [&] {
            const work_bound bound(limits->seconds, limits->bytes, limits->is_stopped,
                                   limits->user);
            const xgrammar::CompiledGrammar made = compile_within(vocab->info, kind, text, n);
            peak_bytes = bound.peak_bytes();
            n_bytes = bound.n_bytes();
            return made;
        }();
        if (!left_out.empty()) return refuse_left_out(err, left_out);
        const work_bound first(FIRST_SECONDS);
        try_begin(compiled, n_vocab);
        *out = new grammar(compiled, n_vocab, static_cast<size_t>(n_bytes));
        return 0;
    });
    const bool took_much = peak_bytes > TRIMMED_BYTES || code == ERR_FULL || code == ERR_STOPPED;
    if (limits != &none && took_much) malloc_trim(0);
    return code;
}

struct grammar *grammar_ref(struct grammar *grammar) {
    if (grammar) grammar->n_refs.fetch_add(1, std::memory_order_relaxed);
    return grammar;
}

void grammar_unref(struct grammar *grammar) {
    if (grammar && grammar->n_refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete grammar;
}

size_t grammar_bytes(const struct grammar *grammar) {
    const size_t mask_bytes = grammar_mask_words(grammar->n_vocab) * sizeof(uint32_t);
    return grammar->n_bytes + mask_store::MAX_MASKS * mask_bytes;
}

int grammar_matcher_create(struct grammar_matcher **out, struct grammar *grammar) {
    return guarded(nullptr, [&] {
        const work_bound bound(FIRST_SECONDS);
        *out =
            new grammar_matcher{xgrammar::GrammarMatcher(grammar->compiled), nullptr, {}, HUGE_VAL};
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

void grammar_matcher_allow(struct grammar_matcher *matcher, double seconds) {
    matcher->allowed = seconds;
}

/* Calls work() within what the matcher is allowed, which becomes less by it. */
template <typename Work> static int bounded(struct grammar_matcher *matcher, Work work) {
    return guarded(nullptr, [&] {
        if (matcher->allowed <= 0) throw work_ended(work_ended::TIME);
        const work_bound bound(matcher->allowed);
        const int code = work();
        matcher->allowed -= bound.taken();
        return code;
    });
}

/* Tells whether a matcher keeps more states than its text is worth. */
static bool keeps_too_much(const xgrammar::GrammarMatcher &matcher) {
    return matcher.NumStates() > MAX_STATES + MAX_STATES_OF_BYTE * matcher.NumRows();
}

int grammar_matcher_accept(struct grammar_matcher *matcher, uint32_t token) {
    return bounded(matcher, [&]() -> int {
        if (!matcher->matcher.AcceptToken(static_cast<int32_t>(token))) return ERR_INVALID;
        return keeps_too_much(matcher->matcher) ? ERR_FULL : 0;
    });
}

bool grammar_matcher_is_over(const struct grammar_matcher *matcher) {
    return matcher->matcher.IsTerminated();
}

int grammar_matcher_mask(struct grammar_matcher *matcher, uint32_t *mask) {
    using clock = std::chrono::steady_clock;
    const uint32_t n_words = grammar_mask_words(matcher->owner->n_vocab);
    return bounded(matcher, [&] {
        mask_store &masks = matcher->owner->masks;
        const bool has_key = matcher->matcher.GetStateKey(&matcher->key);
        if (has_key && masks.find(matcher->key, mask)) return 0;
        const clock::time_point began = clock::now();
        fill_mask(matcher->matcher, mask, n_words);
        if (has_key && clock::now() - began > WORTH_KEEPING)
            masks.keep(matcher->key, mask, n_words);
        return 0;
    });
}

int grammar_matcher_forced(struct grammar_matcher *matcher, char *text, size_t capacity,
                           size_t *n) {
    return bounded(matcher, [&] {
        const std::string forced = matcher->matcher.FindJumpForwardString(capacity);
        *n = forced.copy(text, capacity);
        return 0;
    });
}
