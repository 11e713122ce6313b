/* test_disk.c - the tier on disk by itself: what survives a restart, what is refused, and that
 * nothing that happens to its files does more than cost hits. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/kv/disk/disk.h"
#include "tests/test.h"

enum { PAGE_BYTES = 4096, N_PAGES = 3, N_TOKENS = 64, BLOCK_BYTES = 448 + N_PAGES * PAGE_BYTES };

static const struct digest_value ours = {{1, 2}}, theirs = {{1, 3}};
static const double plenty_s = 30;

struct rig {
    char path[64], root[32];
    struct kv_disk *disk;
    uint32_t tokens[N_TOKENS];
};

static void start(struct rig *rig, struct digest_value identity, uint64_t max_bytes) {
    const struct kv_disk_config config = {.path = rig->path, .max_bytes = max_bytes};
    struct error err = {0};
    if (kv_disk_open(&rig->disk, &config, &err)) fail_msg("%s", err.text);
    assert_int_equal(kv_disk_begin(rig->disk, identity, PAGE_BYTES, "a test", &err), 0);
}

static void make_folder(struct rig *rig) {
    *rig = (struct rig){.root = "/tmp/quire-disk-XXXXXX"};
    assert_non_null(mkdtemp(rig->root));
    snprintf(rig->path, sizeof(rig->path), "%s/cache", rig->root);
}

static void begin(struct rig *rig) {
    make_folder(rig);
    start(rig, ours, UINT64_C(1) << 30);
}

static void stop(struct rig *rig) {
    kv_disk_close(rig->disk);
    rig->disk = NULL;
}

static void restart(struct rig *rig) {
    stop(rig);
    start(rig, ours, UINT64_C(1) << 30);
}

static void end(struct rig *rig) {
    char command[128];
    stop(rig);
    snprintf(command, sizeof(command), "rm -rf '%s'", rig->root);
    assert_int_equal(system(command), 0);
}

/* The key of item i: its tokens say which it is. */
static struct disk_key key_of(struct rig *rig, uint32_t i) {
    for (uint32_t t = 0; t < N_TOKENS; t++) rig->tokens[t] = i * 1000 + t;
    return (struct disk_key){.kind = DISK_BLOCK, .n_tokens = N_TOKENS, .tokens = rig->tokens};
}

static struct disk_id disk_id_of(struct rig *rig, uint32_t i) {
    const struct disk_key key = key_of(rig, i);
    return kv_disk_id(rig->disk, &key);
}

static bool has(struct rig *rig, uint32_t i) {
    const struct disk_id id = disk_id_of(rig, i);
    return kv_disk_can_read(rig->disk, &id);
}

/* Offers item i; false: it was not taken. */
static bool offer(struct rig *rig, uint32_t i) {
    static const uint32_t notes[DISK_N_NOTES] = {5, 6};
    const struct disk_key key = key_of(rig, i);
    const struct disk_id id = disk_id_of(rig, i);
    struct disk_job *job = kv_disk_begin_write(rig->disk, &key, &id, notes, N_PAGES, NULL);
    if (!job) return false;
    memset(job->pages, (int)i, (size_t)N_PAGES * PAGE_BYTES);
    kv_disk_end_write(rig->disk, job, false);
    return true;
}

static void flush(struct rig *rig) {
    kv_disk_completed(rig->disk, 0, true);
    kv_disk_flush(rig->disk, clock_seconds() + plenty_s);
}

static void save(struct rig *rig, uint32_t from, uint32_t n) {
    for (uint32_t i = from; i < from + n; i++) assert_true(offer(rig, i));
    flush(rig);
}

static struct disk_job *await(struct rig *rig) {
    struct disk_job *job = NULL;
    for (double until_s = clock_seconds() + plenty_s; !job && clock_seconds() < until_s;) {
        const struct timespec tick = {.tv_nsec = 100000};
        job = kv_disk_take_done(rig->disk);
        if (!job) nanosleep(&tick, NULL);
    }
    assert_non_null(job);
    return job;
}

/* Reads item i and checks its contents; false: there is none. */
static bool read_back(struct rig *rig, uint32_t i) {
    const struct disk_key key = key_of(rig, i);
    const struct disk_id id = disk_id_of(rig, i);
    if (!kv_disk_read(rig->disk, &key, &id, i)) return false;
    struct disk_job *job = await(rig);
    const bool whole = !job->failed;
    assert_int_equal(job->owner, i);
    assert_int_equal(whole, job->pages != NULL);
    if (whole) {
        assert_int_equal(job->head.n_pages, N_PAGES);
        assert_int_equal(job->head.notes[1], 6);
        for (size_t at = 0; at < (size_t)N_PAGES * PAGE_BYTES; at++)
            assert_int_equal((unsigned char)job->pages[at], (unsigned char)i);
    }
    kv_disk_free(rig->disk, job);
    return whole;
}

static struct kv_disk_stats stats_of(struct rig *rig) {
    struct kv_disk_stats stats;
    kv_disk_stats(rig->disk, &stats);
    return stats;
}

/* ---- files ---- */

/* Calls it with the path of every file of an item. */
static uint32_t each_file(const struct rig *rig, void (*visit)(const char *path, uint32_t i)) {
    uint32_t n = 0;
    for (unsigned part = 0; part < 256; part++) {
        char folder[96], path[512];
        snprintf(folder, sizeof(folder), "%s/%02x", rig->path, part);
        DIR *dir = opendir(folder);
        assert_non_null(dir);
        for (struct dirent *file; (file = readdir(dir));) {
            if (file->d_name[0] == '.') continue;
            snprintf(path, sizeof(path), "%s/%s", folder, file->d_name);
            if (visit) visit(path, n);
            n++;
        }
        closedir(dir);
    }
    return n;
}

static void spoil(const char *path, uint32_t i) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    const off_t at = rand() % info.st_size;
    unsigned char byte;
    switch (i % 6) {
    case 0: /* a bit */
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= (unsigned char)(1 << rand() % 8);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        break;
    case 1: /* torn */ assert_int_equal(ftruncate(fd, at), 0); break;
    case 2: /* torn, and as long as before */
        assert_int_equal(ftruncate(fd, at), 0);
        assert_int_equal(ftruncate(fd, info.st_size), 0);
        /* the end may have been zero: so that it is not now */
        byte = 0x5A;
        assert_int_equal(pwrite(fd, &byte, 1, info.st_size - 1), 1);
        byte = 0xA5;
        assert_int_equal(pwrite(fd, &byte, 1, 20), 1);
        break;
    case 3: /* longer */ assert_int_equal(pwrite(fd, "x", 1, info.st_size), 1); break;
    case 4: /* empty */ assert_int_equal(ftruncate(fd, 0), 0); break;
    case 5: /* something else altogether */
        for (off_t b = 0; b < info.st_size; b++) {
            byte = (unsigned char)rand();
            assert_int_equal(pwrite(fd, &byte, 1, b), 1);
        }
        break;
    }
    close(fd);
}

/* ---- tests ---- */

TEST(items_survive_a_restart) {
    struct rig rig;
    begin(&rig);
    save(&rig, 0, 50);
    assert_int_equal(stats_of(&rig).bytes, 50 * BLOCK_BYTES);
    assert_false(offer(&rig, 7)); /* it is there */
    restart(&rig);
    assert_int_equal(stats_of(&rig).n_items, 50);
    for (uint32_t i = 0; i < 50; i++) assert_true(read_back(&rig, i));
    assert_false(read_back(&rig, 50));
    assert_int_equal(stats_of(&rig).n_read, 50);
    assert_int_equal(stats_of(&rig).n_refused, 0);
    end(&rig);
}

/* Until the device has completed what was submitted, a copy may not be there. */
TEST(copies_are_not_written_before_they_are_there) {
    struct rig rig;
    begin(&rig);
    kv_disk_submitted(rig.disk);
    assert_true(offer(&rig, 1)); /* behind step 1, before step 2 */
    const uint64_t n_submitted = kv_disk_n_submitted(rig.disk);
    kv_disk_submitted(rig.disk);
    kv_disk_completed(rig.disk, 1, false); /* step 1 has completed */
    assert_false(kv_disk_has_completed(rig.disk, n_submitted));
    kv_disk_flush(rig.disk, clock_seconds() + 0.05);
    assert_false(has(&rig, 1));
    kv_disk_completed(rig.disk, 0, false); /* and step 2, so the copy before it */
    assert_true(kv_disk_has_completed(rig.disk, n_submitted));
    kv_disk_flush(rig.disk, clock_seconds() + plenty_s);
    assert_true(has(&rig, 1));
    end(&rig);
}

TEST(another_identity_finds_nothing) {
    struct rig rig;
    begin(&rig);
    save(&rig, 0, 5);
    stop(&rig);
    start(&rig, theirs, UINT64_C(1) << 30);
    assert_int_equal(stats_of(&rig).n_items, 5); /* they count, and can be evicted */
    for (uint32_t i = 0; i < 5; i++) assert_false(has(&rig, i));
    stop(&rig);
    start(&rig, ours, UINT64_C(1) << 30);
    assert_true(read_back(&rig, 3));
    end(&rig);
}

TEST(secrets_stay_and_differ) {
    struct rig rig, other;
    begin(&rig);
    begin(&other);
    const struct digest_value one = kv_disk_secret(rig.disk, 1), two = kv_disk_secret(rig.disk, 2);
    assert_false(digest_same(one, two));
    assert_false(digest_same(one, kv_disk_secret(other.disk, 1)));
    restart(&rig);
    assert_true(digest_same(one, kv_disk_secret(rig.disk, 1)));
    end(&rig);
    end(&other);
}

TEST(only_one_server_uses_a_folder) {
    struct rig rig;
    struct kv_disk *second;
    struct error err;
    begin(&rig);
    const struct kv_disk_config config = {.path = rig.path, .max_bytes = 1 << 20};
    assert_int_equal(kv_disk_open(&second, &config, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "another server"));
    end(&rig);
}

/* The least recently used go first; reading is using. */
TEST(the_size_is_kept) {
    struct rig rig;
    make_folder(&rig);
    start(&rig, ours, 10 * BLOCK_BYTES);
    save(&rig, 0, 10);
    for (uint32_t i = 0; i < 5; i++) {
        const struct disk_id id = disk_id_of(&rig, i);
        kv_disk_touch(rig.disk, &id);
    }
    for (uint32_t i = 20; i < 25; i++) save(&rig, i, 1);
    assert_int_equal(stats_of(&rig).n_evicted, 5);
    assert_int_equal(each_file(&rig, NULL), 10);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(has(&rig, i), i < 5);
    stop(&rig);
    start(&rig, ours, 4 * BLOCK_BYTES); /* a smaller one, from the start on */
    assert_int_equal(stats_of(&rig).n_items, 4);
    assert_int_equal(each_file(&rig, NULL), 4);
    stop(&rig);
    start(&rig, ours, BLOCK_BYTES - 1);
    assert_int_equal(stats_of(&rig).n_items, 0);
    assert_false(offer(&rig, 1)); /* it would never fit */
    end(&rig);
}

TEST(many_at_once_keep_the_size_too) {
    struct rig rig;
    make_folder(&rig);
    start(&rig, ours, 8 * BLOCK_BYTES);
    save(&rig, 0, 300);
    assert_true(stats_of(&rig).bytes <= 8 * BLOCK_BYTES);
    assert_int_equal(each_file(&rig, NULL), stats_of(&rig).n_items);
    end(&rig);
}

static uint32_t n_files_to_spoil(void) {
    const char *n = getenv("QUIRE_TEST_DISK_FILES");
    return n ? (uint32_t)atoi(n) : 600;
}

/* While the server runs or between two runs: never a wrong page, and each file is removed. */
TEST(spoilt_files_are_refused_and_removed) {
    struct rig rig;
    const uint32_t n = n_files_to_spoil();
    begin(&rig);
    srand(5);
    for (int again = 0; again < 2; again++) {
        save(&rig, 0, n);
        assert_int_equal(each_file(&rig, NULL), n);
        each_file(&rig, spoil);
        if (again) restart(&rig);
        for (uint32_t i = 0; i < n; i++) assert_false(read_back(&rig, i));
        assert_int_equal(each_file(&rig, NULL), 0);
        assert_int_equal(stats_of(&rig).n_items, 0);
        assert_int_equal(stats_of(&rig).bytes, 0);
    }
    assert_true(offer(&rig, 1)); /* it goes on */
    flush(&rig);
    assert_true(read_back(&rig, 1));
    end(&rig);
}

/* A valid file under another one's name: what it says of itself is compared. */
TEST(an_exchanged_file_is_refused) {
    struct rig rig;
    char from[512], to[512];
    begin(&rig);
    save(&rig, 1, 2);
    const struct disk_id a = disk_id_of(&rig, 1), b = disk_id_of(&rig, 2);
    const struct disk_id *ids[] = {&a, &b};
    char *const paths[] = {from, to};
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], 512, "%s/%02x/%016lx%016lx.b40", rig.path,
                 (unsigned)(ids[i]->name.words[0] >> 56), ids[i]->name.words[0],
                 ids[i]->name.words[1]);
    assert_int_equal(rename(from, to), 0);
    assert_false(read_back(&rig, 2));
    assert_int_equal(stats_of(&rig).n_refused, 1);
    assert_false(read_back(&rig, 1)); /* it is not there */
    end(&rig);
}

static void create_file(const char *path) {
    const int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
}

/* What a crash leaves is removed; what is not the tier's is left alone. */
TEST(other_files_are_left_alone) {
    static const char *const removed[] = {"00/00000000000000000000000000000001.b40.tmp",
                                          "00/00000000000000000000000000000002.b40" /* empty */},
                             *const left[] = {"notes.txt",
                                              "00/notes.txt",
                                              "00/x.tmp",
                                              "00/ff000000000000000000000000000001.b40",
                                              "00/00000000000000000000000000000001.x40",
                                              "00/00000000000000000000000000000001.b040",
                                              "00/00000000000000000000000000000001.b",
                                              "00/0000000000000000000000000000000.b40",
                                              "00/00000000000000000000000000000001.b123456789"};
    struct rig rig;
    char path[512];
    begin(&rig);
    stop(&rig);
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", rig.path, removed[i]);
        create_file(path);
    }
    for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
        snprintf(path, sizeof(path), "%s/%s", rig.path, left[i]);
        create_file(path);
    }
    start(&rig, ours, 1 << 20);
    assert_int_equal(stats_of(&rig).n_items, 0);
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", rig.path, removed[i]);
        assert_int_equal(access(path, F_OK), -1);
    }
    for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
        snprintf(path, sizeof(path), "%s/%s", rig.path, left[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
    end(&rig);
}

static void check_mode(const char *path, uint32_t i) {
    (void)i;
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

TEST(files_are_for_the_owner_only) {
    struct rig rig;
    struct stat info;
    const mode_t mask = umask(0);
    begin(&rig);
    save(&rig, 0, 3);
    umask(mask);
    assert_int_equal(each_file(&rig, check_mode), 3);
    assert_int_equal(stat(rig.path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    end(&rig);
}

/* A disk that takes no more, here for lack of permission to write so much. */
TEST(a_disk_that_refuses_costs_only_hits) {
    struct rig rig;
    struct rlimit before, none;
    struct error why = {0};
    begin(&rig);
    save(&rig, 0, 2);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){.rlim_cur = 5000, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_true(offer(&rig, 2));
    flush(&rig);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(kv_disk_failure(rig.disk, &why), 1);
    assert_non_null(strstr(why.text, "File too large"));
    assert_false(has(&rig, 2));
    assert_int_equal(each_file(&rig, NULL), 2); /* nothing is left of it */
    assert_false(offer(&rig, 3));               /* not at once again */
    assert_true(read_back(&rig, 0));
    const struct timespec pause = {.tv_sec = 1, .tv_nsec = 100000000};
    nanosleep(&pause, NULL);
    save(&rig, 2, 1);
    assert_true(read_back(&rig, 2));
    end(&rig);
}

/* The queue is bounded, so what is offered beyond it is not taken. */
TEST(a_slow_disk_costs_only_hits) {
    struct rig rig;
    bool is_full = false;
    static const uint32_t notes[DISK_N_NOTES];
    begin(&rig);
    const uint32_t n_pages = (uint32_t)(DISK_WRITE_BYTES / PAGE_BYTES) - 10;
    const struct disk_key large = key_of(&rig, 1);
    const struct disk_id id = kv_disk_id(rig.disk, &large);
    struct disk_job *job = kv_disk_begin_write(rig.disk, &large, &id, notes, n_pages, &is_full);
    assert_non_null(job);
    struct disk_key next = key_of(&rig, 2);
    const struct disk_id next_id = kv_disk_id(rig.disk, &next);
    assert_null(kv_disk_begin_write(rig.disk, &next, &next_id, notes, 20, &is_full));
    assert_true(is_full);
    kv_disk_end_write(rig.disk, job, true);
    assert_int_equal(stats_of(&rig).n_items, 0);
    assert_true(offer(&rig, 2));
    end(&rig);
}

TEST(states_are_found_by_their_longest_name) {
    struct rig rig;
    static const uint32_t notes[DISK_N_NOTES];
    begin(&rig);
    for (uint32_t n = 10; n <= 60; n += 10) {
        struct disk_key key = key_of(&rig, 1);
        key.kind = DISK_STATE;
        key.n_tokens = n;
        key.words[0] = n < 50 ? 1 : 2;
        const struct disk_id id = kv_disk_id(rig.disk, &key);
        kv_disk_end_write(rig.disk, kv_disk_begin_write(rig.disk, &key, &id, notes, 1, NULL),
                          false);
    }
    flush(&rig);
    struct disk_key key = {.kind = DISK_STATE, .words = {1}};
    (void)key_of(&rig, 1); /* its tokens */
    assert_true(kv_disk_find_state(rig.disk, &key, rig.tokens, 0, N_TOKENS));
    assert_int_equal(key.n_tokens, 40); /* 50 and 60 are another's */
    assert_true(kv_disk_find_state(rig.disk, &key, rig.tokens, 0, 39));
    assert_int_equal(key.n_tokens, 30);
    assert_false(kv_disk_find_state(rig.disk, &key, rig.tokens, 40, N_TOKENS));
    assert_false(kv_disk_find_state(rig.disk, &key, rig.tokens, 0, 9));
    rig.tokens[35]++;
    assert_true(kv_disk_find_state(rig.disk, &key, rig.tokens, 0, N_TOKENS));
    assert_int_equal(key.n_tokens, 30);
    end(&rig);
}

static uint32_t n_kills(void) {
    const char *n = getenv("QUIRE_TEST_DISK_KILLS");
    return n ? (uint32_t)atoi(n) : 20;
}

/* Writes as fast as it can until it is killed. */
static void write_until_killed(struct rig *rig, uint32_t from) {
    start(rig, ours, 400 * BLOCK_BYTES);
    for (uint32_t i = from;; i++) {
        (void)offer(rig, i % 1000);
        kv_disk_completed(rig->disk, 0, true);
    }
}

/* Whatever is there after a kill is either whole or of a name that is not read; and all that was
 * unfinished is removed. */
TEST(a_kill_leaves_only_what_is_valid) {
    struct rig rig;
    uint32_t n_found = 0;
    make_folder(&rig);
    srand(6);
    for (uint32_t k = 0; k < n_kills(); k++) {
        const uint32_t from = (uint32_t)rand() % 1000;
        const struct timespec life = {.tv_nsec = 1000000 + rand() % 60000000};
        const pid_t child = fork();
        if (child == 0) write_until_killed(&rig, from);
        nanosleep(&life, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        start(&rig, ours, 400 * BLOCK_BYTES);
        assert_int_equal(each_file(&rig, NULL), stats_of(&rig).n_items);
        for (uint32_t i = 0; i < 1000; i++) {
            if (!has(&rig, i)) continue;
            assert_true(read_back(&rig, i));
            n_found++;
        }
        assert_int_equal(stats_of(&rig).n_refused, 0);
        stop(&rig);
    }
    assert_true(n_found > 0);
    end(&rig);
}
