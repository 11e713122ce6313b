/* speculation_rules.h - the table of what speculation does not go with.
 *
 * Thread: any.  Memory: constants. */
#ifndef ENGINE_SCHEDULE_SPECULATION_RULES_H
#define ENGINE_SCHEDULE_SPECULATION_RULES_H

struct engine_request;
struct kv_plan;
struct kv_space;

/* Returns what this engine has that rules out speculation, as the end of the sentence "speculation
 * does not go with …"; NULL: nothing does. */
const char *speculation_excluded(const struct kv_space *space);
/* Returns what the engine, this request or its plan has that rules out speculation: the end of the
 * sentence that speculation_excluded() has; NULL: nothing does. */
const char *speculation_refused(const struct kv_space *space, const struct engine_request *request,
                                const struct kv_plan *plan);

#endif
