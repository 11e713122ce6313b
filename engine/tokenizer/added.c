/* added.c - finds added tokens in a text: leftmost, then longest, as the reference library does.
 *
 * Thread: immutable once indexed.  Memory: the set owns its patterns. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

int added_add(struct added_set *set, const char *pattern, size_t n,
              const struct added_token *like) {
    if (set->n == set->capacity) {
        const size_t capacity = set->capacity ? 2 * set->capacity : 16;
        struct added_token *tokens = realloc(set->tokens, capacity * sizeof(*tokens));
        if (!tokens) return ERR_NOMEM;
        set->tokens = tokens;
        set->capacity = capacity;
    }
    char *copy = malloc(n);
    if (!copy) return ERR_NOMEM;
    memcpy(copy, pattern, n);
    struct added_token *token = &set->tokens[set->n++];
    *token = *like;
    token->pattern = copy;
    token->n = n;
    return 0;
}

void added_fini(struct added_set *set) {
    for (size_t i = 0; i < set->n; i++) free((void *)set->tokens[i].pattern);
    free(set->tokens);
    *set = (struct added_set){0};
}

static int compare_patterns(const void *left, const void *right) {
    const struct added_token *a = left, *b = right;
    const int order = memcmp(a->pattern, b->pattern, a->n < b->n ? a->n : b->n);
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

void added_index(struct added_set *set) {
    if (set->n > 0) qsort(set->tokens, set->n, sizeof(*set->tokens), compare_patterns);
    size_t i = 0;
    for (size_t byte = 0; byte < 256; byte++) {
        set->first[byte] = i;
        while (i < set->n && (unsigned char)set->tokens[i].pattern[0] == byte) i++;
        set->begins[byte] = i > set->first[byte];
    }
    set->first[256] = i;
}

/* Returns the first of tokens[low] to tokens[high] whose byte at `depth` is at least `value`.  All
 * of them have that byte. */
static size_t lower_bound(const struct added_set *set, size_t low, size_t high, size_t depth,
                          unsigned value) {
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((unsigned char)set->tokens[middle].pattern[depth] < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Returns the longest token that the text begins with, or NULL.  Special ones must lie within its
 * first n_trusted bytes. */
static const struct added_token *longest_at(const struct added_set *set, const char *text, size_t n,
                                            size_t n_trusted) {
    const unsigned lead = (unsigned char)text[0];
    size_t low = set->first[lead], high = set->first[lead + 1];
    const struct added_token *longest = NULL;
    for (size_t depth = 1; low < high; depth++) {
        /* Tokens that end here sort before longer ones. */
        for (; low < high && set->tokens[low].n == depth; low++)
            if (!set->tokens[low].special || depth <= n_trusted) longest = &set->tokens[low];
        if (depth == n) break;
        const unsigned byte = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return longest;
}

static bool stands_alone(const char *text, size_t n, size_t begin, size_t end) {
    const char *after;
    if (begin > 0 && char_is_word(utf8_next(utf8_before(text + begin), &after))) return false;
    return end == n || !char_is_word(utf8_next(text + end, &after));
}

/* Returns how many bytes from here on are trusted.  Places only advance. */
static size_t trusted_from(struct added_match *match, size_t at, size_t n) {
    const struct trust *trust = match->trust;
    if (!trust) return n - at;
    while (match->span < trust->n && trust->spans[match->span].end <= at) match->span++;
    if (match->span == trust->n || trust->spans[match->span].begin > at) return 0;
    return trust->spans[match->span].end - at;
}

void added_next(const struct added_set *set, const char *text, size_t n,
                struct added_match *match) {
    match->id = NO_TOKEN;
    if (set->n == 0) return;
    for (size_t at = match->next;;) {
        while (at < n && !set->begins[(unsigned char)text[at]]) at++;
        if (at == n) return;
        const struct added_token *token =
            longest_at(set, text + at, n - at, trusted_from(match, at, n));
        if (!token) {
            at++;
            continue;
        }
        const size_t end = at + token->n;
        if (token->single_word && !stands_alone(text, n, at, end)) {
            at = end;
            continue;
        }
        match->begin =
            token->lstrip && at > match->taken ? skip_space_back(text, at, match->taken) : at;
        /* Space beyond this token that an earlier one has stripped is skipped in one go. */
        match->end =
            !token->rstrip ? end : skip_space(text, end > match->taken ? end : match->taken, n);
        match->next = end;
        match->id = token->id;
        return;
    }
}

/* Returns the longest added token that the text begins with, by its content; NULL: there is
 * none. */
static const struct added_token *added_at(const struct tokenizer *tokenizer, const char *text,
                                          size_t n) {
    const struct added_set *set = &tokenizer->added_by_content;
    return n > 0 && set->n > 0 ? longest_at(set, text, n, n) : NULL;
}

size_t tokenizer_special_at(const struct tokenizer *tokenizer, const char *text, size_t n) {
    const struct added_token *token = added_at(tokenizer, text, n);
    return token && token->special ? token->n : 0;
}

bool tokenizer_find_added(const struct tokenizer *tokenizer, const char *text, size_t n,
                          uint32_t *id) {
    const struct added_token *token = added_at(tokenizer, text, n);
    if (!token || token->n != n) return false;
    *id = token->id;
    return true;
}
