/* execute.h - runs a template's nodes: expressions, statements, macros and loops.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_EXECUTE_H
#define ENGINE_TEMPLATE_EXECUTE_H

#include <stdbool.h>

#include "engine/template/ast.h"
#include "engine/template/call.h"
#include "engine/template/iterate.h"
#include "engine/template/value.h"

struct frame;
struct render;

/* A macro, or the body of a call block, with the scope in which it was defined. */
struct macro {
    const struct macro_node *node;
    struct frame *outer;
};

/* What `loop` means in a loop's body. */
struct loop {
    const struct for_node *node;
    struct frame *outer;
    struct cursor cursor;
    struct value iterable;
    struct value before, current, after; /* after: V_MISSING unless the next item was looked at */
    struct value changed;                /* arguments of the last loop.changed(), or V_MISSING */
    int64_t index0, length;              /* length: -1, not known yet */
    bool has_finished;                   /* a round of the body, without break and continue */
    int64_t depth0;
};

struct value node_evaluate(struct render *r, const struct node *node);
/* Evaluates arguments; `caller` is one more, unless it is V_MISSING. */
void node_evaluate_args(struct render *r, const struct call_nodes *nodes, struct value caller,
                        struct args *out);
/* Applies the filters of a block to its text. */
struct value node_evaluate_block_filter(struct render *r, const struct node *filter,
                                        struct value text);
/* Assigns to a target in the current scope. */
void node_assign(struct render *r, const struct node *target, struct value value);

void node_execute(struct render *r, const struct nodes *nodes);
/* Makes the frame of a scope; NULL after failing the render. */
struct frame *frame_new(struct render *r, const struct scope *scope, struct frame *outer);
/* Sets those slots that are not parameters, as they are when the scope is entered. */
void frame_reset(struct render *r, const struct scope *scope, struct frame *frame);

struct value macro_call(struct render *r, const struct macro *macro, const struct args *args);

void loop_run(struct render *r, const struct for_node *node, struct value iterable, int64_t depth0);
struct value loop_attribute(struct render *r, struct loop *loop, const struct string *name);
struct value loop_call(struct render *r, struct loop *loop, const struct args *args);

struct value cycler_attribute(struct render *r, struct value v, const struct string *name);

#endif
