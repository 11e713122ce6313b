/* test_grammar.c - schemas before the library sees them, and the cache of compiled grammars. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/grammar/schema.h"
#include "tests/grammar/grammar_rig.h"
#include "tests/test.h"

static json_t *parse(const char *text) {
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!value) fail_msg("no JSON: %s", text);
    return value;
}

/* What a schema becomes; and what is refused, with what the text must say. */
static const struct {
    const char *schema, *becomes, *refusal;
} cases[] = {
    {"true", "true", NULL},
    {"{}", "{}", NULL},
    {"{\"minimum\":3}", "{\"minimum\":3,\"type\":\"number\"}", NULL},
    {"{\"type\":\"integer\",\"maxLength\":3}", "{\"type\":\"integer\"}", NULL},
    {"{\"type\":\"string\",\"enum\":[1,\"a\"]}", "{\"enum\":[\"a\"]}", NULL},
    {"{\"type\":\"object\"}", "{\"type\":\"object\",\"additionalProperties\":true}", NULL},
    {"{\"required\":[\"a\"]}",
     "{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":true},"
     "\"additionalProperties\":false}",
     NULL},
    {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"additionalProperties\":true}",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"additionalProperties\":false}",
     NULL},
    {"{\"type\":\"array\",\"uniqueItems\":false}", "{\"type\":\"array\",\"items\":true}", NULL},
    {"{\"type\":\"string\",\"pattern\":\"[\u00e4-\u00fc]\U0001f600\"}",
     "{\"type\":\"string\",\"pattern\":\"[\\\\u{e4}-\\\\u{fc}]\\\\u{1f600}\"}", NULL},
    {"{\"type\":\"object\",\"patternProperties\":{\"^\u00e4\":{\"type\":\"null\"}}}",
     "{\"type\":\"object\",\"patternProperties\":{\"^\\\\u{e4}\":{\"type\":\"null\"}},"
     "\"additionalProperties\":false}",
     NULL},
    {"{\"type\":\"string\",\"pattern\":\"\\\\ud83d\\\\ude00\"}", NULL,
     "pattern names half of a character"},
    {"{\"prefixItems\":[true]}", "{\"type\":\"array\",\"prefixItems\":[true],\"items\":false}",
     NULL},
    {"{\"description\":\"x\",\"x-y\":1,\"title\":\"t\"}",
     "{\"description\":\"x\",\"x-y\":1,\"title\":\"t\"}", NULL},
    {"false", NULL, "#: false allows no value"},
    {"3", NULL, "must be an object"},
    {"{\"not\":{}}", NULL, "#: not is not supported"},
    {"{\"properties\":{\"a\":{\"items\":{\"contains\":1}}}}", NULL,
     "#/properties/a/items: contains"},
    {"{\"properties\":{\"a\":{\"items\":[]}}}", NULL,
     "#/properties/a/items: this must be an object"},
    {"{\"$ref\":\"#/definitions/a\"}", NULL, "refers to no schema"},
    {"{\"$ref\":\"#\"}", NULL, "refers to itself alone"},
    {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/b\"},"
     "{\"$ref\":\"#/$defs/a\"}]},\"b\":{\"allOf\":[{\"$ref\":\"#/$defs/a\"}]}}}",
     NULL, "refers to itself alone"},
    {"{\"default\":{\"not\":1},\"properties\":{\"a\":{\"$ref\":\"#/default\"}}}", NULL,
     "refers to no schema"},
    {"{\"$ref\":\"other.json\"}", NULL, "$ref must be #"},
    {"{\"anyOf\":[{}],\"type\":\"string\"}", NULL, "type is not supported beside anyOf"},
    {"{\"allOf\":[{},{}]}", NULL, "allOf is supported with one schema only"},
    {"{\"type\":\"words\"}", NULL, "type must be"},
    {"{\"type\":[\"null\",3]}", NULL, "type has an unknown name"},
    /* Each value of an enum is compared with each name. */
    {"{\"type\":[\"null\",\"null\",\"null\",\"null\",\"null\",\"null\",\"null\",\"null\"],"
     "\"enum\":[null]}",
     NULL, "type must be an array that has each name once"},
    {"{\"type\":\"string\",\"maxLength\":129}", NULL, "maxLength above 128"},
    {"{\"type\":\"string\",\"minLength\":-1}", NULL, "minLength must be an integer"},
    {"{\"type\":\"string\",\"pattern\":\"a\",\"minLength\":1}", NULL,
     "pattern is not supported beside"},
    {"{\"type\":\"string\",\"format\":\"regex\"}", NULL, "format regex is not supported"},
    {"{\"type\":\"number\",\"multipleOf\":2}", NULL, "multipleOf is supported for integers"},
    {"{\"type\":\"array\",\"maxItems\":1e9}", NULL, "maxItems must be an integer"},
    {"{\"patternProperties\":{\"a\":true},\"properties\":{}}", NULL,
     "patternProperties is not supported"},
    {"{\"minProperties\":2}", NULL, "minProperties above 1"},
    {"{\"required\":[\"a\"],\"additionalProperties\":false}", NULL, "required names a property"},
    {"{\"enum\":[]}", NULL, "enum has no value"},
    {"{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^a$\"},{\"type\":\"object\"}]}",
     "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a$\"},{\"type\":\"object\","
     "\"additionalProperties\":true}]}",
     NULL},
    {"{\"oneOf\":[{\"$ref\":\"#/$defs/"
     "a\"},{\"const\":\"x\"},{\"enum\":[null,true]}],\"$defs\":{\"a\":{"
     "\"type\":\"integer\"}}}",
     "{\"anyOf\":[{\"$ref\":\"#/$defs/"
     "a\"},{\"const\":\"x\"},{\"enum\":[null,true]}],\"$defs\":{\"a\":{"
     "\"type\":\"integer\"}}}",
     NULL},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
     "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", NULL},
    {"{\"oneOf\":[{\"type\":[\"string\",\"null\"]},{\"const\":null}]}",
     "{\"oneOf\":[{\"type\":[\"string\",\"null\"]},{\"const\":null}]}", NULL},
    {"{\"properties\":{\"p\":{\"type\":\"number\",\"minimum\":3,\"exclusiveMaximum\":3}}}", NULL,
     "#/properties/p: exclusiveMaximum leaves no number"},
    {"{\"type\":\"integer\",\"maximum\":\"3\"}", NULL, "#: maximum must be a number"},
    {"{\"type\":\"integer\",\"multipleOf\":0.5}", NULL, "#: multipleOf must be an integer between"},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"maximum\":6}", NULL,
     "#: multipleOf has no multiple"},
    {"{\"items\":{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":0,\"maximum\":1000000}}", NULL,
     "#/items: multipleOf is not supported beside bounds"},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":4}",
     "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":4}", NULL},
    {"{\"const\":1,\"type\":\"string\"}", NULL, "const is not of the type"},
    /* What JSON Schema does not know says nothing. */
    {"{\"type\":\"string\",\"enumNames\":[\"a\"],\"propertyOrdering\":[\"b\"]}",
     "{\"type\":\"string\",\"enumNames\":[\"a\"],\"propertyOrdering\":[\"b\"]}", NULL},
    {"{\"type\":\"string\",\"format\":\"path\",\"minLength\":0,\"maxLength\":129}", NULL,
     "maxLength above 128"},
    {"{\"type\":\"string\",\"format\":\"path\"}", "{\"type\":\"string\"}", NULL},
    {"{\"type\":\"string\",\"format\":3}", NULL, "format of another type"},
    {"{\"if\":{}}", NULL, "#: if is not supported"},
    /* OpenAPI's way to allow null. */
    {"{\"type\":\"string\",\"nullable\":false}", "{\"type\":\"string\"}", NULL},
    {"{\"type\":\"string\",\"nullable\":true}", "{\"type\":[\"string\",\"null\"]}", NULL},
    {"{\"type\":[\"string\",\"integer\"],\"nullable\":true}",
     "{\"type\":[\"string\",\"integer\",\"null\"]}", NULL},
    {"{\"type\":\"string\",\"enum\":[\"a\"],\"nullable\":true}", "{\"enum\":[\"a\",null]}", NULL},
    {"{\"type\":\"string\",\"const\":\"a\",\"nullable\":true}", "{\"enum\":[\"a\",null]}", NULL},
    {"{\"anyOf\":[{\"type\":\"string\"}],\"nullable\":true}",
     "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", NULL},
    {"{\"items\":{\"$ref\":\"#/$defs/"
     "a\",\"nullable\":true},\"type\":\"array\",\"$defs\":{\"a\":true}}",
     "{\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]},\"type\":\"array\","
     "\"$defs\":{\"a\":true}}",
     NULL},
    {"{\"nullable\":true}", "{}", NULL},
};

/* What a schema becomes where the parts that cannot be followed allow more. */
static const struct {
    const char *schema, *becomes, *says; /* NULL: all of it is followed */
} loosened[] = {
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":"
     "\"string\"},"
     "\"uniqueItems\":true},\"b\":{\"type\":\"integer\",\"minimum\":0}}}",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":true},"
     "\"b\":{\"type\":\"integer\",\"minimum\":0}},\"additionalProperties\":false}",
     "#/properties/a: uniqueItems"},
    {"{\"properties\":{\"a\":{\"type\":[\"string\",\"null\"],\"maxLength\":500,\"title\":\"A\"}}}",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":[\"string\",\"null\"]}},"
     "\"additionalProperties\":false}",
     "#/properties/a: maxLength"},
    {"{\"properties\":{\"a\":{\"type\":\"STRING\"},\"b\":{\"not\":{}},\"c\":{\"items\":[]}}}",
     "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{\"type\":\"array\",\"items\":"
     "true}},"
     "\"additionalProperties\":false}",
     "#/properties/c"},
    {"{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^(?!x)\\\\d$\"},"
     "\"b\":{\"type\":\"string\",\"pattern\":\"^(?:a|\\\\d)$\"}}}",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},"
     "\"b\":{\"type\":\"string\",\"pattern\":\"^(?:a|\\\\d)$\"}},\"additionalProperties\":false}",
     "#/properties/a: pattern"},
    {"{\"type\":\"object\",\"anyOf\":[{\"required\":[\"a\"]}],\"properties\":{\"a\":true}}",
     "{\"type\":\"object\",\"additionalProperties\":true}", "#: type"},
    /* Of a part that is no more, nothing is referred to. */
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{},\"properties\":{\"b\":{}}},"
     "\"c\":{\"$ref\":\"#/properties/a/properties/b\"}}}",
     "{\"type\":\"object\",\"additionalProperties\":true}", "refers to no schema"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"}},\"$defs\":{\"n\":{"
     "\"type\":\"string\",\"maxLength\":999}}}",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"}},\"$defs\":{\"n\":{"
     "\"type\":\"string\"}},\"additionalProperties\":false}",
     "#/$defs/n: maxLength"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"additionalProperties\":"
     "false}",
     NULL},
};

TEST(schemas_that_are_loosened_name_what_is_not_followed) {
    for (size_t i = 0; i < sizeof(loosened) / sizeof(*loosened); i++) {
        struct error err = {0};
        json_t *schema = parse(loosened[i].schema), *wanted = parse(loosened[i].becomes),
               *out = NULL;
        if (schema_prepare_loosely(&out, schema, &err))
            fail_msg("%s: %s", loosened[i].schema, err.text);
        if (!json_equal(out, wanted)) fail_msg("%s became something else", loosened[i].schema);
        if (!loosened[i].says) assert_string_equal(err.text, "");
        else if (!strstr(err.text, loosened[i].says))
            fail_msg("%s: %s", loosened[i].schema, err.text);
        json_decref(out);
        json_decref(wanted);
        json_decref(schema);
    }
}

TEST(too_much_is_loosened_as_a_whole) {
    struct error err = {0};
    json_t *all = json_object(), *out = NULL;
    for (int i = 0; i < SCHEMA_MAX_NODES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "p%d", i);
        json_object_set_new(all, name, json_object());
    }
    json_t *wide = json_pack("{s:s, s:o}", "type", "object", "properties", all);
    assert_int_equal(schema_prepare_loosely(&out, wide, &err), 0);
    assert_non_null(strstr(err.text, "too much"));
    assert_int_equal(json_object_size(out), 2);
    json_decref(out);
    json_decref(wide);
}

TEST(schemas_are_completed_or_refused_by_name) {
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct error err = {0};
        json_t *schema = parse(cases[i].schema), *out = NULL;
        const int code = schema_prepare(&out, schema, &err);
        if (cases[i].becomes) {
            if (code) fail_msg("%s: %s", cases[i].schema, err.text);
            json_t *wanted = parse(cases[i].becomes);
            if (!json_equal(out, wanted)) fail_msg("%s became something else", cases[i].schema);
            json_decref(wanted);
            json_decref(out);
        } else {
            if (!code) fail_msg("%s is not refused", cases[i].schema);
            assert_int_equal(code, ERR_INVALID);
            if (!strstr(err.text, cases[i].refusal)) fail_msg("%s: %s", cases[i].schema, err.text);
        }
        json_decref(schema);
    }
}

TEST(deep_and_wide_schemas_are_refused) {
    struct error err = {0};
    json_t *deep = json_true(), *wide = json_object(), *all = json_object(), *out = NULL;
    for (int i = 0; i < SCHEMA_MAX_DEPTH + 2; i++)
        deep = json_pack("{s:s, s:o}", "type", "array", "items", deep);
    assert_int_equal(schema_prepare(&out, deep, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "nested too deeply"));
    for (int i = 0; i < SCHEMA_MAX_NODES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "p%d", i);
        json_object_set_new(all, name, json_object());
    }
    json_object_set_new(wide, "properties", all);
    assert_int_equal(schema_prepare(&out, wide, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "too much"));
    json_decref(deep);
    json_decref(wide);
}

/* Each value costs one look, also where many of the wrong type stand among others. */
TEST(values_of_another_type_are_dropped) {
    enum { N_VALUES = 400000 };
    struct error err = {0};
    json_t *values = json_array(), *out = NULL;
    for (int i = 0; i < N_VALUES; i++)
        json_array_append_new(values, i % 2 ? json_string("a") : json_integer(1));
    json_t *schema = json_pack("{s:s, s:o}", "type", "string", "enum", values);
    assert_int_equal(schema_prepare(&out, schema, &err), 0);
    const json_t *kept = json_object_get(out, "enum");
    assert_int_equal(json_array_size(kept), N_VALUES / 2);
    for (size_t i = 0; i < N_VALUES / 2; i++) assert_true(json_is_string(json_array_get(kept, i)));
    json_decref(out);
    json_decref(schema);
}

/* 40 references to each of seven schemas, one behind the other, are 40 to the seventh ways. */
TEST(many_ways_to_a_schema_are_not_all_gone) {
    enum { N_STEPS = 7, N_WAYS = 40 };
    struct error err = {0};
    json_t *schemas = json_pack("{s:{s:s}}", "a7", "type", "string"), *out = NULL;
    for (int i = 0; i < N_STEPS; i++) {
        char name[8], to[16];
        json_t *ways = json_array();
        snprintf(name, sizeof(name), "a%d", i);
        snprintf(to, sizeof(to), "#/$defs/a%d", i + 1);
        for (int k = 0; k < N_WAYS; k++)
            json_array_append_new(ways, json_pack("{s:s}", "$ref", to));
        json_object_set_new(schemas, name, json_pack("{s:o}", "anyOf", ways));
    }
    json_t *schema = json_pack("{s:[{s:s}, {s:s}], s:o}", "oneOf", "$ref", "#/$defs/a0", "type",
                               "null", "$defs", schemas);
    assert_int_equal(schema_prepare(&out, schema, &err), 0);
    assert_non_null(json_object_get(out, "oneOf")); /* not known to be of two types */
    json_decref(out);
    json_decref(schema);
}

TEST(the_cache_keeps_what_was_used_last) {
    struct error err = {0};
    if (!grammar_is_available()) skip();
    struct grammar_cache *cache = rig_cache(256 << 20);
    struct grammar *first = rig_get(cache, GRAMMAR_REGEX, "[a-z]+"),
                   *again = rig_get(cache, GRAMMAR_REGEX, "[a-z]+");
    assert_ptr_equal(first, again);
    assert_null(grammar_cache_find(cache, GRAMMAR_EBNF, "[a-z]+", 6)); /* another kind */
    for (int i = 0; i < 300; i++) {
        char regex[32];
        snprintf(regex, sizeof(regex), "a{%d}", i + 1);
        grammar_unref(rig_get(cache, GRAMMAR_REGEX, regex));
        grammar_unref(rig_get(cache, GRAMMAR_REGEX, "[a-z]+"));
    }
    assert_int_equal(grammar_cache_n_kept(cache), 256);
    struct grammar *kept = grammar_cache_find(cache, GRAMMAR_REGEX, "[a-z]+", 6);
    assert_ptr_equal(kept, first);
    assert_null(grammar_cache_find(cache, GRAMMAR_REGEX, "a{1}", 4));
    grammar_unref(kept);
    grammar_cache_destroy(cache); /* a sequence may still use a grammar */
    struct grammar_matcher *matcher;
    uint32_t *mask = calloc(grammar_mask_words(tokenizer_n_vocab(rig_tokenizer)), sizeof(*mask));
    assert_int_equal(grammar_matcher_create(&matcher, first), 0);
    assert_int_equal(grammar_matcher_mask(matcher, mask), 0);
    grammar_matcher_destroy(matcher);
    free(mask);
    grammar_unref(first);
    grammar_unref(again);
    cache = rig_cache(16);
    struct grammar *none = NULL;
    assert_int_equal(grammar_cache_get(cache, &none, GRAMMAR_REGEX, "a", 1, NULL, &err),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "takes more than"));
    grammar_cache_destroy(cache);
}

/* Each token is tried by a matcher of its own: the mask must say what that says. */
TEST(masks_say_what_is_accepted) {
    if (!grammar_is_available()) skip();
    const uint32_t n_vocab = tokenizer_n_vocab(rig_tokenizer);
    struct grammar_cache *cache = rig_cache(256 << 20);
    struct grammar *grammar = rig_get(cache, GRAMMAR_REGEX, "(th|[a-m]*) [0-9]{2}");
    struct grammar_matcher *matcher;
    uint32_t *mask = calloc(grammar_mask_words(n_vocab), sizeof(*mask)), n_allowed = 0;
    assert_int_equal(grammar_matcher_create(&matcher, grammar), 0);
    assert_int_equal(grammar_matcher_mask(matcher, mask), 0);
    for (uint32_t i = 0; i < n_vocab; i++) {
        struct grammar_matcher *own;
        assert_int_equal(grammar_matcher_create(&own, grammar), 0);
        const bool is_allowed = mask[i / 32] >> i % 32 & 1;
        assert_int_equal(grammar_matcher_accept(own, i) == 0, is_allowed);
        n_allowed += is_allowed;
        grammar_matcher_destroy(own);
    }
    assert_true(n_allowed > 10 && n_allowed < n_vocab / 2);
    grammar_matcher_destroy(matcher);
    free(mask);
    grammar_unref(grammar);
    grammar_cache_destroy(cache);
}

TEST(white_space_is_that_of_unicode) {
    static const char *const spaces[] = {" ",      "\u00a0", "\u1680", "\u2007", "\u2028",
                                         "\u202f", "\u205f", "\u3000", "\ufeff"};
    struct grammar *grammars[4];
    if (!grammar_is_available()) skip();
    struct grammar_cache *cache = rig_cache(256 << 20);
    grammars[0] = rig_get(cache, GRAMMAR_REGEX, "a[^\\s]b");
    grammars[1] = rig_get(cache, GRAMMAR_REGEX, "a\\Sb");
    grammars[2] = rig_get(cache, GRAMMAR_REGEX, "a[\\s]b");
    const char *const schema = "{\"type\":\"string\",\"pattern\":\"^a[^\\\\s]b$\"}";
    grammars[3] = rig_get(cache, GRAMMAR_JSON_SCHEMA, schema);
    for (size_t i = 0; i < sizeof(spaces) / sizeof(*spaces); i++) {
        char text[16], quoted[20];
        snprintf(text, sizeof(text), "a%sb", spaces[i]);
        snprintf(quoted, sizeof(quoted), "\"%s\"", text);
        assert_false(rig_takes(grammars[0], text, false));
        assert_false(rig_takes(grammars[1], text, false));
        assert_true(rig_takes(grammars[2], text, false));
        assert_false(rig_takes(grammars[3], quoted, false));
    }
    assert_true(rig_takes(grammars[0], "a\u2060b", false)); /* joins words: no space */
    assert_true(rig_takes(grammars[3], "\"a\u00e9b\"", false));
    for (size_t i = 0; i < 4; i++) grammar_unref(grammars[i]);
    grammar_cache_destroy(cache);
}

/* Half of a surrogate pair alone is no character: parsers refuse what has it. */
TEST(escapes_are_characters) {
    static const char *const good[] = {"\\u0041", "\\ud7ff",         "\\uD834\\udd1e", "\\ue000",
                                       "\\uFFFF", "\\uDBFF\\uDFFFx", "\\n\\\\ud800"};
    static const char *const bad[] = {"\\ud800",        "\\uDBFFx",       "\\udc00",
                                      "\\ud800\\ud800", "\\ud800\\u0041", "\\uD834\\n",
                                      "\\ud834\\udd1"};
    static const char *const schemas[] = {
        "{\"type\":\"string\"}", "{\"type\":\"object\"}",
        "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"}}"};
    static const char *const forms[] = {"\"%s\"", "{\"a\": [\"%s\"]}", "{\"%s\": null}"};
    if (!grammar_is_available()) skip();
    struct grammar_cache *cache = rig_cache(256 << 20);
    for (size_t i = 0; i < sizeof(schemas) / sizeof(*schemas); i++) {
        struct grammar *grammar;
        char text[48];
        grammar = rig_get(cache, GRAMMAR_JSON_SCHEMA, schemas[i]);
        for (size_t n = 0; n < sizeof(good) / sizeof(*good); n++) {
            snprintf(text, sizeof(text), forms[i], good[n]);
            if (!rig_takes(grammar, text, false)) fail_msg("%s is refused", text);
        }
        for (size_t n = 0; n < sizeof(bad) / sizeof(*bad); n++) {
            snprintf(text, sizeof(text), forms[i], bad[n]);
            if (rig_takes(grammar, text, false)) fail_msg("%s is taken", text);
        }
        grammar_unref(grammar);
    }
    grammar_cache_destroy(cache);
}

/* As they are, in brackets, and in names of properties; halves of pairs are refused. */
TEST(patterns_have_letters_beyond_ascii) {
    static const struct {
        const char *schema, *good, *bad;
    } each[] = {
        {"{\"type\":\"string\",\"pattern\":\"\u00e4?b\"}", "\"\u00e4b\"", "\"\u00fcb\""},
        {"{\"type\":\"string\",\"pattern\":\"[\u00e4-\u00fc]+\"}", "\"\u00e9\u00fc\"", "\"a\""},
        {"{\"type\":\"string\",\"pattern\":\"\U0001f600\"}", "\"\U0001f600\"", "\"\U0001f601\""},
        {"{\"type\":\"object\",\"patternProperties\":{\"^\u00e4$\":{\"type\":\"null\"}}}",
         "{\"\u00e4\": null}", "{\"a\": null}"}};
    if (!grammar_is_available()) skip();
    struct grammar_cache *cache = rig_cache(256 << 20);
    for (size_t i = 0; i < sizeof(each) / sizeof(*each); i++) {
        struct error err = {0};
        json_t *schema = parse(each[i].schema), *out = NULL;
        if (schema_prepare(&out, schema, &err)) fail_msg("%s: %s", each[i].schema, err.text);
        char *text = json_dumps(out, 0);
        struct grammar *grammar = rig_get(cache, GRAMMAR_JSON_SCHEMA, text);
        if (!rig_takes(grammar, each[i].good, true)) fail_msg("%s is refused", each[i].good);
        if (rig_takes(grammar, each[i].bad, true)) fail_msg("%s is taken", each[i].bad);
        grammar_unref(grammar);
        json_arena_free(text);
        json_decref(out);
        json_decref(schema);
    }
    grammar_cache_destroy(cache);
}

/* Values that a schema allows, and others near them. */
static const struct {
    const char *schema, *good, *bad; /* separated by blanks */
} values[] = {
    {"{\"type\":\"number\"}", "0 -1.5 1e99 12E-99 123456789012345678901234", "1e100 01 1e+999 -e5"},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":0.000001}",
     "0.0000001 0.0000009", "0 0.000001 1"},
    {"{\"type\":\"number\",\"minimum\":1e-8,\"maximum\":1e-7}", "0.0000001",
     "0 0.000001 0.0000002"},
    {"{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":0}", "0 5 1000 123456789012345", "-5 3 7"},
    {"{\"type\":\"integer\",\"multipleOf\":5,\"maximum\":12}", "10 5 0 -5 -100000", "15 11 100"},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":100}", "105 700", "98 7 0 -105"},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-20}", "-14 -7 0 7 7000", "-21 -20 5"},
    {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\" \"2000-02-29\" \"2023-12-31\"",
     "\"2023-02-29\" \"1900-02-29\" \"2023-04-31\" \"2023-02-30\" \"0000-01-01\""},
    {"{\"type\":\"string\",\"format\":\"date-time\"}", "\"2024-02-29T23:59:59Z\"",
     "\"2023-02-29T00:00:00Z\" \"2023-06-31T00:00:00Z\" \"2023-01-01T12:00:60Z\""},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}", "\"0.0.0.0\" \"255.249.199.9\"",
     "\"01.0.0.0\" \"256.0.0.0\" \"1.2.3.007\""},
    {"{\"type\":\"string\",\"format\":\"hostname\"}", "\"a\" \"a-b.example.org\"",
     "\"-a\" \"a-\" \"a..b\" \"a."
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
};

static void check_list(struct grammar *grammar, const char *list, bool wanted) {
    char text[128];
    for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ') {
        snprintf(text, sizeof(text), "%.*s", (int)strcspn(at, " "), at);
        if (rig_takes(grammar, text, true) != wanted)
            fail_msg("%s is %s", text, wanted ? "refused" : "taken");
    }
}

TEST(values_at_the_bounds_of_schemas) {
    struct error err = {0};
    if (!grammar_is_available()) skip();
    struct grammar_cache *cache = rig_cache(256 << 20);
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        struct grammar *grammar;
        const char *schema = values[i].schema;
        grammar = rig_get(cache, GRAMMAR_JSON_SCHEMA, schema);
        check_list(grammar, values[i].good, true);
        check_list(grammar, values[i].bad, false);
        grammar_unref(grammar);
    }
    struct grammar *none;
    const char *const empty =
        "{\"type\":\"number\",\"exclusiveMinimum\":5e-324,\"exclusiveMaximum\":1e-323}";
    assert_int_equal(
        grammar_cache_get(cache, &none, GRAMMAR_JSON_SCHEMA, empty, strlen(empty), NULL, &err),
        ERR_INVALID);
    assert_non_null(strstr(err.text, "no number"));
    grammar_cache_destroy(cache);
}

/* Compiles the text once more, replays the tokens, and writes the mask that no other one had a part
 * in. */
static void fresh_mask(enum grammar_kind kind, const char *text, const uint32_t *tokens, int n,
                       uint32_t *mask) {
    struct grammar_cache *cache = rig_cache(256 << 20);
    struct grammar *grammar;
    struct grammar_matcher *matcher;
    grammar = rig_get(cache, kind, text);
    assert_int_equal(grammar_matcher_create(&matcher, grammar), 0);
    for (int i = 0; i < n; i++) assert_int_equal(grammar_matcher_accept(matcher, tokens[i]), 0);
    assert_int_equal(grammar_matcher_mask(matcher, mask), 0);
    grammar_matcher_destroy(matcher);
    grammar_unref(grammar);
    grammar_cache_destroy(cache);
}

static uint32_t next_allowed(const uint32_t *mask, uint32_t n_vocab) {
    uint32_t i = (uint32_t)rand() % n_vocab;
    for (uint32_t left = n_vocab; left > 0 && !(mask[i / 32] >> i % 32 & 1); left--)
        i = (i + 1) % n_vocab;
    return i;
}

/* Returns an allowed token, a short one as a rule: so a walk sees more of a grammar. */
static uint32_t any_allowed(const uint32_t *mask, uint32_t n_vocab) {
    uint32_t best = 0;
    size_t n_best = SIZE_MAX;
    for (int tries = 0; tries < 5; tries++) {
        size_t n = 0;
        const uint32_t token = next_allowed(mask, n_vocab);
        tokenizer_token_bytes(rig_tokenizer, token, &n);
        if (n < n_best) {
            best = token;
            n_best = n;
        }
    }
    return best;
}

/* Walks at random through one grammar, whose kept masks must be those of a grammar that has kept
 * none.  A mask is kept if it took 10 us: most of these take longer at 8,192 tokens. */
TEST(kept_masks_are_right) {
    enum { N_WALKS = 12, N_STEPS = 24 };
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } grammars[] = {
        {GRAMMAR_REGEX, "[a-z]+( [a-z]+)*"},
        {GRAMMAR_EBNF, "root ::= \"(\" list \")\" | \"[\" list \"]\" | \"<\" list \">\"\nlist ::= "
                       "item (\",\" item)*\nitem ::= root | word | word{3,5}\nword ::= [a-z] x? | "
                       "x+ x\nx ::= \"'\" [a-z]* \"'\"\n"},
        {GRAMMAR_JSON, ""},
    };
    if (!grammar_is_available()) skip();
    const uint32_t n_vocab = tokenizer_n_vocab(rig_tokenizer),
                   n_words = grammar_mask_words(n_vocab);
    uint32_t *mask = calloc(n_words, sizeof(*mask)), *fresh = calloc(n_words, sizeof(*mask));
    srand(5);
    for (size_t g = 0; g < sizeof(grammars) / sizeof(*grammars); g++) {
        struct grammar_cache *cache = rig_cache(256 << 20);
        struct grammar *grammar;
        const char *text = grammars[g].text;
        grammar = rig_get(cache, grammars[g].kind, text);
        for (int walk = 0; walk < N_WALKS; walk++) {
            struct grammar_matcher *matcher;
            uint32_t tokens[N_STEPS];
            assert_int_equal(grammar_matcher_create(&matcher, grammar), 0);
            for (int i = 0; i < N_STEPS && !grammar_matcher_is_over(matcher); i++) {
                assert_int_equal(grammar_matcher_mask(matcher, mask), 0);
                fresh_mask(grammars[g].kind, text, tokens, i, fresh);
                assert_memory_equal(mask, fresh, n_words * sizeof(*mask));
                tokens[i] = any_allowed(mask, n_vocab);
                assert_int_equal(grammar_matcher_accept(matcher, tokens[i]), 0);
            }
            grammar_matcher_destroy(matcher);
        }
        grammar_unref(grammar);
        grammar_cache_destroy(cache);
    }
    free(mask);
    free(fresh);
}

int main(int argc, char **argv) {
    return rig_main(argc, argv);
}
