/* filters.h - which layers of a model choose tokens for which others (OmniKV section 4.2), and the
 * files that say so.
 *
 *   {"format": "quire-filters-1", "filters": [2, 8, 18], "wait": 1, "provenance": {...}}
 *
 *   layer   0 1 │2 3│4 5 6 7│8 9│10 … 17│18 19│20 … 31
 *           dense F w  sparse F w  sparse  F  w  sparse
 *
 * Layers before the first filter, the filters, and the `wait` layers behind each filter have full
 * attention.  The others (sparse) see what the filter before them has selected.  The wait covers
 * the time that a fetch takes.
 *
 * Layers with a window see the newest tokens, wherever these are, and cannot be filters.  They
 * count as waiting layers like others, because they take time, too.  {"filters": [1], "wait": 1}
 * where every second layer has a window:
 *
 *   layer   0│1 2│3│4│5│6│7│8
 *           ·│F w│s│·│s│·│s│·
 *
 * Thread: any.  Memory: none is kept. */
#ifndef ENGINE_SPARSITY_FILTERS_H
#define ENGINE_SPARSITY_FILTERS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/device/layer_group.h"

struct error;
struct provenance_note;

struct filters {
    uint32_t layers[MAX_LAYER_GROUPS], n; /* ascending */
    uint32_t n_wait;
};

/* Reads a file, or its bytes.  ERR_NOT_FOUND when there is no such file; ERR_INVALID says what is
 * wrong, with the file's name.  On failure *out is untouched. */
int filters_read(struct filters *out, const char *file, struct error *err);
int filters_parse(struct filters *out, const char *bytes, size_t size, const char *label,
                  struct error *err);
/* Writes such a file, whole or not at all, with notes on how it was made. */
int filters_save(const struct filters *filters, const struct provenance_note *notes, size_t n_notes,
                 const char *path, struct error *err);
/* Makes the groups of a model of n_layers layers, whose windows are as in struct step.  Returns how
 * many, <= filters->n: a filter behind which no layer is sparse has none.  ERR_INVALID names a
 * filter that is no layer of the model, or has a window. */
int filters_groups(const struct filters *filters, const uint32_t *windows, uint32_t n_layers,
                   struct layer_group groups[MAX_LAYER_GROUPS], struct error *err);

#endif
