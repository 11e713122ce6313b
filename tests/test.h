/* test.h - cmocka with the headers that it needs in front of it, and what tests share. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Every test gets a state, which few of them have. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

struct test {
    struct CMUnitTest test;
    int line; /* of its source file */
    struct test *next;
};

/* Defines a test: TEST(name) { … } in place of the head of a function.  Its state, which few tests
 * have, is `state`.  A program runs its tests in the order of their lines. */
#define TEST(name) TEST_WITH(name, NULL, NULL)

/* Defines a test with a set-up and a tear-down; NULL: without that one. */
#define TEST_WITH(name, set_up, tear_down)                                                         \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void name##_is_added(void) {                               \
        static struct test test = {{#name, name, set_up, tear_down, NULL}, __LINE__, NULL};        \
        tests_add(&test);                                                                          \
    }                                                                                              \
    static void name(void **state)

/* Adds a test, which must live as long as the program.  TEST() calls it. */
void tests_add(struct test *test);

/* Runs the program's tests; set-up and tear-down are the group's, each may be NULL.  Returns how
 * many failed.  A program without a main() of its own gets one that calls this. */
int tests_run(const char *group, CMFixtureFunction set_up, CMFixtureFunction tear_down);

/* How many elements an array has. */
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
