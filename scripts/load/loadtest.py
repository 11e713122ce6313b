#!/usr/bin/env python3
"""Runs streaming clients against a running server and prints the time to the first token and between
tokens, the throughput, and the goodput under limits on both.

    scripts/load/loadtest.py --clients 64 --requests 512 --prompt-tokens 128 --max-tokens 64
    scripts/load/loadtest.py --mix sharegpt --rate 20 --goodput-ttft 500 --goodput-itl 50 --png load.png
    scripts/load/loadtest.py --mix conversation --turns 6 --api chat --clients 16

A closed loop, --clients, sends a client's next request when its last is answered: it never overloads the
server by more than that.  An open loop, --rate, sends requests at random moments, as many a second on
average whatever the server does (a Poisson process), and counts times from the moment when a request was
due.  Every prompt is random, from --seed, so prefix caching does not flatter the numbers unless
--shared-prefix says how many first tokens all prompts have in common, or a conversation repeats its own.
load_mix.py says what the mixes are.

Needs nothing but Python; --png needs matplotlib.  The table goes to stdout; with --json the results go
there as one object, and the table to stderr, where the progress bar is, too.  Exits 1 when any request
failed."""
import argparse
import asyncio
import json
import random
import sys
import time

from client import Client, Progress
from load_mix import DEFAULTS, Job
from load_report import draw, print_table, summarise


class Load:
    """A run: its jobs, the connections that wait for one, and what came of each request."""

    def __init__(self, options):
        self.options = options
        n_turns = options.turns if options.mix == "conversation" else 1
        self.n_jobs = -(-options.requests // n_turns)
        self.progress = Progress(self.n_jobs * n_turns)
        self.samples, self.idle, self.late = [], [], 0.0

    async def do(self, client, job, due=None):
        """Asks a job's turns, one after the other; a conversation ends with a turn that fails."""
        for turn in range(len(job.turns)):
            if turn and self.options.think_time:
                await asyncio.sleep(self.options.think_time)
            sample = await client.run(job.body(turn), job.path(), due if turn == 0 else None)
            self.samples.append(sample)
            self.progress.advance(sample)
            if sample.error:
                return
            job.answered(sample.text)

    async def run_closed(self):
        numbers = iter(range(self.n_jobs))

        async def client_loop():
            client = Client(self.options)
            for number in numbers:  # shared: each number is taken once
                await self.do(client, Job(self.options, number))
            client.close()

        await asyncio.gather(*(client_loop() for _ in range(min(self.options.clients, self.n_jobs))))

    async def arrive(self, job, due):
        """One arrival of the open loop, on a connection that is free or new."""
        self.late = max(self.late, time.monotonic() - due)
        client = self.idle.pop() if self.idle else Client(self.options)
        await self.do(client, job, due)
        self.idle.append(client)

    async def run_open(self):
        rng = random.Random(self.options.seed)
        jobs = [Job(self.options, number) for number in range(self.n_jobs)]
        due, tasks = time.monotonic(), []
        for job in jobs:
            due += rng.expovariate(self.options.rate)
            await asyncio.sleep(max(0, due - time.monotonic()))
            tasks.append(asyncio.create_task(self.arrive(job, due)))
        await asyncio.gather(*tasks)
        for client in self.idle:
            client.close()

    async def run(self):
        """Returns the seconds from the first request to the last answer."""
        begun = time.monotonic()
        await (self.run_open() if self.options.rate else self.run_closed())
        return time.monotonic() - begun


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Load test for an OpenAI-compatible server.")
    parser.add_argument("--url", default="http://127.0.0.1:8000",
                        help="server, without /v1 (default %(default)s)")
    parser.add_argument("--api", choices=("completions", "chat"), default="completions")
    parser.add_argument("--mix", choices=tuple(DEFAULTS), default="fixed",
                        help="lengths of prompts and answers (default %(default)s)")
    parser.add_argument("--clients", type=int, default=64,
                        help="closed loop: connections at once (default %(default)s)")
    parser.add_argument("--rate", type=float,
                        help="open loop: requests a second (of conversation: conversations)")
    parser.add_argument("--requests", type=int, default=512,
                        help="requests in all (default %(default)s)")
    parser.add_argument("--turns", type=int, default=4,
                        help="turns of a conversation (default %(default)s)")
    parser.add_argument("--think-time", type=float, default=0,
                        help="seconds between the turns of a conversation")
    parser.add_argument("--prompt-tokens", type=int,
                        help="fixed: length of each prompt (default 128); long: the longest (16384)")
    parser.add_argument("--shared-prefix", type=int, default=0,
                        help="first tokens that all prompts share")
    parser.add_argument("--max-tokens", type=int,
                        help="fixed and long: tokens to generate each (default 64)")
    parser.add_argument("--goodput-ttft", type=float, metavar="MS",
                        help="goodput counts answers with a first token within this")
    parser.add_argument("--goodput-itl", type=float, metavar="MS",
                        help="and with this much, or less, for each further token on average")
    parser.add_argument("--words", action="store_true",
                        help="prompts of words, for servers that take no token ids")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--vocabulary", type=int, default=8000,
                        help="prompt ids are below this (default %(default)s)")
    parser.add_argument("--model", help="model name to send")
    parser.add_argument("--api-key")
    parser.add_argument("--timeout", type=float, default=600,
                        help="seconds for one request (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1,
                        help="seed of the random prompts (default %(default)s)")
    parser.add_argument("--json", action="store_true",
                        help="print the results to stdout as one JSON object")
    parser.add_argument("--png", metavar="FILE", help="draw the results into this file")
    options = parser.parse_args()
    prompt, answer = DEFAULTS[options.mix]
    for name, default in (("prompt_tokens", prompt), ("max_tokens", answer)):
        if getattr(options, name) is None:
            setattr(options, name, default)
        elif default is None:
            parser.error(f"--mix {options.mix} has lengths of its own, "
                         f"without --{name.replace('_', '-')}")
    numbers = (options.clients, options.requests, options.turns, options.prompt_tokens,
               options.max_tokens)
    if any(number is not None and number < 1 for number in numbers):
        parser.error("--clients, --requests, --turns, --prompt-tokens and --max-tokens are at least 1")
    if options.rate is not None and options.rate <= 0:
        parser.error("--rate is above 0")
    return options


def main():
    options = parse_arguments()
    load = Load(options)
    try:
        seconds = asyncio.run(load.run())
    except KeyboardInterrupt:
        return 130
    result = summarise(options, load.samples, seconds, load.late)
    print_table(result, sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(result))
    if options.png:
        draw(options, result, load.samples, options.png)
    for message in sorted({sample.error for sample in load.samples if sample.error})[:5]:
        print(f"failed: {message}", file=sys.stderr)
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
