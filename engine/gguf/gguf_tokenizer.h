/* gguf_tokenizer.h - the tokenizer that the keys of a GGUF file stand for: tokenizer.json and
 * tokenizer_config.json.
 *
 *   tokenizer.huggingface.json    a whole tokenizer.json, which then is what is read
 *   tokenizer.ggml.model          gpt2: pairs of bytes, split by tokenizer.ggml.pre (gguf_pre.h);
 *                                 llama: SentencePiece, whose merges follow from the scores
 *   tokenizer.ggml.tokens         texts; token_type: 1 normal, 2 unknown, 3 control, 4 the user's,
 *                                 5 unused, 6 a byte
 *
 * Of SentencePiece, the pair that merges first is that of the best score.  So the pairs of texts
 * that make a token are its merges, in the order in which transformers writes them.
 *
 * Thread: any.  Memory: the caller owns *out. */
#ifndef ENGINE_GGUF_GGUF_TOKENIZER_H
#define ENGINE_GGUF_GGUF_TOKENIZER_H

#include <jansson.h>

struct error;
struct gguf_files;

int gguf_tokenizer(json_t **out, const struct gguf_files *files, const char *label,
                   struct error *err);
int gguf_tokenizer_config(json_t **out, const struct gguf_files *files, const char *label,
                          struct error *err);

#endif
