/* test_tokenizer_cache.c - with a cache a text has the tokens that it has without; and the cache
 * keeps its bound and its scopes apart.
 *
 * Texts are random, made of what pre-tokenizers treat in different ways, and often begin as an
 * earlier one.  Chunks are a few bytes long, so that every kind of place lies at the end of
 * one. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/span.h"
#include "engine/tokenizer/internal.h"
#include "tests/test.h"
#include "tests/tokenizer/family_names.h"

enum { MOST_TEXT = 2048, N_ROUNDS = 60, N_PATTERN_ROUNDS = 12, SMALL_CACHE = 24 << 10 };

static const char *const FRAGMENTS[] = {"the",
                                        " quick",
                                        "brown ",
                                        "fox's",
                                        "we'll",
                                        " THE",
                                        "a",
                                        "b",
                                        "ab",
                                        "abc",
                                        "x",
                                        " ",
                                        "  ",
                                        "       ",
                                        "\t",
                                        "\n",
                                        "\n\n\n",
                                        "\r\n",
                                        " \n",
                                        "\n ",
                                        "7",
                                        "2024",
                                        "3.14",
                                        ".",
                                        "...",
                                        ", ",
                                        "!?",
                                        "->",
                                        "_",
                                        "'",
                                        "\xC3\xA9",
                                        "e\xCC\x81",
                                        "\xCC\x81",
                                        "\xC2\xA0",
                                        "\xE2\x96\x81",
                                        "\xE4\xB8\xAD\xE6\x96\x87",
                                        "\xF0\x9F\x98\x80",
                                        "\xE2\x80\xA8",
                                        "\xEF\xB7\xBA",
                                        "<s>",
                                        "</s>",
                                        "<|im_start|>",
                                        "<|im_end|>",
                                        "<|endoftext|>",
                                        "<both>",
                                        "WORD",
                                        "N\xC3\xA9"
                                        "e",
                                        "zzzzzzzzzzzzzzzz"};

static uint64_t state = 1;

static uint32_t draw(uint32_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

struct sample {
    char bytes[MOST_TEXT];
    size_t n;
};

/* The pieces that texts are made of. */
struct alphabet {
    const char *const *fragments;
    uint32_t n;
};
static const struct alphabet many = {FRAGMENTS, sizeof(FRAGMENTS) / sizeof(*FRAGMENTS)};

/* Goes on with the text from a random place, which is a character's beginning. */
static void vary(struct sample *text, const struct alphabet *alphabet) {
    const size_t most = MOST_TEXT / (1 + draw(8));
    size_t n = draw(3) ? draw((uint32_t)text->n + 1) : 0;
    while (n < text->n && n > 0 && ((unsigned char)text->bytes[n] & 0xC0) == 0x80) n--;
    for (;;) {
        const char *fragment = alphabet->fragments[draw(alphabet->n)];
        const size_t length = strlen(fragment);
        for (uint32_t times = draw(4) ? 1 : 1 + draw(40); times > 0; times--) {
            if (n + length > most || n + length > MOST_TEXT) {
                text->n = n;
                return;
            }
            memcpy(text->bytes + n, fragment, length);
            n += length;
        }
    }
}

static struct tokenizer_cache *make_cache(uint64_t max_bytes, size_t chunk_bytes) {
    struct tokenizer_cache *cache = NULL;
    const struct tokenizer_cache_config config = {max_bytes, {1, 2}, chunk_bytes};
    assert_int_equal(tokenizer_cache_create(&cache, &config, NULL), 0);
    return cache;
}

static void print_text(const char *name, const struct sample *text, size_t chunk_bytes) {
    print_error("%s: chunks of %zu:", name, chunk_bytes);
    for (size_t i = 0; i < text->n; i++) print_error(" %02x", (unsigned char)text->bytes[i]);
    print_error("\n");
}

/* Encodes a text with and without the cache; both must answer the same. */
static void check_text(const char *name, const struct tokenizer *tokenizer,
                       struct tokenizer_cache *cache, const struct sample *text) {
    struct token_list expected = {0}, found = {0};
    const struct byte_span middle = {text->n / 4, text->n / 2};
    struct tokenizer_input input = {.text = text->bytes,
                                    .length = text->n,
                                    .add_special = draw(2),
                                    .is_trusted_in_part = draw(2),
                                    .trusted = &middle,
                                    .n_trusted = 1};
    const size_t max_ids = draw(4) ? 0 : 1 + draw(MOST_TEXT);
    struct error err = {0}, own = {0};
    const int rc = tokenizer_encode_input(tokenizer, &input, max_ids, &expected, &err);
    input.cache = cache;
    input.scope = draw(2);
    const int own_rc = tokenizer_encode_input(tokenizer, &input, max_ids, &found, &own);
    bool same = rc == own_rc;
    if (same && rc) same = strcmp(err.text, own.text) == 0;
    if (same && !rc)
        same = found.n == expected.n &&
               (found.n == 0 || memcmp(found.ids, expected.ids, found.n * sizeof(*found.ids)) == 0);
    if (!same) {
        print_text(name, text, tokenizer_cache_chunk(cache));
        fail_msg("%s: %d and %d, %zu and %zu tokens", name, rc, own_rc, expected.n, found.n);
    }
    free(expected.ids);
    free(found.ids);
}

/* Returns the bytes that were found in the cache. */
static uint64_t check_tokenizer(const char *name, const struct tokenizer *tokenizer,
                                const struct alphabet *alphabet, int n_rounds) {
    static const size_t chunks[] = {1, 2, 3, 5, 8, 16, 33, 64, 200, 0};
    uint64_t n_hit = 0;
    for (size_t c = 0; c < sizeof(chunks) / sizeof(*chunks); c++) {
        struct tokenizer_cache *cache = make_cache(draw(2) ? SMALL_CACHE : 1 << 24, chunks[c]);
        struct sample text = {.n = 0};
        for (int i = 0; i < n_rounds; i++) {
            vary(&text, alphabet);
            for (uint32_t again = 0; again < 1 + draw(2); again++)
                check_text(name, tokenizer, cache, &text);
        }
        n_hit += tokenizer_cache_stats(cache).hit_bytes;
        tokenizer_cache_destroy(cache);
    }
    return n_hit;
}

static struct tokenizer *load(const json_t *parts, const char *name) {
    char *json = json_dumps(parts, JSON_COMPACT);
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    if (tokenizer_load_bytes(&tokenizer, json, strlen(json), &err))
        fail_msg("%s: %s", name, err.text);
    json_arena_free(json);
    return tokenizer;
}

static json_t *load_json(const char *path) {
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
    if (!root) fail_msg("%s", path);
    return root;
}

TEST(large_tokenizers_agree) {
    static const char *const PATHS[] = {MODEL_DIR, DATA_DIR "/gpt2", DATA_DIR "/llama3"};
    for (size_t i = 0; i < sizeof(PATHS) / sizeof(*PATHS); i++) {
        struct tokenizer *tokenizer = NULL;
        struct error err = {0};
        if (tokenizer_load(&tokenizer, PATHS[i], &err)) fail_msg("%s", err.text);
        assert_true(check_tokenizer(PATHS[i], tokenizer, &many, N_ROUNDS) > 0);
        tokenizer_destroy(tokenizer);
    }
}

TEST(families_agree) {
    for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(*FAMILIES); i++) {
        char path[512];
        snprintf(path, sizeof(path), DATA_DIR "/families/%s.json", FAMILIES[i]);
        json_t *root = load_json(path);
        struct tokenizer *tokenizer = load(json_object_get(root, "tokenizer"), FAMILIES[i]);
        assert_true(check_tokenizer(FAMILIES[i], tokenizer, &many, N_ROUNDS) > 0);
        tokenizer_destroy(tokenizer);
        json_decref(root);
    }
}

TEST(every_component_agrees) {
    json_t *root = load_json(DATA_DIR "/variants.json");
    const json_t *variants = json_object_get(root, "variants");
    for (size_t i = 0; i < json_array_size(variants); i++) {
        const json_t *variant = json_array_get(variants, i);
        const char *name = json_string_value(json_object_get(variant, "name"));
        json_t *parts = json_copy(json_object_get(root, "base"));
        json_object_update(parts, json_object_get(variant, "parts"));
        struct tokenizer *tokenizer = load(parts, name);
        check_tokenizer(name, tokenizer, &many, N_ROUNDS / 4);
        tokenizer_destroy(tokenizer);
        json_decref(parts);
    }
    json_decref(root);
}

/* Characters of the tokenizer below, and their spelling in its vocabulary. */
static const char *const CHARACTERS[] = {"a", "b", "c", "x", "z", "7", ".", "q", " ", "\n"};
static const char *const SPELLINGS[] = {"a", "b", "c", "x",        "z",
                                        "7", ".", "q", "\xC4\xA0", "\xC4\x8A"};
enum { N_CHARACTERS = sizeof(CHARACTERS) / sizeof(*CHARACTERS) };

/* Makes a model that merges any two characters, so that tokens show where pieces begin. */
static json_t *model_of_pairs(void) {
    json_t *vocab = json_object(), *merges = json_array();
    for (int i = 0; i < N_CHARACTERS; i++)
        json_object_set_new(vocab, SPELLINGS[i], json_integer(i));
    for (int i = 0; i < N_CHARACTERS; i++) {
        for (int k = 0; k < N_CHARACTERS; k++) {
            char both[8];
            snprintf(both, sizeof(both), "%s%s", SPELLINGS[i], SPELLINGS[k]);
            json_object_set_new(vocab, both, json_integer(N_CHARACTERS * (i + 1) + k));
            json_array_append_new(merges, json_pack("[s, s]", SPELLINGS[i], SPELLINGS[k]));
        }
    }
    return json_pack("{s:s, s:o, s:o}", "type", "BPE", "vocab", vocab, "merges", merges);
}

/* Patterns that look ahead, look behind, go on for long, or match nothing, under each behavior. */
TEST(every_pattern_agrees) {
    static const char *const PATTERNS[] = {"\\s+(?!\\S)|\\s+", "\\s*[\\r\\n]+|\\s+(?!\\S)|\\S+",
                                           "a(?!b)|b(?=c)",    "ab(?=c)",
                                           "(?<=a)b",          "^a|^ab",
                                           "[a-z]+$",          "\\bab?\\b",
                                           "(?:ab)+c|a",       "a.*x|b",
                                           "(?i:AB|q+)",       "\\p{N}{1,3}",
                                           "\\n[^\\n]*\\n",    "x*",
                                           "z{3,9}?",          "(?s:a.{5})|ab",
                                           "(?:a|ab)(?:c|x)?", "\\S*?\\s"};
    static const char *const BEHAVIORS[] = {"Removed", "Isolated", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"};
    const struct alphabet few = {CHARACTERS, N_CHARACTERS};
    json_t *model = model_of_pairs();
    for (size_t p = 0; p < sizeof(PATTERNS) / sizeof(*PATTERNS); p++) {
        for (size_t b = 0; b < 10; b++) {
            json_t *steps = json_pack(
                "{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b, s:b}]}", "type", "Sequence",
                "pretokenizers", "type", "Split", "pattern", "Regex", PATTERNS[p], "behavior",
                BEHAVIORS[b % 5], "invert", (int)(b >= 5), "type", "ByteLevel", "add_prefix_space",
                (int)(p % 2), "trim_offsets", 1, "use_regex", 0);
            json_t *parts = json_pack("{s:O, s:o, s:{s:s}}", "model", model, "pre_tokenizer", steps,
                                      "decoder", "type", "ByteLevel");
            assert_non_null(parts);
            struct tokenizer *tokenizer = load(parts, PATTERNS[p]);
            check_tokenizer(PATTERNS[p], tokenizer, &few, N_PATTERN_ROUNDS);
            tokenizer_destroy(tokenizer);
            json_decref(parts);
        }
    }
    json_decref(model);
}

/* Words that come to a special token are refused in a text that is not trusted, also after the same
 * text was encoded as trusted. */
TEST(special_tokens_are_not_found) {
    struct tokenizer_cache *cache = make_cache(1 << 20, 16);
    struct token_list ids = {0};
    struct error err = {0};
    json_t *model = model_of_pairs();
    json_t *parts = json_pack(
        "{s:o, s:{s:s}, s:{s:s}, s:{s:s, s:b}, s:[{s:O, s:s, s:b}]}", "model", model, "decoder",
        "type", "ByteLevel", "normalizer", "type", "Lowercase", "pre_tokenizer", "type",
        "ByteLevel", "add_prefix_space", 0, "added_tokens", "id",
        json_object_get(json_object_get(model, "vocab"), "qq"), "content", "qq", "special", 1);
    assert_non_null(parts);
    struct tokenizer *tokenizer = load(parts, "lower case");
    struct tokenizer_input input = {.text = "aaa QQ aaa aaa", .length = 14, .cache = cache};
    for (int i = 0; i < 3; i++) {
        input.is_trusted_in_part = i == 1;
        assert_int_equal(tokenizer_encode_input(tokenizer, &input, 0, &ids, &err),
                         i == 1 ? ERR_INVALID : 0);
    }
    free(ids.ids);
    tokenizer_destroy(tokenizer);
    tokenizer_cache_destroy(cache);
    json_decref(parts);
}

/* Looks up a text and, if it is not there, inserts ids made of it.  Returns whether it was
 * there. */
static bool look_up(struct tokenizer_cache *cache, uint64_t scope, size_t step, bool ends,
                    const char *text) {
    struct token_list list = {0};
    struct tokenizer_cache_hit hit;
    uint32_t ids[64];
    const size_t n = strlen(text);
    const struct tokenizer_cache_key key = tokenizer_cache_key(cache, scope, step, ends, text, n);
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i] + 256 * (uint32_t)step;
    assert_int_equal(tokenizer_cache_find(cache, &key, &list, &hit), 0);
    const bool found = hit.n_done > 0;
    if (found) {
        assert_int_equal(hit.n_done, n);
        assert_int_equal(hit.n_ids, n);
        assert_memory_equal(list.ids, ids, n * sizeof(*ids));
    } else {
        tokenizer_cache_insert(cache, &key, ids, &(struct tokenizer_cache_hit){n, n});
    }
    free(list.ids);
    return found;
}

TEST(an_entry_is_found_by_all_of_its_key) {
    struct tokenizer_cache *cache = make_cache(1 << 20, 0);
    assert_false(look_up(cache, 1, 0, false, "text"));
    assert_true(look_up(cache, 1, 0, false, "text"));
    assert_false(look_up(cache, 2, 0, false, "text"));
    assert_false(look_up(cache, 1, 1, false, "text"));
    assert_false(look_up(cache, 1, 0, true, "text"));
    assert_false(look_up(cache, 1, 0, false, "text "));
    assert_int_equal(tokenizer_cache_stats(cache).n_entries, 5);
    assert_int_equal(tokenizer_cache_stats(cache).hit_bytes, 4);
    tokenizer_cache_destroy(cache);
}

TEST(the_least_recently_used_are_evicted) {
    enum { MOST = 8 << 10, N = 1000 };
    struct tokenizer_cache *cache = make_cache(MOST, 0);
    char text[32];
    assert_false(look_up(cache, 0, 0, false, "kept"));
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "text %d", i);
        assert_false(look_up(cache, 0, 0, false, text));
        assert_true(look_up(cache, 0, 0, false, "kept"));
        assert_true(tokenizer_cache_stats(cache).bytes <= MOST);
    }
    assert_true(look_up(cache, 0, 0, false, text));
    assert_false(look_up(cache, 0, 0, false, "text 0"));
    assert_in_range(tokenizer_cache_stats(cache).n_entries, 10, N / 2);
    tokenizer_cache_destroy(cache);
}

TEST(what_does_not_fit_is_left_out) {
    struct tokenizer_cache *cache = make_cache(1, 0);
    assert_false(look_up(cache, 0, 0, false, "text"));
    assert_false(look_up(cache, 0, 0, false, "text"));
    assert_int_equal(tokenizer_cache_stats(cache).n_entries, 0);
    tokenizer_cache_destroy(cache);
}

struct worker {
    const struct tokenizer *tokenizer;
    struct tokenizer_cache *cache;
    const struct sample *texts;
    const struct token_list *expected;
    int n_texts;
    uint32_t first;
    bool same;
};

static void *encode_all(void *user) {
    struct worker *w = user;
    struct token_list ids = {0};
    w->same = true;
    for (int i = 0; i < 20 * w->n_texts; i++) {
        const int t = (int)(((uint32_t)i * 7 + w->first) % (uint32_t)w->n_texts);
        const struct tokenizer_input input = {
            .text = w->texts[t].bytes, .length = w->texts[t].n, .cache = w->cache};
        ids.n = 0;
        if (tokenizer_encode_input(w->tokenizer, &input, 0, &ids, NULL) ||
            ids.n != w->expected[t].n ||
            (ids.n && memcmp(ids.ids, w->expected[t].ids, ids.n * sizeof(*ids.ids)) != 0))
            w->same = false;
    }
    free(ids.ids);
    return NULL;
}

TEST(threads_share_a_cache) {
    enum { N_TEXTS = 24, N_THREADS = 4 };
    static struct sample texts[N_TEXTS];
    struct token_list expected[N_TEXTS] = {0};
    struct tokenizer *tokenizer = NULL;
    struct worker workers[N_THREADS];
    pthread_t threads[N_THREADS];
    assert_int_equal(tokenizer_load(&tokenizer, MODEL_DIR, NULL), 0);
    struct tokenizer_cache *cache = make_cache(SMALL_CACHE, 64);
    for (int i = 0; i < N_TEXTS; i++) {
        if (i > 0) texts[i] = texts[i - 1];
        vary(&texts[i], &many);
        assert_int_equal(
            tokenizer_encode(tokenizer, texts[i].bytes, texts[i].n, false, 0, &expected[i], NULL),
            0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        workers[i] = (struct worker){tokenizer, cache, texts, expected, N_TEXTS, 5 * i, false};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &workers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < N_THREADS; i++) assert_true(workers[i].same);
    assert_true(tokenizer_cache_stats(cache).hit_bytes > 0);
    for (int i = 0; i < N_TEXTS; i++) free(expected[i].ids);
    tokenizer_cache_destroy(cache);
    tokenizer_destroy(tokenizer);
}
