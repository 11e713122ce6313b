/* unpack.c - see unpack.h.  Threads take runs of rows until none is left. */
#include "engine/model/unpack.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/base/thread.h"
#include "engine/device/weight.h"
#include "engine/model/canonical.h"

enum { RUN_ELEMENTS = 1 << 16 };

struct conversion {
    const struct weight *w, *to;
    uint64_t n_rows;       /* of all matrices */
    uint32_t run;          /* rows that a thread takes at a time */
    float *values;         /* [threads, cols] */
    atomic_uint next_run;  /* of rows */
    atomic_uint n_started; /* threads */
    atomic_bool is_broken; /* a value is no number */
};

/* Returns true if no value is NaN or infinite: those have the largest exponent. */
static bool are_finite(const float *values, uint32_t n) {
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        finite &= (bits >> 23 & 0xff) != 0xff;
    }
    return finite;
}

/* Converts a row of a matrix; returns false if a value is no number. */
static bool convert_row(const struct weight *matrix, uint32_t row, const struct weight *to,
                        float *values) {
    if (!weight_is_plain(&to->format)) return canonical_row(matrix, row, to);
    weight_to_float(matrix, row, values);
    weight_from_float(values, matrix->cols, to->format.element, (void *)weight_row_at(to, row));
    return are_finite(values, matrix->cols);
}

/* Converts row number `row` of all matrices. */
static void convert(struct conversion *u, uint64_t row, float *values) {
    const uint32_t i = (uint32_t)(row / u->w->rows);
    const struct weight matrix = weight_matrix(u->w, i), to = weight_matrix(u->to, i);
    if (!convert_row(&matrix, (uint32_t)(row % u->w->rows), &to, values))
        atomic_store(&u->is_broken, true);
}

static void *convert_runs(void *arg) {
    struct conversion *u = arg;
    float *values = u->values + (size_t)atomic_fetch_add(&u->n_started, 1) * u->w->cols;
    for (;;) {
        const uint64_t first = (uint64_t)atomic_fetch_add(&u->next_run, 1) * u->run;
        if (first >= u->n_rows) return NULL;
        const uint64_t end = min_u64(u->n_rows, first + u->run);
        for (uint64_t row = first; row < end; row++) convert(u, row, values);
    }
}

enum element weight_exact_element(const struct weight_format *format) {
    if (weight_is_plain(format)) return format->element;
    /* E2M1 has two bits that count, and bf16 the exponents of E8M0, also below the normal ones. */
    const struct weight_format numbers = canonical_format(format);
    const bool is_short = numbers.element == ELEMENT_E2M1 && numbers.scale == SCALE_E8M0;
    return is_short ? ELEMENT_BF16 : ELEMENT_F32;
}

int weight_convert(const struct weight *w, const struct weight *to, struct error *err) {
    struct conversion u = {.w = w,
                           .to = to,
                           .n_rows = (uint64_t)w->n_stacked * w->rows,
                           .run = (uint32_t)div_up(RUN_ELEMENTS, w->cols)};
    const uint32_t n_threads = threads_useful(div_up(u.n_rows, u.run));
    u.values = malloc((size_t)n_threads * w->cols * sizeof(*u.values));
    if (!u.values) return error_set(err, ERR_NOMEM, "no memory to convert a weight");
    threads_run(n_threads, convert_runs, &u, 0);
    free(u.values);
    if (!u.is_broken) return 0;
    return weight_refuse_values(err);
}
