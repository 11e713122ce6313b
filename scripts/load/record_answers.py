#!/usr/bin/env python3
"""Records what a quire answers to a fixed set of requests, byte for byte, to compare two builds.

    scripts/load/record_answers.py --binary old/quire --out old.jsonl
    scripts/load/record_answers.py --binary new/quire --out new.jsonl --compare old.jsonl

Requests are drawn from a seed and asked one after the other: every KV policy, prefill mode and
kind of sampling, streamed and whole, echoed, tokenised, refused; of the default model with pages
of several dtypes, and of one small checkpoint of each family.  On a GPU give --device cuda; servers
then run with --batch-invariant.  Identifiers and times are masked, everything else counts.  Exits 1
when an answer differs.  Needs numpy (build/venv).

    scripts/load/record_answers.py --binary build/quire --ranks 2 --out two.jsonl --compare one.jsonl

asks servers whose model two ranks share.  Their sums are rounded in another place, so only tokens
are compared, and log-probabilities within 0.01 (0.2 with a KV cache of 8 bits, and on a GPU, where
all ranks have the first device) up to the first token that differs.  --places default asks the
default model alone.  Each answer whose tokens differ is named, with the two tokens and their
log-probabilities.  Exits 1 when log-probabilities before are further apart."""
import argparse
import json
import os
import pathlib
import random
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = ("--threads", 2, "--max-num-seqs", 8, "--kv-cache-memory", "96M",
            "--kv-offload-size", "16M")
DEFAULT = ((), ("--kv-cache-dtype", "float16"), ("--kv-cache-dtype", "fp8"),
           ("--no-enable-prefix-caching", "--max-num-batched-tokens", 320))
FP8 = 2  # of these the one whose KV cache has 8 bits
MASKS = [(re.compile(rb'"(id|request_id)":"[^"]*"'), rb'"\1":"-"'),
         (re.compile(rb'"created":\d+'), b'"created":0'),
         (re.compile(rb'"(index_ms|attention_ms)":[\d.]+'), rb'"\1":0'),
         (re.compile(rb': ping\n\n'), b"")]
WORDS = ("Once upon a time there was a quire of paper, and it had twenty-four sheets. ",
         "The oldest sheet told the youngest what it had been before it was paper. ")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "quire"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--compare", type=pathlib.Path, help="another file of the same requests")
    parser.add_argument("--ranks", type=int, default=1, help="--tensor-parallel-size of the servers")
    parser.add_argument("--places", default="", help="only servers whose names begin so, such as default")
    return parser.parse_args()


def kv_policy(rng, context):
    budget = rng.choice((64, 96, 160, context // 4))
    return rng.choice((
        None, {"type": "full"},
        {"type": "streaming", "sink": 4, "recent": budget},
        {"type": "streaming", "sink": 0, "recent": budget, "positions": "text"},
        {"type": "heavy_hitter", "heavy": budget // 2, "recent": budget // 2},
        {"type": "heavy_hitter", "heavy": budget // 2, "recent": budget // 2, "score": "decay",
         "positions": "cache", "chunk": 64},
        {"type": "heavy_hitter", "heavy": budget, "recent": 64, "prompt": "whole",
         "score": "window", "pooling": "max"},
        {"type": "offload", "selected": 64, "tail": 64},
        {"type": "offload", "selected": 128, "tail": 64, "offload": False}))


def prefill(rng):
    return rng.choice((None, None, {"mode": "dense"}, {"mode": "sparse"},
                       {"mode": "sparse", "reuse": False}, {"mode": "auto"}))


def sampling(rng):
    return rng.choice((
        {"temperature": 0}, {"temperature": 0, "logprobs": 5}, {"temperature": 1, "top_p": 0.9},
        {"temperature": 0.7, "top_k": 40, "logprobs": 2}, {"temperature": 1.3, "min_p": 0.05},
        {"temperature": 1, "n": 2, "best_of": 3}, {"temperature": 0, "frequency_penalty": 0.5},
        {"temperature": 0.5, "repetition_penalty": 1.2, "presence_penalty": -0.3},
        {"temperature": 0, "stop": [" the", "\n\n"], "include_stop_str_in_output": True},
        {"temperature": 0, "logit_bias": {"7": 3}, "min_tokens": 4, "ignore_eos": True},
        {"temperature": 0, "echo": True, "logprobs": 1}))


def refused(rng):
    return rng.choice(({"temperature": 3}, {"n": 0}, {"kv_policy": {"type": "lossy"}},
                       {"prompt": []}, {"max_tokens": -1}, {"logprobs": 99},
                       {"kv_policy": {"type": "streaming", "recent": 0}},
                       {"prefill": {"mode": "sparse"}, "kv_policy": {"type": "streaming"}},
                       {"prompt": "x", "max_tokens": 10 ** 9}))


def make_request(rng, context, n_vocab, is_text):
    """(path, body): lengths spread over orders of magnitude, half beginning like others."""
    if is_text and rng.random() < 0.05:
        return "/tokenize", {"prompt": rng.choice(WORDS) * rng.randrange(1, 9)}
    length = max(1, int((context - 160) ** rng.random()))
    beginning = random.Random(length % 3)
    tokens = [beginning.randrange(3, n_vocab) for _ in range(length)]
    for i in range(rng.randrange(length), length):
        tokens[i] = rng.randrange(3, n_vocab)
    text = (WORDS[length % 2] * (length // 16 + 1))[:4 * length]
    body = {"prompt": text if is_text and rng.random() < 0.3 else tokens,
            "max_tokens": rng.randrange(1, 25), "seed": rng.randrange(1 << 30),
            "return_token_ids": True, **sampling(rng)}
    if rng.random() < 0.1:
        return "/v1/completions", {**body, **refused(rng)}
    policy, way = kv_policy(rng, context), prefill(rng)
    if policy:
        body["kv_policy"] = policy
    # A bounded cache goes with dense prefill only; a few of those refusals are enough.
    if way and (not policy or policy["type"] in ("full", "offload") or rng.random() < 0.1):
        body["prefill"] = way
    if rng.random() < 0.4 and "best_of" not in body:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return "/v1/completions", body


def servers(directory):
    """(name, arguments of a Server, context, vocabulary, whether it knows text)"""
    from test_families import CONTEXT, FAMILIES, N_VOCAB, link_checkpoint

    for i, more in enumerate(DEFAULT):
        yield f"default-{i}", ((*SETTINGS, "--max-model-len", 2048, *more), {}), 2048, 8000, True
    for family, checkpoint in FAMILIES.items():
        model = link_checkpoint(directory / family, checkpoint)
        yield (family, ((*SETTINGS, "--max-model-len", CONTEXT), {"model": model}), CONTEXT,
               N_VOCAB, False)


def masked(data):
    for form, text in MASKS:
        data = form.sub(text, data)
    return data.decode()


def record(options):
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from server import INVARIANT, Server

    with tempfile.TemporaryDirectory() as name, open(options.out, "w", encoding="utf-8") as out:
        directory = pathlib.Path(name)
        places = [place for place in servers(directory) if place[0].startswith(options.places)]
        n_default = sum(place[0].startswith("default") for place in places)
        n_families = len(places) - n_default
        of_default = options.requests // 2 if n_families else options.requests
        shares = [of_default // n_default] * n_default if n_default else []
        n_left = options.requests - sum(shares)
        shares += [n_left // n_families + (i < n_left % n_families) for i in range(n_families)]
        ranks = ["--tensor-parallel-size", options.ranks]
        if options.device == "cuda" and options.ranks > 1:
            ranks += ["--tensor-parallel-devices", ",".join(["0"] * options.ranks)]
        for (place, (settings, rest), context, n_vocab, is_text), n in zip(places, shares):
            rng = random.Random(place)
            try:
                started = Server(directory, *settings, *INVARIANT, *ranks, **rest)
            except AssertionError as why:  # what the device has not is refused at the start, by name
                refusal = (re.search(r"error \S+: (.* not supported on the device .*)", str(why)) or
                           re.search(r"error (--tensor-parallel-size \d+ does not .*)", str(why)))
                if not refusal:
                    raise
                print(json.dumps({"place": place, "i": 0, "path": None, "body": None, "status": None, "type": None,
                                  "answer": refusal[1]}), file=out)
                continue
            with started as server:
                for i in range(n):
                    path, body = make_request(rng, context, n_vocab, is_text)
                    reply = server.post(path, body)
                    print(json.dumps({"place": place, "i": i, "path": path, "body": body,
                                      "status": reply.status,
                                      "type": reply.headers["Content-Type"],
                                      "answer": masked(reply.body)}), file=out)


def compare(mine, theirs):
    a, b = ([json.loads(line) for line in path.read_text().splitlines()] for path in (mine, theirs))
    differing = [x for x, y in zip(a, b) if x != y]
    for x in differing[:10]:
        print(f"differs: {x['place']} {x['i']}: {json.dumps(x['body'])[-300:]}")
    statuses = {s: sum(x["status"] == s for x in a) for s in sorted({x["status"] for x in a if x["status"]})}
    print(f"{len(a)} and {len(b)} answers, {len(differing)} differ; by status {statuses}")
    return len(a) == len(b) and not differing


def tokens_of(answer):
    """[(token id, log-probability or None)] of the first choice, streamed or whole."""
    parts = ([json.loads(line[6:]) for line in answer.split("\n")
              if line.startswith("data: {")] if answer.startswith("data: ") else [json.loads(answer)])
    ids, logprobs = [], []
    for part in parts:
        for choice in part.get("choices", []):
            if choice.get("index") == 0:
                ids += choice.get("token_ids") or []
                logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
    logprobs = logprobs[-len(ids):] if ids else []  # echo has the prompt's in front
    return list(zip(ids, logprobs + [None] * (len(ids) - len(logprobs))))


def compare_near(mine, theirs, ranks, device):
    """Compares answers of several ranks with those of one."""
    a, b = ({(x["place"], x["i"]): x for x in map(json.loads, path.read_text().splitlines())}
            for path in (mine, theirs))
    n_refused = n_ties = n_far = n_same = 0
    for key, x in a.items():
        if x["path"] is None:
            print(f"refused: {key[0]}: {x['answer']}")
            n_refused += 1
            continue
        y = b[key]
        if x["status"] != y["status"]:
            if "--tensor-parallel-size" not in x["answer"]:
                print(f"differs: {key}: {x['status']}, not {y['status']}: {x['answer'][:200]}")
                n_far += 1
            n_refused += 1
            continue
        if x["status"] != 200 or x["path"] != "/v1/completions":
            n_same += 1
            continue
        # Keys and values of 8 bits that differ in their last bit are rounded to neighbours.
        bound = 0.2 if device == "cuda" or key[0] == f"default-{FP8}" else 0.01
        far, tie = 0, None
        for i, (p, q) in enumerate(zip(tokens_of(x["answer"]), tokens_of(y["answer"]))):
            if p[1] is not None and q[1] is not None:
                far = max(far, abs(p[1] - q[1]))
            if p[0] != q[0]:
                tie = (i, p, q)
                break
        if tie:
            print(f"near tie: {key}: token {tie[0]}: {tie[1]} and {tie[2]}")
        elif far > bound:
            print(f"differs: {key}: log-probabilities by {far:.4f}")
        n_ties += tie is not None
        n_far += not tie and far > bound
        n_same += not tie and far <= bound
    print(f"{len(a)} answers of {ranks} ranks: {n_same} the same, {n_ties} with a near tie, "
          f"{n_refused} refused, {n_far} differ")
    return n_far == 0


def main():
    options = arguments()
    os.environ["QUIRE_TEST_BINARY"], os.environ["QUIRE_TEST_DEVICE"] = (str(
        pathlib.Path(options.binary).resolve()), options.device)
    record(options)
    if not options.compare:
        return
    same = (compare(options.out, options.compare) if options.ranks == 1 else
            compare_near(options.out, options.compare, options.ranks, options.device))
    sys.exit(not same)


if __name__ == "__main__":
    main()
