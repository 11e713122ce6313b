/* test_digits.c - numbers of up to seven digits, lists of such, and what is no such number. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/digits.h"
#include "tests/test.h"

/* Reads from a copy of exactly these bytes, so that a sanitizer sees what is read behind them. */
static unsigned read_all(const char *text, size_t length, uint32_t *number) {
    char *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    memcpy(copy, text, length);
    const unsigned n = digits_read(copy, copy + length, number);
    free(copy);
    return n;
}

TEST(numbers_are_read_with_their_length) {
    for (uint32_t i = 0; i < 10000000; i += i < 20000 ? 1 : 997) {
        char text[24];
        const int n = snprintf(text, sizeof(text), "%u,       ", i) - 8;
        uint32_t number = UINT32_MAX;
        assert_int_equal(read_all(text, (size_t)n + 8, &number), n);
        assert_int_equal(number, i);
    }
}

TEST(every_other_byte_ends_a_number) {
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

TEST(too_few_bytes_are_left_alone) {
    uint32_t number;
    for (size_t n = 0; n < 8; n++) assert_int_equal(read_all("1,2,3,4,", n, &number), 0);
    assert_int_equal(read_all("1,2,3,4,", 8, &number), 1);
}

/* ---- lists ---- */

enum { MAX_NUMBERS = 300, LIMIT = 131072 };

static uint32_t random_below(uint64_t *seed, uint32_t n) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*seed >> 33) % n);
}

/* Writes what follows a comma of a list whose numbers come behind a space or behind none, and a
 * byte that ends it. */
static size_t write_list(char *text, uint64_t *seed, const char *space, uint32_t n) {
    char *at = text;
    for (uint32_t i = 0; i < n; i++)
        at += sprintf(at, "%s%s%u", i ? "," : "", space,
                      random_below(seed, LIMIT) >> random_below(seed, 17));
    return (size_t)(sprintf(at, "]") + at - text);
}

/* Reads a number and its comma; false: nothing that may be read. */
static bool read_one(const char *text, const char *space, uint32_t limit, uint32_t *number,
                     size_t *length) {
    if (strncmp(text, space, strlen(space)) != 0) return false;
    const char *digits = text + strlen(space);
    const size_t n = strspn(digits, "0123456789");
    *number = (uint32_t)strtoul(digits, NULL, 10);
    *length = strlen(space) + n + 1;
    return n > 0 && n <= 8 && (n == 1 || *digits != '0') && *number < limit && digits[n] == ',';
}

/* Compares what is read of a copy of exactly these bytes with what is read one by one. */
static size_t check_list(const char *text, size_t length, const char *space, uint32_t limit) {
    uint32_t *numbers = malloc(MAX_NUMBERS * sizeof(*numbers));
    char *copy = malloc(length + 1);
    assert_true(numbers && copy);
    memcpy(copy, text, length);
    copy[length] = 0;
    const char *at = copy;
    const size_t n = digits_read_blocks(&at, copy + length, limit, numbers, MAX_NUMBERS);
    const char *expected = copy;
    for (size_t i = 0, n_bytes = 0; i < n; i++, expected += n_bytes) {
        uint32_t number;
        assert_true(read_one(expected, space, limit, &number, &n_bytes));
        assert_int_equal(numbers[i], number);
    }
    assert_ptr_equal(at, expected);
    free(copy);
    free(numbers);
    return n;
}

TEST(blocks_of_a_list_are_read) {
    static char text[MAX_NUMBERS * 8 + 16];
    uint64_t seed = 7;
    size_t n_read = 0;
    for (int round = 0; round < 2000; round++) {
        const char *space = round % 2 ? " " : "";
        const uint32_t n = random_below(&seed, MAX_NUMBERS);
        const size_t length = write_list(text, &seed, space, n);
        n_read += check_list(text, length, space, LIMIT);
        (void)check_list(text, length, space, 1 + random_below(&seed, LIMIT));
    }
#ifdef __x86_64__
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) assert_true(n_read > 2000 * MAX_NUMBERS / 3);
#endif
#endif
}

TEST(no_byte_that_is_wrong_is_read) {
    static const char wrong[] = ",, 0019-.e]\n\x80\xb0\xff";
    static char text[MAX_NUMBERS * 8 + 16];
    uint64_t seed = 11;
    for (int round = 0; round < 50000; round++) {
        const char *space = round % 2 ? " " : "";
        const size_t length = write_list(text, &seed, space, 40);
        for (int i = 0; i < 1 + round % 3; i++)
            text[random_below(&seed, (uint32_t)length)] = wrong[random_below(&seed, sizeof(wrong))];
        /* The first byte tells whether spaces are expected. */
        (void)check_list(text, length, *text == ' ' ? " " : "", LIMIT);
    }
}
