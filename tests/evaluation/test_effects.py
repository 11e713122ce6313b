"""A number that cannot move with what it measures is refused or marked: nothing evicted before what
was scored, far more visible than the budget, nothing selected, nothing left out, all cached."""
import csv
import io
import json
import subprocess
import sys

import pytest

from asking import evaluate, read_results
from evaluation import configurations, effects, plots, report, runner
from evaluation.results import Results
from evaluation.text import Books
from made_results import MadeResults
from server import MODEL, ROOT, Server
from test_eval import run_eval
from tiny_server import TinyServer

VOID = 4  # the exit status of scripts/quality/eval.py
STREAMING = {"type": "streaming", "sink": 4, "recent": 96, "chunk": 10}


@pytest.fixture(scope="module")
def books():
    return Books((MODEL / "eval/held_out.txt").read_text(encoding="utf-8")[:30000])


def simulated(capacity, chunk, n_rows):
    """What rows_of_prompt adds up, by reading the prompt token by token."""
    kept = n_read = behind = visible = 0
    has_evicted = False
    for _ in range(n_rows):
        kept, n_read = kept + 1, n_read + 1
        behind, visible = behind + has_evicted, visible + has_evicted * kept
        if n_read % chunk == 0 and kept > capacity:
            kept, has_evicted = capacity, True
    return behind, visible / behind if behind else None


@pytest.mark.parametrize("capacity, chunk, n_rows", [
    (100, 512, 1023), (512, 512, 1023), (512, 16, 1023), (7, 1, 50), (7, 1, 7), (7, 1, 8),
    (64, 100, 1000), (100, 64, 101), (5, 3, 1), (100, 50, 150), (100, 50, 151)])
def test_what_a_row_sees_is_what_reading_in_chunks_leaves(capacity, chunk, n_rows):
    assert effects.rows_of_prompt(capacity, chunk, n_rows) == pytest.approx(
        simulated(capacity, chunk, n_rows), nan_ok=True)


def kv(budget, n_tokens):
    return {"budget_tokens": budget, "evicted_tokens": max(0, n_tokens - budget)}


def window(budget, chunk, n_tokens, **policy):
    policy = {"type": "streaming", "sink": 4, "recent": budget - 4, "chunk": chunk, **policy}
    return effects.judge([effects.of_window(policy, kv(budget, n_tokens), n_tokens)])


def test_windows_no_longer_than_budget_and_chunk_are_void():
    # usage.kv says that 512 of 1,024 tokens were evicted: at the end, behind what was scored.
    assert window(512, 512, 1024).is_void
    assert window(256, 1024, 1024).is_void
    assert window(1024, 16, 1024).is_void
    assert window(512, 16, 8192, prompt="whole").is_void


def test_windows_that_see_more_than_the_budget_are_loose():
    finding = window(102, 512, 8192)
    assert not finding.is_void and "3.5" in finding.why and "chunk 512" in finding.why
    assert "only 4" in window(512, 16, 1000).why


def test_windows_far_longer_than_budget_and_chunk_are_not_marked():
    for budget in (256, 512, 1024, 2048):
        assert window(budget, budget // 16, 8192) is None


def test_an_unknown_chunk_is_said():
    policy = {"type": "streaming", "recent": 100}
    finding = effects.judge([effects.of_window(policy, kv(104, 8192), 8192)])
    assert not finding.is_void and "chunk" in finding.why


def test_an_answer_counts_when_its_prompt_is_longer_than_the_budget():
    assert effects.of_answer(STREAMING, kv(100, 99), 95)["behind"] == 0
    # Evicted while the answer was generated: what the prompt said was all there.
    assert effects.of_answer(STREAMING, kv(100, 105), 95)["behind"] == 0
    assert effects.of_answer(STREAMING, kv(100, 1010), 1000) == effects.effect(1, 1, 110, 100, 10)
    large = {**STREAMING, "chunk": 512}
    finding = effects.judge([effects.of_answer(large, kv(100, 1010), 1000)])
    assert "5.88 times" in finding.why
    # What a paper prunes once is meant to read the prompt with everything visible.
    whole = {**large, "prompt": "whole"}
    assert effects.judge([effects.of_answer(whole, kv(100, 1010), 1000)]) is None


def test_selections_count_when_something_was_selected():
    policy = {"type": "offload", "selected": 64}
    assert effects.of_answer(policy, {"selected_tokens": 640}, 1000)["behind"] == 1
    assert effects.judge([effects.of_answer(policy, {"selected_tokens": 0}, 90)]).is_void
    assert effects.judge([effects.of_window(policy, {"selected_tokens": 0}, 9000)]).is_void


def test_sparse_prompts_count_when_something_was_left_out():
    sparse = {"mode": "sparse", "density": 0.5}
    first = effects.of_prefill(sparse, False, None)
    assert first["behind"] == 1
    nothing = {"mode": "sparse", "density": 1}
    assert effects.of_prefill(nothing, True, first)["behind"] == 1  # the rest of the same prompt
    assert effects.of_prefill(nothing, True, None)["behind"] == 0  # cached by an unknown request
    finding = effects.judge([effects.of_prefill(nothing, False, None)])
    assert finding.is_void and "prefix cache" in finding.why


def test_a_run_is_refused_before_it_asks_windows_that_cannot_move(tmp_path, books):
    arguments = {"tasks": ["perplexity"], "lengths": [1024], "windows": 2, "books": books,
                 "tokenizer": str(MODEL),
                 "configs": {"full": {}, "half": {"kv_policy": {"type": "streaming",
                                                                "recent": 0.5}}}}
    with TinyServer("bounds") as server:
        with pytest.raises(runner.Unusable, match="half cannot change .* 1024.*nothing was evict"):
            evaluate(tmp_path, server.url, **arguments)
        assert not server.bodies and not read_results(tmp_path)
        evaluate(tmp_path, server.url, allow_void=True, **arguments)
    half = [r for r in read_results(tmp_path, "perplexity") if r["config"] == "half"]
    assert [r["usage"]["kv"]["evicted_tokens"] for r in half] == [508, 508]
    assert [r["effect"]["kv_policy"]["behind"] for r in half] == [0, 0]
    assert read_results(tmp_path, "ignored")[-1]["verdict"] == "without effect"


@pytest.mark.parametrize("pretends", [False, True])
def test_windows_that_are_as_likely_as_those_of_the_full_cache_are_void(tmp_path, books, pretends):
    with TinyServer("bounds", pretends=pretends) as server:
        evaluate(tmp_path, server.url, tasks=["perplexity"], lengths=[1024], windows=2, books=books,
                 tokenizer=str(MODEL), configs={"full": {}, "bounded": {"kv_policy": STREAMING}})
    findings = Results(tmp_path).findings()
    assert list(findings) == [("bounded", "perplexity/1024")] * pretends
    assert all(finding.is_void and "to the last bit" in finding.why
               for finding in findings.values())


def config(name, recent, chunk):
    return ("--config", f'{name}={{"kv_policy": {{"type": "streaming", "sink": 4, "recent": '
                        f'{recent}, "chunk": {chunk}}}}}')


@pytest.mark.parametrize("recent, chunk, mark", [(508, 512, "VOID"), (98, 512, "LOOSE"),
                                                 (98, 8, None)])
def test_the_command_fails_on_a_perplexity_that_does_not_measure_its_budget(
        tmp_path, books, recent, chunk, mark):
    text = tmp_path / "books.txt"
    text.write_text(books.text, encoding="utf-8")
    arguments = ("--tokenizer", MODEL, "--books", text, "--tasks", "perplexity", "--lengths", 1024,
                 "--windows", 2, "--config", "full={}", *config("bounded", recent, chunk))
    with TinyServer("bounds") as server:
        if mark == "VOID":
            done = run_eval(tmp_path, "--url", server.url, *arguments, expect=2)
            assert "nothing was evicted" in done.stderr
        run_eval(tmp_path, "--url", server.url, *arguments, "--allow-void")
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert [m for m in ("VOID", "LOOSE") if f"**{m}** bounded: perplexity/1024" in text] == \
        [mark] * bool(mark)
    done = run_eval(tmp_path, "--report-only", expect=VOID if mark else 0)
    assert bool(mark) == ("numbers are marked" in done.stderr)


def test_the_command_fails_when_no_prompt_was_longer_than_the_budget(tmp_path):
    arguments = ("--tasks", "passkey", "--lengths", 400, "--samples", 4, "--config", "full={}",
                 *config("bounded", 1000, 16))
    with TinyServer("bounds") as server:
        run_eval(tmp_path, "--url", server.url, *arguments, expect=VOID)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "- **VOID** bounded: passkey/400: nothing was evicted" in text
    # The number is not there to be copied.
    line = next(one for one in text.split("Scores: bounded")[1].splitlines() if "| passkey" in one)
    assert line == "| passkey | **VOID** | 4/4 |"


def made_run():
    """Budget 100 of 1,024, once with nothing evicted, once with too much visible, once right."""
    made = MadeResults({"full": {}, "void": {}, "loose": {}, "right": {}})
    found = {"void": effects.effect(1023, 0, None, 600, 512),
             "loose": effects.effect(1023, 600, 355, 100, 512),
             "right": effects.effect(1023, 900, 108, 100, 16)}
    answer = {"void": effects.effect(1, 0, None, 600, 512),
              "loose": effects.effect(1, 1, 355, 100, 512),
              "right": effects.effect(1, 1, 108, 100, 16)}
    for name in made.configs:
        for index in range(3):
            made.window(2048, index, [3.0 + 0.1 * (name != "full"), 3.1], name,
                        **({"effect": {"kv_policy": found[name]}} if name in found else {}))
            for task in ("passkey", "kv"):
                made.sample(task, 1024, index, 1.0, name, usage={"kv": {"budget_tokens": 100}},
                            **({"effect": {"kv_policy": answer[name]}} if name in found else {}))
    return made


def test_averages_and_buckets_share_the_mark_of_what_they_are_made_of(tmp_path):
    rows = report.Rows(Results(made_run().write(tmp_path / "run")))
    for row in ("passkey/1024", "average/1024", "perplexity/2048", "perplexity/2048/1024"):
        assert rows.cell("void", row, "1.0") == "**VOID**"
        assert rows.cell("loose", row, "1.0") == "**LOOSE** 1.0"
        assert rows.cell("right", row, "1.0") == rows.cell("full", row, "1.0") == "1.0"
    outcome = report.write(tmp_path / "run")
    assert outcome == report.Outcome(red=False, marked=True)
    text = (tmp_path / "run/table.md").read_text(encoding="utf-8")
    assert "- **VOID**: 3 rows;" in text and "- **LOOSE**: 3 rows;" in text
    assert "| right | perplexity/2048 | kv_policy | 100 | 16 | 3,069 | 88.0% | 1.08 |" in text


def test_plots_leave_out_what_is_void_and_cross_out_what_is_loose(tmp_path):
    rows = report.Rows(Results(made_run().write(tmp_path / "run")))
    for name, figure in plots.figures(rows):
        if name not in ("accuracy.png", "perplexity.png"):
            continue
        axes = figure.axes[0]
        lines = [one.get_label() for one in axes.lines]
        assert "void" not in lines and plots.LOOSE in lines and "right" in lines
        assert figure.get_supxlabel().endswith("3 void rows not drawn")


def test_a_stream_is_judged_as_a_whole(tmp_path):
    made = MadeResults({"a": {}, "b": {}})
    for name, n_behind in (("a", 4), ("b", 0)):
        for question in range(20):
            made.stream(0, question, 200 * (question + 1), 1.0, name)
            made.records[-1]["effect"] = {"kv_policy": effects.effect(
                1, int(question >= 20 - n_behind), 100 if n_behind else None, 100, 4)}
    rows = report.Rows(Results(made.write(tmp_path / "run")))
    assert not rows.is_void("a", "streameval/1024") and rows.is_void("b", "streameval/4096")
    assert list(rows.findings) == [("b", "streameval")]


def test_times_of_prompts_that_were_all_cached_are_void(tmp_path):
    made = MadeResults({"cold": {}, "warm": {}})
    for index in range(3):
        for name in made.configs:
            made.sample("passkey", 1024, index, 1.0, name, cached=name == "warm")
    report.write(made.write(tmp_path / "run"))
    text = (tmp_path / "run/table.md").read_text(encoding="utf-8")
    assert "- **VOID** warm: 1,024: every prompt was found in the prefix cache" in text


def test_fields_that_ask_for_everything_have_no_effect_to_show():
    for fields in ({}, {"kv_policy": {"type": "full"}}, {"kv_policy": "full"}):
        policy = effects.policy_of(fields, {})
        assert not effects.asks_for_less("kv_policy", policy or "full")
    assert not effects.asks_for_less("prefill", "dense")
    assert not effects.asks_for_less("temperature", 0)
    assert configurations.WORST_FIRST.index("without effect") < \
        configurations.WORST_FIRST.index("confirmed")


@pytest.fixture(scope="module")
def quire(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quire")
    with Server(directory, "--prefill", "sparse") as server:
        yield server


def run_script(name, *arguments, expect):
    """The rows of its CSV."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts/quality" / name), *map(str, arguments)],
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expect, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_quire_evicts_where_the_account_says(quire, tokenizer):
    text = (MODEL / "eval/held_out.txt").read_text(encoding="utf-8")[5000:8000]
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:400]
    policy = {"type": "streaming", "sink": 4, "recent": 96, "chunk": 64}
    values, usages = [], []
    for kv_policy in ({"type": "full"}, policy):
        answer = quire.complete(ids, max_tokens=0, echo=True, logprobs=0, prefill="dense",
                                kv_policy=kv_policy)
        values.append(answer["choices"][0]["logprobs"]["token_logprobs"][1:])
        usages.append(answer["usage"]["kv"])
    apart = [abs(ours - theirs) for ours, theirs in zip(*values)]
    effect = effects.of_window(policy, usages[1], len(ids))
    n_before = effect["scored"] - effect["behind"]
    assert n_before == 128  # the first eviction that leaves 100 of more
    assert max(apart[:n_before]) < 1e-3
    assert sum(gap > 1e-3 for gap in apart[n_before:]) > 0.9 * effect["behind"]


@pytest.mark.parametrize("chunk, status", [(8, 0), (256, VOID)])
def test_the_perplexity_of_a_window_is_refused_when_the_chunk_is_large_against_it(quire, chunk,
                                                                                  status):
    rows = run_script("streaming_perplexity.py", "--url", quire.url, "--tokens", 1000, "--window",
                      64, "--sinks", 4, "--chunk", chunk, expect=status)
    ratio, = [float(row["sink 4 cache"]) for row in rows if row["tokens"] == "tokens seen / window"]
    assert (ratio < 1.25) == (status == 0)


def test_the_perplexity_behind_a_sparse_prompt_is_void_when_nothing_was_left_out(quire):
    pattern = {"type": "a_shape", "sink": 64, "recent": 64}
    arguments = ("--url", quire.url, "--lengths", 700, "--windows", 4, "--tokens", 2)
    sparse = f'sparse={{"prefill": {{"mode": "sparse", "pattern": {str(pattern)}}}}}'
    configs = ("--config", 'dense={"prefill": "dense"}', "--config", sparse.replace("'", '"'))
    told = {row["config"]: row["left out"] for row in
            run_script("continuation_perplexity.py", *arguments, *configs, expect=0)}
    assert told == {"dense": "", "sparse": "1.00"}
    # A second time everything is in the prefix cache, and nothing shows how it got there.
    rows = run_script("continuation_perplexity.py", *arguments, *configs, expect=VOID)
    assert [row["perplexity"] == "VOID" for row in rows] == [False, True]


def test_the_perplexity_of_sparse_prompts_is_void_when_nothing_was_left_out(quire):
    """And grows with what was."""
    def asking(name, recent):
        pattern = {"type": "a_shape", "sink": 16, "recent": recent}
        fields = {"prefill": {"mode": "sparse", "pattern": pattern, "reuse": False}}
        return "--config", f"{name}={json.dumps(fields)}"

    arguments = ("--url", quire.url, "--windows", 4, "--from", 256)
    dense = ("--config", 'dense={"prefill": "dense"}')
    rows = run_script("prompt_perplexity.py", *arguments, "--lengths", 800, *dense,
                      *asking("near", 16), *asking("wide", 128), expect=0)
    exact, near, wide = (float(row["perplexity"]) for row in rows)
    assert near > wide > 0.98 * exact and float(rows[1]["low"]) > 0
    rows = run_script("prompt_perplexity.py", *arguments, "--lengths", 600, *dense,
                      *asking("all", 8192), expect=VOID)
    assert [row["perplexity"] == "VOID" for row in rows] == [False, True]
