"""What families of models call by other names than Llama, for oracle_model.py: keys of config.json,
and the parts of tensors' names, of which the first that fits a part counts."""
import re

KEYS = {
    "GPTNeoX": {"layer_norm_eps": "rms_norm_eps", "rotary_pct": "partial_rotary_factor",
                "rotary_emb_base": "rope_theta"},
    "OPT": {"activation_function": "hidden_act"},
    "NemotronH": {"layer_norm_epsilon": "rms_norm_eps", "mlp_hidden_act": "hidden_act",
                  "mamba_num_heads": "mamba_n_heads", "mamba_head_dim": "mamba_d_head",
                  "ssm_state_size": "mamba_d_state", "n_groups": "mamba_n_groups",
                  "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias"},
    "Falcon": {"layer_norm_epsilon": "rms_norm_eps", "activation": "hidden_act"},
    "Mpt": {"d_model": "hidden_size", "n_layers": "num_hidden_layers",
            "n_heads": "num_attention_heads", "max_seq_len": "max_position_embeddings",
            "layer_norm_epsilon": "rms_norm_eps"},
    "ChatGLMModel": {"num_layers": "num_hidden_layers", "kv_channels": "head_dim",
                     "multi_query_group_num": "num_key_value_heads",
                     "seq_length": "max_position_embeddings", "layernorm_epsilon": "rms_norm_eps"},
}

TENSORS = {
    "Qwen2Moe": [("shared_expert.", "shared_experts.")],
    "Mixtral": [("block_sparse_moe", "mlp"), ("w1", "gate_proj"), ("w2", "down_proj"),
                ("w3", "up_proj")],
    "GptOss": [("router", "gate")],
    "GraniteMoeHybrid": [("shared_mlp.input_linear", "mlp.gate_up_proj"),
                         ("shared_mlp.output_linear", "mlp.down_proj")],
    "GPTNeoX": [("gpt_neox.embed_in", "model.embed_tokens"), ("embed_out", "lm_head"),
                ("gpt_neox.final_layer_norm", "model.norm"), ("gpt_neox.layers", "model.layers"),
                ("attention.query_key_value", "self_attn.qkv_proj"),
                ("attention.dense", "self_attn.o_proj"), ("dense_h_to_4h", "up_proj"),
                ("dense_4h_to_h", "down_proj")],
    "OPT": [("model.decoder.final_layer_norm", "model.norm"), ("model.decoder", "model"),
            ("self_attn_layer_norm", "input_layernorm"), ("out_proj", "o_proj"),
            ("final_layer_norm", "post_attention_layernorm"), ("fc1", "mlp.up_proj"),
            ("fc2", "mlp.down_proj")],
    "Falcon": [("transformer.word_embeddings", "model.embed_tokens"),
               ("transformer.ln_f", "model.norm"), ("transformer.h", "model.layers"),
               ("ln_attn", "input_layernorm"), ("ln_mlp", "post_attention_layernorm"),
               ("self_attention.query_key_value", "self_attn.qkv_proj"),
               ("self_attention.dense", "self_attn.o_proj"), ("dense_h_to_4h", "up_proj"),
               ("dense_4h_to_h", "down_proj")],
    "Mpt": [("transformer.wte", "model.embed_tokens"), ("transformer.norm_f", "model.norm"),
            ("transformer.blocks", "model.layers"), ("norm_1", "input_layernorm"),
            ("norm_2", "post_attention_layernorm"), ("attn.Wqkv", "self_attn.qkv_proj"),
            ("attn.out_proj", "self_attn.o_proj"), ("ffn.", "mlp.")],
    "ChatGLMModel": [("transformer.embedding.word_embeddings", "model.embed_tokens"),
                     ("transformer.encoder.final_layernorm", "model.norm"),
                     ("transformer.output_layer", "lm_head"),
                     ("transformer.encoder.layers", "model.layers"),
                     ("self_attention.query_key_value", "self_attn.qkv_proj"),
                     ("self_attention.dense", "self_attn.o_proj"),
                     ("dense_h_to_4h", "gate_up_proj"), ("dense_4h_to_h", "down_proj")],
}


def nemotron_parts(config):
    """What each layer of Nemotron-H is: a letter, as in hybrid_override_pattern."""
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    return config.get("hybrid_override_pattern") or [letters[kind] for kind in
                                                     config["layers_block_type"]]


def usual_nemotron(tensors, config):
    """Nemotron-H's tensors by the names of other families, in which a part's kind is a part of its
    name."""
    parts = {"M": "mamba", "*": "self_attn", "-": "mlp", "E": "mlp"}
    out = {}
    for full, values in tensors.items():
        full = full.replace("backbone.", "model.").replace("model.embeddings", "model.embed_tokens")
        full = full.replace("model.norm_f", "model.norm")
        if ".layers." in full:
            part = nemotron_parts(config)[int(full.split(".")[2])]
            full = full.replace(".mixer.", f".{parts[part]}.")
            full = re.sub(r"(layers\.\d+)\.norm\.", r"\1.input_layernorm.", full)
        out[full] = values
    return out


def usual_config(family, config):
    """With Llama's keys beside the family's own."""
    config = {**config, **{usual: config[own] for own, usual in KEYS.get(family, {}).items()
                           if own in config}}
    if family != "NemotronH":
        return config
    kinds = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "mlp"}
    return {**config, "layer_types": [kinds[part] for part in nemotron_parts(config)],
            "position_embedding_type": "nope", "rope_theta": 10000}


def usual_tensors(family, tensors):
    named = {}
    for name, values in tensors.items():
        for own, usual in TENSORS.get(family, []):
            name = re.sub(rf"(?<![a-z_]){re.escape(own)}", usual, name)
        named[name] = values
    return named
