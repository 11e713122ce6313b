/* tool_calls.c - see tool_calls.h. */
#include "server/api/conversation/tool_calls.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/request/channels.h"

/* How many ends in one call may turn out to be part of an argument.  Each costs a look at all that
 * has come so far. */
enum { MAX_MISSES = 16 };

/* ---- calls ---- */

static void call_fini(struct tool_call *call) {
    buffer_fini(&call->name);
    buffer_fini(&call->arguments);
}

struct tool_call *tool_split_add_call(struct tool_split *split, struct piece name) {
    if (split->n_calls >= TOOL_MAX_CALLS) return NULL;
    struct tool_call *calls = realloc(split->calls, (split->n_calls + 1) * sizeof(*calls));
    if (!calls) {
        split->failed = true;
        return NULL;
    }
    split->calls = calls;
    struct tool_call *call = &calls[split->n_calls++];
    *call = (struct tool_call){0};
    buffer_append(&call->name, name.at, name.n);
    return call;
}

static void drop_calls(struct tool_split *split, uint32_t n) {
    while (split->n_calls > n) call_fini(&split->calls[--split->n_calls]);
}

void tool_split_drop_last(struct tool_split *split) {
    split->failed |= split->calls[split->n_calls - 1].arguments.failed;
    drop_calls(split, split->n_calls - 1);
}

/* ---- the text ---- */

void tool_split_fini(struct tool_split *split) {
    drop_calls(split, 0);
    free(split->calls);
    buffer_fini(&split->held);
}

typedef bool (*call_reader)(struct tool_split *split, const char *text, size_t n);

/* Reads the calls in a part of what is held.  Calls beyond those that are wanted are read and
 * dropped. */
static bool read_calls(struct tool_split *split, struct piece text, call_reader read,
                       const struct buffer *answer) {
    const uint32_t n_before = split->n_calls;
    const bool is_call = trimmed(text).n > 0 && read(split, text.at, text.n);
    for (uint32_t i = n_before; i < split->n_calls; i++) {
        split->calls[i].at = answer->length;
        split->failed |= split->calls[i].name.failed || split->calls[i].arguments.failed;
    }
    drop_calls(split, !is_call                            ? n_before
                      : split->n_calls < split->max_calls ? split->n_calls
                                                          : split->max_calls);
    return is_call;
}

/* Reads those in the first n held bytes. */
static bool read_held(struct tool_split *split, size_t n, const struct buffer *answer) {
    const struct piece text = {split->held.data ? split->held.data : "", n};
    return read_calls(split, text, split->format->read, answer);
}

/* Drops the first n held bytes. */
static void drop_held(struct tool_split *split, size_t n) {
    memmove(split->held.data, split->held.data + n, split->held.length - n);
    split->held.length -= n;
    split->held.data[split->held.length] = 0;
    split->n_seen = 0;
    split->bare = (struct tool_bare){0};
}

/* Appends text without the bytes that stand for marks (channels.h). */
static void append_text(struct buffer *answer, const char *text, size_t n) {
    size_t first = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && !channel_is_mark(text[i])) continue;
        if (i > first) buffer_append(answer, text + first, i - first);
        first = i + 1;
    }
}

/* Releases held bytes as answer.  White space right behind a call is none. */
static void release(struct tool_split *split, size_t n, struct buffer *answer) {
    struct piece text = {split->held.data, n};
    if (split->follows_call) text = skip_space(text);
    if (text.n > 0) {
        append_text(answer, text.at, text.n);
        split->follows_call = false;
    }
    drop_held(split, n);
}

/* Returns how many of the held bytes at the end may begin the mark. */
static size_t partial(const struct buffer *held, const char *mark) {
    size_t n = strlen(mark) - 1;
    if (n > held->length) n = held->length;
    while (n > 0 && memcmp(held->data + held->length - n, mark, n) != 0) n--;
    return n;
}

static struct piece held_of(const struct tool_split *split) {
    return (struct piece){split->held.data, split->held.length};
}

/* Drops white space right behind a call, which is no answer. */
static void drop_space(struct tool_split *split) {
    const struct piece held = held_of(split), rest = skip_space(held);
    if (rest.n < held.n) drop_held(split, held.n - rest.n);
}

/* Drops what closes a call without marks.  Returns false if it may come yet. */
static bool drop_closing(struct tool_split *split) {
    const struct piece held = held_of(split), text = skip_space(held);
    const char *closing = split->closing;
    if (!closing) return true;
    const size_t n = strlen(closing);
    if (text.n <= n && memcmp(text.at, closing, text.n) == 0) return false;
    split->closing = NULL;
    /* A fence with a language opens another call. */
    if (begins(text, closing) && !isalpha((unsigned char)text.at[n]))
        drop_held(split, (size_t)(text.at - held.at) + n);
    return true;
}

/* Looks for a call without marks where one may be. */
static enum tool_beginning look_for_bare(struct tool_split *split, const struct buffer *answer) {
    size_t n = 0;
    if (!split->strings || (split->has_text && !split->follows_call)) return TOOL_BEGINS_NOT;
    if (split->follows_call) drop_space(split);
    if (!drop_closing(split)) return TOOL_MAY_BEGIN;
    struct tool_bare *bare = &split->bare;
    const struct piece held = held_of(split);
    enum tool_beginning is = tool_bare_look(bare, split->format, split->strings, held, &n);
    if (is == TOOL_BEGINS) {
        const struct piece call = {held.at + bare->n_skipped, n - bare->n_skipped};
        split->closing = tool_bare_closing(bare, split->format);
        if (!read_calls(split, call, tool_bare_read, answer)) is = TOOL_BEGINS_NOT;
    }
    if (is == TOOL_BEGINS) drop_held(split, n);
    if (is == TOOL_BEGINS_NOT) split->closing = NULL;
    split->follows_call |= is == TOOL_BEGINS;
    split->has_text |= is == TOOL_BEGINS_NOT;
    return is;
}

/* Looks for the beginning of calls.  Returns whether to go on. */
static bool look_for_begin(struct tool_split *split, struct buffer *answer) {
    const enum tool_beginning bare = look_for_bare(split, answer);
    if (bare != TOOL_BEGINS_NOT) return bare == TOOL_BEGINS;
    const char *mark = split->format->begin;
    const struct piece held = held_of(split);
    const char *at = find(held, mark);
    if (!at) {
        const size_t kept = partial(&split->held, mark);
        if (split->held.length > kept) release(split, split->held.length - kept, answer);
        return false;
    }
    if (at > held.at) release(split, (size_t)(at - held.at), answer);
    drop_held(split, strlen(mark));
    split->is_inside = true;
    return true;
}

/* Gives what is held back as answer, with the mark before it, and looks for no more calls. */
static void give_up(struct tool_split *split, struct buffer *answer) {
    append_text(answer, split->format->begin, strlen(split->format->begin));
    release(split, split->held.length, answer);
    split->is_answer = true;
}

/* Looks for the end of calls.  An end inside of an argument is none: what stands before it cannot
 * be read. */
static bool look_for_end(struct tool_split *split, struct buffer *answer) {
    const char *mark = split->format->end;
    if (!mark) return false;
    const struct piece held = held_of(split);
    const char *at = find(behind(held, held.at + split->n_seen), mark);
    if (!at) {
        const size_t length = strlen(mark);
        if (held.n > split->n_seen + length) split->n_seen = held.n - length;
        return false;
    }
    const size_t n = (size_t)(at - held.at);
    const bool is_call = read_held(split, n, answer);
    if (is_call) drop_held(split, n + strlen(mark));
    else if (++split->n_misses < MAX_MISSES) split->n_seen = n + 1;
    else give_up(split, answer);
    if (is_call) split->n_misses = 0;
    split->follows_call |= is_call;
    split->is_inside = !is_call && split->n_misses < MAX_MISSES;
    return true;
}

/* Decides by the first characters whether the text is calls. */
static void look_at_first(struct tool_split *split) {
    const enum tool_beginning is = split->format->look(split->held.data, split->held.length);
    split->is_inside = is == TOOL_BEGINS;
    split->is_answer = is == TOOL_BEGINS_NOT;
}

void tool_split_add(struct tool_split *split, const char *text, size_t n, struct buffer *answer) {
    const struct tool_format *format = split->format;
    if (n == 0) return;
    if (!format || split->is_answer) {
        append_text(answer, text, n);
        return;
    }
    buffer_append(&split->held, text, n);
    split->failed |= split->held.failed;
    if (split->failed) return;
    if (!*format->begin && !split->is_inside) look_at_first(split);
    if (split->is_answer) release(split, split->held.length, answer);
    bool more = *format->begin && split->held.length > 0;
    while (more)
        more = (split->is_inside ? look_for_end(split, answer) : look_for_begin(split, answer)) &&
               split->held.length > 0;
}

/* Tells whether what is held may be the beginning of calls, whose rest has been cut off. */
static bool may_be_calls(const struct tool_split *split) {
    const struct tool_format *format = split->format;
    const struct piece text = skip_space((struct piece){split->held.data, split->held.length});
    if (text.n == 0) return true;
    if (text.at[0] && strchr(format->first, text.at[0]))
        return split->n_misses == 0 || !strchr("[{", text.at[0]) || braced_of(text).n == 0;
    size_t n = 0;
    while (n < text.n && !strchr("<[{(\n", text.at[n])) n++;
    return format->names_first && is_name(trimmed((struct piece){text.at, n}));
}

/* Tells whether the held bytes are the beginning of the mark that has been cut off.  What a stop
 * string cuts off is known; of another rest one byte is too little to tell. */
static bool is_cut_mark(const struct tool_split *split, const char *cut) {
    const char *mark = split->format->begin;
    const size_t n = split->held.length;
    if (!*mark || n == 0 || strncmp(mark, split->held.data, n) != 0) return false;
    return *cut ? strncmp(cut, mark + n, strlen(mark + n)) == 0 : n > 1 || split->must_call;
}

/* Tells whether what is held has been cut off in a call, or in the mark before one. */
static bool is_cut_call(const struct tool_split *split, const char *cut) {
    if (split->bare.is_named) return true;
    return split->is_inside ? may_be_calls(split) : is_cut_mark(split, cut);
}

/* Tells whether what is held closes a call without marks. */
static bool is_closing(const struct tool_split *split) {
    const struct piece text = trimmed(held_of(split));
    return split->closing && text.n == strlen(split->closing) && begins(text, split->closing);
}

/* Reads what is held at the text's end.  Calls of a format whose first word may be a call already
 * are whole only at their mark, unless the model has left it out. */
static bool read_rest(struct tool_split *split, const struct buffer *answer, const char *cut) {
    const struct tool_format *format = split->format;
    const bool needs_end = cut && format->names_first && format->elements;
    if (!split->is_inside || (needs_end && strcmp(cut, format->end) != 0)) return false;
    return read_held(split, split->held.length, answer);
}

/* Reads what is held as calls, or gives it back with the mark before it. */
void tool_split_end(struct tool_split *split, struct buffer *answer, const char *cut) {
    if (!split->format || split->failed || !split->held.data) return;
    if (is_closing(split) || read_rest(split, answer, cut) || (cut && is_cut_call(split, cut))) {
        buffer_clear(&split->held);
        split->is_inside = false;
        return;
    }
    if (split->is_inside) give_up(split, answer);
    else release(split, split->held.length, answer);
    split->is_inside = false;
}

size_t tool_split_held(const struct tool_split *split) {
    const size_t n_mark = split->is_inside ? strlen(split->format->begin) : 0;
    return split->held.length + n_mark;
}
