/* patterns.h - which keys each query head of a model visits in a sparse prefill: pattern files.
 *
 * Two forms are read.  Published files are a list with an object for each layer, of heads by their
 * number.  `quire tune` writes the same list inside an object with its provenance:
 *
 *   [{"0": ["vertical_and_slash", 1000, 6096, 0.98], "1": ["stream_llm", 128, 4096, 1.0]}, ...]
 *   {"format": "quire-patterns-1", "provenance": {"model": "...", ...},
 *    "min_sparse_tokens": {"cpu": 2304, "cuda": 16384},
 *    "perplexity": {"dense": 21.48, "sparse": 21.5}, "layers": [{...}, ...]}
 *
 *   vertical_and_slash  p1 vertical lines, p2 diagonals
 *   stream_llm          the first p1 keys and the p2 newest
 *   block_sparse        p1 pages; 100 for published files, whatever they say
 *   dense               everything (only `quire tune` writes it)
 *
 * A head that its layer does not name has 1000 lines and 6096 diagonals.  The fourth member, a
 * score, is for human readers: published files count different things in it.  There is a
 * min_sparse_tokens for each backend, because the length from which sparse attention is faster
 * depends on how fast the dense one is.
 *
 * Thread: any.  Memory: the caller owns what it loads and drops it with patterns_fini(). */
#ifndef ENGINE_SPARSITY_PATTERNS_H
#define ENGINE_SPARSITY_PATTERNS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/device/sparse.h"

struct error;
struct provenance_note;

/* Bounds of keys, diagonals and tokens, of backends and of their names.  SPARSE_MAX_COLUMNS and
 * SPARSE_MAX_PAGES bound columns and pages. */
enum { PATTERNS_MAX_TOKENS = 1 << 24, PATTERNS_MAX_BACKENDS = 8, PATTERNS_MAX_NAME = 31 };

/* The length below which this backend computes a prompt faster with dense attention. */
struct pattern_break_even {
    char backend[PATTERNS_MAX_NAME + 1];
    uint32_t n_tokens; /* at least 1; UINT32_MAX: sparse was faster nowhere */
};

struct patterns {
    uint32_t n_layers, n_heads;
    struct attn_pattern *heads; /* [n_layers][n_heads] */
    double *scores;             /* [n_layers][n_heads]; 0: none */
    struct pattern_break_even break_evens[PATTERNS_MAX_BACKENDS];
    uint32_t n_break_evens;
    /* Of held-out text, read densely and with these patterns; 0: not measured. */
    double dense_perplexity, sparse_perplexity;
};

/* Makes patterns as if no layer named a head.  ERR_NOMEM. */
int patterns_default(struct patterns *out, uint32_t n_layers, uint32_t n_heads, struct error *err);
/* Reads a file, or its bytes, for a model of this shape.  ERR_NOT_FOUND when there is no such file;
 * other errors name the layer and the head.  On failure *out is untouched. */
int patterns_load(struct patterns *out, const char *path, uint32_t n_layers, uint32_t n_heads,
                  struct error *err);
int patterns_parse(struct patterns *out, const char *bytes, size_t size, const char *label,
                   uint32_t n_layers, uint32_t n_heads, struct error *err);
/* Writes the second form, whole or not at all: a file of that name is replaced at the end. */
int patterns_save(const struct patterns *patterns, const struct provenance_note *notes,
                  size_t n_notes, const char *path, struct error *err);
void patterns_fini(struct patterns *patterns); /* zeroed ones are allowed */

/* Returns the break-even of the backend of this name; 0: it was not measured there. */
uint32_t patterns_min_sparse_tokens(const struct patterns *patterns, const char *backend);
/* Sets the break-even of a backend.  ERR_FULL: too many backends, or too long a name. */
int patterns_set_min_sparse_tokens(struct patterns *patterns, const char *backend,
                                   uint32_t n_tokens);

/* Forgets the break-even of a backend: it was measured with other patterns. */
void patterns_forget_min_sparse_tokens(struct patterns *patterns, const char *backend);

/* What patterns may add to the perplexity of held-out text to be taken under PREFILL_AUTO: what
 * MInference's do at most (its Figure 4). */
#define PATTERNS_MOST_LOSS 0.2
/* Returns what the patterns add to it; 0 where it was not measured. */
double patterns_loss(const struct patterns *patterns);

/* Returns the kind's name in files. */
const char *pattern_kind_name(enum attn_pattern_kind kind);

#endif
