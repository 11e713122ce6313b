/* experts_config.h - what config.json says of mixtures of experts: which layers have one, its
 * sizes, and how its router chooses.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_EXPERTS_CONFIG_H
#define ENGINE_MODEL_EXPERTS_CONFIG_H

#include <stdbool.h>

#include "engine/device/experts.h"

struct config_reader;
struct model_config;

/* What a family has.  Of keys NULL: it has none. */
struct family_experts {
    const char *count; /* key: how many there are */
    const char *used;  /* key: how many of them a row uses; NULL: 'num_experts_per_tok' */
    const char *width; /* key: rows of an expert's up */
    /* Keys: rows of the shared expert's up, or those in widths of an expert. */
    const char *shared_width, *shared_count;
    const char *first_dense; /* key: how many layers before the first with experts */
    const char *types;       /* key: a list of 'dense' and 'sparse', which wins */
    const char *dense_width; /* key: rows of a dense layer's up, if they are not those of `width` */
    bool has_step;           /* 'decoder_sparse_step' and 'mlp_only_layers' leave layers dense */
    enum route_kind kind;
    bool normalises; /* unless 'norm_topk_prob' says otherwise, where that is read: */
    bool normalises_as_said;
    bool has_factor;                            /* 'routed_scaling_factor' */
    bool has_groups;                            /* 'n_group' and 'topk_group' */
    bool router_bias, choice_bias, shared_gate; /* as in struct route_args */
};

/* Gives the layers of c, which are dense ones of the family, their experts. */
int experts_config_read(const struct config_reader *r, const struct family_experts *family,
                        struct model_config *c);

#endif
