/* model.h - a model directory in Hugging Face layout: its description and its weights on a backend.
 *
 * Thread: loading on any one thread, then read-only.  Memory: the model owns its file mappings and
 * weights and must outlive every decoder made from it; the backend must outlive the model. */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "engine/device/backend.h"

struct checkpoint;
struct random_weights;
struct reordered;

enum { MODEL_MAX_EOS = 16 };

/* Which weights make logits.  transformers 5 ties what config.json ties unless the checkpoint has
 * both, with different values; so does this. */
enum head_source {
    HEAD_OWN,   /* lm_head.weight, and config.json says so */
    HEAD_TIED,  /* the embedding: there is no lm_head.weight, or none was looked for */
    HEAD_EQUAL, /* the embedding, which lm_head.weight repeats */
    HEAD_FOUND  /* lm_head.weight, which differs, although config.json ties them */
};

/* What the decoder needs to know; a model family is a way to fill this in, not code. */
struct model_config {
    char architecture[64];
    uint32_t n_vocab, dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim;
    uint32_t max_position; /* trained context, tokens */
    uint32_t window;       /* tokens that some layers see at most; 0: all see everything */
    uint32_t *windows;     /* [n_layers], owned: as in struct step; NULL where there is none */
    float norm_eps, attn_scale, rope_scale, embed_scale;
    float attn_softcap, logit_softcap; /* 0: none */
    enum gate_kind gate;
    bool tied_head; /* as config.json says; once the model is loaded, as its checkpoint has it */
    enum head_source head_source; /* once it is loaded */
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm; /* the heads of q and k, each by itself, before they turn */
    bool post_norms; /* what attention and feed-forward give to the residual stream is normed */
    bool own_ffn_norms; /* in the checkpoint the norms around the feed-forward are called so */
    bool norms_from_one; /* in the checkpoint norms' weights are less 1 */
    bool fused_qkv, fused_gate_up; /* in the checkpoint they are one tensor */
    bool paired_rotary;            /* in the checkpoint q and k turn by neighbours (turning.h) */
    uint32_t n_freqs;  /* rotary pairs, head_dim / 2 when the whole head rotates */
    double *inv_freq;  /* [n_freqs], owned by the model; scaling already applied */
    double *local_freq; /* the same of layers with a window; NULL: as the others */
    uint32_t bos; bool has_bos;
    uint32_t eos[MODEL_MAX_EOS]; uint32_t n_eos; /* config.json and generation_config.json */
    enum dtype weight_dtype; /* of the embedding, for the log */
};

struct layer_weights {
    struct weight attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
    struct weight attn_post_norm, ffn_post_norm;
    struct weight ffn_norm, gate, up, down, gate_bias, up_bias, down_bias;
};

struct model {
    struct model_config config;
    struct weight embedding, final_norm, head; /* head aliases embedding when tied */
    struct layer_weights *layers;              /* [n_layers] */
    size_t weight_bytes;
    struct checkpoint *checkpoint;         /* the mappings, or: */
    struct random_weights *random;
    struct reordered *reordered; /* weights that a backend aliases and no file has like this */
};

/* Where weights come from, and whom to tell.  All zero: the directory's files, and nobody. */
struct model_source {
    bool random; /* made up: only config.json is read (random_weights.h) */
    uint32_t context; /* as in model_config_load() */
    /* Bytes that the backend has, of all; called at the start and after each weight. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

/* Whether some layer sees everything. */
bool model_has_full_attention(const struct model_config *config);
/* Whether a text ends with the token. */
bool model_ends_with(const struct model_config *config, uint32_t token);

/* Reads only config.json and generation_config.json: enough to answer questions about a model.
 * context: the longest text that it will be asked for; 0: the model's own, max_position.  Rotary
 * scaling that depends on the length is settled by it (rope_config.h). */
int model_config_load(struct model_config *out, const char *dir, uint32_t context,
                      struct error *err);
void model_config_fini(struct model_config *config);

/* source may be NULL. */
int model_load(struct model **out, const char *dir, const struct model_source *source,
               struct backend *be, struct error *err);
/* ERR_IO once weights are no longer in their files: what was computed since may be wrong. */
int model_check(const struct model *model, struct error *err);
void model_destroy(struct model *model, struct backend *be); /* NULL is allowed */

#endif
