/* test_template_memory.c - every allocation of a compilation and of a render fails in turn: each
 * says so, and leaves nothing behind. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/template/template.h"
#include "tests/test.h"

/* The allocation, counted from now, that fails; 0: none. */
static size_t failing, n_allocations;

static bool fails(void) {
    return ++n_allocations == failing;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *memory, size_t size);

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    return fails() ? NULL : __real_realloc(memory, size);
}

/* Uses every kind of value, and more memory than the first blocks have. */
static const char SOURCE[] =
    "{% macro f(a, b='x') %}{{ a ~ b }}{{ caller() if caller }}{% endmacro %}"
    "{% set ns = namespace(text='') %}"
    "{% for m in messages %}<{{ loop.index }}>{{ m.content|upper|replace('A', '<a>')|tojson }}"
    "{% set ns.text = ns.text ~ m.content ~ '</s>' %}{% endfor %}{{ ns.text }}"
    "{% call f(messages|map(attribute='role')|list) %}{{ range(9)|list|sort(reverse=true) }}{% "
    "endcall %}"
    "{{ dict(a=1, **{'b': 2})|dictsort }}{{ '%s|%5d' % ('a', 3) }}{{ '{:>9}'.format('b') }}"
    "{% filter indent %}{{ messages|groupby('role') }}{% endfilter %}"
    "{% set big = ('x' * 5000 ~ messages[0].content).split('x') %}{{ big|length }}"
    "{{ messages[::-1]|batch(2)|list|length }}{{ [1, 'a', {'k': none}]|tojson(indent=2) }}";

static json_t *make_variables(void) {
    json_t *messages = json_array();
    for (int i = 0; i < 50; i++)
        json_array_append_new(
            messages, json_pack("{s:s, s:s}", "role", i % 2 ? "user" : "assistant", "content",
                                "An apple a day, and so on."));
    return json_pack("{s:o}", "messages", messages);
}

TEST(compiling_survives) {
    int rc = ERR_NOMEM;
    for (size_t i = 1; rc; i++) {
        struct template *t = NULL;
        struct error err = {0};
        n_allocations = 0, failing = i;
        rc = template_compile(&t, SOURCE, strlen(SOURCE), NULL, &err);
        failing = 0;
        if (rc) {
            assert_int_equal(rc, ERR_NOMEM);
            assert_int_equal(err.code, ERR_NOMEM);
            assert_null(t);
        } else {
            assert_true(i > 2); /* more than the template itself was refused */
        }
        template_destroy(t);
    }
}

TEST(rendering_survives) {
    struct template *t = NULL;
    assert_int_equal(template_compile(&t, SOURCE, strlen(SOURCE), NULL, NULL), 0);
    json_t *variables = make_variables();
    const struct template_input input = {.variables = variables};
    int rc = ERR_NOMEM;
    for (size_t i = 1; rc; i++) {
        struct template_text text = {0};
        struct error err = {0};
        n_allocations = 0, failing = i;
        rc = template_render(t, &input, NULL, &text, &err);
        failing = 0;
        if (rc) {
            assert_int_equal(rc, ERR_NOMEM);
            assert_int_equal(err.code, ERR_NOMEM);
            assert_null(text.bytes);
        } else {
            assert_true(i > 10); /* blocks of the arena, the text and its spans */
            assert_true(text.n_bytes > 5000);
        }
        template_text_fini(&text);
    }
    json_decref(variables);
    template_destroy(t);
}

/* The same for the arena's bound, whatever it is: every piece is refused once. */
TEST(every_piece_may_be_refused) {
    struct template *t = NULL;
    assert_int_equal(template_compile(&t, SOURCE, strlen(SOURCE), NULL, NULL), 0);
    json_t *variables = make_variables();
    const struct template_input input = {.variables = variables};
    int rc = ERR_TOO_LONG;
    for (size_t bound = 16; rc; bound += 16 + bound / 200) {
        const struct template_limits limits = {.max_memory_bytes = bound};
        struct template_text text = {0};
        struct error err = {0};
        rc = template_render(t, &input, &limits, &text, &err);
        if (rc) assert_int_equal(rc, ERR_TOO_LONG);
        template_text_fini(&text);
    }
    json_decref(variables);
    template_destroy(t);
}
