/* tools.c - see tools.h.
 *
 * An origin is JSON: {"index": 0, "kind": 0, "name": "read", "namespace": "notes"}, with the index
 * of its function and the numbers of enum tool_kind. */
#include "server/api/conversation/tools.h"

#include <stdio.h>
#include <string.h>

#include "server/api/conversation/skipped.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/json/json_value.h"

/* Namespaces in namespaces; deeper ones are skipped.  Each tool of a namespace has its name in its
 * own, so a long one would be there as many times. */
enum { MAX_NESTED = 4, MAX_WHERE = 128, MAX_SPACE_BYTES = 256 };

/* A tool that is being read. */
struct reading {
    struct tool_list *list;
    const struct tool_rules *rules;
    const char *where; /* in the body, for errors */
    const json_t *tool;
    const json_t *body;  /* the object that has its members: the tool, or one in it */
    const char *path;    /* of that: "", ".function" */
    const json_t *space; /* its namespace; NULL: none */
    const json_t *
        *about; /* what the namespace says of itself, until one of its tools has said it */
    unsigned depth;
};

static int refuse(const struct reading *r, const char *member, const char *rule) {
    return api_error_set(r->rules->err, 400, NULL, "tools", "%s%s.%s %s", r->where, r->path, member,
                         rule);
}

/* ---- names ---- */

json_t *tool_shown_name(const json_t *space, const json_t *name) {
    const size_t n = json_string_length(space);
    const char *of = json_string_value(space);
    if (n == 0) return json_incref((json_t *)name);
    const bool has_mark = n > 2 && strcmp(of + n - 2, "__") == 0;
    return json_sprintf("%s%s%s", of, has_mark ? "" : "__", json_string_value(name));
}

/* Keeps a function, and where it comes from.  Takes the function, which may be NULL. */
static int keep(const struct reading *r, json_t *function, enum tool_kind kind,
                const json_t *name) {
    struct tool_list *list = r->list;
    const json_t *shown = json_object_get(json_object_get(function, "function"), "name");
    const json_t *before = shown ? json_object_get(list->origins, json_string_value(shown)) : NULL;
    const size_t index = before ? (size_t)json_integer_value(json_object_get(before, "index"))
                                : json_array_size(list->functions);
    json_t *origin = json_pack("{s:I, s:i, s:O, s:O*}", "index", (json_int_t)index, "kind",
                               (int)kind, "name", name, "namespace", r->space);
    if (!shown || json_object_set_new(list->origins, json_string_value(shown), origin)) {
        if (!shown) json_decref(origin);
        json_decref(function);
        return api_error_no_memory(r->rules->err);
    }
    const int rc = before ? json_array_set_new(list->functions, index, function)
                          : json_array_append_new(list->functions, function);
    return rc ? api_error_no_memory(r->rules->err) : 0;
}

/* ---- kinds ---- */

/* Makes the description: what the namespace says before its first tool, the tool's own, and the
 * grammar of what it takes.  Returns NULL where there is none, and with *failed where there is no
 * memory. */
static json_t *make_about(const struct reading *r, bool *failed) {
    const json_t *format = json_object_get(r->body, "format"),
                 *grammar = json_object_get(format, "grammar"), *parts[4] = {NULL};
    if (!json_is_object(grammar)) grammar = format;
    parts[0] = r->about ? *r->about : NULL;
    parts[1] = json_object_get(r->body, "description");
    parts[2] = json_object_get(grammar, "definition");
    struct buffer all = {0};
    for (int i = 0; i < 3; i++) {
        if (json_string_length(parts[i]) == 0) continue;
        if (all.length) buffer_puts(&all, "\n\n");
        if (i == 2)
            buffer_printf(&all, "The input has the form of this %s:\n",
                          json_is_word(json_object_get(grammar, "syntax"), "regex") ? "expression"
                                                                                    : "grammar");
        buffer_append(&all, json_string_value(parts[i]), json_string_length(parts[i]));
    }
    if (r->about) *r->about = NULL;
    json_t *about = all.length && !all.failed ? json_stringn(all.data, all.length) : NULL;
    *failed |= all.failed || (all.length > 0 && !about);
    buffer_fini(&all);
    return about;
}

/* Makes a function of members that have been checked.  Takes the parameters. */
static int make(const struct reading *r, enum tool_kind kind, const json_t *name,
                json_t *parameters, const json_t *strict) {
    bool failed = false;
    json_t *about = make_about(r, &failed), *shown = tool_shown_name(r->space, name);
    json_t *function = json_pack("{s:o, s:o*, s:o*, s:O*}", "name", shown, "description", about,
                                 "parameters", parameters, "strict", strict);
    json_t *made =
        function ? json_pack("{s:s, s:o}", "type", "function", "function", function) : NULL;
    if (made && !failed) return keep(r, made, kind, name);
    json_decref(made);
    return api_error_no_memory(r->rules->err);
}

static const json_t *schema_of(const struct reading *r) {
    const json_t *schema = json_object_get(r->body, "parameters");
    return json_is_given(schema) ? schema : json_object_get(r->body, "input_schema");
}

static int check_function(const struct reading *r) {
    const json_t *about = json_object_get(r->body, "description"), *schema = schema_of(r),
                 *strict = json_object_get(r->body, "strict");
    if (!json_is_string(json_object_get(r->body, "name")))
        return refuse(r, "name", "must be a string");
    if (json_is_given(about) && !json_is_string(about))
        return refuse(r, "description", "must be a string");
    if (r->rules->needs_schema && !json_is_object(schema))
        return refuse(r, "input_schema", "must be an object");
    if (json_is_given(schema) && !json_is_object(schema))
        return refuse(r, "parameters", "must be an object");
    if (json_is_given(strict) && !json_is_boolean(strict))
        return refuse(r, "strict", "must be true or false");
    return 0;
}

/* Reads a function.  One of a chat is given to the template as it is. */
static int read_function(const struct reading *r) {
    const json_t *name = json_object_get(r->body, "name"), *schema = schema_of(r),
                 *strict = json_object_get(r->body, "strict");
    const int rc = check_function(r);
    if (rc) return rc;
    if (r->body != r->tool && !r->space)
        return keep(r, json_incref((json_t *)r->tool), TOOL_FUNCTION, name);
    return make(r, TOOL_FUNCTION, name,
                json_is_given(schema) ? json_incref((json_t *)schema) : NULL,
                json_is_true(strict) ? strict : NULL);
}

/* Reads a tool that takes free text.  A grammar of it is told, and not enforced. */
static int read_custom(const struct reading *r) {
    const json_t *name = json_object_get(r->body, "name");
    if (r->rules->needs_schema || json_is_given(schema_of(r))) return read_function(r);
    const int rc = check_function(r);
    if (rc) return rc;
    json_t *parameters = json_pack("{s:s, s:{s:{s:s}}, s:[s]}", "type", "object", "properties",
                                   "input", "type", "string", "required", "input");
    return parameters ? make(r, TOOL_CUSTOM, name, parameters, NULL)
                      : api_error_no_memory(r->rules->err);
}

static int skip(const struct reading *r) {
    const char *type = json_string_value(json_object_get(r->tool, "type"));
    r->list->has_skipped = true;
    skipped_types_note(r->rules->skipped, "tools", type ? type : "");
    return 0;
}

/* Reads a search in tools that only the client knows.  One of a service has nothing to search in:
 * the tools that it would defer are all shown. */
static int read_search(const struct reading *r) {
    const json_t *schema = json_object_get(r->tool, "parameters");
    if (!json_is_word(json_object_get(r->tool, "execution"), "client") || !json_is_object(schema))
        return skip(r);
    json_t *name = json_string("tool_search");
    const int rc = name ? make(r, TOOL_SEARCH, name, json_incref((json_t *)schema), NULL)
                        : api_error_no_memory(r->rules->err);
    json_decref(name);
    return rc;
}

static int read_list(const struct reading *outer, const json_t *tools, const char *where);

/* Reads the tools in a tool under its name. */
static int read_group(const struct reading *r) {
    char where[MAX_WHERE];
    const json_t *name = json_object_get(r->tool, "name"),
                 *about = json_object_get(r->tool, "description");
    struct reading inner = *r;
    if (r->depth == MAX_NESTED) return skip(r);
    if (json_string_length(name) > MAX_SPACE_BYTES)
        return refuse(r, "name", "must have at most 256 bytes");
    inner.space = json_string_length(name) > 0 ? name : r->space;
    inner.about = &about;
    inner.depth++;
    snprintf(where, sizeof(where), "%.100s.tools", r->where);
    return read_list(&inner, json_object_get(r->tool, "tools"), where);
}

/* Reads a tool of a type that this server has never heard of. */
static int read_unknown(const struct reading *r) {
    const char *type = json_string_value(json_object_get(r->tool, "type"));
    if (json_is_string(json_object_get(r->body, "name")) && json_is_object(schema_of(r)))
        return read_function(r);
    if (!*r->list->unknown)
        snprintf(r->list->unknown, sizeof(r->list->unknown), "%.60s.type: '%.50s'", r->where, type);
    return skip(r);
}

typedef int (*tool_reader)(const struct reading *r);

/* Returns what reads tools of a type.  The names of Anthropic's end in the day of their version, so
 * the beginnings of names are compared where `more` says so. */
static tool_reader reader_of(const char *type) {
    static const struct {
        const char *type;
        tool_reader read;
        bool more;
    } kinds[] = {
        {"function", read_function, false},
        {"custom", read_custom, false},
        {"tool_search", read_search, false},
        {"namespace", skip, false}, /* one without tools */
        /* What another service, or the client by a schema of its own, runs: the model is not told
         * of it, so it cannot ask for it. */
        {"web_search", skip, true},
        {"web_fetch", skip, true},
        {"file_search", skip, true},
        {"code_interpreter", skip, true},
        {"code_execution", skip, true},
        {"image_generation", skip, true},
        {"tool_search_", skip, true},
        {"local_shell", skip, true},
        {"shell", skip, true},
        {"apply_patch", skip, true},
        {"computer", skip, true},
        {"bash_", skip, true},
        {"text_editor_", skip, true},
        {"memory_", skip, true},
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (kinds[i].more ? strncmp(type, kinds[i].type, strlen(kinds[i].type)) == 0
                          : strcmp(type, kinds[i].type) == 0)
            return kinds[i].read;
    return read_unknown;
}

/* Reads a tool.  Its members stand beside its type, or in an object that has the type's name. */
static int read_tool(struct reading *r) {
    const json_t *type = json_object_get(r->tool, "type"), *inner;
    if (!json_is_object(r->tool))
        return api_error_set(r->rules->err, 400, NULL, "tools", "%s must be an object", r->where);
    r->path = "";
    r->body = r->tool;
    if (json_is_given(type) && !json_is_string(type)) return refuse(r, "type", "must be a string");
    const char *name = json_is_given(type) ? json_string_value(type) : "function";
    const bool is_custom = strcmp(name, "custom") == 0;
    if (!is_custom && strcmp(name, "function") != 0)
        return json_is_array(json_object_get(r->tool, "tools")) ? read_group(r)
                                                                : reader_of(name)(r);
    inner = json_object_get(r->tool, name);
    if (json_is_object(inner)) {
        r->body = inner;
        r->path = is_custom ? ".custom" : ".function";
    }
    return reader_of(name)(r);
}

static int read_list(const struct reading *outer, const json_t *tools, const char *where) {
    char place[MAX_WHERE];
    int rc = 0;
    for (size_t i = 0; i < json_array_size(tools) && !rc; i++) {
        struct reading r = *outer;
        snprintf(place, sizeof(place), "%.100s[%zu]", where, i);
        r.tool = json_array_get(tools, i);
        r.where = place;
        rc = read_tool(&r);
    }
    return rc;
}

int tool_list_add(struct tool_list *list, const struct tool_rules *rules, const char *where,
                  const json_t *tools) {
    const struct reading r = {.list = list, .rules = rules};
    if (!list->functions) list->functions = json_array();
    if (!list->origins) list->origins = json_object();
    if (!list->functions || !list->origins) return api_error_no_memory(rules->err);
    return read_list(&r, tools, where);
}

void tool_list_fini(struct tool_list *list) {
    json_decref(list->functions);
    json_decref(list->origins);
    *list = (struct tool_list){0};
}

/* ---- calls ---- */

static struct tool_origin origin_of(const json_t *entry) {
    return (struct tool_origin){
        .kind = (enum tool_kind)json_integer_value(json_object_get(entry, "kind")),
        .name = json_string_value(json_object_get(entry, "name")),
        .space = json_string_value(json_object_get(entry, "namespace"))};
}

/* Finds the only tool with this name of its own, in this namespace if one is named. */
static const char *find_own(const json_t *origins, const char *space, const char *name) {
    const char *shown, *found = NULL;
    json_t *entry;
    json_object_foreach((json_t *)origins, shown, entry) {
        const struct tool_origin origin = origin_of(entry);
        if (strcmp(origin.name, name) != 0) continue;
        if (space && (!origin.space || strcmp(origin.space, space) != 0)) continue;
        if (found) return NULL;
        found = shown;
    }
    return found;
}

const char *tool_shown_find(const json_t *origins, const char *space, const char *name) {
    if (!space && json_object_get(origins, name)) return name;
    return find_own(origins, space, name);
}

struct tool_origin tool_origin_find(const json_t *origins, const char *name) {
    const char *shown = tool_shown_find(origins, NULL, name);
    return shown ? origin_of(json_object_get(origins, shown)) : (struct tool_origin){0};
}

/* ---- what may be called ---- */

/* What a choice allows.  The value of a name becomes true once a tool has it.  There may be many of
 * either, so that none is compared with all others. */
struct allowed {
    json_t *names;  /* of tools, own ones or shown ones, in any namespace */
    json_t *inner;  /* namespaces, with such names each */
    json_t *spaces; /* namespaces whose tools are all allowed */
};

/* Returns what an entry says of a tool: itself, or the member that its type names. */
static const json_t *body_of(const json_t *entry) {
    const char *type = json_string_value(json_object_get(entry, "type"));
    const json_t *inner = type ? json_object_get(entry, type) : NULL;
    return json_is_object(inner) ? inner : entry;
}

/* Returns the names among which the entry's is noted.  NULL: there is no memory. */
static json_t *names_for(const struct allowed *a, const json_t *entry) {
    const char *space = json_string_value(json_object_get(body_of(entry), "namespace"));
    if (json_is_word(json_object_get(entry, "type"), "namespace")) return a->spaces;
    if (!space) return a->names;
    if (!json_object_get(a->inner, space)) json_object_set_new(a->inner, space, json_object());
    return json_object_get(a->inner, space);
}

static int note_allowed(const struct allowed *a, const json_t *list, struct api_error *err) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(body_of(entry), "name"));
        if (name && json_object_set(names_for(a, entry), name, json_false()))
            return api_error_no_memory(err);
    }
    return 0;
}

/* Tells whether names have this one, and marks it. */
static bool mark(json_t *names, const char *name) {
    return json_object_get(names, name) && json_object_set(names, name, json_true()) == 0;
}

/* Tells whether a tool is allowed, and marks all names by which it is. */
static bool mark_tool(const struct allowed *a, const char *shown,
                      const struct tool_origin *origin) {
    json_t *inner = origin->space ? json_object_get(a->inner, origin->space) : NULL;
    bool is = origin->space && mark(a->spaces, origin->space);
    is |= mark(a->names, shown);
    is |= mark(a->names, origin->name);
    is |= mark(inner, shown);
    return mark(inner, origin->name) || is;
}

/* Refuses an entry of the client's own tools that names none of them. */
static int check_allowed(const struct allowed *a, const json_t *entry, struct api_error *err) {
    const json_t *type = json_object_get(entry, "type");
    const char *name = json_string_value(json_object_get(body_of(entry), "name"));
    const bool is_own = json_is_word(type, "function") || json_is_word(type, "custom");
    if (!is_own || (name && json_is_true(json_object_get(names_for(a, entry), name)))) return 0;
    return api_error_set(err, 400, NULL, "tool_choice",
                         "tool_choice: a tool that is allowed is not among tools");
}

static int leave_allowed(struct tool_list *list, const struct allowed *a, json_t *kept,
                         struct api_error *err) {
    for (size_t i = 0; i < json_array_size(list->functions); i++) {
        json_t *function = json_array_get(list->functions, i);
        const char *shown =
            json_string_value(json_object_get(json_object_get(function, "function"), "name"));
        const struct tool_origin origin = origin_of(json_object_get(list->origins, shown));
        if (mark_tool(a, shown, &origin) && json_array_append(kept, function))
            return api_error_no_memory(err);
    }
    return 0;
}

int tool_list_allow(struct tool_list *list, const json_t *allowed, struct api_error *err) {
    const struct allowed a = {json_object(), json_object(), json_object()};
    json_t *kept = json_array();
    int rc = a.names && a.inner && a.spaces && kept ? 0 : api_error_no_memory(err);
    if (!rc) rc = note_allowed(&a, allowed, err);
    if (!rc) rc = leave_allowed(list, &a, kept, err);
    for (size_t i = 0; i < json_array_size(allowed) && !rc; i++)
        rc = check_allowed(&a, json_array_get(allowed, i), err);
    if (!rc) {
        json_decref(list->functions);
        list->functions = json_incref(kept);
    }
    json_decref(kept);
    json_decref(a.names);
    json_decref(a.inner);
    json_decref(a.spaces);
    return rc;
}
