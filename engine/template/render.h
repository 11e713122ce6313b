/* render.h - the state of one render, and how its functions fail.
 *
 * A failure is sticky: the first one writes the error and sets rc; from then on every function
 * returns something harmless (an empty string, an empty list, none) and iterators end.  So an
 * expression need not be checked piece by piece, only where work goes on: at statements, at calls
 * and in loops.
 *
 * Thread: one a render.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_RENDER_H
#define ENGINE_TEMPLATE_RENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/template/arena.h"
#include "engine/template/template.h"
#include "engine/template/value.h"

struct builder;

/* Variables of one scope.  `outer` is the scope around it in the source, as in Python's closures.
 * A scope's slots are set anew whenever it is entered. */
struct frame {
    struct frame *outer;
    struct value slots[];
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

/* The output: bytes and the trusted spans among them. */
struct sink {
    char *bytes;
    size_t n, capacity;
    struct byte_span *spans;
    size_t n_spans, span_capacity;
};

struct render {
    const struct template *template;
    struct arena arena;
    struct template_limits limits;
    struct error *err;
    int rc;
    uint32_t line, depth;
    uint64_t steps;
    enum flow flow;
    struct frame *frame;
    struct value *globals; /* [template->n_globals] variables by number, looked up once */
    const char **numbers;  /* [n_numbers] texts of JSON's, which outlives the render */
    uint32_t n_numbers, number_capacity;
    struct sink sink;
    struct builder *capture; /* where the output goes instead: a macro, a block that is set */
    const struct tm *now;
    uint64_t hash_key[2]; /* keys of clients must not be able to collide */
};

/* Fails the render, unless it already has, and returns none; the text begins with the line. */
struct value render_fail(struct render *r, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails with ERR_INVALID. */
#define render_invalid(r, ...) render_fail(r, ERR_INVALID, __VA_ARGS__)

/* Returns arena memory, or NULL after failing the render. */
void *render_take(struct render *r, size_t n);
void *render_grow(struct render *r, void *piece, size_t n_old, size_t n_new);

/* Counts steps; returns false when the render has failed, by them or before. */
bool render_step(struct render *r, uint64_t n_steps);
/* Counts the steps of moving bytes. */
bool render_move(struct render *r, size_t n_bytes);
/* Goes one level deeper; returns false when the render has failed.  Each that returns true is
 * followed by render_leave(). */
bool render_enter(struct render *r);
static inline void render_leave(struct render *r) {
    r->depth--;
}

/* Returns how a number was written, NULL if that does not matter. */
const char *render_number_text(const struct render *r, struct value number);
/* Returns whether a value is an integer, of any size.  One beyond int64 is a V_FLOAT that was
 * written without a fraction or an exponent. */
bool render_is_integer(const struct render *r, struct value v);

/* Writes to the capture, or to the output. */
void render_write(struct render *r, const struct string *s);

#endif
