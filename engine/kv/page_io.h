/* page_io.h - copies pages and host blocks, which callers name by their numbers.
 *
 * No other file of engine/kv calls the device, or knows where a page is.  A pool is one device's.
 * Or several ranks (collective.h) have a part of each page: some KV heads.  These parts have the
 * same numbers, and so have those of host blocks.  All functions then do the same on each rank.
 *
 *   page_io_copy            pages         --> pages
 *   page_io_offload         pages         --> one host layer of host blocks, token by token
 *   page_io_reload          pages        <--  the same
 *   page_io_write_blocks    pages         --> host blocks, byte for byte
 *   page_io_read_blocks     pages        <--  the same
 *   page_io_read            pages         --> the caller's memory, byte for byte
 *   page_io_write           pages        <--  the same
 *
 * In host blocks that have pages byte for byte, a page begins where the one before it ends:
 *
 *   blocks   [ 4: page 0, page 1, pag ][ 9: e 2, page 3, … ]
 *
 * In the caller's memory the ranks' parts of a page follow each other.
 *
 * Copies are submitted and not waited for, unless a function says so.  They keep the order of their
 * submission, among themselves and with steps.  So pages and blocks may be handed out again as soon
 * as these functions have returned.  The caller's memory has what page_io_read() reads once
 * page_io_sync(), or backend_ops.collect() of a later step, has returned.
 *
 * All functions that return int return 0 or ERR_DEVICE.
 *
 * Thread: engine.  Memory: none; struct page_io is copied, what it points to is borrowed. */
#ifndef ENGINE_KV_PAGE_IO_H
#define ENGINE_KV_PAGE_IO_H

#include <stddef.h>
#include <stdint.h>

struct backend;
struct error;
struct host_pool;
struct kv_page_state;
struct kv_pool;
struct kv_view;

/* Where the pages and host blocks are, or a rank's parts of them. */
struct page_io {
    struct backend *be;
    const struct kv_pool *memory; /* of all pages */
    const struct host_pool *host; /* NULL: there is none */
    const struct page_io *next;   /* of the rank behind this one; NULL: it is the last */
};

/* Returns the bytes of a page, and how many KV heads it has, in the parts of all ranks. */
size_t page_io_page_bytes(const struct page_io *io);
uint32_t page_io_n_kv_heads(const struct page_io *io);

/* Copies pages from[n] to pages to[n]; no page may be in both. */
int page_io_copy(const struct page_io *io, const uint32_t *from, const uint32_t *to, uint32_t n,
                 struct error *err);

/* Copies pages[n] of one sparse layer to its host layer (host_pool.h) of token blocks blocks[n],
 * each page to one block. */
int page_io_offload(const struct page_io *io, uint32_t host_layer, const uint32_t *pages,
                    const uint32_t *blocks, uint32_t n, struct error *err);
/* Copies a host layer of token blocks blocks[n] back to pages[n] of its layer. */
int page_io_reload(const struct page_io *io, uint32_t host_layer, const uint32_t *pages,
                   const uint32_t *blocks, uint32_t n, struct error *err);

/* Returns how many host blocks n_pages pages take, byte for byte. */
uint64_t page_io_n_blocks(const struct page_io *io, uint64_t n_pages);
/* Either of the next two functions: page_io_write_blocks() or page_io_read_blocks(). */
typedef int (*page_io_blocks)(const struct page_io *io, const uint32_t *pages, size_t n,
                              const uint32_t *blocks, size_t first, struct error *err);
/* Copies pages[n] byte for byte to where the blocks have pages number `first` to first + n - 1.
 * blocks: all host blocks of the item, from its page 0 on. */
int page_io_write_blocks(const struct page_io *io, const uint32_t *pages, size_t n,
                         const uint32_t *blocks, size_t first, struct error *err);
/* Copies pages number `first` to first + n - 1 of the blocks back to pages[n]. */
int page_io_read_blocks(const struct page_io *io, const uint32_t *pages, size_t n,
                        const uint32_t *blocks, size_t first, struct error *err);
/* Copies the first n pages that the blocks have to host [n][page_io_page_bytes()] before it
 * returns.  All page_io_write_blocks() to these blocks must have completed. */
void page_io_take_blocks(const struct page_io *io, const uint32_t *blocks, uint64_t n, char *host);

/* Copies pages[n] to host [n][page_io_page_bytes()].  ERR_DEVICE. */
int page_io_read(const struct page_io *io, const uint32_t *pages, size_t n, char *host,
                 struct error *err);
/* Copies host [n][page_io_page_bytes()] to pages[n].  ERR_DEVICE. */
int page_io_write(const struct page_io *io, const uint32_t *pages, size_t n, const char *host,
                  struct error *err);
/* The next two wait for what was submitted before; *out is valid when they return. */

/* Copies one KV head's state of a page to *out, in a pool that has them (kv_state_offset()).
 * kv_head: below page_io_n_kv_heads(). */
int page_io_read_state(const struct page_io *io, uint32_t page, uint32_t kv_head,
                       struct kv_page_state *out, struct error *err);
/* Copies n 32-bit words, from word number `first` on, of a page that holds a selection's state
 * (select.h) to out[n].  It is the same on all ranks. */
int page_io_read_words(const struct page_io *io, uint32_t page, uint32_t first, uint32_t n,
                       uint32_t *out, struct error *err);

/* Puts the tokens of n layers' bounded caches, views[n], into the order of the text, so that no
 * free slot is between them (evict_ops.order). */
int page_io_order(const struct page_io *io, const struct kv_view *views, uint32_t n,
                  struct error *err);
/* Waits until all that was submitted before has completed. */
int page_io_sync(const struct page_io *io, struct error *err);

#endif
