/* test_options.c - the table, its four sources, and the settings file that ships. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/likeness.h"
#include "engine/device/pages.h"
#include "server/settings/foreign_options.h"
#include "server/settings/foreign_table.h"
#include "server/settings/model_names.h"
#include "server/settings/option_hint.h"
#include "server/settings/options.h"
#include "server/settings/options_help.h"
#include "server/settings/service_links.h"
#include "tests/test.h"

static char *config_path;

static int load(struct options *out, char **argv, char **environment, struct error *err) {
    int argc = 0;
    while (argv[argc]) argc++;
    return options_load(out, &(struct options_command){"serve", 1, NULL}, argc, argv, environment,
                        err);
}

#define ARGS(...) ((char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

TEST(defaults_are_set) {
    struct options o;
    assert_int_equal(load(&o, ARGS(), ARGS(), NULL), 0);
    assert_string_equal(o.host, "127.0.0.1");
    assert_int_equal(o.port, 8000);
    assert_int_equal(o.max_num_seqs, 256);
    assert_int_equal(o.max_num_batched_tokens, 2048);
    assert_int_equal(o.max_num_queued_reqs, 1024);
    assert_int_equal(o.max_body_size, 64 << 20);
    assert_int_equal(o.device, DEVICE_AUTO);
    assert_true(o.enable_prefix_caching);
    assert_null(o.model);
    assert_null(o.api_key);
    options_fini(&o);
}

/* Loads the settings and checks the text of the list. */
static void check_list(char **argv, char **environment, const char *expected) {
    struct options o;
    struct error err = {0};
    const int rc = load(&o, argv, environment, &err);
    if (rc) fail_msg("%s", err.text);
    assert_string_equal(o.served_model_name, expected);
    options_fini(&o);
}

TEST(a_repeated_flag_of_a_list_adds_to_it_and_replaces_other_sources) {
    char *const name = "QUIRE_SERVED_MODEL_NAME=e,f";
    check_list(ARGS("--served-model-name", "a,b", "--served-model-name=c"), ARGS(name), "a,b,c");
    check_list(ARGS("--served-model-name=c"), ARGS(name), "c");
    check_list(ARGS("-a", "a", "-a", "b"), ARGS(name), "a,b");
    check_list(ARGS("-a", "a", "--served-model-name", "b"), ARGS(name), "a,b");
    check_list(ARGS("--chat-template", "--served-model-name", "-a", "b"), ARGS(name), "b");
    check_list(ARGS(), ARGS(name), "e,f");
}

TEST(names_and_aliases_find_the_served_name) {
    struct model_names names;
    struct error err = {0};
    assert_int_equal(model_names_read(&names, "a,o/b", "c-*=o/b,c-[12]=a", "own", &err), 0);
    assert_int_equal(names.n, 2);
    assert_string_equal(model_names_find(&names, "a"), "a");
    assert_string_equal(model_names_find(&names, "c-1"), "o/b");
    assert_null(model_names_find(&names, "own"));
    assert_null(model_names_find(&names, "a,o/b"));
    model_names_fini(&names);
    assert_int_equal(model_names_read(&names, NULL, "*=own", "own", &err), 0);
    assert_string_equal(model_names_find(&names, "any"), "own");
    model_names_fini(&names);
}

TEST(names_and_aliases_that_mean_nothing_are_refused) {
    static const struct {
        const char *served, *aliases, *says;
    } cases[] = {
        {"a,,b", NULL, "1 to 512 bytes"},    {"a,b,a", NULL, "'a' is there twice"},
        {NULL, "x", "must be PATTERN=NAME"}, {NULL, "=own", "must be PATTERN=NAME"},
        {"a", "x=own", "'own' is no name"},  {NULL, "x=own,y=", "'' is no name"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct model_names names;
        struct error err = {0};
        assert_int_equal(model_names_read(&names, cases[i].served, cases[i].aliases, "own", &err),
                         ERR_INVALID);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s", err.text);
        assert_int_equal(names.n, 0);
    }
}

TEST(flags_are_read_in_every_form) {
    struct options o;
    assert_int_equal(
        load(&o,
             ARGS("/m", "--port", "0", "--host=::1", "--kv-cache-memory", "2G", "--device", "cuda",
                  "--enable-prefix-caching", "false", "--kv-cache-dtype=fp8", "--kv-offload-dtype",
                  "fp8", "--api-key", "-k"),
             ARGS(), NULL),
        0);
    assert_string_equal(o.model, "/m");
    assert_int_equal(o.port, 0);
    assert_string_equal(o.host, "::1");
    assert_true(o.kv_cache_memory == 2ull << 30);
    assert_int_equal(o.device, DEVICE_CUDA);
    assert_int_equal(o.kv_cache_dtype, KV_CACHE_DTYPE_FIRST + PAGE_FP8);
    assert_int_equal(o.kv_offload_dtype, OFFLOAD_DTYPE_FP8);
    assert_false(o.enable_prefix_caching);
    assert_string_equal(o.api_key, "-k");
    assert_true(o.keys_in_arguments);
    options_fini(&o);
    assert_int_equal(load(&o, ARGS("--host", "--api-key"), ARGS("QUIRE_API_KEY=k"), NULL), 0);
    assert_string_equal(o.api_key, "k");
    assert_false(o.keys_in_arguments);
    options_fini(&o);
    assert_int_equal(load(&o, ARGS("--no-enable-prefix-caching"), ARGS(), NULL), 0);
    assert_false(o.enable_prefix_caching);
    options_fini(&o);
    assert_int_equal(load(&o, ARGS("--enable-prefix-caching", "--port", "1"), ARGS(), NULL), 0);
    assert_true(o.enable_prefix_caching && o.port == 1);
    options_fini(&o);
    assert_int_equal(load(&o, ARGS("--batch-invariant", "/m"), ARGS(), NULL), 0);
    assert_true(o.batch_invariant);
    assert_string_equal(o.model, "/m");
    options_fini(&o);
}

TEST(flag_beats_environment_beats_file_beats_default) {
    char path[] = "/tmp/quire-options-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    const char *text = "{\"port\": 1, \"threads\": 2, \"max-num-seqs\": 3, \"# note\": [1], "
                       "\"max-body-size\": \"1M\"}";
    assert_int_equal(write(file, text, strlen(text)), (long)strlen(text));
    close(file);

    struct options o;
    struct error err = {0};
    assert_int_equal(load(&o, ARGS("--config", path, "--port", "7"),
                          ARGS("QUIRE_PORT=5", "QUIRE_THREADS=6", "PORT=9"), &err),
                     0);
    assert_int_equal(o.port, 7);
    assert_int_equal(o.threads, 6);
    assert_int_equal(o.max_num_seqs, 3);
    assert_int_equal(o.max_body_size, 1 << 20);
    assert_int_equal(o.max_num_batched_tokens, 2048);
    options_fini(&o);

    char variable[64];
    snprintf(variable, sizeof(variable), "QUIRE_CONFIG=%s", path);
    assert_int_equal(load(&o, ARGS(), ARGS(variable), &err), 0);
    assert_int_equal(o.port, 1);
    options_fini(&o);
    unlink(path);
}

/* As vLLM reads them, whose letters differ by case. */
TEST(tokens_have_units) {
    static const struct {
        char *text;
        uint64_t n; /* 0: refused */
    } cases[] = {
        {"32", 32},
        {"32k", 32000},
        {"32K", 32768},
        {"1m", 1000000},
        {"1M", 1 << 20},
        {"25.6k", 25600},
        {"1.048576m", 1048576},
        {"0.5k", 500},
        {"0.0019k", 1},
        {"1g", 1000000000},
        {"1G", 1 << 30},
        {"2.5K", 0},
        {"2.5", 0},
        {".5k", 0},
        {"5.k", 0},
        {"k", 0},
        {"32kb", 0},
        {"32 k", 0},
        {"32x", 0},
        {"1e3", 0},
        {"2G", 0},
        {"1.1g", 0},
        {"18446744073709551615k", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct options o;
        struct error err = {0};
        const int rc = load(&o, ARGS("--max-model-len", cases[i].text), ARGS(), &err);
        if (cases[i].n && rc) fail_msg("%s: %s", cases[i].text, err.text);
        if (!cases[i].n && !rc) fail_msg("%s is taken", cases[i].text);
        if (rc) continue;
        assert_int_equal(o.max_model_len, cases[i].n);
        options_fini(&o);
    }
}

TEST(errors_name_the_option) {
    static const struct {
        char *argv[3], *variable;
        const char *name;
    } cases[] = {
        {{"--port", "65536"}, NULL, "--port"},
        {{"--port", "-1"}, NULL, "--port: -1 is out of range [0, 65535]"},
        {{"--max-itl", "-3"}, NULL, "--max-itl: -3 is out of range [0, 60000]"},
        {{"--max-body-size", "-1K"}, NULL, "--max-body-size: -1K is out of range [1024, "},
        {{"--gpu-memory-utilization", "-0.5"}, NULL, "-0.5 is out of range [0.1, 1]"},
        {{"--max-model-len", "99999999999999999999"}, NULL, "is out of range [0, 1073741824]"},
        {{"--port", "--1"}, NULL, "--port: '--1' is not a whole number"},
        {{"--port", "-"}, NULL, "--port: '-' is not a whole number"},
        {{"--port", "8k"}, NULL, "--port"},
        {{"--port", ""}, NULL, "--port"},
        {{"--port"}, NULL, "--port"},
        {{"--port="}, NULL, "--port"},
        {{"--max-num-seqs", "0"}, NULL, "--max-num-seqs"},
        {{"--max-num-seqs", "99999999999999999999"}, NULL, "--max-num-seqs"},
        {{"--kv-cache-memory", "1T"}, NULL, "--kv-cache-memory"},
        {{"--kv-cache-memory", "99999999999G"}, NULL, "--kv-cache-memory"},
        {{"--kv-cache-memory", "G"}, NULL, "--kv-cache-memory"},
        {{"--gpu-memory-utilization", "1.5"}, NULL, "--gpu-memory-utilization"},
        {{"--gpu-memory-utilization", "0.01"}, NULL, "--gpu-memory-utilization"},
        {{"--gpu-memory-utilization", "nan"}, NULL, "--gpu-memory-utilization"},
        {{"--gpu-memory-utilization", "90%"}, NULL, "--gpu-memory-utilization"},
        {{"--device", "tpu"}, NULL, "--device"},
        {{"--enable-prefix-caching=maybe"}, NULL, "--enable-prefix-caching"},
        {{"--host", ""}, NULL, "--host"},
        {{"--kv-policy", "streaming"}, NULL, "--kv-policy"},
        {{"--kv-policy", "{\"type\":\"streaming\",\"recent\":0}"}, NULL, "kv_policy.recent"},
        {{"--allowed-kv-policies", "streaming"}, NULL, "--allowed-kv-policies"}, /* not full */
        {{"--default-chat-template-kwargs", "{"}, NULL, "--default-chat-template-kwargs"},
        {{"--default-chat-template-kwargs", "[]"}, NULL, "--default-chat-template-kwargs"},
        {{"--default-chat-template-kwargs", "{\"messages\":[]}"}, NULL, "'messages'"},
        {{"--no-port"}, NULL, "--no-port"},
        {{"--unheard-of", "1"}, NULL, "--unheard-of"},
        {{"-x"}, NULL, "-x"},
        {{"a", "b"}, NULL, "b"},
        {{NULL}, "QUIRE_PORT=x", "QUIRE_PORT"},
        {{"--config", "/nonexistent.json"}, NULL, "--config"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct options o;
        struct error err = {0};
        char *argv[] = {cases[i].argv[0], cases[i].argv[0] ? cases[i].argv[1] : NULL, NULL};
        assert_int_equal(load(&o, argv, ARGS(cases[i].variable), &err), ERR_INVALID);
        if (!strstr(err.text, cases[i].name))
            fail_msg("'%s' does not name %s", err.text, cases[i].name);
    }
}

TEST(a_misspelt_setting_is_named) {
    static const struct {
        char *flag, *meant;
    } cases[] = {
        {"--prot", "--port"},
        {"--hots=x", "--host"},
        {"--apikey", "--api-key"},
        {"--max-num-seq", "--max-num-seqs"},
        {"--max_num_seq", "--max-num-seqs"},
        {"--MaxNumSeqs", "--max-num-seqs"},
        {"--max-seqs", "--max-num-seqs"},
        {"--cache-memory", "--kv-cache-memory"},
        {"--kv-chace-dtype", "--kv-cache-dtype"},
        {"--no-prefix-caching", "--no-enable-prefix-caching"},
        {"--no-enable-prefix-cache", "--no-enable-prefix-caching"},
        {"--no-prot", "--port"},
        {"-port", "--port"},
        {"-log-levle", "--log-level"},
        {"--unheard-of", NULL},
        {"--x", NULL},
        {"-z", NULL},
        {"--", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct options o;
        struct error err = {0};
        char expected[80];
        snprintf(expected, sizeof(expected), ": %s may be meant", cases[i].meant);
        assert_int_equal(load(&o, ARGS(cases[i].flag, "1"), ARGS(), &err), ERR_INVALID);
        if (cases[i].meant ? !strstr(err.text, expected) : strstr(err.text, "meant") != NULL)
            fail_msg("%s: %s", cases[i].flag, err.text);
    }
}

/* A command's own options come before the settings. */
TEST(a_misspelt_option_of_a_command_is_named) {
    static const struct option entries[] = {
        {"max-tokens", OPTION_NUMBER, 0, 0, 9, "0", NULL, "help"}};
    static const struct option_table own = {entries, 1};
    const struct options_command command = {"run", 2, &own};
    static const struct {
        char *flag;
        const char *text;
    } cases[] = {{"--max-token", "--max-token is not an option: --max-tokens may be meant"},
                 {"-max-tokens", "--max-tokens may be meant"},
                 {"--max_tokns=1", "--max-tokens may be meant"},
                 {"--prot", "--port may be meant"},
                 {"--unheard-of", "see `quire run --help`"},
                 {"-z", "see `quire run --help`"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct options o;
        struct error err = {0};
        char *argv[] = {"/m", cases[i].flag}, *environment[] = {NULL};
        assert_int_equal(options_load(&o, &command, 2, argv, environment, &err), ERR_INVALID);
        if (!strstr(err.text, cases[i].text)) fail_msg("%s: %s", cases[i].flag, err.text);
    }
}

TEST(a_misspelt_variable_is_found) {
    static const struct {
        const char *variable, *meant;
    } cases[] = {
        {"QUIRE_MAX_NUM_SEQ=1", "max-num-seqs"},
        {"QUIRE_APIKEY=x", "api-key"},
        {"quire_port=1", "port"},
        {"QUIRE_MODLE=x", "model"},
        {"QUIRE_CACHE_MEMORY=1G", "kv-cache-memory"},
        {"QUIRE_PORT=1", NULL},
        {"QUIRE_MAX_NUM_SEQS", NULL},
        {"QUIRE_TEST_BINARY=x", NULL},
        {"QUIRE_SERVICE_PORT=8000", NULL},
        {"QUIRE_PORT_80_TCP=tcp://10.0.0.1:80", NULL},
        {"QUIRE_=", NULL},
        {"PROT=1", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *meant = option_hint_variable(options_table(), cases[i].variable);
        if (!meant || !cases[i].meant) assert_ptr_equal(meant, cases[i].meant);
        else assert_string_equal(meant, cases[i].meant);
    }
}

/* Of two settings that do not go together, the error names both. */
TEST(errors_of_two_settings_name_both) {
    static const struct {
        char *argv[3]; /* some NULL */
        const char *one, *other;
    } cases[] = {
        {{"--max-buffered-body", "1M"},
         "--max-buffered-body (1048576)",
         "--max-body-size (67108864)"},
        {{"--ssl-certfile", "x"}, "--ssl-certfile", "--ssl-keyfile"},
        {{"--ssl-keyfile", "x"}, "--ssl-certfile", "--ssl-keyfile"},
        {{"--kv-events-replay", "x"}, "--kv-events-replay", "needs --kv-events"},
        {{"--kv-events-topic", "x"}, "--kv-events-topic", "needs --kv-events"},
        {{"--random-format", "int4"}, "--random-format", "needs --load-format dummy"},
        {{"--activations", "fp8", "--batch-invariant"}, "--activations fp8", "--batch-invariant"},
        {{"--otlp-ca-file", "x"}, "--otlp-ca-file", "--otlp-endpoint"},
        {{"--kv-policy", "{\"type\":\"streaming\"}"}, NULL, NULL},
    };
    struct options o;
    struct error err = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *const *a = cases[i].argv;
        assert_int_equal(load(&o, ARGS(a[0], a[1], a[2]), ARGS(), &err),
                         cases[i].one ? ERR_INVALID : 0);
        if (!cases[i].one) options_fini(&o);
        else if (!strstr(err.text, cases[i].one) || !strstr(err.text, cases[i].other))
            fail_msg("%s", err.text);
    }
    assert_int_equal(load(&o, ARGS("--max-body-size", "1G"), ARGS(), &err), 0);
    options_fini(&o);
}

TEST(words_differ_by_what_was_mistyped) {
    assert_int_equal(likeness_distance("", ""), 0);
    assert_int_equal(likeness_distance("", "abc"), 3);
    assert_int_equal(likeness_distance("port", "port"), 0);
    assert_int_equal(likeness_distance("prot", "port"), 1); /* neighbours exchanged */
    assert_int_equal(likeness_distance("pot", "port"), 1);
    assert_int_equal(likeness_distance("pport", "port"), 1);
    assert_int_equal(likeness_distance("post", "port"), 1);
    assert_int_equal(likeness_distance("A_B", "a-b"), 0);
    assert_int_equal(likeness_distance("kitten", "sitting"), 3);
    char longest[LIKENESS_MAX_BYTES + 2];
    memset(longest, 'a', sizeof(longest) - 1);
    longest[LIKENESS_MAX_BYTES + 1] = '\0';
    assert_int_equal(likeness_distance(longest, longest), LIKENESS_MAX_BYTES + 1);
    assert_int_equal(likeness_distance(longest + 1, longest + 1), 0);
}

TEST(a_bad_file_is_refused) {
    static const char *const texts[] = {"[]",
                                        "{",
                                        "{\"prot\": 1}",
                                        "{\"port\": true}",
                                        "{\"port\": null}",
                                        "{\"port\": 1.5}",
                                        "{\"host\": 1}",
                                        "{\"port\": 1, \"port\": 2}",
                                        "{\"config\": \"other.json\"}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        char path[] = "/tmp/quire-options-XXXXXX";
        const int file = mkstemp(path);
        assert_true(file >= 0);
        assert_int_equal(write(file, texts[i], strlen(texts[i])), (long)strlen(texts[i]));
        close(file);
        struct options o;
        struct error err = {0};
        assert_int_equal(load(&o, ARGS("--config", path), ARGS(), &err), ERR_INVALID);
        assert_non_null(strstr(err.text, path));
        unlink(path);
    }
}

/* The file names every setting, explains it and shows its default. */
TEST(the_shipped_file_agrees_with_the_table) {
    const struct option *table = options_table()->entries;
    const size_t n = options_table()->n;
    json_t *root = json_load_file(config_path, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(root, table[i].name);
        char comment[64], shown[64] = "";
        snprintf(comment, sizeof(comment), "# %s", table[i].name);
        if (!value) fail_msg("%s is missing", table[i].name);
        if (!json_is_string(json_object_get(root, comment)))
            fail_msg("%s is not explained", table[i].name);
        if (json_is_string(value)) snprintf(shown, sizeof(shown), "%s", json_string_value(value));
        if (json_is_integer(value))
            snprintf(shown, sizeof(shown), "%lld", (long long)json_integer_value(value));
        if (json_is_real(value)) snprintf(shown, sizeof(shown), "%g", json_real_value(value));
        if (json_is_boolean(value))
            snprintf(shown, sizeof(shown), "%s", json_is_true(value) ? "true" : "false");
        assert_string_equal(shown, table[i].initial ? table[i].initial : "");
    }
    assert_int_equal(json_object_size(root), 2 * n + 1);
    json_decref(root);

    struct options o;
    struct error err = {0};
    if (load(&o, ARGS("--config", config_path), ARGS(), &err)) fail_msg("%s", err.text);
    options_fini(&o);
}

struct taken {
    char *name;
    uint64_t n;
    bool on;
};

/* A subcommand with flags of its own takes them and leaves the others as they were. */
TEST(another_table_takes_its_own_flags) {
    static const struct option entries[] = {
        {"name", OPTION_STRING, offsetof(struct taken, name), 0, 0, "x", NULL, ""},
        {"n", OPTION_NUMBER, offsetof(struct taken, n), 1, 9, "3", NULL, ""},
        {"on", OPTION_BOOL, offsetof(struct taken, on), 0, 0, "false", NULL, ""},
    };
    static const struct option_table table = {entries, 3};
    struct taken t = {0};
    struct error err = {0};
    char *argv[] = {"dir", "--n", "5", "--port", "1", "--on", "--name=y", "--no-thing", NULL};
    int argc = 8;
    assert_int_equal(option_table_take(&table, &t, &argc, argv, &err), 0);
    assert_int_equal(argc, 4);
    assert_string_equal(argv[0], "dir");
    assert_string_equal(argv[1], "--port");
    assert_string_equal(argv[2], "1");
    assert_string_equal(argv[3], "--no-thing");
    assert_string_equal(t.name, "y");
    assert_int_equal(t.n, 5);
    assert_true(t.on);
    option_table_free(&table, &t);
    assert_null(t.name);

    char *wrong[] = {"--n", "10", NULL};
    argc = 2;
    assert_int_equal(option_table_take(&table, &t, &argc, wrong, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "--n"));
    assert_null(t.name);
}

/* Returns what the help of this name prints; the caller frees it. */
static char *help_of(const char *name) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    options_help_print(out, name);
    fclose(out);
    return text;
}

static bool shows(const char *help, const struct option *option) {
    char flag[64];
    snprintf(flag, sizeof(flag), "  --%s ", option->name);
    return strstr(help, flag) != NULL;
}

TEST(every_option_is_in_one_group_of_the_help) {
    const struct option_table *table = options_table();
    const struct option_group *groups = options_groups();
    char *all = help_of("all"), *first = help_of("");
    uint32_t n_common = 0;
    assert_string_equal(groups[0].first, table->entries[0].name);
    for (size_t i = 0; i < table->n; i++) {
        uint32_t n_shown = 0;
        for (const struct option_group *group = groups; group->name; group++) {
            char *help = help_of(group->name);
            n_shown += shows(help, &table->entries[i]);
            free(help);
        }
        assert_int_equal(n_shown, 1);
        assert_true(shows(all, &table->entries[i]));
        assert_int_equal(shows(first, &table->entries[i]), options_is_common(&table->entries[i]));
        n_common += options_is_common(&table->entries[i]);
    }
    assert_int_equal(n_common, 10);
    free(all);
    free(first);
}

/* The first screen names each group with its example, whose options are those of the group. */
TEST(examples_of_the_help_are_right) {
    char *first = help_of("");
    for (const struct option_group *group = options_groups(); group->name; group++) {
        char *help = help_of(group->name), line[200];
        snprintf(line, sizeof(line), "%s", group->example);
        assert_non_null(strstr(first, group->name));
        assert_non_null(strstr(first, group->example));
        assert_non_null(option_find(options_table(), group->first, strlen(group->first)));
        for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
            const size_t n = strlen(word) - 2;
            if (strncmp(word, "--", 2) != 0) continue;
            const struct option *option = option_find(options_table(), word + 2, n);
            assert_non_null(option);
            assert_ptr_equal(options_group_of(option), group);
        }
        free(help);
    }
    free(first);
}

/* What follows a spelling's dashes, without "no-", is no option of ours: it would not be found. */
TEST(spellings_of_other_servers_are_of_one_thing) {
    size_t n_spellings = 0;
    for (const struct foreign_option *one = foreign_table; one->of; one++) {
        char *words = strdup(one->spellings);
        for (char *word = strtok(words, " "); word; word = strtok(NULL, " "), n_spellings++) {
            const char *name = word + strspn(word, "-");
            assert_ptr_equal(foreign_option_find(word), one);
            assert_null(option_find(options_table(), name, strlen(name)));
        }
        free(words);
        const char *flag = one->flag;
        if (flag && strncmp(flag, "no-", 3) == 0) flag += 3;
        assert_true(!one->flag != !one->instead);
        if (flag) assert_non_null(option_find(options_table(), flag, strlen(flag)));
        for (const char *at = one->instead; at && (at = strstr(at, "see --")); at += 6) {
            const size_t n = strspn(at + 6, "abcdefghijklmnopqrstuvwxyz-");
            assert_non_null(option_find(options_table(), at + 6, n));
        }
    }
    assert_true(n_spellings > 300);
}

/* What is taken silently would be refused with another value, and what is translated is a value. */
TEST(usual_options_and_values_of_other_servers_have_a_meaning) {
    for (const struct usual_option *usual = usual_table; usual->spelling; usual++) {
        const struct foreign_option *one = foreign_option_find(usual->spelling);
        if (!one || one->flag) fail_msg("%s", usual->spelling);
    }
    for (const struct foreign_value *value = foreign_values; value->option; value++) {
        const struct option *option =
            option_find(options_table(), value->option, strlen(value->option));
        struct options ours = {0}, theirs = {0};
        struct error err = {0};
        assert_non_null(option);
        const struct option_source from = {value->option, &err};
        if (!value->ours) {
            assert_int_equal(option_set(&theirs, option, value->theirs, &from), ERR_INVALID);
            assert_non_null(strstr(err.text, value->instead));
            continue;
        }
        if (option_set(&ours, option, value->ours, &from)) fail_msg("%s", err.text);
        if (option_set(&theirs, option, value->theirs, &from)) fail_msg("%s", err.text);
        assert_memory_equal(&ours, &theirs, sizeof(ours));
    }
}

TEST(underscores_are_dashes) {
    struct options o;
    struct error err = {0};
    assert_int_equal(load(&o,
                          ARGS("--max_model_len", "99", "--no_enable_prefix_caching",
                               "--kv_cache_memory=1G", "--max_seq_len=77", "--tp_size", "1"),
                          ARGS(), NULL),
                     0);
    assert_int_equal(o.max_model_len, 77);
    assert_int_equal(o.kv_cache_memory, 1 << 30);
    assert_false(o.enable_prefix_caching);
    options_fini(&o);
    assert_int_equal(load(&o, ARGS("--max_modl_len", "99"), ARGS(), &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "--max_modl_len is not an option: --max-model-len may"));
}

TEST(a_list_goes_on_where_the_model_is_known) {
    struct options o;
    struct error err = {0};
    assert_int_equal(load(&o, ARGS("/m", "--served-model-name", "a", "b"), ARGS(), NULL), 0);
    assert_string_equal(o.served_model_name, "a,b");
    assert_string_equal(o.model, "/m");
    options_fini(&o);
    assert_int_equal(load(&o, ARGS("-m", "/m", "--served-model-name", "a", "b", "c", "--port", "1"),
                          ARGS(), NULL),
                     0);
    assert_string_equal(o.served_model_name, "a,b,c");
    options_fini(&o);
    assert_int_equal(load(&o, ARGS("--served-model-name", "a", "/m"), ARGS("QUIRE_MODEL=/n"), NULL),
                     0);
    assert_string_equal(o.served_model_name, "a");
    assert_string_equal(o.model, "/m");
    options_fini(&o);
    assert_int_equal(load(&o, ARGS("/m", "--port", "1", "b"), ARGS(), &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "'b' is not expected here"));
}

TEST(options_of_other_servers_are_understood) {
    struct options o;
    assert_int_equal(load(&o,
                          ARGS("-m", "/m", "-c", "4096", "-t", "3", "-np", "5", "--alias=x", "-b",
                               "77", "--no-webui"),
                          ARGS(), NULL),
                     0);
    assert_string_equal(o.model, "/m");
    assert_int_equal(o.max_model_len, 4096);
    assert_int_equal(o.threads, 3);
    assert_int_equal(o.max_num_seqs, 5);
    assert_string_equal(o.served_model_name, "x");
    assert_int_equal(o.max_num_batched_tokens, 77);
    assert_false(o.ui);
    options_fini(&o);
    assert_int_equal(load(&o,
                          ARGS("--model-path=/m", "--mem-fraction-static", "0.5",
                               "--disable-radix-cache", "--enable-deterministic-inference"),
                          ARGS(), NULL),
                     0);
    assert_true(o.gpu_memory_utilization > 0.49 && o.gpu_memory_utilization < 0.51);
    assert_true(o.batch_invariant && !o.enable_prefix_caching);
    options_fini(&o);
}

TEST(options_that_ask_for_what_is_so_anyhow_are_taken) {
    struct options o;
    assert_int_equal(load(&o,
                          ARGS("-fa", "--jinja", "-ngl", "99", "-fa=on", "--flash-attn", "auto",
                               "-pp", "1", "--tool-call-parser", "hermes", "/m"),
                          ARGS(), NULL),
                     0);
    assert_string_equal(o.model, "/m");
    assert_string_equal(o.usual, "-fa, --jinja, -ngl, -fa, --flash-attn, -pp, --tool-call-parser");
    options_fini(&o);
}

TEST(options_of_other_servers_are_explained) {
    static const struct {
        char *argv[3];
        const char *text;
    } cases[] = {
        {{"-ngl", "20"}, "-ngl of llama.cpp is no option here: all layers run on one device"},
        {{"-ngl"}, "-ngl of llama.cpp is no option here: all layers run on one device"},
        {{"-ngl", "1"}, "-ngl of llama.cpp is no option here: all layers run on one device"},
        {{"-fa", "off"}, "-fa of llama.cpp is no option here: it is always on"},
        {{"--jinja=1"}, "--jinja of llama.cpp is no option here: it is always on"},
        {{"--pipeline-parallel-size=2"},
         "--pipeline-parallel-size of several servers is no option"},
        {{"--quantization", "awq"}, "the model's files say in which format"},
        {{"-c", "many"}, "--max-model-len: 'many' is not a number of tokens"},
        {{"-c"}, "--max-model-len needs a value"},
        {{"-cx", "1"}, "'-cx' is not expected here"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct options o;
        struct error err = {0};
        assert_int_equal(load(&o, (char **)cases[i].argv, ARGS(), &err), ERR_INVALID);
        if (!strstr(err.text, cases[i].text)) fail_msg("%s: %s", cases[i].argv[0], err.text);
    }
}

TEST(help_is_asked_for_by_name) {
    static const struct {
        char *argv[3];
        const char *name; /* NULL: refused */
    } cases[] = {
        {{"--help"}, ""},
        {{"-h"}, ""},
        {{"/m", "--help"}, ""},
        {{"--help", "/m"}, ""},
        {{"--help-all"}, "all"},
        {{"--help=all"}, "all"},
        {{"--help", "memory"}, "memory"},
        {{"--help=log"}, "log"},
        {{"--help=logs"}, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct options o;
        struct error err = {0};
        const int rc = load(&o, (char **)cases[i].argv, ARGS(), &err);
        assert_int_equal(rc, cases[i].name ? 0 : ERR_INVALID);
        if (rc) assert_non_null(strstr(err.text, "'logs' is not one of all, model, network, "));
        else assert_string_equal(o.help, cases[i].name);
        if (!rc) options_fini(&o);
    }
}

/* The variables of a pod that starts after a Service named quire, with two ports, one of IPv6. */
TEST(variables_of_a_service_are_ignored) {
    static const char *const addresses[] = {
        "QUIRE_PORT=tcp://10.0.0.11:80", "QUIRE_PORT=udp://10.0.0.11:53",
        "QUIRE_PORT=sctp://10.0.0.11:80", "QUIRE_PORT=tcp://[fd00::b]:8000",
        "QUIRE_PORT=tcp://172.17.0.2:8000"};
    struct options o;
    for (size_t i = 0; i < sizeof(addresses) / sizeof(*addresses); i++) {
        char *environment[] = {"QUIRE_SERVICE_HOST=10.0.0.11",
                               "QUIRE_SERVICE_PORT=80",
                               "QUIRE_SERVICE_PORT_HTTP=80",
                               (char *)addresses[i],
                               "QUIRE_PORT_80_TCP=tcp://10.0.0.11:80",
                               "QUIRE_PORT_80_TCP_PROTO=tcp",
                               "QUIRE_PORT_80_TCP_PORT=80",
                               "QUIRE_PORT_80_TCP_ADDR=10.0.0.11",
                               "QUIRE_MAX_NUM_SEQS=3",
                               NULL};
        assert_int_equal(load(&o, ARGS(), environment, NULL), 0);
        assert_int_equal(o.port, 8000);
        assert_int_equal(o.max_num_seqs, 3);
        assert_string_equal(o.service_link, addresses[i]);
        options_fini(&o);
        assert_int_equal(load(&o, ARGS("--port", "9000"), environment, NULL), 0);
        assert_int_equal(o.port, 9000);
        options_fini(&o);
        for (size_t v = 0; v + 2 < sizeof(environment) / sizeof(*environment); v++)
            assert_true(service_link_is(environment[v]));
        assert_false(service_link_is("QUIRE_MAX_NUM_SEQS=3"));
    }
}

TEST(what_only_resembles_a_service_is_read) {
    static char *const wrong[] = {"QUIRE_PORT=tcp://", "QUIRE_PORT=tcp://10.0.0.11",
                                  "QUIRE_PORT=tcp://:80", "QUIRE_PORT=http://10.0.0.11:80",
                                  "QUIRE_PORT=tcp://10.0.0.11:80/x"};
    struct error err;
    struct options o;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(load(&o, ARGS(), ARGS(wrong[i]), &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "QUIRE_PORT"));
    }
    /* Endpoints are addresses by themselves. */
    assert_int_equal(load(&o, ARGS(), ARGS("QUIRE_KV_EVENTS=tcp://10.0.0.11:5557"), NULL), 0);
    assert_string_equal(o.kv_events, "tcp://10.0.0.11:5557");
    assert_null(o.service_link);
    options_fini(&o);
    /* Services whose names begin alike, and variables of a person. */
    assert_true(service_link_is("QUIRE_API_KEY_SERVICE_HOST=10.0.0.12"));
    assert_true(service_link_is("QUIRE_API_KEY_PORT=tcp://10.0.0.12:80"));
    assert_true(service_link_is("QUIRE_KV_PORT_5557_TCP_ADDR=10.0.0.12"));
    assert_false(service_link_is("QUIRE_PORT=8000"));
    assert_false(service_link_is("QUIRE_PORTS=tcp://10.0.0.12:80"));
    assert_false(service_link_is("QUIRE_PORT_80_TCPS=1"));
    assert_false(service_link_is("QUIRE_SERVED_MODEL_NAME=A_SERVICE_PORT"));
}

int main(int argc, char **argv) {
    config_path = argc > 1 ? argv[1] : "config/quire.json";
    return tests_run("tests", NULL, NULL);
}
