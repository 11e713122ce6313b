#!/usr/bin/env python3
"""Sends many mixed requests at once, then the same ones one at a time, and compares the answers bit
for bit: texts, token ids, log-probabilities.  That is what --batch-invariant promises.

    scripts/load/check_invariance.py --requests 1000                      starts build/quire itself
    scripts/load/check_invariance.py --requests 1000 -- MODEL --device cuda
    scripts/load/check_invariance.py --url http://127.0.0.1:8000          asks a running server

Needs nothing but Python.  Requests differ in length (1 token to the whole context, shared
beginnings among them), sampling, seeds, n, log-probabilities, echo and streaming, and some clients
leave in the middle of their stream: what they got must be the beginning of what the request gives
alone.

Without --url, what follows -- goes to `quire serve` (on a GPU, --batch-invariant=false there shows
that the check can fail), and the server for the second round takes smaller steps and has no prefix
cache, so that prompts are cut and computed in other pieces, too.
The last line is a summary; exits 1 when any answer differed or failed.
"""
import argparse
import contextlib
import http.client
import queue
import random
import sys
import threading
import time

from client import Answer, parse
from serving import BINARY, OwnServer, Server

OTHER_CUTS = ("--max-num-batched-tokens", "320", "--no-enable-prefix-caching")
LONGEST_ECHO = 300


class Plan:
    """One request: its body, and after how many streamed events its client leaves (None: never)."""

    def __init__(self, body, leaves_after=None):
        self.body, self.leaves_after = body, leaves_after


def make_prompt(rng, longest, beginnings):
    """Lengths are spread evenly over orders of magnitude; half of the prompts begin like others."""
    length = min(longest, int(longest ** rng.random() + rng.random()))
    tokens = [rng.randrange(1, 1000) for _ in range(max(1, length))]
    if rng.random() < 0.5:
        shared = rng.choice(beginnings)[:rng.randrange(len(tokens) + 1)]
        tokens[:len(shared)] = shared
    return tokens


def make_plans(n_requests, context, max_tokens, seed):
    rng = random.Random(seed)
    longest = context - max_tokens
    beginnings = [[rng.randrange(1, 1000) for _ in range(min(longest, 700))] for _ in range(4)]
    plans = []
    for i in range(n_requests):
        prompt = make_prompt(rng, longest, beginnings)
        body = {"prompt": prompt, "max_tokens": rng.randrange(1, max_tokens + 1), "seed": i,
                "ignore_eos": rng.random() < 0.7, "logprobs": rng.randrange(0, 6),
                "return_token_ids": True, "stream": rng.random() < 0.5,
                "temperature": rng.choice((0, 0, 0.6, 1.0, 1.3))}
        body |= rng.choice(({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.02, "top_p": 0.95},
                            {"frequency_penalty": 0.4, "presence_penalty": -0.2},
                            {"repetition_penalty": 1.2, "min_tokens": 1}, {"stop": [" the", "\n"]}))
        if rng.random() < 0.2:
            body["n"] = rng.randrange(2, 5)
        elif len(prompt) <= LONGEST_ECHO and rng.random() < 0.2:
            body["echo"] = True
        leaves = body["stream"] and rng.random() < 0.25
        plans.append(Plan(body, rng.randrange(1, 1 + body["max_tokens"]) if leaves else None))
    return plans


def ask(server, plan, leaves_after):
    answer = Answer()
    if not plan.body["stream"]:
        with server.answer("POST", "/v1/completions", plan.body) as reply:
            text = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {text[:300]}")
        answer.add(parse(text)["choices"])
        return answer
    for n_events, event in enumerate(server.events(plan.body, parse=parse), 1):
        answer.add(event["choices"])
        if n_events == leaves_after:
            answer.whole = False
            break
    return answer


@contextlib.contextmanager
def own_server(binary, arguments):
    with OwnServer(binary, "--batch-invariant=true", *arguments, "--log-level", "warn") as server:
        yield server.url


def ask_all(url, plans, n_clients, leaving, timeout):
    """The answers in the order of the plans; an exception stands for an answer that failed."""
    answers, todo = [None] * len(plans), queue.SimpleQueue()
    server = Server(url, timeout=timeout)
    for i in range(len(plans)):
        todo.put(i)

    def client():
        while True:
            try:
                i = todo.get_nowait()
            except queue.Empty:
                return
            try:
                answers[i] = ask(server, plans[i], plans[i].leaves_after if leaving else None)
            except (OSError, http.client.HTTPException, RuntimeError, ValueError) as error:
                answers[i] = error

    threads = [threading.Thread(target=client) for _ in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def find_faults(plans, together, alone):
    faults = []
    for i, (plan, a, b) in enumerate(zip(plans, together, alone)):
        failed = next((x for x in (a, b) if isinstance(x, Exception)), None)
        what = f"failed: {failed}" if failed else a.difference(b)
        if what:
            shape = {k: v for k, v in plan.body.items() if k != "prompt"}
            faults.append(f"request {i}: {len(plan.body['prompt'])} prompt tokens, {shape}: {what}")
    return faults


def check(together_server, alone_server, options):
    """Both are context managers that give a url.  Returns the faults, and a summary."""
    with together_server as url:
        context = options.context or Server(url).model()["max_model_len"]
        plans = make_plans(options.requests, context, options.max_tokens, options.seed)
        begun = time.monotonic()
        together = ask_all(url, plans, options.clients, True, options.timeout)
        seconds_together = time.monotonic() - begun
    order = list(range(len(plans)))
    random.Random(options.seed + 1).shuffle(order)
    with alone_server as url:
        begun = time.monotonic()
        shuffled = ask_all(url, [plans[i] for i in order], 1, False, options.timeout)
        seconds_alone = time.monotonic() - begun
    alone = [answer for _, answer in sorted(zip(order, shuffled), key=lambda pair: pair[0])]
    faults = find_faults(plans, together, alone)
    good = [a for a in together if isinstance(a, Answer)]
    return faults, (
        f"{len(plans)} requests, {sum(len(p.body['prompt']) for p in plans)} prompt tokens, "
        f"{sum(a.n_tokens() for a in good)} tokens compared, "
        f"{sum(not a.whole for a in good)} clients left early: {len(faults)} differ "
        f"({seconds_together:.1f} s together, {seconds_alone:.1f} s one at a time)")


def read_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server; it must have been started so")
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=64, help="requests at once")
    parser.add_argument("--context", type=int, default=0, help="longest request [the model's]")
    parser.add_argument("--max-tokens", type=int, default=64, help="most generated tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one answer")
    parser.add_argument("serve", nargs="*", help="after --: arguments of `quire serve`")
    return parser.parse_args()


def main():
    options = read_options()
    if options.url:
        servers = [contextlib.nullcontext(options.url)] * 2
    else:
        servers = [own_server(options.binary, options.serve),
                   own_server(options.binary, [*options.serve, *OTHER_CUTS])]
    faults, summary = check(*servers, options)
    for fault in faults[:20]:
        print(fault)
    print(summary)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
