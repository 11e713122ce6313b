/* scope.h - gives every name of a template its slot.
 *
 * jinja2 decides when it compiles which variable a name means, and so does this:
 *
 *   - Loops, macros, calls, filter blocks, `with` and blocks that are set have scopes; `if` has
 *   none.  - A scope that assigns a name has a variable of its own.  It begins as a copy of the
 *   outer
 *     scope's, every time the scope is entered: an assignment in a loop ends with the iteration.
 *   - A name that no scope around assigns is one of the render's variables.
 *
 * Thread: the compiler's.  Memory: scopes are in the template's arena, the rest is freed. */
#ifndef ENGINE_TEMPLATE_SCOPE_H
#define ENGINE_TEMPLATE_SCOPE_H

struct template;

/* Returns 0, or why the template's or the scratch memory is full. */
int scope_resolve(struct template *t);

#endif
