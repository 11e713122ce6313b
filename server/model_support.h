/* model_support.h - whether a model would be served, asked of its files before they are loaded.
 *
 * Thread: main.  Memory: none is kept. */
#ifndef SERVER_MODEL_SUPPORT_H
#define SERVER_MODEL_SUPPORT_H

struct backend;
struct error;

/* Reads configuration, tokenizer and chat template of a model's folder or GGUF file.  With a
 * backend the headers of the files of weights are read, too; NULL: they are not.  Returns 0, or why
 * the model is not served. */
int model_support_check(const char *path, struct backend *backend, struct error *err);

#endif
