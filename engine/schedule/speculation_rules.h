/* speculation_rules.h - the table of what speculation does not go with.
 *
 * Thread: any.  Memory: constants. */
#ifndef ENGINE_SCHEDULE_SPECULATION_RULES_H
#define ENGINE_SCHEDULE_SPECULATION_RULES_H

struct engine_request;
struct kv_plan;
struct kv_space;

/* Returns the words for the setting with which this engine can never speculate; NULL: none. */
const char *speculation_excluded(const struct kv_space *space);
/* Returns the words for the setting, or for what the request of this plan asks for, with which it
 * cannot speculate; NULL: it can. */
const char *speculation_refused(const struct kv_space *space, const struct engine_request *request,
                                const struct kv_plan *plan);

#endif
