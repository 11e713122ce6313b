/* grammar_rig.c - see grammar_rig.h. */
#include "tests/grammar/grammar_rig.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"

static const double most_s = 10; /* of a text */

static const char *model_dir;
struct tokenizer *rig_tokenizer;
struct grammar_vocab *rig_vocab;

static int make_vocab(struct grammar_vocab **out) {
    struct error err = {0};
    const uint32_t eos = RIG_EOS;
    const struct grammar_tokens special = {.eos = &eos, .n_eos = 1};
    return grammar_vocab_create(out, rig_tokenizer, tokenizer_n_vocab(rig_tokenizer), &special,
                                &err);
}

struct grammar_cache *rig_cache(size_t max_bytes) {
    struct grammar_cache *cache;
    struct grammar_vocab *vocab;
    assert_int_equal(make_vocab(&vocab), 0);
    assert_int_equal(grammar_cache_create(&cache, vocab, max_bytes), 0);
    return cache;
}

struct grammar *rig_get(struct grammar_cache *cache, enum grammar_kind kind, const char *text) {
    struct grammar *grammar = NULL;
    struct error err = {0};
    if (grammar_cache_get(cache, &grammar, kind, text, strlen(text), NULL, &err))
        fail_msg("%s: %s", text, err.text);
    return grammar;
}

bool rig_takes(struct grammar *grammar, const char *text, bool ends) {
    struct token_list ids = {0};
    struct error err = {0};
    struct grammar_matcher *matcher;
    bool takes = true;
    assert_int_equal(
        tokenizer_encode(rig_tokenizer, text, strlen(text), false, UINT32_MAX, &ids, &err), 0);
    assert_int_equal(grammar_matcher_create(&matcher, grammar), 0);
    grammar_matcher_allow(matcher, most_s);
    for (size_t i = 0; i < ids.n && takes; i++)
        takes = grammar_matcher_accept(matcher, ids.ids[i]) == 0;
    if (ends) takes = takes && grammar_matcher_accept(matcher, RIG_EOS) == 0;
    grammar_matcher_destroy(matcher);
    free(ids.ids);
    return takes;
}

static int load(void **state) {
    struct error err = {0};
    if (tokenizer_load(&rig_tokenizer, model_dir, &err)) return -1;
    return grammar_is_available() ? make_vocab(&rig_vocab) : 0;
}

static int unload(void **state) {
    grammar_vocab_destroy(rig_vocab);
    tokenizer_destroy(rig_tokenizer);
    return 0;
}

int rig_main(int argc, char **argv) {
    if (argc < 2) return 1;
    model_dir = argv[1];
    return tests_run("tests", load, unload);
}
