/* usage.c - see usage.h. */
#include "engine/request/usage.h"

#include "engine/request/kv_choice.h"

enum {
    BOUNDED = 1 << KV_BOUNDED,
    SELECTING = 1 << KV_SELECTING,
    ALL = 1 << KV_WHOLE | BOUNDED | SELECTING
};

const struct kv_number_info kv_numbers[KV_N_NUMBERS] = {
    [KV_BUDGET_TOKENS] = {.name = "budget_tokens", .adding = KV_ADD_LEVEL, .mechanisms = BOUNDED},
    [KV_RESIDENT_TOKENS] = {.name = "resident_tokens",
                            .adding = KV_ADD_LEVEL,
                            .mechanisms = ALL,
                            .metric = "quire_kv_resident_tokens",
                            .help = "Tokens that running sequences keep in the KV cache.",
                            .by_policy = true},
    [KV_EVICTED_TOKENS] = {.name = "evicted_tokens",
                           .adding = KV_ADD_COUNT,
                           .mechanisms = ALL,
                           .metric = "quire_kv_evicted_tokens_total",
                           .help = "Tokens that were evicted from the KV cache of their sequence.",
                           .by_policy = true},
    [KV_RETAINED_ATTENTION] = {.name = "retained_attention",
                               .adding = KV_ADD_MEAN,
                               .mechanisms = BOUNDED},
    [KV_OFFLOADED_TOKENS] = {.name = "offloaded_tokens",
                             .adding = KV_ADD_LEVEL,
                             .mechanisms = SELECTING},
    [KV_SELECTED_TOKENS] = {.name = "selected_tokens",
                            .adding = KV_ADD_COUNT,
                            .mechanisms = SELECTING,
                            .metric = "quire_kv_selected_tokens_total",
                            .help = "Tokens that filter layers selected, summed over steps and "
                                    "filters."},
    [KV_FETCHED_TOKENS] = {.name = "fetched_tokens",
                           .adding = KV_ADD_COUNT,
                           .metric = "quire_kv_fetched_tokens_total",
                           .help =
                               "Selected tokens that had not been selected in the step before."},
    [KV_FETCHED_COPIES] = {.name = "fetched_copies", .adding = KV_ADD_COUNT},
    [KV_MOVED_COPIES] = {.name = "moved_copies", .adding = KV_ADD_COUNT},
};
