/* reasoning.c - see reasoning.h. */
#include "server/api/conversation/reasoning.h"

void reasoning_split_fini(struct reasoning_split *split) {
    buffer_fini(&split->held);
}

/* Appends what is held back to the part that the text is in. */
static struct buffer *release(struct reasoning_split *split, struct buffer *reasoning,
                              struct buffer *answer) {
    struct buffer *out = split->thought.place == THOUGHT_INSIDE ? reasoning : answer;
    if (split->held.length > 0) buffer_append(out, split->held.data, split->held.length);
    out->failed |= split->held.failed;
    buffer_clear(&split->held);
    return out;
}

static void take(struct reasoning_split *split, const char *byte, struct buffer *reasoning,
                 struct buffer *answer) {
    switch (thought_take(&split->thought, *byte)) {
    case THOUGHT_PASSES: buffer_append(release(split, reasoning, answer), byte, 1); break;
    case THOUGHT_HOLDS: buffer_append(&split->held, byte, 1); break;
    case THOUGHT_HOLDS_ANEW:
        release(split, reasoning, answer);
        buffer_append(&split->held, byte, 1);
        break;
    case THOUGHT_MARKS: buffer_clear(&split->held); break;
    case THOUGHT_HEADS:
        buffer_append(answer, byte, 1);
        release(split, reasoning, answer);
        break;
    case THOUGHT_SKIPS: break;
    }
}

void reasoning_add(struct reasoning_split *split, const char *text, size_t n,
                   struct buffer *reasoning, struct buffer *answer) {
    size_t i = 0;
    while (i < n && !thought_is_over(&split->thought)) take(split, &text[i++], reasoning, answer);
    if (i < n) buffer_append(answer, text + i, n - i);
}

void reasoning_end(struct reasoning_split *split, struct buffer *reasoning, struct buffer *answer) {
    if (split->thought.place == THOUGHT_HEADER) buffer_clear(&split->held);
    release(split, reasoning, answer);
}
