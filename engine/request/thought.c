/* thought.c - see thought.h.  In all marks '<' stands only at the beginning, so that after a
 * mismatch only the byte itself can begin a new one. */
#include "engine/request/thought.h"

#include <stddef.h>

#include "engine/request/channels.h"

static const char *const none[] = {NULL}, *const around_cohere[] = {
                                              "<|START_RESPONSE|>", "<|END_RESPONSE|>",
                                              "<|START_TEXT|>", "<|END_TEXT|>", NULL};
static const struct thought_tags tags[] = {
    [THOUGHT_TAGS] = {THOUGHT_BEGIN, THOUGHT_END, none, NULL},
    [THOUGHT_COHERE_TAGS] = {"<|START_THINKING|>", "<|END_THINKING|>", around_cohere, NULL},
    [THOUGHT_SEED_TAGS] = {"<seed:think>", "</seed:think>", none, NULL},
    [THOUGHT_GEMMA_TAGS] = {"<|channel>thought", "<channel|>", none, "<|channel>"},
};

const struct thought_tags *thought_tags_of(enum thought_form form) {
    return form == THOUGHT_CHANNELS ? NULL : &tags[form];
}

static bool is_line_end(char c) {
    return c == '\n' || c == '\r';
}

static enum thought_step pass(struct thought *t) {
    t->n_matched = 0;
    t->is_fresh = false;
    return THOUGHT_PASSES;
}

static enum thought_step enter(struct thought *t, enum thought_place place) {
    *t = (struct thought){.place = place, .form = t->form, .is_fresh = true};
    return THOUGHT_MARKS;
}

static enum thought_step take_before(struct thought *t, char byte) {
    const char *mark = tags[t->form].begin;
    if (byte == mark[t->n_matched])
        return mark[++t->n_matched] ? THOUGHT_HOLDS : enter(t, THOUGHT_INSIDE);
    if (t->n_matched == 0 && (is_line_end(byte) || byte == ' ' || byte == '\t'))
        return THOUGHT_HOLDS;
    t->place = THOUGHT_BEHIND;
    return pass(t);
}

static enum thought_step take_inside(struct thought *t, char byte) {
    const char *mark = tags[t->form].end;
    if (byte == mark[t->n_matched])
        return mark[++t->n_matched] ? THOUGHT_HOLDS : enter(t, THOUGHT_BEHIND);
    if (t->n_matched == 0 || byte != mark[0]) return pass(t);
    pass(t);
    t->n_matched = 1;
    return THOUGHT_HOLDS_ANEW;
}

static enum thought_step take_tagged(struct thought *t, char byte) {
    if (t->is_fresh && t->n_matched == 0 && is_line_end(byte)) return THOUGHT_SKIPS;
    switch (t->place) {
    case THOUGHT_BEFORE: return take_before(t, byte);
    case THOUGHT_INSIDE: return take_inside(t, byte);
    case THOUGHT_BEHIND:
    case THOUGHT_HEADER: break;
    }
    return pass(t);
}

enum thought_step thought_take(struct thought *t, char byte) {
    return t->form == THOUGHT_CHANNELS ? channels_take(t, byte) : take_tagged(t, byte);
}

bool thought_is_over(const struct thought *t) {
    return t->form != THOUGHT_CHANNELS && t->place == THOUGHT_BEHIND && !t->is_fresh;
}
