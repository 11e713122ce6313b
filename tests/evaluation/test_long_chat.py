"""scripts/quality/long_chat.py against quire: what lies within the budget is found, nothing farther
back is; and without states every round reads the whole text."""
import csv
import io
import subprocess
import sys

import pytest

from evaluation.stream import Stream
from server import ROOT, Server

BUDGET = 512  # tokens: 20 lines and what was said between them fit, 60 do not


@pytest.fixture(scope="module")
def quire(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("quire")) as server:
        yield server


def rows_of(quire, *arguments, expect=0):
    """{(configuration, tokens, distance): row}, and what follows the table."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/quality/long_chat.py"), "--url", quire.url, "--bucket",
         "1000", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expect, done.stderr
    lines = done.stdout.splitlines()
    table = csv.DictReader(io.StringIO("\n".join(line for line in lines if line[0] != "#")))
    return ({(row["config"], row["tokens"], int(row["distance"])): row for row in table},
            [line for line in lines if line[0] == "#"])


def test_answers_end_where_the_budget_ends(quire):
    rows, said = rows_of(quire, "--tokens", 3400, "--distances", "20,60", "--configs",
                         f"full,streaming/{BUDGET},window/{BUDGET}")
    for config, n_far in (("full", 1), (f"streaming/{BUDGET}", 0), (f"window/{BUDGET}", 0)):
        near, far = rows[config, "all", 20], rows[config, "all", 60]
        assert int(near["rounds"]) >= 5 and float(near["percent"]) > 80
        assert float(far["percent"]) > 80 if n_far else far["right"] == "0"
        assert float(far["low"]) <= float(far["percent"]) <= float(far["high"])
    assert rows[f"streaming/{BUDGET}", "all", 20]["missed"] == "0"
    assert int(rows[f"streaming/{BUDGET}", "all", 20]["read"]) < BUDGET
    assert int(rows[f"window/{BUDGET}", "all", 20]["read"]) == BUDGET
    assert len(said) == 1 and f"window/{BUDGET}" in said[0]


def test_without_states_every_round_reads_the_whole_text(quire):
    config = f"streaming/{BUDGET}"
    rows, _ = rows_of(quire, "--tokens", 2000, "--distances", 20, "--configs", config, "--without")
    first, last = (rows[config, tokens, 20] for tokens in ("0-999", "1000-1999"))
    assert int(first["read"]) < 1000 < min(int(last["read"]), int(last["missed"]))


def test_a_line_of_the_same_round_is_no_question(quire):
    rows_of(quire, "--step", 20, "--distances", 20, expect=2)


@pytest.mark.parametrize("config", ["streaming/4", "streaming/64/64", "streaming/64/4/4", "window/1", "full/8"])
def test_a_configuration_that_means_nothing_is_refused(quire, config):
    rows_of(quire, "--configs", config, expect=2)


def test_a_window_may_have_no_sinks(quire):
    """quire-31m does not need them within its context, so the near line is found all the same."""
    config = f"streaming/{BUDGET}/0"
    rows, _ = rows_of(quire, "--tokens", 1500, "--distances", "20,60", "--configs", config)
    assert rows[config, "all", 20]["right"] != "0" and rows[config, "all", 60]["right"] == "0"


def test_questions_take_turns_with_their_distances():
    stream, lines = Stream(1, 0, step=5, distances=(8, 30)), []
    for turn in range(6):
        text, question = stream.turn()
        new = [line for line in text.split("\n") if line.startswith("line ")]
        lines += new
        assert len(new) == (30 if turn == 0 else 5)
        assert f"<{question.references[0]}>" in lines[-30 if turn % 2 else -8]
