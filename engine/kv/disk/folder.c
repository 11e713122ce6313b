/* folder.c - see folder.h. */
#define _GNU_SOURCE /* O_DIRECT, preadv2() */
#include "engine/kv/disk/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/kv/disk/format.h"

enum { DIR_MODE = 0700, FILE_MODE = 0600, N_PARTS = 256, NAME_BYTES = 64 };
enum { ID_DIGITS = 32 };

#define UNFINISHED ".tmp"

/* ---- names ---- */

/* How names end, by the kind of the item. */
static const char kinds[] = {[0] = '-',
                             [DISK_BLOCK] = 'b',
                             [DISK_STATE] = 's',
                             [DISK_CHECKPOINT] = 'c',
                             [DISK_N_KINDS + 1] = 0};

struct file_name {
    char text[NAME_BYTES];
};

static struct file_name name_of(const struct disk_id *id) {
    struct file_name name;
    snprintf(name.text, sizeof(name.text), "%02x/%016" PRIx64 "%016" PRIx64 ".%c%" PRIx32,
             (unsigned)(id->name.words[0] >> 56), id->name.words[0], id->name.words[1],
             kinds[id->kind], id->n_tokens);
    return name;
}

static struct file_name unfinished(const struct disk_id *id) {
    struct file_name name = name_of(id);
    strcat(name.text, UNFINISHED);
    return name;
}

/* Reads n lower-case digits; false: there are others. */
static bool read_hex(uint64_t *out, const char *text, size_t n) {
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        const char *digits = "0123456789abcdef", *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at) return false;
        *out = *out << 4 | (uint64_t)(at - digits);
    }
    return true;
}

/* Reads the id from a file's name, which may be any text; `part` is its folder's number. */
static bool read_name(struct disk_id *out, const char *text, unsigned part) {
    const size_t n = strlen(text);
    uint64_t n_tokens;
    if (n < ID_DIGITS + 3 || n > ID_DIGITS + 10 || text[ID_DIGITS] != '.') return false;
    const char *kind = strchr(kinds + DISK_BLOCK, text[ID_DIGITS + 1]);
    if (!kind || !*kind) return false;
    if (!read_hex(&out->name.words[0], text, 16) || !read_hex(&out->name.words[1], text + 16, 16) ||
        !read_hex(&n_tokens, text + ID_DIGITS + 2, n - ID_DIGITS - 2))
        return false;
    out->kind = (uint32_t)(kind - kinds);
    out->n_tokens = (uint32_t)n_tokens;
    return out->name.words[0] >> 56 == part && text[ID_DIGITS + 2] != '0';
}

static bool is_unfinished(const char *text, unsigned part) {
    char name[NAME_BYTES];
    struct disk_id id;
    const size_t n = strlen(text), n_end = strlen(UNFINISHED);
    if (n <= n_end || n >= sizeof(name) || strcmp(text + n - n_end, UNFINISHED) != 0) return false;
    memcpy(name, text, n - n_end);
    name[n - n_end] = '\0';
    return read_name(&id, name, part);
}

/* ---- bytes ---- */

static int refuse(const char *what, struct error *err) {
    return error_set(err, ERR_IO, "%s: %s", what, strerror(errno));
}

static int write_all(int fd, const char *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t n = write(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ERR_IO;
        done += (size_t)n;
    }
    return 0;
}

static int read_all(int fd, char *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t n = read(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ERR_IO;
        done += (size_t)n;
    }
    return 0;
}

/* Creates `name` with these bytes, by way of `temporary`. */
static int publish(int dir, const char *temporary, const char *name, const char *bytes, size_t size,
                   struct error *err) {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    const int fd = openat(dir, temporary, flags, FILE_MODE);
    if (fd < 0) return refuse(temporary, err);
    int code = write_all(fd, bytes, size);
    if (code) refuse(name, err);
    if (close(fd) && !code) code = refuse(name, err);
    if (!code && renameat(dir, temporary, dir, name)) code = refuse(name, err);
    if (code) unlinkat(dir, temporary, 0);
    return code;
}

/* ---- the folder ---- */

static int take_lock(struct disk_folder *folder, const char *path, struct error *err) {
    folder->lock =
        openat(folder->dir, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, FILE_MODE);
    if (folder->lock < 0) return refuse(path, err);
    if (flock(folder->lock, LOCK_EX | LOCK_NB) == 0) return 0;
    if (errno != EWOULDBLOCK) return refuse(path, err);
    return error_set(err, ERR_INVALID, "%.300s: another server uses this folder", path);
}

/* Reads the secret, or makes one for an empty folder. */
static int take_secret(struct disk_folder *folder, const char *path, struct error *err) {
    const int fd = openat(folder->dir, "secret", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    char *bytes = (char *)folder->secret;
    const size_t size = sizeof(folder->secret);
    if (fd >= 0) {
        const int code = read_all(fd, bytes, size);
        close(fd);
        if (!code) return 0;
        return error_set(err, ERR_INVALID, "%.300s/secret is damaged: remove the folder", path);
    }
    if (errno != ENOENT) return refuse(path, err);
    if (getrandom(bytes, size, 0) != (ssize_t)size) return refuse("random numbers", err);
    return publish(folder->dir, "secret" UNFINISHED, "secret", bytes, size, err);
}

static int make_parts(const struct disk_folder *folder, const char *path, struct error *err) {
    for (unsigned part = 0; part < N_PARTS; part++) {
        char name[8];
        snprintf(name, sizeof(name), "%02x", part);
        if (mkdirat(folder->dir, name, DIR_MODE) && errno != EEXIST) return refuse(path, err);
    }
    return 0;
}

int disk_folder_open(struct disk_folder *out, const char *path, struct error *err) {
    struct disk_folder folder = {.dir = -1, .lock = -1};
    if (mkdir(path, DIR_MODE) && errno != EEXIST) return refuse(path, err);
    folder.dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder.dir < 0) return refuse(path, err);
    int code = take_lock(&folder, path, err);
    if (!code) code = take_secret(&folder, path, err);
    if (!code) code = make_parts(&folder, path, err);
    if (code) disk_folder_close(&folder);
    else *out = folder;
    return code;
}

void disk_folder_close(struct disk_folder *folder) {
    if (folder->lock >= 0) close(folder->lock);
    if (folder->dir >= 0) close(folder->dir);
    folder->lock = folder->dir = -1;
}

void disk_folder_note_writer(const struct disk_folder *folder, const char *writer, char *former) {
    const int fd = openat(folder->dir, "writer", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, former, DISK_WRITER_BYTES - 1) : 0;
    former[n > 0 ? n : 0] = '\0';
    former[strcspn(former, "\n")] = '\0';
    if (fd >= 0) close(fd);
    if (strcmp(former, writer) == 0) return;
    char line[DISK_WRITER_BYTES + 1];
    struct error ignored;
    const int size = snprintf(line, sizeof(line), "%.*s\n", DISK_WRITER_BYTES - 1, writer);
    publish(folder->dir, "writer" UNFINISHED, "writer", line, (size_t)size, &ignored);
}

/* Adds a file to the index; one that is no regular file, or empty, is removed. */
static int add_file(DIR *dir, const char *name, const struct disk_id *id,
                    struct disk_index *index) {
    struct stat info;
    if (fstatat(dirfd(dir), name, &info, AT_SYMLINK_NOFOLLOW)) return 0;
    if (!S_ISREG(info.st_mode) || info.st_size == 0) {
        unlinkat(dirfd(dir), name, 0);
        return 0;
    }
    const struct disk_entry entry = {
        .id = *id, .bytes = (uint64_t)info.st_size, .used_s = (uint64_t)info.st_mtim.tv_sec};
    const int code = disk_index_add(index, &entry);
    if (code == ERR_FULL) unlinkat(dirfd(dir), name, 0);
    return code == ERR_NOMEM ? code : 0;
}

static int scan_part(DIR *dir, unsigned part, struct disk_index *index) {
    struct dirent *file;
    int code = 0;
    while (!code && (file = readdir(dir))) {
        struct disk_id id;
        if (read_name(&id, file->d_name, part)) code = add_file(dir, file->d_name, &id, index);
        else if (is_unfinished(file->d_name, part)) unlinkat(dirfd(dir), file->d_name, 0);
    }
    return code;
}

int disk_folder_scan(const struct disk_folder *folder, struct disk_index *index,
                     struct error *err) {
    for (unsigned part = 0; part < N_PARTS; part++) {
        char name[8];
        snprintf(name, sizeof(name), "%02x", part);
        const int fd = openat(folder->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) return refuse(name, err);
        DIR *dir = fdopendir(fd);
        if (!dir) {
            close(fd);
            return refuse(name, err);
        }
        const int code = scan_part(dir, part, index);
        closedir(dir);
        if (code) return error_set(err, code, "no memory for the index of the cache on disk");
    }
    disk_index_sort(index);
    return 0;
}

/* ---- files ---- */

int disk_folder_write(const struct disk_folder *folder, const struct disk_id *id, const char *bytes,
                      size_t size, struct error *err) {
    const struct file_name temporary = unfinished(id), name = name_of(id);
    return publish(folder->dir, temporary.text, name.text, bytes, size, err);
}

/* Copies the file from the page cache; false: not all of it is there. */
static bool read_cached(int fd, char *to, size_t size) {
    const struct iovec all = {.iov_base = to, .iov_len = size};
    return preadv2(fd, &all, 1, 0, RWF_NOWAIT) == (ssize_t)size;
}

/* Reads the file from the disk itself.  Where the file system cannot do that, and where such a read
 * fails, reads it like any other. */
static int read_past_cache(int fd, char *to, size_t size) {
    const int flags = fcntl(fd, F_GETFL);
    size_t done = 0;
    if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0) {
        const size_t whole = round_up(size, DISK_ALIGN);
        ssize_t n;
        while (done < size && (n = pread(fd, to + done, whole - done, (off_t)done)) > 0) {
            done += (size_t)n;
            if (n % DISK_ALIGN != 0) break; /* the end, or what is left cannot be read so */
        }
        if (done >= size) return 0;
        fcntl(fd, F_SETFL, flags);
    }
    return read_all(fd, to, size);
}

static int read_open(int fd, char *to, size_t size, const char *name, struct error *err) {
    struct stat info;
    if (fstat(fd, &info)) return refuse(name, err);
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != size)
        return error_set(err, ERR_INVALID, "%s: not the file that was written", name);
    if (!read_cached(fd, to, size) && read_past_cache(fd, to, size)) return refuse(name, err);
    futimens(fd, NULL); /* a file that is not ours to touch only grows old sooner */
    return 0;
}

int disk_folder_read(const struct disk_folder *folder, const struct disk_id *id, char *to,
                     size_t size, struct error *err) {
    const struct file_name name = name_of(id);
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const int fd = openat(folder->dir, name.text, flags);
    if (fd < 0 && errno == ENOENT) return error_set(err, ERR_NOT_FOUND, "%s: not there", name.text);
    if (fd < 0) return refuse(name.text, err);
    const int code = read_open(fd, to, size, name.text, err);
    close(fd);
    return code;
}

void disk_folder_remove(const struct disk_folder *folder, const struct disk_id *id) {
    unlinkat(folder->dir, name_of(id).text, 0);
}
