/* symbols.c - turns a piece into the symbols that merging begins with, and finds where it may be
 * cut; see internal.h.
 *
 * A SentencePiece-style text has no pre-tokenizer: all of it is one piece.  It is still merged word
 * by word, because hardly any vocabulary joins a letter and the space that follows:
 *
 *   ▁the▁quick▁fox      joins: ▁t th he ▁q qu ui ...      never: e▁ k▁
 *   ▁the|▁quick|▁fox    no merge crosses a bar, so each part merges as it would in the whole
 *
 * Thread: immutable once loaded.  Memory: the tables; a page of ids for 256 characters. */
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

void symbols_init(struct symbols *symbols, bool bytes) {
    *symbols = (struct symbols){.bytes = bytes, .unknown = NO_TOKEN};
    for (size_t b = 0; b < 256; b++) symbols->byte_ids[b] = symbols->fallback[b] = NO_TOKEN;
}

void symbols_fini(struct symbols *symbols) {
    for (size_t i = 0; i < N_CHAR_PAGES; i++) free(symbols->pages[i]);
    free(symbols->joins);
    *symbols = (struct symbols){0};
}

int symbols_add_char(struct symbols *symbols, uint32_t character, uint32_t id) {
    uint32_t **page = &symbols->pages[character / CHAR_PAGE];
    if (!*page) {
        *page = malloc(CHAR_PAGE * sizeof(**page));
        if (!*page) return ERR_NOMEM;
        for (size_t i = 0; i < CHAR_PAGE; i++) (*page)[i] = NO_TOKEN;
    }
    (*page)[character % CHAR_PAGE] = id;
    return 0;
}

static uint32_t char_id(const struct symbols *symbols, uint32_t character) {
    const uint32_t *page = symbols->pages[character / CHAR_PAGE];
    return page ? page[character % CHAR_PAGE] : NO_TOKEN;
}

/* Returns the place of a pair's bit. */
static size_t join_bit(uint32_t left, uint32_t right) {
    const uint64_t hash = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(hash >> 32) % (64 * (size_t)JOIN_WORDS);
}

void symbols_join(struct symbols *symbols, const char *left, size_t n_left, const char *right) {
    const char *after;
    if (!symbols->joins) return;
    const uint32_t last = utf8_next(utf8_before(left + n_left), &after);
    const size_t bit = join_bit(last, utf8_next(right, &after));
    symbols->joins[bit / 64] |= UINT64_C(1) << bit % 64;
}

static bool joins(const struct symbols *symbols, uint32_t left, uint32_t right) {
    const size_t bit = join_bit(left, right);
    return symbols->joins[bit / 64] >> bit % 64 & 1;
}

/* Finds the first cut.  Only characters with tokens of their own are cut apart: merges may join the
 * tokens that stand for the others by other rules. */
size_t symbols_cut(const struct symbols *symbols, const char *piece, size_t n) {
    const char *p = piece, *end = piece + n;
    if (!symbols->joins) return n;
    uint32_t left = utf8_next(p, &p);
    bool left_known = char_id(symbols, left) != NO_TOKEN;
    while (p < end) {
        const char *after;
        const uint32_t right = utf8_next(p, &after);
        const bool right_known = char_id(symbols, right) != NO_TOKEN;
        if (left_known && right_known && !joins(symbols, left, right)) return (size_t)(p - piece);
        left = right;
        left_known = right_known;
        p = after;
    }
    return n;
}

static size_t write_bytes(const uint32_t *byte_ids, const char *bytes, size_t n, uint32_t *ids) {
    size_t n_ids = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t id = byte_ids[(unsigned char)bytes[i]];
        if (id != NO_TOKEN) ids[n_ids++] = id;
    }
    return n_ids;
}

/* Returns whether byte fallback is on and each byte of a character has its token. */
static bool falls_back(const struct symbols *symbols, const char *p, const char *after) {
    while (symbols->falls_back && p < after) {
        if (symbols->fallback[(unsigned char)*p++] == NO_TOKEN) return false;
    }
    return symbols->falls_back;
}

size_t symbols_write(const struct symbols *symbols, const char *piece, size_t n, uint32_t *ids) {
    if (symbols->bytes) return write_bytes(symbols->byte_ids, piece, n, ids);
    const char *end = piece + n, *after;
    size_t n_ids = 0;
    bool unknown = false; /* an unknown token waits for more to fuse with it */
    for (const char *p = piece; p < end; p = after) {
        const uint32_t id = char_id(symbols, utf8_next(p, &after));
        if (id == NO_TOKEN && falls_back(symbols, p, after)) {
            /* As in the reference library, they come before a waiting unknown token. */
            n_ids += write_bytes(symbols->fallback, p, (size_t)(after - p), ids + n_ids);
            continue;
        }
        if (id == NO_TOKEN && symbols->unknown == NO_TOKEN) continue;
        if (unknown && (id != NO_TOKEN || !symbols->fuses_unknown)) {
            ids[n_ids++] = symbols->unknown;
        }
        unknown = id == NO_TOKEN;
        if (!unknown) ids[n_ids++] = id;
    }
    if (unknown) ids[n_ids++] = symbols->unknown;
    return n_ids;
}
