/* parser.h - tokens to nodes.  parse_expression.c and parse_statement.c follow jinja2's grammar, so
 * that what is an error there is one here.
 *
 * A failure is sticky, as in a render: rc says it, and every function then returns NULL.
 *
 * Thread: the compiler's.  Memory: the template's arena. */
#ifndef ENGINE_TEMPLATE_PARSER_H
#define ENGINE_TEMPLATE_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/template/ast.h"
#include "engine/template/lexer.h"

/* Notes which of the names that jinja2 treats specially a body reads: one of a loop or a macro
 * that is being parsed.  A name that was assigned before is an ordinary one. */
enum special { SPECIAL_LOOP, SPECIAL_CALLER, SPECIAL_KWARGS, SPECIAL_VARARGS, N_SPECIALS };
struct mentions {
    struct mentions *outer;
    bool read[N_SPECIALS], assigned[N_SPECIALS];
};

struct parser {
    struct lexer lexer;
    struct token token, ahead; /* the current one, and the next where it was looked at */
    bool has_ahead;
    struct arena *arena;
    int rc;
    uint32_t depth, max_depth;
    struct mentions *mentions;
    uint32_t n_loops;   /* around: `loop` may not be assigned */
    uint32_t breakable; /* of them that break and continue may leave */
    bool in_branch;     /* of an `if`, and of no block in it: filters may be missing */
};

int parser_init(struct parser *p, struct arena *arena, const char *source, size_t n,
                uint32_t max_depth, struct error *err);

/* Fails at a token, unless the parser already has, and returns NULL. */
struct node *parser_fail(struct parser *p, const struct token *at, int code, const char *format,
                         ...) __attribute__((format(printf, 4, 5)));
void *parser_take(struct parser *p, size_t n);
bool parser_enter(struct parser *p); /* as render_enter() */
void parser_leave(struct parser *p);

void parser_next(struct parser *p);
const struct token *parser_look(struct parser *p); /* behind the current token */
bool parser_at(const struct parser *p, enum token_kind kind);
bool parser_at_operator(const struct parser *p, const char *text);
bool parser_at_name(const struct parser *p, const char *name);
bool parser_skip_operator(struct parser *p, const char *text);
bool parser_skip_name(struct parser *p, const char *name);
void parser_expect_operator(struct parser *p, const char *text);
void parser_expect_name(struct parser *p, const char *name);
/* Reads a name and returns it. */
const struct string *parser_name(struct parser *p);
void parser_expect_block_end(struct parser *p);

struct node *node_new(struct parser *p, enum node_kind kind, uint32_t line);
/* Notes that a node has a child, which may be NULL.  Returns the node, or NULL after a failure. */
struct node *node_child(struct parser *p, struct node *node, const struct node *child);
void nodes_add(struct parser *p, struct nodes *nodes, struct node *node);
struct node *node_children(struct parser *p, struct node *node, const struct nodes *children);

/* Parses an expression.  Without conditions `a if b` ends before `if`. */
struct node *parse_expression(struct parser *p, bool with_condition);
/* Parses an expression or, with commas, a tuple; `end` is a name that ends it, or NULL. */
struct node *parse_tuple(struct parser *p, bool with_condition, const char *end, bool in_brackets);
/* Parses a target of an assignment; `end` as above. */
struct node *parse_target(struct parser *p, const char *end, bool with_namespace);
struct node *parse_target_name(struct parser *p);
/* Parses filters behind `of`, which may be NULL; the first one has no | in front of it if
 * `inline_first`. */
struct node *parse_filters(struct parser *p, struct node *of, bool inline_first);

void parse_template(struct parser *p, struct nodes *body);

#endif
