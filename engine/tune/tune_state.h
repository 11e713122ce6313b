/* tune_state.h - keeps a search's measurements in a file, so that a second run can continue it.
 *
 * The file has a line of JSON for each result, in order of arrival:
 *
 *   {"format": "quire-tune-1", "settings": "..."}
 *   {"fitted": 3, "p1": [[...], ...], "p2": [[...], ...]}              of a layer, by candidate and
 *                                                                      head; 0 and 0: none fits
 *   {"sample": 0, "layer": 3, "dense_s": 0.61, "index_s": [...], "attention_s": [...],
 *    "recall": [[...], ...], "density": [[...], ...]}                    by candidate and head
 *   {"compared": 0, "similarity": [[...], ...]}                         of a sample, by layers
 *   {"patterns": "9f3c...", "n_tokens": 4096, "dense_s": 2.1, "sparse_s": 1.4}
 *
 * A run that was killed leaves at most half a line at the end, which is dropped.
 *
 * Thread: any one.  Memory: the state owns its file and its rungs. */
#ifndef ENGINE_TUNE_TUNE_STATE_H
#define ENGINE_TUNE_TUNE_STATE_H

#include "engine/tune/tune_search.h"

struct error;
struct tune_state;

/* Opens or creates the file, and reads its results into `results`.  settings: all that results
 * depend on; ERR_INVALID if the file has other ones. */
int tune_state_open(struct tune_state **out, const char *path, const char *settings,
                    struct tune_results *results, struct error *err);
void tune_state_close(struct tune_state *state); /* the file stays; NULL is allowed */
/* Writes the results of a layer to the file; like the functions below, returns once they are in
 * it. */
int tune_state_add_layer(struct tune_state *state, const struct tune_results *results,
                         uint32_t sample, uint32_t layer, struct error *err);
int tune_state_add_similarity(struct tune_state *state, const struct tune_results *results,
                              uint32_t sample, struct error *err);
/* Writes the fitted candidates of a layer, which were not fitted when the state was opened. */
int tune_state_add_fitted(struct tune_state *state, const struct tune_results *results,
                          uint32_t layer, struct error *err);
/* Writes a rung.  patterns: hash of the patterns that were compared with dense attention. */
int tune_state_add_rung(struct tune_state *state, uint64_t patterns, const struct tune_rung *rung,
                        struct error *err);
bool tune_state_find_rung(const struct tune_state *state, uint64_t patterns, uint32_t n_tokens,
                          struct tune_rung *out);

#endif
