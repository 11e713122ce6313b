/* render_lines.c - renders one template after another for tests in other languages.
 *
 *   {"template": "...", "variables": {...}, "trusted": {...}, "now": [2026, 11, 23, 4, 5, 6]}
 *   {"text": "...", "spans": [[0, 12], ...]}
 *   {"error": "...", "code": -1, "compiled": true}
 *
 * Each line of stdin is a case, each line of stdout its result.  A case without a template takes
 * that of the line before.  "limits" may hold members of struct template_limits; "repeat" renders
 * that often, and then the result says how many seconds of the CPU that took.
 *
 * Thread: main.  Memory: one case at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/template/template.h"

static void read_limits(struct template_limits *limits, const json_t *json) {
    limits->max_source_bytes = (size_t)json_integer_value(json_object_get(json, "source"));
    limits->max_output_bytes = (size_t)json_integer_value(json_object_get(json, "output"));
    limits->max_memory_bytes = (size_t)json_integer_value(json_object_get(json, "memory"));
    limits->max_steps = (uint64_t)json_integer_value(json_object_get(json, "steps"));
    limits->max_depth = (uint32_t)json_integer_value(json_object_get(json, "depth"));
}

static void read_now(struct tm *now, const json_t *json) {
    int numbers[6] = {2026, 1, 2, 3, 4, 5};
    for (size_t i = 0; i < 6 && i < json_array_size(json); i++)
        numbers[i] = (int)json_integer_value(json_array_get(json, i));
    *now = (struct tm){.tm_year = numbers[0] - 1900,
                       .tm_mon = numbers[1] - 1,
                       .tm_mday = numbers[2],
                       .tm_hour = numbers[3],
                       .tm_min = numbers[4],
                       .tm_sec = numbers[5]};
    timegm(now); /* fills in the days of week and year */
}

static json_t *failure(const struct error *err, bool compiled) {
    return json_pack("{s:s, s:i, s:b}", "error", err->text, "code", err->code, "compiled",
                     compiled);
}

static json_t *success(const struct template_text *text, double seconds) {
    json_t *result =
        json_pack("{s:s%, s:f}", "text", text->bytes, text->n_bytes, "seconds", seconds);
    json_t *spans = json_array();
    for (size_t i = 0; i < text->n_trusted; i++)
        json_array_append_new(spans, json_pack("[I,I]", (json_int_t)text->trusted[i].begin,
                                               (json_int_t)text->trusted[i].end));
    json_object_set_new(result, "spans", spans);
    return result;
}

static json_t *run_case(struct template **t, const json_t *json) {
    struct template_limits limits = {0};
    struct template_input input = {.variables = json_object_get(json, "variables"),
                                   .trusted = json_object_get(json, "trusted")};
    struct template_text text = {0};
    struct error err = {0};
    const json_t *source = json_object_get(json, "template");
    const json_int_t repeat = json_integer_value(json_object_get(json, "repeat"));
    read_limits(&limits, json_object_get(json, "limits"));
    read_now(&input.now, json_object_get(json, "now"));
    if (source) {
        template_destroy(*t);
        *t = NULL;
        if (template_compile(t, json_string_value(source), json_string_length(source), &limits,
                             &err))
            return failure(&err, false);
    }
    if (!*t) return json_pack("{s:s}", "error", "no template");
    const clock_t begin = clock();
    for (json_int_t i = 0; i == 0 || i < repeat; i++) {
        template_text_fini(&text);
        if (template_render(*t, &input, &limits, &text, &err)) return failure(&err, true);
    }
    json_t *result = success(&text, (double)(clock() - begin) / CLOCKS_PER_SEC);
    template_text_fini(&text);
    return result;
}

int main(void) {
    struct template *t = NULL;
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) {
        json_error_t why;
        json_t *json = json_loadb(line, (size_t)n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
        json_t *result =
            json ? run_case(&t, json) : json_pack("{s:s}", "error", "the case is not JSON");
        char *dumped = result ? json_dumps(result, JSON_COMPACT) : NULL;
        puts(dumped ? dumped : "{\"error\": \"no result\"}");
        fflush(stdout);
        json_arena_free(dumped);
        json_decref(result);
        json_decref(json);
    }
    free(line);
    template_destroy(t);
    return 0;
}
