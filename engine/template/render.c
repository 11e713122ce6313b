/* render.c - see render.h and template.h: a render from its variables to its text. */
#include "engine/template/render.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_arena.h"
#include "engine/base/rng.h"
#include "engine/template/ast.h"
#include "engine/template/call.h"
#include "engine/template/containers.h"
#include "engine/template/execute.h"
#include "engine/template/strings.h"

/* A kibibyte that is moved counts as a step: it takes about as long. */
enum { STEP_BYTES = 1024 };

struct value render_fail(struct render *r, int code, const char *format, ...) {
    if (r->rc) return value_none(false);
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    /* A name of a client's may have been cut within a character. */
    size_t n = strlen(text), begin = n;
    while (begin > 0 && n - begin < 3 && ((unsigned char)text[begin - 1] & 0xc0) == 0x80) begin--;
    if (begin > 0 && (unsigned char)text[begin - 1] >= 0xc0 && n == sizeof(text) - 1)
        text[begin - 1] = 0;
    r->rc = error_set(r->err, code, "line %" PRIu32 ": %s", r->line, text);
    return value_none(false);
}

static void fail_memory(struct render *r) {
    if (r->arena.rc == ERR_NOMEM) render_fail(r, ERR_NOMEM, "no memory for the template's values");
    else
        render_fail(r, ERR_TOO_LONG, "the template's values take more than %zu bytes of memory",
                    r->arena.max);
}

void *render_take(struct render *r, size_t n) {
    void *piece = r->rc ? NULL : arena_take(&r->arena, n);
    if (!piece) fail_memory(r);
    return piece;
}

void *render_grow(struct render *r, void *piece, size_t n_old, size_t n_new) {
    void *grown = r->rc ? NULL : arena_grow(&r->arena, piece, n_old, n_new);
    if (!grown) fail_memory(r);
    return grown;
}

bool render_step(struct render *r, uint64_t n_steps) {
    r->steps += n_steps;
    if (r->steps <= r->limits.max_steps) return !r->rc;
    render_fail(r, ERR_TOO_LONG, "the template takes more than %" PRIu64 " steps",
                r->limits.max_steps);
    return false;
}

bool render_move(struct render *r, size_t n_bytes) {
    return render_step(r, n_bytes / STEP_BYTES);
}

bool render_enter(struct render *r) {
    if (r->rc) return false;
    if (r->depth < r->limits.max_depth) {
        r->depth++;
        return true;
    }
    render_fail(r, ERR_TOO_LONG, "more than %" PRIu32 " levels are nested", r->limits.max_depth);
    return false;
}

static void *grow(void *memory, size_t *capacity, size_t needed, size_t size) {
    size_t n = *capacity ? 2 * *capacity : 64;
    if (n < needed) n = needed;
    void *grown = realloc(memory, n * size);
    if (grown) *capacity = n;
    return grown;
}

/* Appends bytes of one origin; a span that goes on is extended. */
static void sink_put(struct render *r, const char *bytes, size_t n, bool trusted) {
    struct sink *sink = &r->sink;
    if (r->rc || !n) return;
    if (n > r->limits.max_output_bytes - sink->n) {
        render_fail(r, ERR_TOO_LONG, "the text is longer than %zu bytes",
                    r->limits.max_output_bytes);
        return;
    }
    if (sink->n + n + 1 > sink->capacity) { /* a zero follows */
        char *grown = grow(sink->bytes, &sink->capacity, sink->n + n + 1, 1);
        if (!grown) goto fail;
        sink->bytes = grown;
    }
    memcpy(sink->bytes + sink->n, bytes, n);
    sink->n += n;
    if (!trusted) return;
    struct byte_span *last = sink->n_spans ? &sink->spans[sink->n_spans - 1] : NULL;
    if (last && last->end == sink->n - n) {
        last->end = sink->n;
        return;
    }
    if (sink->n_spans == sink->span_capacity) {
        struct byte_span *grown =
            grow(sink->spans, &sink->span_capacity, sink->n_spans + 1, sizeof(*grown));
        if (!grown) goto fail;
        sink->spans = grown;
    }
    sink->spans[sink->n_spans++] = (struct byte_span){sink->n - n, sink->n};
    return;

fail:
    render_fail(r, ERR_NOMEM, "no memory for the text");
}

void render_write(struct render *r, const struct string *s) {
    if (r->capture) {
        builder_string(r->capture, s);
        return;
    }
    if (!render_move(r, s->n)) return;
    if (!s->marks) sink_put(r, s->bytes, s->n, s->trusted);
    for (size_t at = 0, end; s->marks && at < s->n; at = end) {
        const unsigned char *other = memchr(s->marks + at, !s->marks[at], s->n - at);
        end = other ? (size_t)(other - s->marks) : s->n;
        sink_put(r, s->bytes + at, end - at, s->marks[at]);
    }
}

const char *render_number_text(const struct render *r, struct value number) {
    return number.written ? r->numbers[number.written - 1] : NULL;
}

bool render_is_integer(const struct render *r, struct value v) {
    const char *text = v.type == V_FLOAT ? render_number_text(r, v) : NULL;
    return v.type == V_INT || (text && !strpbrk(text, ".eE"));
}

/* Keeps the number's text, if it has one. */
static struct value keep_text(struct render *r, struct value number, const json_t *json) {
    const char *text = json_number_text(json);
    if (!text) return number;
    if (r->n_numbers == r->number_capacity) {
        const uint32_t capacity = r->number_capacity ? 2 * r->number_capacity : 16;
        const char **grown = render_grow(r, r->numbers, r->number_capacity * sizeof(*grown),
                                         capacity * sizeof(*grown));
        if (!grown) return number;
        r->numbers = grown;
        r->number_capacity = capacity;
    }
    r->numbers[r->n_numbers++] = text;
    number.written = r->n_numbers;
    return number;
}

static struct value from_json(struct render *r, const json_t *json, bool trusted);

static struct value dict_from_json(struct render *r, const json_t *json, bool trusted) {
    struct dict *dict = dict_new(r, json_object_size(json));
    json_t *object = (json_t *)json; /* jansson's iterators are not const */
    for (void *i = json_object_iter(object); i && !r->rc; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        const struct string *name = string_wrap(r, key, json_object_iter_key_len(i), trusted);
        dict_set(r, dict, value_string(name), from_json(r, json_object_iter_value(i), trusted));
    }
    return value_dict(dict, trusted);
}

static struct value list_from_json(struct render *r, const json_t *json, bool trusted) {
    const size_t n = json_array_size(json);
    struct list *list = list_new(r, n);
    for (size_t i = 0; i < n && !r->rc; i++)
        list_add(r, list, from_json(r, json_array_get(json, i), trusted));
    return value_list(list, trusted);
}

/* Strings share their bytes with the JSON, which outlives the render. */
static struct value from_json(struct render *r, const json_t *json, bool trusted) {
    struct value value = value_none(trusted);
    if (!render_enter(r)) return value;
    switch (json_typeof(json)) {
    case JSON_OBJECT: value = dict_from_json(r, json, trusted); break;
    case JSON_ARRAY: value = list_from_json(r, json, trusted); break;
    case JSON_STRING:
        value = value_string(
            string_wrap(r, json_string_value(json), json_string_length(json), trusted));
        break;
    case JSON_INTEGER:
        value = keep_text(r, value_int(json_integer_value(json), trusted), json);
        break;
    case JSON_REAL: value = keep_text(r, value_float(json_real_value(json), trusted), json); break;
    case JSON_TRUE: value = value_bool(true, trusted); break;
    case JSON_FALSE: value = value_bool(false, trusted); break;
    case JSON_NULL: break;
    }
    render_leave(r);
    return value;
}

/* Looks up what the template reads: only that is converted. */
static void find_globals(struct render *r, const struct template_input *input) {
    const struct template *t = r->template;
    r->globals = render_take(r, (t->n_globals + 1) * sizeof(*r->globals));
    for (uint32_t i = 0; i < t->n_globals && !r->rc; i++) {
        const struct string *name = t->globals[i];
        const json_t *own = json_object_getn(input->trusted, name->bytes, name->n);
        const json_t *json = own ? own : json_object_getn(input->variables, name->bytes, name->n);
        const struct callable *function = callable_find(FUNCTIONS, name->bytes, name->n);
        r->globals[i] = value_missing();
        if (json) r->globals[i] = from_json(r, json, own != NULL);
        else if (function)
            r->globals[i] =
                (struct value){.type = V_FUNCTION, .trusted = true, .function = function};
    }
}

static struct template_limits limits_or_defaults(const struct template_limits *limits) {
    struct template_limits all = limits ? *limits : TEMPLATE_DEFAULT_LIMITS;
    const struct template_limits *defaults = &TEMPLATE_DEFAULT_LIMITS;
    if (!all.max_output_bytes) all.max_output_bytes = defaults->max_output_bytes;
    if (!all.max_memory_bytes) all.max_memory_bytes = defaults->max_memory_bytes;
    if (!all.max_steps) all.max_steps = defaults->max_steps;
    if (!all.max_depth) all.max_depth = defaults->max_depth;
    return all;
}

int template_render(const struct template *t, const struct template_input *input,
                    const struct template_limits *limits, struct template_text *out,
                    struct error *err) {
    struct render r = {.template = t,
                       .limits = limits_or_defaults(limits),
                       .err = err,
                       .line = 1,
                       .now = &input->now,
                       .hash_key = {rng_fresh_seed(), rng_fresh_seed()}};
    arena_init(&r.arena, r.limits.max_memory_bytes);
    find_globals(&r, input);
    r.frame = r.rc ? NULL : frame_new(&r, &t->scope, NULL);
    if (r.frame) node_execute(&r, &t->body);
    arena_fini(&r.arena);
    if (!r.rc && !r.sink.bytes) {
        r.sink.bytes = calloc(1, 1);
        if (!r.sink.bytes) render_fail(&r, ERR_NOMEM, "no memory for the text");
    }
    if (r.rc) {
        free(r.sink.bytes);
        free(r.sink.spans);
        return r.rc;
    }
    r.sink.bytes[r.sink.n] = 0;
    *out = (struct template_text){r.sink.bytes, r.sink.n, r.sink.spans, r.sink.n_spans};
    return 0;
}

void template_text_fini(struct template_text *text) {
    free(text->bytes);
    free(text->trusted);
    *text = (struct template_text){0};
}
