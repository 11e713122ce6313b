/* usage.c - the usage object of a completion; see completion.h. */
#include "server/api/completion.h"
#include "server/api/server.h"

void completion_write_usage(struct completion *c, uint32_t n_reasoning) {
    const uint32_t n_generated = completion_n_generated(c);
    buffer_printf(&c->out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u}",
                  c->n_prompt, n_generated, c->n_prompt + n_generated, c->n_cached);
    if (n_reasoning > 0)
        buffer_printf(&c->out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%u}",
                      n_reasoning);
    if (c->n_live == 0) {
        buffer_puts(&c->out, ",\"kv\":");
        kv_account_write(&c->kv, &c->request.kv, &c->job.server->limits.kv.offload, &c->out);
        buffer_puts(&c->out, ",\"prefill\":");
        prefill_account_write(&c->prefill, &c->out);
    }
    buffer_puts(&c->out, "}");
}
