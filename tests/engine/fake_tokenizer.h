/* fake_tokenizer.h - see fake_tokenizer.c. */
#ifndef TESTS_ENGINE_FAKE_TOKENIZER_H
#define TESTS_ENGINE_FAKE_TOKENIZER_H

struct tokenizer;

enum { FAKE_PIECES = 9, FAKE_VOCAB = 256 + FAKE_PIECES, FAKE_EOS = FAKE_VOCAB - 1 };

/* There is one, without state. */
extern const struct tokenizer *const fake_tokenizer;

#endif
