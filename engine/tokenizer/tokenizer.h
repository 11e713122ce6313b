/* tokenizer.h - text to token ids and back, from a Hugging Face tokenizer.json.
 *
 * Thread: a loaded tokenizer is immutable; encode and decode may run on any thread at once.
 * Memory: the tokenizer owns its tables; results are owned by the caller. */
#ifndef ENGINE_TOKENIZER_TOKENIZER_H
#define ENGINE_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct byte_span;
struct error;
struct tokenizer;
struct tokenizer_cache;

/* Growable array of ids; zero-initialise, free(ids) when done. */
struct token_list {
    uint32_t *ids;
    size_t n, capacity;
};

/* Loads a tokenizer from path, a model directory, a GGUF file or a tokenizer.json.  Of a model what
 * token_names.h lists counts, too.  Refuses unsupported components by name. */
int tokenizer_load(struct tokenizer **out, const char *path, struct error *err);
void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is allowed */

uint32_t tokenizer_n_vocab(const struct tokenizer *tokenizer); /* highest id + 1 */

/* Appends the ids of text (UTF-8; ERR_INVALID otherwise) to out.  Special and added tokens in the
 * text are recognised.  With add_special the post-processor runs (BOS).  Stops with ERR_TOO_LONG
 * once out->n would exceed max_ids (0: no bound). */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     bool add_special, size_t max_ids, struct token_list *out, struct error *err);

/* A text to encode, and how. */
struct tokenizer_input {
    const char *text;
    size_t length;
    bool add_special; /* as above */
    /* Special tokens are recognised inside the n_trusted spans only: what lies elsewhere, or only
     * in part inside, is text.  The spans are in order and disjoint. */
    bool is_trusted_in_part;
    const struct byte_span *trusted;
    size_t n_trusted;
    /* Text that was encoded in the same scope before is looked up, with the same ids
     * (tokenizer_cache.h).  NULL: nothing is. */
    struct tokenizer_cache *cache;
    uint64_t scope;
};
/* Does the same as tokenizer_encode().  ERR_INVALID, too, if a part of the text that is not trusted
 * is a special token by itself, which only a vocabulary that merges into one allows. */
int tokenizer_encode_input(const struct tokenizer *tokenizer, const struct tokenizer_input *input,
                           size_t max_ids, struct token_list *out, struct error *err);

/* Returns the bytes that a token stands for (not necessarily UTF-8), borrowed.  Returns NULL for an
 * id that does not exist. */
const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, uint32_t id, size_t *length);
bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id);
/* Returns the bytes of the special token that the text begins with; 0: there is none. */
size_t tokenizer_special_at(const struct tokenizer *tokenizer, const char *text, size_t n);
/* Finds the added or special token whose content is the text. */
bool tokenizer_find_added(const struct tokenizer *tokenizer, const char *text, size_t n,
                          uint32_t *id);

/* Writes the id of the token that the model's directory calls bos_token or eos_token.  Returns
 * false if no file names one, or the vocabulary has no such token. */
enum token_name { TOKEN_BEGIN, TOKEN_END, N_TOKEN_NAMES };
bool tokenizer_named(const struct tokenizer *tokenizer, enum token_name name, uint32_t *id);
/* Returns the ids that are put in front of a text with add_special, borrowed. */
const struct token_list *tokenizer_prefix(const struct tokenizer *tokenizer);

/* Decodes all ids at once, as the reference library does: invalid sequences become U+FFFD.  *out is
 * NUL-terminated, malloc'd. */
int tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t n,
                     bool skip_special, char **out, size_t *length, struct error *err);

/* Streaming decode: it takes bytes token by token and returns whole UTF-8 characters.  Its results,
 * concatenated, equal tokenizer_decode() of the same ids.  Zero-initialise it.  Set begun if the
 * text continues another one, so that its first token keeps its space. */
enum { DETOKENIZER_RUN = 32 };
struct detokenizer {
    /* The beginning of an unfinished character, or a run of byte fallback's tokens: whether those
     * are text is known when the run ends. */
    unsigned char pending[DETOKENIZER_RUN];
    uint32_t n_pending;
    bool begun;  /* the text has begun, so it loses no more of its beginning */
    bool broken; /* the run is not text: each of its bytes is U+FFFD */
};

/* Writes the text that id completes to buffer.  It takes at most 3 bytes for each byte of the
 * token, all of which may turn into U+FFFD, and DETOKENIZER_GROWTH more.  Returns the bytes
 * written, or negative ERR_FULL when capacity is too small (state unchanged).  An id that does not
 * exist writes nothing. */
enum { DETOKENIZER_GROWTH = 3 * DETOKENIZER_RUN + 16 };
long detokenizer_push(struct detokenizer *d, const struct tokenizer *tokenizer, uint32_t id,
                      bool skip_special, char *buffer, size_t capacity);
/* Flushes an unfinished character as U+FFFD, or the pending run. capacity >= DETOKENIZER_GROWTH. */
long detokenizer_finish(struct detokenizer *d, const struct tokenizer *tokenizer, char *buffer,
                        size_t capacity);
/* Does the same, and writes a byte behind it that stands for a token. */
static inline long detokenizer_push_byte(struct detokenizer *d, const struct tokenizer *tokenizer,
                                         char byte, char *buffer, size_t capacity) {
    const long n = detokenizer_finish(d, tokenizer, buffer, capacity - 1);
    if (n < 0) return n;
    buffer[n] = byte;
    d->begun = true;
    return n + 1;
}

#endif
