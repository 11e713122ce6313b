/* saved.c - see saved.h. */
#include "engine/kv/saved.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/kv/kv_sequence.h"

/* Moves the sequence's pages to or from kv->saved. */
static int copy_pages(struct kv_sequence *kv, bool back, struct error *err) {
    struct backend *be = kv->space->be;
    const size_t page_bytes = kv->space->memory->page_bytes;
    char *host = kv->saved, *base = kv->space->memory->base;
    int code = 0;
    for (uint32_t l = 0; l < kv->space->n_layers && !code; l++)
        for (uint32_t i = 0; i < kv->layers[l].n && !code; i++, host += page_bytes) {
            char *page = base + kv->layers[l].pages[i] * page_bytes;
            code = back ? be->ops->upload(be, page, host, page_bytes, err)
                        : be->ops->download(be, host, page, page_bytes, err);
        }
    return code || back ? code : be->ops->sync(be, err);
}

static size_t n_pages_of(const struct kv_sequence *kv) {
    size_t n = 0;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) n += kv->layers[l].n;
    return n;
}

int kv_save(struct kv_sequence *kv, struct error *err) {
    const size_t n_pages = n_pages_of(kv);
    if (n_pages == 0 || kv->n_tokens == 0 || kv->saved) return 0;
    const size_t bytes = n_pages * kv->space->memory->page_bytes;
    kv->saved = malloc(bytes);
    if (kv->saved) return copy_pages(kv, false, err);
    return error_set(err, ERR_NOMEM, "no memory to save the request's KV cache (%zu bytes)", bytes);
}

int kv_restore(struct kv_sequence *kv, struct error *err) {
    const int code = copy_pages(kv, true, err);
    kv_forget_saved(kv);
    return code;
}

void kv_forget_saved(struct kv_sequence *kv) {
    free(kv->saved);
    kv->saved = NULL;
}
