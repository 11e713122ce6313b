/* tokenize_command.c - see tokenize_command.h. */
#include "server/tokenize_command.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/json/buffer.h"

static int read_all(FILE *in, struct buffer *text, struct error *err) {
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof(block), in)) > 0) buffer_append(text, block, n);
    if (text->failed) return error_set(err, ERR_NOMEM, "no memory for the text");
    return ferror(in) ? error_set(err, ERR_IO, "the text on standard input cannot be read") : 0;
}

static void print_tokens(FILE *out, const struct tokenizer *tokenizer,
                         const struct token_list *tokens) {
    struct buffer line = {0};
    for (size_t i = 0; i < tokens->n; i++) {
        size_t length = 0;
        const char *bytes = tokenizer_token_bytes(tokenizer, tokens->ids[i], &length);
        buffer_clear(&line);
        buffer_json_string(&line, bytes, length);
        fprintf(out, "%u\t%s\n", tokens->ids[i], line.failed ? "" : line.data);
    }
    buffer_fini(&line);
}

void tokenize_print_help(void) {
    puts("usage: quire tokenize [MODEL] < TEXT\n"
         "\n"
         "Prints a line for each token of the text on standard input: its id and its bytes.\n"
         "\n"
         "  quire tokenize ./model.gguf < README.md\n"
         "  quire tokenize OWNER/NAME < README.md | wc -l");
}

int tokenize_command(const char *model_dir, FILE *in, FILE *out, struct error *err) {
    struct tokenizer *tokenizer = NULL;
    struct buffer text = {0};
    struct token_list tokens = {0};
    int rc = tokenizer_load(&tokenizer, model_dir, err);
    if (!rc) rc = read_all(in, &text, err);
    if (!rc)
        rc = tokenizer_encode(tokenizer, text.data ? text.data : "", text.length, true, 0, &tokens,
                              err);
    if (!rc) print_tokens(out, tokenizer, &tokens);
    free(tokens.ids);
    buffer_fini(&text);
    tokenizer_destroy(tokenizer);
    return rc;
}
