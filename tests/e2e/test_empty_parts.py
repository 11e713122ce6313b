"""Calls and results that say nothing: null, empty and missing are the same in every dialect.  Results of tools
stand in front of the user's text, where the client has put them elsewhere, too."""
import itertools
import json

import pytest

from server import Server

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
# Writes all that a template may read of a conversation.
TEMPLATE = ("{% for m in messages %}[{{ m.role }}|{{ m.content }}{% for c in m.tool_calls or [] %}|"
            "{{ c.function.name }}={{ c.function.arguments | tojson }}{% endfor %}]{% endfor %}"
            "{% if tools %}<tool_call>{% endif %}")
MISSING = object()
NOTHING = [MISSING, None, "", " ", "{}", "null", {}]
RESULTS = [MISSING, None, "", []]


@pytest.fixture(scope="module")
def shower(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shower")
    (folder / "template.jinja").write_text(TEMPLATE)
    with Server(folder, "--chat-template", folder / "template.jinja") as one:
        yield one


def with_member(element, name, value):
    return element if value is MISSING else {**element, name: value}


def body_of(path, arguments, result):
    if path == CHAT:
        call = {"id": "c1", "type": "function", "function": with_member({"name": "f"}, "arguments", arguments)}
        return {"messages": [{"role": "user", "content": "q"},
                             {"role": "assistant", "content": None, "tool_calls": [call]},
                             with_member({"role": "tool", "tool_call_id": "c1"}, "content", result)]}
    if path == RESPONSES:
        return {"input": [{"role": "user", "content": "q"},
                          with_member({"type": "function_call", "call_id": "c1", "name": "f"}, "arguments", arguments),
                          with_member({"type": "function_call_output", "call_id": "c1"}, "output", result)]}
    use = with_member({"type": "tool_use", "id": "c1", "name": "f"}, "input", arguments)
    done = with_member({"type": "tool_result", "tool_use_id": "c1"}, "content", result)
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [use]},
                         {"role": "user", "content": [done]}]}


def prompt_of(server, path, body):
    """The text of a chat's prompt; of the others the number of its tokens."""
    if path == CHAT:
        reply = server.post(CHAT + "/render", body)
        assert reply.status == 200, (body, reply.body)
        return server.post("/detokenize", {"tokens": reply.json()["token_ids"]}).json()["prompt"]
    if path == MESSAGES:
        reply = server.post(MESSAGES + "/count_tokens", body)
        assert reply.status == 200, (body, reply.body)
        return reply.json()["input_tokens"]
    reply = server.post(RESPONSES, {**body, "max_output_tokens": 1})
    assert reply.status == 200, (body, reply.body)
    return reply.json()["usage"]["input_tokens"]


def count(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["count"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_nothing_is_nothing(shower, path):
    text = "[user|q][assistant||f={}][tool|]"
    expected = text if path == CHAT else count(shower, text)
    for arguments, result in itertools.product(NOTHING, RESULTS):
        assert prompt_of(shower, path, body_of(path, arguments, result)) == expected, (arguments, result)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("bad", [3, [], "{", "[1]", "x", True], ids=json.dumps)
def test_what_is_no_object_is_refused(shower, path, bad):
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    reply = shower.post(path, {**body_of(path, bad, "r"), limit: 1})
    assert reply.status == 400 and ("arguments" in reply.error["message"] or "input" in reply.error["message"])


@pytest.mark.parametrize("input", [MISSING, None, ""], ids=["missing", "null", "empty"])
def test_custom_calls(shower, input):
    call = {"id": "c1", "type": "custom", "custom": with_member({"name": "f"}, "input", input)}
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]}
    text = "[user|q][assistant||f={\"input\": \"\"}]"
    assert prompt_of(shower, CHAT, chat) == text
    item = with_member({"type": "custom_tool_call", "call_id": "c1", "name": "f"}, "input", input)
    assert prompt_of(shower, RESPONSES, {"input": [{"role": "user", "content": "q"}, item]}) == count(shower, text)


CALLS = {"role": "assistant", "content": "", "tool_calls": [
    {"id": i, "type": "function", "function": {"name": i, "arguments": "{}"}} for i in ("a", "b")]}
RESULT_A, RESULT_B = ({"role": "tool", "tool_call_id": i, "content": f"r{i}"} for i in ("a", "b"))


@pytest.mark.parametrize("order", [
    ["a", "b", "u"], ["u", "a", "b"], ["a", "u", "b"]], ids="".join)
def test_results_stand_in_front(shower, order):
    of = {"a": RESULT_A, "b": RESULT_B, "u": {"role": "user", "content": "now"}}
    body = {"messages": [{"role": "user", "content": "q"}, CALLS, *(of[i] for i in order),
                         {"role": "assistant", "content": "done"}, {"role": "user", "content": "more"}]}
    assert prompt_of(shower, CHAT, body) == (
        "[user|q][assistant||a={}|b={}][tool|ra][tool|rb][user|now][assistant|done][user|more]")


@pytest.mark.parametrize("order", [["a", "b", "u"], ["u", "a", "b"], ["a", "u", "b"]], ids="".join)
def test_blocks_of_results_stand_in_front(shower, order):
    uses = [{"type": "tool_use", "id": i, "name": i, "input": {}} for i in ("a", "b")]
    of = {i: {"type": "tool_result", "tool_use_id": i, "content": f"r{i}"} for i in ("a", "b")}
    of["u"] = {"type": "text", "text": "now"}
    one = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": uses},
                        {"role": "user", "content": [of[i] for i in order]}]}
    text = "[user|q][assistant||a={}|b={}][tool|ra][tool|rb][user|now]"
    assert prompt_of(shower, MESSAGES, one) == count(shower, text)
    items = {"a": {"type": "function_call_output", "call_id": "a", "output": "ra"},
             "b": {"type": "function_call_output", "call_id": "b", "output": "rb"},
             "u": {"role": "user", "content": "now"}}
    calls = [{"type": "function_call", "call_id": i, "name": i, "arguments": "{}"} for i in ("a", "b")]
    assert prompt_of(shower, RESPONSES, {"input": [{"role": "user", "content": "q"}, *calls,
                                                   *(items[i] for i in order)]}) == count(shower, text)


def test_a_result_without_a_call_stays_where_it_is(shower):
    body = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x"},
                         {"role": "user", "content": "now"}, RESULT_A]}
    assert prompt_of(shower, CHAT, body) == "[user|q][assistant|x][user|now][tool|ra]"
