/* internal.h - the parts of a tokenizer and how text passes through them.
 *
 *   text ─ added.c ─► between ─ normalize.c, added.c ─► between ─ pretokenize.c ─► pieces ─ bpe.c
 *              └─ added tokens              └─ normalized added tokens                      └─ ids
 *
 * load.c builds all of it from a tokenizer.json; encode.c drives it; detokenize.c goes back.
 *
 * Thread: a loaded tokenizer never changes; what changes is in struct encoding, one a call.
 * Memory: each part has a _fini that accepts a zeroed or half-built one.  Functions here
 * that return ERR_NOMEM do not write the error's text; the public entry points do, once. */
#ifndef ENGINE_TOKENIZER_INTERNAL_H
#define ENGINE_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include <jansson.h>
#include <pcre2.h>

#include "engine/tokenizer.h"
#include "engine/tokenizer/text.h"

struct error;

enum {
    NO_TOKEN = 0x7FFFFFFF, /* no id; loads refuse ids far below it */
    MAX_ID = 4 << 20,      /* the largest vocabularies have a quarter of a million entries */
    MAX_STEPS = 32,        /* normalizers or pre-tokenizers in one sequence, and its nesting */
};

/* --- json.c: reading components ------------------------------------------------------------ */

/* The "type" of a component; "" if there is none. */
const char *component_type(const json_t *component);
/* A string member; NULL when absent or not a string. */
const char *member_text(const json_t *object, const char *key, size_t *n);
/* A boolean member; other when absent. */
bool member_flag(const json_t *object, const char *key, bool other);
/* The one sentence for everything this program cannot do. */
int refuse(struct error *err, const char *what, const char *name);

/* --- regex.c: patterns of the reference library on PCRE2 ------------------------------------ */

/* What matching needs beside the pattern; one per call of encode. */
struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};
int matcher_init(struct matcher *matcher);
void matcher_fini(struct matcher *matcher);

/* pattern: {"String": ...} or {"Regex": ...}. */
int pattern_parse(pcre2_code **out, const json_t *pattern, struct error *err);
int pattern_compile(pcre2_code **out, const char *pattern, size_t n, bool literal,
                    struct error *err);

/* The matches of a pattern in a text, left to right, none overlapping. */
struct match {
    size_t begin, end;
    size_t next;   /* where the search goes on */
    bool found;    /* false: there are no more */
    bool repeated; /* a match was found before */
};
int match_next(struct matcher *matcher, const pcre2_code *code, const char *text, size_t n,
               struct match *match, struct error *err);

/* --- normalize.c ----------------------------------------------------------------------------- */

enum normalizer_kind { NORMALIZE_FORM, NORMALIZE_LOWERCASE, NORMALIZE_REPLACE, NORMALIZE_PREPEND };

struct normalizer_step {
    enum normalizer_kind kind;
    bool compose, compat; /* NORMALIZE_FORM: which of NFC, NFD, NFKC, NFKD */
    pcre2_code *pattern;  /* NORMALIZE_REPLACE */
    struct text content;  /* NORMALIZE_REPLACE, NORMALIZE_PREPEND */
};

struct normalizer {
    struct normalizer_step steps[MAX_STEPS];
    size_t n_steps;
};

int normalizer_parse(struct normalizer *normalizer, const json_t *component, struct error *err);
void normalizer_fini(struct normalizer *normalizer);
/* Replaces the text by its normal form. */
int normalizer_run(const struct normalizer *normalizer, struct matcher *matcher, struct text *text,
                   struct error *err);

/* --- added.c: tokens found in the text before anything else ----------------------------------- */

struct added_token {
    const char *pattern; /* what is searched: the content, or its normal form; owned */
    size_t n;
    uint32_t id;
    bool single_word, lstrip, rstrip;
};

/* Sorted by pattern, so that the candidates at a place are a range that each byte narrows. */
struct added_set {
    struct added_token *tokens;
    size_t n, capacity;
    size_t first[257]; /* tokens[first[b]] to tokens[first[b + 1]] begin with byte b */
};

int added_add(struct added_set *set, const char *pattern, size_t n, const struct added_token *like);
void added_index(struct added_set *set); /* once, after the last added_add() */
void added_fini(struct added_set *set);

/* The next added token in the text. */
struct added_match {
    size_t begin, end; /* with the space that lstrip and rstrip take along */
    size_t next;       /* where the search goes on */
    size_t taken;      /* the text before it belongs to an earlier match */
    uint32_t id;       /* NO_TOKEN: there are no more */
};
void added_next(const struct added_set *set, const char *text, size_t n, struct added_match *match);

/* --- bpe.c ---------------------------------------------------------------------------------- */

struct merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank, id;
};

struct bpe {
    uint32_t byte_ids[256]; /* NO_TOKEN: the reference library drops the byte */
    struct merge *merges;   /* open addressing; EMPTY_PAIR where free */
    size_t mask;
};

/* Room for the symbols of one long piece, kept from piece to piece. */
struct bpe_scratch {
    void *memory;
    size_t size;
};

int bpe_init(struct bpe *bpe, size_t n_merges);
void bpe_fini(struct bpe *bpe);
/* A pair given twice keeps its last rank, as in the reference library. */
void bpe_add_merge(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* ids: room for n.  Writes the number of ids to *n_ids. */
int bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t n,
               uint32_t *ids, size_t *n_ids);

/* --- words.c: pieces that are one token ---------------------------------------------------- */

struct word_slot {
    uint32_t tag; /* the hash's other half: a mismatch seldom touches the bytes */
    uint32_t id;  /* NO_TOKEN: free */
};

struct words {
    struct word_slot *slots;
    size_t mask, longest;
};

int words_init(struct words *words, size_t n_words);
void words_fini(struct words *words);
void words_add(struct words *words, const struct tokenizer *tokenizer, uint32_t id);
uint32_t words_find(const struct words *words, const struct tokenizer *tokenizer, const char *bytes,
                    size_t n);

/* --- pretokenize.c ---------------------------------------------------------------------------- */

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

struct split {
    pcre2_code *pattern; /* NULL: the step only adds the space */
    enum split_behavior behavior;
    bool invert;
    bool prefix_space; /* ByteLevel: a piece that does not begin with a space gets one */
};

struct pretokenizer {
    struct split steps[MAX_STEPS];
    size_t n_steps;
    bool byte_level; /* the last step spells bytes as characters, which bpe.c never needs to see */
};

int pretokenizer_parse(struct pretokenizer *pretokenizer, const json_t *component,
                       struct error *err);
void pretokenizer_fini(struct pretokenizer *pretokenizer);

/* --- the tokenizer and one encoding ----------------------------------------------------------- */

struct token {
    uint32_t offset, length; /* its bytes in tokenizer.bytes */
    bool exists, special, spelled;
};

struct tokenizer {
    struct token *tokens; /* by id; ids may have gaps */
    uint32_t n_tokens;
    struct text bytes;
    struct normalizer normalizer;
    struct added_set added, added_normalized;
    struct pretokenizer pretokenizer;
    struct bpe bpe;
    struct words words;
    uint32_t longest; /* bytes of a vocabulary entry at most; 0: some bytes have no token */
    struct token_list prefix, suffix; /* what the post-processor puts around a text */
};

struct encoding {
    const struct tokenizer *tokenizer;
    struct matcher matcher;
    struct bpe_scratch scratch;
    struct token_list *out;
    size_t max_ids;
    struct error *err;
};

/* pretokenize.c: cuts a text into pieces and hands each to encode_piece(). */
int pretokenizer_run(struct encoding *encoding, const char *text, size_t n);

/* encode.c */
int encode_piece(struct encoding *encoding, const char *piece, size_t n);
int token_list_reserve(struct token_list *list, size_t n); /* room for n more */
int token_list_append(struct token_list *list, const uint32_t *ids, size_t n);

/* load.c: what tokenizer_load() does with the file's bytes. */
int tokenizer_load_bytes(struct tokenizer **out, const char *json, size_t n, struct error *err);

#endif
