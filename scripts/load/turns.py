#!/usr/bin/env python3
"""Measures what a later turn of a conversation costs on a running server, under a bounded KV policy.

    build/quire serve
    scripts/load/turns.py --tokens 106000 --new 200 --repeats 5

Reads a prompt of --tokens random token ids and lets the model answer.  Then asks turns of --new
tokens, each behind the same first turn, and compares the seconds to their first tokens with those of
two others, asked in between: prompts of --new tokens alone, and --new tokens behind as many as the
budget keeps, under `full`, which the prefix cache has.  The rows of the last two see as many slots
as those of a turn, or none before their own.  Last, asks --choices choices of one new prompt, and
one.  --without asks each turn under a cache_salt of its own, so that nothing is found: the case in
which the figures must be bad.

Every request comes after --pause seconds, as one that a person has typed does: a device that has been
idle takes half a millisecond longer.  Without a pause only long requests would find it idle, because
they take the script itself longest to write.

Answers go back as parts of prompts, so the tokenizer must have all ids of the model's vocabulary
(make_bench_model.py --large-tokenizer).

On a machine that others use, too, --cpu-of PID measures the CPU time of the server with this process
id in place of the time that passes; it counts in hundredths of a second.

Needs nothing but Python.  Prints CSV: what, tokens, cached, runs, median, lowest and highest
milliseconds.  Exits 1 if a turn found less than all that was there.
"""
import argparse
import json
import random
import statistics
import sys
import time

from serving import Server, clock

SINKS = 4


def policy_of(name, budget):
    if name == "streaming":
        return {"type": name, "sink": SINKS, "recent": budget - SINKS}
    heavy = budget // 2
    return {"type": name, "sink": SINKS, "recent": budget - heavy - SINKS, "heavy": heavy,
            "score": "mean", "positions": "cache"}


def ask(options, prompt, salt, n_tokens=1, **parameters):
    """Seconds to the first token, the tokens if return_token_ids is true, how many of the prompt's were
    cached, and seconds to the end."""
    time.sleep(options.pause)
    body = {"prompt": prompt, "max_tokens": n_tokens, "stream": True, "ignore_eos": True,
            "temperature": 0, "cache_salt": salt,
            "stream_options": {"include_usage": True}, "kv_policy": options.policy, **parameters}
    text = json.dumps(body).encode()
    begin, first, tokens, usage = clock(options.cpu_of), None, [], None
    for event in Server(options.url).events(text):
        if event["choices"] and first is None:
            first = clock(options.cpu_of) - begin
        for choice in event["choices"]:
            tokens += choice.get("token_ids", [])
        usage = event.get("usage") or usage
    return first, tokens, usage["prompt_tokens_details"]["cached_tokens"], clock(options.cpu_of) - begin


def report(what, n_tokens, n_cached, seconds):
    ms = [1000 * x for x in seconds]
    print(f"{what},{n_tokens},{n_cached},{len(ms)},{statistics.median(ms):.1f},{min(ms):.1f},"
          f"{max(ms):.1f}", flush=True)
    return statistics.median(ms)


def random_tokens(rng, options, n):
    return [rng.randrange(3, options.vocabulary) for _ in range(n)]


def measure_turns(options, rng):
    prompt = random_tokens(rng, options, options.tokens)
    salt = f"turns {rng.random()}"
    first, answer, n_cached, _ = ask(options, prompt, salt, options.answer, return_token_ids=True)
    report("first turn", len(prompt), n_cached, [first])
    before = prompt + answer
    expected = 0 if options.without else len(before) - 1
    turns, alone, behind, found = [], [], [], []
    prefix = random_tokens(rng, options, options.budget // 64 * 64)
    ask(options, prefix + [3], salt, kv_policy={"type": "full"})
    for i in range(options.repeats):
        new = random_tokens(rng, options, options.new)
        own = f"{salt} {i}" if options.without else salt
        seconds, _, n_cached, _ = ask(options, before + new, own)
        turns.append(seconds)
        found.append(n_cached)
        # One more: the turn reads the answer's last token, too.
        alone.append(ask(options, random_tokens(rng, options, 1) + new, f"{salt} alone {i}")[0])
        behind.append(ask(options, prefix + random_tokens(rng, options, options.new + 1), salt,
                          kv_policy={"type": "full"})[0])
    turn = report("later turn", len(before) + options.new, min(found), turns)
    only = report("the new tokens alone", options.new + 1, 0, alone)
    full = report("behind a prefix", len(prefix) + options.new + 1, len(prefix), behind)
    print(f"# a later turn takes {turn / only:.2f} times as long as its new tokens alone, and "
          f"{turn / full:.2f} times as long as these behind a cached prefix of the budget's length")
    return min(found) >= expected


def measure_choices(options, rng):
    times = []
    for n in (1, options.choices):
        prompt = random_tokens(rng, options, options.prompt)
        seconds = ask(options, prompt, f"choices {rng.random()}", options.answer, n=n, seed=1,
                      temperature=1)[3]
        times.append(report(f"{n} choices", options.prompt, 0, [seconds]))
    print(f"# {options.choices} choices take {times[1] / times[0]:.2f} times as long as one")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--policy", choices=("streaming", "heavy_hitter"), default="streaming")
    parser.add_argument("--budget", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=100000, help="of the first turn's prompt")
    parser.add_argument("--new", type=int, default=200, help="tokens of later turns")
    parser.add_argument("--answer", type=int, default=32, help="tokens of answers")
    parser.add_argument("--prompt", type=int, default=2500, help="tokens before several choices")
    parser.add_argument("--choices", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds before each request")
    parser.add_argument("--cpu-of", type=int, metavar="PID")
    parser.add_argument("--without", action="store_true", help="later turns find nothing")
    options = parser.parse_args()
    options.policy = policy_of(options.policy, options.budget)
    rng = random.Random(options.seed)
    print("what,tokens,cached,runs,median_ms,min_ms,max_ms")
    found = measure_turns(options, rng)
    measure_choices(options, rng)
    if not found:
        sys.exit("a turn found less than what was there")


if __name__ == "__main__":
    main()
