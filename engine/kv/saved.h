/* saved.h - the pages of a suspended sequence whose contents cannot be computed again, in the
 * system's memory until it continues: [n_layers][layers[].n][page_bytes].
 *
 * Thread: engine.  Memory: kv_save() allocates, the others free. */
#ifndef ENGINE_KV_SAVED_H
#define ENGINE_KV_SAVED_H

struct error;
struct kv_sequence;

/* Copies the sequence's pages, unless they are saved already or hold nothing.  Call it before they
 * are given back.  ERR_NOMEM, ERR_DEVICE. */
int kv_save(struct kv_sequence *kv, struct error *err);
/* Copies them back into as many pages as there were.  ERR_DEVICE. */
int kv_restore(struct kv_sequence *kv, struct error *err);
void kv_forget_saved(struct kv_sequence *kv);

#endif
