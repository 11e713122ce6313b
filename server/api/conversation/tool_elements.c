/* tool_elements.c - see tool_elements.h. */
#include "server/api/conversation/tool_elements.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_tree.h"
#include "server/api/conversation/tool_strings.h"

/* The definitions that arguments refer to are written again for each argument.  So many bytes they
 * may be together. */
enum { MAX_KEY = 128, MAX_MARKS = 64, MAX_DEFINITIONS = 256 << 10 };

struct writing {
    const struct tool_elements *elements;
    const json_t *schema, *strings;
    json_t *required; /* an object with the names that the schema requires */
    const char *tool, *end;
    size_t n_definitions; /* bytes so far */
    struct error *err;
};

static int no_memory(struct writing *w) {
    return error_set(w->err, ERR_NOMEM, "no memory for the tools");
}

/* ---- what has no such form ---- */

static int check_keywords(struct writing *w) {
    static const char *const keywords[] = {"patternProperties", "propertyNames", "minProperties",
                                           "maxProperties"};
    for (int i = 0; i < 4; i++)
        if (json_object_get(w->schema, keywords[i]))
            return error_set(w->err, ERR_INVALID,
                             "#: %s is not supported in the model's format of calls", keywords[i]);
    return 0;
}

static int check_key(struct writing *w, const char *key) {
    const size_t n = strlen(key);
    bool is_fit = n > 0 && n <= MAX_KEY && key[0] != ' ' && key[n - 1] != ' ';
    for (size_t i = 0; i < n; i++)
        is_fit = is_fit && (unsigned char)key[i] >= 0x20 && key[i] != '<' && key[i] != '>';
    return is_fit ? 0
                  : error_set(w->err, ERR_INVALID,
                              "#/properties: the name '%.64s' cannot be written in the model's "
                              "format of calls",
                              key);
}

/* Checks that what is referred to is a definition: nothing else is known beside one argument.
 * *has: there is a reference. */
static int check_refs(struct writing *w, const json_t *value, bool *has) {
    const char *ref = json_string_value(json_object_get(value, "$ref")), *key;
    json_t *part;
    int rc = 0;
    *has |= ref != NULL;
    if (ref && strncmp(ref, "#/$defs/", 8) != 0 && strncmp(ref, "#/definitions/", 14) != 0)
        return error_set(w->err, ERR_INVALID,
                         "#: $ref %.64s is not supported in the model's format of calls: it must "
                         "begin with #/$defs/ or #/definitions/",
                         ref);
    for (size_t i = 0; i < json_array_size(value) && !rc; i++)
        rc = check_refs(w, json_array_get(value, i), has);
    json_object_foreach((json_t *)value, key, part) {
        if (!rc) rc = check_refs(w, part, has);
    }
    return rc;
}

/* ---- values ---- */

/* Adds definitions to a copy of an argument's schema. */
static int add_definitions(struct writing *w, json_t *schema, const char *name) {
    json_t *definitions = json_object_get(w->schema, name);
    bool has_refs = false;
    if (!definitions) return 0;
    const int rc = check_refs(w, definitions, &has_refs);
    if (rc) return rc;
    w->n_definitions += json_tree_size(definitions);
    if (w->n_definitions > MAX_DEFINITIONS)
        return error_set(w->err, ERR_INVALID,
                         "#: %s has too much text for the arguments that refer to it", name);
    return json_object_set(schema, name, definitions) ? no_memory(w) : 0;
}

/* Makes a value that is JSON. */
static int make_json(json_t **out, struct writing *w, json_t *schema) {
    bool has_refs = false;
    int rc = check_refs(w, schema, &has_refs);
    json_t *whole = has_refs ? json_copy(schema) : json_incref(schema);
    if (!rc && !whole) rc = no_memory(w);
    if (!rc && has_refs) rc = add_definitions(w, whole, "$defs");
    if (!rc && has_refs) rc = add_definitions(w, whole, "definitions");
    if (rc) {
        json_decref(whole);
        return rc;
    }
    *out = json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", whole);
    return *out ? 0 : no_memory(w);
}

/* Makes one of some strings. */
static json_t *make_choice(const json_t *values) {
    json_t *elements = json_array();
    bool failed = !elements;
    for (size_t i = 0; i < json_array_size(values) && !failed; i++)
        failed = json_array_append_new(elements, json_pack("{s:s, s:O}", "type", "const_string",
                                                           "value", json_array_get(values, i))) < 0;
    if (!failed) return json_pack("{s:s, s:o}", "type", "or", "elements", elements);
    json_decref(elements);
    return NULL;
}

/* Makes a string without quotes. */
static json_t *make_bare(const struct writing *w, const json_t *schema) {
    json_t *values = json_object_get(schema, "enum"), *value = json_object_get(schema, "const");
    if (values) return make_choice(values);
    if (value) return json_pack("{s:s, s:O}", "type", "const_string", "value", value);
    return json_pack("{s:s, s:[s, s]}", "type", "any_text", "excludes", w->elements->value_end,
                     w->end);
}

static int make_value(json_t **out, struct writing *w, const char *key, json_t *schema) {
    const enum tool_string is = tool_strings_find(w->strings, w->tool, key, strlen(key));
    if (is != TOOL_STRING_BARE) return make_json(out, w, schema);
    *out = make_bare(w, schema);
    return *out ? 0 : no_memory(w);
}

/* ---- elements ---- */

/* Puts the marks behind a key, and around its value, which it takes ownership of. */
static json_t *make_element(const struct tool_elements *e, const char *key, json_t *value) {
    char begin[MAX_KEY + MAX_MARKS], end[MAX_MARKS];
    snprintf(begin, sizeof(begin), "%s%s%s%s%s", *key ? e->key_begin : "", key, e->key_end,
             e->on_lines || *e->value_begin ? "\n" : "", e->value_begin);
    snprintf(end, sizeof(end), "%s%s\n", e->on_lines ? "\n" : "", e->value_end);
    return json_pack("{s:s, s:s, s:o, s:s}", "type", "tag", "begin", begin, "content", value, "end",
                     end);
}

/* Notes the names that are required, which may be many, for as many properties. */
static int note_required(struct writing *w) {
    const json_t *required = json_object_get(w->schema, "required");
    bool failed = !w->required;
    for (size_t i = 0; i < json_array_size(required) && !failed; i++)
        failed = json_object_set_new(w->required, json_string_value(json_array_get(required, i)),
                                     json_true()) < 0;
    return failed ? no_memory(w) : 0;
}

/* Appends the element of a property to the list. */
static int add_property(json_t *list, struct writing *w, const char *key, json_t *schema) {
    json_t *value = NULL;
    int rc = check_key(w, key);
    if (!rc) rc = make_value(&value, w, key, schema);
    if (rc) return rc;
    json_t *element = make_element(w->elements, key, value);
    if (element && !json_object_get(w->required, key))
        element = json_pack("{s:s, s:o}", "type", "optional", "content", element);
    return json_array_append_new(list, element) ? no_memory(w) : 0;
}

/* Makes the elements of named properties, in their order. */
static int make_named(json_t **out, struct writing *w) {
    json_t *list = json_array(), *schema;
    const char *key;
    w->required = json_object();
    int rc = list ? note_required(w) : no_memory(w);
    json_object_foreach(json_object_get(w->schema, "properties"), key, schema) {
        if (!rc) rc = add_property(list, w, key, schema);
    }
    *out = rc ? NULL : json_pack("{s:s, s:O}", "type", "sequence", "elements", list);
    json_decref(list);
    json_decref(w->required);
    return rc || *out ? rc : no_memory(w);
}

/* Makes any number of elements whose keys are names. */
static int make_others(json_t **out, struct writing *w, json_t *schema) {
    /* Any text is some value. */
    json_t *value = json_is_true(schema) ? make_bare(w, NULL) : NULL;
    int rc = 0;
    if (!value) rc = json_is_true(schema) ? no_memory(w) : make_value(&value, w, "", schema);
    if (rc) return rc;
    *out = json_pack("{s:s, s:{s:s, s:[{s:s, s:s}, {s:s, s:s}, o]}}", "type", "star", "content",
                     "type", "sequence", "elements", "type", "const_string", "value",
                     w->elements->key_begin, "type", "regex", "pattern",
                     "[A-Za-z_][A-Za-z0-9_.-]{0,63}", make_element(w->elements, "", value));
    return *out ? 0 : no_memory(w);
}

int tool_elements_make(json_t **out, const struct tool_elements *elements, const json_t *schema,
                       const json_t *strings, const char *tool, const char *end,
                       struct error *err) {
    struct writing w = {.elements = elements,
                        .schema = schema,
                        .strings = strings,
                        .tool = tool,
                        .end = end,
                        .err = err};
    json_t *other = json_object_get(schema, "additionalProperties");
    const int rc = check_keywords(&w);
    if (rc) return rc;
    if (json_object_size(json_object_get(schema, "properties")) > 0) return make_named(out, &w);
    if (!json_is_false(other)) return make_others(out, &w, other);
    *out = json_pack("{s:s, s:s}", "type", "const_string", "value", "");
    return *out ? 0 : no_memory(&w);
}
