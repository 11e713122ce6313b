#!/usr/bin/env python3
"""What weights of fewer bits cost: perplexity, the distribution's tail, calls, JSON and tasks.

    scripts/quality/weights.py MODEL --out DIR [--to fp8,int8,int4,q8_0,q5_0,q4_0,q4_k] \\
        [--quire build/quire] [--serve '--device cuda'] [--tasks kv,people,sections]

MODEL is a folder with weights of 16 bits, which is the first row.  `quire quantize` writes each other
format into DIR, unless it is there.  A server of each format is asked the same:

perplexity   windows of held-out text, each scored by one request (echo), its first 64 tokens left out
divergence   Kullback-Leibler, in nats a token, from the model to the format: of the 20 most probable
             tokens that both name, and all others as one.  So it is a lower bound.  Its mean, and the
             value that a thousandth of the tokens exceeds
same         tokens of which both have the same most probable one
json, calls  greedy lines behind four examples: an object of a sentence, and one of three functions
             with its arguments.  All of it must be right
tools        calls of a tool in a chat; empty where the chat template has no tools
chosen       calls of one of four tools in a chat, with its arguments
tasks        the average score of scripts/quality/eval.py's tasks

Prints CSV, a line for each format.  --quick is two windows and ten lines, to see that it works."""
import argparse
import concurrent.futures
import csv
import json
import math
import pathlib
import random
import re
import shlex
import subprocess
import sys
import time
import urllib.error

import numpy

from real_models import AGENT, BOOKS, ROOT, TOOLS, Quire

FORMATS = "fp8,int8,int4,q8_0,q5_0,q4_0,q4_k"
FOLDERS = {"fp8", "int8", "int4"}
FIRST, TOP = 64, 20
NAMES = ("Mara Ivo Nadia Pavel Rosa Tomas Yusuf Ingrid Bela Chloe Dario Emil Farah Goran Hanna Jonas "
         "Kira Lena Milan Nora Oskar Petra Quentin Rita Sven Tara Uwe Vera Wanda Xenia").split()
CITIES = ("Lisbon Oslo Madrid Prague Vienna Dublin Athens Warsaw Helsinki Rome Berlin Paris Geneva "
          "Zagreb Sofia Riga Porto Milan Naples Lyon Bergen Tallinn Krakow Malaga Ghent").split()
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def windows_of(server, length, n):
    """Windows of the held-out text, from places that are as far apart as can be."""
    text = BOOKS.read_text(encoding="utf-8")
    step = (len(text) - 8 * length) // n
    return [server.tokens(text[i * step:i * step + 8 * length], True)[:length] for i in range(n)]


def score(server, ids):
    """(log-probabilities, the best tokens of each place) of a window."""
    answer = server.post("/v1/completions", {"prompt": ids, "echo": True, "logprobs": TOP,
                                             "max_tokens": 0})["choices"][0]["logprobs"]
    return answer["token_logprobs"][FIRST:], answer["top_logprobs"][FIRST:]


def divergence(p, q):
    """Of two places, each a token's log-probability by its text."""
    both = [(math.exp(p[token]), math.exp(q[token])) for token in p if token in q]
    others = [max(1e-9, 1 - sum(x[i] for x in both)) for i in range(2)]
    return sum(a * math.log(a / b) for a, b in [*both, others])


def best(top):
    return max(top, key=top.get)


def compare(found, reference):
    """(mean divergence, what a thousandth exceeds, share of equal best tokens)."""
    pairs = [(p, q) for (_, mine), (_, theirs) in zip(reference, found, strict=True)
             for p, q in zip(mine, theirs, strict=True)]
    apart = numpy.array([divergence(p, q) for p, q in pairs])
    same = sum(best(p) == best(q) for p, q in pairs) / len(pairs)
    return apart.mean(), numpy.quantile(apart, 0.999), same


def sentences(rng, n):
    """Pairs of a sentence and the line that is right behind it: objects, then calls."""
    def person():
        name, age, city = rng.choice(NAMES), rng.randint(18, 90), rng.choice(CITIES)
        return (f"{name} is {age} years old and lives in {city}.",
                json.dumps({"name": name, "age": age, "city": city}))

    def call():
        city, a, b = rng.choice(CITIES), rng.randint(2, 99), rng.randint(2, 99)
        return rng.choice([
            (f"What is the weather in {city}?", "get_weather(" + json.dumps({"city": city}) + ")"),
            (f"What time is it in {city}?", "get_time(" + json.dumps({"city": city}) + ")"),
            (f"Add {a} and {b}.", "add(" + json.dumps({"a": a, "b": b}) + ")")])
    return [[make() for _ in range(n)] for make in (person, call)]


def lines(server, rng, n, examples):
    """Asks for the line behind each sentence; the share that is right."""
    start = "".join(f"{text} => {line}\n" for text, line in examples)

    def ask(pair):
        answer = server.post("/v1/completions", {
            "prompt": f"{start}{pair[0]} =>", "max_tokens": 48, "temperature": 0, "stop": ["\n"]})
        return re.sub(r"\s+", "", answer["choices"][0]["text"]) == re.sub(r"\s+", "", pair[1])
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return sum(pool.map(ask, rng.sample(n, len(n)))) / len(n)


def calls_of(server, question, offered, system=()):
    """The calls that answer a question, [(name, arguments)]; None: the chat template has no tools."""
    try:
        answer = server.post("/v1/chat/completions", {
            "messages": [*system, {"role": "user", "content": question}], "tools": offered,
            "temperature": 0, "max_tokens": 96})
    except urllib.error.HTTPError:
        return None
    made = [call["function"] for call in answer["choices"][0]["message"].get("tool_calls") or []]
    try:
        return [(call["name"], json.loads(call["arguments"])) for call in made]
    except ValueError:
        return []


def share_of_calls(ask, cases):
    """cases: [(question, the call that is right)]."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda case: ask(case[0]), cases))
    if None in found:
        return None
    return sum(made == [right] for made, (_, right) in zip(found, cases)) / len(cases)


def tools(server, n):
    """The share of right calls of a tool in a chat."""
    return share_of_calls(lambda question: calls_of(server, question, [TOOL]),
                          [(f"What is the weather in {city}?", ("get_weather", {"city": city}))
                           for city in (CITIES * 4)[:n]])


def chosen(server, rng, n):
    """The share of right calls where the model also chooses one of four tools."""
    def case(i):
        a, b, city, word = rng.randint(2, 999), rng.randint(2, 999), rng.choice(CITIES), rng.choice(NAMES).lower()
        return [(f"What is the weather in {city}?", ("get_weather", {"city": city})),
                (f"What is {a} + {b}? Use the tool.", ("add", {"a": a, "b": b})),
                (f"Read src/{word}.c and tell me what it does.", ("read_file", {"path": f"src/{word}.c"})),
                (f"Run the command `make {word}`.", ("run_command", {"command": f"make {word}"}))][i % 4]
    return share_of_calls(lambda question: calls_of(server, question, TOOLS, [AGENT]),
                          [case(i) for i in range(n)])


def tasks(server, a, name):
    """The average score of eval.py's tasks, each of the same weight."""
    if not a.tasks:
        return None
    out = a.out / f"tasks-{name}"
    command = [sys.executable, ROOT / "scripts/quality/eval.py", "--url",
               f"http://127.0.0.1:{server.port}", "--tasks", a.tasks, "--lengths", str(a.task_length),
               "--samples", str(a.samples), "--concurrency", "16", "--out", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    scores = {}
    for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["kind"] == "sample":
            scores.setdefault(one["task"], []).append(one["score"])
    return sum(sum(found) / len(found) for found in scores.values()) / len(scores)


def prepare(a, name):
    """Where the format is, and the loss that `quire quantize` prints."""
    if name == "bf16":
        return a.model, ""
    path = a.out / (name if name in FOLDERS else f"{name}.gguf")
    told = a.out / f"{name}.txt"
    if not told.exists():
        group = ["--group-size", str(a.group_size)] if name == "int4" else []
        done = subprocess.run([a.quire, "quantize", a.model, "--to", name, "--out", path, *group],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr.strip()}")
        told.write_text(done.stdout)
    return path, re.search(r"all +([\d.]+)", told.read_text())[1]


def shown(value, digits):
    return "" if value is None else f"{value:.{digits}f}"


def measure(a, name, state):
    """A row; state: what the first format has left."""
    path, loss = prepare(a, name)
    began = time.monotonic()
    with Quire(a.quire, path, *shlex.split(a.serve)) as server:
        if "windows" not in state:
            state["windows"] = windows_of(server, a.length, a.windows)
        found = [score(server, ids) for ids in state["windows"]]
        state.setdefault("reference", found)
        values = [x for one, _ in found for x in one]
        apart = compare(found, state["reference"])
        rng = random.Random(67)
        objects, calls = sentences(rng, a.lines + 4)
        right = [lines(server, rng, all_[4:], all_[:4]) for all_ in (objects, calls)]
        row = [name, loss, shown(math.exp(-sum(values) / len(values)), 3), len(values),
               shown(apart[0], 6), shown(apart[1], 4), shown(apart[2], 4),
               *(shown(x, 3) for x in right), shown(tools(server, a.lines), 3),
               shown(chosen(server, rng, a.lines), 3), shown(tasks(server, a, name), 3)]
    return [*row, f"{time.monotonic() - began:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("model", type=pathlib.Path)
    add("--out", type=pathlib.Path, required=True)
    add("--to", default=FORMATS, help="%(default)s")
    add("--group-size", type=int, default=128, help="of int4 (%(default)s)")
    add("--quire", default=str(ROOT / "build/quire"))
    add("--serve", default="", help="further arguments of `quire serve`")
    add("--windows", type=int, default=16)
    add("--length", type=int, default=2048, help="tokens of a window")
    add("--lines", type=int, default=100, help="of JSON, of calls, and of tools")
    add("--tasks", default="", help="of scripts/quality/eval.py; empty: none")
    add("--task-length", type=int, default=4096)
    add("--samples", type=int, default=20, help="of a task")
    add("--quick", action="store_true")
    a = parser.parse_args()
    if a.quick:
        a.windows, a.length, a.lines, a.samples, a.task_length = 2, 256, 10, 2, 1024
    a.out.mkdir(parents=True, exist_ok=True)
    out, state = csv.writer(sys.stdout, lineterminator="\n"), {}
    out.writerow(["weights", "error", "perplexity", "tokens", "divergence", "divergence_999", "same",
                  "json", "calls", "tools", "chosen", "tasks", "seconds"])
    for name in ["bf16", *a.to.split(",")]:
        out.writerow(measure(a, name, state))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
