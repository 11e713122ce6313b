/* chat_template.c - see chat_template.h. */
#include "server/settings/chat_template.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_guard.h"
#include "engine/template/template.h"

enum { LARGEST_TEMPLATE = 1 << 20, LARGEST_CONFIG = 64 << 20 };

static const char config_name[] = "tokenizer_config.json", jinja_name[] = "chat_template.jinja";

static int no_memory(struct error *err) {
    return error_set(err, ERR_NOMEM, "no memory for the chat template");
}

static int compile(struct template **out, const char *source, size_t n, const char *label,
                   struct error *err) {
    struct error why = {0};
    const int rc = template_compile(out, source, n, NULL, &why);
    return rc ? error_set(err, rc, "%.200s: the chat template: %.280s", label, why.text) : 0;
}

/* Keeps the text of the template that writes tools. */
static int keep_text(struct chat_template *chat, const char *source, struct error *err) {
    free(chat->tool_text);
    chat->tool_text = strdup(source);
    return chat->tool_text ? 0 : no_memory(err);
}

static bool mentions(const char *source, const char *word) {
    return strstr(source, word) != NULL;
}

/* Takes the template that answers most requests. */
static int take(struct chat_template *chat, const char *source, size_t n, const char *label,
                struct error *err) {
    const int rc = compile(&chat->plain, source, n, label, err);
    if (rc) return rc;
    chat->names_developer = mentions(source, "developer");
    chat->marks_reasoning = mentions(source, "</think>");
    chat->source = strdup(label);
    if (!chat->source) return no_memory(err);
    return chat->tool_text ? 0 : keep_text(chat, source, err);
}

static int take_string(struct chat_template *chat, const json_t *source, const char *label,
                       struct error *err) {
    return take(chat, json_string_value(source), json_string_length(source), label, err);
}

/* Takes templates of a list of {"name", "template"}. */
static int take_named(struct chat_template *chat, const json_t *list, const char *label,
                      struct error *err) {
    size_t i;
    json_t *entry;
    int rc = 0;
    json_array_foreach(list, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *source = json_object_get(entry, "template");
        if (!name || !json_is_string(source))
            return error_set(err, ERR_INVALID,
                             "%.300s: chat_template[%zu] needs the strings 'name' and 'template'",
                             label, i);
        if (strcmp(name, "default") == 0 && !chat->plain) {
            rc = take_string(chat, source, label, err);
        } else if (strcmp(name, "tool_use") == 0 && !chat->with_tools) {
            rc = compile(&chat->with_tools, json_string_value(source), json_string_length(source),
                         label, err);
            if (!rc) rc = keep_text(chat, json_string_value(source), err);
        }
        if (rc) return rc;
    }
    if (chat->plain) return 0;
    return error_set(err, ERR_INVALID, "%.300s: chat_template has none that is named 'default'",
                     label);
}

/* Takes a special token: a string, or an object with its content. */
static int take_token(struct chat_template *chat, const char *name, json_t *value) {
    json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
    return json_is_string(text) ? json_object_set(chat->own, name, text) : 0;
}

static int take_tokens(struct chat_template *chat, const json_t *config, struct error *err) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (take_token(chat, names[i], json_object_get(config, names[i]))) return no_memory(err);
    return 0;
}

static int take_file(struct chat_template *chat, const char *path, struct error *err) {
    char *source = NULL;
    size_t n = 0;
    int rc = file_read(&source, &n, path, LARGEST_TEMPLATE, err);
    if (rc) return rc;
    rc = take(chat, source, n, path, err);
    free(source);
    return rc;
}

/* Takes the model's own file if it has one. */
static int take_models_file(struct chat_template *chat, const char *model_dir, struct error *err) {
    char path[PATH_MAX];
    struct error why = {0};
    if (snprintf(path, sizeof(path), "%s/%s", model_dir, jinja_name) >= (int)sizeof(path)) return 0;
    const int rc = take_file(chat, path, &why);
    if (rc && rc != ERR_NOT_FOUND) *err = why;
    return rc == ERR_NOT_FOUND ? 0 : rc;
}

/* Takes what tokenizer_config.json has, and without has_template the template, too. */
static int take_config(struct chat_template *chat, const char *model_dir, bool has_template,
                       struct error *err) {
    char path[PATH_MAX];
    json_t *config = NULL;
    if (snprintf(path, sizeof(path), "%s/%s", model_dir, config_name) >= (int)sizeof(path))
        return error_set(err, ERR_INVALID, "the model's path is too long");
    struct error why = {0};
    int rc = json_guard_read(&config, path, LARGEST_CONFIG, &why);
    if (rc == ERR_NOT_FOUND) return 0;
    if (rc) {
        *err = why;
        return rc;
    }
    const json_t *source = json_object_get(config, "chat_template");
    rc = take_tokens(chat, config, err);
    if (!rc && !has_template && json_is_string(source)) {
        rc = take_string(chat, source, path, err);
    } else if (!rc && !has_template && json_is_array(source)) {
        rc = take_named(chat, source, path, err);
    } else if (!rc && !has_template && source && !json_is_null(source)) {
        rc = error_set(err, ERR_INVALID, "%.300s: chat_template must be a string or a list", path);
    }
    json_decref(config);
    return rc;
}

int chat_template_load(struct chat_template *chat, const char *file, const char *model_dir,
                       struct error *err) {
    chat->own = json_object();
    if (!chat->own) return no_memory(err);
    const int rc = file ? take_file(chat, file, err) : take_models_file(chat, model_dir, err);
    return rc ? rc : take_config(chat, model_dir, chat->plain, err);
}

void chat_template_fini(struct chat_template *chat) {
    template_destroy(chat->plain);
    template_destroy(chat->with_tools);
    json_decref(chat->own);
    free(chat->source);
    free(chat->tool_text);
    *chat = (struct chat_template){0};
}
