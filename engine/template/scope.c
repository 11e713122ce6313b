/* scope.c - see scope.h.
 *
 * Each scope is gone through twice: once to find which names it reads and assigns, in order, and
 * once to bind them, and to do the same with the scopes inside.  The branches of an `if` are looked
 * at apart from each other: a name that only some of them assign may still be the outer one. */
#include "engine/template/scope.h"

#include <string.h>

#include "engine/template/ast.h"
#include "engine/template/strings.h"

struct symbol {
    const struct string *name;
    struct slot slot;
    bool is_assigned;
};

struct symbols {
    struct symbols *outer;
    struct symbol *items;
    uint32_t n, capacity;
};

struct resolver {
    struct template *template;
    struct arena scratch;
    struct symbols *symbols; /* of the current scope */
    uint32_t n_global_capacity;
    int rc;
};

typedef void (*visit_fn)(struct resolver *s, struct node *node);

static void visit_nodes(struct resolver *s, const struct nodes *nodes, visit_fn visit) {
    for (size_t i = 0; i < nodes->n && !s->rc; i++)
        if (nodes->items[i]) visit(s, nodes->items[i]);
}

static void visit_one(struct resolver *s, struct node *node, visit_fn visit) {
    if (node && !s->rc) visit(s, node);
}

/* Visits the expressions that an expression consists of. */
static void visit_parts(struct resolver *s, struct node *node, visit_fn visit) {
    switch (node->kind) {
    case N_LIST:
    case N_TUPLE:
    case N_DICT:
    case N_CONCAT: visit_nodes(s, &node->items, visit); break;
    case N_ATTRIBUTE:
    case N_ITEM:
    case N_SLICE:
        visit_one(s, node->access.of, visit);
        visit_one(s, node->access.key, visit);
        for (int i = 0; i < 3; i++) visit_one(s, node->access.bounds[i], visit);
        break;
    case N_CALL:
    case N_FILTER:
    case N_TEST:
        visit_one(s, node->call.of, visit);
        visit_nodes(s, &node->call.args.items, visit);
        visit_nodes(s, &node->call.args.keywords, visit);
        visit_one(s, node->call.args.more_items, visit);
        visit_one(s, node->call.args.more_keywords, visit);
        break;
    case N_COMPARE: visit_nodes(s, &node->compare.items, visit); break;
    case N_BINARY:
    case N_AND:
    case N_OR:
    case N_NOT:
    case N_NEGATE:
    case N_PLUS:
    case N_CONDITION:
        visit_one(s, node->parts.a, visit);
        visit_one(s, node->parts.b, visit);
        visit_one(s, node->parts.c, visit);
        break;
    default: break;
    }
}

static struct symbol *find_own(const struct symbols *symbols, const struct string *name) {
    for (uint32_t i = 0; i < symbols->n; i++)
        if (string_equals(symbols->items[i].name, name)) return &symbols->items[i];
    return NULL;
}

/* Finds a name in a scope or those around it, and how many scopes out. */
static struct symbol *find(const struct symbols *symbols, const struct string *name,
                           uint32_t *depth) {
    *depth = 0;
    for (; symbols; symbols = symbols->outer, ++*depth) {
        struct symbol *symbol = find_own(symbols, name);
        if (symbol) return symbol;
    }
    return NULL;
}

static uint32_t index_in(const struct symbols *symbols, uint32_t depth,
                         const struct symbol *symbol) {
    while (depth--) symbols = symbols->outer;
    return (uint32_t)(symbol - symbols->items);
}

static struct symbol *add(struct resolver *s, struct symbols *symbols, struct symbol symbol) {
    if (symbols->n == symbols->capacity) {
        const uint32_t capacity = symbols->capacity ? 2 * symbols->capacity : 8;
        void *items = arena_grow(&s->scratch, symbols->items, symbols->n * sizeof(symbol),
                                 capacity * sizeof(symbol));
        if (!items) {
            s->rc = s->scratch.rc;
            return NULL;
        }
        symbols->items = items;
        symbols->capacity = capacity;
    }
    symbols->items[symbols->n] = symbol;
    return &symbols->items[symbols->n++];
}

/* Returns the slot of a variable of the render. */
static struct slot global_slot(struct resolver *s, const struct string *name) {
    struct template *t = s->template;
    uint32_t i = 0;
    while (i < t->n_globals && !string_equals(t->globals[i], name)) i++;
    if (i == t->n_globals) {
        if (i == s->n_global_capacity) {
            const uint32_t capacity = i ? 2 * i : 16;
            void *names =
                arena_grow(&t->arena, t->globals, i * sizeof(name), capacity * sizeof(name));
            if (!names) {
                s->rc = t->arena.rc;
                return (struct slot){.kind = SLOT_UNSET};
            }
            t->globals = names;
            s->n_global_capacity = capacity;
        }
        t->globals[t->n_globals++] = name;
    }
    return (struct slot){SLOT_GLOBAL, 0, i};
}

/* Returns the slot of a name that a scope assigns and has not read before. */
static struct slot outer_slot(struct resolver *s, const struct string *name,
                              struct slot otherwise) {
    uint32_t depth;
    const struct symbols *outer = s->symbols->outer;
    const struct symbol *symbol = find(outer, name, &depth);
    return symbol ? (struct slot){SLOT_ALIAS, depth + 1, index_in(outer, depth, symbol)}
                  : otherwise;
}

static void note_read(struct resolver *s, const struct string *name) {
    uint32_t depth;
    if (find(s->symbols, name, &depth)) return;
    add(s, s->symbols, (struct symbol){.name = name, .slot = global_slot(s, name)});
}

static void note_assigned(struct resolver *s, const struct string *name) {
    struct symbol *symbol = find_own(s->symbols, name);
    if (!symbol)
        symbol = add(s, s->symbols,
                     (struct symbol){
                         .name = name,
                         .slot = outer_slot(s, name, (struct slot){.kind = SLOT_UNSET}),
                     });
    if (symbol) symbol->is_assigned = true;
}

static uint32_t declare(struct resolver *s, const struct string *name) {
    struct symbol *symbol = find_own(s->symbols, name);
    if (!symbol) symbol = add(s, s->symbols, (struct symbol){.name = name});
    if (!symbol) return 0;
    symbol->slot = (struct slot){.kind = SLOT_PARAM};
    symbol->is_assigned = true;
    return (uint32_t)(symbol - s->symbols->items);
}

static void declare_word(struct resolver *s, const char *word, uint32_t *slot) {
    struct string *name = arena_take(&s->template->arena, sizeof(*name));
    if (!name) {
        s->rc = s->template->arena.rc;
        return;
    }
    *name =
        (struct string){.bytes = word, .n = strlen(word), .n_chars = strlen(word), .trusted = true};
    *slot = declare(s, name);
}

static void note_expression(struct resolver *s, struct node *node) {
    if (node->kind == N_NAME || node->kind == N_SPACE_REF) note_read(s, node->name.name);
    else visit_parts(s, node, note_expression);
}

static void note_target(struct resolver *s, struct node *node) {
    if (node->kind == N_NAME) note_assigned(s, node->name.name);
    else if (node->kind == N_SPACE_REF) note_read(s, node->name.name);
    else visit_parts(s, node, note_target);
}

static void declare_target(struct resolver *s, struct node *node) {
    if (node->kind == N_NAME) declare(s, node->name.name);
    else visit_parts(s, node, declare_target);
}

static void note_statement(struct resolver *s, struct node *node);

static struct symbols copy_symbols(struct resolver *s) {
    struct symbols copy = *s->symbols;
    copy.items = arena_take(&s->scratch, (copy.n + 1) * sizeof(*copy.items));
    copy.capacity = copy.n + 1;
    if (!copy.items) s->rc = s->scratch.rc;
    else if (copy.n) memcpy(copy.items, s->symbols->items, copy.n * sizeof(*copy.items));
    return copy;
}

/* Takes over what the branches found.  A name that a branch assigns, and that was not assigned
 * before, may also keep the value that it has outside. */
static void merge_branches(struct resolver *s, const struct symbols branches[], size_t n) {
    const uint32_t n_before = s->symbols->n;
    for (size_t b = 0; b < n; b++) {
        for (uint32_t i = 0; i < branches[b].n && !s->rc; i++) {
            const struct symbol *found = &branches[b].items[i];
            struct symbol *own = find_own(s->symbols, found->name);
            if (!own) own = add(s, s->symbols, *found);
            if (!own) return;
            const bool was_assigned = own->is_assigned && own < s->symbols->items + n_before;
            if (was_assigned) continue;
            own->slot = found->slot;
            /* A mark for what follows: this branch assigns it, or one before did. */
            own->is_assigned = own->is_assigned || found->is_assigned;
        }
    }
}

/* Notes the names of an `if`: of each branch on its own, then of all. */
static void note_branches(struct resolver *s, const struct branch *branches, size_t n) {
    struct symbols *const before = s->symbols;
    struct symbols found[3];
    const bool has_else = n > 1 && !branches[n - 1].condition;
    visit_one(s, branches[0].condition, note_expression);
    struct symbols original = copy_symbols(s);
    for (size_t b = 0; b < 3 && !s->rc; b++) {
        found[b] = copy_symbols(s);
        if (s->rc) break;
        s->symbols = &found[b];
        if (b == 0) visit_nodes(s, &branches[0].body, note_statement);
        for (size_t i = 1; b == 1 && i < n - has_else; i++) note_branches(s, &branches[i], 1);
        if (b == 2 && has_else) visit_nodes(s, &branches[n - 1].body, note_statement);
        s->symbols = before;
    }
    if (s->rc) return;
    merge_branches(s, found, 3);
    for (uint32_t i = 0; i < s->symbols->n && !s->rc; i++) {
        struct symbol *symbol = &s->symbols->items[i];
        const struct symbol *old = i < original.n ? &original.items[i] : NULL;
        if (symbol->is_assigned && !(old && old->is_assigned))
            symbol->slot = outer_slot(s, symbol->name, global_slot(s, symbol->name));
    }
}

static void note_statement(struct resolver *s, struct node *node) {
    switch (node->kind) {
    case N_OUTPUT: visit_nodes(s, &node->items, note_expression); break;
    case N_IF: note_branches(s, node->branch.branches, node->branch.n); break;
    case N_FOR: note_expression(s, node->loop->iter); break;
    case N_SET:
        note_expression(s, node->set.value);
        note_target(s, node->set.target);
        break;
    case N_SET_BLOCK: note_target(s, node->block.target); break;
    case N_MACRO: note_assigned(s, node->macro.macro->name); break;
    case N_CALL_BLOCK: note_expression(s, node->macro.target); break;
    case N_FILTER_BLOCK: visit_one(s, node->block.filter, note_expression); break;
    case N_WITH: visit_nodes(s, &node->block.values, note_expression); break;
    default: break;
    }
}

static void bind_expression(struct resolver *s, struct node *node) {
    if (node->kind != N_NAME && node->kind != N_SPACE_REF) {
        visit_parts(s, node, bind_expression);
        return;
    }
    const struct symbol *symbol = find(s->symbols, node->name.name, &node->name.depth);
    /* Whatever is read or assigned was noted before. */
    node->name.index = index_in(s->symbols, node->name.depth, symbol);
}

static void bind_statement(struct resolver *s, struct node *node);

static void enter(struct resolver *s, struct symbols *symbols) {
    *symbols = (struct symbols){.outer = s->symbols};
    s->symbols = symbols;
}

/* Writes the slots of the current scope and returns to the one around it. */
static void leave(struct resolver *s, struct scope *scope) {
    const struct symbols *symbols = s->symbols;
    scope->n_slots = symbols->n;
    scope->slots = arena_take(&s->template->arena, (symbols->n + 1) * sizeof(*scope->slots));
    if (!scope->slots) s->rc = s->rc ? s->rc : s->template->arena.rc;
    for (uint32_t i = 0; i < symbols->n && scope->slots; i++)
        scope->slots[i] = symbols->items[i].slot;
    s->symbols = symbols->outer;
}

/* Resolves a scope that consists of statements and perhaps a filter. */
static void resolve_block(struct resolver *s, struct node *node) {
    struct symbols symbols;
    visit_nodes(s, &node->block.values, bind_expression);
    enter(s, &symbols);
    visit_nodes(s, &node->block.targets, declare_target);
    visit_one(s, node->block.filter, note_expression);
    visit_nodes(s, &node->block.body, note_statement);
    if (!s->rc) {
        visit_nodes(s, &node->block.targets, bind_expression);
        visit_one(s, node->block.filter, bind_expression);
        visit_nodes(s, &node->block.body, bind_statement);
    }
    leave(s, &node->block.scope);
    if (node->kind == N_SET_BLOCK) visit_one(s, node->block.target, bind_expression);
}

static void resolve_macro(struct resolver *s, struct macro_node *macro) {
    struct symbols symbols;
    const struct nodes params = {macro->params, macro->n_params};
    const struct nodes defaults = {macro->defaults, macro->n_defaults};
    enter(s, &symbols);
    visit_nodes(s, &params, declare_target);
    visit_nodes(s, &defaults, note_expression);
    visit_nodes(s, &macro->body, note_statement);
    if (macro->has_caller) declare_word(s, "caller", &macro->caller_slot);
    if (macro->has_kwargs) declare_word(s, "kwargs", &macro->kwargs_slot);
    if (macro->has_varargs) declare_word(s, "varargs", &macro->varargs_slot);
    if (!s->rc) {
        visit_nodes(s, &params, bind_expression);
        visit_nodes(s, &defaults, bind_expression);
        visit_nodes(s, &macro->body, bind_statement);
    }
    leave(s, &macro->scope);
}

/* Resolves a loop.  The targets have the same slots in the scopes of body and condition: the
 * first. */
static void resolve_for(struct resolver *s, struct for_node *loop) {
    struct symbols symbols;
    bind_expression(s, loop->iter);
    enter(s, &symbols);
    declare_target(s, loop->target);
    if (loop->loop_slot != UINT32_MAX) declare_word(s, "loop", &loop->loop_slot);
    visit_nodes(s, &loop->body, note_statement);
    if (!s->rc) {
        bind_expression(s, loop->target);
        visit_nodes(s, &loop->body, bind_statement);
    }
    leave(s, &loop->body_scope);
    enter(s, &symbols);
    declare_target(s, loop->target);
    visit_one(s, loop->condition, note_expression);
    visit_one(s, loop->condition, bind_expression);
    leave(s, &loop->condition_scope);
    enter(s, &symbols);
    visit_nodes(s, &loop->otherwise, note_statement);
    visit_nodes(s, &loop->otherwise, bind_statement);
    leave(s, &loop->otherwise_scope);
}

static void bind_statement(struct resolver *s, struct node *node) {
    switch (node->kind) {
    case N_OUTPUT: visit_nodes(s, &node->items, bind_expression); break;
    case N_IF:
        for (size_t i = 0; i < node->branch.n; i++) {
            visit_one(s, node->branch.branches[i].condition, bind_expression);
            visit_nodes(s, &node->branch.branches[i].body, bind_statement);
        }
        break;
    case N_FOR: resolve_for(s, node->loop); break;
    case N_SET:
        visit_one(s, node->set.value, bind_expression);
        visit_one(s, node->set.target, bind_expression);
        break;
    case N_MACRO:
        bind_expression(s, node->macro.target);
        resolve_macro(s, node->macro.macro);
        break;
    case N_CALL_BLOCK:
        bind_expression(s, node->macro.target);
        resolve_macro(s, node->macro.macro);
        break;
    case N_SET_BLOCK:
    case N_FILTER_BLOCK:
    case N_WITH:
    case N_GENERATION: resolve_block(s, node); break;
    default: break;
    }
}

int scope_resolve(struct template *t) {
    struct resolver s = {.template = t};
    struct symbols symbols;
    arena_init(&s.scratch, t->arena.max);
    enter(&s, &symbols);
    visit_nodes(&s, &t->body, note_statement);
    if (!s.rc) visit_nodes(&s, &t->body, bind_statement);
    leave(&s, &t->scope);
    arena_fini(&s.scratch);
    return s.rc;
}
