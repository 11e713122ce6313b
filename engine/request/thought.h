/* thought.h - follows a text byte by byte: what it thinks, and what it says.
 *
 * Most models think between two marks, most of them between these:
 *
 *   BEFORE ──<think>──► INSIDE ──</think>──► BEHIND
 *      └──────────── anything else ────────────┘
 *
 * White space and a mark's beginning are held until it is known what they are.  Line ends right
 * behind a mark belong to neither part.  Others think in messages of their own (channels.h).
 *
 * Thread: the owner's.  Memory: none; the owner keeps what is held. */
#ifndef ENGINE_REQUEST_THOUGHT_H
#define ENGINE_REQUEST_THOUGHT_H

#include <stdbool.h>
#include <stdint.h>

#define THOUGHT_BEGIN "<think>"
#define THOUGHT_END "</think>"

/* How a model marks what it thinks.  It stands between <think> and </think>, between the marks of
 * Cohere's models, of Seed-OSS or of Gemma 4, or in messages of their own. */
enum thought_form {
    THOUGHT_TAGS,
    THOUGHT_COHERE_TAGS,
    THOUGHT_SEED_TAGS,
    THOUGHT_GEMMA_TAGS,
    THOUGHT_CHANNELS
};

struct thought_tags {
    const char *begin, *end;
    const char *const *hidden; /* tokens around what is said; NULL ends the list */
    const char *begin_token;   /* with which `begin` begins; NULL: it is one token */
};

enum thought_place {
    THOUGHT_BEHIND, /* the rest is said, or no text is a thought */
    THOUGHT_BEFORE, /* only white space so far: a thought may follow */
    THOUGHT_INSIDE,
    THOUGHT_HEADER /* of a message: neither */
};

/* Zero-initialise but for the place and the form. */
struct thought {
    enum thought_place place;
    enum thought_form form;
    bool is_fresh;     /* nothing of this part has come yet: line ends are skipped */
    uint8_t n_matched; /* bytes of the mark that is looked for, with which the text ends */
    /* Of THOUGHT_CHANNELS: */
    bool has_calls;    /* messages to functions are read as calls, with their headers */
    bool is_call;      /* the message is one */
    uint8_t n_of_word; /* bytes of the channel's name that are those of the one for thoughts */
};

enum thought_step {
    THOUGHT_PASSES,     /* the byte, and those held before it, are text of the place */
    THOUGHT_HOLDS,      /* the byte is held with those before it */
    THOUGHT_HOLDS_ANEW, /* those held before it are text of the place, and the byte is held */
    THOUGHT_MARKS,      /* the byte ends a mark: it and those held before it are no text */
    THOUGHT_SKIPS,      /* the byte is no text: a line end behind a mark, or a mark out of place */
    THOUGHT_HEADS       /* the byte, and behind it those held, are said: they head a call */
};

/* Returns the marks of a form; NULL: it has messages. */
const struct thought_tags *thought_tags_of(enum thought_form form);
/* Takes a byte.  The place that it is text of is that after the call. */
enum thought_step thought_take(struct thought *t, char byte);
/* Returns true if all that can follow is said. */
bool thought_is_over(const struct thought *t);

#endif
