/* failing_memory.c - preloaded into a program, makes the allocations fail that a test names.
 *
 * FAILING_MEMORY names a file that the test shares with the program (mapped by both):
 *
 *   count    allocations seen while armed; the test resets it
 *   first    fail from this one on, the first is 1
 *   n        how many fail in a row
 *   failed   how many have
 *   armed    0: everything passes and nothing is counted
 *
 * malloc() and its family fail, and mmap(): also those that libraries and the C library itself
 * make, such as a thread's storage.  Without the variable nothing does.
 *
 * Counting begins with main(): the CUDA runtime's static constructors, which a binary with a GPU
 * backend runs before it, end the process on a failed allocation, and no code of ours can help it.
 *
 * Thread: any.  Memory: one mapping, for ever. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct control {
    _Atomic uint64_t count, first, n, failed, armed;
};

/* glibc's own. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

typedef int program_main(int argc, char **argv, char **environment);
typedef int libc_start(program_main *main, int argc, char **argv, void (*init)(void),
                       void (*fini)(void), void (*loader_fini)(void), void *stack_end);

void failing_memory_fails(void);
libc_start __libc_start_main;

/* A preloaded library has no caller that could hold it. */
static struct control *control;
static program_main *main_of_program;
static _Atomic bool in_main;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAILING_MEMORY");
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *shared = (void *)syscall(SYS_mmap, NULL, sizeof(struct control), PROT_READ | PROT_WRITE,
                                   MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED) control = shared;
    close(fd);
}

static int counted_main(int argc, char **argv, char **environment) {
    atomic_store(&in_main, true);
    return main_of_program(argc, argv, environment);
}

/* Stands in for the C library's, which runs the program's constructors and then what it is given
 * as main(). */
int __libc_start_main(program_main *main, int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*loader_fini)(void), void *stack_end) {
    libc_start *next;
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    main_of_program = main;
    return next(counted_main, argc, argv, init, fini, loader_fini, stack_end);
}

/* For a debugger to stop at. */
__attribute__((noinline)) void failing_memory_fails(void) {
    errno = ENOMEM;
}

static bool fails(void) {
    if (!control || !atomic_load(&in_main) || !atomic_load(&control->armed)) return false;
    const uint64_t k = atomic_fetch_add(&control->count, 1) + 1;
    const uint64_t first = atomic_load(&control->first);
    if (k < first || k - first >= atomic_load(&control->n)) return false;
    atomic_fetch_add(&control->failed, 1);
    failing_memory_fails();
    return true;
}

void *malloc(size_t size) {
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size) {
    return fails() ? NULL : __libc_realloc(old, size);
}

void *reallocarray(void *old, size_t n, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(n, size, &total) || fails()) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(old, total);
}

void *memalign(size_t alignment, size_t size) {
    return fails() ? NULL : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    void *memory = memalign(alignment, size);
    if (!memory) return ENOMEM;
    *out = memory;
    return 0;
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if (fails()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}
