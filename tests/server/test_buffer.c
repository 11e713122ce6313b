/* test_buffer.c - text that is formatted is whole, however few bytes were free for it. */
#include <stdio.h>
#include <string.h>

#include "server/json/buffer.h"
#include "tests/test.h"

enum { LONGEST = 300 };

TEST(formatted_text_is_whole_whatever_was_free) {
    char filling[LONGEST + 1], expected[LONGEST + 8];
    memset(filling, 'x', LONGEST);
    filling[LONGEST] = 0;
    for (int n_before = 0; n_before < LONGEST; n_before++) {
        const char *rest = filling + n_before;
        struct buffer buffer = {0};
        if (n_before > 0) buffer_append(&buffer, filling, (size_t)n_before);
        buffer_printf(&buffer, "<%s>%d", rest, 7);
        snprintf(expected, sizeof(expected), "%.*s<%s>7", n_before, filling, rest);
        assert_string_equal(buffer.data, expected);
        assert_int_equal(buffer.length, strlen(expected));
        buffer_fini(&buffer);
    }
}

TEST(nothing_is_formatted_behind_a_failure) {
    struct buffer buffer = {0};
    buffer_puts(&buffer, "text");
    buffer.failed = true; /* as an allocation leaves it */
    buffer_printf(&buffer, "%d", 7);
    assert_string_equal(buffer.data, "text");
    assert_int_equal(buffer.length, 4);
    buffer_fini(&buffer);
}
