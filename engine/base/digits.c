/* digits.c - see digits.h. */
#include "engine/base/digits.h"

#include <stdbool.h>

#ifdef __x86_64__
#include <immintrin.h>

enum { BLOCK = 64, PER_ROUND = 8, MOST_DIGITS = 8 };

#define WITH_VECTORS __attribute__((target("avx2,bmi")))
#define EACH_BYTE(value) ((value)*UINT64_C(0x0101010101010101))

/* Which bytes of a block are digits, digits 0, and so on: bits, the lowest for the first byte. */
struct byte_sets {
    uint64_t digits, zeros, commas, spaces;
};

/* The commas behind a round's numbers: their places in the block, a byte for each, the lowest for
 * the first; and the last one as a bit. */
struct commas {
    uint64_t places, last;
};

WITH_VECTORS static inline uint64_t bits_of(__m256i bytes) {
    return (unsigned)_mm256_movemask_epi8(bytes);
}

WITH_VECTORS static inline struct byte_sets classify(const char *block) {
    struct byte_sets sets = {0};
#pragma GCC unroll 2
    for (unsigned i = 0; i < BLOCK; i += 32) {
        const __m256i text = _mm256_loadu_si256((const __m256i *)(block + i)),
                      values = _mm256_sub_epi8(text, _mm256_set1_epi8('0')),
                      at_most_9 = _mm256_min_epu8(values, _mm256_set1_epi8(9));
        sets.digits |= bits_of(_mm256_cmpeq_epi8(values, at_most_9)) << i;
        sets.zeros |= bits_of(_mm256_cmpeq_epi8(values, _mm256_setzero_si256())) << i;
        sets.commas |= bits_of(_mm256_cmpeq_epi8(text, _mm256_set1_epi8(','))) << i;
        sets.spaces |= bits_of(_mm256_cmpeq_epi8(text, _mm256_set1_epi8(' '))) << i;
    }
    return sets;
}

/* Finds a round's commas; `last` is 0 if the block has fewer. */
WITH_VECTORS static inline struct commas find_commas(uint64_t all) {
    uint64_t places = 0, rest = all;
#pragma GCC unroll 8
    for (unsigned i = 0; i < PER_ROUND; i++) {
        all = rest;
        places |= (_tzcnt_u64(rest) & 0x3f) << 8 * i;
        rest = _blsr_u64(rest);
    }
    return (struct commas){places, all ^ rest};
}

/* Tells whether nothing but numbers comes before the last comma, each behind a space or each behind
 * none, and without leading zeros. */
static inline bool is_list(const struct byte_sets *sets, uint64_t last, bool spaced) {
    const uint64_t starts = sets->commas << 1 | 1, spaces = spaced ? starts : 0;
    const uint64_t first_digits = starts << spaced, before_commas = sets->commas >> 1;
    const uint64_t others = ~(sets->digits ^ (sets->commas | spaces)) | (spaces & ~sets->spaces);
    const uint64_t wrong = first_digits & (~sets->digits | (sets->zeros & ~before_commas));
    return ((others | wrong) & (last | (last - 1))) == 0;
}

/* Returns eight bytes from the place that byte i of `starts` names. */
static inline long long word_at(const char *block, uint32_t starts, unsigned i) {
    long long word;
    memcpy(&word, block + (uint8_t)(starts >> 8 * i), sizeof(word));
    return word;
}

WITH_VECTORS static inline __m256i four_words(const char *block, uint32_t starts) {
    return _mm256_set_epi64x(word_at(block, starts, 3), word_at(block, starts, 2),
                             word_at(block, starts, 1), word_at(block, starts, 0));
}

/* Returns, for each word, the number that its first four digits and that its last four are.  What
 * follows the digits is shifted out, so that zeros come before them. */
WITH_VECTORS static inline __m256i four_halves(__m256i words, uint32_t shifts) {
    const __m256i shift = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128((int)shifts)),
                  digits = _mm256_sllv_epi64(_mm256_sub_epi8(words, _mm256_set1_epi8('0')), shift),
                  pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(1 << 8 | 10));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi32(1 << 16 | 100));
}

/* Reads a round of a list; false: a number has too many digits, or is too large. */
WITH_VECTORS static inline bool read_round(const char *block, uint64_t commas, bool spaced,
                                           uint32_t limit, uint32_t *numbers) {
    /* No byte of these sums and differences reaches its neighbour: in a list each number begins
     * before its comma. */
    const uint64_t starts = (commas << 8) + EACH_BYTE(1u + spaced) - 1, lengths = commas - starts;
    if ((lengths + EACH_BYTE(0x7f - MOST_DIGITS)) & EACH_BYTE(0x80)) return false;
    const uint64_t shifts = EACH_BYTE(64) - 8 * lengths;
    const __m256i low = four_halves(four_words(block, (uint32_t)starts), (uint32_t)shifts),
                  high = four_halves(four_words(block, (uint32_t)(starts >> 32)),
                                     (uint32_t)(shifts >> 32));
    const __m256i mixed = _mm256_madd_epi16(_mm256_packus_epi32(low, high),
                                            _mm256_set1_epi32(1 << 16 | 10000)),
                  all = _mm256_permute4x64_epi64(mixed, 0xd8), /* packus takes halves in turn */
        last = _mm256_set1_epi32((int)(limit - 1));
    _mm256_storeu_si256((__m256i *)numbers, all);
    return bits_of(_mm256_cmpeq_epi32(_mm256_max_epu32(all, last), last)) == UINT32_MAX;
}

WITH_VECTORS static size_t by_vectors(const char **text, const char *end, uint32_t limit,
                                      uint32_t *numbers, size_t space) {
    const char *at = *text;
    size_t n_read = 0;
    const bool spaced = at < end && *at == ' ';
    while (end - at >= BLOCK + MOST_DIGITS && space - n_read >= PER_ROUND) {
        const struct byte_sets sets = classify(at);
        const struct commas commas = find_commas(sets.commas);
        if (!commas.last || !is_list(&sets, commas.last, spaced)) break;
        if (!read_round(at, commas.places, spaced, limit, numbers + n_read)) break;
        n_read += PER_ROUND;
        at += (commas.places >> 56) + 1;
    }
    *text = at;
    return n_read;
}
#endif

size_t digits_read_blocks(const char **text, const char *end, uint32_t limit, uint32_t *numbers,
                          size_t space) {
#ifdef __x86_64__
    if (limit > 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi"))
        return by_vectors(text, end, limit, numbers, space);
#endif
    (void)text, (void)end, (void)limit, (void)numbers, (void)space;
    return 0;
}
