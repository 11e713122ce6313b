/* test_completion_request.c - each bad input is refused by name, each good one lands where it
 * belongs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/api/completion_request.h"
#include "server/api/fanout.h"
#include "server/json/api_error.h"
#include "server/settings/model_names.h"
#include "tests/kv_types.h"
#include "tests/server/fake_engine.h"
#include "tests/test.h"

static const struct request_limits limits = {
    .models = &(const struct model_names){.names = {"m"}, .n = 1},
    .n_vocab = FAKE_N_VOCAB,
    .max_model_len = FAKE_MAX_LEN,
    .max_sequences = 300,
    .trained_context = FAKE_MAX_LEN,
    .kv_tokens = FAKE_KV_TOKENS,
    .kv = {.allowed = {[TYPE_FULL] = true, [TYPE_STREAMING] = true}},
    .salt_key = {{1, 2}},
    .prefill = {.sparse = true, .n_heads = 4},
};

static int parse(const char *body, struct completion_request *out, struct api_error *err) {
    *err = (struct api_error){0};
    return completion_request_parse(out, body, strlen(body), &limits, err);
}

/* members: what follows a legal prompt. */
static void parse_good(const char *members, struct completion_request *out) {
    char body[1024];
    struct api_error err;
    snprintf(body, sizeof(body), "{\"model\":\"m\",\"prompt\":\"hi\"%s%s}", *members ? "," : "",
             members);
    const int rc = parse(body, out, &err);
    if (rc) fail_msg("%s: %s", body, err.message);
}

TEST(defaults_are_those_of_openai) {
    struct completion_request q;
    parse_good("", &q);
    assert_int_equal(q.prompts.n, 1);
    assert_string_equal(q.prompts.items[0].text, "hi");
    assert_int_equal(q.max_tokens, 16);
    assert_false(q.has_max_tokens);
    assert_int_equal(q.n, 1);
    assert_int_equal(q.best_of, 1);
    assert_false(q.stream);
    assert_false(q.echo);
    assert_true(q.add_special);
    assert_int_equal(q.params.n_logprobs, -1);
    assert_false(q.params.has_seed);
    completion_request_fini(&q);
}

TEST(null_means_default) {
    struct completion_request q;
    parse_good("\"suffix\":null,\"max_tokens\":null,\"temperature\":null,\"top_p\":null,"
               "\"n\":null,\"stream\":null,\"stream_options\":null,\"logprobs\":null,"
               "\"echo\":null,\"stop\":null,\"presence_penalty\":null,"
               "\"frequency_penalty\":null,\"best_of\":null,\"logit_bias\":null,"
               "\"user\":null,\"seed\":null,\"top_k\":null,\"stop_token_ids\":null,"
               "\"cache_salt\":null,\"kv_policy\":null,\"prefill\":null,\"unheard_of\":{\"a\":[1]}",
               &q);
    assert_int_equal(q.max_tokens, 16);
    assert_int_equal(q.params.n_stop, 0);
    assert_true(q.params.sampler.temperature == 1 && q.params.sampler.top_p == 1);
    completion_request_fini(&q);
}

TEST(unknown_members_are_refused_where_that_is_asked) {
    static const struct {
        const char *members, *param, *words;
    } cases[] = {
        {"\"max_token\":3", "max_tokens", "no field max_token: the likeliest is max_tokens;"},
        {"\"Temperatur\":3", "temperature", "the likeliest is temperature;"},
        {"\"seed\":3,\"unheard_of\":null", NULL, "no field unheard_of; without"},
        {"\"a\\u0007 b\":3", NULL, "no field \"a\\x07 b\"; without"},
        {"\"abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefg"
         "hij"
         "abcdefghijabcdefghij\":1",
         NULL, "...;"},
        {"\"temprature\":1,\"seed\":\"x\"", "seed", "seed must be"}};
    struct request_limits strict = limits;
    strict.strict_fields = true;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char body[1024];
        struct completion_request q;
        struct api_error err = {0};
        snprintf(body, sizeof(body), "{\"prompt\":\"hi\",%s}", cases[i].members);
        assert_int_not_equal(completion_request_parse(&q, body, strlen(body), &strict, &err), 0);
        assert_int_equal(err.status, 400);
        if (!strstr(err.message, cases[i].words)) fail_msg("%s: %s", body, err.message);
        assert_int_equal(!cases[i].param, !err.param);
        if (err.param) assert_string_equal(err.param, cases[i].param);
    }
    struct completion_request q;
    struct api_error err = {0};
    const char *good = "{\"prompt\":\"hi\",\"max_tokens\":1,\"user\":\"me\",\"guided_regex\":null}";
    if (completion_request_parse(&q, good, strlen(good), &strict, &err))
        fail_msg("%s", err.message);
    completion_request_fini(&q);
}

TEST(integers_may_be_written_as_doubles) {
    struct completion_request q;
    parse_good("\"max_tokens\":7.0,\"n\":2.0,\"top_k\":4e1,\"seed\":-3.0,\"priority\":-5.0,"
               "\"min_tokens\":-0.0,\"stop_token_ids\":[1.0,256]",
               &q);
    assert_int_equal(q.max_tokens, 7);
    assert_int_equal(q.n, 2);
    assert_int_equal(q.params.sampler.top_k, 40);
    assert_true(q.params.has_seed && (int64_t)q.params.seed == -3);
    assert_int_equal(q.priority, -5);
    assert_int_equal(q.params.min_tokens, 0);
    assert_int_equal(q.params.stop_tokens[0], 1);
    completion_request_fini(&q);
}

TEST(values_land_where_they_belong) {
    struct completion_request q;
    parse_good("\"max_tokens\":7,\"temperature\":0.5,\"top_p\":0.25,\"n\":2,\"best_of\":3,"
               "\"logprobs\":5,\"echo\":true,\"stop\":[\"a\",\"bc\"],"
               "\"presence_penalty\":-2,\"frequency_penalty\":2,"
               "\"logit_bias\":{\"7\":-100,\"256\":1.5},\"seed\":-1,\"top_k\":40,"
               "\"min_p\":0.125,\"repetition_penalty\":1.5,\"min_tokens\":3,"
               "\"stop_token_ids\":[1,256],\"ignore_eos\":true,"
               "\"include_stop_str_in_output\":true,\"skip_special_tokens\":false,"
               "\"add_special_tokens\":false,\"cache_salt\":\"s\",\"priority\":-5,\"speculation\":"
               "\"suffix\","
               "\"return_token_ids\":true,\"user\":\"u\"",
               &q);
    const struct sampling_params *p = &q.params;
    assert_int_equal(q.max_tokens, 7);
    assert_true(q.has_max_tokens && q.echo && q.return_token_ids && !q.add_special);
    assert_true(p->sampler.temperature == 0.5f && p->sampler.top_p == 0.25f &&
                p->sampler.min_p == 0.125f);
    assert_true(p->sampler.presence_penalty == -2 && p->sampler.frequency_penalty == 2 &&
                p->sampler.repetition_penalty == 1.5f);
    assert_int_equal(q.n, 2);
    assert_int_equal(q.best_of, 3);
    assert_int_equal(p->n_logprobs, 5);
    assert_int_equal(p->n_stop, 2);
    assert_string_equal(p->stop[1], "bc");
    assert_int_equal(p->n_bias, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(p->bias[i].bias == (p->bias[i].token == 7 ? -100.0f : 1.5f));
    assert_true(p->has_seed && p->seed == UINT64_MAX);
    assert_int_equal(p->sampler.top_k, 40);
    assert_int_equal(p->min_tokens, 3);
    assert_int_equal(p->n_stop_tokens, 2);
    assert_int_equal(p->stop_tokens[1], 256);
    assert_true(p->ignore_eos && p->include_stop && !p->skip_special);
    assert_int_equal(q.priority, -5);
    assert_true(q.speculation.is_asked && q.speculation.mode == SPECULATION_SUFFIX);
    assert_true(q.cache_salt != 0);
    completion_request_fini(&q);
}

TEST(streaming_options_are_read) {
    struct completion_request q;
    parse_good("\"stream\":true,\"stream_options\":{\"include_usage\":true,"
               "\"continuous_usage_stats\":true,\"include_obfuscation\":false,\"x\":1}",
               &q);
    assert_true(q.stream && q.include_usage && q.continuous_usage);
    completion_request_fini(&q);
}

TEST(prompts_come_in_four_kinds) {
    struct completion_request q;
    struct api_error err;
    assert_int_equal(parse("{\"prompt\":[\"a\\u0041\",\"\",\"\\\"]\"]}", &q, &err), 0);
    assert_int_equal(q.prompts.n, 3);
    assert_string_equal(q.prompts.items[0].text, "aA");
    assert_int_equal(q.prompts.items[1].length, 0);
    assert_string_equal(q.prompts.items[2].text, "\"]");
    completion_request_fini(&q);

    assert_int_equal(parse("{\"prompt\":[ 1 , 0,256 ]}", &q, &err), 0);
    assert_int_equal(q.prompts.n, 1);
    assert_null(q.prompts.items[0].text);
    assert_int_equal(q.prompts.items[0].tokens.n, 3);
    assert_int_equal(q.prompts.items[0].tokens.ids[2], 256);
    completion_request_fini(&q);

    assert_int_equal(parse("{\"prompt\":[[1],[2,3]]}", &q, &err), 0);
    assert_int_equal(q.prompts.n, 2);
    assert_int_equal(q.prompts.items[1].tokens.ids[1], 3);
    completion_request_fini(&q);
}

/* Long lists are read by blocks, whatever stands between their numbers. */
TEST(a_long_list_may_be_spaced_in_any_way) {
    static const char *const between[] = {",", ", ", " ,", ",  ", ",\n", "\t,\r\n ", ",\n\n\n    "};
    enum { N = 500 };
    for (size_t way = 0; way < sizeof(between) / sizeof(*between); way++) {
        static char body[N * 16 + 64];
        char *at = body + snprintf(body, sizeof(body), "{\"prompt\":[0");
        for (int i = 1; i < N; i++) at += sprintf(at, "%s%d", between[way], i * 7 % FAKE_N_VOCAB);
        strcpy(at, "]}");
        struct completion_request q;
        struct api_error err;
        assert_int_equal(parse(body, &q, &err), 0);
        assert_int_equal(q.prompts.items[0].tokens.n, N);
        for (int i = 0; i < N; i++)
            assert_int_equal(q.prompts.items[0].tokens.ids[i], i * 7 % FAKE_N_VOCAB);
        completion_request_fini(&q);
    }
}

struct bad {
    const char *members, *param;
    unsigned status;
};

static const struct bad bad_members[] = {
    {"\"model\":\"other\"", "model", 404},
    {"\"model\":1", "model", 400},
    {"\"suffix\":\"x\"", "suffix", 400},
    {"\"return_tokens_as_token_ids\":true", "return_tokens_as_token_ids", 400},
    {"\"max_tokens\":-2", "max_tokens", 400},
    {"\"max_tokens\":1.5", "max_tokens", 400},
    {"\"max_tokens\":9e9", "max_tokens", 400},
    {"\"seed\":0.5", "seed", 400},
    {"\"seed\":1e17", "seed", 400},
    {"\"stop_token_ids\":[7.5]", "stop_token_ids", 400},
    {"\"max_tokens\":true", "max_tokens", 400},
    {"\"max_tokens\":\"7\"", "max_tokens", 400},
    {"\"max_tokens\":9000000000", "max_tokens", 400},
    {"\"temperature\":-0.1", "temperature", 400},
    {"\"temperature\":2.1", "temperature", 400},
    {"\"temperature\":\"hot\"", "temperature", 400},
    {"\"temperature\":false", "temperature", 400},
    {"\"top_p\":1.1", "top_p", 400},
    {"\"top_p\":-1", "top_p", 400},
    {"\"n\":0", "n", 400},
    {"\"n\":129", "n", 400},
    {"\"n\":1000000000000", "n", 400},
    {"\"n\":2.5", "n", 400},
    {"\"n\":true", "n", 400},
    {"\"n\":3,\"best_of\":2", "best_of", 400},
    {"\"best_of\":129", "best_of", 400},
    {"\"best_of\":2,\"stream\":true", "best_of", 400},
    {"\"stream\":1", "stream", 400},
    {"\"stream\":\"true\"", "stream", 400},
    {"\"stream_options\":{\"include_usage\":true}", "stream_options", 400},
    {"\"stream\":true,\"stream_options\":true", "stream_options", 400},
    {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options", 400},
    {"\"logprobs\":-1", "logprobs", 400},
    {"\"logprobs\":21", "logprobs", 400},
    {"\"logprobs\":true", "logprobs", 400},
    {"\"echo\":\"yes\"", "echo", 400},
    {"\"stop\":1", "stop", 400},
    {"\"stop\":\"\"", "stop", 400},
    {"\"stop\":[\"a\",\"\"]", "stop", 400},
    {"\"stop\":[\"a\",null]", "stop", 400},
    {"\"stop\":\"a\\u0000b\"", "stop", 400},
    {"\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "stop", 400},
    {"\"presence_penalty\":2.5", "presence_penalty", 400},
    {"\"frequency_penalty\":-2.5", "frequency_penalty", 400},
    {"\"frequency_penalty\":[]", "frequency_penalty", 400},
    {"\"logit_bias\":[]", "logit_bias", 400},
    {"\"logit_bias\":{\"a\":1}", "logit_bias", 400},
    {"\"logit_bias\":{\"\":1}", "logit_bias", 400},
    {"\"logit_bias\":{\"-1\":1}", "logit_bias", 400},
    {"\"logit_bias\":{\"257\":1}", "logit_bias", 400},
    {"\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias", 400},
    {"\"logit_bias\":{\"1\":101}", "logit_bias", 400},
    {"\"logit_bias\":{\"1\":\"x\"}", "logit_bias", 400},
    {"\"seed\":1.5", "seed", 400},
    {"\"seed\":true", "seed", 400},
    {"\"user\":7", "user", 400},
    {"\"top_k\":-2", "top_k", 400},
    {"\"top_k\":1.5", "top_k", 400},
    {"\"min_p\":1.5", "min_p", 400},
    {"\"repetition_penalty\":0", "repetition_penalty", 400},
    {"\"repetition_penalty\":-1", "repetition_penalty", 400},
    {"\"min_tokens\":-1", "min_tokens", 400},
    {"\"min_tokens\":5,\"max_tokens\":4", "min_tokens", 400},
    {"\"min_tokens\":2000000000", "min_tokens", 400},
    {"\"stop_token_ids\":7", "stop_token_ids", 400},
    {"\"stop_token_ids\":[\"7\"]", "stop_token_ids", 400},
    {"\"stop_token_ids\":[257]", "stop_token_ids", 400},
    {"\"stop_token_ids\":[-1]", "stop_token_ids", 400},
    {"\"ignore_eos\":0", "ignore_eos", 400},
    {"\"include_stop_str_in_output\":0", "include_stop_str_in_output", 400},
    {"\"skip_special_tokens\":\"\"", "skip_special_tokens", 400},
    {"\"add_special_tokens\":1", "add_special_tokens", 400},
    {"\"return_token_ids\":1", "return_token_ids", 400},
    {"\"cache_salt\":\"\"", "cache_salt", 400},
    {"\"cache_salt\":1", "cache_salt", 400},
    {"\"priority\":\"high\"", "priority", 400},
    {"\"speculation\":\"always\"", "speculation", 400},
    {"\"speculation\":true", "speculation", 400},
    {"\"priority\":3000000000", "priority", 400},
    {"\"prompt_logprobs\":1", "prompt_logprobs", 400},
    {"\"use_beam_search\":true", "use_beam_search", 400},
    {"\"response_format\":{\"type\":\"grammar\"}", "response_format", 400},
    {"\"response_format\":{\"type\":\"json_schema\"}", "response_format", 400},
    {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}",
     "response_format", 400},
    {"\"structured_outputs\":3", "structured_outputs", 400},
    {"\"structured_outputs\":{\"xml\":\"\"}", "structured_outputs", 400},
    {"\"structured_outputs\":{\"choice\":[]}", "structured_outputs", 400},
    {"\"structured_outputs\":{\"choice\":[\"a\",\"\"]}", "structured_outputs", 400},
    {"\"structured_outputs\":{\"regex\":3}", "structured_outputs", 400},
    {"\"structured_outputs\":{\"json\":\"{\"}", "structured_outputs", 400},
    {"\"structured_outputs\":{\"json\":{\"type\":\"text\"}}", "structured_outputs", 400},
    {"\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}", "structured_outputs", 400},
    {"\"guided_regex\":\"\"", "guided_regex", 400},
    {"\"guided_json\":{\"$ref\":\"http://x\"}", "guided_json", 400},
    {"\"guided_regex\":\"a\",\"guided_choice\":[\"a\"]", "guided_choice", 400},
    {"\"prefill\":\"fast\"", "prefill", 400},
    {"\"prefill\":{\"mode\":\"sparse\",\"pattern\":{}}", "prefill.pattern.type", 400},
    {"\"kv_policy\":\"full\"", "kv_policy", 400},
    {"\"kv_policy\":{}", "kv_policy.type", 400},
    {"\"kv_policy\":{\"type\":\"streaming\",\"recent\":0}", "kv_policy.recent", 400},
    {"\"kv_policy\":{\"type\":\"heavy_hitter\"}", "kv_policy.type", 400}, /* not allowed */
    {"\"kv_policy\":{\"type\":\"full\",\"type\":\"full\"}", NULL, 400},
    {"\"n\":1e999", "n", 400},
    {"\"n\":18446744073709551615", "n", 400},
    {"\"seed\":18446744073709551615", "seed", 400},
    {"\"temperature\":1e999", "temperature", 400},
    {"\"temperature\":NaN", NULL, 400},
    {"\"temperature\":Infinity", NULL, 400},
    {"\"temperature\":1,\"temperature\":1", NULL, 400},
};

static void check_bad(const char *body, const char *param, unsigned status) {
    struct completion_request q;
    struct api_error err;
    if (parse(body, &q, &err) == 0) fail_msg("accepted: %s", body);
    if (err.status != status || !err.message[0])
        fail_msg("%s: status %u, %s", body, err.status, err.message);
    const char *got = err.param ? err.param : "none", *wanted = param ? param : "none";
    if (strcmp(got, wanted) != 0) fail_msg("%s: names %s, not %s", body, got, wanted);
}

TEST(bad_members_are_refused_by_name) {
    for (size_t i = 0; i < sizeof(bad_members) / sizeof(*bad_members); i++) {
        char body[512];
        snprintf(body, sizeof(body), "{\"prompt\":\"hi\",%s}", bad_members[i].members);
        check_bad(body, bad_members[i].param, bad_members[i].status);
    }
}

TEST(a_bad_number_is_refused_anywhere_in_a_long_list) {
    static const char *const numbers[] = {"257",
                                          "01",
                                          "1.0",
                                          "1e1",
                                          "-1",
                                          "99999999",
                                          "+1",
                                          "1 2",
                                          "0x1",
                                          "",
                                          "[2]",
                                          "1:",
                                          "99999999999999999999999999"};
    enum { N = 40 };
    for (size_t k = 0; k < sizeof(numbers) / sizeof(*numbers); k++)
        for (int place = 0; place < N; place++) {
            char body[N * 8 + 64];
            char *at = body + snprintf(body, sizeof(body), "{\"prompt\":[");
            for (int i = 0; i < N; i++)
                at += sprintf(at, "%s%s", i ? "," : "", i == place ? numbers[k] : "65");
            strcpy(at, "]}");
            check_bad(body, "prompt", 400);
        }
}

TEST(bad_prompts_are_refused) {
    static const char *const prompts[] = {
        "1",         "true",          "{}",
        "[]",        "[[]]",          "[[1],[]]",
        "[1,]",      "[,1]",          "[1 2]",
        "[1.0]",     "[1e1]",         "[01]",
        "[-1]",      "[257]",         "[99999999999999999999999999]",
        "[\"a\",1]", "[1,\"a\"]",     "[null]",
        "[true]",    "[[1],2]",       "[[[1]]]",
        "[{}]",      "[\"a\" \"b\"]", "[\"a\",]",
        "[\"\\x\"]", "[[1],]",        "[[\"a\"]]",
        "[-]",       "[1,[2]]",       "[\"\\ud800\"]",
    };
    for (size_t i = 0; i < sizeof(prompts) / sizeof(*prompts); i++) {
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\":%s}", prompts[i]);
        check_bad(body, "prompt", 400);
    }
    check_bad("{}", "prompt", 400);
    check_bad("{\"prompt\":null}", "prompt", 400);
}

/* prompts of one token each, with further members. */
static void check_too_many(unsigned n_prompts, const char *members, const char *param) {
    char body[2048];
    char *at = body + snprintf(body, sizeof(body), "{%s\"prompt\":[[1]", members);
    for (unsigned i = 1; i < n_prompts; i++) at = (char *)memcpy(at, ",[1]", 4) + 4;
    memcpy(at, "]}", 3);
    check_bad(body, param, 400);
}

/* More than the queue will ever hold is the request's fault: trying again would not help. */
TEST(sequences_are_bounded) {
    check_too_many(301, "", "prompt");
    check_too_many(3, "\"n\":128,", "n");
    check_too_many(3, "\"best_of\":128,", "best_of");
}

static int tokenize(const char *body, struct api_error *err) {
    struct completion_request q;
    assert_int_equal(parse(body, &q, err), 0);
    const int rc = completion_request_tokenize(&q, NULL, &limits, err);
    completion_request_fini(&q);
    return rc;
}

TEST(too_long_names_both_numbers) {
    struct api_error err;
    char body[512], text[201];
    memset(text, 'x', 200);
    text[200] = 0;
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\"}", text);
    assert_int_equal(tokenize(body, &err), ERR_INVALID);
    assert_int_equal(err.status, 400);
    assert_string_equal(err.code, "context_length_exceeded");
    assert_string_equal(err.param, "prompt");
    assert_non_null(strstr(err.message, "201"));
    assert_non_null(strstr(err.message, "128"));

    assert_int_equal(tokenize("{\"prompt\":\"abc\",\"max_tokens\":125}", &err), ERR_INVALID);
    assert_string_equal(err.param, "max_tokens");
    assert_non_null(strstr(err.message, "129"));
    assert_int_equal(tokenize("{\"prompt\":\"abc\",\"max_tokens\":124}", &err), 0);

    text[127] = 0; /* with its beginning 128 tokens: no room for an answer */
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\"}", text);
    assert_int_equal(tokenize(body, &err), ERR_INVALID);
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"max_tokens\":0}", text);
    assert_int_equal(tokenize(body, &err), 0);
}

TEST(a_prompt_needs_a_token) {
    struct api_error err;
    assert_int_equal(tokenize("{\"prompt\":\"\"}", &err), 0); /* the beginning is one */
    assert_int_equal(tokenize("{\"prompt\":\"\",\"add_special_tokens\":false}", &err), ERR_INVALID);
    assert_string_equal(err.param, "prompt");
}

#define STREAMING(recent) "\"kv_policy\":{\"type\":\"streaming\",\"recent\":" recent "}"

/* What is kept must fit the KV cache; the text may be longer than any context. */
TEST(bounded_requests_are_as_large_as_their_budget) {
    struct api_error err;
    char body[8192], text[4001];
    memset(text, 'x', sizeof(text) - 1);
    text[4000] = 0;
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\"," STREAMING("100") "}", text);
    assert_int_equal(tokenize(body, &err), 0);
    assert_int_equal(
        tokenize(
            "{\"prompt\":\"a\",\"max_tokens\":2000000000,\"stream\":true," STREAMING("1020") "}",
            &err),
        0);

    assert_int_equal(tokenize("{\"prompt\":\"a\"," STREAMING("1021") "}", &err), ERR_INVALID);
    assert_int_equal(err.status, 400);
    assert_string_equal(err.param, "kv_policy");
    assert_non_null(strstr(err.message, "1025"));
    assert_non_null(strstr(err.message, "1024"));
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\"," STREAMING("0.5") "}", text);
    assert_int_equal(tokenize(body, &err), ERR_INVALID); /* 4 + 2001 */
    assert_string_equal(err.param, "kv_policy");
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\"," STREAMING("0.25") "}", text);
    assert_int_equal(tokenize(body, &err), 0);
}

TEST(without_a_policy_the_servers_holds) {
    struct request_limits endless = limits;
    struct completion_request q;
    struct api_error err = {0};
    static const char body[] = "{\"prompt\":\"hi\",\"kv_policy\":null}";
    endless.kv.initial = kv_policy_default(TYPE_STREAMING);
    endless.kv.initial.tokens.n_recent = 99;
    assert_int_equal(completion_request_parse(&q, body, strlen(body), &endless, &err), 0);
    assert_int_equal(q.kv.tokens.type, TYPE_STREAMING);
    assert_int_equal(q.kv.tokens.n_recent, 99);
    completion_request_fini(&q);
}

#define SPARSE "\"prefill\":\"sparse\""

/* What needs every key is refused with the reason when sparse was asked for, and is dense when
 * nothing was. */
TEST(sparse_prompts_that_cannot_be_are_refused_by_name) {
    static const struct {
        const char *policy, *words;
    } refused[] = {
        {"\"type\":\"streaming\",\"recent\":9", "kv_policy.prompt whole"},
        {"\"type\":\"streaming\",\"prompt\":\"whole\"", "kv_policy.positions text"},
        {"\"type\":\"heavy_hitter\",\"prompt\":\"whole\"", "kv_policy.score window"},
        {"\"type\":\"heavy_hitter\",\"score\":\"window\"", "kv_policy.prompt whole"},
    };
    static const char *const allowed[] = {
        SPARSE ",\"echo\":true",
        SPARSE ",\"logprobs\":2",
        SPARSE ",\"echo\":true,\"logprobs\":0",
        SPARSE ",\"kv_policy\":{\"type\":\"full\"}",
        SPARSE
        ",\"kv_policy\":{\"type\":\"streaming\",\"prompt\":\"whole\",\"positions\":\"text\"}",
        SPARSE
        ",\"kv_policy\":{\"type\":\"heavy_hitter\",\"prompt\":\"whole\",\"score\":\"window\"}"};
    struct request_limits every = limits;
    struct completion_request q;
    struct api_error err;
    char body[256];
    every.kv.allowed[TYPE_HEAVY_HITTER] = true;
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        snprintf(body, sizeof(body), "{\"prompt\":\"a\"," SPARSE ",\"kv_policy\":{%s}}",
                 refused[i].policy);
        assert_int_equal(completion_request_parse(&q, body, strlen(body), &every, &err),
                         ERR_INVALID);
        assert_string_equal(err.param, "prefill");
        assert_string_equal(err.code, "unsupported");
        assert_non_null(strstr(err.message, refused[i].words));
    }
    for (size_t i = 0; i < sizeof(allowed) / sizeof(*allowed); i++) {
        snprintf(body, sizeof(body), "{\"prompt\":\"a\",%s}", allowed[i]);
        assert_int_equal(completion_request_parse(&q, body, strlen(body), &every, &err), 0);
        assert_int_equal(q.prefill.mode, PREFILL_SPARSE);
        completion_request_fini(&q);
    }
}

/* The last choice takes the tokens of its prompt, unless they are returned. */
TEST(tokens_are_handed_over) {
    static const char *const members[] = {"", ",\"n\":3", ",\"return_token_ids\":true"};
    for (int i = 0; i < 3; i++) {
        struct completion_request q;
        struct engine_request *requests = NULL;
        struct api_error err;
        struct error why = {0};
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\":[[1,2,3],[4]]%s}", members[i]);
        assert_int_equal(parse(body, &q, &err), 0);
        assert_int_equal(completion_request_tokenize(&q, NULL, &limits, &err), 0);
        const uint32_t *given = q.prompts.items[0].tokens.ids;
        assert_int_equal(fanout_create(&requests, &q, &limits, &why), 0);
        assert_true((q.prompts.items[0].tokens.ids == given) == q.return_token_ids);
        assert_true((q.prompts.items[0].tokens.n == 0) == !q.return_token_ids);
        for (uint32_t k = 0; k < 2 * q.best_of; k++) {
            assert_int_equal(requests[k].n_prompt, k < q.best_of ? 3 : 1);
            assert_int_equal(requests[k].prompt[0], k < q.best_of ? 1 : 4);
        }
        fanout_destroy(requests, 2 * q.best_of);
        completion_request_fini(&q);
    }
}

static enum prefill_mode submitted_mode(const char *members) {
    struct request_limits eager = limits;
    struct completion_request q;
    struct engine_request *requests = NULL;
    struct api_error err = {0};
    struct error why = {0};
    char body[256];
    eager.prefill.initial = PREFILL_SPARSE;
    snprintf(body, sizeof(body), "{\"prompt\":\"hi\"%s}", members);
    assert_int_equal(completion_request_parse(&q, body, strlen(body), &eager, &err), 0);
    assert_int_equal(completion_request_tokenize(&q, NULL, &eager, &err), 0);
    assert_int_equal(fanout_create(&requests, &q, &eager, &why), 0);
    const enum prefill_mode mode = requests[0].prefill.mode;
    fanout_destroy(requests, 1);
    completion_request_fini(&q);
    return mode;
}

TEST(a_sparse_server_is_dense_where_it_must) {
    assert_int_equal(submitted_mode(""), PREFILL_SPARSE);
    assert_int_equal(submitted_mode(",\"prefill\":\"auto\""), PREFILL_AUTO);
    assert_int_equal(submitted_mode(",\"echo\":true,\"logprobs\":0"), PREFILL_SPARSE);
    assert_int_equal(submitted_mode(",\"prefill\":\"auto\",\"echo\":true,\"logprobs\":0"),
                     PREFILL_DENSE);
    assert_int_equal(submitted_mode("," STREAMING("9")), PREFILL_DENSE);
}

/* The generated tokens that fill a bounded and a full request's submission. */
static uint32_t submitted(uint32_t n_prompt, const char *members, struct kv_choice *kv) {
    struct completion_request q;
    struct engine_request *requests = NULL;
    struct api_error err;
    struct error why = {0};
    char body[1024], text[513] = "";
    memset(text, 'x', n_prompt - 1); /* and its beginning */
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\"%s}", text, members);
    assert_int_equal(parse(body, &q, &err), 0);
    assert_int_equal(completion_request_tokenize(&q, NULL, &limits, &err), 0);
    assert_int_equal(fanout_create(&requests, &q, &limits, &why), 0);
    const uint32_t max_tokens = requests[0].params.max_tokens;
    *kv = requests[0].kv;
    fanout_destroy(requests, 1);
    completion_request_fini(&q);
    return max_tokens;
}

#define IN_TEXT "\"kv_policy\":{\"type\":\"streaming\",\"recent\":9,\"positions\":\"text\"}"

/* Positions of the text end with the model's; those of the cache never do. */
TEST(max_tokens_ends_with_the_positions) {
    struct kv_choice kv;
    assert_int_equal(submitted(120, "", &kv), 8);
    assert_int_equal(kv.type, TYPE_FULL);
    assert_int_equal(submitted(120, "," IN_TEXT, &kv), 8);
    assert_false(kv.cache_positions);
    assert_int_equal(submitted(100, "," IN_TEXT, &kv), 16);
    assert_int_equal(submitted(120, ",\"max_tokens\":8," IN_TEXT, &kv), 8);
    assert_int_equal(submitted(120, "," STREAMING("9"), &kv), 16);
    assert_true(kv.cache_positions);
    assert_int_equal(kv.n_recent, 9);
    assert_int_equal(submitted(128, "," STREAMING("0.25"), &kv), 16);
    assert_int_equal(kv.n_recent, 32);
    assert_int_equal(submitted(500, "," STREAMING("0.25"), &kv), 16);
    assert_int_equal(kv.n_recent, 125);
    assert_int_equal(submitted(120, ",\"max_tokens\":1000000," STREAMING("9"), &kv), 1000000);
}

TEST(positions_of_the_text_do_not_go_on) {
    static const char *const bodies[] = {
        "{\"prompt\":\"a\",\"max_tokens\":128," IN_TEXT "}",
        "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":2000000000," IN_TEXT "}"};
    struct api_error err;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
        assert_int_equal(tokenize(bodies[i], &err), ERR_INVALID);
        assert_int_equal(err.status, 400);
        assert_string_equal(err.param, "kv_policy.positions");
        assert_non_null(strstr(err.message, "128"));
    }
    assert_int_equal(tokenize("{\"prompt\":\"a\",\"max_tokens\":126," IN_TEXT "}", &err), 0);
}

/* A prompt of 50,000 tokens in a context of 100,000. */
static int tokenize_long(const char *members, struct api_error *err) {
    static char body[2 * 50000 + 256];
    struct request_limits wide = limits;
    struct completion_request q;
    wide.max_model_len = 100000;
    char *at = body + snprintf(body, sizeof(body), "{%s,\"prompt\":[1", members);
    for (int i = 1; i < 50000; i++) at = (char *)memcpy(at, ",1", 2) + 2;
    memcpy(at, "]}", 3);
    assert_int_equal(completion_request_parse(&q, body, strlen(body), &wide, err), 0);
    const int rc = completion_request_tokenize(&q, NULL, &wide, err);
    completion_request_fini(&q);
    return rc;
}

/* A whole answer is gathered in memory, and so is an echo until its reader has taken it. */
TEST(answers_are_bounded) {
    struct api_error err;
    static const struct {
        const char *members, *param; /* NULL: allowed */
    } cases[] = {
        {"\"echo\":true,\"logprobs\":20", NULL},
        {"\"echo\":true,\"logprobs\":5,\"stream\":true", NULL},
        {"\"echo\":true,\"logprobs\":20,\"stream\":true", "echo"},
        {"\"echo\":true,\"n\":128,\"stream\":true", "echo"},
        {"\"return_token_ids\":true,\"n\":128,\"stream\":true", "return_token_ids"},
        {"\"echo\":true,\"logprobs\":20,\"n\":128", "logprobs"},
        {"\"max_tokens\":50000,\"n\":128", NULL},
        {"\"max_tokens\":50000,\"n\":128,\"logprobs\":20,\"stream\":true", NULL},
        {"\"max_tokens\":50000,\"n\":128,\"logprobs\":20", "logprobs"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const int rc = tokenize_long(cases[i].members, &err);
        if (!!rc != !!cases[i].param) fail_msg("%s: %d", cases[i].members, rc);
        if (rc) assert_int_equal(err.status, 400);
        if (rc) assert_string_equal(err.param, cases[i].param);
    }
}

TEST(salts_separate) {
    const struct salt_key one = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}}, two = {{1, 2}};
    char text[15];
    for (int i = 0; i < 15; i++) text[i] = (char)i;
    /* The vector of the SipHash paper. */
    assert_true(salt_hash(&one, text, 15) == 0xa129ca6149be45e5);
    assert_true(salt_hash(&two, text, 15) != salt_hash(&one, text, 15));
    assert_true(salt_hash(&one, text, 14) != salt_hash(&one, text, 15));
}
