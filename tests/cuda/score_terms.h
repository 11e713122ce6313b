/* score_terms.h - what scores and sums have beside products, for the tests of attention: sinks of
 * the softmax, and slopes of ALiBi.
 *
 * Thread: the test's.  Memory: its own; the GPU's sinks until score_terms_fini(). */
#ifndef TESTS_CUDA_SCORE_TERMS_H
#define TESTS_CUDA_SCORE_TERMS_H

#include "engine/device/attention.h"
#include "engine/device/weight.h"
#include "tests/cuda/cuda_test.h"

enum { MOST_TERM_HEADS = 64 };

/* A case: which terms there are. */
struct score_case {
    enum { NO_SINKS, ZERO_SINKS, LEARNED_SINKS } sinks;
    bool slopes;
};

struct score_terms {
    struct score_case is;
    float logits[MOST_TERM_HEADS], slopes[MOST_TERM_HEADS];
    struct weight cpu_sinks, gpu_sinks;
};

/* Of all cases the i-th; each but the first has a term. */
static inline struct score_case score_case_at(uint32_t i) {
    static const struct score_case cases[] = {{NO_SINKS, false},
                                              {LEARNED_SINKS, false},
                                              {NO_SINKS, true},
                                              {ZERO_SINKS, false},
                                              {LEARNED_SINKS, true}};
    return cases[i % COUNT(cases)];
}

/* Sinks lie among scores, far above all, and far below: one in the format of each weight.  Slopes
 * are those of a model of eight heads, over and over. */
static inline void score_terms_init(struct score_terms *t, struct score_case is) {
    static const float logits[] = {2, 0, -3, 8, 40, -60, 5, 1};
    static uint32_t n_made;
    const enum element element = (enum element)(n_made++ % 3);
    *t = (struct score_terms){.is = is};
    for (uint32_t i = 0; i < MOST_TERM_HEADS; i++) {
        t->logits[i] = logits[i % COUNT(logits)];
        t->slopes[i] = ldexpf(1, -1 - (int)(i % 8));
    }
    if (is.sinks != LEARNED_SINKS) return;
    t->cpu_sinks = weight_plain(t->logits, ELEMENT_F32, 1, MOST_TERM_HEADS);
    t->gpu_sinks =
        weight_plain(gpu_array(t->logits, MOST_TERM_HEADS, element), element, 1, MOST_TERM_HEADS);
}

static inline void score_terms_fini(struct score_terms *t) {
    if (t->gpu_sinks.data) gpu_free((void *)t->gpu_sinks.data);
}

static inline const struct weight *sinks_on(const struct score_terms *t, const struct backend *be) {
    if (t->is.sinks == NO_SINKS) return NULL;
    return be == gpu ? &t->gpu_sinks : &t->cpu_sinks;
}

static inline const float *slopes_of(const struct score_terms *t) {
    return t->is.slopes ? t->slopes : NULL;
}

#endif
