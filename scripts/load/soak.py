#!/usr/bin/env python3
"""Sends mixed load for a long time, and checks that everything is as it was before.

    build/quire serve models/quire-22m --kv-offload-size 2G --enable-prefix-caching false
    scripts/load/soak.py --minutes 60 --long-clients 10 --short-clients 6

Needs nothing but Python.  The long clients ask for texts under kv_policy offload, the short ones
for ordinary ones, again and again; every third disconnects in the middle, at a random moment.
Before and after the load, once nothing runs, /metrics is read: free pages, and bytes of the host
pool that are in use.  They must be equal, and with --pid the server's memory may grow by --slack at
most.  Prints a line a minute.  Exits 1 if something is not as it was, or if a request failed
although its client stayed.
"""
import argparse
import asyncio
import collections
import pathlib
import random
import sys
import time

from million import Stream, body_of, random_tokens, read_metrics

EXACT = ("quire_kv_pages_free", "quire_kv_store_used_bytes")
PAGE_BYTES = 4096


def resident_bytes(options):
    if not options.pid:
        return 0
    return int(pathlib.Path(f"/proc/{options.pid}/statm").read_text().split()[1]) * PAGE_BYTES


async def idle_state(options):
    """What the server holds once nothing runs or waits."""
    while True:
        metrics = await read_metrics(options)
        if metrics["quire_requests_running"] + metrics["quire_requests_waiting"] == 0:
            return {**{name: metrics[name] for name in EXACT if name in metrics},
                    "resident bytes": resident_bytes(options)}
        await asyncio.sleep(0.2)


async def ask(options, rng, body):
    """What became of one request."""
    stream = Stream(options)
    patience = rng.expovariate(1 / options.patience) if rng.random() < 1 / 3 else options.timeout
    try:
        await asyncio.wait_for(stream.ask(body), patience)
        return "finished"
    except asyncio.TimeoutError:
        return "left" if patience < options.timeout else "too late"
    except (OSError, ValueError, EOFError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return "failed"
    finally:
        stream.close()


async def client(options, seed, is_long, end, counts):
    rng = random.Random(seed)
    policy = {"kv_policy": {"type": "offload", "selected": options.selected,
                            "tail": options.tail}} if is_long else {}
    while time.monotonic() < end:
        n = rng.randrange(options.long_prompt // 2, options.long_prompt) if is_long \
            else rng.randrange(1, options.short_prompt)
        body = body_of(random_tokens(rng, options, n), rng.randrange(1, options.max_tokens),
                       **policy)
        counts["long" if is_long else "short", await ask(options, rng, body)] += 1


async def tell(options, begin, counts):
    while True:
        await asyncio.sleep(60)
        metrics = await read_metrics(options)
        print(f"{(time.monotonic() - begin) / 60:4.0f} min", *(
            f"{kind} {what} {n}," for (kind, what), n in sorted(counts.items())),
            f"store {metrics.get('quire_kv_store_used_bytes', 0) / 2**20:.0f} MiB,",
            f"pages free {metrics['quire_kv_pages_free']:.0f}", flush=True)


async def load(options, seed, seconds, counts):
    end = time.monotonic() + seconds
    await asyncio.gather(*(
        client(options, 1000 * seed + i, i < options.long_clients, end, counts)
        for i in range(options.long_clients + options.short_clients)))


async def run(options):
    counts = collections.Counter()
    await load(options, options.seed, options.warm, counts)
    before = await idle_state(options)
    teller = asyncio.create_task(tell(options, time.monotonic(), counts))
    await load(options, options.seed + 1, 60 * options.minutes, counts)
    teller.cancel()
    return counts, before, await idle_state(options)


def judge(options, counts, before, after):
    """What is not as it was."""
    wrong = [f"{name} was {before[name]:.0f} and is {after[name]:.0f}"
             for name in EXACT if name in before and before[name] != after[name]]
    grown = after["resident bytes"] - before["resident bytes"]
    if grown > options.slack * 2**20:
        wrong.append(f"the server holds {grown / 2**20:.0f} MiB more")
    return wrong + [f"{n} {kind} requests {what}" for (kind, what), n in counts.items()
                    if what in ("failed", "too late")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--warm", type=float, default=30, help="seconds of load before that")
    parser.add_argument("--long-clients", type=int, default=10)
    parser.add_argument("--short-clients", type=int, default=6)
    parser.add_argument("--long-prompt", type=int, default=4000,
                        help="most tokens; at least half of it")
    parser.add_argument("--short-prompt", type=int, default=200,
                        help="most tokens of a short prompt")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--selected", type=int, default=256)
    parser.add_argument("--tail", type=int, default=64)
    parser.add_argument("--patience", type=float, default=5,
                        help="mean seconds until a client disconnects")
    parser.add_argument("--vocabulary", type=int, default=8000, help="prompt ids are below this")
    parser.add_argument("--pid", type=int, help="process id of the server, to read its memory")
    parser.add_argument("--slack", type=float, default=32,
                        help="most MiB by which its memory may grow")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a request")
    return parser.parse_args()


def main():
    options = parse_arguments()
    counts, before, after = asyncio.run(run(options))
    for kind, what in sorted(counts):
        print(f"{kind} {what}: {counts[kind, what]}")
    for name in before:
        print(f"{name}: {before[name]:.0f} before, {after[name]:.0f} after")
    wrong = judge(options, counts, before, after)
    print("\n".join(wrong) or "everything is as it was")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
