#!/usr/bin/env python3
"""Multiple choice by lm-evaluation-harness: quire beside transformers, and what budgets cost.

    scripts/quality/choices.py --model DIR --out FOLDER --transformers
    scripts/quality/choices.py --model DIR --out FOLDER --url http://127.0.0.1:8000 \\
        --config 'full={}' --config 'streaming={"kv_policy": {"type": "streaming", "recent": 60}}'
    scripts/quality/choices.py --out FOLDER --report

An item is a piece of a held-out book and two ways to go on: the book's own next words, and as many that
follow the same word elsewhere in the books, so that the last word does not tell.  The likelier one is the answer (lm-eval's `acc`), by the log-probabilities of the
choice's tokens behind the piece.  Items are made from a seed, so all runs have the same.

Each run writes FOLDER/NAME.json, with the log-likelihoods of all choices.  --report prints CSV of what is
there: accuracy with its 95 % interval, how many items are answered otherwise than by the first run (now
right, now wrong), and how far log-likelihoods are from its own, in the mean and at most, in nats.

It needs lm-eval, and for --transformers torch and transformers."""
import argparse
import csv
import json
import os
import pathlib
import random
import re
import sys
import tempfile

from evaluation.wilson import wilson

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOOKS = ROOT / "models/quire-31m/eval/held_out.txt"
TASK = """
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{label}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: " "
metric_list: [{{metric: acc}}]
"""


def make_items(n, n_words, n_next, seed):
    """Pieces of n_words words, each with two choices of n_next, of which label says the book's own."""
    words = re.findall(r"\S+", BOOKS.read_text(encoding="utf-8"))
    behind = {}
    for at, word in enumerate(words[:-n_next]):
        behind.setdefault(word, []).append(at + 1)
    rng = random.Random(seed)
    items = []
    while len(items) < n:
        at = rng.randrange(n_words, len(words) - n_next)
        other = rng.choice(behind[words[at - 1]])
        if words[other:other + n_next] == words[at:at + n_next]:
            continue
        choices = [" ".join(words[first:first + n_next]) for first in (at, other)]
        label = rng.randrange(2)
        items.append({"text": " ".join(words[at - n_words:at]), "label": label,
                      "choices": choices[::-1] if label else choices})
    return items


def evaluate(model, arguments, items):
    """Log-likelihoods of both choices of each item."""
    import lm_eval
    from lm_eval.tasks import TaskManager
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = folder / "items.jsonl"
        data.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
        (folder / "choices.yaml").write_text(TASK.format(data=data))
        found = lm_eval.simple_evaluate(
            model=model, model_args=arguments, tasks=["choices"], bootstrap_iters=0, batch_size=1,
            task_manager=TaskManager(include_path=str(folder), include_defaults=False))
    samples = sorted(found["samples"]["choices"], key=lambda sample: sample["doc_id"])
    values = [[float(choice[0][0]) for choice in sample["resps"]] for sample in samples]
    right = [pair[item["label"]] > pair[1 - item["label"]] for pair, item in zip(values, items, strict=True)]
    assert sum(right) / len(right) == found["results"]["choices"]["acc,none"]
    return values


def over_http(args, members):
    """lm-eval's client, which sends these members along."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    class Client(LocalCompletionsAPI):
        def _create_payload(self, *arguments, **named):
            return {**super()._create_payload(*arguments, **named), **members}

    return Client(base_url=f"{args.url}/v1/completions", model=args.name, tokenizer=str(args.model),
                  tokenizer_backend="huggingface", num_concurrent=1, max_retries=1, max_length=4096,
                  timeout=3600)


def configuration(text):
    name, _, members = text.partition("=")
    return name, json.loads(members)


def report(folder, items):
    runs = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    out, first = csv.writer(sys.stdout), None
    out.writerow(["run", "items", "accuracy", "low", "high", "now right", "now wrong", "mean", "most"])
    for path in runs:
        values = json.loads(path.read_text())
        right = [pair[item["label"]] > pair[1 - item["label"]] for pair, item in zip(values, items)]
        first = first or (values, right)
        apart = [abs(a - b) for pair, own in zip(values, first[0]) for a, b in zip(pair, own)]
        low, high = wilson(sum(right) / len(right), len(right))
        out.writerow([path.stem, len(right), *(f"{100 * x:.1f}" for x in (sum(right) / len(right), low, high)),
                      sum(a and not b for a, b in zip(right, first[1])),
                      sum(b and not a for a, b in zip(right, first[1])),
                      f"{sum(apart) / len(apart):.2g}", f"{max(apart):.2g}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--model", type=pathlib.Path, help="a folder with the weights and the tokenizer")
    add("--out", type=pathlib.Path, required=True)
    add("--url")
    add("--name", default="model", help="what the server calls the model")
    add("--config", type=configuration, action="append", default=[], metavar="NAME={JSON}",
        help="more members of each request")
    add("--transformers", action="store_true", help="its float32, as the run `transformers`")
    add("--items", type=int, default=200)
    add("--words", type=int, default=100, help="of a piece (%(default)s)")
    add("--next", type=int, default=8, help="words of a choice (%(default)s)")
    add("--seed", type=int, default=1)
    add("--report", action="store_true")
    args = parser.parse_args()
    items = make_items(args.items, args.words, args.next, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OPENAI_API_KEY", "none")
    os.environ["HF_HUB_OFFLINE"] = "1"
    runs = [(name, lambda members=members: (over_http(args, members), None)) for name, members in args.config]
    if args.transformers:
        runs.append(("transformers", lambda: ("hf", {"pretrained": str(args.model), "device": "cpu",
                                                     "dtype": "float32", "max_length": 4096})))
    for name, make in runs:
        values = evaluate(*make(), items)
        (args.out / f"{name}.json").write_text(json.dumps(values))
    if args.report:
        report(args.out, items)


if __name__ == "__main__":
    main()
