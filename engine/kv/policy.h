/* policy.h - what a sequence keeps in the KV cache, behind one table of functions.
 *
 *   kv_sequence ── policy ──► which pages, which slots, what is shared
 *       ├─ layers[0]: pages 4, 9, 2, …     every layer owns its own list of pages, so that a policy
 *       ├─ layers[1]: pages 7, 1, 3, …     may keep different amounts in different layers
 *       └─ views[]: the same as a step sees it
 *
 * The scheduler calls the table and never asks which policy it is.  A sequence's life:
 * prepare, adopt, then reserve + view + commit + submitted + publish + landed for every step,
 * release.  A sequence that loses its place is suspended, and goes on with adopt, reserve and
 * resume.
 *
 * A sequence's rows are committed when their step is planned, `submitted` once the device has been
 * told, published when the results are known to be sound, and landed in any case; another step may
 * have been planned in between.
 *
 * Thread: engine.  No page is released (and handed out again) while a step that uses it is in
 * flight: the scheduler sees to that.
 * Memory: lists grow geometrically, in prepare, reserve and suspend only; nothing is allocated in
 * view, commit or publish. */
#ifndef ENGINE_KV_POLICY_H
#define ENGINE_KV_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/backend.h"
#include "engine/kv/plan.h"

struct error;
struct page_pool;
struct prefix_cache;
struct kv_sequence;
struct layer_slice;

/* Pages of the pool, and blocks of the store (backend.h, struct host_pool). */
struct kv_amount {
    uint64_t pages, blocks;
};

/* What all sequences of an engine draw from; borrowed by them. */
struct kv_space {
    struct page_pool *pool;
    struct page_pool *blocks; /* of the store; NULL: there is none */
    struct prefix_cache *cache; /* NULL: prefixes are not shared */
    uint32_t n_layers;
    const uint32_t *windows; /* as in struct step */
    uint32_t window; /* the largest; 0: there is none, or pages are kept all the same */
    /* Where the pages are, for what is kept elsewhere while a sequence is suspended. */
    struct backend *be;
    const struct kv_pool *memory;
    const struct host_pool *store;      /* its memory; NULL: there is none */
    struct kv_swaps *swaps;            /* what of it waiting sequences have; NULL: nothing */
    const struct layer_group *groups;  /* host [n_groups]: the layers that are sparse where a */
    uint32_t n_groups;                 /* sequence selects */
    /* A token's keys and values have different bits when another kernel made them, so each is made
     * once, by the kernel of its kind: requests get all their pages when they start (nobody is
     * preempted and computed again like a prompt), and generated tokens are not shared with
     * prompts. */
    bool batch_invariant;
};

struct page_list {
    uint32_t *pages; /* in slot order */
    uint32_t n, capacity;
};

/* What a suspended sequence has in the store (swap.h). */
struct kv_swap {
    struct kv_swap *older, *newer;
    struct page_list blocks; /* that its pages lie in */
    struct page_list *kept;  /* the sequence's other blocks (kv_selection), gone when these go */
    uint32_t n_tokens;       /* 0: nothing */
    /* Pages of a list that are not there, the first ones: others use them, or they have been given
     * back; of layers without a window, and with one. */
    uint32_t n_shared, n_expired;
    bool is_matched; /* the sequence is about to go on: nobody else may have the blocks, */
    uint32_t n_lent; /* and so many, the last ones, are its own already */
    struct kv_select select; /* when it lost its place; its pages are there, too */
};

struct kv_swaps {
    struct kv_swap *oldest, *newest;
    uint32_t n_blocks;     /* of all that are not adopted */
    uint64_t n_out, n_in;  /* pages that were copied to the store and back, so far */
};

struct kv_policy_ops {
    const char *name;
    bool grows; /* pages are taken as the text becomes longer; else all when it starts */
    bool moves; /* what sparse layers have not selected leaves their pages for the store */
    /* What a sequence needs at once, however long it becomes.  When it is computed again it may
     * come to hold more, if the pool has more. */
    struct kv_amount (*most)(const struct kv_space *space, const struct kv_plan *plan);
    /* What reserve() would have to take. */
    struct kv_amount (*missing)(const struct kv_sequence *kv, uint64_t n_tokens);
    /* Called once, with the prompt: makes room in the lists, names the blocks.  ERR_NOMEM. */
    int (*prepare)(struct kv_sequence *kv, const uint32_t *prompt);
    /* True when `other`, which is computing its prompt, will soon publish a block that `kv` needs
     * next. */
    bool (*worth_waiting)(const struct kv_sequence *kv, const struct kv_sequence *other);
    /* Takes what the prefix cache knows of the first n_max tokens; returns how many tokens that
     * is, with those that resume() will bring back. */
    uint32_t (*match)(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max);
    /* Makes sure that n_tokens tokens in all have room, all or none.  Evicts cached blocks when
     * pages are short; ERR_FULL when that is not enough, ERR_NOMEM. */
    int (*reserve)(struct kv_sequence *kv, uint32_t n_tokens);
    /* Rows that the next step may have: a piece of a prompt ends with its chunk. */
    uint32_t (*max_rows)(const struct kv_sequence *kv);
    /* Describes a step that appends n_rows tokens: fills views, and seq but for its first_row. */
    void (*view)(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq);
    /* The step is planned: n_rows more tokens will be stored once it has run. */
    void (*commit)(struct kv_sequence *kv, uint32_t n_rows);
    /* The step (slice NULL) or slice has been submitted, and the next one has not: what its pages
     * will hold may be copied now.  ERR_DEVICE. */
    int (*submitted)(struct kv_sequence *kv, const struct layer_slice *slice, struct error *err);
    /* The first n_tokens tokens are stored and known to be sound: whole blocks of them may be
     * shared from now on (of the prompt only, where the space is batch-invariant), and pages that
     * only the prompt needed go back. */
    void (*insert)(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens);
    /* The first n_tokens tokens are stored: pages that no row behind them sees may go back. */
    void (*on_done)(struct kv_sequence *kv, uint32_t n_tokens);
    /* How many of the first n_tokens tokens are still there once they are stored. */
    uint32_t (*n_resident)(const struct kv_sequence *kv, uint32_t n_tokens);
    /* Gives every page back; what cannot be computed again, and what the store has room for, is
     * kept in the system's memory.  ERR_NOMEM, ERR_DEVICE: then the sequence cannot go on. */
    int (*suspend)(struct kv_sequence *kv, struct error *err);
    /* When it starts, right after reserve(): brings back what suspend() kept, and what adopt()
     * found in the store, into the pages that have been reserved.  ERR_DEVICE. */
    int (*resume)(struct kv_sequence *kv, struct error *err);
    /* Gives every page back and forgets what is stored. */
    void (*release)(struct kv_sequence *kv);
};

/* What a sequence that selects has beside its layers' lists; else zeroed. */
struct kv_selection {
    struct kv_select select; /* of its newest step that selected; n_candidates 0: none has */
    struct page_list held;   /* select.state_pages, then what the policy says; all or none */
    /* select.c: */
    uint32_t *windows;          /* [n_host_layers]: the pages that a sparse layer sees */
    const uint32_t **all_pages; /* [n_layers]: select.pool_pages */
    /* offload.c: */
    struct page_list blocks; /* select.blocks, in the order of the text */
    uint32_t n_written;      /* of them have been copied to the store */
    bool has_left;           /* sparse layers' lists are what is selected, and grow no more: */
    uint32_t tail_from;      /* the first token of the tail's pages in them */
    bool one_by_one; /* what has been generated is computed again like that, not like a prompt */
    struct page_list scratch; /* while a prompt goes layer by layer: two lists of its pages; else
                                 those that are taken ahead */
};

/* One sequence's share of the cache, embedded in the sequence. */
struct kv_sequence {
    const struct kv_policy_ops *policy; /* plan.policy */
    const struct kv_space *space;
    struct kv_plan plan;
    uint64_t salt;
    uint32_t n_tokens;        /* stored, or about to be by a step in flight */
    uint32_t n_found;         /* of them adopt() found */
    struct page_list *layers; /* [n_layers] */
    struct kv_view *views;    /* [n_layers] */
    uint64_t *hashes;         /* of the sequence's whole blocks, as far as known */
    uint32_t *blocks;         /* the prefix cache's blocks that the sequence uses */
    uint32_t n_hashes, n_blocks, block_capacity;
    uint32_t n_expired;        /* pages that layers with a window have given back, or never had: the
                                 first ones */
    uint32_t n_far;           /* blocks of whose pages it does not need those: the first ones */
    bool prompt_done;         /* its last step has landed */
    struct kv_selection selection;
    uint32_t n_offloaded;     /* tokens that sparse layers have in the store only */
    struct kv_swap swap;
    char *suspended;          /* NULL, or what its pages held: [n_layers][layers[].n][page_bytes] */
};

/* On failure nothing is left behind.  ERR_NOMEM. */
int kv_sequence_init(struct kv_sequence *kv, const struct kv_space *space,
                     const struct kv_plan *plan, uint64_t salt);
void kv_sequence_fini(struct kv_sequence *kv); /* releases its pages; a zeroed struct is allowed */

/* Keeps every token that a later one may see, on the device; shares whole blocks of equal
 * prefixes. */
extern const struct kv_policy_ops kv_policy_full;
/* Keeps a budget of tokens, in place: all pages are taken when the sequence starts.  Nothing is
 * shared, for what is kept of a prefix depends on what follows it. */
extern const struct kv_policy_ops kv_policy_bounded;
/* Keeps every token, on the device, and shares the prompt's blocks like `full`.  While it generates
 * its sparse layers see what is selected: pages for that are taken when it starts.  What it
 * generates is not shared: it depends on the selection, which depends on nobody else. */
extern const struct kv_policy_ops kv_policy_select;
/* The same, but what sparse layers have not selected leaves for the store; of a prompt that does
 * not fit the space, layer by layer, and its last token selects.  Nothing is shared.  Under both,
 * layers with a window keep its pages only, as under `full`. */
extern const struct kv_policy_ops kv_policy_offload;

#endif
