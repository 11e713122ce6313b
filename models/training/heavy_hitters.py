#!/usr/bin/env python3
"""Says where the evidence of a question ranks among H2O's heavy hitters when a prompt has been read.

    python heavy_hitters.py --checkpoint FILE --corpus DIR [--length 2048] [--contexts 8]

Reads prompts of scripts/quality/eval with the question behind the text and before it, and adds up
the attention that each token received from all later ones (H2O's score, `sum`), for each layer and
KV head, as `heavy_hitter` does.  Prints CSV: the task, where the question stands, which tokens, and

    kept      share of layers and heads in which the tokens are among the highest tenth, which is
              what a budget of a fifth keeps besides the newest tenth
    expected  share of all tokens that are: what chance would keep
    received  attention that a token of them got from the average later query, over the mean of all
              tokens of the text

for the tokens of the evidence (the value that is asked for), for those of the text around it, and
for the text's first tenth, which has had the most queries behind it.
"""
import argparse
import math
import pathlib

import numpy as np
import torch

import checkpoint
from network import Network
from questions import Asker, tokens_between
from repository import CHATML, generate
from tasks.sample import BOS

SEED = 20261
TENTH = 0.1
TASKS = ("niah", "multikey", "people", "kv", "sections")
QUERIES_AT_ONCE = 512


class Received:
    """The attention of network.hidden()'s attend: adds up what each key receives."""

    def __init__(self, network):
        self.network, self.sums = network, []

    def __call__(self, layer, q, k, v, n_rows):
        n, n_heads, size = q.shape
        group = n_heads // k.shape[1]
        keys = k.repeat_interleave(group, dim=1).transpose(0, 1)
        total = torch.zeros(n_heads, n)
        for first in range(0, n, QUERIES_AT_ONCE):
            some = q[first:first + QUERIES_AT_ONCE].transpose(0, 1)
            scores = some @ keys.mT / math.sqrt(size)
            ahead = torch.ones(scores.shape[1:], dtype=torch.bool).triu(first + 1)
            total += scores.masked_fill(ahead, float("-inf")).softmax(dim=-1).sum(dim=1)
        self.sums.append(total.view(-1, group, n).sum(dim=1))
        return self.network.attend(q, k, v, n_rows)


def prompt_of(sample, question, asks_first):
    if asks_first:
        return BOS + CHATML.apply(f"{question.text}\n\n{sample.context}")
    return BOS + CHATML.apply(sample.context + question.text)


class Ranks:
    def __init__(self, options):
        shape, _, weights, _ = checkpoint.load_for_evaluation(options.checkpoint, torch.device("cpu"))
        self.network = Network(weights, shape, torch.float32, compiled=False)
        path = options.corpus / "tokenizer" / "tokenizer.json"
        self.asker, self.length = Asker(options.corpus, path, n_questions=1), options.length

    @torch.no_grad()
    def received(self, ids):
        """[layers * KV heads, tokens]"""
        watched = Received(self.network)
        self.network.hidden(torch.tensor([ids]), watched)
        return torch.cat(watched.sums).numpy()

    def one(self, task, index, asks_first):
        """(name, kept, received) of three sorts of tokens."""
        asker = self.asker
        sample = generate(task, self.length, index, SEED, asker.count, asker.books)
        question = sample.questions[0]
        text = prompt_of(sample, question, asks_first)
        encoding = asker.tokenizer.encode(text, add_special_tokens=False)
        value = question.references[0]
        evidence = np.arange(*tokens_between(encoding, text.rindex(value), len(value)))
        sums = self.received(encoding.ids)
        n = sums.shape[1]
        old = np.arange(4, n - int(TENTH * n))  # neither sinks nor the newest tenth
        floor = np.sort(sums[:, old], axis=1)[:, -int(TENTH * n)][:, None]
        kept = sums >= floor
        queries = n - np.arange(n)
        mean = sums[:, old].sum(axis=1, keepdims=True) / queries[old].sum()
        each = sums / queries / mean
        around = np.setdiff1d(np.arange(evidence[0] - 40, evidence[-1] + 40), evidence)
        sorts = {"evidence": evidence, "around": around, "first tenth": old[:len(old) // 10]}
        return {name: (kept[:, np.intersect1d(at, old)].mean(), each[:, np.intersect1d(at, old)].mean())
                for name, at in sorts.items() if len(np.intersect1d(at, old))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--checkpoint", required=True, type=pathlib.Path)
    parser.add_argument("--corpus", required=True, type=pathlib.Path)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--contexts", type=int, default=8)
    options = parser.parse_args()
    ranks = Ranks(options)
    print("task,question,tokens,contexts,kept,expected,received")
    for task in TASKS:
        for asks_first in (False, True):
            found = {}
            for index in range(options.contexts):
                for name, pair in ranks.one(task, index, asks_first).items():
                    found.setdefault(name, []).append(pair)
            for name, pairs in found.items():
                kept, received = np.mean(pairs, axis=0)
                print(f"{task},{'first' if asks_first else 'last'},{name},{len(pairs)},{kept:.3f},"
                      f"{TENTH},{received:.2f}", flush=True)


if __name__ == "__main__":
    main()
