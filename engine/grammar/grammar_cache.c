/* grammar_cache.c - see grammar_cache.h.
 *
 * A list in order of use.  It is short, because grammars are large, and is only walked once a
 * request.  A text's hash is compared before the text; two texts with one hash are told apart. */
#include "engine/grammar/grammar_cache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/error.h"
#include "engine/grammar/compile_thread.h"

enum { MAX_KEPT = 256, REFUSAL_S = 60 };

/* What compiling may take. */
static const struct {
    double seconds;
    int64_t bytes;
} efforts[] = {[GRAMMAR_QUICK] = {0.25, 96 << 20}, [GRAMMAR_COSTLY] = {20, 192 << 20}};

struct kept {
    struct kept *next;       /* less recently used */
    struct grammar *grammar; /* NULL: it takes too much, as `refusal` says */
    char refusal[96];
    time_t refused_at; /* seconds of the monotonic clock */
    size_t bytes;      /* with the text */
    uint64_t hash;
    enum grammar_kind kind;
    size_t n;
    char text[];
};

struct grammar_cache {
    struct grammar_vocab *vocab;
    struct compile_threads *threads;
    size_t max_bytes;
    pthread_mutex_t lock; /* of what follows */
    struct kept *first;
    size_t bytes;
    uint32_t n_kept;
};

int grammar_cache_create(struct grammar_cache **out, struct grammar_vocab *vocab,
                         size_t max_bytes) {
    struct grammar_cache *cache = calloc(1, sizeof(*cache));
    if (!cache || compile_threads_create(&cache->threads)) {
        free(cache);
        return ERR_NOMEM;
    }
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
    compile_threads_destroy(cache->threads);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static uint64_t hash_of(const char *text, size_t n) {
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3;
    return hash;
}

static time_t now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Moves the text's entry to the front and returns it; NULL: there is none.  Under the lock. */
static struct kept *use(struct grammar_cache *cache, enum grammar_kind kind, const char *text,
                        size_t n, uint64_t hash) {
    for (struct kept **link = &cache->first; *link; link = &(*link)->next) {
        struct kept *kept = *link;
        if (kept->hash != hash || kept->kind != kind || kept->n != n ||
            memcmp(kept->text, text, n) != 0)
            continue;
        *link = kept->next;
        kept->next = cache->first;
        cache->first = kept;
        return kept;
    }
    return NULL;
}

struct grammar *grammar_cache_find(struct grammar_cache *cache, enum grammar_kind kind,
                                   const char *text, size_t n) {
    const uint64_t hash = hash_of(text, n);
    pthread_mutex_lock(&cache->lock);
    struct kept *kept = use(cache, kind, text, n, hash);
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

/* Removes a text's entry and returns it.  Under the lock. */
static struct kept *take_out(struct grammar_cache *cache, const struct kept *like) {
    struct kept *kept = use(cache, like->kind, like->text, like->n, like->hash);
    if (!kept) return NULL;
    cache->first = kept->next;
    kept->next = NULL;
    return kept;
}

/* Keeps the grammar, or why there is none, if there is memory for that. */
static void keep(struct grammar_cache *cache, struct grammar *grammar, const char *refusal,
                 enum grammar_kind kind, const char *text, size_t n) {
    struct kept *kept = malloc(sizeof(*kept) + n);
    if (!kept) return;
    *kept = (struct kept){.grammar = grammar_ref(grammar),
                          .bytes = sizeof(*kept) + n + (grammar ? grammar_bytes(grammar) : 0),
                          .refused_at = now_s(),
                          .hash = hash_of(text, n),
                          .kind = kind,
                          .n = n};
    if (refusal) snprintf(kept->refusal, sizeof(kept->refusal), "%.95s", refusal);
    memcpy(kept->text, text, n);
    pthread_mutex_lock(&cache->lock);
    struct kept *before = take_out(cache, kept);
    kept->next = cache->first;
    cache->first = kept;
    struct kept *rest = cut(cache);
    pthread_mutex_unlock(&cache->lock);
    free_all(rest);
    free_all(before);
}

/* Finds a text's grammar: *out, or why there is none: ERR_UNSUPPORTED.  *out stays NULL where
 * nothing is known. */
static int look_up(struct grammar_cache *cache, struct grammar **out, enum grammar_kind kind,
                   const char *text, size_t n, struct error *err) {
    const uint64_t hash = hash_of(text, n);
    int code = 0;
    pthread_mutex_lock(&cache->lock);
    const struct kept *kept = use(cache, kind, text, n, hash);
    if (kept && kept->grammar) *out = grammar_ref(kept->grammar);
    else if (kept && now_s() - kept->refused_at < REFUSAL_S)
        code = error_set(err, ERR_UNSUPPORTED, "%s", kept->refusal);
    pthread_mutex_unlock(&cache->lock);
    return code;
}

int grammar_cache_get(struct grammar_cache *cache, struct grammar **out, enum grammar_kind kind,
                      const char *text, size_t n, const struct grammar_trial *trial,
                      struct error *err) {
    static const struct grammar_trial whole = {.effort = GRAMMAR_COSTLY};
    if (!trial) trial = &whole;
    const struct grammar_limits limits = {efforts[trial->effort].seconds,
                                          efforts[trial->effort].bytes, trial->is_stopped,
                                          trial->user};
    struct grammar *grammar = NULL;
    int code = look_up(cache, &grammar, kind, text, n, err);
    if (code) return code;
    if (!grammar) {
        code = compile_thread_run(cache->threads, &grammar, cache->vocab, kind, text, n, &limits,
                                  trial->effort == GRAMMAR_COSTLY, err);
        if (code == ERR_FULL && trial->effort == GRAMMAR_QUICK) return code;
        if (!code && grammar_bytes(grammar) > cache->max_bytes) {
            grammar_unref(grammar);
            grammar = NULL;
            code = error_set(err, ERR_FULL, "it takes more than %zu MB when it is compiled",
                             cache->max_bytes >> 20);
        }
        if (code && code != ERR_FULL) return code;
        keep(cache, grammar, code ? err->text : NULL, kind, text, n);
        if (code) return err->code = ERR_UNSUPPORTED;
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
