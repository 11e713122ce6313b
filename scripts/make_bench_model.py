#!/usr/bin/env python3
"""Writes a Llama checkpoint with random bf16 weights, for benchmarks of a model larger than the
caches.

    scripts/make_bench_model.py DIR [--dim 2048 --layers 16 --heads 32 --kv-heads 8 --ffn 5632]
    scripts/make_bench_model.py DIR --shape 8b --config-only

--shape 8b is the shape of Llama-3-8B with room for 128K tokens.  --config-only writes no weights:
`quire bench DIR --load-format dummy` makes its own.  The tokenizer is the default model's, so that
every server and converter can read the directory.  Weights need numpy.  The sizes above give 0.71
billion parameters, 1.4 GB.
"""
import argparse
import json
import math
import pathlib
import shutil

SHAPES = {
    "0.7b": dict(dim=2048, layers=16, heads=32, kv_heads=8, ffn=5632, vocab=8192, context=32768,
                 tied=True),
    "8b": dict(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=128256,
               context=131072 + 1024, tied=False),
}
DEFAULT_MODEL = pathlib.Path(__file__).resolve().parent.parent / "models" / "quire-22m"


def shapes(a):
    """Name and shape of every tensor, in file order."""
    head_dim = a.dim // a.heads
    yield "model.embed_tokens.weight", (a.vocab, a.dim)
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
    if not a.tied:
        yield "lm_head.weight", (a.vocab, a.dim)


def random_bf16(np, rng, shape):
    values = (np.ones(shape, np.float32) if len(shape) == 1 else
              rng.standard_normal(shape, np.float32) * 0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_weights(path, a):
    import numpy as np
    header, offset = {}, 0
    for name, shape in shapes(a):
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    rng = np.random.default_rng(0)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes(a):
            random_bf16(np, rng, shape).tofile(f)


def write_config(a):
    config = json.loads((DEFAULT_MODEL / "config.json").read_text())
    config.update(hidden_size=a.dim, num_hidden_layers=a.layers, num_attention_heads=a.heads,
                  head_dim=a.dim // a.heads, num_key_value_heads=a.kv_heads,
                  intermediate_size=a.ffn, vocab_size=a.vocab, max_position_embeddings=a.context,
                  tie_word_embeddings=a.tied)
    (a.dir / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json",
                 "special_tokens_map.json"):
        shutil.copyfile(DEFAULT_MODEL / name, a.dir / name)


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="0.7b")
    parser.add_argument("--config-only", action="store_true")
    for name in ("dim", "layers", "heads", "kv-heads", "ffn", "vocab", "context"):
        parser.add_argument("--" + name, type=int, help="in place of the shape's")
    a = parser.parse_args()
    for name, value in SHAPES[a.shape].items():
        if getattr(a, name, None) is None:
            setattr(a, name, value)
    return a


def main():
    a = read_arguments()
    a.dir.mkdir(parents=True, exist_ok=True)
    write_config(a)
    if not a.config_only:
        write_weights(a.dir / "model.safetensors", a)
    n_bytes = 2 * sum(math.prod(shape) for _, shape in shapes(a))
    unwritten = " (not written)" if a.config_only else ""
    print(f"{a.dir}: {n_bytes / 1e6:.0f} MB of weights{unwritten}")


if __name__ == "__main__":
    main()
