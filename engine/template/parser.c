/* parser.c - see parser.h: tokens, nodes and failures. */
#include "engine/template/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/template/literals.h"

int parser_init(struct parser *p, struct arena *arena, const char *source, size_t n,
                uint32_t max_depth, struct error *err) {
    *p = (struct parser){.arena = arena, .max_depth = max_depth};
    p->rc = lexer_init(&p->lexer, arena, source, n, err);
    if (!p->rc) parser_next(p);
    return p->rc;
}

struct node *parser_fail(struct parser *p, const struct token *at, int code, const char *format,
                         ...) {
    if (p->rc) return NULL;
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    p->rc = lexer_fail(&p->lexer, at, code, "%s", text);
    return NULL;
}

void *parser_take(struct parser *p, size_t n) {
    void *piece = p->rc ? NULL : arena_take(p->arena, n);
    if (!piece)
        parser_fail(p, &p->token, p->arena->rc, "the template does not fit %zu bytes",
                    p->arena->max);
    return piece;
}

bool parser_enter(struct parser *p) {
    if (p->rc) return false;
    if (p->depth < p->max_depth) {
        p->depth++;
        return true;
    }
    parser_fail(p, &p->token, ERR_TOO_LONG, "more than %u levels are nested", p->max_depth);
    return false;
}

void parser_leave(struct parser *p) {
    p->depth--;
}

void parser_next(struct parser *p) {
    if (p->rc) return;
    if (p->has_ahead) p->token = p->ahead;
    else p->rc = lexer_next(&p->lexer, &p->token);
    p->has_ahead = false;
    if (p->rc) p->token.kind = T_END;
}

const struct token *parser_look(struct parser *p) {
    if (!p->has_ahead && !p->rc) {
        p->rc = lexer_next(&p->lexer, &p->ahead);
        p->has_ahead = true;
    }
    if (p->rc) p->ahead = (struct token){.kind = T_END};
    return &p->ahead;
}

bool parser_at(const struct parser *p, enum token_kind kind) {
    return !p->rc && p->token.kind == kind;
}

static bool token_is(const struct token *token, enum token_kind kind, const char *text) {
    return token->kind == kind && strlen(text) == token->n && !memcmp(token->bytes, text, token->n);
}

bool parser_at_operator(const struct parser *p, const char *text) {
    return !p->rc && token_is(&p->token, T_OPERATOR, text);
}

bool parser_at_name(const struct parser *p, const char *name) {
    return !p->rc && token_is(&p->token, T_NAME, name);
}

bool parser_skip_operator(struct parser *p, const char *text) {
    const bool is_there = parser_at_operator(p, text);
    if (is_there) parser_next(p);
    return is_there;
}

bool parser_skip_name(struct parser *p, const char *name) {
    const bool is_there = parser_at_name(p, name);
    if (is_there) parser_next(p);
    return is_there;
}

/* Says what was expected, and what is there. */
static void expected(struct parser *p, const char *what) {
    const struct token *at = &p->token;
    switch (at->kind) {
    case T_NAME:
    case T_OPERATOR:
        parser_fail(p, at, ERR_INVALID, "expected %s, not `%.*s`", what,
                    (int)(at->n < 64 ? at->n : 64), at->bytes);
        break;
    case T_NUMBER: parser_fail(p, at, ERR_INVALID, "expected %s, not a number", what); break;
    case T_STRING: parser_fail(p, at, ERR_INVALID, "expected %s, not a string", what); break;
    case T_BLOCK_END: parser_fail(p, at, ERR_INVALID, "expected %s, not `%%}`", what); break;
    case T_VARIABLE_END: parser_fail(p, at, ERR_INVALID, "expected %s, not `}}`", what); break;
    default: parser_fail(p, at, ERR_INVALID, "expected %s", what);
    }
}

void parser_expect_operator(struct parser *p, const char *text) {
    char what[8];
    snprintf(what, sizeof(what), "`%s`", text);
    if (!parser_skip_operator(p, text)) expected(p, what);
}

void parser_expect_name(struct parser *p, const char *name) {
    char what[32];
    snprintf(what, sizeof(what), "`%s`", name);
    if (!parser_skip_name(p, name)) expected(p, what);
}

void parser_expect_block_end(struct parser *p) {
    if (parser_at(p, T_BLOCK_END)) parser_next(p);
    else expected(p, "`%}`");
}

const struct string *parser_name(struct parser *p) {
    struct value name = {0};
    if (!parser_at(p, T_NAME)) {
        expected(p, "a name");
        return NULL;
    }
    if (literal_text(p->arena, p->token.bytes, p->token.n, &name)) {
        parser_fail(p, &p->token, p->arena->rc, "the template does not fit its memory");
        return NULL;
    }
    parser_next(p);
    return name.string;
}

struct node *node_new(struct parser *p, enum node_kind kind, uint32_t line) {
    struct node *node = parser_take(p, sizeof(*node));
    if (node) *node = (struct node){.kind = (uint8_t)kind, .line = line};
    return node;
}

struct node *node_child(struct parser *p, struct node *node, const struct node *child) {
    if (p->rc) return NULL;
    if (child && child->depth >= node->depth) node->depth = child->depth + 1;
    if (node->depth > p->max_depth)
        return parser_fail(p, &p->token, ERR_TOO_LONG, "more than %u levels are nested",
                           p->max_depth);
    return node;
}

struct node *node_children(struct parser *p, struct node *node, const struct nodes *children) {
    for (size_t i = 0; i < children->n; i++) node_child(p, node, children->items[i]);
    return p->rc ? NULL : node;
}

void nodes_add(struct parser *p, struct nodes *nodes, struct node *node) {
    const size_t n = nodes->n;
    if (p->rc) return;
    /* Room is made at 0, 4, 8, 16 and so on. */
    if (n == 0 || (n >= 4 && (n & (n - 1)) == 0)) {
        void *items =
            arena_grow(p->arena, nodes->items, n * sizeof(node), (n ? 2 * n : 4) * sizeof(node));
        if (!items) {
            parser_fail(p, &p->token, p->arena->rc, "the template does not fit its memory");
            return;
        }
        nodes->items = items;
    }
    nodes->items[nodes->n++] = node;
}
