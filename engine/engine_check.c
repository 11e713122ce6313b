/* engine_check.c - see engine_check.h. */
#include "engine/engine_check.h"

#include <inttypes.h>

#include "engine/admit.h"
#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/layer_group.h"
#include "engine/device/recurrent.h"
#include "engine/engine.h"
#include "engine/model/expert_offload.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"

uint32_t engine_prompt_unit(const struct engine_config *c, const struct model_config *model) {
    return c->batch_invariant && model->recurrent.n_layers > 0 ? c->backend->ops->recurrent->chunk
                                                               : 0;
}

/* Refuses steps with too few rows for recurrent layers. */
static int check_rows(const struct engine_config *c, const struct model_config *model,
                      struct error *err) {
    const uint32_t n_rows = c->max_num_seqs - 1 + engine_prompt_unit(c, model);
    if (c->max_batched_tokens < n_rows)
        return error_set(err, ERR_INVALID,
                         "--max-num-batched-tokens (%" PRIu32 ") must be at least %" PRIu32
                         " with this --max-num-seqs: under --batch-invariant recurrent layers take "
                         "%" PRIu32 " tokens of a prompt at a time",
                         c->max_batched_tokens, n_rows, engine_prompt_unit(c, model));
    return 0;
}

static int check_context(const struct engine_config *c, const struct model_config *model,
                         struct error *err) {
    if (c->max_model_len <= model->max_position) return 0;
    return error_set(err, ERR_INVALID,
                     "--max-model-len (%" PRIu32 ") is more than the model's context, %" PRIu32
                     ": its config.json may make that longer by rope_scaling",
                     c->max_model_len, model->max_position);
}

/* Tells whether the filter and the first and last layer that follow it have full attention. */
static bool has_full_attention(const struct layer_group *group, const uint32_t *windows) {
    return !layer_has_window(windows, group->filter) && !layer_has_window(windows, group->first) &&
           !layer_has_window(windows, group->end - 1);
}

static int check_groups(const struct engine_config *c, const struct model_config *model,
                        struct error *err) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const struct layer_group *group = &c->groups[i];
        if (group->filter < end || group->filter >= group->first || group->first >= group->end ||
            group->end > model->n_attention)
            return error_set(err, ERR_INVALID,
                             "the layers that follow filter layer %" PRIu32
                             " must be layers of the model, and must not follow another filter",
                             group->filter);
        if (!has_full_attention(group, model->windows))
            return error_set(err, ERR_INVALID,
                             "filter layer %" PRIu32
                             ", and the first and last layer that follow it, must have no window",
                             group->filter);
        end = group->end;
    }
    return c->n_groups <= MAX_LAYER_GROUPS
               ? 0
               : error_set(err, ERR_INVALID, "there must be at most %d filter layers",
                           MAX_LAYER_GROUPS);
}

/* Refuses to offload experts where there are none, and where they lie in the machine's memory as it
 * is. */
static int check_offload(const struct engine_config *c, const struct model_config *model,
                         struct error *err) {
    if (c->expert_offload_bytes == 0 || c->expert_offload_bytes == EXPERT_OFFLOAD_AUTO) return 0;
    if (feed_forward_experts(model, 1).n_experts == 0)
        return error_set(err, ERR_UNSUPPORTED, "--moe-offload-size: the model has no experts");
    if (expert_offload_is_possible(c->backend)) return 0;
    return error_set(err, ERR_UNSUPPORTED,
                     "--moe-offload-size: on the device %.20s all weights lie in the machine's "
                     "memory",
                     c->backend->name);
}

int engine_check(const struct engine_config *c, const struct model_config *model,
                 struct error *err) {
    int code = check_context(c, model, err);
    if (!code) code = check_rows(c, model, err);
    if (!code) code = check_groups(c, model, err);
    if (!code) code = check_offload(c, model, err);
    return code || !c->patterns ? code : admit_patterns(model, c->patterns, err);
}
