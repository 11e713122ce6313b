/* gguf_writing.h - a config.json that is being written from the keys and tensors of a GGUF file.
 *
 * gguf_config.c, gguf_recurrent.c, gguf_rope.c and gguf_two_heads.c write it.
 *
 * Thread: any.  Memory: the caller owns the documents. */
#ifndef ENGINE_GGUF_GGUF_WRITING_H
#define ENGINE_GGUF_GGUF_WRITING_H

#include <stddef.h>
#include <jansson.h>

struct error;
struct gguf;
struct gguf_architecture;
struct gguf_files;
struct gguf_value;

enum { WRITING_MAX_LIST = 1 << 16, WRITING_NAME_BYTES = 128 };

/* The tensor whose factors divide frequencies. */
#define GGUF_ROPE_FREQS "rope_freqs.weight"

/* What is written, and from what. */
struct gguf_writing {
    const struct gguf_files *files;
    const struct gguf *keys;
    const struct gguf_architecture *architecture;
    const char *label;
    json_t *config, *rope;
    struct error *err;
};

int writing_no_memory(const struct gguf_writing *w);
/* Refuses what a key of the architecture says. */
int writing_refuse(const struct gguf_writing *w, int code, const char *key, const char *why);
/* Returns the value of a key of the architecture, or NULL. */
const struct gguf_value *writing_key(const struct gguf_writing *w, const char *key);
/* Returns what a key says of a layer: one number for all, or a list. */
double writing_number_at(const struct gguf_writing *w, const char *key, size_t layer);

/* Sets a member of an object; value: NULL is out of memory. */
int writing_put(const struct gguf_writing *w, json_t *object, const char *name, json_t *value);
/* Returns a number that has been written; 0: there is none. */
double writing_number(const struct gguf_writing *w, const char *name);
/* Returns the size of a head, which has been written, too. */
double writing_head_dim(const struct gguf_writing *w);

/* Writes which layers are recurrent, and of what sizes (gguf_recurrent.c). */
int gguf_put_recurrent(const struct gguf_writing *w);
/* Writes how rotary frequencies are scaled (gguf_rope.c). */
int gguf_put_rope(const struct gguf_writing *w);
/* Writes what layers with a window, and those without one, have of their own
 * (gguf_two_heads.c). */
int gguf_put_two_heads(const struct gguf_writing *w);

#endif
