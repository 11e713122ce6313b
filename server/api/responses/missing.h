/* missing.h - what a client is told of a stored response that is not there.
 *
 * Thread: any.  Memory: the caller's. */
#ifndef SERVER_API_RESPONSES_MISSING_H
#define SERVER_API_RESPONSES_MISSING_H

#include <stdint.h>

struct responses_store;

enum { MISSING_REASON_BYTES = 256 };

/* Writes why a response is not found, and which setting would have kept it.  The first response
 * that was evicted and is asked for is a warning in the log, too.  store NULL: nothing is stored.
 * Returns reason. */
const char *response_missing(char reason[MISSING_REASON_BYTES], struct responses_store *store,
                             uint64_t client, const char *id);

#endif
