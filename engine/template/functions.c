/* functions.c - the functions that every template can call, and the objects that they make.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#include <string.h>
#include <time.h>

#include "engine/base/error.h"
#include "engine/template/call.h"
#include "engine/template/containers.h"
#include "engine/template/execute.h"
#include "engine/template/iterate.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

enum { MAX_RANGE = 100000 /* jinja2's sandbox has the same */ };

CALLABLE(range) {
    const bool has_start = argv[1].type != V_MISSING;
    const bool trusted =
        argv[0].trusted && (!has_start || argv[1].trusted) && (argv[2].trusted || !argv[2].type);
    const int64_t start = has_start ? arg_int(r, "start", argv[0], 0) : 0;
    const int64_t stop = arg_int(r, "stop", argv[has_start], 0);
    const int64_t step = arg_int(r, "step", argv[2], 1);
    if (step == 0) return render_invalid(r, "the step of range() is 0");
    /* Differences of 64-bit numbers fit the unsigned ones. */
    const uint64_t distance =
        step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    const uint64_t width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    const bool is_empty = step > 0 ? start >= stop : start <= stop;
    const uint64_t n = is_empty ? 0 : (distance - 1) / width + 1;
    if (n > MAX_RANGE) return render_invalid(r, "range() takes at most %d items", MAX_RANGE);
    struct range *made = render_take(r, sizeof(*made));
    if (!made) return value_none(false);
    *made = (struct range){start, stop, step, n};
    return (struct value){.type = V_RANGE, .trusted = trusted, .range = made};
}

/* Enters pairs, or the entries of a dict. */
static void fill(struct render *r, struct dict *dict, struct value from) {
    struct cursor cursor;
    struct value pair;
    if (from.type == V_DICT) {
        for (size_t i = 0; i < from.dict->n && !r->rc; i++)
            dict_set(r, dict, from.dict->entries[i].key, from.dict->entries[i].value);
        return;
    }
    if (from.type == V_UNDEFINED) render_invalid(r, "dict() of an undefined value");
    cursor_init(&cursor, r, from);
    while (cursor_next(&cursor, r, &pair)) {
        const struct list *both = iterate_all(r, pair);
        if (both->n != 2) render_invalid(r, "dict() needs pairs");
        else dict_set(r, dict, both->items[0], both->items[1]);
    }
}

static struct dict *dict_of(struct render *r, const struct args *args) {
    struct dict *dict = dict_new(r, args->n_keywords);
    if (args->n > 1) render_invalid(r, "dict() takes at most one argument by position");
    if (args->n == 1) fill(r, dict, args->items[0]);
    for (size_t i = 0; i < args->n_keywords && !r->rc; i++)
        dict_set(r, dict, value_string(args->keywords[i].name), args->keywords[i].value);
    return dict;
}

CALLABLE_IS(dict, value_dict(dict_of(r, args), true))

CALLABLE(namespace) {
    struct dict *space = dict_of(r, args);
    for (size_t i = 0; i < space->n; i++) {
        const struct value key = space->entries[i].key;
        if (key.type == V_STRING && key.string->n && key.string->bytes[0] == '_')
            return render_invalid(r, "attributes of a namespace do not begin with an underscore");
    }
    return (struct value){.type = V_NAMESPACE, .trusted = true, .space = space};
}

CALLABLE(raise_exception) {
    const struct string *message = print_string(r, argv[0]);
    if (r->rc) return value_none(false);
    /* What the template says is the whole text: it is meant for the client. */
    size_t n = message->n, room = r->err ? sizeof(r->err->text) - 1 : 0;
    while (n > room || (n < message->n && ((unsigned char)message->bytes[n] & 0xc0) == 0x80)) n--;
    r->rc = error_set(r->err, ERR_INVALID, "%.*s", (int)n, message->bytes);
    return value_none(false);
}

/* Formats one conversion, which strftime() knows: %Y, %-d and so on.  A time without a zone has no
 * %z and %Z, and no microseconds. */
static void put_conversion(struct builder *b, const struct string *format, size_t begin,
                           size_t end) {
    char conversion[8] = "", text[256];
    const char kind = format->bytes[end - 1];
    const bool trusted = string_is_trusted(format);
    if (end - begin >= sizeof(conversion) || kind == 'E' || kind == 'O') {
        render_fail(b->render, ERR_UNSUPPORTED, "strftime_now() does not know a conversion");
        return;
    }
    if (kind == 'z' || kind == 'Z') return;
    if (kind == 'f') {
        builder_text(b, "000000", trusted);
        return;
    }
    memcpy(conversion, format->bytes + begin, end - begin);
    const size_t n = strftime(text, sizeof(text), conversion, b->render->now);
    builder_put(b, text, n, trusted);
}

CALLABLE(strftime_now) {
    const struct string *format = arg_string(r, "the format", argv[0], &STRING_EMPTY);
    struct builder b;
    builder_init(&b, r);
    for (size_t at = 0; at < format->n && render_step(r, 1);) {
        const size_t begin = at++;
        if (format->bytes[begin] != '%') {
            builder_slice(&b, format, begin, at);
            continue;
        }
        while (at < format->n && format->bytes[at] && strchr("-_0^#", format->bytes[at])) at++;
        if (at < format->n) at++;
        if (at == begin + 1) builder_slice(&b, format, begin, at); /* a % at the end */
        else put_conversion(&b, format, begin, at);
    }
    return value_string(builder_end(&b));
}

CALLABLE(cycler) {
    struct cycler *made = render_take(r, sizeof(*made));
    if (!args->n || args->n_keywords) return render_invalid(r, "cycler() needs items");
    if (!made) return value_none(false);
    *made = (struct cycler){.items = list_share(r, args->items, args->n)};
    return (struct value){.type = V_CYCLER, .trusted = true, .cycler = made};
}

CALLABLE(cycler_next) {
    const struct value item = self.cycler->items->items[self.cycler->at];
    self.cycler->at = (self.cycler->at + 1) % self.cycler->items->n;
    return item;
}

CALLABLE(cycler_reset) {
    self.cycler->at = 0;
    return value_none(true);
}

struct value cycler_attribute(struct render *r, struct value v, const struct string *name) {
    static const struct callable methods[] = {
        {"next", cycler_next, "/", 0},
        {"reset", cycler_reset, "/", 0},
        {0},
    };
    if (string_is(name, "current")) return v.cycler->items->items[v.cycler->at];
    const struct callable *callable = callable_find(methods, name->bytes, name->n);
    struct method *method = callable ? render_take(r, sizeof(*method)) : NULL;
    if (!method) return value_missing();
    *method = (struct method){v, callable};
    return (struct value){.type = V_METHOD, .trusted = true, .method = method};
}

CALLABLE(joiner) {
    static const struct string comma = {.bytes = ", ", .n = 2, .n_chars = 2, .trusted = true};
    struct joiner *made = render_take(r, sizeof(*made));
    if (!made) return value_none(false);
    made->separator = argv[0].type == V_MISSING ? value_string(&comma) : argv[0];
    made->used = false;
    return (struct value){.type = V_JOINER, .trusted = true, .joiner = made};
}

const struct callable FUNCTIONS[] = {
    {"range", range, "/start stop step", 1},
    {"dict", dict, NULL, 0},
    {"namespace", namespace, NULL, 0},
    {"raise_exception", raise_exception, "message", 1},
    {"strftime_now", strftime_now, "format", 1},
    {"cycler", cycler, NULL, 0},
    {"joiner", joiner, "sep", 0},
    {"lipsum", NULL, NULL, 0},
    {0},
};
