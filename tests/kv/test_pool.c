/* test_pool.c - the page pool: all or none, reference counts, no page lost and none handed out
 * twice. */
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/kv/page_pool.h"
#include "tests/test.h"

TEST(take_is_all_or_none) {
    struct page_pool *pool = NULL;
    struct error err = {0};
    uint32_t pages[5];

    assert_int_equal(page_pool_create(&pool, 4, &err), 0);
    assert_int_equal(page_pool_take(pool, pages, 5), ERR_FULL);
    assert_int_equal(page_pool_n_free(pool), 4);
    assert_int_equal(page_pool_take(pool, pages, 4), 0);
    assert_int_equal(page_pool_take(pool, pages + 4, 1), ERR_FULL);
    page_pool_destroy(pool);
}

TEST(a_page_is_free_when_its_last_holder_lets_go) {
    struct page_pool *pool = NULL;
    uint32_t page;

    assert_int_equal(page_pool_create(&pool, 1, NULL), 0);
    assert_int_equal(page_pool_take(pool, &page, 1), 0);
    page_pool_share(pool, &page, 1);
    page_pool_release(pool, &page, 1);
    assert_int_equal(page_pool_n_free(pool), 0);
    assert_int_equal(page_pool_n_holders(pool, page), 1);
    page_pool_release(pool, &page, 1);
    assert_int_equal(page_pool_n_free(pool), 1);
    assert_int_equal(page_pool_n_holders(pool, page), 0);
    page_pool_destroy(pool);
}

TEST(an_empty_pool_serves_nothing) {
    struct page_pool *pool = NULL;
    uint32_t page;

    assert_int_equal(page_pool_create(&pool, 0, NULL), 0);
    assert_int_equal(page_pool_take(pool, &page, 0), 0);
    assert_int_equal(page_pool_take(pool, &page, 1), ERR_FULL);
    page_pool_destroy(pool);
    page_pool_destroy(NULL);
}

/* A page counts while each of its holders offers it, whichever they are. */
TEST(pages_that_all_holders_offer_are_counted) {
    struct page_pool *pool = NULL;
    uint32_t pages[2];

    assert_int_equal(page_pool_create(&pool, 3, NULL), 0);
    assert_int_equal(page_pool_take(pool, pages, 2), 0);
    page_pool_share(pool, &pages[0], 1);
    page_pool_offer(pool, PAGE_CACHED, pages, 2);
    assert_int_equal(page_pool_n_offered(pool, PAGE_CACHED), 1);
    assert_int_equal(page_pool_n_offered(pool, PAGE_WAITING), 1);
    page_pool_offer(pool, PAGE_WAITING, &pages[0], 1);
    assert_int_equal(page_pool_n_offered(pool, PAGE_CACHED), 1);
    assert_int_equal(page_pool_n_offered(pool, PAGE_WAITING), 2);
    page_pool_share(pool, &pages[0], 1); /* with one that does not */
    assert_int_equal(page_pool_n_offered(pool, PAGE_WAITING), 1);
    page_pool_release(pool, &pages[0], 1);
    assert_int_equal(page_pool_n_offered(pool, PAGE_WAITING), 2);
    page_pool_withdraw(pool, PAGE_WAITING, &pages[0], 1);
    page_pool_release(pool, &pages[0], 1);
    assert_int_equal(page_pool_n_offered(pool, PAGE_CACHED), 2);
    page_pool_withdraw(pool, PAGE_CACHED, pages, 2);
    page_pool_release(pool, pages, 2);
    assert_int_equal(page_pool_n_offered(pool, PAGE_WAITING), 0);
    assert_int_equal(page_pool_n_free(pool), 3);
    page_pool_destroy(pool);
}

/* Random takes, shares and releases against a plain count of holders per page. */
TEST(random_operations_agree_with_a_plain_count) {
    enum { N = 37, OPS = 20000 };
    struct page_pool *pool = NULL;
    uint32_t holders[N] = {0}, got[N];

    srand(7);
    assert_int_equal(page_pool_create(&pool, N, NULL), 0);
    for (int op = 0; op < OPS; op++) {
        uint32_t n = (uint32_t)rand() % 6, page = (uint32_t)rand() % N, n_free = 0;
        if (rand() % 3 == 0 && page_pool_take(pool, got, n) == 0) {
            for (uint32_t i = 0; i < n; i++) assert_int_equal(holders[got[i]]++, 0);
        } else if (holders[page] > 0 && rand() % 4 == 0) {
            page_pool_share(pool, &page, 1);
            holders[page]++;
        } else if (holders[page] > 0) {
            page_pool_release(pool, &page, 1);
            holders[page]--;
        }
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(page_pool_n_holders(pool, i), holders[i]);
            n_free += holders[i] == 0;
        }
        assert_int_equal(page_pool_n_free(pool), n_free);
    }
    page_pool_destroy(pool);
}
