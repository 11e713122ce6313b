/* prompt_end.c - see prompt_end.h. */
#define _GNU_SOURCE /* memrchr */
#include "server/api/conversation/prompt_end.h"

#include <string.h>

#include "engine/base/json_strings.h"
#include "engine/base/span.h"
#include "engine/request/channels.h"
#include "engine/template/template.h"
#include "engine/tokenizer/tokenizer.h"

enum {
    MAX_REWRITTEN = 64, /* bytes of a message's end that a template may have written anew */
    MAX_BACK = 2        /* parts of the template before a message that may belong to it */
};

static bool begins(const char *text, size_t n, const char *mark) {
    const size_t length = strlen(mark);
    return n >= length && memcmp(text, mark, length) == 0;
}

/* Returns where the part of the template begins that ends the text; its end if there is none. */
static size_t tail_of(const struct template_text *text) {
    const struct byte_span *last = text->n_trusted ? &text->trusted[text->n_trusted - 1] : NULL;
    return last && last->end == text->n_bytes ? last->begin : text->n_bytes;
}

/* ---- cutting ---- */

/* Cuts the text at a place in, or behind, its last part that is not the template's. */
static void cut_at(struct template_text *text, size_t end) {
    while (text->n_trusted > 0 && text->trusted[text->n_trusted - 1].begin >= end)
        text->n_trusted--;
    if (text->n_trusted > 0 && text->trusted[text->n_trusted - 1].end > end)
        text->trusted[text->n_trusted - 1].end = end;
    text->n_bytes = end;
    text->bytes[end] = 0;
}

/* Finds where the message ends in the text: it holds the last byte that is not the template's, and
 * little of the template's behind that.  Returns 0 if it does not. */
static size_t find_end(const struct template_text *text, const char *message, size_t n) {
    size_t last = tail_of(text);
    while (last > 0 && json_is_space(text->bytes[last - 1])) last--;
    for (size_t k = 0; n > 0 && k <= MAX_REWRITTEN && last + k <= text->n_bytes; k++) {
        const size_t end = last + k;
        if (k < n && end >= n && memcmp(text->bytes + end - n, message, n) == 0) return end;
    }
    return 0;
}

bool prompt_end_cut(struct template_text *text, enum thought_form form, const char *message,
                    size_t n) {
    const struct thought_tags *tags = thought_tags_of(form);
    size_t first = 0, length = n;
    while (length > 0 && json_is_space(message[length - 1])) length--;
    while (first < length && json_is_space(message[first])) first++;
    size_t end = find_end(text, message + first, length - first);
    for (size_t i = length; tags && end == 0 && i-- > first;) {
        if (!begins(message + i, length - i, tags->end)) continue;
        /* What comes behind the thought, which the template may have left out or written anew. */
        for (first = i + strlen(tags->end); first < length && json_is_space(message[first]);)
            first++;
        end = find_end(text, message + first, length - first);
        break;
    }
    if (end == 0) return false;
    /* The message's own white space, as far as the template has kept it. */
    while (length < n && end < text->n_bytes && text->bytes[end] == message[length])
        end++, length++;
    cut_at(text, end);
    return true;
}

/* ---- thoughts ---- */

/* Returns where the last message begins in a part of the template, behind a special token; `begin`
 * if there is none. */
static size_t behind_special(const struct template_text *text, const struct thought_tags *tags,
                             size_t begin, size_t end, const struct tokenizer *tokenizer) {
    size_t behind = begin;
    for (size_t at = begin; tokenizer && at < end;) {
        const size_t n = tokenizer_special_at(tokenizer, text->bytes + at, end - at);
        const bool is_mark = begins(text->bytes + at, end - at, tags->begin) ||
                             begins(text->bytes + at, end - at, tags->end);
        at += n > 0 ? n : 1;
        if (n > 0 && !is_mark) behind = at;
    }
    return behind;
}

/* Tells whether the part of the text closes a thought that it does not begin. */
static bool only_closes(const struct template_text *text, const struct thought_tags *tags,
                        size_t begin, size_t end) {
    const char *at = text->bytes + begin;
    const char *close = memmem(at, end - begin, tags->end, strlen(tags->end));
    const char *open = memmem(at, end - begin, tags->begin, strlen(tags->begin));
    return close && (!open || open > close);
}

/* Returns where the message begins whose end the text is: with a part of the template, and without
 * what stands before a special token in it.  *is_sure: it stands behind one. */
static size_t message_begin(const struct template_text *text, const struct thought_tags *tags,
                            const struct tokenizer *tokenizer, bool *is_sure) {
    size_t begin = text->n_bytes;
    *is_sure = false;
    for (size_t i = text->n_trusted, n = 0; i > 0 && n < MAX_BACK && !*is_sure; n++) {
        const struct byte_span *part = &text->trusted[--i];
        if (n > 0 && !only_closes(text, tags, begin, text->n_bytes)) break;
        begin = behind_special(text, tags, part->begin, part->end, tokenizer);
        *is_sure = begin > part->begin;
    }
    return begin;
}

/* What a message says of its thought. */
enum thought_state { THOUGHT_NONE, THOUGHT_OPEN, THOUGHT_CLOSED };

/* Walks through the message. */
static enum thought_state walk(const struct template_text *text, const struct thought_tags *tags,
                               size_t begin) {
    enum thought_state state = THOUGHT_NONE;
    bool says = false; /* the client's part has begun with something else */
    size_t part = 0;
    for (size_t at = begin; at < text->n_bytes; at++) {
        const size_t left = text->n_bytes - at;
        while (part < text->n_trusted && text->trusted[part].end <= at) part++;
        const bool is_own = part < text->n_trusted && text->trusted[part].begin <= at;
        if (state != THOUGHT_OPEN && (is_own || !says) &&
            begins(text->bytes + at, left, tags->begin)) {
            state = THOUGHT_OPEN;
            at += strlen(tags->begin) - 1;
        } else if (state != THOUGHT_CLOSED && begins(text->bytes + at, left, tags->end)) {
            state = THOUGHT_CLOSED;
            at += strlen(tags->end) - 1;
        } else if (state != THOUGHT_OPEN && !is_own && !json_is_space(text->bytes[at])) {
            says = true;
        }
    }
    return state;
}

/* Returns behind the last of these marks in the part of the text; `begin` if there is none. */
static size_t behind_mark(const struct template_text *text, size_t begin, const char *mark) {
    const size_t n = strlen(mark);
    for (size_t at = text->n_bytes; at >= begin + n; at--)
        if (memcmp(text->bytes + at - n, mark, n) == 0) return at;
    return begin;
}

/* Tells the state by the last mark alone.  Without special tokens the part may hold what the
 * template says to the model about marks: one that closes counts only at the end. */
static enum thought_state last_mark(const struct template_text *text,
                                    const struct thought_tags *tags, size_t begin) {
    const size_t open = behind_mark(text, begin, tags->begin);
    size_t close = behind_mark(text, begin, tags->end);
    if (open > close) return THOUGHT_OPEN;
    if (close == begin) return THOUGHT_NONE;
    while (close < text->n_bytes && json_is_space(text->bytes[close])) close++;
    return close == text->n_bytes ? THOUGHT_CLOSED : THOUGHT_NONE;
}

static enum thought_state state_of(const struct template_text *text,
                                   const struct thought_tags *tags, bool continues,
                                   const struct tokenizer *tokenizer) {
    bool is_sure;
    if (continues) return walk(text, tags, message_begin(text, tags, tokenizer, &is_sure));
    const size_t tail = tail_of(text),
                 begin = behind_special(text, tags, tail, text->n_bytes, tokenizer);
    return begin > tail ? walk(text, tags, begin) : last_mark(text, tags, tail);
}

static struct thought read_tags(const struct template_text *text, const struct thought_tags *tags,
                                bool continues, const struct tokenizer *tokenizer) {
    const size_t n = text->n_bytes, n_begin = strlen(tags->begin);
    switch (state_of(text, tags, continues, tokenizer)) {
    case THOUGHT_CLOSED: break;
    case THOUGHT_NONE:
        return (struct thought){.place = continues ? THOUGHT_BEHIND : THOUGHT_BEFORE};
    case THOUGHT_OPEN: {
        const bool is_fresh =
            n >= n_begin && begins(text->bytes + n - n_begin, n_begin, tags->begin);
        return (struct thought){.place = THOUGHT_INSIDE, .is_fresh = is_fresh && !continues};
    }
    }
    return (struct thought){.place = THOUGHT_BEHIND};
}

/* ---- messages ---- */

/* Returns the mark of a channel that the text has at a place, if the template has written it. */
static const struct channel_mark *mark_at(const struct template_text *text, size_t at) {
    for (const struct channel_mark *mark = channel_marks; mark->token; mark++)
        if (begins(text->bytes + at, text->n_bytes - at, mark->token)) return mark;
    return NULL;
}

/* Reads the header of the last message, and what follows it. */
static struct thought read_channels(const struct template_text *text) {
    struct thought thought = channels_begin();
    for (size_t i = 0; i < text->n_trusted; i++) {
        for (size_t at = text->trusted[i].begin; at < text->trusted[i].end; at++) {
            const struct channel_mark *mark = mark_at(text, at);
            if (mark && mark->byte == CHANNEL_START[0]) thought = channels_begin();
            else if (mark) channels_take(&thought, mark->byte);
            else if (!thought.is_fresh && thought.place == THOUGHT_HEADER)
                channels_take(&thought, text->bytes[at]);
            if (mark) at += strlen(mark->token) - 1;
        }
    }
    return thought;
}

struct thought prompt_end_read(const struct template_text *text, enum thought_form form,
                               bool continues, const struct tokenizer *tokenizer) {
    const struct thought_tags *tags = thought_tags_of(form);
    struct thought thought =
        tags ? read_tags(text, tags, continues, tokenizer) : read_channels(text);
    thought.form = form;
    return thought;
}
