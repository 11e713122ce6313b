/* prefill_account.c - see prefill_account.h. */
#include "server/api/prefill_account.h"

#include <inttypes.h>

#include "server/json/buffer.h"
#include "server/settings/prefill_rules.h"

void prefill_account_add(struct prefill_account *account, const struct prefill_usage *usage) {
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
    buffer_printf(out, ",\"reused_tokens\":%" PRIu64 "}", account->n_reused);
}
