/* test_mapped_file.c - files that are cut short while they are mapped. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pthread.h>

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "tests/test.h"

enum { N_PAGES = 64, N_THREADS = 4, PAGE = 4096, SIZE = N_PAGES * PAGE - 100 };

/* A file of ones. */
static int make_file(char *path) {
    static unsigned char ones[SIZE];
    memset(ones, 1, sizeof(ones));
    strcpy(path, "/tmp/quire-mapped-XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, ones, SIZE), SIZE);
    return fd;
}

static size_t sum(const struct mapped_file *file) {
    const volatile unsigned char *bytes = file->bytes;
    size_t total = 0;
    for (size_t i = 0; i < file->size; i++) total += bytes[i];
    return total;
}

TEST(a_file_that_is_cut_short_reads_as_zeros_and_is_marked) {
    char path[64], other_path[64];
    struct mapped_file file = {0}, other = {0};
    struct error err = {0};
    const int fd = make_file(path), other_fd = make_file(other_path);
    assert_int_equal(mapped_file_open(&file, path, &err), 0);
    assert_int_equal(mapped_file_open(&other, other_path, &err), 0);
    assert_int_equal(sum(&file), SIZE);
    assert_true(mapped_file_is_whole(&file));
    assert_int_equal(ftruncate(fd, 3 * PAGE), 0);
    assert_int_equal(sum(&file), 3 * PAGE);
    assert_false(mapped_file_is_whole(&file));
    assert_true(mapped_file_is_whole(&other));
    mapped_file_close(&file);
    /* Its place in the table is free now, and clean for the next mapping. */
    assert_int_equal(ftruncate(fd, SIZE), 0);
    assert_int_equal(mapped_file_open(&file, path, &err), 0);
    assert_true(mapped_file_is_whole(&file));
    mapped_file_close(&file);
    mapped_file_close(&other);
    mapped_file_close(&other); /* closed already */
    close(fd);
    close(other_fd);
    unlink(path);
    unlink(other_path);
}

static void *sum_many_times(void *arg) {
    for (int i = 0; i < 100; i++) (void)sum(arg);
    return NULL;
}

TEST(threads_that_meet_the_end_together_all_go_on) {
    char path[64];
    struct mapped_file file = {0};
    struct error err = {0};
    pthread_t threads[N_THREADS];
    const int fd = make_file(path);
    assert_int_equal(mapped_file_open(&file, path, &err), 0);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sum_many_times, &file), 0);
    for (int i = N_PAGES - 1; i >= 0; i--) assert_int_equal(ftruncate(fd, i * PAGE), 0);
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(sum(&file), 0);
    assert_false(mapped_file_is_whole(&file));
    mapped_file_close(&file);
    close(fd);
    unlink(path);
}

/* In a child: a mapping that holds no weights is cut short, or the signal is just sent. */
static void die_of(int fd, bool is_sent) {
    if (is_sent) {
        kill(getpid(), SIGBUS);
    } else {
        const volatile unsigned char *bytes = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
        if (ftruncate(fd, 0) == 0 && bytes[PAGE] == 0) _exit(0);
    }
    _exit(0);
}

TEST(any_other_bus_error_ends_the_process) {
    char path[64];
    struct mapped_file file = {0};
    struct error err = {0};
    const int fd = make_file(path);
    signal(SIGBUS, SIG_DFL); /* in place of cmocka's, which goes on with the next test */
    assert_int_equal(mapped_file_open(&file, path, &err), 0);
    for (int is_sent = 0; is_sent < 2; is_sent++) {
        char other[64];
        const int other_fd = make_file(other);
        const pid_t child = fork();
        int status = 0;
        assert_true(child >= 0);
        if (child == 0) die_of(other_fd, is_sent);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
        close(other_fd);
        unlink(other);
    }
    mapped_file_close(&file);
    close(fd);
    unlink(path);
}
