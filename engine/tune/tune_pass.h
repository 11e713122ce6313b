/* tune_pass.h - a prompt on its way through a model, layer by layer with dense attention, and what
 * is measured at each layer: how long dense and sparse attention take there, how much of the
 * dense one the sparse one sees, and which tokens the layer would choose as a filter.
 *
 *   begin ─► enter 0 ─► dense, sparse, sparse, … ─► enter 1 ─► … ─► enter n_layers - 1 ─► …
 *
 * Nothing that is measured changes what follows: outputs of measurements are discarded.
 *
 * Thread: any one.  Memory: all at create: one prompt's activations and sums, and the pages of two
 * layers, which take turns: the layer that is left is still read while the next one is entered. */
#ifndef ENGINE_TUNE_TUNE_PASS_H
#define ENGINE_TUNE_TUNE_PASS_H

#include "engine/engine.h"

struct tune_pass;

/* config: as engine_setup_config() (server/settings) makes it; the model is loaded here.  Prompts
 * have at most max_tokens; of these at most max_selected are chosen, 0: none are.  synthetic: as in
 * struct attn_sparse. */
int tune_pass_create(struct tune_pass **out, const struct engine_config *config,
                     uint32_t max_tokens, uint32_t max_selected, uint32_t synthetic,
                     struct error *err);
void tune_pass_destroy(struct tune_pass *pass); /* NULL is allowed */

/* tokens is borrowed until the last measurement. */
void tune_pass_begin(struct tune_pass *pass, const uint32_t *tokens, uint32_t n_tokens);
/* Layers come in order, from 0. */
int tune_pass_enter(struct tune_pass *pass, uint32_t layer, struct error *err);

/* Dense attention of the layer that has been entered last; recall is judged by it. */
int tune_pass_dense(struct tune_pass *pass, double *seconds, struct error *err);

struct tune_run {
    double index_s, attention_s; /* of all heads */
    float *recall, *density;     /* [n_heads]; NULL: not asked for */
};

/* What head h would visit with the pattern heads[h], without any attention. */
int tune_pass_density(struct tune_pass *pass, const struct attn_pattern *heads, float *density,
                      struct error *err);
/* Attention with head h's pattern heads[h].  recall needs tune_pass_dense() before. */
int tune_pass_sparse(struct tune_pass *pass, const struct attn_pattern *heads, float dense_above,
                     struct tune_run *run, struct error *err);

/* What the layer that has been entered last would choose if the row were generated (struct
 * kv_select). */
struct tune_look {
    uint32_t row, n_selected, n_candidates;
    uint32_t *chosen; /* [n_selected], in any order */
    float *worth;     /* [n_candidates] */
};
int tune_pass_select(struct tune_pass *pass, const struct tune_look *look, struct error *err);

#endif
