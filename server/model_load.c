/* model_load.c - see model_load.h. */
#include "server/model_load.h"

#include "engine/engine.h"
#include "server/settings/engine_setup.h"
#include "server/settings/load_progress.h"
#include "server/settings/options.h"

static void describe_cache(struct cache_setting *out, const struct engine_config *config) {
    static const char *const names[] = {PAGE_FORMAT_NAMES};
    *out = (struct cache_setting){.dtype = names[config->kv_format],
                                  .has_prefixes = config->prefix_caching,
                                  .device_share = config->device_share};
}

/* Creates load->engine, or says in load->err why not. */
static void load_engine(struct model_load *load) {
    struct error *err = &load->err;
    const struct options *options = load->options;
    struct engine_config config = engine_setup_config(options, load->model_dir, load->backend);
    struct load_progress progress;
    int rc = prefill_setup_load(&load->prefill, options, &config, err);
    if (!rc) rc = offload_setup_load(&load->offload, options, &config, err);
    if (rc) return;
    prefill_setup_configure(&load->prefill, options, &config);
    offload_setup_configure(&load->offload, options, &config);
    describe_cache(&load->cache, &config);
    config.kv_feed = load->kv_feed;
    config.bounded_caches = kv_rules_allow(&options->kv_rules, KV_BOUNDED);
    config.only_bounded = !kv_rules_allow_whole_texts(&options->kv_rules);
    config.wake = load->wake;
    config.wake_ctx = load->wake_ctx;
    engine_setup_tell(&config, &progress);
    progress.stops = &load->stops;
    engine_create(&load->engine, &config, err);
}

static void run(uv_work_t *work) {
    struct model_load *load = work->data;
    const struct options *options = load->options;
    const int rc =
        chat_template_load(&load->chat, options->chat_template, load->model_dir, &load->err);
    if (rc || generation_load(&load->generation, load->model_dir,
                              options->generation_config == GENERATION_CONFIG_AUTO, &load->err))
        return;
    load_engine(load);
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
    engine_destroy(load->engine);
    prefill_setup_fini(&load->prefill);
    offload_setup_fini(&load->offload);
    chat_template_fini(&load->chat);
}
