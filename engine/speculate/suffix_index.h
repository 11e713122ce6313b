/* suffix_index.h - finds where the end of a text has occurred in it before.
 *
 *   text  … the cat sat on the mat … and then the cat sat ┊
 *                      ▲ end                 the suffix ──┘   what followed there may follow here
 *
 *   heads     [hash of SUFFIX_MIN tokens] ─► the newest position behind such tokens
 *   earlier   [position]                  ─► the one before it with the same hash: a chain
 *
 * A position is a number of tokens: the text before it.  The text itself is the caller's; it only
 * grows.  A text longer than SUFFIX_MAX_POSITIONS is indexed by its newest tokens.
 *
 * Thread: engine (init: any).  Memory: suffix_index_bytes(), taken by init and never grown; the
 * system backs it with pages as the text is indexed. */
#ifndef ENGINE_SPECULATE_SUFFIX_INDEX_H
#define ENGINE_SPECULATE_SUFFIX_INDEX_H

#include <stddef.h>
#include <stdint.h>

enum {
    SUFFIX_MIN = 3,                 /* tokens of the shortest match */
    SUFFIX_MAX = 64,                /* longer matches count as this long */
    SUFFIX_MAX_VISITED = 64,        /* positions of a chain that one search looks at */
    SUFFIX_MAX_POSITIONS = 1 << 20, /* a power of 2 */
};

/* An index of one text.  Of positions that differ by a multiple of n_slots the newest counts. */
struct suffix_index {
    uint32_t *heads, *earlier; /* [n_slots]; 0: none */
    uint32_t n_slots;          /* a power of 2 */
    uint32_t n_indexed;        /* positions up to this one are in chains */
};

/* An occurrence of the text's end: its last `length` tokens also come before position `end`. */
struct suffix_match {
    uint32_t end;
    uint32_t length; /* 0: there is none */
};

/* Returns how many bytes the index of a text of up to n_most tokens takes: 8 to 16 a token, up to
 * SUFFIX_MAX_POSITIONS. */
size_t suffix_index_bytes(uint32_t n_most);
/* Makes an empty index for a text of up to n_most tokens.  ERR_NOMEM: it needs no fini. */
int suffix_index_init(struct suffix_index *index, uint32_t n_most);
void suffix_index_fini(struct suffix_index *index); /* a zeroed struct is allowed */

/* Indexes the next positions of the text of n_tokens tokens, at most n_most of them.  Its end is
 * left out: nothing follows it yet. */
void suffix_index_extend(struct suffix_index *index, const uint32_t *tokens, uint32_t n_tokens,
                         uint32_t n_most);

/* Returns the longest earlier match of the end of the text of n_tokens tokens: SUFFIX_MIN to
 * SUFFIX_MAX tokens, or length 0.  Looks at `hint` (0: no hint) and at the newest
 * SUFFIX_MAX_VISITED places that are indexed.  Of equally long ones it is the one at the hint, else
 * the newest. */
struct suffix_match suffix_index_find(const struct suffix_index *index, const uint32_t *tokens,
                                      uint32_t n_tokens, uint32_t hint);

#endif
