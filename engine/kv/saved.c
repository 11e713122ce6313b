/* saved.c - see saved.h. */
#include "engine/kv/saved.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/device/pages.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"

struct kv_saved {
    char *pages;         /* list after list, then those that the selection holds */
    uint32_t n_expired;  /* kv_sequence.n_expired: so many pages of a windowed list are not here */
    uint32_t n_listed[]; /* [n_layers]: the lengths of the lists */
};

static uint32_t first_saved(const struct kv_sequence *kv, uint32_t layer, uint32_t n_expired) {
    return kv_list_is_windowed(kv, layer) ? n_expired : 0;
}

/* Copies n pages to host memory, or back; advances *host to where the next ones are. */
static int copy(const struct kv_space *space, const uint32_t *pages, uint32_t n, char **host,
                bool back, struct error *err) {
    const int code = back ? page_io_write(&space->io, pages, n, *host, err)
                          : page_io_read(&space->io, pages, n, *host, err);
    *host += n * page_io_page_bytes(&space->io);
    return code;
}

static int copy_all(struct kv_sequence *kv, bool back, struct error *err) {
    const struct kv_saved *saved = kv->saved;
    const struct page_list *held = selection_held(kv);
    char *host = saved->pages;
    int code = 0;
    for (uint32_t l = 0; l < kv->space->n_layers && !code; l++) {
        const uint32_t first = first_saved(kv, l, saved->n_expired);
        assert(kv->layers[l].n >= saved->n_listed[l]);
        code = copy(kv->space, kv->layers[l].pages + first, saved->n_listed[l] - first, &host, back,
                    err);
    }
    return code ? code : copy(kv->space, held->pages, held->n, &host, back, err);
}

static size_t count_pages(const struct kv_sequence *kv) {
    size_t n = selection_held(kv)->n;
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        n += kv->layers[l].n - first_saved(kv, l, kv->n_expired);
    return n;
}

static struct kv_saved *make(const struct kv_sequence *kv, size_t bytes) {
    const uint32_t n_layers = kv->space->n_layers;
    struct kv_saved *saved = malloc(sizeof(*saved) + n_layers * sizeof(*saved->n_listed));
    if (!saved) return NULL;
    saved->pages = malloc(bytes);
    saved->n_expired = kv->n_expired;
    for (uint32_t l = 0; l < n_layers; l++) saved->n_listed[l] = kv->layers[l].n;
    if (saved->pages) return saved;
    free(saved);
    return NULL;
}

int kv_save(struct kv_sequence *kv, struct error *err) {
    const size_t n_pages = count_pages(kv);
    if (n_pages == 0 || kv->n_tokens == 0 || kv->saved) return 0;
    const size_t bytes = n_pages * page_io_page_bytes(&kv->space->io);
    kv->saved = make(kv, bytes);
    if (!kv->saved)
        return error_set(err, ERR_NOMEM, "no memory to save the request's KV cache (%zu bytes)",
                         bytes);
    const int code = copy_all(kv, false, err);
    return code ? code : page_io_sync(&kv->space->io, err);
}

void kv_give_back_saved(struct kv_sequence *kv) {
    kv_list_trim(&kv->buffers, kv->space->pool, 0);
    kv_lists_trim(kv, 0);
    selection_give_back(kv);
    if (kv->saved) kv_lists_begin(kv, kv->saved->n_expired);
}

int kv_restore(struct kv_sequence *kv, struct error *err) {
    const int code = copy_all(kv, true, err);
    kv_lists_cover(kv);
    kv_forget_saved(kv);
    return code;
}

void kv_forget_saved(struct kv_sequence *kv) {
    if (kv->saved) free(kv->saved->pages);
    free(kv->saved);
    kv->saved = NULL;
}
