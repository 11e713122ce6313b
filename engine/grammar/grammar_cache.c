/* grammar_cache.c - see grammar_cache.h.
 *
 * A list in order of use.  It is short, because grammars are large, and is only walked once a
 * request: so there is no hash to make collide. */
#include "engine/grammar/grammar_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"

enum { MAX_KEPT = 256 };

struct kept {
    struct kept *next; /* less recently used */
    struct grammar *grammar;
    size_t bytes; /* with the text */
    enum grammar_kind kind;
    size_t n;
    char text[];
};

struct grammar_cache {
    struct grammar_vocab *vocab;
    size_t max_bytes;
    pthread_mutex_t lock; /* of what follows */
    struct kept *first;
    size_t bytes;
    uint32_t n_kept;
};

int grammar_cache_create(struct grammar_cache **out, struct grammar_vocab *vocab,
                         size_t max_bytes) {
    struct grammar_cache *cache = calloc(1, sizeof(*cache));
    if (!cache) return ERR_NOMEM;
    cache->vocab = vocab;
    cache->max_bytes = max_bytes;
    pthread_mutex_init(&cache->lock, NULL);
    *out = cache;
    return 0;
}

static void kept_free(struct kept *kept) {
    grammar_unref(kept->grammar);
    free(kept);
}

/* Frees a list that nothing else knows. */
static void free_all(struct kept *kept) {
    for (struct kept *next; kept; kept = next) {
        next = kept->next;
        kept_free(kept);
    }
}

void grammar_cache_destroy(struct grammar_cache *cache) {
    if (!cache) return;
    free_all(cache->first);
    grammar_vocab_destroy(cache->vocab);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

/* Moves the text's entry to the front and returns it; NULL: there is none.  Under the lock. */
static struct kept *use(struct grammar_cache *cache, enum grammar_kind kind, const char *text,
                        size_t n) {
    for (struct kept **link = &cache->first; *link; link = &(*link)->next) {
        struct kept *kept = *link;
        if (kept->kind != kind || kept->n != n || memcmp(kept->text, text, n) != 0) continue;
        *link = kept->next;
        kept->next = cache->first;
        cache->first = kept;
        return kept;
    }
    return NULL;
}

struct grammar *grammar_cache_find(struct grammar_cache *cache, enum grammar_kind kind,
                                   const char *text, size_t n) {
    pthread_mutex_lock(&cache->lock);
    struct kept *kept = use(cache, kind, text, n);
    struct grammar *grammar = kept ? grammar_ref(kept->grammar) : NULL;
    pthread_mutex_unlock(&cache->lock);
    return grammar;
}

/* Unlinks what is too much, from the end, and returns it.  Under the lock. */
static struct kept *cut(struct grammar_cache *cache) {
    size_t bytes = 0;
    uint32_t n_kept = 0;
    struct kept **link = &cache->first;
    for (; *link && n_kept < MAX_KEPT && bytes + (*link)->bytes <= cache->max_bytes;
         link = &(*link)->next) {
        bytes += (*link)->bytes;
        n_kept++;
    }
    struct kept *rest = *link;
    *link = NULL;
    cache->bytes = bytes;
    cache->n_kept = n_kept;
    return rest;
}

/* Keeps the grammar, if there is memory for that. */
static void keep(struct grammar_cache *cache, struct grammar *grammar, enum grammar_kind kind,
                 const char *text, size_t n) {
    struct kept *kept = malloc(sizeof(*kept) + n);
    if (!kept) return;
    *kept = (struct kept){
        .grammar = grammar_ref(grammar), .bytes = grammar_bytes(grammar) + n, .kind = kind, .n = n};
    memcpy(kept->text, text, n);
    pthread_mutex_lock(&cache->lock);
    kept->next = cache->first;
    cache->first = kept;
    struct kept *rest = cut(cache);
    pthread_mutex_unlock(&cache->lock);
    free_all(rest);
}

int grammar_cache_get(struct grammar_cache *cache, struct grammar **out, enum grammar_kind kind,
                      const char *text, size_t n, struct error *err) {
    struct grammar *grammar = grammar_cache_find(cache, kind, text, n);
    if (!grammar) {
        const int code = grammar_compile(&grammar, cache->vocab, kind, text, n, err);
        if (code) return code;
        if (grammar_bytes(grammar) > cache->max_bytes) {
            grammar_unref(grammar);
            return error_set(err, ERR_INVALID, "it takes more than %zu MB when it is compiled",
                             cache->max_bytes >> 20);
        }
        keep(cache, grammar, kind, text, n);
    }
    *out = grammar;
    return 0;
}

uint32_t grammar_cache_n_kept(struct grammar_cache *cache) {
    pthread_mutex_lock(&cache->lock);
    const uint32_t n = cache->n_kept;
    pthread_mutex_unlock(&cache->lock);
    return n;
}
