#!/usr/bin/env python3
"""Runs the whole pipeline at a tiny size on the CPU: some minutes, and nothing of use comes out.

    python smoke.py --out DIR --quire build-cpu/quire [--mirrors DIR] [--corpus DIR]

Builds a corpus from two sources (or takes a built one), trains a tokenizer and 200 steps, stops and
goes on once, evaluates, exports, writes goldens, and serves the model.  It fails unless

- the loss has fallen,
- the chat template, read as a server reads it, writes what the training rows have,
- the server's tokens of a text are the tokenizer's, and
- the server's log-probabilities of a held-out text and its greedy tokens are those of the float64
  forward pass.
"""
import argparse
import csv
import json
import pathlib
import random
import shlex
import subprocess
import sys
import urllib.request

import torch
from tokenizers import Tokenizer

import chat
import checkpoint
from network import Network
from repository import TRAINING, served
from tasks import conversation
from tasks.job import Job
from tasks.sample import BOS

HERE = TRAINING
SMALL_SOURCE = "rust-lang/book"
MOST_DIFFERENCE = 0.001  # nats: f32 on a CPU against f64, which has given 2e-6
N_SCORED = 300


def run(*arguments):
    print("smoke: " + shlex.join(map(str, arguments)), flush=True)
    subprocess.run([sys.executable, *map(str, arguments)], cwd=HERE, check=True)


def make_corpus(options):
    corpus = options.out / "corpus"
    mirrors = ["--mirrors", options.mirrors] if options.mirrors else []
    run("-m", "corpus.build", "--out", corpus, "--only", SMALL_SOURCE, *mirrors)
    run("tokenizer.py", "--corpus", corpus, "--out", corpus / "tokenizer")
    return corpus


def train(corpus, out):
    """In two runs: the second goes on from the first."""
    settings = HERE / "settings" / "smoke.json"
    for until in (0.5, 1.0):
        run("train.py", "--settings", settings, "--corpus", corpus, "--out", out, "--workers", 1,
            "--until", until)
    with (out / "log.csv").open() as file:
        losses = [float(row["text"]) for row in csv.DictReader(file)]
    if not losses[-1] < losses[0] - 1:
        raise SystemExit(f"smoke: the loss went from {losses[0]} to {losses[-1]}")


def check_template(model):
    """Renders conversations by the template that the model directory has."""
    import jinja2
    source = json.loads((model / "tokenizer_config.json").read_text())["chat_template"]
    environment = jinja2.Environment()
    environment.filters["tojson"] = json.dumps  # as transformers has it: keys stay in order
    template = environment.from_string(source)
    for seed in range(50):
        messages, tools = conversation.tool_messages(Job(random.Random(seed), 500, None))
        if seed % 2:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        tools = tools if seed % 3 else None
        written = template.render(messages=messages, tools=tools, bos_token=BOS)
        if written != chat.render(messages, tools).text:
            raise SystemExit(f"smoke: the template writes {written!r}")


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def log_probabilities(checkpoint_path, ids):
    shape, _, weights, _ = checkpoint.load_for_evaluation(checkpoint_path, "cpu")
    weights = {name: weight.double() for name, weight in weights.items()}
    network = Network(weights, shape, torch.float64, compiled=False)
    with torch.no_grad():
        return -network.losses(torch.tensor([ids[:-1]]), torch.tensor([ids[1:]]))


def check_server(options, corpus, run_folder, model):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = (corpus / "held_out.txt").read_text()[:2000]
    ids = tokenizer.encode(text).ids[:N_SCORED]
    goldens = json.loads((model / "goldens.json").read_text())["prompts"]
    with served(f"{options.quire} serve {model}") as url:
        tokens = post(url, "/tokenize", {"prompt": text})["tokens"]
        scored = post(url, "/v1/completions", {"prompt": ids, "max_tokens": 1, "echo": True,
                                               "logprobs": 1, "temperature": 0})
        answers = [post(url, "/v1/completions", {"prompt": golden["tokens"], "max_tokens": 4,
                                                 "temperature": 0, "return_token_ids": True})
                   for golden in goldens]
    if tokens != tokenizer.encode(text).ids:
        raise SystemExit("smoke: the server's tokens differ from the tokenizer's")
    found = torch.tensor(scored["choices"][0]["logprobs"]["token_logprobs"][1:len(ids)])
    expected = log_probabilities(run_folder / "checkpoint.pt", ids)
    difference = float((found - expected).abs().max())
    print(f"smoke: log-probabilities of {len(ids) - 1} tokens differ by {difference:.2g} at most")
    if not difference < MOST_DIFFERENCE:
        raise SystemExit("smoke: the server's log-probabilities differ")
    for golden, answer in zip(goldens, answers):
        check_greedy(golden, answer, tokenizer)


def check_greedy(golden, answer, tokenizer):
    """The server's first tokens are the golden ones, up to the first close call."""
    expected = []
    for token, margin in zip(golden["greedy32"][:4], golden["greedy_margins"]):
        if margin < MOST_DIFFERENCE:
            break
        expected.append(token)
    written = answer["choices"][0]["text"]
    if not written.startswith(tokenizer.decode(expected)):
        raise SystemExit(f"smoke: {golden['name']}: the server wrote {written!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--quire", required=True, type=pathlib.Path, help="the server's binary")
    parser.add_argument("--mirrors", type=pathlib.Path, help="folder of git mirrors")
    parser.add_argument("--corpus", type=pathlib.Path, help="one that was built, with tokenizer/")
    options = parser.parse_args()
    options.quire, options.out = options.quire.resolve(), options.out.resolve()
    corpus = options.corpus.resolve() if options.corpus else make_corpus(options)
    folder, model = options.out / "run", options.out / "model"
    train(corpus, folder)
    run("evaluate.py", "--checkpoint", folder / "checkpoint.pt", "--corpus", corpus, "--out",
        folder / "results.json", "--lengths", 512, 1024, "--contexts", 1, "--window", 128,
        "--window-tokens", 1500, "--window-positions", 20, "--workers", 1,
        "--book-characters", 9000)
    run("export.py", "--checkpoint", folder / "checkpoint.pt", "--tokenizer", corpus / "tokenizer",
        "--out", model)
    run("goldens.py", "--checkpoint", folder / "checkpoint.pt", "--corpus", corpus, "--out",
        model / "goldens.json")
    check_template(model)
    check_server(options, corpus, folder, model)
    print("smoke: all is well")


if __name__ == "__main__":
    main()
