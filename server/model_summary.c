/* model_summary.c - see model_summary.h. */
#include "server/model_summary.h"

#include <inttypes.h>
#include <jansson.h>

#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/conversation/tool_formats.h"
#include "server/json/buffer.h"
#include "server/model_load.h"
#include "server/settings/log.h"
#include "server/settings/options.h"

/* Writes a token's id and text. */
static void write_token(struct buffer *out, const struct tokenizer *tokenizer, uint32_t id) {
    size_t n = 0;
    const char *text = tokenizer_token_bytes(tokenizer, id, &n);
    buffer_printf(out, "%" PRIu32, id);
    if (!text) return;
    buffer_puts(out, " ");
    buffer_json_string(out, text, n);
}

void model_summary_ends(struct buffer *out, const struct model_config *model,
                        const struct tokenizer *tokenizer) {
    if (model->n_eos == 0) buffer_puts(out, "none");
    for (uint32_t i = 0; i < model->n_eos; i++) {
        if (i > 0) buffer_puts(out, ", ");
        write_token(out, tokenizer, model->eos[i]);
    }
}

void model_summary_begin(struct buffer *out, const struct model_config *model,
                         const struct tokenizer *tokenizer) {
    const struct token_list *prefix = tokenizer_prefix(tokenizer);
    uint32_t id = model->bos;
    const bool has_name = tokenizer_named(tokenizer, TOKEN_BEGIN, &id);
    if (prefix->n > 0) {
        write_token(out, tokenizer, prefix->ids[0]);
        buffer_puts(out, ", put in front of texts");
    } else if (has_name || model->has_bos) {
        write_token(out, tokenizer, has_name ? id : model->bos);
        buffer_puts(out, ", not put in front of texts");
    } else {
        buffer_puts(out, "none");
    }
}

static void write_sampling(struct buffer *out, const struct model_load *load) {
    const struct generation *generation = &load->generation;
    const bool reads = load->options->generation_config == GENERATION_CONFIG_AUTO;
    if (*generation->taken)
        buffer_printf(out, "; sampling %s (%s)", generation->taken, generation->source);
    else
        buffer_printf(out, "; sampling: quire's defaults%s",
                      reads ? "" : ", as --generation-config none says");
}

void model_summary_template(struct buffer *out, const struct chat_template *chat) {
    buffer_puts(out, chat->source ? chat->source : "none: /v1/chat/completions is refused");
    if (chat->plain && chat->with_tools) buffer_puts(out, ", with one of its own for tools");
    else if (chat->with_tools) buffer_puts(out, ", for requests with tools only");
    const struct tool_format *calls = chat->tool_text ? tool_format_of(chat->tool_text) : NULL;
    if (calls) buffer_printf(out, "; tool calls as %s", calls->name);
    if (calls && chat->drops_tools)
        buffer_puts(out, ", but it shows no tools: messages must describe them");
}

/* Begins the next part of a list. */
static void part(struct buffer *out) {
    if (out->length > 0) buffer_puts(out, "; ");
}

/* Writes what the files say and is not used; nothing where there is nothing. */
static void write_unused(struct buffer *out, const struct model_load *load,
                         const struct engine_info *info) {
    const struct chat_template *chat = &load->chat;
    const json_t *end = json_object_get(chat->own, "eos_token");
    uint32_t id;
    size_t i;
    json_t *name;
    if (*load->generation.unused)
        buffer_printf(out, "%s of generation_config.json", load->generation.unused);
    json_array_foreach(chat->unused, i, name) {
        part(out);
        buffer_printf(out, "the chat template %.60s", json_string_value(name));
    }
    if (chat->has_processors) {
        part(out);
        buffer_puts(out, "chat_template.json, which is a processor's");
    }
    if (end && !tokenizer_named(info->tokenizer, TOKEN_END, &id)) {
        part(out);
        buffer_puts(out, "eos_token ");
        buffer_json_string(out, json_string_value(end), json_string_length(end));
        buffer_puts(out, ", which the vocabulary lacks");
    }
}

/* Writes the formats of weights, and their shares. */
static void write_formats(struct buffer *out, const struct weight_tally *tally, bool has_plain) {
    char text[WEIGHT_FORMAT_TEXT];
    for (uint32_t i = 0; i < tally->files.n; i++) {
        if (!has_plain && weight_is_plain(&tally->files.formats[i].format)) continue;
        part(out);
        weight_format_text(&tally->files.formats[i].format, text);
        buffer_printf(out, "%s in %.1f %%", text,
                      100 * (double)tally->files.formats[i].bytes / (double)tally->file_bytes);
    }
}

/* Writes which formats stay packed in memory. */
static void write_loaded(struct buffer *out, const struct weight_shares *loaded) {
    char text[WEIGHT_FORMAT_TEXT];
    for (uint32_t i = 0; i < loaded->n; i++) {
        weight_format_text(&loaded->formats[i].format, text);
        buffer_printf(out, "%s %s, %.2f GiB", i ? "," : "; in memory", text,
                      (double)loaded->formats[i].bytes / (1 << 30));
    }
}

/* Writes whether products of quantised weights round activations. */
static void write_activations(struct buffer *out, const struct quantisation *how,
                              const struct weight_tally *tally) {
    const bool is_declared = how->activations == ACTIVATIONS_E4M3;
    if (tally->rounding_bytes > 0)
        buffer_printf(
            out, "; activations in E4M3 from %" PRIu32 " row%s on for %.1f %% of the weights, %s",
            tally->rounds_from, tally->rounds_from == 1 ? "" : "s",
            100 * (double)tally->rounding_bytes / (double)tally->file_bytes,
            is_declared ? "as the checkpoint declares" : "as --activations fp8 says");
    else if (how->activations != ACTIVATIONS_PLAIN && tally->repacked_bytes == 0)
        buffer_puts(out, "; activations are not quantised");
}

/* Writes what becomes of formats that are not plain. */
static void write_packed(struct buffer *out, const struct quantisation *how,
                         const struct weight_tally *tally) {
    const double gib = 1 << 30;
    char text[WEIGHT_FORMAT_TEXT];
    buffer_printf(out, " of %.2f GiB", (double)tally->file_bytes / gib);
    if (*how->method) buffer_printf(out, " (%s)", how->method);
    write_activations(out, how, tally);
    if (tally->repacked_bytes > 0)
        buffer_printf(out, "; multiplied by int8 activations: %.2f GiB in memory",
                      (double)tally->repacked_bytes / gib);
    write_loaded(out, &tally->loaded);
    if (tally->unpacked_bytes == 0) return;
    for (uint32_t i = 0; i < tally->unpacked.n; i++) {
        weight_format_text(&tally->unpacked.formats[i].format, text);
        buffer_printf(out, "%s%s", i ? " and " : "; unpacked to ", text);
    }
    buffer_printf(out, " in memory: %.2f GiB instead of %.2f", (double)tally->unpacked_bytes / gib,
                  (double)tally->packed_bytes / gib);
}

void model_summary_weights(struct buffer *out, const struct model_config *model,
                           const struct weight_tally *tally, bool has_plain) {
    const struct quantisation *how = &model->quantisation;
    write_formats(out, tally, has_plain);
    if (*how->method && !tally->has_packed) {
        part(out);
        buffer_printf(out, "config.json names %s, but all are plain", how->method);
    }
    if (tally->has_packed) write_packed(out, how, tally);
    if (!tally->has_kv_scales) return;
    part(out);
    buffer_puts(out, "its scales for a KV cache are not needed: fp8 pages have their own");
}

static void log_line(const char *what, struct buffer *line) {
    if (line->length > 0) log_event(LOG_INFO, "%s: %.*s", what, (int)line->length, line->data);
    buffer_fini(line);
}

void model_summary_log(const struct model_load *load, const struct engine_info *info) {
    struct buffer taken = {0}, unused = {0}, weights = {0};
    buffer_puts(&taken, info->model->n_eos > 1 ? "end tokens " : "end token ");
    model_summary_ends(&taken, info->model, info->tokenizer);
    buffer_puts(&taken, "; begin token ");
    model_summary_begin(&taken, info->model, info->tokenizer);
    write_sampling(&taken, load);
    buffer_puts(&taken, "; chat template: ");
    model_summary_template(&taken, &load->chat);
    write_unused(&unused, load, info);
    model_summary_weights(&weights, info->model, info->weights, false);
    log_line("quantised weights", &weights);
    log_line("the model's files say", &taken);
    log_line("the model's files also say, and it is not used", &unused);
}
