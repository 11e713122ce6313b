/* test_tool_elements.c - which arguments of a call that is written as elements may be left out. */
#include "server/api/conversation/tool_elements.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "tests/test.h"

static const struct tool_elements elements = {.key_begin = "<parameter=",
                                              .key_end = ">",
                                              .value_begin = "",
                                              .value_end = "</parameter>",
                                              .on_lines = true};

/* Makes the list of the schema's elements. */
static json_t *make(const json_t *schema) {
    struct error err = {0};
    json_t *format = NULL;
    json_t *strings = json_pack("{s:{s:{}, s:i}}", "f", "named", "other", 0);
    if (tool_elements_make(&format, &elements, schema, strings, "f", "</function>", &err))
        fail_msg("%s", err.text);
    json_t *list = json_incref(json_object_get(format, "elements"));
    json_decref(format);
    json_decref(strings);
    return list;
}

static bool is_optional(const json_t *list, size_t i) {
    const json_t *type = json_object_get(json_array_get(list, i), "type");
    return strcmp(json_string_value(type), "optional") == 0;
}

TEST(what_is_not_required_is_optional) {
    json_t *schema = json_pack("{s:{s:b, s:b, s:b}, s:[s, s]}", "properties", "a", true, "b", true,
                               "c", true, "required", "c", "a");
    json_t *list = make(schema);
    assert_int_equal(json_array_size(list), 3);
    assert_false(is_optional(list, 0) || is_optional(list, 2));
    assert_true(is_optional(list, 1));
    json_decref(list);
    json_decref(schema);
}

/* Each name is looked up once.  A body may have very many values, and so many names that are
 * required.  It took 10 s where each argument was looked for in all of them. */
TEST(many_arguments_are_looked_for_among_many_names) {
    enum { N = 4000, N_REQUIRED = 250000 };
    json_t *properties = json_object(), *required = json_array();
    char name[16];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "name%d", i);
        json_object_set_new(properties, name, json_true());
    }
    for (int i = 0; i < N_REQUIRED; i++) json_array_append_new(required, json_string("name0"));
    json_t *schema = json_pack("{s:o, s:o}", "properties", properties, "required", required);
    json_t *list = make(schema);
    assert_int_equal(json_array_size(list), N);
    assert_false(is_optional(list, 0));
    assert_true(is_optional(list, N - 1));
    json_decref(list);
    json_decref(schema);
}
