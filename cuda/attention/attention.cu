/* attention.cu - the attention operations: which kernel takes a step's rows, and the plan of their
 * work, made once per step for all layers.
 *
 *   decoding rows    attn_decode, planned per list of lengths (attn_plan.h)
 *   other rows       attn_prefill, a list of (sequence, tile).  A sparse prompt's tiles that are
 *                    not dense for all heads form a second list.  If few rows follow many keys, the
 *                    dense tiles may be split instead (prefill/split.h)
 *   shapes that neither kernel has (tiny models, f32 pages, heads of 512): attn_simple
 *
 * attn_prefill reads 16-bit copies of pages that have 8 bits, and of keys that are rotated by their
 * ranks (kv/prompt_copies.c).  Hopper's splits of few rows convert 8 bits themselves
 * (prefill/codes.cuh).  The other kernels read the pages.
 *
 * The step's memory block holds, after its header:
 *
 *   plan 0: tiles, merges, end | plan 1 ... | arrays of the step | items of attn_prefill | split
 *   items
 *
 * Layers whose sequences are equally long share plan 0.  If some layers have windows, those with
 * the same window share the plan of the first of them.  Each layer has its own plan once a step has
 * had a sequence that is longer in one layer than in another.  Plans lie at fixed places, because
 * CUDA graphs refer to them.  Their space fits the largest batch seen, and when it grows the graphs
 * are discarded.
 *
 * Host code, C++ because the launchers are. */
#include "cuda/host/internal.h"

#include <algorithm>

#include "cuda/attention/decode/attn_decode.cuh"
#include "cuda/attention/prefill/attn_prefill.cuh"
#include "cuda/attention/sparse/sparse_index.h"
#include "engine/base/error.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"

static_assert(sizeof(struct attn_tile) == 32, "tiles are read as two 16-byte words");
static_assert(sizeof(struct attn_merge) % 16 == 0 && sizeof(struct attn_plan_end) % 16 == 0,
              "one plan's tiles follow another plan");

/* The most tiles of a prompt that read pages of 8 bits themselves: with four that is faster than
 * copies, with six it is slower (the table in prefill/codes.cuh). */
enum { MOST_CODE_TILES = 4 };

enum {
    ITEM_WORDS = sizeof(struct attn_prefill_item) / sizeof(int32_t),
    SPLIT_ITEM_WORDS = sizeof(struct attn_split_item) / sizeof(int32_t)
};

struct attention {
    struct kv_pool kv; /* what it was opened for */
    uint32_t n_heads;
    bool decode_fits, prefill_fits;   /* the fast kernels have this shape */
    bool has_slopes;                  /* ALiBi */
    struct attn_decode_params decode; /* what is the same in every launch */
    struct attn_plan_shape shape;     /* few: of the present step */
    bool rotates;                     /* see attn_decode_params; of the present step */

    uint32_t max_seqs, n_plans; /* capacity of a step's block */
    uint64_t max_slots;
    struct attn_plan_budget room;
    struct attn_load *loads; /* of one plan at a time */

    /* The present step's items: dense ones, then n_sparse of a sparse prompt, then n_ranked whose
     * keys come from elsewhere, or are rotated when they are read.  The split plan replaces the
     * dense ones if it has any items. */
    uint32_t n_items, n_sparse, n_ranked;
    const struct attn_prefill_item *items;

    struct attn_split_shape split_shape;
    struct attn_split_plan split;              /* its items lie in the block on the host */
    const struct attn_split_item *split_items; /* the same items on the device */
};

static bool has_kernels(const struct kv_pool *kv, uint32_t n_heads) {
    switch (kv->head_dim) {
    case 64:
    case 80:
    case 96:
    case 128:
    case 256: break;
    default: return false;
    }
    return kv->format != PAGE_F32 && kv->n_kv_heads > 0 && n_heads % kv->n_kv_heads == 0;
}

/* Tells whether decode attention has a kernel for a shape that prompts' attention has. */
static bool has_decode_kernel(const struct kv_pool *kv, uint32_t n_heads) {
    return (kv->format == PAGE_BF16 || kv->format == PAGE_F16 || kv->format == PAGE_FP8) &&
           n_heads / kv->n_kv_heads <= ATTN_DECODE_MAX_GROUP;
}

static int shape_decode(struct cuda_backend *cuda, struct attention *a, struct error *err) {
    a->decode = {};
    a->decode.pool = a->kv.base;
    a->decode.page_bytes = a->kv.page_bytes;
    a->decode.kv_format = a->kv.format;
    a->decode.n_heads = a->n_heads;
    a->decode.n_kv_heads = a->kv.n_kv_heads;
    a->decode.head_dim = a->kv.head_dim;
    a->decode.overlap = cuda->overlap;
    int rc = 0;
    if (a->kv.base)
        rc = cuda_check(cuda, attn_decode_map_pool(&a->decode, a->kv.n_pages), "the KV pool", err);
    a->shape = {};
    a->shape.n_kv_heads = a->kv.n_kv_heads;
    a->shape.split_slots = cuda->batch_invariant ? ATTN_FIXED_SPLIT_SLOTS : 0;
    if (!rc)
        rc = cuda_check(cuda, attn_decode_count_blocks(a->decode, &a->shape), "decode attention",
                        err);
    return rc;
}

/* Sets the shape of split plans.  A batch-invariant backend has none, because a row's bits may not
 * depend on other rows. */
static int shape_splits(struct cuda_backend *cuda, struct attention *a, struct error *err) {
    if (cuda->batch_invariant || !a->prefill_fits) return 0;
    struct kv_pool kv = a->kv;
    /* Copies are bf16 (kv/prompt_copies.c), and the kernel that reads codes has the same shape. */
    if (page_is_scaled(kv.format)) kv.format = PAGE_BF16;
    return cuda_check(cuda, attn_split_shape_of(kv, a->n_heads, &a->split_shape),
                      "prefill attention", err);
}

static uint32_t max_splits(const struct attention *a) {
    return a->split_shape.max_blocks ? attn_split_max_items(&a->split_shape) : 0;
}

static int reserve_splits(struct cuda_backend *cuda, const struct attention *a, struct error *err) {
    const size_t n_floats = attn_split_floats(&a->split_shape, max_splits(a), a->kv.head_dim);
    return device_reserve(cuda, &cuda->partials, &cuda->partials_bytes, n_floats * sizeof(float),
                          err);
}

/* Returns how many rows of partial results decode attention has: a query head's of one tile
 * each. */
static size_t partial_rows(const struct attention *a) {
    return (size_t)a->room.n_partials * (a->n_heads / a->kv.n_kv_heads);
}

/* Reserves memory for the partial results of decode attention, which are empty between launches. */
static int reserve_exchange(struct cuda_backend *cuda, const struct attention *a,
                            struct error *err) {
    const size_t before = cuda->exchange_bytes,
                 n_floats = 1 + partial_rows(a) * (a->kv.head_dim + a->kv.head_dim / 4);
    const int rc =
        device_reserve(cuda, &cuda->exchange, &cuda->exchange_bytes, n_floats * sizeof(float), err);
    if (rc || cuda->exchange_bytes == before) return rc;
    return cuda_check(
        cuda, cudaMemsetAsync(cuda->exchange, MISSING_BYTE, cuda->exchange_bytes, cuda->stream),
        "emptying partial results", err);
}

static bool same_pool(const struct kv_pool *a, const struct kv_pool *b) {
    return a->base == b->base && a->format == b->format && a->n_pages == b->n_pages &&
           a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim &&
           a->page_bytes == b->page_bytes && a->tracked == b->tracked;
}

/* Says whether the fast kernels were opened for the shape of the layer's heads. */
static bool has_shape_of(const struct attention *a, const struct attn_args *args) {
    return a->kv.n_kv_heads == args->kv->n_kv_heads && a->kv.head_dim == args->kv->head_dim;
}

/* Says whether attention over the pool was opened.  Of a model with heads of two shapes only one
 * has the fast kernels, and it stays open for both. */
static bool is_open(const struct attention *a, const struct attn_args *args) {
    const struct kv_pool kv = kv_pool_of(args->kv, {a->kv.n_kv_heads, a->kv.head_dim});
    if (a->n_heads != args->n_heads || a->has_slopes != (args->slopes != nullptr) ||
        !same_pool(&a->kv, &kv))
        return false;
    return has_shape_of(a, args) || a->prefill_fits || !has_kernels(args->kv, args->n_heads);
}

/* Makes cuda->attention fit args.  The first operation on a pool packs the step again, because it
 * was packed without plans or with those of another pool. */
static int open_attention(struct cuda_backend *cuda, const struct attn_args *args,
                          struct error *err) {
    struct attention *a = cuda->attention;
    if (a && is_open(a, args)) return 0;
    attention_close(cuda);
    a = cuda->attention = static_cast<struct attention *>(calloc(1, sizeof(*a)));
    if (!a) return error_set(err, ERR_NOMEM, "cuda: no memory");
    a->kv = *args->kv;
    a->n_heads = args->n_heads;
    a->has_slopes = args->slopes != nullptr;
    a->n_plans = 1;
    a->prefill_fits = has_kernels(args->kv, args->n_heads);
    a->decode_fits = a->prefill_fits && has_decode_kernel(args->kv, args->n_heads);
    int rc = a->decode_fits ? shape_decode(cuda, a, err) : 0;
    if (!rc) rc = shape_splits(cuda, a, err);
    if (!rc && max_splits(a) > 0) {
        a->split.tiles =
            static_cast<struct attn_split_tile *>(calloc(max_splits(a), sizeof(*a->split.tiles)));
        if (!a->split.tiles) rc = error_set(err, ERR_NOMEM, "cuda: no memory");
    }
    return rc ? rc : step_send(cuda, err);
}

void attention_close(struct cuda_backend *cuda) {
    if (!cuda->attention) return;
    cuda->n_moves++;
    free(cuda->attention->split.tiles);
    free(cuda->attention->loads);
    free(cuda->attention);
    cuda->attention = nullptr;
}

/* ---- the plans of a step ---- */

static size_t plan_bytes(const struct attention *a) {
    return a->room.n_tiles * sizeof(struct attn_tile) +
           a->room.n_merges * sizeof(struct attn_merge) + sizeof(struct attn_plan_end);
}

/* Returns where the parts of a plan lie, which begins at `at`, on the host or the device. */
static struct attn_plan plan_at(const struct attention *a, const char *at) {
    struct attn_plan plan = {};
    plan.tiles = reinterpret_cast<struct attn_tile *>(const_cast<char *>(at));
    plan.merges = reinterpret_cast<struct attn_merge *>(plan.tiles + a->room.n_tiles);
    plan.end = reinterpret_cast<struct attn_plan_end *>(plan.merges + a->room.n_merges);
    return plan;
}

/* Returns the first layer with the same window. */
static uint32_t first_with_window(const struct step *step, uint32_t layer) {
    uint32_t first = 0;
    while (step->windows[first] != step->windows[layer]) first++;
    return first;
}

/* Returns the number of a layer's plan. */
static uint32_t plan_of(const struct attention *a, const struct step *step, uint32_t layer) {
    if (a->n_plans >= step->n_layers) return layer;
    return step->windows ? first_with_window(step, layer) : 0;
}

/* Says whether some sequence is longer in one layer than in another.  Prompts count, too: their
 * lists of pages come before those of sequences that decode. */
static bool layers_differ(const struct step *step) {
    for (uint32_t i = 0; i < step->n_seqs; i++)
        for (uint32_t l = 1; l < step->n_layers; l++)
            if (step->seqs[i].layers[l].n_slots != step->seqs[i].layers[0].n_slots) return true;
    return false;
}

/* Returns how many plans a step needs; it never falls once each layer has its own. */
static uint32_t plans_of(const struct attention *a, const struct step *step) {
    uint32_t n = 1;
    if (a->n_plans >= step->n_layers || layers_differ(step)) return step->n_layers;
    if (!step->windows) return 1;
    for (uint32_t l = 0; l < step->n_layers; l++) n = std::max(n, first_with_window(step, l) + 1);
    return n;
}

static uint64_t most_slots(const struct step *step) {
    uint64_t most = 0;
    for (uint32_t l = 0; l < step->n_layers; l++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < step->n_decode; i++) sum += step->seqs[i].layers[l].n_slots;
        if (sum > most) most = sum;
    }
    return most;
}

/* Grows the space of the plans in a step's block, and that of partial results.  The space
 * follows the largest batch seen, not the reserved memory, because every step sends all of it. */
static int make_room(struct cuda_backend *cuda, struct attention *a, uint32_t n_seqs,
                     uint64_t n_slots, uint32_t n_plans, struct error *err) {
    while (a->max_seqs < n_seqs) a->max_seqs = a->max_seqs ? 2 * a->max_seqs : 16;
    while (a->max_slots < n_slots) a->max_slots = a->max_slots ? 2 * a->max_slots : 65536;
    a->n_plans = n_plans;
    a->room = attn_plan_budget(&a->shape, a->max_seqs, a->max_slots);
    cuda->n_moves++;
    return reserve_exchange(cuda, a, err);
}

static int reserve_loads(struct attention *a, struct error *err) {
    free(a->loads);
    a->loads = static_cast<struct attn_load *>(calloc(a->room.n_loads, sizeof(*a->loads)));
    return a->loads ? 0 : error_set(err, ERR_NOMEM, "cuda: no memory");
}

/* Returns how many words the items of a step's prompts may take: attn_prefill's and the splits'. */
static size_t item_words(const struct attention *a, uint32_t n_rows, uint32_t n_seqs) {
    return (size_t)attn_prefill_max_items(n_rows, n_seqs) * ITEM_WORDS +
           (size_t)max_splits(a) * SPLIT_ITEM_WORDS;
}

/* Reserves attention's memory for any step within the limits.  *bytes becomes the size of one plan,
 * *n_words the words of the items.  There is no pool to map yet, which gives at least as many
 * blocks as a mapped one. */
int attention_reserve(struct cuda_backend *cuda, const struct step_limits *limits, size_t *bytes,
                      size_t *n_words, struct error *err) {
    struct attention a = {};
    a.kv.format = limits->kv_format;
    a.kv.n_kv_heads = limits->n_kv_heads;
    a.kv.head_dim = limits->head_dim;
    a.n_heads = limits->n_heads;
    if (limits->windowed.head_dim > 0 && !has_kernels(&a.kv, a.n_heads))
        a.kv = kv_pool_of(&a.kv, limits->windowed);
    a.prefill_fits = has_kernels(&a.kv, a.n_heads);
    *bytes = *n_words = 0;
    int rc = 0;
    if (limits->tracked || limits->select || limits->sparse)
        rc = attn_stats_reserve(cuda, limits->max_rows,
                                limits->tracked || limits->select ? limits->max_slots : 0,
                                limits->n_heads, err);
    if (rc || !a.prefill_fits) return rc;
    rc = shape_splits(cuda, &a, err);
    if (!rc) rc = reserve_splits(cuda, &a, err);
    *n_words = item_words(&a, limits->max_rows, limits->max_seqs);
    if (rc || !has_decode_kernel(&a.kv, a.n_heads)) return rc;
    rc = shape_decode(cuda, &a, err);
    if (!rc) rc = make_room(cuda, &a, limits->max_seqs, limits->max_slots, 1, err);
    *bytes = plan_bytes(&a);
    return rc;
}

/* Tells whether some layer's attention `selects` (struct attn_args). */
static bool needs_attn_stats(const struct step *step) {
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++)
        if (step->seqs[i].sparse && step->seqs[i].sparse->groups) return true;
    return step_has_selects(step) || step_has_observations(step);
}

int attention_budget(struct cuda_backend *cuda, const struct step *step, size_t *bytes,
                     size_t *n_words, struct error *err) {
    struct attention *a = cuda->attention;
    *bytes = *n_words = 0;
    if (!a) return 0;
    int rc = 0;
    if (a->kv.tracked || needs_attn_stats(step))
        rc = attn_stats_budget(cuda, step, a->n_heads, err);
    if (rc) return rc;
    if (a->prefill_fits && step->n_seqs > step->n_decode) {
        *n_words = item_words(a, step->n_rows - step->n_decode, step->n_seqs - step->n_decode);
        rc = reserve_splits(cuda, a, err);
    }
    if (rc || !a->decode_fits) return rc;
    const uint64_t n_slots = a->shape.split_slots ? most_slots(step) : 0;
    const uint32_t n_plans = std::max(a->n_plans, plans_of(a, step));
    if (step->n_decode > a->max_seqs || n_slots > a->max_slots || n_plans > a->n_plans) {
        rc = make_room(cuda, a, step->n_decode, n_slots, n_plans, err);
        if (!rc) rc = reserve_loads(a, err);
        if (rc) a->max_seqs = 0; /* the next step tries again */
    }
    *bytes = a->n_plans * plan_bytes(a);
    return rc;
}

/* Returns the decoding rows as plan i sees them. */
static struct attn_plan_batch plan_batch(const struct step *step, const struct step_arrays *arrays,
                                         uint32_t i) {
    const size_t first = (size_t)i * step->n_seqs;
    return {reinterpret_cast<const uint32_t *>(arrays->n_slots + first), arrays->table_at + first,
            step->n_decode, step_window(step, i)};
}

/* Says whether the step has a plan i that layers refer to. */
static bool has_plan(const struct attention *a, const struct step *step, uint32_t i) {
    return plan_of(a, step, i) == i;
}

/* Says whether few blocks suit all of the step's plans. */
static bool suits_few(const struct attention *a, const struct step *step,
                      const struct step_arrays *arrays) {
    for (uint32_t i = 0; i < a->n_plans && i < step->n_layers; i++) {
        if (!has_plan(a, step, i)) continue;
        const struct attn_plan_batch batch = plan_batch(step, arrays, i);
        if (!attn_plan_suits_few(&a->shape, &batch)) return false;
    }
    return true;
}

/* Says whether decode attention has keys of the step to rotate. */
static bool rotates_keys(const struct step *step) {
    for (uint32_t i = 0; i < step->n_decode; i++)
        if (step->seqs[i].budget && step->seqs[i].budget->cache_positions) return true;
    return false;
}

/* Writes the plans of the decoding rows.  It does nothing until the first step that decodes has
 * sized them. */
static void plan_decode(struct attention *a, const struct step *step,
                        const struct step_arrays *arrays, char *plans) {
    if (!a->decode_fits || a->max_seqs == 0) return;
    a->shape.few = suits_few(a, step, arrays);
    a->rotates = rotates_keys(step);
    for (uint32_t i = 0; i < a->n_plans && i < step->n_layers; i++) {
        if (!has_plan(a, step, i)) continue;
        struct attn_plan plan = plan_at(a, plans + i * plan_bytes(a));
        plan.loads = a->loads;
        const struct attn_plan_batch batch = plan_batch(step, arrays, i);
        attn_plan_build(&plan, &a->shape, &batch);
    }
}

/* Which kernels attend to the step's prompts. */
enum prompt_kernels { NO_PROMPTS, WHOLE_PROMPTS, SPLIT_PROMPTS, MERGED_PROMPTS };

static enum prompt_kernels prompt_kernels_of(const struct cuda_backend *cuda) {
    const struct attn_split_plan *split = &cuda->attention->split;
    if (!has_prompts(cuda)) return NO_PROMPTS;
    if (split->n_items == 0) return WHOLE_PROMPTS;
    return split->n_merges == 0 ? SPLIT_PROMPTS : MERGED_PROMPTS;
}

uint32_t attention_launch_kind(const struct cuda_backend *cuda) {
    const struct attention *a = cuda->attention;
    if (!a) return 0;
    return (uint32_t)prompt_kernels_of(cuda) << 3 | (cuda->step.n_decode > 0) << 2 |
           a->shape.few << 1 | a->rotates;
}

bool attention_fits_graph(const struct cuda_backend *cuda) {
    const struct attention *a = cuda->attention;
    if (!has_prompts(cuda)) return true;
    return a && cuda->prompt_copies.of == prompt_copies::COPY_NONE && !cuda->step.budgets &&
           a->n_sparse == 0 && a->n_ranked == 0 && a->n_items <= ATTN_PREFILL_MAX_ITEMS;
}

/* Says whether the sequence's items are launched apart: it is ranked, and not all prompts are. */
static bool is_apart(const struct cuda_backend *cuda, uint32_t seq) {
    return step_seq_is_ranked(&cuda->host_step->seqs[seq]) && !cuda->prompt_copies.only_ranked;
}

/* Returns how many of a sparse prompt's rows that are indexed together come before the step's. */
static uint32_t first_indexed_row(const struct step_seq *seq) {
    return seq->layers[step_first_budgeted(seq)].n_slots - seq->n_rows - seq->sparse->first_slot;
}

static bool is_sparse(const struct step *step, const struct attn_prefill_item &item) {
    const struct step_seq *seq = &step->seqs[item.seq];
    if (!seq->sparse) return false;
    const uint32_t begin = first_indexed_row(seq);
    return begin / SPARSE_TILE + (uint32_t)item.tile < sparse_first_dense_tile(seq->sparse);
}

/* Returns the first of a prompt's rows in the step from which on rows see everything in all layers,
 * with keys as they are stored; n_rows if there are none. */
static uint32_t first_dense_row(const struct cuda_backend *cuda, uint32_t i) {
    const struct step_seq *seq = &cuda->host_step->seqs[i];
    if (is_apart(cuda, i)) return seq->n_rows;
    if (!seq->sparse) return 0;
    const uint32_t first = first_indexed_row(seq) / SPARSE_TILE,
                   dense = sparse_first_dense_tile(seq->sparse);
    return dense > first ? std::min((dense - first) * SPARSE_TILE, seq->n_rows) : 0;
}

/* Returns the window of the layers that see most: 0 if some have no window, else the largest.
 * Ranked prompts see all of their slots. */
static uint32_t widest_window(const struct cuda_backend *cuda) {
    const struct step *step = cuda->host_step;
    uint32_t most = 0;
    if (cuda->prompt_copies.only_ranked) return 0;
    for (uint32_t l = 0; l < step->n_layers; l++) {
        const uint32_t window = step_window(step, l);
        if (window == 0) return 0;
        most = std::max(most, window);
    }
    return most;
}

/* Returns the most slots that a prompt has in a layer without a window. */
static uint32_t most_slots_of(const struct step *step, const struct step_seq *seq) {
    uint32_t most = seq->layers[step_first_budgeted(seq)].n_slots;
    for (uint32_t l = 0; seq->budgeted && l < step->n_layers; l++)
        if (step_window(step, l) == 0) most = std::max(most, seq->layers[l].n_slots);
    return most;
}

/* Makes the split plan of the rows that are neither sparse nor launched apart. */
static void plan_splits(const struct cuda_backend *cuda, const struct step_arrays *arrays) {
    struct attention *a = cuda->attention;
    const struct step *step = cuda->host_step;
    struct attn_split_plan *plan = &a->split;
    const size_t at = (size_t)attn_prefill_max_items(step->n_rows - step->n_decode,
                                                     step->n_seqs - step->n_decode) *
                      ITEM_WORDS;
    plan->items = reinterpret_cast<struct attn_split_item *>(arrays->items + at);
    a->split_items = reinterpret_cast<const struct attn_split_item *>(arrays->device_items + at);
    const uint32_t window = widest_window(cuda);
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        const struct attn_split_rows rows = {i, first_dense_row(cuda, i), step->seqs[i].n_rows,
                                             most_slots_of(step, &step->seqs[i]), window};
        attn_split_add(plan, &a->split_shape, &rows);
    }
    attn_split_cut(plan, &a->split_shape);
}

static void plan_prefill(const struct cuda_backend *cuda, const struct step_arrays *arrays) {
    struct attention *a = cuda->attention;
    const struct device_step *step = &cuda->step;
    struct attn_prefill_item *items = reinterpret_cast<struct attn_prefill_item *>(arrays->items);
    a->items = reinterpret_cast<const struct attn_prefill_item *>(arrays->device_items);
    a->n_items = a->n_sparse = a->n_ranked = 0;
    attn_split_begin(&a->split);
    if (!a->prefill_fits || step->n_seqs == step->n_decode) return;
    a->n_items = attn_prefill_plan(reinterpret_cast<const uint32_t *>(arrays->seq_rows),
                                   reinterpret_cast<const uint32_t *>(arrays->n_slots),
                                   step->n_decode, step->n_seqs, items);
    auto *ranked = std::partition(items, items + a->n_items, [=](const auto &item) {
        return !is_apart(cuda, (uint32_t)item.seq);
    });
    const auto *sparse = std::partition(
        items, ranked, [=](const auto &item) { return !is_sparse(cuda->host_step, item); });
    a->n_ranked = (uint32_t)(items + a->n_items - ranked);
    a->n_sparse = (uint32_t)(ranked - sparse);
    if (max_splits(a) > 0) plan_splits(cuda, arrays);
}

/* Says whether the step's prompts need no copies of 8-bit pages.  All are split, each has few rows,
 * and nothing reads their keys but attention.  There is no ALiBi, which Hopper's kernels lack. */
static bool splits_read_codes(const struct cuda_backend *cuda) {
    const struct attention *a = cuda->attention;
    const struct step *step = cuda->host_step;
    if (a->split.n_items == 0 || a->has_slopes || !attn_split_reads_codes(a->kv)) return false;
    const uint32_t most = MOST_CODE_TILES * attn_split_tile_rows(&a->split_shape);
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        if (seq->n_rows > most || seq->sparse || seq->budget || seq->observed) return false;
    }
    return true;
}

void attention_plan(struct cuda_backend *cuda, const struct step_arrays *arrays, char *plans) {
    if (!cuda->attention) return;
    prompt_copies_plan(cuda, cuda->attention->kv.format);
    plan_decode(cuda->attention, cuda->host_step, arrays, plans);
    plan_prefill(cuda, arrays);
    if (splits_read_codes(cuda)) cuda->prompt_copies.of = prompt_copies::COPY_NONE;
}

/* ---- the operations ---- */

/* Returns whether attention saves its statistics, by which tokens are evicted or selected. */
static bool leaves_attn_stats(const struct attn_args *args) {
    return args->kv->tracked || args->selects;
}

static float *lse_of(const struct cuda_backend *cuda, const struct attn_args *args) {
    if (args->lse) return args->lse;
    return leaves_attn_stats(args) ? cuda->attn_stats.lse : nullptr;
}

/* Returns the step's sequence whose rows follow an index in the layer, -1 if there is none. */
static int32_t sparse_seq_of(const struct step *step, uint32_t layer) {
    if (step_window(step, layer) > 0) return -1;
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        const struct attn_sparse *sparse = step->seqs[i].sparse;
        if (!sparse) continue;
        return sparse->groups && !filter_group_of(step, sparse, layer) ? -1 : (int32_t)i;
    }
    return -1;
}

static uint32_t window_of(const struct cuda_backend *cuda, const struct attn_args *args) {
    return step_window(cuda->host_step, args->layer);
}

/* Attends decoding rows or prompt rows of any shape. */
static int attend_simply(struct cuda_backend *cuda, const struct attn_args *args, bool decode,
                         uint32_t n_rows, struct launch launch, struct error *err) {
    struct attn_simple_params p = {};
    p.step = cuda->device_step;
    p.q = args->q;
    p.q_stride = args->q_stride;
    p.out = args->out;
    p.kv = *args->kv;
    p.n_heads = args->n_heads;
    p.layer = args->layer;
    p.n_rows = n_rows;
    p.decode = decode;
    p.scale = score_scale_of(args->scale, args->softcap);
    p.bias = score_bias_of(cuda, args);
    p.sinks = head_sinks_of(args->sinks);
    if (leaves_attn_stats(args)) p.attn_stats = cuda->attn_stats;
    p.selects = args->selects;
    if (!decode) p.attn_stats.lse = lse_of(cuda, args);
    p.rotations = key_rotations_of(cuda, args);
    p.window = window_of(cuda, args);
    p.sparse_seq = decode ? -1 : sparse_seq_of(cuda->host_step, args->layer);
    p.sparse = cuda->sparse.view;
    return cuda_check(cuda, launch_attn_simple(&p, launch), "attention", err);
}

/* Checks alignment: the fast kernels move 16 bytes at a time, also when they rotate keys. */
static bool aligned(const struct attn_args *args) {
    return ((uintptr_t)args->q | (uintptr_t)args->out) % 16 == 0 && args->q_stride % 8 == 0 &&
           (!args->kv->tracked || rotates_in_vectors(args->n_freqs));
}

/* Returns whether the fast decode kernel takes args.  It rotates 8-bit keys in registers, in whole
 * vectors of ATTN_DECODE_ROTATED frequencies. */
static bool decodes_fast(const struct attention *a, const struct attn_args *args) {
    const bool rotations = args->kv->format != PAGE_FP8 || !args->kv->tracked ||
                           args->n_freqs % ATTN_DECODE_ROTATED == 0;
    return a->decode_fits && has_shape_of(a, args) && aligned(args) && rotations;
}

/* Sends what attention needs beside the step: slopes and, over a tracked pool, the rotary
 * frequencies. */
static int open_scores(struct cuda_backend *cuda, const struct attn_args *args, struct error *err) {
    const int rc = slopes_send(cuda, args->slopes, args->n_heads, err);
    if (rc || !args->kv->tracked || !args->inv_freq) return rc;
    return freqs_send(cuda, &cuda->rotary[args->rope], args->inv_freq, args->n_freqs, err);
}

int cuda_attn_decode(struct backend *be, const struct attn_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    const uint32_t n_rows = cuda->in_graph ? cuda->launch_rows : cuda->step.n_decode;
    if (cuda->step.n_decode == 0) return 0;
    int rc = open_attention(cuda, args, err);
    if (!rc) rc = open_scores(cuda, args, err);
    bool awaited = false;
    if (!rc) rc = select_await(cuda, args->layer, leaves_attn_stats(args), &awaited, err);
    if (rc) return rc;
    struct attention *a = cuda->attention;
    if (!decodes_fast(a, args))
        return attend_simply(cuda, args, true, n_rows,
                             launch_on(cuda->stream, cuda->overlap && !awaited), err);
    struct attn_decode_params p = a->decode;
    const struct attn_plan plan =
        plan_at(a, reinterpret_cast<const char *>(cuda->device_step) + STEP_HEADER_BYTES +
                       plan_of(a, cuda->host_step, args->layer) * plan_bytes(a));
    p.q = args->q;
    p.q_stride = args->q_stride;
    p.out = args->out;
    p.scale = score_scale_of(args->scale, args->softcap);
    p.bias = score_bias_of(cuda, args);
    p.sinks = head_sinks_of(args->sinks);
    p.step = cuda->device_step;
    p.layer = args->layer;
    p.window = window_of(cuda, args);
    p.tiles = plan.tiles;
    p.merges = plan.merges;
    p.plan_end = plan.end;
    p.few = a->shape.few;
    p.n_blocks = attn_plan_grid(&a->shape);
    p.partial_out = static_cast<float *>(cuda->exchange);
    p.partial_lse = p.partial_out + partial_rows(a) * a->kv.head_dim;
    p.n_arrived =
        reinterpret_cast<uint32_t *>(p.partial_lse + partial_rows(a) * a->kv.head_dim / 4);
    if (leaves_attn_stats(args)) p.attn_stats = cuda->attn_stats;
    p.selects = args->selects;
    p.awaited = awaited;
    p.settled = cuda->overlap && is_recording(cuda) && !awaited;
    p.rotates = a->rotates;
    p.rotations = key_rotations_of(cuda, args);
    cuda->n_idle = p.few ? cuda->n_multiprocessors - p.n_blocks : 0;
    return cuda_check(cuda, launch_attn_decode(p, cuda->stream), "decode attention", err);
}

/* Returns how kernels that attend to prompts are launched: a graph notes them, or they are set in
 * it. */
static struct launch launch_of_prompts(const struct cuda_backend *cuda) {
    struct launch launch = launch_of(cuda);
    launch.nodes = cuda->graph ? &cuda->graph->nodes : nullptr;
    return launch;
}

/* Launches items [at, end) of the step.  They visit everything or, if `index` is given, what it
 * lists. */
static int launch_items(struct cuda_backend *cuda, struct attn_prefill_params p, uint32_t at,
                        uint32_t end, const struct sparse_view *index, struct error *err) {
    const uint32_t most = ATTN_PREFILL_MAX_ITEMS;
    int rc = 0;
    for (; at < end && !rc; at += p.n_items) {
        p.items = cuda->attention->items + at;
        p.n_items = end - at < most ? end - at : most;
        rc = cuda_check(cuda,
                        index ? launch_attn_prefill_sparse(p, *index, cuda->stream)
                              : launch_attn_prefill(p, launch_of_prompts(cuda)),
                        "prefill attention", err);
    }
    return rc;
}

static int launch_splits(struct cuda_backend *cuda, const struct attn_prefill_params &p,
                         struct error *err) {
    const struct attention *a = cuda->attention;
    struct attn_split_view view = {};
    view.items = a->split_items;
    view.n_items = a->split.n_items;
    view.n_merges = a->split.n_merges;
    view.partial_out = static_cast<float *>(cuda->partials);
    view.partial_lse = view.partial_out + (size_t)max_splits(a) * a->split_shape.n_kv_heads *
                                              a->split_shape.block_rows * a->kv.head_dim;
    return cuda_check(cuda, launch_attn_split(p, view, launch_of_prompts(cuda)),
                      "prefill attention", err);
}

static int attend_prompts(struct cuda_backend *cuda, const struct attn_args *args,
                          struct error *err) {
    const struct device_step *step = &cuda->step;
    const size_t first = (size_t)args->layer * step->n_seqs;
    const struct attention *a = cuda->attention;
    const bool indexed = sparse_seq_of(cuda->host_step, args->layer) >= 0;
    const uint32_t ranked = a->n_items - a->n_ranked, n_whole = ranked - a->n_sparse,
                   sparse = indexed ? n_whole : ranked;
    /* In a layer where they do not count positions in the cache, ranked prompts are like others. */
    const bool is_ranked = step_layer_is_ranked(cuda->host_step, args->layer),
               split = a->split.n_items > 0,
               only_ranked = cuda->prompt_copies.only_ranked && is_ranked;
    if (!a->prefill_fits || !has_shape_of(a, args) || !aligned(args))
        return attend_simply(cuda, args, false, step->n_rows - step->n_decode,
                             launch_of_prompts(cuda), err);
    struct prompt_view view = {};
    const struct key_rotations rotations = key_rotations_of(cuda, args);
    int rc = prompt_copies_open(cuda, args->kv, args->layer, &rotations, &view, err);
    if (rc) return rc;
    const struct prompt_pages &first_pages = only_ranked ? view.ranked : view.stored;
    struct attn_prefill_params p = {};
    p.q = args->q;
    p.q_stride = args->q_stride;
    p.out = args->out;
    p.kv = first_pages.kv;
    p.page_table = first_pages.table;
    p.table_at = step->table_at + first;
    p.first_row = step->first_row;
    p.n_rows = step->seq_rows;
    p.n_slots = step->n_slots + first;
    p.n_total_rows = step->n_rows;
    p.n_heads = args->n_heads;
    p.scale = score_scale_of(args->scale, args->softcap);
    p.bias = score_bias_of(cuda, args);
    p.sinks = head_sinks_of(args->sinks);
    p.window = only_ranked ? 0 : window_of(cuda, args);
    p.lse = lse_of(cuda, args);
    p.rotations = rotations;
    if (split) rc = launch_splits(cuda, p, err);
    if (!rc) rc = launch_items(cuda, p, split ? n_whole : 0, sparse, nullptr, err);
    if (!rc) rc = launch_items(cuda, p, sparse, ranked, &cuda->sparse.view, err);
    if (is_ranked) {
        p.kv = view.ranked.kv;
        p.page_table = view.ranked.table;
        p.rotated = !view.is_rotated;
        p.window = 0;
    }
    return rc ? rc : launch_items(cuda, p, ranked, a->n_items, nullptr, err);
}

/* Counts the pairs of prompts whose filters choose; those of others are counted with their
 * index. */
static void count_pairs(struct cuda_backend *cuda, const struct attn_args *args) {
    const struct step *step = cuda->host_step;
    for (uint32_t i = step->n_decode; i < step->n_seqs && window_of(cuda, args) == 0; i++)
        if (step->seqs[i].sparse && step->seqs[i].sparse->groups)
            sparse_count_pairs(cuda, &step->seqs[i], args);
}

/* Fails if the layer has no index: the step's sparse sequence then cannot be attended, whatever its
 * heads' patterns. */
static int check_index(const struct cuda_backend *cuda, const struct attn_args *args,
                       struct error *err) {
    const struct step *step = cuda->host_step;
    if (sparse_has_index(cuda, &step->seqs[sparse_seq_of(step, args->layer)], args->layer))
        return 0;
    return error_set(err, ERR_INVALID, "cuda: layer %u has no index", args->layer);
}

static int stamp(struct cuda_backend *cuda, enum sparse_stamp stamp, struct error *err) {
    return cuda_check(cuda, launch_sparse_stamp(cuda->sparse.account, stamp, launch_of(cuda)),
                      "reading the clock", err);
}

int cuda_attn_prefill(struct backend *be, const struct attn_args *args, struct error *err) {
    struct cuda_backend *cuda = CUDA_BACKEND(be);
    if (!has_prompts(cuda)) return 0;
    cuda->n_idle = 0; /* other kernels than decode attention come before the next product */
    int rc = open_attention(cuda, args, err);
    if (!rc) rc = open_scores(cuda, args, err);
    if (rc) return rc;
    if (is_recording(cuda)) graph_note_prompts(cuda, args);
    count_pairs(cuda, args);
    if (sparse_seq_of(cuda->host_step, args->layer) < 0) return attend_prompts(cuda, args, err);
    rc = check_index(cuda, args, err);
    if (!rc) rc = stamp(cuda, SPARSE_BEGINS, err);
    if (!rc) rc = attend_prompts(cuda, args, err);
    return rc ? rc : stamp(cuda, SPARSE_ATTENTION_ENDS, err);
}
