/* api_key.c - see api_key.h. */
#include "server/settings/api_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/settings/log.h"
#include "server/settings/options.h"

/* Returns the file's descriptor, or a negative code.  Opening a FIFO could block, so the file is
 * opened without waiting and its type is checked afterwards. */
static int open_regular(const char *path, struct error *err) {
    struct stat about;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &about) != 0) {
        error_set(err, ERR_INVALID, "--api-key-file %.200s: %s", path, strerror(errno));
    } else if (!S_ISREG(about.st_mode)) {
        error_set(err, ERR_INVALID, "--api-key-file %.200s: not a regular file", path);
    } else {
        return fd;
    }
    if (fd >= 0) close(fd);
    return ERR_INVALID;
}

/* Reads up to size bytes.  Returns a negative number on failure, with the cause in errno. */
static ssize_t read_whole(int fd, char *out, size_t size) {
    size_t n = 0;
    while (n < size) {
        const ssize_t more = read(fd, out + n, size - n);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) return -1;
        if (more == 0) break;
        n += (size_t)more;
    }
    return (ssize_t)n;
}

/* Returns the length without a line end, which an editor adds even to the only line of a file. */
static size_t without_line_end(const char *text, size_t n) {
    if (n > 0 && text[n - 1] == '\n') n--;
    if (n > 0 && text[n - 1] == '\r') n--;
    return n;
}

/* Refuses a key that a client could never send, or that was hardly meant as a key. */
static int check_key(const char *key, size_t n, const char *from, struct error *err) {
    if (n == 0) return error_set(err, ERR_INVALID, "%s: the key is empty", from);
    if (n > API_KEY_MAX)
        return error_set(err, ERR_INVALID, "%s: the key is longer than %d bytes", from,
                         API_KEY_MAX);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)key[i] < 0x20 || key[i] == 0x7F)
            return error_set(err, ERR_INVALID,
                             "%s: the key has a control character, or more than one line", from);
    if (key[0] == ' ' || key[n - 1] == ' ')
        return error_set(err, ERR_INVALID, "%s: the key begins or ends with a space", from);
    return 0;
}

static int read_key(char **out, const char *path, struct error *err) {
    char text[API_KEY_MAX + 3], from[256]; /* a line end, and one byte to detect a longer key */
    const int fd = open_regular(path, err);
    if (fd < 0) return fd;
    const ssize_t read = read_whole(fd, text, sizeof(text));
    const int failure = errno;
    close(fd);
    if (read < 0)
        return error_set(err, ERR_INVALID, "--api-key-file %.200s: %s", path, strerror(failure));
    const size_t n = without_line_end(text, (size_t)read);
    snprintf(from, sizeof(from), "--api-key-file %.200s", path);
    const int rc = check_key(text, n, from, err);
    if (rc) return rc;
    *out = strndup(text, n);
    return *out ? 0 : error_set(err, ERR_NOMEM, "no memory for the API key");
}

int api_key_settle(struct options *options, struct error *err) {
    const char *path = options->api_key_file;
    if (path && options->api_key)
        return error_set(err, ERR_INVALID, "--api-key and --api-key-file exclude each other");
    if (path) return read_key(&options->api_key, path, err);
    if (options->api_key)
        return check_key(options->api_key, strlen(options->api_key), "--api-key", err);
    if (options->require_api_key)
        return error_set(err, ERR_INVALID,
                         "--require-api-key: there is no key; give --api-key-file or the "
                         "environment variable QUIRE_API_KEY");
    return 0;
}

void api_key_warn(const struct options *options, bool is_loopback) {
    if (options->api_key_in_arguments)
        log_event(LOG_WARN, "--api-key shows in the list of processes: use --api-key-file or the "
                            "environment variable QUIRE_API_KEY");
    if (!options->api_key && !is_loopback)
        log_event(LOG_WARN,
                  "no API key is required on %s: every client that reaches this address may use "
                  "the server; see --api-key-file and --require-api-key",
                  options->host);
}
