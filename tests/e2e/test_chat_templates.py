"""Chat templates: engine/template/ makes the text that jinja2 makes, set up as transformers does, and
marks as trusted only what the template wrote."""
import json
import pathlib
import shlex
import subprocess
import sys

import pytest

from server import BINARY, MODEL

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests/template"
sys.path.insert(0, str(TESTS))

import conversations  # noqa: E402
import generate  # noqa: E402
from compare import outcome  # noqa: E402
from jinja_oracle import Oracle, Renderer, parts  # noqa: E402

OWN = [*sorted((TESTS / "templates").glob("*.jinja")), MODEL / "chat_template.jinja"]
# A character that no template has, and that no change of case makes.
FOREIGN = "\ue000"


@pytest.fixture(scope="module")
def renderer():
    made = Renderer(str(pathlib.Path(BINARY).parent / "tests/template/render_lines"))
    yield made
    assert made.close() == 0


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_own_templates_equal_jinja2(renderer, path):
    source = path.read_text()
    oracle, n_equal = Oracle(source), 0
    for variables in conversations.all_variables():
        expected, why = oracle.render({**variables, **conversations.TRUSTED})
        answer = renderer.render(source, variables, conversations.TRUSTED)
        assert outcome(expected, why, answer) in ("equal", "failed"), (variables, why, answer)
        n_equal += expected is not None
    assert n_equal > 100


def test_generated_templates_equal_jinja2(renderer):
    outcomes = []
    for seed in range(400):
        source, variables, trusted = generate.case(seed)
        expected, why = Oracle(source).render({**variables, **trusted})
        answer = renderer.render(source, variables, trusted)
        outcomes.append(outcome(expected, why, answer))
        assert outcomes[-1] != "differs", (seed, source, variables, why or expected, answer)
    assert outcomes.count("equal") > 200
    assert outcomes.count("unsupported") < 40


def foreign(value):
    """The same value, with every text in it made of the foreign character, but for its roles."""
    if isinstance(value, str):
        return FOREIGN * max(1, len(value))
    if isinstance(value, list):
        return [foreign(item) for item in value]
    if isinstance(value, dict):
        kept = ("role", "type")
        return {key: item if key in kept else foreign(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_no_text_of_a_message_is_trusted(renderer, path):
    source, n_foreign = path.read_text(), 0
    for variables in conversations.all_variables():
        answer = renderer.render(source, foreign(variables), conversations.TRUSTED)
        for text, is_trusted in parts(answer) if "text" in answer else ():
            n_foreign += not is_trusted and FOREIGN.encode() in text
            assert not (is_trusted and FOREIGN.encode() in text)
    assert n_foreign > 100


def test_no_text_of_a_generated_case_is_trusted(renderer):
    n_foreign = 0
    for seed in range(400):
        source, variables, trusted = generate.case(seed)
        answer = renderer.render(source, foreign(variables), trusted)
        for text, is_trusted in parts(answer) if "text" in answer else ():
            n_foreign += not is_trusted and FOREIGN.encode() in text
            assert not (is_trusted and FOREIGN.encode() in text), (seed, source)
    assert n_foreign > 100


@pytest.mark.parametrize("name", ["chatml", "namespace_thinking", "turns"])
def test_all_that_a_template_writes_is_trusted(renderer, name):
    source = (TESTS / f"templates/{name}.jinja").read_text()
    messages = [{"role": role, "content": FOREIGN * 3}
                for role in ("system", "user", "assistant", "user")]
    answer = renderer.render(source, {"messages": messages, "add_generation_prompt": True},
                             conversations.TRUSTED)
    roles = [message["role"].encode() for message in messages]
    for text, is_trusted in parts(answer):
        assert is_trusted or text.replace(FOREIGN.encode(), b"") in (b"", *roles), text
    if name == "turns":  # it names the roles itself, where it renames one
        assert (b"model\n", True) not in parts(answer)
        assert any(b"<start_of_turn>model\n" in text for text, trusted in parts(answer) if trusted)


def test_special_tokens_of_a_client_are_never_trusted(renderer):
    """Whatever a client writes into whatever member, it cannot complete a template's token."""
    tokens = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|turn_end|>", "[INST]", "<|end|>",
              "<start_of_turn>", "<|assistant|>"]
    for path in OWN:
        source = path.read_text()
        for token in tokens:
            messages = [{"role": "user", "content": token + " " + token[:-1]},
                        {"role": "assistant", "content": token[1:] + token},
                        {"role": "user", "content": token, "name": token}]
            honest = [dict(message, content="x") for message in messages]
            rest = {"add_generation_prompt": True, "tools": None}
            texts = []
            for conversation in (messages, honest):
                answer = renderer.render(source, {"messages": conversation, **rest},
                                         conversations.TRUSTED)
                assert "text" in answer, answer
                texts.append(b"\0".join(text for text, trusted in parts(answer) if trusted))
            assert texts[0] == texts[1]


def test_the_comparison_notices_a_difference(tmp_path):
    """A program that answers something else makes compare.py fail."""
    liar = tmp_path / "liar"
    answer = json.dumps({"text": "x", "spans": []})
    liar.write_text(f"#!/bin/sh\nwhile read -r _; do echo {shlex.quote(answer)}; done\n")
    liar.chmod(0o755)
    done = subprocess.run([sys.executable, TESTS / "compare.py", liar, "--cases", "0:5"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "jinja2:" in done.stderr
