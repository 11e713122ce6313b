/* call_ids.c - see call_ids.h. */
#include "server/api/conversation/call_ids.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/siphash.h"

static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

bool call_id_fits(const char *id, size_t length) {
    bool fits = length == CALL_ID_LENGTH;
    for (size_t i = 0; i < length && fits; i++) fits = id[i] && strchr(digits, id[i]);
    return fits;
}

/* Hashes under a fixed key, so that every server has the same aliases.  A client that makes its own
 * ids collide confuses its own conversation alone. */
void call_id_alias(char out[CALL_ID_LENGTH + 1], const char *text, size_t length) {
    static const uint64_t key[2] = {0, 0};
    struct siphash hash;
    siphash_init(&hash, key);
    siphash_absorb_bytes(&hash, text, length);
    siphash_absorb(&hash, length);
    uint64_t value = siphash_end(&hash);
    for (int i = 0; i < CALL_ID_LENGTH; i++, value /= 62) out[i] = digits[value % 62];
    out[CALL_ID_LENGTH] = 0;
}

void call_id_make(char out[CALL_ID_LENGTH + 1], const char *request_id, uint32_t n_prompt,
                  uint32_t choice, uint32_t call) {
    char text[256];
    const int n = snprintf(text, sizeof(text), "%u %u %u %s", n_prompt, choice, call, request_id);
    call_id_alias(out, text, (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1);
}
