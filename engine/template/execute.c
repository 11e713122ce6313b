/* execute.c - see execute.h: statements and macros. */
#include "engine/template/execute.h"

#include <string.h>

#include "engine/template/containers.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

static struct frame *frame_out(struct frame *frame, uint32_t depth) {
    while (depth--) frame = frame->outer;
    return frame;
}

void frame_reset(struct render *r, const struct scope *scope, struct frame *frame) {
    for (uint32_t i = 0; i < scope->n_slots; i++) {
        const struct slot *slot = &scope->slots[i];
        if (slot->kind == SLOT_GLOBAL) frame->slots[i] = r->globals[slot->index];
        else if (slot->kind == SLOT_ALIAS)
            frame->slots[i] = frame_out(frame, slot->depth)->slots[slot->index];
        else if (slot->kind == SLOT_UNSET) frame->slots[i] = value_missing();
    }
}

struct frame *frame_new(struct render *r, const struct scope *scope, struct frame *outer) {
    struct frame *frame = render_take(r, sizeof(*frame) + scope->n_slots * sizeof(frame->slots[0]));
    if (!frame || !render_step(r, scope->n_slots)) return NULL;
    frame->outer = outer;
    memset(frame->slots, 0, scope->n_slots * sizeof(frame->slots[0])); /* V_MISSING */
    frame_reset(r, scope, frame);
    return frame;
}

static void assign_attribute(struct render *r, const struct node *target, struct value value) {
    struct frame *frame = frame_out(r->frame, target->name.depth);
    const struct value space = frame->slots[target->name.index];
    const struct string *name = target->name.attribute;
    if (space.type != V_NAMESPACE)
        render_invalid(r, "'%.*s' is no namespace, so its attributes cannot be assigned to",
                       (int)target->name.name->n, target->name.name->bytes);
    else if (name->bytes[0] == '_')
        render_invalid(r, "attributes of a namespace do not begin with an underscore");
    else dict_set(r, space.space, value_string(name), value);
}

static void unpack(struct render *r, const struct nodes *targets, struct value value) {
    struct cursor cursor;
    struct value item;
    size_t n = 0;
    cursor_init(&cursor, r, value);
    while (n <= targets->n && cursor_next(&cursor, r, &item)) {
        if (n < targets->n) node_assign(r, targets->items[n], item);
        n++;
    }
    if (n != targets->n)
        render_invalid(r, "%zu values are needed to unpack, not %s", targets->n,
                       n < targets->n ? "fewer" : "more");
}

void node_assign(struct render *r, const struct node *target, struct value value) {
    if (r->rc || !render_enter(r)) return;
    if (target->kind == N_NAME)
        frame_out(r->frame, target->name.depth)->slots[target->name.index] = value;
    else if (target->kind == N_SPACE_REF) assign_attribute(r, target, value);
    else unpack(r, &target->items, value);
    render_leave(r);
}

static void write_value(struct render *r, struct value v) {
    if (r->rc || v.type == V_UNDEFINED) return;
    render_write(r, v.type == V_STRING ? v.string : print_string(r, v));
}

enum { MAX_TERMS = 16 /* longer sums are computed as any other */ };

/* Collects the terms of a + b + c, the first one first; returns how many, 0 if it is no such
 * sum. */
static size_t terms_of(const struct node *node, const struct node *terms[MAX_TERMS]) {
    size_t n = 1, at;
    const struct node *left = node;
    for (; left->kind == N_BINARY && left->op == OP_ADD; left = left->parts.a) n++;
    if (n == 1 || n > MAX_TERMS) return 0;
    for (at = n - 1, left = node; at > 0; left = left->parts.a) terms[at--] = left->parts.b;
    terms[0] = left;
    return n;
}

static bool is_plain_string(struct value v) {
    return v.type == V_STRING && !v.string->markup;
}

/* Writes what an expression is.  Most are sums of strings, which need not be added to be
 * written. */
static void write_expression(struct render *r, const struct node *node) {
    const struct node *terms[MAX_TERMS];
    struct value values[MAX_TERMS];
    const size_t n = terms_of(node, terms);
    bool are_strings = n > 0;
    for (size_t i = 0; i < n && !r->rc; i++) {
        values[i] = node_evaluate(r, terms[i]);
        are_strings = are_strings && is_plain_string(values[i]);
    }
    if (r->rc) return;
    if (node->kind == N_CONCAT) {
        for (size_t i = 0; i < node->items.n && !r->rc; i++)
            write_value(r, node_evaluate(r, node->items.items[i]));
    } else if (n == 0) {
        write_value(r, node_evaluate(r, node));
    } else if (are_strings) {
        for (size_t i = 0; i < n; i++) render_write(r, values[i].string);
    } else {
        struct value sum = values[0];
        r->line = node->line;
        for (size_t i = 1; i < n && !r->rc; i++) sum = operator_compute(r, OP_ADD, sum, values[i]);
        write_value(r, sum);
    }
}

static void execute_in(struct render *r, const struct nodes *nodes, struct frame *frame) {
    struct frame *const outer = r->frame;
    if (!frame) return;
    r->frame = frame;
    node_execute(r, nodes);
    r->frame = outer;
}

/* Runs nodes in a frame and returns what they write. */
static const struct string *execute_captured(struct render *r, const struct nodes *nodes,
                                             struct frame *frame) {
    struct builder text, *const outer = r->capture;
    builder_init(&text, r);
    r->capture = &text;
    execute_in(r, nodes, frame);
    r->capture = outer;
    return builder_end(&text);
}

static void execute_if(struct render *r, const struct node *node) {
    for (size_t i = 0; i < node->branch.n && !r->rc; i++) {
        const struct branch *branch = &node->branch.branches[i];
        if (branch->condition && !value_is_true(node_evaluate(r, branch->condition))) continue;
        node_execute(r, &branch->body);
        return;
    }
}

/* Runs a filter block, or one that is set, and returns its text. */
static struct value block_text(struct render *r, const struct node *node) {
    struct frame *frame = frame_new(r, &node->block.scope, r->frame), *const outer = r->frame;
    if (!frame) return value_none(false);
    struct value text = value_string(execute_captured(r, &node->block.body, frame));
    if (node->block.filter && r->flow == FLOW_ON) {
        r->frame = frame;
        text = node_evaluate_block_filter(r, node->block.filter, text);
        r->frame = outer;
    }
    return text;
}

/* Runs such a block for its text.  A break or continue in it leaves it without one. */
static void execute_text_block(struct render *r, const struct node *node) {
    const struct value text = block_text(r, node);
    if (r->flow != FLOW_ON) return;
    if (node->kind == N_SET_BLOCK) node_assign(r, node->block.target, text);
    else write_value(r, text);
}

static void execute_with(struct render *r, const struct node *node) {
    struct frame *frame = frame_new(r, &node->block.scope, r->frame), *const outer = r->frame;
    for (size_t i = 0; i < node->block.values.n && !r->rc; i++) {
        const struct value value = node_evaluate(r, node->block.values.items[i]);
        if (!frame) return;
        r->frame = frame;
        node_assign(r, node->block.targets.items[i], value);
        r->frame = outer;
    }
    execute_in(r, &node->block.body, frame);
}

static struct value make_macro(struct render *r, const struct macro_node *node) {
    struct macro *macro = render_take(r, sizeof(*macro));
    if (!macro) return value_none(false);
    *macro = (struct macro){node, r->frame};
    return (struct value){.type = V_MACRO, .trusted = true, .macro = macro};
}

static void execute_call_block(struct render *r, const struct node *node) {
    struct args args;
    const struct node *call = node->macro.target;
    const struct value caller = make_macro(r, node->macro.macro);
    const struct value callee = node_evaluate(r, call->call.of);
    node_evaluate_args(r, &call->call.args, caller, &args);
    r->line = node->line;
    write_value(r, value_call(r, callee, &args));
}

static void execute_one(struct render *r, const struct node *node) {
    switch (node->kind) {
    case N_DATA: render_write(r, node->value.string); break;
    case N_OUTPUT:
        for (size_t i = 0; i < node->items.n; i++) write_expression(r, node->items.items[i]);
        break;
    case N_IF: execute_if(r, node); break;
    case N_FOR: loop_run(r, node->loop, node_evaluate(r, node->loop->iter), 0); break;
    case N_SET: node_assign(r, node->set.target, node_evaluate(r, node->set.value)); break;
    case N_SET_BLOCK:
    case N_FILTER_BLOCK: execute_text_block(r, node); break;
    case N_MACRO: node_assign(r, node->macro.target, make_macro(r, node->macro.macro)); break;
    case N_CALL_BLOCK: execute_call_block(r, node); break;
    case N_WITH: execute_with(r, node); break;
    case N_GENERATION:
        execute_in(r, &node->block.body, frame_new(r, &node->block.scope, r->frame));
        break;
    case N_BREAK: r->flow = FLOW_BREAK; break;
    default: r->flow = FLOW_CONTINUE; break;
    }
}

void node_execute(struct render *r, const struct nodes *nodes) {
    if (!render_enter(r)) return;
    for (size_t i = 0; i < nodes->n && !r->rc && r->flow == FLOW_ON; i++) {
        r->line = nodes->items[i]->line;
        if (render_step(r, 1)) execute_one(r, nodes->items[i]);
    }
    render_leave(r);
}

/* Takes a keyword out of the list and returns its value, V_MISSING if it is not there. */
static struct value take_keyword(struct keyword *keywords, size_t *n, const char *name,
                                 size_t length) {
    for (size_t i = 0; i < *n; i++) {
        if (keywords[i].name->n != length || memcmp(keywords[i].name->bytes, name, length) != 0)
            continue;
        const struct value value = keywords[i].value;
        memmove(&keywords[i], &keywords[i + 1], (*n - i - 1) * sizeof(*keywords));
        --*n;
        return value;
    }
    return value_missing();
}

static struct value keywords_as_dict(struct render *r, const struct keyword *keywords, size_t n) {
    struct dict *dict = dict_new(r, n);
    for (size_t i = 0; i < n; i++)
        dict_set(r, dict, value_string(keywords[i].name), keywords[i].value);
    return value_dict(dict, true);
}

/* Gives a macro's parameters their arguments: as jinja2's Macro does. */
static void bind_macro(struct render *r, const struct macro_node *node, const struct args *args,
                       struct frame *frame) {
    size_t n_left = args->n_keywords;
    struct keyword *left = render_take(r, (n_left + 1) * sizeof(*left));
    if (!left) return;
    if (n_left) memcpy(left, args->keywords, n_left * sizeof(*left));
    for (size_t i = 0; i < node->n_params; i++) {
        const struct string *name = node->params[i]->name.name;
        frame->slots[node->params[i]->name.index] =
            i < args->n ? args->items[i] : take_keyword(left, &n_left, name->bytes, name->n);
    }
    if (node->has_caller) {
        const struct value caller = take_keyword(left, &n_left, "caller", 6);
        frame->slots[node->caller_slot] =
            caller.type == V_MISSING || caller.type == V_NONE ? value_undefined(NULL) : caller;
    }
    if (node->has_kwargs) frame->slots[node->kwargs_slot] = keywords_as_dict(r, left, n_left);
    else if (n_left)
        render_invalid(r, "the macro takes no argument '%.*s'", (int)left[0].name->n,
                       left[0].name->bytes);
    const size_t n_taken = args->n < node->n_params ? args->n : node->n_params;
    if (node->has_varargs)
        frame->slots[node->varargs_slot] = value_tuple(
            list_share(r, n_taken < args->n ? args->items + n_taken : NULL, args->n - n_taken),
            true);
    else if (args->n > node->n_params)
        render_invalid(r, "the macro takes at most %zu arguments", node->n_params);
}

struct value macro_call(struct render *r, const struct macro *macro, const struct args *args) {
    const struct macro_node *node = macro->node;
    struct frame *frame = frame_new(r, &node->scope, macro->outer), *const outer = r->frame;
    const enum flow flow = r->flow;
    if (!frame) return value_none(false);
    bind_macro(r, node, args, frame);
    r->frame = frame;
    for (size_t i = 0; i < node->n_params && !r->rc; i++) {
        struct value *slot = &frame->slots[node->params[i]->name.index];
        if (slot->type != V_MISSING) continue;
        const size_t n_plain = node->n_params - node->n_defaults;
        *slot = i < n_plain ? value_undefined(node->params[i]->name.name)
                            : node_evaluate(r, node->defaults[i - n_plain]);
    }
    const struct string *text = execute_captured(r, &node->body, frame);
    r->frame = outer;
    r->flow = flow;
    return value_string(text);
}
