"""For tests that ask a TinyServer: options as the command makes them, and small tasks it can do."""
import asyncio
import json
import types

from evaluation import runner, tasks
from evaluation.rng import Rng
from evaluation.text import Books

BOOKS = Books("It was a dark night. The rain fell in torrents. " * 40)
# Fields of a record that are the clock's business, not the model's.
CLOCK = ("ttft_s", "duration_s")


def generate(task, length, index, seed, count_tokens, books):
    """A passkey in a few words; every third sample asks twice.  count_tokens is used as the real
    tasks do."""
    if length < count_tokens(""):
        raise ValueError(f"{length} is too short")
    key = Rng(seed, task, length, index).digits(5)
    question = tasks.Question("What is the pass key?", [key], "contains_all", 16,
                              f"The pass key is {key}.")
    return tasks.Sample(task, length, index, f"{books.text[:length]} The pass key is {key}. ",
                        [question] * (2 if index % 3 == 0 else 1), depth=0.5)


REGISTRY = types.SimpleNamespace(generate=generate, judge=tasks.judge, card=lambda: [])


def make_options(out, url, **changes):
    options = {"url": url, "out": str(out), "model": None, "api_key": None, "timeout": 120,
               "tokenizer": None, "template": "raw", "seed": 1, "configs": {"default": {}},
               "concurrency": 1, "quick": False, "tasks": ["passkey"], "lengths": [100],
               "samples": 6, "question": "last", "windows": None, "bucket": 1024, "allow_void": False,
               **changes}
    return types.SimpleNamespace(**options)


def evaluate(out, url, registry=REGISTRY, books=BOOKS, **changes):
    """Returns how many requests failed."""
    return asyncio.run(runner.run(make_options(out, url, **changes), registry, books))


def read_results(out, *kinds):
    with open(out / "results.jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [record for record in records if not kinds or record["kind"] in kinds]


def key_of(record):
    return tuple(record[name] for name in ("kind", "config", "task", "length", "index", "question"))


def outcomes(out):
    """Every record but the clock's part of it, by its key.  Fails when two have the same key."""
    found = {}
    for record in read_results(out, "sample", "stream", "perplexity"):
        assert key_of(record) not in found, f"asked twice: {key_of(record)}"
        found[key_of(record)] = {k: v for k, v in record.items() if k not in CLOCK}
    return found
