/* test_age_list.c - numbers by age, against an array that is shifted. */
#include "engine/base/age_list.h"

#include <stdlib.h>
#include <string.h>

#include "tests/test.h"

enum { N = 40, N_LISTS = 2 };

/* The same list, oldest first. */
struct order {
    uint32_t at[N], n;
};

static void order_remove(struct order *order, uint32_t number) {
    uint32_t i = 0;
    while (order->at[i] != number) i++;
    memmove(order->at + i, order->at + i + 1, (--order->n - i) * sizeof(*order->at));
}

static void check(const struct age_list *list, const struct age_link *links,
                  const struct order *order) {
    uint32_t n = 0, before = AGE_NONE;
    for (uint32_t at = list->oldest; at != AGE_NONE; before = at, at = links[at].newer, n++) {
        assert_true(n < order->n && order->at[n] == at);
        assert_int_equal(links[at].older, before);
    }
    assert_int_equal(n, order->n);
    assert_int_equal(list->newest, before);
}

TEST(an_empty_list_has_no_ends) {
    const struct age_list list = age_list_empty();
    assert_int_equal(list.oldest, AGE_NONE);
    assert_int_equal(list.newest, AGE_NONE);
}

TEST(one_number_is_oldest_and_newest) {
    struct age_link links[3];
    struct age_list list = age_list_empty();
    age_list_append(&list, links, 2);
    assert_int_equal(list.oldest, 2);
    assert_int_equal(list.newest, 2);
    age_list_remove(&list, links, 2);
    assert_int_equal(list.oldest, AGE_NONE);
    assert_int_equal(list.newest, AGE_NONE);
}

/* Numbers leave from anywhere, move between lists, and come back, so that links are used again. */
TEST(two_lists_share_an_array) {
    struct age_link links[N];
    struct age_list lists[N_LISTS] = {age_list_empty(), age_list_empty()};
    struct order orders[N_LISTS] = {0};
    int where[N];
    memset(links, 0xa5, sizeof(links));
    for (int i = 0; i < N; i++) where[i] = -1;
    srand(72);
    for (int step = 0; step < 20000; step++) {
        const uint32_t number = (uint32_t)rand() % N;
        if (where[number] >= 0) {
            age_list_remove(&lists[where[number]], links, number);
            order_remove(&orders[where[number]], number);
        }
        where[number] = rand() % (N_LISTS + 1) - 1; /* -1: in none */
        if (where[number] >= 0) {
            struct order *order = &orders[where[number]];
            age_list_append(&lists[where[number]], links, number);
            order->at[order->n++] = number;
        }
        for (int i = 0; i < N_LISTS; i++) check(&lists[i], links, &orders[i]);
    }
}
