/* descriptors.c - see descriptors.h.
 *
 * Without a descriptor to accept with, a client would hang in the backlog instead of being refused.
 * Without one for the loop, libuv ends the process. */
#include "server/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "server/settings/log.h"

enum {
    /* The loop's two pipes, epoll set, event and spare one, the listener and libmicrohttpd's epoll
     * set are 9; a few more are for libraries that open files later. */
    SERVER_DESCRIPTORS = 12,
    /* Refused clients that linger, and files that a GPU's driver opens while it works. */
    OTHER_DESCRIPTORS = 128,
    /* No more than these are open at start; descriptors are assigned from the lowest. */
    MAX_LOOKED_AT = 4096,
};

void descriptors_hold_standard(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        const int flags = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
        /* The lowest free number is that of fd. */
        if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", flags) < 0) return;
    }
}

static uint64_t count_open(uint64_t limit) {
    uint64_t n = 0;
    for (int fd = 0; fd < (int)min_u64(limit, MAX_LOOKED_AT); fd++) n += fcntl(fd, F_GETFD) != -1;
    return n;
}

/* Returns the soft limit, raised to needed if that is possible. */
static uint64_t raise_limit(struct rlimit limit, uint64_t needed) {
    const uint64_t before = limit.rlim_cur;
    if (before >= needed) return before;
    limit.rlim_cur = min_u64(limit.rlim_max, needed);
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

int descriptors_for_connections(uint32_t *out, uint64_t wanted, uint32_t n_each,
                                struct error *err) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return error_set(err, ERR_IO, "cannot read how many files the process may open");
    /* One more is for accepting a client that is then refused. */
    const uint64_t fixed = count_open(limit.rlim_cur) + SERVER_DESCRIPTORS + 1;
    const uint64_t n_files = raise_limit(limit, fixed + OTHER_DESCRIPTORS + n_each * wanted);
    if (n_files < fixed + n_each)
        return error_set(err, ERR_INVALID,
                         "the process may open %llu files, but needs %llu to serve one connection: "
                         "raise `ulimit -n`",
                         (unsigned long long)n_files, (unsigned long long)fixed + n_each);
    const uint64_t left = n_files - fixed;
    const uint64_t most = left > 2 * OTHER_DESCRIPTORS ? left - OTHER_DESCRIPTORS : (left + 1) / 2;
    const uint64_t n = max_u64(most / n_each, 1);
    *out = (uint32_t)min_u64(n, wanted);
    if (n < wanted)
        log_event(LOG_WARN,
                  "the process may open %llu files: it takes %llu connections at once, not %llu "
                  "(see `ulimit -n`)",
                  (unsigned long long)n_files, (unsigned long long)n, (unsigned long long)wanted);
    return 0;
}
