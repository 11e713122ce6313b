#!/usr/bin/env python3
"""Makes the tiny random Llama models of tests/model/data, with goldens by transformers.

    scripts/make_tiny_models.py [DIRECTORY]      default: tests/model/data beside this script

Each model is one small corner of what config.json can say: heads shared or not, head sizes, rotary
scalings in both spellings, tied or untied, biases, dtypes, one file or shards.  goldens.json holds,
per prompt, the logits after chosen positions and 32 greedy tokens, computed in float64 from the
stored weights.  A seed whose greedy choice is ever a near tie is passed over: a tie would test
rounding.

Needs torch and transformers 5.  The output is the same for the same versions of both."""

import json
import pathlib
import shutil
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

N_GREEDY = 32
# Either side of the 64-token pages, and the last row of every prompt.
PROMPTS = {5: [0, 1, 2, 3, 4], 70: [63, 64, 69], 150: [0, 63, 64, 127, 128, 149]}
MIN_MARGIN = 5e-3  # of the largest logit

LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
# An original context of 64 puts frequencies into all three bands.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 50000.0}

# name: (config, dtype, largest shard, spelling of the rotary settings by transformers 4 or 5)
MODELS = {
    "mha-f32": (dict(hidden_size=40, num_attention_heads=5, num_key_value_heads=5, head_dim=8),
                "float32", None, 5),
    "gqa-bf16-llama3-tied": (dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                                  head_dim=64, rope_parameters=LLAMA3,
                                  tie_word_embeddings=True),
                             "bfloat16", None, 4),
    "mqa-f16-linear-bias": (dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                                 head_dim=16, rope_parameters=LINEAR, attention_bias=True,
                                 mlp_bias=True),
                            "float16", None, 4),
    "gqa-bf16-head128": (dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
                              head_dim=128, rope_parameters=LLAMA3), "bfloat16", None, 5),
    "gqa-f32-sharded": (dict(hidden_size=36, num_attention_heads=6, num_key_value_heads=2,
                             head_dim=6, rope_parameters=LINEAR, attention_bias=True,
                             tie_word_embeddings=True), "float32", "40KB", 5),
}


def randomize(model, seed):
    """Weights large enough that attention, norms and biases all change the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "norm" in name:
            noise = 1 + 0.3 * noise
        elif p.dim() == 1:
            noise = 0.3 * noise
        elif "embed" not in name:
            noise = noise * 1.5 / p.shape[1] ** 0.5
        p.data = noise.to(p.dtype)


def run_prompt(model, length, positions, seed):
    """The goldens of one prompt, and the smallest greedy margin relative to the largest logit."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist()
    sequence, greedy, margin = list(tokens), [], float("inf")
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
        rows = logits[positions].tolist()
        for _ in range(N_GREEDY):
            last = model(torch.tensor([sequence])).logits[0, -1]
            best = torch.topk(last, 2).values
            margin = min(margin, float((best[0] - best[1]) / last.abs().max()))
            greedy.append(int(last.argmax()))
            sequence.append(greedy[-1])
    return {"tokens": tokens, "positions": positions, "greedy": greedy,
            "logits": [[float(f"{x:.7g}") for x in row] for row in rows]}, margin


def make_goldens(path, seed):
    # Loaded anew: casting the model that was saved would leave its rotary frequencies rounded to
    # its dtype.
    reference = LlamaForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
    prompts, margin = [], float("inf")
    for length, positions in PROMPTS.items():
        prompt, m = run_prompt(reference, length, positions, seed * 1000 + length)
        prompts.append(prompt)
        margin = min(margin, m)
    return {"prompts": prompts}, margin


def respell(path):
    """Rewrites config.json as transformers 4 did."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make_model(out, changes, dtype, shard_size, spelling):
    config = LlamaConfig(**{**dict(vocab_size=131, intermediate_size=52, num_hidden_layers=2,
                                   max_position_embeddings=512, bos_token_id=1, eos_token_id=2),
                            **changes})
    for seed in range(1, 200):
        model = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
        randomize(model, seed)
        shutil.rmtree(out, ignore_errors=True)
        model.save_pretrained(out, **({"max_shard_size": shard_size} if shard_size else {}))
        goldens, margin = make_goldens(out, seed)
        if margin >= MIN_MARGIN:
            break
    else:
        sys.exit(f"{out.name}: no seed without near ties")
    if spelling == 4:
        respell(out / "config.json")
    (out / "goldens.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{out.name}: seed {seed}, margin {margin:.4f}, {size} bytes, "
          f"{len(list(out.iterdir()))} files")


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "model" / "data"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(2)
    for name, arguments in MODELS.items():
        make_model(root / name, *arguments)


if __name__ == "__main__":
    main()
