/* thought.h - follows a text byte by byte: what it thinks, between <think> and </think>, and what
 * it says behind.
 *
 *   BEFORE ──<think>──► INSIDE ──</think>──► BEHIND
 *      └──────────── anything else ────────────┘
 *
 * White space and a mark's beginning are held until it is known what they are.  Line ends right
 * behind a mark belong to neither part.
 *
 * Thread: the owner's.  Memory: none; the owner keeps what is held. */
#ifndef ENGINE_REQUEST_THOUGHT_H
#define ENGINE_REQUEST_THOUGHT_H

#include <stdbool.h>
#include <stdint.h>

#define THOUGHT_BEGIN "<think>"
#define THOUGHT_END "</think>"

enum thought_place {
    THOUGHT_BEHIND, /* the rest is said, or no text is a thought */
    THOUGHT_BEFORE, /* only white space so far: a thought may follow */
    THOUGHT_INSIDE
};

/* Zero-initialise but for the place. */
struct thought {
    enum thought_place place;
    bool is_fresh;     /* nothing of this part has come yet: line ends are skipped */
    uint8_t n_matched; /* bytes of the mark that is looked for, with which the text ends */
};

enum thought_step {
    THOUGHT_PASSES,     /* the byte, and those held before it, are text of the place */
    THOUGHT_HOLDS,      /* the byte is held with those before it */
    THOUGHT_HOLDS_ANEW, /* those held before it are text of the place, and the byte is held */
    THOUGHT_MARKS,      /* the byte ends a mark: it and those held before it are no text */
    THOUGHT_SKIPS       /* the byte is a line end behind a mark: no text */
};

/* Takes a byte.  The place that it is text of is that after the call. */
enum thought_step thought_take(struct thought *t, char byte);

#endif
