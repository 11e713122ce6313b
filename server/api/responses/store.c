/* store.c - see store.h.
 *
 *   buckets [hash] ─► response ─► response          by age: oldest ⇄ … ⇄ newest
 *   fates   [hash] ─► why the newest SET responses of these hashes are no longer there
 *
 * Each client has a list of the responses that end its conversations, and one of those before them
 * that have their objects still.  A response before the end of a conversation that has only its
 * turn left is evicted with that end, and is in neither list. */
#include "server/api/responses/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "server/api/responses/store_clients.h"
#include "server/json/buffer.h"

enum {
    BLOCK_BYTES = 16,    /* that an allocator needs for a block */
    BUCKET_SHARE = 4096, /* a short response has about this many bytes */
    FEWEST_BUCKETS = 64,
    MOST_BUCKETS = 1 << 20,
    SET = 8,             /* fates in one cache line */
    BUCKETS_PER_SET = 4, /* so twice as many fates are remembered as there are buckets */
    FATE_MASK = 7,       /* the bits of a hash that are replaced by its fate */
};
_Static_assert(N_RESPONSE_FATES <= FATE_MASK + 1, "a fate is in the bits of a hash");

struct stored_turn {
    uint32_t n_users; /* responses, later turns and readers */
    uint32_t n_later; /* turns that go on from this one and have not failed */
    bool failed;
    struct store_client *client;
    struct response *response; /* NULL: it has been dropped */
    struct stored_turn *before;
    struct buffer input, output;
    size_t chain_bytes;  /* of the texts from the first turn to this one */
    uint64_t chain_size; /* what these turns take */
};

enum { BY_AGE, BY_CLIENT };

struct response {
    struct response *next; /* in its bucket */
    struct {
        struct response *older, *newer;
    } links[2];
    struct response_list *list; /* of the client; NULL: neither */
    struct stored_turn *turn;
    uint64_t hash, client, used_s;
    char *object; /* the head, then the tail; NULL: evicted */
    size_t n_head, n_tail;
    char id[];
};

struct responses_store {
    struct responses_store_config config;
    pthread_mutex_t lock;
    struct response **buckets;
    uint64_t (*fates)[SET]; /* of each set, the newest first */
    size_t mask;
    struct response_list by_age;
    struct store_clients clients;
    uint64_t n_bytes; /* of turns and responses */
    bool warned;
    struct responses_store_stats stats;
};

/* Returns the bytes of everything here. */
static uint64_t bytes_of(const struct responses_store *store) {
    const size_t n = store->mask + 1;
    return n * sizeof(*store->buckets) + n / BUCKETS_PER_SET * sizeof(*store->fates) +
           store_clients_bytes(&store->clients) + store->n_bytes;
}

static void free_tables(struct responses_store *store) {
    store_clients_fini(&store->clients);
    free(store->buckets);
    free(store->fates);
    free(store);
}

int responses_store_create(struct responses_store **out,
                           const struct responses_store_config *config, struct error *err) {
    struct responses_store *store = calloc(1, sizeof(*store));
    if (!store) goto fail;
    store->config = *config;
    size_t n = FEWEST_BUCKETS;
    while (n < MOST_BUCKETS && n < config->max_bytes / BUCKET_SHARE) n *= 2;
    store->mask = n - 1;
    store->buckets = calloc(n, sizeof(*store->buckets));
    store->fates = calloc(n / BUCKETS_PER_SET, sizeof(*store->fates));
    if (!store->buckets || !store->fates || store_clients_init(&store->clients, n)) goto fail;
    if (pthread_mutex_init(&store->lock, NULL)) goto fail;
    *out = store;
    return 0;

fail:
    if (store) free_tables(store);
    return error_set(err, ERR_NOMEM, "no memory for --responses-store-size");
}

/* Counts bytes that a client takes, or gives back. */
static void count(struct responses_store *store, struct store_client *client, int64_t n_bytes) {
    store->n_bytes += (uint64_t)n_bytes;
    client->n_bytes += (uint64_t)n_bytes;
    store_clients_changed(&store->clients, client);
}

/* ---- lists ---- */

static void unlink_from(struct response_list *list, struct response *one, int by) {
    struct response *older = one->links[by].older, *newer = one->links[by].newer;
    *(older ? &older->links[by].newer : &list->oldest) = newer;
    *(newer ? &newer->links[by].older : &list->newest) = older;
}

static void link_newest(struct response_list *list, struct response *one, int by) {
    one->links[by].older = list->newest;
    one->links[by].newer = NULL;
    *(list->newest ? &list->newest->links[by].newer : &list->oldest) = one;
    list->newest = one;
}

/* Puts a response at the end of the list of its client in which it belongs now; away: none. */
static void place(struct responses_store *store, struct response *one, bool away) {
    struct store_client *client = one->turn->client;
    const bool is_last = one->turn->n_later == 0 && !one->turn->failed;
    if (one->list) unlink_from(one->list, one, BY_CLIENT);
    one->list = away ? NULL : is_last ? &client->last : one->object ? &client->earlier : NULL;
    if (one->list) link_newest(one->list, one, BY_CLIENT);
    store_clients_changed(&store->clients, client);
}

/* ---- turns ---- */

static size_t turn_bytes(const struct stored_turn *turn) {
    return sizeof(*turn) + turn->input.capacity + turn->output.capacity + 3 * BLOCK_BYTES;
}

static void free_turn(struct responses_store *store, struct stored_turn *turn) {
    struct store_client *client = turn->client;
    count(store, client, -(int64_t)turn_bytes(turn));
    if (--client->n_turns == 0) store_clients_remove(&store->clients, client);
    buffer_fini(&turn->input);
    buffer_fini(&turn->output);
    free(turn);
}

/* Gives up one use of a turn, and frees it and those before it that nothing needs then. */
static void drop_turn(struct responses_store *store, struct stored_turn *turn) {
    while (turn && --turn->n_users == 0) {
        struct stored_turn *before = turn->before;
        if (before && !turn->failed && --before->n_later == 0 && before->response)
            place(store, before->response, false);
        free_turn(store, turn);
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

static struct response **bucket_of(struct responses_store *store, uint64_t hash) {
    return &store->buckets[hash & store->mask];
}

static struct response *find(struct responses_store *store, uint64_t hash, uint64_t client,
                             const char *id) {
    struct response *one = *bucket_of(store, hash);
    while (one && (one->hash != hash || one->client != client || strcmp(one->id, id) != 0))
        one = one->next;
    return one;
}

static uint64_t object_bytes(const struct response *one) {
    return one->object ? one->n_head + one->n_tail + BLOCK_BYTES : 0;
}

static uint64_t response_bytes(const struct response *one) {
    return sizeof(*one) + strlen(one->id) + 1 + BLOCK_BYTES + object_bytes(one);
}

static void free_response(struct response *one) {
    if (one) free(one->object);
    free(one);
}

static uint64_t *set_of(const struct responses_store *store, uint64_t hash) {
    return store->fates[(hash & store->mask) / BUCKETS_PER_SET];
}

static void remember(struct responses_store *store, uint64_t hash, enum response_fate fate) {
    uint64_t *set = set_of(store, hash);
    if (fate == RESPONSE_UNKNOWN) return;
    memmove(set + 1, set, (SET - 1) * sizeof(*set));
    *set = (hash & ~(uint64_t)FATE_MASK) | fate;
}

static enum response_fate fate_of(const struct responses_store *store, uint64_t hash) {
    const uint64_t *set = set_of(store, hash);
    for (int i = 0; i < SET; i++)
        if (((set[i] ^ hash) & ~(uint64_t)FATE_MASK) == 0) return set[i] & FATE_MASK;
    return RESPONSE_UNKNOWN;
}

/* Drops a response, and remembers its fate. */
static void drop(struct responses_store *store, struct response *one, enum response_fate fate) {
    struct response **link = bucket_of(store, one->hash);
    while (*link != one) link = &(*link)->next;
    *link = one->next;
    remember(store, one->hash, fate);
    store->stats.n_dropped[fate]++;
    store->stats.n_responses--;
    unlink_from(&store->by_age, one, BY_AGE);
    place(store, one, true);
    count(store, one->turn->client, -(int64_t)response_bytes(one));
    one->turn->response = NULL;
    drop_turn(store, one->turn);
    free_response(one);
}

static void expire(struct responses_store *store, uint64_t now_s) {
    const uint64_t age = store->config.max_age_s;
    for (struct response *one; age > 0 && (one = store->by_age.oldest);) {
        if (now_s <= one->used_s || now_s - one->used_s <= age) break;
        drop(store, one, RESPONSE_EXPIRED);
    }
}

static void note_use(struct responses_store *store, struct response *one, uint64_t now_s) {
    unlink_from(&store->by_age, one, BY_AGE);
    link_newest(&store->by_age, one, BY_AGE);
    one->used_s = now_s;
    place(store, one, false);
}

/* Looks a response up for its client, which uses it.  whole: its object is needed. */
static struct response *use(struct responses_store *store, uint64_t client, const char *id,
                            bool whole, uint64_t now_s) {
    expire(store, now_s);
    const uint64_t hash = hash_of(store, client, id);
    struct response *one = find(store, hash, client, id);
    if (one) note_use(store, one, now_s);
    if (one && (!whole || one->object)) {
        store->stats.n_hits++;
        return one;
    }
    store->stats.n_misses[one ? RESPONSE_SHORTENED : fate_of(store, hash)]++;
    return NULL;
}

/* ---- space ---- */

/* Evicts the conversation that a turn ends: its response, and those before it that no other
 * conversation needs. */
static void evict_conversation(struct responses_store *store, struct stored_turn *turn) {
    turn->n_users++;
    while (turn) {
        struct stored_turn *before = turn->before;
        if (before) before->n_users++;
        if (turn->n_later == 0 && turn->response) drop(store, turn->response, RESPONSE_EVICTED);
        const bool is_needed = turn->n_users > 1;
        drop_turn(store, turn);
        if (is_needed) drop_turn(store, before);
        turn = is_needed ? NULL : before;
    }
}

/* Evicts what a client needs least.  That is an object of a response that later ones go on from,
 * because requests still can; else a conversation. */
static void evict(struct responses_store *store, struct store_client *client) {
    struct response *one = client->earlier.oldest;
    if (!one) {
        evict_conversation(store, client->last.oldest->turn);
    } else if (one->turn->failed) {
        drop(store, one, RESPONSE_EVICTED);
    } else {
        const uint64_t n = object_bytes(one);
        free(one->object);
        one->object = NULL;
        store->stats.n_dropped[RESPONSE_SHORTENED]++;
        place(store, one, false);
        count(store, client, -(int64_t)n);
    }
}

/* Tells whether evicting the client's other responses for a new one, too, would not do: it would
 * still take more than any other client. */
static bool is_in_vain(const struct responses_store *store, const struct response *new) {
    const struct store_client *client = new->turn->client;
    const uint64_t needed = new->turn->chain_size + response_bytes(new);
    return client->n_bytes - needed < bytes_of(store) - store->config.max_bytes &&
           needed >= store_clients_second_bytes(&store->clients);
}

/* Makes space for a response that has been linked, or drops it.  The client that takes most gives
 * up what it needs least, so no client can push out all that another one has. */
static void make_space(struct responses_store *store, const struct response *new) {
    struct stored_turn *turn = new->turn;
    turn->n_users++; /* the response may be evicted itself */
    while (turn->response && bytes_of(store) > store->config.max_bytes) {
        struct store_client *client = store_clients_first(&store->clients);
        if (client == turn->client && is_in_vain(store, new))
            drop(store, turn->response, RESPONSE_TOO_LONG);
        else evict(store, client);
    }
    drop_turn(store, turn);
}

static struct response *make_response(const struct responses_store *store,
                                      const struct new_response *new) {
    const size_t n_id = strlen(new->id) + 1;
    struct response *one = calloc(1, sizeof(struct response) + n_id);
    char *object = malloc(new->head.n + new->tail.n + 1);
    if (!one || !object) {
        free(object);
        free(one);
        return NULL;
    }
    memcpy(one->id, new->id, n_id);
    memcpy(object, new->head.data, new->head.n);
    memcpy(object + new->head.n, new->tail.data, new->tail.n);
    one->hash = hash_of(store, new->client, new->id);
    one->client = new->client;
    one->object = object;
    one->n_head = new->head.n;
    one->n_tail = new->tail.n;
    return one;
}
/* Makes the response's turn, which takes the texts.  NULL: there is no memory. */
static struct stored_turn *make_turn(const struct new_response *new) {
    struct stored_turn *turn = calloc(1, sizeof(*turn));
    if (!turn) return NULL;
    turn->n_users = 1;
    turn->failed = new->failed;
    turn->input = take_text(new->input);
    turn->output = take_text(new->output);
    turn->chain_bytes = turn->input.length + turn->output.length + 2;
    turn->chain_size = turn_bytes(turn);
    if (*new->before) {
        turn->chain_bytes += (*new->before)->chain_bytes;
        turn->chain_size += (*new->before)->chain_size;
    }
    return turn;
}

/* Links a turn with its client, its response and the turn before it, which it takes. */
static void link_turn(struct responses_store *store, struct stored_turn *turn,
                      struct store_client *client, struct response *one,
                      struct stored_turn **before) {
    turn->client = client;
    turn->response = one;
    turn->before = *before;
    one->turn = turn;
    client->n_turns++;
    count(store, client, (int64_t)(turn_bytes(turn) + response_bytes(one)));
    if (turn->before && !turn->failed && turn->before->n_later++ == 0 && turn->before->response)
        place(store, turn->before->response, false);
    *before = NULL;
}

/* Adds a response, whose turn is linked.  There may be none of the same client and id. */
static void link_response(struct responses_store *store, struct response *one, uint64_t now_s) {
    struct response **bucket = bucket_of(store, one->hash);
    one->next = *bucket;
    *bucket = one;
    one->used_s = now_s;
    link_newest(&store->by_age, one, BY_AGE);
    place(store, one, false);
    store->stats.n_responses++;
}

void responses_store_add(struct responses_store *store, const struct new_response *new,
                         uint64_t now_s) {
    struct response *one = make_response(store, new);
    struct stored_turn *turn = one ? make_turn(new) : NULL;
    pthread_mutex_lock(&store->lock);
    expire(store, now_s);
    struct response *same = one ? find(store, one->hash, one->client, one->id) : NULL;
    if (same) drop(store, same, RESPONSE_UNKNOWN);
    struct store_client *client = turn ? store_clients_get(&store->clients, new->client) : NULL;
    if (client) {
        link_turn(store, turn, client, one, new->before);
        link_response(store, one, now_s);
        make_space(store, one);
    }
    drop_turn(store, *new->before);
    *new->before = NULL;
    pthread_mutex_unlock(&store->lock);
    if (!client) {
        if (turn) buffer_fini(&turn->input);
        if (turn) buffer_fini(&turn->output);
        free(turn);
        free_response(one);
    }
    buffer_fini(new->input);
    buffer_fini(new->output);
}

bool responses_store_has(struct responses_store *store, uint64_t client, const char *id) {
    pthread_mutex_lock(&store->lock);
    const bool has = find(store, hash_of(store, client, id), client, id) != NULL;
    pthread_mutex_unlock(&store->lock);
    return has;
}

bool responses_store_knows(struct responses_store *store, uint64_t client, const char *id) {
    const uint64_t hash = hash_of(store, client, id);
    pthread_mutex_lock(&store->lock);
    const bool knows = find(store, hash, client, id) || fate_of(store, hash) != RESPONSE_UNKNOWN;
    pthread_mutex_unlock(&store->lock);
    return knows;
}

int responses_store_find(struct responses_store *store, uint64_t client, const char *id,
                         uint64_t now_s, struct stored_turn **out) {
    pthread_mutex_lock(&store->lock);
    const struct response *one = use(store, client, id, false, now_s);
    if (one) *out = one->turn;
    if (one) one->turn->n_users++;
    pthread_mutex_unlock(&store->lock);
    return one ? 0 : ERR_INVALID;
}

bool responses_store_write(struct responses_store *store, uint64_t client, const char *id,
                           uint64_t now_s, struct buffer *out) {
    pthread_mutex_lock(&store->lock);
    const struct response *one = use(store, client, id, true, now_s);
    if (one) {
        buffer_append(out, one->object, one->n_head);
        buffer_append(out, one->turn->output.data, one->turn->output.length);
        buffer_append(out, one->object + one->n_head, one->n_tail);
    }
    pthread_mutex_unlock(&store->lock);
    return one != NULL;
}

bool responses_store_remove(struct responses_store *store, uint64_t client, const char *id) {
    pthread_mutex_lock(&store->lock);
    struct response *one = find(store, hash_of(store, client, id), client, id);
    if (one) drop(store, one, RESPONSE_DELETED);
    pthread_mutex_unlock(&store->lock);
    return one != NULL;
}

enum response_fate responses_store_fate(struct responses_store *store, uint64_t client,
                                        const char *id, bool *is_first) {
    const uint64_t hash = hash_of(store, client, id);
    pthread_mutex_lock(&store->lock);
    const struct response *one = find(store, hash, client, id);
    const enum response_fate fate = one ? RESPONSE_SHORTENED : fate_of(store, hash);
    *is_first = fate == RESPONSE_EVICTED && !store->warned;
    store->warned |= *is_first;
    pthread_mutex_unlock(&store->lock);
    return fate;
}

const struct responses_store_config *responses_store_config(const struct responses_store *store) {
    return &store->config;
}

void responses_store_expire(struct responses_store *store, uint64_t now_s) {
    pthread_mutex_lock(&store->lock);
    expire(store, now_s);
    pthread_mutex_unlock(&store->lock);
}

struct responses_store_stats responses_store_stats(struct responses_store *store) {
    pthread_mutex_lock(&store->lock);
    struct responses_store_stats stats = store->stats;
    stats.n_bytes = bytes_of(store);
    pthread_mutex_unlock(&store->lock);
    return stats;
}

void responses_store_destroy(struct responses_store *store) {
    if (!store) return;
    while (store->by_age.oldest) drop(store, store->by_age.oldest, RESPONSE_UNKNOWN);
    pthread_mutex_destroy(&store->lock);
    free_tables(store);
}
