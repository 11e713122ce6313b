/* info_command.c - see info_command.h. */
#include "server/info_command.h"

#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/expert_memory.h"
#include "engine/memory_plan.h"
#include "engine/model/expert_offload.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/json/buffer.h"
#include "server/model_summary.h"
#include "server/settings/chat_template.h"
#include "server/settings/engine_setup.h"
#include "server/settings/model_file.h"
#include "server/settings/options.h"

/* What is printed. */
struct info {
    const char *dir, *path; /* path: its place, as it is printed */
    char name[PATH_MAX];
    struct backend *backend;
    struct model *model; /* measured */
    struct tokenizer *tokenizer;
    struct chat_template chat;
    const char *kv_format;
    uint32_t context;                  /* tokens */
    uint64_t kv_token_bytes, kv_bytes; /* of a token in all layers, and of the context */
};

static const struct option entries[] = {
    {"json", OPTION_BOOL, offsetof(struct info_plan, json), 0, 0, "false", NULL,
     "one JSON object in place of lines"},
};
static const struct option_table flags = {entries, sizeof(entries) / sizeof(*entries)};

const struct option_table *info_options(void) {
    return &flags;
}

int info_plan_read(struct info_plan *plan, int *argc, char **argv, struct error *err) {
    *plan = (struct info_plan){0};
    return option_table_take(&flags, plan, argc, argv, err);
}

void info_print_help(void) {
    puts("usage: quire info [MODEL] [options of `quire serve`] [options below]\n"
         "\n"
         "Prints architecture, formats of the weights, their size on disk and in memory, context\n"
         "length, the KV cache of a context, end tokens and chat template.  Weights are checked\n"
         "but not loaded.  What --device, --max-model-len and --kv-cache-dtype say is counted.\n"
         "Of a model of the hub that is not here, the small files and the first bytes of the\n"
         "weights are fetched, and no more.\n");
    option_table_print(stdout, &flags);
}

/* Sets the context, and the bytes of its KV cache if all of it is kept. */
static int plan_kv(struct info *info, const struct options *options, struct error *err) {
    static const char *const names[] = {PAGE_FORMAT_NAMES};
    const struct model_config *model = &info->model->config;
    struct engine_config config = engine_setup_config(options, info->dir, info->backend);
    config.bounded_caches = kv_rules_allow(&options->kv_rules, KV_BOUNDED);
    const struct kv_pool pool = memory_plan_pages(&config, model);
    struct longest_text text = {.n_layers = model->n_attention,
                                .n_windowed = memory_plan_n_windowed(&config, model),
                                .n_tokens = config.max_model_len,
                                .window = model->window,
                                .step_rows = config.max_batched_tokens};
    if (text.n_tokens > model->max_position)
        return error_set(err, ERR_INVALID,
                         "--max-model-len is %" PRIu32 ", but the model's context is %" PRIu32
                         ": its config.json may make that longer by rope_scaling",
                         text.n_tokens, model->max_position);
    if (text.n_tokens == 0) text.n_tokens = model->max_position;
    info->kv_format = names[config.kv_format];
    info->context = text.n_tokens;
    info->kv_token_bytes = (uint64_t)pool.page_bytes * model->n_attention / PAGE_TOKENS;
    info->kv_bytes = memory_plan_text_pages(&text) * pool.page_bytes;
    return 0;
}

static uint64_t choose_offload(const void *config, const struct model *model,
                               uint64_t layer_bytes) {
    return expert_memory_choose(config, model, layer_bytes);
}

/* Gives the chat template the place that is printed. */
static int place_template(struct info *info, struct error *err) {
    const char *source = info->chat.source;
    const size_t n = strlen(info->dir);
    struct buffer placed = {0};
    if (!source || strncmp(source, info->dir, n) != 0) return 0;
    buffer_printf(&placed, "%s%s", info->path, source + n);
    if (placed.failed) {
        buffer_fini(&placed);
        return error_set(err, ERR_NOMEM, "no memory for the name of the chat template");
    }
    free(info->chat.source);
    info->chat.source = placed.data;
    return 0;
}

static int gather(struct info *info, const struct options *options, struct error *err) {
    const struct engine_config config = engine_setup_config(options, info->dir, info->backend);
    const bool offloads = expert_offload_is_possible(info->backend);
    const struct model_source source = {.random = config.random_weights,
                                        .random_format = config.random_format,
                                        .unpacks_exactly = config.unpacks_exactly,
                                        .offload_bytes = offloads ? config.expert_offload_bytes : 0,
                                        .choose_offload = choose_offload,
                                        .check_ctx = &config,
                                        .context = (uint32_t)options->max_model_len};
    uint32_t end;
    model_name_write(info->name, info->path);
    int rc = model_measure(&info->model, info->dir, &source, info->backend, err);
    if (!rc) rc = tokenizer_load(&info->tokenizer, info->dir, err);
    if (!rc && tokenizer_named(info->tokenizer, TOKEN_END, &end))
        rc = model_add_end(&info->model->config, end, err);
    if (!rc) rc = chat_template_load(&info->chat, options->chat_template, info->dir, err);
    if (!rc) rc = place_template(info, err);
    return rc ? rc : plan_kv(info, options, err);
}

/* ---- lines ---- */

static void write_size(struct buffer *out, uint64_t bytes) {
    const double mib = 1 << 20;
    if (bytes < 1 << 30) buffer_printf(out, "%.1f MiB", (double)bytes / mib);
    else buffer_printf(out, "%.2f GiB", (double)bytes / mib / 1024);
}

static void write_count(struct buffer *out, uint64_t n) {
    if (n < 1000000000) buffer_printf(out, "%.1f million", (double)n / 1e6);
    else buffer_printf(out, "%.2f billion", (double)n / 1e9);
}

static void write_shape(struct buffer *out, const struct info *info) {
    const struct model_config *model = &info->model->config;
    buffer_printf(out,
                  "%s, %" PRIu32 " layers of width %" PRIu32 ", %" PRIu32 " heads, %" PRIu32
                  " of keys and values, of %" PRIu32 " elements",
                  model->architecture, model->n_layers, model->dim, model->n_heads,
                  model->n_kv_heads, model->head_dim);
    const struct experts_shape experts = feed_forward_experts(model, 1);
    if (experts.n_experts > 0)
        buffer_printf(out, ", %" PRIu32 " experts, of which a token uses %" PRIu32,
                      experts.n_experts, experts.n_used);
}

static void write_parameters(struct buffer *out, const struct info *info) {
    write_count(out, info->model->tally.n_elements);
}

static void write_weights(struct buffer *out, const struct info *info) {
    model_summary_weights(out, &info->model->config, &info->model->tally, true);
}

static void write_disk(struct buffer *out, const struct info *info) {
    if (info->model->random) buffer_puts(out, "not read: --load-format dummy");
    else write_size(out, info->model->tally.file_bytes);
}

static void write_memory(struct buffer *out, const struct info *info) {
    write_size(out, info->model->tally.bytes);
    buffer_printf(out, " on %s", info->backend->name);
    if (info->model->offload.n_layers == 0) return;
    buffer_puts(out, ", of which ");
    write_size(out, info->model->offload.bytes);
    buffer_printf(out, " in the machine's memory: the experts of %" PRIu32 " layers",
                  info->model->offload.n_layers);
}

static void write_context(struct buffer *out, const struct info *info) {
    const uint32_t trained = info->model->config.max_position;
    buffer_printf(out, "%" PRIu32 " tokens", info->context);
    if (info->context != trained) buffer_printf(out, " of the model's %" PRIu32, trained);
}

static void write_kv(struct buffer *out, const struct info *info) {
    buffer_printf(out, "%s, %" PRIu64 " bytes for each token, ", info->kv_format,
                  info->kv_token_bytes);
    write_size(out, info->kv_bytes);
    buffer_puts(out, " for the context");
}

static void write_ends(struct buffer *out, const struct info *info) {
    model_summary_ends(out, &info->model->config, info->tokenizer);
}

static void write_begin(struct buffer *out, const struct info *info) {
    model_summary_begin(out, &info->model->config, info->tokenizer);
}

static void write_template(struct buffer *out, const struct info *info) {
    model_summary_template(out, &info->chat);
}

static void write_lines(struct buffer *out, const struct info *info) {
    static const struct {
        const char *title;
        void (*write)(struct buffer *out, const struct info *info);
    } lines[] = {{"architecture", write_shape}, {"parameters", write_parameters},
                 {"weights", write_weights},    {"on disk", write_disk},
                 {"in memory", write_memory},   {"context", write_context},
                 {"KV cache", write_kv},        {"end tokens", write_ends},
                 {"begin token", write_begin},  {"chat template", write_template}};
    buffer_printf(out, "%-15s%s\n%-15s%s\n", "model", info->name, "files", info->path);
    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
        struct buffer value = {0};
        lines[i].write(&value, info);
        out->failed |= value.failed;
        if (!value.failed) buffer_printf(out, "%-15s%s\n", lines[i].title, value.data);
        buffer_fini(&value);
    }
}

/* ---- JSON ---- */

static json_t *formats_json(const struct weight_shares *shares) {
    json_t *formats = json_array();
    for (uint32_t i = 0; i < shares->n; i++) {
        char text[WEIGHT_FORMAT_TEXT];
        weight_format_text(&shares->formats[i].format, text);
        json_array_append_new(formats, json_pack("{s:s, s:I}", "format", text, "bytes",
                                                 (json_int_t)shares->formats[i].bytes));
    }
    return formats;
}

static json_t *ends_json(const struct model_config *model) {
    json_t *ends = json_array();
    for (uint32_t i = 0; i < model->n_eos; i++)
        json_array_append_new(ends, json_integer(model->eos[i]));
    return ends;
}

/* Returns NULL if there is no memory. */
static json_t *weights_json(const struct info *info) {
    const struct weight_tally *tally = &info->model->tally;
    const struct quantisation *how = &info->model->config.quantisation;
    return json_pack("{s:I, s:o, s:s?, s:I, s:I, s:o, s:I, s:I, s:I}", "parameters",
                     (json_int_t)tally->n_elements, "formats", formats_json(&tally->files),
                     "quant_method", *how->method ? how->method : NULL, "file_bytes",
                     (json_int_t)(info->model->random ? 0 : tally->file_bytes), "memory_bytes",
                     (json_int_t)tally->bytes, "packed_in_memory", formats_json(&tally->loaded),
                     "unpacked_bytes", (json_int_t)tally->unpacked_bytes, "repacked_bytes",
                     (json_int_t)tally->repacked_bytes, "offloaded_bytes",
                     (json_int_t)info->model->offload.bytes);
}

static json_t *shape_json(const struct model_config *model) {
    const struct experts_shape experts = feed_forward_experts(model, 1);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "layers",
                     (json_int_t)model->n_layers, "width", (json_int_t)model->dim, "heads",
                     (json_int_t)model->n_heads, "kv_heads", (json_int_t)model->n_kv_heads,
                     "head_dim", (json_int_t)model->head_dim, "vocabulary",
                     (json_int_t)model->n_vocab, "experts", (json_int_t)experts.n_experts,
                     "experts_used", (json_int_t)experts.n_used);
}

static json_t *kv_json(const struct info *info) {
    return json_pack("{s:s, s:I, s:I}", "dtype", info->kv_format, "token_bytes",
                     (json_int_t)info->kv_token_bytes, "context_bytes", (json_int_t)info->kv_bytes);
}

static void write_json(struct buffer *out, const struct info *info) {
    const struct model_config *model = &info->model->config;
    json_t *all = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:o, s:o, s:s?}", "model", info->name, "files",
        info->path, "architecture", model->architecture, "device", info->backend->name, "shape",
        shape_json(model), "weights", weights_json(info), "context", (json_int_t)info->context,
        "trained_context", (json_int_t)model->max_position, "kv_cache", kv_json(info), "end_tokens",
        ends_json(model), "chat_template", info->chat.source);
    if (all) buffer_json_value(out, all);
    else out->failed = true;
    buffer_puts(out, "\n");
    json_decref(all);
}

int info_command(const struct info_plan *plan, const struct options *options, const char *model_dir,
                 const char *path, struct backend *backend, FILE *out, struct error *err) {
    struct info info = {.dir = model_dir, .path = path, .backend = backend};
    struct buffer text = {0};
    int rc = gather(&info, options, err);
    if (!rc) (plan->json ? write_json : write_lines)(&text, &info);
    if (text.failed) rc = error_set(err, ERR_NOMEM, "no memory for what is printed");
    else if (!rc) fputs(text.data, out);
    buffer_fini(&text);
    chat_template_fini(&info.chat);
    tokenizer_destroy(info.tokenizer);
    model_destroy(info.model, backend);
    return rc;
}
