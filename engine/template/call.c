/* call.c - see call.h. */
#include "engine/template/call.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/template/execute.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

const struct callable *callable_find(const struct callable *table, const char *name, size_t n) {
    for (const struct callable *row = table; row->name; row++)
        if (strlen(row->name) == n && !memcmp(row->name, name, n)) return row;
    return NULL;
}

/* Returns how many parameters there are, and in *which the one of the name, or that number. */
static size_t find_param(const char *params, const struct string *name, size_t *which) {
    size_t i = 0;
    *which = SIZE_MAX;
    while (*params) {
        const size_t n = strcspn(params, " ");
        if (name && n == name->n && !memcmp(params, name->bytes, n)) *which = i;
        params += n + (params[n] == ' ');
        i++;
    }
    if (*which == SIZE_MAX) *which = i;
    return i;
}

/* Gives each parameter its argument; returns false when the render has failed. */
static bool bind(struct render *r, const struct callable *callable, const struct args *args,
                 struct value argv[CALL_MAX_PARAMS]) {
    const bool by_position = callable->params[0] == '/';
    const char *params = callable->params + by_position;
    size_t which;
    const size_t n_params = find_param(params, NULL, &which);
    for (size_t i = 0; i < CALL_MAX_PARAMS; i++) argv[i] = value_missing();
    if (args->n > n_params)
        return render_invalid(r, "%s takes at most %zu arguments", callable->name, n_params), false;
    for (size_t i = 0; i < args->n; i++) argv[i] = args->items[i];
    for (size_t i = 0; i < args->n_keywords; i++) {
        const struct keyword *keyword = &args->keywords[i];
        find_param(params, keyword->name, &which);
        if (which == n_params || by_position || argv[which].type != V_MISSING)
            return render_invalid(r, "%s does not take the argument '%.*s', or not twice",
                                  callable->name, (int)keyword->name->n, keyword->name->bytes),
                   false;
        argv[which] = keyword->value;
    }
    for (size_t i = 0; i < callable->n_required; i++)
        if (argv[i].type == V_MISSING)
            return render_invalid(r, "%s lacks an argument: it requires %zu", callable->name,
                                  callable->n_required),
                   false;
    return true;
}

struct value callable_call(struct render *r, const struct callable *callable, struct value self,
                           const struct args *args) {
    struct value argv[CALL_MAX_PARAMS];
    if (r->rc) return value_none(false);
    if (!callable->call)
        return render_fail(r, ERR_UNSUPPORTED, "%s is not supported here", callable->name);
    if (callable->params && !bind(r, callable, args, argv)) return value_none(false);
    const struct value result = callable->call(r, self, argv, args);
    return r->rc ? value_none(false) : result;
}

struct value value_call(struct render *r, struct value callee, const struct args *args) {
    struct value result = value_none(false);
    if (r->rc || !render_enter(r)) return result;
    switch (callee.type) {
    case V_FUNCTION: result = callable_call(r, callee.function, callee, args); break;
    case V_METHOD:
        result = callable_call(r, callee.method->callable, callee.method->self, args);
        break;
    case V_MACRO: result = macro_call(r, callee.macro, args); break;
    case V_LOOP: result = loop_call(r, callee.loop, args); break;
    case V_JOINER:
        result = callee.joiner->used ? callee.joiner->separator : value_string(&STRING_EMPTY);
        callee.joiner->used = true;
        break;
    case V_UNDEFINED:
        if (callee.string)
            render_invalid(r, "'%.*s' is undefined, and cannot be called", (int)callee.string->n,
                           callee.string->bytes);
        else render_invalid(r, "an undefined value cannot be called");
        break;
    default: render_invalid(r, "a value of type %s cannot be called", value_type_name(callee));
    }
    render_leave(r);
    return result;
}

bool arg_bool(struct value arg, bool otherwise) {
    return arg.type == V_MISSING ? otherwise : value_is_true(arg);
}

int64_t arg_int(struct render *r, const char *name, struct value arg, int64_t otherwise) {
    if (arg.type == V_MISSING) return otherwise;
    if (!value_is_integer(arg))
        render_invalid(r, "%s must be an integer, not a value of type %s", name,
                       value_type_name(arg));
    return value_is_integer(arg) ? value_to_int(arg) : otherwise;
}

const struct string *arg_string(struct render *r, const char *name, struct value arg,
                                const struct string *otherwise) {
    if (arg.type == V_MISSING) return otherwise;
    if (arg.type == V_STRING) return arg.string;
    render_invalid(r, "%s must be a string, not a value of type %s", name, value_type_name(arg));
    return otherwise;
}

const struct callable *filter_find(const char *name, size_t n) {
    const struct callable *const tables[] = {FILTERS_OF_TEXT, FILTERS_OF_LISTS, FILTERS_OF_NUMBERS,
                                             FILTERS_NOT_HERE};
    const struct callable *found = NULL;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && !found; i++)
        found = callable_find(tables[i], name, n);
    return found;
}

CALLABLE_IS(no_filter, render_invalid(r, "there is no filter of this name"))
CALLABLE_IS(no_test, render_invalid(r, "there is no test of this name"))

const struct callable NO_FILTER = {.name = "", .call = no_filter},
                      NO_TEST = {.name = "", .call = no_test};

struct value filter_call(struct render *r, struct value name, struct value self,
                         const struct args *args) {
    const struct callable *filter =
        name.type == V_STRING ? filter_find(name.string->bytes, name.string->n) : NULL;
    return callable_call(r, filter ? filter : &NO_FILTER, self, args);
}

struct value test_call(struct render *r, struct value name, struct value self,
                       const struct args *args) {
    const struct callable *test =
        name.type == V_STRING ? callable_find(TESTS, name.string->bytes, name.string->n) : NULL;
    return callable_call(r, test ? test : &NO_TEST, self, args);
}
