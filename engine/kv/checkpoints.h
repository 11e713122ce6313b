/* checkpoints.h - recurrent states (recurrent.h) that a later text may begin from, by age.
 *
 *   blocks        [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ]    of the prefix cache
 *   checkpoints             ▲              ▲        states behind blocks 2 and 5, each in a slot
 *
 * A checkpoint is the state after a block of the prefix cache.  It is found with the block: a text
 * begins at the deepest of its cached blocks that has one.  The block's entry names the slot; this
 * list says which checkpoint was used least recently.  That one is evicted for a running sequence,
 * or for a newer one.  The pages of its block stay: a state takes as much memory as those of
 * thousands of tokens.
 *
 * A slot of the pool has a reference for each holder, as a page has.  A sequence that begins from a
 * checkpoint holds it until its first step, which writes into a slot of its own.
 *
 * With a store in the host's memory an evicted checkpoint moves there, in place of the one that was
 * used least recently there.  It is found as before, and copied into the slot of the sequence that
 * begins from it.
 *
 * Thread: engine.  Memory: allocates at create, never afterwards. */
#ifndef ENGINE_KV_CHECKPOINTS_H
#define ENGINE_KV_CHECKPOINTS_H

#include <stdbool.h>
#include <stdint.h>

struct backend;
struct checkpoints; /* opaque: the fields live in checkpoints.c */
struct error;
struct page_pool;
struct state_pool;

#define CHECKPOINT_NONE UINT32_MAX /* no slot, or no block */

/* A long text leaves a checkpoint each time it has so many more tokens.  A state of a model of 27B
 * takes as much memory as the pages of about 2,300. */
enum { CHECKPOINT_TOKENS = 8192 };

/* Where slots are, and checkpoints that have left them, or a rank's parts of both (page_io.h); all
 * members are borrowed. */
struct checkpoint_store {
    struct backend *be;
    const struct state_pool *states;
    char *base; /* [n][slot_bytes] */
    uint32_t n; /* 0: there is no store.  Else at least 2: a state that is about to be read is not
                   the next one to go */
    const struct checkpoint_store *next; /* of the rank behind this one; NULL: it is the last */
};

/* Creates an empty list for the slots of a pool, which is borrowed.  store: copied.  ERR_NOMEM. */
int checkpoints_create(struct checkpoints **out, struct page_pool *slots,
                       const struct checkpoint_store *store, struct error *err);
void checkpoints_destroy(struct checkpoints *list); /* NULL is allowed */

/* A checkpoint is named by its slot, or by a number behind all slots if it is in the store. */

/* Adds the slot as the checkpoint of a block, and takes over a reference to it. */
void checkpoints_add(struct checkpoints *list, uint32_t slot, uint32_t block);
/* Makes the checkpoint the newest, as a sequence is about to begin from it. */
void checkpoints_touch(struct checkpoints *list, uint32_t checkpoint);
/* Counts that a sequence has begun from a checkpoint. */
void checkpoints_count_use(struct checkpoints *list);
/* Removes a checkpoint from the list, and releases its slot. */
void checkpoints_remove(struct checkpoints *list, uint32_t checkpoint);
/* Moves a checkpoint from its slot, which is released, to the store, which must have a free place.
 * Returns its new number. */
uint32_t checkpoints_store(struct checkpoints *list, uint32_t slot);
bool checkpoints_is_stored(const struct checkpoints *list, uint32_t checkpoint);
/* Notes what kv_disk_n_submitted() was when the stored checkpoint left its slot; and returns it. */
void checkpoints_set_written_at(struct checkpoints *list, uint32_t checkpoint, uint64_t at);
uint64_t checkpoints_written_at(const struct checkpoints *list, uint32_t checkpoint);
/* Copies a stored checkpoint to a slot.  ERR_DEVICE. */
int checkpoints_read(const struct checkpoints *list, uint32_t checkpoint, uint32_t slot,
                     struct error *err);

/* Returns the bytes of a checkpoint. */
uint64_t checkpoints_bytes(const struct checkpoints *list);
/* Copies a checkpoint to the caller's memory, or a state from there to a slot.  Copies are complete
 * as page_io_read() says.  A stored one must be complete, as page_io_take_blocks() says.
 * ERR_DEVICE. */
int checkpoints_copy_out(const struct checkpoints *list, uint32_t checkpoint, char *host,
                         struct error *err);
int checkpoints_fill(const struct checkpoints *list, uint32_t slot, const char *host,
                     struct error *err);

/* Returns the block whose checkpoint the slot is. */
uint32_t checkpoints_block(const struct checkpoints *list, uint32_t slot);
/* Returns the block of the least recently used checkpoint that no sequence holds, or
 * CHECKPOINT_NONE. */
uint32_t checkpoints_oldest(const struct checkpoints *list);
/* Returns how many checkpoints in slots no sequence holds. */
uint32_t checkpoints_n_idle(const struct checkpoints *list);
/* Tells whether the store has space for one more, if there is a store; and which block's checkpoint
 * is the oldest there. */
bool checkpoints_has_store(const struct checkpoints *list);
bool checkpoints_store_is_full(const struct checkpoints *list);
uint32_t checkpoints_oldest_stored(const struct checkpoints *list);

/* How many checkpoints there are, and how many have been added and used so far. */
struct checkpoint_stats {
    uint32_t n, n_stored;
    uint64_t n_added, n_used;
};
struct checkpoint_stats checkpoints_stats(const struct checkpoints *list);

#endif
