/* offload_rules.h - KV policies that select, on this server: why they are unavailable, how many
 * tokens a request may select, whether the server has a host pool, and what each layer does.
 *
 * Thread: any; written at start-up only.  Memory: none. */
#ifndef SERVER_SETTINGS_OFFLOAD_RULES_H
#define SERVER_SETTINGS_OFFLOAD_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_error;
struct buffer;
struct kv_policy;
struct layer_group;

struct offload_rules {
    const char *why_not;              /* the reason, for people; NULL: requests may have it */
    const char *filters_file;         /* the file's name, borrowed */
    const struct layer_group *groups; /* [n_groups], borrowed */
    uint32_t n_groups, n_layers;
    const uint32_t *windows; /* as in struct step, borrowed */
    uint32_t max_selected;
    uint64_t host_pool_bytes;       /* 0: there is no host pool */
    bool host_pool_fp8;             /* the host pool holds 8-bit values */
    size_t page_bytes, moved_bytes; /* per token and layer, in a page and in the host pool */
};

/* Decides where the tokens of a policy that selects lie, if the request leaves that open: on the
 * device if some layers keep a budget, because those of the others must be there. */
void offload_rules_place(const struct offload_rules *rules, struct kv_policy *policy);
/* Calls offload_rules_place(), then refuses what the server cannot do; err names the member. */
int offload_rules_apply(const struct offload_rules *rules, struct kv_policy *policy,
                        struct api_error *err);
/* Refuses a request that selects more tokens than rules->max_selected. */
int offload_rules_check(const struct offload_rules *rules, uint32_t n_selected,
                        struct api_error *err);
/* Returns the bytes of n_copies (struct select_total), n_moved of which come from the host pool. */
uint64_t offload_rules_copied_bytes(const struct offload_rules *rules, uint64_t n_copies,
                                    uint64_t n_moved);
void offload_rules_write(const struct offload_rules *rules, struct buffer *out); /* JSON object */

#endif
