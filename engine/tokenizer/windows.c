/* windows.c - merges the symbols of a long piece window by window, so that they stay in a cache.
 *
 *   first   [t1 t2 t3 t4 t5 t6|           its last tokens may lack what comes behind the window
 *   second            [t4 t5 t7 t8 t9|    begins where one of them does, a few before the end
 *
 * Tokens are those of the whole text exactly if merging any two neighbours alone gives the same
 * two: no merge across their border comes before those inside.  Neighbours within a window have
 * this property.  If the second window begins with the token that the first has there, t1 t2 t3 are
 * done: with all of the second window they have the property, too.  If not, the second window
 * begins further back and is longer, at last where the first one began.  If its first token differs
 * even then, what was done may be wrong, and the piece is merged at once.  Only a text made for it
 * does this.
 *
 * Thread: any; what changes is in the caller's scratch.  Memory: windows grow in the scratch. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"

enum { FEW_TOKENS = 2 }; /* so far from the end, merging seldom depends on what follows */

struct window_piece {
    const struct bpe *bpe;
    struct bpe_scratch *scratch;
    const uint32_t *symbols;
    size_t n;
    struct token_list done; /* tokens of what is before the first window */
};

static int reserve(struct window *window, size_t n) {
    if (n <= window->capacity) return 0;
    uint32_t *ids = realloc(window->ids, 2 * n * sizeof(*ids));
    if (!ids) return ERR_NOMEM;
    *window = (struct window){.ids = ids, .begins = ids + n, .capacity = n};
    return 0;
}

/* Merges n of the piece's symbols from `begin` on, or as many as there are. */
static int merge_window(const struct window_piece *piece, struct window *window, size_t begin,
                        size_t n) {
    if (n > piece->n - begin) n = piece->n - begin;
    if (reserve(window, n)) return ERR_NOMEM;
    memcpy(window->ids, piece->symbols + begin, n * sizeof(*window->ids));
    window->begin = begin;
    window->end = begin + n;
    window->n = n;
    return bpe_merge_at_once(piece->bpe, piece->scratch, window->ids, window->begins, &window->n);
}

/* Merges a second window, which begins where the first has token i.  *agree tells whether the
 * tokens before i and the second window are as in the whole.  Equal tokens spell the same, so they
 * end at the same symbol. */
static int try_window(const struct window_piece *piece, const struct window *first, size_t i,
                      struct window *second, bool *agree) {
    const size_t begin = first->begin + first->begins[i], size = 2 * (first->end - begin);
    const int rc = merge_window(piece, second, begin, size > BPE_FEW ? size : BPE_FEW);
    if (rc) return rc;
    *agree = begin == 0 || second->ids[0] == first->ids[i];
    return 0;
}

/* Takes the first window's tokens before the second one as done, and makes the second one the
 * first.  *agree is false if no second window agrees. */
static int advance(struct window_piece *piece, struct window *first, struct window *second,
                   bool *agree) {
    size_t n = first->n;
    *agree = false;
    for (size_t back = FEW_TOKENS; !*agree && n > 0; back *= 2) {
        n = first->n > back ? first->n - back : 0;
        const int rc = try_window(piece, first, n, second, agree);
        if (rc) return rc;
    }
    if (!*agree) return 0;
    const int rc = token_list_append(&piece->done, first->ids, n);
    const struct window taken = *first;
    *first = *second;
    *second = taken;
    return rc;
}

static int merge_piece(struct window_piece *piece, struct window *windows) {
    bool agree = true;
    int rc = merge_window(piece, &windows[0], 0, BPE_FEW);
    while (rc == 0 && agree && windows[0].end < piece->n)
        rc = advance(piece, &windows[0], &windows[1], &agree);
    if (rc == 0 && !agree) {
        piece->done.n = 0;
        rc = merge_window(piece, &windows[0], 0, piece->n);
    }
    return rc ? rc : token_list_append(&piece->done, windows[0].ids, windows[0].n);
}

int bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t *ids, size_t *n_ids) {
    uint32_t begins[BPE_FEW];
    if (*n_ids <= BPE_FEW) return bpe_merge_at_once(bpe, scratch, ids, begins, n_ids);
    struct window_piece piece = {.bpe = bpe, .scratch = scratch, .symbols = ids, .n = *n_ids};
    const int rc = merge_piece(&piece, scratch->windows);
    if (rc == 0) memcpy(ids, piece.done.ids, piece.done.n * sizeof(*ids));
    if (rc == 0) *n_ids = piece.done.n;
    free(piece.done.ids);
    return rc;
}

void bpe_scratch_fini(struct bpe_scratch *scratch) {
    free(scratch->memory);
    free(scratch->heap);
    for (size_t i = 0; i < 2; i++) free(scratch->windows[i].ids);
}
