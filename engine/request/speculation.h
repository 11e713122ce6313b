/* speculation.h - whether a request's next tokens may be guessed, and what came of it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_REQUEST_SPECULATION_H
#define ENGINE_REQUEST_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

enum speculation_mode {
    SPECULATION_OFF,
    SPECULATION_SUFFIX /* what followed the text's end where it came before (drafter.h) */
};

/* Zeroed: off. */
struct speculation_choice {
    enum speculation_mode mode;
    /* The request itself says so, and is refused where that cannot be.  Otherwise it then does
     * without. */
    bool is_asked;
};

struct speculation_usage {
    bool is_on;
    uint64_t n_drafts;   /* steps with guesses */
    uint64_t n_drafted;  /* guessed tokens */
    uint64_t n_accepted; /* of these, those that are in the answer */
    /* How many of n_drafted and n_accepted were found in recent answers. */
    uint64_t n_recent_drafted, n_recent_accepted;
};

static inline void speculation_usage_add(struct speculation_usage *sum,
                                         const struct speculation_usage *one) {
    sum->is_on |= one->is_on;
    sum->n_drafts += one->n_drafts;
    sum->n_drafted += one->n_drafted;
    sum->n_accepted += one->n_accepted;
    sum->n_recent_drafted += one->n_recent_drafted;
    sum->n_recent_accepted += one->n_recent_accepted;
}

static inline void speculation_usage_subtract(struct speculation_usage *from,
                                              const struct speculation_usage *one) {
    from->n_drafts -= one->n_drafts;
    from->n_drafted -= one->n_drafted;
    from->n_accepted -= one->n_accepted;
    from->n_recent_drafted -= one->n_recent_drafted;
    from->n_recent_accepted -= one->n_recent_accepted;
}

#endif
