/* test_digits.c - numbers of up to seven digits, and what is no such number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/digits.h"

/* Reads from a copy of exactly these bytes, so that a sanitizer sees what is read behind them. */
static unsigned read_all(const char *text, size_t length, uint32_t *number) {
    char *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    memcpy(copy, text, length);
    const unsigned n = digits_read(copy, copy + length, number);
    free(copy);
    return n;
}

static void numbers_are_read_with_their_length(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 10000000; i += i < 20000 ? 1 : 997) {
        char text[24];
        const int n = snprintf(text, sizeof(text), "%u,       ", i) - 8;
        uint32_t number = UINT32_MAX;
        assert_int_equal(read_all(text, (size_t)n + 8, &number), n);
        assert_int_equal(number, i);
    }
}

static void every_other_byte_ends_a_number(void **state) {
    (void)state;
    for (int c = 0; c < 256; c++) {
        char text[] = "70123456";
        uint32_t number = UINT32_MAX;
        text[1] = (char)c;
        const int is_digit = c >= '0' && c <= '9';
        assert_int_equal(read_all(text, 8, &number), is_digit ? 0 : 1);
        if (!is_digit) assert_int_equal(number, 7);
        text[0] = (char)c;
        if (!is_digit) assert_int_equal(read_all(text, 8, &number), 0);
    }
}

static void too_few_bytes_are_left_alone(void **state) {
    (void)state;
    uint32_t number;
    for (size_t n = 0; n < 8; n++) assert_int_equal(read_all("1,2,3,4,", n, &number), 0);
    assert_int_equal(read_all("1,2,3,4,", 8, &number), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_with_their_length),
        cmocka_unit_test(every_other_byte_ends_a_number),
        cmocka_unit_test(too_few_bytes_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
