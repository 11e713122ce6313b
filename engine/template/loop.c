/* loop.c - see execute.h: for loops, and what `loop` is in them. */
#include "engine/template/containers.h"
#include "engine/template/execute.h"
#include "engine/template/render.h"
#include "engine/template/strings.h"

/* Returns the next item; an item that was looked at already comes first. */
static bool advance(struct render *r, struct loop *loop, struct value *out) {
    if (loop->after.type != V_MISSING) {
        *out = loop->after;
        loop->after = value_missing();
        return true;
    }
    return cursor_next(&loop->cursor, r, out);
}

/* Returns the item after the current one, V_MISSING at the end. */
static struct value peek(struct render *r, struct loop *loop) {
    struct value next;
    if (loop->after.type == V_MISSING && cursor_next(&loop->cursor, r, &next)) loop->after = next;
    return loop->after;
}

/* Returns the length.  An iterator has none, so the rest of its items are computed now. */
static int64_t length(struct render *r, struct loop *loop) {
    if (loop->length >= 0) return loop->length;
    if (loop->iterable.type == V_ITERATOR) {
        const struct list *rest = iterate_all(r, loop->iterable);
        cursor_init(&loop->cursor, r, value_list(rest, loop->iterable.trusted));
        loop->length = (int64_t)rest->n + loop->index0 + 1 + (loop->after.type != V_MISSING);
    } else {
        loop->length = (int64_t)value_length(r, loop->iterable);
    }
    return loop->length;
}

static struct value loop_cycle(struct render *r, struct value self, const struct value *argv,
                               const struct args *args) {
    (void)argv;
    if (!args->n || args->n_keywords) return render_invalid(r, "loop.cycle() needs items");
    return args->items[(size_t)self.loop->index0 % args->n];
}

static struct value loop_changed(struct render *r, struct value self, const struct value *argv,
                                 const struct args *args) {
    (void)argv;
    const struct value now = value_tuple(list_share(r, args->items, args->n), true);
    const bool is_changed =
        self.loop->changed.type == V_MISSING || !value_equals(r, self.loop->changed, now);
    self.loop->changed = now;
    return value_bool(is_changed, true);
}

static const struct callable LOOP_METHODS[] = {
    {"cycle", loop_cycle, NULL, 0},
    {"changed", loop_changed, NULL, 0},
    {0},
};

struct value loop_attribute(struct render *r, struct loop *loop, const struct string *name) {
    const struct {
        const char *name;
        int64_t number;
    } numbers[] = {{"index", loop->index0 + 1},
                   {"index0", loop->index0},
                   {"depth", loop->depth0 + 1},
                   {"depth0", loop->depth0}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (string_is(name, numbers[i].name)) return value_int(numbers[i].number, true);
    if (string_is(name, "first")) return value_bool(loop->index0 == 0, true);
    if (string_is(name, "last")) return value_bool(peek(r, loop).type == V_MISSING, true);
    if (string_is(name, "length")) return value_int(length(r, loop), true);
    if (string_is(name, "revindex")) return value_int(length(r, loop) - loop->index0, true);
    if (string_is(name, "revindex0")) return value_int(length(r, loop) - loop->index0 - 1, true);
    if (string_is(name, "previtem"))
        return loop->index0 == 0 ? value_undefined(NULL) : loop->before;
    if (string_is(name, "nextitem")) {
        const struct value next = peek(r, loop);
        return next.type == V_MISSING ? value_undefined(NULL) : next;
    }
    const struct callable *callable = callable_find(LOOP_METHODS, name->bytes, name->n);
    struct method *method = callable ? render_take(r, sizeof(*method)) : NULL;
    if (!method) return value_missing();
    *method = (struct method){{.type = V_LOOP, .loop = loop}, callable};
    return (struct value){.type = V_METHOD, .trusted = true, .method = method};
}

/* What a loop's condition is evaluated with. */
struct filter {
    const struct for_node *node;
    struct frame *frame;
};

static bool next_matching(struct render *r, struct iterator *self, struct value *out) {
    const struct filter *filter = self->state;
    while (cursor_next(&self->source, r, out)) {
        struct frame *const outer = r->frame;
        r->frame = filter->frame;
        node_assign(r, filter->node->target, *out);
        const bool matches = value_is_true(node_evaluate(r, filter->node->condition));
        r->frame = outer;
        if (matches) return true;
    }
    return false;
}

static struct value filtered(struct render *r, const struct for_node *node, struct value iterable) {
    struct filter *filter = render_take(r, sizeof(*filter));
    if (!filter) return iterable;
    *filter = (struct filter){node, frame_new(r, &node->condition_scope, r->frame)};
    return filter->frame ? iterator_make(r, next_matching, iterable, filter) : iterable;
}

/* Runs the body once; returns false when the loop ends here. */
static bool run_body(struct render *r, struct loop *loop, struct frame *frame, struct value item) {
    const struct for_node *node = loop->node;
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    r->frame = frame;
    node_assign(r, node->target, item);
    if (node->loop_slot != UINT32_MAX)
        frame->slots[node->loop_slot] =
            (struct value){.type = V_LOOP, .trusted = true, .loop = loop};
    frame_reset(r, &node->body_scope, frame);
    node_execute(r, &node->body);
    r->frame = loop->outer;
    const bool ends = r->flow == FLOW_BREAK;
    loop->has_finished |= r->flow == FLOW_ON;
    r->flow = FLOW_ON;
    return !ends;
}

void loop_run(struct render *r, const struct for_node *node, struct value iterable,
              int64_t depth0) {
    struct frame *frame = frame_new(r, &node->body_scope, r->frame);
    struct loop *loop = render_take(r, sizeof(*loop));
    if (!frame || !loop) return;
    if (node->condition) iterable = filtered(r, node, iterable);
    *loop = (struct loop){.node = node,
                          .outer = r->frame,
                          .iterable = iterable,
                          .index0 = -1,
                          .length = -1,
                          .depth0 = depth0};
    cursor_init(&loop->cursor, r, iterable);
    struct value item;
    bool goes_on = true;
    while (goes_on && advance(r, loop, &item)) goes_on = run_body(r, loop, frame, item);
    /* jinja2 notes at the end of the body that there was an item, so a loop of which every round
     * was left early has its `else` executed. */
    if (loop->has_finished || r->rc || !node->otherwise.n) return;
    r->frame = frame_new(r, &node->otherwise_scope, loop->outer);
    if (r->frame) node_execute(r, &node->otherwise);
    r->frame = loop->outer;
}

/* Runs a recursive loop for other items, one level deeper: loop(items). */
struct value loop_call(struct render *r, struct loop *loop, const struct args *args) {
    struct frame *const frame = r->frame;
    struct builder text, *const capture = r->capture;
    const enum flow flow = r->flow;
    if (!loop->node->is_recursive || args->n != 1 || args->n_keywords)
        return render_invalid(r, "loop() needs one argument, and a recursive loop");
    builder_init(&text, r);
    r->capture = &text;
    r->frame = loop->outer;
    loop_run(r, loop->node, args->items[0], loop->depth0 + 1);
    r->capture = capture;
    r->frame = frame;
    r->flow = flow;
    return value_string(builder_end(&text));
}
