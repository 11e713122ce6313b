/* chat_template.c - see chat_template.h. */
#include "server/settings/chat_template.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/gguf/model_document.h"
#include "engine/request/channels.h"
#include "engine/template/template.h"
#include "engine/tokenizer/token_names.h"
#include "server/settings/template_probe.h"

enum { LARGEST_TEMPLATE = 1 << 20, LARGEST_CONFIG = 2 << 20, MOST_TEMPLATES = 64 };

static const char config_name[] = "tokenizer_config.json", jinja_name[] = "chat_template.jinja",
                  folder_name[] = "additional_chat_templates",
                  processors_name[] = "chat_template.json";

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

/* Tells how the model marks its thoughts, if the template shows that. */
static bool find_thoughts(const char *source, enum thought_form *form) {
    static const struct {
        const char *sign;
        enum thought_form form;
    } signs[] = {{"<|channel|>" CHANNEL_THOUGHTS, THOUGHT_CHANNELS},
                 {"</think>", THOUGHT_TAGS},
                 {"<|END_THINKING|>", THOUGHT_COHERE_TAGS},
                 {"</seed:think>", THOUGHT_SEED_TAGS},
                 {"<channel|>", THOUGHT_GEMMA_TAGS}};
    for (size_t i = 0; i < sizeof(signs) / sizeof(*signs); i++) {
        if (!mentions(source, signs[i].sign)) continue;
        *form = signs[i].form;
        return true;
    }
    return false;
}

/* Notes what a template's text tells of its model.  It is that of requests without tools, unless
 * there is none for them. */
static int describe(struct chat_template *chat, const char *source, const char *label,
                    struct error *err) {
    chat->names_developer = mentions(source, "developer");
    chat->marks_reasoning = find_thoughts(source, &chat->thoughts);
    free(chat->source);
    chat->source = strdup(label);
    return chat->source ? 0 : no_memory(err);
}

/* Takes the template that answers most requests. */
static int take(struct chat_template *chat, const char *source, size_t n, const char *label,
                struct error *err) {
    template_destroy(chat->plain);
    chat->plain = NULL;
    int rc = compile(&chat->plain, source, n, label, err);
    if (!rc) rc = describe(chat, source, label, err);
    return rc || chat->with_tools ? rc : keep_text(chat, source, err);
}

/* Takes the template of requests with tools. */
static int take_with_tools(struct chat_template *chat, const char *source, size_t n,
                           const char *label, struct error *err) {
    template_destroy(chat->with_tools);
    chat->with_tools = NULL;
    int rc = compile(&chat->with_tools, source, n, label, err);
    if (!rc && !chat->plain) rc = describe(chat, source, label, err);
    return rc ? rc : keep_text(chat, source, err);
}

/* Takes a template by its name.  The last one of a name counts; others than these two are named in
 * the log. */
static int take_named(struct chat_template *chat, const char *name, const json_t *source,
                      const char *label, struct error *err) {
    const char *text = json_string_value(source);
    const size_t n = json_string_length(source);
    if (strcmp(name, "default") == 0) return take(chat, text, n, label, err);
    if (strcmp(name, "tool_use") == 0) return take_with_tools(chat, text, n, label, err);
    return json_array_append_new(chat->unused, json_string_nocheck(name)) ? no_memory(err) : 0;
}

/* Takes templates of a list of {"name", "template"}. */
static int take_list(struct chat_template *chat, const json_t *list, const char *label,
                     struct error *err) {
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *source = json_object_get(entry, "template");
        if (!name || !json_is_string(source))
            return error_set(err, ERR_INVALID,
                             "%.300s: chat_template[%zu] needs the strings 'name' and 'template'",
                             label, i);
        const int rc = take_named(chat, name, source, label, err);
        if (rc) return rc;
    }
    return 0;
}

/* Takes templates of an object: name -> template. */
static int take_object(struct chat_template *chat, json_t *object, const char *label,
                       struct error *err) {
    const char *name;
    json_t *source;
    json_object_foreach(object, name, source) {
        if (!json_is_string(source))
            return error_set(err, ERR_INVALID, "%.300s: chat_template.%.60s must be a string",
                             label, name);
        const int rc = take_named(chat, name, source, label, err);
        if (rc) return rc;
    }
    return 0;
}

static int take_file(struct chat_template *chat, const char *name, const char *path,
                     struct error *err) {
    char *source = NULL;
    size_t n = 0;
    int rc = file_read(&source, &n, path, LARGEST_TEMPLATE, err);
    if (rc) return rc;
    json_t *text = json_stringn_nocheck(source, n);
    rc = text ? take_named(chat, name, text, path, err) : no_memory(err);
    json_decref(text);
    free(source);
    return rc;
}

/* Takes the model's own file if it has one. */
static int take_models_file(struct chat_template *chat, const char *model_dir, struct error *err) {
    char path[PATH_MAX];
    struct error why = {0};
    if (snprintf(path, sizeof(path), "%s/%s", model_dir, jinja_name) >= (int)sizeof(path)) return 0;
    const int rc = take_file(chat, "default", path, &why);
    if (rc && rc != ERR_NOT_FOUND) *err = why;
    return rc == ERR_NOT_FOUND ? 0 : rc;
}

/* Takes a file of the folder if it is a template: NAME.jinja. */
static int take_entry(struct chat_template *chat, const char *folder, const char *file,
                      struct error *err) {
    static const char end[] = ".jinja";
    char path[PATH_MAX], name[NAME_MAX + 1];
    const size_t n = strlen(file), n_end = sizeof(end) - 1;
    if (n <= n_end || strcmp(file + n - n_end, end) != 0) return 0;
    snprintf(name, sizeof(name), "%.*s", (int)(n - n_end), file);
    if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= (int)sizeof(path))
        return error_set(err, ERR_INVALID, "%.300s: the path is too long", folder);
    return take_file(chat, name, path, err);
}

/* Takes what the folder of named templates has. */
static int take_folder(struct chat_template *chat, const char *model_dir, struct error *err) {
    char folder[PATH_MAX];
    struct dirent *entry;
    int rc = 0, n = 0;
    if (snprintf(folder, sizeof(folder), "%s/%s", model_dir, folder_name) >= (int)sizeof(folder))
        return 0;
    DIR *dir = opendir(folder);
    if (!dir && (errno == ENOENT || errno == ENOTDIR)) return 0;
    if (!dir) return error_set(err, ERR_IO, "%.300s: %s", folder, strerror(errno));
    while (!rc && (entry = readdir(dir))) {
        if (++n > MOST_TEMPLATES)
            rc = error_set(err, ERR_INVALID, "%.300s: more than %d files", folder, MOST_TEMPLATES);
        else rc = take_entry(chat, folder, entry->d_name, err);
    }
    closedir(dir);
    return rc;
}

static bool has_any(const struct chat_template *chat) {
    return chat->plain || chat->with_tools || json_array_size(chat->unused) > 0;
}

/* Takes the template of a file of settings, in any of its forms. */
static int take_config(struct chat_template *chat, const char *path, const json_t *config,
                       struct error *err) {
    json_t *source = json_object_get(config, "chat_template");
    if (!source || json_is_null(source)) return 0;
    if (json_is_string(source)) return take_named(chat, "default", source, path, err);
    if (json_is_array(source)) return take_list(chat, source, path, err);
    if (json_is_object(source)) return take_object(chat, source, path, err);
    return error_set(err, ERR_INVALID,
                     "%.300s: chat_template must be a string, a list or an object", path);
}

/* Takes the template of a processor's file, where no other file has one; else notes that it is
 * there. */
static int take_processors(struct chat_template *chat, const char *model_dir, struct error *err) {
    char path[PATH_MAX];
    struct error why = {0};
    json_t *document = NULL;
    if (snprintf(path, sizeof(path), "%s/%s", model_dir, processors_name) >= (int)sizeof(path))
        return 0;
    if (has_any(chat)) {
        chat->has_processors = access(path, F_OK) == 0;
        return 0;
    }
    int rc = model_document_read(&document, model_dir, processors_name, LARGEST_CONFIG, &why);
    if (rc == ERR_NOT_FOUND) return 0;
    if (rc) *err = why;
    else rc = take_config(chat, path, document, err);
    json_decref(document);
    return rc;
}

/* Takes the model's templates.  Files of their own win over tokenizer_config.json. */
static int take_models(struct chat_template *chat, const char *model_dir,
                       const struct token_names *names, struct error *err) {
    char path[PATH_MAX];
    int rc = model_document_place(path, model_dir, config_name, err);
    if (!rc) rc = take_models_file(chat, model_dir, err);
    if (!rc) rc = take_folder(chat, model_dir, err);
    if (!rc && !has_any(chat)) rc = take_config(chat, path, names->config, err);
    return rc ? rc : take_processors(chat, model_dir, err);
}

/* Notes what the templates leave out. */
static void probe(struct chat_template *chat) {
    const struct template *with_tools = chat->with_tools ? chat->with_tools : chat->plain;
    chat->drops_systems = chat->plain && template_drops_systems(chat->plain, chat->own);
    chat->drops_calls = with_tools && template_drops_calls(with_tools, chat->own);
    chat->drops_tools = with_tools && template_drops_tools(with_tools, chat->own);
}

int chat_template_load(struct chat_template *chat, const char *file, const char *model_dir,
                       struct error *err) {
    struct token_names names = {0};
    int rc = token_names_load(&names, model_dir, err);
    chat->own = json_incref(names.named);
    chat->unused = json_array();
    if (!rc && !chat->unused) rc = no_memory(err);
    if (!rc) {
        rc = file ? take_file(chat, "default", file, err)
                  : take_models(chat, model_dir, &names, err);
    }
    token_names_fini(&names);
    if (!rc) probe(chat);
    return rc;
}

void chat_template_fini(struct chat_template *chat) {
    template_destroy(chat->plain);
    template_destroy(chat->with_tools);
    json_decref(chat->own);
    json_decref(chat->unused);
    free(chat->source);
    free(chat->tool_text);
    *chat = (struct chat_template){0};
}
