/* sparse_lines.h - what a query head finds important: the columns and diagonals with the most
 * attention, or each tile's best pages.
 *
 * Thread: any worker, each with its own workspace.  Memory: none besides the workspace. */
#ifndef ENGINE_CPU_SPARSE_LINES_H
#define ENGINE_CPU_SPARSE_LINES_H

#include "engine/cpu/backend.h"

struct sparse_index_args;
struct attn_pattern;
struct attn_sparse;
struct kv_view;

/* A worker's workspace for a sequence of n_pages pages. */
struct lines_workspace {
    uint64_t *bits;  /* [n_pages]: a bit for each slot */
    float *first;    /* [n_pages][PAGE_TOKENS]: columns */
    float *second;   /* the same: diagonals */
    float *means;    /* in place of both: [n_pages][head_dim], each page's mean key */
    float *products; /* [n_pages] */
    float *q, *keys; /* [PAGE_TOKENS][head_dim] */
    float *scores;   /* [SPARSE_QUERIES][PAGE_TOKENS] */
    float *softmax;  /* [SPARSE_QUERIES][2]: maximum (base 2) and sum */
};

struct lines_task {
    const struct cpu_backend *cpu;
    const struct sparse_index_args *args;
    const struct attn_sparse *sparse;
    const struct kv_view *view;
    struct lines_workspace workspace;
    uint32_t head, n_slots;
};

size_t lines_workspace_bytes(uint32_t n_slots, uint32_t head_dim);
struct lines_workspace lines_workspace_layout(void *scratch, uint32_t n_slots, uint32_t head_dim);

/* Sets the bits of the k largest of n scores and clears the others.  Of equal scores the first ones
 * are chosen; NaN is below everything. */
void lines_select(const float *scores, uint32_t n, uint32_t k, uint64_t *bits);
/* Sets the bits of the chosen columns, and of the chosen diagonals by their distance. */
void lines_find(const struct lines_task *task, const struct attn_pattern *pattern,
                uint64_t *columns, uint64_t *diagonals);
/* Computes the mean key of each of the first n_pages pages, all full, into workspace.means. */
void lines_mean_keys(const struct lines_task *task, uint32_t n_pages);
/* Sets the bits of the k best of the first n_pages pages for a tile of the indexed rows. */
void lines_best_pages(const struct lines_task *task, uint32_t first_row, uint32_t n_rows,
                      uint32_t n_pages, uint32_t k, uint64_t *bits);

#endif
