"""lm-evaluation-harness: its numbers on quire are those of its own Hugging Face backend on the same
weights.  torch is larger than all other clients together, so it is not among the requirements:

    build/venv-clients/bin/python -m pip install accelerate torch transformers

Answers of a model that knows them all are always equal.  So most of these documents are cut
short: of what they ask, nothing is left in the context."""
import json
import random

import pytest

pytest.importorskip("torch", reason="torch is not installed: see this file's first lines")
pytest.importorskip("transformers")

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from conftest import MODEL  # noqa: E402
from server import ROOT  # noqa: E402
from test_lm_eval import CHOOSE, GENERATE, TASK  # noqa: E402

N_DOCS, N_CHARS = 8, 300
ROLL = """
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
WEIGHTS = {"pretrained": str(ROOT / "models/quire-31m"), "device": "cpu", "dtype": "float32",
           "max_length": 4096, "add_bos_token": False}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    rng = random.Random(3)
    end = "<|im_end|>\n<|im_start|>assistant\n"
    with open(ROOT / "models/quire-31m/eval/tasks.jsonl", encoding="utf-8") as file:
        items = [json.loads(line) for line in file]
    docs = folder / "docs.jsonl"
    with open(docs, "w", encoding="utf-8") as out:
        for item in rng.sample(items, N_DOCS):
            question = rng.choice(item["questions"])
            answers = [question["a"], rng.choice(rng.choice(items)["questions"])["a"]]
            text = item["prefix"][-N_CHARS:] + question["q"] + end
            out.write(json.dumps({"text": text, "answer": answers[0], "label": 0,
                                  "choices": answers}) + "\n")
    for name, output, target, rest in (("generate", "generate_until", "answer", GENERATE),
                                       ("choose", "multiple_choice", "label", CHOOSE),
                                       ("roll", "loglikelihood_rolling", "text", ROLL)):
        (folder / f"{name}.yaml").write_text(TASK.format(
            name=name, data=docs, output=output, target=target, rest=rest))
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluate(kind, arguments, tasks, task):
    found = lm_eval.simple_evaluate(model=kind, model_args=arguments, tasks=[task],
                                    task_manager=tasks, bootstrap_iters=0, batch_size=1)
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    numbers = {name: value for name, value in found["results"][task].items()
               if "," in name and "stderr" not in name}
    return numbers, [sample["resps"] for sample in samples]


@pytest.fixture(scope="module")
def both(server, tasks):
    """both(task): the numbers and the responses by its own backend, and by quire."""
    over_http = {"model": MODEL, "base_url": f"{server.url}/v1/completions", "num_concurrent": 1,
                 "max_retries": 1, "max_length": 4096, "tokenizer_backend": "remote",
                 "auth_token": "secret"}
    return lambda task: (evaluate("hf", WEIGHTS, tasks, task),
                         evaluate("local-completions", over_http, tasks, task))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_generated_answers_are_equal(both):
    (theirs, said), (ours, said_here) = both("generate")
    assert ours == theirs and said_here == said


def test_choices_are_equal(both):
    (theirs, scored), (ours, scored_here) = both("choose")
    assert ours == theirs and 0 < ours["acc,none"]
    for one, other in zip(scored, scored_here):
        for (pair,), (pair_here,) in zip(one, other):
            assert float(pair_here[0]) == pytest.approx(float(pair[0]), abs=2e-3)


def test_perplexities_are_equal(both):
    (theirs, _), (ours, _) = both("roll")
    assert ours == {name: pytest.approx(value, rel=1e-4) for name, value in theirs.items()}
