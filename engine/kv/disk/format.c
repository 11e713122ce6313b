/* format.c - see format.h. */
#include "engine/kv/disk/format.h"

#include <string.h>

#include "engine/base/crc32c.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"

enum { PAYLOAD_ALIGN = 64, ORDER = 0x01020304 };

static const char magic[8] = {'q', 'u', 'i', 'r', 'e', 'K', 'V', '1'};

/* The head as it lies in the file; it has no padding. */
struct file_head {
    char magic[8];
    uint32_t order, kind;
    uint64_t identity[2];
    uint64_t words[DISK_N_WORDS];
    uint64_t parent[2];
    uint32_t n_tokens, n_pages;
    uint32_t notes[DISK_N_NOTES];
    uint32_t n_before, unused;
    uint64_t page_bytes;
    uint32_t pages_crc;
    uint32_t head_crc; /* with 0 in this place */
};

_Static_assert(sizeof(struct file_head) == 152, "the head has no padding");

bool disk_key_same(const struct disk_key *a, const struct disk_key *b) {
    return a->kind == b->kind && a->n_tokens == b->n_tokens && a->n_before == b->n_before &&
           digest_same(a->parent, b->parent) && memcmp(a->words, b->words, sizeof(a->words)) == 0 &&
           memcmp(a->tokens, b->tokens, a->n_tokens * sizeof(*a->tokens)) == 0;
}

void disk_key_begin(struct digest *digest, const struct disk_key *key, const uint64_t secret[]) {
    digest_init(digest, secret);
    digest_absorb(digest, key->kind | (uint64_t)key->n_before << 32);
    for (int i = 0; i < DISK_N_WORDS; i++) digest_absorb(digest, key->words[i]);
    digest_absorb(digest, key->parent.words[0]);
    digest_absorb(digest, key->parent.words[1]);
}

struct digest_value disk_key_name(const struct disk_key *key, const uint64_t secret[]) {
    struct digest digest;
    disk_key_begin(&digest, key, secret);
    for (uint32_t i = 0; i < key->n_tokens; i++) digest_absorb(&digest, key->tokens[i]);
    digest_absorb(&digest, key->n_tokens);
    return digest_end(&digest);
}

size_t disk_format_payload(uint32_t n_tokens) {
    return round_up(sizeof(struct file_head) + (uint64_t)n_tokens * sizeof(uint32_t),
                    PAYLOAD_ALIGN);
}

size_t disk_format_bytes(const struct disk_head *head) {
    return disk_format_payload(head->key.n_tokens) + head->n_pages * head->page_bytes;
}

void disk_format_write(char *file, const struct disk_head *head) {
    const struct disk_key *key = &head->key;
    const size_t at = disk_format_payload(key->n_tokens);
    struct file_head h = {.order = ORDER,
                          .kind = key->kind,
                          .identity = {head->identity.words[0], head->identity.words[1]},
                          .parent = {key->parent.words[0], key->parent.words[1]},
                          .n_tokens = key->n_tokens,
                          .n_before = key->n_before,
                          .n_pages = head->n_pages,
                          .page_bytes = head->page_bytes};
    memcpy(h.magic, magic, sizeof(magic));
    memcpy(h.words, key->words, sizeof(h.words));
    memcpy(h.notes, head->notes, sizeof(h.notes));
    h.pages_crc = crc32c(0, file + at, head->n_pages * head->page_bytes);
    memset(file, 0, at);
    memcpy(file, &h, sizeof(h));
    memcpy(file + sizeof(h), key->tokens, key->n_tokens * sizeof(*key->tokens));
    h.head_crc = crc32c(0, file, at);
    memcpy(file, &h, sizeof(h));
}

/* Tells whether the numbers in the head describe a file of this size; no sum of them wraps. */
static bool has_size(const struct file_head *h, size_t size) {
    const uint64_t at = disk_format_payload(h->n_tokens);
    if (size < at || h->page_bytes == 0) return false;
    return (size - at) / h->page_bytes == h->n_pages && (size - at) % h->page_bytes == 0;
}

static bool has_head_checksum(const struct file_head *h, const char *file) {
    struct file_head cleared = *h;
    cleared.head_crc = 0;
    const uint32_t crc = crc32c(0, &cleared, sizeof(cleared));
    const size_t rest = disk_format_payload(h->n_tokens) - sizeof(cleared);
    return crc32c(crc, file + sizeof(cleared), rest) == h->head_crc;
}

int disk_format_read(struct disk_head *out, const char *file, size_t size) {
    struct file_head h;
    if (size < sizeof(h)) return ERR_INVALID;
    memcpy(&h, file, sizeof(h));
    if (memcmp(h.magic, magic, sizeof(magic)) != 0 || h.order != ORDER) return ERR_INVALID;
    if (h.kind < DISK_BLOCK || h.kind > DISK_N_KINDS) return ERR_INVALID;
    if (!has_size(&h, size) || !has_head_checksum(&h, file)) return ERR_INVALID;
    const size_t at = disk_format_payload(h.n_tokens);
    if (crc32c(0, file + at, size - at) != h.pages_crc) return ERR_INVALID;
    *out = (struct disk_head){.key = {.kind = h.kind,
                                      .n_tokens = h.n_tokens,
                                      .n_before = h.n_before,
                                      .parent = {{h.parent[0], h.parent[1]}},
                                      .tokens = (const uint32_t *)(const void *)(file + sizeof(h))},
                              .identity = {{h.identity[0], h.identity[1]}},
                              .n_pages = h.n_pages,
                              .page_bytes = h.page_bytes};
    memcpy(out->key.words, h.words, sizeof(h.words));
    memcpy(out->notes, h.notes, sizeof(h.notes));
    return 0;
}
