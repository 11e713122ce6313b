/* model_share.c - see model_share.h. */
#include "engine/model/model_share.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"

/* A rank's first token is a multiple of this where there are enough: rows of the head may share
 * scales, and kernels read whole tiles. */
enum { VOCAB_UNIT = 128 };

static int refuse(const struct model_config *c, struct error *err, const char *what, uint32_t n) {
    return error_set(err, ERR_UNSUPPORTED,
                     "%s %" PRIu32 " does not divide the model's %s, %" PRIu32,
                     ranks_setting(c->ranks_share), c->n_ranks, what, n);
}

/* Replaces *n by a rank's part of it. */
static int divide(const struct model_config *c, uint32_t *n, const char *what, struct error *err) {
    if (*n % c->n_ranks != 0) return refuse(c, err, what, *n);
    *n /= c->n_ranks;
    return 0;
}

/* Does the same with heads of which several ranks may have the same one. */
static int divide_or_repeat(const struct model_config *c, uint32_t *n, const char *what,
                            struct error *err) {
    if (*n == 0 || c->n_ranks % *n != 0) return divide(c, n, what, err);
    *n = 1;
    return 0;
}

static int divide_kv_heads(const struct model_config *c, uint32_t *n, struct error *err) {
    return divide_or_repeat(c, n, "KV heads", err);
}

static int divide_heads(struct model_config *c, struct error *err) {
    struct recurrent_shape *recurrent = &c->recurrent;
    int rc = divide(c, &c->n_heads, "heads", err);
    if (!rc) rc = divide_kv_heads(c, &c->n_kv_heads, err);
    if (!rc) rc = divide_kv_heads(c, &c->windowed.n_heads, err);
    if (rc || recurrent->n_layers == 0) return rc;
    if (recurrent->v_heads_apart)
        return error_set(err, ERR_UNSUPPORTED,
                         "--tensor-parallel-size %" PRIu32 ": the file has the value heads of each "
                         "key head apart; name the model's safetensors instead",
                         c->n_ranks);
    if (recurrent->kind == RECURRENT_MAMBA && recurrent->n_k_heads > 1)
        rc = divide(c, &recurrent->n_k_heads, "groups of recurrent layers", err);
    else rc = divide_or_repeat(c, &recurrent->n_k_heads, "key heads of recurrent layers", err);
    return rc ? rc : divide(c, &recurrent->n_v_heads, "value heads of recurrent layers", err);
}

static int divide_layers(struct model_config *c, struct error *err) {
    struct layer_shape *layers = malloc(c->n_layers * sizeof(*layers));
    int rc = layers ? 0 : error_set(err, ERR_NOMEM, "no memory for a rank's layers");
    if (!rc) memcpy(layers, c->layers, c->n_layers * sizeof(*layers));
    c->layers = layers;
    for (uint32_t i = 0; i < c->n_layers && !rc; i++) {
        rc = divide_kv_heads(c, &layers[i].kv.n_heads, err);
        if (!model_shares_weights(c)) continue;
        if (!rc) rc = divide(c, &layers[i].ffn_dim, "feed-forward width", err);
        if (!rc) rc = divide(c, &layers[i].dense_dim, "width of dense parts", err);
        if (!rc) rc = divide(c, &layers[i].shared_dim, "width of shared experts", err);
    }
    return rc;
}

bool model_shares_weights(const struct model_config *c) {
    return c->n_ranks > 1 && c->ranks_share == RANKS_SHARE_WEIGHTS;
}

/* Refuses models whose rows depend on each other beside attention. */
static int check_rows(const struct model_config *c, struct error *err) {
    if (c->ranks_share != RANKS_SHARE_ROWS || c->recurrent.n_layers == 0) return 0;
    return error_set(
        err, ERR_UNSUPPORTED,
        "%s %" PRIu32
        " does not go with recurrent layers: there each row follows from the one before",
        ranks_setting(c->ranks_share), c->n_ranks);
}

int model_share_make(struct model_config *out, const struct model_config *whole,
                     struct error *err) {
    struct model_config c = *whole;
    int rc = check_rows(&c, err);
    if (!rc) rc = divide_heads(&c, err);
    if (rc) return rc;
    const struct side_part last =
        model_share_vocab(&(struct model_config){.n_vocab = c.n_vocab,
                                                 .n_ranks = c.n_ranks,
                                                 .rank = c.n_ranks - 1,
                                                 .ranks_share = c.ranks_share});
    if (last.n == 0) return refuse(&c, err, "vocabulary", c.n_vocab);
    if (c.slopes) c.slopes += (size_t)c.rank * c.n_heads;
    if ((rc = divide_layers(&c, err))) free(c.layers);
    else *out = c;
    return rc;
}

struct side_part model_share_of(const struct model_config *c, uint32_t whole, uint32_t n) {
    if (n == whole) return (struct side_part){0, n};
    return (struct side_part){(uint32_t)((uint64_t)c->rank * whole / c->n_ranks / n * n), n};
}

struct side_part model_share_vocab(const struct model_config *c) {
    if (!model_shares_weights(c)) return (struct side_part){0, c->n_vocab};
    const uint64_t exact = div_up(c->n_vocab, c->n_ranks), rounded = round_up(exact, VOCAB_UNIT),
                   each = rounded * (c->n_ranks - 1) < c->n_vocab ? rounded : exact;
    const uint64_t first = min_u64(each * c->rank, c->n_vocab);
    return (struct side_part){(uint32_t)first, (uint32_t)min_u64(each, c->n_vocab - first)};
}
