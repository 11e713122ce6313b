/* family_names.c - see family_names.h. */
#include "engine/model/family_names.h"

#include <stddef.h>
#include <string.h>

const struct family_name neox_keys[] = {
    {"rms_norm_eps", "layer_norm_eps"},
    {"partial_rotary_factor", "rotary_pct"},
    {"rope_theta", "rotary_emb_base"},
    {NULL, NULL},
};

const struct family_name neox_tensors[] = {
    {"model.embed_tokens", "gpt_neox.embed_in"},
    {"model.norm", "gpt_neox.final_layer_norm"},
    {"lm_head", "embed_out"},
    {"model.layers.#.input_layernorm", "gpt_neox.layers.#.input_layernorm"},
    {"model.layers.#.post_attention_layernorm", "gpt_neox.layers.#.post_attention_layernorm"},
    {"model.layers.#.self_attn.qkv_proj", "gpt_neox.layers.#.attention.query_key_value"},
    {"model.layers.#.self_attn.o_proj", "gpt_neox.layers.#.attention.dense"},
    {"model.layers.#.mlp.up_proj", "gpt_neox.layers.#.mlp.dense_h_to_4h"},
    {"model.layers.#.mlp.down_proj", "gpt_neox.layers.#.mlp.dense_4h_to_h"},
    {NULL, NULL},
};

const char *family_own_name(const struct family_name *names, const char *usual) {
    for (; names && names->usual; names++)
        if (strcmp(names->usual, usual) == 0) return names->own;
    return usual;
}
