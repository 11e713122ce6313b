/* test_error.c - error_set() reports the code and never overruns the text. */
#include <string.h>

#include "engine/base/error.h"
#include "tests/test.h"

TEST(returns_the_code_without_a_struct) {
    assert_int_equal(error_set(NULL, ERR_FULL, "this is not read %d", 1), ERR_FULL);
}

TEST(long_text_is_cut_and_terminated) {
    struct error err = {0};
    char longer[2 * sizeof(err.text)];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    assert_int_equal(error_set(&err, ERR_IO, "%s", longer), ERR_IO);
    assert_int_equal(err.code, ERR_IO);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
}
