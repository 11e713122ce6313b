"""The checks of scripts/ci can fail: each is shown a tree, a build or a history with one fault."""
import importlib.util
import shutil
import subprocess
import sys

import pytest

from server import ROOT

CHECKS = ROOT / "scripts/ci"
LONG = "/* Says " + "one " * 12 + "\n * " + "one " * 13 + "more. */\n"
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
with_git = pytest.mark.skipif(not shutil.which("git"), reason="no git")
with_cc = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("nm")), reason="no compiler")


def load(name):
    spec = importlib.util.spec_from_file_location(name, CHECKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, *arguments):
    done = subprocess.run([sys.executable, CHECKS / f"{name}.py", *map(str, arguments)],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def commit(root, message):
    subprocess.run([*GIT, "-C", root, "add", "-A"], check=True)
    subprocess.run([*GIT, "-C", root, "commit", "-q", "-m", message], check=True)


@pytest.fixture
def history(tmp_path):
    """A repository with one commit, and the name of that."""
    subprocess.run([*GIT, "init", "-q", "-b", "main", tmp_path], check=True)
    write(tmp_path, "engine/a.c", "/* a.c - a file. */\nint a;\n")
    commit(tmp_path, "engine: begin")
    since = subprocess.run([*GIT, "-C", tmp_path, "rev-parse", "HEAD"], check=True, text=True,
                           capture_output=True).stdout.strip()
    return tmp_path, since


@pytest.mark.parametrize("name, text, fault", [
    ("engine/a.c", "/* a.c - a file. */\nint x;\n\n/* " + "word " * 20 + "*/\n", "wider than 100"),
    ("engine/a.c", "int x; /* a token who leaves */\n", "speaks of a person"),
    ("engine/a.c", "/* a.c */\n\n/* The name of it. */\nint f(void) {\n", "not a verb"),
    ("tests/a.c", "/* a.c */\nstatic void who_waits(void) {}\n", "a name speaks of a person"),
    ("tests/a.c", "int x; /* nobody reads it */\n", "speaks of a person"),
    ("tests/a.py", "def test_nobody_waits():\n    pass\n", "speaks of a person"),
    ("tests/a.py", "x = 1  # whoever comes\n", "speaks of a person"),
])
def test_a_bad_comment_is_found(tmp_path, name, text, fault):
    path = write(tmp_path, name, text)
    code, said = run("check_comments", "--root", tmp_path, path)
    assert code == 1 and fault in said, said


def test_texts_of_tests_may_speak_of_persons(tmp_path):
    path = write(tmp_path, "tests/a.py", 'TEXT = "Who kept the lamp? Nobody."\n')
    assert run("check_comments", "--root", tmp_path, path)[0] == 0


@with_git
def test_only_new_sentences_are_measured(history):
    root, _ = history
    write(root, "engine/a.c", "/* a.c - a file. */\nint a;\n\n" + LONG + "int b;\n")
    code, said = run("check_comments", "--root", root)
    assert code == 0, said  # one commit: nothing to compare with
    commit(root, "engine: say much")
    code, said = run("check_comments", "--root", root)
    assert code == 1 and "engine/a.c:4: a new sentence has 27 words" in said, said
    reflowed = "/* Says " + "one " * 9 + "\n * " + "one " * 16 + "more. */\n"
    write(root, "engine/a.c", "/* a.c - a file. */\nint a;\nint c;\n\n" + reflowed + "int b;\n")
    commit(root, "engine: reflow it")
    code, said = run("check_comments", "--root", root)
    assert code == 0, said


@with_git
def test_a_refused_word_is_found_where_it_is_new(history):
    root, _ = history
    write(root, "engine/b.c", "/* b.c - a file of bystanders. */\n")
    commit(root, "engine: add a file")
    code, said = run("check_comments", "--root", root)
    assert code == 1 and "not a word of the glossary: 'bystanders'" in said, said


@with_git
@pytest.mark.parametrize("message, n, fault", [
    ("engine: add what it needs", 51, "and has no body"),
    ("engine: add what it needs\n\nBecause.", 51, None),
    ("engine: add what it needs", 50, None),
    ("add what it needs", 1, "does not begin with a room"),
    ("engine: " + "x" * 70, 1, "78 columns"),
])
def test_a_bad_message_is_found(history, message, n, fault):
    root, since = history
    write(root, "engine/b.c", "int b;\n" * n)
    commit(root, message)
    code, said = run("check_commits", "--root", root, "--since", since)
    assert code == bool(fault) and (fault or "") in said, said
    code, said = run("check_commits", "--root", root, "--since", "0" * 40)
    assert code == bool(fault), said  # the last commit alone


@with_git
def test_marks_of_an_unfinished_merge_are_found(history):
    root, since = history
    write(root, "Dockerfile", "FROM a\n" + "<" * 7 + " HEAD\nRUN b\n")
    commit(root, "docker: merge")
    code, said = run("check_commits", "--root", root, "--since", since)
    assert code == 1 and "Dockerfile:2" in said and "unfinished merge" in said, said


def test_a_message_is_not_read_without_a_history(tmp_path):
    assert run("check_commits", "--root", tmp_path)[0] == 77


ROOMS = {"engine/base": ("", ""), "engine/kv": ("engine/base", ""),
         "engine": ("engine/kv", ""), "server": ("engine", "")}
TREE = {"engine/base/b.h": "", "engine/kv/k.h": '#include "engine/base/b.h"\n',
        "engine/e.h": '#include "engine/kv/k.h"\n', "server/s.c": '#include "engine/e.h"\n'}


def seen_faults(root, tree, seen):
    check = load("check_rooms")
    check.ROOMS, check.SEEN = ROOMS, seen
    for name, text in tree.items():
        write(root, name, text)
    return list(check.check_seen(root, sorted(tree)))


def test_includes_are_followed(tmp_path):
    faults = seen_faults(tmp_path, TREE, {"engine": "engine/base"})
    assert len(faults) == 2, faults
    assert "server sees engine/base" in faults[0] and "server sees engine/kv" in faults[1]
    assert "server/s.c -> engine/e.h -> engine/kv/k.h" in faults[1]


def test_what_is_seen_no_more_leaves_the_table(tmp_path):
    seen = {"engine": "engine/base", "server": "engine/base engine/kv"}
    assert seen_faults(tmp_path, TREE, seen) == []
    tree = {**TREE, "engine/e.h": ""}
    faults = seen_faults(tmp_path, tree, seen)
    assert [fault.split(",")[0] for fault in faults] == [
        "SEEN says that engine sees engine/base", "SEEN says that server sees engine/base",
        "SEEN says that server sees engine/kv"]


@with_cc
def test_a_symbol_that_nothing_uses_is_found(tmp_path):
    write(tmp_path, "root/cuda/c.cu", "used_by_cuda();")
    for name, text in {"engine/a": "int alone(void) { return 1; } int used(void) { return 2; }"
                                   "int used_by_test(void) { return alone(); }"
                                   "int used_by_cuda(void) { return 3; }",
                       "server/b": "int used(void); int main(void) { return used(); }",
                       "tests/t": "int used_by_test(void); int test(void) { return used_by_test(); }",
                       }.items():
        source = write(tmp_path, f"{name}.c", text)
        target = tmp_path / "build" / f"{name}.o"
        target.parent.mkdir(parents=True)
        subprocess.run(["cc", "-c", "-O0", source, "-o", target], check=True)
    found = load("check_symbols").unused(tmp_path / "build", tmp_path / "root")
    assert [name for _, name in found] == ["alone"]
