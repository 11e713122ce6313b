#!/usr/bin/env python3
"""StreamEval as a conversation of requests: every round sends the whole text so far, new lines, and
a question about a line some way back; the answer stays in the text.

    scripts/quality/long_chat.py --serve 'build/quire serve' --tokens 120000 \\
        --distances 20,80,160 --configs full,streaming/1024,streaming/2048
    scripts/quality/long_chat.py --url http://127.0.0.1:8000 --tokens 1000000 --step 80 \\
        --distances 100 --configs streaming/2048 --bucket 100000
    scripts/quality/long_chat.py --url ... --tokens 16000 --configs streaming/2048,window/2048

    full           everything is kept, until the text has the model's context
    streaming/N    the 4 first and the N - 4 newest tokens are kept; the server goes on from the
                   state of the last round and reads what is new
    streaming/N/S  the same with the S first tokens; 0 leaves the sinks out
    window/N       recomputation: the prompt is the last N tokens, which are read anew every round

The text is sent as token ids, which are made once, round by round: the server has to read the
numbers, but not to tokenize them again.  An answer comes back as text, and is tokenized with the
next round's.

Three cases in which the figures must be bad: a line that is farther back than the budget is not
found; without sinks a model that leans on them answers nothing right once its first tokens are
evicted; with --without every round has a cache_salt of its own, so that nothing is cached, and rounds
take longer with the text.

Needs nothing but Python.  Prints CSV for every --bucket tokens of text and every distance: rounds,
how many answers were right, the share with Wilson's 95 % interval (rounds count as independent),
the median and the longest time to the first token, the median of the tokens that were read, and the
most tokens of the text so far that were not found; then the sums of all rounds.  Exits 1 if a round
of `full` or `streaming` found less than all that was there, unless --without.
"""
import argparse
import contextlib
import http.client
import json
import pathlib
import statistics
import sys
import time
import urllib.parse
from collections import defaultdict
from dataclasses import dataclass

from evaluation import tasks
from evaluation.serving import NotServing, served
from evaluation.stream import N_NAMES, STEP, Stream
from evaluation.templates import CHATML
from evaluation.wilson import wilson

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "load"))
from serving import clock  # noqa: E402  (the path comes first)

SINKS = 4
BLOCK_TOKENS = 64  # `full` finds whole blocks of the prefix cache, and not a last one in part


@dataclass
class Config:
    name: str
    policy: dict
    window: int = 0  # tokens of text that a prompt has; 0: all

    @property
    def slack(self):
        """How many of the tokens that were there a round may leave out."""
        return BLOCK_TOKENS if self.policy["type"] == "full" else 0


@dataclass
class Round:
    n_prompt: int
    distance: int  # lines
    is_right: bool
    ttft_s: float
    n_read: int  # tokens of the prompt that were not cached
    n_missed: int  # of those that were there


def read_config(text):
    kind, *sizes = text.split("/")
    sizes = [int(size) for size in sizes]
    if text == "full":
        return Config(text, {"type": "full"})
    if kind == "window" and len(sizes) == 1 and sizes[0] > 1:
        return Config(text, {"type": "full"}, window=sizes[0])
    if kind == "streaming" and len(sizes) in (1, 2):
        size, sinks = (*sizes, SINKS)[:2]
        if 0 <= sinks < size:
            return Config(text, {"type": "streaming", "sink": sinks, "recent": size - sinks})
    raise ValueError(text)


class Server:
    def __init__(self, url, timeout, cpu_of):
        url = urllib.parse.urlsplit(url.rstrip("/").removesuffix("/v1"))
        self._path, self._cpu_of = url.path, cpu_of
        self._connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout)

    def clock(self):
        return clock(self._cpu_of)

    def post(self, path, body):
        self._connection.request("POST", self._path + path, body,
                                 {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        if answer.status != 200:
            sys.exit(f"{path}: {answer.status} {answer.read().decode(errors='replace')}")
        return answer

    def tokenize(self, text, special):
        """(the ids, the longest text that `full` takes)."""
        body = json.dumps({"prompt": text, "add_special_tokens": special})
        answer = json.load(self.post("/tokenize", body))
        return answer["tokens"], answer["max_model_len"]

    def complete(self, prompt, fields):
        """(text, usage, seconds to the first token).  prompt: ids in decimal, as JSON has them."""
        text, usage, first = "", None, None
        body = json.dumps(fields)[:-1].encode() + b', "prompt": [' + prompt + b"]}"
        begin = self.clock()
        answer = self.post("/v1/completions", body)
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(f"error event: {event['error']}")
            first = self.clock() - begin if first is None else first
            text += "".join(choice["text"] for choice in event["choices"])
            usage = event.get("usage") or usage
        return text, usage, first


class Conversation:
    """The text so far, in ids: as numbers, and as what is sent."""

    def __init__(self, beginning):
        self.n_tokens, self._beginning = 0, beginning
        self._ids, self._sent = [], bytearray()
        self.add(beginning)

    def add(self, ids):
        self._sent += ("," if self._ids else "").encode() + ",".join(map(str, ids)).encode()
        self._ids += ids
        self.n_tokens = len(self._ids)

    def prompt(self, window):
        if not window or window >= self.n_tokens:
            return bytes(self._sent)
        kept = self._beginning + self._ids[len(self._beginning) - window:]
        return ",".join(map(str, kept)).encode()


def converse(server, config, options):
    """Yields the rounds of one conversation."""
    stream = Stream(options.seed, 0, options.step, options.distances)
    beginning, longest = server.tokenize("", True)
    chat = Conversation(beginning)
    limit = options.tokens if config.window or config.policy["type"] != "full" else min(
        options.tokens, longest)
    salt = f"{config.name} {time.time_ns()}"
    closing, n_before, number = "", 0, 0
    while True:
        turn, question = stream.turn()
        new, _ = server.tokenize(closing + CHATML.apply(turn), False)
        if chat.n_tokens + len(new) + question.max_tokens > limit:
            return
        chat.add(new)
        is_alone = options.without or config.window
        answer, usage, ttft = server.complete(chat.prompt(config.window), {
            "max_tokens": question.max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "prefill": "dense",
            "cache_salt": f"{salt} {number}" if is_alone else salt, "kv_policy": config.policy})
        n_prompt = usage["prompt_tokens"]
        n_cached = usage["prompt_tokens_details"]["cached_tokens"]
        yield Round(chat.n_tokens, options.distances[number % len(options.distances)],
                    tasks.judge(question, answer)["score"] == 1, ttft, n_prompt - n_cached,
                    0 if config.window else max(0, n_before - n_cached))
        # All but the answer's last token, which was drawn and never computed.
        n_before = n_prompt + usage["completion_tokens"] - 1
        closing = answer + CHATML.closing
        number += 1


def report(config, tokens, rounds):
    """A line for each distance."""
    by_distance = defaultdict(list)
    for one in rounds:
        by_distance[one.distance].append(one)
    for distance, group in sorted(by_distance.items()):
        n, n_right = len(group), sum(one.is_right for one in group)
        low, high = (100 * min(max(end, 0.0), 1.0) for end in wilson(n_right / n, n))
        ms = [1000 * one.ttft_s for one in group]
        print(f"{config.name},{tokens},{distance},{n},{n_right},{100 * n_right / n:.1f},"
              f"{low:.1f},{high:.1f},{statistics.median(ms):.1f},{max(ms):.1f},"
              f"{statistics.median(one.n_read for one in group):.0f},"
              f"{max(one.n_missed for one in group)}", flush=True)


def measure(server, config, options):
    """Returns the rounds; writes a bucket's lines as soon as it is over."""
    rounds, bucket = [], []
    for one in converse(server, config, options):
        if bucket and one.n_prompt // options.bucket != bucket[0].n_prompt // options.bucket:
            report(config, name_of(bucket, options), bucket)
            bucket = []
        bucket.append(one)
        rounds.append(one)
    if not rounds:
        sys.exit(f"{config.name}: {options.tokens} tokens are too few for a round")
    report(config, name_of(bucket, options), bucket)
    report(config, "all", rounds)
    return rounds


def name_of(bucket, options):
    first = bucket[0].n_prompt // options.bucket * options.bucket
    return f"{first}-{first + options.bucket - 1}"


def compare(found):
    """Says how much longer a round takes if its window is read anew."""
    for name, rounds in found.items():
        kind, _, size = name.partition("/")
        again = found.get(f"window/{size}")
        if kind == "streaming" and again:
            one, other = (statistics.median(r.ttft_s for r in them) for them in (rounds, again))
            print(f"# to its first token a round of window/{size} takes {other / one:.2f} times as "
                  f"long as one of {name}")


def numbers(text):
    values = tuple(int(part) for part in text.split(","))
    if not all(0 < value < N_NAMES for value in values):
        raise ValueError
    return values


def configs(text):
    return [read_config(part) for part in text.split(",")]


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="URL of a running quire")
    where.add_argument("--serve", metavar="COMMAND", help="start this one; --port N is added to it")
    add("--configs", type=configs, default="full,streaming/2048",
        help="one conversation each, after another (%(default)s)")
    add("--tokens", type=int, default=120000, help="of a conversation (%(default)s)")
    add("--step", type=int, default=STEP, help="new lines of a round (%(default)s)")
    add("--distances", type=numbers, default="20",
        help="how many lines back questions ask, in turn (%(default)s)")
    add("--bucket", type=int, default=20000, help="tokens of a row (%(default)s)")
    add("--seed", type=int, default=1)
    add("--without", action="store_true", help="rounds find nothing of what was there")
    add("--cpu-of", type=int, metavar="PID",
        help="measure CPU time of the server with this process id: others use the machine, too")
    add("--timeout", type=float, default=3600, help="seconds for a request (%(default)s)")
    options = parser.parse_args()
    if min(options.distances) <= options.step:
        parser.error("--distances must be above --step: a nearer line is of the same round")
    return options


def main():
    options = read_arguments()
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(served(options.serve))
        server = Server(url, options.timeout, options.cpu_of)
        print("config,tokens,distance,rounds,right,percent,low,high,ttft_ms,longest_ms,read,missed")
        found = {config.name: measure(server, config, options) for config in options.configs}
    compare(found)
    slack = {config.name: config.slack for config in options.configs}
    if not options.without and any(one.n_missed > slack[name] for name, rounds in found.items()
                                   for one in rounds):
        sys.exit("a round found less than what was there")


if __name__ == "__main__":
    try:
        main()
    except NotServing as error:
        sys.exit(str(error))
