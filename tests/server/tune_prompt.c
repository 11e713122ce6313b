/* tune_prompt.c - prints the tokens of a prompt on which `quire tune` judges patterns, for scripts
 * that judge something by the same prompts:
 *
 *   tune_prompt MODEL_DIR retrieval|needles|prose|several SEED N_TOKENS
 *
 * Thread: main.  Memory: the prompt. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/tune/tune_prompts.h"

static enum tune_text kind_of(const char *name) {
    enum tune_text kind = 0;
    while (kind < TUNE_N_TEXTS && strcmp(name, tune_text_name(kind)) != 0) kind++;
    return kind;
}

static int make(char **argv, struct token_list *out, struct error *err) {
    struct tokenizer *tokenizer = NULL;
    char *prose = NULL;
    int rc = tokenizer_load(&tokenizer, argv[1], err);
    if (!rc) rc = tune_prose_load(&prose, argv[1], err);
    if (!rc)
        rc = tune_prompt_make(out, tokenizer, prose, kind_of(argv[2]), strtoull(argv[3], NULL, 10),
                              (uint32_t)strtoul(argv[4], NULL, 10), err);
    free(prose);
    tokenizer_destroy(tokenizer);
    return rc;
}

int main(int argc, char **argv) {
    struct token_list tokens = {0};
    struct error err = {0};
    if (argc != 5 || kind_of(argv[2]) == TUNE_N_TEXTS) {
        fprintf(stderr, "usage: tune_prompt MODEL_DIR KIND SEED N_TOKENS\n");
        return EXIT_FAILURE;
    }
    const int rc = make(argv, &tokens, &err);
    if (rc) fprintf(stderr, "%s\n", err.text);
    for (size_t i = 0; i < tokens.n; i++) printf("%" PRIu32 "\n", tokens.ids[i]);
    free(tokens.ids);
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
