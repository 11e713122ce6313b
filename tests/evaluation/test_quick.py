"""The quick preset, by its command: quire stays above the floors of its model, and a quire with a
planted fault turns the table red.  All of it is asked if QUIRE_TEST_LONG is set; otherwise of each
fault the task that finds it, and of perplexity the windows of 2,048 tokens."""
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
from server import BINARY, LONG, MODEL, N_THREADS, ROOT

FLOORS = MODEL / "eval" / "floors.json"
FAULTY = pathlib.Path(BINARY).parent / "tests" / "evaluation" / "faulty_quire"
STATUS_RED = 3
# Each task that finds faults, as it is asked: as the preset does, or only its windows of 2,048 tokens.
PART = {"seam": ("--quick", "--tasks", "seam"),
        "perplexity": ("--tasks", "perplexity", "--lengths", "2048", "--windows", "8")}
# What a quire with a fault is asked less of: a fault is far beyond what the text of six windows decides.
SHORT = {"seam": (), "perplexity": () if LONG else ("--windows", "2")}
RED_ROW = re.compile(r"^- \*\*RED\*\* default: ([^:]+):", re.MULTILINE)
# Each fault and task with the rows that must be red, and those that must not be.
FAULTS = {
    ("drop-first-page", "perplexity"): ({"perplexity/2048", "perplexity/2048/0"}, set()),
    ("shift-positions", "seam"): ({"seam/8192"}, {"seam/4096"}),
}
if LONG:
    FAULTS["drop-first-page", "seam"] = (set(), {"seam/4096", "seam/8192"})
    FAULTS["shift-positions", "perplexity"] = (set(), {"perplexity/2048"})
each_fault = pytest.mark.parametrize("fault, task", FAULTS)


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


def of_quire(binary, *arguments):
    return ("--serve", f"{shlex.quote(str(binary))} serve --device cpu --threads {N_THREADS}", "--floors", FLOORS,
            *arguments)


def asked_floors():
    return [floor for floor in report.read_floors(FLOORS)
            if LONG or floor.startswith(("seam/", "perplexity/2048"))]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """quick(task): a run of the quire under test that has asked it."""
    runs = {}

    def run(task):
        key = "all" if LONG else task
        if key not in runs:
            arguments = ("--quick",) if LONG else PART[task]
            runs[key] = Run(tmp_path_factory.mktemp(key), *of_quire(BINARY, *arguments))
        return runs[key]

    return run


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """planted(fault, task): the task of a quire that has the fault, or of one that has none."""
    runs = {}

    def run(fault, task):
        if (fault, task) not in runs:
            arguments = of_quire(FAULTY, *PART[task], *SHORT[task])
            if SHORT[task] and fault != "none":
                # The floors are those of eight windows.
                floors = tmp_path_factory.mktemp("floors") / "floors.json"
                floors.write_text(json.dumps(floors_of(run("none", task))))
                arguments += ("--floors", floors)
            runs[fault, task] = Run(tmp_path_factory.mktemp(fault), *arguments, fault=fault)
        return runs[fault, task]

    return run


@pytest.mark.parametrize("task", PART)
def test_quire_passes(task, quick):
    assert quick(task).status == 0, quick(task).output
    assert not quick(task).red_rows


@pytest.mark.parametrize("floor", asked_floors())
def test_the_floor_holds(floor, quick):
    rows = report.Rows(Results(quick(floor.split("/")[0]).directory))
    report.check_floors(rows, report.read_floors(FLOORS))
    key = rows.results.first, floor
    assert key in rows.values, "the preset does not ask for this"
    assert key not in rows.red, rows.red[key]


def assert_red(run, fault, task):
    red, sound = FAULTS[fault, task]
    assert (run.status == STATUS_RED) if red else (run.status in (0, STATUS_RED)), run.output
    assert red <= run.red_rows
    assert not sound & run.red_rows


def floors_of(run):
    """As FLOORS has them of perplexity: what a right quire has, 1 % either way."""
    rows = report.Rows(Results(run.directory))
    return {row: {"min": 0.99 * one.value, "max": 1.01 * one.value}
            for (_, row), one in rows.values.items() if report.is_perplexity(row)}


@each_fault
def test_a_planted_fault_breaks_a_floor(fault, task, planted):
    assert_red(planted(fault, task), fault, task)


@each_fault
def test_a_planted_fault_is_worse_than_a_baseline_run(fault, task, planted, quick):
    baseline = planted("none", task) if SHORT[task] else quick(task)
    run = Run(planted(fault, task).directory, "--report-only", "--baseline", baseline.directory)
    assert_red(run, fault, task)


@pytest.mark.parametrize("task", [task for task in PART if LONG or task == "perplexity"])
def test_without_a_fault_the_answers_are_those_of_quire(task, planted, quick):
    """What the faulty quires are judged by is their fault, not how it was planted."""
    answers, wanted = planted("none", task).answers(), quick(task).answers()
    assert answers == {name: wanted[name] for name in answers}
    assert answers
