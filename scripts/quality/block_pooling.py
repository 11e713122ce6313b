#!/usr/bin/env python3
"""Measures what block-sparse heads lose by pooling the queries of a tile of 128 rows, where the
paper (MInference, arXiv 2407.02490) pools those of 64.

    scripts/quality/block_pooling.py [--model models/quire-31m] [--tokens 4096,8192,16384] [--prompts 3]

Recall is the share of a row's attention that lies on visited keys, as `quire tune` has it: the mean
over a prompt's rows but its first quarter, or 2,500.  A tile visits its --pages best pages, its own
two, and page 0; halves that choose for themselves get as many pages as the tile has, so both visit
the same number of pairs.  --rows makes tiles larger, so that the loss shows.  The prompts are those of `quire tune`, from seeds of their own.

Prints CSV, a row for each length and number of pages: the mean recall of all heads by halves and by
tiles, the mean loss, and the most that one head loses on average over the prompts, and on one.
Needs numpy, and the build folder for its prompts.  16,384 tokens take minutes a prompt.
"""
import argparse
import pathlib
import subprocess
import sys

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from oracle_model import Model  # noqa: E402  the arithmetic of a model's layers

PAGE, TILE = 64, 128
KINDS = ("retrieval", "needles", "prose", "several")
FIRST_ROW = 2500  # or a quarter of the prompt


def prompt_of(build, model, kind, seed, n_tokens, n_rows):
    """Whole tiles of it, with its first token and its end."""
    command = [build / "tests" / "server" / "tune_prompt", model, kind, str(seed), str(n_tokens)]
    ids = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [int(token) for token in ids[:1] + ids[1 + len(ids) % n_rows:]]


def attend(model, layer, head, queries, keys, values):
    """(what the head reads, the attention of each half of a tile that lies on each page, summed
    over its rows)"""
    n, (k, v) = len(queries), (keys[head // model.group], values[head // model.group])
    read, mass = numpy.empty_like(queries), numpy.zeros((n // PAGE, n // PAGE))
    for row in range(0, n, TILE):
        end = row + TILE
        s = model.scores(queries[row:end], k[:end])
        s[:, row:][numpy.triu_indices(TILE, 1)] = -numpy.inf
        s -= s.max(axis=1, keepdims=True)
        p = numpy.exp(s, out=s)
        share = 1 / p.sum(axis=1)
        read[row:end] = (p @ v[:end]) * share[:, None]
        for half in (0, 1):
            rows = slice(half * PAGE, (half + 1) * PAGE)
            by_page = (share[rows] @ p[rows]).reshape(-1, PAGE).sum(axis=1)
            mass[row // PAGE + half, :end // PAGE] = by_page
    return read, mass


def best(scores, n):
    """The n best pages behind page 0; the lower one is better when scores are equal."""
    return 1 + numpy.argsort(-scores[1:], kind="stable")[:n]


def found(queries, keys, mass, n_pages, n_rows, first_row):
    """The head's recall (by halves, by tiles of n_rows)."""
    means = keys.reshape(-1, PAGE, keys.shape[1]).mean(axis=1)
    halves = queries.reshape(-1, PAGE, queries.shape[1]).mean(axis=1)
    sums = numpy.zeros(2)
    for own in range(first_row // PAGE, len(halves), n_rows // PAGE):
        end = own + n_rows // PAGE
        scores = means[:own] @ halves[own:end].mean(axis=0)
        chosen = numpy.argsort(-scores, kind="stable")[:n_pages]
        chosen = chosen[chosen > 0]
        forced = mass[own:end, own:end].sum() + mass[own:end, 0].sum()
        by_half = [mass[half, best(means[:own] @ halves[half], len(chosen))].sum()
                   for half in range(own, end)]
        sums += forced + sum(by_half), forced + mass[own:end, chosen].sum()
    return sums / (len(queries) - first_row)


def measure(model, tokens, pages, n_rows):
    """(layer, head, number of pages) -> recall by halves and by tiles, on one prompt."""
    at, x = numpy.arange(len(tokens)), model.table[tokens].astype(numpy.float32)
    first_row = max(min(FIRST_ROW, len(tokens) // 4) // n_rows, 1) * n_rows
    recall = {}
    for layer in range(model.n_layers):
        q, k, v = (part.transpose(1, 0, 2) for part in model.qkv(layer, x))
        q, k = (model.rotate(layer, part, at).astype(numpy.float32) for part in (q, k))
        read = []
        for head in range(model.n_heads):
            out, mass = attend(model, layer, head, q[head], k, v)
            read.append(out)
            for n_pages in pages:
                recall[layer, head, n_pages] = found(q[head], k[head // model.group], mass,
                                                     n_pages, n_rows, first_row)
        x = model.add_attention(layer, x, numpy.concatenate(read, axis=1))
        x = model.add_feed_forward(layer, x).astype(numpy.float32)
    return recall


def summary(recalls, n_pages):
    """Of prompts' recalls with so many pages."""
    keys = [key for key in recalls[0] if key[2] == n_pages]
    values = numpy.array([[recall[key] for key in keys] for recall in recalls])
    losses = values[..., 0] - values[..., 1]
    return (len(keys), *values.mean(axis=(0, 1)), losses.mean(), losses.mean(axis=0).max(),
            losses.max())


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "quire-31m")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--tokens", type=numbers, default=[4096, 8192, 16384])
    parser.add_argument("--prompts", type=int, default=3, help="prompts of each length")
    parser.add_argument("--pages", type=numbers, default=[25, 50, 100])
    parser.add_argument("--rows", type=int, default=128, help="rows of a tile: a multiple of 128")
    options = parser.parse_args()
    model = Model(options.model)
    model.weights = {name: w.astype(numpy.float32) for name, w in model.weights.items()}
    print("tokens,pages,heads,halves,tiles,mean_loss,worst_head,worst_head_and_prompt")
    for n_tokens in options.tokens:
        recalls = [measure(model, prompt_of(options.build, options.model, KINDS[i % len(KINDS)],
                                            1000 + i, n_tokens, options.rows),
                           options.pages, options.rows)
                   for i in range(options.prompts)]
        for n_pages in options.pages:
            n_heads, *values = summary(recalls, n_pages)
            cells = ",".join(f"{value:.4f}" for value in values)
            print(f"{n_tokens},{n_pages},{n_heads},{cells}", flush=True)


if __name__ == "__main__":
    main()
