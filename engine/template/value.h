/* value.h - what a template computes with: Python's values, each with its origin.
 *
 *   value ─► {type, trusted, number or pointer}
 *   string ─► bytes        s y s t e m : \n H i
 *             marks        1 1 1 1 1 1 1  1 0 0     one a byte; none where all are `trusted`
 *
 * Values are immutable, but for namespaces, iterators, cyclers and joiners, and live in the arena
 * of their render or of the template.  So slices share the memory of what they were cut from.
 *
 * Strings carry an origin for each byte.  Every other value carries one: that of the literal or the
 * variable it comes from.  It decides about the bytes that printing the value makes.
 *
 * Thread: a render's own.  Memory: the arena's. */
#ifndef ENGINE_TEMPLATE_VALUE_H
#define ENGINE_TEMPLATE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct render;

enum value_type {
    V_MISSING, /* no value: a variable that is not set, an argument that is not given */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,
    V_VIEW, /* keys(), values() or items() of a dict */
    V_ITERATOR,
    V_NAMESPACE,
    V_MACRO,
    V_LOOP,
    V_FUNCTION,
    V_METHOD,
    V_CYCLER,
    V_JOINER,
    N_VALUE_TYPES
};

struct value {
    uint8_t type;
    bool trusted; /* but for strings */
    /* Where the render has the text of a number that is printed as it was written, plus 1; 0: it is
     * printed by its value, as all that comes of computing. */
    uint32_t written;
    union {
        bool b;
        int64_t i;
        double d;
        const struct string *string; /* for V_UNDEFINED: its name, or NULL */
        const struct list *list;     /* V_LIST, V_TUPLE */
        const struct dict *dict;
        const struct range *range;
        const struct view *view;
        struct iterator *iterator;
        struct dict *space; /* V_NAMESPACE */
        struct macro *macro;
        struct loop *loop;
        const struct callable *function;
        const struct method *method;
        struct cycler *cycler;
        struct joiner *joiner;
    };
};

struct string {
    const char *bytes;
    const unsigned char *marks; /* [n]: 1 is trusted; NULL: all are as `trusted` says */
    size_t n;
    size_t n_chars;               /* SIZE_MAX: not counted yet */
    struct string_buffer *buffer; /* what concatenation may append to, or NULL; see strings.h */
    bool trusted;
    bool markup; /* marked safe: adding another string escapes that one */
};

struct list {
    size_t n, capacity;
    struct value *items;
    bool is_group; /* a tuple of groupby's, with attributes `grouper` and `list` */
};

struct entry {
    struct value key, value;
};

struct dict {
    size_t n, capacity;
    struct entry *entries; /* in the order of insertion */
    uint32_t *index;       /* [n_index] of entries + 1 by hash; NULL while there are few */
    size_t n_index;
};

struct range {
    int64_t start, stop, step;
    uint64_t n;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    const struct dict *dict;
    enum view_kind kind;
};

struct method {
    struct value self;
    const struct callable *callable;
};

struct cycler {
    const struct list *items;
    size_t at;
};

struct joiner {
    struct value separator;
    bool used;
};

static inline struct value value_missing(void) {
    return (struct value){.type = V_MISSING};
}

static inline struct value value_none(bool trusted) {
    return (struct value){.type = V_NONE, .trusted = trusted};
}

static inline struct value value_bool(bool b, bool trusted) {
    return (struct value){.type = V_BOOL, .trusted = trusted, .b = b};
}

static inline struct value value_int(int64_t i, bool trusted) {
    return (struct value){.type = V_INT, .trusted = trusted, .i = i};
}

static inline struct value value_float(double d, bool trusted) {
    return (struct value){.type = V_FLOAT, .trusted = trusted, .d = d};
}

static inline struct value value_string(const struct string *s) {
    return (struct value){.type = V_STRING, .string = s};
}

static inline struct value value_list(const struct list *list, bool trusted) {
    return (struct value){.type = V_LIST, .trusted = trusted, .list = list};
}

static inline struct value value_tuple(const struct list *list, bool trusted) {
    return (struct value){.type = V_TUPLE, .trusted = trusted, .list = list};
}

static inline struct value value_dict(const struct dict *dict, bool trusted) {
    return (struct value){.type = V_DICT, .trusted = trusted, .dict = dict};
}

static inline struct value value_undefined(const struct string *name) {
    return (struct value){.type = V_UNDEFINED, .string = name};
}

static inline bool value_is_sequence(struct value v) {
    return v.type == V_LIST || v.type == V_TUPLE;
}

/* Returns whether arithmetic takes it: booleans count as 0 and 1. */
static inline bool value_is_number(struct value v) {
    return v.type == V_BOOL || v.type == V_INT || v.type == V_FLOAT;
}

static inline bool value_is_integer(struct value v) {
    return v.type == V_BOOL || v.type == V_INT;
}

static inline int64_t value_to_int(struct value v) {
    return v.type == V_BOOL ? v.b : v.i;
}

static inline double value_to_double(struct value v) {
    return v.type == V_FLOAT ? v.d : (double)value_to_int(v);
}

bool value_is_trusted(struct value v); /* for strings: whether every byte is */
const char *value_type_name(struct value v);

bool value_is_true(struct value v);
/* Returns whether two values are equal, as == says. */
bool value_equals(struct render *r, struct value a, struct value b);
/* Returns whether they are the same object, as far as values of here have an identity. */
bool value_is_same(struct value a, struct value b);
/* Compares a and b, which must have an order, as < does: negative, 0 or positive.  Otherwise the
 * render fails. */
int value_compare(struct render *r, const char *operator, struct value a, struct value b);
/* Orders two numbers; NaN is unordered, which *ordered says. */
int value_compare_numbers(struct value a, struct value b, bool *ordered);
/* Returns len(); the render fails if there is none. */
size_t value_length(struct render *r, struct value v);

#endif
