/* options_help.c - see options_help.h. */
#include "server/settings/options_help.h"

#include <string.h>

#include "server/json/buffer.h"
#include "server/settings/option_json.h"
#include "server/settings/option_table.h"
#include "server/settings/options.h"

static const struct option_group groups[] = {
    {"model", "Model", "model", "quire serve ./model.gguf"},
    {"network", "Address and keys", "host",
     "quire serve --host 0.0.0.0 --api-key-file /etc/quire/key"},
    {"sizes", "Sizes and queues", "max-model-len",
     "quire serve --max-model-len 32768 --max-num-seqs 64"},
    {"memory", "Memory and the KV cache", "gpu-memory-utilization",
     "quire serve --kv-cache-memory 20G --kv-cache-dtype fp8"},
    {"policies", "KV policies and offload", "kv-policy",
     "quire serve --kv-policy '{\"type\": \"streaming\", \"recent\": 4096}'"},
    {"prompts", "Prompts and answers", "prefill", "quire serve --prefill sparse --max-itl 200"},
    {"sharing", "Sharing and repeatability", "enable-prefix-caching",
     "quire serve --batch-invariant --tokenizer-cache-size 256M"},
    {"device", "Device", "device", "quire serve --device cpu --threads 8"},
    {"limits", "Connections and limits", "max-connections",
     "quire serve --max-connections 512 --request-deadline 300"},
    {"log", "Traces and log", "otlp-endpoint", "quire serve --log-level debug --log-format json"},
    {0},
};

/* The settings that most people use. */
static const char *const common[] = {"model",           "host",           "port",
                                     "api-key-file",    "max-model-len",  "max-num-seqs",
                                     "kv-cache-memory", "kv-cache-dtype", "kv-policy",
                                     "device"};

const struct option_group *options_groups(void) {
    return groups;
}

const struct option_group *options_group_of(const struct option *option) {
    const struct option_table *table = options_table();
    const struct option_group *group = groups;
    for (const struct option *at = table->entries; at <= option; at++)
        if (group[1].name && strcmp(group[1].first, at->name) == 0) group++;
    return group;
}

bool options_is_common(const struct option *option) {
    for (size_t i = 0; i < sizeof(common) / sizeof(*common); i++)
        if (strcmp(common[i], option->name) == 0) return true;
    return false;
}

bool options_help_exists(const char *name) {
    const struct option_group *group = groups;
    while (group->name && strcmp(group->name, name) != 0) group++;
    return group->name || !*name || strcmp(name, "all") == 0;
}

static void print_sources(FILE *out) {
    fputs("Each option is also read from the environment (--max-num-seqs: QUIRE_MAX_NUM_SEQS) and\n"
          "from the file given by --config (\"max-num-seqs\").  A flag wins over the environment,\n"
          "and the environment over the file.\n",
          out);
}

static void print_first(FILE *out) {
    const struct option_table *table = options_table();
    fputs(
        "Answers the APIs of OpenAI and Anthropic over HTTP, and shows a page at /.\n"
        "\n"
        "  quire serve                               the default model, at http://127.0.0.1:8000\n"
        "  quire serve /path/to/model --port 9000    a model directory or a GGUF file\n"
        "\n",
        out);
    for (size_t i = 0; i < table->n; i++)
        if (options_is_common(&table->entries[i])) option_print(out, &table->entries[i]);
    fputs("\nFurther options, by group; --help GROUP lists one, --help-all lists every option:\n\n",
          out);
    for (const struct option_group *group = groups; group->name; group++)
        fprintf(out, "  %-9s %-27s %s\n", group->name, group->title, group->example);
    fputc('\n', out);
    print_sources(out);
}

static void print_group(FILE *out, const struct option_group *group) {
    const struct option_table *table = options_table();
    fprintf(out, "%s (--help %s), such as\n\n  %s\n\n", group->title, group->name, group->example);
    for (size_t i = 0; i < table->n; i++)
        if (options_group_of(&table->entries[i]) == group) option_print(out, &table->entries[i]);
}

void options_help_print(FILE *out, const char *name) {
    const bool is_all = strcmp(name, "all") == 0;
    fputs("usage: quire serve [MODEL] [options]\n\n", out);
    if (!*name) print_first(out);
    if (is_all) print_sources(out);
    for (const struct option_group *group = groups; group->name; group++) {
        if (is_all) fputc('\n', out);
        if (is_all || strcmp(group->name, name) == 0) print_group(out, group);
    }
}

static void write_names(struct buffer *out, const struct option_group *group) {
    const struct option_table *table = options_table();
    const char *comma = "";
    for (size_t i = 0; i < table->n; i++) {
        const struct option *option = &table->entries[i];
        if (options_group_of(option) != group) continue;
        buffer_puts(out, comma);
        buffer_json_string(out, option->name, strlen(option->name));
        comma = ",";
    }
}

void options_help_json(struct buffer *out) {
    for (const struct option_group *group = groups; group->name; group++) {
        buffer_puts(out, group == groups ? "[\n{" : ",\n{");
        option_json_member(out, "name", group->name);
        buffer_puts(out, ",");
        option_json_member(out, "title", group->title);
        buffer_puts(out, ",");
        option_json_member(out, "example", group->example);
        buffer_puts(out, ",\"options\":[");
        write_names(out, group);
        buffer_puts(out, "]}");
    }
    buffer_puts(out, "]");
}
