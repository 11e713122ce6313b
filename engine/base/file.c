/* file.c - see file.h. */
#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"

enum { CREATED_MODE = 0644 };

static int refuse_kind(const char *path, struct error *err) {
    return error_set(err, ERR_INVALID, "%.300s: not a regular file", path);
}

static int refuse_errno(const char *path, struct error *err) {
    if (errno == ENXIO) return refuse_kind(path, err); /* a socket cannot even be opened */
    const bool is_missing = errno == ENOENT || errno == ENOTDIR;
    return error_set(err, is_missing ? ERR_NOT_FOUND : ERR_IO, "%.300s: %s", path, strerror(errno));
}

int file_open(int *out, const char *path, int flags, struct error *err) {
    struct stat info;
    const int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, CREATED_MODE);
    if (fd < 0) return refuse_errno(path, err);
    const bool is_known = fstat(fd, &info) == 0;
    if (is_known && S_ISREG(info.st_mode)) {
        *out = fd;
        return 0;
    }
    const int rc = is_known ? refuse_kind(path, err) : refuse_errno(path, err);
    close(fd);
    return rc;
}

/* Reads exactly so many bytes; ERR_IO when the file ends before. */
static int read_bytes(int fd, char *bytes, size_t size, const char *path, struct error *err) {
    for (size_t done = 0; done < size;) {
        const ssize_t n = read(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return refuse_errno(path, err);
        if (n == 0) return error_set(err, ERR_IO, "%.300s: became shorter while it was read", path);
        done += (size_t)n;
    }
    return 0;
}

static int read_open(char **out, size_t *size, int fd, const char *path, size_t max_bytes,
                     struct error *err) {
    struct stat info;
    if (fstat(fd, &info) != 0) return refuse_errno(path, err);
    if ((uint64_t)info.st_size > max_bytes)
        return error_set(err, ERR_INVALID, "%.300s: %lld bytes, more than the %zu allowed", path,
                         (long long)info.st_size, max_bytes);
    const size_t n = (size_t)info.st_size;
    char *bytes = malloc(n + 1);
    if (!bytes) return error_set(err, ERR_NOMEM, "%.300s: no memory for %zu bytes", path, n);
    const int rc = read_bytes(fd, bytes, n, path, err);
    if (rc) {
        free(bytes);
        return rc;
    }
    bytes[n] = '\0';
    *out = bytes;
    *size = n;
    return 0;
}

int file_read(char **out, size_t *size, const char *path, size_t max_bytes, struct error *err) {
    int fd;
    int rc = file_open(&fd, path, O_RDONLY, err);
    if (rc) return rc;
    rc = read_open(out, size, fd, path, max_bytes, err);
    close(fd);
    return rc;
}
