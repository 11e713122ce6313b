/* dequant.c - bf16 copies of 8-bit pools' pages, for the kernels that read prompts' pages.  They
 * get copies of the layer at hand, and a step whose table names the copies.  Decoding reads the
 * pages themselves, because there the number of bytes counts.
 *
 * Memory: reserved for the most pages that prompts have in a layer (step_limits); without the
 * reserve op, grown to the most seen. */
#include "cuda/host/internal.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/device/dtype.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

static uint32_t prompt_pages(const struct step *step, uint32_t layer, uint32_t *most) {
    uint32_t n = 0;
    *most = 0;
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        const uint32_t n_pages = (uint32_t)kv_n_pages(step->seqs[i].layers[layer].n_slots);
        if (n_pages > *most) *most = n_pages;
        n += n_pages;
    }
    return n;
}

static struct kv_pool dequant_pool(const struct kv_pool *kv, void *base, uint32_t n_pages) {
    struct kv_pool pool = *kv;
    pool.dtype = DTYPE_BF16;
    pool.page_bytes = kv_page_bytes(&pool);
    pool.base = base;
    pool.n_pages = n_pages;
    return pool;
}

/* Sends the block table of the copies, in which page i is at i. */
static int send_numbers(struct cuda_backend *cuda, uint32_t n, struct error *err) {
    int32_t *numbers = malloc(n * sizeof(*numbers));
    if (!numbers) return error_set(err, ERR_NOMEM, "cuda: no memory");
    for (uint32_t i = 0; i < n; i++) numbers[i] = (int32_t)i;
    const int rc = cuda_check(cuda,
                              cudaMemcpy(cuda->dequantised.numbers, numbers, n * sizeof(*numbers),
                                         cudaMemcpyHostToDevice),
                              "a table of pages", err);
    free(numbers);
    return rc;
}

static int reserve(struct cuda_backend *cuda, const struct kv_pool *kv, uint32_t n_pages,
                   struct error *err) {
    struct dequant_pages *w = &cuda->dequantised;
    const size_t page_bytes = dequant_pool(kv, NULL, 0).page_bytes;
    if (n_pages * page_bytes > w->bytes) w->valid = false;
    int rc = device_reserve(cuda, &w->pages, &w->bytes, n_pages * page_bytes, err);
    if (rc || n_pages * sizeof(int32_t) <= w->numbers_bytes) return rc;
    rc = device_reserve(cuda, (void **)&w->numbers, &w->numbers_bytes, n_pages * sizeof(int32_t),
                        err);
    return rc ? rc : send_numbers(cuda, n_pages, err);
}

int dequant_reserve(struct cuda_backend *cuda, const struct step_limits *limits,
                    struct error *err) {
    const struct kv_pool kv = {.dtype = limits->kv_dtype,
                               .n_kv_heads = limits->n_kv_heads,
                               .head_dim = limits->head_dim,
                               .tracked = limits->tracked};
    if (kv.dtype != DTYPE_FP8) return 0;
    /* Each sequence may have one page that is not full. */
    return reserve(cuda, &kv, (uint32_t)kv_n_pages(limits->max_prompt_slots) + limits->max_seqs,
                   err);
}

/* Reserves the copies; sends the step again if the table has moved, since the step holds its
 * address. */
static int make_room(struct cuda_backend *cuda, const struct kv_pool *kv, uint32_t n_pages,
                     struct error *err) {
    const int32_t *before = cuda->dequantised.numbers;
    const int rc = reserve(cuda, kv, n_pages, err);
    return rc || cuda->dequantised.numbers == before ? rc : step_send(cuda, err);
}

int dequant_open(struct cuda_backend *cuda, const struct kv_pool *kv, uint32_t layer,
                 struct dequant_view *out, struct error *err) {
    struct dequant_pages *w = &cuda->dequantised;
    const struct step *step = cuda->host_step;
    *out = (struct dequant_view){*kv, cuda->device_step,
                                 cuda->step.table + (size_t)layer * cuda->step.layer_pages};
    if (kv->dtype != DTYPE_FP8) return 0;
    uint32_t most;
    const uint32_t n_pages = prompt_pages(step, layer, &most);
    int rc = make_room(cuda, kv, n_pages, err);
    if (rc) return rc;
    *out = (struct dequant_view){dequant_pool(kv, w->pages, n_pages), cuda->device_step + 1,
                                 w->numbers};
    if (w->valid && w->layer == layer && w->base == kv->base) return 0;
    const struct dequant_params params = {cuda->device_step, *kv, out->kv, layer,
                                          step_window(step, layer)};
    rc = cuda_check(cuda,
                    launch_dequant(&params, step->n_seqs - step->n_decode, most, launch_of(cuda)),
                    "dequantising pages", err);
    w->valid = !rc;
    w->layer = layer;
    w->base = kv->base;
    return rc;
}

void dequant_close(struct cuda_backend *cuda) {
    cudaFree(cuda->dequantised.pages);
    cudaFree(cuda->dequantised.numbers);
    cuda->dequantised = (struct dequant_pages){0};
}
