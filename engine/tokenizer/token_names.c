/* token_names.c - see token_names.h. */
#include "engine/tokenizer/token_names.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/gguf/model_document.h"

enum { LARGEST_CONFIG = 64 << 20 };

static int no_memory(struct error *err) {
    return error_set(err, ERR_NOMEM, "no memory for the names of tokens");
}

/* Reads a document of the model; *out is NULL if there is none. */
static int read_file(json_t **out, const char *dir, const char *name, struct error *err) {
    struct error why = {0};
    *out = NULL;
    const int rc = model_document_read(out, dir, name, LARGEST_CONFIG, &why);
    if (rc && rc != ERR_NOT_FOUND) *err = why;
    return rc == ERR_NOT_FOUND ? 0 : rc;
}

/* Returns the text of a token, which is a string or an object with its content; else NULL. */
static json_t *text_of(json_t *value) {
    json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
    return json_is_string(text) ? text : NULL;
}

/* Stores a copy of the text, which may lie in a document that is released. */
static int set_named(struct token_names *names, const char *name, json_t *value) {
    json_t *text = text_of(value);
    return text ? json_object_set_new(names->named, name, json_deep_copy(text)) : 0;
}

/* Takes tokens that an object names, whatever the names. */
static int take_object(struct token_names *names, json_t *object) {
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value) if (set_named(names, name, value)) return ERR_NOMEM;
    return 0;
}

static int take_list(struct token_names *names, json_t *list) {
    size_t i;
    json_t *value;
    json_array_foreach(list, i, value) {
        json_t *text = text_of(value);
        if (text && json_array_append_new(names->special, json_deep_copy(text))) return ERR_NOMEM;
    }
    return 0;
}

static bool ends_in_token(const char *name) {
    static const char end[] = "_token";
    const size_t n = strlen(name), n_end = sizeof(end) - 1;
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

/* Takes what a file says of tokens.  Its values win over earlier ones. */
static int take_file(struct token_names *names, json_t *file) {
    const char *name;
    json_t *value, *extra = json_object_get(file, "extra_special_tokens");
    json_object_foreach(file, name, value) if (ends_in_token(name) &&
                                               set_named(names, name, value)) return ERR_NOMEM;
    if (json_object_size(extra) + json_array_size(extra) == 0)
        extra = json_object_get(file, "additional_special_tokens");
    int rc = take_object(names, json_object_get(file, "model_specific_special_tokens"));
    if (!rc) rc = json_is_object(extra) ? take_object(names, extra) : take_list(names, extra);
    return rc;
}

/* Adds an entry as tokenizer.json has it.  like: an object with flags, or NULL. */
static int add_entry(struct token_names *names, json_int_t id, const char *content, size_t n,
                     const json_t *like) {
    static const char *const flags[] = {"special", "normalized", "single_word", "lstrip", "rstrip"};
    json_t *entry = json_pack("{s:I, s:o}", "id", id, "content", json_stringn_nocheck(content, n));
    if (!entry) return ERR_NOMEM;
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
        const json_t *flag = json_object_get(like, flags[i]);
        if (json_is_boolean(flag) &&
            json_object_set_new(entry, flags[i], json_boolean(json_is_true(flag)))) {
            json_decref(entry);
            return ERR_NOMEM;
        }
    }
    return json_array_append_new(names->added, entry) ? ERR_NOMEM : 0;
}

/* Reads the key of added_tokens_decoder; returns -1 if it is no id. */
static json_int_t id_of(const char *key) {
    char *end;
    const long long id = strtoll(key, &end, 10);
    return *key >= '0' && *key <= '9' && !*end ? id : -1;
}

static int take_decoder(struct token_names *names, json_t *decoder) {
    const char *key;
    json_t *value;
    json_object_foreach(decoder, key, value) {
        const json_t *content = json_object_get(value, "content");
        const json_int_t id = id_of(key);
        if (id < 0 || !json_is_string(content)) continue;
        if (add_entry(names, id, json_string_value(content), json_string_length(content), value))
            return ERR_NOMEM;
    }
    return 0;
}

/* Takes added_tokens.json.  What is special there is so by its name elsewhere. */
static int take_ids(struct token_names *names, json_t *ids) {
    const char *content;
    size_t n;
    json_t *id;
    json_object_keylen_foreach(ids, content, n, id) {
        if (!json_is_integer(id)) continue;
        if (add_entry(names, json_integer_value(id), content, n, NULL)) return ERR_NOMEM;
    }
    return 0;
}

static int read_legacy(struct token_names *names, const char *dir, struct error *err) {
    json_t *map = NULL, *ids = NULL;
    int rc = read_file(&map, dir, "special_tokens_map.json", err);
    if (!rc) rc = read_file(&ids, dir, "added_tokens.json", err);
    if (!rc && (take_file(names, map) || take_ids(names, ids))) rc = no_memory(err);
    json_decref(map);
    json_decref(ids);
    return rc;
}

int token_names_load(struct token_names *out, const char *dir, struct error *err) {
    struct token_names names = {
        .named = json_object(), .special = json_array(), .added = json_array()};
    int rc = names.named && names.special && names.added ? 0 : no_memory(err);
    if (!rc) rc = read_file(&names.config, dir, "tokenizer_config.json", err);
    if (!rc && take_file(&names, names.config)) rc = no_memory(err);
    json_t *decoder = json_object_get(names.config, "added_tokens_decoder");
    if (!rc && json_is_object(decoder)) rc = take_decoder(&names, decoder) ? no_memory(err) : 0;
    else if (!rc) rc = read_legacy(&names, dir, err);
    if (rc) token_names_fini(&names);
    else *out = names;
    return rc;
}

void token_names_fini(struct token_names *names) {
    json_decref(names->config);
    json_decref(names->named);
    json_decref(names->special);
    json_decref(names->added);
    *names = (struct token_names){0};
}
