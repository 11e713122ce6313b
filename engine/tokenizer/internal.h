/* internal.h - the parts of a tokenizer and how text passes through them.
 *
 *   text ─ added.c ─► between ─ normalize.c, added.c ─► between ─ pretokenize.c ─► pieces
 *              └─ added tokens              └─ normalized added tokens                 │
 *                                             ids ◄─ windows.c, bpe.c ◄─ symbols.c ◄───┘
 *
 * load.c builds all of it from a tokenizer.json, with vocabulary.c for the tokens and their merges
 * and post_processor.c for the ids around a text.  encode.c drives it, with chunks.c to look up
 * text that was encoded before; detokenize.c turns ids back into text, with what decoder.c made of
 * each token.
 *
 * Thread: a loaded tokenizer never changes; what changes is in struct encoding, one a call.
 * Memory: each part has a _fini that accepts a zeroed or half-built one.  Functions here
 * that return ERR_NOMEM do not write the error's text; the public entry points do, once. */
#ifndef ENGINE_TOKENIZER_INTERNAL_H
#define ENGINE_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include <jansson.h>
#include <pcre2.h>

#include "engine/base/span.h"
#include "engine/tokenizer/text.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_cache.h"

struct error;
struct token_names;

/* Symbols of a piece are numbered in 32 bits, and a long piece may take fifty bytes of memory for
 * each of its bytes. */
enum { LONGEST_TEXT = 1 << 30 };

enum {
    NO_TOKEN = 0x7FFFFFFF, /* no id; loads refuse ids far below it */
    MAX_ID = 4 << 20,      /* the largest vocabularies have a quarter of a million entries */
    MAX_STEPS = 32,        /* normalizers or pre-tokenizers in one sequence */
};

/* --- json.c: reading components ------------------------------------------------------------ */

/* Returns the "type" of a component, or "" if it has none. */
const char *component_type(const json_t *component);
/* Returns a string member and its length, or NULL if it is absent or not a string. */
const char *member_text(const json_t *object, const char *key, size_t *n);
/* Appends a string member to text; ERR_INVALID if it is absent or not a string. */
int member_append(struct text *text, const json_t *object, const char *key, struct error *err);
/* Returns a boolean member, or `other` if it is absent. */
bool member_flag(const json_t *object, const char *key, bool other);
/* Refuses what this program does not support, always in the same words; returns ERR_UNSUPPORTED. */
int refuse(struct error *err, const char *what, const char *name);

/* --- regex.c: patterns of the reference library on PCRE2 ------------------------------------ */

struct pattern {
    struct text literal;  /* the text to search for; if empty, code is used */
    pcre2_code *code;     /* the compiled pattern */
    pcre2_code *at_place; /* the same, tried at one place of the text only */
    bool is_forward;      /* matches depend on nothing before them, and are not empty */
};

/* Parses a pattern of the file: {"String": ...} or {"Regex": ...}. */
int pattern_parse(struct pattern **out, const json_t *pattern, struct error *err);
int pattern_compile(struct pattern **out, const char *pattern, size_t n, bool literal,
                    struct error *err);
void pattern_free(struct pattern *pattern); /* NULL is allowed */

/* --- match.c: searching, and replacing what is found ---------------------------------------- */

/* What matching needs beside the pattern, and the budgets that are left to all matches of one call
 * of encode.  A tokenizer.json can ask for more work than a client would wait for. */
struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint64_t steps;  /* steps left, for attempts that need many */
    uint64_t budget; /* bytes left that rewriting may still write */
};
int matcher_init(struct matcher *matcher, size_t n_text); /* n_text: bytes of the texts to come */
void matcher_fini(struct matcher *matcher);
/* Takes n bytes of a rewritten text from the budget; ERR_INVALID if fewer are left. */
int matcher_use_budget(struct matcher *matcher, size_t n, struct error *err);

/* The matches of a pattern in a text, left to right, none overlapping. */
struct match {
    size_t begin, end;
    size_t next;   /* where the search continues */
    bool found;    /* false: there are no more */
    bool repeated; /* a match was found before */
};
int match_next(struct matcher *matcher, const struct pattern *pattern, const char *text, size_t n,
               struct match *match, struct error *err);

/* Does the same for a pattern that is forward, where more text may follow the n bytes: finds the
 * next match if it is the next one whatever follows.  A match that needs many steps is not found,
 * either. */
void match_next_certain(struct matcher *matcher, const struct pattern *pattern, const char *text,
                        size_t n, struct match *match);

/* Parses the normalizer or the decoder Replace, by which every match in the text becomes
 * content. */
int replace_parse(struct pattern **pattern, struct text *content, const json_t *component,
                  struct error *err);
int replace_run(struct matcher *matcher, const struct pattern *pattern, const char *content,
                size_t n_content, struct text *text, struct error *err);

/* --- normalize.c ----------------------------------------------------------------------------- */

struct normalizer_kind; /* a row of normalize.c's table */

struct normalizer_step {
    const struct normalizer_kind *kind;
    struct pattern *pattern; /* Replace */
    struct text content;     /* Replace, Prepend */
    bool left, right;        /* Strip */
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
    bool special, single_word, lstrip, rstrip;
};

/* Sorted by pattern, so that the candidates at a place are a range that each byte narrows. */
struct added_set {
    struct added_token *tokens;
    size_t n, capacity;
    size_t first[257]; /* tokens[first[b]] to tokens[first[b + 1]] begin with byte b */
    bool begins[256];  /* whether there is one */
};

int added_add(struct added_set *set, const char *pattern, size_t n, const struct added_token *like);
void added_index(struct added_set *set); /* once, after the last added_add() */
void added_fini(struct added_set *set);

/* Where special tokens are recognised: in spans of the text that is searched, all of each inside
 * one. */
struct trust {
    const struct byte_span *spans;
    size_t n;
};

/* The next added token in the text. */
struct added_match {
    size_t begin, end;         /* with the space that lstrip and rstrip include */
    size_t next;               /* where the search continues */
    size_t taken;              /* the text before it belongs to an earlier match */
    uint32_t id;               /* NO_TOKEN: there are no more */
    const struct trust *trust; /* NULL: everywhere */
    size_t span;               /* the first one that does not end before `next` */
};
void added_next(const struct added_set *set, const char *text, size_t n, struct added_match *match);

/* --- symbols.c: what merging begins with ---------------------------------------------------- */

enum { N_CHAR_PAGES = 0x1100, CHAR_PAGE = 256, JOIN_WORDS = 1 << 14 };

/* The symbols of a piece are its bytes (after ByteLevel) or its characters.  A character that has
 * no token becomes the tokens <0x00> to <0xFF> of its bytes, or the unknown token, or nothing. */
struct symbols {
    bool bytes;                    /* ByteLevel */
    uint32_t byte_ids[256];        /* NO_TOKEN: the reference library drops the byte */
    uint32_t *pages[N_CHAR_PAGES]; /* by character; NULL: none of its 256 has a token */
    uint32_t fallback[256];
    bool falls_back, fuses_unknown;
    uint32_t unknown; /* NO_TOKEN: none */
    /* The pairs of characters that some merge joins, as bits at a hash of the pair.  Two characters
     * that no merge joins are a cut: the text before it merges independently of what follows.
     * Pairs that share a bit only hide cuts.  NULL: there are no cuts. */
    uint64_t *joins;
};

void symbols_init(struct symbols *symbols, bool bytes);
void symbols_fini(struct symbols *symbols);
int symbols_add_char(struct symbols *symbols, uint32_t character, uint32_t id);
/* Records a merge, which joins the last character of left and the first of right; neither is
 * empty. */
void symbols_join(struct symbols *symbols, const char *left, size_t n_left, const char *right);
/* Writes the ids of a piece's symbols to ids, which has space for n.  Returns their number. */
size_t symbols_write(const struct symbols *symbols, const char *piece, size_t n, uint32_t *ids);
/* Returns the number of bytes before the first cut, or n if there is none. */
size_t symbols_cut(const struct symbols *symbols, const char *piece, size_t n);

/* --- bpe.c ---------------------------------------------------------------------------------- */

struct merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank, id;
};

struct bpe {
    struct merge *merges; /* open addressing; EMPTY_PAIR where free */
    size_t mask;
    /* A bit for each pair at its hash.  Most pairs that are looked up do not merge, and a cache may
     * hold these bits where it does not hold the table. */
    uint8_t *sieve;
};

enum {
    BPE_FEW = 64, /* symbols that are merged without a heap */
    /* A rank and one of so few places fit a number of 32 bits. */
    MAX_MERGES = INT32_MAX / BPE_FEW,
};

/* Symbols of a piece, and what they merge to; see windows.c. */
struct window {
    size_t begin, end; /* in the piece */
    uint32_t *ids;     /* tokens */
    uint32_t *begins;  /* the symbol that each token begins with, from the window's first */
    size_t n, capacity;
};

/* Workspace for the symbols of one long piece, kept from piece to piece. */
struct bpe_scratch {
    void *memory;
    size_t size;
    struct merge_batch *heap; /* of bpe.c */
    size_t n_heap;
    struct window windows[2];
};

int bpe_init(struct bpe *bpe, size_t n_merges);
void bpe_fini(struct bpe *bpe);
/* Adds a merge.  A pair given twice keeps its last rank, as in the reference library. */
void bpe_add_merge(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
/* Merges n_ids symbols in place.  Writes the symbol that each token begins with to begins, which
 * has space for n_ids. */
int bpe_merge_at_once(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t *ids,
                      uint32_t *begins, size_t *n_ids);

/* --- windows.c ------------------------------------------------------------------------------ */

/* Merges n_ids symbols in place, as bpe_merge_at_once() does, in time that grows linearly for all
 * but texts made to prevent it. */
int bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t *ids, size_t *n_ids);
void bpe_scratch_fini(struct bpe_scratch *scratch);

/* --- words.c: pieces that are one token ---------------------------------------------------- */

struct word_slot {
    uint32_t tag; /* the hash's other half: a mismatch seldom touches the bytes */
    uint32_t id;  /* NO_TOKEN: free */
    uint32_t offset, length;
};

struct words {
    struct word_slot *slots;
    struct text bytes;
    size_t mask, longest;
};

int words_init(struct words *words, size_t n_words);
void words_fini(struct words *words);
int words_add(struct words *words, const char *bytes, size_t n, uint32_t id);
uint32_t words_find(const struct words *words, const char *bytes, size_t n);

/* --- pretokenize.c ---------------------------------------------------------------------------- */

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

enum prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

struct metaspace {
    char space[5]; /* one character, which stands for a space */
    enum prepend prepend;
    bool split;
};

struct split {
    struct pattern *pattern; /* NULL: the step only rewrites */
    enum split_behavior behavior;
    bool invert;
    char space[5];        /* Metaspace and ByteLevel: what stands for a space; "": no rewriting */
    enum prepend prepend; /* whether a piece that does not begin with it gets one */
};

struct pretokenizer {
    struct split steps[MAX_STEPS];
    size_t n_steps;
    bool byte_level;  /* a step is ByteLevel; in the end pieces are bytes */
    size_t n_spelled; /* steps behind it, which see bytes spelled as characters (alphabet_char()) */
};

/* Parses the pre-tokenizer or the decoder Metaspace. */
int metaspace_parse(struct metaspace *metaspace, const json_t *component, struct error *err);
int pretokenizer_parse(struct pretokenizer *pretokenizer, const json_t *component,
                       struct error *err);
void pretokenizer_fini(struct pretokenizer *pretokenizer);

/* --- decoder.c: what a token is to decoding --------------------------------------------------- */

struct decoder_step {
    struct pattern *pattern; /* Replace, Metaspace: every match becomes content; NULL: Strip */
    struct text content;     /* Strip: the character to remove */
    bool drops_at_first;     /* Metaspace: the first token's matches become nothing */
    json_int_t most;         /* Strip: how many are removed at most */
};

struct text_decoder {
    struct decoder_step steps[MAX_STEPS]; /* what happens to each token by itself, at load */
    size_t n_steps;
    bool byte_level, byte_fallback;
    bool fused;        /* later steps see the whole text */
    bool first_counts; /* a step treats the first token in its own way */
    struct text strip; /* a character that the whole text loses if it begins with it */
};

int decoder_parse(struct text_decoder *decoder, const json_t *component, struct error *err);
void decoder_fini(struct text_decoder *decoder);
/* Turns a token's content into the bytes that it stands for.  *is_byte tells whether it is a byte
 * token of byte fallback, such as <0x00>. */
int decoder_run(const struct text_decoder *decoder, struct matcher *matcher, bool first,
                struct text *token, bool *is_byte, struct error *err);

/* --- the tokenizer and one encoding ----------------------------------------------------------- */

struct token {
    uint32_t offset, length; /* its bytes in tokenizer.bytes */
    uint32_t first_length;   /* behind them, its bytes as the first token of a text */
    bool first_differs;
    bool exists, special;
    bool is_byte; /* a byte token of byte fallback */
};

struct tokenizer {
    struct token *tokens; /* by id; ids may have gaps */
    uint32_t n_tokens;
    struct text bytes;
    struct normalizer normalizer;
    struct added_set added, added_normalized;
    /* `added` and all special tokens, by their content: what is searched in a text of which parts
     * are not trusted, because places in a normal form are not places in the text. */
    struct added_set added_by_content;
    struct pretokenizer pretokenizer;
    struct symbols symbols;
    struct bpe bpe;
    struct words words;
    struct text_decoder decoder;
    uint32_t longest; /* bytes of the longest vocabulary entry; 0: some text has no token */
    struct token_list prefix, suffix; /* what the post-processor puts around a text */
    uint32_t named[N_TOKEN_NAMES];    /* NO_TOKEN: no file names one, or the vocabulary lacks it */
};

struct encoding {
    const struct tokenizer *tokenizer;
    struct matcher matcher;
    struct bpe_scratch scratch;
    struct token_list *out;
    size_t max_ids;
    bool at_start;                 /* the part being encoded begins the text */
    struct tokenizer_cache *cache; /* NULL: nothing is looked up */
    uint64_t scope;                /* of what is looked up */
    const struct trust *trust;     /* NULL: the whole text is trusted */
    struct error *err;
};

/* Cuts a text into pieces and passes each to encode_piece(); in pretokenize.c. */
int pretokenizer_run(struct encoding *encoding, const char *text, size_t n);

/* Encodes a piece and appends its ids; in encode.c. */
int encode_piece(struct encoding *encoding, const char *piece, size_t n);

/* Extends the list by n ids that have been written behind its last; in encode.c. */
int encoding_extend(struct encoding *encoding, size_t n);
/* Returns the first id behind the first n_before that is special, but for the unknown token;
 * NO_TOKEN: there is none. */
uint32_t encoding_find_special(const struct encoding *e, size_t n_before);

/* --- chunks.c: encoding chunk by chunk, with a cache ------------------------------------------ */

/* How much of a text an encoder takes. */
enum extent {
    EXTENT_WHOLE,   /* all of it: the text ends here */
    EXTENT_CERTAIN, /* the pieces that are the same whatever follows the text */
    EXTENT_FIRST,   /* the first piece at least */
};

/* Encodes pieces from the text's beginning on and appends their ids.  *done: the bytes they
 * have. */
typedef int (*extent_fn)(struct encoding *encoding, size_t step, const char *text, size_t n,
                         enum extent extent, size_t *done);
/* Encodes a text that `step` of the pre-tokenizer gets; the step behind its last gets pieces.  An
 * encoder that begins at any piece must make of the rest what it makes of it in the whole text. */
int encode_chunks(struct encoding *encoding, size_t step, const char *text, size_t n,
                  extent_fn encode);

/* Grows the list so that n more ids fit; in token_list.c, like the one below.  ERR_NOMEM. */
int token_list_reserve(struct token_list *list, size_t n);
/* Appends n ids.  ERR_NOMEM. */
int token_list_append(struct token_list *list, const uint32_t *ids, size_t n);

/* --- extra_tokens.c: added tokens that other files of the directory tell of ------------------- */

/* Makes the list of added tokens: `own`, those of tokenizer.json, with what the names say.  The
 * caller owns *out.  ERR_NOMEM. */
int extra_tokens_merge(json_t **out, json_t *own, const json_t *vocab,
                       const struct token_names *names);

/* --- loading ---------------------------------------------------------------------------------- */

/* Reads a token's id.  ERR_INVALID if it is missing, negative, or too large for the number of
 * tokens that the file has; in tokens.c. */
int check_id(const json_t *id, size_t n_entries, uint32_t *out, struct error *err);
/* Returns the id of a vocabulary entry, or NO_TOKEN. */
uint32_t vocab_find(const json_t *vocab, const char *content, size_t n);
/* Makes id decode to what the decoder makes of content; in tokens.c. */
int define_token(struct tokenizer *tokenizer, struct matcher *matcher, uint32_t id,
                 const char *content, size_t n, struct error *err);
/* Makes an id that is defined decode to what the decoder makes of content; in tokens.c. */
int redefine_token(struct tokenizer *tokenizer, struct matcher *matcher, uint32_t id,
                   const char *content, size_t n, struct error *err);
/* Reports a failure together with the token that caused it, and returns rc; in tokens.c. */
int blame_token(int rc, const char *content, const struct error *why, struct error *err);

/* Loads tokens, merges and words; in vocabulary.c.  n_added: the number of added tokens, whose ids
 * may follow the vocabulary's. */
int vocabulary_load(struct tokenizer *tokenizer, const json_t *model, size_t n_added,
                    struct matcher *matcher, struct error *err);
/* Loads the ids that go before and after a text; in post_processor.c. */
int post_processor_load(struct tokenizer *tokenizer, const json_t *component, struct error *err);

/* Builds a tokenizer from the bytes of a tokenizer.json; in load.c. */
int tokenizer_load_bytes(struct tokenizer **out, const char *json, size_t n, struct error *err);

#endif
