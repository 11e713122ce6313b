"""Answers on channels, as gpt-oss writes them: a random model with the marks as special tokens, made by forms and
biases to think, to speak and to call, on three routes, whole and streamed."""
import json

import pytest

from server import ROOT, Server
from test_cut_calls import CHAT, MESSAGES, RESPONSES, TOOL, body_of, whole
from test_thoughts import streamed, whole as said_and_thought
from tiny_model import write_tiny_model

# The default tokenizer's tokens that stand for these marks here.
MARKS = {"<|pad|>": "<|channel|>", "<|im_start|>": "<|start|>", "<|im_end|>": "<|return|>",
         "<|end_of_text|>": "<|call|>", "<tool_call>": "<|message|>", "</tool_call>": "<|end|>",
         "<tool_response>": "<|constrain|>"}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """The server, and the ids of the marks."""
    folder = write_tiny_model(tmp_path_factory.mktemp("harmony"))
    text = (folder / "tokenizer.json").read_text()
    for own, mark in MARKS.items():
        text = text.replace(json.dumps(own)[1:-1], mark)
    parsed = json.loads(text)
    for token in parsed["added_tokens"]:
        token["special"] |= token["content"] in MARKS.values()
    ids = {token["content"]: token["id"] for token in parsed["added_tokens"]}
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(parsed))
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids["<|return|>"], ids["<|call|>"]]}))
    with Server(folder, "--chat-template", ROOT / "tests/template/calls/harmony.jinja", model=folder) as one:
        if one.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_regex": "a"}).status != 200:
            pytest.skip("built without xgrammar")
        yield one, ids


def ask(server, path, body):
    reply = server.post(path, body)
    assert reply.status == 200, reply.body
    return reply.json()


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_forced_call_is_a_message_to_the_function(speaker, path):
    server, _ = speaker
    choice = {"type": "any"} if path == MESSAGES else "required"
    for effort in ({}, {"reasoning_effort": "none"}):
        answer = ask(server, path, {**body_of(path, 80, {"tool_choice": choice}), "temperature": 0, **effort,
                                    "logit_bias": {str(speaker[1]["<|end|>"]): 40}})
        assert whole(path, answer) == ("", [("f", {"a": "x"})])


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_thought_comes_before_a_form_and_streams_as_it_is(speaker, path):
    server, ids = speaker
    ask_tokens = server.post("/tokenize", {"prompt": "analysis", "add_special_tokens": False}).json()["tokens"]
    # Where the form leaves a choice the model thinks, and with time it ends its thought.
    bias = {str(token): 30 for token in ask_tokens} | {str(ids["<|end|>"]): 3}
    body = {("max_output_tokens" if path == RESPONSES else "max_tokens"): 90, "seed": 5, "logit_bias": bias,
            ("input" if path == RESPONSES else "messages"): [{"role": "user", "content": "q"}],
            "guided_regex": "yes"}
    thought, said = said_and_thought(path, ask(server, path, body))
    assert thought and said in ("", "yes")
    assert streamed(path, server.post(path, {**body, "stream": True}).body) == (thought, said)


def test_a_form_without_a_thought_is_the_final_message(speaker):
    server, _ = speaker
    body = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 40, "reasoning_effort": "none",
            "guided_regex": "[ab]{3}", "logprobs": True}
    choice = ask(server, CHAT, body)["choices"][0]
    message = choice["message"]
    assert len(message["content"]) == 3 and set(message["content"]) <= {"a", "b"} and not message.get("reasoning")
    assert "".join(token["token"] for token in choice["logprobs"]["content"]) == message["content"]


@pytest.mark.parametrize("strict", [False, True], ids=["free", "strict"])
def test_an_answer_is_a_call_or_a_final_message_of_the_form(speaker, strict):
    server, ids = speaker
    tool = {"type": "function", "function": {"name": "f", "strict": strict, "parameters": {
        "type": "object", "properties": {"a": {"const": "x"}}, "required": ["a"]}}}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {
        "type": "object", "properties": {"b": {"enum": [1, 2]}}, "required": ["b"]}}}
    seen = set()
    for word in ("commentary", "final"):
        tokens = server.post("/tokenize", {"prompt": word, "add_special_tokens": False}).json()["tokens"]
        body = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 60, "reasoning_effort": "none", "tools": [tool],
                "response_format": form, "temperature": 0, "logit_bias": {str(token): 60 for token in tokens}}
        choice = ask(server, CHAT, body)["choices"][0]
        message = choice["message"]
        if choice["finish_reason"] == "length":  # in arguments that may be anything
            assert not strict
            continue
        if not message.get("tool_calls"):
            assert json.loads(message["content"]) in ({"b": 1}, {"b": 2}), message
        elif strict:
            assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": "x"}
        seen.add(bool(message.get("tool_calls")))
    assert False in seen and (True in seen or not strict), seen


def test_an_answer_continues_the_final_message(speaker):
    server, _ = speaker
    body = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The sun"}],
            "continue_final_message": True, "max_tokens": 20, "guided_regex": " shines"}
    assert ask(server, CHAT, body)["choices"][0]["message"]["content"] == " shines"


def test_reasoning_has_no_place_in_the_text(speaker):
    server, _ = speaker
    reply = server.post(CHAT, {"messages": [{"role": "user", "content": "q"}], "separate_reasoning": False})
    assert reply.status == 400 and reply.json()["error"]["param"] == "separate_reasoning"
