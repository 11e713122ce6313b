/* tool_piece.h - a part of a text, and what readers of tool calls ask of one.
 *
 * Thread: any.  Memory: none; a piece borrows its text. */
#ifndef SERVER_API_CONVERSATION_TOOL_PIECE_H
#define SERVER_API_CONVERSATION_TOOL_PIECE_H

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "engine/base/json_strings.h"

struct piece {
    const char *at;
    size_t n;
};

static inline struct piece skip_space(struct piece p) {
    for (; p.n > 0 && json_is_space(p.at[0]); p.at++) p.n--;
    return p;
}

static inline struct piece trimmed(struct piece text) {
    struct piece p = skip_space(text);
    for (; p.n > 0 && json_is_space(p.at[p.n - 1]); p.n--) {
    }
    return p;
}

/* Returns where a word begins in the piece, or NULL. */
static inline const char *find(struct piece p, const char *word) {
    const size_t n = strlen(word);
    const char *at = p.at, *end = p.at + p.n;
    while (n > 0 && (size_t)(end - at) >= n &&
           (at = memchr(at, word[0], (size_t)(end - at) - n + 1)))
        if (memcmp(at, word, n) == 0) return at;
        else at++;
    return NULL;
}

static inline bool begins(struct piece p, const char *word) {
    return p.n >= strlen(word) && memcmp(p.at, word, strlen(word)) == 0;
}

static inline struct piece behind(struct piece p, const char *at) {
    return (struct piece){at, p.n - (size_t)(at - p.at)};
}

/* Returns the JSON string that the piece begins with, quotes included; n 0: there is none. */
static inline struct piece quoted_of(struct piece p) {
    const char *end = begins(p, "\"") ? json_string_end(p.at + 1, p.at + p.n) : NULL;
    return (struct piece){p.at, end ? (size_t)(end + 1 - p.at) : 0};
}

/* Tells whether a function may have this name, where no quotes say that it is one. */
static inline bool is_name(struct piece p) {
    bool is = p.n > 0;
    for (size_t i = 0; i < p.n; i++)
        is = is && (isalnum((unsigned char)p.at[i]) || memchr("_-.:/", p.at[i], 5));
    return is;
}

/* Returns the object or list that the piece begins with, whose braces match; n 0: there is none. */
static inline struct piece braced_of(struct piece p) {
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < p.n; i++) {
        const char c = p.at[i];
        if (in_string) {
            if (c == '\\') i++;
            else in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        if (c == '{' || c == '[') depth++;
        if (i > 0 && (c == '}' || c == ']')) depth--;
        if (depth == 0) return (struct piece){p.at, i > 0 ? i + 1 : 0};
    }
    return (struct piece){p.at, 0};
}

#endif
