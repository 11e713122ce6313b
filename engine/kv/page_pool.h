/* page_pool.h - a fixed pool of KV-cache pages, or of host blocks, handed out by number.
 *
 * A page has one reference per holder (a sequence, the prefix cache); the last release frees it.
 * A holder that would release its reference on demand offers it.  The pool takes nothing itself: it
 * counts how many pages would be free then.  It never touches their memory.
 *
 * Thread: engine.  Memory: allocates at create, never afterwards. */
#ifndef ENGINE_KV_PAGE_POOL_H
#define ENGINE_KV_PAGE_POOL_H

#include <stdint.h>

struct error;
struct page_pool; /* opaque: the fields live in page_pool.c */

/* Creates a pool of n_pages free pages, numbered from 0.  On success the caller owns *out; on
 * failure *out is untouched.  ERR_NOMEM. */
int page_pool_create(struct page_pool **out, uint32_t n_pages, struct error *err);
void page_pool_destroy(struct page_pool *pool); /* NULL is allowed */

/* Writes n page numbers, each with one reference, all or none.  ERR_FULL is an answer, not a fault:
 * the caller evicts cached pages or preempts a sequence and asks again. */
int page_pool_take(struct page_pool *pool, uint32_t *pages, uint32_t n);
/* Does the same where the caller has made sure that n pages are free; cannot fail. */
void page_pool_take_sure(struct page_pool *pool, uint32_t *pages, uint32_t n);
/* Adds a holder to each of the n pages, which must have one already. */
void page_pool_share(struct page_pool *pool, const uint32_t *pages, uint32_t n);
/* Removes a holder from each of the n pages; a page without holders is free. */
void page_pool_release(struct page_pool *pool, const uint32_t *pages, uint32_t n);

/* Returns how many pages the pool has in all. */
uint32_t page_pool_n_pages(const struct page_pool *pool);
/* Returns how many pages have no holder. */
uint32_t page_pool_n_free(const struct page_pool *pool);
/* Returns how many holders the page has; 0: it is free. */
uint32_t page_pool_n_holders(const struct page_pool *pool, uint32_t page);

/* What offers pages, in the order in which callers take them: caches, and sequences that wait. */
enum page_offer { PAGE_CACHED, PAGE_WAITING, PAGE_N_OFFERS };

/* Offers one holder's reference to each of the n pages: the holder would release it on demand. */
void page_pool_offer(struct page_pool *pool, enum page_offer by, const uint32_t *pages, uint32_t n);
/* Withdraws such offers.  A holder does so before it releases the pages. */
void page_pool_withdraw(struct page_pool *pool, enum page_offer by, const uint32_t *pages,
                        uint32_t n);
/* Returns how many pages would become free if all offers as `by`, and as those before it in the
 * enum, were taken.  A page does not count while another holder does not offer it. */
uint32_t page_pool_n_offered(const struct page_pool *pool, enum page_offer by);

#endif
