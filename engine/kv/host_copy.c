/* host_copy.c - see host_copy.h.
 *
 * Thread: engine.  Memory: none. */
#include "engine/kv/host_copy.h"

#include <string.h>

#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/kv/kv_space.h"

typedef int (*move)(struct backend *be, char *page, char *stored, size_t bytes, struct error *err);

static int move_out(struct backend *be, char *page, char *stored, size_t bytes, struct error *err) {
    return be->ops->download(be, stored, page, bytes, err);
}

static int move_in(struct backend *be, char *page, char *stored, size_t bytes, struct error *err) {
    return be->ops->upload(be, page, stored, bytes, err);
}

/* Transfers a page to or from its place, in as many parts as it has blocks. */
static int move_page(const struct kv_space *space, move move_part, uint32_t page,
                     const uint32_t *blocks, uint64_t place, struct error *err) {
    const uint64_t page_bytes = space->memory->page_bytes,
                   block_bytes = host_pool_block_bytes(space->store),
                   end = (place + 1) * page_bytes;
    char *from = (char *)space->memory->base + page * page_bytes;
    int code = 0;
    for (uint64_t at = place * page_bytes, n; at < end && !code; at += n, from += n) {
        char *block = (char *)space->store->base + blocks[at / block_bytes] * block_bytes;
        n = min_u64(end - at, block_bytes - at % block_bytes);
        code = move_part(space->be, from, block + at % block_bytes, n, err);
    }
    return code;
}

static int move_pages(const struct kv_space *space, move move_part, const uint32_t *pages, size_t n,
                      const uint32_t *blocks, size_t first, struct error *err) {
    int code = 0;
    for (size_t i = 0; i < n && !code; i++)
        code = move_page(space, move_part, pages[i], blocks, first + i, err);
    return code;
}

uint64_t kv_blocks_for(const struct kv_space *space, uint64_t n_pages) {
    return div_up(n_pages * space->memory->page_bytes, host_pool_block_bytes(space->store));
}

int kv_pages_out(const struct kv_space *space, const uint32_t *pages, size_t n,
                 const uint32_t *blocks, size_t first, struct error *err) {
    return move_pages(space, move_out, pages, n, blocks, first, err);
}

int kv_pages_in(const struct kv_space *space, const uint32_t *pages, size_t n,
                const uint32_t *blocks, size_t first, struct error *err) {
    return move_pages(space, move_in, pages, n, blocks, first, err);
}

static int copy_pages(const struct kv_space *space, move move_one, const uint32_t *pages, size_t n,
                      char *host, struct error *err) {
    const size_t page_bytes = space->memory->page_bytes;
    char *base = space->memory->base;
    int code = 0;
    for (size_t i = 0; i < n && !code; i++)
        code = move_one(space->be, base + pages[i] * page_bytes, host + i * page_bytes, page_bytes,
                        err);
    return code;
}

int kv_pages_download(const struct kv_space *space, const uint32_t *pages, size_t n, char *host,
                      struct error *err) {
    return copy_pages(space, move_out, pages, n, host, err);
}

int kv_pages_upload(const struct kv_space *space, const uint32_t *pages, size_t n, char *host,
                    struct error *err) {
    return copy_pages(space, move_in, pages, n, host, err);
}

void kv_blocks_read(const struct kv_space *space, const uint32_t *blocks, uint64_t n, char *host) {
    const uint64_t block_bytes = host_pool_block_bytes(space->store),
                   end = n * space->memory->page_bytes;
    const char *base = space->store->base;
    for (uint64_t at = 0; at < end; at += block_bytes)
        memcpy(host + at, base + blocks[at / block_bytes] * block_bytes,
               min_u64(block_bytes, end - at));
}
