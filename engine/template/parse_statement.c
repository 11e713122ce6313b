/* parse_statement.c - see parser.h: tags, and the text between them. */

#include "engine/base/error.h"
#include "engine/template/parser.h"
#include "engine/template/strings.h"

/* Names that end the blocks which are open, the innermost first. */
static const char *const NO_ENDS[] = {NULL};

static void parse_body(struct parser *p, struct nodes *body, const char *const *ends);

/* Reads the end of a tag that opens a block, and the block up to one of the names, which stays the
 * current token.  Python's colon may stand in front of the end. */
static void parse_block(struct parser *p, struct nodes *body, const char *const *ends,
                        bool is_branch) {
    const struct token at = p->token;
    const bool in_branch = p->in_branch;
    parser_skip_operator(p, ":");
    parser_expect_block_end(p);
    p->in_branch = is_branch;
    parse_body(p, body, ends);
    p->in_branch = in_branch;
    if (parser_at(p, T_END))
        parser_fail(p, &at, ERR_INVALID, "this block has no `{%% %s %%}`", ends[0]);
}

/* Reads a block of one end, and the end's name. */
static void parse_whole_block(struct parser *p, struct nodes *body, const char *end) {
    parse_block(p, body, (const char *const[]){end, NULL}, false);
    parser_next(p);
}

/* Reads what stands behind `else`.  A recursive loop is a function, as a macro is: its `else`
 * cannot leave the loop around it. */
static void parse_otherwise(struct parser *p, struct for_node *loop) {
    const uint32_t breakable = p->breakable;
    if (loop->is_recursive) p->breakable = 0;
    parse_whole_block(p, &loop->otherwise, "endfor");
    p->breakable = breakable;
}

static struct node *parse_for(struct parser *p) {
    struct node *node = node_new(p, N_FOR, p->token.line);
    struct for_node *loop = parser_take(p, sizeof(*loop));
    if (!loop) return NULL;
    *loop = (struct for_node){.loop_slot = UINT32_MAX};
    node->loop = loop;
    parser_next(p);
    p->n_loops++;
    loop->target = parse_target(p, "in", false);
    parser_expect_name(p, "in");
    loop->iter = parse_tuple(p, false, "recursive", false);
    if (parser_skip_name(p, "if")) loop->condition = parse_expression(p, true);
    loop->is_recursive = parser_skip_name(p, "recursive");
    struct mentions mentions = {.outer = p->mentions};
    p->mentions = &mentions;
    p->breakable++;
    parse_block(p, &loop->body, (const char *const[]){"endfor", "else", NULL}, false);
    p->breakable--;
    p->mentions = mentions.outer;
    if (loop->is_recursive || mentions.read[SPECIAL_LOOP]) loop->loop_slot = 0;
    if (parser_skip_name(p, "else")) parse_otherwise(p, loop);
    else parser_next(p);
    p->n_loops--;
    node_child(p, node, loop->iter);
    node_child(p, node, loop->condition);
    node_children(p, node, &loop->otherwise);
    return node_children(p, node, &loop->body);
}

static void add_branch(struct parser *p, struct node *node, struct branch branch) {
    const size_t n = node->branch.n;
    if ((n & (n + 1)) == 0) { /* room is made at 0, 1, 3, 7 and so on */
        void *branches = arena_grow(p->arena, node->branch.branches, n * sizeof(branch),
                                    (2 * n + 1) * sizeof(branch));
        if (!branches) {
            parser_fail(p, &p->token, p->arena->rc, "the template does not fit its memory");
            return;
        }
        node->branch.branches = branches;
    }
    node->branch.branches[node->branch.n++] = branch;
    node_child(p, node, branch.condition);
    node_children(p, node, &branch.body);
}

static struct node *parse_if(struct parser *p) {
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const last[] = {"endif",
                                                                                        NULL};
    struct node *node = node_new(p, N_IF, p->token.line);
    const bool in_branch = p->in_branch;
    bool goes_on = true;
    while (goes_on && !p->rc) {
        struct branch branch = {0};
        parser_next(p);
        p->in_branch = true;
        branch.condition = parse_tuple(p, false, NULL, false);
        p->in_branch = in_branch;
        parse_block(p, &branch.body, ends, true);
        if (p->rc) return NULL;
        add_branch(p, node, branch);
        goes_on = parser_at_name(p, "elif");
    }
    if (parser_skip_name(p, "else")) {
        struct branch branch = {0};
        parse_block(p, &branch.body, last, true);
        if (!p->rc) add_branch(p, node, branch);
    }
    parser_next(p);
    return p->rc ? NULL : node;
}

static struct node *parse_set(struct parser *p) {
    struct node *node = node_new(p, N_SET, p->token.line);
    parser_next(p);
    struct node *target = parse_target(p, NULL, true);
    if (!target) return NULL;
    if (parser_skip_operator(p, "=")) {
        node->set.target = target;
        node->set.value = parse_tuple(p, true, NULL, false);
        return p->rc ? NULL : node_child(p, node, node->set.value);
    }
    node->kind = N_SET_BLOCK;
    node->block.target = target;
    node->block.filter = parse_filters(p, NULL, false);
    parse_whole_block(p, &node->block.body, "endset");
    if (p->rc) return NULL;
    node_child(p, node, node->block.filter);
    return node_children(p, node, &node->block.body);
}

/* Reads the parameters of a macro or call block. */
static void parse_signature(struct parser *p, struct macro_node *macro) {
    struct nodes params = {0}, defaults = {0};
    parser_expect_operator(p, "(");
    while (!p->rc && !parser_at_operator(p, ")")) {
        if (params.n) parser_expect_operator(p, ",");
        const struct token at = p->token;
        struct node *param = parse_target_name(p);
        if (!param) return;
        for (size_t i = 0; i < params.n; i++)
            if (string_equals(params.items[i]->name.name, param->name.name))
                parser_fail(p, &at, ERR_INVALID, "the parameter `%.*s` is there twice", (int)at.n,
                            at.bytes);
        if (parser_skip_operator(p, "=")) nodes_add(p, &defaults, parse_expression(p, true));
        else if (defaults.n)
            parser_fail(p, &at, ERR_INVALID, "a parameter without a default follows one with it");
        nodes_add(p, &params, param);
    }
    parser_expect_operator(p, ")");
    macro->params = params.items;
    macro->n_params = params.n;
    macro->defaults = defaults.items;
    macro->n_defaults = defaults.n;
}

static bool has_param(const struct macro_node *macro, const char *name) {
    for (size_t i = 0; i < macro->n_params; i++)
        if (string_is(macro->params[i]->name.name, name)) return true;
    return false;
}

/* Reads the body of a macro, which no break leaves. */
static void parse_macro_body(struct parser *p, struct macro_node *macro, const char *end) {
    const struct token at = p->token;
    struct mentions mentions = {.outer = p->mentions};
    const uint32_t breakable = p->breakable;
    p->mentions = &mentions;
    p->breakable = 0;
    parse_whole_block(p, &macro->body, end);
    p->breakable = breakable;
    p->mentions = mentions.outer;
    if (p->rc) return;
    macro->has_caller = mentions.read[SPECIAL_CALLER] && !has_param(macro, "caller");
    macro->has_kwargs = mentions.read[SPECIAL_KWARGS] && !has_param(macro, "kwargs");
    macro->has_varargs = mentions.read[SPECIAL_VARARGS] && !has_param(macro, "varargs");
    for (size_t i = 0; mentions.read[SPECIAL_CALLER] && i + macro->n_defaults < macro->n_params;
         i++)
        if (string_is(macro->params[i]->name.name, "caller"))
            parser_fail(p, &at, ERR_INVALID, "the parameter `caller` needs a default");
}

static struct macro_node *macro_new(struct parser *p) {
    struct macro_node *macro = parser_take(p, sizeof(*macro));
    if (macro) *macro = (struct macro_node){0};
    return macro;
}

static struct node *parse_macro(struct parser *p) {
    struct node *node = node_new(p, N_MACRO, p->token.line);
    struct macro_node *macro = macro_new(p);
    if (!macro) return NULL;
    parser_next(p);
    struct node *target = parse_target_name(p);
    if (!target) return NULL;
    macro->name = target->name.name;
    parse_signature(p, macro);
    parse_macro_body(p, macro, "endmacro");
    if (p->rc) return NULL;
    node->macro.macro = macro;
    node->macro.target = target;
    node_children(p, node, &(struct nodes){macro->defaults, macro->n_defaults});
    return node_children(p, node, &macro->body);
}

static struct node *parse_call_block(struct parser *p) {
    const struct token at = p->token;
    struct node *node = node_new(p, N_CALL_BLOCK, at.line);
    struct macro_node *macro = macro_new(p);
    if (!macro) return NULL;
    parser_next(p);
    if (parser_at_operator(p, "(")) parse_signature(p, macro);
    struct node *call = parse_expression(p, true);
    if (!call) return NULL;
    if (call->kind != N_CALL) return parser_fail(p, &at, ERR_INVALID, "expected a call");
    parse_macro_body(p, macro, "endcall");
    if (p->rc) return NULL;
    node->macro.macro = macro;
    node->macro.target = call;
    node_child(p, node, call);
    node_children(p, node, &(struct nodes){macro->defaults, macro->n_defaults});
    return node_children(p, node, &macro->body);
}

static struct node *parse_filter_block(struct parser *p) {
    struct node *node = node_new(p, N_FILTER_BLOCK, p->token.line);
    if (!node) return NULL;
    parser_next(p);
    node->block.filter = parse_filters(p, NULL, true);
    parse_whole_block(p, &node->block.body, "endfilter");
    if (p->rc) return NULL;
    node_child(p, node, node->block.filter);
    return node_children(p, node, &node->block.body);
}

static struct node *parse_with(struct parser *p) {
    struct node *node = node_new(p, N_WITH, p->token.line);
    struct nodes targets = {0}, values = {0};
    parser_next(p);
    while (!p->rc && !parser_at(p, T_BLOCK_END)) {
        if (targets.n) parser_expect_operator(p, ",");
        nodes_add(p, &targets, parse_target(p, NULL, false));
        parser_expect_operator(p, "=");
        nodes_add(p, &values, parse_expression(p, true));
    }
    if (p->rc) return NULL;
    parse_whole_block(p, &node->block.body, "endwith");
    if (p->rc) return NULL;
    node->block.targets = targets;
    node->block.values = values;
    node_children(p, node, &values);
    return node_children(p, node, &node->block.body);
}

static struct node *parse_generation(struct parser *p) {
    struct node *node = node_new(p, N_GENERATION, p->token.line);
    const uint32_t breakable = p->breakable;
    if (!node) return NULL;
    parser_next(p);
    p->breakable = 0;
    parse_whole_block(p, &node->block.body, "endgeneration");
    p->breakable = breakable;
    return p->rc ? NULL : node_children(p, node, &node->block.body);
}

static struct node *parse_print(struct parser *p) {
    struct node *node = node_new(p, N_OUTPUT, p->token.line);
    struct nodes items = {0};
    parser_next(p);
    while (!p->rc && !parser_at(p, T_BLOCK_END)) {
        if (items.n) parser_expect_operator(p, ",");
        nodes_add(p, &items, parse_expression(p, true));
    }
    if (p->rc) return NULL;
    node->items = items;
    return node_children(p, node, &items);
}

static struct node *parse_break(struct parser *p) {
    const struct token at = p->token;
    if (!p->breakable)
        return parser_fail(p, &at, ERR_INVALID, "`%.*s` is outside of a for loop", (int)at.n,
                           at.bytes);
    parser_next(p);
    return node_new(p, at.bytes[0] == 'b' ? N_BREAK : N_CONTINUE, at.line);
}

static struct node *parse_unsupported(struct parser *p) {
    return parser_fail(p, &p->token, ERR_UNSUPPORTED, "the tag `%.*s` is not supported",
                       (int)p->token.n, p->token.bytes);
}

static struct node *parse_tag(struct parser *p) {
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *p);
    } tags[] = {
        {"for", parse_for},
        {"if", parse_if},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"generation", parse_generation},
        {"print", parse_print},
        {"break", parse_break},
        {"continue", parse_break},
        /* A chat template is one file, whose output is not HTML. */
        {"include", parse_unsupported},
        {"import", parse_unsupported},
        {"from", parse_unsupported},
        {"extends", parse_unsupported},
        {"block", parse_unsupported},
        {"autoescape", parse_unsupported},
    };
    const struct token at = p->token;
    if (!parser_at(p, T_NAME))
        return parser_fail(p, &at, ERR_INVALID, "expected the name of a tag");
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
        if (parser_at_name(p, tags[i].name)) return tags[i].parse(p);
    return parser_fail(p, &at, ERR_INVALID, "there is no tag `%.*s`, or it is none here",
                       (int)(at.n < 64 ? at.n : 64), at.bytes);
}

static struct node *parse_output(struct parser *p) {
    struct node *node = node_new(p, N_OUTPUT, p->token.line);
    parser_next(p);
    struct node *expression = parse_tuple(p, true, NULL, false);
    if (!expression) return NULL;
    if (!parser_at(p, T_VARIABLE_END))
        return parser_fail(p, &p->token, ERR_INVALID, "expected `}}`");
    parser_next(p);
    nodes_add(p, &node->items, expression);
    return node_child(p, node, expression);
}

static struct node *parse_data(struct parser *p) {
    struct node *node = node_new(p, N_DATA, p->token.line);
    if (!node) return NULL;
    node->value = p->token.value;
    parser_next(p);
    return node;
}

static bool at_one_of(const struct parser *p, const char *const *names) {
    for (; *names; names++)
        if (parser_at_name(p, *names)) return true;
    return false;
}

/* Reads until the end of the template, or a tag of one of the names: it becomes the current
 * token. */
static void parse_body(struct parser *p, struct nodes *body, const char *const *ends) {
    if (!parser_enter(p)) return;
    while (!p->rc && !parser_at(p, T_END)) {
        struct node *node;
        if (parser_at(p, T_DATA)) {
            node = parse_data(p);
        } else if (parser_at(p, T_VARIABLE_BEGIN)) {
            node = parse_output(p);
        } else {
            parser_next(p); /* {% */
            if (at_one_of(p, ends)) break;
            node = parse_tag(p);
            parser_expect_block_end(p);
        }
        nodes_add(p, body, node);
    }
    parser_leave(p);
}

void parse_template(struct parser *p, struct nodes *body) {
    parse_body(p, body, NO_ENDS);
}
