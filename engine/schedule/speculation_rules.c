/* speculation_rules.c - see speculation_rules.h. */
#include "engine/schedule/speculation_rules.h"

#include <stdbool.h>
#include <stddef.h>

#include "engine/device/pages.h"
#include "engine/kv/kv_sequence.h"
#include "engine/request/request.h"

struct subject {
    const struct kv_space *space;
    const struct engine_request *request;
    const struct kv_plan *plan;
};

/* Tells whether tokens have the bits of one kernel, whatever runs beside them: guesses are computed
 * by that of prompts. */
static bool is_invariant(const struct subject *s) {
    return s->space->batch_invariant;
}

/* Tells whether a step's prompts are bounded by the space for their keys in another type. */
static bool is_converted(const struct subject *s) {
    return page_is_scaled(s->space->io.memory->format);
}

static bool is_penalised(const struct subject *s) {
    const struct sampler *sampler = &s->request->params.sampler;
    return sampler->repetition_penalty != 1 || sampler->presence_penalty != 0 ||
           sampler->frequency_penalty != 0;
}

static bool is_constrained(const struct subject *s) {
    return s->request->params.grammar != NULL;
}

static bool keeps_rows(const struct subject *s) {
    return !kv_plan_can_undo_rows(s->plan);
}

struct rule {
    bool (*applies)(const struct subject *subject);
    const char *what;
};

static const struct rule of_engine[] = {
    {is_invariant, "--batch-invariant"},
    {is_converted, "--kv-cache-dtype fp8"},
};

static const struct rule of_request[] = {
    {is_penalised, "repetition_penalty, presence_penalty and frequency_penalty, which count each "
                   "token before the next one"},
    {is_constrained, "structured outputs, where a grammar reads each token before the next one"},
    {keeps_rows, "a kv_policy that evicts or selects"},
};

static const char *first(const struct rule *rules, size_t n, const struct subject *subject) {
    for (size_t i = 0; i < n; i++)
        if (rules[i].applies(subject)) return rules[i].what;
    return NULL;
}

const char *speculation_excluded(const struct kv_space *space) {
    const struct subject subject = {.space = space};
    return first(of_engine, sizeof(of_engine) / sizeof(*of_engine), &subject);
}

const char *speculation_refused(const struct kv_space *space, const struct engine_request *request,
                                const struct kv_plan *plan) {
    const struct subject subject = {space, request, plan};
    const char *what = speculation_excluded(space);
    return what ? what : first(of_request, sizeof(of_request) / sizeof(*of_request), &subject);
}
