"""table.md: what stands in it, and what makes it red."""
import json
import math
import sys

import pytest

from evaluation import report
from evaluation.results import Results, budgets_of, stream_bin
from made_results import MadeResults, whole_run


@pytest.fixture
def no_plots(monkeypatch):
    monkeypatch.setattr(report, "draw", lambda rows, directory: [])


@pytest.fixture
def rendered(tmp_path, no_plots):
    """rendered(made, floors=..., baseline=...): (whether it is red, table.md)."""

    def render(made, floors=None, baseline=None):
        directory = made.write(tmp_path / "run")
        if floors is not None:
            (tmp_path / "floors.json").write_text(json.dumps(floors))
        outcome = report.write(directory, tmp_path / "floors.json" if floors is not None else None,
                           baseline.write(tmp_path / "baseline") if baseline else None)
        return outcome.red, (directory / "table.md").read_text(encoding="utf-8")

    return render


def passkeys(scores, config="default", length=1024, made=None):
    made = made or MadeResults()
    for index, score in enumerate(scores):
        made.sample("passkey", length, index, score, config)
    return made


def line_of(text, start, number=0):
    return [line for line in text.splitlines() if line.startswith(start)][number]


def test_everything_that_ran_appears(rendered):
    red, text = rendered(whole_run())
    assert red is False
    for task in ("passkey", "lines", "card/passkey", "streameval"):
        assert len([line for line in text.splitlines() if line.startswith(f"| {task} |")]) == 3
    for heading in ("## What was run", "## Configurations", "## Scores: default",
                    "## Scores: streaming", "Difference from default", "## Perplexity",
                    "By position in windows of 4,096", "## Speed", "## How to read this"):
        assert heading in text
    assert "1,024" in text and "4,096" in text and "16,384" in text
    assert "confirmed: the usage says so" in text
    assert "- default: 1 request failed: HTTP 500: broken" in text
    assert all(len(line.split(" | ")) == len(head.split(" | "))
               for head, line in rows_under_heads(text))


def rows_under_heads(text):
    """(head, line) of every line of every table."""
    head = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = line
        else:
            yield head, line


def test_red_rows_come_first(rendered):
    red, text = rendered(passkeys([1, 1, 0, 0]), {"passkey/1024": {"min": 90}})
    assert red is True
    assert text.index("**RED** default: passkey/1024: 50.00 is below the floor 90") \
        < text.index("## What was run") < text.index("| passkey | **RED** 50.0")


def test_a_floor_that_holds_is_not_red(rendered):
    red, text = rendered(passkeys([1, 1, 0, 0]), {"passkey/1024": {"min": 50, "max": 50},
                                                  "about": "a comment"})
    assert red is False
    assert "No row is red" in text and "1 floor compared" in text and "**RED**" not in text


def test_floors_name_other_configurations(rendered):
    made = passkeys([1, 1], made=MadeResults({"default": {}, "b": {"x": 1}}))
    passkeys([0, 0], "b", made=made)
    assert rendered(made, {"passkey/1024": {"min": 90}})[0] is False
    red, text = rendered(made, {"b:average/1024": {"min": 90}})
    assert red is True and "b: average/1024: 0.00 is below" in text


def test_floors_without_a_row_are_named_and_all_of_them_are_red(rendered):
    floors = {"passkey/1024": {"min": 90}, "kv/4096": {"min": 10}}
    red, text = rendered(passkeys([1, 1]), floors)
    assert red is False and "these rows were not run: kv/4096" in text
    del floors["passkey/1024"]
    red, text = rendered(passkeys([1, 1]), floors)
    assert red is True and "none of the file's floors" in text


@pytest.mark.parametrize("floors", ({"passkey/1024": 90}, {"passkey/1024": {"mim": 90}},
                                    {"passkey/1024": {}}, {"passkey/1024": {"min": "90"}}))
def test_wrong_floors_are_refused(rendered, floors):
    with pytest.raises(ValueError, match="passkey/1024"):
        rendered(passkeys([1]), floors)


def test_floors_of_perplexity_and_its_buckets(rendered):
    made = MadeResults()
    for index in range(3):
        made.window(2048, index, [3.0, 4.0])
    red, text = rendered(made, {"perplexity/2048": {"max": 33.5}, "perplexity/2048/0": {"max": 21},
                                "perplexity/2048/1024": {"max": 50}})
    assert red is True
    assert "default: perplexity/2048/1024: 54.60 is above the bound 50" in text
    assert text.count("is above the bound") == 1
    assert "| 1,024 | **RED** 54.60" in text


def test_a_failed_window_breaks_its_floor(rendered):
    made = MadeResults()
    made.window(2048, 0, [3.0, 3.0])
    made.window(2048, 1, [], error="HTTP 500: broken", nll=[], tokens=[])
    assert rendered(made)[0] is False
    red, text = rendered(made, {"perplexity/2048": {"max": 99}})
    assert red is True and "1 window failed" in text


def test_a_loss_against_the_baseline_run_is_red(rendered):
    red, text = rendered(passkeys([1] * 10 + [0] * 30), baseline=passkeys([1] * 40))
    assert red is True
    assert "default: passkey/1024: -75.0 [" in text
    assert "Difference from the baseline run" in text


def test_a_gain_or_noise_against_the_baseline_run_is_not(rendered):
    assert rendered(passkeys([1] * 40), baseline=passkeys([1] * 10 + [0] * 30))[0] is False
    assert rendered(passkeys([1, 0] * 20), baseline=passkeys([0, 1] * 20))[0] is False
    assert rendered(passkeys([0] + [1] * 39), baseline=passkeys([1] * 40))[0] is False


def test_higher_perplexity_than_the_baseline_run_is_red_in_its_bucket(rendered):
    made, baseline = MadeResults(), MadeResults()
    for index in range(6):
        baseline.window(2048, index, [3.0 + index / 10, 3.0])
        made.window(2048, index, [3.0 + index / 10, 3.01 + index / 1000])
    red, text = rendered(made, baseline=baseline)
    assert red is True
    assert "default: perplexity/2048/1024: +1.26 %" in text
    assert "default: perplexity/2048/0:" not in text
    assert "the worst change of 2 buckets against the baseline run is +1.26 %" in text
    assert rendered(baseline, baseline=made)[0] is False


def test_pairs_are_the_questions_that_both_have(rendered):
    """Contexts 0 and 1 alone are in both; elsewhere the runs differ as they like."""
    red, text = rendered(passkeys([1, 1] + [0] * 20), baseline=passkeys([1, 1]))
    assert red is False
    assert line_of(text, "| passkey |", 1).endswith("| 2/2 |")


def test_a_baseline_run_of_other_samples_is_refused(rendered):
    for name, value in (("seed", 2), ("book_tokens", "others")):
        with pytest.raises(ValueError, match=name):
            rendered(passkeys([1]), baseline=passkeys([1], made=MadeResults(**{name: value})))


def test_a_baseline_run_without_common_questions_is_red(rendered):
    red, text = rendered(passkeys([1]), baseline=passkeys([1], length=4096))
    assert red is True and "no question of this run is in the baseline run" in text


def test_failed_requests_count_as_wrong(rendered):
    made = passkeys([1, 1, 1])
    made.failed("passkey", 1024, 3)
    text = rendered(made)[1]
    assert "| passkey | 75.0 [" in text
    assert "4 requests, of which 1 failed" in text


def test_a_record_that_was_asked_again_counts_once(rendered):
    made = passkeys([1, 1])
    made.failed("passkey", 1024, 2)
    made.sample("passkey", 1024, 2, 1.0)
    text = rendered(made)[1]
    assert "| passkey | 100.0 [" in text and "3 requests, of which 0 failed" in text


def test_a_torn_last_line_is_left_out(tmp_path, no_plots):
    directory = passkeys([1, 0]).write(tmp_path / "run")
    with open(directory / "results.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "sample", "config": "def')
    report.write(directory)
    assert "| passkey | 50.0 [" in (directory / "table.md").read_text()


def test_averages_leave_the_card_and_streams_apart(rendered):
    made = passkeys([1, 1])
    for index in range(8):
        made.sample("kv", 1024, index, 0.0)
        made.sample("card/kv", 1024, index, 0.25)
        made.stream(index, 0, 900, 0.0)
    text = rendered(made)[1]
    assert "| **average** | 50.0 [" in text
    assert "| **card/average** | 25.0 [" in text


def test_the_order_of_the_records_does_not_matter(rendered):
    made = whole_run()
    text = rendered(made)[1]
    made.records[1:] = reversed(made.records[1:])
    assert rendered(made)[1] == text


def test_streams_are_put_together_by_doubling_lengths(rendered):
    assert [stream_bin(n) for n in (1, 1024, 1025, 2048, 4097)] == [1024, 1024, 2048, 2048, 8192]
    made = MadeResults()
    for question in range(4):
        made.stream(0, question, 700 * (question + 1), float(question in (0, 3)))
    line = line_of(rendered(made)[1], "| streameval |")
    assert [cell.split(" ")[0] for cell in line.split(" | ")[1:4]] == ["100.0", "0.0", "50.0"]


def test_effective_length_is_named(rendered):
    made = passkeys([1] * 10)
    passkeys([1] * 8 + [0] * 2, length=4096, made=made)
    assert line_of(rendered(made)[1], "| default |").endswith("| 1,024 |")


def test_speed_is_that_of_uncached_requests(rendered):
    made = MadeResults()
    for index, seconds in enumerate((0.1, 0.2, 0.3)):
        made.sample("passkey", 1024, index, 1.0, ttft_s=seconds, duration_s=seconds + 0.4)
        made.sample("passkey", 1024, index, 1.0, question=1, ttft_s=0.001, duration_s=9.0)
    assert "| default | 1,024 | 3 | 0.200 [0.150, 0.250] | 3 | 20.0 [20.0, 20.0] |" \
        in rendered(made)[1]
    assert "Requests ran one at a time." in rendered(made)[1]
    made.records[0]["concurrency"] = 4
    assert "Up to 4 requests ran side by side" in rendered(made)[1]


def test_budgets_are_the_servers_or_the_sum_of_the_policys_parts():
    policy = {"kv_policy": {"type": "h2o", "sink": 4, "recent": 252, "heavy": 256, "page": 64}}
    assert budgets_of(policy, [None, {"kv": {"budget_tokens": 600}}]) == [600]
    assert budgets_of(policy, [None, {}]) == [512]
    assert budgets_of({"prefill": "sparse"}, []) == []
    assert budgets_of({"kv_policy": "full"}, [{"kv": {"budget_tokens": None}}]) == []


def test_budgets_that_grow_with_the_prompt_are_those_of_its_length(tmp_path, rendered):
    made = MadeResults({"a": {"kv_policy": {"type": "h2o"}}})
    for length in (1024, 8192):
        made.sample("passkey", length, 0, 1.0, "a", usage={"kv": {"budget_tokens": length // 4}})
    assert "| 256 to 2,048 |" in rendered(made)[1]
    assert Results(tmp_path / "run").budgets("a", 8192) == [2048]


def test_what_a_run_lacks_of_its_plan_is_said(rendered):
    plan = [["passkey", 1024, 3], ["perplexity", 2048, 2], ["streameval", 4096, 2]]
    made = MadeResults({"a": {}, "b": {}, "c": {}}, plan=plan)
    passkeys([1, 1], "a", made=made)
    made.window(2048, 0, [3.0, 3.0], "a")
    for question, length in enumerate((900, 1900)):
        made.stream(0, question, length, 1.0, "a")
    made.verdict("c", "refused", "no")
    text = rendered(made)[1]
    assert "- **Unfinished**: a lacks 3 of 7 planned contexts" in text
    assert "- **Unfinished**: b lacks 7 of 7" in text and ": c lacks" not in text
    passkeys([1, 1, 1], "a", made=made)
    made.window(2048, 1, [], "a", error="HTTP 500: broken", nll=[], tokens=[])
    made.stream(1, 0, 900, 1.0, "a")
    assert ": a lacks" not in rendered(made)[1]


def test_only_questions_that_ask_for_the_same_are_paired(rendered):
    made, baseline = passkeys([1, 1]), passkeys([1, 1])
    for index, key in enumerate(("123", "456")):
        made.sample("kv", 1024, index, 0.0, references=[key])
        baseline.sample("kv", 1024, index, 1.0, references=["123"])
    assert line_of(rendered(made, baseline=baseline)[1], "| kv |", 1).endswith("| 1/1 |")


def test_pipes_do_not_break_tables(rendered):
    made = passkeys([1], made=MadeResults({"a": {}}))
    made.verdict("a", "refused", "the server | said\nno")
    made.records[-2]["config"] = "a"
    assert "refused: the server \\| said no |" in rendered(made)[1]


def test_without_matplotlib_the_table_is_whole_and_it_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "evaluation.plots", None)
    monkeypatch.delattr("evaluation.plots", raising=False)
    directory = passkeys([1]).write(tmp_path / "run")
    assert report.write(directory) == report.Outcome(red=False, marked=False)
    assert "NO PLOTS" in capsys.readouterr().err
    assert "## Plots" not in (directory / "table.md").read_text()


def test_one_window_has_no_interval(tmp_path):
    made = MadeResults()
    made.window(2048, 0, [3.0, 3.0])
    row = Results(made.write(tmp_path / "run")).perplexity("default", 2048)
    assert row.value == pytest.approx(math.exp(3)) and math.isnan(row.low)
    assert report.plain(row, True) == "20.09"


def test_a_file_that_says_nothing_is_refused(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(ValueError, match="what was run"):
        report.write(tmp_path)
