/* blob.c - see blob.h. */
#include "server/hub/blob.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/hub/cache.h"
#include "server/hub/files.h"
#include "server/hub/transfer.h"

/* SMALL_BYTES: so few are not kept where they may be no part of the file. */
enum { BLOCK_BYTES = 1 << 20, DIGEST_BYTES = HUB_HASH_MAX / 2, TRIES = 2, SMALL_BYTES = 1 << 20 };

static const char POINTER[] = "version https://git-lfs.github.com/spec/";

struct writing {
    const struct hub_source *source;
    const struct hub_file *file;
    int fd;
    uint64_t length;       /* bytes of the file that are written, and hashed */
    gnutls_hash_hd_t hash; /* NULL: none is begun */
};

static bool is_sha256(const struct hub_file *file) {
    return strlen(file->hash) == HUB_HASH_MAX;
}

/* Begins the hash anew.  That of git has the blob's size in front. */
static int begin_hash(struct writing *w, struct error *err) {
    char head[32];
    if (w->hash) gnutls_hash_deinit(w->hash, NULL);
    w->hash = NULL;
    if (gnutls_hash_init(&w->hash, is_sha256(w->file) ? GNUTLS_DIG_SHA256 : GNUTLS_DIG_SHA1))
        return error_set(err, ERR_UNSUPPORTED, "GnuTLS has no %s here to check files with",
                         is_sha256(w->file) ? "SHA-256" : "SHA-1");
    const int n = snprintf(head, sizeof(head), "blob %llu", (unsigned long long)w->file->size) + 1;
    if (!is_sha256(w->file)) gnutls_hash(w->hash, head, (size_t)n);
    w->length = 0;
    return 0;
}

static bool has_right_hash(struct writing *w) {
    unsigned char digest[DIGEST_BYTES];
    char text[HUB_HASH_MAX + 1];
    gnutls_hash_deinit(w->hash, digest);
    w->hash = NULL;
    for (size_t i = 0; i < strlen(w->file->hash) / 2; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return strcmp(text, w->file->hash) == 0;
}

static int refuse_file(const struct writing *w, const char *what, struct error *err) {
    const int code = errno;
    if (code == ENOSPC || code == EDQUOT || code == EFBIG)
        return error_set(err, ERR_FULL,
                         "the disk of %.200s is full, or its limit is reached, after %.1f MB of "
                         "%.100s: make space and try again; what has come is kept",
                         w->source->cache->path, (double)w->length / 1e6, w->file->path);
    return error_set(err, ERR_IO, "%.200s cannot be %s in %.200s: %s", w->file->path, what,
                     w->source->cache->path, strerror(code));
}

/* Hashes what an earlier process has written.  More than the file has is thrown away. */
static int resume(struct writing *w, struct error *err) {
    struct stat status;
    int rc = begin_hash(w, err);
    if (rc) return rc;
    if (fstat(w->fd, &status) != 0) return refuse_file(w, "read", err);
    if ((uint64_t)status.st_size > w->file->size && ftruncate(w->fd, 0) != 0)
        return refuse_file(w, "written", err);
    char *block = malloc(BLOCK_BYTES);
    if (!block) return error_set(err, ERR_NOMEM, "no memory to read %.200s", w->file->path);
    ssize_t n;
    while ((n = pread(w->fd, block, BLOCK_BYTES, (off_t)w->length)) > 0) {
        gnutls_hash(w->hash, block, (size_t)n);
        w->length += (uint64_t)n;
    }
    if (n < 0) rc = refuse_file(w, "read", err);
    free(block);
    return rc;
}

/* Empties the file, to begin anew. */
static int restart(struct writing *w, struct error *err) {
    const uint64_t thrown = w->length;
    const int rc = begin_hash(w, err);
    if (rc) return rc;
    if (ftruncate(w->fd, 0) != 0) return refuse_file(w, "written", err);
    w->source->came(w->source->ctx, w->file, -(int64_t)thrown);
    return 0;
}

/* Implements hub_part.take. */
static int take(void *ctx, uint64_t at, const char *bytes, size_t n, struct error *err) {
    struct writing *w = ctx;
    if (at != w->length) {
        const int rc =
            at == 0 ? restart(w, err)
                    : error_set(err, ERR_IO, "the hub sends another part of %.200s", w->file->path);
        if (rc) return rc;
    }
    for (size_t done = 0; done < n;) {
        const ssize_t wrote = pwrite(w->fd, bytes + done, n - done, (off_t)(at + done));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return refuse_file(w, "written", err);
        gnutls_hash(w->hash, bytes + done, (size_t)wrote);
        w->length += (uint64_t)wrote;
        done += (size_t)wrote;
    }
    w->source->came(w->source->ctx, w->file, (int64_t)n);
    return 0;
}

/* Refuses a file of which the hub has fewer bytes than it lists. */
static int refuse_short(const struct writing *w, struct error *err) {
    char first[sizeof(POINTER)] = "";
    const bool is_pointer = pread(w->fd, first, sizeof(POINTER) - 1, 0) > 0 &&
                            memcmp(first, POINTER, sizeof(POINTER) - 1) == 0;
    if (w->length < SMALL_BYTES) hub_cache_drop_part(w->source->cache, w->file);
    return error_set(err, ERR_INVALID, "%.200s ends after %llu of %llu bytes%s", w->file->path,
                     (unsigned long long)w->length, (unsigned long long)w->file->size,
                     is_pointer ? ": it is a Git LFS pointer, and HF_ENDPOINT must name a hub that "
                                  "has the files themselves"
                                : ": try later, or without a mirror or proxy on the way");
}

/* Lets the rest come, and checks the whole.  A wrong hash is thrown away, and tried once more. */
static int complete(struct writing *w, const char *url, uint64_t up_to, struct error *err) {
    const struct hub_source *s = w->source;
    for (int i = 0; i < TRIES; i++) {
        struct hub_part part = {.url = url,
                                .at = w->length,
                                .end = up_to,
                                .size = w->file->size,
                                .take = take,
                                .ctx = w};
        const int rc = hub_transfer_part(s->wire, &part, s->voice, s->answer, err);
        if (rc == ERR_IO && part.is_short) return refuse_short(w, err);
        if (rc || w->length < w->file->size) return rc;
        if (has_right_hash(w)) return hub_cache_finish(s->cache, w->file, w->fd, err);
        const int again = restart(w, err);
        if (again) return again;
        if (i == 0) s->voice->say(s->voice->ctx, "a file has come with a wrong hash: once more");
    }
    hub_cache_drop_part(s->cache, w->file);
    return error_set(err, ERR_INVALID,
                     "%.200s comes with another hash than the hub says, twice: nothing of it is "
                     "kept; try later, or without a mirror or proxy on the way",
                     w->file->path);
}

int hub_blob_fetch(const struct hub_source *source, const struct hub_file *file, const char *url,
                   uint64_t up_to, struct error *err) {
    struct writing w = {.source = source, .file = file, .fd = -1};
    int lock = -1;
    if (hub_cache_has_blob(source->cache, file)) return 0;
    int rc = hub_cache_lock(&lock, source->cache, file, source->voice, err);
    if (rc) return rc;
    if (!hub_cache_has_blob(source->cache, file)) {
        rc = hub_cache_open_part(&w.fd, source->cache, file, err);
        if (!rc) rc = resume(&w, err);
        if (!rc) rc = complete(&w, url, up_to, err);
    }
    if (w.hash) gnutls_hash_deinit(w.hash, NULL);
    if (w.fd >= 0) close(w.fd);
    close(lock);
    return rc;
}
