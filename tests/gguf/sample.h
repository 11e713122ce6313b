/* sample.h - the header of a small model's GGUF file, with a tokenizer of pieces or of bytes.
 *
 * Thread: any one.  Memory: the writer's. */
#ifndef TESTS_GGUF_SAMPLE_H
#define TESTS_GGUF_SAMPLE_H

#include <stdbool.h>
#include <string.h>

#include "tests/gguf/writer.h"

enum { SAMPLE_KEYS = 18, SAMPLE_TOKENIZER_KEYS = 10, SAMPLE_TOKENS = 8, SAMPLE_DIM = 8 };

static inline void write_sample_tokenizer(struct writer *w, const char *model) {
    static const char *const texts[SAMPLE_TOKENS] = {"<unk>", "<s>", "</s>", "a",
                                                     "b",     "ab",  "aba",  "x y"};
    static const uint8_t kinds[SAMPLE_TOKENS] = {2, 3, 3, 1, 1, 1, 1, 4};
    static const float scores[SAMPLE_TOKENS] = {0, 0, 0, -1, -2, -3, -4, -1000};
    write_string_key(w, "tokenizer.ggml.model", model);
    write_string_key(w, "tokenizer.ggml.pre", strcmp(model, "gpt2") ? "default" : "llama-bpe");
    write_array_key(w, "tokenizer.ggml.tokens", GGUF_STRING, SAMPLE_TOKENS);
    for (int i = 0; i < SAMPLE_TOKENS; i++) write_text(w, texts[i]);
    write_array_key(w, "tokenizer.ggml.token_type", GGUF_I32, SAMPLE_TOKENS);
    for (int i = 0; i < SAMPLE_TOKENS; i++) write_number(w, kinds[i], 4);
    write_array_key(w, "tokenizer.ggml.scores", GGUF_F32, SAMPLE_TOKENS);
    for (int i = 0; i < SAMPLE_TOKENS; i++) write_float(w, scores[i]);
    write_array_key(w, "tokenizer.ggml.merges", GGUF_STRING, 2);
    write_text(w, "a b"), write_text(w, "ab a");
    write_whole_key(w, "tokenizer.ggml.bos_token_id", 1);
    write_whole_key(w, "tokenizer.ggml.eos_token_id", 2);
    write_whole_key(w, "tokenizer.ggml.unknown_token_id", 0);
    write_string_key(w, "tokenizer.chat_template", "{{ messages }}");
}

/* Writes the file.  extra: keys that the caller has written to another writer. */
static inline void write_sample(struct writer *w, bool pieces, const struct writer *extra,
                                uint32_t n_extra) {
    write_start(w, 3, 2, SAMPLE_KEYS + n_extra);
    for (size_t i = 0; extra && i < extra->n; i++) write_number(w, extra->bytes[i], 1);
    write_string_key(w, "general.architecture", "llama");
    write_whole_key(w, "llama.context_length", 64);
    write_whole_key(w, "llama.embedding_length", SAMPLE_DIM);
    write_whole_key(w, "llama.block_count", 1);
    write_array_key(w, "llama.feed_forward_length", GGUF_U32, 2);
    write_number(w, 16, 4), write_number(w, 16, 4);
    write_whole_key(w, "llama.attention.head_count", 2);
    write_key(w, "llama.attention.layer_norm_rms_epsilon", GGUF_F32);
    write_float(w, 1e-5F);
    write_key(w, "llama.rope.freq_base", GGUF_F32);
    write_float(w, 50000);
    write_sample_tokenizer(w, pieces ? "llama" : "gpt2");
    write_tensor(w, "token_embd.weight", 0, SAMPLE_TOKENS, SAMPLE_DIM, 0);
    write_tensor(w, "rope_freqs.weight", 0, 0, 2, 256);
    write_padding(w, 32);
    write_zeros(w, 4 * SAMPLE_TOKENS * SAMPLE_DIM);
    write_float(w, 1), write_float(w, 8);
}

#endif
