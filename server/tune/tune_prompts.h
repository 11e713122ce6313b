/* tune_prompts.h - the prompts on which `quire tune` judges patterns, made from a seed.
 *
 *   retrieval  a JSON object of keys and values at random, and a question for one of them
 *   needles    prose with numbers hidden in it, and a question for one of them
 *   prose      text without a question
 *   several    like needles, but each name has several numbers, and all of one are asked for
 *
 * The last queries of a prompt decide which lines its heads visit, so the question stands at the
 * end.  It has the model's chat form if the special tokens show a known one.
 *
 * Thread: any.  Memory: the caller's. */
#ifndef SERVER_TUNE_TUNE_PROMPTS_H
#define SERVER_TUNE_TUNE_PROMPTS_H

#include <stdint.h>

struct error;
struct token_list;
struct tokenizer;

enum tune_text { TUNE_RETRIEVAL, TUNE_NEEDLES, TUNE_PROSE, TUNE_SEVERAL, TUNE_N_TEXTS };

const char *tune_text_name(enum tune_text kind);

/* Loads a text file, at most 4 MiB of it; the caller frees *out.  ERR_NOT_FOUND. */
int tune_text_load(char **out, const char *path, struct error *err);
/* Loads the model's own prose from DIR/eval/held_out.txt, at most 4 MiB of it.  *out is malloc'd,
 * or NULL when there is none. */
int tune_prose_load(char **out, const char *model_dir, struct error *err);

/* Appends at most n_tokens ids to out, and fewer only by less than one sentence or pair.  prose
 * NULL: invented sentences.  Returns ERR_INVALID when n_tokens holds little more than the
 * question. */
int tune_prompt_make(struct token_list *out, const struct tokenizer *tokenizer, const char *prose,
                     enum tune_text kind, uint64_t seed, uint32_t n_tokens, struct error *err);

#endif
