/* numbers.h - numbers as Python writes and reads them.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_TEMPLATE_NUMBERS_H
#define ENGINE_TEMPLATE_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMBER_MAX_TEXT = 48 };

/* Writes repr() of a float: the fewest digits that read back as the same number. */
void number_print_float(char out[NUMBER_MAX_TEXT], double d);

/* Reads an integer.  ERR_INVALID: it is none; ERR_TOO_LONG: it is beyond 64 bits. */
int number_parse_int(const char *bytes, size_t n, int base, int64_t *out);
bool number_parse_float(const char *bytes, size_t n, double *out);

/* Rounds half to even, as Python does: by the decimal digits of the exact binary number. */
double number_round(double d, int n_digits);

#endif
