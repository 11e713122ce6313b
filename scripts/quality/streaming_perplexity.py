#!/usr/bin/env python3
"""Perplexity of a long text read through a bounded KV cache, by position, beside a sliding window
that is computed anew for every token.

    scripts/quality/streaming_perplexity.py --url http://127.0.0.1:8000 --tokens 1000000 --window 2048

The text is the BOS token, then the held-out books, from the first again after the last.  For each
number of sinks, and each way to count --positions, one request reads all of it (kv_policy streaming
with sink + recent = --window, echo, logprobs), cut into chunks of --chunk tokens: with 1, every
token is predicted from the window and the token before it, and one token leaves after each.
Greater chunks are faster, and their last tokens see up to a chunk more.  --policy reads it through
another kv_policy, as it is given:

    --sinks 4 --positions cache,text --policy 'sum={"type": "heavy_hitter", "chunk": 16}'

Every --recompute-every tokens the window is also computed anew under the policy full, as a prompt
of its own: the BOS token and the --window tokens before the predicted one.  The BOS token is there
because prompts begin with it; the sinks of a bounded cache are the first tokens of the whole text.

With a chunk that is large against the window the figure is not that of the window: tokens that come
behind an eviction must see at most 1.25 times the window on average, and be half of all, or the
script ends with status 4 behind its table, unless --allow-void is given.

Prints CSV: mean negative log-likelihood (nats) per --bucket tokens, then over all tokens and over
those that were recomputed, with the perplexities, times, the share of tokens behind an eviction and
what these saw over the window.  --logprobs also writes every token's.
"""
import argparse
import csv
import json
import math
import pathlib
import sys
import time
import urllib.error
import urllib.request

from evaluation import effects

VOID = 4  # the exit status
BOOKS = pathlib.Path(__file__).resolve().parents[2] / "models/quire-31m/eval/held_out.txt"


class Server:
    def __init__(self, args):
        self.url, self.timeout = args.url.rstrip("/").removesuffix("/v1"), args.timeout

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            sys.exit(f"{path}: {error.code} {error.read().decode(errors='replace')}")

    def tokens(self, text, special):
        return self.post("/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"]

    def score(self, prompts, kv_policy):
        """Log-probabilities of every token but the first, for each prompt; and usage.kv."""
        answer = self.post("/v1/completions", {
            "prompt": prompts, "echo": True, "logprobs": 0, "max_tokens": 0,
            "kv_policy": kv_policy})
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return ([choice["logprobs"]["token_logprobs"][1:] for choice in choices],
                answer["usage"]["kv"])


def read_text(server, args):
    """The BOS token, if the tokenizer has one, and the books until there are enough tokens."""
    bos = server.tokens("", True)
    book = server.tokens(args.text.read_text(encoding="utf-8"), False)[args.skip:]
    ids = book * math.ceil(args.tokens / len(book))
    return bos, (bos + ids)[:args.tokens]


def policies_of(args):
    """{name: kv_policy}."""
    streaming = {
        f"sink {sink} {positions}": {"type": "streaming", "sink": sink,
                                     "recent": args.window - sink, "chunk": args.chunk,
                                     "positions": positions}
        for sink in map(int, filter(None, args.sinks.split(",")))
        for positions in args.positions.split(",")}
    return {**streaming, **dict(args.policy)}


def score_text(server, ids, policy):
    """[log-probability of ids[i + 1]], seconds a token and the effect of the window (effects.py),
    after a line about it on stderr."""
    begin = time.monotonic()
    (values,), kv = server.score([ids], policy)
    seconds = time.monotonic() - begin
    print(f"{policy}: {seconds:.1f} s, {1e6 * seconds / len(ids):.0f} us per token; usage.kv {kv}",
          file=sys.stderr)
    return values, seconds / len(ids), effects.of_window(policy, kv, len(ids))


def score_recomputed(server, bos, ids, args):
    """{position: log-probability of the token there}, and seconds per token."""
    found, begin = {}, time.monotonic()
    for at in range(args.window + 1, len(ids), args.recompute_every):
        (values,), _ = server.score([bos + ids[at - args.window:at + 1]], {"type": "full"})
        found[at] = values[-1]
    return found, (time.monotonic() - begin) / max(1, len(found))


def mean_nll(values, positions):
    """values[i] belongs to position i + 1."""
    chosen = [-values[at - 1] for at in positions if at >= 1]
    return sum(chosen) / len(chosen) if chosen else math.nan


def write_table(names, columns, recomputed, seconds, found, args):
    """A row per bucket of positions, then the sums."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    n = len(next(iter(columns.values()))) + 1
    out.writerow(["tokens", *names, "recomputed"])

    def row(name, positions):
        again = [-recomputed[at] for at in positions if at in recomputed]
        out.writerow([name, *(f"{mean_nll(columns[key], positions):.4f}" for key in names),
                      f"{sum(again) / len(again):.4f}" if again else ""])

    for begin in range(0, n, args.bucket):
        row(f"{begin}-{min(begin + args.bucket, n) - 1}", range(begin, min(begin + args.bucket, n)))
    row("all", range(n))
    if recomputed:
        row("recomputed ones", sorted(recomputed))
        perplexity = [math.exp(mean_nll(columns[key], recomputed)) for key in names]
        again = math.exp(-sum(recomputed.values()) / len(recomputed))
        out.writerow(["their perplexity", *(f"{x:.3f}" for x in perplexity), f"{again:.3f}"])
    out.writerow(["us per token", *(f"{1e6 * x:.0f}" for x in seconds)])
    out.writerow(["behind an eviction", *(f"{effects.behind_share([e]):.4f}" for e in found)])
    ratios = [effects.visible_ratio([e]) for e in found]
    out.writerow(["tokens seen / window", *(f"{x:.4f}" if x else "" for x in ratios)])


def named_policy(text):
    name, _, policy = text.partition("=")
    return name, json.loads(policy)


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--url", required=True)
    add("--text", type=pathlib.Path, default=BOOKS)
    add("--skip", type=int, default=0, help="tokens of the text to leave out (%(default)s)")
    add("--tokens", type=int, default=20000, help="tokens to read (%(default)s)")
    add("--window", type=int, default=2048, help="tokens that are kept (%(default)s)")
    add("--sinks", default="0,4", help="kept tokens at the start of the text (%(default)s)")
    add("--positions", default="cache", help="cache, text or both (%(default)s)")
    add("--policy", type=named_policy, action="append", default=[], metavar="NAME={JSON}",
        help="another kv_policy to read the text through")
    add("--chunk", type=int, default=1, help="tokens between two evictions (%(default)s)")
    add("--recompute-every", type=int, default=0,
        help="tokens between two windows computed again; 0: none (%(default)s)")
    add("--bucket", type=int, default=1000, help="tokens of a row (%(default)s)")
    add("--logprobs", type=pathlib.Path,
        help="write every token's log-probability to this JSON file")
    add("--allow-void", action="store_true", help="end with status 0 whatever tokens saw")
    add("--timeout", type=float, default=3600, help="seconds for a request (%(default)s)")
    return parser.parse_args()


def main():
    args = read_arguments()
    server = Server(args)
    bos, ids = read_text(server, args)
    columns, seconds, found = {}, [], []
    for name, policy in policies_of(args).items():
        columns[name], per_token, effect = score_text(server, ids, policy)
        seconds.append(per_token)
        found.append(effect)
    recomputed = {}
    if args.recompute_every:
        recomputed, per_token = score_recomputed(server, bos, ids, args)
        seconds.append(per_token)
    write_table(list(columns), columns, recomputed, seconds, found, args)
    if args.logprobs:
        args.logprobs.write_text(json.dumps({"tokens": ids, **columns, "recomputed": recomputed}))
    whys = [finding.why for effect in found if (finding := effects.judge([effect]))]
    if whys and not args.allow_void:
        print(f"not the perplexity of a window of {args.window}: {'; '.join(dict.fromkeys(whys))}",
              file=sys.stderr)
        return VOID
    return 0


if __name__ == "__main__":
    sys.exit(main())
