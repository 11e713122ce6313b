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

/* How many elements an array has. */
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
