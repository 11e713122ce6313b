/* request_plan.c - see request_plan.h. */
#include "engine/schedule/request_plan.h"

#include <inttypes.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/kv/page_pool.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/speculation_rules.h"

/* Returns the most rows that a step, or a prompt's slices together, may append to a layer.  A
 * sparse prompt may be layer-major. */
static uint32_t step_rows(const struct sequence_shared *shared, uint32_t n_prompt, bool is_sparse) {
    const uint32_t n_long = min_u32(n_prompt, shared->max_long_rows);
    return is_sparse ? max_u32(n_long, shared->max_rows) : shared->max_rows;
}

struct request_plan request_plan_make(const struct sequence_shared *shared,
                                      const struct engine_request *request) {
    const uint32_t n_long = shared->max_long_rows;
    const struct dense_rule *dense = prefill_dense_rule(&request->kv, &request->kv_override,
                                                        request->params.n_prompt_logprobs >= 0);
    struct request_plan plan = {
        .kv = kv_plan_make(&request->kv, request->n_prompt, request->params.max_tokens)};
    plan.kv.n_before_last = min_u32(request->n_before_last, request->n_prompt);
    kv_plan_divide(&plan.kv, &request->kv_override, shared->space);
    plan.prefill = prefill_plan_make(&request->prefill, &shared->prefill, dense, &plan.kv);
    plan.kv.step_rows = step_rows(shared, request->n_prompt, plan.prefill.is_sparse);
    kv_plan_by_layers(&plan.kv, shared->space, n_long,
                      prefill_order(&plan.prefill, 0, n_long) == PREFILL_LAYER_MAJOR);
    plan.speculates = request->speculation.mode != SPECULATION_OFF &&
                      !speculation_refused(shared->space, request, &plan.kv);
    plan.most = kv_most(shared->space, &plan.kv);
    return plan;
}

int request_plan_check(const struct request_plan *plan, const struct kv_space *space,
                       struct error *err) {
    const uint32_t n_pages = page_pool_n_pages(space->pool),
                   n_blocks = space->blocks ? page_pool_n_pages(space->blocks) : 0;
    if (plan->most.pages > n_pages)
        return error_set(err, ERR_TOO_LONG,
                         "the request needs %" PRIu64 " pages; the KV cache has %" PRIu32,
                         plan->most.pages, n_pages);
    if (plan->most.blocks > n_blocks)
        return error_set(err, ERR_TOO_LONG,
                         "the request moves up to %" PRIu64
                         " tokens to the host pool, which holds %" PRIu64,
                         plan->most.blocks * PAGE_TOKENS, (uint64_t)n_blocks * PAGE_TOKENS);
    return 0;
}
