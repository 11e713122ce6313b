#!/usr/bin/env python3
"""Makes the tiny random models of tests/model/data, with goldens by transformers.

    scripts/make_tiny_models.py [DIRECTORY [NAME ...]]

DIRECTORY is tests/model/data beside this script unless it is given; without NAMEs all are made.

Each model is one small corner of what config.json can say: families, heads shared or not, head
sizes, rotary scalings in both spellings, tied or untied, biases, dtypes, one file or shards.
goldens.json holds, per prompt, the logits after chosen positions and greedy tokens, computed in
float64 from the stored weights.  A seed whose greedy choice is ever a near tie is passed over: a
tie would test rounding.

Rotary frequencies that depend on the length of the text are those of Model.context, from the first
token on: a server that keeps rotated keys cannot change its mind in the middle of a text.

Needs torch and transformers 5.  The output is the same for the same versions of both."""

import dataclasses
import json
import pathlib
import shutil
import sys

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# Either side of the 64-token pages, and the last row of every prompt.
PROMPTS = {5: [0, 1, 2, 3, 4], 70: [63, 64, 69], 150: [0, 63, 64, 127, 128, 149]}

LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
# An original context of 64 puts frequencies into all three bands.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 50000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "rope_theta": 50000.0}


@dataclasses.dataclass
class Model:
    changes: dict                  # to the settings that all of them share
    dtype: str
    family: str = "Llama"
    shard_size: str | None = None  # of the largest
    spelling: int = 5              # of the rotary settings, by transformers 4 or 5
    context: int | None = None     # that it is loaded for
    n_greedy: int = 64
    min_margin: float = 1e-3       # between the two best tokens, of the largest logit
    attention: str = "sdpa"        # by transformers; only its "eager" one has soft caps


def heads(n, n_kv, dim, hidden, **others):
    return dict(num_attention_heads=n, num_key_value_heads=n_kv, head_dim=dim, hidden_size=hidden,
                **others)


def longrope(n_pairs, original):
    return {"rope_type": "longrope", "rope_theta": 10000.0,
            "original_max_position_embeddings": original,
            "short_factor": [1 + 0.05 * i for i in range(n_pairs)],
            "long_factor": [1 + 0.5 * i for i in range(n_pairs)]}


def theta(base):
    return {"rope_type": "default", "rope_theta": base}


LLAMA = dict(n_greedy=32, min_margin=5e-3)
GLM = dict(family="Glm", min_margin=5e-4)
GLM4 = dict(family="Glm4", min_margin=5e-4)
GEMMA2 = dict(family="Gemma2", min_margin=5e-4, attention="eager")
GEMMA3 = dict(family="Gemma3", min_margin=5e-4)


def glm_heads(n, n_kv, dim, **others):
    return heads(n, n_kv, dim, 16, intermediate_size=24, pad_token_id=0, **others)


def gemma_heads(n, n_kv, dim, **others):
    return heads(n, n_kv, dim, 16, intermediate_size=24, pad_token_id=0, sliding_window=50,
                 query_pre_attn_scalar=24, **others)


def gemma2_heads(n, n_kv, dim, attention_cap, logit_cap, **others):
    """Only the layer in the middle sees everything, as transformers has it for every other one."""
    return gemma_heads(n, n_kv, dim, num_hidden_layers=3, attn_logit_softcapping=attention_cap,
                       final_logit_softcapping=logit_cap, **others)


def gemma3_heads(n, n_kv, dim, **others):
    return gemma_heads(n, n_kv, dim, layer_types=["full_attention", "sliding_attention"], **others)


MODELS = {
    "mha-f32": Model(heads(5, 5, 8, 40), "float32", **LLAMA),
    "gqa-bf16-llama3-tied": Model(
        heads(4, 2, 64, 32, rope_parameters=LLAMA3, tie_word_embeddings=True), "bfloat16",
        spelling=4, **LLAMA),
    "mqa-f16-linear-bias": Model(
        heads(3, 1, 16, 48, rope_parameters=LINEAR, attention_bias=True, mlp_bias=True), "float16",
        spelling=4, **LLAMA),
    "gqa-bf16-head128": Model(heads(2, 1, 128, 32, rope_parameters=LLAMA3), "bfloat16", **LLAMA),
    "gqa-f32-sharded": Model(
        heads(6, 2, 6, 36, rope_parameters=LINEAR, attention_bias=True, tie_word_embeddings=True),
        "float32", shard_size="40KB", **LLAMA),
    "mistral-gqa-bf16-head80": Model(
        heads(4, 2, 80, 32, rope_parameters=theta(1e6), sliding_window=None), "bfloat16",
        family="Mistral", spelling=4),
    "mistral-mqa-f16-head96-linear": Model(
        heads(3, 1, 96, 24, rope_parameters=LINEAR, sliding_window=None), "float16",
        family="Mistral"),
    # Windows that begin at any slot, within a page and pages before the newest token.
    "mistral-mha-bf16-window": Model(heads(2, 2, 32, 40, sliding_window=40), "bfloat16",
                                     family="Mistral"),
    "mistral-gqa-bf16-head128-window": Model(
        heads(2, 1, 128, 20, intermediate_size=24, sliding_window=101), "bfloat16",
        family="Mistral"),
    "qwen2-gqa-bf16-head64-tied": Model(
        heads(6, 2, 64, 24, rope_parameters=theta(1e6), tie_word_embeddings=True), "bfloat16",
        family="Qwen2", spelling=4),
    "qwen2-mha-f32": Model(dict(num_attention_heads=3, num_key_value_heads=3, hidden_size=48),
                           "float32", family="Qwen2"),
    # The first of the layers sees everything.
    "qwen2-gqa-bf16-head64-window": Model(
        heads(4, 1, 64, 24, intermediate_size=24, use_sliding_window=True, sliding_window=64,
              max_window_layers=1), "bfloat16", family="Qwen2", spelling=4),
    "qwen2-gqa-bf16-head128-yarn": Model(
        heads(4, 2, 128, 24, rope_parameters=YARN, max_position_embeddings=64), "bfloat16",
        family="Qwen2", spelling=4),
    "qwen3-gqa-bf16-head128-tied": Model(
        heads(4, 2, 128, 24, rope_parameters=theta(1e6), tie_word_embeddings=True), "bfloat16",
        family="Qwen3", spelling=4),
    "qwen3-mqa-f16-head80-yarn": Model(heads(3, 1, 80, 32, rope_parameters=YARN), "float16",
                                       family="Qwen3"),
    "qwen3-gqa-bf16-head64-bias": Model(heads(6, 3, 64, 24, attention_bias=True), "bfloat16",
                                        family="Qwen3"),
    "phi3-mha-bf16-head96": Model(
        dict(hidden_size=96, num_attention_heads=1, num_key_value_heads=1, intermediate_size=20,
             pad_token_id=0), "bfloat16", family="Phi3", spelling=4),
    # 48 of 64 elements turn; texts go beyond the original context of 64.
    "phi3-gqa-bf16-partial-longrope": Model(
        dict(hidden_size=128, num_attention_heads=2, num_key_value_heads=1, intermediate_size=20,
             pad_token_id=0, original_max_position_embeddings=64, partial_rotary_factor=0.75,
             rope_parameters=longrope(24, 64)), "bfloat16", family="Phi3", context=512),
    "phi3-mha-f16-head64-window": Model(
        dict(hidden_size=64, num_attention_heads=1, num_key_value_heads=1, intermediate_size=16,
             pad_token_id=0, sliding_window=17), "float16", family="Phi3"),
    "phi3-mqa-f16-longrope-short": Model(
        dict(hidden_size=96, num_attention_heads=4, num_key_value_heads=1, pad_token_id=0,
             original_max_position_embeddings=256, rope_parameters=longrope(12, 256)), "float16",
        family="Phi3", context=214),
    "glm-gqa-bf16-head64": Model(glm_heads(4, 2, 64), "bfloat16", **GLM),
    "glm-mqa-f16-head80-whole": Model(
        glm_heads(3, 1, 80, partial_rotary_factor=1.0, attention_bias=False), "float16", **GLM),
    "glm-mha-bf16-head96-linear": Model(glm_heads(2, 2, 96, rope_parameters=LINEAR), "bfloat16",
                                        **GLM),
    "glm4-gqa-bf16-head128": Model(glm_heads(2, 1, 128), "bfloat16", **GLM4),
    "glm4-mha-f16-head32-yarn": Model(glm_heads(2, 2, 32, rope_parameters=YARN), "float16", **GLM4),
    "glm4-mqa-bf16-head256": Model(glm_heads(2, 1, 256, attention_bias=False), "bfloat16", **GLM4),
    "gemma2-gqa-bf16-head64": Model(
        gemma2_heads(4, 2, 64, 4.0, 8.0, tie_word_embeddings=False), "bfloat16", spelling=4,
        **GEMMA2),
    "gemma2-mqa-f16-head128-linear": Model(
        gemma2_heads(4, 1, 128, 2.5, None, tie_word_embeddings=False, rope_parameters=LINEAR),
        "float16", **GEMMA2),
    "gemma2-mha-bf16-head256": Model(gemma2_heads(2, 2, 256, 6.0, 5.0), "bfloat16", **GEMMA2),
    "gemma3-gqa-bf16-head64": Model(gemma3_heads(4, 2, 64), "bfloat16", spelling=4, **GEMMA3),
    "gemma3-mqa-f16-head128-linear": Model(
        gemma3_heads(2, 1, 128, tie_word_embeddings=False,
                     rope_parameters={"full_attention": LINEAR,
                                      "sliding_attention": theta(5000.0)}),
        "float16", **GEMMA3),
    "gemma3-gqa-bf16-head256-linear": Model(
        gemma3_heads(2, 1, 256, rope_parameters={"full_attention": LINEAR}), "bfloat16",
        spelling=4, **GEMMA3),
    "mqa-bf16-yarn-mscale": Model(
        heads(2, 1, 64, 40, rope_parameters=dict(YARN, mscale=1.5, mscale_all_dim=0.5,
                                                 truncate=False, beta_fast=8, beta_slow=2)),
        "bfloat16"),
    # Texts go beyond the trained context of 100; the longest that is asked for has 300.
    "gqa-bf16-dynamic": Model(
        heads(4, 2, 32, 40, max_position_embeddings=100,
              rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}),
        "bfloat16", spelling=4, context=300),
    "mha-f16-longrope-short": Model(heads(2, 2, 32, 32, rope_parameters=longrope(16, 214)),
                                    "float16", context=214),
}


def randomize(model, seed):
    """Weights large enough that attention, norms and biases all change the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "norm" in name:
            noise = (0 if "Gemma" in type(model).__name__ else 1) + 0.3 * noise
        elif p.dim() == 1:
            noise = 0.3 * noise
        elif "embed" not in name:
            noise = noise * 1.5 / p.shape[1] ** 0.5
        p.data = noise.to(p.dtype)


def run_prompt(model, length, positions, n_greedy, seed):
    """The goldens of one prompt, and the smallest greedy margin relative to the largest logit."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist()
    sequence, greedy, margin = list(tokens), [], float("inf")
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
        rows = logits[positions].tolist()
        for _ in range(n_greedy):
            last = model(torch.tensor([sequence])).logits[0, -1]
            best = torch.topk(last, 2).values
            margin = min(margin, float((best[0] - best[1]) / last.abs().max()))
            greedy.append(int(last.argmax()))
            sequence.append(greedy[-1])
    return {"tokens": tokens, "positions": positions, "greedy": greedy,
            "logits": [[float(f"{x:.7g}") for x in row] for row in rows]}, margin


def pin_rope(model, context):
    """Takes the rotary frequencies of a text of `context` tokens for texts of any length."""
    rotary = model.model.rotary_emb
    frequencies, scale = ROPE_INIT_FUNCTIONS[rotary.rope_type](model.config, seq_len=context)
    rotary.inv_freq, rotary.attention_scaling, rotary.rope_type = frequencies, scale, "pinned"


def check_caps(model, prompt):
    """Ends the program if a soft cap hardly changes the logits: it would test nothing."""
    layers = [layer.self_attn for layer in model.model.layers]
    for name, owners in {"attn_logit_softcapping": layers,
                         "final_logit_softcapping": [model.config]}.items():
        cap = getattr(model.config, name, None)
        if cap is None:
            continue
        for owner in owners:
            setattr(owner, name, None)
        with torch.no_grad():
            uncapped = model(torch.tensor([prompt["tokens"]])).logits[0][prompt["positions"]]
        for owner in owners:
            setattr(owner, name, cap)
        capped = torch.tensor(prompt["logits"], dtype=torch.float64)
        change = float((uncapped - capped).abs().max() / capped.abs().max())
        if change < 0.1:
            sys.exit(f"{name} {cap} changes logits by {change:.2g} of the largest")


def make_goldens(path, spec, seed):
    # Loaded anew: casting the model that was saved would leave its rotary frequencies rounded to
    # its dtype.
    reference = model_class(spec).from_pretrained(path, dtype=torch.float64,
                                                  attn_implementation=spec.attention).eval()
    if spec.context:
        pin_rope(reference, spec.context)
    prompts, margin = [], float("inf")
    for length, positions in PROMPTS.items():
        prompt, m = run_prompt(reference, length, positions, spec.n_greedy, seed * 1000 + length)
        prompts.append(prompt)
        margin = min(margin, m)
    check_caps(reference, prompts[-1])
    goldens = {"context": spec.context} if spec.context else {}
    return {**goldens, "prompts": prompts}, margin


def respell(path):
    """Rewrites config.json as transformers 4 did."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    if "sliding_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def model_class(spec):
    return getattr(transformers, spec.family + "ForCausalLM")


def config_class(spec):
    plain = getattr(transformers, spec.family + "Config")
    return getattr(transformers, spec.family + "TextConfig", plain)


def make_model(out, spec):
    config = config_class(spec)(
        **{**dict(vocab_size=131, intermediate_size=52, num_hidden_layers=2,
                  max_position_embeddings=512, bos_token_id=1, eos_token_id=2), **spec.changes})
    for seed in range(1, 200):
        model = model_class(spec)(config).to(getattr(torch, spec.dtype)).eval()
        randomize(model, seed)
        shutil.rmtree(out, ignore_errors=True)
        model.save_pretrained(
            out, **({"max_shard_size": spec.shard_size} if spec.shard_size else {}))
        goldens, margin = make_goldens(out, spec, seed)
        if margin >= spec.min_margin:
            break
    else:
        sys.exit(f"{out.name}: no seed without near ties")
    if spec.spelling == 4:
        respell(out / "config.json")
    (out / "goldens.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{out.name}: seed {seed}, margin {margin:.4f}, {size} bytes, "
          f"{len(list(out.iterdir()))} files")


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "model" / "data"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(2)
    for name in sys.argv[2:] or MODELS:
        make_model(root / name, MODELS[name])


if __name__ == "__main__":
    main()
