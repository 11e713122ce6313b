"""lm-evaluation-harness: local-completions and local-chat-completions, on contexts of the default
model whose answers it knows."""
import json

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from conftest import MODEL
from server import ROOT

N_DOCS = 2
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {output}
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{{target}}}}}"
{rest}
"""
GENERATE = """
generation_kwargs: {until: ["<|im_end|>"], max_gen_toks: 24, temperature: 0}
filter_list: [{name: strip, filter: [{function: remove_whitespace}]}]
metric_list: [{metric: exact_match, ignore_case: false}]
"""
CHOOSE = """
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Passkeys in 1K tokens: what is to be generated, and which of two answers is likelier."""
    folder = tmp_path_factory.mktemp("tasks")
    with open(ROOT / "models/quire-31m/eval/tasks.jsonl", encoding="utf-8") as file:
        items = [json.loads(line) for line in file]
    items = [item for item in items if item["task"] == "passkey"][:N_DOCS]
    end = "<|im_end|>\n<|im_start|>assistant\n"
    docs, chats = folder / "docs.jsonl", folder / "chats.jsonl"
    with open(docs, "w", encoding="utf-8") as out, open(chats, "w", encoding="utf-8") as out_chats:
        for item in items:
            answer = item["questions"][0]["a"]
            wrong = answer.translate(str.maketrans("0123456789", "1234567890"))
            asked = item["prefix"] + item["questions"][0]["q"]
            out.write(json.dumps({"text": asked + end, "answer": answer, "label": 1,
                                  "choices": [wrong, answer]}) + "\n")
            message = asked.split("<|im_start|>user\n")[-1]
            out_chats.write(json.dumps({"text": message, "answer": answer}) + "\n")
    for name, data, output, target, rest in (
            ("generate", docs, "generate_until", "answer", GENERATE),
            ("chat", chats, "generate_until", "answer", GENERATE),
            ("choose", docs, "multiple_choice", "label", CHOOSE)):
        (folder / f"{name}.yaml").write_text(TASK.format(
            name=name, data=data, output=output, target=target, rest=rest))
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluate(server, tasks, task, kind, path, **rest):
    arguments = {"model": MODEL, "base_url": f"{server.url}{path}", "num_concurrent": 1,
                 "max_retries": 1, "max_length": 4096, "tokenizer_backend": "remote",
                 "auth_token": "secret", **rest}
    results = lm_eval.simple_evaluate(model=kind, model_args=arguments, tasks=[task],
                                      task_manager=tasks, apply_chat_template=task == "chat",
                                      bootstrap_iters=0, log_samples=False)
    return results["results"][task]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")


def test_generated_answers(server, tasks):
    found = evaluate(server, tasks, "generate", "local-completions", "/v1/completions")
    assert found["exact_match,strip"] == 1


def test_likelier_answers(server, tasks):
    found = evaluate(server, tasks, "choose", "local-completions", "/v1/completions")
    assert found["acc,none"] == 1


def test_answers_in_chats(server, tasks):
    found = evaluate(server, tasks, "chat", "local-chat-completions", "/v1/chat/completions")
    assert found["exact_match,strip"] == 1
