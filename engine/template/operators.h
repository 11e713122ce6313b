/* operators.h - arithmetic, comparisons and membership, as Python computes them.
 *
 * Integers have 64 bits; a result beyond them fails the render and says so.
 *
 * Thread: a render's own.  Memory: the render's arena. */
#ifndef ENGINE_TEMPLATE_OPERATORS_H
#define ENGINE_TEMPLATE_OPERATORS_H

#include <stdbool.h>

#include "engine/template/value.h"

struct render;

enum operator{
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR_DIVIDE,
    OP_MODULO,
    OP_POWER,
    OP_EQUAL,
    OP_NOT_EQUAL,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_NOT_IN
};

/* Computes a OP b, for operators up to OP_POWER. */
struct value operator_compute(struct render *r, enum operator op, struct value a, struct value b);
/* Returns whether a OP b, for the others. */
bool operator_compare(struct render *r, enum operator op, struct value a, struct value b);
struct value operator_negate(struct render *r, struct value v);

#endif
