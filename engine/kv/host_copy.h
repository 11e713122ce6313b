/* host_copy.h - copies whole pages to host blocks and back, byte for byte.
 *
 *   blocks   [ 4: page 0, page 1, pag ][ 9: e 2, page 3, … ]     pages lie one behind the other,
 *                                                                across blocks
 *
 * Copies keep the order of their submission, among themselves and with steps.  So pages and blocks
 * may be handed out again as soon as these functions have returned.
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_KV_HOST_COPY_H
#define ENGINE_KV_HOST_COPY_H

#include <stddef.h>
#include <stdint.h>

struct error;
struct kv_space;

/* Returns how many host blocks n_pages pages take. */
uint64_t kv_blocks_for(const struct kv_space *space, uint64_t n_pages);
/* One of the two below. */
typedef int (*kv_move_pages)(const struct kv_space *space, const uint32_t *pages, size_t n,
                             const uint32_t *blocks, size_t first, struct error *err);
/* Transfers n pages of the pool to the places from `first` on in the blocks, or back.
 * ERR_DEVICE. */
int kv_pages_out(const struct kv_space *space, const uint32_t *pages, size_t n,
                 const uint32_t *blocks, size_t first, struct error *err);
int kv_pages_in(const struct kv_space *space, const uint32_t *pages, size_t n,
                const uint32_t *blocks, size_t first, struct error *err);

/* Copies n pages of the pool to host memory, one behind the other, or back.  ERR_DEVICE. */
int kv_pages_download(const struct kv_space *space, const uint32_t *pages, size_t n, char *host,
                      struct error *err);
int kv_pages_upload(const struct kv_space *space, const uint32_t *pages, size_t n, char *host,
                    struct error *err);
/* Copies the first n pages that the host blocks hold, whose copies have completed. */
void kv_blocks_read(const struct kv_space *space, const uint32_t *blocks, uint64_t n, char *host);

#endif
