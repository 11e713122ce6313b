/* choice.h - which files of a repository quire reads: the small ones and the weights, in
 * safetensors or in one GGUF file.
 *
 * Pickles, code and everything else stay where they are.
 *
 * Thread: any.  Memory: the lists are owned, the files in them borrowed. */
#ifndef SERVER_HUB_CHOICE_H
#define SERVER_HUB_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct hub_file;
struct hub_files;
struct hub_name;

struct hub_choice {
    const struct hub_file **small;   /* [n_small]: configuration, tokenizer, templates */
    const struct hub_file **weights; /* [n_weights] */
    size_t n_small, n_weights;
    bool is_gguf; /* weights[0] is the model, and the others are the rest of a split */
};

/* Chooses.  has_weights: they are needed, too; a GGUF file always is.  ERR_INVALID: this is no
 * model that quire reads, or which of several GGUF files is meant is not known; the text says what
 * to do.  On failure nothing is left to free. */
int hub_choose(struct hub_choice *out, const struct hub_files *files, const struct hub_name *name,
               bool has_weights, struct error *err);
void hub_choice_fini(struct hub_choice *choice);

/* Tells whether a path is that of the GGUF file that is asked for, or of a part of it.  It may be
 * asked for by its path, its name, or the format at the name's end: small-Q4_K_M.gguf by Q4_K_M. */
bool hub_is_asked(const char *path, const char *quant);

/* Returns the bytes of all chosen files. */
uint64_t hub_choice_bytes(const struct hub_choice *choice);

#endif
