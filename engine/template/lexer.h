/* lexer.h - a template's source as tokens: literal text, and what is between {{ }} and {% %}.
 *
 * Whitespace is controlled as jinja2 does with trim_blocks and lstrip_blocks: the line end behind a
 * block tag, and the blanks of its line in front of it, are removed; - removes all whitespace on
 * its side, + keeps it.
 *
 * Thread: the compiler's.  Memory: strings are in the template's arena. */
#ifndef ENGINE_TEMPLATE_LEXER_H
#define ENGINE_TEMPLATE_LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/template/value.h"

struct arena;
struct error;

enum token_kind {
    T_DATA, /* value: literal text */
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_NUMBER, /* value */
    T_STRING, /* value */
    T_OPERATOR,
    T_END
};

struct token {
    enum token_kind kind;
    const char *bytes; /* of the source: a name or an operator */
    size_t n;
    struct value value;
    uint32_t line, column; /* both from 1; columns count characters */
};

struct lexer {
    const char *source; /* with \n for every line end, and without the last one */
    size_t n, at;
    const char *line_begin;
    const char *counted; /* line and line_begin are those of this byte */
    uint32_t line;
    enum { IN_TEXT, IN_VARIABLE, IN_BLOCK } state;
    bool begins_line; /* what was read before ended with a line end */
    bool raw;         /* the text to come is that of a raw block */
    char brackets[64];
    size_t n_brackets;
    struct arena *arena;
    struct error *err;
};

/* Copies the source, which must be UTF-8, and makes its line ends \n. */
int lexer_init(struct lexer *lexer, struct arena *arena, const char *source, size_t n,
               struct error *err);
/* Reads a token.  ERR_INVALID, ERR_UNSUPPORTED, ERR_NOMEM, ERR_TOO_LONG. */
int lexer_next(struct lexer *lexer, struct token *out);

/* Writes an error that begins with the token's line and column. */
int lexer_fail(struct lexer *lexer, const struct token *at, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
