/* page_io.c - see page_io.h. */
#include "engine/kv/page_io.h"

#include <string.h>

#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/host_pool.h"

static char *page_at(const struct page_io *io, uint32_t page) {
    return kv_page_at(io->memory, page);
}

size_t page_io_page_bytes(const struct page_io *io) {
    size_t bytes = 0;
    for (; io; io = io->next) bytes += io->memory->page_bytes;
    return bytes;
}

uint32_t page_io_n_kv_heads(const struct page_io *io) {
    uint32_t n = 0;
    for (; io; io = io->next) n += io->memory->n_kv_heads;
    return n;
}

int page_io_copy(const struct page_io *io, const uint32_t *from, const uint32_t *to, uint32_t n,
                 struct error *err) {
    int code = 0;
    for (; io && !code; io = io->next)
        code = io->be->ops->copy_pages(io->be, io->memory, from, to, n, err);
    return code;
}

static struct offload_args describe(const struct page_io *io, uint32_t host_layer,
                                    const uint32_t *pages, const uint32_t *blocks, uint32_t n) {
    return (struct offload_args){.kv = io->memory,
                                 .store = io->host,
                                 .host_layer = host_layer,
                                 .n = n,
                                 .pages = pages,
                                 .blocks = blocks};
}

int page_io_offload(const struct page_io *io, uint32_t host_layer, const uint32_t *pages,
                    const uint32_t *blocks, uint32_t n, struct error *err) {
    int code = 0;
    for (; io && n > 0 && !code; io = io->next) {
        const struct offload_args args = describe(io, host_layer, pages, blocks, n);
        code = io->be->ops->host_pool->offload(io->be, &args, err);
    }
    return code;
}

int page_io_reload(const struct page_io *io, uint32_t host_layer, const uint32_t *pages,
                   const uint32_t *blocks, uint32_t n, struct error *err) {
    int code = 0;
    for (; io && n > 0 && !code; io = io->next) {
        const struct offload_args args = describe(io, host_layer, pages, blocks, n);
        code = io->be->ops->host_pool->reload(io->be, &args, err);
    }
    return code;
}

/* ---- whole pages, byte for byte ---- */

/* Copies bytes of a page, or of a host block, to host memory, or back. */
typedef int (*move)(struct backend *be, char *page, char *host, size_t bytes, struct error *err);

static int move_out(struct backend *be, char *page, char *host, size_t bytes, struct error *err) {
    return be->ops->download(be, host, page, bytes, err);
}

static int move_in(struct backend *be, char *page, char *host, size_t bytes, struct error *err) {
    return be->ops->upload(be, page, host, bytes, err);
}

/* Copies from a host block, which the system's memory has. */
static int take_out(struct backend *be, char *out, char *block, size_t bytes, struct error *err) {
    (void)be, (void)err;
    memcpy(out, block, bytes);
    return 0;
}

uint64_t page_io_n_blocks(const struct page_io *io, uint64_t n_pages) {
    /* Every rank has as many bytes of a page, and of a block. */
    return div_up(n_pages * io->memory->page_bytes, host_pool_block_bytes(io->host));
}

/* Moves a page to or from its place, one piece for each block that has bytes of it. */
static int move_page(const struct page_io *io, move move_piece, char *page, const uint32_t *blocks,
                     uint64_t place, struct error *err) {
    const uint64_t page_bytes = io->memory->page_bytes,
                   block_bytes = host_pool_block_bytes(io->host), end = (place + 1) * page_bytes;
    int code = 0;
    for (uint64_t at = place * page_bytes, n; at < end && !code; at += n, page += n) {
        char *block = (char *)io->host->base + blocks[at / block_bytes] * block_bytes;
        n = min_u64(end - at, block_bytes - at % block_bytes);
        code = move_piece(io->be, page, block + at % block_bytes, n, err);
    }
    return code;
}

static int move_blocks(const struct page_io *io, move move_piece, const uint32_t *pages, size_t n,
                       const uint32_t *blocks, size_t first, struct error *err) {
    int code = 0;
    for (; io; io = io->next)
        for (size_t i = 0; i < n && !code; i++)
            code = move_page(io, move_piece, page_at(io, pages[i]), blocks, first + i, err);
    return code;
}

int page_io_write_blocks(const struct page_io *io, const uint32_t *pages, size_t n,
                         const uint32_t *blocks, size_t first, struct error *err) {
    return move_blocks(io, move_out, pages, n, blocks, first, err);
}

int page_io_read_blocks(const struct page_io *io, const uint32_t *pages, size_t n,
                        const uint32_t *blocks, size_t first, struct error *err) {
    return move_blocks(io, move_in, pages, n, blocks, first, err);
}

void page_io_take_blocks(const struct page_io *io, const uint32_t *blocks, uint64_t n, char *host) {
    const size_t bytes = page_io_page_bytes(io);
    for (; io; host += io->memory->page_bytes, io = io->next)
        for (uint64_t i = 0; i < n; i++)
            (void)move_page(io, take_out, host + i * bytes, blocks, i, NULL);
}

/* Moves pages to or from the caller's memory, each rank its parts. */
static int move_pages(const struct page_io *io, move move_part, const uint32_t *pages, size_t n,
                      char *host, struct error *err) {
    const size_t bytes = page_io_page_bytes(io);
    int code = 0;
    for (; io; host += io->memory->page_bytes, io = io->next)
        for (size_t i = 0; i < n && !code; i++)
            code = move_part(io->be, page_at(io, pages[i]), host + i * bytes,
                             io->memory->page_bytes, err);
    return code;
}

int page_io_read(const struct page_io *io, const uint32_t *pages, size_t n, char *host,
                 struct error *err) {
    return move_pages(io, move_out, pages, n, host, err);
}

int page_io_write(const struct page_io *io, const uint32_t *pages, size_t n, const char *host,
                  struct error *err) {
    return move_pages(io, move_in, pages, n, (char *)host, err);
}

/* ---- what is in a page ---- */

static int read_now(const struct page_io *io, void *out, const char *from, size_t bytes,
                    struct error *err) {
    const int code = io->be->ops->download(io->be, out, from, bytes, err);
    return code ? code : io->be->ops->sync(io->be, err);
}

int page_io_read_state(const struct page_io *io, uint32_t page, uint32_t kv_head,
                       struct kv_page_state *out, struct error *err) {
    for (; kv_head >= io->memory->n_kv_heads; io = io->next) kv_head -= io->memory->n_kv_heads;
    const char *from = page_at(io, page) + kv_state_offset(io->memory, kv_head);
    return read_now(io, out, from, sizeof(*out), err);
}

int page_io_read_words(const struct page_io *io, uint32_t page, uint32_t first, uint32_t n,
                       uint32_t *out, struct error *err) {
    const char *from = page_at(io, page) + first * sizeof(*out);
    return read_now(io, out, from, n * sizeof(*out), err);
}

int page_io_order(const struct page_io *io, const struct kv_view *views, uint32_t n,
                  struct error *err) {
    int code = 0;
    for (; io && !code; io = io->next)
        code = io->be->ops->evict->order(io->be, io->memory, views, n, err);
    return code;
}

int page_io_sync(const struct page_io *io, struct error *err) {
    int code = 0;
    for (; io && !code; io = io->next) code = io->be->ops->sync(io->be, err);
    return code;
}
