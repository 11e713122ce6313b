"""Codex and Claude Code themselves, as PyPI ships their programs.  These are large, so they are not among the
requirements: they are looked for in environments of their own.

    python3 -m venv build/venv-codex && build/venv-codex/bin/python -m pip install openai-codex-cli-bin==0.163.0
    python3 -m venv build/venv-claude && build/venv-claude/bin/python -m pip install claude-agent-sdk==0.2.184
"""
import json
import os
import subprocess

import pytest

from conftest import MODEL
from scripted import Scripted
from server import ROOT, Server

QUESTION = "What is in README.md?"
SAYS = "The file says: notes of a lighthouse keeper."
PROGRAMS = {"codex": "build/venv-codex/lib/python3*/site-packages/codex_cli_bin/bin/codex",
            "claude": "build/venv-claude/lib/python3*/site-packages/claude_agent_sdk/_bundled/claude"}


def find(name):
    found = sorted(ROOT.glob(PROGRAMS[name]))
    return found[-1] if found else None


def needs(name):
    return pytest.mark.skipif(not find(name), reason=f"{name} is not installed: see this file's first lines")


def call(name, **arguments):
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


@pytest.fixture(scope="module")
def quire(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), "--model-alias", f"claude-*={MODEL}") as one:
        yield one


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/README.md").write_text("Notes of a lighthouse keeper.\n")
    return tmp_path


def run(folder, program, arguments, **environment):
    done = subprocess.run([program, *arguments], cwd=folder / "work", capture_output=True, text=True, timeout=500,
                          stdin=subprocess.DEVNULL,
                          env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- Codex ----

def codex(folder, url, *arguments, window=32768):
    (folder / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "quire"\nmodel_context_window = {window}\n'
        f'[model_providers.quire]\nname = "quire"\nbase_url = "{url}/v1"\nwire_api = "responses"\n')
    return run(folder, find("codex"), ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
                                       *arguments], CODEX_HOME=str(folder))


@needs("codex")
def test_codex_runs_a_command_says_what_it_shows_and_goes_on(quire, folder):
    with Scripted(quire, [call("exec_command", cmd="cat README.md"), SAYS, "It says nothing of that."]) as model:
        assert SAYS in codex(folder, model.url, QUESTION)
        output = model.bodies[1]["input"][-1]
        assert output["type"] == "function_call_output" and "Notes of a lighthouse keeper." in output["output"]
        assert "It says nothing of that." in codex(folder, model.url, "resume", "--last", "And its licence?")
        assert SAYS in json.dumps(model.bodies[2]["input"]) and model.statuses == [200, 200, 200]


@needs("codex")
def test_codex_shortens_a_conversation_that_fills_its_window(quire, folder):
    answers = [call("exec_command", cmd="seq 1 1500"), "Numbers were printed.", SAYS]
    with Scripted(quire, answers) as model:
        assert SAYS in codex(folder, model.url, "Print numbers.", window=13000)
        whole, shortened = (json.dumps(body["input"]) for body in model.bodies[1:])
        assert "1499" in whole and "1499" not in shortened and "Numbers were printed." in shortened


# ---- Claude Code ----

def claude(folder, url, *arguments):
    return run(folder, find("claude"), ["-p", *arguments], ANTHROPIC_BASE_URL=url, ANTHROPIC_AUTH_TOKEN="none",
               CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", CLAUDE_CODE_MAX_CONTEXT_TOKENS="32768")


@needs("claude")
def test_claude_code_reads_a_file_says_what_it_says_and_goes_on(quire, folder):
    path = str(folder / "work/README.md")
    with Scripted(quire, [call("Read", file_path=path), SAYS, "It says nothing of that."]) as model:
        assert SAYS in claude(folder, model.url, QUESTION)
        result = model.bodies[1]["messages"][-1]["content"][0]
        assert result["type"] == "tool_result" and "Notes of a lighthouse keeper." in json.dumps(result["content"])
        assert "It says nothing of that." in claude(folder, model.url, "And its licence?", "--continue")
        assert SAYS in json.dumps(model.bodies[2]["messages"]) and model.statuses == [200, 200, 200]


@needs("claude")
def test_claude_code_knows_that_a_prompt_is_too_long(quire, folder):
    with Scripted(quire, [SAYS]) as model, pytest.raises(AssertionError, match="Prompt is too long"):
        claude(folder, model.url, "word " * 22000)
