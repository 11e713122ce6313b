/* test_tokenizer.c - the tokenizer's promises: refusals by name, bounds, streaming, threads.
 *
 * Each test changes one member of a small tokenizer.json:
 *
 *   ids  0 a  1 b  2 c  3 space  4 "1"  5 aa  6 ab  7 " a"  8 <s> (special)  9 E2  10 82  11 AC  12
 * 80 80 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pthread.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_guard.h"
#include "engine/tokenizer/internal.h"
#include "tests/test.h"

enum { MOST_SECONDS = 10 }; /* of processor time, of what else would take minutes */

static const char SMALL[] =
    "{'version':'1.0','added_tokens':[{'id':8,'content':'<s>','single_word':false,'lstrip':false,"
    "'rstrip':false,'normalized':false,'special':true}],'normalizer':null,'pre_tokenizer':{'type':"
    "'ByteLevel','add_prefix_space':false,'trim_offsets':true,'use_regex':true},'post_processor':"
    "{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}},{'Sequence':"
    "{'id':'A','type_id':0}}],'special_tokens':{'<s>':{'id':'<s>','ids':[8],'tokens':['<s>']}}},"
    "'decoder':{'type':'ByteLevel'},'model':{'type':'BPE','vocab':{'a':0,'b':1,'c':2,'\\u0120':3,"
    "'1':4,'aa':5,'ab':6,'\\u0120a':7,'\\u00e2':9,'\\u0124':10,'\\u00ac':11,'\\u0122\\u0122':12},"
    "'merges':['a a',['a','b'],'\\u0120 a']}}";

/* JSON with single quotes, as it is easier to read in C. */
static json_t *json_of(const char *quoted) {
    char *text = strdup(quoted);
    assert_non_null(text);
    for (char *p = text; *p; p++) {
        if (*p == '\'') *p = '"';
    }
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(json);
    free(text);
    return json;
}

/* Loads SMALL with the member at path ("model/vocab") replaced by value, or as it is if path is
 * NULL. */
static int load_changed(struct tokenizer **out, const char *path, const char *value,
                        struct error *err) {
    json_t *root = json_of(SMALL), *object = root;
    char key[64];
    while (path && strchr(path, '/')) {
        const size_t n = (size_t)(strchr(path, '/') - path);
        assert_true(n < sizeof(key));
        memcpy(key, path, n);
        key[n] = '\0';
        object = json_object_get(object, key);
        assert_non_null(object);
        path += n + 1;
    }
    if (path) assert_int_equal(json_object_set_new(object, path, json_of(value)), 0);
    char *json = json_dumps(root, 0);
    const int rc = tokenizer_load_bytes(out, json, strlen(json), err);
    json_arena_free(json);
    json_decref(root);
    return rc;
}

static struct tokenizer *small(void) {
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    if (load_changed(&tokenizer, NULL, NULL, &err)) fail_msg("%s", err.text);
    return tokenizer;
}

static void assert_ids(const struct token_list *list, const uint32_t *ids, size_t n) {
    assert_int_equal(list->n, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(list->ids[i], ids[i]);
}

TEST(merges_by_rank_and_adds_the_template) {
    struct tokenizer *tokenizer = small();
    struct token_list ids = {0};
    assert_int_equal(tokenizer_encode(tokenizer, "aaab a", 6, true, 0, &ids, NULL), 0);
    assert_ids(&ids, (const uint32_t[]){8, 5, 6, 7}, 4);
    /* Appends; special tokens in the text are tokens; a byte without a token is dropped. */
    assert_int_equal(tokenizer_encode(tokenizer, "zc<s>1", 6, false, 0, &ids, NULL), 0);
    assert_ids(&ids, (const uint32_t[]){8, 5, 6, 7, 2, 8, 4}, 7);
    assert_int_equal(tokenizer_n_vocab(tokenizer), 13);
    free(ids.ids);
    tokenizer_destroy(tokenizer);
}

TEST(tokens_know_their_bytes) {
    struct tokenizer *tokenizer = small();
    size_t n = 0;
    assert_memory_equal(tokenizer_token_bytes(tokenizer, 7, &n), " a", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(tokenizer_token_bytes(tokenizer, 9, &n), "\xE2", 1);
    assert_null(tokenizer_token_bytes(tokenizer, 13, &n));
    assert_null(tokenizer_token_bytes(tokenizer, UINT32_MAX, &n));
    assert_true(tokenizer_is_special(tokenizer, 8));
    assert_false(tokenizer_is_special(tokenizer, 7));
    assert_false(tokenizer_is_special(tokenizer, UINT32_MAX));
    tokenizer_destroy(tokenizer);
}

TEST(encode_stops_at_the_bound) {
    struct tokenizer *tokenizer = small();
    struct token_list ids = {0};
    struct error err = {0};
    assert_int_equal(tokenizer_encode(tokenizer, "a b c", 5, false, 5, &ids, &err),
                     0); /* exactly 5 */
    assert_int_equal(ids.n, 5);
    ids.n = 0;
    assert_int_equal(tokenizer_encode(tokenizer, "a b c", 5, false, 4, &ids, &err), ERR_TOO_LONG);
    assert_int_equal(err.code, ERR_TOO_LONG);
    ids.n = 0;
    assert_int_equal(tokenizer_encode(tokenizer, "a b c", 5, true, 5, &ids, &err), ERR_TOO_LONG);
    free(ids.ids);
    tokenizer_destroy(tokenizer);
}

TEST(encode_refuses_what_is_not_utf8) {
    static const char *const BAD[] = {"\x80",
                                      "a\xC0\x80",
                                      "\xC3",
                                      "\xE0\x80\x80",
                                      "\xED\xA0\x80",
                                      "\xF4\x90\x80\x80",
                                      "\xF8\x88\x80\x80\x80",
                                      "aaaaaaaaaaaa\xFF"};
    struct tokenizer *tokenizer = small();
    struct token_list ids = {0};
    for (size_t i = 0; i < sizeof(BAD) / sizeof(*BAD); i++) {
        struct error err = {0};
        assert_int_equal(tokenizer_encode(tokenizer, BAD[i], strlen(BAD[i]), false, 0, &ids, &err),
                         ERR_INVALID);
        assert_non_null(strstr(err.text, "UTF-8"));
    }
    assert_int_equal(ids.n, 0);
    free(ids.ids);
    tokenizer_destroy(tokenizer);
}

static void assert_decodes(const uint32_t *ids, size_t n, bool skip_special, const char *expected) {
    struct tokenizer *tokenizer = small();
    char *text = NULL;
    size_t length;
    assert_int_equal(tokenizer_decode(tokenizer, ids, n, skip_special, &text, &length, NULL), 0);
    assert_string_equal(text, expected);
    assert_int_equal(length, strlen(expected));
    free(text);
    tokenizer_destroy(tokenizer);
}

TEST(decode_replaces_maximal_parts) {
    assert_decodes((const uint32_t[]){9, 10, 11}, 3, false, "\xE2\x82\xAC");
    assert_decodes((const uint32_t[]){9, 10, 0}, 3, false,
                   "\xEF\xBF\xBD"
                   "a");
    assert_decodes((const uint32_t[]){9, 10}, 2, false, "\xEF\xBF\xBD");
    assert_decodes((const uint32_t[]){10, 11}, 2, false, "\xEF\xBF\xBD\xEF\xBF\xBD");
    assert_decodes((const uint32_t[]){9, 9, 10, 11}, 4, false, "\xEF\xBF\xBD\xE2\x82\xAC");
    assert_decodes((const uint32_t[]){0, 8, 1}, 3, false, "a<s>b");
    assert_decodes((const uint32_t[]){0, 8, 1}, 3, true, "ab");
    assert_decodes((const uint32_t[]){0, 999, 1}, 3, false, "ab"); /* an id that does not exist */
    assert_decodes(NULL, 0, false, "");
}

TEST(streaming_holds_back_half_characters) {
    struct tokenizer *tokenizer = small();
    struct detokenizer d = {0};
    char buffer[64];
    assert_int_equal(detokenizer_push(&d, tokenizer, 9, false, buffer, sizeof(buffer)), 0);
    assert_int_equal(detokenizer_push(&d, tokenizer, 10, false, buffer, sizeof(buffer)), 0);
    assert_int_equal(detokenizer_push(&d, tokenizer, 8, true, buffer, sizeof(buffer)),
                     0); /* skipped */
    /* Too little room changes nothing: the same push works afterwards. */
    assert_int_equal(detokenizer_push(&d, tokenizer, 11, false, buffer, 2), ERR_FULL);
    assert_int_equal(detokenizer_push(&d, tokenizer, 11, false, buffer, 3), 3);
    assert_memory_equal(buffer, "\xE2\x82\xAC", 3);
    assert_int_equal(detokenizer_finish(&d, tokenizer, buffer, DETOKENIZER_GROWTH), 0);

    /* What waited and both bytes of the token become replacements: within three a byte and the
     * growth. */
    assert_int_equal(detokenizer_push(&d, tokenizer, 9, false, buffer, sizeof(buffer)), 0);
    assert_int_equal(detokenizer_push(&d, tokenizer, 12, false, buffer, sizeof(buffer)), 3);
    assert_int_equal(detokenizer_push(&d, tokenizer, 9, false, buffer, sizeof(buffer)), 0);
    assert_int_equal(detokenizer_push(&d, tokenizer, 9, false, buffer, sizeof(buffer)), 3);
    assert_int_equal(detokenizer_finish(&d, tokenizer, buffer, 2), ERR_FULL);
    assert_int_equal(detokenizer_finish(&d, tokenizer, buffer, DETOKENIZER_GROWTH), 3);
    assert_int_equal(detokenizer_finish(&d, tokenizer, buffer, DETOKENIZER_GROWTH), 0);
    tokenizer_destroy(tokenizer);
}

struct change {
    const char *path, *value, *named; /* named: what the refusal must say */
    int code;
};

TEST(load_refuses_what_it_cannot_do_by_name) {
    static const struct change CHANGES[] = {
        {"model/type", "'Unigram'", "Unigram", ERR_UNSUPPORTED},
        {"model/dropout", "0.1", "dropout", ERR_UNSUPPORTED},
        {"model/continuing_subword_prefix", "'##'", "continuing_subword_prefix", ERR_UNSUPPORTED},
        {"model/end_of_word_suffix", "'</w>'", "end_of_word_suffix", ERR_UNSUPPORTED},
        {"model/unk_token", "'a'", "unk_token", ERR_UNSUPPORTED},
        {"model/byte_fallback", "true", "byte_fallback", ERR_UNSUPPORTED},
        {"normalizer", "{'type':'BertNormalizer'}", "BertNormalizer", ERR_UNSUPPORTED},
        {"normalizer", "{'type':'Replace','pattern':{'Regex':'x*'},'content':''}", "Replace",
         ERR_UNSUPPORTED},
        {"normalizer", "{'type':'Precompiled'}", "Precompiled", ERR_UNSUPPORTED},
        {"normalizer", "{'type':'Prepend'}", "prepend", ERR_INVALID},
        {"pre_tokenizer", "{'type':'WhitespaceSplit'}", "WhitespaceSplit", ERR_UNSUPPORTED},
        {"pre_tokenizer", "{'type':'Metaspace'}", "Metaspace", ERR_INVALID},
        {"pre_tokenizer", "{'type':'Metaspace','replacement':'_','prepend_scheme':'last'}", "last",
         ERR_UNSUPPORTED},
        {"pre_tokenizer", "{'type':'Metaspace','replacement':'_','add_prefix_space':false}",
         "add_prefix_space", ERR_UNSUPPORTED},
        {"pre_tokenizer",
         "{'type':'Sequence','pretokenizers':[{'type':'Digits'},{'type':'Metaspace',"
         "'replacement':'_','prepend_scheme':'first'}]}",
         "first", ERR_UNSUPPORTED},
        {"pre_tokenizer",
         "{'type':'Sequence','pretokenizers':[{'type':'ByteLevel'},{'type':'Metaspace',"
         "'replacement':'_'}]}",
         "Metaspace", ERR_UNSUPPORTED},
        {"pre_tokenizer",
         "{'type':'Sequence','pretokenizers':[{'type':'ByteLevel'},{'type':'ByteLevel',"
         "'add_prefix_space':false}]}",
         "ByteLevel", ERR_UNSUPPORTED},
        {"pre_tokenizer", "{'type':'Split','pattern':{'Regex':'\\\\h'},'behavior':'Isolated'}",
         "\\h", ERR_UNSUPPORTED},
        {"pre_tokenizer", "{'type':'Split','pattern':{'Regex':'[a[b]]'},'behavior':'Isolated'}",
         "class", ERR_UNSUPPORTED},
        {"pre_tokenizer", "{'type':'Split','pattern':{'Regex':'a{1,2}+'},'behavior':'Isolated'}",
         "}+", ERR_UNSUPPORTED},
        {"pre_tokenizer", "{'type':'Split','pattern':{'Regex':'('},'behavior':'Isolated'}",
         "parenthesis", ERR_INVALID},
        {"pre_tokenizer", "{'type':'Split','pattern':{'Regex':'a'},'behavior':'Sideways'}",
         "Sideways", ERR_UNSUPPORTED},
        {"post_processor", "{'type':'BertProcessing'}", "BertProcessing", ERR_UNSUPPORTED},
        {"post_processor/single", "[]", "single", ERR_UNSUPPORTED},
        {"decoder", "{'type':'WordPiece'}", "WordPiece", ERR_UNSUPPORTED},
        {"decoder", "null", "decoder", ERR_UNSUPPORTED},
        {"decoder", "{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Replace'}]}",
         "Replace", ERR_UNSUPPORTED},
        {"decoder", "{'type':'Sequence','decoders':[{'type':'ByteLevel'},{'type':'ByteFallback'}]}",
         "ByteFallback", ERR_UNSUPPORTED},
        {"decoder", "{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'ByteLevel'}]}",
         "ByteLevel", ERR_UNSUPPORTED},
        {"decoder", "{'type':'Sequence','decoders':[{'type':'Sequence','decoders':[]}]}",
         "Sequence", ERR_UNSUPPORTED},
        {"decoder", "{'type':'Strip','content':'a','start':1,'stop':1}", "stop", ERR_UNSUPPORTED},
        {"decoder", "{'type':'Strip','content':'ab','start':1,'stop':0}", "Strip", ERR_INVALID},
        {"decoder",
         "{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Strip','content':'a','start':2,"
         "'stop':0}]}",
         "Strip", ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof(CHANGES) / sizeof(*CHANGES); i++) {
        struct tokenizer *tokenizer = NULL;
        struct error err = {0};
        const int rc = load_changed(&tokenizer, CHANGES[i].path, CHANGES[i].value, &err);
        if (rc != CHANGES[i].code || !strstr(err.text, CHANGES[i].named)) {
            fail_msg("%s = %s: %d, '%s'", CHANGES[i].path, CHANGES[i].value, rc, err.text);
        }
        assert_null(tokenizer);
    }
}

TEST(load_bounds_ids) {
    static const struct change CHANGES[] = {
        {"model/vocab", "{'a':-1}", "id", 0},
        {"model/vocab", "{'a':4000000000}", "id", 0},
        {"model/vocab", "{'a':4000}", "id",
         0}, /* one entry does not make a table of four thousand */
        {"model/vocab", "{'a':'0'}", "id", 0},
        {"model/vocab", "{'a':0,'b':0}", "id 0", 0},
        {"model/vocab", "[]", "vocab", 0},
        {"model/merges", "['a z']", "merge 0", 0},
        {"model/merges", "['a a','ab']", "merge 1", 0},
        {"model/merges", "['a b c']", "merge 0", 0},
        {"model/merges", "[['a','b','c']]", "merge 0", 0},
        {"model/merges", "null", "merges", 0},
        {"added_tokens", "[{'id':8}]", "empty", 0},
        {"added_tokens", "[{'id':3,'content':'<s>'}]", "id 3", 0},
        {"added_tokens", "[{'id':5,'content':'ab'}]", "ids 5 and 6", 0},
        {"added_tokens", "[]", "does not exist", 0}, /* the template's <s> */
    };
    for (size_t i = 0; i < sizeof(CHANGES) / sizeof(*CHANGES); i++) {
        struct tokenizer *tokenizer = NULL;
        struct error err = {0};
        const int rc = load_changed(&tokenizer, CHANGES[i].path, CHANGES[i].value, &err);
        if (rc != ERR_INVALID || !strstr(err.text, CHANGES[i].named)) {
            fail_msg("%s = %s: %d, '%s'", CHANGES[i].path, CHANGES[i].value, rc, err.text);
        }
    }
}

TEST(load_reports_files_that_are_not_there_or_not_json) {
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    assert_int_equal(tokenizer_load(&tokenizer, DATA_DIR "/none.json", &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "none.json"));
    assert_int_equal(tokenizer_load(&tokenizer, DATA_DIR, &err),
                     ERR_NOT_FOUND); /* a directory without one */
    assert_int_equal(tokenizer_load(&tokenizer, MODEL_DIR "/MODEL_CARD.md", &err), ERR_INVALID);
    assert_int_equal(tokenizer_load_bytes(&tokenizer, "", 0, &err), ERR_INVALID);
    assert_int_equal(tokenizer_load_bytes(&tokenizer, "{}", 2, &err), ERR_INVALID);
    assert_null(tokenizer);
    tokenizer_destroy(NULL);
}

/* Each first match is the reference library's.  PCRE2's own \w, \b and \v give others. */
TEST(words_are_what_the_reference_library_takes_for_words) {
    static const struct {
        const char *pattern, *text;
        size_t begin, end;
    } CASES[] = {
        {"\\w+", "-cafe\xCC\x81 x", 1, 7}, /* a mark */
        {"\\w+",
         "ab\xE2\x80\xBF"
         "c.",
         0, 6}, /* a connector */
        {"\\w+",
         "\xE2\x93\x90"
         "b",
         0, 4},                          /* a circled letter */
        {"\\w+", "x\xC2\xB2y", 0, 4},    /* a raised digit */
        {"[\\w-]+", "x\xC2\xB2y", 0, 1}, /* but not in a class */
        {"[\\w-]+", "e\xCC\x81-.", 0, 4},
        {"\\W+", "e\xCC\x81 .x", 3, 5},
        {"e\\b", "e\xCC\x81 e", 4, 5},
        {"\\B.", "a\xCC\x81 .", 1, 3},
        {"\\v", "\n\x0B", 1, 2},
    };
    struct matcher matcher;
    assert_int_equal(matcher_init(&matcher, 0), 0);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++) {
        struct match match = {0};
        struct error err = {0};
        struct pattern *code = NULL;
        const char *text = CASES[i].text;
        if (pattern_compile(&code, CASES[i].pattern, strlen(CASES[i].pattern), false, &err))
            fail_msg("%s", err.text);
        assert_int_equal(match_next(&matcher, code, text, strlen(text), &match, &err), 0);
        if (!match.found || match.begin != CASES[i].begin || match.end != CASES[i].end)
            fail_msg("%s in '%s': %zu to %zu", CASES[i].pattern, text, match.begin, match.end);
        pattern_free(code);
    }
    matcher_fini(&matcher);
}

/* Spellings that mean one thing to Oniguruma and another to PCRE2, and have no translation. */
TEST(patterns_of_two_meanings_are_refused) {
    static const char *const PATTERNS[] = {"[\\W]",   "[\\B]",    "\\pL",      "\\xE9",
                                           "\\351",   "a{,2}",    "a{2}?",     "a{2}+",
                                           "a{1,2}+", "(?m:a.b)", "(?i-xm)a.b"};
    static const char *const ALIKE[] = {"a{2}", "a{1,2}?", "\\x41", "\\x{E9}", "(?i:m)", "(?:m)"};
    for (size_t i = 0; i < sizeof(PATTERNS) / sizeof(*PATTERNS); i++) {
        struct error err = {0};
        struct pattern *code = NULL;
        const char *pattern = PATTERNS[i];
        const int rc = pattern_compile(&code, pattern, strlen(pattern), false, &err);
        if (rc != ERR_UNSUPPORTED) fail_msg("%s: %d", pattern, rc);
        assert_null(code);
    }
    for (size_t i = 0; i < sizeof(ALIKE) / sizeof(*ALIKE); i++) {
        struct error err = {0};
        struct pattern *code = NULL;
        if (pattern_compile(&code, ALIKE[i], strlen(ALIKE[i]), false, &err))
            fail_msg("%s", err.text);
        pattern_free(code);
    }
}

/* A pattern that backtracks without end is an error to report, not a text to lose. */
TEST(pattern_limits_are_reported) {
    static const char HARMLESS[] = "aaaac b",
                      ENDLESS[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab cc";
    struct tokenizer *tokenizer = NULL;
    struct token_list ids = {0};
    struct error err = {0};
    const int loaded = load_changed(
        &tokenizer, "pre_tokenizer",
        "{'type':'Sequence','pretokenizers':[{'type':'Split','pattern':{'Regex':'(?:a|aa|a(?=a))+c'"
        "},"
        "'behavior':'Isolated','invert':false},{'type':'ByteLevel','use_regex':false}]}",
        &err);
    if (loaded) fail_msg("%s", err.text);
    assert_int_equal(
        tokenizer_encode(tokenizer, HARMLESS, sizeof(HARMLESS) - 1, false, 0, &ids, &err), 0);
    assert_int_equal(
        tokenizer_encode(tokenizer, ENDLESS, sizeof(ENDLESS) - 1, false, 0, &ids, &err),
        ERR_INVALID);
    assert_non_null(strstr(err.text, "cannot be matched against this text"));
    free(ids.ids);
    tokenizer_destroy(tokenizer);
}

/* What a pattern repeats, it can repeat at every place of a text. */
TEST(patterns_that_cost_too_much_are_refused) {
    static const char *const PATTERNS[] = {"(a{1000}){1000}", "(?:a{1,1000}){1,1000}b", "a{65535}",
                                           "(?:a{1025})"};
    static const char *const ALIKE[] = {"a{1000}", "(a{10}){10}", "\\p{N}{1,3}", "a{0,65535}"};
    for (size_t i = 0; i < sizeof(PATTERNS) / sizeof(*PATTERNS); i++) {
        struct error err = {0};
        struct pattern *code = NULL;
        assert_int_equal(pattern_compile(&code, PATTERNS[i], strlen(PATTERNS[i]), false, &err),
                         ERR_UNSUPPORTED);
        if (!strstr(err.text, PATTERNS[i])) fail_msg("'%s'", err.text);
        if (!strstr(err.text, "more than the")) fail_msg("'%s'", err.text);
    }
    for (size_t i = 0; i < sizeof(ALIKE) / sizeof(*ALIKE); i++) {
        struct error err = {0};
        struct pattern *code = NULL;
        if (pattern_compile(&code, ALIKE[i], strlen(ALIKE[i]), false, &err))
            fail_msg("%s", err.text);
        pattern_free(code);
    }
    char longest[20000];
    struct error err = {0};
    struct pattern *code = NULL;
    memset(longest, 'a', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(pattern_compile(&code, longest, strlen(longest), false, &err),
                     ERR_UNSUPPORTED);
}

/* A component that says the same 32 times: a Sequence of Replaces, each of which doubles. */
static void write_doubling(char *out, size_t size, const char *list) {
    size_t n = (size_t)snprintf(out, size, "{'type':'Sequence','%s':[", list);
    for (int i = 0; i < MAX_STEPS; i++)
        n += (size_t)snprintf(out + n, size - n,
                              "%s{'type':'Replace','pattern':{'String':'a'},'content':'aa'}",
                              i ? "," : "");
    snprintf(out + n, size - n, "]}");
}

TEST(rules_that_lengthen_without_end_are_reported) {
    char doubling[4096];
    struct tokenizer *tokenizer = NULL;
    struct token_list ids = {0};
    struct error err = {0};
    write_doubling(doubling, sizeof(doubling), "normalizers");
    if (load_changed(&tokenizer, "normalizer", doubling, &err)) fail_msg("%s", err.text);
    assert_int_equal(tokenizer_encode(tokenizer, "bcb", 3, false, 0, &ids, &err), 0);
    assert_int_equal(tokenizer_encode(tokenizer, "bab", 3, false, 0, &ids, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "make this text too long"));
    tokenizer_destroy(tokenizer);
    tokenizer = NULL;
    write_doubling(doubling, sizeof(doubling), "decoders");
    assert_int_equal(load_changed(&tokenizer, "decoder", doubling, &err), ERR_INVALID);
    if (!strstr(err.text, "token 'a'") || !strstr(err.text, "too long")) fail_msg("%s", err.text);
    assert_null(tokenizer);
    free(ids.ids);
}

/* Each Metaspace puts its character before every piece, and each Split cuts that off again. */
TEST(pieces_that_double_without_end_are_reported) {
    char steps[8192];
    struct tokenizer *tokenizer = NULL;
    struct token_list ids = {0};
    struct error err = {0};
    size_t n = (size_t)snprintf(steps, sizeof(steps), "{'type':'Sequence','pretokenizers':[");
    for (int i = 0; i < MAX_STEPS / 2; i++)
        n += (size_t)snprintf(steps + n, sizeof(steps) - n,
                              "%s{'type':'Metaspace','replacement':'%c','prepend_scheme':'always',"
                              "'split':false},{'type':'Split','pattern':{'Regex':'.'},"
                              "'behavior':'Isolated'}",
                              i ? "," : "", 'A' + i);
    snprintf(steps + n, sizeof(steps) - n, "]}");
    if (load_changed(&tokenizer, "pre_tokenizer", steps, &err)) fail_msg("%s", err.text);
    assert_int_equal(tokenizer_encode(tokenizer, "abcabc", 6, false, 0, &ids, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "make this text too long"));
    free(ids.ids);
    tokenizer_destroy(tokenizer);
}

/* At each place of the text the pattern takes long, at none of them too long. */
TEST(a_pattern_that_is_slow_everywhere_is_reported) {
    static const char RUN[] = "xxxxxxxxxxxxxxxxxxxx ";
    struct tokenizer *tokenizer = NULL;
    struct token_list ids = {0};
    struct error err = {0};
    char text[200 * (sizeof(RUN) - 1)];
    for (size_t i = 0; i < sizeof(text); i++) text[i] = RUN[i % (sizeof(RUN) - 1)];
    const int loaded = load_changed(
        &tokenizer, "pre_tokenizer",
        "{'type':'Split','pattern':{'Regex':'(x+x+)+y|.'},'behavior':'Isolated'}", &err);
    if (loaded) fail_msg("%s", err.text);
    const clock_t begin = clock();
    assert_int_equal(tokenizer_encode(tokenizer, RUN, 8, false, 0, &ids, &err), 0);
    assert_int_equal(tokenizer_encode(tokenizer, text, sizeof(text), false, 0, &ids, &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "cannot be matched against this text"));
    assert_true((clock() - begin) / CLOCKS_PER_SEC < MOST_SECONDS);
    free(ids.ids);
    tokenizer_destroy(tokenizer);
}

/* A parsed object takes a hundred times its two bytes: the file is judged before it is parsed. */
TEST(a_file_of_too_many_values_is_refused) {
    enum { TIMES = JSON_GUARD_MAX_VALUES };
    char *json = malloc(3 * (size_t)TIMES + 32), *end = json;
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    assert_non_null(json);
    end += sprintf(end, "{\"added_tokens\":[");
    for (size_t i = 0; i < TIMES; i++, end += 3) memcpy(end, "{},", 3);
    end += sprintf(end, "{}]}");
    assert_int_equal(tokenizer_load_bytes(&tokenizer, json, (size_t)(end - json), &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "values"));
    free(json);
}

struct worker {
    const struct tokenizer *tokenizer;
    bool agreed;
};

static void *encode_many_times(void *argument) {
    struct worker *worker = argument;
    static const char TEXT[] = "It's a test of 2024 things:\n\n  caf\xC3\xA9<|im_end|> and more.";
    struct token_list first = {0}, ids = {0};
    worker->agreed =
        tokenizer_encode(worker->tokenizer, TEXT, sizeof(TEXT) - 1, true, 0, &first, NULL) == 0;
    for (size_t i = 0; i < 500 && worker->agreed; i++) {
        ids.n = 0;
        worker->agreed =
            tokenizer_encode(worker->tokenizer, TEXT, sizeof(TEXT) - 1, true, 0, &ids, NULL) == 0 &&
            ids.n == first.n && memcmp(ids.ids, first.ids, ids.n * sizeof(*ids.ids)) == 0;
    }
    free(first.ids);
    free(ids.ids);
    return NULL;
}

TEST(threads_share_one_tokenizer) {
    struct tokenizer *tokenizer = NULL;
    pthread_t threads[4];
    struct worker workers[4];
    assert_int_equal(tokenizer_load(&tokenizer, MODEL_DIR, NULL), 0);
    for (size_t i = 0; i < 4; i++) {
        workers[i] = (struct worker){.tokenizer = tokenizer};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_many_times, &workers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(workers[i].agreed);
    }
    tokenizer_destroy(tokenizer);
}
