/* missing.c - see missing.h. */
#include "server/api/responses/missing.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "server/api/responses/store.h"
#include "server/settings/log.h"

#define SIZE "--responses-store-size"

static const char *const reasons[N_RESPONSE_FATES] = {
    [RESPONSE_UNKNOWN] = "it has store: false, is another API key's, was stored before this server "
                         "started, or was dropped long ago",
    [RESPONSE_DELETED] = "it has been deleted",
    [RESPONSE_EVICTED] = "it was evicted, because later responses needed its space",
    [RESPONSE_EXPIRED] = "it was dropped, because it had not been used for too many seconds",
    [RESPONSE_TOO_LONG] = "it was not stored, because it is too long with the conversation before "
                          "it, beside what other API keys have stored",
    [RESPONSE_SHORTENED] = "its object was evicted, because later responses needed its space; "
                           "requests can still go on from it",
};

static void warn(uint64_t max_bytes) {
    log_event(LOG_WARN,
              "a client has asked for a stored response that was evicted: conversations that go on "
              "need more than " SIZE " %" PRIu64
              ", and those that are evicted end with an error; this is said once, and counted by "
              "quire_responses_store_misses_total",
              max_bytes);
}

const char *response_missing(char reason[MISSING_REASON_BYTES], struct responses_store *store,
                             uint64_t client, const char *id) {
    bool is_first = false;
    if (!store) {
        snprintf(reason, MISSING_REASON_BYTES, "nothing is stored here (" SIZE " 0)");
        return reason;
    }
    const enum response_fate fate = responses_store_fate(store, client, id, &is_first);
    const struct responses_store_config *config = responses_store_config(store);
    if (is_first) warn(config->max_bytes);
    if (fate == RESPONSE_UNKNOWN || fate == RESPONSE_DELETED)
        snprintf(reason, MISSING_REASON_BYTES, "%s", reasons[fate]);
    else if (fate == RESPONSE_EXPIRED)
        snprintf(reason, MISSING_REASON_BYTES, "%s (--responses-store-time %" PRIu64 ")",
                 reasons[fate], config->max_age_s);
    else
        snprintf(reason, MISSING_REASON_BYTES, "%s (" SIZE " %" PRIu64 ")", reasons[fate],
                 config->max_bytes);
    return reason;
}
