/* sequence_kv.c - the lists of one sequence, the same under every policy.
 *
 * Thread: engine (init: any).  Memory: see policy.h. */
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/kv/policy.h"

int kv_sequence_init(struct kv_sequence *kv, const struct kv_space *space,
                     const struct kv_plan *plan, uint64_t salt) {
    *kv = (struct kv_sequence){.policy = plan->policy, .space = space, .plan = *plan, .salt = salt};
    kv->layers = calloc(space->n_layers, sizeof(*kv->layers));
    kv->views = calloc(space->n_layers, sizeof(*kv->views));
    if (kv->layers && kv->views) return 0;
    kv_sequence_fini(kv);
    return ERR_NOMEM;
}

void kv_sequence_fini(struct kv_sequence *kv) {
    if (kv->layers && kv->views) kv->policy->release(kv);
    for (uint32_t i = 0; kv->layers && i < kv->space->n_layers; i++) free(kv->layers[i].pages);
    free(kv->layers);
    free(kv->views);
    free(kv->hashes);
    free(kv->blocks);
    free(kv->selection.held.pages);
    free(kv->selection.windows);
    free(kv->selection.all_pages);
    free(kv->selection.blocks.pages);
    free(kv->selection.scratch.pages);
    free(kv->swap.blocks.pages);
    *kv = (struct kv_sequence){0};
}
