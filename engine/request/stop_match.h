/* stop_match.h - finds stop strings in text that arrives in parts.
 *
 * The rule does not depend on tokens.  Reading byte by byte, the first stop string to be complete
 * wins; of several that are complete at the same byte, the longest, then the first listed.  Between
 * bytes, stop_match_held() is the length of the longest suffix of the text that may still become a
 * stop string.  It must not be shown yet.
 *
 * Thread: engine (init: any).  Memory: one number per byte of the strings, made at init. */
#ifndef ENGINE_REQUEST_STOP_MATCH_H
#define ENGINE_REQUEST_STOP_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stop_pattern {
    const char *text;
    uint32_t length, n_matched; /* n_matched: of the longest prefix of text that is a suffix of the
                                   text read so far */
    /* [length]: the n_matched to continue with after a mismatch at n_matched = i + 1. */
    uint32_t *fallback;
};

struct stop_match {
    struct stop_pattern *patterns;
    uint32_t n_patterns;
};

/* Borrows the strings, which must not be empty.  ERR_NOMEM; a failed init needs no fini. */
int stop_match_init(struct stop_match *match, char *const *strings, uint32_t n_strings);
void stop_match_fini(struct stop_match *match);

/* Reads up to n bytes and stops after the one that completes a stop string: returns true, and
 * *index is the string.  *n_read is the number of bytes read. */
bool stop_match_read(struct stop_match *match, const char *text, size_t n, size_t *n_read,
                     uint32_t *index);
/* Reads on behind strings that were complete and do not count. */
void stop_match_pass(struct stop_match *match);
size_t stop_match_held(const struct stop_match *match);

#endif
