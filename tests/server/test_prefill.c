/* test_prefill.c - how prompts are computed, as it is asked for: read, refused by name, resolved,
 * shown. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/sparse.h"
#include "engine/request/kv_policies.h"
#include "server/api/prefill_account.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/settings/prefill_rules.h"
#include "tests/test.h"

static const struct attn_pattern fallback[6] = {{PATTERN_VERTICAL_SLASH, 1000, 6096}};
static const struct prefill_rules tuned = {.sparse = true,
                                           .pattern_file = "tiny.json",
                                           .n_heads = 6,
                                           .min_sparse_tokens = 16384,
                                           .measured_on = "cpu",
                                           .dense_tail = 64,
                                           .synthetic = 7};
static const struct prefill_rules untuned = {
    .sparse = true, .fallback = fallback, .n_heads = 6, .min_sparse_tokens = 32768};
static const struct prefill_rules dense = {
    .why_dense = "because", .pattern_file = "tiny.json", .min_sparse_tokens = 16384, .n_heads = 6};

static int read(const char *text, const struct prefill_rules *rules, struct prefill_request *out,
                struct api_error *err) {
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!value) fail_msg("not JSON: %s", text);
    *err = (struct api_error){0};
    const int rc = prefill_rules_read(out, value, rules, err);
    json_decref(value);
    return rc;
}

static struct prefill_request read_good(const char *text) {
    struct prefill_request request;
    struct api_error err;
    if (read(text, &tuned, &request, &err)) fail_msg("%s: %s", text, err.message);
    assert_true(request.named);
    return request;
}

TEST(modes_are_read) {
    static const struct {
        const char *text;
        enum prefill_mode mode;
    } cases[] = {
        {"\"auto\"", PREFILL_AUTO},
        {"\"dense\"", PREFILL_DENSE},
        {"\"sparse\"", PREFILL_SPARSE},
        {"{\"mode\":\"dense\"}", PREFILL_DENSE},
        {"{\"mode\":\"sparse\",\"pattern\":null}", PREFILL_SPARSE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct prefill_request request = read_good(cases[i].text);
        assert_int_equal(request.mode, cases[i].mode);
        assert_null(request.patterns);
        prefill_request_fini(&request);
    }
}

TEST(reuse_is_read) {
    static const struct {
        const char *text;
        bool no_reuse;
    } cases[] = {
        {"\"sparse\"", false},
        {"{\"mode\":\"sparse\"}", false},
        {"{\"mode\":\"sparse\",\"reuse\":null}", false},
        {"{\"mode\":\"sparse\",\"reuse\":true}", false},
        {"{\"reuse\":false,\"mode\":\"sparse\"}", true},
        {"{\"mode\":\"auto\",\"reuse\":false}", true},
        {"{\"mode\":\"sparse\",\"reuse\":false,\"pattern\":{\"type\":\"a_shape\"}}", true},
        {"{\"mode\":\"dense\",\"reuse\":null}", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct prefill_request request = read_good(cases[i].text);
        assert_int_equal(request.no_reuse, cases[i].no_reuse);
        assert_int_equal(prefill_rules_resolve(&tuned, &request, NULL).no_reuse, cases[i].no_reuse);
        prefill_request_fini(&request);
    }
}

TEST(a_pattern_is_every_heads) {
    static const struct {
        const char *pattern;
        struct attn_pattern expected;
    } cases[] = {
        {"{\"type\":\"a_shape\"}", {PATTERN_A_SHAPE, 1024, 4096}},
        {"{\"type\":\"a_shape\",\"sink\":0,\"recent\":1}", {PATTERN_A_SHAPE, 0, 1}},
        {"{\"type\":\"vertical_slash\",\"columns\":null}", {PATTERN_VERTICAL_SLASH, 1000, 6096}},
        {"{\"diagonals\":5,\"columns\":24576,\"type\":\"vertical_slash\"}",
         {PATTERN_VERTICAL_SLASH, 24576, 5}},
        {"{\"type\":\"block_sparse\"}", {PATTERN_BLOCK_SPARSE, 100, 0}},
        {"{\"type\":\"block_sparse\",\"pages\":1024}", {PATTERN_BLOCK_SPARSE, 1024, 0}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char text[256];
        snprintf(text, sizeof(text), "{\"mode\":\"sparse\",\"pattern\":%s}", cases[i].pattern);
        struct prefill_request request = read_good(text);
        for (uint32_t head = 0; head < tuned.n_heads; head++) {
            assert_int_equal(request.patterns[head].kind, cases[i].expected.kind);
            assert_int_equal(request.patterns[head].p1, cases[i].expected.p1);
            assert_int_equal(request.patterns[head].p2, cases[i].expected.p2);
        }
        const struct prefill_choice choice = prefill_rules_resolve(&untuned, &request, NULL);
        assert_ptr_equal(choice.patterns, request.patterns);
        prefill_request_fini(&request);
    }
}

TEST(what_is_wrong_is_named) {
    static const struct {
        const char *text, *param;
    } cases[] = {
        {"\"fast\"", "prefill"},
        {"\"\"", "prefill"},
        {"true", "prefill"},
        {"[\"sparse\"]", "prefill"},
        {"{}", "prefill.mode"},
        {"{\"mode\":1}", "prefill.mode"},
        {"{\"mode\":\"sparse\",\"patern\":{}}", "prefill"},
        {"{\"mode\":\"sparse\",\"pattern\":\"a_shape\"}", "prefill.pattern"},
        {"{\"mode\":\"dense\",\"pattern\":{\"type\":\"a_shape\"}}", "prefill.pattern"},
        {"{\"mode\":\"auto\",\"pattern\":{\"type\":\"a_shape\"}}", "prefill.pattern"},
        {"{\"mode\":\"sparse\",\"reuse\":0}", "prefill.reuse"},
        {"{\"mode\":\"auto\",\"reuse\":\"no\"}", "prefill.reuse"},
        {"{\"mode\":\"dense\",\"reuse\":true}", "prefill.reuse"},
        {"{\"mode\":\"dense\",\"reuse\":false}", "prefill.reuse"},
        {"{\"reuse\":false}", "prefill.mode"},
        {"{\"mode\":\"sparse\",\"pattern\":{}}", "prefill.pattern.type"},
        {"{\"mode\":\"sparse\",\"pattern\":{\"type\":\"dense\"}}", "prefill.pattern.type"},
        {"{\"mode\":\"sparse\",\"pattern\":{\"type\":\"a_shape\",\"columns\":1}}",
         "prefill.pattern"},
        {"{\"mode\":\"sparse\",\"pattern\":{\"type\":\"a_shape\",\"recent\":0}}",
         "prefill.pattern.recent"},
        {"{\"mode\":\"sparse\",\"pattern\":{\"type\":\"a_shape\",\"sink\":1.5}}",
         "prefill.pattern.sink"},
        {"{\"mode\":\"sparse\",\"pattern\":{\"type\":\"vertical_slash\",\"columns\":24577}}",
         "prefill.pattern.columns"},
        {"{\"mode\":\"sparse\",\"pattern\":{\"type\":\"vertical_slash\",\"diagonals\":16777217}}",
         "prefill.pattern.diagonals"},
        {"{\"mode\":\"sparse\",\"pattern\":{\"type\":\"block_sparse\",\"pages\":0}}",
         "prefill.pattern.pages"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct prefill_request request = {0};
        struct api_error err;
        assert_int_equal(read(cases[i].text, &tuned, &request, &err), ERR_INVALID);
        assert_int_equal(err.status, 400);
        assert_string_equal(err.param, cases[i].param);
        assert_non_null(strstr(err.message, cases[i].param));
        assert_false(request.named); /* untouched */
    }
}

/* The reason comes with it, also when the request has a pattern of its own. */
TEST(sparse_is_refused_where_it_cannot_be_had) {
    struct prefill_request request = {0};
    struct api_error err;
    static const char *const texts[] = {"\"sparse\"",
                                        "{\"mode\":\"sparse\",\"pattern\":{\"type\":\"a_shape\"}}"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(read(texts[i], &dense, &request, &err), ERR_INVALID);
        assert_string_equal(err.param, "prefill");
        assert_string_equal(err.code, "unsupported");
        assert_non_null(strstr(err.message, "because"));
    }
    assert_int_equal(read("\"auto\"", &dense, &request, &err), 0);
    assert_int_equal(prefill_rules_resolve(&dense, &request, NULL).mode, PREFILL_DENSE);
}

TEST(a_request_without_a_mode_has_the_servers) {
    const struct prefill_request none = {0}, sparse = {.named = true, .mode = PREFILL_SPARSE},
                                 automatic = {.named = true, .mode = PREFILL_AUTO};
    struct kv_choice bounded = kv_policies_default(kv_policies_find("streaming", 9));
    const struct dense_rule *refused = prefill_dense_rule(&bounded, NULL, true),
                            *scored = prefill_dense_rule(&(struct kv_choice){0}, NULL, true);
    struct prefill_rules eager = tuned;
    eager.initial = PREFILL_SPARSE;
    assert_int_equal(prefill_rules_resolve(&tuned, &none, NULL).mode, PREFILL_AUTO);
    assert_int_equal(prefill_rules_resolve(&eager, &none, NULL).mode, PREFILL_SPARSE);
    assert_int_equal(prefill_rules_resolve(&eager, &automatic, NULL).mode, PREFILL_AUTO);
    assert_int_equal(prefill_rules_resolve(&eager, &none, refused).mode, PREFILL_DENSE);
    assert_int_equal(prefill_rules_resolve(&tuned, &automatic, refused).mode, PREFILL_DENSE);
    assert_non_null(refused->needs);
    assert_null(scored->needs);
    assert_null(prefill_dense_rule(&(struct kv_choice){0}, NULL, false));
    assert_int_equal(prefill_rules_resolve(&tuned, &automatic, scored).mode, PREFILL_DENSE);
    assert_int_equal(prefill_rules_resolve(&eager, &none, scored).mode, PREFILL_SPARSE);
    assert_int_equal(prefill_rules_resolve(&tuned, &sparse, scored).mode, PREFILL_SPARSE);
    assert_int_equal(prefill_rules_resolve(&tuned, &none, NULL).dense_tail, 64);
    assert_int_equal(prefill_rules_resolve(&tuned, &none, NULL).synthetic, 7);
    /* Without a file requests that ask get the default; auto is left without patterns. */
    assert_null(prefill_rules_resolve(&tuned, &sparse, NULL).patterns);
    assert_ptr_equal(prefill_rules_resolve(&untuned, &sparse, NULL).patterns, fallback);
    assert_null(prefill_rules_resolve(&untuned, &none, NULL).patterns);
}

static void assert_shown(const struct prefill_rules *rules, const char *expected) {
    struct buffer out = {0};
    prefill_rules_write(rules, &out);
    assert_string_equal(out.data, expected);
    buffer_fini(&out);
}

TEST(rules_are_shown) {
    assert_shown(&tuned, "\"prefill\":{\"mode\":\"auto\",\"modes\":[\"auto\",\"dense\",\"sparse\"],"
                         "\"pattern_file\":\"tiny.json\",\"min_sparse_tokens\":16384,"
                         "\"measured_on\":\"cpu\",\"dense_tail\":64}");
    assert_shown(&untuned, "\"prefill\":{\"mode\":\"auto\",\"modes\":[\"auto\",\"dense\","
                           "\"sparse\"],\"pattern_file\":null,\"min_sparse_tokens\":null,"
                           "\"measured_on\":null,\"dense_tail\":0}");
    assert_shown(&dense, "\"prefill\":{\"mode\":\"dense\",\"modes\":[\"auto\",\"dense\"],"
                         "\"pattern_file\":\"tiny.json\",\"min_sparse_tokens\":null,"
                         "\"measured_on\":null,\"dense_tail\":0}");
}

TEST(accounts_are_of_what_was_sparse) {
    struct prefill_account account = {0};
    struct buffer out = {0};
    const struct prefill_usage exact = {PREFILL_DENSE, 1, 0, 0, 64, DENSE_CACHED},
                               first = {PREFILL_SPARSE, 0.25, 0.001, 0.5, 128, DENSE_NOT},
                               second = {PREFILL_SPARSE, 0.5, 0.002, 0.25, 256, DENSE_NOT};
    prefill_account_add(&account, &exact);
    prefill_account_write(&account, &out);
    assert_string_equal(out.data, "{\"mode\":\"dense\",\"density\":1,\"index_ms\":null,"
                                  "\"attention_ms\":null,\"reused_tokens\":0,"
                                  "\"why_dense\":\"cached\"}");
    prefill_account_add(&account, &first);
    prefill_account_add(&account, &second);
    prefill_account_add(&account, &exact);
    prefill_account_add_reused(&account, &first);
    prefill_account_add_reused(&account, &exact); /* dense behind blocks that were sparse */
    buffer_fini(&out);
    prefill_account_write(&account, &out);
    assert_string_equal(out.data,
                        "{\"mode\":\"sparse\",\"density\":0.3750,\"index_ms\":3.000,"
                        "\"attention_ms\":750.000,\"reused_tokens\":192,\"why_dense\":null}");
    buffer_fini(&out);
}
