/* digits.c - see digits.h. */
#include "engine/base/digits.h"

#include <stdbool.h>

#ifdef __x86_64__
#include <smmintrin.h>

enum { WORD = 8, PER_ROUND = 4 };

/* Findings about all numbers of a block, for are_right(). */
struct findings {
    __m128i highest; /* bytes: of all digits */
    __m128i zeros;   /* bytes that are not 0: leading zeros */
    __m128i most;    /* numbers */
    uint8_t lengths; /* bits of all numbers of digits, less 1 */
};

/* A number's digits are the last bytes of a word, and behind a mask of so many bytes.  The length of
 * what is no number may be anything: its lowest four bits find a mask, too. */
static const uint64_t last_bytes[16] = {
    0,
    UINT64_C(0xff00000000000000),
    UINT64_C(0xffff000000000000),
    UINT64_C(0xffffff0000000000),
    UINT64_C(0xffffffff00000000),
    UINT64_C(0xffffffffff000000),
    UINT64_C(0xffffffffffff0000),
    UINT64_C(0xffffffffffffff00),
    UINT64_MAX,
};

#define WITH_VECTORS __attribute__((target("sse4.1,popcnt")))

/* Returns a bit for each byte of the block, the lowest for the first: whether it is c. */
WITH_VECTORS static inline uint64_t find(const char *block, char c) {
    uint64_t found = 0;
    for (unsigned i = 0; i < DIGITS_BLOCK; i += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(block + i));
        const __m128i same = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(c));
        found |= (uint64_t)(unsigned)_mm_movemask_epi8(same) << i;
    }
    return found;
}

/* Returns the digits of two numbers, of n[0] and n[1] digits and before end[0] and end[1]. */
WITH_VECTORS static inline __m128i two_words(const char *block, const uint8_t *end,
                                             const uint8_t *n, struct findings *f) {
    uint64_t words[2];
    memcpy(&words[0], block + end[0] - WORD, WORD);
    memcpy(&words[1], block + end[1] - WORD, WORD);
    const __m128i text = _mm_set_epi64x((long long)words[1], (long long)words[0]);
    const __m128i mask = _mm_set_epi64x((long long)last_bytes[n[1] > WORD ? 0 : n[1]],
                                        (long long)last_bytes[n[0] > WORD ? 0 : n[0]]);
    const __m128i digits = _mm_and_si128(_mm_sub_epi8(text, _mm_set1_epi8('0')), mask);
    /* The first digit of each number that has more than one. */
    const __m128i first = _mm_and_si128(_mm_andnot_si128(_mm_slli_epi64(mask, 8), mask),
                                        _mm_set1_epi64x(INT64_C(0x00ffffffffffffff)));
    f->highest = _mm_max_epu8(f->highest, digits);
    f->zeros =
        _mm_or_si128(f->zeros, _mm_and_si128(first, _mm_cmpeq_epi8(digits, _mm_setzero_si128())));
    f->lengths |= (uint8_t)((n[0] - 1) | (n[1] - 1));
    /* 2 digits in 16 bits each, then 4 in 32. */
    return _mm_madd_epi16(_mm_maddubs_epi16(digits, _mm_set1_epi16(1 << 8 | 10)),
                          _mm_set1_epi32(1 << 16 | 100));
}

WITH_VECTORS static inline bool are_right(const struct findings *f, uint32_t limit) {
    const __m128i nine = _mm_set1_epi8(9), last = _mm_set1_epi32((int)(limit - 1));
    const __m128i digits = _mm_cmpeq_epi8(_mm_max_epu8(f->highest, nine), nine),
                  numbers = _mm_cmpeq_epi32(_mm_max_epu32(f->most, last), last);
    return f->lengths < WORD && _mm_testz_si128(f->zeros, f->zeros) &&
           _mm_movemask_epi8(_mm_and_si128(digits, numbers)) == 0xffff;
}

/* Reads the block's first n numbers, n a multiple of PER_ROUND, that end where ends[1], … say and begin
 * `gap` bytes behind ends[0], … */
WITH_VECTORS static inline bool read_block(const char *block, const uint8_t *ends, unsigned n,
                                           uint8_t gap, uint32_t limit, uint32_t *numbers) {
    struct findings f = {0};
    for (unsigned i = 0; i < n; i += PER_ROUND) {
        uint8_t lengths[PER_ROUND];
        for (unsigned k = 0; k < PER_ROUND; k++)
            lengths[k] = (uint8_t)(ends[i + k + 1] - ends[i + k] - gap);
        const __m128i one = two_words(block, ends + i + 1, lengths, &f),
                      other = two_words(block, ends + i + 3, lengths + 2, &f);
        const __m128i four =
            _mm_madd_epi16(_mm_packus_epi32(one, other), _mm_set1_epi32(1 << 16 | 10000));
        f.most = _mm_max_epu32(f.most, four);
        _mm_storeu_si128((__m128i *)(numbers + i), four);
    }
    return are_right(&f, limit);
}

WITH_VECTORS static size_t by_vectors(const char **text, const char *end, uint32_t limit,
                                      uint32_t *numbers, size_t space) {
    const char *at = *text;
    size_t n_read = 0;
    uint8_t gap = 0;
    while (end - at > DIGITS_BLOCK && space - n_read >= DIGITS_BLOCK) {
        uint64_t commas = find(at, ',');
        unsigned n = (unsigned)__builtin_popcountll(commas) / PER_ROUND * PER_ROUND;
        if (n == 0) break;
        if (gap == 0) gap = at[__builtin_ctzll(commas) + 1] == ' ' ? 2 : 1;
        if (gap == 2 && ((commas << 1 & ~find(at, ' ')) || (commas >> 63 && at[64] != ' '))) break;
        uint8_t ends[DIGITS_BLOCK + 1];
        ends[0] = (uint8_t)-gap;
        for (unsigned i = 1; i <= n; i++, commas &= commas - 1)
            ends[i] = (uint8_t)__builtin_ctzll(commas);
        if (!read_block(at, ends, n, gap, limit, numbers + n_read)) break;
        n_read += n;
        at += ends[n] + gap;
    }
    *text = at;
    return n_read;
}
#endif

size_t digits_read_blocks(const char **text, const char *end, uint32_t limit, uint32_t *numbers,
                          size_t space) {
#ifdef __x86_64__
    if (limit > 0 && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("popcnt"))
        return by_vectors(text, end, limit, numbers, space);
#endif
    (void)text, (void)end, (void)limit, (void)numbers, (void)space;
    return 0;
}
