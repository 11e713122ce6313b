/* saved.h - the pages of a suspended sequence whose contents cannot be computed again, in the
 * system's memory until it continues: those of its lists, and those that its selection holds.
 *
 * Thread: engine.  Memory: kv_save() allocates, kv_restore() and kv_forget_saved() free. */
#ifndef ENGINE_KV_SAVED_H
#define ENGINE_KV_SAVED_H

struct error;
struct kv_saved; /* opaque: the fields live in saved.c */
struct kv_sequence;

/* Copies the sequence's pages to memory and waits for the copies, unless they are saved already or
 * hold nothing.  Called before they are given back.  ERR_NOMEM, ERR_DEVICE. */
int kv_save(struct kv_sequence *kv, struct error *err);
/* Gives the sequence's pages back to the pool.  If they are saved, its lists begin again with as
 * many expired pages as before. */
void kv_give_back_saved(struct kv_sequence *kv);
/* Copies the saved contents into the sequence's pages, which have been reserved again, and frees
 * the copy, after a failure too.  ERR_DEVICE. */
int kv_restore(struct kv_sequence *kv, struct error *err);
/* Frees the saved contents, if there are any. */
void kv_forget_saved(struct kv_sequence *kv);

#endif
