/* test_mailbox.c - the mailbox between threads: order, loss, waking, closing. */
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/mailbox.h"
#include "tests/test.h"

struct letter {
    struct letter *next;
    int writer, number;
};

TEST(a_chain_arrives_in_order_and_only_the_first_wakes) {
    struct mailbox box;
    bool was_empty;
    struct letter c = {.number = 3}, b = {.next = &c, .number = 2}, a = {.number = 1};

    assert_int_equal(mailbox_init(&box), 0);
    assert_null(mailbox_take(&box));
    assert_int_equal(mailbox_push(&box, &a, &a, &was_empty), 0);
    assert_true(was_empty);
    assert_int_equal(mailbox_push(&box, &b, &c, &was_empty), 0);
    assert_false(was_empty);
    struct letter *l = mailbox_wait(&box);
    for (int i = 1; i <= 3; i++, l = l->next) assert_int_equal(l->number, i);
    assert_null(l);
    assert_null(mailbox_take(&box));
    mailbox_fini(&box);
}

TEST(a_closed_box_refuses_and_does_not_sleep) {
    struct mailbox box;
    bool was_empty = true;
    struct letter a = {0}, b = {0};

    assert_int_equal(mailbox_init(&box), 0);
    assert_int_equal(mailbox_push(&box, &a, &a, NULL), 0);
    assert_ptr_equal(mailbox_close(&box), &a);
    assert_int_equal(mailbox_push(&box, &b, &b, &was_empty), ERR_FULL);
    assert_false(was_empty);
    assert_null(mailbox_wait(&box));
    mailbox_fini(&box);
}

enum { WRITERS = 4, LETTERS = 5000 };

struct writer {
    struct mailbox *box;
    int number;
};

TEST(a_poke_or_a_moment_ends_a_wait) {
    struct mailbox box;
    struct letter a = {.number = 1};
    assert_int_equal(mailbox_init(&box), 0);
    mailbox_poke(&box);
    mailbox_poke(&box);
    assert_null(mailbox_wait(&box)); /* both pokes */
    const double until_s = clock_seconds() + 0.02;
    assert_null(mailbox_wait_until(&box, until_s));
    assert_true(clock_seconds() >= until_s - 0.001);
    assert_null(mailbox_wait_until(&box, until_s)); /* which is over */
    mailbox_poke(&box);
    assert_null(mailbox_wait_until(&box, clock_seconds() + 1000));
    assert_int_equal(mailbox_push(&box, &a, &a, NULL), 0);
    assert_ptr_equal(mailbox_wait_until(&box, clock_seconds() + 1000), &a);
    mailbox_fini(&box);
}

static void *write_letters(void *arg) {
    struct writer *w = arg;
    for (int i = 0; i < LETTERS; i++) {
        struct letter *l = calloc(1, sizeof(*l));
        l->writer = w->number;
        l->number = i;
        if (mailbox_push(w->box, l, l, NULL)) free(l);
    }
    return NULL;
}

TEST(nothing_is_lost_between_threads) {
    struct mailbox box;
    pthread_t threads[WRITERS];
    struct writer writers[WRITERS];
    int next[WRITERS] = {0}, n = 0;

    assert_int_equal(mailbox_init(&box), 0);
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){&box, i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_letters, &writers[i]), 0);
    }
    while (n < WRITERS * LETTERS) {
        for (struct letter *l = mailbox_wait(&box), *after; l; l = after, n++) {
            after = l->next;
            assert_int_equal(l->number, next[l->writer]++); /* each writer's order is kept */
            free(l);
        }
    }
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    assert_null(mailbox_close(&box));
    mailbox_fini(&box);
}
