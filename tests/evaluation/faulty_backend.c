/* faulty_backend.c - see faulty_backend.h.
 *
 * The backend is given a copy of each step, whose positions are the shifted ones.  While attention
 * runs, and only then, the copy's sequences are others: pages still get appended where they belong.
 * A sequence that prefills across the end of its first page becomes two:
 *
 *   slots        0 ........ 63 | 64 ................ n_slots - 1
 *   rows of this step  [ these see page 0 | these see pages 1, 2, ... ] */
#include "tests/evaluation/faulty_backend.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/attention.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

/* The operations get no context of ours, so this one backend's lies here. */
static struct {
    const struct backend_ops *real;
    struct backend_ops ops;
    enum fault fault;
    struct step step;      /* what the backend looks at */
    uint32_t *positions;   /* [max_rows] */
    struct step_seq *seqs; /* [2 * max_seqs] */
    struct kv_view *views; /* [2 * max_seqs][n_layers]; one layer is in use at a time */
} faulty;

static const char *const names[] = {[FAULT_NONE] = "none",
                                    [FAULT_DROP_FIRST_PAGE] = "drop-first-page",
                                    [FAULT_SHIFT_POSITIONS] = "shift-positions"};

int fault_of_name(enum fault *out, const char *name, struct error *err) {
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (enum fault)i;
        return 0;
    }
    return error_set(err, ERR_INVALID, "no fault is named '%.80s'; there are %s, %s and %s", name,
                     names[0], names[1], names[2]);
}

static void free_copies(void) {
    free(faulty.positions);
    free(faulty.seqs);
    free(faulty.views);
    faulty.positions = NULL;
    faulty.seqs = NULL;
    faulty.views = NULL;
}

static void faulty_destroy(struct backend *be) {
    free_copies();
    faulty.real->destroy(be);
}

static int faulty_reserve(struct backend *be, const struct step_limits *limits, struct error *err) {
    const size_t n_seqs = 2 * (size_t)limits->max_seqs;
    free_copies();
    faulty.positions = calloc(limits->max_rows, sizeof(*faulty.positions));
    faulty.seqs = calloc(n_seqs, sizeof(*faulty.seqs));
    faulty.views = calloc(n_seqs * limits->n_layers, sizeof(*faulty.views));
    if (!faulty.positions || !faulty.seqs || !faulty.views)
        return error_set(err, ERR_NOMEM, "faulty backend: no memory for a step");
    return faulty.real->reserve(be, limits, err);
}

static int faulty_step_begin(struct backend *be, const struct step *step, struct error *err) {
    assert(faulty.positions); /* reserve() comes first */
    faulty.step = *step;
    faulty.step.positions = faulty.positions;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const bool shift =
            faulty.fault == FAULT_SHIFT_POSITIONS && step->positions[i] >= FAULT_SHIFT_FROM;
        faulty.positions[i] = step->positions[i] + shift;
    }
    return faulty.real->step_begin(be, &faulty.step, err);
}

/* Rows [skip, skip + n_rows) of a sequence, seeing what `view` shows them. */
static void add_seq(uint32_t *n, const struct step_seq *seq, uint32_t skip, uint32_t n_rows,
                    uint32_t layer, struct kv_view view) {
    struct kv_view *views = faulty.views + (size_t)*n * faulty.step.n_layers;
    if (n_rows == 0) return;
    views[layer] = view;
    faulty.seqs[(*n)++] =
        (struct step_seq){.first_row = seq->first_row + skip, .n_rows = n_rows, .layers = views};
}

/* Adds a sequence as attention is to see it: as one without its first page, as it is when that page
 * is its only one, or as both. */
static void add_without_first_page(uint32_t *n, const struct step_seq *seq, uint32_t layer) {
    const struct kv_view *view = &seq->layers[layer];
    const uint32_t first_slot = view->n_slots - seq->n_rows;
    const uint32_t left = first_slot < PAGE_TOKENS ? PAGE_TOKENS - first_slot : 0;
    const uint32_t n_inside = left < seq->n_rows ? left : seq->n_rows;
    struct kv_view inside = *view, rest = *view;
    inside.n_slots = first_slot + n_inside;
    rest.pages = view->pages + 1;
    rest.n_slots = view->n_slots - PAGE_TOKENS;
    add_seq(n, seq, 0, n_inside, layer, inside);
    add_seq(n, seq, n_inside, seq->n_rows - n_inside, layer, rest);
}

typedef int (*attend)(struct backend *be, const struct attn_args *args, struct error *err);

static int attend_without_first_page(attend real, struct backend *be, const struct attn_args *args,
                                     struct error *err) {
    const struct step told = faulty.step;
    uint32_t n = 0;
    for (uint32_t i = 0; i < told.n_seqs; i++)
        add_without_first_page(&n, &told.seqs[i], args->layer);
    faulty.step.seqs = faulty.seqs;
    faulty.step.n_seqs = n;
    const int rc = real(be, args, err);
    faulty.step = told;
    return rc;
}

static int faulty_attn_decode(struct backend *be, const struct attn_args *args, struct error *err) {
    return attend_without_first_page(faulty.real->attn_decode, be, args, err);
}

static int faulty_attn_prefill(struct backend *be, const struct attn_args *args,
                               struct error *err) {
    return attend_without_first_page(faulty.real->attn_prefill, be, args, err);
}

void faulty_backend_plant(struct backend *be, enum fault fault) {
    faulty.real = be->ops;
    faulty.fault = fault;
    faulty.ops = *be->ops;
    faulty.ops.destroy = faulty_destroy;
    faulty.ops.reserve = faulty_reserve;
    faulty.ops.step_begin = faulty_step_begin;
    if (fault == FAULT_DROP_FIRST_PAGE) {
        faulty.ops.attn_decode = faulty_attn_decode;
        faulty.ops.attn_prefill = faulty_attn_prefill;
    }
    be->ops = &faulty.ops;
}
