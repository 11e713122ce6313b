#!/usr/bin/env python3
"""Writes goldens.json of a model directory: logits and greedy tokens of a float64 forward pass.

    python goldens.py --checkpoint FILE --corpus DIR --out MODEL_DIR/goldens.json

The weights are those of the checkpoint, rounded to bf16 as the model directory has them; nothing
else is rounded.  Servers are compared with the ten best logits behind each prompt and with 32
greedy tokens, whose margins say how far a rounded pass may be off before it may choose another.
"""
import argparse
import json
import pathlib
import random

import torch
from tokenizers import Tokenizer

import chat
import checkpoint
from decoding import greedy
from network import Network
from tasks import families
from tasks.library import HeldOut
from tasks.sample import BOS, TURN, Loss

N_GREEDY, N_BEST = 32, 10
SOURCE = "float64 forward pass of the bf16 weights (models/training/goldens.py)"


def chat_prompt(text):
    return chat.render([{"role": "user", "content": text}]).text + f"{TURN}assistant\n"


def task_prompt(name, n_tokens, held_out, tokenizer):
    """The ids of an exercise up to its first answer."""
    ids, losses = families.encoded(name, random.Random(f"goldens/{name}"), n_tokens, held_out,
                                   tokenizer)
    return ids[:int((losses == Loss.ANSWER).argmax())].tolist()


def prompts(corpus, tokenizer):
    held_out = HeldOut(corpus / "held_out.txt")
    books = (corpus / "held_out.txt").read_text().split("\0")

    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    return [("text-5", ids(BOS + "Once upon a time")),
            ("chat-hello", ids(chat_prompt("Hello"))),
            ("chat-capital", ids(chat_prompt("What is the capital of France?"))),
            ("book-200", ids(BOS + books[0][:4000])[:200]),
            ("passkey-500", task_prompt("passkey", 500, held_out, tokenizer)),
            ("kv-1000", task_prompt("kv", 1000, held_out, tokenizer)),
            ("book-2000", ids(BOS + books[2][:20000])[:2000]),
            ("niah-3000", task_prompt("niah", 3000, held_out, tokenizer))]


def golden(network, tokenizer, name, ids):
    logits, tokens, margins = greedy(network, ids, N_GREEDY)
    best = logits.topk(N_BEST)
    return {"name": name, "tokens": [int(i) for i in ids], "top10_ids": best.indices.tolist(),
            "top10_logits": [round(float(value), 5) for value in best.values],
            "greedy32": tokens, "greedy_margins": [round(margin, 4) for margin in margins],
            "prompt_text": tokenizer.decode(ids, skip_special_tokens=False),
            "greedy_text": tokenizer.decode(tokens, skip_special_tokens=False)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--checkpoint", required=True, type=pathlib.Path)
    parser.add_argument("--corpus", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="(CORPUS/tokenizer/tokenizer.json)")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    options = parser.parse_args()
    path = options.tokenizer or options.corpus / "tokenizer" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    shape, _, weights, _ = checkpoint.load_for_evaluation(options.checkpoint, "cpu")
    weights = {name: weight.double() for name, weight in weights.items()}
    network = Network(weights, shape, torch.float64, compiled=False)
    found = [golden(network, tokenizer, name, ids)
             for name, ids in prompts(options.corpus, tokenizer)]
    options.out.write_text(json.dumps({"source": SOURCE, "prompts": found}, ensure_ascii=False))
    print(f"goldens: {len(found)} prompts, smallest margin "
          f"{min(min(one['greedy_margins']) for one in found)}")


if __name__ == "__main__":
    main()
