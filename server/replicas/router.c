/* router.c - see router.h. */
#include "server/replicas/router.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/siphash.h"
#include "server/replicas/known_blocks.h"

struct replica_load {
    struct known_blocks *known; /* NULL: it has no prefix cache */
    uint64_t n_tokens;          /* to compute */
    uint32_t n_sequences;
};

struct router {
    uint32_t n, turn; /* turn: the replica after the one that was chosen last */
    uint64_t key[2];
    uint64_t *names; /* [capacity], of a text that came without */
    uint32_t capacity;
    struct replica_load *replicas; /* [n] */
};

int router_create(struct router **out, uint32_t n_replicas, uint32_t n_blocks,
                  const uint64_t key[2], struct error *err) {
    struct router *router = calloc(1, sizeof(*router));
    int rc = ERR_NOMEM;
    if (!router) goto fail;
    *router = (struct router){.n = n_replicas, .key = {key[0], key[1]}, .capacity = n_blocks};
    router->replicas = calloc(n_replicas, sizeof(*router->replicas));
    router->names = malloc((n_blocks + (size_t)1) * sizeof(*router->names));
    if (!router->replicas || !router->names) goto fail;
    rc = 0;
    for (uint32_t i = 0; i < n_replicas && n_blocks > 0 && !rc; i++)
        rc = known_blocks_create(&router->replicas[i].known, n_blocks, err);
    if (!rc) *out = router;
    else router_destroy(router);
    return rc;

fail:
    router_destroy(router);
    return error_set(err, ERR_NOMEM, "no memory for a router of %u replicas", n_replicas);
}

void router_destroy(struct router *router) {
    if (!router) return;
    for (uint32_t i = 0; i < router->n && router->replicas; i++)
        known_blocks_destroy(router->replicas[i].known);
    free(router->replicas);
    free(router->names);
    free(router);
}

/* Makes each name of the block's tokens and of the name of the block before it. */
uint32_t router_name(const struct router *router, const struct routed_text *text, uint64_t *out) {
    uint64_t name = text->salt;
    uint32_t n = 0;
    for (uint32_t at = 0; text->n_tokens - at >= ROUTER_BLOCK && n < router->capacity;
         at += ROUTER_BLOCK) {
        struct siphash hash;
        siphash_init(&hash, router->key);
        siphash_absorb(&hash, name);
        siphash_absorb_tokens(&hash, text->tokens + at, ROUTER_BLOCK);
        out[n++] = name = siphash_end(&hash);
    }
    return n;
}

/* Returns the text with its names. */
static struct routed_text named(struct router *router, const struct routed_text *text) {
    struct routed_text with_names = *text;
    if (text->names) return with_names;
    with_names.names = router->names;
    with_names.n_names = router_name(router, text, router->names);
    return with_names;
}

/* Returns how many tokens of a text with names the replica need not compute. */
static uint32_t n_found(const struct router *router, uint32_t replica,
                        const struct routed_text *text) {
    const struct known_blocks *known = router->replicas[replica].known;
    uint32_t n = 0;
    while (n < text->n_names && known_blocks_has(known, text->names[n])) n++;
    return n * ROUTER_BLOCK;
}

static uint64_t to_do(const struct router *router, uint32_t replica,
                      const struct routed_text *text) {
    const struct replica_load *load = &router->replicas[replica];
    return load->n_tokens + (uint64_t)ROUTER_SEQUENCE_TOKENS * load->n_sequences + text->n_tokens -
           n_found(router, replica, text);
}

int router_choose(struct router *router, const struct routed_text *text, const bool *usable) {
    int best = ROUTER_NONE;
    uint64_t least = UINT64_MAX;
    const struct routed_text with_names = named(router, text);
    const uint32_t first =
        with_names.n_names ? (uint32_t)(with_names.names[0] % router->n) : router->turn;
    for (uint32_t i = 0; i < router->n; i++) {
        const uint32_t replica = (first + i) % router->n;
        if (!usable[replica]) continue;
        const uint64_t n = to_do(router, replica, &with_names);
        if (n >= least) continue;
        least = n;
        best = (int)replica;
    }
    if (best != ROUTER_NONE && with_names.n_names == 0)
        router->turn = ((uint32_t)best + 1) % router->n;
    return best;
}

uint32_t router_given(struct router *router, uint32_t replica, const struct routed_text *text) {
    struct replica_load *load = &router->replicas[replica];
    const struct routed_text with_names = named(router, text);
    const uint32_t n = text->n_tokens - n_found(router, replica, &with_names);
    /* The last block is the first to be forgotten: without those before it none is found. */
    for (uint32_t i = with_names.n_names; i-- > 0;)
        known_blocks_use(load->known, with_names.names[i]);
    load->n_tokens += n;
    load->n_sequences++;
    return n;
}

void router_computed(struct router *router, uint32_t replica, uint32_t n_tokens) {
    router->replicas[replica].n_tokens -= n_tokens;
}

void router_ended(struct router *router, uint32_t replica) {
    router->replicas[replica].n_sequences--;
}
