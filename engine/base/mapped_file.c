/* mapped_file.c - see mapped_file.h. */
#include "engine/base/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/file.h"

enum { MAX_MAPPINGS = 2048 }; /* twice the shards of the largest checkpoint that is read */

struct mapping {
    atomic_uintptr_t begin; /* 0: free; written last */
    atomic_uintptr_t end;
    atomic_bool torn;
};

/* A signal handler has no context, so its data are global: the mappings, and what was done about
 * SIGBUS before. */
static struct mapping mappings[MAX_MAPPINGS];
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER; /* for open and close */
static struct sigaction before;
static uintptr_t page_bytes;

static struct mapping *find_mapping(uintptr_t address) {
    for (size_t i = 0; i < MAX_MAPPINGS; i++) {
        const uintptr_t begin = atomic_load(&mappings[i].begin);
        if (begin != 0 && address >= begin && address < atomic_load(&mappings[i].end))
            return &mappings[i];
    }
    return NULL;
}

/* Maps zeros from the page to the mapping's end.  A truncated file lacks all of these pages, and
 * finding them one by one would make a step slow.  Uses the bare system call, because a sanitizer's
 * wrapper is not made for a handler. */
static bool fill_rest(struct mapping *mapping, uintptr_t address) {
    const uintptr_t page = address / page_bytes * page_bytes;
    return syscall(SYS_mmap, page, atomic_load(&mapping->end) - page, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != -1;
}

/* Handles SIGBUS with system calls and atomics only: the thread may hold any lock. */
static void on_sigbus(int number, siginfo_t *info, void *context) {
    (void)context;
    const int code = errno;
    const bool is_sent = info->si_code <= 0; /* by a process, and not about a page */
    struct mapping *mapping = is_sent ? NULL : find_mapping((uintptr_t)info->si_addr);
    if (mapping) atomic_store(&mapping->torn, true); /* before any thread can see a zero */
    if (!mapping || !fill_rest(mapping, (uintptr_t)info->si_addr)) {
        sigaction(number, &before, NULL); /* the instruction runs again, and ends the process */
        if (is_sent) raise(number);
    }
    errno = code;
}

/* Installs the handler, again with every file: another handler may have replaced it meanwhile. */
static void install_handler(void) {
    struct sigaction now, action = {.sa_flags = SA_SIGINFO | SA_RESTART};
    action.sa_sigaction = on_sigbus;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &now) != 0) return;
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_sigbus) return;
    before = now;
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigaction(SIGBUS, &action, NULL);
}

/* Enters a mapping in the table; NULL: it is full. */
static struct mapping *enter_mapping(void *bytes, size_t size) {
    struct mapping *found = NULL;
    pthread_mutex_lock(&mappings_lock);
    install_handler();
    for (size_t i = 0; i < MAX_MAPPINGS && !found; i++)
        if (atomic_load(&mappings[i].begin) == 0) found = &mappings[i];
    if (found) {
        atomic_store(&found->torn, false);
        atomic_store(&found->end, (uintptr_t)bytes + size);
        atomic_store(&found->begin, (uintptr_t)bytes);
    }
    pthread_mutex_unlock(&mappings_lock);
    return found;
}

static int map_whole(struct mapped_file *out, int fd, const char *path, struct error *err) {
    struct stat info;
    if (fstat(fd, &info) != 0) return error_set(err, ERR_IO, "%.200s: %s", path, strerror(errno));
    if (info.st_size <= 0) return error_set(err, ERR_INVALID, "%.200s: empty", path);
    const size_t size = (size_t)info.st_size;
    void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return error_set(err, ERR_IO, "%.200s: cannot be mapped: %s", path, strerror(errno));
    struct mapping *mapping = enter_mapping(bytes, size);
    if (!mapping) {
        munmap(bytes, size);
        return error_set(err, ERR_NOMEM, "%.200s: more than %d files are mapped", path,
                         MAX_MAPPINGS);
    }
    *out = (struct mapped_file){.bytes = bytes, .size = size, .mapping = mapping};
    return 0;
}

/* Maps the file and closes its descriptor, which the mapping outlives. */
int mapped_file_open(struct mapped_file *out, const char *path, struct error *err) {
    int fd;
    int rc = file_open(&fd, path, O_RDONLY, err);
    if (rc) return rc;
    rc = map_whole(out, fd, path, err);
    close(fd);
    return rc;
}

void mapped_file_close(struct mapped_file *file) {
    if (!file->mapping) return;
    atomic_store(&file->mapping->begin, 0); /* before another mapping can lie there */
    munmap((void *)(uintptr_t)file->bytes, file->size);
    *file = (struct mapped_file){0};
}

bool mapped_file_is_whole(const struct mapped_file *file) {
    return !atomic_load(&file->mapping->torn);
}

int mapped_file_check(const struct mapped_file *file, const char *name, struct error *err) {
    if (!file->mapping || mapped_file_is_whole(file)) return 0;
    return error_set(err, ERR_IO,
                     "the model's file '%.160s' was cut short, or its disk failed, while it was in "
                     "use",
                     name);
}
