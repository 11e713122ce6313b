/* history.c - see history.h.
 *
 * An item's id names its response: msg_NAME_3 is the fourth item of the output of resp_NAME, and
 * item_NAME_in3 the fourth of its input. */
#include "server/api/responses/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_tree.h"
#include "server/api/responses/missing.h"
#include "server/api/responses/store.h"
#include "server/json/api_error.h"
#include "server/json/json_guard.h"
#include "server/json/json_value.h"

/* ---- stored texts as JSON ---- */

enum { ID_MAX = 256 }; /* of responses and items here: longer ones are none of ours */

#define BEGIN "{\"input\":["
#define END "]}"

/* A document that is written from its end to its beginning, as turns are found. */
struct backwards {
    char *data;
    size_t at; /* of the first byte that is written */
};

static void put_before(struct backwards *text, const char *data, size_t n) {
    text->at -= n;
    memcpy(text->data + text->at, data, n);
}

/* Puts items before those that are there. */
static void put_items(struct backwards *text, struct stored_text items, size_t end) {
    if (items.n == 0) return;
    if (text->at < end) put_before(text, ",", 1);
    put_before(text, items.data, items.n);
}

/* Parses a document of items. */
static int load(json_t **out, const char *text, size_t n, struct api_error *err) {
    struct json_span none;
    struct error why = {0};
    json_t *document = NULL;
    if (json_guard_load(&document, text, n, NULL, &none, &why))
        return api_error_from(err, &why, "previous_response_id");
    *out = json_incref(json_object_get(document, "input"));
    json_decref(document);
    return 0;
}

/* Reads the items of a turn and of those before it. */
static int load_chain(json_t **out, const struct stored_turn *turn, struct api_error *err) {
    const size_t n = sizeof(BEGIN) - 1 + stored_turn_chain_bytes(turn) + sizeof(END) - 1,
                 end = n - (sizeof(END) - 1);
    struct backwards text = {.data = malloc(n), .at = n};
    if (!text.data) return api_error_no_memory(err);
    put_before(&text, END, sizeof(END) - 1);
    for (; turn; turn = stored_turn_before(turn)) {
        put_items(&text, stored_turn_output(turn), end);
        put_items(&text, stored_turn_input(turn), end);
    }
    put_before(&text, BEGIN, sizeof(BEGIN) - 1);
    const int rc = load(out, text.data + text.at, n - text.at, err);
    free(text.data);
    return rc;
}

static int load_text(json_t **out, struct stored_text items, struct api_error *err) {
    struct buffer text = {0};
    buffer_puts(&text, BEGIN);
    buffer_append(&text, items.data, items.n);
    buffer_puts(&text, END);
    const int rc = text.failed ? api_error_no_memory(err) : load(out, text.data, text.length, err);
    buffer_fini(&text);
    return rc;
}

/* ---- ids ---- */

/* Writes the id of the response that an item's id names, and tells whether it is one of its input.
 * Returns false if it names none. */
static bool response_of(const char *item, char id[ID_MAX], bool *is_input) {
    const char *name = strchr(item, '_'), *number = strrchr(item, '_');
    if (!name || number == name || strlen(item) >= ID_MAX - sizeof(RESPONSE_ID_PREFIX))
        return false;
    *is_input = strncmp(number + 1, "in", 2) == 0;
    snprintf(id, ID_MAX, RESPONSE_ID_PREFIX "%.*s", (int)(number - name - 1), name + 1);
    return true;
}

/* Returns an input item's own id, or writes one that names the response. */
static const char *input_id(const json_t *item, const char *response_id, size_t i,
                            char made[ID_MAX]) {
    const char *own = json_string_value(json_object_get(item, "id"));
    if (own && *own) return own;
    snprintf(made, ID_MAX, "item_%.200s_in%zu", response_id + strlen(RESPONSE_ID_PREFIX), i);
    return made;
}

/* ---- references ---- */

/* What a request's references are looked up in. */
struct references {
    const struct history_source *source;
    json_t *items;  /* by id, of the texts below */
    json_t *loaded; /* the ids of responses, and whether of their input, that have been read */
    size_t n_read;  /* bytes of these texts */
    size_t n_named; /* bytes of the items that references stand for */
    struct api_error *err;
};

/* Refuses references to more bytes than a body may have: they may name one item many times. */
static int refuse_bytes(const struct references *refs) {
    api_error_set(refs->err, 400, NULL, "input",
                  "input: the items that it refers to have more than %zu bytes",
                  refs->source->max_bytes);
    return ERR_FULL;
}

static int count(const char *text, size_t n, void *total) {
    (void)text;
    *(size_t *)total += n;
    return 0;
}

static int index_items(const struct references *refs, const json_t *list, const char *response,
                       bool is_input) {
    char made[ID_MAX];
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *item = json_array_get(list, i);
        const char *id = is_input ? input_id(item, response, i, made)
                                  : json_string_value(json_object_get(item, "id"));
        if (id && json_object_set(refs->items, id, item)) return api_error_no_memory(refs->err);
    }
    return 0;
}

/* Reads one of a response's texts, once. */
static int load_response(struct references *refs, const char *response, bool is_input) {
    struct stored_turn *turn = NULL;
    char name[ID_MAX + 8];
    json_t *list = NULL;
    snprintf(name, sizeof(name), "%s %d", response, is_input);
    if (json_object_get(refs->loaded, name)) return 0;
    if (json_object_set_new(refs->loaded, name, json_true())) return api_error_no_memory(refs->err);
    const struct history_source *source = refs->source;
    if (responses_store_find(source->store, source->client, response, source->now_s, &turn))
        return 0;
    const struct stored_text text = is_input ? stored_turn_input(turn) : stored_turn_output(turn);
    refs->n_read += text.n;
    int rc = refs->n_read > source->max_bytes ? refuse_bytes(refs) : 0;
    if (!rc) rc = load_text(&list, text, refs->err);
    if (!rc) rc = index_items(refs, list, response, is_input);
    json_decref(list);
    stored_turn_release(source->store, turn);
    return rc;
}

static bool is_reference(const json_t *item) {
    const json_t *type = json_object_get(item, "type");
    if (json_is_given(type)) return json_is_word(type, "item_reference");
    return json_is_string(json_object_get(item, "id")) && !json_object_get(item, "role") &&
           !json_object_get(item, "content");
}

static int refuse_item(const struct references *refs, const char *id, size_t i) {
    const struct history_source *source = refs->source;
    char response[ID_MAX], reason[MISSING_REASON_BYTES] = "none is named so";
    bool is_input;
    if (response_of(id, response, &is_input)) {
        if (responses_store_has(source->store, source->client, response))
            snprintf(reason, sizeof(reason), "it has no such item");
        else response_missing(reason, source->store, source->client, response);
    }
    return api_error_set(refs->err, 404, NULL, "input",
                         "input[%zu]: item with id '%.200s' not found; its response: %s. Send the "
                         "item itself",
                         i, id, reason);
}

/* Finds what a reference names, borrowed from refs. */
static int resolve(struct references *refs, const json_t *reference, size_t i, json_t **out) {
    const char *id = json_string_value(json_object_get(reference, "id"));
    char response[ID_MAX];
    bool is_input;
    if (!id)
        return api_error_set(refs->err, 400, NULL, "input", "input[%zu].id must be a string", i);
    if (!refs->source->store)
        return api_error_set(refs->err, 400, "unsupported", "input",
                             "input[%zu] refers to a stored item, and nothing is stored here "
                             "(--responses-store-size 0): send the item itself",
                             i);
    if (!refs->items) refs->items = json_object();
    if (!refs->loaded) refs->loaded = json_object();
    if (!refs->items || !refs->loaded) return api_error_no_memory(refs->err);
    if (response_of(id, response, &is_input)) {
        const int rc = load_response(refs, response, is_input);
        if (rc) return rc;
    }
    *out = json_object_get(refs->items, id);
    if (*out) {
        if (json_tree_write(*out, count, &refs->n_named)) return api_error_no_memory(refs->err);
        return refs->n_named > refs->source->max_bytes ? refuse_bytes(refs) : 0;
    }
    return refuse_item(refs, id, i);
}

/* ---- the request's own items ---- */

static void keep(struct buffer *text, const json_t *item) {
    if (text->length > 0) buffer_puts(text, ",");
    buffer_json_value(text, item);
}

/* Appends the items of an array, with what references name. */
static int append_list(struct history *history, struct references *refs, const json_t *input,
                       bool keeps, json_t *items) {
    for (size_t i = 0; i < json_array_size(input); i++) {
        json_t *item = json_array_get(input, i);
        const int rc = is_reference(item) ? resolve(refs, item, i, &item) : 0;
        if (rc) return rc;
        if (json_array_append(items, item)) return api_error_no_memory(refs->err);
        if (keeps) keep(&history->input, item);
    }
    return 0;
}

static int append_own(struct history *history, const struct history_source *source,
                      const json_t *input, bool keeps, json_t *items, struct api_error *err) {
    struct references refs = {.source = source, .err = err};
    int rc;
    if (json_is_string(input)) {
        json_t *item =
            json_pack("{s:s, s:s, s:O}", "type", "message", "role", "user", "content", input);
        if (item && keeps) keep(&history->input, item);
        rc = !item || json_array_append_new(items, item) ? api_error_no_memory(err) : 0;
    } else if (json_is_array(input)) {
        rc = append_list(history, &refs, input, keeps, items);
    } else {
        rc = api_error_set(err, 400, NULL, "input", "input must be a string or an array of items");
    }
    json_decref(refs.items);
    json_decref(refs.loaded);
    if (!rc && history->input.failed) rc = api_error_no_memory(err);
    return rc;
}

/* ---- the responses before it ---- */

static int find_before(struct history *history, const struct history_source *source,
                       const json_t *id, struct api_error *err) {
    static const char param[] = "previous_response_id";
    const char *name = json_string_value(id);
    char reason[MISSING_REASON_BYTES];
    if (!source->store)
        return api_error_set(err, 400, "unsupported", param,
                             "previous_response_id is not supported, because nothing is stored "
                             "here (--responses-store-size 0): send the items of the conversation "
                             "in input");
    if (responses_store_find(source->store, source->client, name, source->now_s, &history->before))
        return api_error_set(err, 400, "previous_response_not_found", param,
                             "Previous response with id '%.200s' not found: %s. Send the items of "
                             "the conversation in input",
                             name, response_missing(reason, source->store, source->client, name));
    if (stored_turn_failed(history->before))
        return api_error_set(err, 400, NULL, param,
                             "previous_response_id: response '%.200s' has failed: go on from the "
                             "one before it",
                             name);
    if (stored_turn_chain_bytes(history->before) <= source->max_bytes) return 0;
    api_error_set(err, 400, NULL, param,
                  "previous_response_id: the conversation has %zu bytes, and a request may have "
                  "%zu (--max-body-size)",
                  stored_turn_chain_bytes(history->before), source->max_bytes);
    return ERR_FULL;
}

int history_read(struct history *history, const struct history_source *source, const json_t *id,
                 const json_t *input, bool keeps, json_t **items, size_t *n_before,
                 struct api_error *err) {
    json_t *list = NULL;
    int rc = id ? find_before(history, source, id, err) : 0;
    if (!rc && history->before) rc = load_chain(&list, history->before, err);
    if (!rc && !list) list = json_array();
    if (!rc && !list) rc = api_error_no_memory(err);
    *n_before = json_array_size(list);
    if (!rc) rc = append_own(history, source, input, keeps, list, err);
    if (!rc && json_array_size(list) == *n_before)
        rc = api_error_set(err, 400, NULL, "input", "input must be a string or an array of items");
    if (rc) json_decref(list);
    else *items = list;
    return rc;
}

void history_fini(struct history *history, struct responses_store *store) {
    stored_turn_release(store, history->before);
    buffer_fini(&history->input);
    *history = (struct history){0};
}

/* ---- lists ---- */

/* Makes content that is a text a part, as OpenAI lists it. */
static int spread_content(json_t *item) {
    json_t *content = json_object_get(item, "content");
    const bool said = json_is_word(json_object_get(item, "role"), "assistant");
    if (!json_is_string(content)) return 0;
    json_t *parts =
        json_pack("[{s:s, s:O}]", "type", said ? "output_text" : "input_text", "text", content);
    return json_object_set_new(item, "content", parts);
}

json_t *history_list(const struct stored_turn *turn, const char *response_id) {
    struct api_error err;
    json_t *list = NULL;
    bool failed = load_text(&list, stored_turn_input(turn), &err) != 0;
    for (size_t i = 0; i < json_array_size(list) && !failed; i++) {
        char made[ID_MAX];
        json_t *item = json_array_get(list, i);
        const char *id = input_id(item, response_id, i, made);
        failed |= json_object_set_new(item, "id", json_string(id)) < 0;
        if (!json_is_given(json_object_get(item, "type")))
            failed |= json_object_set_new(item, "type", json_string("message")) < 0;
        failed |= spread_content(item) < 0;
    }
    if (!failed) return list;
    json_decref(list);
    return NULL;
}
