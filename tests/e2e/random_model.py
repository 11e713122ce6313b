"""A random Llama checkpoint with the default model's tokenizer, of a few small layers whose heads
attend to some tokens much more than to others.  Needs numpy; tiny_model.py's needs nothing."""
import sys

import numpy

from server import MODEL, ROOT

sys.path.insert(0, str(ROOT / "scripts/fixtures"))
import checkpoint  # noqa: E402

SHAPE = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16)


def random_tensors(config, seed):
    rng = numpy.random.default_rng(seed)
    dim, inter, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    def matrix(n_out, n_in):
        return rng.normal(0, 1.5 / n_in ** 0.5, (n_out, n_in))

    tensors = {"model.embed_tokens.weight": rng.normal(0, 0.5, (config["vocab_size"], dim)),
               "model.norm.weight": rng.normal(1, 0.3, dim)}
    for i in range(config["num_hidden_layers"]):
        tensors |= {f"model.layers.{i}.{name}.weight": values for name, values in {
            "input_layernorm": rng.normal(1, 0.3, dim),
            "post_attention_layernorm": rng.normal(1, 0.3, dim),
            "self_attn.q_proj": matrix(q, dim), "self_attn.k_proj": matrix(kv, dim),
            "self_attn.v_proj": matrix(kv, dim), "self_attn.o_proj": matrix(dim, q),
            "mlp.gate_proj": matrix(inter, dim), "mlp.up_proj": matrix(inter, dim),
            "mlp.down_proj": matrix(dim, inter)}.items()}
        if config.get("softmax_type") == "learnable":
            heads = config["num_attention_heads"]
            tensors[f"model.layers.{i}.self_attn.sinks"] = rng.normal(2, 3, heads)
    return tensors


def write_random_model(directory, context, seed=1, **shape):
    """context: the trained one, max_position_embeddings; shape: in place of SHAPE's sizes."""
    config = {**checkpoint.read_config(MODEL), **SHAPE, "max_position_embeddings": context,
              "rope_theta": 10000.0, **shape}
    return checkpoint.write_model(directory, config, random_tensors(config, seed), MODEL, "F32")
