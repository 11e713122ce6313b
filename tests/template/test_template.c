/* test_template.c - what a template's text is, which bytes of it are trusted, and what is refused.
 *
 * jinja2 judges the language in tests/e2e/test_templates.py; here are the promises of template.h
 * that it does not know. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/template/template.h"
#include "tests/test.h"

static json_t *json(const char *text) {
    json_error_t why;
    json_t *made = json_loads(text, JSON_ALLOW_NUL, &why);
    if (!made) fail_msg("%s: %s", why.text, text);
    return made;
}

static struct template *compiled(const char *source) {
    struct template *t = NULL;
    struct error err = {0};
    if (template_compile(&t, source, strlen(source), NULL, &err)) fail_msg("%s", err.text);
    return t;
}

/* Renders with s, a message's text, and bos, a trusted one. */
static int render_within(const char *source, const struct template_limits *limits,
                         struct template_text *text, struct error *err) {
    struct template *t = compiled(source);
    json_t *variables =
        json("{\"s\": \"ab c\", \"n\": 12, \"l\": [\"x\", {\"k\": \"y\"}], \"z\": null,"
             " \"m\": \"one\\ntwo\\nthree\"}");
    json_t *trusted = json("{\"bos\": \"<s>\"}");
    const struct template_input input = {.variables = variables, .trusted = trusted};
    const int rc = template_render(t, &input, limits, text, err);
    json_decref(variables);
    json_decref(trusted);
    template_destroy(t);
    return rc;
}

/* Compares the text, with [ and ] around what is trusted. */
static void assert_marks(const char *source, const char *expected) {
    struct template_text text = {0};
    struct error err = {0};
    char marked[512];
    size_t n = 0;
    if (render_within(source, NULL, &text, &err)) fail_msg("%s: %s", source, err.text);
    for (size_t i = 0, span = 0; i <= text.n_bytes; i++) {
        if (span < text.n_trusted && text.trusted[span].end == i) marked[n++] = ']', span++;
        if (span < text.n_trusted && text.trusted[span].begin == i) marked[n++] = '[';
        if (i < text.n_bytes) marked[n++] = text.bytes[i];
    }
    marked[n] = 0;
    assert_string_equal(marked, expected);
    template_text_fini(&text);
}

TEST(marks_follow_every_byte) {
    static const char *const cases[][2] = {
        {"<|a|>{{ s }}<|b|>", "[<|a|>]ab c[<|b|>]"},
        {"{{ bos }}{{ s }}{{ '<e>' }}", "[<s>]ab c[<e>]"},
        {"{{ '<' + s + '>' }}", "[<]ab c[>]"},
        {"{{ ('<' ~ s ~ '>')|upper }}", "[<]AB C[>]"},
        {"{{ ('  ' ~ s ~ ' > ')|trim }}", "ab c[ >]"},
        {"{{ s.replace('b', '-') }}", "a[-] c"},
        {"{{ '<x>'.replace('x', s) }}", "[<]ab c[>]"},
        {"{{ s.split(' ')|join('|') }}", "ab[|]c"},
        {"{{ ('<' ~ s)[::-1] }}", "c ba[<]"},
        {"{{ ('<' ~ s ~ '>')[1:3] }}", "ab"},
        {"{{ ('<' ~ s ~ '>')[3:] }}", " c[>]"},
        {"{{ s|tojson }}", "\"ab c\""},
        {"{{ {'k': s}|tojson }}", "[{\"k\": ]\"ab c\"[}]"},
        {"{{ l }}", "['x', {'k': 'y'}]"}, /* its brackets are the list's, not marks */
        {"{{ [s] }}", "[[]'ab c'[]]"},
        {"{{ n }}{{ 12 }}{{ n + 1 }}{{ 1 + 1 }}", "12[12]13[2]"},
        {"{{ '%s!%s' % (s, 1) }}", "ab c[!1]"},
        {"{{ '{}!{}'.format(s, bos) }}", "ab c[!<s>]"},
        {"{{ m|indent('> ') }}", "one\n[> ]two\n[> ]three"},
        {"{{ m|indent(1) }}", "one\n two\n three"},
        {"{% set x %}<{{ s }}>{% endset %}{{ x|replace('b', 'B') }}", "[<]a[B] c[>]"},
        {"{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(s) }}{{ f(bos) }}", "[<]ab c[><<s>>]"},
        {"{% filter upper %}<i>{{ s }}{% endfilter %}", "[<I>]AB C"},
        {"{% for c in '<' ~ s %}{{ c }}{% endfor %}", "[<]ab c"},
        {"{% for m in l %}{{ loop.index }}{{ ',' if not loop.last }}{% endfor %}", "[1,2]"},
        {"{{ [s, '<']|map('upper')|join }}", "AB C[<]"},
        {"{{ l[1]|items|list }}", "[('k', 'y')]"},
        {"{{ {'<': s}|dictsort }}", "[[('<', ]'ab c'[)]]"},
        {"{{ s|truncate(3, true, '..', 0) }}", "a[..]"},
        {"{{ (s|e) ~ ('<'|e) }}", "ab c[&lt;]"},
        {"{% set ns = namespace(x='<') %}{% set ns.x = ns.x + s %}{{ ns.x }}", "[<]ab c"},
        {"{{ nothing }}{{ none }}{{ z }}", "[None]None"},
        {"{{ (l[1]|items).x }}{{ (l[1]|items)['type'] }}{{ l[1].keys().x }}", ""},
        {"{{ 'd' if (l|map('upper')).x is defined }}{{ range(3).x }}{{ s.upper.x }}", ""},
        {"{{ s|wordcount }}{{ s|length }}{{ s.find('c') }}", "243"},
        {"{% if not s %}{{ s|nope(1) }}{% elif not s and n is nope %}{% else %}{{ n }}{% endif %}",
         "12"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_marks(cases[i][0], cases[i][1]);
}

/* A long sum is extended in place: strings that share its bytes must not change. */
TEST(sums_share_no_bytes_that_change) {
    struct template_text text = {0};
    struct error err = {0};
    assert_int_equal(
        render_within("{% set a = 'x' * 200 + s %}{% set b = a + '1' %}{% set c = a + '2' %}"
                      "{% set d = b + s %}{{ a[-1] }}{{ b[-1] }}{{ c[-1] }}{{ d[-5:] }}",
                      NULL, &text, &err),
        0);
    assert_string_equal(text.bytes, "c121ab c");
    assert_int_equal(text.n_trusted, 1); /* "121" */
    assert_int_equal(text.trusted[0].begin, 1);
    assert_int_equal(text.trusted[0].end, 4);
    template_text_fini(&text);
}

TEST(syntax_errors_name_line_and_column) {
    static const struct {
        const char *source, *text;
        int code;
    } cases[] = {
        {"a\nb {{ 'é' + }}", "line 2, column 12: expected an expression", ERR_INVALID},
        {"{% if x %}\n{{ y }}", "line 1, column 9: this block has no `{% endif %}`", ERR_INVALID},
        {"{{ x", "line 1, column 5: expected `}}`, but the template ends", ERR_INVALID},
        {"{{ x|nope }}", "line 1, column 6: there is no filter `nope`", ERR_INVALID},
        {"{{ x is nope }}", "line 1, column 9: there is no test `nope`", ERR_INVALID},
        {"{% if x %}{% for a in l %}{{ a|nope }}{% endfor %}{% endif %}",
         "line 1, column 32: there is no filter `nope`", ERR_INVALID},
        {"{{ x|pprint }}", "line 1, column 6: the filter `pprint` is not supported",
         ERR_UNSUPPORTED},
        {"\n{% include 'x' %}", "line 2, column 4: the tag `include` is not supported",
         ERR_UNSUPPORTED},
        {"{% nope %}", "line 1, column 4: there is no tag `nope`, or it is none here", ERR_INVALID},
        {"{% for a in l %}{% for b in l recursive %}{% else %}{% break %}{% endfor %}{% endfor %}",
         "line 1, column 56: `break` is outside of a for loop", ERR_INVALID},
        {"{% set 1 = 2 %}", "line 1, column 8: this cannot be assigned to", ERR_INVALID},
        {"{{ 99999999999999999999 }}", "line 1, column 4: this integer is beyond 64 bits",
         ERR_UNSUPPORTED},
        {"{# x", "line 1, column 1: this comment has no end #}", ERR_INVALID},
        {"{{ (1] }}", "line 1, column 6: unexpected `]`", ERR_INVALID},
        {"\xff", "the template is not UTF-8", ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct template *t = NULL;
        struct error err = {0};
        assert_int_equal(template_compile(&t, cases[i].source, strlen(cases[i].source), NULL, &err),
                         cases[i].code);
        assert_null(t);
        assert_string_equal(err.text, cases[i].text);
    }
}

TEST(failures_of_a_render_name_their_line) {
    static const struct {
        const char *source, *text;
        int code;
    } cases[] = {
        {"{{ raise_exception('roles must ' ~ s) }}", "roles must ab c", ERR_INVALID},
        {"\n\n{{ nope.x }}", "line 3: 'nope' is undefined, and has no 'x'", ERR_INVALID},
        {"{% if s %}{{ s|nope }}{% endif %}", "line 1: there is no filter of this name",
         ERR_INVALID},
        {"{% if s is nope %}{% endif %}", "line 1: there is no test of this name", ERR_INVALID},
        {"{{ s + 1 }}", "line 1: '+' is not supported between str and int", ERR_INVALID},
        {"{{ s.zfill(3) }}", "line 1: zfill is not supported here", ERR_UNSUPPORTED},
        {"{{ (l|select).send }}", "line 1: send of a generator is not supported here",
         ERR_UNSUPPORTED},
        {"{{ range(3).stop }}", "line 1: stop of a range is not supported here", ERR_UNSUPPORTED},
        {"{{ 9223372036854775807 + n }}", "line 1: an integer is beyond 64 bits", ERR_UNSUPPORTED},
        {"{{ l.append(1) }}", "line 1: 'append' is undefined, and cannot be called", ERR_INVALID},
        {"{{ range(100001) }}", "line 1: range() takes at most 100000 items", ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct template_text text = {0};
        struct error err = {0};
        assert_int_equal(render_within(cases[i].source, NULL, &text, &err), cases[i].code);
        assert_string_equal(err.text, cases[i].text);
        assert_null(text.bytes);
    }
}

/* A message of a template may be longer than an error; it is cut between characters. */
TEST(a_long_message_stays_utf8) {
    struct template_text text = {0};
    struct error err = {0};
    assert_int_equal(render_within("{{ raise_exception('x' ~ 'é' * 400) }}", NULL, &text, &err),
                     ERR_INVALID);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
    assert_memory_equal(err.text + sizeof(err.text) - 3, "é", 2);
}

TEST(each_bound_is_named) {
    static const struct {
        struct template_limits limits;
        const char *source, *text;
    } cases[] = {
        {{.max_output_bytes = 10}, "{{ 'x' * 11 }}", "line 1: the text is longer than 10 bytes"},
        {{.max_steps = 1000},
         "{% for i in range(1000) %}{{ i }}{% endfor %}",
         "line 1: the template takes more than 1000 steps"},
        {{.max_steps = 1000},
         "{% set x = ('x' * 1000000) * 1000000 %}",
         "line 1: the template takes more than 1000 steps"},
        {{.max_memory_bytes = 100000},
         "{% set x = 'x' * 1000000 %}",
         "line 1: the template's values take more than 100000 bytes of memory"},
        {{.max_depth = 50},
         "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
         "line 1: more than 50 levels are nested"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct template_text text = {0};
        struct error err = {0};
        assert_int_equal(render_within(cases[i].source, &cases[i].limits, &text, &err),
                         ERR_TOO_LONG);
        assert_string_equal(err.text, cases[i].text);
    }
}

TEST(the_compiler_has_bounds_too) {
    const struct template_limits small = {.max_source_bytes = 10}, flat = {.max_depth = 20},
                                 poor = {.max_memory_bytes = 4000};
    static const struct {
        const char *source, *text;
        int limits;
    } cases[] = {
        {"0123456789a", "the template has more than 10 bytes", 0},
        {"{{ not not not not not not not not not not not not not not not not not not not not x }}",
         "line 1, column 80: more than 20 levels are nested", 1},
        {"{{ 1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1 }}",
         "line 1, column 47: more than 20 levels are nested", 1},
        {"{{ [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29] }}",
         "line 1, column 73: the template does not fit 4000 bytes", 2},
    };
    const struct template_limits *const limits[] = {&small, &flat, &poor};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct template *t = NULL;
        struct error err = {0};
        assert_int_equal(template_compile(&t, cases[i].source, strlen(cases[i].source),
                                          limits[cases[i].limits], &err),
                         ERR_TOO_LONG);
        assert_string_equal(err.text, cases[i].text);
    }
}

TEST(trusted_variables_win) {
    struct template *t = compiled("{{ bos }}");
    json_t *variables = json("{\"bos\": \"mine\"}"), *trusted = json("{\"bos\": \"<s>\"}");
    const struct template_input input = {.variables = variables, .trusted = trusted};
    struct template_text text = {0};
    assert_int_equal(template_render(t, &input, NULL, &text, NULL), 0);
    assert_string_equal(text.bytes, "<s>");
    template_text_fini(&text);
    json_decref(variables);
    json_decref(trusted);
    template_destroy(t);
}

TEST(an_empty_text_is_a_text) {
    struct template_text text = {0};
    assert_int_equal(render_within("", NULL, &text, NULL), 0);
    assert_string_equal(text.bytes, "");
    assert_int_equal(text.n_trusted, 0);
    template_text_fini(&text);
}

struct worker {
    pthread_t thread;
    const struct template *template;
    const struct template_input *input;
    int n_wrong;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    for (int i = 0; i < 50; i++) {
        struct template_text text = {0};
        const int rc = template_render(worker->template, worker->input, NULL, &text, NULL);
        worker->n_wrong += rc || strcmp(text.bytes, "É;AB CAB Ccxx") != 0;
        template_text_fini(&text);
    }
    return NULL;
}

/* The template and the variables are shared; nothing of them is written. */
TEST(threads_share_a_template) {
    struct worker workers[4];
    struct template *t = compiled("{{ 'é'|upper }};{% for i in range(2) %}{{ s|upper }}{% endfor %}"
                                  "{{ s[-1] }}{{ ('x' * 300 + 'é')[:2] }}");
    json_t *variables = json("{\"s\": \"ab c\"}");
    const struct template_input input = {.variables = variables};
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){.template = t, .input = &input};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].n_wrong, 0);
    }
    json_decref(variables);
    template_destroy(t);
}

/* What is computed of a number is printed by its value. */
TEST(numbers_are_printed_as_they_were_written) {
    static const char text[] = "{\"a\": [18446744073709551616, 1e400, 1.50, -0, 1E2, 0.1],"
                               " \"n\": 18446744073709551615}";
    static const char *const cases[][2] = {
        {"{{ a|tojson }}", "[18446744073709551616, 1e400, 1.50, -0, 1E2, 0.1]"},
        {"{{ a }}", "[18446744073709551616, 1e400, 1.50, -0, 1E2, 0.1]"},
        {"{{ n }} {{ n ~ '' }} {{ [n|string, n|int]|join }}",
         "18446744073709551615 18446744073709551615 1844674407370955161518446744073709551615"},
        {"{{ {'a': n}|tojson(indent=1) }}", "{\n \"a\": 18446744073709551615\n}"},
        {"{% for x in a|reverse %}{{ x }};{% endfor %}",
         "0.1;1E2;-0;1.50;1e400;18446744073709551616;"},
        {"{{ n is integer }} {{ n is float }} {{ n is number }} {{ a[1] is float }}",
         "True False True True"},
        {"{{ n > 5 }} {{ a[1] > n }} {{ a[2] == 1.5 }} {{ a[3] == 0 }}", "True True True True"},
        {"{{ a[2] + 1 }} {{ a[4]|int }} {{ -a[2] }} {{ a[3] + 0 }}", "2.5 100 -1.5 0"},
    };
    json_t *variables = NULL;
    json_error_t why;
    assert_int_equal(json_arena_load(&variables, text, strlen(text), 0, &why), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct template *t = compiled(cases[i][0]);
        struct template_text out = {0};
        struct error err = {0};
        const struct template_input input = {.variables = variables};
        if (template_render(t, &input, NULL, &out, &err)) fail_msg("%s", err.text);
        assert_string_equal(out.bytes, cases[i][1]);
        template_text_fini(&out);
        template_destroy(t);
    }
    json_decref(variables);
}
