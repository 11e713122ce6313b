"""Scripts as a user calls them: what goes where, and from where they can be called."""
import json
import subprocess
import sys

from server import PATIENCE, ROOT


def run(directory, *command):
    return subprocess.run(list(map(str, command)), cwd=directory, capture_output=True, text=True,
                          timeout=120 * PATIENCE, check=False)


def loadtest(server, directory, *arguments):
    done = run(directory, sys.executable, ROOT / "scripts/load/loadtest.py", "--url", server.url,
               "--clients", 2, "--requests", 4, "--prompt-tokens", 8, "--max-tokens", 4, *arguments)
    assert done.returncode == 0, done.stderr
    return done


def test_the_load_test_writes_its_table_to_stdout(server, tmp_path):
    done = loadtest(server, tmp_path)
    assert "4 requests, 0 failed" in done.stdout and "whole request" in done.stdout
    assert done.stderr == ""


def test_the_load_test_writes_one_object_to_stdout_if_asked(server, tmp_path):
    done = loadtest(server, tmp_path, "--json")
    assert json.loads(done.stdout)["requests"] == 4
    assert "whole request" in done.stderr


def test_the_evaluation_finds_its_python_from_anywhere(tmp_path):
    """Paths among the arguments are the caller's."""
    done = run(tmp_path, ROOT / "scripts/quality/eval", "--report-only", "--out", "nothing-here")
    assert done.returncode in (1, 2), done.stderr
    assert "no Python module" not in done.stderr and "Traceback" not in done.stderr
    assert run(tmp_path, ROOT / "scripts/quality/eval", "--help").stdout.startswith("usage: eval.py")
