/* goldens.h - the goldens.json beside a model: prompts, logits and greedy tokens of a reference.
 *
 * Thread: the test's.  Memory: freed by fini; failures fail the calling cmocka test. */
#ifndef TESTS_MODEL_GOLDENS_H
#define TESTS_MODEL_GOLDENS_H

#include <stdint.h>

struct golden_prompt {
    uint32_t *tokens, *greedy, *positions, *top_ids;
    uint32_t n_tokens, n_greedy, n_positions, n_top;
    float *logits;     /* [n_positions, n_vocab]; tiny models */
    float *top_logits; /* [n_top], after the last token; the default model */
    /* [n_greedy], how far a greedy token's logit is ahead of all others; NULL: not told. */
    float *margins;
};

struct goldens {
    struct golden_prompt *prompts;
    uint32_t n_prompts;
    uint32_t context; /* that the model is to be loaded for; 0: its own */
};

void goldens_load(struct goldens *goldens, const char *dir);
void goldens_fini(struct goldens *goldens);

#endif
