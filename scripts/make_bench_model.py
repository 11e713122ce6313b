#!/usr/bin/env python3
"""Writes a Llama checkpoint with random bf16 weights, for benchmarks of a model larger than the
caches.

    scripts/make_bench_model.py DIR [--dim 2048 --layers 16 --heads 32 --kv-heads 8 --ffn 5632]

The tokenizer is the default model's, so that every server and converter can read the directory.
Needs numpy.  The sizes above give 0.71 billion parameters, 1.4 GB.
"""
import argparse
import json
import pathlib
import shutil

import numpy as np

DEFAULT_MODEL = pathlib.Path(__file__).resolve().parent.parent / "models" / "quire-22m"


def shapes(a, vocab):
    """Name and shape of every tensor, in file order."""
    head_dim = a.dim // a.heads
    yield "model.embed_tokens.weight", (vocab, a.dim)
    for i in range(a.layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (a.dim,)
        yield p + "self_attn.q_proj.weight", (a.heads * head_dim, a.dim)
        yield p + "self_attn.k_proj.weight", (a.kv_heads * head_dim, a.dim)
        yield p + "self_attn.v_proj.weight", (a.kv_heads * head_dim, a.dim)
        yield p + "self_attn.o_proj.weight", (a.dim, a.heads * head_dim)
        yield p + "post_attention_layernorm.weight", (a.dim,)
        yield p + "mlp.gate_proj.weight", (a.ffn, a.dim)
        yield p + "mlp.up_proj.weight", (a.ffn, a.dim)
        yield p + "mlp.down_proj.weight", (a.dim, a.ffn)
    yield "model.norm.weight", (a.dim,)


def random_bf16(rng, shape):
    values = (np.ones(shape, np.float32) if len(shape) == 1 else
              rng.standard_normal(shape, np.float32) * 0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_weights(path, a, vocab):
    header, offset = {}, 0
    for name, shape in shapes(a, vocab):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    rng = np.random.default_rng(0)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes(a, vocab):
            random_bf16(rng, shape).tofile(f)
    return offset


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    for name, default in (("dim", 2048), ("layers", 16), ("heads", 32), ("kv-heads", 8),
                          ("ffn", 5632)):
        parser.add_argument("--" + name, type=int, default=default)
    a = parser.parse_args()
    a.dir.mkdir(parents=True, exist_ok=True)
    config = json.loads((DEFAULT_MODEL / "config.json").read_text())
    config.update(hidden_size=a.dim, num_hidden_layers=a.layers, num_attention_heads=a.heads,
                  head_dim=a.dim // a.heads,
                  num_key_value_heads=a.kv_heads, intermediate_size=a.ffn)
    (a.dir / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json",
                 "special_tokens_map.json"):
        shutil.copy(DEFAULT_MODEL / name, a.dir / name)
    n_bytes = write_weights(a.dir / "model.safetensors", a, config["vocab_size"])
    print(f"{a.dir}: {n_bytes / 1e6:.0f} MB of weights")


if __name__ == "__main__":
    main()
