/* options.h - every setting of `quire serve`: one table gives name, kind, bounds, default and help.
 *
 *   flag  >  environment QUIRE_<NAME>  >  --config file  >  default
 *
 * --max-num-seqs is QUIRE_MAX_NUM_SEQS in the environment and "max-num-seqs" in the file.  A member
 * of the file whose name begins with '#' is a comment.  What a kubelet puts into QUIRE_PORT for a
 * Service named quire is ignored (service_links.h).
 *
 * Thread: main, before the server runs; read-only afterwards.  Memory: the options own their
 * strings and objects. */
#ifndef SERVER_SETTINGS_OPTIONS_H
#define SERVER_SETTINGS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "server/settings/api_keys.h"
#include "server/settings/kv_rules.h"
#include "server/settings/option_table.h"

struct error;

/* The values of the settings that choose a word, in the order of their words in the table. */
enum device_choice { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
enum { KV_CACHE_DTYPE_AUTO, KV_CACHE_DTYPE_FIRST }; /* then the page formats, in their order */
enum offload_dtype_choice { OFFLOAD_DTYPE_AUTO, OFFLOAD_DTYPE_FP8 };
enum dtype_choice { PRODUCTS_AUTO, PRODUCTS_F32, PRODUCTS_BF16 };
enum generation_config_choice { GENERATION_CONFIG_AUTO, GENERATION_CONFIG_NONE };
enum load_choice { LOAD_AUTO, LOAD_DUMMY };
enum metrics_key_choice { METRICS_KEY_AUTO, METRICS_KEY_OPEN, METRICS_KEY_REQUIRED };
enum speculation_choices { SPECULATE_OFF, SPECULATE_SUFFIX, SPECULATE_AUTO };
enum activations_choice { ACTIVATIONS_AUTO, ACTIVATIONS_BF16, ACTIVATIONS_FP8 };
enum isa_choice { ISA_AUTO, ISA_PLAIN, ISA_AVX2, ISA_AVX512, ISA_AMX, ISA_NEON };

/* The most arguments that are no options: MODEL, and what a command takes behind it. */
enum { OPTIONS_MAX_WORDS = 2 };

/* Numbers and choices are uint64_t, so the table needs only one parser for each kind of text. */
struct options {
    char *model, *host, *config;           /* NULL: not given */
    char *served_model_name, *model_alias; /* with commas (model_names.h); NULL: not given */
    char *api_key, *api_key_file, *api_keys, *api_keys_file;
    struct api_keys keys; /* from these four: api_keys_resolve() */
    char *ssl_certfile, *ssl_keyfile;
    char *allowed_origins, *allowed_hosts;
    char *kv_policy, *allowed_kv_policies;
    struct kv_rules kv_rules;                             /* parsed from these two */
    char *otlp_endpoint, *otlp_ca_file;                   /* NULL: no traces; the system's store */
    char *kv_events, *kv_events_replay, *kv_events_topic; /* NULL: not given */
    char *kv_disk_path;                                   /* NULL: no tier on disk */
    char *tensor_parallel_devices;
    char *filters_file, *pattern_file, *chat_template;
    char *default_chat_template_kwargs; /* NULL: not given */
    json_t *template_defaults;          /* parsed from that; NULL: none */
    uint64_t port;
    uint64_t max_model_len, max_num_seqs, max_num_batched_tokens, max_num_queued_reqs;
    uint64_t kv_cache_memory, kv_cache_dtype, dtype, threads, device, isa;
    uint64_t tensor_parallel_size, context_parallel_size, data_parallel_size;
    uint64_t activations;      /* enum activations_choice */
    uint64_t moe_offload_size; /* EXPERT_OFFLOAD_AUTO for auto */
    uint64_t kv_offload_size, kv_offload_dtype, kv_disk_size, max_selected;
    uint64_t tokenizer_cache_size;
    uint64_t responses_store_size, responses_store_time;
    uint64_t prefill;           /* enum prefill_mode */
    uint64_t speculation;       /* enum speculation_choices */
    uint64_t generation_config; /* enum generation_config_choice */
    uint64_t min_sparse_tokens, dense_tail, synthetic_lines, max_itl, max_long_tokens;
    uint64_t random_format; /* a row of random_formats */
    uint64_t load_format, log_level, shutdown_timeout, request_timeout, request_deadline,
        step_timeout;
    uint64_t keep_alive_timeout, stall_timeout;
    uint64_t max_body_size, max_buffered_body, max_connections;
    uint64_t metrics_key, log_format;
    double gpu_memory_utilization;
    bool offline; /* nothing is fetched from the hub */
    bool enable_prefix_caching, batch_invariant, ui, require_api_key, strict_fields;
    bool keys_in_arguments; /* --api-key or --api-keys was given as a flag */
    const char *help; /* of --help: "", or what follows it (options_help.h); NULL: not given */
    const char
        *words[OPTIONS_MAX_WORDS]; /* arguments that are no options; NULL: there are no more */
    char usual[200]; /* options of other servers that ask for what quire does anyhow, or "" */
    int feed; /* connections come from there (http/feed.h), and from no host and port; 0: they do
                 not.  It is no setting: `quire run` sets it for a server of its own. */
    /* The environment's "NAME=value" that was ignored: a Service's address.  NULL: there was
     * none. */
    const char *service_link;
};

/* Returns the settings, which fill struct options. */
const struct option_table *options_table(void);

/* The command whose arguments are read. */
struct options_command {
    const char *name;
    size_t most_words;              /* that are no options; the first is MODEL */
    const struct option_table *own; /* its options beside the settings, for hints; NULL: none */
};

/* Loads the settings from all sources.  environment: NULL-terminated "NAME=value" strings, like
 * environ.  On failure nothing is left to free. */
int options_load(struct options *out, const struct options_command *command, int argc, char **argv,
                 char *const *environment, struct error *err);
void options_fini(struct options *options);

#endif
