"""Writes a random one-layer Llama checkpoint with the default model's tokenizer, without any
library."""
import json
import random
import shutil
import struct

from server import MODEL

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8192,
    "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "hidden_act": "silu",
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "rope_scaling": None, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
    "torch_dtype": "bfloat16", "bos_token_id": 8183, "eos_token_id": 8186, "pad_token_id": 8187,
}
TOKENIZER_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json",
                   "special_tokens_map.json")


def tensor_shapes(config):
    hidden, inter, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (inter, hidden), "mlp.up_proj": (inter, hidden),
            "mlp.down_proj": (hidden, inter)}.items()}
    return shapes


def write_checkpoint(directory, config, deviation, nan_token=None):
    """deviation(name, shape): the standard deviation of a matrix's weights."""
    rng = random.Random(20)
    # A few hundred distinct values are random enough, and drawing indices by the byte is fast.
    values = [rng.gauss(0, 1) for _ in range(256)]
    one = struct.pack("<f", 1.0)[2:]
    header, blobs, offset = {}, [], 0
    for name, shape in tensor_shapes(config).items():
        size = 1
        for extent in shape:
            size *= extent
        if len(shape) == 1:
            blob = one * size
        else:
            scale = deviation(name, shape)
            table = [struct.pack("<f", scale * value)[2:] for value in values]
            blob = b"".join([table[i] for i in rng.randbytes(size)])
        if nan_token is not None and name == "model.embed_tokens.weight":
            row = 2 * shape[1]
            at = nan_token * row
            blob = blob[:at] + b"\xc0\x7f" * shape[1] + blob[at + row:]
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(blobs)
    )
    (directory / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER_FILES:
        shutil.copy(MODEL / name, directory / name)
    return directory


def write_tiny_model(directory, nan_token=None):
    """nan_token: the embedding of this token is not a number, but its row of the head is."""
    config = {**CONFIG, "tie_word_embeddings": nan_token is None}
    return write_checkpoint(directory, config, lambda name, shape: 0.08, nan_token)
