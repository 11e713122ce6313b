#!/usr/bin/env python3
"""How fast each family is, beside what its bytes and products take: finds families that run by a slow kernel.

    scripts/load/family_speeds.py [--binary build/quire] [--device cuda] [--only gemma] [--least 0.25]

Each model has the shape of a published one, with few layers, a small vocabulary and random weights.  `quire bench` times
one sequence and several behind 2,048 tokens.  A line for each, and the exit status is 1 if a rate is less than --least of
its bound: a family has no kernel of its own there, or a bad one.  What one sequence reaches of its bound is less for
small layers, because launches take as long as bytes."""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA, MODEL = ROOT / "tests/model/data", ROOT / "models/quire-31m"
VOCAB, CONTEXT = 8192, 8192
WINDOWED = ["sliding_attention"] * 3 + ["full_attention"]
FULL = ["full_attention"] * 4


def usual(dim, ffn, heads, kv_heads, head_dim, layers=4, **rest):
    return {"hidden_size": dim, "intermediate_size": ffn, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head_dim, "num_hidden_layers": layers, **rest}


def windowed(window, *shape, **rest):
    return {**usual(*shape, **rest), "sliding_window": window, "layer_types": WINDOWED}


# Published model: the checkpoint in tests/model/data whose configuration is taken, and what is another there.
SHAPES = {
    "llama-3-8b": ("gqa-bf16-head128", usual(4096, 14336, 32, 8, 128)),
    "qwen2.5-7b": ("qwen2-gqa-bf16-head64-tied", usual(3584, 18944, 28, 4, 128, layer_types=FULL)),
    "qwen3-4b": ("qwen3-gqa-bf16-head128-tied", usual(2560, 9728, 32, 8, 128, layer_types=FULL)),
    "smollm3-3b": ("smollm3-gqa-bf16-head32", usual(2048, 11008, 16, 4, 128, no_rope_layers=[1, 1, 1, 0])),
    "gemma-2-9b": ("gemma2-mha-bf16-head256", windowed(4096, 3584, 14336, 16, 8, 256)),
    "gemma-3-12b": ("gemma3-gqa-bf16-head64", windowed(1024, 3840, 15360, 16, 8, 256)),
    "gemma-4-31b": ("gemma4-mqa-f16-head256-512", {
        **windowed(1024, 5376, 21504, 32, 16, 256),
        "per_layer_config": {"3": {"head_dim": 512, "num_key_value_heads": 4}}}),
    "phi-3-mini": ("phi3-mha-bf16-head96", usual(3072, 8192, 32, 32, 96)),
    "mistral-7b": ("mistral-gqa-bf16-head128-window", usual(4096, 14336, 32, 8, 128, sliding_window=4096)),
    "ministral-3-8b": ("ministral3-gqa-bf16-head32", usual(4096, 14336, 32, 8, 128)),
    "glm-4-9b": ("glm4-gqa-bf16-head128", usual(4096, 13696, 32, 2, 128)),
    "command-r7b": ("cohere2-gqa-f16-head32-window", windowed(4096, 4096, 14336, 32, 8, 128)),
    "olmo-2-7b": ("olmo2-gqa-bf16-head16", usual(4096, 11008, 32, 32, 128)),
    "granite-3-8b": ("granite-gqa-bf16-head16", usual(4096, 12800, 32, 8, 128)),
    "exaone-4-32b": ("exaone4-gqa-bf16-head16-window", windowed(4096, 5120, 27392, 40, 8, 128)),
    "seed-oss-36b": ("seed_oss-gqa-bf16-head32", usual(5120, 27648, 80, 8, 128)),
    "falcon-7b": ("falcon-mqa-bf16-head16", {"hidden_size": 4544, "ffn_hidden_size": 18176,
                                             "num_attention_heads": 71, "num_kv_heads": 71,
                                             "num_hidden_layers": 4}),
    "gpt-neox-20b": ("neox-mha-bf16-head32", {"hidden_size": 6144, "intermediate_size": 24576,
                                              "num_attention_heads": 64, "num_hidden_layers": 4}),
    "mpt-7b": ("mpt-mha-bf16-head16", {"d_model": 4096, "n_heads": 32, "n_layers": 4, "max_seq_len": CONTEXT}),
    "lfm2-2.6b": ("lfm2-gqa-bf16-head16", {
        **usual(2048, 10752, 32, 8, 64, layers=6), "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "conv", "full_attention"] * 2}),
    "mixtral-8x7b": ("mixtral-gqa-bf16-head32-window", usual(4096, 14336, 32, 8, 128)),
    "glm-4.5-air": ("glm4moe-gqa-bf16-head64-groups", {
        **usual(4096, 10944, 96, 8, 128), "moe_intermediate_size": 1408, "n_routed_experts": 128,
        "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}),
    "qwen3-next-80b": ("qwen3next-gqa-bf16-head32", {
        **usual(2048, 5120, 16, 2, 256), "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"]}),
}


def write_model(directory, checkpoint, shape):
    config = json.loads((DATA / checkpoint / "config.json").read_text())
    config.update({"max_position_embeddings": CONTEXT, **shape, "vocab_size": VOCAB})
    for name in MODEL.glob("*token*.json"):
        shutil.copy(name, directory)
    (directory / "config.json").write_text(json.dumps(config))


def measure(args, name, directory):
    write_model(directory, *SHAPES[name])
    done = subprocess.run([args.binary, "bench", directory, "--device", args.device, "--load-format", "dummy",
                           "--prompts", str(args.prompt), "--batches", args.batches, "--generate", "24", "--runs", "1",
                           "--max-model-len", str(CONTEXT // 2), "--max-resident", "0"],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{name}: {done.stderr.strip().splitlines()[-1]}", None
    rows = [line.split(",") for line in done.stdout.splitlines() if line.startswith(("prefill,", "decode,"))]
    shares = [(row[0], int(row[2]), float(row[3]), float(row[-1])) for row in rows]
    told = "; ".join(f"{phase} {n}: {rate:,.0f}/s ({share:.2f})" for phase, n, rate, share in shares)
    return f"{name}: {told}", min(share for *_, share in shares)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "build/quire")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--least", type=float, default=0.25)
    args = parser.parse_args()
    slow = []
    for name in (name for name in SHAPES if args.only in name):
        with tempfile.TemporaryDirectory() as directory:
            told, least = measure(args, name, pathlib.Path(directory))
        is_slow = least is None or least < args.least
        print(f"{told}{'  SLOW' if is_slow else ''}", flush=True)
        slow += [name] * is_slow
    if slow:
        sys.exit(f"slower than {args.least} of the bound, or not at all: {', '.join(slow)}")


if __name__ == "__main__":
    main()
