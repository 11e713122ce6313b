/* offload_rules.c - see offload_rules.h. */
#include "server/settings/offload_rules.h"

#include <inttypes.h>
#include <string.h>

#include "engine/device/layer_group.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/settings/kv_policy.h"

void offload_rules_place(const struct offload_rules *rules, struct kv_policy *policy) {
    const bool is_divided = !layer_set_is_empty(&policy->override.layers);
    if (!policy->placed) policy->tokens.on_device = is_divided || rules->host_pool_bytes == 0;
    policy->placed = true;
}

int offload_rules_apply(const struct offload_rules *rules, struct kv_policy *policy,
                        struct api_error *err) {
    offload_rules_place(rules, policy);
    if (!policy->tokens.on_device && rules->host_pool_bytes == 0)
        return api_error_set(err, 400, "unsupported", "kv_policy.offload",
                             "kv_policy.offload true needs a host pool; this server was started "
                             "without --kv-offload-size");
    return offload_rules_check(rules, policy->tokens.n_selected, err);
}

int offload_rules_check(const struct offload_rules *rules, uint32_t n_selected,
                        struct api_error *err) {
    if (n_selected <= rules->max_selected) return 0;
    return api_error_set(err, 400, NULL, "kv_policy.selected",
                         "kv_policy.selected is %" PRIu32 " tokens; at most %" PRIu32
                         " are allowed (--max-selected)",
                         n_selected, rules->max_selected);
}

uint64_t offload_rules_copied_bytes(const struct offload_rules *rules, uint64_t n_copies,
                                    uint64_t n_moved) {
    return (n_copies - n_moved) * rules->page_bytes + n_moved * rules->moved_bytes;
}

enum layer_class { LAYER_DENSE, LAYER_FILTER, LAYER_SPARSE, LAYER_WINDOWED };

static enum layer_class class_of(const struct offload_rules *rules, uint32_t layer) {
    if (layer_has_window(rules->windows, layer)) return LAYER_WINDOWED;
    for (uint32_t i = 0; i < rules->n_groups; i++) {
        const struct layer_group *group = &rules->groups[i];
        if (layer == group->filter) return LAYER_FILTER;
        if (group_has(group, rules->windows, layer)) return LAYER_SPARSE;
    }
    return LAYER_DENSE;
}

static void write_layers(const struct offload_rules *rules, enum layer_class class,
                         const char *name, struct buffer *out) {
    bool listed = false;
    buffer_printf(out, "\"%s\":[", name);
    for (uint32_t i = 0; i < rules->n_layers; i++) {
        if (class_of(rules, i) != class) continue;
        buffer_printf(out, "%s%" PRIu32, listed ? "," : "", i);
        listed = true;
    }
    buffer_puts(out, "]");
}

void offload_rules_write(const struct offload_rules *rules, struct buffer *out) {
    buffer_puts(out, "{\"filters_file\":");
    buffer_json_string(out, rules->filters_file, strlen(rules->filters_file));
    buffer_printf(
        out,
        ",\"max_selected\":%" PRIu32 ",\"store_bytes\":%" PRIu64 ",\"store_fp8\":%s,\"layers\":{",
        rules->max_selected, rules->host_pool_bytes, rules->host_pool_fp8 ? "true" : "false");
    write_layers(rules, LAYER_DENSE, "dense", out);
    buffer_puts(out, ",");
    write_layers(rules, LAYER_FILTER, "filter", out);
    buffer_puts(out, ",");
    write_layers(rules, LAYER_SPARSE, "sparse", out);
    buffer_puts(out, ",");
    write_layers(rules, LAYER_WINDOWED, "windowed", out);
    buffer_puts(out, "}}");
}
