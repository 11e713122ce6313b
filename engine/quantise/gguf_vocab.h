/* gguf_vocab.h - a model's tokenizer and chat templates as keys of a GGUF file.
 *
 * Tokens, kinds, merges or scores are what other readers know.  Where those do not say all that
 * tokenizer.json says, the whole of it is written, too, and quire reads that.
 *
 * Thread: any.  Memory: the documents, meanwhile. */
#ifndef ENGINE_QUANTISE_GGUF_VOCAB_H
#define ENGINE_QUANTISE_GGUF_VOCAB_H

struct error;
struct gguf_writer;
struct model_config;

/* Writes the keys of the tokenizer in a model's folder.  ERR_UNSUPPORTED: it is not BPE.
 * ERR_INVALID: a token is beyond the vocabulary. */
int gguf_vocab_put(struct gguf_writer *w, const char *dir, const struct model_config *c,
                   struct error *err);

#endif
