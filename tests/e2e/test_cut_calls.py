"""Calls that are cut off, whether a format's mark is a special token, another added one or ordinary text, in
three dialects, whole and streamed; and which tokens have log-probabilities in the content."""
import json
import shutil

import pytest

from server import MODEL, Server

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
FORMATS = {  # what a template says, the mark, a call
    "hermes": ("<tool_call>", "<tool_call>", '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'),
    "mistral": ("[TOOL_CALLS]", "[TOOL_CALLS]", '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"}}]'),
    "mistral-11": ("[TOOL_CALLS]", "[TOOL_CALLS]", '[TOOL_CALLS]f[ARGS]{"a": "x"}'),
    "phi-4": ("<|tool_call|>", "<|tool_call|>",
              '<|tool_call|>[{"name": "f", "arguments": {"a": "x"}}]<|/tool_call|>'),
}
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"enum": ["x"]}},
                                                        "required": ["a"]}}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def write_model(folder, mark, kind):
    """The default model with a mark in the place of <|pad|>, which is special, or an added token, or none."""
    folder.mkdir()
    for file in MODEL.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file.resolve())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (MODEL / name).read_text()
        (folder / name).unlink()
        if kind != "text" and name == "tokenizer.json":
            parsed = json.loads(text)
            taken = mark if any(t["content"] == mark for t in parsed["added_tokens"]) else "<|pad|>"
            for token in parsed["added_tokens"]:
                if token["content"] == taken:
                    token["content"], token["special"] = mark, kind == "special"
            text = json.dumps(parsed).replace(taken, mark)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module", params=[(name, kind) for name in FORMATS for kind in ("special", "added", "text")
                                        if not (name == "hermes" and kind == "added")],
                ids=lambda p: f"{p[0]}-{p[1]}")
def caller(request, tmp_path_factory):
    name, kind = request.param
    sign, mark, call = FORMATS[name]
    folder = tmp_path_factory.mktemp("caller")
    (folder / "template.jinja").write_text(TEMPLATE + "{% if tools %}{{ '" + sign + "' }}{% endif %}")
    model = write_model(folder / MODEL.name, mark, kind)
    with Server(folder, "--chat-template", folder / "template.jinja", model=model) as one:
        if one.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_regex": "a"}).status != 200:
            pytest.skip("built without xgrammar")
        yield one, mark, call


def body_of(path, limit, fields):
    user = [{"role": "user", "content": "x"}]
    if path == CHAT:
        return {"messages": user, "tools": [{"type": "function", "function": TOOL}], "max_tokens": limit, **fields}
    if path == RESPONSES:
        return {"input": user, "tools": [{"type": "function", **TOOL}], "max_output_tokens": limit, **fields}
    tool = {"name": "f", "description": "d", "input_schema": TOOL["parameters"]}
    return {"messages": user, "tools": [tool], "max_tokens": limit, **fields}


def whole(path, answer):
    """Text, and names and arguments of calls."""
    if path == CHAT:
        message = answer["choices"][0]["message"]
        calls = [c["function"] for c in message.get("tool_calls") or []]
        return message["content"] or "", [(c["name"], json.loads(c["arguments"])) for c in calls]
    if path == RESPONSES:
        text = "".join(p["text"] for o in answer["output"] if o["type"] == "message" for p in o["content"])
        return text, [(o["name"], json.loads(o["arguments"])) for o in answer["output"]
                      if o["type"] == "function_call"]
    return ("".join(b.get("text", "") for b in answer["content"]),
            [(b["name"], b["input"]) for b in answer["content"] if b["type"] == "tool_use"])


def streamed(path, body):
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if path == RESPONSES:
        return whole(path, events[-1]["response"])
    text, calls = "", []
    for event in events:
        if path == CHAT:
            delta = event["choices"][0]["delta"]
            text += delta.get("content") or ""
            calls += [(c["function"]["name"], json.loads(c["function"]["arguments"]))
                      for c in delta.get("tool_calls") or []]
        elif event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append([event["content_block"]["name"], ""])
        elif event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                calls[-1][1] += event["delta"]["partial_json"]
    return text, [(n, json.loads(a) if isinstance(a, str) else a) for n, a in calls]


def has_ended(path, answer):
    if path == CHAT:
        return answer["choices"][0]["finish_reason"] != "length"
    return answer["status"] == "completed" if path == RESPONSES else answer["stop_reason"] != "max_tokens"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_required_call_is_whole_or_nothing(caller, path):
    server, mark, _ = caller
    choice = {"type": "any", "disable_parallel_tool_use": True} if path == MESSAGES else "required"
    one = {} if path == MESSAGES else {"parallel_tool_calls": False}
    found = 0
    for limit in (1, 2, 3, 5, 8, 12, 20, 60):
        body = body_of(path, limit, {"tool_choice": choice, "temperature": 0, **one})
        reply = server.post(path, body)
        assert reply.status == 200, reply.body
        text, calls = whole(path, reply.json())
        assert text == "", (limit, text)
        assert streamed(path, server.post(path, {**body, "stream": True}).body) == (text, calls)
        assert calls or not has_ended(path, reply.json())
        assert all(name == "f" and isinstance(arguments, dict) for name, arguments in calls)
        found += len(calls)
    assert found


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_call_of_its_own_accord_is_read(caller, path):
    """The text is written by a choice, in pieces where the mark is none of its tokens."""
    server, mark, call = caller
    body = body_of(path, 100, {"structured_outputs": {"choice": ["Well. " + call]}, "temperature": 0})
    assert whole(path, server.post(path, body).json()) == ("Well. ", [("f", {"a": "x"})])
    for limit in range(1, 24, 2):
        body = body_of(path, limit, {"structured_outputs": {"choice": ["Well. " + call]}, "temperature": 0})
        answer = server.post(path, body).json()
        text, calls = whole(path, answer)
        assert calls in ([], [("f", {"a": "x"})]) and "Well. ".startswith(text[:6]) and len(text) <= 7, text
        assert streamed(path, server.post(path, {**body, "stream": True}).body) == (text, calls)


def test_a_stop_string_cuts_a_call(caller):
    server, mark, call = caller
    for stop in ('"x"', '{"', mark[3:], "f"):
        body = body_of(CHAT, 100, {"structured_outputs": {"choice": ["Well. " + call]}, "stop": [stop],
                                   "temperature": 0})
        answer = server.post(CHAT, body).json()
        text, calls = whole(CHAT, answer)
        assert (text, calls) == ("Well. ", []) and answer["choices"][0]["stop_reason"] == stop
        assert streamed(CHAT, server.post(CHAT, {**body, "stream": True}).body) == (text, calls)


def test_content_has_the_tokens_of_its_text_alone(caller):
    server, mark, call = caller
    for text, content in (("Well. " + call, "Well. "), ("Well, é😀!", "Well, é😀!"), (call, "")):
        body = body_of(CHAT, 100, {"structured_outputs": {"choice": [text]}, "logprobs": True,
                                   "top_logprobs": 2, "temperature": 0})
        choice = server.post(CHAT, body).json()["choices"][0]
        told = choice["logprobs"]["content"]
        joined = bytes(b for token in told for b in token["bytes"])
        # A token that is text in part is told, too: it can only be the last one.
        assert (choice["message"]["content"] or "") == content and joined.startswith(content.encode())
        assert not told or len(joined) - len(told[-1]["bytes"]) < len(content.encode())
        lines = server.post(CHAT, {**body, "stream": True}).body.decode().split("\n")
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        parts = [t for c in chunks for t in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert [t["bytes"] for t in parts] == [t["bytes"] for t in told]
