/* offload_rules.h - what the KV policy `offload` is on this server: why it cannot be had, how many
 * tokens a request may select, whether there is memory to move the others to, and which layers do
 * what.
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
    const char *filters_file;         /* its name, borrowed */
    const struct layer_group *groups; /* [n_groups], borrowed */
    uint32_t n_groups, n_layers;
    const uint32_t *windows; /* as in struct step, borrowed */
    uint32_t max_selected;
    uint64_t host_pool_bytes; /* 0: nothing is moved */
    bool host_pool_fp8;       /* and what is, is kept in 8 bits */
    size_t page_bytes, moved_bytes; /* of a token's keys and values in a layer: as pages have them,
                                       and as the store does */
};

/* Decides what a policy of this type leaves to the server. */
void offload_rules_place(const struct offload_rules *rules, struct kv_policy *policy);
/* The same; and refuses what cannot be had, by its member. */
int offload_rules_apply(const struct offload_rules *rules, struct kv_policy *policy,
                        struct api_error *err);
/* May a request select so many? */
int offload_rules_check(const struct offload_rules *rules, uint32_t n_selected,
                        struct api_error *err);
/* Of n_copies (struct select_total), n_moved of them from the store. */
uint64_t offload_rules_copied_bytes(const struct offload_rules *rules, uint64_t n_copies,
                                    uint64_t n_moved);
void offload_rules_write(const struct offload_rules *rules, struct buffer *out); /* JSON object */

#endif
