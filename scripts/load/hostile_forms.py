#!/usr/bin/env python3
"""Random schemas, expressions and grammars, hostile ones among them, beside plain streams: no form may stop the
streams, take memory that stays, or keep the server from ending.

    scripts/load/hostile_forms.py [--binary build/quire] [--forms 10000] [--streams 16] [--clients 8] [--seconds N]

Measures the longest time between two tokens of a stream, first without forms and then beside them; the resident
memory before the forms and after them; and how long the server takes to end behind SIGTERM while costly forms are
being compiled.  Finished answers of schemas are validated by the package jsonschema, those of expressions by `re`.
Prints a line of CSV for each kind of form, and the measurements.  Exits 1 where a bound does not hold."""
import argparse
import collections
import http.client
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import jsonschema

from serving import BINARY, ROOT, OwnServer

sys.path.insert(0, str(ROOT / "tests" / "grammar"))
import check_schemas  # noqa: E402

MAX_WAIT_S, MAX_MEMORY, SHUTDOWN_S = 0.5, 256 << 20, 5
NAMES = [chr(97 + i) for i in range(26)]


def strings(rng):
    """Bounded strings: each is a state for each length."""
    n, most = rng.choice([1, 4, 20, 60, 300]), rng.choice([8, 50, 128])
    names = [f"p{i}" for i in range(n)]
    return {"guided_json": {"type": "object", "required": names, "properties": {
        name: {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, most)} for name in names}}}


def recursive(rng):
    """Schemas that refer to themselves, some of which no text ends."""
    names = rng.sample(NAMES, rng.randrange(1, 4))
    properties = {name: rng.choice([{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}, "minItems": rng.randrange(2)},
                                    {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, {"type": "integer"}]) for name in names}
    return {"guided_json": {"type": "object", "properties": properties, "required": rng.sample(names, rng.randrange(len(names) + 1))}}


def chains(rng):
    """Long chains of references, and ones that double."""
    n, twice = rng.choice([5, 60, 500, 1500]), rng.random() < 0.5
    defs = {f"d{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in ("ab" if twice else "a")},
                      "required": ["a"]} for i in range(n)}
    defs[f"d{n}"] = {"type": "null"}
    return {"guided_json": {"$ref": "#/$defs/d0", "$defs": defs}}


def huge(rng):
    """Huge bounds, enums and choices."""
    schema = rng.choice([
        {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 4000, "maxItems": 4096}, "minItems": 4000,
         "maxItems": 4096},
        {"enum": [f"value {i} {rng.random()}" for i in range(rng.randrange(10, 4000))]},
        {"anyOf": [{"type": "object", "properties": {f"k{i}": {"type": "integer"}}, "required": [f"k{i}"]}
                   for i in range(rng.randrange(2, 1500))]},
        {"type": "object", "properties": {f"name{i}": {"type": "integer", "minimum": -i} for i in range(rng.randrange(1, 1500))}},
        {"type": "integer", "minimum": -rng.randrange(1 << 62), "maximum": rng.randrange(1 << 62)},
        {"type": "number", "minimum": rng.random() * 1e-9, "maximum": 1e-8 + rng.random()},
        {"type": "string", "maxLength": 10**rng.randrange(1, 12)}])
    return {"guided_json": schema}


def expression(rng, depth):
    """A random expression with nested quantifiers."""
    roll = rng.random()
    if depth == 0 or roll < 0.25:
        return rng.choice(["a", "b", "[a-z]", "\\d", "\\w", "[^x]", "the ", "[0-9A-F]", "."])
    if roll < 0.45:
        return expression(rng, depth - 1) + expression(rng, depth - 1)
    if roll < 0.6:
        return f"({expression(rng, depth - 1)}|{expression(rng, depth - 1)})"
    return f"({expression(rng, depth - 1)}){rng.choice(['*', '+', '?', '{3}', '{1,40}', '{0,100}', '{20,}'])}"


def regexes(rng):
    return {"guided_regex": expression(rng, rng.randrange(2, 8))[:4000]}


def rules(rng):
    """Random rules: ambiguous, recursive on either side, doubling, or with no end."""
    n = rng.choice([1, 3, 8, 40])
    names = [f"r{i}" for i in range(n)]

    def some(depth):
        roll = rng.random()
        if depth == 0 or roll < 0.35:
            return rng.choice([*(3 * names), '"x"', '"a"', "[a-z]", '""', '"the"', "[^x]{2,50}"])
        if roll < 0.6:
            return f"{some(depth - 1)} {some(depth - 1)}"
        if roll < 0.8:
            return f"({some(depth - 1)} | {some(depth - 1)})"
        return f"({some(depth - 1)}){rng.choice(['*', '+', '?', '{2,9}', '{1,2000}'])}"

    return {"guided_grammar": "\n".join(["root ::= r0", *(f"{name} ::= {some(3)}" for name in names)])}


def doubling(rng):
    n, m = rng.choice([10, 30, 60, 300]), rng.choice([2, 3])
    body = [f"a{i} ::= {' '.join([f'a{i + 1}'] * m)}{rng.choice(['', ' | ' + f'a{i + 1}'])}" for i in range(n)]
    return {"guided_grammar": "\n".join(["root ::= a0", *body, f'a{n} ::= "x"{rng.choice(["", " | " + chr(34) * 2])}'])}


def nested(rng):
    n = rng.choice([10, 200, 900, 20000])
    return rng.choice([{"guided_grammar": "root ::= " + "(" * n + '"a"' + ")" * n},
                       {"guided_grammar": "root ::= " + '"a" ' * n}, {"guided_grammar": 'root ::= "a"{1,%d}' % 10**rng.randrange(1, 9)},
                       {"guided_regex": ("(" * n + "a" + ")*" * n)[:4000]}])


def ordinary(rng):
    return {"guided_json": check_schemas.make_root(rng)}


KINDS = {maker.__name__: maker for maker in (strings, recursive, chains, huge, regexes, rules, doubling, nested, ordinary)}


def make_form(rng):
    name = rng.choice(list(KINDS) + 6 * ["ordinary"])
    return name, KINDS[name](rng)


def check(form, text):
    """Returns what is wrong with a finished answer."""
    try:
        if "guided_json" in form:
            jsonschema.Draft202012Validator(form["guided_json"]).validate(json.loads(text))
        elif "guided_regex" in form and len(text) < 200 and form["guided_regex"].count("(") < 3:
            return None if re.fullmatch(form["guided_regex"], text, re.S) else "no match"
    except RecursionError:
        return None
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error)[:200]
    return None


class Server(OwnServer):
    def ask(self, body, timeout=120):
        """Returns the status and the answer; 0: it was not in time."""
        try:
            with self.answer("POST", "/v1/completions", {"prompt": "A:", **body}, timeout) as reply:
                return reply.status, json.loads(reply.read())
        except OSError:
            return 0, None


class Streams:
    """Plain streams, one after the other for each client; the longest time between two of their pieces."""

    def __init__(self, server, n):
        self.server, self.over, self.longest, self.failures = server, False, 0.0, 0
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(n)]
        for thread in self.threads:
            thread.start()

    def one(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 200, "stream": True, "ignore_eos": True}),
                           {"Content-Type": "application/json"})
        reply, last = connection.getresponse(), time.monotonic()
        while not self.over and (line := reply.readline()):
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now
        connection.close()

    def run(self):
        while not self.over:
            try:
                self.one()
            except OSError:
                self.failures += 1
                time.sleep(0.2)

    def stop(self):
        self.over = True
        for thread in self.threads:
            thread.join(60)
        return self.longest


class Forms:
    """Clients that ask for forms until all have been asked for; some of them leave early."""

    def __init__(self, server, options):
        self.server, self.options, self.lock = server, options, threading.Lock()
        self.n, self.begun = 0, time.monotonic()
        self.until = self.begun + options.seconds
        self.counts, self.invalid = collections.defaultdict(collections.Counter), []

    def ask(self, i):
        rng = random.Random(self.options.seed * 1000003 + i)
        kind, form = make_form(rng)
        timeout = 0.3 if rng.random() < 0.05 else 120
        begun = time.monotonic()
        status, answer = self.server.ask({"max_tokens": rng.choice([8, 60]), "temperature": 1, "seed": i, **form}, timeout)
        with self.lock:
            counts = self.counts[kind]
            counts["asked"] += 1
            counts["seconds"] += time.monotonic() - begun
            counts["longer than 5 s"] += time.monotonic() - begun > 5
            counts[{200: "answered", 400: "refused", 0: "left"}.get(status, str(status))] += 1
            if status == 200 and answer["choices"][0]["finish_reason"] == "stop":
                counts["finished"] += 1
                wrong = check(form, answer["choices"][0]["text"])
                if wrong:
                    self.invalid.append((json.dumps(form)[:300], answer["choices"][0]["text"][:200], wrong))

    def client(self):
        while True:
            with self.lock:
                if self.n >= self.options.forms or time.monotonic() > self.until:
                    return
                i, self.n = self.n, self.n + 1
                if i % self.options.report == 0:
                    print(f"# {i} forms, {self.server.resident_bytes() >> 20} MiB, {time.monotonic() - self.begun:.0f} s", file=sys.stderr, flush=True)
            self.ask(i)

    def run(self):
        threads = [threading.Thread(target=self.client) for _ in range(self.options.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def end(server):
    """Sends SIGTERM while costly forms are being compiled; returns the seconds until the end, and the status."""
    costly = {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 128} for i in range(500)}}}
    for i in range(4):
        costly["guided_json"]["properties"][f"q{i}"] = {"type": "string", "maxLength": 100 + i}
        threading.Thread(target=server.ask, args=(json.loads(json.dumps(costly)),), daemon=True).start()
    time.sleep(1)
    server.process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    try:
        status = server.process.wait(SHUTDOWN_S + 60)
    except subprocess.TimeoutExpired:
        server.process.kill()
        return 999, None
    return time.monotonic() - begun, status


def fill_cache(server):
    """Uses every page of the KV cache once, so that its memory is counted before the forms as it is behind them."""
    for i in range(6):
        server.ask({"prompt": [100 + (i * 7919 + j * j) % 4000 for j in range(1900)], "max_tokens": 1})


def trial(options, folder):
    with open(pathlib.Path(folder) / "log", "w", encoding="utf-8") as log:
        server = Server(options.binary, "--model", options.model, "--kv-cache-memory", "64M", "--max-model-len", 2048,
                        "--shutdown-timeout", SHUTDOWN_S, *options.arguments, log=log)
    fill_cache(server)
    streams = Streams(server, options.streams)
    time.sleep(options.quiet)
    alone = streams.stop()
    before = server.resident_bytes()
    streams, forms = Streams(server, options.streams), Forms(server, options)
    begun = time.monotonic()
    forms.run()
    seconds = time.monotonic() - begun
    beside = streams.stop()
    time.sleep(1)
    after = server.resident_bytes()
    took, status = end(server)
    columns = ["asked", "answered", "finished", "refused", "left", "429", "500", "503", "longer than 5 s", "seconds"]
    print(",".join(["kind", *columns]))
    for kind, counts in sorted(forms.counts.items()):
        print(",".join([kind, *(f"{counts[column]:.0f}" for column in columns)]))
    print(f"# {forms.n} forms in {seconds:.0f} s; longest wait of a stream {1000 * alone:.0f} ms alone, {1000 * beside:.0f} ms beside them; "
          f"{before >> 20} MiB before, {after >> 20} MiB after; ended {took:.1f} s behind SIGTERM, status {status}; "
          f"{len(forms.invalid)} invalid answers; {streams.failures} streams failed")
    for form, text, wrong in forms.invalid[:10]:
        print(f"# invalid: {form}\n#   {text!r}: {wrong}")
    bounds = {"a stream waits": beside - alone <= MAX_WAIT_S + options.slack, "memory stays": after - before <= MAX_MEMORY,
              "the server does not end": took <= SHUTDOWN_S + options.slack and status == 0, "an answer is invalid": not forms.invalid,
              "a request failed": not any(counts["500"] for counts in forms.counts.values()), "a stream failed": streams.failures == 0}
    return [what for what, holds in bounds.items() if not holds]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--model", default=str(ROOT / "models" / "quire-31m"))
    parser.add_argument("--forms", type=int, default=10000)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--clients", type=int, default=8, help="that ask for forms at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="ask for no more forms after this time")
    parser.add_argument("--quiet", type=float, default=20, help="seconds of the run without forms")
    parser.add_argument("--report", type=int, default=500, help="forms between two lines of the memory, on the standard error")
    parser.add_argument("--slack", type=float, default=0, help="seconds that a busy machine may add to each bound")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENT", help="of quire serve")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broken = trial(options, folder)
    if broken:
        sys.exit("does not hold: " + ", ".join(broken))


if __name__ == "__main__":
    main()
