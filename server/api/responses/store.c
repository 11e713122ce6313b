/* store.c - see store.h.
 *
 *   buckets [hash] ─► response ─► response          oldest ⇄ … ⇄ newest: by last use */
#include "server/api/responses/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "server/json/buffer.h"

enum {
    BLOCK_BYTES = 16,    /* that an allocator needs for a block */
    BUCKET_SHARE = 4096, /* a short response has about this many bytes */
    FEWEST_BUCKETS = 64,
    MOST_BUCKETS = 1 << 20,
};

struct stored_turn {
    uint32_t n_users; /* responses, later turns and readers */
    bool failed;
    struct stored_turn *before;
    struct buffer input, output;
    size_t chain_bytes;  /* of the texts from the first turn to this one */
    uint64_t chain_size; /* what these turns take */
};

struct response {
    struct response *next; /* in its bucket */
    struct response *older, *newer;
    struct stored_turn *turn;
    uint64_t hash, client, used_s;
    size_t n_head, n_tail, size; /* size: of this block */
    char text[];                 /* the head, the tail, the id with its NUL */
};

struct responses_store {
    struct responses_store_config config;
    pthread_mutex_t lock;
    struct response **buckets;
    size_t mask;
    struct response *oldest, *newest;
    struct responses_store_stats stats;
};

static uint64_t bucket_bytes(const struct responses_store *store) {
    return (store->mask + 1) * sizeof(*store->buckets);
}

int responses_store_create(struct responses_store **out,
                           const struct responses_store_config *config, struct error *err) {
    struct responses_store *store = calloc(1, sizeof(*store));
    if (!store) goto fail;
    store->config = *config;
    size_t n = FEWEST_BUCKETS;
    while (n < MOST_BUCKETS && n < config->max_bytes / BUCKET_SHARE) n *= 2;
    store->mask = n - 1;
    store->stats.n_bytes = bucket_bytes(store);
    store->buckets = calloc(n, sizeof(*store->buckets));
    if (!store->buckets || pthread_mutex_init(&store->lock, NULL)) goto fail;
    *out = store;
    return 0;

fail:
    if (store) free(store->buckets);
    free(store);
    return error_set(err, ERR_NOMEM, "no memory for --responses-store-size");
}

/* ---- turns ---- */

static size_t turn_bytes(const struct stored_turn *turn) {
    return sizeof(*turn) + turn->input.capacity + turn->output.capacity + 3 * BLOCK_BYTES;
}

/* Gives up one use of a turn, and frees it and those before it that nothing needs then. */
static void drop_turn(struct responses_store *store, struct stored_turn *turn) {
    while (turn && --turn->n_users == 0) {
        struct stored_turn *before = turn->before;
        store->stats.n_bytes -= turn_bytes(turn);
        buffer_fini(&turn->input);
        buffer_fini(&turn->output);
        free(turn);
        turn = before;
    }
}

/* Takes a text, without the memory that it has grown into for nothing. */
static struct buffer take_text(struct buffer *from) {
    struct buffer text = *from;
    *from = (struct buffer){0};
    if (text.length == 0) buffer_fini(&text);
    char *data = text.length > 0 ? realloc(text.data, text.length + 1) : NULL;
    if (!data) return text;
    text.data = data;
    text.capacity = text.length + 1;
    return text;
}

bool stored_turn_failed(const struct stored_turn *turn) {
    return turn->failed;
}

const struct stored_turn *stored_turn_before(const struct stored_turn *turn) {
    return turn->before;
}

struct stored_text stored_turn_input(const struct stored_turn *turn) {
    return (struct stored_text){turn->input.data, turn->input.length};
}

struct stored_text stored_turn_output(const struct stored_turn *turn) {
    return (struct stored_text){turn->output.data, turn->output.length};
}

size_t stored_turn_chain_bytes(const struct stored_turn *turn) {
    return turn->chain_bytes;
}

void stored_turn_release(struct responses_store *store, struct stored_turn *turn) {
    if (!turn) return;
    pthread_mutex_lock(&store->lock);
    drop_turn(store, turn);
    pthread_mutex_unlock(&store->lock);
}

/* ---- responses ---- */

static uint64_t hash_of(const struct responses_store *store, uint64_t client, const char *id) {
    struct siphash hash;
    siphash_init(&hash, store->config.key);
    siphash_absorb(&hash, client);
    siphash_absorb(&hash, strlen(id));
    siphash_absorb_bytes(&hash, id, strlen(id));
    return siphash_end(&hash);
}

static const char *id_of(const struct response *response) {
    return response->text + response->n_head + response->n_tail;
}

static struct response **bucket_of(struct responses_store *store, uint64_t hash) {
    return &store->buckets[hash & store->mask];
}

static struct response *find(struct responses_store *store, uint64_t hash, uint64_t client,
                             const char *id) {
    struct response *one = *bucket_of(store, hash);
    while (one && (one->hash != hash || one->client != client || strcmp(id_of(one), id) != 0))
        one = one->next;
    return one;
}

static void unlink_use(struct responses_store *store, struct response *one) {
    *(one->older ? &one->older->newer : &store->oldest) = one->newer;
    *(one->newer ? &one->newer->older : &store->newest) = one->older;
}

static void link_newest(struct responses_store *store, struct response *one, uint64_t now_s) {
    one->used_s = now_s;
    one->older = store->newest;
    one->newer = NULL;
    *(store->newest ? &store->newest->newer : &store->oldest) = one;
    store->newest = one;
}

static void drop(struct responses_store *store, struct response *one) {
    struct response **link = bucket_of(store, one->hash);
    while (*link != one) link = &(*link)->next;
    *link = one->next;
    unlink_use(store, one);
    drop_turn(store, one->turn);
    store->stats.n_bytes -= one->size + BLOCK_BYTES;
    store->stats.n_responses--;
    free(one);
}

static void expire(struct responses_store *store, uint64_t now_s) {
    const uint64_t age = store->config.max_age_s;
    while (age > 0 && store->oldest && now_s > store->oldest->used_s &&
           now_s - store->oldest->used_s > age) {
        drop(store, store->oldest);
        store->stats.n_expired++;
    }
}

/* Looks a response up for its client, which uses it. */
static struct response *use(struct responses_store *store, uint64_t client, const char *id,
                            uint64_t now_s) {
    expire(store, now_s);
    struct response *one = find(store, hash_of(store, client, id), client, id);
    *(one ? &store->stats.n_hits : &store->stats.n_misses) += 1;
    if (!one) return NULL;
    unlink_use(store, one);
    link_newest(store, one, now_s);
    return one;
}

static struct response *make_response(const struct responses_store *store,
                                      const struct new_response *new) {
    const size_t n_id = strlen(new->id) + 1,
                 size = sizeof(struct response) + new->head.n + new->tail.n + n_id;
    struct response *one = malloc(size);
    if (!one) return NULL;
    *one = (struct response){.hash = hash_of(store, new->client, new->id),
                             .client = new->client,
                             .n_head = new->head.n,
                             .n_tail = new->tail.n,
                             .size = size};
    memcpy(one->text, new->head.data, new->head.n);
    memcpy(one->text + new->head.n, new->tail.data, new->tail.n);
    memcpy(one->text + new->head.n + new->tail.n, new->id, n_id);
    return one;
}

/* Makes the response's turn, which takes what is to be taken.  NULL: there is no memory. */
static struct stored_turn *make_turn(const struct new_response *new) {
    struct stored_turn *turn = calloc(1, sizeof(*turn));
    if (!turn) return NULL;
    turn->n_users = 1;
    turn->failed = new->failed;
    turn->before = *new->before;
    turn->input = take_text(new->input);
    turn->output = take_text(new->output);
    turn->chain_bytes = turn->input.length + turn->output.length + 2;
    turn->chain_size = turn_bytes(turn);
    if (turn->before) {
        turn->chain_bytes += turn->before->chain_bytes;
        turn->chain_size += turn->before->chain_size;
    }
    *new->before = NULL;
    return turn;
}

/* Makes space for a response, and links it.  Returns false if it does not fit.  One that could not
 * even alone is found out before others are dropped for it. */
static bool insert(struct responses_store *store, struct response *one, uint64_t now_s) {
    const uint64_t most = store->config.max_bytes, own = one->size + BLOCK_BYTES;
    struct response *same = find(store, one->hash, one->client, id_of(one));
    if (same) drop(store, same);
    if (bucket_bytes(store) + own + one->turn->chain_size > most) return false;
    while (store->oldest && store->stats.n_bytes + own > most) {
        drop(store, store->oldest);
        store->stats.n_evicted++;
    }
    if (store->stats.n_bytes + own > most) return false;
    struct response **bucket = bucket_of(store, one->hash);
    one->next = *bucket;
    *bucket = one;
    link_newest(store, one, now_s);
    store->stats.n_bytes += own;
    store->stats.n_responses++;
    return true;
}

void responses_store_add(struct responses_store *store, const struct new_response *new,
                         uint64_t now_s) {
    struct response *one = make_response(store, new);
    struct stored_turn *turn = one ? make_turn(new) : NULL;
    pthread_mutex_lock(&store->lock);
    expire(store, now_s);
    if (turn) {
        store->stats.n_bytes += turn_bytes(turn);
        one->turn = turn;
        if (insert(store, one, now_s)) {
            one = NULL;
        } else {
            store->stats.n_too_long++;
            drop_turn(store, turn);
        }
    }
    drop_turn(store, *new->before);
    *new->before = NULL;
    pthread_mutex_unlock(&store->lock);
    free(one);
    buffer_fini(new->input);
    buffer_fini(new->output);
}

bool responses_store_has(struct responses_store *store, uint64_t client, const char *id) {
    pthread_mutex_lock(&store->lock);
    const bool has = find(store, hash_of(store, client, id), client, id) != NULL;
    pthread_mutex_unlock(&store->lock);
    return has;
}

int responses_store_find(struct responses_store *store, uint64_t client, const char *id,
                         uint64_t now_s, struct stored_turn **out) {
    pthread_mutex_lock(&store->lock);
    const struct response *one = use(store, client, id, now_s);
    if (one) *out = one->turn;
    if (one) one->turn->n_users++;
    pthread_mutex_unlock(&store->lock);
    return one ? 0 : ERR_INVALID;
}

bool responses_store_write(struct responses_store *store, uint64_t client, const char *id,
                           uint64_t now_s, struct buffer *out) {
    pthread_mutex_lock(&store->lock);
    const struct response *one = use(store, client, id, now_s);
    if (one) {
        buffer_append(out, one->text, one->n_head);
        buffer_append(out, one->turn->output.data, one->turn->output.length);
        buffer_append(out, one->text + one->n_head, one->n_tail);
    }
    pthread_mutex_unlock(&store->lock);
    return one != NULL;
}

bool responses_store_remove(struct responses_store *store, uint64_t client, const char *id) {
    pthread_mutex_lock(&store->lock);
    struct response *one = find(store, hash_of(store, client, id), client, id);
    if (one) drop(store, one);
    pthread_mutex_unlock(&store->lock);
    return one != NULL;
}

void responses_store_expire(struct responses_store *store, uint64_t now_s) {
    pthread_mutex_lock(&store->lock);
    expire(store, now_s);
    pthread_mutex_unlock(&store->lock);
}

struct responses_store_stats responses_store_stats(struct responses_store *store) {
    pthread_mutex_lock(&store->lock);
    const struct responses_store_stats stats = store->stats;
    pthread_mutex_unlock(&store->lock);
    return stats;
}

void responses_store_destroy(struct responses_store *store) {
    if (!store) return;
    while (store->oldest) drop(store, store->oldest);
    pthread_mutex_destroy(&store->lock);
    free(store->buckets);
    free(store);
}
