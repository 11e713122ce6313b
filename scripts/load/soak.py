#!/usr/bin/env python3
"""Sends mixed load for a long time, and checks that everything is as it was before.

    build/quire serve models/quire-31m --kv-offload-size 2G --enable-prefix-caching false
    scripts/load/soak.py --minutes 60 --long-clients 10 --short-clients 6

Or, at a part of what the server can do, and with every policy:

    head -c 4096 /dev/zero > live; LD_PRELOAD=build/tests/e2e/live_bytes.so LIVE_BYTES=live \
        build/quire serve models/quire-31m --kv-offload-size 1G --enable-prefix-caching false
    scripts/load/soak.py --minutes 30 --load 0.5 --pid PID --heap live

Needs nothing but Python.  The long clients ask for texts under kv_policy offload, the short ones
for ordinary ones, again and again; every third disconnects in the middle, at a random moment.
Before and after the load, once nothing runs, /metrics is read: free pages, and bytes of the host
pool that are in use.  They must be equal, and with --pid the server's memory may grow by --slack at
most.  Prints a line a minute.  Exits 1 if something is not as it was, or if a request failed
although its client stayed.

With --load, eight clients in a closed loop first tell for --warm seconds how many requests a second
the server answers.  Bursts of the longest requests let what grows to the largest step
seen have its size.  Then that share of the rate comes at random times, of the kinds of MIX in turn;
one of eight clients disconnects.  The load pauses --points times.  Then what is alive on the heap
(--heap, the page of live_bytes.so) is read, and a straight line is fitted to its bytes over the
number of requests; its slope may be --slope bytes at most.  --leak N keeps N bytes more for each
request in the figures: the case in which it must be bad.
"""
import argparse
import asyncio
import collections
import os
import pathlib
import random
import struct
import sys
import time

from client import Stream, body_of, random_tokens
from serving import Server, resident_bytes

EXACT = ("quire_kv_pages_free", "quire_kv_store_used_bytes")
MIX = ({}, {"kv_policy": {"type": "streaming", "sink": 4, "recent": 124}}, {"n": 2},
       {"kv_policy": {"type": "heavy_hitter", "heavy": 64, "recent": 64}},
       {"kv_policy": {"type": "offload", "selected": 64, "tail": 64}},
       {"prefill": {"mode": "sparse"}}, {"temperature": 1, "top_p": 0.9, "stop": ["q", "xyz"]},
       {"prefill": {"mode": "sparse"}, "kv_policy": {"type": "streaming", "sink": 4, "recent": 124,
                                                     "prompt": "whole", "positions": "text"}})


async def read_metrics(options):
    return await asyncio.to_thread(Server(options.url, options.api_key).metrics)


def memory_of(options):
    return resident_bytes(options.pid) if options.pid else 0


async def idle_state(options):
    """What the server holds once nothing runs or waits."""
    while True:
        metrics = await read_metrics(options)
        if metrics["quire_requests_running"] + metrics["quire_requests_waiting"] == 0:
            return {**{name: metrics[name] for name in EXACT if name in metrics},
                    "resident bytes": memory_of(options)}
        await asyncio.sleep(0.2)


async def ask(options, rng, body):
    """What became of one request."""
    stream = Stream(options)
    leaves = getattr(options, "leaves", None)
    if leaves is None:
        leaves = rng.random() < 1 / 3
    patience = rng.expovariate(1 / options.patience) if leaves else options.timeout
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


# ---- a share of what the server can do ----


async def mixed(options, rng, number, counts, is_longest=False):
    """One request of the mix."""
    parameters = MIX[number % len(MIX)]
    stays = argparse.Namespace(**{**vars(options), "leaves": not is_longest and number % 8 == 7})
    n, most = options.mixed_prompt, options.mixed_tokens
    if not is_longest:
        n, most = rng.randrange(1, n), rng.randrange(1, most)
    body = body_of(random_tokens(rng, options, n), most, **parameters)
    counts["mixed", await ask(stays, rng, body)] += 1


async def burst(options, counts):
    """The longest requests of the mix, as many at once as the load may ever have, and so many of each
    kind alone: what grows to the largest step seen, as the scratch of the CPU backend, has that
    size afterwards."""
    rng, n_kinds = random.Random(options.seed), len(MIX)
    bursts = [range(options.burst),
              *(range(kind, kind + n_kinds * options.burst, n_kinds) for kind in range(n_kinds))]
    for numbers in bursts:
        await asyncio.gather(*(mixed(options, rng, i, counts, True) for i in numbers))


async def capacity(options, counts):
    """Requests a second in a closed loop."""
    begin, numbers, rng = time.monotonic(), iter(range(1 << 60)), random.Random(options.seed)

    async def one():
        while time.monotonic() < begin + options.warm:
            await mixed(options, rng, next(numbers), counts)
    await asyncio.gather(*(one() for _ in range(8)))
    return sum(counts.values()) / (time.monotonic() - begin)


async def offered(options, rng, rate, seconds, counts):
    """Requests at random times; returns when all have ended."""
    due, end, tasks = time.monotonic(), time.monotonic() + seconds, set()
    while (due := due + rng.expovariate(rate)) < end:
        await asyncio.sleep(max(0, due - time.monotonic()))
        task = asyncio.create_task(mixed(options, rng, rng.randrange(1 << 30), counts))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def held(options, n_requests):
    """What an idle server holds."""
    await idle_state(options)
    metrics = await read_metrics(options)
    await asyncio.sleep(2)  # connections end a moment after their answers
    pages = [metrics[f"quire_kv_pages_{what}"] for what in ("total", "free", "cached")]
    heap = struct.unpack("<qq", pathlib.Path(options.heap).read_bytes()[:16]) if options.heap else (0, 0)
    descriptors = len(os.listdir(f"/proc/{options.pid}/fd")) if options.pid else 0
    return {"requests": n_requests, "heap bytes": heap[0] + options.leak * n_requests,
            "heap blocks": heap[1], "resident bytes": memory_of(options),
            "descriptors": descriptors, "pages in use": pages[0] - pages[1] - pages[2],
            "host pool bytes": metrics.get("quire_kv_store_used_bytes", 0)}


def slope(points, what):
    """Of the straight line through the points over requests, and its standard error."""
    n = len(points)
    xs, ys = [p["requests"] for p in points], [p[what] for p in points]
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    spread = sum((x - mean_x) ** 2 for x in xs)
    b = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / spread
    rest = sum((y - mean_y - b * (x - mean_x)) ** 2 for x, y in zip(xs, ys))
    return b, (rest / (n - 2) / spread) ** 0.5


async def run_share(options):
    counts = collections.Counter()
    rate = options.load * await capacity(options, counts)
    print(f"# {rate / options.load:.2f} requests/s in a closed loop; now {rate:.2f}", flush=True)
    rng = random.Random(options.seed + 1)
    await burst(options, counts)
    await offered(options, rng, rate, options.warm, counts)
    counts.clear()
    points = [await held(options, 0)]
    print(",".join(points[0]))
    print(*(f"{value:.0f}" for value in points[0].values()), sep=",", flush=True)
    for _ in range(options.points):
        await offered(options, rng, rate, 60 * options.minutes / options.points, counts)
        points.append(await held(options, sum(counts.values())))
        print(*(f"{value:.0f}" for value in points[-1].values()), sep=",", flush=True)
    return counts, points


def judge_share(options, counts, points):
    wrong = [f"{n} requests {what}" for (_, what), n in counts.items()
             if what in ("failed", "too late")]
    for what in ("descriptors", "pages in use", "host pool bytes"):
        if points[-1][what] != points[0][what]:
            wrong.append(f"{what}: {points[0][what]:.0f} before, {points[-1][what]:.0f} after")
    b, error = slope(points, "heap bytes")
    print(f"heap: {b:.4f} bytes a request (standard error {error:.4f}), "
          f"{points[-1]['heap bytes'] - points[0]['heap bytes']:.0f} in all")
    if options.heap and b > options.slope:
        wrong.append(f"the heap grows by {b:.3f} bytes a request")
    grown = points[-1]["resident bytes"] - points[0]["resident bytes"]
    if grown > options.slack * 2**20:
        wrong.append(f"the server holds {grown / 2**20:.0f} MiB more")
    return wrong


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
    parser.add_argument("--load", type=float, help="share of what the server can do")
    parser.add_argument("--heap", help="the page that live_bytes.so writes")
    parser.add_argument("--slope", type=float, default=0.1,
                        help="most bytes of the heap a request may leave")
    parser.add_argument("--leak", type=float, default=0)
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--burst", type=int, default=64, help="requests at once, before it is measured")
    parser.add_argument("--mixed-prompt", type=int, default=600, help="most tokens")
    parser.add_argument("--mixed-tokens", type=int, default=32, help="most tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a request")
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.load:
        counts, points = asyncio.run(run_share(options))
        print(", ".join(f"{what} {n}" for (_, what), n in sorted(counts.items())))
        wrong = judge_share(options, counts, points)
        print("\n".join(wrong) or "everything is as it was")
        sys.exit(bool(wrong))
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
