#!/usr/bin/env python3
"""Perplexity of held-out text by the log-probabilities of prompts, for ways to compute them.

    scripts/quality/prompt_perplexity.py --url http://127.0.0.1:8000 --lengths 4096,16384 \\
        --config 'dense={"prefill": "dense"}' --config 'sparse={"prefill": "sparse"}' \\
        --config 'near={"prefill": {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 16, "recent": 64}}}'

A window is so many tokens of the books as a length says (its beginning: the BOS token, if the
tokenizer has one).  One request scores all of it (echo, logprobs): of a sparse prompt each token's
log-probability is that of its sparse row.  Tokens before --from are not counted: patterns leave
nothing out of a short beginning.  Nor are the last --tail ones, whose rows are dense
(--dense-tail of the server, and whole tiles of 128).

Prints CSV, one line a length and configuration: perplexity, how far it is from that of the first
configuration, with the 95 % interval of the difference over windows (Student's t), and the mean
density that the server reports.  A configuration that asks for sparse and whose density is not below
--most-density shows nothing: its line is VOID, and the exit status 4, unless --allow-void is given.
"""
import argparse
import csv
import pathlib
import sys

import numpy

from continuation_perplexity import T_95, compare, configuration, windows
from evaluation import effects
from streaming_perplexity import BOOKS, VOID, Server


def score(server, ids, fields, counted):
    """(mean negative log-likelihood of the counted tokens, usage.prefill)."""
    answer = server.post("/v1/completions", {"prompt": ids, "echo": True, "logprobs": 0,
                                             "max_tokens": 0, **fields})
    values = answer["choices"][0]["logprobs"]["token_logprobs"][counted]
    return -sum(values) / len(values), answer["usage"]["prefill"]


def measure(server, texts, fields, args):
    """(each window's mean, the mean density)."""
    found = [score(server, ids, fields, slice(max(1, getattr(args, "from")), -args.tail or None))
             for ids in texts]
    return (numpy.array([nll for nll, _ in found]),
            sum(prefill["density"] for _, prefill in found) / len(found))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--url", required=True)
    add("--lengths", default="4096,16384")
    add("--windows", type=int, choices=sorted(T_95), default=16)
    add("--from", type=int, default=512, help="the first token that counts (%(default)s)")
    add("--tail", type=int, default=256, help="last tokens that do not count (%(default)s)")
    add("--config", type=configuration, action="append", required=True, metavar="NAME={JSON}",
        help="extra fields; the first is the baseline")
    add("--text", type=pathlib.Path, default=BOOKS)
    add("--most-density", type=float, default=0.9,
        help="a sparse configuration above it shows nothing (%(default)s)")
    add("--allow-void", action="store_true", help="end with status 0 though nothing was left out")
    add("--timeout", type=float, default=3600)
    return parser.parse_args()


def main():
    args = parse_arguments()
    server = Server(args)
    text = args.text.read_text(encoding="utf-8")
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["length", "config", "tokens", "perplexity", "change", "low", "high", "density"])
    status = 0
    for length in map(int, args.lengths.split(",")):
        n_counted = length - max(1, getattr(args, "from")) - args.tail
        if n_counted < 1:
            sys.exit(f"of {length} tokens none is left to count: lower --from or --tail")
        texts, baseline = windows(server, text, length, args.windows), None
        for name, fields in args.config:
            nll, density = measure(server, texts, fields, args)
            is_void = (effects.asks_for_less("prefill", fields.get("prefill", "dense"))
                       and density > args.most_density)
            status = VOID if is_void and not args.allow_void else status
            baseline = nll if baseline is None else baseline
            numbers = compare(nll, baseline)
            out.writerow([length, name, args.windows * n_counted,
                          *(["VOID"] * len(numbers) if is_void else numbers), f"{density:.3f}"])
            sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
