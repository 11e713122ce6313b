/* counters.c - see counters.h. */
#include "server/api/counters.h"

#include <string.h>

/* Returns a constant for the method, so that clients cannot make up labels. */
static const char *known_method(const char *method) {
    static const char *const known[] = {"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (strcmp(known[i], method) == 0) return known[i];
    return "other";
}

/* Returns the counters of the handler and method, or NULL if there are too many. */
static struct handler_counters *find_handler(struct counters *counters, const char *handler,
                                             const char *method) {
    for (uint32_t i = 0; i < counters->n_handlers; i++) {
        struct handler_counters *one = &counters->handlers[i];
        if (strcmp(one->handler, handler) == 0 && strcmp(one->method, method) == 0) return one;
    }
    if (counters->n_handlers == COUNTERS_MAX_HANDLERS) return NULL;
    struct handler_counters *added = &counters->handlers[counters->n_handlers++];
    added->handler = handler;
    added->method = method;
    return added;
}

void counters_count_answer(struct counters *counters, const char *handler, const char *method,
                           unsigned status, double seconds) {
    const unsigned class =
        status / 100 < COUNTERS_N_CLASSES ? status / 100 : COUNTERS_N_CLASSES - 1;
    struct handler_counters *one =
        find_handler(counters, handler ? handler : "none", known_method(method));
    counters->by_class[class]++;
    if (!one) return;
    one->by_class[class]++;
    if (seconds >= 0) histogram_add(&one->seconds, &histogram_request_s, seconds);
}

void counters_count_prompt(struct counters *counters, enum prefill_mode mode) {
    if (mode == PREFILL_SPARSE) counters->sparse_prompts++;
    else counters->dense_prompts++;
}
