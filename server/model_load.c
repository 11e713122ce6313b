/* model_load.c - see model_load.h. */
#include "server/model_load.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/sizes.h"
#include "engine/engine.h"
#include "engine/model/offloaded_layers.h"
#include "server/kv_events/publishers.h"
#include "server/replicas/replicas.h"
#include "server/settings/engine_setup.h"
#include "server/settings/load_progress.h"
#include "server/settings/options.h"

static void describe_cache(struct cache_setting *out, const struct engine_config *config) {
    static const char *const names[] = {PAGE_FORMAT_NAMES};
    *out = (struct cache_setting){.dtype = names[config->kv_format],
                                  .has_prefixes = config->prefix_caching,
                                  .device_share = config->device_share};
}

/* Makes the settings those of one of several replicas, all of which have the same memory.  Sizes
 * are those of all replicas together. */
static void divide_memory(struct engine_config *config, uint32_t n) {
    config->n_replicas = n;
    config->kv_cache_bytes /= n;
    config->host_pool_bytes /= n;
    config->disk_bytes /= n;
    if (config->expert_offload_bytes != EXPERT_OFFLOAD_AUTO)
        config->expert_offload_bytes = div_up(config->expert_offload_bytes, n);
}

/* Gives one of several replicas a folder of its own in that of --kv-disk-path. */
static int divide_disk(struct engine_config *config, const char *folder, uint32_t replica,
                       char path[PATH_MAX], struct error *err) {
    if (!folder || config->n_replicas == 1) return 0;
    if (mkdir(folder, S_IRWXU) && errno != EEXIST)
        return error_set(err, ERR_INVALID, "%.300s: %s", folder, strerror(errno));
    if (snprintf(path, PATH_MAX, "%s/replica-%" PRIu32, folder, replica) >= PATH_MAX)
        return error_set(err, ERR_INVALID, "--kv-disk-path is too long");
    config->disk_path = path;
    return 0;
}

/* Lets the next replica be like the first one: what that has planned by itself is what others get.
 * A plan for one is a plan for all then. */
static void repeat_plan(struct engine_config *config, const struct engine_info *first) {
    config->max_model_len = first->max_model_len;
    config->kv_cache_bytes = first->kv_bytes;
    config->max_long_rows = first->long_rows ? first->long_rows : 1;
    config->expert_offload_bytes = first->offloaded_bytes;
}

/* Creates an engine on each backend. */
static int create_engines(struct model_load *load, struct engine_config *config, uint32_t n,
                          struct engine **engines) {
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct error why = {0};
        char path[PATH_MAX];
        if (i == 1) repeat_plan(config, engine_info(engines[0]));
        config->backend = load->backends[i];
        config->kv_feed = load->publishers ? kv_publishers_feed(load->publishers, i) : NULL;
        rc = divide_disk(config, load->options->kv_disk_path, i, path, &why);
        if (!rc) rc = engine_create(&engines[i], config, &why);
        if (!rc) continue;
        if (n == 1) load->err = why;
        else error_set(&load->err, rc, "replica %" PRIu32 ": %.500s", i, why.text);
    }
    return rc;
}

static void create_replicas(struct model_load *load, struct engine_config *config, uint32_t n) {
    struct engine **engines = calloc(n, sizeof(struct engine *));
    int rc =
        engines ? 0 : error_set(&load->err, ERR_NOMEM, "no memory for %" PRIu32 " replicas", n);
    if (!rc) rc = create_engines(load, config, n, engines);
    if (!rc)
        rc = replicas_create(&load->replicas, engines, n, config->prefix_caching,
                             load->options->step_timeout, &load->err);
    for (uint32_t i = 0; i < n && rc && engines; i++) engine_destroy(engines[i]);
    free(engines);
}

/* Creates load->replicas, or says in load->err why not. */
static void load_engines(struct model_load *load) {
    struct error *err = &load->err;
    const struct options *options = load->options;
    struct engine_config config = engine_setup_config(options, load->model_dir, load->backends[0]);
    const uint32_t n = (uint32_t)options->data_parallel_size;
    struct load_progress progress;
    int rc = prefill_setup_load(&load->prefill, options, &config, err);
    if (!rc) rc = offload_setup_load(&load->offload, options, &config, err);
    if (rc) return;
    prefill_setup_configure(&load->prefill, options, &config);
    offload_setup_configure(&load->offload, options, &config);
    describe_cache(&load->cache, &config);
    config.bounded_caches = kv_rules_allow(&options->kv_rules, KV_BOUNDED);
    config.only_bounded = !kv_rules_allow_whole_texts(&options->kv_rules);
    config.wake = load->wake;
    config.wake_ctx = load->wake_ctx;
    engine_setup_tell(&config, &progress);
    progress.stops = &load->stops;
    progress.n_replicas = n;
    divide_memory(&config, n);
    create_replicas(load, &config, n);
}

static void run(uv_work_t *work) {
    struct model_load *load = work->data;
    const struct options *options = load->options;
    const int rc =
        chat_template_load(&load->chat, options->chat_template, load->model_dir, &load->err);
    load->chat.defaults = options->template_defaults;
    if (rc || generation_load(&load->generation, load->model_dir,
                              options->generation_config == GENERATION_CONFIG_AUTO, &load->err))
        return;
    load_engines(load);
}

static void after(uv_work_t *work, int status) {
    struct model_load *load = work->data;
    (void)status; /* the pool's work is never cancelled */
    load->done(load->done_ctx);
}

void model_load_begin(struct model_load *load, uv_loop_t *loop) {
    load->work.data = load;
    uv_queue_work(loop, &load->work, run, after);
}

void model_load_stop(struct model_load *load) {
    atomic_store(&load->stops, true);
}

void model_load_fini(struct model_load *load) {
    replicas_destroy(load->replicas);
    prefill_setup_fini(&load->prefill);
    offload_setup_fini(&load->offload);
    chat_template_fini(&load->chat);
}
