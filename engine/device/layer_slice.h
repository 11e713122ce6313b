/* layer_slice.h - says which rows of a layer-major prompt a step takes into which layer
 * (decoder.h).
 *
 * Layers are those that attend, by their number in a step.  Recurrent layers before one belong to
 * its slices: the rows go through them on their way.  Those behind the last layer that attends are
 * run by the slices that leave it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_LAYER_SLICE_H
#define ENGINE_DEVICE_LAYER_SLICE_H

#include <stdbool.h>
#include <stdint.h>

struct layer_slice {
    uint32_t layer; /* that the rows enter; step.n_layers: they leave the last one */
    uint32_t first_row, n_rows;
    uint32_t n_prompt_rows; /* all rows of the layer-major prompt */
    bool leaves_last;       /* they will leave the last layer, too: some need logits */
};

/* Tells whether it is the last slice of a prompt whose rows leave the last layer. */
static inline bool layer_slice_is_final(const struct layer_slice *slice, uint32_t n_layers) {
    return slice->layer == n_layers && slice->first_row + slice->n_rows == slice->n_prompt_rows;
}

#endif
