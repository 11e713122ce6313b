/* gguf_pre.h - how texts are split before pairs of bytes are merged, by the name in
 * tokenizer.ggml.pre.
 *
 * Thread: any.  Memory: constant. */
#ifndef ENGINE_GGUF_GGUF_PRE_H
#define ENGINE_GGUF_GGUF_PRE_H

#include <stdbool.h>
#include <stddef.h>

struct gguf_pre {
    const char *name;
    const char *pattern; /* NULL: that of GPT-2 */
    const char *numbers; /* what is split off before; NULL: nothing */
    bool splits_digits;  /* each one is a piece */
    bool is_composed;    /* the text's normal form is NFC */
    bool ignores_merges; /* a piece that is a token is not merged */
    bool adds_begin;     /* unless the file says so */
};

/* Returns NULL if the name, of n bytes, is not known. */
const struct gguf_pre *gguf_pre_find(const char *name, size_t n);
/* Returns the first that splits texts as `like` does, whatever its name; NULL: none does. */
const struct gguf_pre *gguf_pre_like(const struct gguf_pre *like);
/* Writes the known names. */
enum { GGUF_PRE_TEXT = 400 };
void gguf_pre_text(char text[GGUF_PRE_TEXT]);

#endif
