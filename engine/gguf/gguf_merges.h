/* gguf_merges.h - merges of pairs from the scores of SentencePiece's tokens.
 *
 * Thread: any.  Memory: the caller owns the list. */
#ifndef ENGINE_GGUF_GGUF_MERGES_H
#define ENGINE_GGUF_GGUF_MERGES_H

#include <stdint.h>
#include <jansson.h>

/* The score of a token that is not made by merging. */
#define GGUF_NO_SCORE (-3.4e38F)

/* Returns the merges as a tokenizer.json has them, the best first.  vocab: text -> id; scores [n]:
 * by id.  NULL: there is no memory. */
json_t *gguf_merges(json_t *vocab, const float *scores, uint64_t n);

#endif
