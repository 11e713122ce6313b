"""What the tests of the tables of composition in docs/ share: prompts, and the check that table and
tests name each other."""
import inspect
import pathlib
import re
import sys

from server import ROOT


def prompt_of(n, seed=0):
    """n tokens of nothing in particular, the same for one seed."""
    ids, state = [], seed + 1
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(300 + (state >> 8) % 7000)
    return ids


def text_of(answer, index=0):
    return answer["choices"][index]["text"]


def assert_table(page, header, module, parametrize):
    """Each row of the table of docs/PAGE names, in its last column, a test of the module that is
    run over all those between; each such test has its row."""
    lines = pathlib.Path(ROOT, "docs", page).read_text(encoding="utf-8").split("\n")
    rows = []
    for line in lines[lines.index(header) + 2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    named = [row[-1].strip("`") for row in rows]
    tests = {name: function for name, function in inspect.getmembers(sys.modules[module])
             if name.startswith("test_")
             and parametrize.mark in getattr(function, "pytestmark", [])}
    assert sorted(named) == sorted(tests)
    assert all(re.match(r"works|400", cell) for row in rows for cell in row[1:-1])
