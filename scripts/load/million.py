#!/usr/bin/env python3
"""Sends one very long prompt to a running server, with short streams beside it, and prints times.

    build/quire serve DIR --max-model-len 1000100 --max-long-tokens 1000000 --kv-offload-size 100G
    scripts/load/million.py --tokens 1000000 --max-tokens 100 --short-clients 4

Needs nothing but Python.  The prompt is random token ids, under kv_policy offload and sparse
prefill unless told otherwise; all answers are streamed with a log-probability for every token, so
that each is an event.  The short streams begin --before seconds earlier and go on, one request
after another, until the long one is over.  Meanwhile /metrics is read, which tells when the long
one was admitted (its blocks of the host pool are taken), and how many steps were made.  Prints a
time line, the rate, and the times between tokens of the short streams; with --json one object.  Exits 1
if any request failed.
"""
import argparse
import asyncio
import json
import random
import sys
import time

from client import Stream, body_of, percentiles, random_tokens
from serving import Server

POLL_SECONDS = 0.25
SHOWN_METRICS = ("quire_kv_pages_total", "quire_kv_pages_free", "quire_kv_store_bytes",
                 "quire_kv_store_used_bytes")


async def short_stream(options, number, arrivals):
    """Asks again and again; appends the list of arrivals of each answer."""
    rng = random.Random(options.seed * 1000 + number)
    stream = Stream(options)
    try:
        while True:
            stream.arrivals = []
            arrivals.append(stream.arrivals)
            await stream.ask(body_of(random_tokens(rng, options, options.short_prompt),
                                     options.short_tokens))
    finally:
        stream.close()


async def watch(options, samples):
    server = Server(options.url, options.api_key)
    while True:
        samples.append((time.monotonic(), await asyncio.to_thread(server.metrics)))
        await asyncio.sleep(POLL_SECONDS)


async def run(options):
    """(the long stream, when it was sent, samples of the metrics, arrivals of the short ones)"""
    rng = random.Random(options.seed)
    body = body_of(random_tokens(rng, options, options.tokens), options.max_tokens,
                   kv_policy={"type": "offload", "selected": options.selected,
                              "tail": options.tail}, prefill=options.prefill)
    stream, samples, arrivals = Stream(options), [], []
    beside = [asyncio.create_task(short_stream(options, i, arrivals))
              for i in range(options.short_clients)]
    beside.append(asyncio.create_task(watch(options, samples)))
    await asyncio.sleep(options.before)
    sent = time.monotonic()
    long = asyncio.create_task(asyncio.wait_for(stream.ask(body), options.timeout))
    done, _ = await asyncio.wait([long, *beside], return_when=asyncio.FIRST_COMPLETED)
    for task in (long, *beside):
        task.cancel()
    for task in done:
        task.result()  # raises what went wrong; only the long one ends otherwise
    stream.close()
    return stream, sent, samples, arrivals


def gaps(arrivals, begin, end):
    """Between tokens of one answer, of those whose second token came between the two times."""
    return [later - earlier for answer in arrivals for earlier, later in zip(answer, answer[1:])
            if begin <= later < end]


def store_used(sample):
    return sample[1].get("quire_kv_store_used_bytes", 0)


def summarise(options, stream, sent, samples, arrivals):
    first, last = stream.arrivals[0], stream.arrivals[-1]
    before = [sample for sample in samples if sample[0] < sent]
    during = [sample for sample in samples if sample[0] >= sent]
    base = store_used(before[-1]) if before else 0
    admitted = next((at for at, *sample in during if store_used((at, *sample)) > base), None)
    n = len(stream.arrivals)
    return {
        "tokens": options.tokens, "generated": n, "plan": {
            name: samples[0][1][name] for name in SHOWN_METRICS if name in samples[0][1]},
        "admitted_s": admitted and round(admitted - sent, 2),
        "first_token_s": round(first - sent, 3),
        "prompt_tokens_per_s": round(options.tokens / (first - sent), 1),
        "whole_s": round(last - sent, 3),
        "tokens_per_s": round((n - 1) / (last - first), 2) if last > first else None,
        "between_tokens_ms": percentiles(gaps([stream.arrivals], first, last + 1)),
        "short_between_tokens_ms": {
            "before": percentiles(gaps(arrivals, 0, sent)),
            "during the prompt": percentiles(gaps(arrivals, sent, first)),
            "during the answer": percentiles(gaps(arrivals, first, last))},
        "usage": stream.usage,
        "steps": [[round(at - sent, 2), int(sample["quire_steps_total"])]
                  for at, sample in samples]}


def print_percentiles(label, values):
    columns = ("p50", "p95", "p99", "max")
    shown = "".join(f"{column:>6}{values[column]:>10.2f}" for column in columns) if values else ""
    print(f"  {label:<26}{shown or '  none'}")


def print_report(result):
    print("server:", ", ".join(f"{name.removeprefix('quire_')} {value:.0f}"
                               for name, value in result["plan"].items()))
    print(f"{result['tokens']} tokens: admitted after {result['admitted_s']} s, first token after "
          f"{result['first_token_s']} s ({result['prompt_tokens_per_s']} tokens/s), all after "
          f"{result['whole_s']} s")
    print(f"{result['generated']} tokens generated, {result['tokens_per_s']} a second")
    steps = result["steps"]
    shown = steps[::max(1, len(steps) // 12)]
    print("steps:", ", ".join(f"{n - steps[0][1]} at {at:.1f} s" for at, n in shown))
    print("milliseconds between tokens:")
    print_percentiles("the long one's", result["between_tokens_ms"])
    for label, values in result["short_between_tokens_ms"].items():
        print_percentiles("short, " + label, values)
    for name in ("kv", "prefill"):
        print(f"usage.{name}: {json.dumps((result['usage'] or {}).get(name))}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens of the long prompt")
    parser.add_argument("--max-tokens", type=int, default=100, help="tokens that it generates")
    parser.add_argument("--selected", type=int, default=2048)
    parser.add_argument("--tail", type=int, default=512)
    parser.add_argument("--prefill", choices=("auto", "dense", "sparse"), default="sparse")
    parser.add_argument("--short-clients", type=int, default=4)
    parser.add_argument("--short-prompt", type=int, default=64)
    parser.add_argument("--short-tokens", type=int, default=200)
    parser.add_argument("--before", type=float, default=5, help="seconds of short streams alone")
    parser.add_argument("--vocabulary", type=int, default=8000, help="prompt ids are below this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for the long prompt")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.tokens < 1 or options.max_tokens < 1 or options.short_clients < 0:
        parser.error("tokens are positive numbers")
    return options


def main():
    options = parse_arguments()
    try:
        stream, *rest = asyncio.run(run(options))
        result = summarise(options, stream, *rest)
    except (OSError, ValueError, EOFError, IndexError, asyncio.TimeoutError) as error:
        sys.exit(f"million.py: {type(error).__name__}: {error}")
    if stream.usage["completion_tokens"] != result["generated"]:
        sys.exit("million.py: not every token was an event")
    if options.json:
        print(json.dumps(result))
    else:
        print_report(result)


if __name__ == "__main__":
    main()
