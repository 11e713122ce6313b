/* thought.c - see thought.h.  In both marks '<' stands only at the beginning, so that after a
 * mismatch only the byte itself can begin a new one. */
#include "engine/request/thought.h"

static const char begin_mark[] = THOUGHT_BEGIN, end_mark[] = THOUGHT_END;

static bool is_line_end(char c) {
    return c == '\n' || c == '\r';
}

static enum thought_step pass(struct thought *t) {
    t->n_matched = 0;
    t->is_fresh = false;
    return THOUGHT_PASSES;
}

static enum thought_step enter(struct thought *t, enum thought_place place) {
    *t = (struct thought){.place = place, .is_fresh = true};
    return THOUGHT_MARKS;
}

static enum thought_step take_before(struct thought *t, char byte) {
    if (byte == begin_mark[t->n_matched])
        return begin_mark[++t->n_matched] ? THOUGHT_HOLDS : enter(t, THOUGHT_INSIDE);
    if (t->n_matched == 0 && (is_line_end(byte) || byte == ' ' || byte == '\t'))
        return THOUGHT_HOLDS;
    t->place = THOUGHT_BEHIND;
    return pass(t);
}

static enum thought_step take_inside(struct thought *t, char byte) {
    if (byte == end_mark[t->n_matched])
        return end_mark[++t->n_matched] ? THOUGHT_HOLDS : enter(t, THOUGHT_BEHIND);
    if (t->n_matched == 0 || byte != end_mark[0]) return pass(t);
    pass(t);
    t->n_matched = 1;
    return THOUGHT_HOLDS_ANEW;
}

enum thought_step thought_take(struct thought *t, char byte) {
    if (t->is_fresh && t->n_matched == 0 && is_line_end(byte)) return THOUGHT_SKIPS;
    switch (t->place) {
    case THOUGHT_BEFORE: return take_before(t, byte);
    case THOUGHT_INSIDE: return take_inside(t, byte);
    case THOUGHT_BEHIND: break;
    }
    return pass(t);
}
