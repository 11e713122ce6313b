/* digits.h - reads short decimal numbers without a branch for each digit.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_DIGITS_H
#define ENGINE_BASE_DIGITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first digit is the lowest byte");

/* Returns how many digits text begins with, and their number; 0 if there is none, if there are
 * eight or more, or if end comes within eight bytes.  Reads no byte at or behind end. */
static inline unsigned digits_read(const char *text, const char *end, uint32_t *number) {
    uint64_t bytes;
    if (end - text < (ptrdiff_t)sizeof(bytes)) return 0;
    memcpy(&bytes, text, sizeof(bytes));
    bytes ^= UINT64_C(0x3030303030303030); /* digits become 0 to 9 */
    const uint64_t low = bytes & UINT64_C(0x7f7f7f7f7f7f7f7f);
    const uint64_t others =
        ((low + UINT64_C(0x7676767676767676)) | bytes) & UINT64_C(0x8080808080808080);
    const unsigned n = others ? (unsigned)__builtin_ctzll(others) / 8 : 0;
    if (n == 0) return 0;
    bytes <<= 64 - 8 * n;                                                 /* zeros in front */
    bytes = (bytes * 10 + (bytes >> 8)) & UINT64_C(0x00ff00ff00ff00ff);   /* 2 digits each */
    bytes = (bytes * 100 + (bytes >> 16)) & UINT64_C(0x0000ffff0000ffff); /* 4 */
    *number = (uint32_t)((bytes * 10000 + (bytes >> 32)) & UINT64_C(0xffffffff)); /* 8 */
    return n;
}

/* Reads numbers below limit, as JSON writes them, from what follows a comma of a list
 * `digits, digits, …` or `digits,digits,…`.  Reads some at a time with vector instructions, as long
 * as more than 64 bytes are left before end, and moves *text behind the last one's comma.  Stops
 * before numbers that it cannot read, which are not told apart from wrong ones.  Returns how many
 * were read: 0 without such instructions.  May write beyond what it returns, within space. */
size_t digits_read_blocks(const char **text, const char *end, uint32_t limit, uint32_t *numbers,
                          size_t space);

#endif
