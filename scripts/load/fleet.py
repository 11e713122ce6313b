#!/usr/bin/env python3
"""Simulates a fleet of replicas behind a router: how much of the prompts is cached, and how many requests
get their first token in time, by the rule that chooses a replica.

    scripts/load/fleet.py                                         # 1, 8, 64 and 512 replicas, every rule
    scripts/load/fleet.py --replicas 8 --trace conversation_trace.jsonl
    scripts/load/fleet.py --replicas 2 4 --workload beginnings    # what replicas.py does with real ones

Requests are like those of the conversation trace of Mooncake (Qin et al., FAST 2025; FAST25-release/traces of
github.com/kvcache-ai/Mooncake: 12,031 requests of one hour).  The numbers in CONVERSATION were taken from that
file; --trace replays the file itself.  A first line tells what a cache without bounds would find, so that the
two can be compared.

A replica computes prompts one after the other, at --prefill tokens a second, and each generated token takes a
part of its time, 1 / --decode seconds.  Its cache has --cache tokens in blocks, and evicts the block that was
used least recently.  A block is found as soon as a request with it has come: quire lets later ones wait for it.
The router knows what it has sent where.  Rules:

    random    by chance                          round      one after the other
    least     the fewest requests running        hash       by the conversation's first blocks
    prefix    the longest cached prefix; of equals the one with the least to do
    wait      the least to do, with what this request's prompt adds there: --data-parallel-size has this rule.
              Prompt tokens that are not computed yet count, and BLOCK_OF_QUIRE for each sequence"""
import argparse
import bisect
import collections
import heapq
import itertools
import json
import math
import random
import sys
import zlib

BLOCK = 512  # tokens of a block of the trace
BLOCK_OF_QUIRE = 64

# Quantiles of the trace, for CHANCES.  A turn's prompt has that of the turn before it, its answer, and more.
CHANCES = (0, .05, .25, .5, .75, .95, .99, 1)
CONVERSATION = {
    "first_prompt": (891, 898, 1489, 5989, 14357, 38538, 87172, 126195),
    "answer": (1, 10, 156, 350, 472, 698, 1115, 2000),
    "more": (1, 1, 9, 26, 355, 6921, 16705, 91467),
    "pause_s": (1, 27, 66, 123, 267, 606, 1452, 3030),
    # The chance of another turn, by how many there were.
    "goes_on": (.25, .39, .49, .56, .60, .66, .74),
    # First prompts that share more than the first block with another conversation's, and how much.
    "shares": .087,
    "shared_blocks": (2, 2, 3, 6, 14, 46, 145, 145),
}


def draw(rng, quantiles):
    """A number from a distribution with these quantiles."""
    at = rng.random()
    i = min(bisect.bisect_right(CHANCES, at), len(CHANCES) - 1)
    low, high = CHANCES[i - 1], CHANCES[i]
    return quantiles[i - 1] + (quantiles[i] - quantiles[i - 1]) * (at - low) / (high - low)


Request = collections.namedtuple("Request", "time n_prompt n_answer blocks")


def converse(rng, seconds, rate):
    """Requests like the trace's, `rate` a second, in order of time."""
    numbers, recent, turns = itertools.count(1), collections.deque(maxlen=256), []
    mean_turns, chance = 0, 1
    for depth in range(60):
        mean_turns += chance
        chance *= CONVERSATION["goes_on"][min(depth, len(CONVERSATION["goes_on"]) - 1)]
    time = -1000  # conversations that began before go on
    while time < seconds:
        time += rng.expovariate(rate / mean_turns)
        n_prompt = int(draw(rng, CONVERSATION["first_prompt"]))
        blocks = [0]  # all have it in common
        if recent and rng.random() < CONVERSATION["shares"]:
            blocks = rng.choice(recent)[:int(draw(rng, CONVERSATION["shared_blocks"]))]
        at, depth = time, 0
        while True:
            del blocks[n_prompt // BLOCK:]
            blocks = blocks + [next(numbers) for _ in range(n_prompt // BLOCK - len(blocks))]
            n_answer = int(draw(rng, CONVERSATION["answer"]))
            if 0 <= at < seconds:
                turns.append(Request(at, n_prompt, n_answer, blocks))
            if depth == 0:
                recent.append(list(blocks))
            goes_on = CONVERSATION["goes_on"]
            if rng.random() >= goes_on[min(depth, len(goes_on) - 1)] or at >= seconds:
                break
            at += draw(rng, CONVERSATION["pause_s"])
            n_prompt = min(n_prompt + n_answer + int(draw(rng, CONVERSATION["more"])), 130000)
            blocks, depth = list(blocks), depth + 1
    return sorted(turns)


def replay(path, rate):
    """The requests of a file, faster or slower so that there are `rate` a second."""
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    seconds = (rows[-1]["timestamp"] - rows[0]["timestamp"]) / 1000
    factor = len(rows) / seconds / rate
    return [Request(row["timestamp"] / 1000 * factor, row["input_length"], row["output_length"],
                    row["hash_ids"][:row["input_length"] // BLOCK]) for row in rows]


def begin(rng, n_replicas, rate):
    """replicas.py's trial `prefixes`: eight beginnings for each replica, each asked once, then 31 times in
    any order."""
    n_begin, n_all = 11, 720  # blocks of 64 tokens; tokens
    first = [[(b, i) for i in range(n_begin)] for b in range(8 * n_replicas)]
    rest = [blocks for blocks in first for _ in range(31)]
    rng.shuffle(rest)
    return [Request(i / rate, n_all, 4, blocks) for i, blocks in enumerate(first + rest)]


class Cache:
    """The blocks of a replica, the most recently used last."""

    def __init__(self, number, n_most, holders):
        self.number, self.n_most, self.holders = number, n_most, holders
        self.blocks = collections.OrderedDict()

    def found(self, blocks):
        return next((i for i, block in enumerate(blocks) if block not in self.blocks), len(blocks))

    def use(self, blocks):
        """The deepest block is the first to be evicted: without its parent none is found."""
        for block in reversed(blocks):
            if block in self.blocks:
                self.blocks.move_to_end(block)
            else:
                self.blocks[block] = True
                self.holders.setdefault(block, set()).add(self.number)
        while len(self.blocks) > self.n_most:
            block, _ = self.blocks.popitem(last=False)
            holders = self.holders[block]
            holders.discard(self.number)
            if not holders:
                del self.holders[block]


class Fleet:
    def __init__(self, n, options, block_tokens):
        self.n, self.options, self.block_tokens = n, options, block_tokens
        self.holders = {}
        self.caches = [Cache(i, options.cache // block_tokens, self.holders) for i in range(n)]
        self.free_at = [0.0] * n  # when the work that is there now will be done
        self.n_running = [0] * n
        self.to_do = [0] * n      # tokens, as the router knows it
        self.later = []           # (time, replica, requests that end, tokens that are done)
        self.rng, self.turn = random.Random(7), itertools.count()

    def holders_of(self, blocks):
        """The replicas with the longest cached prefix, and how many blocks that has."""
        n, best = 0, None
        for block in blocks:
            holders = self.holders.get(block)
            if not holders:
                break
            best, n = holders, n + 1
        return best, n  # a replica that has a block has those before it, which were used with it

    def lowest(self, values, among=None):
        """The replica with the least value; of equals one by chance."""
        if among is None or len(among) == self.n:
            least, at = min(values), self.rng.randrange(self.n)
            while values[at] != least:
                at = (at + 1) % self.n
            return at
        least = min(values[r] for r in among)
        return self.rng.choice([r for r in among if values[r] == least])

    def choose(self, rule, request):
        if rule == "random":
            return self.rng.randrange(self.n)
        if rule == "round":
            return next(self.turn) % self.n
        if rule == "least":
            return self.lowest(self.n_running)
        if rule == "hash":
            return zlib.crc32(repr(request.blocks[:4]).encode()) % self.n
        holding, n = self.holders_of(request.blocks)
        if not holding:
            return self.lowest(self.to_do)
        best = self.lowest(self.to_do, holding)
        if rule == "wait":
            idle = self.lowest(self.to_do)
            if self.to_do[best] - n * self.block_tokens > self.to_do[idle]:
                return idle
        return best

    def run(self, request, rule):
        """Returns the tokens found, and the seconds to the first one."""
        now = request.time
        while self.later and self.later[0][0] <= now:
            _, replica, n_ended, n_done = heapq.heappop(self.later)
            self.n_running[replica] -= n_ended
            self.to_do[replica] -= n_done
        replica = self.choose(rule, request)
        cache = self.caches[replica]
        n_found = cache.found(request.blocks) * self.block_tokens
        cache.use(request.blocks)
        n_new = request.n_prompt - n_found
        first = max(self.free_at[replica], now) + n_new / self.options.prefill
        self.free_at[replica] = first + request.n_answer / self.options.decode
        self.n_running[replica] += 1
        self.to_do[replica] += n_new + BLOCK_OF_QUIRE
        heapq.heappush(self.later, (first, replica, 0, n_new))
        heapq.heappush(self.later, (first + request.n_answer * self.options.itl, replica, 1, BLOCK_OF_QUIRE))
        return n_found, first - now


def simulate(requests, n, rule, options, block_tokens):
    fleet = Fleet(n, options, block_tokens)
    begun = requests[-1].time * options.warm
    found = asked = good = counted = 0
    waits = []
    for request in requests:
        n_found, wait = fleet.run(request, rule)
        if request.time < begun:
            continue
        found, asked, counted = found + n_found, asked + request.n_prompt, counted + 1
        good += wait <= options.ttft
        waits.append(wait)
    waits.sort()
    seconds = requests[-1].time - begun
    return {"replicas": n, "rule": rule, "requests": counted, "hit_rate": round(found / asked, 4),
            "requests_per_s_each": round(counted / seconds / n, 3),
            "goodput_per_s_each": round(good / seconds / n, 3),
            "ttft_p50": round(waits[len(waits) // 2], 3), "ttft_p95": round(waits[int(len(waits) * .95)], 3)}


def unbounded(requests, block_tokens):
    """What one cache without bounds would find."""
    known, found, asked = set(), 0, 0
    for request in requests:
        n = next((i for i, b in enumerate(request.blocks) if b not in known), len(request.blocks))
        known.update(request.blocks)
        found, asked = found + n * block_tokens, asked + request.n_prompt
    n = len(requests)
    return {"requests": n, "mean_prompt": round(asked / n), "unbounded_hit_rate": round(found / asked, 4),
            "mean_answer": round(sum(r.n_answer for r in requests) / n)}


RULES = ("random", "round", "least", "hash", "prefix", "wait")


def parse_arguments():
    parser = argparse.ArgumentParser(description="Simulates a fleet of replicas behind a router.")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--workload", choices=("conversation", "beginnings"), default="conversation")
    parser.add_argument("--trace", help="replay this file of Mooncake's format")
    parser.add_argument("--seconds", type=float, default=600, help="of simulated time (default %(default)s)")
    parser.add_argument("--warm", type=float, default=1 / 3, help="share of it that is not counted")
    parser.add_argument("--rate", type=float, default=1,
                        help="requests a second for each replica (default %(default)s)")
    parser.add_argument("--prefill", type=float, default=20000,
                        help="prompt tokens a second of a replica (default %(default)s)")
    parser.add_argument("--decode", type=float, default=2500,
                        help="generated tokens a second, if it did nothing else (default %(default)s)")
    parser.add_argument("--itl", type=float, default=0.02, help="seconds of a token (default %(default)s)")
    parser.add_argument("--cache", type=int, default=2_000_000,
                        help="tokens of a replica's cache, with its host pool (default %(default)s)")
    parser.add_argument("--ttft", type=float, default=2,
                        help="a request is good within so many seconds (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    options = parse_arguments()
    block_tokens = 64 if options.workload == "beginnings" else BLOCK
    for n in options.replicas:
        rng = random.Random(options.seed)
        if options.trace:
            requests = replay(options.trace, options.rate * n)
        elif options.workload == "beginnings":
            requests, options.warm = begin(rng, n, options.rate * n), 0
        else:
            requests = converse(rng, options.seconds, options.rate * n)
        print(json.dumps({"workload": options.trace or options.workload, "replicas": n,
                          **unbounded(requests, block_tokens)}), flush=True)
        for rule in options.rules:
            print(json.dumps(simulate(requests, n, rule, options, block_tokens)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
