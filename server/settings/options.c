/* options.c - see options.h. */
#include "server/settings/options.h"

#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/device/collective.h"
#include "engine/device/pages.h"
#include "engine/model/random_weights.h"
#include "server/json/buffer.h"
#include "server/settings/foreign_options.h"
#include "server/settings/foreign_table.h"
#include "server/settings/option_hint.h"
#include "server/settings/options_help.h"
#include "server/settings/service_links.h"
#include "server/settings/template_defaults.h"

static const char *const device_words[] = {"auto", "cpu", "cuda", NULL};
static const char *const auto_words[] = {"auto", NULL};
static const char *const kv_dtype_words[] = {"auto", PAGE_FORMAT_NAMES, NULL};
static const char *const offload_dtype_words[] = {"auto", "fp8", NULL};
static const char *const dtype_words[] = {"auto", "float32", "bfloat16", NULL};
static const char *const generation_words[] = {"auto", "none", NULL};
static const char *const prefill_words[] = {"auto", "dense", "sparse", NULL};
static const char *const speculation_words[] = {"off", "suffix", "auto", NULL};
static const char *const load_words[] = {"auto", "dummy", NULL};
static const char *const random_words[] = {RANDOM_FORMAT_NAMES, NULL};
static const char *const activation_words[] = {"auto", "bf16", "fp8", NULL};
static const char *const isa_words[] = {"auto", "plain", "avx2", "avx512", "amx", "neon", NULL};
static const char *const metrics_key_words[] = {"auto", "open", "required", NULL};
static const char *const format_words[] = {"text", "json", NULL};
static const char *const level_words[] = {"error", "warn", "info", "debug", NULL};

enum { CONFIG_MAX_BYTES = 1 << 20 };

#define AT(member) offsetof(struct options, member)
#define STRING(member, initial, help) OPTION_STRING, AT(member), 0, 0, initial, NULL, help
#define LIST(member, help) OPTION_LIST, AT(member), 0, 0, NULL, NULL, help
#define NUMBER(member, low, high, initial, help)                                                   \
    OPTION_NUMBER, AT(member), low, high, initial, NULL, help
#define TOKENS(member, low, high, initial, help)                                                   \
    OPTION_TOKENS, AT(member), low, high, initial, NULL, help
#define BYTES(member, low, high, initial, help)                                                    \
    OPTION_BYTES, AT(member), low, high, initial, NULL, help
/* The same, or a word for UINT64_MAX. */
#define BYTES_OR_WORD(member, words, initial, help)                                                \
    OPTION_BYTES, AT(member), 0, UINT64_MAX - 1, initial, words, help
#define FRACTION(member, low, high, initial, help)                                                 \
    OPTION_FRACTION, AT(member), low, high, initial, NULL, help
#define CHOICE(member, words, initial, help) OPTION_CHOICE, AT(member), 0, 0, initial, words, help
#define BOOL(member, initial, help) OPTION_BOOL, AT(member), 0, 0, initial, NULL, help

static const struct option entries[] = {
    {"model",
     STRING(model, NULL,
            "model directory, GGUF file, or name of the hub; also the argument of `quire serve` "
            "[the default model]")},
    {"load-format", CHOICE(load_format, load_words, "auto",
                           "dummy: random weights in the shape of config.json, to measure speed")},
    {"random-format", CHOICE(random_format, random_words, "bf16",
                             "format of these weights, with --load-format dummy")},
    {"offline", BOOL(offline, "false",
                     "fetch no model: take one that is named from the hub's cache, or refuse")},
    {"config", STRING(config, NULL, "JSON file with settings; its keys are these names")},
    {"host", STRING(host, "127.0.0.1", "address to listen on")},
    {"port", NUMBER(port, 0, 65535, "8000", "port to listen on; 0: any free one")},
    {"ssl-certfile",
     STRING(ssl_certfile, NULL,
            "PEM file with the certificate and its chain: TLS, with --ssl-keyfile")},
    {"ssl-keyfile", STRING(ssl_keyfile, NULL, "PEM file with the certificate's key")},
    {"served-model-name",
     LIST(served_model_name,
          "names of the model in the API; the first is that of answers [the directory's]")},
    {"model-alias",
     LIST(model_alias, "PATTERN=NAME: other names that requests may give, such as claude-*, and "
                       "the name that is meant")},
    {"api-key",
     STRING(api_key, NULL, "API key that every route but /health, /live and /ready requires")},
    {"api-key-file", STRING(api_key_file, NULL, "file with the API key; excludes --api-key")},
    {"api-keys", STRING(api_keys, NULL,
                        "JSON list of further API keys, each with a name, a weight and a limit of "
                        "tokens")},
    {"api-keys-file", STRING(api_keys_file, NULL, "file with that list; excludes --api-keys")},
    {"require-api-key", BOOL(require_api_key, "false", "refuse to start without an API key")},
    {"allowed-origins",
     STRING(allowed_origins, NULL,
            "origins of web pages that may use the server, separated by commas; *: any [its own]")},
    {"allowed-hosts",
     STRING(allowed_hosts, NULL,
            "names in the header Host that are answered beside localhost and addresses, separated "
            "by commas; *: any [none on a loopback address, elsewhere any]")},
    {"metrics-key", CHOICE(metrics_key, metrics_key_words, "auto",
                           "whether /metrics requires the API key; auto: not on a loopback "
                           "address")},
    {"strict-fields", BOOL(strict_fields, "false",
                           "refuse bodies with fields that no API has; else they are ignored")},
    {"ui", BOOL(ui, "true", "serve the pages at /, /inspect and /docs; --no-ui: they are a 404")},
    {"max-model-len", TOKENS(max_model_len, 0, 1u << 30, "0",
                             "most tokens of prompt and answer together; 0: the model's context")},
    {"max-num-seqs", NUMBER(max_num_seqs, 1, 65536, "256", "most sequences that run at once")},
    {"max-num-batched-tokens",
     TOKENS(max_num_batched_tokens, 1, 1u << 24, "2048", "most tokens of one step")},
    {"max-num-queued-reqs", NUMBER(max_num_queued_reqs, 1, 1u << 20, "1024",
                                   "most sequences that wait; more are answered with 429")},
    {"gpu-memory-utilization",
     FRACTION(gpu_memory_utilization, 10, 100, "0.9",
              "share of the GPU's memory for weights, workspace and KV cache, 0.1 to 1")},
    {"moe-offload-size",
     BYTES_OR_WORD(moe_offload_size, auto_words, "0",
                   "bytes of experts that lie in the machine's memory, with K, M or G: whole "
                   "layers; auto: as many as the GPU has no memory for")},
    {"kv-cache-memory", BYTES(kv_cache_memory, 0, UINT64_MAX, "0",
                              "bytes for the KV cache, with K, M or G; 0: what fits")},
    {"kv-cache-dtype",
     CHOICE(kv_cache_dtype, kv_dtype_words, "auto", "element type of the KV cache")},
    {"kv-policy", STRING(kv_policy, "{\"type\": \"full\"}",
                         "KV policy of requests without a kv_policy, as JSON")},
    {"allowed-kv-policies",
     STRING(allowed_kv_policies, "all",
            "types of kv_policy that requests may name, separated by commas; all: every type")},
    {"kv-offload-size", BYTES(kv_offload_size, 0, UINT64_MAX, "0",
                              "bytes of the host pool, in the machine's memory, for tokens and "
                              "pages moved out of the KV cache, with K, M or G; 0: none")},
    {"kv-offload-dtype",
     CHOICE(kv_offload_dtype, offload_dtype_words, "auto",
            "element type of tokens in the host pool; auto: that of the KV cache")},
    {"kv-disk-path",
     STRING(kv_disk_path, NULL,
            "folder for cached prefixes and states that leave the memory; they survive restarts")},
    {"kv-disk-size", BYTES(kv_disk_size, 1 << 20, UINT64_MAX, "16G",
                           "most bytes of the files in --kv-disk-path, with K, M or G")},
    {"kv-events",
     STRING(kv_events, NULL,
            "ZeroMQ endpoint that publishes which blocks are cached, for routers, such "
            "as tcp://*:5557")},
    {"kv-events-replay",
     STRING(kv_events_replay, NULL, "ZeroMQ endpoint that repeats these events on request")},
    {"kv-events-topic", STRING(kv_events_topic, NULL,
                               "topic of these events [kv@HOST@MODEL, by --host and the name]")},
    {"max-selected", TOKENS(max_selected, 64, KV_POLICY_MAX_TOKENS, "16384",
                            "most tokens that a request with kv_policy offload may select")},
    {"filters-file",
     STRING(filters_file, NULL,
            "JSON file with the filter layers for kv_policy offload [config/filters/MODEL.json]")},
    {"prefill", CHOICE(prefill, prefill_words, "auto",
                       "how prompts are computed; dense: requests for sparse are refused")},
    {"pattern-file",
     STRING(pattern_file, NULL,
            "JSON file with each head's pattern for sparse prefill [config/patterns/MODEL.json]")},
    {"min-sparse-tokens", TOKENS(min_sparse_tokens, 0, 1u << 30, "0",
                                 "shortest prompt that auto computes sparsely, in tokens; 0: the "
                                 "pattern file's value for this backend, else 32768")},
    {"dense-tail",
     TOKENS(dense_tail, 0, 1u << 24, "64", "last tokens of a sparse prompt that visit every key")},
    {"synthetic-lines",
     NUMBER(synthetic_lines, 0, UINT32_MAX, "0",
            "for comparisons: seed of random columns and diagonals; 0: those of the prompt")},
    {"max-long-tokens",
     TOKENS(max_long_tokens, 0, 1u << 30, "0",
            "longest prompt that is computed layer by layer, in tokens; 0: as memory allows")},
    {"max-itl", NUMBER(max_itl, 0, 60000, "0",
                       "longest step in milliseconds while a request generates; 0: any")},
    {"speculation",
     CHOICE(speculation, speculation_words, "auto",
            "guess tokens of requests without a speculation; suffix: from what followed their "
            "text's end before; auto: that on a CPU")},
    {"chat-template",
     STRING(chat_template, NULL,
            "Jinja file for /v1/chat/completions [what the model's directory has]")},
    {"default-chat-template-kwargs",
     STRING(default_chat_template_kwargs, NULL,
            "variables of the chat template that a request does not set, as JSON")},
    {"generation-config",
     CHOICE(generation_config, generation_words, "auto",
            "sampling of what a request does not say; auto: that of the model's "
            "generation_config.json; none: temperature 1 and every other parameter off")},
    {"responses-store-size",
     BYTES(responses_store_size, 0, UINT64_MAX, "64M",
           "most bytes of the machine's memory for responses of /v1/responses that are stored, "
           "with K, M or G; 0: none is")},
    {"responses-store-time",
     NUMBER(responses_store_time, 0, 1u << 30, "86400",
            "seconds since its last use after which a stored response is dropped; 0: never")},
    {"enable-prefix-caching",
     BOOL(enable_prefix_caching, "true", "reuse cached prefixes of prompts")},
    {"tokenizer-cache-size",
     BYTES(tokenizer_cache_size, 0, UINT64_MAX, "64M",
           "most bytes of the machine's memory for texts of earlier requests and their "
           "tokens, with K, M or G; 0: none")},
    {"batch-invariant",
     BOOL(batch_invariant, "false",
          "a request's result has the same bits whatever runs beside it; slower")},
    {"device", CHOICE(device, device_words, "auto", "device that runs the model")},
    {"tensor-parallel-size",
     NUMBER(tensor_parallel_size, 1, RANKS_MAX, "1",
            "ranks that compute the model together, each with a part of its weights and of the KV "
            "cache")},
    {"context-parallel-size",
     NUMBER(context_parallel_size, 1, RANKS_MAX, "1",
            "ranks that compute the model together, each with all weights, a part of each prompt's "
            "rows and a part of the KV cache; not with --tensor-parallel-size")},
    {"tensor-parallel-devices",
     STRING(
         tensor_parallel_devices, NULL,
         "numbers of the ranks' GPUs, with commas, one replica's after the other's; one may come "
         "more than once [0,1,2 ...]")},
    {"data-parallel-size",
     NUMBER(data_parallel_size, 1, RANKS_MAX, "1",
            "replicas behind this port, each with the whole model; a request goes to the one that "
            "has the least to do with it")},
    {"dtype", CHOICE(dtype, dtype_words, "auto", "number type of the CPU's products")},
    {"activations", CHOICE(activations, activation_words, "auto",
                           "number type of a GPU's activations in products with weights of FP8")},
    {"isa", CHOICE(isa, isa_words, "auto", "instruction set of the CPU backend")},
    {"threads", NUMBER(threads, 0, 1024, "0",
                       "threads of the CPU backend; 0: one per usable CPU, within the quota")},
    {"max-connections", NUMBER(max_connections, 1, 1u << 20, "4096", "most connections at once")},
    {"max-body-size", BYTES(max_body_size, 1024, 1ull << 30, "64M",
                            "largest request body, in bytes; a larger one is answered with 413")},
    {"max-buffered-body", BYTES(max_buffered_body, 4096, 1ull << 40, "1G",
                                "most bytes of all request bodies in progress, with K, M or G; "
                                "more are answered with 503")},
    {"request-timeout",
     NUMBER(request_timeout, 1, 86400, "30", "seconds in which a request must arrive")},
    {"keep-alive-timeout",
     NUMBER(keep_alive_timeout, 1, 86400, "120", "seconds that an idle connection stays open")},
    {"stall-timeout",
     NUMBER(stall_timeout, 1, 86400, "30",
            "seconds after which a client that reads nothing of its stream is dropped")},
    {"request-deadline",
     NUMBER(request_deadline, 0, 86400, "0",
            "seconds after which a completion that is not finished ends with 504; 0: never")},
    {"step-timeout",
     NUMBER(step_timeout, 0, 86400, "600",
            "seconds after which a step counts as stuck: /live answers 503; 0: never")},
    {"shutdown-timeout",
     NUMBER(shutdown_timeout, 0, 86400, "30",
            "seconds after SIGTERM within which running requests may finish and the server ends")},
    {"otlp-endpoint",
     STRING(otlp_endpoint, NULL,
            "collector that gets a span of each completion, such as http://localhost:4318")},
    {"otlp-ca-file",
     STRING(otlp_ca_file, NULL,
            "PEM file with the authorities that an https:// collector's certificate must be of "
            "[the system's]")},
    {"log-level", CHOICE(log_level, level_words, "info", "least important level that is logged")},
    {"log-format", CHOICE(log_format, format_words, "text",
                          "how log lines are written; json: an object on each line")},
};

#undef AT
#undef STRING
#undef LIST
#undef NUMBER
#undef BYTES
#undef FRACTION
#undef CHOICE
#undef BOOL

static const struct option_table settings = {entries, sizeof(entries) / sizeof(*entries)};

const struct option_table *options_table(void) {
    return &settings;
}

/* Refuses an argument that is no flag, or a flag with one dash. */
static int refuse_argument(const struct options_command *command, const char *argument,
                           struct error *err) {
    const bool is_flag = argument[0] == '-' && argument[1];
    const size_t n = is_flag ? strcspn(argument + 1, "=") : 0;
    const char *meant = is_flag && command->own ? option_hint(command->own, argument + 1, n) : NULL;
    if (is_flag && !meant) meant = option_hint(&settings, argument + 1, n);
    if (meant)
        return error_set(err, ERR_INVALID, "'%.64s' is not expected here: --%s may be meant",
                         argument, meant);
    return error_set(err, ERR_INVALID, "'%.64s' is not expected here; see `quire %s --help`",
                     argument, command->name);
}

static bool asks_help(const char *argument) {
    return strcmp(argument, "-h") == 0 || strcmp(argument, "--help-all") == 0 ||
           strcmp(argument, "--help") == 0 || strncmp(argument, "--help=", 7) == 0;
}

/* Notes which help is asked for at argv[*i].  The next argument is a group if it is named like
 * one; else it may be MODEL. */
static int choose_help(struct options *options, int argc, char **argv, int *i, struct error *err) {
    const char *flag = argv[*i], *equals = strchr(flag, '=');
    char names[256] = "all";
    options->help = equals ? equals + 1 : strcmp(flag, "--help-all") == 0 ? "all" : "";
    if (!*options->help && *i + 1 < argc && options_help_exists(argv[*i + 1]))
        options->help = argv[++*i];
    if (options_help_exists(options->help)) return 0;
    for (const struct option_group *group = options_groups(); group->name; group++) {
        const size_t n = strlen(names);
        snprintf(names + n, sizeof(names) - n, ", %s", group->name);
    }
    return error_set(err, ERR_INVALID, "--help: '%.64s' is not one of %s", options->help, names);
}

/* Notes an option of another server that asks for what quire does anyhow, for the log. */
static void note_usual(struct options *options, const char *given) {
    const size_t n = strlen(options->usual);
    snprintf(options->usual + n, sizeof(options->usual) - n, "%s%.*s", n ? ", " : "",
             (int)strcspn(given, "="), given);
}

/* Applies an option of another server as ours at argv[*i], or says what quire has in its place. */
static int apply_foreign(struct options *options, const struct foreign_option *foreign, bool *flags,
                         int argc, char **argv, int *i, struct error *err) {
    char flag[64];
    const char *given = argv[*i], *equals = strchr(given, '=');
    if (!foreign->flag && foreign_option_is_usual(argc, argv, i)) {
        note_usual(options, given);
        return 0;
    }
    if (!foreign->flag)
        return error_set(err, ERR_INVALID, "%.*s of %s is no option here: %s",
                         (int)strcspn(given, "="), given, foreign->of, foreign->instead);
    snprintf(flag, sizeof(flag), "--%s", foreign->flag);
    char *words[] = {flag, equals          ? argv[*i] + (equals + 1 - given)
                           : *i + 1 < argc ? argv[*i + 1]
                                           : NULL};
    int at = 0;
    const int rc =
        option_table_apply_flag(&settings, options, flags, words[1] ? 2 : 1, words, &at, err);
    if (!equals) *i += at;
    return rc;
}

/* Notes an argument that is no option, and refuses one beyond what the command takes. */
static int take_word(struct options *options, const struct options_command *command, char *word,
                     struct error *err) {
    size_t n = 0;
    while (n < command->most_words && options->words[n]) n++;
    if (n == command->most_words || n == OPTIONS_MAX_WORDS)
        return refuse_argument(command, word, err);
    options->words[n] = word;
    return n > 0 ? 0
                 : option_set(options, option_find(&settings, "model", 5), word,
                              &(struct option_source){"MODEL", err});
}

/* What has been read of a command's arguments. */
struct arguments {
    char **argv;
    int n;
    const struct options_command *command;
    bool flags[sizeof(entries) / sizeof(*entries)]; /* the lists that a flag has set */
    char *list;               /* the flag of a list whose value was the last argument, or NULL */
    const char *model_before; /* the model without the arguments */
};

/* Takes a word behind the value of a list, where MODEL is known, as one more value: other servers
 * take `--served-model-name a b`. */
static int take_word_or_value(struct options *options, struct arguments *args, char *word,
                              struct error *err) {
    int at = 0;
    if (!args->list || options->model == args->model_before)
        return take_word(options, args->command, word, err);
    return option_table_apply_flag(&settings, options, args->flags, 2, (char *[]){args->list, word},
                                   &at, err);
}

/* Applies the argument at *i, and moves *i to the last one that belongs to it. */
static int apply_argument(struct options *options, struct arguments *args, int *i,
                          struct error *err) {
    char *flag = args->argv[*i], *list = args->list;
    const struct option *option = option_table_find_flag(&settings, flag);
    const struct foreign_option *foreign = option ? NULL : foreign_option_find(flag);
    args->list = NULL;
    if (asks_help(flag)) return choose_help(options, args->n, args->argv, i, err);
    if (foreign) return apply_foreign(options, foreign, args->flags, args->n, args->argv, i, err);
    if (strncmp(flag, "--", 2) == 0 && flag[2]) {
        if (option && option->kind == OPTION_LIST && !strchr(flag, '=')) args->list = flag;
        if (!option)
            return option_table_refuse_flag(&settings, args->command->own, args->command->name,
                                            flag, err);
        return option_table_apply_flag(&settings, options, args->flags, args->n, args->argv, i,
                                       err);
    }
    if (*flag == '-') return refuse_argument(args->command, flag, err);
    args->list = list;
    return take_word_or_value(options, args, flag, err);
}

static int apply_flags(struct options *options, const struct options_command *command, int argc,
                       char **argv, struct error *err) {
    const char *key_before = options->api_key, *keys_before = options->api_keys;
    struct arguments args = {
        .argv = argv, .n = argc, .command = command, .model_before = options->model};
    for (int i = 0; i < argc; i++) {
        const int rc = apply_argument(options, &args, &i, err);
        if (rc) return rc;
    }
    /* Setting a value copies it before the old copy is freed, so a changed pointer means a flag. */
    options->keys_in_arguments = options->api_key != key_before || options->api_keys != keys_before;
    return 0;
}

/* Tells whether a variable of an option was set by a kubelet, for a Service of its name.  Addresses
 * may be meant where the option is a text. */
static bool is_service_link(const struct option *option, const char *value) {
    return option->kind != OPTION_STRING && option->kind != OPTION_LIST &&
           service_link_is_address(value);
}

static int apply_environment(struct options *options, char *const *environment, struct error *err) {
    for (size_t i = 0; i < settings.n; i++) {
        char name[64];
        option_variable(name, sizeof(name), entries[i].name);
        const size_t length = strlen(name);
        for (char *const *at = environment; at && *at; at++) {
            if (strncmp(*at, name, length) != 0 || (*at)[length] != '=') continue;
            const char *value = *at + length + 1;
            if (is_service_link(&entries[i], value)) {
                options->service_link = *at;
                continue;
            }
            const int rc =
                option_set(options, &entries[i], value, &(struct option_source){name, err});
            if (rc) return rc;
        }
    }
    return 0;
}

static const char *const json_types[] = {
    [OPTION_STRING] = "string",          [OPTION_LIST] = "string or list of strings",
    [OPTION_NUMBER] = "number",          [OPTION_TOKENS] = "number or string",
    [OPTION_BYTES] = "number or string", [OPTION_FRACTION] = "number",
    [OPTION_CHOICE] = "string",          [OPTION_BOOL] = "boolean"};

/* Sets a list from an array of strings. */
static int apply_array(struct options *options, const struct option *option, const json_t *array,
                       const struct option_source *from) {
    struct buffer text = {0};
    size_t i;
    json_t *value;
    bool are_strings = json_array_size(array) > 0;
    json_array_foreach(array, i, value) {
        are_strings = are_strings && json_is_string(value);
        if (i > 0) buffer_puts(&text, ",");
        if (are_strings) buffer_puts(&text, json_string_value(value));
    }
    int rc = text.failed ? error_set(from->err, ERR_NOMEM, "no memory for %s", from->label) : 0;
    if (!rc && !are_strings)
        rc = error_set(from->err, ERR_INVALID, "%s must be a %s", from->label,
                       json_types[option->kind]);
    if (!rc) rc = option_set(options, option, text.data, from);
    buffer_fini(&text);
    return rc;
}

/* Applies a member of the file by converting it to the text that a flag would have. */
static int apply_member(struct options *options, const struct option *option, const json_t *value,
                        const struct option_source *from) {
    char number[32];
    if (json_is_string(value)) return option_set(options, option, json_string_value(value), from);
    if (json_is_array(value) && option->kind == OPTION_LIST)
        return apply_array(options, option, value, from);
    if (json_is_integer(value) && (option->kind == OPTION_NUMBER || option->kind == OPTION_TOKENS ||
                                   option->kind == OPTION_BYTES)) {
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return option_set(options, option, number, from);
    }
    if (json_is_number(value) && option->kind == OPTION_FRACTION) {
        snprintf(number, sizeof(number), "%.17g", json_number_value(value));
        return option_set(options, option, number, from);
    }
    if (json_is_boolean(value) && option->kind == OPTION_BOOL) {
        return option_set(options, option, json_is_true(value) ? "true" : "false", from);
    }
    if (json_is_null(value) && !option->initial) return 0;
    return error_set(from->err, ERR_INVALID, "%s must be a %s", from->label,
                     json_types[option->kind]);
}

static int apply_file(struct options *options, const char *path, struct error *err) {
    struct error why = {0};
    json_t *root = NULL;
    int rc = json_guard_read(&root, path, CONFIG_MAX_BYTES, &why);
    if (rc) return error_set(err, rc == ERR_NOMEM ? rc : ERR_INVALID, "--config %.480s", why.text);
    for (void *at = json_object_iter(root); at && !rc; at = json_object_iter_next(root, at)) {
        const char *name = json_object_iter_key(at);
        const struct option *option = option_find(&settings, name, strlen(name));
        char label[400];
        snprintf(label, sizeof(label), "\"%.64s\" in %.300s", name, path);
        if (name[0] == '#') continue;
        const json_t *value = json_object_iter_value(at);
        if (!option) {
            const char *meant = option_hint(&settings, name, strlen(name));
            rc = error_set(
                err, ERR_INVALID,
                meant ? "%s is not an option: \"%s\" may be meant" : "%s is not an option", label,
                meant);
        } else if (strcmp(name, "config") == 0 && !json_is_null(value)) {
            rc = error_set(err, ERR_INVALID, "%s: a settings file cannot name another one", label);
        } else {
            rc = apply_member(options, option, value, &(struct option_source){label, err});
        }
    }
    json_decref(root);
    return rc;
}

/* Takes the brackets off an address of IPv6, which belong to URLs. */
static void unbracket(char *host) {
    const size_t n = strlen(host);
    if (n < 3 || host[0] != '[' || host[n - 1] != ']') return;
    memmove(host, host + 1, n - 2);
    host[n - 2] = '\0';
}

/* Checks settings that depend on another one. */
static int check_together(const struct options *o, struct error *err) {
    static const struct {
        size_t has, needs; /* strings */
        const char *why;
    } pairs[] = {
        {offsetof(struct options, ssl_certfile), offsetof(struct options, ssl_keyfile),
         "--ssl-certfile needs --ssl-keyfile"},
        {offsetof(struct options, ssl_keyfile), offsetof(struct options, ssl_certfile),
         "--ssl-keyfile needs --ssl-certfile"},
        {offsetof(struct options, kv_events_replay), offsetof(struct options, kv_events),
         "--kv-events-replay needs --kv-events"},
        {offsetof(struct options, kv_events_topic), offsetof(struct options, kv_events),
         "--kv-events-topic needs --kv-events"},
        {offsetof(struct options, otlp_ca_file), offsetof(struct options, otlp_endpoint),
         "--otlp-ca-file needs --otlp-endpoint"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        const char *const *has = (const void *)((const char *)o + pairs[i].has);
        const char *const *needs = (const void *)((const char *)o + pairs[i].needs);
        if (*has && !*needs) return error_set(err, ERR_INVALID, "%s", pairs[i].why);
    }
    if (o->random_format != 0 && o->load_format != LOAD_DUMMY)
        return error_set(err, ERR_INVALID, "--random-format needs --load-format dummy");
    if (o->activations == ACTIVATIONS_FP8 && o->batch_invariant)
        return error_set(err, ERR_INVALID,
                         "--activations fp8 excludes --batch-invariant: its products take bf16");
    if (o->max_buffered_body < o->max_body_size)
        return error_set(err, ERR_INVALID,
                         "--max-buffered-body (%llu) must not be less than --max-body-size (%llu)",
                         (unsigned long long)o->max_buffered_body,
                         (unsigned long long)o->max_body_size);
    return 0;
}

/* Loads all sources in order.  The file's name itself comes from a flag or the environment, so
 * those are read first, and again after the file. */
int options_load(struct options *out, const struct options_command *command, int argc, char **argv,
                 char *const *environment, struct error *err) {
    struct options options = {0};
    int rc = option_table_set_defaults(&settings, &options, err);
    if (!rc) rc = apply_environment(&options, environment, err);
    if (!rc) rc = apply_flags(&options, command, argc, argv, err);
    if (!rc && options.config && !options.help) {
        char *path = options.config;
        options.config = NULL;
        options_fini(&options);
        rc = option_table_set_defaults(&settings, &options, err);
        if (!rc) rc = apply_file(&options, path, err);
        if (!rc) rc = apply_environment(&options, environment, err);
        if (!rc) rc = apply_flags(&options, command, argc, argv, err);
        free(path);
    }
    if (!rc) unbracket(options.host);
    if (!rc && !options.help) rc = check_together(&options, err);
    if (!rc)
        rc = kv_rules_read(&options.kv_rules, options.kv_policy, options.allowed_kv_policies, err);
    if (!rc && options.default_chat_template_kwargs)
        rc = template_defaults_read(&options.template_defaults,
                                    options.default_chat_template_kwargs, err);
    if (rc) {
        options_fini(&options);
        return rc;
    }
    *out = options;
    return 0;
}

void options_fini(struct options *options) {
    option_table_free(&settings, options);
    api_keys_fini(&options->keys);
    json_decref(options->template_defaults);
    *options = (struct options){0};
}
