/* unclaimed.h - tensors of a model's files that no rule reads.
 *
 * A model that is served without some of its weights gives wrong answers, and nothing else shows
 * it.  So every tensor must be read by a rule, or be of a kind that changes nothing.
 *
 * Thread: any.  Memory: the names of all weights, until it returns. */
#ifndef ENGINE_MODEL_UNCLAIMED_H
#define ENGINE_MODEL_UNCLAIMED_H

struct error;
struct model_config;
struct weight_source;
struct weight_tally;

/* Refuses files with a tensor that is not read: ERR_UNSUPPORTED.  Notes in the tally what is left
 * out on purpose: scales of cached keys and values, parts that guess tokens, and those for
 * images. */
int unclaimed_check(const struct weight_source *files, const struct model_config *config,
                    struct weight_tally *tally, struct error *err);

#endif
