/* fuzz_disk_format.c - any bytes at all as a file of the tier on disk, as they are and with
 * checksums that are right.
 *
 * Of what is accepted every token and page must lie in the file. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/crc32c.h"
#include "engine/kv/disk/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD_BYTES = 152, N_TOKENS_AT = 112, PAGES_CRC_AT = 144, HEAD_CRC_AT = 148 };

static void check(const char *file, size_t size) {
    struct disk_head head;
    if (disk_format_read(&head, file, size)) return;
    if (disk_format_bytes(&head) != size) abort();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < head.key.n_tokens; i++) sum += head.key.tokens[i];
    for (size_t i = disk_format_payload(head.key.n_tokens); i < size; i++) sum += (uint8_t)file[i];
    const uint64_t secret[DIGEST_KEY_WORDS] = {sum};
    (void)disk_key_name(&head.key, secret);
    if (!disk_key_same(&head.key, &head.key)) abort();
}

/* Sets the checksums that a writer would have. */
static void mend(char *file, size_t size) {
    uint32_t n_tokens, crc;
    memcpy(&n_tokens, file + N_TOKENS_AT, sizeof(n_tokens));
    const size_t at = disk_format_payload(n_tokens);
    if (at > size) return;
    crc = crc32c(0, file + at, size - at);
    memcpy(file + PAGES_CRC_AT, &crc, sizeof(crc));
    memset(file + HEAD_CRC_AT, 0, sizeof(crc));
    crc = crc32c(0, file, at);
    memcpy(file + HEAD_CRC_AT, &crc, sizeof(crc));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *file = malloc(size + 1); /* of its own, so that a sanitiser sees its end */
    if (!file) return 1;
    memcpy(file, data, size);
    check(file, size);
    if (size >= HEAD_BYTES) {
        mend(file, size);
        check(file, size);
    }
    free(file);
    return 0;
}
