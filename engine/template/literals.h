/* literals.h - numbers and strings of a template's source.
 *
 * Thread: the compiler's.  Memory: strings are in the template's arena. */
#ifndef ENGINE_TEMPLATE_LITERALS_H
#define ENGINE_TEMPLATE_LITERALS_H

#include <stddef.h>

#include "engine/template/value.h"

struct arena;
struct lexer;
struct token;

/* Makes a trusted string of bytes that live as long as the arena.  Negative when it is full. */
int literal_text(struct arena *arena, const char *bytes, size_t n, struct value *out);

/* Reads the literal at the lexer's place. */
int literal_number(struct lexer *lexer, struct token *out);
int literal_string(struct lexer *lexer, struct token *out);

#endif
