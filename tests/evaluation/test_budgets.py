"""Bounded KV caches at true budgets: the configurations that are asked, and the tables made of
them, whose figures must be able to move with their budgets."""
import math
import subprocess
import sys

import pytest

from evaluation import budgets, effects, report
from evaluation.budgets import PARTS, ROWS
from evaluation.results import Results
from made_results import MadeResults
from server import MODEL, ROOT
from tiny_server import TinyServer

WHOLE = {"heavy_hitter whole": {"type": "heavy_hitter", "prompt": "whole"}}


def test_a_budget_is_what_the_policy_keeps_in_all():
    for policy in ROWS.values():
        for budget in (128, 255, 2048):
            full = budgets.filled(policy, budget, 16)
            assert effects.budget_of(full, 8192) == budget and full["chunk"] == 16
    assert budgets.filled(ROWS["streaming"], 256, 16)["recent"] == 252
    half = budgets.filled({**ROWS["heavy_hitter sum"], "positions": "text"}, 257, 16)
    assert (half["sink"], half["recent"], half["heavy"]) == (4, 127, 126)
    assert half["positions"] == "text"
    shares = budgets.filled(ROWS["heavy_hitter mean"], 0.1, 64)
    assert (shares["recent"], shares["heavy"]) == (0.05, 0.05)


def test_no_part_asks_a_figure_that_cannot_move():
    for part in PARTS.values():
        for config, fields in budgets.configurations(part, ROWS).items():
            policy = effects.policy_of(fields, {})
            if policy is None:
                assert config == budgets.FULL
                continue
            budget = effects.budget_of(policy, part.length)
            kv = {"budget_tokens": budget, "evicted_tokens": part.length - budget}
            of = effects.of_window if part.is_perplexity else effects.of_answer
            assert effects.judge([of(policy, kv, part.length)]) is None, config


def test_prompts_that_are_read_whole_are_asked_for_answers_only():
    for name, part in PARTS.items():
        configs = budgets.configurations(part, WHOLE)
        assert len(configs) == (4 if name == "answers" else 1)
        for fields in list(configs.values())[1:]:
            assert fields["kv_policy"]["prompt"] == "whole" and "chunk" not in fields["kv_policy"]


def made_windows(part, rows):
    """`streaming` loses 0.4 / sqrt(budget / 128) nats a token, others half of that."""
    made = MadeResults({c: f for c, f in budgets.configurations(part, rows).items()})
    for config, fields in made.configs.items():
        policy = fields.get("kv_policy")
        for index in range(4):
            loss, effect = 0.0, {}
            if policy:
                budget = effects.budget_of(policy, part.length)
                loss = 0.4 / math.sqrt(budget / 128) / (1 if policy["type"] == "streaming" else 2)
                kv = {"budget_tokens": budget, "evicted_tokens": part.length - budget}
                effect = {"effect": {"kv_policy": effects.of_window(policy, kv, part.length)}}
            n = part.length // 1024
            made.window(part.length, index, [3.3 + loss + 0.01 * index] * n, config, **effect)
    return made


def rows_of(text, title, number=0):
    """{first cell: others} of a part's table number `number`."""
    tables = [block for block in text.split(f"## {title}")[1].split("\n## ")[0].split("\n\n")
              if block.startswith("|")]
    lines = [line.removeprefix("| ").removesuffix(" |").split(" | ")
             for line in tables[number].splitlines()]
    return {line[0]: line[1:] for line in lines}


def test_the_tables_of_windows_say_chunks_intervals_and_what_was_seen(tmp_path):
    part, rows = PARTS["budgets"], {n: ROWS[n] for n in ("streaming", "heavy_hitter sum")}
    numbers = report.Rows(Results(made_windows(part, rows).write(tmp_path / "run")))
    text = budgets.section(part, rows, numbers)
    first = rows_of(text, part.title)
    assert first["kept"] == ["256, chunk 16", "512, chunk 32", "1,024, chunk 64",
                             "2,048, chunk 128"]
    assert first["behind an eviction"] == ["97 %", "93 %", "87 %", "73 %"]
    assert first["tokens seen / budget"] == ["1.03"] * 4
    assert first["`streaming`"][0].startswith("36.52 [")  # exp(3.3 + 0.4 / sqrt(2) + 0.015)
    assert rows_of(text, part.title, 1)["`heavy_hitter` sum"][0].startswith("+15.19 % [")
    assert rows_of(text, part.title, 2) == {
        "kept": first["kept"], "---": ["---:"] * 4,
        "`heavy_hitter` sum": rows_of(text, part.title, 2)["`heavy_hitter` sum"]}
    assert rows_of(text, part.title, 2)["`heavy_hitter` sum"][0].startswith("-13.19 % [")


def test_a_column_that_does_not_measure_its_budget_is_void(tmp_path):
    part, rows = PARTS["budgets"], {n: ROWS[n] for n in ("streaming", "heavy_hitter sum")}
    made = made_windows(part, rows)
    for record in made.records:
        if record.get("config", "").endswith(" 2,048"):
            record["effect"]["kv_policy"].update(behind=0, visible=None)
    text = budgets.section(part, rows, report.Rows(Results(made.write(tmp_path / "run"))))
    for number in (0, 1):
        assert rows_of(text, part.title, number)["`streaming`"][3] == "**VOID**"
    assert rows_of(text, part.title)["behind an eviction"][3] == "0 %"
    assert rows_of(text, part.title, 2)["`heavy_hitter` sum"][3] == ""


def test_the_tables_of_answers_have_every_task(tmp_path):
    part, rows = PARTS["answers"], {"streaming": ROWS["streaming"], **WHOLE}
    made = MadeResults(budgets.configurations(part, rows))
    for config, fields in made.configs.items():
        policy, effect = fields.get("kv_policy"), {}
        if policy:
            budget = effects.budget_of(policy, 4096)
            kv = {"budget_tokens": budget, "evicted_tokens": 4096 - budget}
            effect = {"effect": {"kv_policy": effects.of_answer(policy, kv, 4096)}}
        for task in ("passkey", "kv"):
            for index in range(4):
                made.sample(task, 4096, index, float(not policy), config, **effect)
    text = budgets.section(part, rows, report.Rows(Results(made.write(tmp_path / "run"))))
    assert rows_of(text, part.title)["kept"] == ["10 %, chunk 64", "20 %, chunk 64",
                                                 "50 %, chunk 64"]
    assert rows_of(text, part.title)["behind an eviction"] == ["100 %"] * 3
    assert rows_of(text, part.title, 1)["passkey"][0].startswith("100.0 [")
    assert rows_of(text, part.title, 1)["**average**"][1].startswith("0.0 [")
    assert "`heavy_hitter` whole: no chunks" in text and "VOID" not in text


def run_command(out, *arguments, expect=0):
    command = [sys.executable, str(ROOT / "scripts/quality/kv_policies.py"), "--out", str(out),
               *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expect, done.stderr
    return done


def test_one_command_asks_and_writes_the_table(tmp_path):
    arguments = ("--tokenizer", MODEL, "--parts", "budgets", "--windows", 1, "--only",
                 "streaming,more", "--row", 'more={"type": "streaming", "sink": 8}')
    with TinyServer("bounds") as server:
        done = run_command(tmp_path, "--url", server.url, *arguments, "--on", "a toy")
    assert "eval.py" in done.stderr and '"sink": 8, "recent": 248, "chunk": 16' in done.stderr
    text = (tmp_path / "kv_policies.md").read_text(encoding="utf-8")
    assert text.count("| `more` |") == 3 and "1 window, 8,191 tokens" in text
    assert "`scripts/quality/kv_policies.py` on a toy." in text
    run_command(tmp_path, "--report-only", *arguments, "--on", "a toy")
    assert (tmp_path / "kv_policies.md").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("arguments, said", [
    (("--only", "streaming,none"), "there is no row none"),
    (("--parts", "none"), "there is no part none"),
    (("--row", 'all={"type": "full"}'), "it has no budget"),
])
def test_a_wrong_question_is_a_sentence(tmp_path, arguments, said):
    done = run_command(tmp_path, "--url", "http://127.0.0.1:9", *arguments, expect=2)
    assert said in done.stderr and "Traceback" not in done.stderr
