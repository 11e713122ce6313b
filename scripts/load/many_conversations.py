#!/usr/bin/env python3
"""Holds many conversations at once, under mixed KV policies and with clients that leave, and compares
every answer bit for bit with the same one given alone.

    scripts/load/many_conversations.py --beside 20 -- --kv-cache-memory 40M --max-model-len 3072 \\
        --max-num-seqs 32 --threads 1 --kv-offload-size 1G

Starts `quire serve` on the CPU itself; what follows -- goes to it.  A pool as small as that one makes
sequences lose their places, and states their pages.  Each turn's prompt is all that was said before
and something new, as token ids or as text.  Some clients leave in the middle of an answer, or before
it, and ask the same again.  Some conversations have a cache_salt of their own, some share one or have
none, and some pairs begin alike.  Waves of long answers beside them have a higher rank, and take
pages from them.

Afterwards each turn is asked alone, on the same server under new salts, with its prompt as it was.
What a bounded cache keeps depends on where turns began (docs/kv-policies.md).  So the reference has
the same *history*: the same states to go on from, as `cached_tokens` told.  A turn that found the end
of the one before has the history of a conversation alone; these are counted as `own`.  Where that
state was lost, the turn goes on from an older one (`older`), or reads all of its prompt (`anew`), and
so does its reference.  It is a fault if a request found what none had left, or, with --roomy, less
than what was there.  A client that left before the first event does not know what its request found.
Turns with several possible histories are counted as `ambiguous`; one of them must give the answer.

Under `full` and `offload` no answer depends on what was found.  Without a host pool a preempted
request under `offload` is computed again, like a prompt, so that policy takes part only with one.

Last, all pages must be free or cached, and the process may hold no more than the memory plan in its
log and --slack.  Needs nothing but Python.  Prints CSV, a row for each policy, and a summary; exits 1
if anything differs.  --plant shows that it can: `seed` asks one of ten references with another seed,
`anew` lets every reference read its prompt from the beginning, as if histories made no difference.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import threading
import time

from client import Answer, parse
from serving import read_events

ROOT = pathlib.Path(__file__).resolve().parents[2]
LONG = (100, 200)  # tokens of some answers (--long), and new ones of one turn of ten
BLOCK = 64  # tokens of a page, and of a block of the prefix cache
STATE_MIN_ROWS = 128  # engine/kv/sequence_state.h
HEAVY = {"type": "heavy_hitter", "sink": 4, "recent": 40, "heavy": 60, "chunk": 96}
POLICIES = {
    "full": {"type": "full"},
    "streaming": {"type": "streaming", "sink": 4, "recent": 60, "chunk": 64},
    "streaming text": {"type": "streaming", "sink": 8, "recent": 150, "positions": "text",
                       "prompt": "whole"},
    "sum": HEAVY,
    "mean": {**HEAVY, "score": "mean", "positions": "cache"},
    "decay": {**HEAVY, "score": "decay", "decay": 0.95, "heavy": 20, "chunk": 512},
    "window": {**HEAVY, "score": "window", "window": 16, "positions": "cache"},
    "pooled": {"type": "heavy_hitter", "sink": 4, "recent": 30, "heavy": 90, "prompt": "whole",
               "score": "window", "window": 16, "pooling": "max"},
    "offload": {"type": "offload", "selected": 64, "tail": 64, "offload": False},
    "offload moved": {"type": "offload", "selected": 128, "tail": 64, "offload": True},
    "offload uniform": {"type": "offload", "selected": 64, "tail": 64, "offload": True,
                        "selector": "uniform"},
}
WORDS = ("the old garden wall was green and nobody in town could say who had built it or why rain "
         "never seemed to reach its stones so we asked again and wrote down what they told").split()
KV_NUMBERS = ("resident_tokens", "evicted_tokens", "retained_attention")


def is_bounded(policy):
    return POLICIES[policy]["type"] in ("streaming", "heavy_hitter")


class Request:
    """One request: what was asked, and what its client saw."""

    def __init__(self, conversation, turn, prompt, n_tokens, seed, temperature):
        self.conversation, self.turn = conversation, turn
        self.policy, self.salt = conversation.policy, conversation.salt
        self.prompt = prompt  # as sent; its ids once the server has told them
        self.n_tokens, self.seed, self.temperature = n_tokens, seed, temperature
        self.sent = self.ended = 0.0
        self.answer, self.found, self.kv = Answer(), None, None

    def body(self, salt, **other):
        body = {"prompt": self.prompt, "max_tokens": self.n_tokens, "seed": self.seed,
                "temperature": self.temperature, "ignore_eos": True, "stream": True, "logprobs": 1,
                "return_token_ids": True, "kv_policy": POLICIES[self.policy],
                "return_progress": True, "stream_options": {"include_usage": True}, **other}
        return {**body, "cache_salt": salt} if salt else body

    def ids(self):
        choice = self.answer.choices.get(0)
        return choice["token_ids"] if choice else []

    def note(self, event):
        for choice in event["choices"]:
            if "prompt_token_ids" in choice:
                self.prompt = choice["prompt_token_ids"]
        self.answer.add(event["choices"])
        if "prompt_progress" in event:
            self.found = event["prompt_progress"]["cache"]
        if usage := event.get("usage"):
            self.found = usage["prompt_tokens_details"]["cached_tokens"]
            self.kv = usage["kv"]

    def ask(self, server, salt, leaves_after=None, **other):
        """leaves_after: so many events; a fraction below 1: so many seconds, before any."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=900)
        self.sent = time.monotonic()
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(self.body(salt, **other)),
                               {"Content-Type": "application/json"})
            self.answer.whole = leaves_after is None
            if leaves_after is not None and leaves_after < 1:
                time.sleep(leaves_after)
            else:
                self.read(connection.getresponse(), leaves_after)
        self.ended = time.monotonic()
        return self

    def read(self, response, leaves_after):
        for n_events, event in enumerate(read_events(response, parse), 1):
            self.note(event)
            if n_events == leaves_after:
                return


class Conversation:
    def __init__(self, number, options, policies, context):
        pair = number // 2
        self.context = context
        self.number, self.policy = number, policies[pair % len(policies)]
        self.salt = (None, f"own {number}", "shared")[pair % 3]
        self.rng = random.Random(f"{options.seed} {number}")
        self.options = options
        begins_alike = pair % 4 == 0 and pair % 3 != 1
        self.first = random.Random(f"{options.seed} {pair if begins_alike else number} first")
        self.is_text = pair % 4 == 3
        self.temperature = number % 2
        self.requests = []

    def new_words(self, rng, n):
        if self.is_text:
            return " " + " ".join(rng.choice(WORDS) for _ in range(n))
        return [rng.randrange(300, self.options.vocabulary) for _ in range(n)]

    def lengths(self, n_so_far, turn):
        """How many new tokens a turn has and how long its answer is: now and then many, unless the
        text might outgrow the context then."""
        o, rng = self.options, self.rng
        n_new, n_tokens = rng.randrange(1, o.new), rng.randrange(*o.answer)
        most = n_so_far + (o.turns - turn) * (o.new + o.answer[1]) + 2 * LONG[1]
        if most < self.context and rng.random() < 0.1:
            n_new = rng.randrange(*LONG)
        if most < self.context and rng.random() < o.long:
            n_tokens = rng.randrange(*LONG)
        return n_new, n_tokens

    def hold(self, server):
        rng = self.rng
        prompt = self.new_words(self.first, self.first.randrange(60, 300))
        n_so_far = 300
        for turn in range(self.options.turns):
            n_new, n_tokens = self.lengths(n_so_far, turn)
            request = (self, turn, prompt, n_tokens, rng.randrange(1 << 30), self.temperature)
            priority, left = rng.randrange(2), Request(*request)
            if rng.random() < self.options.leaving:
                leaves = rng.random() * 0.3 if rng.random() < 0.3 else rng.randrange(1, n_tokens + 1)
                self.requests.append(left.ask(server, self.salt, leaves, priority=priority))
            asked = Request(*request)
            self.requests.append(asked.ask(server, self.salt, priority=priority))
            left.prompt = asked.prompt
            answer = asked.answer.choices[0]["text"] if self.is_text else asked.ids()
            prompt = prompt + answer + self.new_words(rng, n_new)
            n_so_far = len(asked.prompt) + n_tokens + n_new


class History:
    """Which requests left states that could be found, and which histories a request may have."""

    def __init__(self, requests):
        self.all = collections.defaultdict(list)
        self.known = {}
        for request in requests:
            self.all[request.salt, request.policy].append(request)

    def relatives(self, request):
        return self.all[request.salt, request.policy]

    def same_chunk_end(self, request, other, length, turn):
        """Under the score `window`, a state within a chunk serves prompts whose chunk ends there."""
        policy = POLICIES[request.policy]
        if policy.get("score") != "window":
            return True
        size = policy.get("chunk", 1 << 30)
        end = length - (length - turn) % size + size
        return (length - turn) % size == 0 or \
            min(len(request.prompt), end) == min(len(other.prompt), end)

    def left_by(self, other, request, certain):
        """The states that `other` may have left and `request` could go on from: their lengths, and
        whether they lie before a prompt's last token.  certain: only those that must be there."""
        text, prompt = request.prompt[:-1], other.prompt
        n = len(prompt)
        found = other.found
        makes_early = n > STATE_MIN_ROWS and (found is None or n - 1 >= found + STATE_MIN_ROWS)
        if makes_early and text[:n - 1] == prompt[:-1] and not (certain and found is None):
            yield n - 1, True
        if text[:n] != prompt:
            return
        ids = other.ids()
        last = n + other.n_tokens - 1
        if other.answer.whole:
            lengths = [last] if len(ids) == other.n_tokens else []
        else:
            lengths = [] if certain else range(n, last + 1)
        for length in lengths:
            same = text[n:min(length, n + len(ids))] == ids[:length - n]
            if length >= BLOCK and length <= len(text) and same:
                yield length, False

    def expected(self, request):
        """The longest state that must be there, unless it was evicted."""
        lengths = [0]
        for other in self.relatives(request):
            if other.answer.whole and other.ended < request.sent:
                for length, early in self.left_by(other, request, True):
                    if not early or all(self.same_chunk_end(request, other, length, chain[-1][0])
                                        for chain in self.of(other)):
                        lengths.append(length)
        return max(lengths)

    def of(self, request):
        """All histories that the request may have: chains of (tokens found, request), the request's
        own last.  Lengths found shrink from one to the one before, so this ends."""
        if id(request) in self.known:
            return self.known[id(request)]
        self.known[id(request)] = []  # for two with the same prompt that left, which lead to each other
        chains = {}
        if request.found in (None, 0):
            chains[key_of([(0, request)])] = [(0, request)]
        for other in self.relatives(request):
            if other.sent > request.ended or other is request:
                continue
            for length, early in self.left_by(other, request, False):
                if request.found is not None and length != request.found:
                    continue
                if early and other.found is not None and length < other.found:
                    continue
                for chain in self.of(other):
                    if early and not self.same_chunk_end(request, other, length, chain[-1][0]):
                        continue
                    grown = chain[:-1] + [(chain[-1][0], request)] if early \
                        else chain + [(length, request)]
                    if n_guesses(grown) < n_guesses(chains.get(key_of(grown))):
                        chains[key_of(grown)] = grown
        # The likeliest first: without clients that left before they could tell what was found.
        self.known[id(request)] = sorted(chains.values(), key=lambda chain: (n_guesses(chain),
                                                                             -len(chain)))
        return self.known[id(request)]


def key_of(chain):
    """Two chains with the same key are the same history: where each turn began, and its prompt."""
    return tuple((found, request.conversation.number, request.turn) for found, request in chain)


def n_guesses(chain):
    """Of how many requests of the chain nobody knows what they found."""
    return sum(request.found is None for _, request in chain) if chain else 1 << 30


def is_own(chain):
    """Whether each turn went on from the end of the one before: as in a conversation alone."""
    return len(chain) == chain[-1][1].turn + 1 and all(
        found == len(before.prompt) + before.n_tokens - 1
        for (_, before), (found, _) in zip(chain, chain[1:]))


class References:
    """Answers given alone.  A line is a salt under which a history has been held so far."""

    def __init__(self, server, options):
        self.server, self.options = server, options
        self.n_asked = self.n_lines = 0
        self.lines, self.answers = {}, {}

    def ask(self, request, salt, n_tokens):
        self.n_asked += 1
        other = {"max_tokens": n_tokens}
        if self.options.plant == "seed" and request.number % 10 == 0:
            other |= {"seed": request.seed + 1, "temperature": 2}
        alone = Request(request.conversation, request.turn, request.prompt, n_tokens, request.seed,
                        request.temperature)
        return alone.ask(self.server, salt, **other)

    def new_line(self):
        self.n_lines += 1
        return f"alone {self.n_lines}"

    def of_chain(self, chain):
        """The answer of the chain's last request; a text if what its turns need is not found.  A
        history that never was may end so: its answers are others."""
        key = key_of(chain)
        if key not in self.answers:
            alone = None
            if self.options.plant == "anew":
                alone = self.ask(chain[-1][1], self.new_line(), chain[-1][1].n_tokens)
            elif salt := self.lines.pop(key[:-1], None):
                alone = self.go_on(chain, len(chain) - 1, salt)
            if not isinstance(alone, Request):  # or the line's last state was evicted meanwhile
                alone = self.go_on(chain, 0, self.new_line())
            self.answers[key] = alone
        return self.answers[key]

    def go_on(self, chain, begin, salt):
        for i in range(begin, len(chain)):
            found, request = chain[i]
            n_tokens = chain[i + 1][0] - len(request.prompt) + 1 if i + 1 < len(chain) \
                else request.n_tokens
            alone = self.ask(request, salt, n_tokens)
            if alone.found != found:
                return f"alone, {alone.found} tokens were found in place of {found}"
        self.lines[key_of(chain)] = salt
        return alone

    def of_whole_text(self, request):
        """Under policies whose answers do not depend on what was found."""
        salt = f"alone, conversation {request.conversation.number}"
        return self.ask(request, salt, request.n_tokens)


class Trial:
    def __init__(self, server, options):
        self.server, self.options = server, options
        self.faults, self.rows = [], collections.defaultdict(collections.Counter)
        self.fewest_free = float("inf")
        self.start = self.settle()
        self.store_bytes = self.start.get("quire_kv_store_bytes", 0)
        policies = [name for name, policy in POLICIES.items()
                    if policy["type"] != "offload" or self.store_bytes]
        context = server.get("/v1/models").json()["data"][0]["max_model_len"]
        self.conversations = [Conversation(i, options, policies, context)
                              for i in range(options.conversations)]

    def settle(self):
        self.server.wait_idle(60)
        return self.server.metrics()

    # ---- at once ----

    def watch(self, done):
        while not done.wait(0.2):
            self.fewest_free = min(self.fewest_free, self.server.metrics()["quire_kv_pages_free"])

    def ask_beside(self, done):
        """Waves of short prompts with long answers, of a higher rank than all conversations: as they
        grow together, these lose their places."""
        rng, n = random.Random(f"{self.options.seed} beside"), self.options.beside

        def one(prompt):
            reply = self.server.post("/v1/completions", {
                "prompt": prompt, "max_tokens": 250, "ignore_eos": True, "temperature": 0,
                "priority": -1, "kv_policy": {"type": "full"}, "cache_salt": "beside"}, timeout=900)
            if reply.status != 200:
                self.faults.append(f"beside: status {reply.status}: {reply.body[:300]}")
        with concurrent.futures.ThreadPoolExecutor(max(1, n)) as threads:
            while not done.wait(self.options.pause):
                list(threads.map(one, [[rng.randrange(300, self.options.vocabulary)
                                        for _ in range(16)] for _ in range(n)]))

    def hold_all(self):
        done = threading.Event()
        others = [threading.Thread(target=each, args=(done,))
                  for each in (self.watch, self.ask_beside)]
        for thread in others:
            thread.start()
        with concurrent.futures.ThreadPoolExecutor(self.options.conversations) as threads:
            for each in [threads.submit(c.hold, self.server) for c in self.conversations]:
                try:
                    each.result()
                except (OSError, http.client.HTTPException, RuntimeError, ValueError) as error:
                    self.faults.append(f"a conversation failed: {type(error).__name__}: {error}")
        done.set()
        for thread in others:
            thread.join()
        self.requests = [r for c in self.conversations for r in c.requests]
        for number, request in enumerate(self.requests):
            request.number = number

    # ---- alone ----

    def fault(self, request, what):
        self.faults.append(
            f"conversation {request.conversation.number} ({request.policy}, {request.salt}), turn "
            f"{request.turn}, {len(request.prompt)} tokens, {request.found} found: {what}")

    def difference(self, request, alone):
        if isinstance(alone, str):
            return alone
        what = request.answer.difference(alone.answer)
        if not what and request.answer.whole and request.kv:
            mine, theirs = ([kv[name] for name in KV_NUMBERS] for kv in (request.kv, alone.kv))
            what = f"usage.kv: {mine} together, {theirs} alone" if mine != theirs else None
        return what

    def compare_bounded(self, request, row):
        chains = self.history.of(request)
        expected = self.history.expected(request)
        if request.found < expected:
            row["older" if request.found else "anew"] += 1
            if self.options.roomy:
                self.fault(request, f"{expected} tokens were there")
        if not chains:
            return "found what no request had left"
        row["ambiguous"] += len(chains) > 1
        for chain in chains:
            what = self.difference(request, self.references.of_chain(chain))
            if not what:
                row["own"] += is_own(chain)
                return None
        return what

    def compare(self, request):
        row = self.rows[request.policy]
        row["turns"] += 1
        row["found"] += request.found > 0
        if is_bounded(request.policy):
            what = self.compare_bounded(request, row)
        else:
            alone = self.references.of_whole_text(request)
            row["older"] += request.found < alone.found
            if self.options.roomy and request.found < alone.found:
                self.fault(request, f"{alone.found} tokens were there")
            what = self.difference(request, alone)
            row["own"] += not what
        row["equal"] += not what
        row["tokens"] += len(request.ids())
        if what:
            self.fault(request, what)

    def compare_beginning(self, request):
        """What a client saw before it left must be the beginning of what its history gives alone; if
        that history was asked for anyway."""
        row = self.rows[request.policy]
        row["cancelled"] += 1
        if not request.ids() or not is_bounded(request.policy):
            return
        known = [self.references.answers[key_of(c)] for c in self.history.of(request)
                 if key_of(c) in self.references.answers]
        known = [alone for alone in known if isinstance(alone, Request)]
        if known and all(self.difference(request, alone) for alone in known):
            self.fault(request, f"before it left: {self.difference(request, known[0])}")

    def compare_all(self):
        self.history = History(self.requests)
        self.references = References(self.server, self.options)
        for request in self.requests:
            if request.answer.whole:
                self.compare(request)
        for request in self.requests:
            if not request.answer.whole:
                self.compare_beginning(request)

    # ---- what is left ----

    def check_left(self, when, metrics):
        left = {name: metrics[name] for name in (
            "quire_requests_running", "quire_requests_waiting", "quire_requests_suspended",
            "quire_kv_store_used_bytes", "quire_requests_failed_total") if metrics.get(name)}
        taken = metrics["quire_kv_pages_total"] - metrics["quire_kv_pages_free"] - \
            metrics["quire_kv_pages_cached"]
        if taken or left:
            self.faults.append(f"{when}: {taken:.0f} pages are taken, {left}")

    def planned_bytes(self):
        parts = re.findall(r"(?:weights|KV pool|workspace|host pool) ([\d.]+) (MiB|GiB)",
                           "\n".join(line for line in self.server.log.splitlines()
                                     if "memory plan: " in line))
        return sum(float(n) * 2**{"MiB": 20, "GiB": 30}[unit] for n, unit in parts)

    def check_memory(self, together, alone):
        planned, slack = self.planned_bytes(), self.options.slack * 2**20
        if together > planned + slack:
            self.faults.append(f"the process holds {together / 2**20:.0f} MiB, of which "
                               f"{planned / 2**20:.0f} MiB are planned")
        # The KV pool and the host pool take their memory when they are first used.
        untouched = planned if self.fewest_free >= BLOCK else self.store_bytes
        if alone - together > slack + untouched:
            self.faults.append(f"held alone, the process grew by {(alone - together) / 2**20:.0f} "
                               "MiB")
        return (f"{together / 2**20:.0f} MiB resident after all at once, {alone / 2**20:.0f} MiB "
                f"after each alone, {planned / 2**20:.0f} MiB planned")

    def run(self):
        begun = time.monotonic()
        self.hold_all()
        middle, seconds = self.settle(), time.monotonic() - begun
        self.check_left("after all at once", middle)
        together = self.server.resident_bytes()
        begun = time.monotonic()
        self.compare_all()
        self.check_left("after each alone", self.settle())
        memory = self.check_memory(together, self.server.resident_bytes())
        self.summary = [
            f"# {middle['quire_preemptions_total']:.0f} preemptions, "
            f"{middle.get('quire_kv_pages_swapped_out_total', 0):.0f} pages swapped out, "
            f"{middle.get('quire_kv_pages_swapped_in_total', 0):.0f} in, at least "
            f"{self.fewest_free:.0f} of {middle['quire_kv_pages_total']:.0f} pages free; "
            f"{self.references.n_asked} references",
            f"# {memory}",
            f"# {seconds:.1f} s at once, {time.monotonic() - begun:.1f} s alone: "
            f"{len(self.faults)} faults"]
        return self.faults

    COLUMNS = ("turns", "equal", "tokens", "own", "found", "older", "anew", "cancelled",
               "ambiguous")

    def report(self):
        print("policy", *self.COLUMNS, sep=",")
        rows = {name: self.rows[name] for name in POLICIES if name in self.rows}
        for name, row in {**rows, "all": sum(rows.values(), collections.Counter())}.items():
            print(name, *(row[column] for column in self.COLUMNS), sep=",")
        print("\n".join(self.summary))


def read_options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "quire"))
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--new", type=int, default=80, help="most new tokens of nine turns of ten")
    parser.add_argument("--answer", type=int, nargs=2, default=(8, 25), metavar=("LEAST", "BELOW"),
                        help="tokens of answers")
    parser.add_argument("--long", type=float, default=0.1, help="share of answers of 100 to 200 "
                        "tokens: sequences that run long lose their places")
    parser.add_argument("--leaving", type=float, default=0.25, help="share of turns asked twice, as "
                        "the first client leaves")
    parser.add_argument("--beside", type=int, default=12,
                        help="long answers under full in a wave, beside the conversations")
    parser.add_argument("--pause", type=float, default=10, help="seconds between two waves")
    parser.add_argument("--roomy", action="store_true", help="no state may be lost")
    parser.add_argument("--plant", choices=("seed", "anew"), help="wrong references")
    parser.add_argument("--vocabulary", type=int, default=8000, help="prompt ids are below this")
    parser.add_argument("--slack", type=float, default=64,
                        help="most MiB that the server may hold beside its plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("serve", nargs="*", help="after --: arguments of `quire serve`")
    return parser.parse_args(arguments)


def main():
    options = read_options()
    os.environ["QUIRE_TEST_BINARY"] = os.path.abspath(options.binary)
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from server import Server
    with tempfile.TemporaryDirectory() as directory, Server(directory, *options.serve) as server:
        trial = Trial(server, options)
        faults = trial.run()
    for fault in faults[:20]:
        print(fault)
    trial.report()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
