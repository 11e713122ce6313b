/* ast.h - a compiled template: a tree of nodes in one arena.
 *
 *   {% for m in messages %}{{ m.role|upper }}{% endfor %}
 *
 *   FOR ── target NAME m            slot 0 of the loop's scope
 *       ── iter   NAME messages     slot 0 of the template's scope: global 0
 *       ── body   OUTPUT ── FILTER upper ── ATTRIBUTE role ── NAME m
 *
 * Thread: written by the compiler's, read by any.  Memory: the template's arena. */
#ifndef ENGINE_TEMPLATE_AST_H
#define ENGINE_TEMPLATE_AST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/template/arena.h"
#include "engine/template/operators.h"
#include "engine/template/value.h"

enum node_kind {
    /* Expressions. */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT, /* items: key, value, key, value, ... */
    N_ATTRIBUTE,
    N_ITEM,
    N_SLICE, /* items: start, stop, step, each may be NULL */
    N_CALL,
    N_FILTER,
    N_TEST,
    N_BINARY,
    N_CONCAT,
    N_COMPARE, /* items and operators of a chain: a < b < c */
    N_AND,
    N_OR,
    N_NOT,
    N_NEGATE,
    N_PLUS,
    N_CONDITION, /* a if b else c */
    N_SPACE_REF, /* namespace.attribute, as a target */
    /* Statements. */
    N_DATA,
    N_OUTPUT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_GENERATION,
    N_BREAK,
    N_CONTINUE
};

struct nodes {
    struct node **items;
    size_t n;
};

/* The arguments of a call, a filter or a test. */
struct call_nodes {
    struct nodes items;
    struct nodes keywords; /* values; keyword_names has as many */
    const struct string **keyword_names;
    struct node *more_items, *more_keywords; /* *args and **kwargs, or NULL */
};

/* How a slot gets its value when its scope is entered. */
enum slot_kind {
    SLOT_PARAM,  /* by the construct: a loop's target, an argument */
    SLOT_GLOBAL, /* global number `index` */
    SLOT_ALIAS,  /* slot `index` of the scope `depth` levels out: the scope may set its own */
    SLOT_UNSET
};

struct slot {
    enum slot_kind kind;
    uint32_t depth, index;
};

struct scope {
    struct slot *slots;
    uint32_t n_slots;
};

struct branch {
    struct node *condition; /* NULL: else */
    struct nodes body;
};

/* A for loop, with the scopes of body, condition and else. */
struct for_node {
    struct node *target, *iter, *condition;
    struct nodes body, otherwise;
    struct scope body_scope, condition_scope, otherwise_scope;
    uint32_t loop_slot; /* of the body's scope; UINT32_MAX: the body does not mention `loop` */
    bool is_recursive;
};

/* A macro or the body of a call block. */
struct macro_node {
    const struct string *name; /* NULL: a call block's */
    struct node **params;      /* N_NAME */
    struct node **defaults;    /* of the last n_defaults parameters */
    size_t n_params, n_defaults;
    struct nodes body;
    struct scope scope;
    bool has_caller, has_kwargs, has_varargs; /* parameters that the body mentions */
    uint32_t caller_slot, kwargs_slot, varargs_slot;
};

struct node {
    uint8_t kind; /* enum node_kind */
    uint8_t op;   /* of N_BINARY, an enum operator */
    uint16_t depth;
    uint32_t line;
    union {
        struct value value; /* N_CONST, N_DATA */
        struct {
            const struct string *name;
            uint32_t depth, index;          /* scopes out, and slot */
            const struct string *attribute; /* N_SPACE_REF */
        } name;
        struct nodes items; /* N_LIST, N_TUPLE, N_DICT, N_CONCAT, N_OUTPUT */
        struct {
            struct node *of;
            const struct string *name; /* N_ATTRIBUTE */
            struct node *key;          /* N_ITEM */
            struct node *bounds[3];    /* N_SLICE */
        } access;
        struct {
            struct node *of; /* the callee; what a filter or test is applied to */
            const struct callable *callable;
            struct call_nodes args;
        } call;
        struct {
            struct node *a, *b, *c;
        } parts; /* N_BINARY, N_AND, N_OR, N_NOT, N_NEGATE, N_PLUS, N_CONDITION: b if a else c */
        struct {
            struct nodes items;
            uint8_t *ops; /* between them: one less */
        } compare;
        struct {
            struct branch *branches;
            size_t n;
        } branch;
        struct for_node *loop;
        struct {
            struct node *target, *value;
        } set;
        struct {
            struct node *target; /* N_SET_BLOCK */
            struct node *filter; /* innermost first applied; its innermost `of` is NULL */
            struct nodes body;
            struct scope scope;
            struct nodes targets, values; /* N_WITH */
        } block;                          /* N_SET_BLOCK, N_FILTER_BLOCK, N_WITH, N_GENERATION */
        struct {
            struct macro_node *macro;
            struct node *target; /* N_MACRO: its name.  N_CALL_BLOCK: the call */
        } macro;
    };
};

struct template {
    struct arena arena;
    struct nodes body;
    struct scope scope;
    const struct string **globals; /* names that scopes look up outside */
    uint32_t n_globals;
};

#endif
