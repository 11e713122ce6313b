#!/usr/bin/env python3
"""Writes a checkpoint as a model directory that servers load (Hugging Face's Llama, bf16).

    python export.py --checkpoint FILE --tokenizer DIR --out DIR
"""
import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

import chat
import checkpoint
from network import Shape
from optimizer import parts_of
from tasks.sample import BOS, EOT, PAD, TURN_END

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


LAYER = {  # our matrix or norm -> what it is to LlamaForCausalLM, by rows
    "attention_norm": ["input_layernorm"],
    "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "out": ["self_attn.o_proj"], "mlp_norm": ["post_attention_layernorm"],
    "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}


def names_of(shape):
    """Our name of each weight -> the names of its parts, in the order of their rows."""
    names = {"embedding": ["model.embed_tokens.weight"], "norm": ["model.norm.weight"]}
    for i in range(shape.layers):
        names |= {f"{i}.{ours}": [f"model.layers.{i}.{part}.weight" for part in parts]
                  for ours, parts in LAYER.items()}
    return names


def tensors(weights, shape):
    """The weights under the names of LlamaForCausalLM, in bf16."""
    return {name: weights[ours][first:end].detach().to(torch.bfloat16).contiguous().cpu()
            for ours, names in names_of(shape).items()
            for name, (first, end) in zip(names, parts_of(ours, weights[ours], shape))}


def configs(shape, tokenizer):
    """(config.json, generation_config.json)."""
    bos, turn_end, eot, pad = map(tokenizer.token_to_id, (BOS, TURN_END, EOT, PAD))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "vocab_size": shape.entries, "hidden_size": shape.hidden,
              "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
              "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
              "head_dim": shape.head_size, "hidden_act": "silu",
              "max_position_embeddings": shape.context, "rms_norm_eps": shape.norm_eps,
              "rope_theta": shape.rope_base, "rope_scaling": None, "tie_word_embeddings": True,
              "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
              "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16",
              "bos_token_id": bos, "eos_token_id": turn_end, "pad_token_id": pad}
    generation = {"bos_token_id": bos, "eos_token_id": [turn_end, eot], "pad_token_id": pad}
    return config, generation


def write_json(path, content):
    path.write_text(json.dumps(content, indent=2) + "\n")


def export(checkpoint_path, tokenizer_dir, out):
    settings, weights, _, _ = checkpoint.load(checkpoint_path, "cpu")
    shape = Shape(**settings["model"])
    if shape.sink != "none":
        raise SystemExit("export: a network with a zero sink is not a Llama")
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors(weights, shape), out / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    config, generation = configs(shape, tokenizer)
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", generation)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer_dir / name, out / name)
    (out / "chat_template.jinja").write_text(chat.TEMPLATE)  # for people; the same as in the config


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--checkpoint", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, help="directory")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    options = parser.parse_args()
    export(options.checkpoint, options.tokenizer, options.out)
    print(f"export: {(options.out / 'model.safetensors').stat().st_size} bytes of weights")


if __name__ == "__main__":
    main()
