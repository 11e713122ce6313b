/* serve_command.c - see serve_command.h. */
#include "server/serve_command.h"

#include <inttypes.h>
#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/likeness.h"
#include "engine/device/backend.h"
#include "server/command_model.h"
#include "server/devices.h"
#include "server/early_signals.h"
#include "server/serve.h"
#include "server/settings/build_info.h"
#include "server/settings/log.h"
#include "server/settings/option_hint.h"
#include "server/settings/options.h"

extern char **environ;

enum { PRODUCT_BITS = 1 << 14 }; /* see log_product() */

void warn_of_variables(void (*warn)(void *ctx, const char *line)) {
    for (char *const *at = environ; *at; at++) {
        const char *meant = option_hint_variable(options_table(), *at);
        char name[LIKENESS_MAX_BYTES + 8], line[4 * LIKENESS_MAX_BYTES];
        if (!meant) continue;
        option_variable(name, sizeof(name), meant);
        snprintf(line, sizeof(line),
                 "the variable %.*s is no setting and is ignored: %s may be meant",
                 (int)strcspn(*at, "="), *at, name);
        warn(NULL, line);
    }
}

static void warn_in_log(void *ctx, const char *line) {
    (void)ctx;
    log_event(LOG_WARN, "%s", line);
}

/* Warns of a variable that was not meant for the server. */
static void warn_of_service_link(const struct options *options) {
    const char *link = options->service_link;
    if (!link) return;
    log_event(LOG_WARN,
              "%.200s is ignored: it is the address of a Kubernetes Service of this name, not a "
              "setting.  `enableServiceLinks: false` keeps such variables out of a pod",
              link);
}

/* Tells what this build lacks, before a request is refused for it. */
static void log_gaps(void) {
    for (const struct build_gap *gap = build_info.gaps; gap->name; gap++)
        log_event(LOG_INFO, "built without %s: %s; to get it: %s", gap->name, gap->without,
                  gap->remedy);
}

/* Lets the heap keep some memory that long requests have used: the next one would wait for the
 * system to clear as many pages again. */
static void keep_heap_warm(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_TRIM_THRESHOLD, 16 << 20);
#endif
}

/* Logs a product, unless one of the same kernel and shape, and with about as many rows, has been
 * logged.  ctx: a bit for each of those, by a hash. */
static void log_product(void *ctx, const char *kernel, uint32_t n_rows, uint32_t n_in,
                        uint32_t n_out) {
    const uint32_t power = 31 - (uint32_t)__builtin_clz(n_rows | 1),
                   hash = ((n_in * 31 + n_out) * 31 + power) * 31 + (unsigned char)kernel[0];
    uint64_t *seen = (uint64_t *)ctx + hash % PRODUCT_BITS / 64;
    const uint64_t bit = (uint64_t)1 << hash % 64;
    if (*seen & bit) return;
    *seen |= bit;
    log_event(LOG_DEBUG, "product kernel=%s rows=%u in=%u out=%u", kernel, n_rows, n_in, n_out);
}

int serve_command(struct options *options) {
    uint64_t products[PRODUCT_BITS / 64] = {0};
    const uint32_t n = (uint32_t)options->data_parallel_size;
    struct backend **backends = calloc(n, sizeof(struct backend *)), *backend;
    struct error err = {0};
    char model_dir[PATH_MAX];
    keep_heap_warm();
    log_set_level((enum log_level)options->log_level);
    log_set_format((enum log_format)options->log_format);
    int rc = log_start(&err);
    if (!rc && !backends) rc = error_set(&err, ERR_NOMEM, "no memory for %" PRIu32 " replicas", n);
    warn_of_service_link(options);
    if (!options->feed) warn_of_variables(warn_in_log);
    /* A private server's log level hides what is not a warning. */
    if (!rc)
        rc = command_model_find(model_dir, options, options->load_format != LOAD_DUMMY,
                                options->feed ? say_while_waiting : say_in_log, NULL, &err);
    if (!rc) rc = devices_create_all(backends, options, &err);
    if (!rc) {
        backend = backends[0];
        log_event(LOG_INFO, "quire %s (commit %s) on %s: %s", build_info.version, build_info.commit,
                  backend->name, backend->description);
        log_gaps();
        if (*options->usual) log_event(LOG_INFO, "it is always so here: %s", options->usual);
        log_event(LOG_INFO, "the model's files are in %s", model_dir);
        backend->on_product = options->log_level == LOG_DEBUG ? log_product : NULL;
        backend->on_product_ctx = products;
        rc = serve_run(options, model_dir, backends, &err);
    }
    if (backends) devices_destroy_all(backends, n);
    free(backends);
    if (rc) log_event(LOG_ERROR, "%s", err.text);
    log_stop();
    options_fini(options);
    return rc;
}

/* The seconds after which a private server drops a reader that takes nothing, such as a pager. */
enum { PATIENT_S = 86400 };

static void forget(char **text) {
    free(*text);
    *text = NULL;
}

int serve_privately(void *ctx, int feed) {
    struct options *options = ctx;
    char **const others[] = {&options->ssl_certfile,  &options->ssl_keyfile,
                             &options->kv_events,     &options->kv_events_replay,
                             &options->kv_disk_path,  &options->kv_events_topic,
                             &options->otlp_endpoint, &options->otlp_ca_file};
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) forget(others[i]);
    early_signals_take();
    options->feed = feed;
    options->stall_timeout = PATIENT_S;
    return serve_command(options);
}
