"""Tool calls: what the templates of a format render of generated calls is read back as these calls,
in whatever pieces it comes."""
import json
import pathlib
import random
import re
import subprocess

import pytest

from test_chat_templates import ROOT, Renderer
from server import BINARY, LONG

TEMPLATES = sorted((ROOT / "tests/template/calls").glob("*.jinja"))
N_ANSWERS = 500 if LONG else 120
FORMATS = {"mistral-array": "mistral", "mistral-named": "mistral", "deepseek-fenced": "deepseek"}
DEEPSEEK = ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>"]
CHANNELS = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"]
SPECIAL = {"harmony": CHANNELS, "mistral-array": ["[TOOL_CALLS]"], "mistral-named": ["[TOOL_CALLS]", "[ARGS]"],
           "phi-4": ["<|tool_call|>", "<|/tool_call|>"], "cohere": ["<|START_ACTION|>", "<|END_ACTION|>"],
           "kimi-k2": ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                       "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
           "deepseek": DEEPSEEK, "deepseek-fenced": DEEPSEEK,
           "gemma-4": ["<|tool_call>", "<tool_call|>", "<|\"|>"],
           "lfm2": ["<|tool_call_start|>", "<|tool_call_end|>"],
           "olmo-3": ["<function_calls>", "</function_calls>"],
           "functiongemma": ["<start_function_call>", "<end_function_call>", "<escape>"]}
ENDS = ["<|im_end|>\n", "<|eot_id|>", "</s>", "<|end|>", "<|user|>", "<|observation|>", "<|call|>", "<|return|>",
        "<|END_OF_TURN_TOKEN|>", "[e~[\n", "<seed:eos>\n", "<turn|>\n", "<end_of_turn>\n", "<｜end▁of▁sentence｜>"]
BARE = ("qwen3-coder", "glm-4.5", "minimax", "seed-oss")  # strings stand there without quotes
CALLS_ALONE = ("llama-3", "glm-4")  # a text with calls has no words
WORDS = ["a", "Zürich", "日本語", "😀", "\u0301", "\"", "'", "\\", "\n", "{", "}", "[", "]", "};", "],", "<", ">",
         "&", "</tool", "_call>", "</s>", " ", "\t", ":", "%s", "null", "12", "{\"name\": \"x\"}", "\u2028", "; ",
         "<parameter=", "</arg", "_value>", "\x7f", "\ufeff", "[ARGS]", "[TOOL_CALLS]"]


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def some_text(rng, bare):
    """A string; a bare one is no JSON, and neither its ends nor what is in it look like the format's."""
    while True:
        text = "".join(rng.choices(WORDS, k=rng.randrange(9)))
        if not bare or (text.strip() == text != "" and not is_json(text)
                        and text not in ("True", "False", "None")
                        and not re.search("</(arg_value|parameter)>", text)):
            return text


def some_value(rng, depth, bare=False):
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return rng.choice([0, -1, 7, 2**53, -(2**63), rng.randrange(10**9)])
    if kind == 1:
        return rng.choice([0.5, -1e-7, 1e22, 3.14159, rng.random()])
    if kind == 2:
        return rng.choice([True, False, None])
    if kind == 5:
        return [some_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind >= 6:
        return {some_text(rng, False) + str(i): some_value(rng, depth - 1) for i in range(rng.randrange(4))}
    return some_text(rng, bare)


def some_calls(rng, bare):
    return [{"id": f"{rng.randrange(10**9):09}", "type": "function", "function": {
        "name": rng.choice(["f", "get_weather", "a-b", "search.web", "N2"]),
        "arguments": {rng.choice(["city", "n", "größe", "deep", "x_1"]): some_value(rng, 3, bare)
                      for _ in range(rng.randrange(4))}}} for _ in range(rng.choice([1, 1, 2, 3]))]


@pytest.fixture(scope="module")
def folder():
    return pathlib.Path(BINARY).parent / "tests"


@pytest.fixture(scope="module")
def renderer(folder):
    made = Renderer(str(folder / "template/render_lines"))
    yield made
    assert made.close() == 0


@pytest.fixture(scope="module")
def split(folder):
    """split(template, parts): what the program answers."""
    with subprocess.Popen([folder / "server/split_lines"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as program:
        def ask(template, parts, tools=()):
            program.stdin.write(json.dumps({"template": template, "parts": parts,
                                            "tools": tools}).encode() + b"\n")
            program.stdin.flush()
            return json.loads(program.stdout.readline())

        yield ask
        program.stdin.close()
        assert program.wait() == 0


def rendered(renderer, source, messages, **rest):
    answer = renderer.render(source, {"messages": messages, **rest}, {})
    assert "text" in answer, answer
    return answer["text"]


def without_end(text):
    (end,) = [end for end in ENDS if text.endswith(end)]
    return text[:-len(end)]


def cut(text, marks):
    """The text as a model's tokenizer gives it: special tokens are no part of it."""
    parts = [text]
    for mark in marks:
        parts = [piece for part in parts for piece in (
            [part] if isinstance(part, dict) else
            [item for at in part.split(mark) for item in ({"special": mark}, at)][1:])]
    return parts


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_what_a_template_renders_is_read_back(renderer, split, path):
    name, source = path.stem, path.read_text()
    rng = random.Random(name)
    n_calls = 0
    for number in range(N_ANSWERS):
        calls = some_calls(rng, name in BARE)
        marks = SPECIAL.get(name, [])
        if any(mark in json.dumps(calls) for mark in marks):
            continue  # the text would have to be cut where the template put them
        words = "" if name in CALLS_ALONE else rng.choice(["", "I will look.", "Use < and <tool, {or} [so].\nThen:"])
        asked = [{"role": "user", "content": "q"}]
        prompt = rendered(renderer, source, asked, add_generation_prompt=True)
        whole = rendered(renderer, source, [*asked, {"role": "assistant", "content": words,
                                                     "tool_calls": calls}])
        prompt = prompt if whole.startswith(prompt) else prompt.rstrip()
        assert whole.startswith(prompt)
        found = split(source, cut(without_end(whole[len(prompt):]), marks))
        assert found.get("format") == FORMATS.get(name, name), found
        assert [(call["name"], json.loads(call["arguments"])) for call in found["calls"]] == [
            (call["function"]["name"], call["function"]["arguments"]) for call in calls], (number, whole)
        assert found["answer"].strip() == words and all(call["at"] for call in found["calls"] if words)
        n_calls += len(calls)
    assert n_calls > N_ANSWERS // 2


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_answers_without_calls_stay_as_they_are(renderer, split, path):
    name, source = path.stem, path.read_text()
    rng = random.Random(name)
    asked = [{"role": "user", "content": "q"}]
    prompt = rendered(renderer, source, asked, add_generation_prompt=True)
    for _ in range(N_ANSWERS // 5):
        words = "Say " + some_text(rng, False)
        whole = rendered(renderer, source, [*asked, {"role": "assistant", "content": words}])
        said = without_end(whole[len(prompt if whole.startswith(prompt) else prompt.rstrip()):])
        found = split(source, cut(said, CHANNELS) if name == "harmony" else [said])
        assert (found["answer"], found["calls"]) == (words if name == "harmony" else said, []), found


def schema_of(value):
    """What a tool's author would say of the value; a mark in a string is told apart by no schema."""
    if isinstance(value, str):
        return {"type": "string"}
    return {"type": ["number", "boolean", "null", "array", "object"]}


@pytest.mark.parametrize("name", BARE)
def test_strings_that_look_like_others_are_told_by_the_schema(renderer, split, name):
    source = (ROOT / f"tests/template/calls/{name}.jinja").read_text()
    rng = random.Random(name)
    n_lookalikes = 0
    for number in range(N_ANSWERS):
        calls = some_calls(rng, False)
        for i, call in enumerate(calls):
            function = call["function"]
            function["name"] += str(i)
            for key, value in function["arguments"].items():
                if isinstance(value, str):
                    value = rng.choice([value, "12", "null", "[1]", '"x"', " a\n", "\n", "", '{"a": 1}'])
                    function["arguments"][key] = re.sub("</(arg_value|parameter|tool_call)>", "", value)
                    n_lookalikes += is_json(value)
        tools = [{"type": "function", "function": {"name": call["function"]["name"], "parameters": {
            "type": "object", "properties": {key: schema_of(value) for key, value
                                             in call["function"]["arguments"].items()}}}} for call in calls]
        asked = [{"role": "user", "content": "q"}]
        prompt = rendered(renderer, source, asked, add_generation_prompt=True)
        whole = rendered(renderer, source, [*asked, {"role": "assistant", "content": "", "tool_calls": calls}])
        found = split(source, [without_end(whole[len(prompt):])], tools)
        assert [(call["name"], json.loads(call["arguments"])) for call in found["calls"]] == [
            (call["function"]["name"], call["function"]["arguments"]) for call in calls], (number, whole)
    assert n_lookalikes > N_ANSWERS / 5
