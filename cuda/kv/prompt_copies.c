/* prompt_copies.c - 16-bit copies of the pages of a step's prompts, of the layer at hand, as the
 * kernels of prompts want them.
 *
 *   pool      copied                                      in the copy
 *   8 bits    all prompts; none if each has few rows,     dequantised, and rotated as below
 *             and Hopper's splits convert the codes
 *             (attention/prefill/codes.cuh)
 *   16 bits   those whose keys are stored before RoPE     keys are rotated by their ranks
 *
 * Each row reads all keys, and each block of rows would convert them again; the copies are made
 * once.  Decoding reads the pages themselves, because there the number of bytes counts.
 *
 * Copies are named by a step of their own, whose table counts from 0 (step.c).  16-bit pages that
 * do not fit are not copied: the kernels then rotate their keys in shared memory.  A
 * batch-invariant backend never copies those, because a row's bits may not depend on what else
 * there is.
 *
 * Where keys are rotated, even one row gains by its copies: they let its keys be split among all
 * multiprocessors (attention/prefill/split.h).  Without copies one block for each query head
 * rotates all pages one after the other, which takes far longer than the copies do.
 *
 * Memory: reserved (step_limits); without the reserve op, grown to the most seen. */
#include "cuda/host/internal.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

/* Slots of 16-bit pages that are copied beside the step's own rows: eight budgets of 2,048. */
enum { MOST_COPIED_SLOTS = 16 * 1024 };

bool step_seq_is_ranked(const struct step_seq *seq) {
    return seq->budget && seq->budget->cache_positions;
}

bool step_layer_is_ranked(const struct step *step, uint32_t layer) {
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++)
        if (step_ranked(&step->seqs[i], layer)) return true;
    return false;
}

static bool is_copied(const struct prompt_copies *w, const struct step_seq *seq, uint32_t layer) {
    return w->of == COPY_ALL || (w->of == COPY_RANKED && step_ranked(seq, layer));
}

/* Returns how many pages a layer's copies take; *most: of one prompt. */
static uint32_t copied_pages(const struct prompt_copies *w, const struct step *step, uint32_t layer,
                             uint32_t *most) {
    uint32_t n = 0;
    *most = 0;
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        if (!is_copied(w, &step->seqs[i], layer)) continue;
        const uint32_t n_pages = (uint32_t)kv_n_pages(step->seqs[i].layers[layer].n_slots);
        *most = max_u32(*most, n_pages);
        n += n_pages;
    }
    return n;
}

static bool has_room(const struct prompt_copies *w, const struct step *step) {
    uint32_t most;
    if (w->n_reserved == 0) return true;
    for (uint32_t l = 0; l < step->n_layers; l++)
        if (copied_pages(w, step, l, &most) > w->n_reserved) return false;
    return true;
}

void prompt_copies_plan(struct cuda_backend *cuda, enum page_format format) {
    struct prompt_copies *w = &cuda->prompt_copies;
    const struct step *step = cuda->host_step;
    uint32_t n_ranked = 0;
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++)
        n_ranked += step_seq_is_ranked(&step->seqs[i]);
    w->of = COPY_NONE;
    w->planned_for = format;
    if (page_is_scaled(format)) w->of = COPY_ALL;
    else if (n_ranked > 0 && format != PAGE_F32 && !cuda->batch_invariant) w->of = COPY_RANKED;
    if (w->of == COPY_RANKED && !has_room(w, step)) w->of = COPY_NONE;
    w->only_ranked = w->of != COPY_NONE && n_ranked == step->n_seqs - step->n_decode;
}

static struct kv_pool pool_of_copies(const struct kv_pool *kv, void *base, uint32_t n_pages) {
    struct kv_pool pool = *kv;
    pool.format = page_is_scaled(kv->format) ? PAGE_BF16 : kv->format;
    pool.tracked = false;
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
                              cudaMemcpy(cuda->prompt_copies.numbers, numbers, n * sizeof(*numbers),
                                         cudaMemcpyHostToDevice),
                              "a table of pages", err);
    free(numbers);
    return rc;
}

static int reserve(struct cuda_backend *cuda, const struct kv_pool *kv, uint32_t n_pages,
                   struct error *err) {
    struct prompt_copies *w = &cuda->prompt_copies;
    const size_t page_bytes = pool_of_copies(kv, NULL, 0).page_bytes;
    if (n_pages * page_bytes > w->bytes) w->valid = false;
    int rc = device_reserve(cuda, &w->pages, &w->bytes, n_pages * page_bytes, err);
    if (rc || n_pages * sizeof(int32_t) <= w->numbers_bytes) return rc;
    rc = device_reserve(cuda, (void **)&w->numbers, &w->numbers_bytes, n_pages * sizeof(int32_t),
                        err);
    return rc ? rc : send_numbers(cuda, n_pages, err);
}

int prompt_copies_reserve(struct cuda_backend *cuda, const struct step_limits *limits,
                          struct error *err) {
    struct kv_pool kv = {.format = limits->kv_format,
                         .n_kv_heads = limits->n_kv_heads,
                         .head_dim = limits->head_dim};
    const struct kv_pool windowed = kv_pool_of(&kv, limits->windowed);
    uint64_t n_slots = 0;
    if (kv_page_bytes(&windowed) > kv_page_bytes(&kv)) kv = windowed;
    if (page_is_scaled(kv.format)) n_slots = limits->max_prompt_slots;
    else if (limits->tracked && kv.format != PAGE_F32 && !cuda->batch_invariant)
        n_slots = min_u64(limits->max_slots, MOST_COPIED_SLOTS) + limits->max_rows;
    if (n_slots == 0) return 0;
    /* Each sequence may have one page that is not full. */
    cuda->prompt_copies.n_reserved = (uint32_t)kv_n_pages(n_slots) + limits->max_seqs;
    return reserve(cuda, &kv, cuda->prompt_copies.n_reserved, err);
}

/* Reserves the copies; sends the step again if the table has moved, since the step holds its
 * address. */
static int make_room(struct cuda_backend *cuda, const struct kv_pool *kv, uint32_t n_pages,
                     struct error *err) {
    const int32_t *before = cuda->prompt_copies.numbers;
    const int rc = reserve(cuda, kv, n_pages, err);
    return rc || cuda->prompt_copies.numbers == before ? rc : step_send(cuda, err);
}

static int make_copies(struct cuda_backend *cuda, struct prompt_copies_params *params,
                       uint32_t most, struct error *err) {
    struct prompt_copies *w = &cuda->prompt_copies;
    const struct step *step = cuda->host_step;
    if (w->valid && w->layer == params->layer && w->base == params->from.base &&
        (w->is_rotated || !params->rotates))
        return 0;
    params->step = cuda->device_step;
    params->window = step_window(step, params->layer);
    params->ranked_only = w->of == COPY_RANKED;
    const int rc = cuda_check(
        cuda, launch_prompt_copies(params, step->n_seqs - step->n_decode, most, launch_of(cuda)),
        "copying prompts' pages", err);
    w->valid = !rc;
    w->is_rotated = params->rotates;
    w->layer = params->layer;
    w->base = params->from.base;
    return rc;
}

int prompt_copies_open(struct cuda_backend *cuda, const struct kv_pool *kv, uint32_t layer,
                       const struct key_rotations *rotations, struct prompt_view *out,
                       struct error *err) {
    struct prompt_copies *w = &cuda->prompt_copies;
    const bool rotates =
        rotations && kv->tracked && rotates_in_vectors(rotations->n_freqs) && kv->head_dim % 8 == 0;
    /* A step's first operation may be on a pool of another format than the steps before had. */
    if (w->of == COPY_UNKNOWN || w->planned_for != kv->format) prompt_copies_plan(cuda, kv->format);
    const bool is_ranked = step_layer_is_ranked(cuda->host_step, layer),
               copies_are_read =
                   w->of == COPY_ALL || (w->of == COPY_RANKED && rotates && is_ranked);
    uint32_t most, n_pages = copied_pages(w, cuda->host_step, layer, &most);
    const int rc = copies_are_read ? make_room(cuda, kv, n_pages, err) : 0;
    if (rc) return rc;
    const struct prompt_pages own = {*kv, cuda->device_step,
                                     cuda->step.table + (size_t)layer * cuda->step.layer_pages};
    *out = (struct prompt_view){own, own, false};
    if (!copies_are_read) return 0;
    const struct prompt_pages copies = {pool_of_copies(kv, w->pages, n_pages),
                                        cuda->device_step + 1, w->numbers};
    if (w->of == COPY_ALL) out->stored = copies;
    out->ranked = copies;
    out->is_rotated = rotates;
    struct prompt_copies_params params = {
        .from = *kv, .to = copies.kv, .layer = layer, .rotates = rotates};
    if (rotates) params.rotations = *rotations;
    return make_copies(cuda, &params, most, err);
}

void prompt_copies_close(struct cuda_backend *cuda) {
    cudaFree(cuda->prompt_copies.pages);
    cudaFree(cuda->prompt_copies.numbers);
    cuda->prompt_copies = (struct prompt_copies){0};
}
