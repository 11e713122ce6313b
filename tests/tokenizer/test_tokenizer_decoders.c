/* test_tokenizer_decoders.c - text from the tokens of SentencePiece-style vocabularies: runs of
 * byte tokens, and the space that only the beginning of a text loses.
 *
 *   ids  0 <unk>  1 <s> (special, normalized)  2 E2  3 82  4 AC  5 20  6 41  7 ▁a  8 a  9 ▁ */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"
#include "tests/test.h"

static const char LLAMA[] =
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":"
    "\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
    "\"content\":\" \",\"start\":1,\"stop\":0}]}";
static const char METASPACE[] =
    "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\"}";

static struct tokenizer *with_decoder(const char *decoder) {
    static const char FORM[] =
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true,\"normalized\":true}],"
        "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},\"decoder\":%s,"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"vocab\":{"
        "\"<unk>\":0,\"<s>\":1,\"<0xE2>\":2,\"<0x82>\":3,\"<0xac>\":4,\"<0x20>\":5,\"<0x41>\":6,"
        "\"\xE2\x96\x81"
        "a\":7,\"a\":8,\"\xE2\x96\x81\":9},\"merges\":[\"\xE2\x96\x81 a\"]}}";
    char json[2048];
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    const int n = snprintf(json, sizeof(json), FORM, decoder);
    assert_true(n > 0 && (size_t)n < sizeof(json));
    if (tokenizer_load_bytes(&tokenizer, json, (size_t)n, &err)) fail_msg("%s", err.text);
    return tokenizer;
}

struct push {
    uint32_t id;
    const char *text; /* what must come out */
};

/* Pushes until a push whose text is NULL, then finishes with rest. */
static void assert_stream(const char *decoder, bool begun, const struct push *pushes,
                          const char *rest) {
    struct tokenizer *tokenizer = with_decoder(decoder);
    struct detokenizer d = {.begun = begun};
    char buffer[512];
    for (; pushes->text; pushes++) {
        const long n = detokenizer_push(&d, tokenizer, pushes->id, true, buffer, sizeof(buffer));
        assert_int_equal(n, strlen(pushes->text));
        assert_memory_equal(buffer, pushes->text, (size_t)n);
    }
    const long n = detokenizer_finish(&d, tokenizer, buffer, sizeof(buffer));
    assert_int_equal(n, strlen(rest));
    assert_memory_equal(buffer, rest, (size_t)n);
    tokenizer_destroy(tokenizer);
}

#define FFFD "\xEF\xBF\xBD"

TEST(a_run_of_bytes_is_text_or_is_not) {
    assert_stream(LLAMA, false,
                  (const struct push[]){{2, ""},
                                        {3, ""},
                                        {4, ""},
                                        {8, "\xE2\x82\xAC"
                                            "a"},
                                        {0}},
                  "");
    assert_stream(LLAMA, false,
                  (const struct push[]){
                      {2, ""}, {3, ""}, {4, ""}, {2, ""}, {7, FFFD FFFD FFFD FFFD " a"}, {0}},
                  "");
    /* A token that is skipped does not end it; the end of the text does. */
    assert_stream(LLAMA, false, (const struct push[]){{2, ""}, {1, ""}, {3, ""}, {4, ""}, {0}},
                  "\xE2\x82\xAC");
    assert_stream(LLAMA, false, (const struct push[]){{4, ""}, {4, ""}, {0}}, FFFD FFFD);
}

TEST(only_the_beginning_loses_its_space) {
    assert_stream(LLAMA, false, (const struct push[]){{7, "a"}, {7, " a"}, {0}}, "");
    assert_stream(LLAMA, false, (const struct push[]){{1, ""}, {9, ""}, {9, " "}, {0}}, "");
    assert_stream(LLAMA, false, (const struct push[]){{5, ""}, {7, " a"}, {0}}, "");
    assert_stream(LLAMA, false, (const struct push[]){{5, ""}, {0}}, "");
    assert_stream(LLAMA, true, (const struct push[]){{7, " a"}, {0}}, "");
    assert_stream(METASPACE, false, (const struct push[]){{7, "a"}, {7, " a"}, {0}}, "");
    assert_stream(METASPACE, false, (const struct push[]){{9, ""}, {7, " a"}, {0}}, "");
    assert_stream(METASPACE, true, (const struct push[]){{7, " a"}, {0}}, "");
}

/* Shown before it ends: whole characters, and, once it cannot be text, a replacement for each. */
TEST(a_long_run_does_not_wait_for_its_end) {
    static const uint32_t EURO[] = {2, 3, 4};
    struct tokenizer *tokenizer = with_decoder(LLAMA);
    for (int broken = 0; broken < 2; broken++) {
        struct detokenizer d = {0};
        char buffer[DETOKENIZER_GROWTH + 3];
        size_t shown = 0;
        for (size_t i = 0; i < 300; i++) {
            const uint32_t id = broken && i == 0 ? 4 : EURO[i % 3];
            const long n = detokenizer_push(&d, tokenizer, id, true, buffer, sizeof(buffer));
            assert_true(n >= 0 && utf8_is_valid(buffer, (size_t)n));
            shown += (size_t)n;
            /* No more than a run's length is kept back, in bytes or in replacements of bytes. */
            assert_true(shown + DETOKENIZER_RUN > (broken ? 3 * (i + 1 - DETOKENIZER_RUN) : i) ||
                        i < DETOKENIZER_RUN);
        }
        shown += (size_t)detokenizer_finish(&d, tokenizer, buffer, sizeof(buffer));
        assert_int_equal(shown, broken ? 900 : 300);
    }
    tokenizer_destroy(tokenizer);
}

/* The reference library shows a special token that the normalizer changed; a server must not. */
TEST(special_tokens_are_skipped_in_any_form) {
    struct tokenizer *tokenizer = with_decoder(LLAMA);
    const uint32_t ids[] = {8, 1, 8};
    char *text = NULL;
    size_t n;
    assert_int_equal(tokenizer_decode(tokenizer, ids, 3, true, &text, &n, NULL), 0);
    assert_string_equal(text, "aa");
    free(text);
    assert_int_equal(tokenizer_decode(tokenizer, ids, 3, false, &text, &n, NULL), 0);
    assert_string_equal(text, "a <s>a");
    free(text);
    tokenizer_destroy(tokenizer);
}
