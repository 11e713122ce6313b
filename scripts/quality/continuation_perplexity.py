#!/usr/bin/env python3
"""Perplexity of what follows a prompt, for ways to compute the prompt that give no
log-probabilities of the prompt itself, such as sparse prefill.

    scripts/quality/continuation_perplexity.py --url http://127.0.0.1:8000 --lengths 8192,32768 \\
        --config 'dense={"prefill": "dense"}' --config 'sparse={"prefill": "sparse"}'

A window is --tokens tokens of the books (their beginning: the BOS token, if the tokenizer has one)
behind a prompt that has so many tokens that all are a length.  Each token is a request of its own:
the prompt and the tokens before it, found in the prefix cache, and a bias that leaves no other
choice; the log-probability that comes back is of the logits without it.

Prints CSV, one line a length and configuration: perplexity, how far it is from that of the first
configuration, with the 95 % interval of the difference over windows (Student's t), and the share of
windows whose usage says that the configuration left something out: keys of the prompt that were not
visited, tokens that were not selected or were evicted.  What found all of its prompt in the cache
of an earlier run shows nothing.  A line with less than half of its windows is VOID, and the exit
status 4, unless --allow-void is given.
"""
import argparse
import concurrent.futures
import csv
import json
import math
import pathlib
import sys

import numpy

from evaluation import effects
from streaming_perplexity import BOOKS, VOID, Server

FORCED = 100  # the largest bias that the API takes
T_95 = {4: 3.182, 8: 2.365, 16: 2.131, 32: 2.040, 64: 1.998}  # two-sided, by number of windows


def logprob(server, prompt, token, fields):
    """(of the token behind the prompt, in nats; usage)."""
    answer = server.post("/v1/completions", {
        "prompt": prompt, "max_tokens": 1, "logit_bias": {str(token): FORCED}, "logprobs": 0,
        "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields})
    (choice,) = answer["choices"]
    if choice["token_ids"] != [token]:
        sys.exit(f"the bias was to give token {token}, not {choice['token_ids']}")
    return choice["logprobs"]["token_logprobs"][0], answer["usage"]


def score(server, ids, n_tokens, fields):
    """(mean negative log-likelihood of the last n_tokens tokens, whether something was left out;
    None: the fields ask for everything, or the server does not tell)."""
    answers = [logprob(server, ids[:i], ids[i], fields)
               for i in range(len(ids) - n_tokens, len(ids))]
    return (-sum(value for value, _ in answers) / n_tokens,
            left_out(fields, [usage for _, usage in answers]))


def left_out(fields, usages):
    """Of the first prompt of a window, which the others go on from, what is sparse shows; of the
    answers, what was selected or evicted."""
    found = []
    if effects.asks_for_less("prefill", fields.get("prefill", "dense")):
        found += [effects.of_prefill(usage["prefill"], False, None) for usage in usages[:1]]
    policy = effects.policy_of(fields, {})
    if policy and effects.asks_for_less("kv_policy", policy):
        found += [effects.of_answer(policy, usage["kv"], usage["prompt_tokens"])
                  for usage in usages]
    # Not known is how much a chunk leaves visible (None), which is no matter behind the prompt.
    return all(e["behind"] != 0 for e in found if e) if any(found) else None


def windows(server, text, length, n):
    beginning, book = server.tokens("", True), server.tokens(text, False)
    step = (len(book) - length) // max(1, n - 1)
    if step < 1:
        sys.exit(f"the books have {len(book)} tokens, too few for {n} windows of {length}")
    return [(beginning + book[i * step:])[:length] for i in range(n)]


def configuration(text):
    name, _, fields = text.partition("=")
    return name, json.loads(fields)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--windows", type=int, choices=sorted(T_95), default=16)
    parser.add_argument("--tokens", type=int, default=64,
                        help="scored tokens of a window (%(default)s)")
    parser.add_argument("--config", type=configuration, action="append", required=True,
                        metavar="NAME={JSON}", help="extra fields; the first is the baseline")
    parser.add_argument("--text", type=pathlib.Path, default=BOOKS)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--allow-void", action="store_true",
                        help="end with status 0 though nothing was left out")
    parser.add_argument("--timeout", type=float, default=600)
    return parser.parse_args()


def measure(server, texts, args, fields):
    """(each window's mean, the share of windows with something left out or None)."""
    fields = {"cache_salt": json.dumps(fields, sort_keys=True), **fields}
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as threads:
        found = list(threads.map(lambda ids: score(server, ids, args.tokens, fields), texts))
    told = [is_less for _, is_less in found if is_less is not None]
    return numpy.array([nll for nll, _ in found]), sum(told) / len(told) if told else None


def compare(nll, baseline):
    """Perplexity, how far it is from the baseline's, and the 95 % interval of that over windows
    (Student's t), as text."""
    apart = nll - baseline
    half = T_95[len(nll)] * apart.std(ddof=1) / math.sqrt(len(nll))
    base = math.exp(baseline.mean())
    changes = [base * math.expm1(apart.mean() + x) for x in (0, -half, half)]
    return [f"{math.exp(nll.mean()):.3f}", *(f"{x:+.3f}" for x in changes)]


def main():
    args = parse_arguments()
    server = Server(args)
    text = args.text.read_text(encoding="utf-8")
    out = csv.writer(sys.stdout)
    out.writerow(["length", "config", "tokens", "perplexity", "change", "low", "high", "left out"])
    status = 0
    for length in map(int, args.lengths.split(",")):
        texts, baseline = windows(server, text, length, args.windows), None
        for name, fields in args.config:
            nll, share = measure(server, texts, args, fields)
            is_void = share is not None and share < effects.LEAST_BEHIND
            status = VOID if is_void and not args.allow_void else status
            baseline = nll if baseline is None else baseline
            numbers = compare(nll, baseline)
            out.writerow([length, name, args.windows * args.tokens,
                          *(["VOID"] * len(numbers) if is_void else numbers),
                          "" if share is None else f"{share:.2f}"])
            sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
