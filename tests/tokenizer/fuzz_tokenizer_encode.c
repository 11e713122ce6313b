/* fuzz_tokenizer_encode.c - any bytes as text, and as ids, for every tokenizer of the goldens.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -I. -DDATA_DIR='"tests/tokenizer/data"' \
 *         tests/tokenizer/fuzz_tokenizer_encode.c engine/tokenizer/?*.c \
 *         engine/{error,file,json_arena,json_guard}.c -ljansson -lpcre2-8 -lutf8proc \
 *         -o fuzz && ./fuzz CORPUS
 *
 * The first byte chooses the tokenizer, the rest is the input.
 *
 * Thread: one.  Memory: the tokenizers are loaded once and kept. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool condition) {
    if (!condition) abort();
}

struct subjects {
    struct tokenizer *tokenizers[64];
    size_t n;
};

static void load_json(struct subjects *subjects, const json_t *parts) {
    char *json = json_dumps(parts, JSON_COMPACT);
    require(json && subjects->n < 64);
    require(tokenizer_load_bytes(&subjects->tokenizers[subjects->n++], json, strlen(json), NULL) ==
            0);
    json_arena_free(json);
}

static void load_families(struct subjects *subjects) {
    static const char *const PATHS[] = {
        DATA_DIR "/families/llama-2.json", DATA_DIR "/families/llama-2-normalized.json",
        DATA_DIR "/families/mistral.json", DATA_DIR "/families/phi-3.json",
        DATA_DIR "/families/gemma.json",   DATA_DIR "/families/phrases.json",
        DATA_DIR "/families/unknown.json", DATA_DIR "/families/partial.json"};
    for (size_t i = 0; i < sizeof(PATHS) / sizeof(*PATHS); i++) {
        json_t *root = json_load_file(PATHS[i], JSON_ALLOW_NUL, NULL);
        load_json(subjects, json_object_get(root, "tokenizer"));
        json_decref(root);
    }
}

static void load_variants(struct subjects *subjects) {
    json_t *root = json_load_file(DATA_DIR "/variants.json", JSON_ALLOW_NUL, NULL);
    const json_t *variants = json_object_get(root, "variants");
    for (size_t i = 0; i < json_array_size(variants); i++) {
        json_t *parts = json_copy(json_object_get(root, "base"));
        json_object_update(parts, json_object_get(json_array_get(variants, i), "parts"));
        load_json(subjects, parts);
        json_decref(parts);
    }
    json_decref(root);
}

static const struct subjects *all_subjects(void) {
    static struct subjects subjects;
    if (subjects.n > 0) return &subjects;
    require(tokenizer_load(&subjects.tokenizers[subjects.n++], DATA_DIR "/llama3", NULL) == 0);
    require(tokenizer_load(&subjects.tokenizers[subjects.n++], DATA_DIR "/gpt2", NULL) == 0);
    load_families(&subjects);
    load_variants(&subjects);
    require(subjects.n > 40);
    return &subjects;
}

/* Streaming gives the whole decode, only whole characters, within the promised room. */
static void check_stream(const struct tokenizer *tokenizer, const struct token_list *ids,
                         const char *whole, size_t length) {
    struct detokenizer d = {0};
    char buffer[4096];
    size_t done = 0;
    for (size_t i = 0; i <= ids->n; i++) {
        size_t n_token = 0;
        if (i < ids->n) tokenizer_token_bytes(tokenizer, ids->ids[i], &n_token);
        const size_t room = 3 * n_token + DETOKENIZER_GROWTH;
        require(room <= sizeof(buffer));
        const long n = i < ids->n
                           ? detokenizer_push(&d, tokenizer, ids->ids[i], false, buffer, room)
                           : detokenizer_finish(&d, tokenizer, buffer, DETOKENIZER_GROWTH);
        require(n >= 0 && utf8_is_valid(buffer, (size_t)n));
        require((size_t)n <= length - done && memcmp(whole + done, buffer, (size_t)n) == 0);
        done += (size_t)n;
    }
    require(done == length);
}

static void check_decode(const struct tokenizer *tokenizer, const struct token_list *ids,
                         const char *expected, size_t n_expected) {
    char *text = NULL;
    size_t length;
    require(tokenizer_decode(tokenizer, ids->ids, ids->n, false, &text, &length, NULL) == 0);
    require(utf8_is_valid(text, length));
    if (expected) require(length == n_expected && memcmp(text, expected, length) == 0);
    check_stream(tokenizer, ids, text, length);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const struct subjects *subjects = all_subjects();
    if (n == 0) return 0;
    const struct tokenizer *tokenizer = subjects->tokenizers[data[0] % subjects->n];
    const bool lossless = tokenizer == subjects->tokenizers[0]; /* strips and normalizes nothing */
    const char *text = (const char *)data + 1;
    struct token_list ids = {0};
    struct error err = {0};
    n--;
    const int rc = tokenizer_encode(tokenizer, text, n, false, 0, &ids, &err);
    require((rc == ERR_INVALID) == !utf8_is_valid(text, n));
    require(rc == 0 || rc == ERR_INVALID);
    if (rc == 0) check_decode(tokenizer, &ids, lossless ? text : NULL, n);

    ids.n = 0;
    for (size_t i = 0; i + 1 < n; i += 2) {
        const uint32_t id = (uint32_t)data[i + 1] | (uint32_t)data[i + 2] << 8;
        require(token_list_append(&ids, &id, 1) == 0);
    }
    check_decode(tokenizer, &ids, NULL, 0);
    free(ids.ids);
    return 0;
}
