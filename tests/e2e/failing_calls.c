/* failing_calls.c - runs a program, and makes the system calls fail that a test names.
 *
 *     failing_calls CONTROL COMMAND [ARGUMENT ...]
 *
 * CONTROL is a file that the test shares with this program (mapped by both):
 *
 *   count     calls seen while armed, of the kinds in `rows`; the test resets it
 *   first     fail from this one on, the first is 1
 *   n         how many fail in a row
 *   failed    how many have
 *   armed     0: everything passes and nothing is counted; 2: a call that would fail kills the
 *             program instead (SIGKILL), and is not performed
 *   variant   which of a call's errors, modulo their number
 *   listener  set here: the descriptor below
 *   name      set here: the call that failed last, and how
 *
 * The kernel asks before each such call (seccomp with a listener), so those of the C library and of
 * other libraries are seen, too, however they are made.  A call that fails is not performed.  The
 * program that is run keeps this process's id; a child answers the kernel, and ends with it.
 *
 *     failing_calls ── clone, shares descriptors ──► answers the kernel
 *          │ seccomp(): listener                           ▲
 *          └ exec COMMAND ── system call ──────────────────┘
 *
 * Errors are those that the kernel could give at that place: EAGAIN and EINTR only where a caller
 * must expect them, and what depends on the file only for such files.  close(), futex() and brk()
 * are left alone: the first two cannot fail so that anything remains to be done, and the third is
 * only seen by malloc(), which failing_memory.c has.
 *
 * Thread: main, in each process.  Memory: one mapping, for ever. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 64, MOST_ERRORS = 4, STATUS_FAILED = 125 };
enum { ARMED_TO_KILL = 2 };

struct control {
    _Atomic uint64_t count, first, n, failed, armed, variant, listener;
    char name[NAME_BYTES];
};

/* What a row's first argument is.  ANY: no descriptor, or one of any kind. */
enum kind { ANY, REGULAR, SOCKET, OTHER, N_KINDS };

struct row {
    long number;
    const char *name;
    int errors[N_KINDS][MOST_ERRORS]; /* up to the first 0; none: it passes */
};

#define ROW(call) SYS_##call, #call
static const struct row rows[] = {
    {ROW(openat), {[ANY] = {EMFILE, EACCES, ENOMEM}}},
    {ROW(newfstatat), {[ANY] = {ENOMEM, EACCES}}},
    {ROW(fstat), {[ANY] = {EIO}}},
    {ROW(statx), {[ANY] = {ENOMEM, EACCES}}},
    {ROW(readlinkat), {[ANY] = {EACCES, EIO}}},
    {ROW(getdents64), {[ANY] = {EIO}}},
    {ROW(mkdirat), {[ANY] = {ENOSPC, EACCES}}},
    {ROW(unlinkat), {[ANY] = {EIO, EACCES}}},
    {ROW(renameat2), {[ANY] = {ENOSPC, EIO}}},
    {ROW(renameat), {[ANY] = {ENOSPC, EIO}}},
    {ROW(flock), {[ANY] = {ENOLCK, EINTR, EWOULDBLOCK}}},
    {ROW(ftruncate), {[ANY] = {ENOSPC, EIO}}},
    {ROW(fallocate), {[ANY] = {ENOSPC, EOPNOTSUPP}}},
    {ROW(fsync), {[ANY] = {EIO, ENOSPC}}},
    {ROW(fdatasync), {[ANY] = {EIO, ENOSPC}}},
    {ROW(read), {[REGULAR] = {EIO}, [SOCKET] = {ECONNRESET, EINTR}, [OTHER] = {EINTR}}},
    {ROW(readv), {[REGULAR] = {EIO}, [SOCKET] = {ECONNRESET, EINTR}, [OTHER] = {EINTR}}},
    {ROW(pread64), {[REGULAR] = {EIO}}},
    {ROW(preadv2), {[REGULAR] = {EIO, EOPNOTSUPP}}},
    {ROW(preadv), {[REGULAR] = {EIO}}},
    {ROW(write), {[REGULAR] = {ENOSPC, EIO}, [SOCKET] = {ECONNRESET, EPIPE}, [OTHER] = {EINTR}}},
    {ROW(writev), {[REGULAR] = {ENOSPC, EIO}, [SOCKET] = {ECONNRESET, EPIPE}, [OTHER] = {EINTR}}},
    {ROW(pwrite64), {[REGULAR] = {ENOSPC, EIO}}},
    {ROW(pwritev2), {[REGULAR] = {ENOSPC, EOPNOTSUPP}}},
    {ROW(pwritev), {[REGULAR] = {ENOSPC, EIO}}},
    {ROW(sendto), {[SOCKET] = {ECONNRESET, EPIPE, EINTR}}},
    {ROW(sendmsg), {[SOCKET] = {ECONNRESET, EPIPE, EINTR}}},
    {ROW(sendfile), {[SOCKET] = {ECONNRESET, EIO, EINTR}}},
    {ROW(recvfrom), {[SOCKET] = {ECONNRESET, EINTR, ETIMEDOUT}}},
    {ROW(recvmsg), {[SOCKET] = {ECONNRESET, EINTR}}},
    {ROW(accept4), {[ANY] = {EMFILE, ECONNABORTED, EINTR, ENOMEM}}},
    {ROW(accept), {[ANY] = {EMFILE, ECONNABORTED, EINTR, ENOMEM}}},
    {ROW(socket), {[ANY] = {EMFILE, ENOMEM}}},
    {ROW(socketpair), {[ANY] = {EMFILE, ENOMEM}}},
    {ROW(bind), {[ANY] = {EADDRINUSE, EACCES}}},
    {ROW(listen), {[ANY] = {EADDRINUSE}}},
    {ROW(connect), {[ANY] = {ECONNREFUSED, ETIMEDOUT}}},
    {ROW(setsockopt), {[ANY] = {ENOBUFS}}},
    {ROW(getsockname), {[ANY] = {ENOBUFS}}},
    {ROW(getpeername), {[ANY] = {ENOTCONN}}},
    {ROW(shutdown), {[ANY] = {ENOTCONN}}},
    {ROW(epoll_create1), {[ANY] = {EMFILE, ENOMEM}}},
    {ROW(epoll_ctl), {[ANY] = {ENOSPC, ENOMEM}}}, /* see enters_anew() */
    {ROW(epoll_pwait), {[ANY] = {EINTR}}},
#ifdef SYS_epoll_wait /* newer machines have only what follows or precedes each of these */
    {ROW(epoll_wait), {[ANY] = {EINTR}}},
    {ROW(poll), {[ANY] = {EINTR}}},
    {ROW(open), {[ANY] = {EMFILE, EACCES, ENOMEM}}},
    {ROW(stat), {[ANY] = {ENOMEM, EACCES}}},
    {ROW(readlink), {[ANY] = {EACCES, EIO}}},
    {ROW(mkdir), {[ANY] = {ENOSPC, EACCES}}},
    {ROW(unlink), {[ANY] = {EIO, EACCES}}},
    {ROW(rename), {[ANY] = {ENOSPC, EIO}}},
#endif
    {ROW(ppoll), {[ANY] = {EINTR}}},
    {ROW(eventfd2), {[ANY] = {EMFILE, ENOMEM}}},
    {ROW(pipe2), {[ANY] = {EMFILE, ENFILE}}},
    {ROW(dup3), {[ANY] = {EMFILE}}},
    {ROW(timerfd_create), {[ANY] = {EMFILE, ENOMEM}}},
    {ROW(signalfd4), {[ANY] = {EMFILE, ENOMEM}}},
    {ROW(mmap), {[ANY] = {ENOMEM}}},
    {ROW(munmap), {[ANY] = {ENOMEM}}},
    {ROW(mremap), {[ANY] = {ENOMEM}}},
    {ROW(mprotect), {[ANY] = {ENOMEM}}},
    {ROW(madvise), {[ANY] = {ENOMEM, EAGAIN}}},
    {ROW(clone3), {[ANY] = {EAGAIN, ENOMEM}}},
    {ROW(clone), {[ANY] = {EAGAIN, ENOMEM}}},
    {ROW(prlimit64), {[ANY] = {EPERM}}},
    {ROW(sched_setaffinity), {[ANY] = {EPERM}}},
    {ROW(getcwd), {[ANY] = {ENOMEM}}},
};
enum { N_ROWS = sizeof(rows) / sizeof(*rows) };

static struct control *control_open(const char *path) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *shared = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return shared == MAP_FAILED ? NULL : shared;
}

/* ---- which calls, and how ---- */

static const struct row *row_of(long number) {
    for (size_t i = 0; i < N_ROWS; i++)
        if (rows[i].number == number) return &rows[i];
    return NULL;
}

static enum kind kind_of(const struct seccomp_notif *call) {
    struct stat about;
    char path[NAME_BYTES];
    snprintf(path, sizeof(path), "/proc/%u/fd/%d", call->pid, (int)call->data.args[0]);
    if (stat(path, &about)) return OTHER;
    return S_ISREG(about.st_mode) ? REGULAR : S_ISSOCK(about.st_mode) ? SOCKET : OTHER;
}

/* Tells whether the call enters a descriptor into a set that lacks it: that alone needs memory. */
static bool enters_anew(const struct seccomp_notif *call) {
    char path[NAME_BYTES], line[256];
    int fd;
    if ((int)call->data.args[1] != EPOLL_CTL_ADD) return false;
    snprintf(path, sizeof(path), "/proc/%u/fdinfo/%d", call->pid, (int)call->data.args[0]);
    FILE *set = fopen(path, "re");
    bool is_there = !set;
    while (set && !is_there && fgets(line, sizeof(line), set))
        is_there = sscanf(line, "tfd: %d", &fd) == 1 && fd == (int)call->data.args[2];
    if (set) fclose(set);
    return !is_there;
}

/* Returns the error of the call in this variant, 0 where none is plausible. */
static int error_of(const struct row *row, const struct seccomp_notif *call, uint64_t variant) {
    if (row->number == SYS_epoll_ctl && !enters_anew(call)) return 0;
    const int *errors = row->errors[row->errors[ANY][0] ? ANY : kind_of(call)];
    unsigned n = 0;
    while (n < MOST_ERRORS && errors[n]) n++;
    return n ? errors[variant % n] : 0;
}

/* Returns the error that the call gets, or 0. */
static int decide(struct control *control, const struct seccomp_notif *call) {
    const struct row *row = row_of(call->data.nr);
    if (!row || !atomic_load(&control->armed)) return 0;
    const int error = error_of(row, call, atomic_load(&control->variant));
    if (!error) return 0;
    const uint64_t k = atomic_fetch_add(&control->count, 1) + 1;
    const uint64_t first = atomic_load(&control->first);
    if (k < first || k - first >= atomic_load(&control->n)) return 0;
    snprintf(control->name, NAME_BYTES, "%s %s", row->name, strerrorname_np(error));
    atomic_fetch_add(&control->failed, 1);
    if (atomic_load(&control->armed) == ARMED_TO_KILL) kill((pid_t)call->pid, SIGKILL);
    return error;
}

/* ---- the two processes ---- */

/* Answers the kernel until the program, with all of its threads, has ended. */
static void answer(struct control *control, int listener) {
    for (;;) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        struct seccomp_notif call = {0}; /* the kernel asks for zeros */
        if (poll(&ready, 1, -1) < 0 || !(ready.revents & POLLIN)) {
            if (ready.revents & (POLLHUP | POLLERR)) return;
            continue;
        }
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) continue;
        struct seccomp_notif_resp reply = {.id = call.id, .error = -decide(control, &call)};
        if (!reply.error) reply.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
    }
}

static int supervise(struct control *control) {
    const struct timespec pause = {.tv_nsec = 100000};
    while (!atomic_load(&control->listener)) {
        if (getppid() == 1) return STATUS_FAILED;
        nanosleep(&pause, NULL);
    }
    answer(control, (int)atomic_load(&control->listener));
    return 0;
}

/* Makes the kernel ask before each call of the table. */
static int listen_to_calls(void) {
    struct sock_filter code[2 * N_ROWS + 2];
    size_t n = 0;
    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < N_ROWS; i++) {
        code[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)rows[i].number, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    /* A signal, too, waits for the answer: a call is counted once. */
    const unsigned flags =
        SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

int main(int argc, char **argv) {
    struct control *control = argc > 2 ? control_open(argv[1]) : NULL;
    if (!control) {
        fprintf(stderr, "failing_calls: %s\n", argc > 2 ? strerror(errno) : "no command");
        return STATUS_FAILED;
    }
    /* The child shares the descriptors, and so has the listener, until exec() parts the two. */
    const long child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(supervise(control));
    const int listener = child > 0 ? listen_to_calls() : -1;
    if (listener < 0) {
        fprintf(stderr, "failing_calls: %s\n", strerror(errno));
        if (child > 0) kill((pid_t)child, SIGKILL);
        return STATUS_FAILED;
    }
    atomic_store(&control->listener, (uint64_t)listener);
    execvp(argv[2], argv + 2);
    return STATUS_FAILED;
}
