/* fuzz_tokenizer_load.c - any bytes as a tokenizer.json: refused in words, or usable.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/tokenizer/fuzz_tokenizer_load.c \
 *         engine/tokenizer/?*.c engine/{error,file,json_arena,json_guard}.c -ljansson -lpcre2-8 \
 *         -lutf8proc -o fuzz && ./fuzz CORPUS
 *
 * Thread: one.  Memory: freed for every input. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool condition) {
    if (!condition) abort();
}

/* What was accepted must encode, and must decode what it encoded. */
static void use(const struct tokenizer *tokenizer) {
    static const char TEXT[] =
        "It's 2024:  caf\xC3\xA9,\n\tna\xC3\xAFve <|endoftext|> \xF0\x9F\x98\x80 aaaa";
    struct token_list ids = {0};
    struct error err = {0};
    char *text = NULL;
    size_t length;
    const int rc = tokenizer_encode(tokenizer, TEXT, sizeof(TEXT) - 1, true, 0, &ids, &err);
    require(rc == 0 || err.text[0] != '\0');
    for (size_t i = 0; i < ids.n; i++) require(ids.ids[i] < tokenizer_n_vocab(tokenizer));
    require(tokenizer_decode(tokenizer, ids.ids, ids.n, false, &text, &length, &err) == 0);
    require(utf8_is_valid(text, length));
    free(text);
    free(ids.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    const int rc = tokenizer_load_bytes(&tokenizer, (const char *)data, n, &err);
    require(rc ? !tokenizer && err.code == rc && err.text[0] : tokenizer != NULL);
    if (rc == 0) use(tokenizer);
    tokenizer_destroy(tokenizer);
    return 0;
}
