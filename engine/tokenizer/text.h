/* text.h - growable byte buffers, white space, and the byte alphabet of byte-level BPE.
 *
 * Thread: any.  Memory: a struct text owns its bytes; free(text.data) when done. */
#ifndef ENGINE_TOKENIZER_TEXT_H
#define ENGINE_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise. */
struct text {
    char *data;
    size_t n, capacity;
};

/* Appends bytes, or one character.  Returns 0 or ERR_NOMEM, which the public entry points put into
 * words once. */
int text_append(struct text *text, const char *bytes, size_t n);
int text_append_char(struct text *text, uint32_t codepoint);

/* Returns where the white space that ends at `from` begins, but not less than `least`. skip_space()
 * returns where the white space that begins at `from` ends. */
size_t skip_space_back(const char *text, size_t from, size_t least);
size_t skip_space(const char *text, size_t from, size_t n);
/* Returns whether a character is \w of Rust's regex crate: Alphabetic, a mark, a decimal digit, a
 * connector or a joiner. */
bool char_is_word(uint32_t codepoint);

/* Writes to out the bytes that the characters of token stand for: byte-level BPE spells every byte
 * as one printable character.  Returns false, with out unchanged, if a character is not in the
 * alphabet. */
bool alphabet_to_bytes(const char *token, size_t n, char *out, size_t *n_out);
/* Returns the character that stands for a byte. */
uint32_t alphabet_char(unsigned char byte);

#endif
