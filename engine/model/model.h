/* model.h - a model directory in Hugging Face layout: its description and its weights on a backend.
 *
 * Thread: loading on any one thread, then read-only.  Memory: the model owns its file mappings and
 * weights and must outlive every decoder made from it; the backend must outlive the model. */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/experts.h"
#include "engine/device/pages.h"
#include "engine/device/recurrent.h"
#include "engine/device/weight.h"
#include "engine/model/offloaded_layers.h"
#include "engine/model/quantisation.h"
#include "engine/model/weight_tally.h"

struct family_name;
struct layer_shape;
struct random_weights;
struct reordered;
struct tensor_prefix;
struct weight_source;

enum { MODEL_MAX_EOS = 16 };

/* Which weights make logits.  transformers 5 ties what config.json ties unless the checkpoint has
 * both, with different values; so does this. */
enum head_source {
    HEAD_OWN,   /* lm_head.weight, and config.json says so */
    HEAD_TIED,  /* the embedding: there is no lm_head.weight, or none was looked for */
    HEAD_EQUAL, /* the embedding, which lm_head.weight repeats */
    HEAD_FOUND  /* lm_head.weight, which differs, although config.json ties them */
};

/* How attention knows where tokens are. */
enum model_positions {
    POSITIONS_ROTARY,  /* q and k are rotated */
    POSITIONS_LEARNED, /* a table's row is added to the token's embedding */
    POSITIONS_ALIBI    /* scores get less with the distance (alibi.h) */
};

/* What attention weights add up to, beside those of keys (attn_args.sinks). */
enum softmax_kind {
    SOFTMAX_PLAIN,      /* nothing */
    SOFTMAX_OFF_BY_ONE, /* a sink with the logit 0: softmax1, or StreamingLLM's zero sink */
    SOFTMAX_SINKS       /* a learned sink of each head */
};

/* How files hold the experts of a layer: weights.c has rules for each. */
enum expert_layout {
    EXPERTS_SINGLE,  /* a tensor for each matrix of each expert */
    EXPERTS_STACKED, /* one for all gates, one for all ups, one for all downs */
    EXPERTS_FUSED,   /* one for all gates and ups: the gate's rows, then those of up */
    EXPERTS_PAIRED,  /* the same, but rows of gate and up take turns */
    EXPERTS_COLUMNS  /* as EXPERTS_PAIRED, and each matrix of all tensors is transposed */
};

/* What the decoder needs to know; a model family fills this in and adds no code. */
struct model_config {
    char architecture[64];
    uint32_t n_ranks, rank; /* model_share.h; n_ranks 0: the model is not shared */
    enum ranks_share ranks_share;
    uint32_t n_vocab, dim, n_layers, n_heads;
    /* Of layers without a window, which are the ones that evict and select. */
    uint32_t n_kv_heads, head_dim;
    struct kv_shape windowed; /* of those with one, if that is another; else zeroed */
    uint32_t n_attention;     /* layers with keys: n_layers less recurrent and sharing ones */
    uint32_t n_kv_shared;     /* the last layers, which read keys of earlier ones (shared_keys.h) */
    /* Elements of what each layer gets of a token beside the residual stream (layer_inputs.h), and
     * the tokens of its table; 0: nothing. */
    uint32_t layer_inputs, n_input_vocab;
    struct recurrent_shape recurrent;
    /* In the checkpoint the products q, k, v and z of recurrent layers lie by k head, or b and a do
     * (weight_find.h). */
    bool recurrent_by_group, gates_by_group;
    bool conv_bias;             /* the convolution has biases */
    bool has_rates;             /* the checkpoint has rates, not logarithms (recurrent.h) */
    bool output_gate;           /* attention's output is multiplied with sigmoid(gate(x)) */
    struct layer_shape *layers; /* [n_layers], owned */
    uint32_t max_position;      /* trained context, tokens */
    uint32_t window;   /* tokens that some layers see at most; 0: all layers see everything */
    uint32_t *windows; /* [n_layers], owned: as in struct step; NULL where there is none */
    float norm_eps, attn_scale, rope_scale, embed_scale;
    double eps_scale;  /* of eps of norms that read the residual stream; 0: 1 */
    float mixer_eps;   /* of the norm behind a recurrent layer: as config.json says */
    float logit_scale; /* the last norm's weights are multiplied with it; 0: they are not */
    float attn_softcap, logit_softcap; /* 0: none */
    float query_beta; /* as in rope_append_args; 0: queries are not scaled by their position */
    uint32_t query_period;
    enum gate_kind gate;              /* of FFN_GATED, and of experts: */
    float gate_most, gate_slope;      /* as in struct expert_gate */
    struct routing routing;           /* of experts */
    enum expert_layout expert_layout; /* set once the files are open */
    bool experts_in_columns;          /* plain fused experts are EXPERTS_COLUMNS */
    uint32_t n_guess_layers; /* behind the last layer, in the checkpoint: they guess tokens */
    bool has_shared_gate, has_router_bias, has_choice_bias; /* as in struct route_args */
    enum act_kind act;                                      /* of FFN_PLAIN */
    enum model_positions positions;
    uint32_t first_position; /* of learned positions: the table's row of position 0 */
    enum softmax_kind softmax;
    bool tied_head; /* as config.json says; once the model is loaded, as its checkpoint has it */
    enum head_source head_source; /* set once it is loaded */
    enum element element;         /* of plain weights, as config.json says */
    struct quantisation quantisation;
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm; /* the heads of q and k are normed, each by itself, before they are rotated */
    bool whole_qk_norm;  /* or all heads of q are normed as one vector, and all of k */
    bool v_norm;         /* the heads of v are normed, by weights of 1 */
    bool k_is_v;         /* in layers without a window (layer_shape) */
    bool layer_scales;   /* what a layer has made of the residual stream is scaled */
    bool no_pre_norms;   /* attention and feed-forward read the residual stream as it is */
    bool post_norms;     /* what attention and feed-forward give to the residual stream is normed */
    bool own_ffn_norms;  /* the checkpoint has pre_ and post_feedforward_layernorm */
    bool norms_from_one; /* in the checkpoint 1 is subtracted from the norms' weights */
    bool layer_norm, norm_bias;        /* LayerNorm instead of RMSNorm; norms have a bias */
    bool parallel;                     /* attention and feed-forward read the same x */
    bool shared_norm;                  /* and the same norm of it */
    bool fused_qkv, fused_gate_up;     /* in the checkpoint they are one tensor */
    bool fused_shared;                 /* and gate and up of the shared expert are */
    bool qkv_by_group;                 /* with fused_qkv: its rows lie by KV head (weight_find.h) */
    const struct family_name *tensors; /* the checkpoint's names (family_names.h) */
    bool is_text_half;                 /* of a model that reads images, too (text_half.h) */
    const struct tensor_prefix *prefix; /* of a text half, once its files are open; else NULL */
    bool paired_rotary;                 /* in the checkpoint q and k rotate by neighbours:
                                      rotary_order.h */
    uint32_t n_freqs;                   /* rotary pairs, head_dim / 2 when the whole head rotates */
    uint32_t n_local_freqs;             /* those of local_freq */
    double *inv_freq;                   /* [n_freqs], owned by the model; scaling already applied */
    float *slopes;                      /* [n_heads], owned: of POSITIONS_ALIBI; else NULL */
    double *local_freq; /* of layers whose shape has is_local, unscaled; NULL: there are none */
    uint32_t bos;
    bool has_bos;
    uint32_t eos[MODEL_MAX_EOS];
    uint32_t n_eos; /* of config.json, generation_config.json and the tokenizer */
};

struct layer_weights {
    struct weight attn_norm, attn_norm_bias, ffn_norm_bias, q, k, v, o, q_bias, k_bias, v_bias,
        o_bias, q_norm, k_norm;
    struct weight sinks; /* of SOFTMAX_SINKS */
    struct weight output_gate;
    /* Of a recurrent layer, beside q, k, v and o; members as in struct recurrent_args.  Of Mamba-2
     * q, k and v are x, B and C; their biases are the convolution's. */
    struct weight z, b, a, conv, rates, dt_bias, skip, mixer_norm;
    struct weight scale; /* of layer_scales: one f32, in the host's memory */
    struct weight input_gate, input_projection, input_post_norm; /* layer_inputs.h */
    struct weight attn_post_norm, ffn_post_norm;
    struct weight ffn_norm, gate, up, down, gate_bias, up_bias, down_bias; /* stacks of experts */
    struct weight router, router_bias, choice_bias;
    /* Of FFN_BOTH.  The router reads a norm of its own; factors as in struct route_args. */
    struct weight dense_gate, dense_up, dense_down, dense_post_norm;
    struct weight router_norm, factors, experts_norm, experts_post_norm;
    struct weight shared_gate, shared_up, shared_down, shared_expert_gate;
};

struct model {
    struct model_config config; /* of what this rank has */
    /* Of the whole model: &config, unless ranks share it.  Then its arrays are config's, too, but
     * for those that model_share_make() gives to config. */
    struct model_config *whole;
    struct weight positions, final_norm_bias;
    struct weight input_embedding, input_projection, input_norm; /* layer_inputs.h */
    /* head aliases embedding when tied and not shared.  A rank's head is a part of the vocabulary,
     * from token head_first on. */
    struct weight embedding, final_norm, head;
    uint32_t head_first;
    struct layer_weights *layers; /* [n_layers] */
    size_t weight_bytes;          /* that the backend has: once it is loaded, tally.bytes */
    struct weight_tally tally;
    struct offloaded_layers offload; /* of tally.bytes, what lies in the machine's memory, and */
    bool *is_offloaded;              /* [n_layers]: whether a layer's experts do */
    struct weight_source *files;     /* mapped; NULL: weights are random */
    struct random_weights *random;
    struct reordered *reordered; /* weights that a backend aliases and no file has in this form */
};

/* Where weights come from, and what to call meanwhile.  All zero: the directory's files, no
 * calls. */
struct model_source {
    bool random;                               /* only config.json is read (random_weights.h) */
    const struct weight_format *random_format; /* of matrices that are random; NULL: bf16 */
    /* Where activations are f32, a weight that the device cannot get as it is keeps its values
     * exactly; false: it becomes elements as config.json says. */
    bool unpacks_exactly;
    uint32_t context;       /* as in model_config_load() */
    uint32_t n_ranks, rank; /* what is loaded is this rank's; n_ranks 0: all of the model */
    enum ranks_share ranks_share;
    uint64_t
        offload_bytes; /* experts of at least so many bytes are offloaded (offloaded_layers.h) */
    /* Called with check_ctx once all sizes are known, if offload_bytes is EXPERT_OFFLOAD_AUTO.
     * Returns what it is to be.  NULL: 0.  layer_bytes: of the experts of the largest layer. */
    uint64_t (*choose_offload)(const void *check_ctx, const struct model *model,
                               uint64_t layer_bytes);
    /* Called once all sizes are known, before the first weight is made; ERR_* ends the loading.
     * Gets the whole model's configuration, and the bytes of weights that are in no file: random,
     * converted and repacked ones; and of offloaded ones.  May be NULL. */
    int (*check)(const void *check_ctx, const struct model_config *model, uint64_t bytes,
                 uint64_t offloaded_bytes, struct error *err);
    const void *check_ctx;
    /* Gets the bytes that the backend has, and all; called at the start and after each weight.
     * Returns true, or false to end the loading with ERR_STOPPED. */
    bool (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

/* Returns the frequencies by which a layer rotates q and k, how many there are, and what cosines
 * and sines are multiplied with. */
const double *model_freqs(const struct model_config *config, uint32_t layer);
uint32_t model_n_freqs(const struct model_config *config, uint32_t layer);
float model_rope_scale(const struct model_config *config, uint32_t layer);
/* Returns the pool of the model's pages, without memory.  Its heads are those of layers without a
 * window; all pages have the size of the largest. */
struct kv_pool model_pages(const struct model_config *config, enum page_format format,
                           bool tracked);
/* Returns the elements of a row's queries, and of its queries, keys and values, in the layers that
 * have most of them. */
uint32_t model_q_width(const struct model_config *config);
uint32_t model_qkv_width(const struct model_config *config);
/* Returns the elements of a row's queries, and of its keys: the mean of the model's layers. */
struct mean_widths {
    double q, k;
};
struct mean_widths model_mean_widths(const struct model_config *config);
/* Returns why no prompt may go through the layers one after the other (layer_slice.h), which sparse
 * prompts do, as a clause; NULL: they may. */
const char *model_without_slices(const struct model_config *config);
/* Returns the layer that attends with this number (layer_shape.number).  It must be less than
 * n_attention; of layers that share keys it is the one that writes them. */
uint32_t model_attending_layer(const struct model_config *config, uint32_t number);
/* Returns how many layers a row goes through until its keys are in the pages of all layers, and it
 * has changed all states. */
uint32_t model_n_writing(const struct model_config *config);
/* Tells whether recurrent layers lie behind the last layer that attends. */
bool model_ends_recurrent(const struct model_config *config);
/* Returns true if some layer sees everything. */
bool model_has_full_attention(const struct model_config *config);
/* Returns true if a text ends with the token. */
bool model_ends_with(const struct model_config *config, uint32_t token);
/* Makes texts end with the token, too.  A token beyond the vocabulary changes nothing.
 * ERR_UNSUPPORTED: there are too many. */
int model_add_end(struct model_config *config, uint32_t token, struct error *err);

/* Reads only config.json and generation_config.json: enough to answer questions about a model.
 * `context` is the longest text that it will be asked for; 0: the model's own, max_position.  It
 * chooses rotary scaling that depends on the length (rope_config.h). */
int model_config_load(struct model_config *out, const char *dir, uint32_t context,
                      struct error *err);
void model_config_fini(struct model_config *config);

/* Loads the model in dir to the backend; source may be NULL. */
int model_load(struct model **out, const char *dir, const struct model_source *source,
               struct backend *be, struct error *err);
/* Does the same without loading the weights: it checks them, and fills in the tally.  What
 * model_load() would refuse is refused, but for values that are NaN or infinite.  No decoder can be
 * made from it. */
int model_measure(struct model **out, const char *dir, const struct model_source *source,
                  struct backend *be, struct error *err);
/* Returns ERR_IO once weights are no longer in their files: what was computed since may be
 * wrong. */
int model_check(const struct model *model, struct error *err);
void model_destroy(struct model *model, struct backend *be); /* NULL is allowed */

#endif
