/* sparse.h - which keys the heads of one layer visit: built by index(), followed by
 * attn_prefill (the contract is at the top of engine/device/sparse.h).
 *
 *   lines        sparse_lines.c: attention of the last rows -> columns and diagonals, as bits
 *   distances    bit d: groups d before a half's first are visited; those of its tile's rows always
 *   columns      bit j: slot j is visited by every tile that lies behind it
 *   blocks       bit p of a tile: its page p is visited
 *
 *   of (head, half)   pages  [ 0 ][ 1 ][ 2 ] …    64 bits each, one per slot: sparse_visit()
 *
 * A set of slots is a bitmap everywhere, so a slot is visited once even if several rules chose it.
 *
 * Thread: engine; sparse_visit() from any worker.  Memory: as much as the largest index needs, from
 * reserve() on.  Pages of it that no head uses are never touched. */
#ifndef ENGINE_CPU_SPARSE_H
#define ENGINE_CPU_SPARSE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/sizes.h"
#include "engine/cpu/buffer.h"
#include "engine/device/sparse.h"

struct attn_args;
struct backend;
struct cpu_backend;
struct layer_group;
struct step;
struct step_limits;
struct step_seq;

struct cpu_sparse_head {
    enum attn_pattern_kind named; /* the kind of its pattern */
    enum attn_pattern_kind kind;  /* the same, or dense if the pattern would visit too much */
    uint32_t n_first;             /* groups that every tile visits */
    uint64_t visited, causal;     /* pairs of row and slot, of the tiles before dense_from */
};

struct sparse_index {
    uint32_t max_rows, max_slots, max_heads; /* limits; 0: there is no index */
    bool valid;                              /* the fields below hold an index */
    uint32_t layer, n_heads, first_slot, n_rows, dense_from;
    const struct layer_group *group; /* PATTERN_FILTERS: it is of these layers, not of `layer` */
    size_t distance_words, column_words, block_words; /* u64s of a head, a head and a tile */
    struct cpu_buffer heads;                          /* struct cpu_sparse_head [n_heads] */
    struct cpu_buffer distances, columns;             /* u64 [n_heads][words] */
    struct cpu_buffer blocks;                         /* u64 [n_heads][n_tiles][words] */
    struct sparse_totals totals;
};

static inline uint32_t sparse_tiles(const struct sparse_index *index) {
    return (uint32_t)div_up(index->n_rows, SPARSE_TILE);
}

static inline struct cpu_sparse_head *sparse_head_of(const struct sparse_index *index,
                                                     uint32_t head) {
    return (struct cpu_sparse_head *)index->heads.data + head;
}

static inline uint64_t *sparse_distances(const struct sparse_index *index, uint32_t head) {
    return (uint64_t *)index->distances.data + head * index->distance_words;
}

static inline uint64_t *sparse_columns(const struct sparse_index *index, uint32_t head) {
    return (uint64_t *)index->columns.data + head * index->column_words;
}

static inline uint64_t *sparse_blocks(const struct sparse_index *index, uint32_t head,
                                      uint32_t tile) {
    const size_t n_tiles = div_up(index->max_rows, SPARSE_TILE);
    return (uint64_t *)index->blocks.data + (head * n_tiles + tile) * index->block_words;
}

int sparse_reserve(struct cpu_backend *cpu, const struct step_limits *limits, struct error *err);
void sparse_free(struct sparse_index *index);
/* Returns the step's sequence that has a `sparse`, or NULL. */
const struct step_seq *sparse_seq(const struct step *step);
/* Returns the group that the layer belongs to where filters choose, else NULL. */
const struct layer_group *sparse_group_of(const struct step *step, const struct attn_sparse *sparse,
                                          uint32_t layer);
/* Tells whether the index says what the layer's heads visit of the sequence. */
bool sparse_is_indexed(const struct sparse_index *index, const struct step *step,
                       const struct step_seq *seq, uint32_t layer);
/* Implements sparse_ops.choose(). */
int sparse_choose(struct backend *be, const struct attn_args *filter, struct error *err);
/* Returns whether (head, tile) visits every slot. */
bool sparse_visits_all(const struct sparse_index *index, uint32_t head, uint32_t tile);
/* Writes the slots that half a tile visits, a bitmap for each page.  Returns how many pages there
 * are up to the half's last row. */
uint32_t sparse_visit(const struct sparse_index *index, uint32_t head, uint32_t half,
                      uint64_t *pages);

/* Writes the slots, ascending, that (head, half) visits by the last index(); for tests, of other
 * backends, too.  There is space for first_slot + n_rows of them.  Returns their number. */
uint32_t cpu_sparse_visited(const struct backend *be, uint32_t head, uint32_t half,
                            uint32_t *slots);
/* Returns the head's kind after the rule about density. */
enum attn_pattern_kind cpu_sparse_kind(const struct backend *be, uint32_t head);

#endif
