#!/usr/bin/env python3
"""Measures what constraining answers to a form costs: the throughput of constrained streams beside
that of free ones.

    scripts/load/constrained.py                            the default model, on what device there is
    scripts/load/constrained.py --shape 8b --max-tokens 256 --floor 0.97 -- --device cuda
    scripts/load/constrained.py --url http://127.0.0.1:8000

Starts a server, unless --url names one that runs; arguments behind -- go to `quire serve`.  --shape
8b is a model of random weights in the shape of Llama-3-8B, with a vocabulary of 128,256 tokens that
is made from the words of Python's own library, so that nothing need be fetched.

Every round sends --streams requests at once, free ones, and then as many for each form.  All prompts
are of equal length, and all answers have --max-tokens tokens: shorter ones are an error.  A form is
compiled before it is measured.  The forms:

    expression   letters, digits and punctuation: a mask at each token, of few states
    strings      a JSON array of strings
    records      a JSON array of objects with strings, an integer and an array; partly forced text
    new-states   words of at most three letters, counted: no state comes twice, so no mask is found
                 again.  It is the case in which the figures are bad where masks take longer than a
                 step, as with large vocabularies on a GPU; no floor is asked of it.

Prints CSV: form, streams, tokens of an answer, rounds, median tokens per second of free and of
constrained streams, median ratio of a round's two, the lowest and highest, and the processor time of
a token as a ratio (of a server that the script started).  Needs nothing but Python.  Exits 1 when a
request failed, or a median ratio is below --floor.
"""
import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from client import Client
from serving import BINARY, ROOT, OwnServer

RECORD = {"type": "object", "required": ["name", "age", "active", "tags"],
          "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
                         "active": {"type": "boolean"},
                         "tags": {"type": "array", "items": {"type": "string"}}}}
BAD = "new-states"


def make_forms(n_tokens):
    """Forms that cannot be complete before n_tokens."""
    return {
        "expression": {"regex": "[A-Za-z0-9 ,.;:!?'()-]+"},
        "strings": {"json": {"type": "array", "items": {"type": "string"}, "minItems": n_tokens}},
        "records": {"json": {"type": "array", "items": RECORD, "minItems": n_tokens}},
        BAD: {"regex": "([a-z]{1,3} ){%d}" % (8 * n_tokens)},
    }


def make_model(shape, folder):
    subprocess.run([sys.executable, ROOT / "scripts/fixtures/make_bench_model.py", folder, "--shape",
                    shape, "--config-only", "--large-tokenizer"], check=True, stdout=sys.stderr)
    return ["--model", str(folder), "--load-format", "dummy"]


@contextlib.contextmanager
def serving(options):
    """Starts the server that is asked, and yields it; None: it runs already."""
    if options.url:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(options.shape, pathlib.Path(folder) / options.shape) if options.shape else []
        # Constrained tokens are not guessed; free ones are not, either, unless told otherwise.
        env = {"QUIRE_SPECULATION": os.environ.get("QUIRE_SPECULATION", "off")}
        with OwnServer(options.binary, *model, "--log-level", "warn", *options.serve, env=env,
                       seconds=options.timeout) as server:
            options.url = server.url
            yield server


def processor_seconds(server):
    return server.cpu_seconds() if server else float("nan")


def body(options, number, seed, form, n_tokens):
    fields = {"prompt": f"Stream {number % 100:02}:", "max_tokens": n_tokens, "min_tokens": n_tokens,
              "ignore_eos": True, "temperature": 1, "seed": seed, "stream": True,
              "stream_options": {"include_usage": True}}
    if form:
        fields["structured_outputs"] = form
    return json.dumps(fields).encode()


class Trial:
    """Streams of one server: tokens per second, and processor seconds a token."""

    def __init__(self, options, server):
        self.options, self.server, self.seed = options, server, options.seed
        self.clients = [Client(options) for _ in range(options.streams)]

    async def run(self, form, n_tokens):
        bodies = []
        for number in range(len(self.clients)):
            self.seed += 1
            bodies.append(body(self.options, number, self.seed, form, n_tokens))
        begin, used = time.monotonic(), processor_seconds(self.server)
        samples = await asyncio.gather(*(client.run(data) for client, data
                                         in zip(self.clients, bodies)))
        seconds, used = time.monotonic() - begin, processor_seconds(self.server) - used
        for sample in samples:
            if sample.error:
                raise RuntimeError(sample.error)
            if sample.n_tokens != n_tokens:
                raise RuntimeError(f"an answer has {sample.n_tokens} tokens, not {n_tokens}")
        n = n_tokens * len(samples)
        return n / seconds, used / n


async def measure(options, server):
    """Free and constrained streams in turns; yields a form's name and its pairs."""
    forms = make_forms(options.max_tokens)
    trial = Trial(options, server)
    for form in [None, *(forms[name] for name in options.form)]:
        await trial.run(form, min(8, options.max_tokens))  # compiles; and the caches are warm
    pairs = {name: [] for name in options.form}
    for i in range(options.rounds):
        for name in options.form:  # each form has its own free streams, right before it
            pairs[name].append((await trial.run(None, options.max_tokens),
                                await trial.run(forms[name], options.max_tokens)))
            free, held = pairs[name][-1]
            print(f"# round {i + 1}, {name}: {free[0]:.0f} free, {held[0]:.0f} constrained tokens/s",
                  file=sys.stderr, flush=True)
    return pairs


def report(options, pairs):
    """Prints the table; returns the names of forms below the floor."""
    below = []
    print("form,streams,tokens,rounds,free_tokens_per_s,constrained_tokens_per_s,ratio,lowest,highest,"
          "processor_ratio")
    for name, rounds in pairs.items():
        ratios = [held[0] / free[0] for free, held in rounds]
        ratio = statistics.median(ratios)
        print(f"{name},{options.streams},{options.max_tokens},{len(rounds)},"
              f"{statistics.median(free[0] for free, _ in rounds):.1f},"
              f"{statistics.median(held[0] for _, held in rounds):.1f},"
              f"{ratio:.3f},{min(ratios):.3f},{max(ratios):.3f},"
              f"{statistics.median(held[1] / free[1] if free[1] else 1 for free, held in rounds):.3f}")
        if ratio < options.floor and name != BAD:
            below.append(name)
    return below


def read_arguments():
    names = list(make_forms(1))
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a server that runs")
    parser.add_argument("--api-key")
    parser.add_argument("--binary", default=BINARY, help="build/quire unless given")
    parser.add_argument("--shape", choices=("0.7b", "8b"), help="the default model unless given")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--form", action="append", choices=names, help="all, unless given")
    parser.add_argument("--floor", type=float, default=0, help="the least median ratio")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for the start or a stream")
    parser.add_argument("serve", nargs="*", metavar="-- ARGUMENT", help="of `quire serve`")
    options = parser.parse_args()
    options.form = options.form or names
    return options


def main():
    options = read_arguments()
    with serving(options) as server:
        try:
            pairs = asyncio.run(measure(options, server))
        except RuntimeError as error:
            sys.exit(str(error))
    below = report(options, pairs)
    if below:
        sys.exit(f"below {options.floor}: {', '.join(below)}")


if __name__ == "__main__":
    main()
