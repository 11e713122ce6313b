/* channels.c - see channels.h.  A header is followed by two counts, so that no byte of it need be
 * kept: how much of CHANNEL_TO and of CHANNEL_THOUGHTS it has. */
#include "engine/request/channels.h"

static const char to[] = CHANNEL_TO, thoughts[] = CHANNEL_THOUGHTS;

enum { N_TO = sizeof(to) - 1, N_THOUGHTS = sizeof(thoughts) - 1, OTHER_WORD = 255 };

const struct channel_mark channel_marks[] = {{"<|channel|>", CHANNEL_NAME[0]},
                                             {"<|start|>", CHANNEL_START[0]},
                                             {"<|constrain|>", CHANNEL_CONSTRAIN[0]},
                                             {"<|message|>", CHANNEL_MESSAGE[0]},
                                             {"<|end|>", CHANNEL_END[0]},
                                             {0}};

struct thought channels_begin(void) {
    return (struct thought){.place = THOUGHT_HEADER,
                            .form = THOUGHT_CHANNELS,
                            .is_fresh = true,
                            .n_of_word = OTHER_WORD};
}

static bool has_recipient(const struct thought *t) {
    return t->n_matched == N_TO;
}

/* Notes a byte of a header.  The whole word counts: a longer one is another channel. */
static void note(struct thought *t, char byte) {
    if (!has_recipient(t) && byte == to[t->n_matched]) t->n_matched++;
    else if (!has_recipient(t)) t->n_matched = byte == to[0];
    if (byte == CHANNEL_NAME[0]) t->n_of_word = 0;
    else if (t->n_of_word < N_THOUGHTS)
        t->n_of_word = byte == thoughts[t->n_of_word] ? t->n_of_word + 1 : OTHER_WORD;
    else if (t->n_of_word == N_THOUGHTS)
        t->n_of_word = byte == ' ' || channel_is_mark(byte) ? N_THOUGHTS + 1 : OTHER_WORD;
}

/* Ends the header, and begins what it heads. */
static enum thought_step enter(struct thought *t) {
    const bool thinks = t->n_of_word == N_THOUGHTS || t->n_of_word == N_THOUGHTS + 1;
    t->is_call = has_recipient(t) && t->has_calls;
    t->place = thinks && !has_recipient(t) ? THOUGHT_INSIDE : THOUGHT_BEHIND;
    t->is_fresh = false;
    t->n_matched = 0;
    t->n_of_word = OTHER_WORD;
    return t->is_call ? THOUGHT_HEADS : THOUGHT_MARKS;
}

/* Takes a byte of a header.  An answer that begins with neither a mark nor a recipient has none:
 * its model writes plain text. */
static enum thought_step take_header(struct thought *t, char byte) {
    const bool is_mark = channel_is_mark(byte),
               goes_on = has_recipient(t) || byte == to[t->n_matched];
    if (byte == CHANNEL_MESSAGE[0]) return enter(t);
    if (t->is_fresh && !is_mark && !goes_on) {
        t->place = THOUGHT_BEHIND;
        t->is_fresh = false;
        t->n_matched = 0;
        return THOUGHT_PASSES;
    }
    t->is_fresh = t->is_fresh && !is_mark;
    note(t, byte);
    return THOUGHT_HOLDS;
}

/* Takes a byte of a message.  Its end is a part of a call, whose reader must see it. */
static enum thought_step take_body(struct thought *t, char byte) {
    const bool was_call = t->is_call;
    if (!channel_is_mark(byte)) return THOUGHT_PASSES;
    if (byte == CHANNEL_MESSAGE[0] || byte == CHANNEL_CONSTRAIN[0]) return THOUGHT_SKIPS;
    t->place = THOUGHT_HEADER;
    t->is_call = false;
    note(t, byte);
    return was_call ? THOUGHT_PASSES : THOUGHT_MARKS;
}

enum thought_step channels_take(struct thought *t, char byte) {
    return t->place == THOUGHT_HEADER ? take_header(t, byte) : take_body(t, byte);
}
