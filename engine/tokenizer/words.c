/* words.c - a hash table of tokens, by the bytes that encode to each of them alone.  So a common
 * word costs one look-up and no merging.
 *
 * Thread: immutable once loaded.  Memory: the table owns a copy of the words. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"

static uint64_t hash_bytes(const char *bytes, size_t n) {
    uint64_t hash = n;
    for (;;) {
        uint64_t word = 0;
        const size_t taken = n < sizeof(word) ? n : sizeof(word);
        memcpy(&word, bytes, taken);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
        if (n <= sizeof(word)) return hash * UINT64_C(0xD6E8FEB86659FD93);
        bytes += taken;
        n -= taken;
    }
}

int words_init(struct words *words, size_t n_words) {
    size_t size = 16;
    while (size < 2 * n_words) size *= 2; /* at most half full: a probe always ends */
    words->slots = malloc(size * sizeof(*words->slots));
    if (!words->slots) return ERR_NOMEM;
    words->mask = size - 1;
    for (size_t i = 0; i < size; i++) words->slots[i] = (struct word_slot){.id = NO_TOKEN};
    return 0;
}

void words_fini(struct words *words) {
    free(words->slots);
    free(words->bytes.data);
    *words = (struct words){0};
}

int words_add(struct words *words, const char *bytes, size_t n, uint32_t id) {
    const uint64_t hash = hash_bytes(bytes, n);
    size_t i = (size_t)(hash >> 32) & words->mask;
    while (words->slots[i].id != NO_TOKEN) i = (i + 1) & words->mask;
    words->slots[i] = (struct word_slot){
        .tag = (uint32_t)hash, .id = id, .offset = (uint32_t)words->bytes.n, .length = (uint32_t)n};
    if (n > words->longest) words->longest = n;
    return text_append(&words->bytes, bytes, n);
}

uint32_t words_find(const struct words *words, const char *bytes, size_t n) {
    if (n > words->longest) return NO_TOKEN;
    const uint64_t hash = hash_bytes(bytes, n);
    for (size_t i = (size_t)(hash >> 32) & words->mask; words->slots[i].id != NO_TOKEN;
         i = (i + 1) & words->mask) {
        const struct word_slot *slot = &words->slots[i];
        if (slot->tag == (uint32_t)hash && slot->length == n &&
            memcmp(words->bytes.data + slot->offset, bytes, n) == 0) {
            return slot->id;
        }
    }
    return NO_TOKEN;
}
