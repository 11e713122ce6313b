/* schema.c - see schema.h.
 *
 * A schema's keywords say what it is: a reference, a value, a list of values, a choice of schemas,
 * or one of some types.  The library reads the first of these that it finds and nothing else, so
 * they may not stand beside each other. */
#include "engine/grammar/schema.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/json_tree.h"
#include "engine/grammar/regex_text.h"

enum { PATH_BYTES = 256, N_TYPES = 7 };

struct place {
    const struct place *parent;
    const char *name; /* a keyword or member, borrowed */
    unsigned depth;
};

enum { LEADS = UINT16_MAX };

struct reading {
    const json_t *root;
    const json_t **seen; /* [n_seen]: what has been read as a schema */
    const json_t **refs; /* [n_refs]: schemas that refer to others */
    uint16_t *marks;     /* [n_seen]: the round in which leads_to_values() met one, or LEADS */
    unsigned n_seen, n_refs, n_nodes;
    unsigned n_looks; /* of types_of(), at schemas and values */
    bool loosens;     /* what the library cannot follow allows more, in place of a refusal */
    struct error *err;
};

/* ---- refusing ---- */

/* Writes #/a/b, or its end. */
static void write_place(char *out, const struct place *at) {
    char rest[PATH_BYTES] = "";
    for (; at->parent; at = at->parent) {
        char longer[PATH_BYTES];
        if ((size_t)snprintf(longer, sizeof(longer), "/%.64s%s", at->name, rest) >= sizeof(longer))
            break;
        memcpy(rest, longer, sizeof(rest));
    }
    snprintf(out, PATH_BYTES, "%s%.250s", at->parent ? "…" : "#", rest);
}

static int refuse(struct reading *r, const struct place *at, const char *keyword, const char *why) {
    char place[PATH_BYTES];
    write_place(place, at);
    return error_set(r->err, ERR_INVALID, "%s: %.64s %s", place, keyword, why);
}

static int no_memory(struct reading *r) {
    return error_set(r->err, ERR_NOMEM, "no memory for the schema");
}

/* ---- keywords ---- */

enum group {
    ANNOTATION, /* says nothing about the value: title, default, $defs, those of other languages */
    SHAPE,      /* excludes the others of the group, and types */
    TYPE,
    OF_STRING,
    OF_NUMBER,
    OF_ARRAY,
    OF_OBJECT,
    NEVER /* is not supported; what has no row is no keyword of JSON Schema, and says nothing */
};

static const struct keyword {
    const char *name;
    enum group group;
} keywords[] = {
    {"$ref", SHAPE},
    {"const", SHAPE},
    {"enum", SHAPE},
    {"anyOf", SHAPE},
    {"oneOf", SHAPE},
    {"allOf", SHAPE},
    {"type", TYPE},
    {"minLength", OF_STRING},
    {"maxLength", OF_STRING},
    {"pattern", OF_STRING},
    {"format", OF_STRING},
    {"minimum", OF_NUMBER},
    {"maximum", OF_NUMBER},
    {"exclusiveMinimum", OF_NUMBER},
    {"exclusiveMaximum", OF_NUMBER},
    {"multipleOf", OF_NUMBER},
    {"items", OF_ARRAY},
    {"prefixItems", OF_ARRAY},
    {"minItems", OF_ARRAY},
    {"maxItems", OF_ARRAY},
    {"uniqueItems", OF_ARRAY},
    {"properties", OF_OBJECT},
    {"required", OF_OBJECT},
    {"additionalProperties", OF_OBJECT},
    {"patternProperties", OF_OBJECT},
    {"propertyNames", OF_OBJECT},
    {"minProperties", OF_OBJECT},
    {"maxProperties", OF_OBJECT},
    {"not", NEVER},
    {"if", NEVER},
    {"then", NEVER},
    {"else", NEVER},
    {"contains", NEVER},
    {"minContains", NEVER},
    {"maxContains", NEVER},
    {"additionalItems", NEVER},
    {"unevaluatedItems", NEVER},
    {"unevaluatedProperties", NEVER},
    {"dependencies", NEVER},
    {"dependentRequired", NEVER},
    {"dependentSchemas", NEVER},
    {"divisibleBy", NEVER}, /* these three are of drafts before 4 */
    {"disallow", NEVER},
    {"extends", NEVER},
    {"$dynamicRef", NEVER},
    {"$recursiveRef", NEVER},
};

static enum group group_of(const char *name) {
    for (size_t i = 0; i < sizeof(keywords) / sizeof(*keywords); i++)
        if (strcmp(keywords[i].name, name) == 0) return keywords[i].group;
    return ANNOTATION;
}

static const struct type {
    const char *name;
    enum group group; /* of its keywords; ANNOTATION: it has none */
} types[N_TYPES] = {{"null", ANNOTATION},  {"boolean", ANNOTATION}, {"string", OF_STRING},
                    {"number", OF_NUMBER}, {"integer", OF_NUMBER},  {"array", OF_ARRAY},
                    {"object", OF_OBJECT}};

static const struct type *type_named(const char *name) {
    for (int i = 0; i < N_TYPES && name; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

static const struct type *type_of(const json_t *name) {
    return type_named(json_string_value(name));
}

/* Tells whether `type`, a name or a list of names, has a type with this group's keywords. */
static bool has_group(const json_t *type, enum group group) {
    for (size_t i = 0; i < json_array_size(type); i++) {
        const struct type *one = type_of(json_array_get(type, i));
        if (one && one->group == group) return true;
    }
    const struct type *only = type_of(type);
    return only && only->group == group;
}

/* Tells whether a number is an integer, however it is written. */
static bool is_whole(const json_t *value) {
    const double x = json_number_value(value);
    return json_is_number(value) && x == floor(x);
}

/* Tells whether the type allows a value. */
static bool allows(const json_t *type, const json_t *value) {
    if (!type) return true;
    if (json_is_array(type)) {
        for (size_t i = 0; i < json_array_size(type); i++)
            if (allows(json_array_get(type, i), value)) return true;
        return false;
    }
    static const char *const names[] = {
        [JSON_OBJECT] = "object",   [JSON_ARRAY] = "array", [JSON_STRING] = "string",
        [JSON_INTEGER] = "integer", [JSON_REAL] = "number", [JSON_TRUE] = "boolean",
        [JSON_FALSE] = "boolean",   [JSON_NULL] = "null"};
    const char *name = json_string_value(type);
    if (json_is_real(value) && is_whole(value) && strcmp(name, "integer") == 0) return true;
    return strcmp(name, names[json_typeof(value)]) == 0 ||
           (json_is_integer(value) && strcmp(name, "number") == 0);
}

/* ---- parts ---- */

/* Returns what a schema refers to; NULL: there is nothing. */
static const json_t *target_of(const struct reading *r, const json_t *schema) {
    const char *ref = json_string_value(json_object_get(schema, "$ref")) + 1;
    const json_t *at = r->root;
    while (at && *ref == '/') {
        char name[PATH_BYTES];
        const size_t n = strcspn(++ref, "/");
        if (n == 0 || n >= sizeof(name)) return NULL;
        memcpy(name, ref, n);
        name[n] = 0;
        at = json_object_get(at, name);
        ref += n;
    }
    return at;
}

/* MAX_LOOKS: references lead to a schema in many ways, whose number may grow with a power. */
enum { ALL_TYPES = (1 << N_TYPES) - 1, MAX_TYPE_DEPTH = 16, MAX_LOOKS = 16 * SCHEMA_MAX_NODES };

/* Returns the types that the name of one type stands for, a bit for each: an integer is a
 * number. */
static unsigned bits_of(const struct type *type) {
    if (!type) return ALL_TYPES;
    const unsigned bit = 1u << (type - types);
    return type->group == OF_NUMBER ? bit | 1u << (type_named("number") - types) : bit;
}

/* Returns the types that a value may have, a bit for each. */
static unsigned types_of_value(struct reading *r, const json_t *value) {
    unsigned bits = 0;
    if (++r->n_looks > MAX_LOOKS) return ALL_TYPES;
    for (int i = 0; i < N_TYPES; i++) {
        json_t *name = json_string(types[i].name);
        if (!name || allows(name, value)) bits |= bits_of(&types[i]);
        json_decref(name);
    }
    return bits;
}

/* Returns the types that a schema allows, a bit for each; more where that is not known. */
static unsigned types_of(struct reading *r, const json_t *schema, unsigned depth) {
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum");
    const json_t *any = json_object_get(schema, "anyOf"), *one = json_object_get(schema, "const");
    unsigned bits = 0;
    if (depth > MAX_TYPE_DEPTH || !json_is_object(schema) || ++r->n_looks > MAX_LOOKS)
        return ALL_TYPES;
    if (json_object_get(schema, "$ref")) return types_of(r, target_of(r, schema), depth + 1);
    if (one) return types_of_value(r, one);
    for (size_t i = 0; i < json_array_size(list) && bits != ALL_TYPES; i++)
        bits |= types_of_value(r, json_array_get(list, i));
    for (size_t i = 0; i < json_array_size(any) && bits != ALL_TYPES; i++)
        bits |= types_of(r, json_array_get(any, i), depth + 1);
    if (list || any) return bits;
    for (size_t i = 0; i < json_array_size(type); i++)
        bits |= bits_of(type_of(json_array_get(type, i)));
    return json_is_array(type) ? bits : bits_of(type_of(type));
}

/* Says `anyOf` in place of `oneOf` where no value can be of two of its schemas, because no type
 * is. */
static int complete_one_of(struct reading *r, json_t *schema) {
    json_t *list = json_object_get(schema, "oneOf");
    unsigned bits = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const unsigned more = types_of(r, json_array_get(list, i), 0);
        if (bits & more) return 0;
        bits |= more;
    }
    if (json_object_set(schema, "anyOf", list)) return no_memory(r);
    json_object_del(schema, "oneOf");
    return 0;
}

static int read_schema(struct reading *r, json_t *schema, const struct place *at);

static struct place inside(const struct place *at, const char *name) {
    return (struct place){at, name, at->depth + 1};
}

static int read_member(struct reading *r, json_t *schema, const char *keyword,
                       const struct place *at) {
    const struct place place = inside(at, keyword);
    json_t *value = json_object_get(schema, keyword);
    return value ? read_schema(r, value, &place) : 0;
}

/* Reads an object's values as schemas. */
static int read_map(struct reading *r, json_t *schema, const char *keyword,
                    const struct place *at) {
    const struct place outer = inside(at, keyword);
    json_t *map = json_object_get(schema, keyword), *value;
    const char *name;
    int rc = 0;
    if (!map) return 0;
    if (!json_is_object(map)) return refuse(r, at, keyword, "must be an object");
    json_object_foreach(map, name, value) {
        const struct place place = inside(&outer, name);
        if ((rc = read_schema(r, value, &place))) break;
    }
    return rc;
}

static int read_list(struct reading *r, json_t *schema, const char *keyword,
                     const struct place *at) {
    json_t *list = json_object_get(schema, keyword);
    if (!list) return 0;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return refuse(r, at, keyword, "must be an array that is not empty");
    int rc = 0;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        char index[32];
        snprintf(index, sizeof(index), "%zu", i);
        const struct place outer = inside(at, keyword), place = inside(&outer, index);
        rc = read_schema(r, json_array_get(list, i), &place);
    }
    return rc;
}

/* Checks counts, which become repetitions. */
static int check_counts(struct reading *r, const json_t *schema, const struct place *at) {
    static const char *const counts[] = {"minLength", "maxLength",     "minItems",
                                         "maxItems",  "minProperties", "maxProperties"};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        const json_t *value = json_object_get(schema, counts[i]);
        if (!value) continue;
        const json_int_t n = json_integer_value(value);
        if (!json_is_integer(value) || n < 0 || n > SCHEMA_MAX_COUNT)
            return refuse(r, at, counts[i], "must be an integer between 0 and 4096");
    }
    return 0;
}

/* The characters up to U+FFFF, in ranges that begin with one byte of UTF-8 or with all that follow:
 * of others the library makes surrogates, too, which are no text, so that each of their bytes would
 * count as a character. */
#define ANY_CHARACTER                                                                              \
    "([ "                                                                                          \
    "-~]|[\\u00a0-\\u07ff]|[\\u0800-\\u0fff]|[\\u1000-\\ucfff]|[\\ud000-\\ud7ff]|[\\ue000-"        \
    "\\uffff])"

/* Says a string's length by a pattern: the library's own way takes long, and lets control
 * characters through. */
static int pattern_of_length(struct reading *r, json_t *schema, const struct place *at) {
    const json_t *least = json_object_get(schema, "minLength"),
                 *most = json_object_get(schema, "maxLength");
    const json_int_t n_least = json_integer_value(least), n_most = json_integer_value(most);
    char pattern[192];
    if (n_least > SCHEMA_MAX_LENGTH || (most && n_most > SCHEMA_MAX_LENGTH))
        return refuse(r, at, most && n_most > SCHEMA_MAX_LENGTH ? "maxLength" : "minLength",
                      "above 128 is not supported");
    if (most && n_least > n_most) return refuse(r, at, "minLength", "is more than maxLength");
    int n = snprintf(pattern, sizeof(pattern), "^" ANY_CHARACTER "{%d,", (int)n_least);
    if (most) n += snprintf(pattern + n, sizeof(pattern) - (size_t)n, "%d", (int)n_most);
    snprintf(pattern + n, sizeof(pattern) - (size_t)n, "}$");
    json_object_del(schema, "minLength");
    json_object_del(schema, "maxLength");
    return json_object_set_new(schema, "pattern", json_string(pattern)) ? no_memory(r) : 0;
}

/* Tells whether the library may have what a pattern asks for.  It refuses others itself. */
static bool is_plain_pattern(const char *pattern) {
    for (const char *at = pattern; *at; at++) {
        if (at[0] == '(' && at[1] == '?' && at[2] != ':') return false;
        if (at[0] != '\\') continue;
        if (!at[1] || strchr("0123456789bBkpP", at[1])) return false;
        at++;
    }
    return true;
}

/* Writes a pattern's characters beyond ASCII as escapes. */
static int spell_pattern(struct reading *r, json_t *schema, const char *pattern,
                         const struct place *at) {
    const char *fault = regex_text_fault(pattern);
    if (fault) return refuse(r, at, "pattern", fault);
    char *text = regex_text_in_ascii(pattern);
    const int rc = !text || json_object_set_new(schema, "pattern", json_string(text));
    free(text);
    return rc ? no_memory(r) : 0;
}

/* Does so with the one name of patternProperties. */
static int spell_pattern_name(struct reading *r, json_t *patterns, const struct place *at) {
    const char *name = json_object_iter_key(json_object_iter(patterns)),
               *fault = name ? regex_text_fault(name) : NULL;
    if (!name) return 0;
    if (fault) return refuse(r, at, "patternProperties", fault);
    char *text = regex_text_in_ascii(name);
    json_t *value = json_incref(json_object_get(patterns, name));
    json_object_clear(patterns);
    const int rc = !text || json_object_set_new(patterns, text, value);
    if (!text) json_decref(value);
    free(text);
    return rc ? no_memory(r) : 0;
}

/* The formats of JSON Schema.  Any other says nothing. */
static const struct format {
    const char *name;
    bool is_followed; /* by the library, which would take any string else */
} formats[] = {{"email", true},         {"date", true},
               {"time", true},          {"date-time", true},
               {"duration", true},      {"ipv4", true},
               {"ipv6", true},          {"hostname", true},
               {"uuid", true},          {"uri", true},
               {"uri-reference", true}, {"uri-template", true},
               {"idn-email", false},    {"idn-hostname", false},
               {"iri", false},          {"iri-reference", false},
               {"json-pointer", false}, {"relative-json-pointer", false},
               {"regex", false}};

static const struct format *format_of(const json_t *name) {
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
        if (json_is_string(name) && strcmp(json_string_value(name), formats[i].name) == 0)
            return &formats[i];
    return NULL;
}

static int read_string(struct reading *r, json_t *schema, const struct place *at) {
    const struct format *known = format_of(json_object_get(schema, "format"));
    if (!known && json_is_string(json_object_get(schema, "format")))
        json_object_del(schema, "format");
    const json_t *format = json_object_get(schema, "format"),
                 *pattern = json_object_get(schema, "pattern");
    const bool has_length =
        json_object_get(schema, "minLength") || json_object_get(schema, "maxLength");
    if (!format && !pattern && has_length) return pattern_of_length(r, schema, at);
    if (pattern && !json_is_string(pattern)) return refuse(r, at, "pattern", "must be a string");
    if (pattern && has_length)
        return refuse(r, at, "pattern", "is not supported beside minLength or maxLength");
    if (pattern && r->loosens && !is_plain_pattern(json_string_value(pattern)))
        return refuse(r, at, "pattern", "has what is not supported");
    if (!format && pattern) return spell_pattern(r, schema, json_string_value(pattern), at);
    if (!format) return 0;
    if (pattern || has_length)
        return refuse(r, at, "format", "is not supported beside pattern or a length");
    if (known && known->is_followed) return 0;
    char what[96];
    snprintf(what, sizeof(what), "format %.64s",
             json_is_string(format) ? json_string_value(format) : "of another type");
    return refuse(r, at, what, "is not supported");
}

/* The bounds that the library can compare with, and their greatest, which no double is. */
#define MOST_BOUND 1e37
static const char most_bound[] = "-10000000000000000000000000000000000000";

/* Brings a bound into those numbers, which are written without an exponent.  A bound that is beyond
 * doubles says nothing. */
static int fit_bound(struct reading *r, json_t *schema, const char *keyword, bool is_upper,
                     const struct place *at) {
    const json_t *bound = json_object_get(schema, keyword);
    const double x = json_number_value(bound);
    if (!bound) return 0;
    if (!json_is_number(bound)) return refuse(r, at, keyword, "must be a number");
    if (fabs(x) <= MOST_BOUND) return 0;
    if (is_upper != (x > 0)) return refuse(r, at, keyword, "allows no number of 37 digits or less");
    if (fabs(x) == DBL_MAX) {
        json_object_del(schema, keyword);
        return 0;
    }
    json_t *most =
        json_number_create(most_bound + (x > 0), strlen(most_bound) - (x > 0), JSON_REAL);
    return json_object_set_new(schema, keyword, most) ? no_memory(r) : 0;
}

static int fit_bounds(struct reading *r, json_t *schema, const struct place *at) {
    int rc = fit_bound(r, schema, "minimum", false, at);
    if (!rc) rc = fit_bound(r, schema, "exclusiveMinimum", false, at);
    if (!rc) rc = fit_bound(r, schema, "maximum", true, at);
    return rc ? rc : fit_bound(r, schema, "exclusiveMaximum", true, at);
}

/* Checks that some number lies between the bounds. */
static int check_bounds(struct reading *r, const json_t *schema, const struct place *at) {
    static const struct {
        const char *name;
        bool is_lower, is_strict;
    } bounds[] = {{"minimum", true, false},
                  {"exclusiveMinimum", true, true},
                  {"maximum", false, false},
                  {"exclusiveMaximum", false, true}};
    double least = -INFINITY, most = INFINITY;
    bool is_strict = false;
    for (size_t i = 0; i < sizeof(bounds) / sizeof(*bounds); i++) {
        const json_t *value = json_object_get(schema, bounds[i].name);
        if (!value) continue;
        const double bound = json_number_value(value);
        if (bounds[i].is_lower ? bound >= least : bound <= most) is_strict |= bounds[i].is_strict;
        if (bounds[i].is_lower && bound > least) least = bound;
        if (!bounds[i].is_lower && bound < most) most = bound;
        /* Greater integers may be between two that are one double. */
        if (least > most || (least == most && is_strict && fabs(most) < 0x1p53))
            return refuse(r, at, bounds[i].name, "leaves no number beside the other bound");
    }
    return 0;
}

enum { MAX_MULTIPLE = 1024, MAX_MULTIPLES_WIDTH = 10000 };

/* Checks multipleOf, which the library follows within limits. */
static int check_multiple(struct reading *r, const json_t *schema, const struct place *at) {
    const json_t *multiple = json_object_get(schema, "multipleOf");
    const json_t *least = json_object_get(schema, "minimum"),
                 *most = json_object_get(schema, "maximum");
    if (!least) least = json_object_get(schema, "exclusiveMinimum");
    if (!most) most = json_object_get(schema, "exclusiveMaximum");
    const double n = json_number_value(multiple), from = json_number_value(least),
                 to = json_number_value(most);
    if (!json_is_number(multiple) || n < 1 || n > MAX_MULTIPLE || n != floor(n))
        return refuse(r, at, "multipleOf", "must be an integer between 1 and 1024");
    if (fabs(from) > 0x1p53 || fabs(to) > 0x1p53)
        return refuse(r, at, "multipleOf", "is not supported beside bounds beyond 2^53");
    if (least && most && to - from > MAX_MULTIPLES_WIDTH)
        return refuse(r, at, "multipleOf",
                      "is not supported beside bounds that are more than 10000 apart");
    if (least && most && floor(to / n) * n < from)
        return refuse(r, at, "multipleOf", "has no multiple between the bounds");
    return 0;
}

static int read_number(struct reading *r, json_t *schema, const struct place *at) {
    const json_t *type = json_object_get(schema, "type");
    int rc = fit_bounds(r, schema, at);
    if (!rc) rc = check_bounds(r, schema, at);
    if (rc || !json_object_get(schema, "multipleOf")) return rc;
    bool has_reals = type_of(type) == type_named("number");
    for (size_t i = 0; i < json_array_size(type); i++)
        has_reals |= type_of(json_array_get(type, i)) == type_named("number");
    if (has_reals) return refuse(r, at, "multipleOf", "is supported for integers only");
    return check_multiple(r, schema, at);
}

static int read_array(struct reading *r, json_t *schema, const struct place *at) {
    json_t *unique = json_object_get(schema, "uniqueItems"),
           *items = json_object_get(schema, "items");
    if (unique && !json_is_false(unique)) return refuse(r, at, "uniqueItems", "is not supported");
    json_object_del(schema, "uniqueItems");
    int rc = read_list(r, schema, "prefixItems", at);
    if (!rc && !json_is_false(items)) rc = read_member(r, schema, "items", at);
    if (rc || items) return rc;
    /* Behind described items no others need to come, unless they are counted. */
    const size_t n_described = json_array_size(json_object_get(schema, "prefixItems"));
    const json_int_t least = json_integer_value(json_object_get(schema, "minItems"));
    const bool ends = n_described > 0 && least <= (json_int_t)n_described;
    return json_object_set_new(schema, "items", json_boolean(!ends)) ? no_memory(r) : 0;
}

/* ---- objects ---- */

/* Tells whether the object's keys are those of `properties` and no others. */
static bool is_closed(const json_t *schema) {
    return json_is_false(json_object_get(schema, "additionalProperties"));
}

/* Gives required members that have no schema of their own that of additional ones. */
static int name_required(struct reading *r, json_t *schema, const struct place *at) {
    const json_t *required = json_object_get(schema, "required");
    json_t *other = json_object_get(schema, "additionalProperties");
    if (!required) return 0;
    if (!json_is_array(required)) return refuse(r, at, "required", "must be an array");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        json_t *properties = json_object_get(schema, "properties");
        if (!name) return refuse(r, at, "required", "must be an array of strings");
        if (json_object_get(properties, name)) continue;
        if (is_closed(schema))
            return refuse(r, at, "required", "names a property that is not allowed");
        if (json_object_get(schema, "patternProperties"))
            return refuse(r, at, "required",
                          "is not supported beside patternProperties, but for properties");
        if (!properties && json_object_set_new(schema, "properties", json_object()))
            return no_memory(r);
        json_t *value = other ? json_tree_copy(other) : json_true();
        if (json_object_set_new(json_object_get(schema, "properties"), name, value))
            return no_memory(r);
    }
    return 0;
}

/* Refuses keys that could come twice, or be those of properties, where that counts: then a parser
 * sees another object than the grammar did. */
static int check_keys(struct reading *r, const json_t *schema, const struct place *at) {
    const bool has_patterns = json_object_get(schema, "patternProperties"),
               has_names = json_object_get(schema, "propertyNames"),
               has_properties = json_object_get(schema, "properties");
    if (has_patterns && (has_names || has_properties))
        return refuse(r, at, "patternProperties",
                      "is not supported beside properties or propertyNames");
    if (has_names && has_properties)
        return refuse(r, at, "propertyNames", "is not supported beside properties");
    if (json_object_size(json_object_get(schema, "patternProperties")) > 1)
        return refuse(r, at, "patternProperties", "is supported with one pattern only");
    const json_t *other = json_object_get(schema, "additionalProperties");
    if (has_patterns && other && !json_is_false(other))
        return refuse(r, at, "additionalProperties", "must be false beside patternProperties");
    if (!has_properties && json_integer_value(json_object_get(schema, "minProperties")) > 1)
        return refuse(r, at, "minProperties", "above 1 is supported beside properties only");
    return 0;
}

/* Lets the object have its properties alone, if it has any. */
static int close_object(struct reading *r, json_t *schema) {
    const bool has_own =
        json_object_get(schema, "properties") || json_object_get(schema, "patternProperties");
    if (!has_own && json_object_get(schema, "additionalProperties")) return 0;
    return json_object_set_new(schema, "additionalProperties", json_boolean(!has_own))
               ? no_memory(r)
               : 0;
}

static int read_object(struct reading *r, json_t *schema, const struct place *at) {
    int rc = name_required(r, schema, at);
    if (!rc) rc = check_keys(r, schema, at);
    if (!rc) rc = read_map(r, schema, "properties", at);
    if (!rc) rc = read_map(r, schema, "patternProperties", at);
    if (!rc) rc = spell_pattern_name(r, json_object_get(schema, "patternProperties"), at);
    if (!rc && !is_closed(schema)) rc = read_member(r, schema, "additionalProperties", at);
    if (!rc && json_object_get(schema, "propertyNames")) {
        if (!json_is_object(json_object_get(schema, "propertyNames")))
            return refuse(r, at, "propertyNames", "must be an object");
        rc = read_member(r, schema, "propertyNames", at);
    }
    return rc ? rc : close_object(r, schema);
}

/* ---- schemas ---- */

/* Checks `type`; where it is missing, adds the types whose keywords the schema has. */
static int choose_type(struct reading *r, json_t *schema, const struct place *at) {
    const json_t *type = json_object_get(schema, "type");
    if (json_array_size(type) > N_TYPES)
        return refuse(r, at, "type", "must be an array that has each name once");
    for (size_t i = 0; i < json_array_size(type); i++)
        if (!type_of(json_array_get(type, i))) return refuse(r, at, "type", "has an unknown name");
    if (type && !type_of(type) && json_array_size(type) == 0)
        return refuse(r, at, "type", "must be the name of a type, or an array of names");
    if (type) return 0;
    json_t *names = json_array();
    bool failed = !names;
    for (enum group group = OF_STRING; group <= OF_OBJECT; group++) {
        const char *name;
        json_t *value;
        bool has = false;
        json_object_foreach(schema, name, value) has |= group_of(name) == group;
        for (int i = 0; i < N_TYPES && has; i++)
            if (types[i].group == group && strcmp(types[i].name, "integer") != 0)
                failed |= json_array_append_new(names, json_string(types[i].name)) < 0;
    }
    if (!failed && json_array_size(names) == 1)
        failed |= json_object_set(schema, "type", json_array_get(names, 0)) < 0;
    else if (!failed && json_array_size(names) > 1)
        failed |= json_object_set(schema, "type", names) < 0;
    json_decref(names);
    return failed ? no_memory(r) : 0;
}

/* Drops keywords of types that the value does not have: JSON Schema gives them no meaning. */
static void drop_others(json_t *schema) {
    const json_t *type = json_object_get(schema, "type");
    for (size_t i = 0; i < sizeof(keywords) / sizeof(*keywords); i++)
        if (keywords[i].group >= OF_STRING && keywords[i].group < NEVER &&
            !has_group(type, keywords[i].group))
            json_object_del(schema, keywords[i].name);
}

static int read_typed(struct reading *r, json_t *schema, const struct place *at) {
    int rc = choose_type(r, schema, at);
    if (rc || !json_object_get(schema, "type")) return rc;
    drop_others(schema);
    const json_t *type = json_object_get(schema, "type");
    rc = check_counts(r, schema, at);
    if (!rc && has_group(type, OF_STRING)) rc = read_string(r, schema, at);
    if (!rc && has_group(type, OF_NUMBER)) rc = read_number(r, schema, at);
    if (!rc && has_group(type, OF_ARRAY)) rc = read_array(r, schema, at);
    return rc || !has_group(type, OF_OBJECT) ? rc : read_object(r, schema, at);
}

/* Drops values of an enum that `type` does not allow. */
static int drop_values(struct reading *r, json_t *schema, const json_t *type) {
    const json_t *values = json_object_get(schema, "enum");
    json_t *kept = json_array();
    bool failed = !kept;
    for (size_t i = 0; i < json_array_size(values) && !failed; i++) {
        json_t *value = json_array_get(values, i);
        if (allows(type, value)) failed = json_array_append(kept, value) < 0;
    }
    failed |= json_object_set(schema, "enum", kept) < 0;
    json_decref(kept);
    return failed ? no_memory(r) : 0;
}

/* Reads const or enum, whose values then say what `type` has said. */
static int read_values(struct reading *r, json_t *schema, const struct place *at) {
    const json_t *type = json_object_get(schema, "type"), *value = json_object_get(schema, "const");
    int rc = type ? choose_type(r, schema, at) : 0;
    if (rc) return rc;
    if (value && !allows(type, value)) return refuse(r, at, "const", "is not of the type");
    if (!value && !json_is_array(json_object_get(schema, "enum")))
        return refuse(r, at, "enum", "must be an array");
    rc = value ? 0 : drop_values(r, schema, type);
    if (rc) return rc;
    const size_t n = json_array_size(json_object_get(schema, "enum"));
    if (!value && n == 0) return refuse(r, at, "enum", "has no value of the type");
    r->n_nodes += (unsigned)n;
    json_object_del(schema, "type");
    return 0;
}

static int read_ref(struct reading *r, const json_t *schema, const struct place *at) {
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (!ref || (strcmp(ref, "#") != 0 && strncmp(ref, "#/", 2) != 0) || strpbrk(ref, "~%"))
        return refuse(r, at, "$ref",
                      "must be # or begin with #/, and have no escapes: other documents are not "
                      "read");
    r->refs[r->n_refs++] = schema;
    return 0;
}

/* Returns the schema's keyword that says what it is; NULL: its type does.  *n: how many there
 * are. */
static const char *shape_of(const json_t *schema, unsigned *n) {
    const char *shape = NULL;
    *n = 0;
    for (size_t i = 0; i < sizeof(keywords) / sizeof(*keywords); i++) {
        if (keywords[i].group != SHAPE || !json_object_get(schema, keywords[i].name)) continue;
        if (!shape) shape = keywords[i].name;
        ++*n;
    }
    return shape;
}

/* Refuses keywords that the library would leave out beside the one that says what the schema is. */
static int check_beside(struct reading *r, json_t *schema, const char *shape,
                        const struct place *at) {
    const bool is_value = shape && (strcmp(shape, "const") == 0 || strcmp(shape, "enum") == 0);
    const char *name;
    json_t *value;
    json_object_foreach(schema, name, value) {
        const enum group group = group_of(name);
        if (group == NEVER) return refuse(r, at, name, "is not supported");
        if (!shape || group == ANNOTATION || strcmp(name, shape) == 0) continue;
        if (is_value && group == TYPE) continue;
        char why[96];
        snprintf(why, sizeof(why), "is not supported beside %s", shape);
        return refuse(r, at, name, why);
    }
    return 0;
}

static int read_shape(struct reading *r, json_t *schema, const char *shape,
                      const struct place *at) {
    if (strcmp(shape, "$ref") == 0) return read_ref(r, schema, at);
    if (strcmp(shape, "const") == 0 || strcmp(shape, "enum") == 0)
        return read_values(r, schema, at);
    if (strcmp(shape, "allOf") == 0 && json_array_size(json_object_get(schema, shape)) > 1)
        return refuse(r, at, shape, "is supported with one schema only");
    const int rc = read_list(r, schema, shape, at);
    return rc || strcmp(shape, "oneOf") != 0 ? rc : complete_one_of(r, schema);
}

/* Makes a choice of what the schema's member says, or null. */
static bool choose_null(json_t *schema, const char *member) {
    json_t *value = json_object_get(schema, member);
    if (!value) return true;
    json_t *list = json_pack("[{s:O}, {s:s}]", member, value, "type", "null");
    return json_object_set_new(schema, "anyOf", list) == 0 && json_object_del(schema, member) == 0;
}

static bool list_null(json_t *list, json_t *null) {
    if (json_is_array(list)) return json_array_append_new(list, null) == 0;
    json_decref(null);
    return true;
}

/* Allows null, as OpenAPI's `nullable` asks for: among the types, values or choices, or as a
 * choice. */
static int allow_null(struct reading *r, json_t *schema) {
    const json_t *type = json_object_get(schema, "type"), *one = json_object_get(schema, "const");
    const bool allows = json_is_true(json_object_get(schema, "nullable"));
    json_object_del(schema, "nullable");
    if (!allows) return 0;
    bool made = true;
    if (json_is_string(type))
        made = json_object_set_new(schema, "type", json_pack("[O, s]", type, "null")) == 0;
    else made = list_null(json_object_get(schema, "type"), json_string("null"));
    if (one) {
        made = made && json_object_set_new(schema, "enum", json_pack("[O]", one)) == 0;
        json_object_del(schema, "const");
    }
    made = made && list_null(json_object_get(schema, "enum"), json_null()) &&
           list_null(json_object_get(schema, "anyOf"), json_pack("{s:s}", "type", "null")) &&
           list_null(json_object_get(schema, "oneOf"), json_pack("{s:s}", "type", "null")) &&
           choose_null(schema, "$ref") && choose_null(schema, "allOf");
    return made ? 0 : no_memory(r);
}

/* Lets a schema that the library cannot follow allow all values of its types. */
static int loosen(struct reading *r, json_t *schema, const struct place *at) {
    json_t *type = json_incref(json_object_get(schema, "type"));
    bool is_known = type_of(type) || json_array_size(type) > 0;
    for (size_t i = 0; i < json_array_size(type); i++)
        is_known = is_known && type_of(json_array_get(type, i));
    json_object_clear(schema);
    const bool failed = is_known && json_object_set(schema, "type", type) < 0;
    json_decref(type);
    r->seen[r->n_seen++] = schema;
    return failed ? no_memory(r) : read_typed(r, schema, at);
}

static int read_strictly(struct reading *r, json_t *schema, const struct place *at) {
    unsigned n_shapes;
    if (json_is_true(schema)) return 0;
    if (json_is_false(schema)) return refuse(r, at, "false", "allows no value");
    if (!json_is_object(schema)) return refuse(r, at, "this", "must be an object or true");
    if (at->depth > SCHEMA_MAX_DEPTH) return refuse(r, at, "this", "is nested too deeply");
    if (++r->n_nodes > SCHEMA_MAX_NODES || r->n_seen >= SCHEMA_MAX_NODES)
        return refuse(r, at, "this", "is too much: a schema may have 4096 parts");
    r->seen[r->n_seen++] = schema;
    if (json_object_get(schema, "nullable") && allow_null(r, schema)) return ERR_NOMEM;
    if (at->parent && json_object_get(schema, "$id"))
        return refuse(r, at, "$id", "is supported at the root only");
    const char *shape = shape_of(schema, &n_shapes);
    int rc = check_beside(r, schema, shape, at);
    if (!rc) rc = read_map(r, schema, "$defs", at);
    if (!rc) rc = read_map(r, schema, "definitions", at);
    if (rc) return rc;
    return shape ? read_shape(r, schema, shape, at) : read_typed(r, schema, at);
}

static int read_schema(struct reading *r, json_t *schema, const struct place *at) {
    const unsigned n_seen = r->n_seen, n_refs = r->n_refs;
    const int rc = read_strictly(r, schema, at);
    const bool is_part = json_is_object(schema) && r->n_nodes < SCHEMA_MAX_NODES;
    if (rc != ERR_INVALID || !r->loosens || !is_part) return rc;
    r->n_seen = n_seen; /* what it holds is no more */
    r->n_refs = n_refs;
    return loosen(r, schema, at);
}

/* ---- references ---- */

static int by_address(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t) * (const json_t *const *)a,
                    y = (uintptr_t) * (const json_t *const *)b;
    return (x > y) - (x < y);
}

/* Finds a schema among those that have been read, which are in order.  NULL: it is not there. */
static const json_t **find_seen(const struct reading *r, const json_t *schema) {
    return bsearch(&schema, r->seen, r->n_seen, sizeof(*r->seen), by_address);
}

static const json_t *choices_of(const json_t *schema) {
    static const char *const names[] = {"anyOf", "oneOf", "allOf"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *list = json_object_get(schema, names[i]);
        if (list) return list;
    }
    return NULL;
}

/* Tells whether references and choices lead from a schema to one that says what a value is.  A
 * schema that was met before in the same round has nothing more to tell. */
static bool leads_to_values(const struct reading *r, const json_t *schema, uint16_t round) {
    const json_t **at = find_seen(r, schema), *list = choices_of(schema), *one;
    if (!at) return true; /* it allows any value, or is no schema, which is refused as such */
    uint16_t *mark = &r->marks[at - r->seen];
    if (*mark == LEADS || *mark == round) return *mark == LEADS;
    *mark = round;
    bool leads = !list;
    size_t i;
    if (json_object_get(schema, "$ref")) leads = leads_to_values(r, target_of(r, schema), round);
    json_array_foreach(list, i, one) leads = leads || leads_to_values(r, one, round);
    if (leads) *mark = LEADS;
    return leads;
}

/* Checks that references lead to schemas that have been read, and not only to each other. */
static int check_refs(struct reading *r) {
    const struct place root = {0};
    qsort(r->seen, r->n_seen, sizeof(*r->seen), by_address);
    for (unsigned i = 0; i < r->n_refs; i++) {
        const json_t *from = r->refs[i], *target = target_of(r, from);
        char what[96];
        snprintf(what, sizeof(what), "$ref %.64s",
                 json_string_value(json_object_get(from, "$ref")));
        if (!target || !(json_is_true(target) || find_seen(r, target)))
            return refuse(r, &root, what, "refers to no schema");
        if (!leads_to_values(r, from, (uint16_t)(i + 1)))
            return refuse(r, &root, what, "refers to itself alone");
    }
    return 0;
}

static int prepare(json_t **out, const json_t *schema, bool loosens, struct error *err) {
    const struct place root = {0};
    json_t *copy = json_tree_copy(schema);
    struct reading r = {.root = copy, .loosens = loosens, .err = err};
    r.seen = calloc(SCHEMA_MAX_NODES + 1, sizeof(*r.seen));
    r.refs = calloc(SCHEMA_MAX_NODES + 1, sizeof(*r.refs));
    r.marks = calloc(SCHEMA_MAX_NODES + 1, sizeof(*r.marks));
    int rc = copy && r.seen && r.refs && r.marks ? read_schema(&r, copy, &root) : no_memory(&r);
    if (!rc) rc = check_refs(&r);
    if (rc == ERR_INVALID && loosens && json_is_object(copy)) {
        r.n_seen = 0;
        rc = loosen(&r, copy, &root);
    }
    free(r.seen);
    free(r.refs);
    free(r.marks);
    if (rc) json_decref(copy);
    else *out = copy;
    return rc;
}

int schema_prepare(json_t **out, const json_t *schema, struct error *err) {
    return prepare(out, schema, false, err);
}

int schema_prepare_loosely(json_t **out, const json_t *schema, struct error *err) {
    return prepare(out, schema, true, err);
}
