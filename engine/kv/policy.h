/* policy.h - what a sequence keeps in the KV cache, behind one table of functions.
 *
 *   kv_sequence ── policy ──► which pages, which slots, what is shared
 *       ├─ layers[0]: pages 4, 9, 2, …     every layer owns its own list of pages, so that a policy
 *       ├─ layers[1]: pages 7, 1, 3, …     may keep different amounts in different layers
 *       └─ views[]: the block tables of the next step
 *
 * The scheduler calls the table and never asks which policy it is.  A sequence's life: prepare,
 * match, then reserve + view + commit + submitted + insert + on_done for every step, release.  A
 * preempted sequence is suspended, and continues with match, reserve and resume.
 *
 * A sequence's rows are committed when their step is planned and `submitted` once the device has
 * the step.  They are inserted when the results are known to be sound; on_done follows in any case.
 * Another step may have been planned in between.
 *
 * Thread: engine.  No page is released (and handed out again) while a step that uses it is in
 * flight: the scheduler sees to that.
 * Memory: lists grow geometrically, in prepare, reserve and suspend only; nothing is allocated in
 * view, commit or insert. */
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

/* Pages of the pool, and blocks of the host pool (backend.h, struct host_pool). */
struct kv_amount {
    uint64_t pages, blocks;
};

/* What all sequences of an engine draw from; borrowed by them. */
struct kv_space {
    struct page_pool *pool;
    struct page_pool *blocks;   /* of the host pool; NULL: there is none */
    struct prefix_cache *cache; /* NULL: prefixes are not shared */
    uint32_t n_layers;
    const uint32_t *windows; /* as in struct step */
    uint32_t window;         /* the largest; 0: there is none, or pages are kept all the same */
    /* The device and its pages, from which a suspended sequence's data are copied. */
    struct backend *be;
    const struct kv_pool *memory;
    const struct host_pool *store;    /* host pool's memory; NULL: there is none */
    struct kv_swaps *swaps;           /* swapped data of waiting sequences; NULL: none */
    const struct layer_group *groups; /* host [n_groups]: the layers that are sparse where a */
    uint32_t n_groups;                /* sequence selects */
    /* A token's keys and values have different bits when another kernel computes them, so each is
     * computed once, by the kernel of its kind.  Requests get all their pages when they start, so
     * that none is preempted and computed again like a prompt.  Generated tokens are not shared
     * with prompts. */
    bool batch_invariant;
};

/* Returns true if the layer has a window and sequences keep only the window's pages.  Returns false
 * where all pages are kept all the same. */
static inline bool kv_has_window(const struct kv_space *space, uint32_t layer) {
    return space->window > 0 && layer_has_window(space->windows, layer);
}

struct page_list {
    uint32_t *pages; /* in slot order */
    uint32_t n, capacity;
};

/* What a suspended sequence has in the host pool (swap.h). */
struct kv_swap {
    struct kv_swap *older, *newer;
    struct page_list blocks; /* host blocks that hold its pages */
    struct page_list *kept;  /* its other host blocks (kv_selection), dropped with these */
    uint32_t n_tokens;       /* 0: nothing */
    /* How many of a list's first pages are not swapped, in layers without a window and with one.
     * Others use them, or they have been given back. */
    uint32_t n_shared, n_expired;
    bool is_matched;         /* the sequence is about to continue: its blocks cannot be dropped */
    uint32_t n_lent;         /* how many of the last blocks it already uses for its tokens */
    struct kv_select select; /* when it was suspended; its state pages are swapped, too */
};

struct kv_swaps {
    struct kv_swap *oldest, *newest;
    uint32_t n_blocks;    /* of all swaps that are not matched */
    uint64_t n_out, n_in; /* pages copied to the host pool and back, so far */
};

struct kv_policy_ops {
    const char *name;
    bool grows; /* pages are taken as the text grows; else all at the start */
    bool moves; /* what sparse layers have not selected moves to the host pool */
    /* Returns the most that a sequence holds at once, however long its text becomes.  When it is
     * computed again it may hold more, if the pool has more. */
    struct kv_amount (*most)(const struct kv_space *space, const struct kv_plan *plan);
    /* Returns what reserve() would have to take. */
    struct kv_amount (*missing)(const struct kv_sequence *kv, uint64_t n_tokens);
    /* Makes capacity in the lists and hashes the prompt's blocks; called once.  ERR_NOMEM. */
    int (*prepare)(struct kv_sequence *kv, const uint32_t *prompt);
    /* Returns true when `other`, which is computing its prompt, will soon insert a block that `kv`
     * needs next. */
    bool (*worth_waiting)(const struct kv_sequence *kv, const struct kv_sequence *other);
    /* Takes what the prefix cache has of the first n_max tokens; returns how many tokens that is,
     * with those that resume() will bring back. */
    uint32_t (*match)(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max);
    /* Makes sure that the lists have pages for n_tokens tokens in all, all or none.  Evicts cached
     * blocks when pages are short; ERR_FULL when that is not enough, ERR_NOMEM. */
    int (*reserve)(struct kv_sequence *kv, uint32_t n_tokens);
    /* Returns how many rows the next step may have; under a budget no step crosses the end of a
     * chunk. */
    uint32_t (*max_rows)(const struct kv_sequence *kv);
    /* Describes a step that appends n_rows tokens: fills views, and seq but for its first_row. */
    void (*view)(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq);
    /* Counts n_rows more tokens, which will be stored once the planned step has run. */
    void (*commit)(struct kv_sequence *kv, uint32_t n_rows);
    /* Copies to the host pool what the pages of a submitted step (slice NULL) or slice will hold,
     * if the policy needs that.  The next one has not been submitted yet.  ERR_DEVICE. */
    int (*submitted)(struct kv_sequence *kv, const struct layer_slice *slice, struct error *err);
    /* Inserts whole blocks of the first n_tokens tokens into the prefix cache, of the prompt only
     * where the space is batch-invariant.  These tokens are stored and known to be sound.  Gives
     * back pages that only the prompt needed. */
    void (*insert)(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens);
    /* Gives back pages that no row behind the first n_tokens tokens sees; these are stored. */
    void (*on_done)(struct kv_sequence *kv, uint32_t n_tokens);
    /* Returns how many of the first n_tokens tokens are still there once they are stored. */
    uint32_t (*n_resident)(const struct kv_sequence *kv, uint32_t n_tokens);
    /* Gives every page back.  What cannot be computed again, and what the host pool has space for,
     * is kept in the system's memory.  ERR_NOMEM, ERR_DEVICE: then the sequence cannot continue. */
    int (*suspend)(struct kv_sequence *kv, struct error *err);
    /* Brings back what suspend() kept, and what match() found in the host pool, into the reserved
     * pages.  Called when the sequence starts, right after reserve().  ERR_DEVICE. */
    int (*resume)(struct kv_sequence *kv, struct error *err);
    /* Gives every page back and forgets what is stored. */
    void (*release)(struct kv_sequence *kv);
};

/* What a sequence that selects has beside its layers' lists; else zeroed. */
struct kv_selection {
    struct kv_select select; /* of its newest step that selected; n_candidates 0: none did */
    struct page_list held;   /* select.state_pages, then the policy's own; all or none */
    /* select.c: */
    uint32_t *windows;          /* [n_host_layers][its pages]: sparse layers' block tables */
    const uint32_t **all_pages; /* [n_layers]: select.pool_pages */
    /* offload.c: */
    struct page_list blocks; /* select.blocks, in the order of the text */
    uint32_t n_written;      /* blocks that have been copied to the host pool */
    bool has_left;           /* sparse layers' lists hold their selection and grow no more: */
    uint32_t tail_from;      /* the first token of the tail's pages in them */
    bool one_by_one;         /* generated tokens are computed again one by one, not like a prompt */
    struct page_list scratch; /* two buffers of a layer-major prompt's pages; else pages that are
                                 taken ahead */
};

/* One sequence's share of the cache, embedded in the sequence. */
struct kv_sequence {
    const struct kv_policy_ops *policy; /* plan.policy */
    const struct kv_space *space;
    struct kv_plan plan;
    uint64_t salt;
    uint32_t n_tokens;        /* stored, or about to be by an in-flight step */
    uint32_t n_found;         /* tokens of these that match() found */
    struct page_list *layers; /* [n_layers] */
    struct kv_view *views;    /* [n_layers] */
    uint64_t *hashes;         /* of the sequence's whole blocks, as far as known */
    uint32_t *blocks;         /* the prefix cache's blocks that the sequence uses */
    uint32_t n_hashes, n_blocks, block_capacity;
    uint32_t n_expired; /* the first pages that layers with a window have given back, or
                                  never had */
    uint32_t n_far;     /* the first blocks whose window pages it does not need */
    bool prompt_done;   /* its last step has completed */
    struct kv_selection selection;
    uint32_t n_offloaded; /* tokens that sparse layers have in the host pool only */
    struct kv_swap swap;
    char *suspended; /* NULL, or what its pages held: [n_layers][layers[].n][page_bytes] */
};

/* Initialises kv; on failure nothing is left behind.  ERR_NOMEM. */
int kv_sequence_init(struct kv_sequence *kv, const struct kv_space *space,
                     const struct kv_plan *plan, uint64_t salt);
void kv_sequence_fini(struct kv_sequence *kv); /* releases its pages; a zeroed struct is allowed */

/* Keeps on the device every token that a later one may see; shares whole blocks of equal
 * prefixes. */
extern const struct kv_policy_ops kv_policy_full;
/* Keeps a budget of tokens, in place: all pages are taken when the sequence starts.  Nothing is
 * shared, because what is kept of a prefix depends on what follows it. */
extern const struct kv_policy_ops kv_policy_bounded;
/* Keeps every token on the device, and shares the prompt's blocks like `full`.  While it generates
 * its sparse layers see what is selected; the pages for that are taken when it starts.  What it
 * generates is not shared: it depends on the sequence's own selection. */
extern const struct kv_policy_ops kv_policy_select;
/* Does the same, but moves what sparse layers have not selected to the host pool.  A prompt that
 * does not fit the space is computed layer by layer, and its last token selects.  Nothing is
 * shared.  Under both, layers with a window keep only its pages, as under `full`. */
extern const struct kv_policy_ops kv_policy_offload;

#endif
