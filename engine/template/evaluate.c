/* evaluate.c - see execute.h: expressions. */
#include "engine/template/access.h"
#include "engine/template/containers.h"
#include "engine/template/execute.h"
#include "engine/template/operators.h"
#include "engine/template/print.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

static struct value evaluate_name(struct render *r, const struct node *node) {
    const struct frame *frame = r->frame;
    for (uint32_t i = 0; i < node->name.depth; i++) frame = frame->outer;
    const struct value value = frame->slots[node->name.index];
    return value.type == V_MISSING ? value_undefined(node->name.name) : value;
}

static const struct list *evaluate_items(struct render *r, const struct nodes *nodes) {
    struct list *list = list_new(r, nodes->n);
    for (size_t i = 0; i < nodes->n && !r->rc; i++)
        list_add(r, list, node_evaluate(r, nodes->items[i]));
    return list;
}

static struct value evaluate_dict(struct render *r, const struct nodes *nodes) {
    struct dict *dict = dict_new(r, nodes->n / 2);
    for (size_t i = 0; i + 1 < nodes->n && !r->rc; i += 2) {
        const struct value key = node_evaluate(r, nodes->items[i]);
        dict_set(r, dict, key, node_evaluate(r, nodes->items[i + 1]));
    }
    return value_dict(dict, true);
}

static struct value evaluate_slice(struct render *r, const struct node *node) {
    struct value bounds[3];
    const struct value of = node_evaluate(r, node->access.of);
    for (int i = 0; i < 3; i++)
        bounds[i] =
            node->access.bounds[i] ? node_evaluate(r, node->access.bounds[i]) : value_missing();
    return value_slice(r, of, bounds[0], bounds[1], bounds[2]);
}

/* Adds the items of `*args`. */
static void add_items(struct render *r, struct value more, struct args *out) {
    const struct list *added = iterate_all(r, more);
    struct value *items = render_take(r, (out->n + added->n + 1) * sizeof(*items));
    if (!items) return;
    for (size_t i = 0; i < out->n; i++) items[i] = out->items[i];
    for (size_t i = 0; i < added->n; i++) items[out->n + i] = added->items[i];
    out->items = items;
    out->n += added->n;
}

/* Adds the entries of `**kwargs` to keywords, which has room for them. */
static void add_keywords(struct render *r, struct value more, struct keyword *keywords,
                         struct args *out) {
    if (more.type != V_DICT) {
        render_invalid(r, "** needs a dict, not a value of type %s", value_type_name(more));
        return;
    }
    for (size_t i = 0; i < more.dict->n; i++) {
        const struct entry *entry = &more.dict->entries[i];
        bool is_new = entry->key.type == V_STRING;
        for (size_t k = 0; is_new && k < out->n_keywords; k++)
            is_new = !string_equals(keywords[k].name, entry->key.string);
        if (!is_new) {
            render_invalid(r, "** has a key that is no string, or is given twice");
            return;
        }
        keywords[out->n_keywords++] = (struct keyword){entry->key.string, entry->value};
        render_step(r, out->n_keywords);
    }
}

static void evaluate_keywords(struct render *r, const struct call_nodes *nodes, struct value caller,
                              struct args *out) {
    static const struct string name = {.bytes = "caller", .n = 6, .n_chars = 6, .trusted = true};
    const struct value more =
        nodes->more_keywords ? node_evaluate(r, nodes->more_keywords) : value_missing();
    const size_t n_more = more.type == V_DICT ? more.dict->n : 0;
    struct keyword *keywords = render_take(r, (nodes->keywords.n + n_more + 1) * sizeof(*keywords));
    if (!keywords) return;
    out->keywords = keywords;
    for (size_t i = 0; i < nodes->keywords.n && !r->rc; i++)
        keywords[out->n_keywords++] =
            (struct keyword){nodes->keyword_names[i], node_evaluate(r, nodes->keywords.items[i])};
    if (caller.type != V_MISSING) keywords[out->n_keywords++] = (struct keyword){&name, caller};
    if (more.type != V_MISSING) add_keywords(r, more, keywords, out);
}

void node_evaluate_args(struct render *r, const struct call_nodes *nodes, struct value caller,
                        struct args *out) {
    *out = (struct args){0};
    if (nodes->items.n) {
        const struct list *items = evaluate_items(r, &nodes->items);
        out->items = items->items;
        out->n = items->n;
    }
    if (nodes->more_items) add_items(r, node_evaluate(r, nodes->more_items), out);
    if (nodes->keywords.n || nodes->more_keywords || caller.type != V_MISSING)
        evaluate_keywords(r, nodes, caller, out);
}

static struct value evaluate_call(struct render *r, const struct node *node) {
    struct args args;
    const struct value callee = node_evaluate(r, node->call.of);
    node_evaluate_args(r, &node->call.args, value_missing(), &args);
    r->line = node->line;
    return value_call(r, callee, &args);
}

/* Evaluates a filter or a test. */
static struct value evaluate_applied(struct render *r, const struct node *node, struct value self) {
    struct args args;
    node_evaluate_args(r, &node->call.args, value_missing(), &args);
    r->line = node->line;
    return callable_call(r, node->call.callable, self, &args);
}

struct value node_evaluate_block_filter(struct render *r, const struct node *filter,
                                        struct value text) {
    if (!render_enter(r)) return value_none(false);
    const struct value self =
        filter->call.of ? node_evaluate_block_filter(r, filter->call.of, text) : text;
    const struct value result = evaluate_applied(r, filter, self);
    render_leave(r);
    return result;
}

static struct value evaluate_binary(struct render *r, const struct node *node) {
    const struct value a = node_evaluate(r, node->parts.a);
    const struct value b = node_evaluate(r, node->parts.b);
    r->line = node->line;
    return operator_compute(r, (enum operator)node->op, a, b);
}

static struct value evaluate_concat(struct render *r, const struct nodes *nodes) {
    const struct string *sum = print_string(r, node_evaluate(r, nodes->items[0]));
    for (size_t i = 1; i < nodes->n && !r->rc; i++)
        sum = string_add(r, sum, print_string(r, node_evaluate(r, nodes->items[i])));
    return value_string(sum);
}

static struct value evaluate_compare(struct render *r, const struct node *node) {
    struct value left = node_evaluate(r, node->compare.items.items[0]);
    for (size_t i = 1; i < node->compare.items.n && !r->rc; i++) {
        const struct value right = node_evaluate(r, node->compare.items.items[i]);
        if (!operator_compare(r, (enum operator)node->compare.ops[i - 1], left, right))
            return value_bool(false, true);
        left = right;
    }
    return value_bool(true, true);
}

static struct value evaluate_logic(struct render *r, const struct node *node) {
    const struct value a = node_evaluate(r, node->parts.a);
    switch (node->kind) {
    case N_AND: return value_is_true(a) ? node_evaluate(r, node->parts.b) : a;
    case N_OR: return value_is_true(a) ? a : node_evaluate(r, node->parts.b);
    case N_NOT: return value_bool(!value_is_true(a), true);
    default:
        if (value_is_true(a)) return node_evaluate(r, node->parts.b);
        return node->parts.c ? node_evaluate(r, node->parts.c) : value_undefined(NULL);
    }
}

static struct value evaluate_sign(struct render *r, const struct node *node) {
    const struct value v = node_evaluate(r, node->parts.a);
    if (node->kind == N_NEGATE) return operator_negate(r, v);
    return operator_compute(r, OP_ADD, value_int(0, true), v); /* fails for what is no number */
}

static struct value evaluate_kind(struct render *r, const struct node *node) {
    switch (node->kind) {
    case N_CONST: return node->value;
    case N_NAME: return evaluate_name(r, node);
    case N_LIST: return value_list(evaluate_items(r, &node->items), true);
    case N_TUPLE: return value_tuple(evaluate_items(r, &node->items), true);
    case N_DICT: return evaluate_dict(r, &node->items);
    case N_ATTRIBUTE:
        return value_attribute(r, node_evaluate(r, node->access.of), node->access.name);
    case N_ITEM: {
        const struct value of = node_evaluate(r, node->access.of);
        return value_item(r, of, node_evaluate(r, node->access.key));
    }
    case N_SLICE: return evaluate_slice(r, node);
    case N_CALL: return evaluate_call(r, node);
    case N_FILTER:
    case N_TEST: return evaluate_applied(r, node, node_evaluate(r, node->call.of));
    case N_BINARY: return evaluate_binary(r, node);
    case N_CONCAT: return evaluate_concat(r, &node->items);
    case N_COMPARE: return evaluate_compare(r, node);
    case N_NEGATE:
    case N_PLUS: return evaluate_sign(r, node);
    default: return evaluate_logic(r, node);
    }
}

struct value node_evaluate(struct render *r, const struct node *node) {
    if (!render_step(r, 1) || !render_enter(r)) return value_none(false);
    r->line = node->line;
    const struct value value = evaluate_kind(r, node);
    render_leave(r);
    return r->rc ? value_none(false) : value;
}
