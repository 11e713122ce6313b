/* tune_pass.h - takes a prompt through a model, layer by layer with dense attention, and measures
 * each layer: the time of dense and of sparse attention, the recall of sparse attention, and the
 * tokens that the layer would choose as a filter.
 *
 *   begin ─► enter 0 ─► dense, sparse, sparse, … ─► enter 1 ─► … ─► enter n_layers - 1 ─► …
 *
 * Measurements do not change later ones: their outputs are discarded.
 *
 * Thread: any one.  Memory: all at create: one prompt's activations and sums, and the pages of two
 * layers, used alternately, because one layer is still read while the next one is entered. */
#ifndef ENGINE_TUNE_TUNE_PASS_H
#define ENGINE_TUNE_TUNE_PASS_H

#include "engine/device/pages.h"
#include "engine/engine.h"

struct attn_pattern;
struct tune_pass;

/* Creates a pass and loads the model.  config: as engine_setup_config() (server/settings) makes it.
 * Prompts have at most max_tokens tokens; tune_pass_select() chooses at most max_selected of them
 * (0: it is not used).  synthetic: as in struct attn_sparse. */
int tune_pass_create(struct tune_pass **out, const struct engine_config *config,
                     uint32_t max_tokens, uint32_t max_selected, uint32_t synthetic,
                     struct error *err);
void tune_pass_destroy(struct tune_pass *pass); /* NULL is allowed */

/* Begins a prompt; borrows tokens until the last measurement. */
void tune_pass_begin(struct tune_pass *pass, const uint32_t *tokens, uint32_t n_tokens);
/* Takes the prompt into a layer; layers come in order, from 0. */
int tune_pass_enter(struct tune_pass *pass, uint32_t layer, struct error *err);

/* Runs and times dense attention of the layer entered last; recall is measured against it. */
int tune_pass_dense(struct tune_pass *pass, double *seconds, struct error *err);

struct tune_run {
    double index_s, attention_s; /* of all heads together */
    float *recall, *density;     /* [n_heads]; NULL: not asked for */
};

/* Measures the density that each head h would have with the pattern heads[h], without computing
 * attention. */
int tune_pass_density(struct tune_pass *pass, const struct attn_pattern *heads, float *density,
                      struct error *err);
/* Runs and times attention in which each head h has the pattern heads[h].  recall needs
 * tune_pass_dense() before. */
int tune_pass_sparse(struct tune_pass *pass, const struct attn_pattern *heads, float dense_above,
                     struct tune_run *run, struct error *err);

/* The tokens that the layer entered last would choose if the row were generated (struct kv_select),
 * and their token scores. */
struct tune_look {
    uint32_t row, n_selected, n_candidates;
    uint32_t *chosen;    /* [n_selected], in any order */
    float *token_scores; /* [n_candidates]: token scores */
};
int tune_pass_select(struct tune_pass *pass, const struct tune_look *look, struct error *err);

#endif
