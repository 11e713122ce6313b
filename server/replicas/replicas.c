/* replicas.c - see replicas.h. */
#include "server/replicas/replicas.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/replicas/router.h"

/* A sequence of one of several replicas, from its submission to its last event. */
struct routed {
    void *user;
    uint32_t n_to_compute; /* tokens of its prompt; 0 once they are computed */
    bool is_dropped;       /* its events are not passed on: others of its submission were refused */
};

/* One of them. */
struct replica {
    struct engine *engine;
    bool has_told; /* that it has failed */
};

struct replicas {
    uint32_t n;
    struct replica *all;   /* [n], and so is */
    bool *usable;          /* for the submission at hand */
    struct router *router; /* NULL: there is one replica */
    uint64_t most_step_s;
};

static struct engine *engine_of(const struct replicas *replicas, uint32_t replica) {
    return replicas->all[replica].engine;
}

static void free_replicas(struct replicas *replicas) {
    router_destroy(replicas->router);
    free(replicas->usable);
    free(replicas->all);
    free(replicas);
}

/* Returns how many blocks of a text the replica's caches hold. */
static uint32_t n_cached_blocks(const struct engine_info *info, bool prefix_caching) {
    const uint64_t n = (info->kv_tokens + info->host_pool_tokens) / ROUTER_BLOCK;
    if (!prefix_caching) return 0;
    return n < UINT32_MAX / 2 ? (uint32_t)n : UINT32_MAX / 2;
}

int replicas_create(struct replicas **out, struct engine *const *engines, uint32_t n,
                    bool prefix_caching, uint64_t most_step_s, struct error *err) {
    struct replicas *replicas = calloc(1, sizeof(*replicas));
    const struct engine_info *info = engine_info(engines[0]);
    int rc = ERR_NOMEM;
    if (!replicas) return error_set(err, rc, "no memory for %" PRIu32 " replicas", n);
    replicas->all = calloc(n, sizeof(*replicas->all));
    replicas->usable = calloc(n, sizeof(*replicas->usable));
    if (!replicas->all || !replicas->usable)
        error_set(err, rc, "no memory for %" PRIu32 " replicas", n);
    else if (n > 1)
        rc = router_create(&replicas->router, n, n_cached_blocks(info, prefix_caching),
                           info->salt_key, err);
    else rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++) replicas->all[i].engine = engines[i];
    replicas->n = n;
    replicas->most_step_s = most_step_s;
    if (!rc) *out = replicas;
    else free_replicas(replicas);
    return rc;
}

void replicas_destroy(struct replicas *replicas) {
    if (!replicas) return;
    replicas_stop(replicas);
    for (struct engine_event *event = replicas_take_events(replicas), *next; event; event = next) {
        next = event->next;
        engine_event_free(event);
    }
    for (uint32_t i = 0; i < replicas->n; i++) engine_destroy(engine_of(replicas, i));
    free_replicas(replicas);
}

uint32_t replicas_n(const struct replicas *replicas) {
    return replicas->n;
}

const struct engine_info *replicas_info(const struct replicas *replicas) {
    return engine_info(engine_of(replicas, 0));
}

/* ---- requests ---- */

int replicas_check_room(struct replicas *replicas, uint32_t n_requests, struct error *err) {
    int rc = ERR_FULL;
    for (uint32_t i = 0; i < replicas->n && rc; i++)
        rc = engine_check_room(engine_of(replicas, i), n_requests, err);
    return rc;
}

int replicas_admit(struct replicas *replicas, struct engine_request *requests, uint32_t n_requests,
                   struct error *err) {
    return engine_admit(engine_of(replicas, 0), requests, n_requests, err);
}

static struct routed_text text_of(const struct engine_request *r) {
    return (struct routed_text){r->prompt, r->n_prompt, r->cache_salt, r->block_names,
                                r->n_block_names};
}

static void unwrap(struct engine_request *requests, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct routed *routed = requests[i].user;
        requests[i].user = routed->user;
        free(routed);
    }
}

/* Puts a struct routed in the place of each request's `user`. */
static int wrap(struct engine_request *requests, uint32_t n, struct error *err) {
    for (uint32_t i = 0; i < n; i++) {
        struct routed *routed = calloc(1, sizeof(*routed));
        if (!routed) {
            unwrap(requests, i);
            return error_set(err, ERR_NOMEM, "no memory for %" PRIu32 " sequences", n);
        }
        routed->user = requests[i].user;
        requests[i].user = routed;
    }
    return 0;
}

/* Notes what the replica gets to do: the choices of a text. */
static void note_given(struct replicas *replicas, uint32_t replica,
                       const struct engine_request *requests, uint32_t n,
                       const struct routed_text *text) {
    for (uint32_t i = 0; i < n; i++) {
        struct routed *routed = requests[i].user;
        routed->n_to_compute = router_given(replicas->router, replica, text);
    }
}

static void take_back(struct replicas *replicas, uint32_t replica,
                      const struct engine_request *requests, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const struct routed *routed = requests[i].user;
        router_computed(replicas->router, replica, routed->n_to_compute);
        router_ended(replicas->router, replica);
    }
}

/* Tells whether another replica may take what one has refused. */
static bool may_go_elsewhere(int rc) {
    return rc == ERR_FULL || rc == ERR_DEVICE;
}

/* Returns how many of the requests have the first one's prompt: its choices. */
static uint32_t count_choices(const struct engine_request *requests, uint32_t n) {
    uint32_t i = 1;
    while (i < n && requests[i].n_prompt == requests->n_prompt &&
           requests[i].cache_salt == requests->cache_salt &&
           memcmp(requests[i].prompt, requests->prompt,
                  requests->n_prompt * sizeof(*requests->prompt)) == 0)
        i++;
    return i;
}

static bool is_stuck(const struct replicas *replicas, uint32_t replica) {
    const double limit = (double)replicas->most_step_s;
    return limit > 0 && engine_step_seconds(engine_of(replicas, replica)) > limit;
}

/* Tells whether all replicas that have not failed are stuck. */
static bool has_no_other(const struct replicas *replicas) {
    bool all = true;
    for (uint32_t i = 0; i < replicas->n; i++)
        all &= is_stuck(replicas, i) || !replicas_is_healthy(replicas, i);
    return all;
}

/* Finds the replicas whose queues have space, and whose steps end.  Returns 0, or why there is
 * none. */
static int find_usable(struct replicas *replicas, uint32_t n_requests, struct error *err) {
    int rc = error_set(err, ERR_DEVICE, "all replicas have failed");
    bool has_any = false;
    const bool may_be_stuck = has_no_other(replicas);
    for (uint32_t i = 0; i < replicas->n; i++) {
        struct engine *engine = engine_of(replicas, i);
        replicas->usable[i] = false;
        if (!engine_healthy(engine) || (is_stuck(replicas, i) && !may_be_stuck)) continue;
        rc = engine_check_room(engine, n_requests, err);
        replicas->usable[i] = rc == 0;
        has_any |= rc == 0;
    }
    return has_any ? 0 : rc;
}

void replicas_name(const struct replicas *replicas, struct engine_request *requests, uint32_t n) {
    if (replicas->n == 1) return;
    for (uint32_t i = 0; i < n; i += count_choices(requests + i, n - i)) {
        struct engine_request *r = &requests[i];
        const size_t n_blocks = r->n_prompt / ROUTER_BLOCK;
        const struct routed_text text = text_of(r);
        if (n_blocks == 0 || r->block_names) continue;
        r->block_names = malloc(n_blocks * sizeof(*r->block_names));
        if (r->block_names) r->n_block_names = router_name(replicas->router, &text, r->block_names);
    }
}

/* Submits the choices of a prompt to the replica that has the least to do, or to another one if it
 * fails meanwhile.  What is given is noted before it is submitted: afterwards the prompts are the
 * engine's. */
static int submit_prompt(struct replicas *replicas, struct engine_request *requests, uint32_t n,
                         uint64_t *ids, struct error *err) {
    const struct routed_text text = text_of(&requests[0]);
    bool *usable = replicas->usable;
    int rc = find_usable(replicas, n, err);
    if (rc) return rc;
    rc = ERR_FULL;
    uint64_t *names = requests->block_names; /* an engine has no use for them */
    requests->block_names = NULL;
    for (int replica; may_go_elsewhere(rc) &&
                      (replica = router_choose(replicas->router, &text, usable)) != ROUTER_NONE;
         usable[replica] = false) {
        note_given(replicas, (uint32_t)replica, requests, n, &text);
        rc = engine_submit(engine_of(replicas, (uint32_t)replica), requests, n, ids, err);
        if (rc) take_back(replicas, (uint32_t)replica, requests, n);
        for (uint32_t i = 0; i < n && !rc; i++) ids[i] = ids[i] * replicas->n + (uint32_t)replica;
    }
    free(names);
    return rc;
}

/* Ends requests that were submitted, and leaves the caller nothing of them to free. */
static void drop(struct replicas *replicas, struct engine_request *requests, uint32_t n,
                 const uint64_t *ids) {
    for (uint32_t i = 0; i < n; i++) {
        struct routed *routed = requests[i].user;
        routed->is_dropped = true;
        requests[i] = (struct engine_request){.user = routed->user};
        replicas_cancel(replicas, ids[i]);
    }
}

int replicas_submit(struct replicas *replicas, struct engine_request *requests, uint32_t n,
                    uint64_t *ids, struct error *err) {
    if (replicas->n == 1) return engine_submit(engine_of(replicas, 0), requests, n, ids, err);
    int rc = wrap(requests, n, err);
    if (rc) return rc;
    uint32_t at = 0;
    for (uint32_t n_choices; at < n && !rc; at += rc ? 0 : n_choices) {
        n_choices = count_choices(requests + at, n - at);
        rc = submit_prompt(replicas, requests + at, n_choices, ids + at, err);
    }
    if (rc) unwrap(requests + at, n - at);
    if (rc) drop(replicas, requests, at, ids);
    return rc;
}

void replicas_cancel(struct replicas *replicas, uint64_t id) {
    engine_cancel(engine_of(replicas, (uint32_t)(id % replicas->n)), id / replicas->n);
}

/* ---- events ---- */

/* Says in the error that ends a request which replica it was. */
static void name_replica(struct engine_event *event, uint32_t replica) {
    char text[sizeof(event->error_text)];
    snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, event->error_text);
    snprintf(event->error_text, sizeof(event->error_text), "replica %" PRIu32 ": %.*s", replica,
             (int)sizeof(text) - 24, text);
}

/* Makes an event of a replica one of all of them.  The first text or end says that the prompt is
 * computed.  Returns false if it is not passed on. */
static bool adopt(struct replicas *replicas, uint32_t replica, struct engine_event *event) {
    struct routed *routed = event->user;
    const bool is_passed = !routed->is_dropped;
    event->user = routed->user;
    event->request_id = event->request_id * replicas->n + replica;
    if (event->kind == EVENT_TEXT || event->kind == EVENT_FINISH) {
        router_computed(replicas->router, replica, routed->n_to_compute);
        routed->n_to_compute = 0;
    }
    if (event->kind != EVENT_FINISH) return is_passed;
    if (event->reason == FINISH_ERROR) name_replica(event, replica);
    router_ended(replicas->router, replica);
    free(routed);
    return is_passed;
}

struct engine_event *replicas_take_events(struct replicas *replicas) {
    if (replicas->n == 1) return engine_take_events(engine_of(replicas, 0));
    struct engine_event *first = NULL, **link = &first;
    for (uint32_t i = 0; i < replicas->n; i++) {
        *link = engine_take_events(engine_of(replicas, i));
        while (*link) {
            struct engine_event *event = *link;
            if (adopt(replicas, i, event)) {
                link = &event->next;
                continue;
            }
            *link = event->next;
            engine_event_free(event);
        }
    }
    return first;
}

/* ---- all of them ---- */

bool replicas_are_stuck(const struct replicas *replicas) {
    bool any = false;
    for (uint32_t i = 0; i < replicas->n; i++) any |= is_stuck(replicas, i);
    return any;
}

uint64_t replicas_disk_failure(struct replicas *replicas, struct error *out) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < replicas->n; i++) {
        struct error why = {0};
        const uint64_t own = engine_disk_failure(engine_of(replicas, i), &why);
        if (own > 0) *out = why;
        n += own;
    }
    return n;
}

void replicas_skip_saving(struct replicas *replicas) {
    for (uint32_t i = 0; i < replicas->n; i++) engine_skip_saving(engine_of(replicas, i));
}

void replicas_stop(struct replicas *replicas) {
    for (uint32_t i = 0; i < replicas->n; i++) engine_stop(engine_of(replicas, i));
}

void replicas_stats(struct replicas *replicas, struct engine_stats *out) {
    engine_stats(engine_of(replicas, 0), out);
    for (uint32_t i = 1; i < replicas->n; i++) {
        struct engine_stats one;
        engine_stats(engine_of(replicas, i), &one);
        engine_stats_add(out, &one);
    }
}

void replicas_stats_of(struct replicas *replicas, uint32_t replica, struct engine_stats *out) {
    engine_stats(engine_of(replicas, replica), out);
}

uint32_t replicas_n_ranks(const struct replicas *replicas) {
    return replicas->n * engine_n_ranks(engine_of(replicas, 0));
}

void replicas_rank(const struct replicas *replicas, uint32_t rank, struct engine_rank *out) {
    const uint32_t n = engine_n_ranks(engine_of(replicas, 0));
    engine_rank(engine_of(replicas, rank / n), rank % n, out);
}

bool replicas_is_healthy(const struct replicas *replicas, uint32_t replica) {
    return engine_healthy(engine_of(replicas, replica));
}

uint32_t replicas_n_healthy(const struct replicas *replicas) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < replicas->n; i++) n += replicas_is_healthy(replicas, i);
    return n;
}

bool replicas_take_failure(struct replicas *replicas, uint32_t *replica, struct error *why) {
    for (uint32_t i = 0; i < replicas->n; i++) {
        if (replicas->all[i].has_told || !engine_failure(engine_of(replicas, i), why)) continue;
        replicas->all[i].has_told = true;
        *replica = i;
        return true;
    }
    return false;
}
