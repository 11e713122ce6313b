/* api_keys.c - see api_keys.h. */
#include "server/settings/api_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "server/settings/log.h"
#include "server/settings/options.h"

enum { KEYS_FILE_MAX = 256 * 1024 };

/* ---- files ---- */

/* Returns the file's descriptor, or a negative code.  Opening a FIFO could block, so the file is
 * opened without waiting and its type is checked afterwards. */
static int open_regular(const char *option, const char *path, struct error *err) {
    struct stat about;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &about) != 0) {
        error_set(err, ERR_INVALID, "%s %.200s: %s", option, path, strerror(errno));
    } else if (!S_ISREG(about.st_mode)) {
        error_set(err, ERR_INVALID, "%s %.200s: not a regular file", option, path);
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

/* Reads at most size bytes of the option's file; *n is how many there are. */
static int read_file(const char *option, const char *path, char *out, size_t size, size_t *n,
                     struct error *err) {
    const int fd = open_regular(option, path, err);
    if (fd < 0) return fd;
    const ssize_t n_read = read_whole(fd, out, size);
    const int failure = errno;
    close(fd);
    if (n_read < 0)
        return error_set(err, ERR_INVALID, "%s %.200s: %s", option, path, strerror(failure));
    *n = (size_t)n_read;
    return 0;
}

/* ---- one key ---- */

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

static const struct api_key *with_name(const struct api_keys *keys, const char *name) {
    for (uint32_t i = 0; i < keys->n; i++)
        if (strcmp(keys->all[i].name, name) == 0) return &keys->all[i];
    return NULL;
}

static bool same_as_another(const struct api_keys *keys, const struct api_key *added) {
    for (uint32_t i = 0; i < keys->n; i++)
        if (strcmp(keys->all[i].name, added->name) == 0 ||
            strcmp(keys->all[i].key, added->key) == 0)
            return true;
    return false;
}

/* Adds a copy of the key. */
static int add(struct api_keys *keys, const struct api_key *key, const char *from,
               struct error *err) {
    if (keys->n == API_KEYS_MAX)
        return error_set(err, ERR_INVALID, "%s: more than %d keys", from, API_KEYS_MAX);
    if (same_as_another(keys, key))
        return error_set(err, ERR_INVALID, "%s: two keys, or two names, are the same", from);
    struct api_key *all = realloc(keys->all, (keys->n + 1) * sizeof(*all));
    if (all) keys->all = all;
    struct api_key copy = *key;
    copy.name = all ? strdup(key->name) : NULL;
    copy.key = copy.name ? strdup(key->key) : NULL;
    copy.tenant = keys->n + 1;
    if (!copy.key) {
        free(copy.name);
        return error_set(err, ERR_NOMEM, "no memory for the API keys");
    }
    all[keys->n++] = copy;
    return 0;
}

/* ---- a list of keys ---- */

static bool is_name(const char *name) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t n = strlen(name);
    return n > 0 && n <= API_KEY_NAME_MAX && strspn(name, plain) == n;
}

static bool in_range(json_int_t n, json_int_t low, json_int_t high) {
    return n >= low && n <= high;
}

static int read_item(struct api_keys *keys, json_t *item, const char *from, struct error *err) {
    const char *name = NULL, *key = NULL;
    size_t length = 0;
    json_int_t weight = 1, rate = 0;
    json_error_t why;
    if (json_unpack_ex(item, &why, JSON_STRICT, "{s:s, s:s%, s?I, s?I}", "name", &name, "key", &key,
                       &length, "weight", &weight, "tokens-per-minute", &rate))
        return error_set(err, ERR_INVALID,
                         "%s: a key has the members name, key, and perhaps weight and "
                         "tokens-per-minute: %.100s",
                         from, why.text);
    if (!is_name(name))
        return error_set(err, ERR_INVALID,
                         "%s: a name has 1 to %d letters, digits, dots, hyphens and underscores",
                         from, API_KEY_NAME_MAX);
    if (!in_range(weight, 1, API_KEY_MAX_WEIGHT) || !in_range(rate, 0, UINT32_MAX))
        return error_set(err, ERR_INVALID, "%s: %s: weight is 1 to %d, tokens-per-minute 0 to %u",
                         from, name, API_KEY_MAX_WEIGHT, UINT32_MAX);
    const int rc = check_key(key, length, from, err);
    if (rc) return rc;
    const struct api_key added = {.name = (char *)(uintptr_t)name,
                                  .key = (char *)(uintptr_t)key,
                                  .weight = (uint32_t)weight,
                                  .tokens_per_minute = (uint64_t)rate};
    return add(keys, &added, from, err);
}

static int read_items(struct api_keys *keys, json_t *list, const char *from, struct error *err) {
    json_t *items = NULL, *item;
    size_t i;
    if (json_unpack_ex(list, NULL, JSON_STRICT, "{s:o}", "keys", &items) || !json_is_array(items) ||
        json_array_size(items) == 0)
        return error_set(err, ERR_INVALID, "%s must be {\"keys\": [{\"name\": …, \"key\": …}, …]}",
                         from);
    json_array_foreach(items, i, item) {
        const int rc = read_item(keys, item, from, err);
        if (rc) return rc;
    }
    return 0;
}

static int read_list(struct api_keys *keys, const char *text, size_t length, const char *from,
                     struct error *err) {
    json_error_t why = {0};
    json_t *list = NULL;
    int rc = json_arena_load(&list, text, length, JSON_REJECT_DUPLICATES, &why);
    /* The parser's sentence may quote the text: it is not shown. */
    if (rc == ERR_NOMEM) return error_set(err, rc, "%s: no memory to parse it", from);
    if (rc)
        return error_set(err, ERR_INVALID, "%s: no JSON: line %d, column %d", from, why.line,
                         why.column);
    rc = read_items(keys, list, from, err);
    json_decref(list);
    return rc;
}

static int read_list_file(struct api_keys *keys, const char *path, struct error *err) {
    char from[256];
    size_t n = 0;
    snprintf(from, sizeof(from), "--api-keys-file %.200s", path);
    char *text = malloc(KEYS_FILE_MAX + 1);
    if (!text) return error_set(err, ERR_NOMEM, "%s: no memory to read it", from);
    int rc = read_file("--api-keys-file", path, text, KEYS_FILE_MAX + 1, &n, err);
    if (!rc && n > KEYS_FILE_MAX)
        rc = error_set(err, ERR_INVALID, "%s: longer than %d bytes", from, KEYS_FILE_MAX);
    if (!rc) rc = read_list(keys, text, n, from, err);
    free(text);
    return rc;
}

/* ---- all of them ---- */

/* A line end may follow the key of a file, and one byte tells of a longer key. */
enum { KEY_FILE_BYTES = API_KEY_MAX + 3 };

static int add_single(struct api_keys *keys, char *key, size_t n, const char *from,
                      struct error *err) {
    char name[] = "default";
    const struct api_key only = {.name = name, .key = key, .weight = 1};
    const int rc = check_key(key, n, from, err);
    return rc ? rc : add(keys, &only, from, err);
}

static int read_key_file(struct api_keys *keys, const char *path, struct error *err) {
    char text[KEY_FILE_BYTES + 1], from[256];
    size_t n;
    const int rc = read_file("--api-key-file", path, text, KEY_FILE_BYTES, &n, err);
    if (rc) return rc;
    n = without_line_end(text, n);
    text[n] = 0;
    snprintf(from, sizeof(from), "--api-key-file %.200s", path);
    return add_single(keys, text, n, from, err);
}

/* Reads the one key of --api-key or --api-key-file. */
static int read_single(struct api_keys *keys, const struct options *options, struct error *err) {
    char *key = options->api_key;
    if (key && options->api_key_file)
        return error_set(err, ERR_INVALID, "--api-key and --api-key-file exclude each other");
    if (options->api_key_file) return read_key_file(keys, options->api_key_file, err);
    return key ? add_single(keys, key, strlen(key), "--api-key", err) : 0;
}

static int read_all(struct api_keys *keys, const struct options *options, struct error *err) {
    const char *list = options->api_keys, *path = options->api_keys_file;
    const int rc = read_single(keys, options, err);
    if (rc) return rc;
    if (list && path)
        return error_set(err, ERR_INVALID, "--api-keys and --api-keys-file exclude each other");
    if (list) return read_list(keys, list, strlen(list), "--api-keys", err);
    return path ? read_list_file(keys, path, err) : 0;
}

int api_keys_resolve(struct options *options, struct error *err) {
    const int rc = read_all(&options->keys, options, err);
    if (rc || options->keys.n > 0 || !options->require_api_key) return rc;
    return error_set(err, ERR_INVALID,
                     "--require-api-key: there is no key; give --api-key-file, --api-keys-file or "
                     "the environment variable QUIRE_API_KEY");
}

bool api_keys_can_change(const struct options *options) {
    return options->api_key_file || options->api_keys_file;
}

bool api_keys_have_tenant(const struct api_keys *keys, uint32_t tenant) {
    for (uint32_t i = 0; i < keys->n; i++)
        if (keys->all[i].tenant == tenant) return true;
    return false;
}

/* Returns a tenant that no key of either list has, or else one that only a former key has. */
static uint32_t free_tenant(const struct api_keys *keys, const struct api_keys *former) {
    uint32_t found = 0;
    for (uint32_t tenant = API_KEYS_MAX; tenant > 0; tenant--) {
        if (api_keys_have_tenant(keys, tenant)) continue;
        if (!api_keys_have_tenant(former, tenant)) found = tenant;
        else if (found == 0) found = tenant;
    }
    return found;
}

static void choose_tenants(struct api_keys *keys, const struct api_keys *former) {
    for (uint32_t i = 0; i < keys->n; i++) {
        const struct api_key *same = with_name(former, keys->all[i].name);
        keys->all[i].tenant = same ? same->tenant : 0;
    }
    for (uint32_t i = 0; i < keys->n; i++)
        if (keys->all[i].tenant == 0) keys->all[i].tenant = free_tenant(keys, former);
}

int api_keys_renew(struct api_keys *out, const struct api_keys *former,
                   const struct options *options, struct error *err) {
    const int rc = read_all(out, options, err);
    if (rc) api_keys_fini(out);
    else choose_tenants(out, former);
    return rc;
}

void api_keys_fini(struct api_keys *keys) {
    for (uint32_t i = 0; i < keys->n; i++) {
        free(keys->all[i].name);
        free(keys->all[i].key);
    }
    free(keys->all);
    *keys = (struct api_keys){0};
}

void api_keys_warn(const struct options *options, bool is_loopback) {
    if (options->keys_in_arguments)
        log_event(LOG_WARN, "API keys among the arguments show in the list of processes: use "
                            "--api-key-file, --api-keys-file or the environment variables "
                            "QUIRE_API_KEY and QUIRE_API_KEYS");
    if (options->keys.n == 0 && !is_loopback)
        log_event(LOG_WARN,
                  "no API key is required on %s: every client that reaches this address may use "
                  "the server; see --api-key-file and --require-api-key",
                  options->host);
}
