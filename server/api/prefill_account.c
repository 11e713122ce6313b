/* prefill_account.c - see prefill_account.h. */
#include "server/api/prefill_account.h"

#include <inttypes.h>

#include "server/json/buffer.h"
#include "server/settings/prefill_rules.h"

static const char *const reasons[N_DENSE_REASONS] = {
    [DENSE_ASKED] = "asked",
    [DENSE_UNAVAILABLE] = "unavailable",
    [DENSE_KV_POLICY] = "kv_policy",
    [DENSE_SCORED] = "logprobs",
    [DENSE_NO_PATTERNS] = "no_pattern_file",
    [DENSE_SHORT] = "short",
    [DENSE_LONG] = "long",
    [DENSE_CACHED] = "cached",
};

void prefill_account_add(struct prefill_account *account, const struct prefill_usage *usage) {
    if (!account->why_dense) account->why_dense = usage->why_dense;
    if (usage->mode != PREFILL_SPARSE) return;
    account->n_sparse++;
    account->density += usage->density;
    account->index_s += usage->index_s;
    account->attention_s += usage->attention_s;
}

void prefill_account_add_reused(struct prefill_account *account,
                                const struct prefill_usage *usage) {
    account->n_reused += usage->n_reused;
}

const char *prefill_account_reason(const struct prefill_account *account) {
    return account->n_sparse ? NULL : reasons[account->why_dense];
}

void prefill_account_write(const struct prefill_account *account, struct buffer *out) {
    if (account->n_sparse == 0) { /* dense prefill measures no times */
        buffer_puts(out, "{\"mode\":\"dense\",\"density\":1,\"index_ms\":null,"
                         "\"attention_ms\":null");
    } else {
        buffer_printf(out,
                      "{\"mode\":\"%s\",\"density\":%.4f,\"index_ms\":%.3f,"
                      "\"attention_ms\":%.3f",
                      prefill_mode_name(PREFILL_SPARSE), account->density / account->n_sparse,
                      1e3 * account->index_s, 1e3 * account->attention_s);
    }
    buffer_printf(out, ",\"reused_tokens\":%" PRIu64 ",\"why_dense\":", account->n_reused);
    const char *why = prefill_account_reason(account);
    if (why) buffer_printf(out, "\"%s\"}", why);
    else buffer_puts(out, "null}");
}
