/* usage.c - what answers tell of a completion's tokens; see completion.h. */
#include "server/api/completion.h"
#include "server/api/server.h"

void completion_write_accounts(struct completion *c) {
    if (c->n_live > 0) return;
    buffer_puts(&c->out, ",\"kv\":");
    kv_account_write(&c->kv, &c->request.kv, &c->job.server->limits.kv.offload, &c->out);
    buffer_puts(&c->out, ",\"prefill\":");
    prefill_account_write(&c->prefill, &c->out);
}

void completion_write_progress(struct completion *c, const struct engine_event *event) {
    buffer_printf(&c->out,
                  ",\"prompt_progress\":{\"total\":%u,\"cache\":%u,\"processed\":%u,"
                  "\"time_ms\":%llu}",
                  event->n_prompt, event->n_cached, event->n_processed,
                  (unsigned long long)((uv_hrtime() - c->started_ns) / 1000000));
}

void completion_write_usage(struct completion *c, uint32_t n_reasoning) {
    const uint32_t n_generated = completion_n_generated(c);
    buffer_printf(&c->out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u}",
                  c->n_prompt, n_generated, c->n_prompt + n_generated, c->n_cached);
    if (n_reasoning > 0)
        buffer_printf(&c->out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%u}",
                      n_reasoning);
    completion_write_accounts(c);
    buffer_puts(&c->out, "}");
}

void completion_write_interim_usage(struct completion *c, uint32_t n_reasoning) {
    if (c->request.continuous_usage) {
        buffer_puts(&c->out, ",");
        completion_write_usage(c, n_reasoning);
    } else if (c->request.include_usage) {
        buffer_puts(&c->out, ",\"usage\":null");
    }
}
