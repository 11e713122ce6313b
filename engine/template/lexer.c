/* lexer.c - see lexer.h; literals.c reads numbers and strings. */
#include "engine/template/lexer.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/template/arena.h"
#include "engine/template/chars.h"
#include "engine/template/literals.h"

int lexer_fail(struct lexer *lexer, const struct token *at, int code, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set(lexer->err, code, "line %u, column %u: %s", at->line, at->column, text);
}

int lexer_init(struct lexer *lexer, struct arena *arena, const char *source, size_t n,
               struct error *err) {
    char *copy = arena_take(arena, n + 1);
    size_t length = 0;
    *lexer = (struct lexer){.arena = arena, .err = err, .line = 1, .begins_line = true};
    if (!copy) return error_set(err, arena->rc, "the template does not fit its memory");
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        copy[length++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (length && copy[length - 1] == '\n') length--;
    copy[length] = 0;
    lexer->source = lexer->line_begin = lexer->counted = copy;
    lexer->n = length;
    return 0;
}

/* Notes where the next token begins.  Positions never go back. */
static void locate(struct lexer *lexer, struct token *out) {
    const char *const at = lexer->source + lexer->at;
    for (; lexer->counted < at; lexer->counted++)
        if (*lexer->counted == '\n') lexer->line++, lexer->line_begin = lexer->counted + 1;
    out->line = lexer->line;
    out->column = 1 + (uint32_t)utf8_count(lexer->line_begin, (size_t)(at - lexer->line_begin));
    out->bytes = at;
    out->n = 0;
}

/* Returns whether c is in the set; a zero of the source is not. */
static bool is_one_of(char c, const char *set) {
    return c && strchr(set, c);
}

static bool at_text(const struct lexer *lexer, size_t at, const char *text) {
    const size_t n = strlen(text);
    return n <= lexer->n - at && !memcmp(lexer->source + at, text, n);
}

static size_t skip_space(const struct lexer *lexer, size_t at) {
    for (size_t next = at; next < lexer->n; at = next)
        if (!chars_is_space(chars_next(lexer->source, lexer->n, &next))) break;
    return at;
}

/* Returns the byte after `{% endraw %}`, and in *sign its sign, or 0 if it is not at `at`. */
static size_t match_raw(const struct lexer *lexer, size_t at, const char *word, char *sign) {
    if (!at_text(lexer, at, "{%")) return 0;
    at += 2;
    *sign = at < lexer->n && (lexer->source[at] == '-' || lexer->source[at] == '+')
                ? lexer->source[at++]
                : 0;
    at = skip_space(lexer, at);
    if (!at_text(lexer, at, word)) return 0;
    return skip_space(lexer, at + strlen(word));
}

/* Returns the byte after `%}` with what its sign removes, or 0 if there is none at `at`. */
static size_t match_end(const struct lexer *lexer, size_t at, const char *end, bool trims,
                        bool takes_plus) {
    if (at >= lexer->n) return 0;
    const char sign = lexer->source[at] == '-' || (takes_plus && lexer->source[at] == '+')
                          ? lexer->source[at]
                          : 0;
    if (!at_text(lexer, at + (sign != 0), end)) return 0;
    at += (sign != 0) + strlen(end);
    if (sign == '-') return skip_space(lexer, at);
    return at + (!sign && trims && at < lexer->n && lexer->source[at] == '\n');
}

/* Returns where the text that ends before a tag ends, after what the tag removes of it. */
static size_t strip_text(const struct lexer *lexer, size_t begin, size_t end, char sign,
                         bool strips_line) {
    const char *s = lexer->source;
    if (sign == '-') {
        while (end > begin) {
            size_t before = end - begin;
            if (!chars_is_space(chars_before(s + begin, &before))) break;
            end = begin + before;
        }
        return end;
    }
    if (sign == '+' || !strips_line) return end;
    size_t line = end;
    while (line > begin && s[line - 1] != '\n') line--;
    if (line == begin && !lexer->begins_line) return end;
    size_t blank = line;
    while (blank < end && chars_is_space(chars_next(s, end, &blank)))
        if (blank == end) return line;
    return end;
}

static void after(struct lexer *lexer, size_t at) {
    lexer->begins_line = at > 0 && lexer->source[at - 1] == '\n';
    lexer->at = at;
}

static int data_token(struct lexer *lexer, struct token *out, size_t end) {
    out->kind = T_DATA;
    return literal_text(lexer->arena, lexer->source + lexer->at, end - lexer->at, &out->value)
               ? lexer_fail(lexer, out, lexer->arena->rc, "the template does not fit its memory")
               : 0;
}

/* Reads the text of a raw block, whose begin was read, and the tag that ends it. */
static int raw_text(struct lexer *lexer, struct token *out) {
    for (size_t at = lexer->at; at < lexer->n; at++) {
        char sign;
        const size_t tag = match_raw(lexer, at, "endraw", &sign);
        const size_t end = tag ? match_end(lexer, tag, "%}", true, true) : 0;
        if (!end) continue;
        const int rc = data_token(lexer, out, strip_text(lexer, lexer->at, at, sign, true));
        lexer->raw = false;
        after(lexer, end);
        return rc;
    }
    return lexer_fail(lexer, out, ERR_INVALID, "this raw block has no {%% endraw %%}");
}

/* Skips a comment that begins at the lexer's place. */
static int skip_comment(struct lexer *lexer, const struct token *at) {
    for (size_t i = lexer->at; i < lexer->n; i++) {
        const size_t end = match_end(lexer, i, "#}", true, true);
        if (!end) continue;
        after(lexer, end);
        return 0;
    }
    return lexer_fail(lexer, at, ERR_INVALID, "this comment has no end #}");
}

/* Enters the tag at `at`: its begin has two characters and perhaps a sign.  Where it makes no
 * token, *found stays false: a comment, or the begin of a raw block. */
static int enter_tag(struct lexer *lexer, struct token *out, size_t at, bool *found) {
    char sign;
    const char kind = lexer->source[at + 1];
    const size_t raw = match_raw(lexer, at, "raw", &sign);
    const size_t raw_end = raw ? match_end(lexer, raw, "%}", false, false) : 0;
    lexer->at = at;
    locate(lexer, out);
    if (raw_end) {
        after(lexer, raw_end);
        lexer->raw = true;
        return 0;
    }
    lexer->at += 2;
    if (lexer->at < lexer->n && is_one_of(lexer->source[lexer->at], "-+")) lexer->at++;
    if (kind == '#') return skip_comment(lexer, out);
    *found = true;
    lexer->state = kind == '%' ? IN_BLOCK : IN_VARIABLE;
    lexer->begins_line = false;
    out->kind = kind == '%' ? T_BLOCK_BEGIN : T_VARIABLE_BEGIN;
    return 0;
}

static int next_in_text(struct lexer *lexer, struct token *out, bool *found) {
    *found = true;
    if (lexer->raw) return raw_text(lexer, out);
    size_t at = lexer->at;
    while (at < lexer->n && !(lexer->source[at] == '{' && at + 1 < lexer->n &&
                              is_one_of(lexer->source[at + 1], "{%#")))
        at++;
    if (at == lexer->n) {
        if (lexer->at == lexer->n) {
            out->kind = T_END;
            return 0;
        }
        const int rc = data_token(lexer, out, at);
        lexer->at = at;
        return rc;
    }
    const char sign =
        at + 2 < lexer->n && is_one_of(lexer->source[at + 2], "-+") ? lexer->source[at + 2] : 0;
    const size_t end = strip_text(lexer, lexer->at, at, sign, lexer->source[at + 1] != '{');
    if (end == lexer->at) {
        *found = false;
        return enter_tag(lexer, out, at, found);
    }
    const int rc = data_token(lexer, out, end);
    /* The tag is read by the next call, which finds no text in front of it. */
    lexer->at = at;
    lexer->begins_line = false;
    return rc;
}

static int operator_token(struct lexer *lexer, struct token *out) {
    static const char *const twos[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char closing[] = ")]}", opening[] = "([{";
    const char c = lexer->source[lexer->at];
    out->kind = T_OPERATOR;
    for (size_t i = 0; i < sizeof(twos) / sizeof(twos[0]); i++)
        if (at_text(lexer, lexer->at, twos[i])) out->n = 2;
    if (!out->n && !is_one_of(c, "+-/*%~[](){}><=.:|,;"))
        return isprint((unsigned char)c)
                   ? lexer_fail(lexer, out, ERR_INVALID, "unexpected character `%c`", c)
                   : lexer_fail(lexer, out, ERR_INVALID, "unexpected character");
    if (!out->n) out->n = 1;
    lexer->at += out->n;
    if (out->n == 2) return 0;
    if (strchr(opening, c)) {
        if (lexer->n_brackets == sizeof(lexer->brackets))
            return lexer_fail(lexer, out, ERR_TOO_LONG, "more than %zu brackets are open",
                              sizeof(lexer->brackets));
        lexer->brackets[lexer->n_brackets++] = closing[strchr(opening, c) - opening];
    } else if (strchr(closing, c)) {
        if (!lexer->n_brackets || lexer->brackets[--lexer->n_brackets] != c)
            return lexer_fail(lexer, out, ERR_INVALID, "unexpected `%c`", c);
    }
    return 0;
}

static int name_token(struct lexer *lexer, struct token *out) {
    size_t end = lexer->at;
    while (end < lexer->n && (isalnum((unsigned char)lexer->source[end]) ||
                              lexer->source[end] == '_' || lexer->source[end] & 0x80)) {
        if (lexer->source[end] & 0x80)
            return lexer_fail(lexer, out, ERR_UNSUPPORTED, "names must be ASCII");
        end++;
    }
    out->kind = T_NAME;
    out->n = end - lexer->at;
    lexer->at = end;
    return 0;
}

static int next_in_tag(struct lexer *lexer, struct token *out) {
    const bool in_block = lexer->state == IN_BLOCK;
    const char *const close = in_block ? "%}" : "}}";
    lexer->at = skip_space(lexer, lexer->at);
    locate(lexer, out);
    if (lexer->at == lexer->n)
        return lexer_fail(lexer, out, ERR_INVALID, "expected `%s`, but the template ends", close);
    const size_t end =
        lexer->n_brackets ? 0 : match_end(lexer, lexer->at, close, in_block, in_block);
    if (end) {
        out->kind = in_block ? T_BLOCK_END : T_VARIABLE_END;
        after(lexer, end);
        lexer->state = IN_TEXT;
        return 0;
    }
    const char c = lexer->source[lexer->at];
    if (isdigit((unsigned char)c)) return literal_number(lexer, out);
    if (c == '\'' || c == '"') return literal_string(lexer, out);
    if (isalpha((unsigned char)c) || c == '_' || c & 0x80) return name_token(lexer, out);
    return operator_token(lexer, out);
}

int lexer_next(struct lexer *lexer, struct token *out) {
    bool found = false;
    int rc = 0;
    while (!found && !rc) {
        *out = (struct token){.kind = T_END};
        locate(lexer, out);
        if (lexer->state != IN_TEXT) return next_in_tag(lexer, out);
        rc = next_in_text(lexer, out, &found);
    }
    return rc;
}
