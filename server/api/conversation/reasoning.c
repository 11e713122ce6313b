/* reasoning.c - see reasoning.h. */
#include "server/api/conversation/reasoning.h"

#include <string.h>

static const char begin_mark[] = "<think>", end_mark[] = "</think>";

static const char *mark_of(const struct reasoning_split *split) {
    return split->place == REASONING_BEFORE ? begin_mark : end_mark;
}

static struct buffer *part_of(const struct reasoning_split *split, struct buffer *reasoning,
                              struct buffer *answer) {
    return split->place == REASONING_INSIDE ? reasoning : answer;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void append(struct reasoning_split *split, const char *text, size_t n, struct buffer *out) {
    for (; split->fresh && n > 0 && (*text == '\n' || *text == '\r'); n--) text++;
    if (n == 0) return;
    split->fresh = false;
    buffer_append(out, text, n);
}

/* Enters the next part behind a whole mark. */
static void advance(struct reasoning_split *split) {
    split->place = split->place == REASONING_BEFORE ? REASONING_INSIDE : REASONING_BEHIND;
    split->fresh = true;
    split->n_held = 0;
}

/* Gives up the mark that the held bytes seemed to begin.  Text before any mark is an answer. */
static void release(struct reasoning_split *split, struct buffer *reasoning,
                    struct buffer *answer) {
    const char *mark = mark_of(split);
    const size_t n = split->n_held;
    split->n_held = 0;
    if (split->place == REASONING_BEFORE) split->place = REASONING_BEHIND;
    append(split, mark, n, part_of(split, reasoning, answer));
}

/* Takes one byte while a mark may come.  In both marks '<' stands only at the beginning, so a
 * mismatch can only begin a new one. */
static void take(struct reasoning_split *split, const char *c, struct buffer *reasoning,
                 struct buffer *answer) {
    const char *mark = mark_of(split);
    if (*c != mark[split->n_held] && split->n_held > 0) release(split, reasoning, answer);
    if (split->place != REASONING_BEHIND && *c == mark[split->n_held]) {
        if (!mark[++split->n_held]) advance(split);
        return;
    }
    if (split->place == REASONING_BEFORE && is_space(*c)) return;
    if (split->place == REASONING_BEFORE) split->place = REASONING_BEHIND;
    append(split, c, 1, part_of(split, reasoning, answer));
}

void reasoning_add(struct reasoning_split *split, const char *text, size_t n,
                   struct buffer *reasoning, struct buffer *answer) {
    size_t i = 0;
    while (i < n && split->place != REASONING_BEHIND) take(split, &text[i++], reasoning, answer);
    append(split, text + i, n - i, answer);
}

void reasoning_end(struct reasoning_split *split, struct buffer *reasoning, struct buffer *answer) {
    if (split->n_held > 0) release(split, reasoning, answer);
}

bool reasoning_is_begun(const char *prompt, size_t n) {
    const size_t length = strlen(begin_mark);
    while (n > 0 && is_space(prompt[n - 1])) n--;
    return n >= length && memcmp(prompt + n - length, begin_mark, length) == 0;
}
