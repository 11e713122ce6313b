/* test_kv_policy.c - budgets as they are written: read, refused by name, resolved, shown again; and
 * what a server allows. */
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/layer_group.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/settings/kv_rules.h"
#include "tests/kv_types.h"
#include "tests/test.h"

static int read(const char *text, struct kv_policy *out, struct api_error *err) {
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!value) fail_msg("not JSON: %s", text);
    *err = (struct api_error){0};
    const int rc = kv_policy_read(out, value, err);
    json_decref(value);
    return rc;
}

static struct kv_policy read_good(const char *text) {
    struct kv_policy policy;
    struct api_error err;
    if (read(text, &policy, &err)) fail_msg("%s: %s", text, err.message);
    return policy;
}

static void assert_written(const struct kv_policy *policy, const char *expected) {
    struct buffer out = {0};
    kv_policy_write(policy, &out);
    assert_string_equal(out.data, expected);
    buffer_fini(&out);
}

/* Everything that was left out has its place in what is shown, which reads as the same again. */
TEST(policies_are_completed_and_shown) {
    static const struct {
        const char *given, *shown;
    } cases[] = {
        {"{\"type\":\"full\"}", "{\"type\":\"full\"}"},
        {"{\"type\":\"streaming\"}",
         "{\"type\":\"streaming\",\"sink\":4,\"recent\":2044,\"prompt\":\"chunks\",\"chunk\":512,"
         "\"positions\":\"cache\"}"},
        {"{\"sink\":0,\"recent\":1,\"chunk\":1,\"type\":\"streaming\"}",
         "{\"type\":\"streaming\",\"sink\":0,\"recent\":1,\"prompt\":\"chunks\",\"chunk\":1,"
         "\"positions\":\"cache\"}"},
        {"{\"type\":\"streaming\",\"recent\":0.125,\"heavy\":null}",
         "{\"type\":\"streaming\",\"sink\":4,\"recent\":0.125,\"prompt\":\"chunks\","
         "\"chunk\":512,"
         "\"positions\":\"cache\"}"},
        {"{\"type\":\"heavy_hitter\"}",
         "{\"type\":\"heavy_hitter\",\"sink\":4,\"recent\":1020,\"heavy\":1024,\"score\":\"sum\","
         "\"prompt\":\"chunks\",\"chunk\":512,"
         "\"positions\":\"text\"}"},
        {"{\"type\":\"heavy_hitter\",\"recent\":0.1,\"heavy\":1,\"score\":\"window\"}",
         "{\"type\":\"heavy_hitter\",\"sink\":4,\"recent\":0.1,\"heavy\":1,\"score\":\"window\","
         "\"window\":64,\"pooling\":\"none\",\"prompt\":\"chunks\",\"chunk\":512,"
         "\"positions\":\"text\"}"},
        {"{\"type\":\"heavy_hitter\",\"score\":\"mean\",\"sink\":268435456}",
         "{\"type\":\"heavy_hitter\",\"sink\":268435456,\"recent\":1020,\"heavy\":1024,"
         "\"score\":\"mean\",\"prompt\":\"chunks\",\"chunk\":512,"
         "\"positions\":\"text\"}"},
        {"{\"type\":\"heavy_hitter\",\"decay\":0.5,\"score\":\"decay\"}",
         "{\"type\":\"heavy_hitter\",\"sink\":4,\"recent\":1020,\"heavy\":1024,"
         "\"score\":\"decay\",\"decay\":0.5,\"prompt\":\"chunks\",\"chunk\":512,"
         "\"positions\":\"text\"}"},
        {"{\"type\":\"streaming\",\"prompt\":\"whole\",\"chunk\":null}",
         "{\"type\":\"streaming\",\"sink\":4,\"recent\":2044,\"prompt\":\"whole\","
         "\"positions\":\"cache\"}"},
        {"{\"type\":\"heavy_hitter\",\"score\":\"window\",\"window\":16,\"chunk\":99}",
         "{\"type\":\"heavy_hitter\",\"sink\":4,\"recent\":1020,\"heavy\":1024,"
         "\"score\":\"window\",\"window\":16,\"pooling\":\"none\",\"prompt\":\"chunks\","
         "\"chunk\":99,"
         "\"positions\":\"text\"}"},
        {"{\"type\":\"heavy_hitter\",\"score\":\"window\",\"pooling\":\"max\","
         "\"prompt\":\"whole\"}",
         "{\"type\":\"heavy_hitter\",\"sink\":4,\"recent\":1020,\"heavy\":1024,"
         "\"score\":\"window\",\"window\":64,\"pooling\":\"max\",\"kernel\":7,"
         "\"prompt\":\"whole\","
         "\"positions\":\"text\"}"},
        {"{\"type\":\"streaming\",\"positions\":\"text\"}",
         "{\"type\":\"streaming\",\"sink\":4,\"recent\":2044,\"prompt\":\"chunks\","
         "\"chunk\":512,\"positions\":\"text\"}"},
        {"{\"type\":\"heavy_hitter\",\"positions\":\"cache\"}",
         "{\"type\":\"heavy_hitter\",\"sink\":4,\"recent\":1020,\"heavy\":1024,"
         "\"score\":\"sum\",\"prompt\":\"chunks\",\"chunk\":512,\"positions\":\"cache\"}"},
        {"{\"type\":\"offload\"}",
         "{\"type\":\"offload\",\"sink\":4,\"selected\":2048,\"tail\":512,"
         "\"selector\":\"last\"}"},
        {"{\"type\":\"offload\",\"offload\":true,\"tail\":1,\"selected\":4}",
         "{\"type\":\"offload\",\"sink\":4,\"selected\":4,\"tail\":1,\"selector\":\"last\","
         "\"offload\":true}"},
        {"{\"type\":\"offload\",\"offload\":false,\"sink\":99,\"selected\":0.0625}",
         "{\"type\":\"offload\",\"sink\":99,\"selected\":0.0625,\"tail\":512,"
         "\"selector\":\"last\",\"offload\":false}"},
        {"{\"type\":\"offload\",\"selector\":\"exponential\",\"tail\":64}",
         "{\"type\":\"offload\",\"sink\":4,\"selected\":2048,\"tail\":64,"
         "\"selector\":\"exponential\"}"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_policy policy = read_good(cases[i].given);
        assert_written(&policy, cases[i].shown);
        policy = read_good(cases[i].shown);
        assert_written(&policy, cases[i].shown);
    }
}

#define WINDOW(members) "{\"type\":\"heavy_hitter\",\"score\":\"window\"," members "}"

TEST(what_is_wrong_is_named) {
    static const struct {
        const char *text, *param;
    } cases[] = {
        {"[]", "kv_policy"},
        {"\"full\"", "kv_policy"},
        {"{}", "kv_policy.type"},
        {"{\"type\":null}", "kv_policy.type"},
        {"{\"type\":1}", "kv_policy.type"},
        {"{\"type\":\"h2o\"}", "kv_policy.type"},
        {"{\"type\":\"Full\"}", "kv_policy.type"},
        {"{\"type\":\"full\",\"sink\":4}", "kv_policy.sink"},
        {"{\"type\":\"full\",\"chunk\":4}", "kv_policy.chunk"},
        {"{\"type\":\"streaming\",\"heavy\":4}", "kv_policy.heavy"},
        {"{\"type\":\"streaming\",\"score\":\"sum\"}", "kv_policy.score"},
        {"{\"type\":\"streaming\",\"window\":4}", "kv_policy.window"},
        {"{\"type\":\"streaming\",\"windows\":null}", "kv_policy"},
        {"{\"type\":\"streaming\",\"prompt\":true}", "kv_policy.prompt"},
        {"{\"type\":\"streaming\",\"prompt\":\"half\"}", "kv_policy.prompt"},
        {"{\"type\":\"full\",\"prompt\":\"whole\"}", "kv_policy.prompt"},
        {"{\"type\":\"streaming\",\"prompt\":\"whole\",\"chunk\":512}", "kv_policy.chunk"},
        {"{\"type\":\"streaming\",\"pooling\":\"max\"}", "kv_policy.pooling"},
        {"{\"type\":\"heavy_hitter\",\"window\":64}", "kv_policy.window"},
        {"{\"type\":\"heavy_hitter\",\"pooling\":\"none\"}", "kv_policy.pooling"},
        {"{\"type\":\"heavy_hitter\",\"kernel\":7}", "kv_policy.kernel"},
        {WINDOW("\"window\":0"), "kv_policy.window"},
        {WINDOW("\"window\":0.5"), "kv_policy.window"},
        {WINDOW("\"kernel\":7"), "kv_policy.kernel"},
        {WINDOW("\"pooling\":\"mean\",\"prompt\":\"whole\""), "kv_policy.pooling"},
        {WINDOW("\"pooling\":\"none\",\"kernel\":7"), "kv_policy.kernel"},
        {WINDOW("\"pooling\":\"average\""), "kv_policy.pooling"}, /* in chunks */
        {WINDOW("\"pooling\":\"max\",\"prompt\":\"whole\",\"kernel\":6"), "kv_policy.kernel"},
        {WINDOW("\"pooling\":\"max\",\"prompt\":\"whole\",\"kernel\":-1"), "kv_policy.kernel"},
        {WINDOW("\"pooling\":\"max\",\"prompt\":\"whole\",\"kernel\":65"), "kv_policy.kernel"},
        {WINDOW("\"pooling\":\"max\",\"prompt\":\"whole\",\"kernel\":7.0"), "kv_policy.kernel"},
        {"{\"type\":\"streaming\",\"\":1}", "kv_policy"},
        {"{\"type\":\"streaming\",\"kv_policy.recent\":1}", "kv_policy"},
        {"{\"type\":\"streaming\",\"sink\":-1}", "kv_policy.sink"},
        {"{\"type\":\"streaming\",\"sink\":0.5}", "kv_policy.sink"},
        {"{\"type\":\"streaming\",\"sink\":268435457}", "kv_policy.sink"},
        {"{\"type\":\"streaming\",\"recent\":0}", "kv_policy.recent"},
        {"{\"type\":\"streaming\",\"recent\":-1}", "kv_policy.recent"},
        {"{\"type\":\"streaming\",\"recent\":0.0}", "kv_policy.recent"},
        {"{\"type\":\"streaming\",\"recent\":1.0}", "kv_policy.recent"},
        {"{\"type\":\"streaming\",\"recent\":-0.5}", "kv_policy.recent"},
        {"{\"type\":\"streaming\",\"recent\":9000000000}", "kv_policy.recent"},
        {"{\"type\":\"streaming\",\"recent\":\"10\"}", "kv_policy.recent"},
        {"{\"type\":\"streaming\",\"recent\":true}", "kv_policy.recent"},
        {"{\"type\":\"streaming\",\"chunk\":0}", "kv_policy.chunk"},
        {"{\"type\":\"streaming\",\"chunk\":0.5}", "kv_policy.chunk"},
        {"{\"type\":\"streaming\",\"positions\":\"Cache\"}", "kv_policy.positions"},
        {"{\"type\":\"streaming\",\"positions\":true}", "kv_policy.positions"},
        {"{\"type\":\"full\",\"positions\":\"text\"}", "kv_policy.positions"},
        {"{\"type\":\"offload\",\"positions\":\"cache\"}", "kv_policy.positions"},
        {"{\"type\":\"heavy_hitter\",\"heavy\":-1}", "kv_policy.heavy"},
        {"{\"type\":\"heavy_hitter\",\"heavy\":0}", "kv_policy.heavy"},
        {"{\"type\":\"heavy_hitter\",\"heavy\":2.5}", "kv_policy.heavy"},
        {"{\"type\":\"heavy_hitter\",\"score\":\"max\"}", "kv_policy.score"},
        {"{\"type\":\"heavy_hitter\",\"score\":1}", "kv_policy.score"},
        {"{\"type\":\"heavy_hitter\",\"decay\":0.5}", "kv_policy.decay"},
        {"{\"type\":\"heavy_hitter\",\"score\":\"decay\",\"decay\":1}", "kv_policy.decay"},
        {"{\"type\":\"heavy_hitter\",\"score\":\"decay\",\"decay\":0}", "kv_policy.decay"},
        /* One, as a float. */
        {"{\"type\":\"heavy_hitter\",\"score\":\"decay\",\"decay\":0.999999999}",
         "kv_policy.decay"},
        {"{\"type\":\"heavy_hitter\",\"score\":\"decay\",\"decay\":\"a\"}", "kv_policy.decay"},
        {"{\"type\":\"heavy_hitter\",\"selected\":4}", "kv_policy.selected"},
        {"{\"type\":\"full\",\"offload\":true}", "kv_policy.offload"},
        {"{\"type\":\"offload\",\"recent\":4}", "kv_policy.recent"},
        {"{\"type\":\"offload\",\"chunk\":4}", "kv_policy.chunk"},
        {"{\"type\":\"offload\",\"select\":4}", "kv_policy"},
        {"{\"type\":\"offload\",\"offload\":1}", "kv_policy.offload"},
        {"{\"type\":\"offload\",\"selected\":0}", "kv_policy.selected"},
        {"{\"type\":\"offload\",\"selected\":1.5}", "kv_policy.selected"},
        {"{\"type\":\"offload\",\"tail\":0}", "kv_policy.tail"},
        {"{\"type\":\"offload\",\"tail\":0.5}", "kv_policy.tail"},
        {"{\"type\":\"offload\",\"selector\":\"first\"}", "kv_policy.selector"},
        {"{\"type\":\"offload\",\"selector\":16}", "kv_policy.selector"},
        {"{\"type\":\"heavy_hitter\",\"selector\":\"uniform\"}", "kv_policy.selector"},
        {"{\"type\":\"offload\",\"selected\":3}", "kv_policy.sink"},
        {"{\"type\":\"offload\",\"sink\":2049}", "kv_policy.sink"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_policy policy;
        struct api_error err;
        if (read(cases[i].text, &policy, &err) == 0) fail_msg("accepted: %s", cases[i].text);
        assert_int_equal(err.status, 400);
        if (!err.param || strcmp(err.param, cases[i].param) != 0)
            fail_msg("%s: names %s", cases[i].text, err.param ? err.param : "nothing");
        if (!strstr(err.message, err.param)) fail_msg("%s: %s", cases[i].text, err.message);
    }
}

TEST(fractions_are_of_the_prompt) {
    const struct kv_policy policy =
        read_good("{\"type\":\"heavy_hitter\",\"recent\":0.29,\"heavy\":0.001}");
    struct kv_choice choice = kv_policy_resolve(&policy, 100);
    assert_int_equal(choice.n_recent, 29); /* 0.29 * 100 is a little less */
    assert_int_equal(choice.n_heavy, 1);
    assert_int_equal(choice.n_sink, 4);
    assert_int_equal(kv_choice_capacity(&choice), 34);
    choice = kv_policy_resolve(&policy, 1000000);
    assert_int_equal(choice.n_recent, 290000);
    assert_int_equal(choice.n_heavy, 1000);
    choice = kv_policy_resolve(&policy, 1);
    assert_int_equal(choice.n_recent, 1);
    const struct kv_policy selects = read_good("{\"type\":\"offload\",\"selected\":0.1}");
    assert_int_equal(kv_policy_resolve(&selects, 300).n_selected, 30);
    assert_int_equal(kv_policy_resolve(&selects, 20).n_selected, 4); /* the sinks */
    const struct kv_policy pooled =
        read_good("{\"type\":\"heavy_hitter\",\"recent\":0.1,\"score\":\"window\",\"window\":32,"
                  "\"pooling\":\"max\",\"prompt\":\"whole\"}");
    assert_int_equal(kv_policy_resolve(&pooled, 1000).n_recent, 100);
    assert_int_equal(kv_policy_resolve(&pooled, 100).n_recent, 32); /* the window */

    const struct kv_policy largest = read_good(
        "{\"type\":\"heavy_hitter\",\"sink\":268435456,\"recent\":268435456,\"heavy\":268435456}");
    choice = kv_policy_resolve(&largest, 1);
    assert_true(kv_choice_capacity(&choice) == 3ull << 28);
}

TEST(settings_are_checked) {
    static const struct {
        const char *policy, *allowed, *named; /* NULL: good */
    } cases[] = {
        {"{\"type\":\"full\"}", "full", NULL},
        {"{\"type\":\"heavy_hitter\"}", "all", NULL},
        {"{\"type\":\"full\"}", "full,all", " or all"},
        {"{\"type\":\"streaming\",\"recent\":9}", "heavy_hitter,streaming", NULL},
        {"{\"type\":\"heavy_hitter\",\"heavy\":0.1}", "full,heavy_hitter", NULL},
        {"{\"type\":\"offload\",\"selected\":64}", "offload", NULL},
        {"{\"type\":\"offload\",\"sink\":65,\"selected\":64}", "offload", "kv_policy.sink"},
        {"full", "full", "--kv-policy"},
        {"", "full", "--kv-policy"},
        {"{\"type\":\"streaming\",\"recent\":0}", "streaming", "kv_policy.recent"},
        {"{\"type\":\"full\",\"type\":\"full\"}", "full", "--kv-policy"},
        {"{\"type\":\"full\"}", "streaming", "--allowed-kv-policies"},
        {"{\"type\":\"full\"}", "", "--allowed-kv-policies"},
        {"{\"type\":\"full\"}", "full,", "--allowed-kv-policies"},
        {"{\"type\":\"full\"}", "full, streaming", "--allowed-kv-policies"},
        {"{\"type\":\"full\"}", "fully", "--allowed-kv-policies"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_rules rules;
        struct error err = {0};
        const int rc = kv_rules_read(&rules, cases[i].policy, cases[i].allowed, &err);
        if (!cases[i].named) {
            if (rc) fail_msg("%s", err.text);
            assert_true(rules.allowed[rules.initial.tokens.type]);
            continue;
        }
        assert_int_equal(rc, ERR_INVALID);
        if (!strstr(err.text, cases[i].named)) fail_msg("%s", err.text);
    }
}

static struct kv_rules rules_of(const char *policy, const char *allowed) {
    struct kv_rules rules;
    struct error err = {0};
    if (kv_rules_read(&rules, policy, allowed, &err)) fail_msg("%s", err.text);
    return rules;
}

TEST(what_is_not_allowed_is_refused) {
    const struct kv_rules rules = rules_of("{\"type\":\"streaming\"}", "full,streaming");
    struct kv_policy full = kv_policy_default(TYPE_FULL);
    struct kv_policy heavy = kv_policy_default(TYPE_HEAVY_HITTER);
    struct api_error err = {0};
    assert_int_equal(kv_rules_apply(&rules, &full, &err), 0);
    assert_int_equal(kv_rules_apply(&rules, &heavy, &err), ERR_INVALID);
    assert_int_equal(err.status, 400);
    assert_string_equal(err.param, "kv_policy.type");
    assert_non_null(strstr(err.message, "allowed are full, streaming"));
    assert_true(kv_rules_allow(&rules, KV_BOUNDED));
    const struct kv_rules all_or_nothing = rules_of("{\"type\":\"full\"}", "full");
    assert_false(kv_rules_allow(&all_or_nothing, KV_BOUNDED));
}

/* Where the engine cannot, or has no room for it, the server does not start with a policy that no
 * request could have. */
TEST(rules_settle_for_what_the_engine_can) {
    static const char all[] = "full,streaming,heavy_hitter";
    const struct model_config model = {.max_position = 2561}, short_one = {.max_position = 2560};
    const struct engine_info able = {
        .budget_tokens = 2048, .bounded_caches = true, .model = &model};
    const struct engine_info unable = {.budget_tokens = 2048, .model = &model};
    const struct engine_info small = {
        .budget_tokens = 2047, .bounded_caches = true, .model = &model};
    const struct engine_info narrow = {
        .budget_tokens = 2048, .bounded_caches = true, .model = &short_one};
    struct error err = {0};
    struct kv_rules rules = rules_of("{\"type\":\"streaming\"}", all);
    assert_int_equal(kv_rules_resolve(&rules, &able, &err), 0);
    assert_true(rules.allowed[TYPE_STREAMING] && rules.allowed[TYPE_HEAVY_HITTER]);
    assert_int_equal(kv_rules_resolve(&rules, &small, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "2048"));
    assert_int_equal(kv_rules_resolve(&rules, &narrow, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "2561"));
    rules.initial.tokens.cache_positions = false; /* ranks may be what they are */
    assert_int_equal(kv_rules_resolve(&rules, &narrow, &err), 0);
    assert_int_equal(kv_rules_resolve(&rules, &unable, &err), ERR_UNSUPPORTED);

    rules = rules_of("{\"type\":\"full\"}", all);
    assert_int_equal(kv_rules_resolve(&rules, &unable, &err), 0);
    assert_true(rules.allowed[TYPE_FULL]);
    assert_false(kv_rules_allow(&rules, KV_BOUNDED));
}

/* Rules of a server whose engine selects, with and without memory to move tokens to.  Of its layers
 * 0 and 4 have a window. */
static struct kv_rules rules_that_select(const char *policy, uint64_t host_pool_bytes) {
    static const struct layer_group groups[] = {{1, 3, 6}, {6, 7, 8}};
    static const uint32_t windows[9] = {[0] = 50, [4] = 50};
    const struct engine_info info = {.selections = true, .host_pool_bytes = host_pool_bytes};
    struct kv_rules rules = rules_of(policy, "full,offload");
    struct error err = {0};
    rules.offload = (struct offload_rules){.filters_file = "m.json",
                                           .groups = groups,
                                           .n_groups = 2,
                                           .n_layers = 9,
                                           .windows = windows,
                                           .max_selected = 100};
    if (kv_rules_resolve(&rules, &info, &err)) fail_msg("%s", err.text);
    return rules;
}

static void assert_refused(const struct kv_rules *rules, const char *policy, const char *param,
                           const char *sentence) {
    struct kv_policy named = read_good(policy);
    struct api_error err = {0};
    assert_int_equal(kv_rules_apply(rules, &named, &err), ERR_INVALID);
    assert_int_equal(err.status, 400);
    assert_string_equal(err.param, param);
    if (!strstr(err.message, sentence)) fail_msg("%s", err.message);
}

TEST(offload_moves_tokens_where_there_is_room) {
    static const char unplaced[] = "{\"type\":\"offload\",\"selected\":100}";
    static const char moves[] = "{\"type\":\"offload\",\"selected\":100,\"offload\":true}";
    static const char stays[] = "{\"type\":\"offload\",\"selected\":100,\"offload\":false}";
    const struct kv_rules with = rules_that_select(unplaced, 4096);
    const struct kv_rules without = rules_that_select(unplaced, 0);
    struct api_error err = {0};
    assert_false(with.initial.tokens.on_device);
    assert_true(without.initial.tokens.on_device);
    struct kv_policy policy = read_good(stays);
    assert_int_equal(kv_rules_apply(&with, &policy, &err), 0);
    assert_true(policy.tokens.on_device);
    policy = read_good(moves);
    assert_int_equal(kv_rules_apply(&with, &policy, &err), 0);
    assert_false(policy.tokens.on_device);
    policy = read_good(unplaced);
    assert_int_equal(kv_rules_apply(&without, &policy, &err), 0);
    assert_true(policy.tokens.on_device && policy.placed);
    assert_refused(&without, moves, "kv_policy.offload", "--kv-offload-size");
    assert_refused(&with, "{\"type\":\"offload\",\"selected\":101}", "kv_policy.selected",
                   "at most 100");
}

TEST(offload_is_had_where_filters_are_known) {
    static const char offload[] = "{\"type\":\"offload\",\"selected\":64}";
    static const char why[] = "no filters";
    const struct engine_info able = {.selections = true}, unable = {.selections = false};
    struct error err = {0};
    struct kv_rules rules = rules_of("{\"type\":\"full\"}", "full,offload");
    rules.offload = (struct offload_rules){.why_not = why, .max_selected = 64};
    assert_int_equal(kv_rules_resolve(&rules, &able, &err), 0);
    assert_refused(&rules, offload, "kv_policy.type", why);
    rules.allowed[TYPE_OFFLOAD] = true;
    rules.offload.why_not = NULL;
    assert_int_equal(kv_rules_resolve(&rules, &unable, &err), 0);
    assert_refused(&rules, offload, "kv_policy.type", "backend");

    rules = rules_of(offload, "full,offload");
    rules.offload = (struct offload_rules){.why_not = why, .max_selected = 64};
    assert_int_equal(kv_rules_resolve(&rules, &able, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--kv-policy"));
    assert_non_null(strstr(err.text, why));

    rules = rules_of("{\"type\":\"full\"}", "full"); /* whatever else is missing */
    rules.offload.why_not = why;
    assert_int_equal(kv_rules_resolve(&rules, &able, &err), 0);
    assert_refused(&rules, offload, "kv_policy.type", "allowed are full");
}

TEST(layers_are_listed_by_what_they_do) {
    const struct kv_rules rules = rules_that_select("{\"type\":\"full\"}", 4096);
    struct buffer out = {0};
    kv_rules_write(&rules, &out);
    assert_string_equal(
        out.data,
        "\"kv_policy\":{\"type\":\"full\"},\"kv_policies\":[{\"type\":\"full\"},"
        "{\"type\":\"offload\",\"sink\":4,\"selected\":2048,\"tail\":512,"
        "\"selector\":\"last\",\"offload\":true}],"
        "\"offload\":{\"filters_file\":\"m.json\",\"max_selected\":100,\"store_bytes\":4096,"
        "\"store_fp8\":false,"
        "\"layers\":{\"dense\":[2,8],\"filter\":[1,6],\"sparse\":[3,5,7],\"windowed\":[0,4]}}");
    buffer_fini(&out);
}

/* ---- docs/kv-policies.md ---- */

/* Appends the words of a member whose numbers are in `values`, as the page writes them. */
static void add_words(struct buffer *out, const struct kv_member *member, uint32_t values) {
    const bool is_bool = member->form == KV_FORM_EITHER;
    bool listed = false;
    for (uint32_t i = 0; i < KV_MAX_WORDS && member->words[i]; i++) {
        if (!(values >> (is_bool ? !i : member->low + i) & 1)) continue;
        const bool is_last = i + 1 == KV_MAX_WORDS || !member->words[i + 1] || is_bool;
        buffer_printf(out, "%s`\"%s\"`", !listed ? "" : is_last ? " or " : ", ", member->words[i]);
        listed = true;
    }
}

/* Appends a member with its default and where it has a use: `kernel` 7 (with ...). */
static void add_default(struct buffer *out, unsigned type, unsigned id) {
    const struct kv_member *member = &kv_members[id];
    const struct kv_choice choice = kv_policies_default(type);
    const uint32_t value = kv_member_value(member, &choice);
    buffer_printf(out, "`%s`", kv_member_key(member));
    if (member->form == KV_FORM_SHARE) buffer_printf(out, " %g", (double)choice.decay);
    else if (member->words[0]) buffer_puts(out, " "), add_words(out, member, 1u << value);
    else if (member->form != KV_FORM_PLACE)
        buffer_printf(out, " %u", member->initial ? member->initial : value);
    if (!member->use.values || !kv_policies_has(type, member->use.other)) return;
    buffer_printf(out, " (with `%s` ", kv_member_key(&kv_members[member->use.other]));
    add_words(out, &kv_members[member->use.other], member->use.values);
    buffer_puts(out, ")");
}

static void add_policy(struct buffer *out, unsigned type) {
    const struct kv_policy_row *row = kv_policies_row(type);
    bool listed = false;
    buffer_printf(out, "\n| `%s` | %s |", row->name, row->keeps);
    for (unsigned id = 0; id < KV_N_MEMBERS; id++) {
        if (!(row->members >> id & 1)) continue;
        buffer_puts(out, listed ? ", " : " ");
        listed = true;
        add_default(out, type, id);
    }
    buffer_puts(out, " |\n");
}

static void add_limits(struct buffer *out, const struct kv_member *member) {
    static const char *const after[] = {
        [KV_FORM_AMOUNT] = ", or a fraction of the prompt between 0 and 1",
        [KV_FORM_ODD] = ", an odd number",
        [KV_FORM_TOKENS] = ""};
    buffer_printf(out, "\n| `%s` | ", kv_member_key(member));
    if (member->words[0]) add_words(out, member, UINT32_MAX);
    else if (member->form == KV_FORM_SHARE) buffer_puts(out, "a number between 0 and 1");
    else if (member->form == KV_FORM_PLACE)
        buffer_puts(out, "`true` or `false`; without it the server decides");
    else buffer_printf(out, "%u to %u tokens%s", member->low, member->high, after[member->form]);
    buffer_puts(out, " |\n");
}

static const char *page_path;

/* Each policy and each member has its line there.  A failure prints the line to be written. */
TEST(the_page_shows_the_table) {
    static char page[1 << 16];
    struct buffer line = {0};
    FILE *file = fopen(page_path, "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof(page) - 1, file)] = '\0';
    fclose(file);
    for (unsigned i = 0; i < kv_policies_count() + KV_N_MEMBERS; i++) {
        line.length = 0;
        if (i < kv_policies_count()) add_policy(&line, i);
        else add_limits(&line, &kv_members[i - kv_policies_count()]);
        if (!strstr(page, line.data)) fail_msg("%s lacks this line:%s", page_path, line.data);
    }
    buffer_fini(&line);
}

/* tests/kv_types.h numbers the rows; every row's policy can be written and read. */
TEST(rows_are_what_they_say) {
    static const char *const names[] = {[TYPE_FULL] = "full",
                                        [TYPE_STREAMING] = "streaming",
                                        [TYPE_HEAVY_HITTER] = "heavy_hitter",
                                        [TYPE_OFFLOAD] = "offload"};
    for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
        assert_string_equal(kv_type_name(i), names[i]);
    assert_int_equal(kv_policies_row(0)->defaults.mechanism, KV_WHOLE);
    for (unsigned i = 0; i < kv_policies_count(); i++) {
        const struct kv_policy policy = kv_policy_default(i);
        struct buffer out = {0};
        kv_policy_write(&policy, &out);
        const struct kv_policy again = read_good(out.data);
        assert_int_equal(again.tokens.type, i);
        assert_written(&again, out.data);
        assert_null(kv_choice_conflict(&policy.tokens));
        buffer_fini(&out);
    }
}

int main(int argc, char **argv) {
    page_path = argc > 1 ? argv[1] : "docs/kv-policies.md";
    return tests_run("tests", NULL, NULL);
}
