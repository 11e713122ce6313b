/* crc32c.c - see crc32c.h.  The polynomial is 0x1EDC6F41, lowest bit first. */
#include "engine/base/crc32c.h"

#include <string.h>

#define POLYNOMIAL UINT32_C(0x82F63B78)

/* Divides four bits at a time: a table of 16 numbers needs no start-up. */
uint32_t crc32c_plain(uint32_t crc, const void *bytes, size_t size) {
    uint32_t table[16];
    for (uint32_t i = 0; i < 16; i++) {
        table[i] = i;
        for (int bit = 0; bit < 4; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? POLYNOMIAL : 0);
    }
    const unsigned char *at = bytes;
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const char *bytes,
                                                                 size_t size) {
    uint64_t sum = ~crc, word;
    for (; size >= sizeof(word); size -= sizeof(word), bytes += sizeof(word)) {
        memcpy(&word, bytes, sizeof(word));
        sum = __builtin_ia32_crc32di(sum, word);
    }
    uint32_t rest = (uint32_t)sum;
    while (size-- > 0) rest = __builtin_ia32_crc32qi(rest, (unsigned char)*bytes++);
    return ~rest;
}
#endif

uint32_t crc32c(uint32_t crc, const void *bytes, size_t size) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return by_instruction(crc, bytes, size);
#endif
    return crc32c_plain(crc, bytes, size);
}
