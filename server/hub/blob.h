/* blob.h - one file of the hub, into the cache: whole and with the right hash, or not at all.
 *
 *   lock ─► HASH.incomplete: its bytes are hashed ─► the rest comes, and is hashed ─► HASH
 *
 * What has come stays in HASH.incomplete when the process ends, and is where the next one goes on.
 *
 * Thread: main.  Memory: none is kept. */
#ifndef SERVER_HUB_BLOB_H
#define SERVER_HUB_BLOB_H

#include <stdint.h>

struct error;
struct hub_answer;
struct hub_cache;
struct hub_file;
struct hub_voice;
struct hub_wire;

struct hub_source {
    const struct hub_cache *cache;
    struct hub_wire *wire;
    const struct hub_voice *voice;
    struct hub_answer *answer; /* the last one */
    /* Is told of bytes that came, or, where n is negative, that were thrown away. */
    void (*came)(void *ctx, const struct hub_file *file, int64_t n);
    void *ctx;
};

/* Fetches a file from this address; one that is there is left as it is.  up_to: how many first
 * bytes are enough for now; its size asks for the whole file.  ERR_IO with an empty text:
 * *source->answer says why. */
int hub_blob_fetch(const struct hub_source *source, const struct hub_file *file, const char *url,
                   uint64_t up_to, struct error *err);

#endif
