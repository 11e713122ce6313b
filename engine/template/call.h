/* call.h - what filters, tests, methods and functions have in common: a name, parameters, and a C
 * function; and calls of any value.
 *
 * Thread: a render's own.  Memory: tables are constant, the rest is in the render's arena. */
#ifndef ENGINE_TEMPLATE_CALL_H
#define ENGINE_TEMPLATE_CALL_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/template/value.h"

struct render;

struct keyword {
    const struct string *name;
    struct value value;
};

/* The arguments of a call. */
struct args {
    const struct value *items;
    size_t n;
    const struct keyword *keywords;
    size_t n_keywords;
};

/* `self` is what the filter, test or method is applied to.  argv has a value for each parameter,
 * V_MISSING where the call has none; args is what the call has. */
typedef struct value (*callable_fn)(struct render *r, struct value self, const struct value *argv,
                                    const struct args *args);

/* Defines a callable_fn.  Most need only some of the parameters. */
#define CALLABLE(name)                                                                             \
    static struct value name(__attribute__((unused)) struct render *r,                             \
                             __attribute__((unused)) struct value self,                            \
                             __attribute__((unused)) const struct value *argv,                     \
                             __attribute__((unused)) const struct args *args)
/* Defines one whose body is an expression. */
#define CALLABLE_IS(name, result)                                                                  \
    CALLABLE(name) {                                                                               \
        return result;                                                                             \
    }

struct callable {
    const char *name;
    callable_fn call; /* NULL: Python or Jinja has it, and it is not supported here */
    /* Names between spaces, the required ones first; behind a slash: not to be given by name.
     * NULL: the function looks at args itself. */
    const char *params;
    size_t n_required;
};

enum { CALL_MAX_PARAMS = 5 };

/* Ends at a row without a name.  Returns NULL if there is none of the name. */
const struct callable *callable_find(const struct callable *table, const char *name, size_t n);

/* Calls one row.  The render fails if the arguments do not fit. */
struct value callable_call(struct render *r, const struct callable *callable, struct value self,
                           const struct args *args);
/* Calls a value: a function, a macro, a method, a loop, a joiner. */
struct value value_call(struct render *r, struct value callee, const struct args *args);

/* Reads an argument that has a default. */
bool arg_bool(struct value arg, bool otherwise);
int64_t arg_int(struct render *r, const char *name, struct value arg, int64_t otherwise);
/* Returns the string.  The render fails if the argument is given and is none. */
const struct string *arg_string(struct render *r, const char *name, struct value arg,
                                const struct string *otherwise);

/* The tables.  Each says in its file what it leaves out. */
extern const struct callable FILTERS_OF_TEXT[], FILTERS_OF_LISTS[], FILTERS_OF_NUMBERS[];
extern const struct callable FILTERS_NOT_HERE[];
extern const struct callable TESTS[], FUNCTIONS[];
extern const struct callable NO_FILTER, NO_TEST; /* fail the render */
extern const struct callable METHODS_OF_STRINGS[], METHODS_OF_DICTS[], METHODS_OF_LISTS[];

const struct callable *filter_find(const char *name, size_t n);

/* Calls a filter or a test by a name that is known only now, as `map` and `select` do. */
struct value filter_call(struct render *r, struct value name, struct value self,
                         const struct args *args);
struct value test_call(struct render *r, struct value name, struct value self,
                       const struct args *args);

#endif
