/* pull.c - see pull.h. */
#include "server/hub/pull.h"

#include <endian.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "server/hub/blob.h"
#include "server/hub/cache.h"
#include "server/hub/choice.h"
#include "server/hub/refusal.h"
#include "server/hub/settings.h"
#include "server/hub/skeleton.h"
#include "server/hub/transfer.h"
#include "server/hub/wire.h"
#include "server/json/buffer.h"
#include "server/settings/progress.h"

/* How many first bytes of weights are looked at before the rest comes.  The keys of a GGUF file
 * hold its vocabulary; the largest known take half of KEYS_BYTES. */
enum {
    KEYS_BYTES = 32 << 20,
    HEADER_BYTES = 4 << 20,
    MAX_HEADER_BYTES = 128 << 20,
    ATTEMPTS = 3,
    CUT_PATH_BYTES = 40
};
static const uint64_t REDRAW_NS = 100 * 1000 * 1000;

struct pull {
    const struct hub_request *request;
    struct hub_settings settings;
    struct hub_cache cache;
    struct hub_wire *wire; /* NULL: not needed yet */
    struct hub_answer answer;
    struct hub_files files;
    struct hub_choice choice;
    struct progress progress;
    char name[2 * HUB_PART_MAX + 16];
    uint64_t lacking; /* bytes of all files that the cache did not have */
    uint64_t missing; /* of them, those that were to come */
    int64_t came;     /* of these, and not yet shown */
    bool is_looked_at;
    uint64_t shown_ns;
};

static void say(const struct pull *p, const char *line) {
    p->request->voice->say(p->request->voice->ctx, line);
}

/* ---- what the cache has ---- */

/* Writes where the chosen model lies. */
static int write_path(char path[PATH_MAX], const struct pull *p, struct error *err) {
    const int n =
        snprintf(path, PATH_MAX, "%s/snapshots/%s%s%s", p->cache.path, p->files.commit,
                 p->choice.is_gguf ? "/" : "", p->choice.is_gguf ? p->choice.weights[0]->path : "");
    if (n > 0 && n < PATH_MAX) return 0;
    return error_set(err, ERR_INVALID, "the path of the hub's cache is too long");
}

static void forget_files(struct pull *p) {
    hub_choice_fini(&p->choice);
    hub_files_fini(&p->files);
}

/* Finds the model in the cache alone. */
static int find_cached(char path[PATH_MAX], struct pull *p, struct error *err) {
    const struct hub_request *request = p->request;
    const char *repository = request->name.repository;
    char commit[HUB_COMMIT_CHARS + 1];
    struct error why = {0};
    if (p->cache.folder < 0) {
        const int rc = hub_cache_open(&p->cache, &p->settings, repository, false, &why);
        if (rc == ERR_NOT_FOUND)
            return error_set(err, rc, "%.200s is not in the hub's cache, %.200s", repository,
                             p->settings.cache);
        if (rc) return error_set(err, rc, "%s", why.text);
    }
    if (!hub_cache_commit(&p->cache, request->name.revision, commit))
        return error_set(err, ERR_NOT_FOUND, "the hub's cache, %.200s, has no whole %.200s@%.100s",
                         p->settings.cache, repository, request->name.revision);
    int rc = hub_cache_list(&p->cache, commit, &p->files, &why);
    if (!rc) rc = hub_choose(&p->choice, &p->files, &request->name, request->has_weights, &why);
    if (!rc) rc = write_path(path, p, &why);
    if (rc)
        error_set(err, rc, "what the hub's cache has of %.100s is not whole: %.350s", repository,
                  why.text);
    forget_files(p);
    return rc;
}

static int refuse_offline(const struct pull *p, const struct error *why, struct error *err) {
    return error_set(err, why->code, "%.380s; %s, so it is not fetched", why->text,
                     p->request->offline ? "--offline is given" : "HF_HUB_OFFLINE is set");
}

/* ---- what the hub has ---- */

/* Appends a text as a part of an address.  keep: a letter that stays as it is, too. */
static void append_escaped(struct buffer *url, const char *text, char keep) {
    for (; *text; text++) {
        const bool is_plain = (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') ||
                              (*text >= '0' && *text <= '9') || strchr("-._~", *text);
        if (is_plain || *text == keep) buffer_append(url, text, 1);
        else buffer_printf(url, "%%%02X", (unsigned char)*text);
    }
}

/* Asks for the list of files.  ERR_IO without a text: p->answer says why there is none. */
static int list_files(struct pull *p, int attempts, struct error *err) {
    const struct hub_name *name = &p->request->name;
    struct buffer url = {0}, body = {0};
    buffer_printf(&url, "%s/api/models/%s/revision/", p->settings.endpoint, name->repository);
    append_escaped(&url, name->revision, 0);
    buffer_puts(&url, "?blobs=true");
    int rc = url.failed ? error_set(err, ERR_NOMEM, "no memory for an address") : 0;
    if (!rc)
        rc = hub_transfer_text(p->wire, url.data, HUB_ANSWER_MAX, attempts, p->request->voice,
                               &body, &p->answer, err);
    if (!rc) rc = hub_files_parse(&p->files, body.data ? body.data : "", body.length, err);
    buffer_fini(&url);
    buffer_fini(&body);
    return rc;
}

/* Tells whether the hub did not answer the request, but may answer another one. */
static bool is_out_of_reach(const struct hub_answer *answer) {
    return *answer->trouble || answer->status >= 500 || answer->status == 429;
}

static int refuse(const struct pull *p, struct error *err) {
    return hub_refuse(&p->answer, &p->settings, &p->request->name, err);
}

/* ---- files ---- */

static uint64_t bytes_to_come(const struct pull *p, const struct hub_file *file, uint64_t up_to) {
    const uint64_t begun = hub_cache_begun(&p->cache, file),
                   end = up_to < file->size ? up_to : file->size;
    return hub_cache_has_blob(&p->cache, file) || begun > end ? 0 : end - begun;
}

/* Returns how many first bytes of weights are looked at, unless a header turns out to be longer. */
static uint64_t first_bytes(const struct pull *p, size_t i) {
    return p->choice.is_gguf && i == 0 ? KEYS_BYTES : HEADER_BYTES;
}

/* Counts what the cache lacks of the files, or of what is needed to look at the model. */
static uint64_t count_missing(const struct pull *p, bool only_looks) {
    const struct hub_choice *choice = &p->choice;
    uint64_t n = 0;
    for (size_t i = 0; i < choice->n_small; i++)
        n += bytes_to_come(p, choice->small[i], UINT64_MAX);
    for (size_t i = 0; i < choice->n_weights; i++)
        n += bytes_to_come(p, choice->weights[i], only_looks ? first_bytes(p, i) : UINT64_MAX);
    return n;
}

/* Implements hub_source.came. */
static void came(void *ctx, const struct hub_file *file, int64_t n) {
    struct pull *p = ctx;
    const uint64_t now = clock_ns();
    char next[HUB_PATH_MAX + 64];
    p->came += n;
    if (p->missing == 0 || (p->progress.is_terminal && now - p->shown_ns < REDRAW_NS)) return;
    p->shown_ns = now;
    snprintf(next, sizeof(next), ", %.2f of %.2f GB, %.40s",
             (p->progress.done + (double)p->came) / 1e9, p->progress.total / 1e9, file->path);
    progress_add(&p->progress, (double)p->came, next);
    p->came = 0;
}

/* Fetches the first bytes of a file, or all. */
static int fetch(struct pull *p, const struct hub_file *file, uint64_t up_to, struct error *err) {
    const struct hub_source source = {.cache = &p->cache,
                                      .wire = p->wire,
                                      .voice = p->request->voice,
                                      .answer = &p->answer,
                                      .came = came,
                                      .ctx = p};
    struct buffer url = {0};
    buffer_printf(&url, "%s/%s/resolve/%s/", p->settings.endpoint, p->request->name.repository,
                  p->files.commit);
    append_escaped(&url, file->path, '/');
    err->text[0] = 0;
    int rc = url.failed ? error_set(err, ERR_NOMEM, "no memory for an address")
                        : hub_blob_fetch(&source, file, url.data,
                                         up_to < file->size ? up_to : file->size, err);
    buffer_fini(&url);
    progress_end(&p->progress);
    return rc == ERR_IO && !err->text[0] ? refuse(p, err) : rc;
}

/* Fetches whole files, and links each once it is whole. */
static int fetch_all(struct pull *p, const struct hub_file *const *files, size_t n,
                     struct error *err) {
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        rc = fetch(p, files[i], files[i]->size, err);
        if (!rc) rc = hub_cache_link(&p->cache, p->files.commit, files[i], err);
    }
    return rc;
}

/* ---- would it be served? ---- */

/* Returns how many bytes of a file in safetensors its header takes; 0: it cannot be read. */
static uint64_t header_bytes(const struct pull *p, const struct hub_file *file) {
    struct error why;
    uint64_t n = 0;
    int fd;
    if (hub_cache_open_part(&fd, &p->cache, file, &why)) return 0;
    const bool is_read = pread(fd, &n, sizeof(n), 0) == sizeof(n);
    close(fd);
    return is_read && le64toh(n) < MAX_HEADER_BYTES ? le64toh(n) + sizeof(n) : 0;
}

/* Fetches what a reader needs to know of each file of weights. */
static int fetch_headers(struct pull *p, struct error *err) {
    const struct hub_choice *choice = &p->choice;
    int rc = 0;
    for (size_t i = 0; i < choice->n_weights && !rc; i++) {
        const struct hub_file *file = choice->weights[i];
        if (hub_cache_has_blob(&p->cache, file)) continue;
        rc = fetch(p, file, first_bytes(p, i), err);
        if (rc || choice->is_gguf || hub_cache_has_blob(&p->cache, file)) continue;
        const uint64_t n = header_bytes(p, file);
        if (n > HEADER_BYTES) rc = fetch(p, file, n, err);
    }
    return rc;
}

/* Says why a model is not served.  The skeleton's path stands for the model's name. */
static int refuse_model(const struct pull *p, const char *path, const struct error *why,
                        struct error *err) {
    const char *text = why->text;
    size_t n = 0;
    while (path[n] && text[n] == path[n]) n++;
    /* A message may have cut a long path. */
    if (!path[n] || n >= CUT_PATH_BYTES) text += n;
    text += strspn(text, "/: ");
    return error_set(err, why->code, "quire cannot serve %.100s: %.380s",
                     p->request->name.repository, text);
}

/* Asks whether the small files are those of a model that is served. */
static int check_small(struct pull *p, struct error *err) {
    char path[PATH_MAX];
    struct error why = {0};
    int rc = write_path(path, p, err);
    if (rc || p->choice.is_gguf) return rc;
    rc = p->request->check(p->request->ctx, path, false, &why);
    return rc ? refuse_model(p, path, &why, err) : 0;
}

/* Looks at a model whose weights have not come, and says that they have not. */
static int look(struct pull *p, const char *part, struct error *err) {
    char path[PATH_MAX], line[512];
    const uint64_t left = count_missing(p, false), came = left < p->lacking ? p->lacking - left : 0;
    const int rc = write_path(path, p, err);
    if (rc) return rc;
    snprintf(line, sizeof(line),
             "%.1f MB of %.200s were fetched to look at it, and its weights were not: %.2f GB are "
             "left for `quire pull`",
             (double)came / 1e6, p->request->name.repository, (double)left / 1e9);
    say(p, line);
    p->is_looked_at = true;
    p->request->look->look(p->request->look->ctx, part, path);
    return 0;
}

/* Asks whether weights that begin like these are read. */
static int check_weights(struct pull *p, struct error *err) {
    struct hub_skeleton skeleton;
    struct error why = {0};
    int rc = fetch_headers(p, err);
    if (!rc) rc = hub_skeleton_make(&skeleton, &p->cache, &p->choice, err);
    if (rc) return rc;
    rc = p->request->check(p->request->ctx, skeleton.model, true, &why);
    if (rc) rc = refuse_model(p, skeleton.path, &why, err);
    else if (p->request->look && count_missing(p, false) > 0) rc = look(p, skeleton.model, err);
    hub_skeleton_remove(&skeleton, &p->cache);
    return rc;
}

/* ---- all of it ---- */

static int check_space(const struct pull *p, struct error *err) {
    const uint64_t space = hub_cache_space(&p->cache);
    if (p->missing <= space) return 0;
    return error_set(err, ERR_FULL,
                     "%.100s needs %.2f GB more, and the disk of %.200s has %.2f GB: make space "
                     "(`quire list`, `quire rm`), or let HF_HOME name a folder of another disk",
                     p->request->name.repository, (double)p->missing / 1e9, p->settings.cache,
                     (double)space / 1e9);
}

/* Says what will come. */
static void announce(const struct pull *p) {
    char line[512];
    const double all = (double)hub_choice_bytes(&p->choice) / 1e9;
    snprintf(line, sizeof(line),
             "%.200s at %.12s, licence: %s: %zu files, %.2f GB, of which %.2f GB %s",
             p->request->name.repository, p->files.commit,
             *p->files.licence ? p->files.licence : "not stated, see its page",
             p->choice.n_small + p->choice.n_weights, all, (double)p->missing / 1e9,
             p->request->only_tells ? "would come" : "are to come");
    say(p, line);
}

static void tell_files(const struct pull *p) {
    const struct hub_choice *c = &p->choice;
    char line[HUB_PATH_MAX + 64];
    for (size_t i = 0; i < c->n_small + c->n_weights; i++) {
        const struct hub_file *file = i < c->n_small ? c->small[i] : c->weights[i - c->n_small];
        snprintf(line, sizeof(line), "  %s %" PRIu64, file->path, file->size);
        say(p, line);
    }
}

/* Fetches the files in their order.  The model is asked about before its weights come. */
static int fetch_checked(struct pull *p, struct error *err) {
    const struct hub_choice *choice = &p->choice;
    int rc = check_space(p, err);
    if (rc) return rc;
    snprintf(p->name, sizeof(p->name), "fetching %s", p->request->name.repository);
    progress_begin(&p->progress, p->name, (double)p->missing, 0);
    p->progress.is_terminal = p->request->voice->is_terminal;
    p->progress.say = p->request->voice->say;
    p->progress.ctx = p->request->voice->ctx;
    rc = fetch_all(p, choice->small, choice->n_small, err);
    if (!rc) rc = check_small(p, err);
    if (!rc && choice->n_weights > 0) rc = check_weights(p, err);
    return rc || p->is_looked_at ? rc : fetch_all(p, choice->weights, choice->n_weights, err);
}

/* Links files that are all in the cache. */
static int link_all(struct pull *p, struct error *err) {
    const int rc = fetch_all(p, p->choice.small, p->choice.n_small, err);
    return rc ? rc : fetch_all(p, p->choice.weights, p->choice.n_weights, err);
}

/* Brings the cache up to the list of files. */
static int update(char path[PATH_MAX], struct pull *p, struct error *err) {
    const struct hub_request *request = p->request;
    char former[HUB_COMMIT_CHARS + 1];
    int rc = hub_choose(&p->choice, &p->files, &request->name, request->has_weights, err);
    if (rc) return rc;
    if (p->cache.folder < 0 && !request->only_tells) {
        rc = hub_cache_open(&p->cache, &p->settings, request->name.repository, true, err);
        if (rc) return rc;
    }
    p->lacking = count_missing(p, false);
    p->missing = count_missing(p, request->look);
    if (p->missing > 0 || request->only_tells) announce(p);
    if (request->only_tells) {
        tell_files(p);
        return 0;
    }
    /* A commit of which no file is missing may still be one that was refused. */
    const bool is_known = hub_cache_commit(&p->cache, request->name.revision, former);
    if (p->lacking > 0 || !is_known || strcmp(former, p->files.commit) != 0)
        rc = fetch_checked(p, err);
    else rc = link_all(p, err);
    path[0] = 0;
    if (rc || p->is_looked_at) return rc;
    /* Small files alone do not stand for a revision in place of a former one that is whole. */
    if (request->has_weights || !is_known)
        rc = hub_cache_set_commit(&p->cache, request->name.revision, p->files.commit, err);
    return rc ? rc : write_path(path, p, err);
}

/* Says why the newest revision is not used, and what is. */
static void say_cached(const struct pull *p, const struct error *why) {
    char line[600];
    snprintf(line, sizeof(line), "%.400s; what the cache has of %.100s is used", why->text,
             p->request->name.repository);
    say(p, line);
}

/* Brings the cache up to the list of files.  Where that fails, a former revision that the cache has
 * whole is used, unless the newest is asked for. */
static int update_or_keep(char path[PATH_MAX], struct pull *p, bool is_cached, struct error *err) {
    char newest[PATH_MAX];
    const int rc = update(newest, p, err);
    if (!rc && !p->request->only_tells) memcpy(path, newest, sizeof(newest));
    if (!rc || !is_cached || p->request->needs_newest) return rc;
    say_cached(p, err);
    return 0;
}

/* Asks the hub; where it is out of reach, a model that the cache has whole is taken from there. */
static int find_online(char path[PATH_MAX], struct pull *p, struct error *err) {
    struct error why = {0};
    const bool is_cached = !p->request->only_tells && find_cached(path, p, &why) == 0;
    if (is_cached && hub_is_hex(p->request->name.revision, HUB_COMMIT_CHARS)) return 0;
    int rc = hub_wire_open(&p->wire, &p->settings, err);
    if (rc && !is_cached) return rc;
    err->text[0] = 0;
    if (!rc) rc = list_files(p, is_cached ? 1 : ATTEMPTS, err);
    if (!rc) return update_or_keep(path, p, is_cached, err);
    if (rc == ERR_IO && !err->text[0]) refuse(p, err);
    if (!is_cached || (p->wire && !is_out_of_reach(&p->answer))) return rc;
    say_cached(p, err);
    return 0;
}

int hub_pull(char path[PATH_MAX], const struct hub_request *request, struct error *err) {
    struct pull p = {.request = request, .cache = HUB_CACHE_NONE};
    struct error why = {0};
    signal(SIGXFSZ, SIG_IGN); /* a limit of files' sizes is an error of write() */
    int rc = hub_settings_read(&p.settings, err);
    if (rc) return rc;
    if (!request->offline && !p.settings.offline) rc = find_online(path, &p, err);
    else if ((rc = find_cached(path, &p, &why))) refuse_offline(&p, &why, err);
    forget_files(&p);
    hub_cache_close(&p.cache);
    hub_wire_close(p.wire);
    return rc;
}
