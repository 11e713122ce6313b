/* likeness.c - see likeness.h. */
#include "engine/base/likeness.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static bool is_same(char a, char b) {
    if (a == '_') a = '-';
    if (b == '_') b = '-';
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static unsigned least(unsigned a, unsigned b) {
    return a < b ? a : b;
}

/* Keeps three rows of the usual table: [i][j] is the distance of a's first i bytes from b's first
 * j, and row i is row i % 3. */
unsigned likeness_distance(const char *a, const char *b) {
    const size_t n_a = strlen(a), n_b = strlen(b);
    unsigned rows[3][LIKENESS_MAX_BYTES + 1];
    if (n_a > LIKENESS_MAX_BYTES || n_b > LIKENESS_MAX_BYTES) return LIKENESS_MAX_BYTES + 1;
    for (size_t j = 0; j <= n_b; j++) rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n_a; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *above = rows[(i - 1) % 3], *above_that = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            const unsigned changed = above[j - 1] + !is_same(a[i - 1], b[j - 1]);
            row[j] = least(changed, least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) && is_same(a[i - 2], b[j - 1]))
                row[j] = least(row[j], above_that[j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

unsigned likeness_most(const char *word) {
    return least((unsigned)strlen(word) / 3, 3);
}
