/* parse_expression.c - see parser.h: expressions, in the order of precedence.
 *
 *   condition   a if b else c
 *   or, and, not
 *   compare     == != < <= > >= in, not in
 *   sum         + -
 *   concat      ~
 *   product     * / // %
 *   power       **
 *   unary       - +, then .name [item] (call), then |filter and `is test`
 *   primary     literals, names, brackets */
#include <string.h>

#include "engine/base/error.h"
#include "engine/template/call.h"
#include "engine/template/literals.h"
#include "engine/template/parser.h"
#include "engine/template/strings.h"

static struct node *parse_unary(struct parser *p, bool with_filters);

static const char *const SPECIAL_NAMES[N_SPECIALS] = {"loop", "caller", "kwargs", "varargs"};

static void mention(struct parser *p, const struct string *name, bool is_assigned) {
    for (int i = 0; i < N_SPECIALS; i++) {
        if (!string_is(name, SPECIAL_NAMES[i])) continue;
        for (struct mentions *m = p->mentions; m; m = m->outer) {
            if (is_assigned) m->assigned[i] = true;
            else if (!m->assigned[i]) m->read[i] = true;
        }
    }
}

static struct node *constant(struct parser *p, struct value value, uint32_t line) {
    struct node *node = node_new(p, N_CONST, line);
    if (node) node->value = value;
    return node;
}

static struct node *parse_name(struct parser *p) {
    const struct token at = p->token;
    const uint32_t line = at.line;
    const struct string *name = parser_name(p);
    if (!name) return NULL;
    if (string_is(name, "self")) /* the blocks of a template, which are not supported either */
        return parser_fail(p, &at, ERR_UNSUPPORTED, "the variable `self` is not supported");
    if (string_is(name, "true") || string_is(name, "True"))
        return constant(p, value_bool(true, true), line);
    if (string_is(name, "false") || string_is(name, "False"))
        return constant(p, value_bool(false, true), line);
    if (string_is(name, "none") || string_is(name, "None"))
        return constant(p, value_none(true), line);
    struct node *node = node_new(p, N_NAME, line);
    if (!node) return NULL;
    node->name.name = name;
    mention(p, name, false);
    return node;
}

/* Reads adjacent strings as one. */
static struct node *parse_strings(struct parser *p) {
    struct node *node = constant(p, p->token.value, p->token.line);
    parser_next(p);
    while (node && parser_at(p, T_STRING)) {
        const struct string *a = node->value.string, *b = p->token.value.string;
        char *bytes = parser_take(p, a->n + b->n);
        if (!bytes) return NULL;
        memcpy(bytes, a->bytes, a->n);
        memcpy(bytes + a->n, b->bytes, b->n);
        if (literal_text(p->arena, bytes, a->n + b->n, &node->value))
            return parser_fail(p, &p->token, p->arena->rc, "the template does not fit its memory");
        parser_next(p);
    }
    return node;
}

static struct node *parse_list(struct parser *p) {
    struct node *node = node_new(p, N_LIST, p->token.line);
    struct nodes items = {0};
    parser_next(p);
    while (!p->rc && !parser_at_operator(p, "]")) {
        if (items.n) parser_expect_operator(p, ",");
        if (parser_at_operator(p, "]")) break;
        nodes_add(p, &items, parse_expression(p, true));
    }
    parser_expect_operator(p, "]");
    if (!p->rc) node->items = items;
    return p->rc ? NULL : node_children(p, node, &items);
}

static struct node *parse_dict(struct parser *p) {
    struct node *node = node_new(p, N_DICT, p->token.line);
    struct nodes items = {0};
    parser_next(p);
    while (!p->rc && !parser_at_operator(p, "}")) {
        if (items.n) parser_expect_operator(p, ",");
        if (parser_at_operator(p, "}")) break;
        nodes_add(p, &items, parse_expression(p, true));
        parser_expect_operator(p, ":");
        nodes_add(p, &items, parse_expression(p, true));
    }
    parser_expect_operator(p, "}");
    if (!p->rc) node->items = items;
    return p->rc ? NULL : node_children(p, node, &items);
}

static struct node *parse_primary(struct parser *p) {
    const struct token at = p->token;
    if (p->rc) return NULL;
    switch (at.kind) {
    case T_NAME: return parse_name(p);
    case T_STRING: return parse_strings(p);
    case T_NUMBER: parser_next(p); return constant(p, at.value, at.line);
    default: break;
    }
    if (parser_at_operator(p, "[")) return parse_list(p);
    if (parser_at_operator(p, "{")) return parse_dict(p);
    if (parser_skip_operator(p, "(")) {
        struct node *node = parse_tuple(p, true, NULL, true);
        parser_expect_operator(p, ")");
        return p->rc ? NULL : node;
    }
    if (at.kind == T_OPERATOR)
        return parser_fail(p, &at, ERR_INVALID, "expected an expression, not `%.*s`", (int)at.n,
                           at.bytes);
    return parser_fail(p, &at, ERR_INVALID, "expected an expression");
}

static bool at_tuple_end(struct parser *p, const char *end) {
    return parser_at(p, T_VARIABLE_END) || parser_at(p, T_BLOCK_END) ||
           parser_at_operator(p, ")") || (end && parser_at_name(p, end));
}

/* Reads items with commas between them, by one function, and makes a tuple if there is a comma. */
static struct node *parse_items(struct parser *p, struct node *(*parse)(struct parser *p),
                                const char *end, bool in_brackets) {
    const struct token at = p->token;
    struct nodes items = {0};
    bool is_tuple = false;
    while (!p->rc) {
        if (items.n) parser_expect_operator(p, ",");
        if (at_tuple_end(p, end)) break;
        nodes_add(p, &items, parse(p));
        if (!parser_at_operator(p, ",")) break;
        is_tuple = true;
    }
    if (p->rc) return NULL;
    if (!is_tuple && items.n) return items.items[0];
    if (!is_tuple && !in_brackets)
        return parser_fail(p, &at, ERR_INVALID, "expected an expression");
    struct node *node = node_new(p, N_TUPLE, at.line);
    if (!node) return NULL;
    node->items = items;
    return node_children(p, node, &items);
}

static struct node *with_condition(struct parser *p) {
    return parse_expression(p, true);
}

static struct node *without_condition(struct parser *p) {
    return parse_expression(p, false);
}

struct node *parse_tuple(struct parser *p, bool condition, const char *end, bool in_brackets) {
    return parse_items(p, condition ? with_condition : without_condition, end, in_brackets);
}

/* Returns whether the node can be assigned to, and notes the names that are. */
static bool is_target(struct parser *p, const struct node *node) {
    if (node->kind == N_NAME) {
        mention(p, node->name.name, true);
        return true;
    }
    if (node->kind == N_SPACE_REF) return true;
    if (node->kind != N_TUPLE) return false;
    for (size_t i = 0; i < node->items.n; i++)
        if (!is_target(p, node->items.items[i])) return false;
    return true;
}

static bool names_loop(const struct node *node) {
    if (node->kind == N_NAME) return string_is(node->name.name, "loop");
    bool found = false;
    for (size_t i = 0; node->kind == N_TUPLE && i < node->items.n; i++)
        found |= names_loop(node->items.items[i]);
    return found;
}

static struct node *space_or_primary(struct parser *p) {
    if (!parser_at(p, T_NAME) || parser_look(p)->kind != T_OPERATOR || p->ahead.n != 1 ||
        p->ahead.bytes[0] != '.')
        return parse_primary(p);
    struct node *node = node_new(p, N_SPACE_REF, p->token.line);
    const struct string *name = parser_name(p);
    parser_next(p);
    const struct string *attribute = parser_name(p);
    if (p->rc) return NULL;
    node->name.name = name;
    node->name.attribute = attribute;
    return node;
}

struct node *parse_target(struct parser *p, const char *end, bool with_namespace) {
    const struct token at = p->token;
    /* While it is read, a name is no mention of a variable. */
    struct mentions *mentions = p->mentions;
    p->mentions = NULL;
    struct node *node =
        parse_items(p, with_namespace ? space_or_primary : parse_primary, end, false);
    p->mentions = mentions;
    if (!node) return NULL;
    if (!is_target(p, node)) return parser_fail(p, &at, ERR_INVALID, "this cannot be assigned to");
    if (p->n_loops && names_loop(node))
        return parser_fail(p, &at, ERR_INVALID, "`loop` cannot be assigned to in a for loop");
    return node;
}

struct node *parse_target_name(struct parser *p) {
    const struct token at = p->token;
    if (!parser_at(p, T_NAME)) {
        parser_name(p);
        return NULL;
    }
    struct mentions *mentions = p->mentions;
    p->mentions = NULL;
    struct node *node = parse_name(p);
    p->mentions = mentions;
    if (!node) return NULL;
    if (!is_target(p, node) || (p->n_loops && names_loop(node)))
        return parser_fail(p, &at, ERR_INVALID, "this cannot be assigned to");
    return node;
}

static void parse_keyword(struct parser *p, struct call_nodes *args) {
    const struct token at = p->token;
    const size_t n = args->keywords.n;
    const struct string *name = parser_name(p);
    parser_next(p);
    nodes_add(p, &args->keywords, parse_expression(p, true));
    if (p->rc) return;
    for (size_t i = 0; i < n; i++)
        if (string_equals(args->keyword_names[i], name)) {
            parser_fail(p, &at, ERR_INVALID, "the argument `%.*s` is given twice", (int)name->n,
                        name->bytes);
            return;
        }
    const struct string **names = parser_take(p, (n + 1) * sizeof(*names));
    if (!names) return;
    if (n) memcpy(names, args->keyword_names, n * sizeof(*names));
    names[n] = name;
    args->keyword_names = names;
}

/* Reads one argument; what may follow what is as in Python. */
static void parse_argument(struct parser *p, struct call_nodes *args) {
    const struct token at = p->token;
    bool is_allowed = true;
    if (parser_skip_operator(p, "*")) {
        is_allowed = !args->more_items && !args->more_keywords;
        args->more_items = parse_expression(p, true);
    } else if (parser_skip_operator(p, "**")) {
        is_allowed = !args->more_keywords;
        args->more_keywords = parse_expression(p, true);
    } else if (parser_at(p, T_NAME) && parser_look(p)->kind == T_OPERATOR && p->ahead.n == 1 &&
               p->ahead.bytes[0] == '=') {
        is_allowed = !args->more_keywords;
        parse_keyword(p, args);
    } else {
        is_allowed = !args->more_items && !args->more_keywords && !args->keywords.n;
        nodes_add(p, &args->items, parse_expression(p, true));
    }
    if (!is_allowed) parser_fail(p, &at, ERR_INVALID, "this argument cannot stand here");
}

static void parse_arguments(struct parser *p, struct node *node, struct call_nodes *args) {
    bool is_first = true;
    parser_expect_operator(p, "(");
    while (!p->rc && !parser_at_operator(p, ")")) {
        if (!is_first) parser_expect_operator(p, ",");
        if (!is_first && parser_at_operator(p, ")")) break;
        parse_argument(p, args);
        is_first = false;
    }
    parser_expect_operator(p, ")");
    if (p->rc) return;
    node_children(p, node, &args->items);
    node_children(p, node, &args->keywords);
    node_child(p, node, args->more_items);
    node_child(p, node, args->more_keywords);
}

static struct node *parse_call(struct parser *p, struct node *callee) {
    struct node *node = node_new(p, N_CALL, p->token.line);
    if (!node) return NULL;
    node->call.of = callee;
    parse_arguments(p, node, &node->call.args);
    return node_child(p, node, callee);
}

/* Reads what is between [ and ]: an expression, or a slice, whose parts go to the node. */
static struct node *parse_subscribed(struct parser *p, struct node *node) {
    struct node *bounds[3] = {NULL, NULL, NULL};
    if (!parser_at_operator(p, ":")) {
        bounds[0] = parse_expression(p, true);
        if (!parser_at_operator(p, ":")) return bounds[0];
    }
    for (int i = 1; i < 3 && parser_skip_operator(p, ":"); i++)
        if (!parser_at_operator(p, ":") && !parser_at_operator(p, "]") &&
            !parser_at_operator(p, ","))
            bounds[i] = parse_expression(p, true);
    if (p->rc) return NULL;
    node->kind = N_SLICE;
    for (int i = 0; i < 3; i++) {
        node->access.bounds[i] = bounds[i];
        node_child(p, node, bounds[i]);
    }
    return NULL;
}

static struct node *parse_subscript(struct parser *p, struct node *of) {
    const struct token at = p->token;
    struct node *node = node_new(p, N_ITEM, at.line);
    if (!node) return NULL;
    node->access.of = of;
    if (parser_skip_operator(p, ".")) {
        if (parser_at(p, T_NAME)) {
            node->kind = N_ATTRIBUTE;
            node->access.name = parser_name(p);
        } else if (parser_at(p, T_NUMBER) && p->token.value.type == V_INT) {
            node->access.key = constant(p, p->token.value, at.line);
            parser_next(p);
        } else {
            return parser_fail(p, &at, ERR_INVALID, "expected a name or a number behind `.`");
        }
        return node_child(p, node, of);
    }
    parser_next(p);
    if (parser_at_operator(p, "]"))
        return parser_fail(p, &at, ERR_INVALID, "expected an expression between `[` and `]`");
    node->access.key = parse_subscribed(p, node);
    if (parser_at_operator(p, ","))
        return parser_fail(p, &at, ERR_UNSUPPORTED, "items of several indices are not supported");
    parser_expect_operator(p, "]");
    if (p->rc) return NULL;
    node_child(p, node, node->access.key);
    return node_child(p, node, of);
}

static struct node *parse_postfix(struct parser *p, struct node *node) {
    while (node) {
        if (parser_at_operator(p, ".") || parser_at_operator(p, "["))
            node = parse_subscript(p, node);
        else if (parser_at_operator(p, "(")) node = parse_call(p, node);
        else break;
    }
    return p->rc ? NULL : node;
}

/* Reads the name of a filter or a test and finds it.  In a branch of an `if` one may be missing, as
 * in jinja2: published templates ask there for what only some programs have, and do not come
 * there. */
static const struct callable *parse_callable(struct parser *p, bool is_filter) {
    const struct token at = p->token;
    const char *const what = is_filter ? "filter" : "test";
    const struct string *name = parser_name(p);
    if (p->rc) return NULL;
    if (parser_at_operator(p, ".")) {
        parser_fail(p, &at, ERR_INVALID, "there is no %s of a name with dots", what);
        return NULL;
    }
    const struct callable *found =
        is_filter ? filter_find(name->bytes, name->n) : callable_find(TESTS, name->bytes, name->n);
    if (!found && p->in_branch) return is_filter ? &NO_FILTER : &NO_TEST;
    if (!found)
        parser_fail(p, &at, ERR_INVALID, "there is no %s `%.*s`", what, (int)at.n, at.bytes);
    else if (!found->call)
        parser_fail(p, &at, ERR_UNSUPPORTED, "the %s `%s` is not supported", what, found->name);
    return found;
}

struct node *parse_filters(struct parser *p, struct node *of, bool inline_first) {
    while (!p->rc && (inline_first || parser_at_operator(p, "|"))) {
        if (!inline_first) parser_next(p);
        inline_first = false;
        struct node *node = node_new(p, N_FILTER, p->token.line);
        const struct callable *filter = parse_callable(p, true);
        if (p->rc) return NULL;
        node->call.of = of;
        node->call.callable = filter;
        if (parser_at_operator(p, "(")) parse_arguments(p, node, &node->call.args);
        of = node_child(p, node, of);
    }
    return p->rc ? NULL : of;
}

/* Returns whether an argument without brackets follows a test: `x is divisibleby 3`. */
static bool at_test_argument(struct parser *p) {
    if (parser_at_name(p, "else") || parser_at_name(p, "or") || parser_at_name(p, "and"))
        return false;
    return parser_at(p, T_NAME) || parser_at(p, T_STRING) || parser_at(p, T_NUMBER) ||
           parser_at_operator(p, "[") || parser_at_operator(p, "{");
}

static struct node *parse_test(struct parser *p, struct node *of) {
    const uint32_t line = p->token.line;
    parser_next(p);
    const bool is_negated = parser_skip_name(p, "not");
    struct node *node = node_new(p, N_TEST, line);
    const struct callable *test = parse_callable(p, false);
    if (p->rc) return NULL;
    node->call.of = of;
    node->call.callable = test;
    if (parser_at_operator(p, "(")) {
        parse_arguments(p, node, &node->call.args);
    } else if (at_test_argument(p)) {
        if (parser_at_name(p, "is"))
            return parser_fail(p, &p->token, ERR_INVALID, "tests cannot be chained with `is`");
        struct node *argument = parse_postfix(p, parse_primary(p));
        nodes_add(p, &node->call.args.items, argument);
        node_child(p, node, argument);
    }
    node = node_child(p, node, of);
    if (!is_negated || !node) return node;
    struct node *negation = node_new(p, N_NOT, line);
    if (!negation) return NULL;
    negation->parts.a = node;
    return node_child(p, negation, node);
}

static struct node *parse_filters_and_tests(struct parser *p, struct node *node) {
    while (node) {
        if (parser_at_operator(p, "|")) node = parse_filters(p, node, false);
        else if (parser_at_name(p, "is")) node = parse_test(p, node);
        else if (parser_at_operator(p, "(")) node = parse_call(p, node);
        else break;
    }
    return p->rc ? NULL : node;
}

static struct node *two(struct parser *p, enum node_kind kind, uint32_t line, struct node *a,
                        struct node *b) {
    struct node *node = node_new(p, kind, line);
    if (!node) return NULL;
    node->parts.a = a;
    node->parts.b = b;
    node_child(p, node, a);
    return node_child(p, node, b);
}

static struct node *parse_unary(struct parser *p, bool with_filters) {
    if (!parser_enter(p)) return NULL;
    const uint32_t line = p->token.line;
    struct node *node;
    if (parser_skip_operator(p, "-")) node = two(p, N_NEGATE, line, parse_unary(p, false), NULL);
    else if (parser_skip_operator(p, "+")) node = two(p, N_PLUS, line, parse_unary(p, false), NULL);
    else node = parse_primary(p);
    node = parse_postfix(p, node);
    if (with_filters) node = parse_filters_and_tests(p, node);
    parser_leave(p);
    return node;
}

/* One level of operators that group from the left. */
struct level {
    struct {
        const char *sign;
        enum operator op;
    } operators[5];
    struct node *(*parse)(struct parser *p);
};

static struct node *parse_level(struct parser *p, const struct level *level) {
    struct node *left = level->parse(p);
    for (size_t i = 0; left && level->operators[i].sign;) {
        const uint32_t line = p->token.line;
        if (!parser_skip_operator(p, level->operators[i].sign)) {
            i++;
            continue;
        }
        struct node *right = level->parse(p);
        left = two(p, N_BINARY, line, left, right);
        if (left) left->op = (uint8_t)level->operators[i].op;
        i = 0;
    }
    return p->rc ? NULL : left;
}

static struct node *parse_operand(struct parser *p) {
    return parse_unary(p, true);
}

static struct node *parse_power(struct parser *p) {
    static const struct level level = {{{"**", OP_POWER}, {NULL, 0}}, parse_operand};
    return parse_level(p, &level);
}

static struct node *parse_product(struct parser *p) {
    static const struct level level = {{{"*", OP_MULTIPLY},
                                        {"/", OP_DIVIDE},
                                        {"//", OP_FLOOR_DIVIDE},
                                        {"%", OP_MODULO},
                                        {NULL, 0}},
                                       parse_power};
    return parse_level(p, &level);
}

static struct node *parse_concat(struct parser *p) {
    const uint32_t line = p->token.line;
    struct node *first = parse_product(p);
    if (!first || !parser_at_operator(p, "~")) return first;
    struct nodes items = {0};
    nodes_add(p, &items, first);
    while (parser_skip_operator(p, "~")) nodes_add(p, &items, parse_product(p));
    struct node *node = node_new(p, N_CONCAT, line);
    if (!node) return NULL;
    node->items = items;
    return node_children(p, node, &items);
}

static struct node *parse_sum(struct parser *p) {
    static const struct level level = {{{"+", OP_ADD}, {"-", OP_SUBTRACT}, {NULL, 0}},
                                       parse_concat};
    return parse_level(p, &level);
}

/* Skips a comparison; returns -1 if there is none. */
static int skip_comparison(struct parser *p) {
    static const struct {
        const char *sign;
        enum operator op;
    } signs[] = {{"==", OP_EQUAL},      {"!=", OP_NOT_EQUAL}, {"<", OP_LESS},
                 {"<=", OP_LESS_EQUAL}, {">", OP_GREATER},    {">=", OP_GREATER_EQUAL}};
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        if (parser_skip_operator(p, signs[i].sign)) return (int)signs[i].op;
    if (parser_skip_name(p, "in")) return OP_IN;
    if (!parser_at_name(p, "not") || parser_look(p)->kind != T_NAME || p->ahead.n != 2 ||
        memcmp(p->ahead.bytes, "in", 2) != 0)
        return -1;
    parser_next(p);
    parser_next(p);
    return OP_NOT_IN;
}

static struct node *parse_compare(struct parser *p) {
    const uint32_t line = p->token.line;
    struct node *first = parse_sum(p);
    struct nodes items = {0};
    uint8_t ops[64];
    if (!first) return NULL;
    nodes_add(p, &items, first);
    for (int op; !p->rc && (op = skip_comparison(p)) >= 0;) {
        if (items.n > sizeof(ops))
            return parser_fail(p, &p->token, ERR_TOO_LONG, "more than %zu comparisons are chained",
                               sizeof(ops));
        ops[items.n - 1] = (uint8_t)op;
        nodes_add(p, &items, parse_sum(p));
    }
    if (p->rc) return NULL;
    if (items.n == 1) return first;
    struct node *node = node_new(p, N_COMPARE, line);
    uint8_t *copy = parser_take(p, items.n);
    if (!copy) return NULL;
    memcpy(copy, ops, items.n - 1);
    node->compare.items = items;
    node->compare.ops = copy;
    return node_children(p, node, &items);
}

static struct node *parse_not(struct parser *p) {
    const uint32_t line = p->token.line;
    if (!parser_skip_name(p, "not")) return parse_compare(p);
    if (!parser_enter(p)) return NULL;
    struct node *node = two(p, N_NOT, line, parse_not(p), NULL);
    parser_leave(p);
    return node;
}

static struct node *parse_and(struct parser *p) {
    struct node *left = parse_not(p);
    for (uint32_t line = p->token.line; left && parser_skip_name(p, "and"); line = p->token.line)
        left = two(p, N_AND, line, left, parse_not(p));
    return p->rc ? NULL : left;
}

static struct node *parse_or(struct parser *p) {
    struct node *left = parse_and(p);
    for (uint32_t line = p->token.line; left && parser_skip_name(p, "or"); line = p->token.line)
        left = two(p, N_OR, line, left, parse_and(p));
    return p->rc ? NULL : left;
}

struct node *parse_expression(struct parser *p, bool condition) {
    if (!parser_enter(p)) return NULL;
    struct node *node = parse_or(p);
    while (node && condition && parser_at_name(p, "if")) {
        const uint32_t line = p->token.line;
        parser_next(p);
        node = two(p, N_CONDITION, line, parse_or(p), node);
        if (!parser_skip_name(p, "else")) continue;
        struct node *otherwise = parse_expression(p, true);
        if (p->rc) break;
        node->parts.c = otherwise;
        node = node_child(p, node, otherwise);
    }
    parser_leave(p);
    return p->rc ? NULL : node;
}
