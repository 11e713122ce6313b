/* tile.h - query rows against the keys of one KV head of one sequence, a page at a time: what
 * attention and the scores of bounded caches have in common.
 *
 * In a page, keys lie as [kv_head][head_dim][slot] and values as [kv_head][slot][head_dim]: either
 * product then runs along memory, for one query row as for many. */
#ifndef ENGINE_CPU_TILE_H
#define ENGINE_CPU_TILE_H

#include "engine/cpu/backend.h"
#include "engine/cpu/pages.h"
#include "engine/device/pages.h"

struct attn_args;
struct weight;
struct kv_view;
struct step;
struct step_seq;

enum { TILE_ROWS = 96 };
#define LOG2_E 1.4426950408889634

/* What ALiBi takes from a tile's scores. */
struct tile_bias {
    const float *slopes;        /* as in attn_args; NULL: nothing */
    uint32_t position;          /* of the tile's first token; later ones follow */
    const struct step_seq *seq; /* NULL: keys stand where their slots do */
    uint32_t group;             /* as in attn_args */
};

/* Row r is query head first_head + r % group of token r / group. */
struct tile {
    const struct cpu_kernels *kernels;
    const struct kv_pool *kv;
    const struct kv_view *view;
    const struct rank_angles *angles; /* NULL: the pages hold rotated keys */
    uint32_t kv_head, first_head, group, n_rows;
    uint32_t first_visible; /* slots that the first token sees; each later token sees one more */
    uint32_t window;        /* a token sees only the newest `window` of these; 0: all */
    float softcap;          /* of scores, as in attn_args */
    struct tile_bias bias;
};

/* Returns how many tokens a tile has, if the sequence has that many left. */
static inline uint32_t tile_tokens(uint32_t group) {
    return group < TILE_ROWS ? TILE_ROWS / group : 1;
}

static inline uint32_t tile_last_visible(const struct tile *t) {
    return t->first_visible + (t->n_rows - 1) / t->group;
}

/* Returns the first slot in the window of a token that has `visible` slots up to its own. */
static inline uint32_t tile_first_slot(const struct tile *t, uint32_t visible) {
    return t->window > 0 && visible > t->window ? visible - t->window : 0;
}

/* Returns how many of the list's first `visible` slots are in a page. */
static inline uint32_t slots_of_page(uint32_t visible, uint32_t page) {
    const uint32_t base = page * PAGE_TOKENS;
    if (visible <= base) return 0;
    return visible - base < PAGE_TOKENS ? visible - base : PAGE_TOKENS;
}

/* Returns the index of the task's owner, such as a sequence.  first_task [n + 1] holds the prefix
 * sums of the owners' numbers of tasks. */
uint32_t task_owner(const uint32_t *first_task, uint32_t n, uint32_t task);

/* Returns a tile of n_tokens rows of a sequence and the query heads of a KV head, without a window.
 * The first row sees first_visible slots. */
struct tile tile_make(const struct cpu_backend *cpu, const struct attn_args *args,
                      const struct step_seq *seq, uint32_t kv_head, uint32_t first_visible,
                      uint32_t n_tokens);

/* Loads the tile's queries, scaled so that the softmax can work in base 2.  The first one is in row
 * first_row of the step. */
void tile_load_queries(const struct attn_args *args, const struct tile *t, uint32_t first_row,
                       float *q);
/* Returns a head's sink in base 2, as scores are; -inf if there is none. */
float sink_logit(const struct cpu_kernels *kernels, const struct weight *sinks, uint32_t head);
/* Computes scores[row][slot] of a page.  Overwrites `workspace`, PAGE_TOKENS * head_dim floats. */
void tile_scores(const struct tile *t, float *scores, const float *q, uint32_t page,
                 float *workspace);

#endif
