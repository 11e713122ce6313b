/* content.c - see content.h. */
#include "server/api/conversation/content.h"

#include <stdio.h>
#include <string.h>

#include "server/api/conversation/skipped.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/json/json_value.h"

/* Parts in parts; deeper ones say nothing. */
enum { MAX_NESTED = 8, MAX_MEMBERS = 9, MAX_WHERE = 192 };

/* What a type is known to have. */
struct kind {
    const char *type;
    const char *must;                 /* the member that must say something; NULL: none must */
    bool is_text;                     /* without `must` the part is malformed, else not supported */
    const char *members[MAX_MEMBERS]; /* that say something, in the order of the text */
};

static const struct kind kinds[] = {
    {"text", "text", true, {"text"}},
    {"input_text", "text", true, {"text"}},
    {"output_text", "text", true, {"text"}},
    {"reasoning_text", "text", true, {"text"}},
    {"summary_text", "text", true, {"text"}},
    {"refusal", "refusal", true, {"refusal"}},
    {"thinking", NULL, false, {"thinking"}},
    {"document", "source", false, {"title", "context", "source"}},
    {"search_result", NULL, false, {"title", "source", "content"}},
    {"web_search_result", NULL, false, {"title", "url"}},
    {"web_fetch_result", NULL, false, {"url", "content"}},
    {"tool_search_tool_search_result", NULL, false, {"tool_references"}},
    {"tool_reference", NULL, false, {"tool_name", "name"}},
    {"resource", "resource", false, {"resource"}},
    {"resource_link", NULL, false, {"name", "uri", "description"}},
    {"tool_addition", NULL, false, {NULL}},
    {"tool_removal", NULL, false, {NULL}},
};

/* What says something in a part of another type, and in objects without one: results of tools. */
static const struct kind unknown = {
    "",
    NULL,
    false,
    {"text", "content", "summary", "output", "stdout", "stderr", "logs", "error", "error_code"}};

/* Parts whose type has such a word say something that is no text. */
static const char *const media[] = {"image", "audio", "video", "file", "screenshot", "upload"};

/* The state of a walk over parts, and parts in them. */
struct reading {
    const struct content_rules *rules;
    struct buffer *out;
    unsigned depth;
    size_t n_texts; /* appended so far */
};

const char *content_type(const json_t *element) {
    return json_string_value(json_object_get(element, "type"));
}

static int refuse(const struct content_rules *rules, const char *where, const char *rule) {
    return api_error_set(rules->err, 400, NULL, rules->param, "%s %s", where, rule);
}

static int refuse_member(const struct content_rules *rules, const char *where, const char *member) {
    return api_error_set(rules->err, 400, NULL, rules->param, "%s.%s must be a string", where,
                         member);
}

static int refuse_type(const struct content_rules *rules, const char *where, const char *type) {
    return api_error_set(rules->err, 400, "unsupported", rules->param,
                         "%s: %s of the type '%.100s' are not supported here, only text", where,
                         rules->noun, type);
}

static const struct kind *kind_of(const char *type) {
    for (size_t i = 0; type && i < sizeof(kinds) / sizeof(*kinds); i++)
        if (strcmp(type, kinds[i].type) == 0) return &kinds[i];
    return &unknown;
}

static bool is_media(const char *type) {
    for (size_t i = 0; type && i < sizeof(media) / sizeof(*media); i++)
        if (strstr(type, media[i])) return true;
    return false;
}

/* Appends a text, behind a line end unless it is the first. */
static void add_text(struct reading *r, const json_t *text) {
    if (r->n_texts++) buffer_puts(r->out, "\n");
    buffer_append(r->out, json_string_value(text), json_string_length(text));
}

static int read_part(struct reading *r, const char *where, const json_t *part);

static int read_element(struct reading *r, const char *where, const json_t *element) {
    if (json_is_string(element)) add_text(r, element);
    return json_is_object(element) ? read_part(r, where, element) : 0;
}

/* Reads what a member says: a text, a part, or a list of them. */
static int read_value(struct reading *r, const char *where, const json_t *value) {
    char inner[MAX_WHERE];
    int rc = read_element(r, where, value);
    for (size_t i = 0; i < json_array_size(value) && !rc; i++) {
        snprintf(inner, sizeof(inner), "%.*s[%zu]", MAX_WHERE - 24, where, i);
        rc = read_element(r, inner, json_array_get(value, i));
    }
    return rc;
}

/* Reads what a document is: a text, or content, but nothing that has to be fetched or decoded. */
static int read_source(struct reading *r, const char *where, const json_t *source) {
    const char *type = content_type(source);
    if (!type) return read_value(r, where, source);
    if (strcmp(type, "text") == 0) return read_value(r, where, json_object_get(source, "data"));
    if (strcmp(type, "content") == 0)
        return read_value(r, where, json_object_get(source, "content"));
    return 0;
}

static int read_member(struct reading *r, const char *where, const json_t *part,
                       const char *member) {
    char inner[MAX_WHERE];
    const json_t *value = json_object_get(part, member);
    snprintf(inner, sizeof(inner), "%.*s.%s", MAX_WHERE - 24, where, member);
    return strcmp(member, "source") == 0 ? read_source(r, inner, value)
                                         : read_value(r, inner, value);
}

/* Reads the members of a kind in their order.  *lacks: the one that must say something does not. */
static int read_members(struct reading *r, const char *where, const json_t *part,
                        const struct kind *kind, bool *lacks) {
    int rc = 0;
    for (size_t i = 0; i < MAX_MEMBERS && kind->members[i] && !rc; i++) {
        const size_t n_before = r->n_texts;
        rc = read_member(r, where, part, kind->members[i]);
        if (kind->must && strcmp(kind->must, kind->members[i]) == 0)
            *lacks = r->n_texts == n_before;
    }
    return rc;
}

/* Reads a part.  One that says nothing is skipped. */
static int read_part(struct reading *r, const char *where, const json_t *part) {
    const char *type = content_type(part);
    const struct kind *kind = kind_of(type);
    const size_t n_before = r->n_texts;
    bool lacks = false;
    if (r->depth == MAX_NESTED) return 0;
    if (kind == &unknown && is_media(type)) return refuse_type(r->rules, where, type);
    if (kind->is_text && !json_is_string(json_object_get(part, kind->must)))
        return refuse_member(r->rules, where, kind->must);
    r->depth++;
    const int rc = read_members(r, where, part, kind, &lacks);
    r->depth--;
    if (rc) return rc;
    if (lacks) return refuse_type(r->rules, where, type);
    if (r->n_texts == n_before && type)
        skipped_types_note(r->rules->skipped, r->depth ? "content" : r->rules->list, type);
    return 0;
}

/* Checks that an element of a list can be a part, and reads it. */
static int read_checked(struct reading *r, const char *where, const json_t *part) {
    const json_t *type = json_object_get(part, "type");
    if (!json_is_string(part) && !json_is_object(part))
        return refuse(r->rules, where, "must be an object");
    if (json_is_given(type) && !json_is_string(type)) return refuse_member(r->rules, where, "type");
    return read_element(r, where, part);
}

int content_add(const struct content_rules *rules, const char *where, const json_t *part,
                struct buffer *out, bool *has_text) {
    struct reading r = {.rules = rules, .out = out};
    const int rc = read_checked(&r, where, part);
    *has_text = r.n_texts > 0;
    if (rc) return rc;
    return out->failed ? api_error_no_memory(rules->err) : 0;
}

/* Reads an object: a part, or what a tool has made. */
static int read_object(struct reading *r, const char *where, const json_t *object) {
    const int rc = read_checked(r, where, object);
    const bool is_part = json_is_given(json_object_get(object, "type"));
    if (rc || is_part || r->n_texts > 0) return rc;
    buffer_json_value(r->out, object);
    return 0;
}

int content_read(const struct content_rules *rules, const char *where, const json_t *content,
                 json_t **out) {
    struct buffer text = {0};
    struct reading r = {.rules = rules, .out = &text};
    char inner[MAX_WHERE];
    int rc = 0;
    if (json_is_string(content)) {
        *out = json_incref((json_t *)content);
        return 0;
    }
    if (json_is_given(content) && !json_is_array(content) && !json_is_object(content))
        return api_error_set(rules->err, 400, NULL, rules->param,
                             "%s must be a string or an array of %s", where, rules->noun);
    if (json_is_object(content)) rc = read_object(&r, where, content);
    for (size_t i = 0; i < json_array_size(content) && !rc; i++) {
        snprintf(inner, sizeof(inner), "%.*s[%zu]", MAX_WHERE - 24, where, i);
        rc = read_checked(&r, inner, json_array_get(content, i));
    }
    if (!rc) *out = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.length);
    if (!rc && !*out) rc = api_error_no_memory(rules->err);
    buffer_fini(&text);
    return rc;
}
