/* test_sparse_windows.c - the published way from columns and diagonals to work (MInference section
 * 3.2): it has the properties it is known for, and what it visits for its lines our tiles visit.
 *
 *   rows     a block of 64, [end - 64, end)
 *   a diagonal o     the window [end - 64 - o, end - o) of 64 keys, moved right to begin at 0
 *   windows that touch     one range, which grows by whole blocks of 64
 *   columns     those before the last window's end that lie in no range */
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "tests/cpu/sparse_test.h"

enum { BLOCK = 64 };

struct work {
    uint32_t n_blocks, n_columns;
    uint8_t in_range[MAX_SLOTS + 2 * BLOCK], as_column[MAX_SLOTS];
};

struct chosen {
    uint32_t columns[MAX_SLOTS], diagonals[MAX_SLOTS]; /* ascending; descending */
    uint32_t n_columns, n_diagonals;
};

static struct chosen in_order(const struct lines *lines, uint32_t n) {
    struct chosen c = {0};
    for (uint32_t i = 0; i < n; i++) {
        if (lines->column[i]) c.columns[c.n_columns++] = i;
        if (lines->diagonal[n - 1 - i]) c.diagonals[c.n_diagonals++] = n - 1 - i;
    }
    return c;
}

static uint32_t window_end(const struct chosen *c, uint32_t i, uint32_t end) {
    return end - c->diagonals[i] < BLOCK ? BLOCK : end - c->diagonals[i];
}

static void emit_range(struct work *w, uint32_t start, uint32_t end) {
    for (uint32_t key = start; key < end; key++) w->in_range[key]++;
    w->n_blocks += (end - start + BLOCK - 1) / BLOCK;
}

/* Columns before `end`: those before the range go to the list, those inside it need not. */
static uint32_t emit_columns(struct work *w, const struct chosen *c, uint32_t at, uint32_t start,
                             uint32_t end) {
    for (; at < c->n_columns && c->columns[at] < end; at++) {
        if (c->columns[at] >= start) continue;
        w->as_column[c->columns[at]]++;
        w->n_columns++;
    }
    return at;
}

/* The work of the rows [end - 64, end). */
static void convert(const struct chosen *c, uint32_t end, struct work *w) {
    uint32_t i = 0, column = 0;
    *w = (struct work){0};
    while (c->diagonals[i] >= end) i++;
    uint32_t range_end = window_end(c, i, end), range_start = range_end - BLOCK;
    for (i++;; i++) {
        column = emit_columns(w, c, column, range_start, range_end);
        if (i == c->n_diagonals) break;
        const uint32_t next = window_end(c, i, end);
        if (next > range_end + BLOCK) {
            emit_range(w, range_start, range_end);
            range_start = next - BLOCK;
            range_end = next;
        } else if (next > range_end) {
            range_end += BLOCK;
        }
    }
    emit_range(w, range_start, range_end);
}

static void check_work(const struct work *w, const struct lines *lines, const struct chosen *c,
                       uint32_t end, uint32_t n) {
    const bool everything = c->n_columns == n || c->n_diagonals == n;
    assert_true(w->n_blocks <= c->n_diagonals && w->n_columns <= c->n_columns);
    for (uint32_t slot = 0; slot < n; slot++) {
        assert_true(w->in_range[slot] + w->as_column[slot] <= 1);
        assert_true(slot < end || !w->as_column[slot]);
    }
    for (uint32_t row = end - BLOCK; row < end && row < n; row++) {
        for (uint32_t slot = 0; slot <= row; slot++) {
            const bool wanted = everything || lines->column[slot] || lines->diagonal[row - slot];
            assert_true(!wanted || w->in_range[slot] || w->as_column[slot]);
        }
    }
}

/* What the rows [end - 64, end) visit there and half a tile must visit here: columns in the list,
 * and ranges wherever a window of some diagonal lies. */
static void check_contained(const struct work *w, const struct chosen *c, uint32_t end, uint32_t n,
                            const bool *visited) {
    bool window[MAX_SLOTS] = {false};
    for (uint32_t i = 0; i < c->n_diagonals; i++) {
        for (uint32_t key = end - BLOCK; key < end; key++)
            if (key >= c->diagonals[i]) window[key - c->diagonals[i]] = true;
    }
    for (uint32_t slot = 0; slot < end && slot < n; slot++) {
        assert_true(!window[slot] || w->in_range[slot]);
        assert_true(visited[slot] || !(window[slot] || w->as_column[slot]));
    }
}

static struct prompt *synthetic_prompt(struct backend *be, uint32_t round) {
    const uint32_t first = round % 2 ? PAGE_TOKENS * random_below(8) : 0;
    struct prompt *p = prompt_make(be, first, 1 + random_below(500), PAGE_F32);
    p->sparse.synthetic = 1 + random_u32();
    for (uint32_t h = 0; h < N_HEADS; h++) {
        const bool all = random_below(12) == 0;
        p->patterns[h] =
            (struct attn_pattern){PATTERN_VERTICAL_SLASH, all ? MAX_SLOTS : random_below(200),
                                  random_below(12) == 0 ? MAX_SLOTS : random_below(300)};
    }
    return p;
}

static void check_head(const struct prompt *p, uint32_t head) {
    struct lines lines;
    struct work w;
    synthetic_lines(p, head, &lines);
    const struct chosen c = in_order(&lines, p->n_slots);
    for (uint32_t half = 0; half < n_halves_of(p); half++) {
        const uint32_t end = half_first(p, half) + BLOCK;
        bool visited[MAX_SLOTS];
        visited_slots(p, head, half, visited);
        convert(&c, end, &w);
        check_work(&w, &lines, &c, end, p->n_slots);
        check_contained(&w, &c, end, p->n_slots, visited);
    }
}

TEST(what_it_visits_for_its_lines_our_tiles_visit) {
    struct backend *be = backend_make();
    reserve_sparse(be, MAX_SLOTS, MAX_SLOTS);
    for (uint32_t round = 0; round < 160; round++) {
        struct prompt *p = synthetic_prompt(be, round);
        index_prompt(p);
        for (uint32_t h = 0; h < N_HEADS; h++) check_head(p, h);
        prompt_free(p);
    }
    be->ops->destroy(be);
}
