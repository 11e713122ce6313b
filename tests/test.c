/* test.c - see test.h. */
#include "tests/test.h"

#include <stdlib.h>

static struct test *first;

void tests_add(struct test *test) {
    struct test **at = &first;
    while (*at && (*at)->line < test->line) at = &(*at)->next;
    test->next = *at;
    *at = test;
}

int tests_run(const char *group, CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    struct CMUnitTest *tests = NULL;
    size_t n = 0;
    for (const struct test *test = first; test; test = test->next) {
        tests = realloc(tests, (n + 1) * sizeof(*tests));
        tests[n++] = test->test;
    }
    const char *only = getenv("QUIRE_TEST_ONLY"); /* a name, with * and ? */
    if (only) cmocka_set_test_filter(only);
    const int n_failed = _cmocka_run_group_tests(group, tests, n, set_up, tear_down);
    free(tests);
    return n_failed;
}
