/* token_names.h - what a model's directory says of its tokens beside tokenizer.json: names such as
 * eos_token, and which tokens are special or added.
 *
 *   tokenizer_config.json    bos_token, eos_token, any other member that ends in _token;
 *                            extra_special_tokens, additional_special_tokens,
 *                            model_specific_special_tokens; added_tokens_decoder
 *   special_tokens_map.json  the same names, which then win; read where there is no
 *                            added_tokens_decoder, as transformers does
 *   added_tokens.json        text -> id; read where there is no added_tokens_decoder
 *
 * Of a GGUF file its keys stand for the first (model_document.h).
 *
 * Thread: any.  Memory: the struct owns its documents. */
#ifndef ENGINE_TOKENIZER_TOKEN_NAMES_H
#define ENGINE_TOKENIZER_TOKEN_NAMES_H

#include <jansson.h>

struct error;

struct token_names {
    json_t *config;  /* tokenizer_config.json; NULL: there is none */
    json_t *named;   /* an object: name -> text */
    json_t *special; /* an array of texts: of special tokens without a name */
    json_t *added;   /* an array of entries as those of tokenizer.json's added_tokens */
};

/* Reads the files of the directory, none of which has to be there.  On failure *out is untouched.
 * ERR_INVALID: a file is no JSON, or too large. */
int token_names_load(struct token_names *out, const char *dir, struct error *err);
void token_names_fini(struct token_names *names); /* a zeroed one is allowed */

#endif
