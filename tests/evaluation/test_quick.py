"""The quick preset, by its command: quire stays above the floors of its model, and a quire with a
planted fault turns the table red.  All of its tasks are asked if QUIRE_TEST_LONG is set; otherwise
those that find the faults."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from evaluation import report
from evaluation.results import Results
from server import BINARY, LONG, MODEL, ROOT

FLOORS = MODEL / "eval" / "floors.json"
FAULTY = pathlib.Path(BINARY).parent / "tests" / "evaluation" / "faulty_quire"
STATUS_RED = 3
FAULT_FINDERS = "seam", "perplexity"
# Without a fault the faulty quire is asked for what is compared to the last digit.  Its rows of seams are
# sound with the fault that must not turn them red.
SOUND_TASKS = FAULT_FINDERS if LONG else ("perplexity",)
RED_ROW = re.compile(r"^- \*\*RED\*\* default: ([^:]+):", re.MULTILINE)
# Each fault with a row that must be red, and those of the same questions' rows that must not be.
FAULTS = {
    "drop-first-page": ({"perplexity/2048", "perplexity/2048/0"}, {"seam/4096", "seam/8192"}),
    "shift-positions": ({"seam/8192"}, {"seam/4096", "perplexity/2048"}),
}


class Run:
    """One run of scripts/quality/eval.py: its exit status and what it wrote."""

    def __init__(self, directory, *arguments, fault=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        command = [sys.executable, ROOT / "scripts/quality/eval.py", "--out", directory, *arguments]
        done = subprocess.run(command, env={**clean, "FAULTY_QUIRE": fault or "none"}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.directory, self.status, self.output = directory, done.returncode, done.stdout

    @property
    def red_rows(self):
        return set(RED_ROW.findall((self.directory / "table.md").read_text(encoding="utf-8")))

    def answers(self):
        """What was answered to each question, to the last digit."""
        with open(self.directory / "results.jsonl", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        return {(r["task"], r["length"], r["index"], r["question"]): r.get("answer") or r.get("nll")
                for r in records if r["kind"] in ("sample", "perplexity")}


def quick_run(binary, tasks=()):
    """tasks: all of the preset's if none is named."""
    return ("--serve", f"{shlex.quote(str(binary))} serve --device cpu --threads 2", "--quick", "--floors", FLOORS,
            *(("--tasks", ",".join(tasks)) if tasks else ()))


def asked_floors():
    return [floor for floor in report.read_floors(FLOORS)
            if LONG or floor.split("/")[0] in FAULT_FINDERS]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Of the quire under test."""
    return Run(tmp_path_factory.mktemp("quick"), *quick_run(BINARY, () if LONG else FAULT_FINDERS))


@pytest.fixture(scope="module")
def rows(quick):
    numbers = report.Rows(Results(quick.directory))
    report.check_floors(numbers, report.read_floors(FLOORS))
    return numbers


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """planted(fault): the part of the preset that finds faults, of a quire that has one."""
    runs = {}

    def run(fault):
        if fault not in runs:
            tasks = SOUND_TASKS if fault == "none" else FAULT_FINDERS
            runs[fault] = Run(tmp_path_factory.mktemp(fault), *quick_run(FAULTY, tasks), fault=fault)
        return runs[fault]

    return run


def test_quire_passes(quick):
    assert quick.status == 0, quick.output
    assert not quick.red_rows


@pytest.mark.parametrize("floor", asked_floors())
def test_the_floor_holds(floor, rows):
    key = rows.results.first, floor
    assert key in rows.values, "the preset does not ask for this"
    assert key not in rows.red, rows.red[key]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_breaks_a_floor(fault, planted):
    run = planted(fault)
    red, sound = FAULTS[fault]
    assert run.status == STATUS_RED, run.output
    assert red <= run.red_rows
    assert not sound & run.red_rows


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_worse_than_a_baseline_run(fault, planted, quick):
    found = planted(fault)
    red, sound = FAULTS[fault]
    run = Run(found.directory, "--report-only", "--baseline", quick.directory)
    assert run.status == STATUS_RED, run.output
    assert red <= run.red_rows
    assert not sound & run.red_rows


def test_the_same_quire_without_a_fault_passes(planted, quick):
    run = planted("none")
    assert run.status == 0, run.output
    compared = Run(run.directory, "--report-only", "--baseline", quick.directory)
    assert compared.status == 0, compared.output


def test_without_a_fault_the_answers_are_those_of_quire(planted, quick):
    """What the faulty quires are judged by is their fault, not how it was planted."""
    answers = planted("none").answers()
    assert answers == {name: answer for name, answer in quick.answers().items()
                       if name[0] in SOUND_TASKS}
    assert answers
