/* bench_schedule.c - see bench_schedule.h. */
#include "server/bench/bench_schedule.h"

#include <assert.h>

#include "engine/base/sizes.h"

/* Sequences [0, n_done) generate, and [n_done, n_started) have begun their prompts.  No sequence is
 * behind a later one. */
struct bench_reading {
    const struct bench_shape *shape;
    uint32_t left[BENCH_MAX_BATCH]; /* rows of each prompt */
    uint32_t n_done, n_started;
};

/* Returns the rows of a prompt's next chunk. */
static uint32_t piece(const struct bench_shape *shape, uint32_t left, uint32_t room) {
    const uint32_t at = shape->n_prompt - left;
    return min_u32(room, min_u32(left, shape->chunk - at % shape->chunk));
}

/* Returns the rows left for larger chunks, once every sequence that needs a single row has it. */
static uint32_t room_for_pieces(const struct bench_reading *r) {
    uint32_t room = r->shape->max_rows - r->n_done;
    for (uint32_t i = r->n_done; i < r->n_started; i++) room -= r->left[i] == 1;
    return room;
}

static void read_step(struct bench_reading *r) {
    uint32_t room = room_for_pieces(r), i;
    for (i = r->n_done; i < r->n_started; i++) {
        const uint32_t n = r->left[i] == 1 ? 1 : piece(r->shape, r->left[i], room);
        if (r->left[i] > 1) room -= n;
        r->left[i] -= n;
    }
    for (; i < r->shape->n_sequences && room > 0; i++, r->n_started++) {
        const uint32_t n = piece(r->shape, r->left[i], room);
        room -= n;
        r->left[i] -= n;
    }
    while (r->n_done < r->n_started && r->left[r->n_done] == 0) r->n_done++;
}

static void make_alone(struct bench_schedule *out, const struct bench_shape *shape) {
    out->n_first = shape->n_alone;
    out->n_last = (shape->n_sequences - 1) * shape->n_alone + 1;
    for (uint32_t i = 0; i < shape->n_sequences; i++) out->behind[i] = i * shape->n_alone;
}

void bench_schedule_make(struct bench_schedule *out, const struct bench_shape *shape) {
    struct bench_reading r = {.shape = shape};
    assert(shape->n_sequences >= 1 && shape->n_sequences <= BENCH_MAX_BATCH);
    assert(shape->n_prompt >= 1 && shape->chunk >= 1 && shape->max_rows >= shape->n_sequences);
    if (shape->n_alone) {
        make_alone(out, shape);
        return;
    }
    for (uint32_t i = 0; i < shape->n_sequences; i++) r.left[i] = shape->n_prompt;
    for (uint32_t step = 1; r.n_done < shape->n_sequences; step++) {
        uint32_t i = r.n_done;
        if (r.n_started < shape->n_sequences) out->n_last = step;
        read_step(&r);
        if (i == 0 && r.n_done > 0) out->n_first = step;
        for (; i < r.n_done; i++) out->behind[i] = step - out->n_first;
    }
}
