/* test_tune_prompts.c - calibration prompts hold what their question asks for, are as long as they
 * may be, and come out the same every time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/tune/tune_prompts.h"
#include "tests/test.h"

enum { N_TOKENS = 3000, BOS = 8183, LONGEST_ITEM = 250 };

static struct tokenizer *tokenizer;

static struct token_list make(enum tune_text kind, uint64_t seed, const char *prose) {
    struct token_list out = {0};
    struct error err = {0};
    if (tune_prompt_make(&out, tokenizer, prose, kind, seed, N_TOKENS, &err))
        fail_msg("%s", err.text);
    return out;
}

static void decode(const struct token_list *tokens, char **text) {
    size_t length;
    struct error err = {0};
    assert_int_equal(
        tokenizer_decode(tokenizer, tokens->ids, tokens->n, false, text, &length, &err), 0);
}

TEST(prompts_fill_their_length) {
    for (int kind = 0; kind < TUNE_N_TEXTS; kind++) {
        struct token_list tokens = make(kind, 7, NULL);
        assert_in_range(tokens.n, N_TOKENS - LONGEST_ITEM, N_TOKENS);
        assert_int_equal(tokens.ids[0], BOS);
        free(tokens.ids);
    }
}

TEST(a_seed_makes_one_prompt) {
    for (int kind = 0; kind < TUNE_N_TEXTS; kind++) {
        struct token_list a = make(kind, 7, NULL), b = make(kind, 7, NULL), c = make(kind, 8, NULL);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.ids, b.ids, a.n * sizeof(*a.ids));
        assert_true(a.n != c.n || memcmp(a.ids, c.ids, a.n * sizeof(*a.ids)) != 0);
        free(a.ids);
        free(b.ids);
        free(c.ids);
    }
}

/* How often needle stands in text. */
static int count(const char *text, const char *needle) {
    int n = 0;
    for (; (text = strstr(text, needle)) != NULL; text += strlen(needle)) n++;
    return n;
}

TEST(the_key_that_is_asked_for_is_there_once) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct token_list tokens = make(TUNE_RETRIEVAL, seed, NULL);
        char *text, pair[] = "\"________\": \"";
        decode(&tokens, &text);
        const char *asked = strstr(text, "Key: \"");
        assert_non_null(asked);
        memcpy(pair + 1, asked + strlen("Key: \""), 8);
        assert_int_equal(count(text, pair), 1);
        assert_true(strstr(text, pair) < asked);
        assert_non_null(strstr(asked, "<|im_end|>\n<|im_start|>assistant\n"));
        free(text);
        free(tokens.ids);
    }
}

TEST(needles_are_spread_over_the_prose) {
    struct token_list tokens = make(TUNE_NEEDLES, 3, NULL);
    char *text, name[16] = "", asked[64];
    decode(&tokens, &text);
    assert_int_equal(count(text, "The secret number of "), 12);
    const char *before = "What is the secret number of ";
    assert_int_equal(count(text, before), 1);
    assert_int_equal(sscanf(strstr(text, before) + strlen(before), "%15s in", name), 1);
    snprintf(asked, sizeof(asked), "The secret number of %s is ", name);
    assert_int_equal(count(text, asked), 1);
    const size_t length = strlen(text);
    assert_int_equal(count(text + length * 11 / 12, "The secret number"), 1);
    text[length / 12] = 0;
    assert_int_equal(count(text, "The secret number"), 1);
    free(text);
    free(tokens.ids);
}

TEST(all_numbers_of_the_name_that_is_asked_for_are_there) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct token_list tokens = make(TUNE_SEVERAL, seed, NULL);
        char *text, name[16] = "", asked[64];
        decode(&tokens, &text);
        const char *before = "What are all the secret numbers of ";
        const char *question = strstr(text, before);
        assert_int_equal(count(text, "One of the secret numbers of "), 12);
        assert_int_equal(count(text, before), 1);
        assert_int_equal(sscanf(question + strlen(before), "%15s in", name), 1);
        snprintf(asked, sizeof(asked), "One of the secret numbers of %s is ", name);
        assert_int_equal(count(text, asked), 4);
        free(text);
        free(tokens.ids);
    }
}

TEST(prose_is_the_models_own) {
    char *prose = NULL;
    struct error err = {0};
    assert_int_equal(tune_prose_load(&prose, MODEL_DIR, &err), 0);
    assert_non_null(prose);
    struct token_list tokens = make(TUNE_PROSE, 1, prose);
    char *text;
    decode(&tokens, &text);
    const char *begin = strchr(text, '>') + 1; /* after the token that begins a text */
    char middle[200] = "";
    strncat(middle, begin + 1000, sizeof(middle) - 1);
    assert_non_null(strstr(prose, middle));
    free(text);
    free(tokens.ids);
    free(prose);
    assert_int_equal(tune_prose_load(&prose, "no such directory", &err), 0);
    assert_null(prose);
}

/* A text shorter than the prompt begins again, and no character is cut. */
TEST(short_prose_repeats) {
    struct token_list tokens = make(TUNE_PROSE, 5,
                                    "Là-bas, près du moulin, coule une rivière étroite. "
                                    "Ευχαριστώ πολύ για το γράμμα σου, φίλε μου. ");
    char *text;
    decode(&tokens, &text);
    assert_true(count(text, "rivière étroite.") > 10);
    assert_int_equal(count(text, "\xEF\xBF\xBD"), 0);
    free(text);
    free(tokens.ids);
    tokens = make(TUNE_PROSE, 5, "   ");
    free(tokens.ids);
}

TEST(no_room_for_the_question_is_refused) {
    struct token_list out = {0};
    struct error err = {0};
    assert_int_equal(tune_prompt_make(&out, tokenizer, NULL, TUNE_NEEDLES, 1, 100, &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "too short"));
    free(out.ids);
}

int main(void) {
    struct error err = {0};
    if (tokenizer_load(&tokenizer, MODEL_DIR, &err)) return 1;
    const int failed = tests_run("tests", NULL, NULL);
    tokenizer_destroy(tokenizer);
    return failed;
}
