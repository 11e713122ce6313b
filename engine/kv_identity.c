/* kv_identity.c - see kv_identity.h. */
#include "engine/kv_identity.h"

#include <string.h>

#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/engine.h"
#include "engine/kv/kv_space.h"
#include "engine/model/model_digest.h"

static void absorb_text(struct digest *digest, const char *text) {
    digest_absorb_bytes(digest, text, strlen(text));
}

static void absorb_pages(struct digest *digest, const struct kv_pool *pages,
                         const struct kv_space *space) {
    digest_absorb(digest, pages->format);
    digest_absorb(digest, pages->n_kv_heads | (uint64_t)pages->head_dim << 32);
    digest_absorb(digest, pages->page_bytes);
    digest_absorb(digest, pages->tracked);
    digest_absorb(digest, PAGE_TOKENS);
    digest_absorb(digest, space->n_layers | (uint64_t)space->window << 32);
}

int kv_identity(struct digest_value *out, const struct engine_config *config,
                const struct model *model, const struct kv_space *space, struct error *err) {
    static const uint64_t key[DIGEST_KEY_WORDS] = {1, 2, 3, 4}; /* it keeps no secret */
    struct digest digest;
    digest_init(&digest, key);
    absorb_text(&digest, config->version ? config->version : "");
    absorb_text(&digest, config->build ? config->build : "");
    absorb_text(&digest, config->backend->name);
    absorb_text(&digest, config->backend->arithmetic);
    digest_absorb(&digest, config->batch_invariant);
    if (config->ranks_share == RANKS_SHARE_ROWS) absorb_text(&digest, "ranks share rows");
    absorb_pages(&digest, space->io.memory, space);
    const int code = model_digest(&digest, model, config->model_dir, err);
    if (!code) *out = digest_end(&digest);
    return code;
}
